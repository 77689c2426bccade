"""Kernels whose tables name squeezed indices, elements and rows inside and outside of their arrays,
with NumPy's results."""

from __future__ import annotations

from typing import Any

import numpy as np

import numpipe
from numpipe import BlockSpec, Element, ds

PLANES, ROWS, STEPS = 3, 160, 6


@numpipe.kernel
def taken(a, table, c, *, mode: numpipe.Static):
    """Copy the rows from table[k, 1] on of plane table[k, 0] of a to plane k of c, in step k."""
    pipe = numpipe.pipeline(
        grid=(table.shape[0],),
        max_concurrent_steps=3,
        in_specs=(
            BlockSpec((None, Element(64), 64), lambda k: (table[k, 0], table[k, 1], 0), mode=mode),
        ),
        out_specs=(BlockSpec((None, 64, 64), lambda k: (k, 0, 0)),),
    )
    for _, (x, y) in pipe(a, c):
        y[...] = x[...]


@numpipe.kernel
def put(a, table, c, *, mode: numpipe.Static):
    """Copy the first 64 rows of plane k of a to the rows from table[k, 1] on of plane table[k, 0]
    of c, in step k.

    Nothing is stored where that plane does not exist.
    """
    pipe = numpipe.pipeline(
        grid=(table.shape[0],),
        max_concurrent_steps=3,
        in_specs=(BlockSpec((None, 64, 64), lambda k: (k, 0, 0)),),
        out_specs=(
            BlockSpec((None, Element(64), 64), lambda k: (table[k, 0], table[k, 1], 0), mode=mode),
        ),
    )
    for _, (x, y) in pipe(a, c):
        y[...] = x[...]


def places(mode: str | None, dtype: Any) -> np.ndarray:
    """Return places (plane, first row) for a bounds mode, some of them out of bounds.

    No two overlap, except the last with "clip". A place that is stored to with "zero" never starts
    at a negative row.
    """
    inside = [(0, 0), (1, 10), (2, 36), (0, 64), (1, 80), (2, 100)]
    outside = {
        None: inside,
        "zero": [(0, 0), (3, 0), (1, 160), (2, 100), (900, 0), (0, 2000)],
        # the last place is the same as another one
        "clip": [(0, 0), (7, -5), (1, 10), (-1, 159), (2, 2**30), (-(2**30), 99)],
    }
    return np.array(outside[mode], dtype)


def placed(mode: str | None, at: int, side: int, size: int) -> int:
    return min(max(at, 0), size - side) if mode == "clip" else at


def expected(
    name: str, a: np.ndarray, table: np.ndarray, c: np.ndarray, mode: str | None
) -> np.ndarray:
    c = c.copy()
    for k, (plane, row) in enumerate(table.tolist()):
        there = a if name == "taken" else c
        plane, row = placed(mode, plane, 1, len(there)), placed(mode, row, 64, there.shape[1])
        known = 0 <= plane < len(there)
        if name == "taken":
            c[k, :64] = 0
            if known and -64 < row < there.shape[1]:
                found = there[plane, max(row, 0) : max(row + 64, 0)]
                c[k, max(-row, 0) : max(-row, 0) + len(found)] = found
        elif known and -64 < row < c.shape[1]:
            first, last = max(row, 0), min(row + 64, c.shape[1])
            c[plane, first:last] = a[k, first - row : last - row]
    return c


KERNELS = {"taken": taken, "put": put}


def arrays(name: str, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return a and c."""
    a = (
        np.random.default_rng(seed)
        .standard_normal((PLANES if name == "taken" else STEPS, ROWS, 64))
        .astype(np.float16)
    )
    return a, np.full((STEPS if name == "taken" else PLANES, ROWS, 64), -1, np.float16)


@numpipe.kernel
def indexed(x, v, i, y, z, s, e, *, mode: numpipe.Static):
    """Gather and scatter rows, and load and store a plane and an element, at indices v and i."""
    rows = numpipe.index(v[ds(0, 64)], mode)
    y[ds(0, 64), ds(0, 64)] = x[0, rows, ds(0, 64)]
    y[ds(64, 64), ds(0, 64)] = x[numpipe.index(i[0], mode), ds(0, 64), ds(0, 64)]
    z[1, rows, ds(0, 64)] = numpipe.full((64, 64), 1.0, np.float32)
    z[numpipe.index(i[1], mode), ds(0, 64), ds(0, 64)] = numpipe.full((64, 64), 2.0, np.float32)
    s[numpipe.index(v[ds(64, 64)], mode)] = v[ds(64, 64)]
    e[numpipe.index(i[2], mode)] = i[numpipe.index(i[3], mode)]


def indices(mode: str, dtype: Any = np.int32) -> tuple[np.ndarray, ...]:
    """Return x, v, i, and the arrays that are stored to."""
    x = np.random.default_rng(1).standard_normal((PLANES, 64, 64)).astype(np.float32)
    v = np.concatenate(
        [np.random.default_rng(2).permutation(64), np.random.default_rng(3).permutation(64)]
    ).astype(np.int32)
    v[[5, 9]] = (64, -(2**31)) if mode == "zero" else (v[5] if v[5] in (0, 63) else 63, v[9])
    v[[70, 80]] = (100, -7) if mode == "zero" else v[[70, 80]]
    i = np.array([7, -1, 5, 9] if mode == "zero" else [7, -1, 50, -3], dtype)
    if mode == "clip":  # scattered rows are distinct after clipping
        v[:64], v[64:] = (
            np.arange(64) - (np.arange(64) == 0) * 9 + (np.arange(64) == 63) * 100,
            v[64:],
        )
    return (
        x,
        v,
        i,
        np.zeros((128, 64), np.float32),
        np.zeros((PLANES, 64, 64), np.float32),
        np.full(64, -1, np.int32),
        np.full(3, -1, dtype),
    )


def indexed_wanted(
    mode: str,
    x: np.ndarray,
    v: np.ndarray,
    i: np.ndarray,
    y: np.ndarray,
    z: np.ndarray,
    s: np.ndarray,
    e: np.ndarray,
) -> tuple[np.ndarray, ...]:
    y, z, s, e = (array.copy() for array in (y, z, s, e))

    def at(n: int, size: int) -> int | None:
        return int(np.clip(n, 0, size - 1)) if mode == "clip" else int(n) if 0 <= n < size else None

    for row in range(64):
        if (found := at(v[row], 64)) is not None:
            y[row], z[1, found] = x[0, found], 1
        if (found := at(v[64 + row], 64)) is not None:
            s[found] = v[64 + row]
    if (found := at(i[0], PLANES)) is not None:
        y[64:] = x[found]
    if (found := at(i[1], PLANES)) is not None:
        z[found] = 2
    if (found := at(i[2], 3)) is not None:
        e[found] = 0 if at(i[3], 4) is None else i[at(i[3], 4)]
    return y, z, s, e
