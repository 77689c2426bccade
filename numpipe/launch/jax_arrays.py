"""JAX arrays: inputs in place, outputs made by JAX's own allocator.

JAX queues its work on streams of its own, knows no others, and uses an array's memory again as soon
as Python forgets the array. So three things differ from other libraries:

- `read` waits for an input that is not ready;
- `handover` keeps an input alive until the kernel that reads it is done;
- an array is immutable, so no caller can pass one as an output. Outputs that a call allocates are
  new JAX arrays which nobody else has seen: the kernel writes their memory, and the call returns
  when it has, because JAX could not wait for it. To copy an output of numpipe's into a JAX array
  would be sound too, at the price of the copy.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..diagnostics.errors import SpecError
from .array_info import ArrayInfo, argument, dense_strides, element_type


def read(obj: Any, name: str, kernel: str) -> ArrayInfo:
    """Describe a JAX array, waiting until it has been computed; a computation that failed raises
    its own error here.

    Raises SpecError for a value that ``jax.jit`` traces, for an array that was deleted or donated,
    that lies on several devices or on one that is no GPU, and for an element type that no kernel
    takes.
    """
    where = argument(name, kernel)
    if type(obj).__module__.partition(".")[0] != "jaxlib":
        raise SpecError(
            f"{where}: a {type(obj).__name__} of JAX has no memory of its own; call kernels on "
            "jax.Array values, outside of jax.jit, jax.grad and jax.vmap; inside of these call "
            "numpipe.jax.matmul, numpipe.jax.attention or numpipe.jax.call(kernel)"
        )
    if obj.is_deleted():
        raise SpecError(
            f"{where}: this JAX array was deleted or donated (donate_argnums); pass one that is "
            "alive"
        )
    dtype = element_type(obj.dtype, name, kernel)
    try:
        ordinal = _ordinal(obj.sharding)
    except ValueError as error:
        raise SpecError(f"{where}: a JAX array {error}") from None
    obj.block_until_ready()
    shape = obj.shape
    if ordinal < 0:
        array = np.asarray(obj)  # its memory, not a copy, and read-only
        return ArrayInfo("host", 0, shape, array.strides, dtype, -1, False, obj, array)
    return ArrayInfo(
        "jax",
        obj.unsafe_buffer_pointer(),
        shape,
        _strides(obj, shape, dtype, where),
        dtype,
        ordinal,
        False,
        obj,
    )


@functools.lru_cache(maxsize=256)
def _ordinal(sharding: Any) -> int:
    """Return the CUDA ordinal of an array's one device, -1 for the CPU. Raises ValueError for what
    no kernel can be given."""
    devices = sharding.device_set
    if len(devices) != 1:
        raise ValueError(
            f"on {len(devices)} devices; pass one of its shards, x.addressable_data(i)"
        )
    (device,) = devices
    if device.platform == "cpu":
        return -1
    if device.platform not in ("gpu", "cuda"):
        raise ValueError(f"on platform {device.platform!r}; move it to a CUDA GPU or to the CPU")
    if "host" in (sharding.memory_kind or ""):
        raise ValueError(
            f"in memory of kind {sharding.memory_kind!r}; move it with jax.device_put(x, "
            "x.sharding.with_memory_kind('device'))"
        )
    return int(device.local_hardware_id)


def _strides(obj: Any, shape: tuple[int, ...], dtype: np.dtype[Any], where: str) -> tuple[int, ...]:
    """Return the byte strides: those of a C-contiguous array, unless this one has a layout
    (jax.experimental.layout)."""
    layout = getattr(getattr(obj, "format", None), "layout", None)
    order = getattr(layout, "major_to_minor", None)
    if order is None or tuple(order) == tuple(range(len(shape))):
        strides = dense_strides(shape, dtype.itemsize)
    else:
        by_axis = dict(
            zip(order, dense_strides([shape[axis] for axis in order], dtype.itemsize), strict=True)
        )
        strides = tuple(by_axis[axis] for axis in range(len(shape)))
    if getattr(layout, "tiling", None):
        raise SpecError(
            f"{where}: a JAX array whose layout is tiled ({layout}); pass jax.numpy.copy(x)"
        )
    return strides


def empty(info: ArrayInfo, shape: Sequence[int], dtype: np.dtype[Any]) -> Any:
    """Return memory for an output on the device of `info`: a JAX array on a GPU; on the CPU a NumPy
    array for `handover.deliver`.

    Raises SpecError where JAX has no such element type.
    """
    jax = sys.modules["jax"]
    if dtype.itemsize == 8 and not jax.config.jax_enable_x64:
        raise SpecError(
            f"JAX makes no {dtype.name} while jax_enable_x64 is off, for an output of shape "
            f"{tuple(shape)}; jax.config.update('jax_enable_x64', True), or choose another type "
            "in out_type"
        )
    if info.kind == "host":
        return np.empty(shape, dtype)
    try:
        return _maker(tuple(shape), dtype, info.owner.device)()
    except TypeError as error:
        raise SpecError(
            f"this JAX has no element type {dtype.name} for an output of shape {tuple(shape)} "
            f"({error}); choose another in out_type or pass out="
        ) from error


@functools.lru_cache(maxsize=512)
def _maker(shape: tuple[int, ...], dtype: np.dtype[Any], device: Any) -> Any:
    """Return a function that makes arrays, compiled by JAX: its ``empty`` on a given device takes a
    hundred microseconds."""
    jax = sys.modules["jax"]
    empty = functools.partial(jax.numpy.empty, shape, dtype)
    return jax.jit(empty, out_shardings=jax.sharding.SingleDeviceSharding(device))
