"""From a compiled kernel and a caller's arrays to a launch.

=============  =====================================================================================
`arrays`       what a kernel needs to know of a NumPy, PyTorch, CuPy or other CUDA array
`host`         host arrays onto the GPU, rows padded for TMA, and back
`outputs`      output arrays of the caller's library
`tensormap`    CUtensorMap encoding
`marks`        what a repeated call is known by
`streams`      which stream a call is queued on; what CUDA graphs cannot hold
`attributes`   clusters, cooperative launch, programmatic dependent launch
`launcher`     parameter packing and the driver call
`device`       which GPU there is, "gpu" or "sim"
`profiles`     kernels that record: traces of them
`watch`        kernels built with debug=True: who waited in vain
`driver`       the functions of libcuda that all of these use: devices, contexts and streams in `contexts`
`faults`       what the driver's errors mean; `images`: those of loading machine code
=============  =====================================================================================

Importing this touches no GPU and needs no CUDA package; the driver is opened on the first use of a GPU.
"""

from .arrays import ArrayInfo, describe, imagined, major_order, not_addressable, same_place, tma_addressable
from .device import VARIABLE as TARGET_VARIABLE
from .device import Choice, Device, GpuState, choose_target, find, gpu_state
from .host import DeviceBuffer, Staging, to_device, to_host
from .launcher import Compiled, Function, Launch, Prepared, run, run_on_host
from .outputs import DeviceArray, check_writable, empty_like_kind, maker
from .profiles import last_profile
from .streams import as_stream, current_stream, follow
from .tensormap import MapRequest, encode
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
    "Launch",
    "MapRequest",
    "Prepared",
    "Staging",
    "as_stream",
    "check_writable",
    "choose_target",
    "current_stream",
    "describe",
    "empty_like_kind",
    "encode",
    "find",
    "follow",
    "gpu_state",
    "imagined",
    "last_failure",
    "last_profile",
    "major_order",
    "maker",
    "not_addressable",
    "run",
    "run_on_host",
    "same_place",
    "tma_addressable",
    "to_device",
    "to_host",
]
