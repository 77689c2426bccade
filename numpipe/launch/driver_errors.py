"""The driver's errors, with advice for users: CUDA driver API, "CUresult"."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from ..diagnostics.errors import LaunchError, TargetError

NOT_INITIALIZED = 3
INVALID_CONTEXT = 201
INVALID_HANDLE = 400
NOT_READY = 600
PEER_ACCESS_ALREADY_ENABLED = 704
CONTEXT_IS_DESTROYED = 709
CAPTURE_IMPLICIT = 906
IMAGES = (200, 209, 218, 221, 222, 223, 226, 300)
"""CUDA_ERROR_INVALID_IMAGE, NO_BINARY_FOR_GPU, INVALID_PTX and others: the driver does not accept
the code to load"""
STREAMS = (INVALID_CONTEXT, INVALID_HANDLE, CONTEXT_IS_DESTROYED)
"""possible results for a stream that was destroyed or belongs to another context"""

_POISONED = (
    "an earlier kernel of this process failed and its GPU context is lost: restart the process, "
    "and run the kernel with target='sim' or under compute-sanitizer to find the fault"
)
_RESET = (
    "the GPU's primary context was reset while numpipe used it (cuDevicePrimaryCtxReset, "
    "cudaDeviceReset, numba.cuda.close()), which destroyed all arrays and loaded kernels: restart "
    "the process, and do not reset devices in it"
)
_CAPTURED = "the stream is being captured into a CUDA graph, which cannot contain this: "
_ADVICE: dict[int, str] = {
    1: "an argument is outside the range that the driver accepts",
    2: (
        "the GPU is out of memory: free arrays (torch.cuda.empty_cache() returns PyTorch's unused "
        "blocks)"
    ),
    3: (
        "CUDA does not survive fork(): start worker processes with "
        "multiprocessing.get_context('spawn')"
    ),
    4: "the driver is shutting down: do not launch kernels while the interpreter exits",
    34: (
        "the libcuda that was found is the toolkit's stub: remove its directory from "
        "LD_LIBRARY_PATH"
    ),
    100: "the driver sees no GPU",
    46: "the GPU is busy or in exclusive mode: see nvidia-smi",
    200: (
        "the machine code in this process's memory is damaged: restart the process, which "
        "compiles the kernel again"
    ),
    201: _RESET,
    209: "the kernel is compiled for sm_90a (Hopper) and this GPU is not one",
    400: "the stream belongs to another GPU or is destroyed",
    **dict.fromkeys((700, 702, 714, 716, 717, 718, 719), _POISONED),
    701: (
        "too many registers or too much shared memory for one SM: use fewer warpgroups, slots or "
        "a smaller tile"
    ),
    709: _RESET,
    710: (
        "a device_assert or an assert of a kernel failed: its line, block and condition are on "
        "stderr; the GPU context is lost: restart the process, and run the kernel with "
        "target='sim' to stop where it fails"
    ),
    715: _POISONED
    + " (for example, a TMA copy at an innermost coordinate that is not a multiple of 16 bytes)",
    720: "the cooperative grid has more CTAs than the GPU can run at once: use fewer CTAs",
    802: "the system is not ready for GPU work: on NVSwitch machines the fabric manager must run",
    803: "the kernel module and libcuda are of different versions: reboot or reinstall the driver",
    804: (
        "the driver's compatibility package does not support this GPU: remove it from "
        "LD_LIBRARY_PATH"
    ),
    900: _CAPTURED + "capture calls on arrays on the GPU",
    901: "the capture of this stream failed before this call: end it and begin another",
    905: _CAPTURED + "it would wait for work outside the capture",
    906: _CAPTURED
    + (
        "the legacy default stream (0) waits for the stream that is being captured: queue the "
        "work on another stream"
    ),
}


class DriverMissing(TargetError):
    """A machine without a CUDA driver, or without the Python binding to it."""

    def __init__(self, reason: str) -> None:
        packages = 'pip install "numba-cuda[cu13]"'
        driver = packages if "cuda-bindings" in reason else "install NVIDIA's driver"
        self.reason, self.fix = reason, f"{driver}, or pass target='sim'"
        super().__init__(f"{reason}; fix: {self.fix}")


class DriverError(LaunchError):
    """A failed driver call: its name, the CUDA_ERROR_* code, and what to do."""

    def __init__(self, call: str, code: int, name: str, advice: str | None = None) -> None:
        advice = _ADVICE.get(code) if advice is None else advice
        super().__init__(f"{call} returned {name} ({code})" + (f": {advice}" if advice else ""))
        self.call, self.code, self.name = call, code, name


@contextlib.contextmanager
def naming(kernel: str) -> Iterator[None]:
    """Turn a DriverError of a call into a LaunchError that names the kernel."""
    try:
        yield
    except DriverError as error:
        raise of_kernel(error, kernel) from error


def of_kernel(error: DriverError, kernel: str) -> LaunchError:
    """Return the error of a kernel's call."""
    return LaunchError(f"kernel {kernel!r}: {error}")


def forked(call: str) -> DriverError:
    """Return the error for a process that was forked from one that had used the GPU."""
    return DriverError(call, NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED")
