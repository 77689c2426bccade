"""`numpipe.ascontiguous`: the mend for arrays that TMA cannot address.

Calls never copy what is on a GPU, so the copy has a name. Its rows start at multiples of 16 bytes, which makes it contiguous
where a row is such a multiple, and else a view of wider memory:

    float16 (3, 5), contiguous           the copy: shape (3, 5), strides (16, 2)
    a0 a1 a2 a3 a4 b0 b1 b2 b3 b4 c0 …   a0 a1 a2 a3 a4 -- -- --
                                         b0 b1 b2 b3 b4 -- -- --
                                         c0 c1 c2 c3 c4 -- -- --
"""

from __future__ import annotations

import sys
from typing import Any

from ..diagnostics.errors import SpecError
from . import driver, handover
from .arrays import describe, library
from .device_array import DeviceArray
from .info import ArrayInfo, copied_obstacle, major_order, memory_order, padded, tma_addressable
from .streams import current_stream

__all__ = ["ascontiguous"]


def ascontiguous(x: Any) -> Any:
    """`x` itself where TMA can address it, else a copy on its own device that it can: each row at a multiple of 16 bytes.

    x   an array of any library, of 1 to 5 dimensions

    A copy has the shape, element type and major order of `x`. PyTorch and CuPy copy theirs themselves and return their kind, on
    their current stream. Of other device arrays the driver makes the copy, and it has been made when this returns: a
    `numba.cuda` device array of one, else an array with ``__cuda_array_interface__`` (JAX has no arrays with padded rows). An
    array on the host is returned as it is: its rows are padded on their way to the GPU.

    Raises SpecError for what is no array, and for one that no copy helps: 0 or more than 5 dimensions. See the CUDA driver API,
    cuTensorMapEncodeTiled, for what TMA takes.

    >>> import numpy as np
    >>> x = np.zeros((3, 5), np.float16)
    >>> ascontiguous(x) is x
    True
    """
    info = describe(x, "x", "ascontiguous")
    if info.kind != "host" and tma_addressable(info) is None:
        return x
    obstacle = tma_addressable(info) if info.kind == "host" else copied_obstacle(info)
    if obstacle:
        raise SpecError(f"numpipe.ascontiguous: TMA cannot address a {info.dtype.name} array of shape {info.shape}, wherever it "
                        f"lies: {obstacle}; reshape it, or take a slice of it")
    if info.kind == "host":
        return x
    of = "torch" if info.kind == "torch" else library(type(x))
    if of == "torch":
        return _torch(x, info)
    if of == "cupy":
        return _cupy(x, info)
    return _numba(info) if of == "numba" else _own(info)


def _row(info: ArrayInfo) -> tuple[int, ...]:
    """The shape, in memory order, of the dense array whose first columns are the copy."""
    strides = memory_order(padded(info)[0], major_order(info))
    shape = memory_order(info.shape, major_order(info))
    return shape if len(shape) < 2 else (*shape[:-1], strides[-2] // info.dtype.itemsize)


def _torch(x: Any, info: ArrayInfo) -> Any:
    turned = _turned(info)
    made = sys.modules["torch"].empty(_row(info), dtype=x.dtype, device=x.device)
    made = made[..., :info.shape[turned[-1]]]
    made.copy_(x.detach().permute(turned))
    return made.permute(turned)


def _cupy(x: Any, info: ArrayInfo) -> Any:
    cupy, turned = sys.modules["cupy"], _turned(info)
    with cupy.cuda.Device(info.device):
        made = cupy.empty(_row(info), x.dtype)[..., :info.shape[turned[-1]]]
        made[...] = x.transpose(turned)
    return made.transpose(turned)


def _turned(info: ArrayInfo) -> tuple[int, ...]:
    """The axes in memory order; the same permutation leads back."""
    return memory_order(range(len(info.shape)), major_order(info))


def _numba(info: ArrayInfo) -> Any:
    cuda = sys.modules["numba"].cuda
    with cuda.gpus[info.device]:
        made = cuda.device_array(info.shape, info.dtype, strides=padded(info)[0])
    _fill(describe(made, "x"), info)
    return made


def _own(info: ArrayInfo) -> DeviceArray:
    made = DeviceArray.like(info, current_stream([info]), info.device)
    _fill(made.info(), info)
    return made


def _fill(target: ArrayInfo, source: ArrayInfo) -> None:
    """Copy `source`, of which no library here makes copies, to `target`, of the same major order; done when this returns."""
    stream, major = current_stream([source]), major_order(source)
    handover.order([source], stream, "ascontiguous")
    shape, apart, there = (memory_order(of, major) for of in (source.shape, source.strides, target.strides))
    size = source.dtype.itemsize
    width = size
    if apart[-1] == size or shape[-1] == 1:  # rows in one piece; else rows of single elements
        width = size * shape[-1]
        shape, apart, there = shape[:-1], apart[:-1], there[:-1]

    def copy(dst: int, src: int, axis: int) -> None:
        if axis == len(shape):
            driver.get().copy_on(dst, width, src, width, width, 1, stream, source.device)
        elif axis == len(shape) - 1 and apart[axis] >= width:
            driver.get().copy_on(dst, there[axis], src, apart[axis], width, shape[axis], stream, source.device)
        else:  # a dimension further out, or a stride of rows that overlap or run backwards
            for i in range(shape[axis]):
                copy(dst + i * there[axis], src + i * apart[axis], axis + 1)

    copy(target.ptr, source.ptr, 0)
    driver.get().synchronize(stream, source.device)  # the caller may forget `source` now
