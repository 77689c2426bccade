"""`numpipe.to_device` and `numpipe.pinned_empty`: placing data where calls and copies are fast."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..diagnostics.argument_checks import element_type, sizes_of
from ..diagnostics.errors import LaunchError, SpecError
from . import driver, pinned
from .arrays import describe
from .current_gpu import choose_target
from .device_array import DeviceArray
from .streams import LEGACY_DEFAULT, as_stream

__all__ = ["pinned_empty", "to_device"]


def to_device(array: Any, *, stream: Any = None, target: str | None = None) -> Any:
    """Copy a host array to the GPU, for kernels that are called on it more than once. Returns a
    DeviceArray.

    array   a NumPy array or a CPU tensor, of any shape and strides; an array that is already on a
            GPU is returned unchanged
    stream  stream on which the copy and, later, the freeing of the memory are queued: an int, or a
            PyTorch or CuPy stream; default: the default stream
    target  "gpu", "sim" or "auto" (default: the environment variable NUMPIPE_TARGET, or "auto")

    Returns after the copy has finished. Rows are padded to multiples of 16 bytes, so that TMA can
    address arrays of any shape, and the major order is kept. If kernels run on the simulated SM,
    `array` itself is returned, so that scripts also work on machines without a GPU; ``np.asarray``
    converts a kernel's results to NumPy in both cases.

    Raises SpecError for anything that is not an array with a supported element type, TargetError if
    the target cannot run, and LaunchError if the driver fails.

    >>> import numpy as np, numpipe
    >>> x = numpipe.to_device(np.arange(6, dtype=np.float32).reshape(2, 3), target="sim")
    >>> x.shape, float(np.asarray(x)[1, 2])
    ((2, 3), 5.0)
    """
    info = describe(array, "array")
    if info.kind != "host":
        return array
    choice = choose_target(target)
    if choice.device is None:
        return array
    handle = LEGACY_DEFAULT if stream is None else as_stream(stream)
    try:
        return DeviceArray.from_host(array, handle, choice.device.ordinal)
    except driver.DriverError as error:
        raise LaunchError(
            f"to_device: copying {info.dtype.name} {info.shape} to GPU {choice.device.ordinal}: "
            f"{error}"
        ) from error


def pinned_empty(
    shape: int | Sequence[int], dtype: Any, *, target: str | None = None
) -> np.ndarray:
    """Return an uninitialized, C-contiguous NumPy array in page-locked memory.

    shape   an int or a sequence of ints
    dtype   anything that NumPy can convert to a dtype, without Python objects
    target  "gpu", "sim" or "auto" (default: the environment variable NUMPIPE_TARGET, or "auto")

    The GPU copies to and from it at the speed of PCIe, without the staging that other host arrays
    need. Use it for inputs that are refilled for each call, and for ``out=``. Page-locked memory is
    never swapped out, so do not lock more than what is copied often. The memory is released when
    the array and all its views are gone; it does not count against NUMPIPE_PINNED_BYTES. If kernels
    run on the simulated SM, it is ordinary memory.

    Raises SpecError for an invalid dtype or shape, TargetError if the target cannot run, and
    LaunchError if the driver cannot lock that much memory.

    >>> import numpipe
    >>> a = numpipe.pinned_empty((2, 3), "float16", target="sim")
    >>> a.shape, a.dtype.name, a.flags.c_contiguous
    ((2, 3), 'float16', True)
    """
    kind = element_type("pinned_empty", dtype)
    dims = sizes_of("pinned_empty", shape)
    if math.prod(dims) * kind.itemsize >= 2**63:
        raise SpecError(
            f"pinned_empty: shape {dims} of {kind} needs more bytes than a host can have: pass a "
            "smaller one"
        )
    if kind.hasobject:
        raise SpecError(
            f"pinned_empty: dtype {kind} holds Python objects, which a GPU cannot read; pass a "
            "dtype of numbers"
        )
    choice = choose_target(target)
    if choice.device is None:
        return np.empty(dims, kind)
    try:
        return pinned.empty(dims, kind, choice.device.ordinal)
    except (driver.DriverError, MemoryError) as error:
        raise LaunchError(
            f"pinned_empty: locking {math.prod(dims) * kind.itemsize} bytes of host memory: "
            f"{error}; request less, or use np.empty"
        ) from error
