"""Explicit copies shared by the CTAs of a cluster: each loads a part of a tile for all of them."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import SMEM, Barrier, PipelineDeadlock, PipelineRace, SpecError, Trace, ds
from tests.kernels.cluster_kernels import loaded_together, multiplied_together, pair

SEEDS = (None, 0, 1, 2)


def integers(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).integers(-2, 3, shape).astype(np.float16)


def sums(x: np.ndarray) -> np.ndarray:
    """Return what `loaded_together` stores."""
    rows = x.astype(np.float32).reshape(-1, 64, x.shape[1] // 64, 64).sum(axis=2)
    return np.concatenate([part * n for part in rows for n in (1, 2)])


@pytest.mark.parametrize("seed", SEEDS)
def test_a_tile_comes_from_all_ctas_of_the_cluster(seed: int | None) -> None:
    x, y = integers(128, 320), np.zeros((256, 64), np.float32)
    trace = Trace()
    loaded_together.simulate(x, y, seed=seed, trace=trace)
    np.testing.assert_array_equal(y, sums(x))
    rows = {
        cta: {event.details["coords"][0] for event in trace.of("issue", cta)} for cta in trace.ctas
    }
    assert rows == {(0, 0, 0): {0}, (1, 0, 0): {32}, (2, 0, 0): {64}, (3, 0, 0): {96}}


@pytest.mark.parametrize("seed", SEEDS)
def test_tiles_are_shared_along_one_axis_each_and_along_both(seed: int | None) -> None:
    a, b, c = integers(128, 192), integers(192, 128), np.zeros((128, 128), np.float32)
    multiplied_together.simulate(a, b, c, seed=seed)
    np.testing.assert_array_equal(
        c,
        a.astype(np.float32) @ b.astype(np.float32)
        + np.tile(a[:64, :64].astype(np.float32), (2, 2)),
    )


def test_what_a_kernel_loads_is_counted_by_shares() -> None:
    x, y = integers(128, 320), np.zeros((256, 64), np.float32)
    assert numpipe.explain(loaded_together, x, y, compiled=False).loaded["x"] == x.nbytes


def one_sided(x):
    tile, landed = numpipe.scratch((SMEM((64, 64), np.float16), Barrier()))
    numpipe.copy_gmem_to_smem(
        x.at[ds(0, 64), ds(0, 64)],
        tile,
        landed,
        predicate=numpipe.axis_index("pair") == 0,
        collective_axes="pair",
    )
    numpipe.barrier_wait(landed)


def test_a_copy_that_one_cta_leaves_out_is_reported() -> None:
    for seed in SEEDS:
        with pytest.raises(
            (PipelineRace, PipelineDeadlock, numpipe.SimulationError), match="bytes"
        ):
            pair(one_sided).simulate(integers(64, 64), seed=seed)


def loaded(rows: int = 64, along: Any = "pair") -> Any:
    """Return a kernel that loads rows together."""
    kind = SMEM((rows, 64), np.float16), Barrier()

    def loads(x):
        tile, landed = numpipe.scratch(kind)
        numpipe.copy_gmem_to_smem(x.at[ds(0, rows), ds(0, 64)], tile, landed, collective_axes=along)

    return loads


def of_a_vector(x):
    tile, landed = numpipe.scratch((SMEM((64,), np.float16), Barrier()))
    numpipe.copy_gmem_to_smem(x.at[0, ds(0, 64)], tile, landed, collective_axes="pair")


@pytest.mark.parametrize(
    "body, message",
    [
        (
            loaded(along="cluster"),
            "copy_gmem_to_smem: collective_axes has 'cluster', which is not an axis of the "
            "cluster: the cluster's axes are 'pair'",
        ),
        (
            of_a_vector,
            "each CTA loads a share of a block's rows, but this block has only one dimension",
        ),
        (
            loaded(8),
            r"each of 2 CTAs loads a share of its 8 rows \(along dimension 0, the one that is not "
            r"contiguous\), and a share must be a multiple of 8 rows; fix: make that side a "
            "multiple of 16",
        ),
        (
            loaded(along=1),
            "copy_gmem_to_smem: collective_axes must be the name of an axis of the cluster .*, "
            "got 1",
        ),
    ],
    ids=lambda part: getattr(part, "__name__", ""),
)
@pytest.mark.parametrize("compiled", [False, True])
def test_what_cannot_be_shared_is_refused(body: Any, message: str, compiled: bool) -> None:
    x = integers(64, 64)
    with pytest.raises(SpecError, match=message):
        pair(body).compiled(x) if compiled else pair(body).simulate(x)


@pytest.mark.variants(1)
@pytest.mark.parametrize(
    "kernel, shapes, copies",
    [
        (loaded_together, ((128, 320), (256, 64)), 1),
        (multiplied_together, ((128, 64), (64, 128), (128, 128)), 3),
    ],
)
def test_each_share_is_a_multicast_and_the_gate_passes(
    kernel: numpipe.Kernel, shapes: Any, copies: int
) -> None:
    *given, last = shapes
    arrays = [
        *(numpipe.ArrayType(shape, np.float16) for shape in given),
        numpipe.ArrayType(last, np.float32),
    ]
    assert kernel.inspect("gate", *arrays) == ()
    ptx = kernel.inspect("ptx", *arrays)
    assert len(re.findall(r"complete_tx::bytes\.multicast::cluster \[", ptx)) >= copies
    assert not re.search(r"complete_tx::bytes \[", ptx)


def test_along_an_axis_of_one_cta_a_copy_is_its_own() -> None:
    x, landed_rows = integers(64, 64), np.zeros((64, 64), np.float16)

    def alone(x, y):
        tile, landed = numpipe.scratch((SMEM((64, 64), np.float16), Barrier()))
        numpipe.copy_gmem_to_smem(x.at[ds(0, 64), ds(0, 64)], tile, landed, collective_axes="pair")
        numpipe.barrier_wait(landed)
        y[ds(0, 64), ds(0, 64)] = tile[...]

    numpipe.kernel(alone, grid=1, cluster=1, cluster_names="pair").simulate(x, landed_rows)
    np.testing.assert_array_equal(landed_rows, x)
