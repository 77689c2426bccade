"""Tensor maps, which tell the TMA unit where an array lies and which box of it one copy moves.

PTX ISA, "Tensor: tensor-map"; CUDA driver API, cuTensorMapEncodeTiled. Shapes, strides and boxes
here are in memory order, with the contiguous dimension last (the driver wants it first). Encoding
takes some six microseconds, so maps are kept by all that they depend on; they hold an address and
nothing of the array's contents, and stay right when another array comes to lie there.

The documentation does not spell out three facts about TMA, each measured on an H200 and modelled by
the simulator:

- the innermost coordinate of a copy must be a multiple of 16 bytes, which no tensor map can check:
  others give CUDA_ERROR_ILLEGAL_INSTRUCTION, as a store at a negative coordinate does. Loads may
  have negative ones in other dimensions;
- a store writes whole 16-byte chunks: past the end of a row that ends inside one it overwrites what
  follows. So lanes store outputs on the GPU that have such rows (N no multiple of 8 for 16-bit
  types); those on the host are padded;
- a load is exact to the element.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from ..arch.dtypes import BY_DTYPE
from ..diagnostics import log
from ..plan.copy_plans import MapRequest
from . import driver
from .array_info import tma_strides

__all__ = ["MAP_BYTES", "MapRequest", "encode"]

MAP_BYTES = 128


@functools.lru_cache(maxsize=4096)
def encode(
    ptr: int,
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    box: tuple[int, ...],
    swizzle: int,
    fill: str = "zeros",
) -> bytes:
    """Return the 128 bytes of a CUtensorMap; `strides` are in bytes.

    The driver demands an element: an array that has none becomes one of a single element at `ptr`
    (`Driver.blank`), because a load from nowhere is a CUDA_ERROR_ILLEGAL_ADDRESS on an H200. The
    caller has checked the array (`tma_addressable`), and the plan of the copy its box. Raises
    DriverError.
    """
    dims = [1] * len(shape) if 0 in shape else [*reversed(shape)]
    outer = tuple(reversed(tma_strides(shape, strides, dtype.itemsize)))[1:]
    timed = log.Timed("launch")
    encoded = driver.get().encode_tiled(
        BY_DTYPE[dtype].tma, ptr, dims, outer, box[::-1], swizzle, fill == "nan"
    )
    if timed:
        timed.say(
            f"tensor map of a {dtype.name} array {shape} at {ptr:#x}, box {box}, swizzle {swizzle}"
        )
    return encoded
