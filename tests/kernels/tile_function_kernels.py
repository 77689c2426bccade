"""Kernels that apply functions to register tiles, with arrays and NumPy's results, for the
simulator and the GPU."""

from __future__ import annotations

import functools
from typing import Any

import ml_dtypes
import numpy as np

import numpipe
from numpipe import ds
from numpipe.language.tiles.mathematics import differ

BF16 = np.dtype(ml_dtypes.bfloat16)
TYPES = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": BF16,
    "int32": np.dtype(np.int32),
}
SHAPES = (64, 8), (64, 40), (192, 64), (64, 256)
LIMITS: dict[str, list[tuple[Any, Any]]] = {
    "float": [(-1.0, 2.0), (None, 0.5), (0.25, None), (1.0, -1.0)],
    "int32": [(-7, 9), (None, 0), (3, None)],
}
EXACT = "floor", "ceil", "trunc", "round", "sign", "square", "isnan", "isinf", "isfinite"
MASKS = "isnan", "isinf", "isfinite"
Case = tuple[str, str, tuple[int, int], "int | None"]
"""function, type, shape of a warpgroup's tile, axis"""
REDUCTIONS: list[Case] = [
    (name, dtype, shape, axis)
    for name in ("mean", "var", "std", "argmax", "argmin")
    for dtype in TYPES
    for shape in SHAPES
    for axis in (0, 1, None)
    if shape != (192, 64) or dtype in ("float32", "float16")
]


def drawn(shape: tuple[int, int], dtype: str, *, special: bool = True, seed: int = 0) -> np.ndarray:
    """Draw numbers with ties, infinities, zeros of both signs and, in some rows and columns,
    NaN."""
    rng = np.random.default_rng([seed, *shape])
    if dtype == "int32":
        return rng.integers(-40, 40, shape).astype(np.int32)
    x = np.where(
        rng.random(shape) < 0.5, rng.integers(-3, 4, shape), 3 * rng.standard_normal(shape)
    )
    if special:
        x[rng.random(shape) < 0.1] = -0.0
        x[5, ::3], x[9, ::2], x[11] = np.inf, -np.inf, 0.0
        x[11, 1::2] = -0.0  # the first of equal zeros, whatever their signs
        for row in (7, 40):
            x[row, rng.integers(0, shape[1], 3)] = np.nan
        x[63, -1] = np.nan
    return x.astype(TYPES[dtype])


@functools.cache
def reduction(case: Case) -> Any:
    """Compute ``y[w] = function(tile)`` for the tile of each of two warpgroups, stacked
    vertically."""
    name, _, (rows, columns), axis = case
    function = getattr(np, name)
    size = 64 if axis is None else columns if axis == 0 else rows

    @numpipe.kernel(num_compute_wgs=2, wg_axis="wg")
    def along(x, y):
        w = numpipe.axis_index("wg")
        tile = x[ds(w * rows, rows), ds(0, columns)]
        y[w, ds(0, size)] = function(tile, axis=axis)

    @numpipe.kernel(num_compute_wgs=2, wg_axis="wg")
    def whole(x, y):
        w = numpipe.axis_index("wg")
        found = function(x[ds(w * rows, rows), ds(0, columns)])
        y[w, ds(0, size)] = numpipe.full(size, found, y.dtype)

    return whole if axis is None else along


def arrays_of(case: Case, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    name, dtype, (rows, columns), axis = case
    x = drawn((2 * rows, columns), dtype, special=name.startswith("arg"), seed=seed)
    given = (
        np.int32
        if name.startswith("arg")
        else np.float32
        if dtype == "int32" or (axis is None and dtype == "bfloat16")
        else (TYPES[dtype])
    )
    return x, np.zeros((2, 64 if axis is None else columns if axis == 0 else rows), given)


def is_numpys(case: Case, x: np.ndarray, y: np.ndarray) -> bool:
    """Return whether a reduction is right: indices exactly, means and variances within rounding.

    Means may be off by 4 roundings of float32 from float64, variances by 8, plus one of their type.
    """
    name, dtype, (rows, _), axis = case
    for half, found in zip((x[:rows], x[rows:]), y, strict=True):
        wide = half.astype(np.float64)
        wanted = np.broadcast_to(getattr(np, name)(wide, axis=axis), found.shape)
        if name.startswith("arg"):
            if not (found == wanted).all():
                return False
            continue
        ulp = {"float16": 2.0**-11, "bfloat16": 2.0**-8}.get(dtype, 0.0) * np.abs(wanted)
        size = {
            "mean": np.abs(wide).mean(axis=axis),
            "var": 2 * wide.var(axis=axis),
            "std": 2 * wide.std(axis=axis),
        }[name]
        if (np.abs(found.astype(np.float64) - wanted) > ulp + 4 * 2.0**-24 * size + 1e-30).any():
            return False
    return True


# ---- running sums --------------------------------------------------------------------------------
RUNNING: list[Case] = [
    ("cumsum", dtype, shape, axis)
    for dtype in ("float32", "int32")
    for shape in SHAPES
    for axis in (0, 1)
]


@functools.cache
def running(case: Case) -> Any:
    """Compute ``y = cumsum(tile, axis)`` for the tile of each of two warpgroups."""
    _, _, (rows, columns), axis = case

    @numpipe.kernel(num_compute_wgs=2, wg_axis="wg")
    def running_sums(x, y):
        w = numpipe.axis_index("wg")
        y[ds(w * rows, rows), ds(0, columns)] = np.cumsum(
            x[ds(w * rows, rows), ds(0, columns)], axis=axis
        )

    return running_sums


@numpipe.kernel
def running_of_vectors(x, y):
    """Compute running sums of vectors in each layout, and of a one-row tile along both axes."""
    v = x[ds(0, 192), ds(0, 64)]
    y[0, ds(0, 192)] = v.sum(axis=1).cumsum()
    y[1, ds(0, 64)] = np.cumsum(v.sum(axis=0), axis=-1)
    y[2, ds(0, 64)] = x[0, ds(0, 64)].cumsum(axis=0)
    top = v.max(axis=0, keepdims=True)
    y[ds(3, 1), ds(0, 64)] = top.cumsum(axis=1) + top.cumsum(axis=0)


# ---- element by element --------------------------------------------------------------------------
@functools.cache
def exactly(name: str, dtype: str, limits: tuple[Any, Any] = (None, None)) -> Any:
    """Compute ``y = function(x)`` for 64 x 128 elements; a mask gives 0 and 1."""
    function = getattr(np, name)
    low, high = limits

    @numpipe.kernel
    def mapped(x, y):
        y[ds(0, 64), ds(0, 128)] = function(x[ds(0, 64), ds(0, 128)]).astype(y.dtype)

    @numpipe.kernel
    def clipped(x, y):
        y[ds(0, 64), ds(0, 128)] = np.clip(x[ds(0, 64), ds(0, 128)], low, high)

    return clipped if name == "clip" else mapped


@functools.cache
def every_exact(limits: tuple[Any, Any]) -> Any:
    """Apply all functions to the tile of x, stacked vertically in y; each mask function sets a
    bit."""
    low, high = limits

    @numpipe.kernel
    def mapped(x, y, mask):
        tile = x[ds(0, 64), ds(0, 64)]
        y[ds(0, 64), ds(0, 64)] = np.floor(tile)
        y[ds(64, 64), ds(0, 64)] = np.ceil(tile)
        y[ds(128, 64), ds(0, 64)] = np.sign(tile)
        y[ds(192, 64), ds(0, 64)] = np.square(tile)
        y[ds(256, 64), ds(0, 64)] = np.clip(tile, low, high)
        y[ds(320, 64), ds(0, 64)] = np.trunc(tile)
        y[ds(384, 64), ds(0, 64)] = np.round(tile)
        bits = (
            np.isnan(tile).astype(np.int32)
            + 2 * np.isinf(tile).astype(np.int32)
            + 4 * np.isfinite(tile).astype(np.int32)
        )
        mask[ds(0, 64), ds(0, 64)] = bits

    return mapped


@numpipe.kernel
def difference(x, z, y):
    """Set bit 0 where the bits of x and z differ, and bit 1 where those of x and of z's first row
    do."""
    tile, other = x[ds(0, 64), ds(0, 128)], z[ds(0, 64), ds(0, 128)]
    row = z[0, ds(0, 128)]
    y[ds(0, 64), ds(0, 128)] = differ(tile, other).astype(np.int32) + 2 * differ(
        tile, row[None, :]
    ).astype(np.int32)


def arrays_of_exact(name: str, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    x = drawn((64, 128), dtype)
    if dtype != "int32":
        x[0, :8] = np.array(
            [0.5, -0.5, 1e-7, -1e-7, 250.75, -250.75, 2.0**15 + 1, -0.0], np.float64
        ).astype(x.dtype)
    return x, np.zeros((64, 128), np.int32 if name in MASKS else x.dtype)


def wanted_of_exact(name: str, x: np.ndarray, limits: tuple[Any, Any] = (None, None)) -> np.ndarray:
    """Return NumPy's result; bfloat16 is computed in float32 and rounded."""
    wide = x.astype(np.float32) if x.dtype == BF16 else x
    with np.errstate(all="ignore"):
        found = np.clip(wide, *limits) if name == "clip" else getattr(np, name)(wide)
    return found.astype(np.int32 if name in MASKS else x.dtype)


def same_values(found: np.ndarray, wanted: np.ndarray) -> bool:
    """Return whether two arrays have the same values, with NaNs equal and zeros of any sign equal.

    A GPU's maximum of 0.0 and -0.0 is 0.0.
    """
    return bool(np.array_equal(found.astype(np.float64), wanted.astype(np.float64), equal_nan=True))


def matched(kernel: Any, *arrays: np.ndarray, target: str) -> None:
    """Run a kernel simulated, or five times on the GPU, where every run must give the same bits."""
    given = [array.copy() for array in arrays]
    kernel.simulate(*arrays)
    for _ in range(5 if target == "gpu" else 0):
        found = [array.copy() for array in given]
        kernel(*found, target="gpu")
        assert all(map(same_bits, found, arrays))


def same_bits(found: np.ndarray, wanted: np.ndarray) -> bool:
    """Return whether two arrays have the same bits, with NaNs equal."""
    if found.dtype.kind == "i":
        return bool((found == wanted).all())
    found, wanted = found.astype(np.float32), wanted.astype(np.float32)
    nan = np.isnan(wanted)
    return bool(
        (np.isnan(found) == nan).all()
        and (found.view(np.int32) == wanted.view(np.int32))[~nan].all()
    )


# ---- other functions
@numpipe.kernel
def of_vectors(x, floats, ints):
    """Apply a function to vectors in each layout, and to tiles of one row and one column."""
    v = x[ds(0, 64), ds(0, 64)]
    row, column, either = v.sum(axis=0), v.sum(axis=1), x[0, ds(0, 64)]
    floats[0, ds(0, 64)] = numpipe.full(64, row.mean(), np.float32)
    floats[1, ds(0, 64)] = numpipe.full(64, column.mean(axis=0), np.float32)
    floats[2, ds(0, 64)] = numpipe.full(64, np.mean(either), np.float32)
    floats[3, ds(0, 64)] = numpipe.full(64, v.sum(axis=1, keepdims=True).mean(), np.float32)
    ints[0, ds(0, 64)] = numpipe.full(64, np.argmax(row) + 100 * row.argmin(), np.int32)
    ints[1, ds(0, 64)] = numpipe.full(
        64, np.argmax(column) + 100 * column.argmin(axis=-1), np.int32
    )
    ints[2, ds(0, 64)] = numpipe.full(
        64, np.argmax(either) + 100 * np.argmin(either, axis=0), np.int32
    )
    ints[3, ds(0, 64)] = v.argmin(1)


@numpipe.kernel
def of_numbers(x, y, scale, n):
    """Apply a function to numbers of a kernel and of a tile; the memory role has none."""
    top = x[ds(0, 64), ds(0, 64)].max()
    a = np.floor(scale) + 10.0 * np.ceil(scale) + 100.0 * np.sign(scale) + 1000.0 * np.square(scale)
    b = (
        np.clip(scale, -0.25, 0.25)
        + 10.0 * np.clip(n, None, 2)
        + 100.0 * np.sign(n)
        + 1000.0 * np.floor(n)
    )
    c = 1.0 if np.isnan(scale / scale) else 0.0
    y[ds(0, 64), ds(0, 64)] = numpipe.full((64, 64), a + b + c, np.float32) + np.clip(
        np.floor(top), 0, 2
    )
