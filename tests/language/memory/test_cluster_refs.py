"""Loads from the shared memory of other CTAs of the cluster: results, ordering, and compiled
code."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import SMEM, ClusterBarrier, PipelineRace, SimulationError, SpecError, ds
from tests.hazards.removal import places_of, without
from tests.kernels.cluster_kernels import (
    halos,
    integers,
    pair,
    read_by_all,
    sums_of_clusters,
)

SEEDS = (None, 0, 1)
KINDS: list[tuple[int, Any, tuple[int, int], bool]] = [
    (2, np.float32, (64, 32), True),
    (4, np.float16, (64, 64), True),
    (3, np.int32, (64, 40), False),
    (2, np.int8, (128, 16), True),
]


@pytest.mark.parametrize("size, dtype, shape, memory_role", KINDS, ids=str)
def test_all_ctas_load_what_each_has_stored(
    size: int, dtype: Any, shape: tuple[int, int], memory_role: bool, runs: Any, target: str
) -> None:
    clusters, blocks = {"sim": (2, 2), "gpu": (60, 20)}[target]
    x = integers(clusters * size * shape[0], blocks * shape[1], dtype=dtype)
    wanted = sums_of_clusters(x.astype(np.float32), size, shape[0])
    for run in runs:
        y = np.zeros(x.shape, np.float32)
        run(read_by_all(size, dtype, shape, memory_role), x, y)
        np.testing.assert_array_equal(y, wanted)


def test_parts_and_vectors_of_another_cta_are_loaded(runs: Any, target: str) -> None:
    x = integers({"sim": 256, "gpu": 64 * 400}[target], 64)
    other = x.reshape(-1, 2, 64, 64)[:, ::-1].reshape(x.shape)
    for run in runs:
        y = np.zeros((len(x), 32), np.float32)
        run(halos, x, y)
        np.testing.assert_array_equal(
            y, x[:, :32] + other[:, 2:34] + other.sum(axis=1, keepdims=True)
        )


def test_verify_finds_nothing() -> None:
    x = integers(128, 96)
    numpipe.verify(
        read_by_all(2, np.float32, (64, 32)), x, np.zeros_like(x), schedules=4
    ).raise_if_failed()


@pytest.mark.variants(1, thorough=1)
@pytest.mark.parametrize("size, dtype, shape, memory_role", KINDS, ids=str)
def test_loads_are_of_the_cluster_and_the_barrier_releases_to_it(
    size: int, dtype: Any, shape: tuple[int, int], memory_role: bool
) -> None:
    given = (
        numpipe.ArrayType((2 * size * shape[0], 2 * shape[1]), dtype),
        numpipe.ArrayType((2 * size * shape[0], 2 * shape[1]), np.float32),
    )
    kernel = read_by_all(size, dtype, shape, memory_role)
    assert kernel.inspect("gate", *given) == ()
    text = kernel.inspect("ptx", *given)
    assert "ld.shared::cluster" in text
    assert (
        text.count("mbarrier.arrive.release.cluster")
        == text.count("try_wait.parity.acquire.cluster")
        == 1
    )
    # the signal that all have read needs no such fence
    assert text.count("mbarrier.arrive.shared::cluster") == 1


def test_a_debugged_kernel_waits_with_the_scope_of_the_cluster_too() -> None:
    kernel = read_by_all(2, np.float32, (64, 32))
    made = numpipe.kernel(
        kernel.function,
        grid=2,
        grid_names="cta",
        cluster=2,
        cluster_names="ring",
        compiler_params=numpipe.CompilerParams(debug=True),
    )
    array = numpipe.ArrayType((128, 64), np.float32)
    # at once, and again
    assert (
        made.inspect("ptx", array, array).count("try_wait.parity.acquire.cluster.shared::cta") == 2
    )


def test_without_the_waits_or_arrivals_loads_are_reported() -> None:
    x = integers(128, 64)

    def run(seed: int | None) -> None:
        read_by_all(2, np.float32, (64, 32)).simulate(x, np.zeros_like(x), seed=seed)

    places = [
        place
        for place in places_of(lambda: run(None))[0]
        if "phases." in str(place) and place.operation != "warp_sync"
    ]
    assert {place.operation for place in places} == {"mbar_wait", "mbar_arrive_cluster"} and len(
        places
    ) == 3
    for place in places:
        for seed in SEEDS:
            with without(place), pytest.raises(SimulationError):
                run(seed)


def test_ordering_by_another_barrier_is_not_enough() -> None:
    """A barrier without the option orders the reads only, even after one that has it: each orders
    its own CTA's stores."""

    @numpipe.kernel(grid=3, cluster=3, cluster_names="all")
    def passed_on(x, y):
        tile, met = numpipe.scratch((SMEM((64, 32), np.float32), ClusterBarrier("all", 2)))
        rank = numpipe.axis_index("all")
        tile[...] = x[ds(rank * 64, 64), ds(0, 32)]
        for k in range(2):
            numpipe.barrier_arrive(met.at[k])
            numpipe.barrier_wait(met.at[k])
        y[ds(rank * 64, 64), ds(0, 32)] = numpipe.cluster_ref(
            tile, cluster_idx=(rank + 1) % 3, cluster_dim="all"
        )[...]

    with pytest.raises(PipelineRace, match=r"orders_stores=True"):
        passed_on.simulate(integers(192, 32), np.zeros((192, 32), np.float32))


def test_bad_cluster_refs_are_refused() -> None:
    def axis(x, y):
        tile = numpipe.scratch(SMEM((64, 32), np.float32))
        y[ds(0, 64), ds(0, 32)] = numpipe.cluster_ref(tile, cluster_idx=0, cluster_dim="other")[...]

    def slot(x, y):
        for _, (tile,) in numpipe.pipeline(grid=(1,), in_specs=(numpipe.BlockSpec((64, 32)),))(x):
            y[ds(0, 64), ds(0, 32)] = numpipe.cluster_ref(tile, cluster_idx=0, cluster_dim="pair")[
                ...
            ]

    def array(x, y):
        y[ds(0, 64), ds(0, 32)] = numpipe.cluster_ref(x, cluster_idx=0, cluster_dim="pair")[...]

    def stored(x, y):
        tile = numpipe.scratch(SMEM((64, 32), np.float32))
        numpipe.cluster_ref(tile, cluster_idx=0, cluster_dim="pair")[...] = x[ds(0, 64), ds(0, 32)]

    def tested(x, y):
        there = numpipe.scratch(ClusterBarrier("pair", orders_stores=True))
        numpipe.barrier_arrive(there)
        while not numpipe.barrier_test(there):
            pass

    x = integers(128, 32)
    for body, says in (
        (axis, r"cluster_ref: .*'other'"),
        (slot, "cluster_ref: tile belongs to a pipeline"),
        (array, r"cluster_ref: tile must be a tile in shared memory"),
        (stored, "can only be loaded from, .*numpipe.async_store_smem"),
        (tested, r"barrier_test: .*orders_stores=True.*call barrier_wait"),
    ):
        with pytest.raises(SpecError, match=says):
            pair(body).simulate(x, np.zeros_like(x))
        with pytest.raises(SpecError, match=says):
            pair(body).inspect("ptx", *[numpipe.ArrayType(x.shape, x.dtype)] * 2)


def test_a_cta_that_the_cluster_has_not_is_reported() -> None:
    def behind(x, y):
        tile = numpipe.scratch(SMEM((64, 32), np.float32))
        y[ds(0, 64), ds(0, 32)] = numpipe.cluster_ref(
            tile, cluster_idx=2 + numpipe.axis_index("pair"), cluster_dim="pair"
        )[...]

    with pytest.raises(
        SimulationError,
        match="cluster_ref: cluster_idx=[23], but the cluster has 2 CTAs along 'pair'",
    ):
        pair(behind).simulate(integers(128, 32), np.zeros((128, 32), np.float32))
