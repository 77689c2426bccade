"""From a compiled kernel and a caller's arrays to a launch.

==============  ========================================================================================
`arrays`        what a kernel needs to know of a NumPy, PyTorch, CuPy or other CUDA array
`host`          calls on host arrays
`transfers`     copies of host arrays to the GPU and back, by several threads (`copy_threads`)
`pinned`        page-locked host memory, a pool of it
`buffers`       GPU memory with rows padded for TMA
`device_array`  arrays on the GPU of numpipe's own kind
`placement`     numpipe.to_device, numpipe.pinned_empty
`outputs`       output arrays of the caller's library
`tensormap`     CUtensorMap encoding
`streams`       which stream a call is queued on
`launcher`      parameter packing and the driver call
`device`        which GPU there is, "gpu" or "sim"
`profiles`      kernels that record: traces of them
`watch`         kernels built with debug=True: who waited in vain
`driver`        the functions of libcuda that all of these use; of host memory `driver_host`
==============  ========================================================================================

Importing this touches no GPU and needs no CUDA package; the driver is opened on the first use of a GPU.
"""

from .arrays import ArrayInfo, describe, imagined, major_order, not_addressable, same_place, tma_addressable
from .buffers import DeviceBuffer
from .device import VARIABLE as TARGET_VARIABLE
from .device import Choice, Device, GpuState, choose_target, find, gpu_state
from .device_array import DeviceArray
from .host import Staging, run, run_on_host
from .launcher import Compiled, Function, Prepared
from .outputs import check_writable, empty_like_kind
from .placement import pinned_empty, to_device
from .profiles import last_profile
from .streams import as_stream, current_stream
from .tensormap import MapRequest, encode
from .transfers import download, upload
from .watch import last_failure

__all__ = [
    "TARGET_VARIABLE",
    "ArrayInfo",
    "Choice",
    "Compiled",
    "Device",
    "DeviceArray",
    "DeviceBuffer",
    "Function",
    "GpuState",
    "MapRequest",
    "Prepared",
    "Staging",
    "as_stream",
    "check_writable",
    "choose_target",
    "current_stream",
    "describe",
    "download",
    "empty_like_kind",
    "encode",
    "find",
    "gpu_state",
    "imagined",
    "last_failure",
    "last_profile",
    "major_order",
    "not_addressable",
    "pinned_empty",
    "run",
    "run_on_host",
    "same_place",
    "tma_addressable",
    "to_device",
    "upload",
]
