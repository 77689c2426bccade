"""The CUDA driver as numpipe uses it: one object, opened on the first use of a GPU.

Everything in `launch` reaches the driver through ``get()``, so that a test can put another object in its place.
Streams, kernels and device addresses are plain ints or opaque handles of cuda.bindings; sizes and pitches are bytes.
The primary context of a device is retained once and kept for the life of the process: PyTorch, CuPy and Numba share it.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ..errors import LaunchError
from .driver_host import HostMemory

_BLANK = np.zeros(16, np.uint8)
_NANS = np.full(16, 0xFF, np.uint8)

INVALID_VALUE = 1
INVALID_CONTEXT = 201
NOT_READY = 600
_MAX_PITCH = 2**31 - 1
_POOL_KEEPS = 1 << 30
"""Bytes of freed device memory that the pool for host arrays keeps for the next call."""

_POISONED = (
    "an earlier kernel of this process failed and its GPU context is lost: restart the process, and run the kernel "
    "with target='sim' or under compute-sanitizer to find the fault"
)
_ADVICE: dict[int, str] = {
    1: "an argument is outside what the driver takes",
    2: "the GPU is out of memory: free arrays (torch.cuda.empty_cache() returns PyTorch's unused blocks)",
    3: "CUDA does not survive fork(): start worker processes with multiprocessing's 'spawn' method",
    4: "the driver is shutting down: do not launch kernels while the interpreter exits",
    34: "the libcuda that was found is the toolkit's stub: take its directory off LD_LIBRARY_PATH",
    100: "the driver sees no GPU",
    46: "the GPU is busy or in exclusive mode: see nvidia-smi",
    200: "the compiled kernel is damaged: clear the compile cache",
    209: "the kernel is compiled for sm_90a (Hopper) and this GPU is not one",
    400: "the stream belongs to another GPU or is destroyed",
    700: _POISONED,
    701: "too many registers or too much shared memory for one SM: use fewer warpgroups, slots or a smaller tile",
    702: _POISONED,
    710: "a device_assert or an assert of a kernel failed: its line, block and condition are on stderr; the GPU context is lost: "
         "restart the process, and run the kernel with target='sim' to stop where it fails",
    714: _POISONED,
    715: _POISONED + " (a TMA copy at an innermost coordinate that is no multiple of 16 bytes is such a fault)",
    716: _POISONED,
    717: _POISONED,
    718: _POISONED,
    719: _POISONED,
    802: "the system is not ready for GPU work: on NVSwitch machines the fabric manager must run",
    803: "the kernel module and libcuda are of different versions: reboot or reinstall the driver",
    804: "the driver's compatibility package does not support this GPU: take it off LD_LIBRARY_PATH",
    900: "an operation that waits was called while the stream is being captured: capture calls on device arrays",
}


class DriverMissing(Exception):
    """There is no CUDA driver (or no Python binding to it) on this machine; the message says which."""


class DriverError(LaunchError):
    """A call of the driver failed: its name, the CUDA_ERROR_* code, and what to do."""

    def __init__(self, call: str, code: int, name: str) -> None:
        advice = _ADVICE.get(code)
        super().__init__(f"{call} returned {name} ({code})" + (f": {advice}" if advice else ""))
        self.call = call
        self.code = code
        self.name = name


class Driver(HostMemory):
    """The functions of libcuda that numpipe needs; each raises DriverError unless it says otherwise."""

    def __init__(self) -> None:
        """Load libcuda and initialise it. Raises DriverMissing, or DriverError when cuInit fails."""
        try:
            from cuda.bindings import driver as api
        except ImportError as error:
            raise DriverMissing(f"the package cuda-bindings is not installed ({error})") from None
        self._api: Any = api
        try:
            self._call("cuInit", 0)
        except (DriverError, DriverMissing):
            raise
        except Exception as error:  # cuda.bindings raises a type of its own, differently per release
            raise DriverMissing(f"libcuda was not found ({type(error).__name__})") from None
        self.count: int = self._call("cuDeviceGetCount")
        self._launch: Callable[..., tuple[Any]] = api.cuLaunchKernelEx
        self._contexts: dict[int, Any] = {}
        self._pools: dict[int, Any] = {}
        self._blanks: dict[tuple[int, bool, str], int] = {}
        self._lock = threading.RLock()

    def _call(self, function: str, *args: Any) -> Any:
        result = getattr(self._api, function)(*args)
        if result[0]:
            raise DriverError(function, int(result[0]), getattr(result[0], "name", "an unknown error"))
        return result[1] if len(result) == 2 else result[1:]

    # ---- devices
    def version(self) -> int:
        """CUDA version the driver supports, 1000 × major + 10 × minor."""
        return int(self._call("cuDriverGetVersion"))

    def properties(self, ordinal: int) -> tuple[str, tuple[int, int], int, int]:
        """(name, compute capability, SMs, largest dynamic shared memory of a CTA in bytes)."""
        names = self._api.CUdevice_attribute
        attribute = "CU_DEVICE_ATTRIBUTE_"

        def ask(name: str) -> int:
            return int(self._call("cuDeviceGetAttribute", getattr(names, attribute + name), device))

        device = self._call("cuDeviceGet", ordinal)
        name = bytes(self._call("cuDeviceGetName", 256, device)).split(b"\0")[0].decode(errors="replace")
        capability = ask("COMPUTE_CAPABILITY_MAJOR"), ask("COMPUTE_CAPABILITY_MINOR")
        return name, capability, ask("MULTIPROCESSOR_COUNT"), ask("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN")

    @contextlib.contextmanager
    def on(self, ordinal: int) -> Iterator[None]:
        """Make the device's primary context current in this thread for a while."""
        context = self._contexts.get(ordinal)
        if context is None:
            with self._lock:
                context = self._contexts.get(ordinal)
                if context is None:
                    context = self._call("cuDevicePrimaryCtxRetain", self._call("cuDeviceGet", ordinal))
                    self._contexts[ordinal] = context
        self._call("cuCtxPushCurrent", context)
        try:
            yield
        finally:
            self._call("cuCtxPopCurrent")

    def pointer_device(self, address: int) -> int:
        """Which GPU the memory at `address` belongs to."""
        name = self._api.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
        return int(self._call("cuPointerGetAttribute", name, address))

    # ---- kernels
    def load(self, cubin: bytes, entry: str) -> Any:
        """Kernel handle, good on every device. The library is never unloaded: launches may be in flight at exit."""
        library = self._call("cuLibraryLoadData", cubin, [], [], 0, [], [], 0)
        return self._call("cuLibraryGetKernel", library, entry.encode())

    def parameter_sizes(self, kernel: Any) -> list[int]:
        """Bytes of each kernel parameter, in order. A context must be current."""
        sizes: list[int] = []
        while True:
            try:
                _offset, size = self._call("cuKernelGetParamInfo", kernel, len(sizes))
            except DriverError as error:
                if error.code != INVALID_VALUE:
                    raise
                return sizes  # there is no parameter of this number
            sizes.append(int(size))

    def allow_shared(self, kernel: Any, nbytes: int, ordinal: int) -> None:
        """Let the kernel use `nbytes` of dynamic shared memory on a device (more than 48 KiB must be asked for)."""
        name = self._api.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        self._call("cuKernelSetAttribute", name, nbytes, kernel, self._call("cuDeviceGet", ordinal))

    def config(self, threads: int, nbytes: int) -> Any:
        """A launch configuration with fields gridDimX, gridDimY, gridDimZ and hStream left to set.

        Programmatic dependent launch is on: the kernel may be launched while the one before it in the stream ends, and
        its entry waits (griddepcontrol.wait) before anything touches global memory.
        """
        config = self._api.CUlaunchConfig()
        config.blockDimX, config.blockDimY, config.blockDimZ = threads, 1, 1
        config.sharedMemBytes = nbytes
        value = self._api.CUlaunchAttributeValue()
        value.programmaticStreamSerializationAllowed = 1
        attribute = self._api.CUlaunchAttribute()
        attribute.id = self._api.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        attribute.value = value
        config.attrs = [attribute]
        config.numAttrs = 1
        return config

    def launcher(self, ordinal: int) -> Callable[..., tuple[Any]]:
        """The function that launches on a device: of a configuration, a kernel, the address of the ``void*[]`` and 0 it makes
        (CUresult,), 0 for success, and raises nothing.

        With one GPU the context that PyTorch or CuPy made current is the right one; a thread that never touched the GPU has
        none, which the driver tells (`relaunch`). With several the right one is always set.
        """
        if self.count == 1:
            return self._launch

        def launch(*arguments: Any) -> tuple[Any]:
            with self.on(ordinal):
                return self._launch(*arguments)

        return launch

    def relaunch(self, code: Any, config: Any, kernel: Any, params: int, extra: int, ordinal: int) -> Any:
        """What becomes of a launch that the driver answered with `code`: tried again where the thread had no context."""
        if code != INVALID_CONTEXT:
            return code
        with self.on(ordinal):
            return self._launch(config, kernel, params, extra)[0]

    def error(self, call: str, code: Any) -> DriverError:
        """The exception for a call that returned `code`."""
        return DriverError(call, int(code), getattr(code, "name", "an unknown error"))

    def encode_tiled(self, dtype: str, address: int, dims: Sequence[int], strides: Sequence[int], box: Sequence[int],
                     swizzle: int, nan: bool) -> bytes:
        """128-byte CUtensorMap, innermost dimension first; `strides` (bytes) leave the innermost out.

        `dtype` is the end of a CU_TENSOR_MAP_DATA_TYPE_* name. L2 promotion is 256 B, interleaving none.
        """
        api = self._api
        wide, narrow = api.cuuint64_t, api.cuuint32_t
        pattern = f"{swizzle}B" if swizzle else "NONE"
        fill = "NAN_REQUEST_ZERO_FMA" if nan else "NONE"
        arguments = (
            getattr(api.CUtensorMapDataType, "CU_TENSOR_MAP_DATA_TYPE_" + dtype), len(dims), address,
            [wide(d) for d in dims], [wide(s) for s in strides] or [wide(16)],  # not read at rank 1, but never null
            [narrow(b) for b in box], [narrow(1)] * len(dims),
            api.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            getattr(api.CUtensorMapSwizzle, "CU_TENSOR_MAP_SWIZZLE_" + pattern),
            api.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
            getattr(api.CUtensorMapFloatOOBfill, "CU_TENSOR_MAP_FLOAT_OOB_FILL_" + fill))
        try:
            encoded = self._call("cuTensorMapEncodeTiled", *arguments)
        except DriverError as error:
            if error.code != INVALID_CONTEXT:
                raise
            with self.on(next(iter(self._contexts), 0)):  # a map belongs to no context, yet one must be current
                encoded = self._call("cuTensorMapEncodeTiled", *arguments)
        return ctypes.string_at(int(encoded.getPtr()), 128)

    # ---- memory of host calls: a pool of numpipe's own, so that nobody else's settings change
    def _pool(self, ordinal: int) -> Any:
        pool = self._pools.get(ordinal)
        if pool is None:
            with self._lock:
                pool = self._pools.get(ordinal)
                if pool is None:
                    api = self._api
                    wanted = api.CUmemPoolProps()
                    wanted.allocType = api.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
                    wanted.location.type = api.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
                    wanted.location.id = ordinal
                    pool = self._call("cuMemPoolCreate", wanted)
                    threshold = api.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
                    self._call("cuMemPoolSetAttribute", pool, threshold, api.cuuint64_t(_POOL_KEEPS))
                    self._pools[ordinal] = pool
        return pool

    def allocate(self, nbytes: int, stream: int, ordinal: int) -> int:
        """Device memory, 256-byte aligned, usable by work queued on `stream` from now on."""
        with self.on(ordinal):
            return int(self._call("cuMemAllocFromPoolAsync", nbytes, self._pool(ordinal), stream))

    def blank(self, ordinal: int, written: bool, fill: str = "zeros") -> int:
        """16 bytes of zeros that stand for an array without elements, which TMA does not know.

        What lies outside an array is read as zeros, so all of it is; with `fill` "nan" all bits are set, which is a NaN of every
        float type. For stores there are other 16 bytes (`written`).
        """
        key = ordinal, written, fill
        with self._lock:
            if key not in self._blanks:
                source = _NANS if fill == "nan" else _BLANK
                address = self.allocate(source.nbytes, 0, ordinal)
                self.copy_in(address, 0, source.ctypes.data, 0, source.nbytes, 1, 0, ordinal)
                self.synchronize(0, ordinal)
                self._blanks[key] = address
            return self._blanks[key]

    def free(self, address: int, stream: int, ordinal: int) -> None:
        """Give memory back once everything queued on `stream` so far is done with it."""
        with self.on(ordinal):
            self._call("cuMemFreeAsync", address, stream)

    def copy_in(self, dst: int, dst_pitch: int, src: int, src_pitch: int, width: int, height: int, stream: int,
                ordinal: int) -> None:
        """Copy `height` rows of `width` bytes from host `src` to device `dst`."""
        self._copy("HOST", src, src_pitch, "DEVICE", dst, dst_pitch, width, height, stream, ordinal)

    def copy_out(self, dst: int, dst_pitch: int, src: int, src_pitch: int, width: int, height: int, stream: int,
                 ordinal: int) -> None:
        """Copy `height` rows of `width` bytes from device `src` to host `dst`."""
        self._copy("DEVICE", src, src_pitch, "HOST", dst, dst_pitch, width, height, stream, ordinal)

    def copy_on(self, dst: int, dst_pitch: int, src: int, src_pitch: int, width: int, height: int, stream: int,
                ordinal: int) -> None:
        """Copy `height` rows of `width` bytes from device `src` to device `dst`, on one GPU."""
        self._copy("DEVICE", src, src_pitch, "DEVICE", dst, dst_pitch, width, height, stream, ordinal)

    def _copy(self, source: str, src: int, src_pitch: int, target: str, dst: int, dst_pitch: int, width: int,
              height: int, stream: int, ordinal: int) -> None:
        linear = f"cuMemcpy{source[0]}to{target[0]}Async"  # HtoD, DtoH, DtoD
        with self.on(ordinal):
            if height == 1 or src_pitch == dst_pitch == width:
                self._call(linear, dst, src, width * height, stream)
            elif max(src_pitch, dst_pitch) > _MAX_PITCH:
                for row in range(height):
                    self._call(linear, dst + row * dst_pitch, src + row * src_pitch, width, stream)
            else:
                kinds = self._api.CUmemorytype
                copy = self._api.CUDA_MEMCPY2D()
                copy.WidthInBytes, copy.Height = width, height
                copy.srcMemoryType = getattr(kinds, f"CU_MEMORYTYPE_{source}")
                copy.dstMemoryType = getattr(kinds, f"CU_MEMORYTYPE_{target}")
                copy.srcPitch, copy.dstPitch = src_pitch, dst_pitch
                setattr(copy, "srcHost" if source == "HOST" else "srcDevice", src)
                setattr(copy, "dstHost" if target == "HOST" else "dstDevice", dst)
                self._call("cuMemcpy2DAsync", copy, stream)

    # ---- kernels that are watched (`watch`)
    def symbol(self, kernel: Any, name: str) -> int:
        """Address of a variable of a kernel's module on the device whose context is current."""
        library = self._call("cuKernelGetLibrary", kernel)
        return int(self._call("cuLibraryGetGlobal", library, name.encode())[0])

    def pinned(self, nbytes: int) -> tuple[int, int]:
        """Host memory that kernels of every GPU can write to: (its address here, its address there). Never freed."""
        address = int(self._call("cuMemHostAlloc", nbytes, 0x1 | 0x2))  # portable, mapped
        return address, int(self._call("cuMemHostGetDevicePointer", address, 0))

    def poke(self, address: int, data: bytes, ordinal: int) -> None:
        """Write a few bytes to device memory, now."""
        with self.on(ordinal):
            self._call("cuMemcpyHtoD", address, data, len(data))

    def mark(self, event: Any, stream: int, ordinal: int) -> Any:
        """An event behind what is queued on `stream`: this one, or a new one for None."""
        with self.on(ordinal):
            if event is None:
                event = self._call("cuEventCreate", 2)  # without times
            self._call("cuEventRecord", event, stream)
        return event

    def reached(self, event: Any, ordinal: int) -> bool:
        """Whether what was queued before the event is done."""
        with self.on(ordinal):
            code = self._api.cuEventQuery(event)[0]
        if int(code) not in (0, NOT_READY):
            raise DriverError("cuEventQuery", int(code), getattr(code, "name", "an unknown error"))
        return int(code) == 0

    def await_mark(self, event: Any, ordinal: int) -> None:
        """Wait until what was queued before the event is done; a kernel that failed is reported here."""
        with self.on(ordinal):
            self._call("cuEventSynchronize", event)

    def synchronize(self, stream: int, ordinal: int) -> None:
        """Wait until everything queued on `stream` is done; a kernel that failed is reported here."""
        with self.on(ordinal):
            self._call("cuStreamSynchronize", stream)


_open: Callable[[], Any] = Driver
_opened: Any = None
_opening = threading.Lock()


def get() -> Any:
    """The driver of this process (a `Driver`). Raises DriverMissing or DriverError, each time, when there is none."""
    global _opened
    if _opened is None:
        with _opening:
            if _opened is None:
                _opened = _open()
    return _opened
