"""JAX arrays: inputs are used in place, outputs are allocated by JAX.

JAX queues its work on its own streams, does not know other streams, and reuses an array's memory as
soon as Python releases the array. Three things therefore differ from other libraries:

- `read` waits for an input that is not ready.
- `stream_handover` keeps an input alive until the kernel that reads it has finished.
- Arrays are immutable, so callers cannot pass them as outputs. Outputs that a call allocates are
  new JAX arrays that no other code has access to. The kernel writes their memory, and the call
  returns after it has finished, because JAX could not wait for it. Copying the output to a JAX
  array would also be correct, but slower.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..arch.dimensions import Ints
from ..diagnostics.errors import SpecError
from .array_info import ArrayInfo, dense_strides, element_type


def read(obj: Any) -> ArrayInfo:
    """Describe a JAX array after waiting until it has been computed. The error of a failed
    computation is raised here.

    Raises SpecError for a value traced by ``jax.jit``, for an array that was deleted or donated,
    for an array on several devices or on one that is not a GPU, and for an unsupported element
    type.
    """
    if type(obj).__module__.partition(".")[0] != "jaxlib":
        raise SpecError(
            f"a {type(obj).__name__} of JAX has no memory of its own; call kernels on "
            "jax.Array values, outside of jax.jit, jax.grad and jax.vmap; inside of them call "
            "numpipe.jax.matmul, numpipe.jax.attention or numpipe.jax.call(kernel)"
        )
    if obj.is_deleted():
        raise SpecError(
            "this JAX array was deleted or donated (donate_argnums); pass one that still exists"
        )
    dtype = element_type(obj.dtype)
    ordinal = _ordinal(obj.sharding)
    obj.block_until_ready()
    shape = obj.shape
    if ordinal < 0:
        array = np.asarray(obj)  # a read-only view of its memory, not a copy
        return ArrayInfo("host", 0, shape, array.strides, dtype, -1, False, obj, array)
    return ArrayInfo(
        "jax",
        obj.unsafe_buffer_pointer(),
        shape,
        _strides(obj, shape, dtype),
        dtype,
        ordinal,
        False,
        obj,
    )


@functools.lru_cache(maxsize=256)
def _ordinal(sharding: Any) -> int:
    """Return the CUDA ordinal of an array's only device, or -1 for the CPU. Raises SpecError for
    an array that no kernel can use."""
    devices = sharding.device_set
    if len(devices) != 1:
        raise SpecError(
            f"a JAX array on {len(devices)} devices; pass one of its shards, x.addressable_data(i)"
        )
    (device,) = devices
    if device.platform == "cpu":
        return -1
    if device.platform not in ("gpu", "cuda"):
        raise SpecError(
            f"a JAX array on platform {device.platform!r}; move it to a CUDA GPU or to the CPU"
        )
    if "host" in (sharding.memory_kind or ""):
        raise SpecError(
            f"a JAX array in memory of kind {sharding.memory_kind!r}; move it with "
            "jax.device_put(x, x.sharding.with_memory_kind('device'))"
        )
    return int(device.local_hardware_id)


def _strides(obj: Any, shape: Ints, dtype: np.dtype) -> Ints:
    """Return the byte strides of a C-contiguous array, or of the array's own layout if it has one
    (jax.experimental.layout)."""
    layout = getattr(getattr(obj, "format", None), "layout", None)
    axes = range(len(shape))
    order = getattr(layout, "major_to_minor", None) or axes
    dense = dense_strides([shape[axis] for axis in order], dtype.itemsize)
    strides = dict(zip(order, dense, strict=True))
    if getattr(layout, "tiling", None):
        raise SpecError(f"a JAX array whose layout is tiled ({layout}); pass jax.numpy.copy(x)")
    return tuple(strides[axis] for axis in axes)


def empty(info: ArrayInfo, shape: Sequence[int], dtype: np.dtype) -> Any:
    """Return memory for an output on the device of `info`: a JAX array on a GPU, or on the CPU a
    NumPy array, which `stream_handover.deliver` converts.

    Raises SpecError if JAX does not have the element type.
    """
    jax = sys.modules["jax"]
    if dtype.itemsize == 8 and not jax.config.jax_enable_x64:
        raise SpecError(
            f"JAX cannot make a {dtype.name} output of shape {tuple(shape)} while jax_enable_x64 "
            "is off: call jax.config.update('jax_enable_x64', True), or choose another type in "
            "out_type"
        )
    if info.kind == "host":
        return np.empty(shape, dtype)
    try:
        return _maker(tuple(shape), dtype, info.owner.device)()
    except TypeError as error:
        raise SpecError(
            f"this JAX has no element type {dtype.name} for an output of shape {tuple(shape)} "
            f"({error}); choose another one in out_type, or pass out="
        ) from error


@functools.lru_cache(maxsize=512)
def _maker(shape: Ints, dtype: np.dtype, device: Any) -> Any:
    """Return a function that makes arrays and is compiled by JAX, because JAX's ``empty`` on a
    given device takes a hundred microseconds."""
    jax = sys.modules["jax"]
    empty = functools.partial(jax.numpy.empty, shape, dtype)
    return jax.jit(empty, out_shardings=jax.sharding.SingleDeviceSharding(device))
