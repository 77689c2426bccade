"""`numpipe.ascontiguous`: a copy for arrays that TMA cannot address.

Calls never copy GPU arrays implicitly, so the copy is a separate function. Its rows start at
multiples of 16 bytes. It is contiguous if the row size is such a multiple, otherwise it is a view
of wider memory:

    float16 (3, 5), contiguous           the copy: shape (3, 5), strides (16, 2)
    a0 a1 a2 a3 a4 b0 b1 b2 b3 b4 c0 …   a0 a1 a2 a3 a4 -- -- --
                                         b0 b1 b2 b3 b4 -- -- --
                                         c0 c1 c2 c3 c4 -- -- --
"""

from __future__ import annotations

import sys
from typing import Any

from ..diagnostics.errors import SpecError
from . import driver, stream_handover
from .array_info import (
    ArrayInfo,
    copied_obstacle,
    major_order,
    memory_order,
    padded,
    tma_addressable,
)
from .arrays import describe, library
from .device_array import DeviceArray
from .streams import current_stream

__all__ = ["ascontiguous"]


def ascontiguous(x: Any) -> Any:
    """Return `x` itself if TMA can address it, otherwise a copy on the same device in which each
    row starts at a multiple of 16 bytes.

    x   an array of any library, with 1 to 5 dimensions

    A copy has the shape, element type and major order of `x`. PyTorch and CuPy arrays are copied by
    their own library, on its current stream, to an array of that library. Other GPU arrays are
    copied by the driver before this function returns. The result is a `numba.cuda` device array for
    one of those, otherwise an array with ``__cuda_array_interface__`` (JAX has no arrays with
    padded rows). Host arrays are returned unchanged, because their rows are padded when they are
    copied to the GPU.

    Raises SpecError for anything that is not an array, and for an array that a copy cannot fix,
    with 0 or more than 5 dimensions. For the requirements of TMA see cuTensorMapEncodeTiled in the
    CUDA driver API.

    >>> import numpy as np
    >>> x = np.zeros((3, 5), np.float16)
    >>> ascontiguous(x) is x
    True
    """
    info = describe(x, "x", "ascontiguous")
    if tma_addressable(info) is None:
        return x
    if obstacle := copied_obstacle(info):
        raise SpecError(
            f"numpipe.ascontiguous: TMA cannot address a {info.dtype.name} array of shape "
            f"{info.shape} at any address: {obstacle}; reshape it, or take a slice of it"
        )
    strides, nbytes = padded(info)
    of = "torch" if info.kind == "torch" else library(type(x))
    if of == "torch":
        steps = [stride // info.dtype.itemsize for stride in strides]
        tensor = sys.modules["torch"].empty_strided(
            info.shape, steps, dtype=x.dtype, device=x.device
        )
        return tensor.copy_(x.detach())
    if of == "cupy":
        cupy = sys.modules["cupy"]
        with cupy.cuda.Device(info.device):
            copy = cupy.ndarray(info.shape, x.dtype, cupy.cuda.alloc(nbytes), strides)
            copy[...] = x
        return copy
    if of == "numba":
        cuda = sys.modules["numba"].cuda
        with cuda.gpus[info.device]:
            copy = cuda.device_array(info.shape, info.dtype, strides=strides)
    else:
        copy = DeviceArray.like(info, current_stream([info]), info.device)
    _fill(describe(copy, "x"), info)
    return copy


def _fill(target: ArrayInfo, source: ArrayInfo) -> None:
    """Copy `source` to `target`, which has the same major order. Returns after the copy has
    finished."""
    stream, major = current_stream([source]), major_order(source)
    stream_handover.order([source], stream, "ascontiguous")
    shape, pitches, target_pitches = (
        memory_order(sizes, major) for sizes in (source.shape, source.strides, target.strides)
    )
    size = source.dtype.itemsize
    width = size
    if pitches[-1] == size or shape[-1] == 1:  # whole rows; otherwise copy single elements
        width = size * shape[-1]
        shape, pitches, target_pitches = shape[:-1], pitches[:-1], target_pitches[:-1]

    def copy(dst: int, src: int, axis: int) -> None:
        if axis == len(shape):
            driver.get().copy_on(dst, width, src, width, width, 1, stream, source.device)
        elif axis == len(shape) - 1 and pitches[axis] >= width:
            driver.get().copy_on(
                dst,
                target_pitches[axis],
                src,
                pitches[axis],
                width,
                shape[axis],
                stream,
                source.device,
            )
        else:  # an outer dimension, or a stride of rows that overlap or run backwards
            for i in range(shape[axis]):
                copy(dst + i * target_pitches[axis], src + i * pitches[axis], axis + 1)

    copy(target.ptr, source.ptr, 0)
    driver.get().synchronize(stream, source.device)  # the caller may free `source` now
