"""From a compiled kernel and a caller's arrays to a launch.

==============  =================================================================================
Importing this touches no GPU and needs no CUDA package; the driver is opened on the first use of a GPU.
"""

from .arrays import ArrayInfo, describe, imagined, major_order, not_addressable, same_place, tma_addressable
from .buffers import DeviceBuffer
from .device import VARIABLE as TARGET_VARIABLE
from .device import Choice, Device, GpuState, choose_target, find, gpu_state
from .device_array import DeviceArray
from .host import Staging, run, run_on_host
from .launcher import Compiled, Function, Launch, Prepared
from .outputs import check_writable, empty_like_kind, maker
from .placement import pinned_empty, to_device
from .profiles import last_profile
from .streams import as_stream, current_stream, follow
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
    "Launch",
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
    "follow",
    "gpu_state",
    "imagined",
    "last_failure",
    "last_profile",
    "major_order",
    "maker",
    "not_addressable",
    "pinned_empty",
    "run",
    "run_on_host",
    "same_place",
    "tma_addressable",
    "to_device",
    "upload",
]
