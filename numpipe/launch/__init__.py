"""From a compiled kernel and a caller's arrays to a launch.

Here belongs all that knows array libraries, GPU memory, streams or the CUDA driver; no file here
knows Numba, the compiler or the simulated SM. Read `array_info` first, then `launcher` and
`host_calls`.

=====================  =============================================================================
`array_info`           what a launch needs to know of an array, and the rules of its layout for TMA
`arrays`               reads that from NumPy, PyTorch, CuPy and other CUDA arrays, and through
                       DLPack
`jax_arrays`           reads it from JAX arrays, and makes outputs of that kind
`windows`              views of an array: transposed, reshaped, with other strides; without its
                       library
`overlapping_outputs`  refuses outputs that share bytes with another array
`output_arrays`        output arrays of the caller's library
`device_array`         numpipe's own arrays on the GPU
`contiguous`           `numpipe.ascontiguous`
`placement`            `numpipe.to_device`, `numpipe.pinned_empty`
`host_calls`           calls on host arrays
`transfers`            copies of host arrays to the GPU and back, by several threads
                       (`copy_threads`)
`pinned`               page-locked host memory, a pool of it
`buffers`              GPU memory with rows padded for TMA; workspaces for partial sums, by stream
`stream_handover`      arrays of libraries that do not know the kernel's stream
`tensormap`            CUtensorMap encoding
`table`                the results that calls of a kernel keep for later ones
`repeats`              calls that were made before, launched again: of kernels and ops, on one GPU
                       and on meshes
`streams`              which stream a call is queued on; what CUDA graphs cannot hold
`attributes`           clusters, cooperative launch, programmatic dependent launch
`image`                a compiled kernel: what its launches, reports and profiles need, and its form
                       as bytes
`launcher`             loading machine code, parameter packing and the driver call
`collected_launches`   the launches that a function makes, kept to be made again
`mesh`                 the GPUs of a kernel of several GPUs: one process with all of them
                       (`local_gpus`), or one each (`torch_gpus`)
`peer_access`          launches on several GPUs at once: tensor maps and addresses of the others'
                       arrays
`controls`             what such launches tell each other, and the error of one that waited for a
                       peer too long
`current_gpu`          which GPU there is, "gpu" or "sim"
`profiles`             traces of kernels that record
`debug_reports`        kernels built with debug=True: waits that they gave up
`driver`               the functions of libcuda that all of these use; `cuda_contexts`: those for
                       devices, contexts, streams, host memory
`driver_errors`        the driver's errors, with advice
=====================  =============================================================================

Importing this touches no GPU and needs no CUDA package; the driver is opened on the first use of a
GPU.
"""

from ..plan.image import Image
from .array_info import (
    ArrayInfo,
    check_sizes,
    info_of_zeros,
    major_order,
    not_addressable,
    obstacle_in_place,
    same_place,
    tma_addressable,
)
from .arrays import describe, library
from .collected_launches import COLLECTING, Collected, collecting
from .current_gpu import VARIABLE as TARGET_VARIABLE
from .current_gpu import Choice, Device, choose_target, gpu_state
from .device_array import DeviceArray
from .host_calls import Staging, run
from .launcher import Launch, Prepared
from .output_arrays import check_writable, describe_fresh, empty_like_kind, maker
from .overlapping_outputs import check_overlap
from .placement import to_device
from .stream_handover import deliver, foreign, order, settle
from .streams import as_stream, current_stream, follow
from .tensormap import MapRequest, encode

__all__ = [
    "COLLECTING",
    "TARGET_VARIABLE",
    "ArrayInfo",
    "Choice",
    "Collected",
    "Device",
    "DeviceArray",
    "Image",
    "Launch",
    "MapRequest",
    "Prepared",
    "Staging",
    "as_stream",
    "check_overlap",
    "check_sizes",
    "check_writable",
    "choose_target",
    "collecting",
    "current_stream",
    "deliver",
    "describe",
    "describe_fresh",
    "empty_like_kind",
    "encode",
    "follow",
    "foreign",
    "gpu_state",
    "info_of_zeros",
    "library",
    "major_order",
    "maker",
    "not_addressable",
    "obstacle_in_place",
    "order",
    "run",
    "same_place",
    "settle",
    "tma_addressable",
    "to_device",
]
