"""The CUDA driver as numpipe uses it: one object, opened on the first use of a GPU.

All of `launch` reaches the driver through `get`, so that a test can put another object in its
place. Streams, kernels and device addresses are plain ints or opaque handles of cuda.bindings;
sizes and pitches are bytes. The primary context of a device, which PyTorch, CuPy and Numba share,
is retained once and kept for the life of the process.
"""

from __future__ import annotations

import ctypes
import functools
import math
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..core.process_guards import in_child
from .attributes import PLAIN, Attributes
from .cuda_contexts import Contexts
from .driver_errors import INVALID_CONTEXT, NOT_READY, forked
from .driver_errors import DriverError as DriverError
from .driver_errors import DriverMissing as DriverMissing

_MAX_PITCH = 2**31 - 1
_POOL_KEEPS = 1 << 30
"""Bytes of freed device memory that the pool for host arrays keeps for the next call."""


class Driver(Contexts):
    """The functions of libcuda that numpipe needs; each raises DriverError unless it says
    otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self._launch: Callable[..., tuple[Any]] = self._api.cuLaunchKernelEx
        self._pools: dict[int, Any] = {}
        self._shared: set[tuple[int, tuple[int, ...]]] = set()
        self._blanks: dict[tuple[int, bool, str], int] = {}
        self._counters: dict[int, list[int]] = {}
        """addresses that `counter` has not given out, by GPU"""
        self._unfreed: list[tuple[int, int, int]] = []
        """(address, stream, device) of memory that a later `free` gives back, when its stream is no
        longer captured"""

    def abandon(self) -> None:
        """In a forked child: let every use of this object fail, in Python and not in the driver."""
        self._api = _Forked()
        self._launch = self._api.cuLaunchKernelEx

    # ---- kernels
    def load(self, cubin: bytes, entry: str) -> Any:
        """Return a kernel's handle, good on every device. Nothing unloads the library: launches may
        be in flight at exit.

        The driver copies the code to a GPU when `allow_shared` makes the kernel ready there.
        """
        library = self._call("cuLibraryLoadData", cubin, [], [], 0, [], [], 0)
        return self._call("cuLibraryGetKernel", library, entry.encode())

    def allow_shared(self, kernel: Any, nbytes: int, ordinal: int) -> None:
        """Make the kernel ready on a device: it may use `nbytes` of dynamic shared memory (more
        than 48 KiB must be asked for).

        Its code goes to the GPU now: a launch that loaded it would wait for the GPU, which a
        capture does not allow.
        """
        name = self._api.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        self._call("cuKernelSetAttribute", name, nbytes, kernel, self._call("cuDeviceGet", ordinal))
        if self.version() >= 12040:
            self._call("cuFuncLoad", self._call("cuKernelGetFunction", kernel))

    def config(self, threads: int, nbytes: int, attributes: Attributes = PLAIN) -> Any:
        """Return a launch configuration whose gridDimX, gridDimY, gridDimZ and hStream are left to
        set; only this sets attributes.

        With programmatic dependent launch the kernel may be launched while the one before it in the
        stream ends, and its entry waits (griddepcontrol.wait) before anything touches global
        memory; without, that wait is over at once.
        """
        config = self._api.CUlaunchConfig()
        config.blockDimX, config.blockDimY, config.blockDimZ = threads, 1, 1
        config.sharedMemBytes = nbytes
        added = []

        def add(name: str) -> Any:
            attribute = self._api.CUlaunchAttribute()
            attribute.id = getattr(self._api.CUlaunchAttributeID, f"CU_LAUNCH_ATTRIBUTE_{name}")
            added.append((attribute, self._api.CUlaunchAttributeValue()))
            return added[-1][1]

        if attributes.programmatic:
            add("PROGRAMMATIC_STREAM_SERIALIZATION").programmaticStreamSerializationAllowed = 1
        if attributes.cooperative:
            add("COOPERATIVE").cooperative = 1
        if attributes.size > 1:
            dims = add("CLUSTER_DIMENSION").clusterDim
            dims.x, dims.y, dims.z = attributes.cluster
        for attribute, value in added:
            attribute.value = value
        config.attrs = [attribute for attribute, _ in added]
        config.numAttrs = len(added)
        return config

    def allow_cluster(self, kernel: Any, ordinal: int) -> None:
        """Let the kernel's clusters have more than 8 CTAs on a device."""
        name = self._api.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
        self._call("cuKernelSetAttribute", name, 1, kernel, self._call("cuDeviceGet", ordinal))

    def clusters_at_once(self, kernel: Any, config: Any) -> int:
        """Return how many clusters of a launch with this configuration the current GPU runs at the
        same time; 0: none fits."""
        return int(
            self._call(
                "cuOccupancyMaxActiveClusters", self._call("cuKernelGetFunction", kernel), config
            )
        )

    def ctas_at_once(self, kernel: Any, threads: int, nbytes: int, ordinal: int) -> int:
        """Return how many CTAs of a launch the GPU, which is current, runs at the same time."""
        function = self._call("cuKernelGetFunction", kernel)
        per_sm = int(
            self._call("cuOccupancyMaxActiveBlocksPerMultiprocessor", function, threads, nbytes)
        )
        return per_sm * self.properties(ordinal)[2]

    def launcher(
        self, ordinal: int, cleared: tuple[int, int, int] | None = None
    ) -> Callable[..., tuple[Any]]:
        """Return the function that launches on a device: it takes a configuration, a kernel, the
        address of the ``void*[]`` and 0, returns (CUresult,), 0 for success, and raises nothing.

        With one GPU the context that PyTorch or CuPy made current is the right one; a thread that
        has none gets an error from the driver (`relaunch`). With several GPUs the function makes
        the right context current.

        cleared  an address, a number of words of 4 bytes that are set to 0 there before each
                 launch, and the stream
        """
        self._make_current(ordinal)
        if self.count == 1 and cleared is None:
            return self._launch
        clearing = None if cleared is None else self._clearing(*cleared)
        with self.on(ordinal):
            context, current = int(self._contexts[ordinal]), self._api.cuCtxGetCurrent

        def launch(*arguments: Any) -> tuple[Any]:
            run = clearing or self._launch
            if int(current()[1]) == context:
                return run(*arguments)
            with self.on(ordinal):
                return run(*arguments)

        return launch

    def _clearing(self, address: int, words: int, stream: int) -> Callable[..., tuple[Any]]:
        """Return a function that clears words on a stream and launches behind that; a graph
        captures both."""
        what = self._api.CUdeviceptr(address), 0, words, self._api.CUstream(stream)

        def launch(*arguments: Any) -> tuple[Any]:
            code: tuple[Any] = self._api.cuMemsetD32Async(*what)
            return code if code[0] else self._launch(*arguments)

        return launch

    def relaunch(
        self, code: Any, config: Any, kernel: Any, params: int, extra: int, ordinal: int
    ) -> Any:
        """Try a launch again that the driver answered with `code`, where the thread had no context;
        returns the last answer."""
        if code != INVALID_CONTEXT:
            return code
        self._make_current(ordinal)
        with self.on(ordinal):
            return self._launch(config, kernel, params, extra)[0]

    def encode_tiled(
        self,
        dtype: str,
        address: int,
        dims: Sequence[int],
        strides: Sequence[int],
        box: Sequence[int],
        swizzle: int,
        nan: bool,
    ) -> bytes:
        """Return a 128-byte CUtensorMap. The innermost dimension comes first; `strides` (bytes)
        leave it out.

        `dtype` is the end of a CU_TENSOR_MAP_DATA_TYPE_* name. Interleaving is none. L2 promotion
        is 256 B where all rows begin at multiples of that, which is worth 0 to 5 % of products of
        some 10 µs (an H200); other rows would take a third longer to load with it, and have 128 B,
        a row of a 16-bit tile.
        """
        api = self._api
        wide, narrow = api.cuuint64_t, api.cuuint32_t
        pattern = f"{swizzle}B" if swizzle else "NONE"
        promoted = 256 if math.gcd(256, address, *strides) == 256 else 128
        fill = "NAN_REQUEST_ZERO_FMA" if nan else "NONE"
        # a map belongs to no context, yet one must be current
        self._make_current(next(iter(self._contexts), 0))
        encoded = self._call(
            "cuTensorMapEncodeTiled",
            getattr(api.CUtensorMapDataType, "CU_TENSOR_MAP_DATA_TYPE_" + dtype),
            len(dims),
            address,
            # not read at rank 1, but never null
            [wide(d) for d in dims],
            [wide(s) for s in strides] or [wide(16)],
            [narrow(b) for b in box],
            [narrow(1)] * len(dims),
            api.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            getattr(api.CUtensorMapSwizzle, "CU_TENSOR_MAP_SWIZZLE_" + pattern),
            getattr(api.CUtensorMapL2promotion, f"CU_TENSOR_MAP_L2_PROMOTION_L2_{promoted}B"),
            getattr(api.CUtensorMapFloatOOBfill, "CU_TENSOR_MAP_FLOAT_OOB_FILL_" + fill),
        )
        return ctypes.string_at(int(encoded.getPtr()), 128)

    # ---- memory of host calls: a pool of numpipe's own, so that nobody else's settings change
    def _pool(self, ordinal: int) -> Any:
        with self._lock:
            if ordinal not in self._pools:
                api = self._api
                props = api.CUmemPoolProps()
                props.allocType = api.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
                props.location.type = api.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
                props.location.id = ordinal
                pool = self._call("cuMemPoolCreate", props)
                threshold = api.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
                self._call("cuMemPoolSetAttribute", pool, threshold, api.cuuint64_t(_POOL_KEEPS))
                self._pools[ordinal] = pool
            return self._pools[ordinal]

    def allocate(self, nbytes: int, stream: int, ordinal: int) -> int:
        """Allocate device memory, 256-byte aligned, for work that is queued on `stream` from now
        on."""
        with self.relaxed(ordinal):
            return int(self._call("cuMemAllocFromPoolAsync", nbytes, self._pool(ordinal), stream))

    def blank(self, ordinal: int, written: bool, fill: str = "zeros") -> int:
        """Return 16 bytes of zeros that stand for an array without elements, which TMA does not
        know.

        TMA reads zeros outside an array, so it reads only zeros there; with `fill` "nan" all bits
        are set, which is a NaN of every float type. Stores have 16 bytes of their own (`written`).
        """
        key = ordinal, written, fill
        with self._lock:
            if key not in self._blanks:
                self._blanks[key] = self.kept(
                    np.full(16, 0xFF if fill == "nan" else 0, np.uint8), ordinal
                )
            return self._blanks[key]

    def kept(self, source: np.ndarray[Any, Any], ordinal: int) -> int:
        """Allocate device memory with these contents, until the process ends."""
        with self.aside(ordinal) as stream:
            address = self.allocate(source.nbytes, stream, ordinal)
            self.copy_in(address, 0, source.ctypes.data, 0, source.nbytes, 1, stream, ordinal)
            self.synchronize(stream, ordinal)
        return address

    def counter(self, ordinal: int) -> int:
        """Return 8 new bytes of zeros for a launch's work indices (`tile_scheduler`), until the
        process ends."""
        with self._lock:
            if not self._counters.get(ordinal):
                zeros = np.zeros(4096, np.uint64)
                first = self.kept(zeros, ordinal)
                self._counters[ordinal] = list(range(first, first + zeros.nbytes, 8))
            return self._counters[ordinal].pop()

    def free(self, address: int, stream: int, ordinal: int) -> None:
        """Give memory back behind everything that is queued on `stream` so far; while the stream is
        captured, a later call does.

        Python collects garbage at any time, and no graph may end, or hold a free of what it did not
        allocate, by that.
        """
        with self._lock:
            waiting, self._unfreed = [*self._unfreed, (address, stream, ordinal)], []
            for memory, queue, gpu in waiting:
                if self.capturing(queue, gpu):
                    self._unfreed.append((memory, queue, gpu))
                    continue
                with self.relaxed(gpu):
                    self._call("cuMemFreeAsync", memory, queue)

    def _copy(
        self,
        source: str,
        target: str,
        dst: int,
        dst_pitch: int,
        src: int,
        src_pitch: int,
        width: int,
        height: int,
        stream: int,
        ordinal: int,
    ) -> None:
        """Copy `height` rows of `width` bytes from `src` to `dst`, each on the host or on the
        GPU."""
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

    copy_in = functools.partialmethod(_copy, "HOST", "DEVICE")
    copy_out = functools.partialmethod(_copy, "DEVICE", "HOST")
    copy_on = functools.partialmethod(_copy, "DEVICE", "DEVICE")

    def clear(
        self, address: int, pitch: int, words: int, rows: int, stream: int, ordinal: int
    ) -> None:
        """Write zeros to the first `words` words of 4 bytes of each row; rows lie `pitch` bytes
        apart. A graph can capture it."""
        with self.on(ordinal):
            self._call("cuMemsetD2D32Async", address, pitch, 0, words, rows, stream)

    # ---- several GPUs (`local_gpus`)
    def share_pool(self, ordinal: int, ordinals: Sequence[int], pool: Any = None) -> None:
        """Let GPUs read and write the memory of a pool of another one; by default of numpipe's
        own."""
        api, descriptions = self._api, []
        for peer in ordinals:
            if peer != ordinal:
                description = api.CUmemAccessDesc()
                description.location.type = api.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
                description.location.id = peer
                description.flags = api.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
                descriptions.append(description)
        if descriptions:
            self._call(
                "cuMemPoolSetAccess",
                self._pool(ordinal) if pool is None else pool,
                descriptions,
                len(descriptions),
            )

    def share_memory(self, address: int, ordinal: int, ordinals: Sequence[int]) -> None:
        """Let GPUs read and write the memory at an address where it is of a pool: contexts do not
        give access to pools."""
        name = self._api.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE
        # an error, or 0, for memory of no pool
        code, pool = self._api.cuPointerGetAttribute(name, address)
        handle = 0 if int(code) else int(pool)
        if handle and (handle, tuple(ordinals)) not in self._shared:
            self.share_pool(ordinal, ordinals, self._api.CUmemoryPool(handle))
            self._shared.add((handle, tuple(ordinals)))

    # ---- kernels that are watched (`watch`)
    def symbol(self, kernel: Any, name: str) -> int:
        """Return the address of a variable of a kernel's module on the device whose context is
        current."""
        library = self._call("cuKernelGetLibrary", kernel)
        return int(self._call("cuLibraryGetGlobal", library, name.encode())[0])

    def pinned(self, nbytes: int) -> tuple[int, int]:
        """Allocate host memory that every GPU can write to, for good; returns its addresses on the
        host and on the GPUs."""
        address = int(self._call("cuMemHostAlloc", nbytes, 0x1 | 0x2))  # portable, mapped
        return address, int(self._call("cuMemHostGetDevicePointer", address, 0))

    def poke(self, address: int, data: bytes, ordinal: int) -> None:
        """Write a few bytes to device memory, now."""
        with self.aside(ordinal) as stream:
            self._call("cuMemcpyHtoDAsync", address, data, len(data), stream)
            self._call("cuStreamSynchronize", stream)

    def peek(self, address: int, nbytes: int, ordinal: int) -> bytes:
        """Read a few bytes of device memory, while kernels run."""
        found = (ctypes.c_char * nbytes)()
        with self.aside(ordinal) as stream:
            self._call("cuMemcpyDtoHAsync", ctypes.addressof(found), address, nbytes, stream)
            self._call("cuStreamSynchronize", stream)
        return bytes(found)

    def reached(self, event: Any, ordinal: int) -> bool:
        """Whether what was queued before the event has ended."""
        with self.aside(ordinal):
            code = self._api.cuEventQuery(event)[0]
        if int(code) not in (0, NOT_READY):
            raise self.error("cuEventQuery", code)
        return int(code) == 0

    def synchronize(self, stream: int, ordinal: int) -> None:
        """Wait until everything queued on `stream` has ended. Raises DriverError for a kernel that
        failed."""
        with self.on(ordinal):
            self._call("cuStreamSynchronize", stream)


_open: Callable[[], Driver] = Driver
_opened: Driver | None = None
_opening = threading.Lock()


def opened() -> Driver | None:
    """Return the driver of this process if it was opened, else None; opens nothing and waits for no
    lock."""
    return _opened


def get() -> Driver:
    """Return the driver of this process. Raises DriverMissing or DriverError, each time, when there
    is none."""
    global _opened
    if _opened is None:
        with _opening:
            if _opened is None:
                _opened = _open()
    return _opened


class _Forked:
    """The driver's functions in a child of a process that used them: each raises DriverError."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("CU"):  # an enumeration, for a call that will be refused
            raise forked(name)
        return functools.partial(_refuse, name)


def _refuse(name: str = "cuInit", *_: Any) -> Any:
    raise forked(name)


@in_child
def _forget() -> None:
    """In a forked child: let nothing use the driver that the parent opened."""
    global _open, _opened, _opening
    _opening = threading.Lock()
    if _opened is not None:
        _opened.abandon()
        _opened, _open = None, _refuse


def abandoned() -> bool:
    """Whether this process was forked from one that had opened the driver."""
    return _open is _refuse
