"""``quantize(x, dtype, block)``: numbers divided by scales and rounded to float8 or int8.

With a scale for each row or block, x is read once; with one scale for all of x, twice. The kernels
can also quantize ``activation(x) * up``.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from ..arch.dtypes import ELEMENTS
from ..core.arith import cdiv
from ..core.functions import Function, function
from ..diagnostics.argument_checks import word
from ..diagnostics.errors import SpecError
from ..kernels.kernel import Kernel
from ..kernels.row_kernels import RowKernel, rows
from ..language.tiles.mathematics import rsqrt
from ..launch.array_info import ArrayInfo
from ..plan.context import program_id
from ..plan.specs import ArrayType, Static
from .declaration import op
from .over_rows import MATRIX, ROWS, launch_over_rows
from .reduce_axis import launch_reduction
from .tiled import (
    TYPES,
    Tile,
    dense,
    launch_over_tiles,
    reshaped,
    rows_of,
    with_fitting,
)

__all__ = ["quantize", "quantizer"]

TOP = {"float8_e4m3fn": 448.0, "int8": 127.0}
"""the largest number of each type"""
BLOCK = 128
"""columns of a block "1x128" """
LEAST = 1e-35
"""numbers that are all smaller have scale 1, because the inverse of their scale would overflow"""


@functools.cache
def quantizer(dtype: str) -> tuple[Function[..., Any], Function[..., Any]]:
    """Return two functions for kernels: ``scale_of(top)``, the float32 scale of numbers up to
    `top`, and ``scaled(tile, scale)``, a float32 tile divided by its scale and rounded to `dtype`.

    In a kernel over rows: ``scale = scale_of(row.max(lambda j: np.abs(f(j))))``, then
    ``row.put(k, scales, scale)`` and ``row.store(block, y, lambda j: scaled(f(j), scale))``.
    """
    most, kind, rounds = TOP[dtype], ELEMENTS[dtype].dtype, dtype == "int8"
    inverse = 1.0 / most

    @function
    def scale_of(top):  # type: ignore[no-untyped-def]
        return np.where(top < LEAST, 1.0, top * inverse)

    @function
    def scaled(tile, scale):  # type: ignore[no-untyped-def]
        root = rsqrt(scale)  # its square is the reciprocal, without a path for denormal numbers
        values = tile * (root * root)
        if rounds:
            values = np.clip(np.round(values), -most, most)
        return values.astype(kind)

    return scale_of, scaled


@functools.cache
def value(activated: Function[..., Any] | None) -> Function[..., Any]:
    """Return the kernel function for the float32 number to quantize: x, or the first result of
    ``activated(x)`` times up."""

    @function
    def number(x, up, i, j):  # type: ignore[no-untyped-def]
        tile = x[i, j]
        if activated is not None:
            u = up[i, j]
            y, _ = activated(tile.astype(np.float32))
            tile = y * u.astype(np.float32)
        return tile.astype(np.float32)

    return number


@functools.cache
def by_row(activated: Function[..., Any] | None, dtype: str) -> RowKernel:
    """Return the kernel over rows with a scale for each row."""
    scale_of, scaled = quantizer(dtype)

    @rows(operands=2 if activated else 1, without=() if activated else ("up",))
    def quantize_row(x, up, y, scales, *, row: Static):  # type: ignore[no-untyped-def]
        for k in row.blocks(x):  # type: ignore[attr-defined]
            if activated is None:
                number, block = row.load(k, x)  # type: ignore[attr-defined]
            else:
                gate, factor, block = row.load(k, x, up)  # type: ignore[attr-defined]

                def number(j):  # type: ignore[no-untyped-def]
                    y, _ = activated(gate(j))
                    return y * factor(j)

            top = row.max(lambda j: np.abs(number(j)))  # type: ignore[attr-defined]
            scale = scale_of(top)
            row.put(k, scales, scale)  # type: ignore[attr-defined]
            row.store(block, y, lambda j: scaled(number(j), scale))  # type: ignore[attr-defined]

    return quantize_row


@functools.cache
def by_tile(activated: Function[..., Any] | None, dtype: str, one: bool, tile: Tile) -> Kernel:
    """Return the kernel with a scale for each row of a tile, or with `one` known scale."""
    (scale_of, scaled), number = quantizer(dtype), value(activated)
    at, width = tile.at, tile.width

    @tile.kernel(without=() if activated else ("up",))
    def quantize_tile(x, up, scales, y):  # type: ignore[no-untyped-def]
        i, j = at(x)
        values = number(x, up, i, j)
        if one:
            y[i, j] = scaled(values, scales[0])
        else:
            scale = scale_of(np.abs(values).max(axis=1))
            y[i, j] = scaled(values, scale[:, None])
            scales[i, program_id(0) % cdiv(x.shape[1], width)] = scale

    return quantize_tile


def scales_type(shape: tuple[Any, ...], block: str) -> ArrayType:
    """Return the shape and type of the scales of an array."""
    if block == "tensor":
        return ArrayType((), np.float32)
    if not shape:
        raise SpecError(
            f'quantize: block="{block}" needs an array with rows, got shape (); fix: block="tensor"'
        )
    last = () if block == "row" else (-(-shape[-1] // BLOCK),)
    return ArrayType((*shape[:-1], *last), np.float32)


def launch_quantized(
    op: str,
    activated: Function[..., Any] | None,
    inputs: dict[str, ArrayInfo],
    y: ArrayInfo,
    scales: ArrayInfo,
    dtype: str,
    block: str,
    target: str | None,
    stream: Any,
) -> None:
    """Quantize x, or ``activated(x)[0] * up`` in blocks that are not "tensor"."""
    x, count, results = inputs["x"], math.prod(scales.shape), {"y": y, "scales": scales}

    def in_blocks(arrays: dict[str, ArrayInfo]) -> None:
        # blocks of arrays without gaps follow each other in memory
        adjacent = x.shape[-1] % BLOCK == 0 and all(map(dense, arrays.values()))
        across = 1 if adjacent else scales.shape[-1]
        views = {
            name: reshaped(info, count, BLOCK) if adjacent else rows_of(info)
            for name, info in arrays.items()
        }
        views["scales"] = reshaped(arrays["scales"], count // across, across)
        by_tile(activated, dtype, False, Tile(16, BLOCK))(**views, target=target, stream=stream)

    def in_two_passes(arrays: dict[str, ArrayInfo]) -> None:
        whole = arrays["scales"]
        launch_reduction(op, "top", x, None, whole, target, stream, finish=quantizer(dtype)[0])
        kernel, known = functools.partial(by_tile, activated, dtype, True), reshaped(whole, 1)
        launch_over_tiles(op, kernel, inputs, {"y": y}, target, stream, True, scales=known)

    if block == "row":
        matrices = {name: (MATRIX, info) for name, info in inputs.items()}
        by_kind = {"y": (MATRIX, y), "scales": (ROWS, scales)}
        launch_over_rows(op, by_row(activated, dtype), matrices, by_kind, target, stream)
    elif block == "1x128":
        fits = lambda info: dense(info) if info is scales else rows_of(info)
        with_fitting(op, inputs, results, fits, target, stream, in_blocks)
    else:
        with_fitting(op, {}, {"scales": scales}, dense, target, stream, in_two_passes)


def _over_batch(xp: Any, size: Any, x: Any, dtype: str, block: str) -> Any:
    rows = x if block != "tensor" else x.reshape(size, -1)
    values, scales = xp(quantize, rows, dtype=dtype, block="1x128" if block == "1x128" else "row")
    return values.reshape(x.shape), scales


@op(
    operands={"x": ""},
    results={
        "values": lambda x, dtype: ArrayType(x.shape, ELEMENTS[dtype].dtype),
        "scales": lambda x, block: scales_type(tuple(x.shape), block),
    },
    types=TYPES,
    launch=lambda x, values, scales, dtype, block, target, stream: launch_quantized(
        "quantize", None, {"x": x}, values, scales, dtype, block, target, stream
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
