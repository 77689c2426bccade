"""Launching: from a compiled kernel and a caller's arrays to a launch.

This package contains everything that depends on array libraries, GPU memory, streams or the CUDA
driver. It does not depend on Numba, the compiler or the simulated SM. Read `array_info` first, then
`launcher` and `host_calls`.

=====================  =============================================================================
`array_info`           description of an array for a launch, and TMA's requirements of its layout
`arrays`               describing NumPy, PyTorch, CuPy and other CUDA arrays, and through DLPack
`jax_arrays`           describing JAX arrays, and allocating JAX outputs
`windows`              views of an array (transposed, reshaped, with other strides) without its
                       library
`overlapping_outputs`  refusing outputs that share bytes with another array
`output_arrays`        allocating outputs in the caller's library
`device_array`         numpipe's own arrays on the GPU
`contiguous`           `numpipe.ascontiguous`
`placement`            `numpipe.to_device`, `numpipe.pinned_empty`
`host_calls`           calls on host arrays
`transfers`            copies of host arrays to the GPU and back, using several threads
                       (`copy_threads`)
`pinned`               a pool of page-locked host memory
`buffers`              GPU memory with rows padded for TMA; workspaces for partial sums, by stream
`stream_handover`      arrays of libraries that do not know the kernel's stream
`tensormap`            CUtensorMap encoding
`table`                cached results of a kernel's calls
`repeats`              relaunching earlier calls of kernels and ops, on one GPU and on meshes
`streams`              choice of the stream of a call; what CUDA graphs cannot hold
`attributes`           clusters, cooperative launch, programmatic dependent launch
`image`                a compiled kernel as needed by launches, reports and profiles, and its
                       serialized form
`launcher`             loading machine code, packing parameters, calling the driver
`collected_launches`   recording the launches of a function, to repeat them
`mesh`                 the GPUs of a kernel of several GPUs: all in one process (`local_gpus`), or
                       one process per GPU (`torch_gpus`)
`peer_access`          launches on several GPUs at once: tensor maps and addresses of peers' arrays
`controls`             communication between such launches, and the error of one that waited too
                       long for a peer
`current_gpu`          detecting the GPU; choosing "gpu" or "sim"
`profiles`             traces of kernels that record events
`debug_reports`        reports of kernels built with debug=True that gave up waiting
`driver`               the libcuda functions used by all of these; `cuda_contexts`: those for
                       devices, contexts, streams and host memory
`driver_errors`        the driver's errors, with advice
=====================  =============================================================================

Importing this package touches no GPU and needs no CUDA package; the driver is opened when a GPU is
first used.
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
from .output_arrays import (
    check_writable,
    describe_fresh,
    empty_like_kind,
    output_like_kind,
)
from .overlapping_outputs import check_elements, check_overlap
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
    "check_elements",
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
    "not_addressable",
    "obstacle_in_place",
    "order",
    "output_like_kind",
    "run",
    "same_place",
    "settle",
    "tma_addressable",
    "to_device",
]
