"""Arrays of libraries that are known by nothing but DLPack.

Memory of the host is read by ``numpy.from_dlpack``, memory of a GPU by cuda-core's ``StridedMemoryView``; both are views, and
keep what they view alive. The exporter orders its work ahead of the kernel when it is told the kernel's stream (`order`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..diagnostics.errors import SpecError
from .info import ArrayInfo, argument, dense_strides, known

_CPU, _CUDA, _CUDA_HOST, _CUDA_MANAGED = 1, 2, 3, 13
_LEGACY_DEFAULT = 1  # how DLPack spells it for CUDA; 0 is not allowed
_UNORDERED = -1


def read(obj: Any, name: str, kernel: str) -> ArrayInfo:
    """Describe an exporter. Raises SpecError for devices and element types that are not CUDA's, and where cuda-core is missing."""
    where = argument(name, kernel)
    device, ordinal = (int(number) for number in obj.__dlpack_device__())
    if device not in (_CPU, _CUDA, _CUDA_HOST, _CUDA_MANAGED):
        raise SpecError(f"{where}: a {type(obj).__name__} on DLPack device type {device}; move it to a CUDA GPU or to the CPU")
    try:
        if device in (_CPU, _CUDA_HOST):
            array = np.from_dlpack(obj)
            dtype = known(array.dtype, name, kernel)
            return ArrayInfo("host", 0, array.shape, array.strides, dtype, -1, array.flags.writeable, obj, array)
        view = _view(obj)
        dtype = known(view.dtype, name, kernel)
    except SpecError:
        raise
    except ImportError as error:
        raise SpecError(f"{where}: a {type(obj).__name__} on a GPU is read by the package cuda-core, which cannot be imported "
                        f"({error}); install it, or pass what torch.from_dlpack or cupy.from_dlpack makes of it") from error
    except Exception as error:  # each exporter has errors of its own; NumPy and cuda-core raise several kinds for types
        raise SpecError(f"{where}: {type(obj).__name__}.__dlpack__ cannot be read ({type(error).__name__}: {error}); pass it as "
                        "an array of its own library, or through __cuda_array_interface__") from error
    shape = tuple(view.shape)
    strides = dense_strides(shape, dtype.itemsize) if view.strides is None else tuple(s * dtype.itemsize for s in view.strides)
    return ArrayInfo("dlpack", view.ptr, shape, strides, dtype, ordinal, not view.readonly, obj, held=view)


def _view(obj: Any) -> Any:
    from cuda.core.utils import StridedMemoryView

    return StridedMemoryView.from_dlpack(obj, stream_ptr=_UNORDERED)


def order(info: ArrayInfo, stream: int) -> None:
    """Have the exporter make `stream` wait for what it queued on streams of its own."""
    info.owner.__dlpack__(stream=stream or _LEGACY_DEFAULT)
