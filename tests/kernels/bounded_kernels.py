"""Kernels whose tables name squeezed indices, elements and rows, inside their arrays and outside; what NumPy makes of them."""

from __future__ import annotations

from typing import Any

import numpy as np

import numpipe
from numpipe import BlockSpec, Element, ds

PLANES, ROWS, STEPS = 3, 160, 6


@numpipe.kernel(num_compute_wgs=1)
def taken(a, table, c, *, mode: numpipe.Static):
    """Step k copies the rows from table[k, 1] on of plane table[k, 0] of a to plane k of c."""
    pipe = numpipe.pipeline(
        grid=(table.shape[0],), max_concurrent_steps=3,
        in_specs=(BlockSpec((None, Element(64), 64), lambda k: (table[k, 0], table[k, 1], 0), mode=mode),),
        out_specs=(BlockSpec((None, 64, 64), lambda k: (k, 0, 0)),))
    for _, (x, y) in pipe(a, c):
        y[...] = x[...]


@numpipe.kernel(num_compute_wgs=1)
def put(a, table, c, *, mode: numpipe.Static):
    """Step k copies rows 0 … 64 of plane k of a to the rows from table[k, 1] on of plane table[k, 0] of c, if it is there."""
    pipe = numpipe.pipeline(
        grid=(table.shape[0],), max_concurrent_steps=3, in_specs=(BlockSpec((None, 64, 64), lambda k: (k, 0, 0)),),
        out_specs=(BlockSpec((None, Element(64), 64), lambda k: (table[k, 0], table[k, 1], 0), mode=mode),))
    for _, (x, y) in pipe(a, c):
        y[...] = x[...]


def places(mode: str | None, dtype: Any) -> np.ndarray:
    """(plane, first row), of which no two overlap, but the last with "clip"; with a mode some are outside. None that is stored with
    "zero" starts at a negative row."""
    inside = [(0, 0), (1, 10), (2, 36), (0, 64), (1, 80), (2, 100)]
    outside = {None: inside, "zero": [(0, 0), (3, 0), (1, 160), (2, 100), (900, 0), (0, 2000)],
               "clip": [(0, 0), (7, -5), (1, 10), (-1, 159), (2, 2 ** 30), (-2 ** 30, 99)]}  # the last goes where another goes
    return np.array(outside[mode], dtype)


def placed(mode: str | None, at: int, side: int, size: int) -> int:
    return min(max(at, 0), size - side) if mode == "clip" else at


def expected(name: str, a: np.ndarray, table: np.ndarray, c: np.ndarray, mode: str | None) -> np.ndarray:
    c = c.copy()
    for k, (plane, row) in enumerate(table.tolist()):
        there = a if name == "taken" else c
        plane, row = placed(mode, plane, 1, len(there)), placed(mode, row, 64, there.shape[1])
        known = 0 <= plane < len(there)
        if name == "taken":
            c[k, :64] = 0
            if known and -64 < row < there.shape[1]:
                found = there[plane, max(row, 0):max(row + 64, 0)]
                c[k, max(-row, 0):max(-row, 0) + len(found)] = found
        elif known and row < c.shape[1]:
            c[plane, row:row + 64] = a[k, :64][:max(0, c.shape[1] - row)]
    return c


KERNELS = {"taken": taken, "put": put}


def arrays(name: str, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """a and c."""
    a = np.random.default_rng(seed).standard_normal((PLANES if name == "taken" else STEPS, ROWS, 64)).astype(np.float16)
    return a, np.full((STEPS if name == "taken" else PLANES, ROWS, 64), -1, np.float16)
