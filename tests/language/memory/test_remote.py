"""Stores to the shared memory of other CTAs of the cluster: results, reports, and compiled code."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import (
    SMEM,
    Barrier,
    ClusterBarrier,
    PipelineDeadlock,
    PipelineRace,
    SimulationError,
    SpecError,
    ds,
)
from tests.kernels.cluster_kernels import (
    integers,
    pair,
    passed_round,
    sent_by_the_leader,
    summed_by_all,
    sums_of_clusters,
    times_row_sums,
)

SEEDS = (None, 0, 1, 2)
KINDS: list[tuple[int, Any, tuple[int, int]]] = [
    (2, np.float32, (64, 64)),
    (4, np.float16, (64, 64)),
    (3, np.int32, (64, 40)),
    (2, np.float16, (128, 24)),
    (2, np.float32, (64, 128)),
]


@pytest.mark.parametrize("size, dtype, shape", KINDS, ids=str)
def test_tiles_go_round_a_cluster(
    size: int, dtype: Any, shape: tuple[int, int], runs: Any, target: str
) -> None:
    x = integers({"sim": 2, "gpu": 24}[target] * size * shape[0], shape[1], dtype=dtype)
    for run in runs:
        y = np.zeros_like(x)
        run(passed_round(size, dtype, shape), x, y)
        np.testing.assert_array_equal(y, sums_of_clusters(x, size, shape[0]))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_phase_counts_the_stores_of_all_ctas_including_its_own(seed: int | None) -> None:
    x = integers(512, 32)
    y = np.zeros_like(x)
    summed_by_all.simulate(x, y, seed=seed)
    np.testing.assert_array_equal(y, sums_of_clusters(x, 4, 128))


@pytest.mark.variants(1)
@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_sums_of_rows_are_vectors_that_ctas_send_each_other(
    dtype: Any, runs: Any, target: str
) -> None:
    x = integers({"sim": 256, "gpu": 128 * 200}[target], 128, dtype=dtype)
    for run in runs:
        y = np.zeros_like(x)
        run(times_row_sums, x, y)
        np.testing.assert_array_equal(y, x * x.sum(axis=1, keepdims=True))
    array = numpipe.ArrayType(x.shape, dtype)
    assert times_row_sums.inspect("gate", array, array) == ()


@pytest.mark.parametrize("cluster", [(1, 1), (2, 1), (2, 2)], ids=str)
def test_along_other_axes_a_tile_stays_where_it_is(cluster: tuple[int, int]) -> None:
    @numpipe.kernel(grid=(2, 2), cluster=cluster, cluster_names=("a", "b"))
    def turned(x, y):
        buffer, landed = numpipe.scratch((SMEM((64, 16), np.float32), Barrier()))
        here = numpipe.program_id(0) + 2 * numpipe.program_id(1)
        numpipe.async_store_smem(
            x[ds(here * 64, 64), ds(0, 16)],
            buffer,
            landed,
            cluster_dim="a",
            cluster_idx=numpipe.axis_size("a") - 1 - numpipe.axis_index("a"),
        )
        numpipe.barrier_wait(landed)
        y[ds(here * 64, 64), ds(0, 16)] = buffer[...]

    x = integers(256, 16)
    y = np.zeros_like(x)
    turned.simulate(x, y)
    np.testing.assert_array_equal(y, x.reshape(-1, cluster[0], 64, 16)[:, ::-1].reshape(256, 16))


@numpipe.kernel(grid=4, cluster=4, cluster_names="all")
def added_up(x, y):
    """Add the sums of the eight rows of each CTA, and of the columns of a tile, of all CTAs."""
    rank = numpipe.axis_index("all")
    sums, tiles, landed = numpipe.scratch(
        (SMEM((32,), np.float32), SMEM((4, 64, 8), np.float32), Barrier(4, 2))
    )
    rows = x[ds(64 * rank, 8), ds(0, 256)].sum(axis=1)
    numpipe.async_store_smem(
        rows, sums.at[ds(8 * rank, 8)], landed.at[0], cluster_idx=None, cluster_dim="all"
    )
    numpipe.async_store_smem(
        x[ds(64 * rank, 64), ds(0, 8)],
        tiles.at[rank],
        landed.at[1],
        cluster_idx=None,
        cluster_dim="all",
    )
    numpipe.barrier_wait(landed.at[0])
    numpipe.barrier_wait(landed.at[1])
    total = numpipe.full((64, 8), sums[ds(0, 32)].sum(), np.float32)
    for number in range(4):
        total = total + tiles.at[number][...]
    y[ds(64 * rank, 64), ds(0, 8)] = total


def test_a_tile_or_the_sums_of_few_rows_go_to_all_ctas(runs: Any) -> None:
    x = integers(256, 256)
    wanted = x.reshape(4, 64, 256)[:, :8].sum() + x[:, :8].reshape(4, 64, 8).sum(axis=0)
    for run in runs:
        y = np.zeros((256, 8), np.float32)
        run(added_up, x, y)
        np.testing.assert_array_equal(y, np.tile(wanted, (4, 1)))


def test_floats_are_converted_as_a_store_converts() -> None:
    @numpipe.kernel(grid=2, cluster=2, cluster_names="pair")
    def narrowed(y):
        buffer, landed = numpipe.scratch((SMEM((64, 16), np.float16), Barrier()))
        rank = numpipe.axis_index("pair")
        third = numpipe.full((64, 16), 1 / 3, np.float32)
        numpipe.async_store_smem(third, buffer, landed, cluster_idx=1 - rank, cluster_dim="pair")
        numpipe.barrier_wait(landed)
        y[ds(rank * 64, 64), ds(0, 16)] = buffer[...]

    y = np.zeros((128, 16), np.float16)
    narrowed.simulate(y)
    assert (y == np.float16(1 / 3)).all()


def test_a_leader_hears_from_all_ctas_of_its_cluster(runs: Any, target: str) -> None:
    x = integers(128, 32 * {"sim": 3, "gpu": 50}[target])
    wanted = x.reshape(2, 64, -1, 32).sum(axis=2)
    for run in runs:
        y = np.zeros((8 * 64, 32), np.float32)
        run(sent_by_the_leader, x, y)
        np.testing.assert_array_equal(y.reshape(2, 4, 64, 32), np.repeat(wanted[:, None], 4, 1))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_leader_that_does_not_listen_is_reported(seed: int | None) -> None:
    with pytest.raises(PipelineRace) as caught:
        sent_by_the_leader.simulate(
            integers(128, 96), np.zeros((8 * 64, 32), np.float32), seed=seed, hears=False
        )
    assert caught.value.report is not None
    assert caught.value.report.hazard in ("refilled-while-read", "too-many-arrivals")


def test_a_cta_that_is_not_the_leader_waits_in_vain_and_is_reported() -> None:
    def everybody(x):
        met = numpipe.scratch(ClusterBarrier("pair", leader_tracked=True))
        numpipe.barrier_arrive(met)
        numpipe.barrier_wait(met)

    with pytest.raises(PipelineDeadlock, match=r"of CTA \(1, 0, 0\): blocked on barrier"):
        pair(everybody).simulate(integers(64, 16))


def sent(
    shape: tuple[int, int] = (64, 16),
    dtype: Any = np.float32,
    barrier: Any = None,
    to: Any = 0,
    along: str = "pair",
) -> Any:
    """Return a kernel that sends a tile (64, 16) of float32 to a buffer."""
    kind = SMEM(shape, dtype), barrier or Barrier()

    def sends(x):
        buffer, landed = numpipe.scratch(kind)
        tile = x[ds(0, 64), ds(0, 16)]
        numpipe.async_store_smem(tile, buffer, landed, cluster_idx=to, cluster_dim=along)

    return sends


def test_a_place_outside_the_cluster_is_reported() -> None:
    with pytest.raises(
        SimulationError, match="cluster_idx=2, but the cluster has 2 CTAs along 'pair'"
    ) as caught:
        pair(sent(to=2)).simulate(integers(64, 16))
    assert caught.value.report is not None and caught.value.report.hazard == "out-of-bounds"


def a_number(x):
    buffer, landed = numpipe.scratch((SMEM((64, 16), np.float32), Barrier()))
    numpipe.async_store_smem(1.0, buffer, landed, cluster_idx=0, cluster_dim="pair")


def to_an_array(x):
    landed = numpipe.scratch(Barrier())
    numpipe.async_store_smem(
        x[ds(0, 64), ds(0, 16)],
        x.at[ds(0, 64), ds(0, 16)],
        landed,
        cluster_idx=0,
        cluster_dim="pair",
    )


def columns_of_16_bits(x):
    buffer, landed = numpipe.scratch((SMEM((64, 64), np.float16), Barrier()))
    numpipe.async_store_smem(
        numpipe.full((64, 64), 1.0, np.float16), buffer.T, landed, cluster_idx=0, cluster_dim="pair"
    )


def sums_of_columns(x):
    buffer, landed = numpipe.scratch((SMEM((16,), np.float32), Barrier()))
    numpipe.async_store_smem(
        x[ds(0, 64), ds(0, 16)].sum(axis=0), buffer, landed, cluster_idx=0, cluster_dim="pair"
    )


@pytest.mark.parametrize(
    "body, message",
    [
        (
            sent((64, 32)),
            "async_store_smem: src is \\(64, 16\\), but dst is \\(64, 32\\): they must have the "
            "same shape",
        ),
        (
            sent(dtype=np.int32),
            r"src is float32, but dst is int32; fix: send src.astype\(dst.dtype\)",
        ),
        (
            sent(along="cluster"),
            "cluster_dim has 'cluster', which is not an axis of the cluster: the cluster's axes "
            "are 'pair'",
        ),
        (a_number, "src must be a register tile, got float"),
        (
            sent(to=0.5),
            "cluster_idx, the index of the other CTA along 'pair', must be an integer, got float",
        ),
        (to_an_array, "dst must be a tile in shared memory that the kernel has allocated"),
        (
            columns_of_16_bits,
            "st.async stores at least 4 bytes, but a lane has only one element of a row of "
            "float16; fix: send to a tile whose",
        ),
        (
            sums_of_columns,
            r"a vector must have a multiple of 64 elements of 32 bits, or be .*got float32 \(16,\)",
        ),
        (
            sent(barrier=ClusterBarrier("pair")),
            "which counts arrivals of several CTAs, but a copy arrives in one CTA only",
        ),
    ],
    ids=lambda part: getattr(part, "__name__", ""),
)
@pytest.mark.parametrize("compiled", [False, True])
def test_what_cannot_be_sent_is_refused(body: Any, message: str, compiled: bool) -> None:
    x = integers(64, 64)
    with pytest.raises(SpecError, match=message):
        pair(body).compiled(x) if compiled else pair(body).simulate(x)


@pytest.mark.variants(0, thorough=1)
@pytest.mark.parametrize("size, dtype, shape", KINDS[:2], ids=str)
def test_each_lane_sends_what_it_has_and_the_gate_passes(
    size: int, dtype: Any, shape: tuple[int, int]
) -> None:
    array = numpipe.ArrayType((size * shape[0], shape[1]), dtype)
    kernel = passed_round(size, dtype, shape)
    assert kernel.inspect("gate", array, array) == ()
    ptx = kernel.inspect("ptx", array, array)
    sent = re.findall(
        r"st\.async\.weak\.shared::cluster\.mbarrier::complete_tx::bytes(\.v2)?\.b32", ptx
    )
    assert sent and set(sent) == {".v2" if dtype == np.float32 else ""}
    assert len(sent) % (shape[0] * shape[1] // 256) == 0
    assert (
        "mbarrier.arrive.expect_tx.shared::cluster.b64" in ptx
        and "release.cluster.shared" not in ptx
    )
