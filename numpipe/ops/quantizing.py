"""Functions for kernels that quantize: scales of groups of numbers, and numbers divided by them.

A scale is the largest absolute value of its group divided by the largest number of the type, so
that ``values * scale`` restores the group.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from ..arch.dtypes import ELEMENTS
from ..core.functions import Function, function
from ..diagnostics.argument_checks import word

__all__ = ["BLOCK", "DTYPE", "TOP", "quantizer", "scale_of", "scaled_to"]

TOP = {"float8_e4m3fn": 448.0, "int8": 127.0}
"""the largest number of each type that values are quantized to"""
DTYPE = word(*TOP)
BLOCK = 128
"""columns that share a scale in blocks "1x128" """
LEAST = 1e-35
"""numbers that are all smaller have scale 1, because the inverse of their scale would overflow"""


@functools.cache
def scale_of(dtype: str) -> Function[..., Any]:
    """Return the function ``scale(top)`` of a kernel: the scale of numbers up to `top`, float32, or 1
    where top is less than LEAST."""
    inverse = float(np.float32(1.0 / TOP[dtype]))

    @function
    def scale(top):  # type: ignore[no-untyped-def]
        return np.where(top < LEAST, 1.0, top * inverse)

    return scale


@functools.cache
def scaled_to(dtype: str) -> Function[..., Any]:
    """Return the function ``scaled(tile, scale)`` of a kernel: a float32 tile divided by scales and
    rounded to `dtype`."""
    most, kind, rounds = TOP[dtype], ELEMENTS[dtype].dtype, dtype == "int8"

    @function
    def scaled(tile, scale):  # type: ignore[no-untyped-def]
        values = tile * (1.0 / scale)
        if rounds:
            values = np.clip(np.round(values), -most, most)
        return values.astype(kind)

    return scaled


@functools.cache
def quantizer(dtype: str) -> Function[..., Any]:
    """Return the function ``quantized(tile, top)`` of a kernel, which returns (tile / scale in the
    type `dtype`, scale).

    tile  float32
    top   the largest absolute value of each row of the tile, (rows, 1)

    A kernel over rows calls it as ``quantizer(dtype)(tile, row.max(np.abs(tile), n))``.
    """
    scale_for, scaled = scale_of(dtype), scaled_to(dtype)

    @function
    def quantized(tile, top):  # type: ignore[no-untyped-def]
        scale = scale_for(top)
        return scaled(tile, scale), scale

    return quantized
