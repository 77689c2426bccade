"""Encoding of tensor maps, which describe to the TMA unit an array and the box that one copy moves.

PTX ISA, "Tensor: tensor-map"; CUDA driver API, cuTensorMapEncodeTiled. Shapes, strides and boxes
are in memory order here, with the contiguous dimension last (the driver expects it first). Encoding
takes about six microseconds, so maps are cached by everything that they depend on. They contain an
address but nothing of the array's contents, so they remain valid if another array is allocated
there.

Three facts about TMA are missing from the documentation. They were measured on an H200, and the
simulator models them:

- The innermost coordinate of a copy must be a multiple of 16 bytes, which no tensor map can check.
  Other coordinates cause CUDA_ERROR_ILLEGAL_INSTRUCTION, and so does a store at a negative
  coordinate. Loads may have negative coordinates in the other dimensions.
- A store writes whole 16-byte chunks, so at the end of a row that ends inside a chunk it overwrites
  the bytes that follow. Outputs with such rows (N not a multiple of 8 for 16-bit types) are
  therefore stored by lanes if they are on the GPU, and padded if they are on the host.
- A load is exact to the element.
"""

from __future__ import annotations

import functools

import numpy as np

from ..arch.dimensions import Ints
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
    dtype: np.dtype,
    shape: Ints,
    strides: Ints,
    box: Ints,
    swizzle: int,
    fill: str = "zeros",
) -> bytes:
    """Return the 128 bytes of a CUtensorMap; `strides` are in bytes.

    The driver requires at least one element. An array without elements is encoded as one with a
    single element at `ptr` (`Driver.blank`), because loading from an invalid address is a
    CUDA_ERROR_ILLEGAL_ADDRESS on an H200. The caller has already checked the array
    (`tma_addressable`), and the plan of the copy its box. Raises DriverError.
    """
    dims = [1] * len(shape) if 0 in shape else [*reversed(shape)]
    outer = tuple(reversed(tma_strides(shape, strides, dtype.itemsize)))[1:]
    timed = log.Timed()
    encoded = driver.get().encode_tiled(
        BY_DTYPE[dtype].tma, ptr, dims, outer, box[::-1], swizzle, fill == "nan"
    )
    if timed:
        timed.say(
            f"tensor map of a {dtype.name} array {shape} at {ptr:#x}, box {box}, swizzle {swizzle}"
        )
    return encoded
