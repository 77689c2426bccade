"""Kernels on tiles in the rows layout: small tiles, wide tiles, one row per warp, for the simulator
and the GPU."""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np

import numpipe
from numpipe import ArrayType, BlockSpec, cdiv, ds

BF16 = np.dtype(ml_dtypes.bfloat16)
SHAPES = (8, 8), (8, 1024), (24, 16), (32, 256), (120, 128), (16, 40), (64, 384), (56, 24)
DTYPES = [np.dtype(of) for of in (np.float32, np.float16, BF16, np.int32, np.int8, np.uint8)]
ALTERNATELY = [
    [np.dtype(of) for of in one]
    for one in ((np.float32, BF16, np.uint8), (np.int32, np.float16, np.int8))
]
"""two lists that together have a type of each width and all types"""


def array(shape: tuple[int, ...], dtype: np.dtype, seed: int = 0) -> np.ndarray:
    return (
        np.random.default_rng(seed)
        .integers(-9 if dtype.kind != "u" else 0, 10, shape)
        .astype(dtype)
    )


@numpipe.kernel
def through_registers(x, y, *, m: numpipe.Static, n: numpipe.Static):
    """Move a block that extends past the array between global memory, registers and shared
    memory."""
    tile = x[ds(3, m), ds(2, n)]
    y[ds(3, m), ds(2, n)] = tile + tile


@numpipe.kernel
def through_shared(x, y, *, m: numpipe.Static, n: numpipe.Static):
    spec = BlockSpec((m, n), lambda i, j: (i, j))
    pipe = numpipe.pipeline(
        grid=(cdiv(x.shape[0], m), cdiv(x.shape[1], n)),
        in_specs=(spec,),
        out_specs=(spec,),
        max_concurrent_steps=1,
    )
    for _, (tile, out) in pipe(x, y):
        out[...] = tile[...]


@numpipe.kernel(grid=lambda y, m: (cdiv(y.shape[0], m),), warp_specialized=False)
def adjacent_rows(
    x, y, *, m: numpipe.Static, n: numpipe.Static, layout: numpipe.Static, columns: numpipe.Static
):
    """Copy blocks of m rows of n columns, given without gaps as the vector x, through a vector in
    shared memory."""
    first = numpipe.program_id(0) * m
    rows, landed = numpipe.scratch((numpipe.SMEM((m * n,), x.dtype), numpipe.Barrier()))
    numpipe.copy_gmem_to_smem(x.at[ds(first * n, m * n)], rows, landed)
    numpipe.barrier_wait(landed)
    y[ds(first, m), ds(0, columns)] = numpipe.load_tile(rows, layout, columns)


@numpipe.kernel(warp_specialized=False)
def scanned_in_runs(x, y, sums):
    """Scan rows, combined with vectors along their rows and columns, and add up columns."""
    rows, landed = numpipe.scratch((numpipe.SMEM((8, 256), x.dtype), numpipe.Barrier()))
    numpipe.copy_gmem_to_smem(x.at[ds(0, 8), ds(0, 256)], rows, landed)
    numpipe.barrier_wait(landed)
    tile = numpipe.load_tile(rows, "runs").astype(np.float32)
    sums[ds(0, 256)] = tile.sum(axis=0)
    tile = tile * tile.max(axis=0)[None, :] + tile.min(axis=1)[:, None]
    y[ds(0, 8), ds(0, 256)] = np.cumsum(tile, axis=1)


@numpipe.kernel
def reduced(x, rows, columns, whole, *, m: numpipe.Static, n: numpipe.Static):
    tile = x[ds(0, m), ds(0, n)]
    rows[ds(0, m), 0] = tile.sum(axis=1)
    rows[ds(0, m), 1] = tile.max(axis=1)
    rows[ds(0, m), 2] = tile.argmax(axis=1).astype(rows.dtype)
    rows[ds(0, m), 3] = (tile - tile.min(axis=1)[:, None]).sum(axis=1)
    columns[0, ds(0, n)] = tile.sum(axis=0)
    columns[1, ds(0, n)] = tile.min(axis=0)
    columns[2, ds(0, n)] = (tile * tile.max(axis=0)[None, :]).max(axis=0)
    whole[0] = tile.sum()
    whole[1] = tile.max()
    whole[2] = tile.sum(axis=1).sum()
    whole[3] = tile.sum(axis=0).max()


def expected(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rows = np.stack(
        [x.sum(1), x.max(1), x.argmax(1).astype(x.dtype), (x - x.min(1)[:, None]).sum(1)], axis=1
    )
    columns = np.stack([x.sum(0), x.min(0), (x * x.max(0)).max(0)])
    return rows, columns, np.array([x.sum(), x.max(), x.sum(), x.sum(0).max()])


@dataclass(frozen=True)
class Names:
    rows: str
    row: str
    column: str
    back: str


def names(lanes: int, shape: tuple[int, int]) -> Names:
    back = "accumulator" if shape[0] % 64 == 0 and shape[1] <= 256 else "rows"
    return Names(f"rows {lanes}", f"row {lanes}", f"column {lanes}", back)


@numpipe.kernel
def cast(x, y, v, *, m: numpipe.Static, n: numpipe.Static, to: numpipe.Static):
    """Convert tiles between layouts, and back where possible, and combine them with vectors."""
    tile = numpipe.layout_cast(x[ds(0, m), ds(0, n)], to.rows)
    scale = numpipe.layout_cast(v[ds(0, n)], to.row)
    shift = numpipe.layout_cast(v[ds(0, m)], to.column)
    y[ds(0, m), ds(0, n)] = numpipe.layout_cast(tile * scale + shift[:, None], to.back)


@numpipe.kernel(
    out_type=lambda x: ArrayType(x.shape, x.dtype),
    grid=lambda x: (cdiv(x.shape[0], 8),),
    warp_specialized=False,
)
def softmax(x, y):
    """Compute the softmax of rows of 1024 elements, one row per warp."""
    at = ds(numpipe.program_id(0) * 8, 8), ds(0, 1024)
    tile = x[at].astype(np.float32)
    e = np.exp(tile - tile.max(axis=1)[:, None])
    y[at] = e * (1.0 / e.sum(axis=1))[:, None]


@numpipe.kernel
def normalised(x, gamma, y, sums):
    """Normalize rows by their root mean square and a vector along the columns.

    Includes slices, masks, atomics, and numbers computed from tiles by rows.
    """
    tile = numpipe.load_tile(x.at[ds(0, 64), ds(0, 64)], "rows 32")
    scale = numpipe.load_tile(gamma.at[ds(0, 64)], "row 32")
    found = tile * numpipe.rsqrt((tile * tile).mean(axis=1))[:, None] * scale
    y[ds(0, 64), ds(0, 64)] = np.where(found > 0.0, found, -found)
    wide = x[ds(0, 8), ds(0, 512)]
    right = wide[:, 448:]
    y[ds(64, 8), ds(0, 64)] = right + numpipe.iota((8, 64), 1).astype(np.float32)
    numpipe.atomic_add(sums.at[ds(0, 8), ds(0, 8)], numpipe.full((8, 8), 1.0, np.float32))
    numpipe.atomic_add(sums.at[8, ds(0, 8)], numpipe.full((8, 8), 2.0, np.float32).sum(axis=0))
    numpipe.atomic_add(sums.at[ds(0, 8), 8], numpipe.full((8, 8), 3.0, np.float32).sum(axis=1))
