"""Kernels that exchange accumulators in register order through arrays."""

# tiles in kernels have no types
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import functools
from typing import Any

import numpy as np

import numpipe
from numpipe import ds

CASES = {
    "float32": ((64, 64), "float32"),
    "halves": ((64, 128), "bfloat16"),
    "two blocks": ((128, 48), "float32"),
}


@functools.cache
def kernels(name: str) -> tuple[Any, Any]:
    """Return the kernels that write y, of rows in register order, from x, and z from y. Of float32,
    each of three CTAs adds x to rows of its own and to rows that all have, some outside of y."""
    shape, dtype = CASES[name]
    columns = 128 // numpipe.arch.dtypes.ELEMENTS[dtype].dtype.itemsize
    lines = shape[0] * shape[1] // columns

    @numpipe.kernel(grid=3, warp_specialized=False)
    def written(x, y):
        i = numpipe.program_id(0)
        tile = numpipe.to_register_order(x[ds(0, shape[0]), ds(0, shape[1])])
        if dtype == "float32":
            numpipe.atomic_add(y.at[ds((i + 1) * lines, lines), ds(0, columns)], tile)
            numpipe.atomic_add(y.at[ds(0, lines), ds(0, columns)], tile)
        else:
            y[ds(i * lines, lines), ds(0, columns)] = tile

    @numpipe.kernel(grid=1, warp_specialized=False)
    def read(y, z):
        tile = numpipe.load_tile(y.at[ds(0, lines), ds(0, columns)])
        z[ds(0, shape[0]), ds(0, shape[1])] = numpipe.from_register_order(tile, shape)

    return written, read


def run(name: str, target: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (x, y, z)."""
    shape, dtype = CASES[name]
    of = numpipe.arch.dtypes.ELEMENTS[dtype].dtype
    x = np.random.default_rng(0).integers(-99, 99, shape).astype(of)
    lines = x.nbytes // 128
    y, z = np.zeros((3 * lines + 40, 128 // of.itemsize), of), np.full_like(x, np.nan)
    written, read = kernels(name)
    written(x, y, target=target)
    read(y, z, target=target)
    return x, y, z


def expected(x: np.ndarray, lines: int) -> np.ndarray:
    """Return x in register order: what each lane of each warp has of an accumulator, as rows."""
    found = np.empty((lines, 128 // x.itemsize), x.dtype)
    each = 16 // x.itemsize
    for warp in range(4):
        for lane in range(32):
            mine = [
                x[64 * b + 16 * warp + lane // 4 + 8 * h, 8 * j + 2 * (lane % 4) + o]
                for b in range(x.shape[0] // 64)
                for j in range(x.shape[1] // 8)
                for h in range(2)
                for o in range(2)
            ]
            for k in range(0, len(mine), each):
                block, step = divmod(k // each, 4)
                at = lane % 8 * each
                row = 64 * block + 16 * warp + 4 * step + lane // 8
                found[row, at : at + each] = mine[k : k + each]
    return found


def wrong(name: str, target: str) -> str:
    """Return what differs from NumPy, or ""."""
    x, y, z = run(name, target)
    lines = x.nbytes // 128
    sums = CASES[name][1] == "float32"
    right = expected(x, lines)
    parts = [right * (3 if sums else 1), right, right, right]
    if not (y == np.concatenate(parts)[: len(y)])[: len(y) if sums else 3 * lines].all():
        return "rows in register order"
    return "" if (z == x * (3 if sums else 1)).all() else "the tile that is read back"
