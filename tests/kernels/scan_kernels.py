"""Scans, largest elements, floor division, builtins and converting stores of register tiles, for
the simulator and the GPU."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

import numpipe
from numpipe import BlockSpec, ds
from tests.kernels.tile_function_kernels import BF16, TYPES, drawn

Shape = tuple[int, int]
SHAPES: tuple[Shape, ...] = (64, 8), (64, 40), (192, 64), (64, 256)
FUNCTIONS = "maximum", "minimum", "product", "linear"
F32, I32 = np.dtype(np.float32), np.dtype(np.int32)


# ---- scans
@functools.cache
def scanned(name: str, shape: Shape, axis: int) -> Any:
    """Compute ``y = scan(x)`` for a tile of each of two warpgroups.

    Scans are running maxima, minima and products, and the recurrence h = a h + b.
    """
    rows, columns = shape
    ufunc = np.minimum if name == "minimum" else np.maximum

    @numpipe.kernel(num_compute_wgs=2, wg_axis="wg")
    def accumulated(x, y):
        w = numpipe.axis_index("wg")
        y[ds(w * rows, rows), ds(0, columns)] = ufunc.accumulate(
            x[ds(w * rows, rows), ds(0, columns)], axis=axis
        )

    @numpipe.kernel(num_compute_wgs=2, wg_axis="wg")
    def product(x, y):
        w = numpipe.axis_index("wg")
        y[ds(w * rows, rows), ds(0, columns)] = numpipe.scan(
            lambda a, b: a * b, x[ds(w * rows, rows), ds(0, columns)], axis=axis
        )

    @numpipe.kernel(num_compute_wgs=2, wg_axis="wg")
    def linear(x, y):
        def step(before, behind):
            return behind[0] * before[0], behind[0] * before[1] + behind[1]

        w = numpipe.axis_index("wg")
        tile = x[ds(w * rows, rows), ds(0, columns)]
        _, h = numpipe.scan(step, (tile, tile * 2), axis)
        y[ds(w * rows, rows), ds(0, columns)] = h

    return {"product": product, "linear": linear}.get(name, accumulated)


def arrays_of_scan(
    name: str, dtype: str, shape: Shape, *, special: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    rows, columns = shape
    rng = np.random.default_rng([rows, columns])
    if name in ("maximum", "minimum"):
        x = drawn((2 * rows, columns), dtype, special=special)
    elif dtype == "int32":
        x = rng.choice(np.int32([-1, 1]), (2 * rows, columns))
    else:
        x = (
            rng.uniform(0.9, 1.1, (2 * rows, columns)) * rng.choice([-1, 1], (2 * rows, columns))
        ).astype(np.float32)
    return x, np.zeros_like(x)


def wanted_of_scan(name: str, x: np.ndarray, axis: int) -> np.ndarray:
    """Return NumPy's result for the tiles of both warpgroups, in float64 where it rounds."""
    halves = np.split(x if name in ("maximum", "minimum") else x.astype(np.float64), 2)
    if name in ("maximum", "minimum"):
        return np.concatenate([getattr(np, name).accumulate(half, axis=axis) for half in halves])
    if name == "product":
        return np.concatenate([np.cumprod(half, axis=axis) for half in halves])
    found = []
    for half in halves:
        lines, h = np.moveaxis(half, axis, 0), []
        for line in lines:
            h.append(line * (h[-1] if h else 0) + 2 * line)
        found.append(np.moveaxis(np.array(h), 0, axis))
    return np.concatenate(found)


def is_scan(name: str, x: np.ndarray, y: np.ndarray, axis: int) -> bool:
    """Return whether a scan is right: maxima, minima and integers exactly, others within rounding.

    Products and recurrences may be off by a few roundings per step.
    """
    wanted = wanted_of_scan(name, x, axis)
    if name in ("maximum", "minimum") or x.dtype == I32:
        return np.array_equal(y, wanted, equal_nan=x.dtype != I32)
    size = wanted_of_scan(name, np.abs(x), axis)
    return bool((np.abs(y - wanted) <= 2.0**-22 * x.shape[axis] * np.abs(size)).all())


@numpipe.kernel
def scans_of_vectors(x, y):
    """Scan vectors in each layout, and tiles of one row and one column.

    Along an axis of one element a scan does nothing.
    """

    def product(a, b):
        return a * b

    tile = x[ds(0, 192), ds(0, 64)]
    row, column = tile.max(axis=0), tile.max(axis=1)
    y[0, ds(0, 64)] = numpipe.scan(product, row, axis=0)
    y[1, ds(0, 192)] = numpipe.scan(product, column, 0)
    y[2, ds(0, 64)] = numpipe.scan(product, x[0, ds(0, 64)], axis=-1)
    y[ds(3, 1), ds(0, 64)] = numpipe.scan(product, tile.max(axis=0, keepdims=True), axis=1)
    y[ds(4, 1), ds(0, 64)] = numpipe.scan(product, tile.max(axis=0, keepdims=True), axis=0)
    y[5, ds(0, 192)] = np.minimum.accumulate(column)
    y[6, ds(0, 64)] = np.maximum.accumulate(row, axis=0)


def arrays_of_vectors() -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(4).uniform(0.5, 1.05, (192, 64)).astype(np.float32)
    return x, np.zeros((7, 192), np.float32)


def wanted_of_vectors(x: np.ndarray) -> list[np.ndarray]:
    wide = x.astype(np.float64)
    row, column = wide.max(axis=0), wide.max(axis=1)
    return [
        row.cumprod(),
        column.cumprod(),
        wide[0].cumprod(),
        row.cumprod(),
        row,
        np.minimum.accumulate(column),
        np.maximum.accumulate(row),
    ]


# ---- the largest elements
@functools.cache
def largest(k: int, shape: Shape) -> Any:
    rows, columns = shape
    width = -(-k // 8) * 8

    @numpipe.kernel
    def tops(x, values, indices):
        found, places = numpipe.top_k(x[ds(0, rows), ds(0, columns)], k)
        values[ds(0, rows), ds(0, width)] = found
        indices[ds(0, rows), ds(0, width)] = places

    return tops


def arrays_of_largest(
    k: int, dtype: str, shape: Shape, width: int | None = None
) -> tuple[np.ndarray, ...]:
    """Return x, its largest values and their columns; by default as many as the tile has
    columns."""
    rows = shape[0]
    x = drawn(shape, dtype)
    if dtype == "int32":
        x[3], x[4, ::2] = np.iinfo(np.int32).min, np.iinfo(np.int32).max
    else:
        x[3] = -np.inf
        x[12] = np.nan
    width = -(-k // 8) * 8 if width is None else width
    return x, np.zeros((rows, width), x.dtype), np.zeros((rows, width), np.int32)


def wanted_of_largest(k: int, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the result by sorting tuples: NaN first, then the larger, then the earlier."""
    found = [
        sorted(
            range(len(row)),
            key=lambda j: (not np.isnan(row[j]), 0.0 if np.isnan(row[j]) else -float(row[j]), j),
        )[:k]
        for row in x.astype(np.float64)
    ]
    indices = np.array(found, np.int32)
    return np.take_along_axis(x, indices, axis=1), indices


def is_largest(k: int, x: np.ndarray, values: np.ndarray, indices: np.ndarray) -> bool:
    wanted, where = wanted_of_largest(k, x)
    same = np.array_equal(
        values[:, :k].astype(np.float64), wanted.astype(np.float64), equal_nan=True
    )
    beyond = np.iinfo(np.int32).min if x.dtype == I32 else -np.inf
    return bool(
        same
        and (indices[:, :k] == where).all()
        and (indices[:, k:] == -1).all()
        and (values[:, k:].astype(np.float64) == beyond).all()
    )


# ---- floor division and builtins
@numpipe.kernel
def divided(x, z, y):
    a, b = x[ds(0, 64), ds(0, 64)], z[ds(0, 64), ds(0, 64)]
    y[ds(0, 64), ds(0, 64)] = a // b
    y[ds(64, 64), ds(0, 64)] = a % b
    y[ds(128, 64), ds(0, 64)] = np.floor_divide(a, 4)
    y[ds(192, 64), ds(0, 64)] = np.remainder(a, -3)


def arrays_of_divided(dtype: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return dividends and divisors of both signs, and for floats infinities, NaN and zeros.

    float32 also has large quotients.
    """
    x, z = drawn((64, 64), dtype, seed=1), drawn((64, 64), dtype, seed=2)[::-1].copy()
    if dtype == "int32":
        z[z == 0] = 7
        x[0, :4], z[0, :4] = [2**31 - 1, -(2**31), -(2**31), 5], [3, 3, -(2**31), -(2**31)]
    elif dtype == "float32":
        x[:, ::3] *= np.float32(1e20)
        x[::5] += np.float32(0.1)
    return x, z, np.zeros((256, 64), x.dtype)


def wanted_of_divided(x: np.ndarray, z: np.ndarray) -> np.ndarray:
    """Return NumPy's result; 16-bit types are computed in float32 and rounded."""
    wide = [array.astype(np.float32) if array.dtype.itemsize == 2 else array for array in (x, z)]
    with np.errstate(all="ignore"):
        found = [
            wide[0] // wide[1],
            wide[0] % wide[1],
            wide[0] // wide[0].dtype.type(4),
            wide[0] % wide[0].dtype.type(-3),
        ]
        return np.concatenate(found).astype(x.dtype)


@numpipe.kernel
def of_builtins(x, z, y):
    """Apply max, min and round to tiles: with numbers, with more than two arguments, and with a
    tuple."""
    a, b = x[ds(0, 64), ds(0, 64)], z[ds(0, 64), ds(0, 64)]
    y[ds(0, 64), ds(0, 64)] = max(a, b)
    y[ds(64, 64), ds(0, 64)] = min(a, 1, b)
    y[ds(128, 64), ds(0, 64)] = max((a, b, -2))
    y[ds(192, 64), ds(0, 64)] = round(a) + abs(b)


def wanted_of_builtins(x: np.ndarray, z: np.ndarray) -> np.ndarray:
    of, (x, z) = (
        x.dtype,
        (array.astype(np.float32) if array.dtype == BF16 else array for array in (x, z)),
    )
    number = x.dtype.type
    with np.errstate(all="ignore"):
        return np.concatenate(
            [
                np.maximum(x, z),
                np.minimum(np.minimum(x, number(1)), z),
                np.maximum(np.maximum(x, z), number(-2)),
                np.round(x) + np.abs(z),
            ]
        ).astype(of)


@functools.cache
def of_number(name: str) -> Any:
    """Apply a function to a vector and a number."""
    function = getattr(np, name)

    @numpipe.kernel
    def of_both(x, y, value):
        y[0, ds(0, 64)] = function(x[ds(0, 64)])
        y[1, ds(0, 64)] = numpipe.full(64, function(value), np.float32)

    return of_both


# ---- masks of rows and columns
@numpipe.kernel(num_compute_wgs=2, wg_axis="wg")
def voted_along(x, y):
    w = numpipe.axis_index("wg")
    mask = x[ds(w * 64, 64), ds(0, 64)] > 0
    y[w, ds(0, 64)] = np.any(mask, axis=1).astype(np.int32)
    y[2 + w, ds(0, 64)] = mask.all(axis=0).astype(np.int32)
    y[ds(4 + w, 1), ds(0, 64)] = np.where(mask.any(axis=0, keepdims=True), 1, 0)
    y[6 + w, ds(0, 64)] = np.where(np.all(mask, axis=-1), 1, 0)


def arrays_of_voted() -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(8).standard_normal((128, 64)).astype(np.float32)
    x[3], x[70], x[:64, 5], x[64:, 9], x[5], x[:64, 6] = 1, -1, 1, -1, -1, -1
    return x, np.full((8, 64), 7, np.int32)


def wanted_of_voted(x: np.ndarray) -> np.ndarray:
    halves = np.split(x > 0, 2)
    return np.array(
        [
            *(half.any(1) for half in halves),
            *(half.all(0) for half in halves),
            *(half.any(0) for half in halves),
            *(half.all(1) for half in halves),
        ],
        np.int32,
    )


# ---- stores with conversion
@numpipe.kernel
def stored(x, rows, columns, coalesced, vector):
    """Store a tile by TMA, by lanes and in the coalesced layout, and a vector, each with a
    conversion."""
    tile = x[ds(0, 64), ds(0, 128)]
    rows[ds(0, 64), ds(0, 128)] = tile
    columns[ds(0, 64), ds(0, 1)] = tile.max(axis=1, keepdims=True)
    coalesced[ds(0, 64), ds(0, 128)] = numpipe.load_tile(x.at[ds(0, 64), ds(0, 128)])
    vector[ds(0, 64)] = tile.max(axis=1)


@numpipe.kernel
def stored_to_blocks(x, y):
    block = BlockSpec((64, 64), lambda k: (0, k))
    for (_,), (tile, out) in numpipe.pipeline(grid=(2,), in_specs=(block,), out_specs=(block,))(
        x, y
    ):
        out[...] = tile[...] * 2


STORED = [
    ("float32", "float16"),
    ("float32", "bfloat16"),
    ("float16", "float32"),
    ("bfloat16", "float32"),
    ("float16", "bfloat16"),
    ("int32", "float32"),
    ("int32", "float16"),
]


def arrays_of_stored(have: str, want: str) -> tuple[np.ndarray, ...]:
    x, to = drawn((64, 128), have), TYPES[want]
    with np.errstate(all="ignore"):
        # one value too large for a float16, and one that float16 rounds
        x[0, :4] = np.array([3, -7, 70000, 2049]).astype(x.dtype)
    return x, *(np.zeros(shape, to) for shape in ((64, 128), (64, 1), (64, 128), 64))


def wanted_of_stored(arrays: tuple[np.ndarray, ...]) -> list[np.ndarray]:
    x, *outputs = arrays
    with np.errstate(all="ignore"):
        top = np.max(x.astype(np.float32), axis=1)
        return [
            value.astype(np.float32).astype(output.dtype).reshape(output.shape)
            for value, output in zip((x, top, x, top), outputs, strict=True)
        ]
