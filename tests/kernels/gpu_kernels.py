"""Kernels of several GPUs, each with its expected result on GPU r of n, for any number of GPUs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import numpipe
from numpipe import SMEM, ArrayType, Barrier, BlockSpec, cdiv, ds

F16, F32 = np.dtype(np.float16), np.dtype(np.float32)


@numpipe.kernel(
    grid=numpipe.persistent(),
    num_compute_wgs=2,
    semaphores=lambda x: cdiv(x.shape[0], 128),
    out_type=lambda x: ArrayType(x.shape, x.dtype),
)
def shift(x, y, ready):
    """Store x to y of the next GPU by TMA."""
    other, wg = (numpipe.axis_index("gpu") + 1) % numpipe.axis_size("gpu"), numpipe.axis_index("wg")
    for (i,) in numpipe.tiles(cdiv(x.shape[0], 128)):
        rows = ds(i * 128 + wg * 64, 64)
        numpipe.peer(y, other)[rows, ds(0, 64)] = x[rows, ds(0, 64)]
        numpipe.signal(ready.at[i], other)
        numpipe.wait(ready.at[i], 2)


@numpipe.kernel(
    grid=numpipe.persistent(),
    semaphores=2,
    out_type=lambda x: (
        ArrayType(x.shape, x.dtype),
        ArrayType(x.shape[:1], np.float32),
        ArrayType(x.shape, np.float32),
        ArrayType(x.shape[:1], np.float32),
    ),
)
def exchanged(x, y, sums, total, copied, ready):
    """Store to the next GPU by TMA and by lanes, then load it there by TMA and by lanes, in both
    roles."""
    gpus = numpipe.axis_size("gpu")
    other = (numpipe.axis_index("gpu") + 1) % gpus
    before = (numpipe.axis_index("gpu") + gpus - 1) % gpus
    for (i,) in numpipe.tiles(x.shape[0] // 64):
        rows = ds(i * 64, 64)
        tile = x[rows, ds(0, 64)]
        numpipe.peer(y, other)[rows, ds(0, 64)] = tile
        numpipe.peer(sums, other)[rows] = tile.astype(np.float32).sum(axis=1)
        numpipe.signal(ready.at[0], other)
    for (i,) in numpipe.tiles(x.shape[0] // 64):
        numpipe.wait(ready.at[0], x.shape[0] // 64)
        copied[ds(i * 64, 64)] = sums[ds(i * 64, 64)]
        pipe = numpipe.pipeline(
            grid=(1,),
            in_specs=(BlockSpec((64, 64), lambda k: (i, 0)), BlockSpec((64,), lambda k: (i,))),
        )
        for _, (y_tile, sums_tile) in pipe(y, sums):
            down = numpipe.layout_cast(sums_tile[...], "column")
            total[ds(i * 64, 64), ds(0, 64)] = y_tile[...].astype(np.float32) + down[:, None]
    numpipe.signal(ready.at[1], before)
    numpipe.wait(ready.at[1], numpipe.num_programs(0))


@numpipe.kernel(
    grid=numpipe.persistent(),
    semaphores=lambda x: 64 * cdiv(x.shape[0], 64),
    out_type=lambda x, gpus: ArrayType((gpus * x.shape[0], x.shape[1]), x.dtype),
)
def ring_gather(x, y, arrived, *, gpus: numpipe.Static):
    """Gather x of all GPUs into y; each block goes from GPU to GPU around the ring."""
    me, rows = numpipe.axis_index("gpu"), x.shape[0]
    following = (me + 1) % gpus
    for (i,) in numpipe.tiles(cdiv(rows, 64)):
        y[ds(me * rows + i * 64, 64), ds(0, 64)] = x[ds(i * 64, 64), ds(0, 64)]
        for step in range(gpus - 1):
            block = (me + gpus - step) % gpus
            at = ds(block * rows + i * 64, 64)
            if step == 0:
                numpipe.peer(y, following)[at, ds(0, 64)] = x[ds(i * 64, 64), ds(0, 64)]
            else:
                numpipe.peer(y, following)[at, ds(0, 64)] = y[at, ds(0, 64)]
            numpipe.signal(arrived.at[i * gpus + step], following)
            numpipe.wait(arrived.at[i * gpus + step], 1)


@numpipe.kernel(
    grid=numpipe.persistent(),
    num_compute_wgs=2,
    semaphores=1,
    out_type=lambda x, gpus: (
        ArrayType(x.shape, x.dtype),
        ArrayType((x.shape[0] // gpus, x.shape[1]), x.dtype),
    ),
)
def reduce_scatter(x, parts, y, arrived, *, gpus: numpipe.Static):
    """Sum all GPUs' rows for this GPU into y, in the order of the GPUs."""
    me, wg, rows = numpipe.axis_index("gpu"), numpipe.axis_index("wg"), y.shape[0]
    tiles = cdiv(rows, 128)
    for turn, i in numpipe.tiles(gpus, tiles):
        rank = (me + turn) % gpus
        numpipe.peer(parts, rank)[ds(me * rows + i * 128 + wg * 64, 64), ds(0, 64)] = x[
            ds(rank * rows + i * 128 + wg * 64, 64), ds(0, 64)
        ]
        numpipe.signal(arrived.at[0], rank)
    numpipe.wait(arrived.at[0], 2 * gpus * tiles)
    for (i,) in numpipe.tiles(tiles):
        acc = parts[ds(i * 128 + wg * 64, 64), ds(0, 64)]
        for rank in range(1, gpus):
            acc = acc + parts[ds(rank * rows + i * 128 + wg * 64, 64), ds(0, 64)]
        y[ds(i * 128 + wg * 64, 64), ds(0, 64)] = acc


@numpipe.kernel(
    grid=numpipe.persistent(),
    num_compute_wgs=2,
    semaphores=1,
    out_type=lambda a, b, gpus: ArrayType((gpus * a.shape[0], b.shape[1]), np.float32),
)
def gather_matmul(a, b, c, done, *, gpus: numpipe.Static):
    """Compute c = the rows of a from all GPUs, times this GPU's b; a pipeline loads the peers'
    blocks."""
    me, wg = numpipe.axis_index("gpu"), numpipe.axis_index("wg")
    rows, columns = a.shape[0] // 128, b.shape[1] // 64
    for turn, i, j in numpipe.tiles(gpus, rows, columns):
        rank = (me + turn) % gpus
        pipe = numpipe.pipeline(
            grid=(a.shape[1] // 64,),
            in_specs=(
                BlockSpec((128, 64), lambda k: (i, k)),
                BlockSpec((64, 64), lambda k: (k, j)),
            ),
        )
        acc = numpipe.zeros((64, 64), np.float32)
        for _, (a_tile, b_tile) in pipe(numpipe.peer(a, rank), b):
            acc = numpipe.wgmma(acc, a_tile.at[ds(wg * 64, 64), :], b_tile)
        c[ds((rank * rows + i) * 128 + wg * 64, 64), ds(j * 64, 64)] = acc
    for rank in range(gpus):
        numpipe.signal(done.at[0], rank)
    numpipe.wait(done.at[0], 2 * gpus * numpipe.num_programs(0))


@numpipe.kernel(
    grid=numpipe.persistent(),
    semaphores=2,
    warp_specialized=False,
    out_type=lambda x: ArrayType(x.shape, x.dtype),
)
def copied_by_hand(x, y, arrived):
    """Copy x of the previous GPU to y of the next one by explicit copies, without a memory role."""
    me, gpus = numpipe.axis_index("gpu"), numpipe.axis_size("gpu")
    other, before = (me + 1) % gpus, (me + gpus - 1) % gpus
    tile, landed = numpipe.scratch(SMEM((64, 64), np.float16)), numpipe.scratch(Barrier())
    for (i,) in numpipe.tiles(x.shape[0] // 64):
        numpipe.copy_gmem_to_smem(
            numpipe.peer(x, before).at[ds(i * 64, 64), ds(0, 64)], tile, landed
        )
        numpipe.barrier_wait(landed)
        numpipe.copy_smem_to_gmem(tile, numpipe.peer(y, other).at[ds(i * 64, 64), ds(0, 64)])
        numpipe.wait_smem_to_gmem(0)
        numpipe.signal(arrived.at[0], other)
        numpipe.signal(arrived.at[1], before)
    for i in range(2):
        numpipe.wait(arrived.at[i], x.shape[0] // 64)


@numpipe.kernel(
    grid=numpipe.persistent(), semaphores=1, out_type=lambda x, counts: ArrayType(x.shape, x.dtype)
)
def taken_by_count(x, counts, y, done):
    """Copy blocks of x from the previous GPU to y, as many as its count says; the count controls
    the loads."""
    me, gpus = numpipe.axis_index("gpu"), numpipe.axis_size("gpu")
    before = (me + gpus - 1) % gpus
    for (i,) in numpipe.tiles(x.shape[0] // 64):
        many = numpipe.peer(counts, before)[0]
        acc = numpipe.zeros((64, 64), np.float32)
        # at least one step, so the compute role knows that the memory role has read the count
        pipe = numpipe.pipeline(
            grid=(2 if i < many else 1,), in_specs=(BlockSpec((64, 64), lambda k: (i * k, 0)),)
        )
        for (k,), (x_tile,) in pipe(numpipe.peer(x, before)):
            if k == 1:
                acc = x_tile[...].astype(np.float32)
        y[ds(i * 64, 64), ds(0, 64)] = acc.astype(np.float16)
    numpipe.signal(done.at[0], before)
    numpipe.wait(done.at[0], numpipe.num_programs(0))


@numpipe.kernel(
    grid=numpipe.persistent(),
    semaphores=lambda x: x.shape[0] // 64,
    out_type=lambda x: (ArrayType(x.shape, x.dtype), ArrayType(x.shape, x.dtype)),
)
def around_the_ctas(x, y, z, ready):
    """Compute z = x on one GPU; each CTA takes the blocks that the next CTA stored to y."""
    me, cta, ctas = numpipe.axis_index("gpu"), numpipe.program_id(0), numpipe.num_programs(0)
    blocks = x.shape[0] // 64
    for i in range(cdiv(blocks, ctas)):
        if i * ctas + cta < blocks:
            at = ds((i * ctas + cta) * 64, 64)
            y[at, ds(0, 64)] = x[at, ds(0, 64)]
            numpipe.signal(ready.at[i * ctas + cta], me)
    for i in range(cdiv(blocks, ctas)):
        block = i * ctas + (cta + 1) % ctas
        if block < blocks:
            numpipe.wait(ready.at[block], 1)
            z[ds(block * 64, 64), ds(0, 64)] = y[ds(block * 64, 64), ds(0, 64)]


@numpipe.function
def doubled(tiles: Any, source: Any, target: Any) -> None:
    """Store twice the tiles of one array to another, by a pipeline."""
    pipe = numpipe.pipeline(
        grid=(tiles,),
        in_specs=(BlockSpec((64, 64), lambda k: (k, 0)),),
        out_specs=(BlockSpec((64, 64), lambda k: (k, 0)),),
    )
    for _, (x_tile, y_tile) in pipe(source, target):
        y_tile[...] = x_tile[...] + x_tile[...]


@numpipe.kernel(
    grid=numpipe.persistent(1), semaphores=2, out_type=lambda x: ArrayType(x.shape, x.dtype)
)
def piped(x, y, arrived):
    """Store twice the x of the previous GPU to y of the next one; one pipeline in a function loads
    and stores."""
    me, gpus = numpipe.axis_index("gpu"), numpipe.axis_size("gpu")
    other, before = (me + 1) % gpus, (me + gpus - 1) % gpus
    doubled(x.shape[0] // 64, numpipe.peer(x, before), numpipe.peer(y, other))
    numpipe.signal(arrived.at[0], other)
    numpipe.signal(arrived.at[1], before)
    for i in range(2):
        numpipe.wait(arrived.at[i], 1)


@numpipe.kernel(
    grid=numpipe.persistent(),
    num_compute_wgs=2,
    schedule="pingpong",
    semaphores=1,
    out_type=lambda a, b, gpus: ArrayType((a.shape[0], b.shape[1]), np.float32),
)
def in_turns(a, b, c, arrived, *, gpus: numpipe.Static):
    """Store a @ b of this GPU to c of the next one; warpgroups take turns on tiles from a
    counter."""
    other, columns = (numpipe.axis_index("gpu") + 1) % gpus, b.shape[1] // 64
    for i, j in numpipe.tiles(a.shape[0] // 64, columns, dynamic=True):
        pipe = numpipe.pipeline(
            grid=(a.shape[1] // 64,),
            in_specs=(BlockSpec((64, 64), lambda k: (i, k)), BlockSpec((64, 64), lambda k: (k, j))),
        )
        acc = numpipe.zeros((64, 64), np.float32)
        for _, (a_tile, b_tile) in pipe(a, b):
            acc = numpipe.wgmma(acc, a_tile, b_tile)
        numpipe.peer(c, other)[ds(i * 64, 64), ds(j * 64, 64)] = acc
        numpipe.signal(arrived.at[0], other)
    numpipe.wait(arrived.at[0], a.shape[0] // 64 * columns)


@numpipe.kernel(
    grid=numpipe.persistent(2),
    cluster=(2,),
    cluster_names=("pair",),
    semaphores=1,
    out_type=lambda a, b: ArrayType((a.shape[0], b.shape[1]), np.float32),
)
def in_clusters(a, b, c, done):
    """Compute c = a of the previous GPU @ b, where two CTAs share the blocks of b."""
    me, gpus = numpipe.axis_index("gpu"), numpipe.axis_size("gpu")
    before, cta = (me + gpus - 1) % gpus, numpipe.axis_index("pair")
    pipe = numpipe.pipeline(
        grid=(a.shape[1] // 64,),
        in_specs=(
            BlockSpec((64, 64), lambda k: (cta, k)),
            BlockSpec((64, 64), lambda k: (k, 0), collective_axes=("pair",)),
        ),
    )
    acc = numpipe.zeros((64, 64), np.float32)
    for _, (a_tile, b_tile) in pipe(numpipe.peer(a, before), b):
        acc = numpipe.wgmma(acc, a_tile, b_tile)
    c[ds(cta * 64, 64), ds(0, 64)] = acc
    numpipe.signal(done.at[0], before)
    numpipe.wait(done.at[0], 2)


@dataclass(frozen=True)
class Case:
    """A kernel, its inputs on `gpus` GPUs, and its results on each of them."""

    kernel: Any
    inputs: Callable[[int], Sequence[list[np.ndarray]]]
    results: Callable[..., Sequence[Sequence[np.ndarray]]]
    static: bool = False

    def options(self, gpus: int) -> dict[str, Any]:
        return {"gpus": gpus} if self.static else {}


def blocks(gpus: int, *shape: int, dtype: Any = F16) -> list[np.ndarray]:
    """Return small integers, different on each GPU, whose sums and products are exact."""
    return [np.random.default_rng(gpu).integers(-3, 4, shape).astype(dtype) for gpu in range(gpus)]


def before(arrays: list[np.ndarray], by: int = 1) -> list[np.ndarray]:
    """Return what each GPU has after it receives the array of the previous GPU (or of `by` GPUs
    before)."""
    return [arrays[(gpu - by) % len(arrays)] for gpu in range(len(arrays))]


def _exchanged(x: list[np.ndarray]) -> Sequence[list[np.ndarray]]:
    y = before(x)
    sums = [each.astype(F32).sum(axis=1) for each in y]
    return y, sums, [each.astype(F32) + of[:, None] for each, of in zip(y, sums, strict=True)], sums


def _reduced(x: list[np.ndarray]) -> Sequence[list[np.ndarray]]:
    rows = x[0].shape[0] // len(x)
    parts = [
        np.concatenate([each[gpu * rows : (gpu + 1) * rows] for each in x]) for gpu in range(len(x))
    ]
    return parts, [sum(each[gpu * rows : (gpu + 1) * rows] for each in x) for gpu in range(len(x))]  # type: ignore[misc]


def _taken(x: list[np.ndarray], counts: list[np.ndarray]) -> Sequence[list[np.ndarray]]:
    y = []
    for of, many in zip(before(x), before(counts), strict=True):
        y.append(of.copy())
        y[-1][64 * int(many[0]) :] = 0
    return [y]


CASES = {
    "shift": Case(shift, lambda n: [blocks(n, 320, 64)], lambda x: [before(x)]),
    "exchanged": Case(exchanged, lambda n: [blocks(n, 192, 64)], _exchanged),
    "ring_gather": Case(
        ring_gather, lambda n: [blocks(n, 128, 64)], lambda x: [[np.concatenate(x)] * len(x)], True
    ),
    "reduce_scatter": Case(
        reduce_scatter,
        lambda n: [[x / 3 for x in blocks(n, 128 * n, 64, dtype=F32)]],
        _reduced,
        True,
    ),
    "gather_matmul": Case(
        gather_matmul,
        lambda n: [blocks(n, 128, 128), blocks(n, 128, 64)],
        lambda a, b: [[np.concatenate(a).astype(F32) @ of.astype(F32) for of in b]],
        True,
    ),
    "copied_by_hand": Case(
        copied_by_hand, lambda n: [blocks(n, 192, 64)], lambda x: [before(x, 2)]
    ),
    "taken_by_count": Case(
        taken_by_count,
        lambda n: [blocks(n, 192, 64), [np.array([1 + gpu % 3, 0], np.int32) for gpu in range(n)]],
        _taken,
    ),
    "piped": Case(
        piped, lambda n: [blocks(n, 192, 64)], lambda x: [[2 * each for each in before(x, 2)]]
    ),
    "in_turns": Case(
        in_turns,
        lambda n: [blocks(n, 128, 128), blocks(n, 128, 128)],
        lambda a, b: [before([x.astype(F32) @ y.astype(F32) for x, y in zip(a, b, strict=True)])],
        True,
    ),
    "in_clusters": Case(
        in_clusters,
        lambda n: [blocks(n, 128, 128), blocks(n, 128, 64)],
        lambda a, b: [[x.astype(F32) @ y.astype(F32) for x, y in zip(before(a), b, strict=True)]],
    ),
    "around_the_ctas": Case(around_the_ctas, lambda n: [blocks(n, 192, 64)], lambda x: [x, x]),
}
