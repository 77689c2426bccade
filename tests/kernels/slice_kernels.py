"""Kernels that read parts of shared tiles from arbitrary starts, for the simulator and the GPU."""

from __future__ import annotations

import numpy as np

import numpipe
from numpipe import SMEM, Barrier, BlockSpec, ds

STARTS = (0, 0), (1, 0), (8, 64), (13, 29), (64, 64), (63, 1)


@numpipe.kernel
def anywhere(x, y, row, column):
    """Read a part of a tile, and the same part of its transpose, from run-time starts."""
    pipe = numpipe.pipeline(grid=(1,), in_specs=(BlockSpec((128, 128), lambda _: (0, 0)),))
    for _, (t,) in pipe(x):
        y[ds(0, 64), ds(0, 64)] = t[ds(row, 64), ds(column, 64)]
        y[ds(64, 64), ds(0, 64)] = t.T[ds(column, 64), ds(row, 64)]


@numpipe.kernel
def stored_anywhere(x, y, row, column):
    tile = numpipe.scratch(SMEM((128, 128), np.float32))
    tile[...] = numpipe.zeros((128, 128), np.float32)
    tile[ds(row, 64), ds(column, 64)] = x[ds(0, 64), ds(0, 64)]
    y[ds(0, 128), ds(0, 128)] = tile[...]


@numpipe.kernel
def counted(x, y, first, slot, barrier):
    """Increment 64 bins from `first` on by one each, through a slot, with indexed elements and
    barriers."""
    slots, met = numpipe.scratch((SMEM((2, 8, 128), np.float32), Barrier(num_barriers=2)))
    bins = numpipe.scratch(SMEM((128,), np.int32))
    bins[...] = numpipe.full(128, 0, np.int32)
    numpipe.atomic_add(bins.at[numpipe.iota(64) + first], 1)
    row = numpipe.layout_cast(bins[...].astype(np.float32), "row 32")
    slots.at[slot][...] = numpipe.full((8, 128), 0.0, np.float32) + row[None, :]
    numpipe.barrier_arrive(met.at[barrier])
    numpipe.barrier_wait(met.at[barrier])
    y[ds(0, 8), ds(0, 128)] = slots.at[slot][...]


@numpipe.kernel
def viewed(x, y, row, column, slot_row):
    """Use views of (128, 128) float16 x: a product of a view, and slices of views of a slot.

    One of the slices is of a transposed view.
    """
    slots = numpipe.scratch(SMEM((2, 128, 64), np.float16))
    for _, (t,) in numpipe.pipeline(grid=(1,), in_specs=(BlockSpec((128, 128), lambda _: (0, 0)),))(
        x
    ):
        part = t.at[ds(row, 64), ds(column, 64)]
        y[ds(0, 64), ds(0, 64)] = numpipe.wgmma_wait(
            numpipe.wgmma(None, part, t.at[ds(0, 64), ds(0, 64)].T), 0
        )
        y[ds(64, 64), ds(0, 64)] = t.T.at[ds(column, 64), :][:, ds(row, 64)].astype(np.float32)
        slots.at[1][...] = t[:, ds(0, 64)]
        y[ds(128, 64), ds(0, 64)] = slots.at[1, ds(slot_row, 64), :][...].astype(np.float32)


def viewed_wanted(x: np.ndarray, row: int, column: int, slot_row: int) -> np.ndarray:
    x = x.astype(np.float32)
    part = x[row : row + 64, column : column + 64]
    return np.concatenate([part @ x[:64, :64].T, part.T, x[slot_row : slot_row + 64, :64]])


KERNELS = {
    "anywhere": anywhere,
    "stored_anywhere": stored_anywhere,
    "viewed": viewed,
    "counted": counted,
}
INSIDE = {
    "anywhere": (13, 29),
    "stored_anywhere": (13, 29),
    "viewed": (8, 64, 56),
    "counted": (50, 1, 1),
}
OUTSIDE = [
    ("anywhere", (65, 0), "tile[…]", "start 65 along dimension 0"),
    ("anywhere", (0, -1), "tile[…]", "start -1 along dimension 1"),
    ("stored_anywhere", (3, 100), "tile[…]", "start 100 along dimension 1"),
    ("viewed", (72, 0, 0), "tile.at[…]", "start 72 along dimension 0"),
    ("viewed", (0, -64, 0), "tile.at[…]", "start -64 along dimension 1"),
    ("viewed", (0, 0, 2**30), "tile.at[…]", "start 1073741824 along dimension 0"),
]
"""(kernel, arguments of which one is out of bounds, name of the slice, the offending start)"""
ELSEWHERE = [
    (
        (65, 0, 0),
        "atomic_add: index 128 is outside the tile (128,)",
        "atomic_add: a tile (128,) in shared memory: index 128 along dimension 0 is outside 0…127",
    ),
    (
        (-1, 0, 0),
        "atomic_add: index -1 is outside the tile (128,)",
        "atomic_add: a tile (128,) in shared memory: index -1 along dimension 0 is outside 0…127",
    ),
    (
        (0, 2, 0),
        "….at[…]: index 2 along dimension 0 is outside 0…1",
        "….at[…]: index 2 along dimension 0 is outside 0…1",
    ),
    (
        (0, 0, -1),
        "….at[…]: index -1 along dimension 0 is outside 0…1",
        "….at[…]: index -1 along dimension 0 is outside 0…1",
    ),
]
"""(arguments of `counted` of which one is out of bounds, text of the simulator, text of a kernel
built with debug)"""


def arrays(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the arrays that a kernel of KERNELS reads and writes."""
    x = np.random.default_rng(0).integers(-3, 4, (128, 128))
    return x.astype(np.float16 if name == "viewed" else np.float32), np.zeros(
        (192, 128), np.float32
    )


@numpipe.kernel
def stored_by_two_warps(y, z):
    """Store and add tiles by rows that are split between two warps, and others, from the first two
    warps."""
    tile, bins = numpipe.scratch(SMEM((72, 96), np.int32)), numpipe.scratch(SMEM((128,), np.int32))
    bins[...] = numpipe.full(128, 0, np.int32)
    tile[...] = numpipe.iota((72, 96), 1)
    numpipe.atomic_add(bins.at[tile[...]], 1)
    numpipe.atomic_add(tile, numpipe.iota((72, 96), 0))
    y[ds(0, 72), ds(0, 96)] = tile[...]
    z[ds(0, 128)] = bins[...]
