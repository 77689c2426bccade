"""``quantize(x, dtype, block)``: numbers divided by scales and rounded to float8 or int8.

With a scale for each row or block, x is read once; with one scale for all of x, twice. The kernels
can also quantize ``activation(x) * up``.
"""

# tiles and schedules in kernels have no types
# mypy: disable-error-code="no-untyped-def, attr-defined, call-overload, index"

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from ..arch.dtypes import ELEMENTS
from ..core.functions import Function, function
from ..diagnostics.argument_checks import NONE, word
from ..diagnostics.errors import SpecError
from ..kernels.kernel import Kernel
from ..kernels.row_kernels import RowKernel, rows
from ..language.tiles.mathematics import rsqrt
from ..language.tiles.tile import bitcast
from ..launch.array_info import ArrayInfo
from ..plan.specs import ArrayType, Static
from .declaration import op
from .op_outputs import Arrays, Place
from .over_rows import MATRIX, ROWS, given, launch_over_rows
from .reduce_axis import launch_reduction
from .tiled import TYPES, Tile, launch_over_tiles, reshaped

__all__ = ["quantize", "quantizer"]

TOP = {"float8_e4m3fn": 448.0, "int8": 127.0}
"""the largest number of each type"""
BLOCK = 128
"""columns of a block "1x128" """
QUANTIZED = {"out_scales": NONE | word("row", "1x128"), "out_dtype": word(*TOP)}
"""rules of the options of ops that can quantize their result"""
UNITS = {"row": 1, "1x128": BLOCK, None: 1}
"""what `rows` takes for a block"""
LEAST = 1e-35
"""numbers that are all smaller have scale 1, because the inverse of their scale would overflow"""


@functools.cache
def quantizer(dtype: str, block: str = "row") -> tuple[Function, ...]:
    """Return three functions for kernels: ``scale_of(top)``, the float32 scale of numbers up to
    `top`; ``scaled(tile, scale, factor)``, a float32 tile times a factor, divided by its scale and
    rounded to `dtype`; and ``quantized(row, row.put, row.each_group, k, scales, f, factor)``, which
    stores the scales of a value f of rows times a positive factor and returns the scaled value.
    """
    most, kind, rounds = TOP[dtype], ELEMENTS[dtype].dtype, dtype == "int8"
    inverse = 1.0 / most

    @function
    def scale_of(top):
        return np.where(top < LEAST, 1.0, top * inverse)

    @function
    def scaled(tile, scale, factor=1.0):
        root = rsqrt(scale)  # its square is the reciprocal, without a path for denormal numbers
        values = tile * (root * root * factor)
        if rounds:
            values = np.clip(np.round(values), -most, most)
        return values.astype(kind)

    @function
    def quantized(row, put, each_group, k, scales, f, factor=1.0):
        if block == "row":
            scale = scale_of(row.max(lambda j: np.abs(f(j))) * factor)
            put(k, scales, scale)
            made = lambda j: scaled(f(j), scale, factor)
        else:

            def by_group(group):
                tops = np.abs(group)
                if row.loops:
                    top = tops.max(axis=1)
                else:
                    # the bits of positive numbers have the same order, and a warp compares them at
                    # once
                    tops = np.maximum(tops[:, 0:64], tops[:, 64:128])
                    top = bitcast(bitcast(tops, np.uint32).max(axis=1), np.float32)
                scale = scale_of(top[:, None] * factor)
                return scaled(group, scale, factor), scale

            made = each_group(k, scales, f, by_group)
        return made

    return scale_of, scaled, quantized


@functools.cache
def by_row(activated: Function | None, dtype: str, block: str) -> RowKernel:
    """Return the kernel over rows with a scale for each row or group: of x, or of the first result
    of ``activated(x)`` times up."""
    *_, quantized = quantizer(dtype, block)

    @rows(
        operands=2 if activated else 1,
        unit=UNITS[block],
        once=block != "row",
        without=() if activated else ("up",),
    )
    def quantize_row(x, up, y, scales, *, row: Static):
        for k in row.blocks(x):
            if activated is None:
                number, rest = row.load(k, x)
            else:
                gate, factor, rest = row.load(k, x, up)

                def number(j):
                    y, _ = activated(gate(j))
                    return y * factor(j)

            made = quantized(row, row.put, row.each_group, k, scales, number)
            row.store(rest, y, made)

    return quantize_row


@functools.cache
def by_tensor(dtype: str, tile: Tile) -> Kernel:
    """Return the kernel with one known scale."""
    (_, scaled, _), at = quantizer(dtype), tile.at

    @tile.kernel()
    def quantize_tile(x, scales, y):
        i, j = at(x)
        y[i, j] = scaled(x[i, j].astype(np.float32), scales[0])

    return quantize_tile


def result_type(shape: tuple, x: Any, block: str | None, dtype: str) -> ArrayType:
    """Return the type of an op's result of x's type that is quantized to `dtype` unless `block` is
    None."""
    return ArrayType(shape, x.dtype if block is None else ELEMENTS[dtype].dtype)


def scales_type(shape: tuple, block: str | None) -> ArrayType | None:
    """Return the shape and type of the scales of an array; None if it is not quantized."""
    if block is None:
        return None
    if block == "tensor":
        return ArrayType((), np.float32)
    if not shape:
        raise SpecError(
            f'quantize: block="{block}" needs an array with rows, got shape (); fix: block="tensor"'
        )
    last = () if block == "row" else (-(-shape[-1] // BLOCK),)
    return ArrayType((*shape[:-1], *last), np.float32)


def launch_quantized(
    activated: Function | None,
    inputs: Arrays,
    y: ArrayInfo,
    scales: ArrayInfo,
    dtype: str,
    block: str,
    place: Place,
) -> None:
    """Quantize x, or ``activated(x)[0] * up`` in blocks that are not "tensor"."""
    if block == "tensor":
        launch_reduction("top", inputs["x"], None, scales, place, finish=quantizer(dtype)[0])
        kernel_for = functools.partial(by_tensor, dtype)
        launch_over_tiles(kernel_for, inputs, {"y": y}, place, scales=reshaped(scales, 1))
        return
    if y.shape[-1] <= BLOCK:
        block = "row"  # the only block of a row
    results = {"y": (MATRIX, y), "scales": (ROWS if block == "row" else MATRIX, scales)}
    launch_over_rows(by_row(activated, dtype, block), given(MATRIX, **inputs), results, place)


def _over_batch(xp: Any, size: Any, x: Any, dtype: str, block: str) -> Any:
    rows, block = (x.reshape(size, -1), "row") if block == "tensor" else (x, block)
    values, scales = xp(quantize, rows, dtype=dtype, block=block)
    return values.reshape(x.shape), scales


@op(
    operands={"x": ""},
    results={
        "values": lambda x, dtype: ArrayType(x.shape, ELEMENTS[dtype].dtype),
        "scales": lambda x, block: scales_type(tuple(x.shape), block),
    },
    types=TYPES,
    launch=lambda x, values, scales, dtype, block, place: launch_quantized(
        None, {"x": x}, values, scales, dtype, block, place
    ),
    checks={"dtype": word(*TOP), "block": word("tensor", "row", "1x128")},
    batching=_over_batch,
)
def quantize(
    x: Any,
    dtype: str = "float8_e4m3fn",
    block: str = "tensor",
    *,
    out: Any = None,
    target: str | None = None,
    stream: Any = None,
) -> Any:
    """Return (values, scales): x / scale rounded to `dtype`, and the float32 scales.

    x       (…, n) of float16, bfloat16 or float32, with any strides
    dtype   "float8_e4m3fn" or "int8"
    block   the elements that share a scale: "tensor", all of x, scales of shape (); "row", scales
            (…); "1x128", 128 columns of a row, scales (…, ceil(n / 128))
    out     a tuple of two arrays to write to; allocated by default
    target, stream
            as for any kernel

    A scale is the largest absolute value of its elements divided by the largest number of the
    type, 448 or 127, and 1 if all are below 1e-35. ``values * scales`` approximates x. Values are
    rounded to nearest, ties to even. A NaN makes its scale NaN. There is no gradient. Raises
    SpecError for other types and blocks.

    >>> values, scale = quantize(np.array([0, 1, -2], np.float32), "int8", target="sim")
    >>> values
    array([   0,   64, -127], dtype=int8)
    """
