"""Kernels that access arrays other than by whole tiles: stores of vectors and single columns,
reductions into arrays, gathers.

Each kernel has `arrays_of_…` and `wanted_of_…`. All values are small integers, so sums are exact in
any order.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

import numpipe
from numpipe import ds, iota

F32, I32, F16, BF16 = np.float32, np.int32, np.float16, ml_dtypes.bfloat16
CTAS = 3


@numpipe.kernel(num_compute_wgs=2, wg_axis="wg", grid=CTAS)
def vectors(x, rows, columns, halves, narrow, flat, turned):
    """Store row sums and similar vectors of 128 x 40 blocks, from two warpgroups.

    Covers 1-D arrays, one column, one row, 16-bit elements, and stores clipped at the array's end.
    """
    i, wg = numpipe.program_id(0), numpipe.axis_index("wg")
    first = i * 128 + wg * 64
    v = x[ds(first, 64), ds(0, 40)]
    rows[1, ds(first, 64), 0] = v.sum(axis=1)
    columns[2 * i + wg, ds(3, 40)] = v.sum(axis=0)
    halves[0, 1, ds(first, 64)] = v.max(axis=1).astype(halves.dtype)
    narrow[ds(first, 64), ds(1, 1)] = v.min(axis=1, keepdims=True)
    turned[ds(2 * i + wg, 1), ds(0, 40)] = v.max(axis=0, keepdims=True).astype(turned.dtype)
    # an index with no known alignment
    flat[ds(first, 64)] = x[2, ds(0, 64)] + iota(64).astype(np.float32)


def arrays_of_vectors(rows: int = 333) -> dict[str, np.ndarray]:
    """Return the arrays of `vectors`. The last block of 64 rows is partial.

    The arrays are slices of larger ones, which show whether anything outside them changes.
    """
    rng = np.random.default_rng(5)
    return {
        "x": rng.integers(-9, 10, (rows, 64)).astype(F32),
        "rows": np.zeros((2, rows, 3), F32),
        "columns": np.zeros((6, 41), F32),
        "halves": np.zeros((2, 2, rows), F16),
        "narrow": np.zeros((rows, 2), F32),
        "flat": np.zeros(rows, F32),
        "turned": np.zeros((6, 37), BF16),
    }


def wanted_of_vectors(given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    x, found = given["x"], {name: np.zeros_like(array) for name, array in given.items()}
    count = len(x)
    padded = np.zeros((128 * CTAS, 40), F32)
    padded[:count] = x[:, :40]
    blocks = padded.reshape(-1, 64, 40)
    found["x"] = x
    found["rows"][1, :, 0] = padded.sum(1)[:count]
    found["columns"][:, 3:] = blocks.sum(1)[:, :38]
    found["halves"][0, 1] = padded.max(1)[:count].astype(F16)
    found["narrow"][:, 1] = padded.min(1)[:count]
    found["turned"][:] = blocks.max(1)[:, :37].astype(BF16)
    found["flat"][:] = np.tile(x[2] + np.arange(64), 2 * CTAS)[:count]
    return found


@numpipe.kernel(num_compute_wgs=2, wg_axis="wg", grid=CTAS)
def sums(x, n, panels, halves, shifted, line, column, counts, top, bits):
    """Reduce blocks of every CTA and warpgroup into the same blocks, by the store ring and by
    lanes."""
    wg, i = numpipe.axis_index("wg"), numpipe.program_id(0)
    first = i * 128 + wg * 64
    v, k = x[ds(first, 64), ds(0, 64)], n[ds(first, 64), ds(0, 64)]
    numpipe.atomic_add(panels.at[ds(0, 64), ds(0, 64)], v)
    numpipe.atomic_max(halves.at[1, ds(0, 64), ds(0, 64)], v.astype(np.float16))
    numpipe.atomic_add(shifted.at[ds(0, 64), ds(1, 64)], v)  # rows that are not contiguous
    numpipe.atomic_add(line.at[ds(0, 64)], v.sum(axis=0))
    numpipe.atomic_add(
        column.at[ds(0, 64), ds(0, 1)], v.sum(axis=1, keepdims=True).astype(column.dtype)
    )
    numpipe.atomic_add(counts.at[ds(0, 64), ds(0, 64)], (v > 0.0).astype(np.int32))
    numpipe.atomic_min(top.at[0, ds(0, 64)], k.min(axis=0))
    numpipe.atomic_or(bits.at[ds(0, 64)], 1 << (k.max(axis=1) & 15))


def arrays_of_sums() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(6)
    return {
        "x": rng.integers(-4, 5, (128 * CTAS, 64)).astype(F32),
        "n": rng.integers(-99, 99, (128 * CTAS, 64)).astype(I32),
        "panels": np.ones((64, 64), F32),
        "halves": np.full((2, 64, 64), -9, F16),
        "shifted": np.ones((60, 63), F32, order="F"),
        "line": np.ones(50, F32),
        "column": np.ones((64, 1), BF16),
        "counts": np.ones((64, 64), I32),
        "top": np.full((1, 64), -50, I32),
        "bits": np.zeros(64, I32),
    }


def wanted_of_sums(given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    v, k = (given[name].reshape(2 * CTAS, 64, 64) for name in ("x", "n"))
    found = {name: array.copy(order="K") for name, array in given.items()}
    found["panels"] += v.sum(0)
    found["halves"][1] = v.max(0).astype(F16)
    found["shifted"][:, 1:] += v.sum(0)[:60, :62]
    found["line"] += v.sum((0, 1))[:50]
    found["column"][:, 0] += v.sum((0, 2)).astype(BF16)  # at most 8 bits
    found["counts"] += (v > 0).sum(0).astype(I32)
    found["top"][0] = np.minimum(-50, k.min((0, 1)))
    found["bits"] = np.bitwise_or.reduce(1 << (k.max(2) & 15), axis=0)
    return found


@numpipe.kernel
def gathered(table, wide, rows, found, picked, cut, numbers, pairs, diagonals):
    """Gather rows, columns and elements at indices some of which are out of bounds, and read as
    0."""
    v = numpipe.index(rows[ds(0, 64)], "zero")
    found[ds(0, 64), ds(0, 64)] = table[v, ds(2, 64)]
    picked[ds(0, 64), ds(0, 64)] = wide[1, ds(0, 64), v]
    cut[ds(0, 64)] = table[v, 2] + table[0, numpipe.index(iota(64) * 3, "zero")]
    numbers[ds(0, 64)] = rows[v]
    own, columns = rows[ds(0, 64)][:, None], (iota(32) * 3)[None, :]
    pairs[ds(0, 64), ds(0, 32)] = wide[
        1, numpipe.index(own, "zero"), numpipe.index(columns, "clip")
    ]
    diagonals[ds(0, 64), ds(0, 32)] = table[3, numpipe.index(iota(64)[:, None] - columns, "zero")]


def arrays_of_gathered() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(8)
    rows = rng.integers(-3, 75, 64).astype(I32)
    rows[:4] = [5, 5, 6, -(2**31)]
    return {
        "table": rng.integers(-9, 9, (70, 72)).astype(F32),
        "wide": rng.integers(-9, 9, (2, 64, 71)).astype(F16),
        "rows": rows,
        "found": np.full((64, 64), 7, F32),
        "picked": np.full((64, 64), 7, F16),
        "cut": np.full(64, 7, F32),
        "numbers": np.full(64, 7, I32),
        "pairs": np.full((64, 32), 7, F16),
        "diagonals": np.full((64, 32), 7, F32),
    }


def wanted_of_gathered(given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    def take(array: np.ndarray, indices: np.ndarray, axis: int) -> Any:
        inside = (indices >= 0) & (indices < array.shape[axis])
        found = np.take(array, np.where(inside, indices, 0), axis)
        shape = [1] * array.ndim
        shape[axis] = len(indices)
        return np.where(inside.reshape(shape), found, 0).astype(array.dtype)

    table, wide, rows = given["table"], given["wide"], given["rows"]
    return {
        **given,
        "found": take(table[:, 2:66], rows, 0),
        "picked": take(wide[1, :64], rows, 1),
        "cut": take(table[:, 2], rows, 0) + take(table[0], np.arange(64) * 3, 0),
        "numbers": take(rows, rows, 0),
        "pairs": take(wide[1][:, np.minimum(np.arange(32) * 3, 70)], rows, 0),
        "diagonals": take(
            table[3], (np.arange(64)[:, None] - np.arange(32) * 3).reshape(-1), 0
        ).reshape(64, 32),
    }


@numpipe.kernel(num_compute_wgs=2, wg_axis="wg")
def casts(x, out, halves, masks):
    """Convert vectors of each type from one layout to the other, in both warpgroups, one after the
    other."""
    wg = numpipe.axis_index("wg")
    a = x[ds(64 * wg, 64), ds(0, 64)]
    row = numpipe.layout_cast(a.sum(axis=1), "row")
    column = numpipe.layout_cast(a.sum(axis=0), "column")
    out[ds(64 * wg, 64), ds(0, 64)] = a * row - column[:, None]
    out[ds(128 + 64 * wg, 64), ds(0, 64)] = a + numpipe.layout_cast(
        numpipe.layout_cast(row, "column"), "row"
    )
    halves[wg, ds(0, 64)] = numpipe.layout_cast(a.max(axis=1).astype(np.float16), "row")
    masks[wg, ds(0, 64)] = numpipe.layout_cast(a.max(axis=0) > 7.0, "column").astype(
        np.int32
    ) + numpipe.layout_cast(iota(64), "column")


def arrays_of_casts() -> dict[str, np.ndarray]:
    return {
        "x": np.random.default_rng(9).integers(-9, 10, (128, 64)).astype(F32),
        "out": np.zeros((256, 64), F32),
        "halves": np.zeros((2, 64), F16),
        "masks": np.zeros((2, 64), I32),
    }


def wanted_of_casts(given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    a = given["x"].reshape(2, 64, 64)
    out = np.concatenate([a * a.sum(2)[:, None] - a.sum(1)[:, :, None], a + a.sum(2)[:, None]])
    return {
        **given,
        "out": out.reshape(256, 64),
        "halves": a.max(2).astype(F16),
        "masks": (a.max(1) > 7).astype(I32) + np.arange(64, dtype=I32),
    }


@numpipe.kernel(num_compute_wgs=2, wg_axis="wg")
def lines(x, h, n, doubled, rounded, sums, shifted, mixed, counts):
    """Load and store coalesced tiles: whole rows, clipped rows and columns, and starts that are not
    aligned to 16 bytes."""
    wg = numpipe.axis_index("wg")
    first = 128 * wg
    a = numpipe.load_tile(x.at[ds(first, 128), ds(0, 64)])
    b = numpipe.load_tile(h.at[ds(first, 128), ds(64, 128)])
    doubled[ds(first, 128), ds(0, 64)] = np.where(a > 0.0, a * 2.0, -a)
    rounded[ds(first, 128), ds(0, 64)] = a.astype(np.float16)
    acc = numpipe.layout_cast(b, "accumulator").astype(np.float32)
    sums[wg, ds(0, 128)] = acc.sum(axis=0)
    shifted[ds(first, 128), ds(3, 128)] = numpipe.layout_cast(
        acc + acc.sum(axis=1)[:, None], "coalesced"
    )
    c = numpipe.layout_cast(numpipe.load_tile(n.at[ds(first, 64), ds(1, 8)]), "accumulator") + iota(
        (64, 8), 1
    )
    mixed[ds(64 * wg, 64), ds(0, 8)] = c
    numpipe.atomic_add(counts.at[ds(0, 64), ds(0, 8)], numpipe.layout_cast(c, "coalesced"))
    narrow = numpipe.load_tile(h.at[ds(first, 64), ds(0, 16)])
    mixed[ds(64 * wg, 64), ds(8, 16)] = numpipe.layout_cast(narrow, "accumulator").astype(np.int32)


def arrays_of_lines() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(12)
    return {
        "x": rng.integers(-9, 10, (200, 64)).astype(F32),
        "h": rng.integers(-9, 10, (250, 160)).astype(F16),
        "n": rng.integers(-9, 10, (256, 12)).astype(I32),
        "doubled": np.zeros((190, 60), F32),
        "rounded": np.zeros((256, 64), F16),
        "sums": np.zeros((2, 128), F32),
        "shifted": np.zeros((256, 132), F32),
        "mixed": np.zeros((128, 24), I32),
        "counts": np.ones((64, 8), I32),
    }


def wanted_of_lines(given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    def padded(array: np.ndarray, rows: slice, columns: slice) -> np.ndarray:
        found = np.zeros((rows.stop - rows.start, columns.stop - columns.start), array.dtype)
        part = array[rows, columns]
        found[: part.shape[0], : part.shape[1]] = part
        return found

    found = {name: array.copy() for name, array in given.items()}
    for wg in range(2):
        rows, half = slice(128 * wg, 128 * wg + 128), slice(128 * wg, 128 * wg + 64)
        a = padded(given["x"], rows, slice(0, 64))
        acc = padded(given["h"], rows, slice(64, 192)).astype(F32)
        kept = min(128, 190 - 128 * wg)
        found["doubled"][rows] = np.where(a > 0, 2 * a, -a)[:kept, :60]
        found["rounded"][rows] = a.astype(F16)
        found["sums"][wg] = acc.sum(0)
        found["shifted"][rows, 3:131] = acc + acc.sum(1)[:, None]
        c = given["n"][half, 1:9] + np.arange(8, dtype=I32)
        found["mixed"][64 * wg : 64 * wg + 64] = np.concatenate(
            [c, given["h"][half, :16].astype(I32)], axis=1
        )
        found["counts"] += c
    return found


CASES: dict[str, tuple[Any, Any, Any]] = {
    "vectors": (vectors, arrays_of_vectors, wanted_of_vectors),
    "sums": (sums, arrays_of_sums, wanted_of_sums),
    "gathered": (gathered, arrays_of_gathered, wanted_of_gathered),
    "casts": (casts, arrays_of_casts, wanted_of_casts),
    "lines": (lines, arrays_of_lines, wanted_of_lines),
}


def differing(name: str, target: str) -> list[str]:
    """Return the names of the arrays of a case that differ from NumPy's result."""
    kernel, make, wanted = CASES[name]
    arrays = make()
    right = wanted(arrays)
    kernel(*arrays.values(), target=target)
    return [name for name in arrays if not np.array_equal(arrays[name], right[name])]
