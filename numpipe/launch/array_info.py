"""`ArrayInfo`, the description of an array that launches use, and TMA's requirements of its layout.

A matrix is *row* major if its last dimension is contiguous, and *col* major if its first dimension
is. The tensor map of a col-major array is built for its transpose, in memory order.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from ..arch.dimensions import Ints, round_up
from ..arch.dtypes import ELEMENTS, packed_fix
from ..diagnostics.errors import SpecError

Kind = Literal["host", "torch", "cuda", "jax", "dlpack"]
"""where an array is and how its memory is shared; "cuda" is CuPy, Numba and everything else with
``__cuda_array_interface__``"""
Major = Literal["row", "col"]

DTYPES = {name: record.dtype for name, record in ELEMENTS.items()}
"""Element types of kernel arguments."""
# np.dtype.name takes a microsecond, a hash look-up does not
_exact = {dtype: dtype for dtype in DTYPES.values()}

_TMA_ALIGN = 16


class ArrayInfo(NamedTuple):
    """Description of an array for a launch. Strides are in bytes; `ptr` is 0 for host arrays."""

    kind: Kind
    ptr: int
    shape: Ints
    strides: Ints
    dtype: np.dtype
    device: int
    """CUDA ordinal; -1 for host arrays"""
    writable: bool
    owner: Any
    """the object that was passed"""
    array: np.ndarray | None = None
    """for host arrays, the memory as a NumPy array (for a CPU tensor, a view of it)"""
    held: Any = None
    """the view of a DLPack export, which like `owner` keeps the memory alive"""

    @property
    def address(self) -> int:
        """The address of the first element, on the host or on a GPU."""
        return self.ptr if self.array is None else int(self.array.__array_interface__["data"][0])


def info_of_zeros(shape: Ints, dtype: np.dtype, order: str = "C") -> ArrayInfo:
    """Describe an array of zeros that is not allocated; `order` is NumPy's."""
    zeros = np.broadcast_to(np.zeros((), dtype), shape)
    along = -1 if order == "F" else 1
    strides = dense_strides(shape[::along], dtype.itemsize)[::along]
    return ArrayInfo("host", 0, shape, strides, dtype, -1, True, zeros, zeros)


def argument(name: str, kernel: str) -> str:
    """Format an argument's name for messages."""
    return f"argument {name!r} of kernel {kernel!r}" if kernel else f"argument {name!r}"


def unsupported(dtype: str, fix: str = "") -> SpecError:
    """Return the error for an array of an element type that kernels do not have."""
    fix = fix or f"; fix: convert it to one of {', '.join(DTYPES)} in native byte order"
    return SpecError(f"element type {dtype} is not supported{fix}")


def element_type(dtype: np.dtype) -> np.dtype:
    """Return the element type. Raises SpecError if kernels do not support it."""
    element = _exact.get(dtype)
    if element is None:
        raise unsupported(f"{dtype!s} ({dtype.str})", packed_fix(dtype))
    return element


def dense_strides(shape: Sequence[int], itemsize: int) -> Ints:
    """Return the byte strides of a C-contiguous array; dimensions of size 0 count as 1."""
    strides = [itemsize] * len(shape)
    for axis in range(len(shape) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * max(shape[axis + 1], 1)
    return tuple(strides)


def major_order(info: ArrayInfo) -> Major:
    """Return "row" if the last dimension is contiguous, "col" if only the first one is, and "row"
    if neither is.

    The stride of a dimension of size 1 does not matter. An (n, 1) matrix is therefore "row", and so
    are 1-D arrays and arrays without elements. A (1, n) matrix that is not "row" is "col", but a
    (1, m, n) array is "row", because its other strides would be wrong for TMA.
    """
    shape, strides, size = info.shape, info.strides, info.dtype.itemsize
    if len(shape) < 2 or strides[-1] == size or shape[-1] == 1 or 0 in shape:
        return "row"
    first = len(shape) == 2 if shape[0] == 1 else strides[0] == size
    return "col" if first else "row"


def memory_order(values: Sequence[int], major: Major) -> Ints:
    """Return a tuple of a shape, strides or a block with the contiguous dimension last."""
    return tuple(values) if major == "row" else tuple(reversed(values))


def padded(info: ArrayInfo) -> tuple[Ints, int]:
    """Return the byte strides and the size in bytes of a copy in the major order of `info` whose
    rows start at multiples of 16 bytes."""
    major = major_order(info)
    shape = memory_order(info.shape, major)
    size = info.dtype.itemsize
    if len(shape) < 2:
        return dense_strides(shape, size), math.prod(shape) * size
    pitch = round_up(shape[-1] * size, _TMA_ALIGN)
    return memory_order((*dense_strides(shape[:-1], pitch), size), major), math.prod(
        shape[:-1]
    ) * pitch


def copied_obstacle(info: ArrayInfo) -> str | None:
    """Return why TMA could not address even a padded copy (zero, too many, or too large
    dimensions), or None."""
    return _obstacle(0, info.shape, padded(info)[0], info.dtype)


def tma_strides(shape: Sequence[int], strides: Sequence[int], itemsize: int) -> Ints:
    """Return byte strides (contiguous dimension last) in which strides that are never used are
    replaced by values that TMA accepts."""
    result = list(strides)
    for axis, dim in enumerate(shape[:-1]):
        if dim <= 1 or 0 in shape:
            result[axis] = _TMA_ALIGN
    if result and (shape[-1] <= 1 or 0 in shape):
        result[-1] = itemsize
    return tuple(result)


def tma_obstacle(
    ptr: int, shape: Sequence[int], strides: Sequence[int], itemsize: int
) -> str | None:
    """Return why TMA cannot address an array in memory order (contiguous dimension last), or None.

    These are the requirements of cuTensorMapEncodeTiled: 1 to 5 dimensions, a base address at a
    multiple of 16 bytes, contiguous elements, every other stride a multiple of 16 bytes below
    2**40, dimensions below 2**32. An array without elements is never read, so its address and
    strides do not matter.
    """
    if not 1 <= len(shape) <= 5:
        return f"it has {len(shape)} dimensions and TMA addresses 1 to 5"
    if 0 in shape:
        return None
    if ptr % _TMA_ALIGN:
        return (
            f"its data starts at an address that is {ptr % _TMA_ALIGN} bytes past a multiple of "
            f"{_TMA_ALIGN}"
        )
    *outer, inner = tma_strides(shape, strides, itemsize)
    if inner != itemsize:
        which = (
            "no dimension"
            if len(shape) < 3
            else "neither the last dimension nor, in column-major order, the first"
        )
        return (
            f"{which} is contiguous: the inner stride is {inner} bytes and an element has "
            f"{itemsize}"
        )
    for dim in shape:
        if dim >= 1 << 32:
            return f"a dimension of {dim} elements is beyond TMA's 2**32 - 1"
    for stride in outer:
        if stride <= 0 or stride % _TMA_ALIGN:
            return (
                f"its rows are {stride} bytes apart and TMA needs a positive multiple of "
                f"{_TMA_ALIGN}"
            )
        if stride >= 1 << 40:
            return f"its rows are {stride} bytes apart and TMA's limit is 2**40"
    return None


def tma_addressable(info: ArrayInfo) -> str | None:
    """Return why TMA cannot address an array, or None. Host arrays are padded when they are copied
    to the GPU."""
    if info.kind == "host":
        return copied_obstacle(info)
    return obstacle_in_place(info)


def obstacle_in_place(info: ArrayInfo) -> str | None:
    """Return why TMA cannot address an array without a padded copy, or None. This includes host
    arrays that represent GPU arrays."""
    return _obstacle(info.ptr % _TMA_ALIGN, info.shape, info.strides, info.dtype)


@functools.lru_cache(maxsize=4096)
def _obstacle(offset: int, shape: Ints, strides: Ints, dtype: np.dtype) -> str | None:
    """Return the result of `tma_addressable`. It depends only on the last bits of the address, so
    it is cached: each call needs it for each array."""
    major = major_order(ArrayInfo("cuda", offset, shape, strides, dtype, 0, True, None))
    return tma_obstacle(
        offset, memory_order(shape, major), memory_order(strides, major), dtype.itemsize
    )


def not_addressable(info: ArrayInfo, reason: str, name: str, kernel: str) -> SpecError:
    """Return the error for an input that TMA must read but cannot; it suggests a padded copy if
    that helps."""
    fix = f"pass numpipe.ascontiguous({name}), a copy on the same device that TMA can address"
    if info.kind == "host":
        fix = (
            f"pass a part of a wider array: '{name}' represents symmetric memory, which is not "
            "copied to padded rows"
        )
    if copied_obstacle(info):
        fix = "reshape it, or pass a slice of it"
    return SpecError(
        f"{argument(name, kernel)}: TMA cannot address this {info.dtype.name} array of shape "
        f"{info.shape}, strides {info.strides} bytes: {reason}; {fix}"
    )


def flattened(info: ArrayInfo, name: str, kernel: str = "") -> ArrayInfo:
    """Return the elements of a contiguous array as one dimension. Raises SpecError for others."""
    dense = dense_strides(info.shape, info.dtype.itemsize)
    if info.strides != dense:
        raise SpecError(
            f"{argument(name, kernel)}: {name}.flat needs a contiguous array, got strides "
            f"{info.strides} (rows of host arrays are padded); fix: pass one on the GPU"
        )
    return info._replace(shape=(math.prod(info.shape),), strides=dense[-1:])


def check_sizes(arrays: Mapping[str, ArrayInfo], kernel: str) -> None:
    """Raise SpecError for a dimension whose size does not fit int32, the type of all indices and
    sizes in kernels."""
    for name, info in arrays.items():
        if max(info.shape, default=0) >= 1 << 31:
            raise SpecError(
                f"{argument(name, kernel)}: shape {info.shape}: sizes and indices in kernels are "
                f"int32, at most {(1 << 31) - 1}: pass parts of it, or a view with more dimensions"
            )


def same_place(
    infos: Sequence[ArrayInfo], names: Sequence[str], kernel: str = ""
) -> Literal["host", "device"]:
    """Return where all arguments are. Raises SpecError unless all are on the host or all on one
    GPU."""
    if not infos:
        return "device"
    first = infos[0].device
    for info, name in zip(infos, names, strict=True):
        if info.device != first:
            here, there = (f"GPU {d}" if d >= 0 else "the host" for d in (info.device, first))
            raise SpecError(
                f"{argument(name, kernel)}: a {type(info.owner).__name__} on {here}, but argument "
                f"{names[0]!r} is on {there}; pass all arrays on the host or all on one GPU"
            )
    return "host" if first < 0 else "device"
