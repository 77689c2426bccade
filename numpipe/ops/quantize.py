"""``quantize(x, dtype, block)``: numbers divided by scales and rounded to float8 or int8.

A row, or a block of 128 columns, stays in registers between its maximum and its result, so x is
read once. One scale for all of x, or for each of very long rows, takes two passes. The kernels can
also quantize ``activation(x) * up``.
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
from ..kernels.decorator import kernel as numpipe_kernel
from ..kernels.kernel import Kernel
from ..kernels.row_kernels import RowKernel, rows
from ..launch.array_info import ArrayInfo
from ..plan.context import axis_index, program_id
from ..plan.specs import ArrayType, Static
from .activations import ACTIVATIONS
from .declaration import op
from .over_rows import MATRIX, ROWS, launch_over_rows
from .reduce_axis import launch_reduction
from .tiled import (
    TYPES,
    dense,
    launch_over_tiles,
    reshaped,
    rows_of,
    tile_at,
    tiles_of,
    with_fitting,
)

__all__ = ["quantize", "quantizer"]

TOP = {"float8_e4m3fn": 448.0, "int8": 127.0}
"""the largest number of each type"""
BLOCK = 128
"""columns of a block "1x128" """
LEAST = 1e-35
"""numbers that are all smaller have scale 1, because the inverse of their scale would overflow"""
IN_REGISTERS = 65536
"""columns up to which a row is read once"""


@functools.cache
def quantizer(dtype: str) -> tuple[Function[..., Any], Function[..., Any]]:
    """Return two functions for kernels: ``scale_of(top)``, the float32 scale of numbers up to
    `top`, and ``scaled(tile, scale)``, a float32 tile divided by its scale and rounded to `dtype`.

    In a kernel over rows: ``scale = scale_of(row.max(np.abs(tile), n))``, then ``y[i, j] =
    scaled(tile, scale)`` and ``row.put(scales, scale)``.
    """
    most, kind, rounds = TOP[dtype], ELEMENTS[dtype].dtype, dtype == "int8"
    inverse = 1.0 / most

    @function
    def scale_of(top):  # type: ignore[no-untyped-def]
        return np.where(top < LEAST, 1.0, top * inverse)

    @function
    def scaled(tile, scale):  # type: ignore[no-untyped-def]
        values = tile * (1.0 / scale)
        if rounds:
            values = np.clip(np.round(values), -most, most)
        return values.astype(kind)

    return scale_of, scaled


@functools.cache
def value(activation: str) -> Function[..., Any]:
    """Return the function of a kernel for the number to quantize, float32."""
    act = ACTIVATIONS.get(activation)

    @function
    def number(x, up, i, j):  # type: ignore[no-untyped-def]
        tile = x[i, j]
        if act is not None:
            u = up[i, j]
            tile = act(tile.astype(np.float32)) * u.astype(np.float32)
        return tile.astype(np.float32)

    return number


@functools.cache
def by_row(activation: str, dtype: str) -> RowKernel:
    """Return the kernel over rows with a scale for each row."""
    (scale_of, scaled), number = quantizer(dtype), value(activation)

    @rows(operands=2 if activation else 1, without=() if activation else ("up",))
    def quantize_row(x, up, y, scales, *, row: Static):  # type: ignore[no-untyped-def]
        i, j = row.block()  # type: ignore[attr-defined]
        tile = number(x, up, i, j)
        scale = scale_of(row.max(np.abs(tile), x.shape[1]))  # type: ignore[attr-defined]
        y[i, j] = scaled(tile, scale)
        # a store that the search for results sees, unlike row.put
        if (row.wgs == 1 or axis_index("wg") == 0) and (  # type: ignore[attr-defined]
            row.cluster == 1 or axis_index("part") == 0  # type: ignore[attr-defined]
        ):
            scales[i] = scale.reshape(-1)

    return quantize_row


@functools.cache
def by_tile(activation: str, dtype: str, known: str, height: int, width: int) -> Kernel:
    """Return the kernel with a scale for each row of a tile, or with
    known scales of the "tensor" or of each "row"."""
    (scale_of, scaled), number = quantizer(dtype), value(activation)
    at = tile_at(height, width)

    @numpipe_kernel(
        grid=lambda x: tiles_of(x, height, width),
        warp_specialized=False,
        without=() if activation else ("up",),
    )
    def quantize_tile(x, up, scales, y):  # type: ignore[no-untyped-def]
        i, j = at(x)
        tile = number(x, up, i, j)
        if known:
            y[i, j] = scaled(tile, scales[0] if known == "tensor" else scales[i][:, None])
        else:
            scale = scale_of(np.abs(tile).max(axis=1))
            y[i, j] = scaled(tile, scale[:, None])
            scales[i, program_id(0) % cdiv(x.shape[1], width)] = scale

    return quantize_tile  # type: ignore[no-any-return]


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
    activation: str,
    inputs: dict[str, ArrayInfo],
    y: ArrayInfo,
    scales: ArrayInfo,
    dtype: str,
    block: str,
    target: str | None,
    stream: Any,
) -> None:
    """Quantize x, or ``activation(x) * up`` in blocks that are not "tensor"."""
    x, count = inputs["x"], math.prod(scales.shape)

    def in_blocks(arrays: dict[str, ArrayInfo]) -> None:
        views = {name: rows_of(info) for name, info in arrays.items()}
        across = scales.shape[-1]
        views["scales"] = reshaped(arrays["scales"], count // across, across)
        if x.shape[-1] % BLOCK == 0 and all(map(dense, arrays.values())):
            # blocks follow each other in memory
            views = {name: reshaped(info, count, BLOCK) for name, info in arrays.items()}
            views["scales"] = reshaped(arrays["scales"], count, 1)
        kernel = by_tile(activation, dtype, "", 32, BLOCK)
        kernel(**views, target=target, stream=stream)

    def in_two_passes(arrays: dict[str, ArrayInfo]) -> None:
        whole, axis = arrays["scales"], None if block == "tensor" else len(x.shape) - 1
        launch_reduction(op, "top", x, axis, whole, target, stream, finish=quantizer(dtype)[0])
        kernel = functools.partial(by_tile, activation, dtype, block)
        launch_over_tiles(
            op,
            kernel,
            inputs,
            {"y": y},
            target,
            stream,
            scales=reshaped(whole, count),
            flat=axis is None,
        )

    if block == "row" and (activation or x.shape[-1] <= IN_REGISTERS):
        matrices = {name: (MATRIX, info) for name, info in inputs.items()}
        results = {"y": (MATRIX, y), "scales": (ROWS, scales)}
        launch_over_rows(op, by_row(activation, dtype), matrices, results, target, stream)
    elif block == "1x128":
        fits = lambda info: dense(info) if info is scales else rows_of(info)
        results_ = {"y": y, "scales": scales}
        with_fitting(op, inputs, results_, fits, target, stream, in_blocks)
    else:
        with_fitting(op, {}, {"scales": scales}, dense, target, stream, in_two_passes)


@op(
    operands={"x": ""},
    results={
        "values": lambda x, dtype: ArrayType(x.shape, ELEMENTS[dtype].dtype),
        "scales": lambda x, block: scales_type(tuple(x.shape), block),
    },
    types=TYPES,
    launch=lambda x, values, scales, dtype, block, target, stream: launch_quantized(
        "quantize", "", {"x": x}, values, scales, dtype, block, target, stream
    ),
    checks={"dtype": word(*TOP), "block": word("tensor", "row", "1x128")},
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
