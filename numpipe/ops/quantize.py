"""``quantize(x, dtype, block)``: numbers divided by scales and rounded to float8 or int8.

A row, or a block of 128 columns, stays in registers between its maximum and its result, so x is
read once. One scale for all of x, or for rows that are too long, takes two passes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..arch.dtypes import ELEMENTS
from ..core.arith import cdiv
from ..core.functions import function
from ..diagnostics.argument_checks import word
from ..diagnostics.errors import SpecError
from ..kernels.decorator import kernel as numpipe_kernel
from ..kernels.kernel import Kernel
from ..kernels.rows import RowKernel, rows
from ..launch.array_info import ArrayInfo
from ..launch.windows import strided
from ..plan.context import program_id
from ..plan.specs import ArrayType, Static
from .declaration import op
from .op_outputs import allocated
from .operands import copied, move
from .over_rows import MATRIX, ROWS, launch_over_rows
from .quantizing import BLOCK, DTYPE, quantizer, scale_of, scaled_to
from .reduce_axis import launch_totals, reshaped
from .tiled import TYPES, launch_over_tiles, one_row, tile_at, tiles_of
from .tiled import rows as rows_of

__all__ = ["quantize"]

IN_REGISTERS = 65536
"""columns up to which a row is read once"""


@functools.cache
def by_row(dtype: str) -> RowKernel:
    """Return the kernel over rows with a scale for each row."""
    quantized = quantizer(dtype)

    @rows()
    def quantize_row(x, y, scales, *, row: Static):  # type: ignore[no-untyped-def]
        i, j = row.block()
        tile = x[i, j].astype(np.float32)
        values, scale = quantized(tile, row.max(np.abs(tile), x.shape[1]))
        y[i, j] = values
        row.put(scales, scale)

    return quantize_row


@functools.cache
def by_block(dtype: str, height: int, width: int) -> Kernel:
    """Return the kernel with a scale for each row of a tile."""
    quantized, at = quantizer(dtype), tile_at(height, width)

    @numpipe_kernel(grid=lambda x: tiles_of(x, height, width), warp_specialized=False)
    def quantize_block(x, y, scales):  # type: ignore[no-untyped-def]
        i, j = at(x)
        tile = x[i, j].astype(np.float32)
        values, scale = quantized(tile, np.abs(tile).max(axis=1)[:, None])
        y[i, j] = values
        scales[i, program_id(0) % cdiv(x.shape[1], width)] = scale.reshape(-1)

    return quantize_block  # type: ignore[no-any-return]


@functools.cache
def by_scale(dtype: str, height: int, width: int) -> Kernel:
    """Return the kernel for rows with known scales."""
    scaled, at = scaled_to(dtype), tile_at(height, width)

    @numpipe_kernel(grid=lambda x: tiles_of(x, height, width), warp_specialized=False)
    def quantize_scaled(x, scales, y):  # type: ignore[no-untyped-def]
        i, j = at(x)
        y[i, j] = scaled(x[i, j].astype(np.float32), scales[i][:, None])

    return quantize_scaled  # type: ignore[no-any-return]


@functools.cache
def finish(dtype: str) -> Any:
    """Return the function that makes scales of the maxima of a reduction."""
    scale_for = scale_of(dtype)

    @function
    def as_scale(top, scale):  # type: ignore[no-untyped-def]
        return scale_for(top * scale)

    return as_scale


def scales_shape(shape: tuple[Any, ...], block: str) -> tuple[Any, ...]:
    """Return the shape of the scales of an array."""
    if block == "tensor":
        return ()
    return shape[:-1] if block == "row" else (*shape[:-1], -(-shape[-1] // BLOCK))


def launch_over_blocks(
    op: str,
    kernel_for: Callable[[int, int], Kernel],
    inputs: Mapping[str, ArrayInfo],
    y: ArrayInfo,
    scales: ArrayInfo,
    target: str | None,
    stream: Any,
) -> None:
    """Launch a kernel ``(*inputs, y, scales)`` with a scale for each row of its tiles, on tiles of
    128 columns. Arrays without contiguous rows are copied."""
    late = []
    results = {}
    for name, info in (("y", y), ("scales", scales)):
        usable = one_row(info) is not None if name == "scales" else rows_of(info) is not None
        results[name] = info if usable else allocated(op, info, info.shape, stream)
        if not usable:
            late.append((results[name], info))
    every = {**inputs, "y": results["y"]}
    columns, count = y.shape[-1], int(np.prod(scales.shape))
    if columns % BLOCK == 0 and None not in [one_row(info) for info in every.values()]:
        # blocks follow each other, so a tile has blocks of one row or of several
        views = {name: reshaped(info, (count, BLOCK)) for name, info in every.items()}
        views["scales"] = reshaped(results["scales"], (count, 1))
    else:
        views = {
            name: rows_of(info) or rows_of(copied(info, target, stream))  # type: ignore[misc]
            for name, info in every.items()
        }
        across = scales.shape[-1]
        views["scales"] = reshaped(results["scales"], (count // max(across, 1), across))
    kernel_for(32, BLOCK)(**views, target=target, stream=stream)
    for fresh, info in late:
        move(fresh, info, target, stream)


def _launch(
    x: ArrayInfo,
    y: ArrayInfo,
    scales: ArrayInfo,
    dtype: str,
    block: str,
    target: str | None,
    stream: Any,
) -> None:
    if block == "1x128":
        of = functools.partial(by_block, dtype)
        launch_over_blocks("quantize", of, {"x": x}, y, scales, target, stream)
        return
    if block == "row" and x.shape[-1] <= IN_REGISTERS:
        inputs, results = {"x": (MATRIX, x)}, {"y": (MATRIX, y), "scales": (ROWS, scales)}
        launch_over_rows("quantize", by_row(dtype), inputs, results, target, stream)
        return
    whole = (
        scales
        if one_row(scales) is not None
        else allocated("quantize", scales, scales.shape, stream)
    )
    axis = None if block == "tensor" else len(x.shape) - 1
    launch_totals("quantize", "top", x, axis, whole, target, stream, 1.0, finish(dtype))
    count = int(np.prod(x.shape[:-1]))
    if block == "row":
        each = reshaped(whole, (count,))
    else:
        flat = [one_row(info) for info in (x, y)]
        each = strided(whole, (1 if None not in flat else count,), (0 if None in flat else 4,))
    launch_over_tiles(
        "quantize",
        functools.partial(by_scale, dtype),
        {"x": x},
        {"y": y},
        target,
        stream,
        rowwise={"scales": each},
        flat=block == "tensor",
    )
    if whole is not scales:
        move(whole, scales, target, stream)


def _scales(x: Any, block: str) -> ArrayType:
    if not x.shape and block != "tensor":
        raise SpecError(
            f'quantize: block="{block}" needs an array with rows, got shape (); fix: block="tensor"'
        )
    return ArrayType(scales_shape(tuple(x.shape), block), np.float32)


@op(
    operands={"x": ""},
    results={
        "y": lambda x, dtype: ArrayType(x.shape, ELEMENTS[dtype].dtype),
        "scales": _scales,
    },
    types=TYPES,
    launch=_launch,
    checks={"dtype": DTYPE, "block": word("tensor", "row", "1x128")},
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

    A scale is the largest absolute value of its elements divided by the largest number of the type,
    448 or 127, and 1 if all of them are 0. ``values * scales`` approximates x. Values are rounded to
    nearest, ties to even. A scale of elements with a NaN is NaN. Raises SpecError for other types
    and blocks.

    >>> values, scale = quantize(np.array([0, 1, -2], np.float32), "int8", target="sim")
    >>> values
    array([   0,   64, -127], dtype=int8)
    """
