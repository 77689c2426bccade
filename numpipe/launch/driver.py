"""The CUDA driver, as one object that is opened when a GPU is first used.

All of `launch` gets the driver from `get`, so that tests can replace it. Streams, kernels and
device addresses are plain ints or opaque handles of cuda.bindings; sizes and pitches are in bytes.
The primary context of a device, which PyTorch, CuPy and Numba also use, is retained once and kept
for the life of the process."""

from __future__ import annotations

import ctypes
import functools
import math
import threading
from collections.abc import Callable, Sequence
from typing import Any

from ..arch.dimensions import Dim3, Ints
from ..core.process_guards import in_child
from .attributes import PLAIN, Attributes
from .cuda_contexts import Contexts
from .driver_errors import INVALID_CONTEXT, NOT_READY, forked
from .driver_errors import DriverError as DriverError
from .driver_errors import DriverMissing as DriverMissing

_MAX_PITCH = 2**31 - 1
_COUNTERS = 1 << 15
"""Bytes of counters that are allocated at once."""
_POOL_KEEPS = 1 << 30
"""Bytes of freed device memory that the pool for host arrays keeps for later calls."""


Launcher = Callable[..., tuple[Any]]
"""cuLaunchKernelEx, or a function that is called like it"""


class Driver(Contexts):
    """The libcuda functions that numpipe needs. Methods raise DriverError unless they say
    otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self._launch: Launcher = self._api.cuLaunchKernelEx
        self._pools: dict[int, Any] = {}
        self._shared: set[tuple[int, Ints]] = set()
        self._blanks: dict[tuple[int, bool, str], int] = {}
        self._counters: dict[int, list[int]] = {}
        """counter addresses not yet handed out, by GPU"""
        self._unfreed: list[Dim3] = []
        """(address, stream, device) of memory that a later `free` releases, when its stream is no
        longer being captured"""

    def abandon(self) -> None:
        """Make every use of this object in a forked child fail, in Python instead of in the
        driver."""
        self._api = _Forked()
        self._launch = self._api.cuLaunchKernelEx

    # ---- kernels
    def load(self, cubin: bytes, entry: str) -> Any:
        """Return a kernel's handle, valid on every device. The library is never unloaded, because
        launches may be in flight at exit.

        The driver copies the code to a GPU when `allow_shared` makes the kernel ready there.
        """
        library = self._call("cuLibraryLoadData", cubin, [], [], 0, [], [], 0)
        return self._call("cuLibraryGetKernel", library, entry.encode())

    def allow_shared(self, kernel: Any, nbytes: int, ordinal: int) -> None:
        """Make the kernel ready on a device, with `nbytes` of dynamic shared memory (more than 48
        KiB must be requested).

        This also copies its code to the GPU. A launch that did so would wait for the GPU, which is
        not allowed during a capture.
        """
        name = self._api.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        self._call("cuKernelSetAttribute", name, nbytes, kernel, self._call("cuDeviceGet", ordinal))
        if self.version() >= 12040:
            self._call("cuFuncLoad", self._call("cuKernelGetFunction", kernel))

    def config(self, threads: int, nbytes: int, attributes: Attributes = PLAIN) -> Any:
        """Return a launch configuration; the caller sets gridDimX, gridDimY, gridDimZ and hStream,
        but no attributes.

        With programmatic dependent launch the kernel may be launched while the previous kernel in
        the stream is finishing, and its entry waits (griddepcontrol.wait) before accessing global
        memory. Otherwise that wait returns at once."""
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
        """Allow clusters of the kernel to have more than 8 CTAs on a device."""
        name = self._api.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
        self._call("cuKernelSetAttribute", name, 1, kernel, self._call("cuDeviceGet", ordinal))

    def clusters_at_once(self, kernel: Any, config: Any) -> int:
        """Return how many clusters of a launch with this configuration the current GPU can run at
        the same time; 0 if none fits."""
        return int(
            self._call(
                "cuOccupancyMaxActiveClusters", self._call("cuKernelGetFunction", kernel), config
            )
        )

    def ctas_at_once(self, kernel: Any, threads: int, nbytes: int, ordinal: int) -> int:
        """Return how many CTAs of a launch the GPU, which must be current, can run at the same
        time."""
        function = self._call("cuKernelGetFunction", kernel)
        per_sm = int(
            self._call("cuOccupancyMaxActiveBlocksPerMultiprocessor", function, threads, nbytes)
        )
        return per_sm * self.properties(ordinal)[2]

    def launcher(self, ordinal: int, cleared: Dim3 | None = None) -> Launcher:
        """Return the function that launches on a device. It takes a configuration, a kernel, the
        address of the ``void*[]`` and 0, returns (CUresult,), which is 0 for success, and never
        raises.

        With one GPU, the context that PyTorch or CuPy made current is the right one; a thread
        without one gets an error from the driver (see `relaunch`). With several GPUs, the function
        makes the right context current.

        cleared  address and number of 4-byte words that are set to 0 before each launch, and the
                 stream
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

    def _clearing(self, address: int, words: int, stream: int) -> Launcher:
        """Return a function that clears words on a stream and then launches; a graph captures
        both."""
        what = self._api.CUdeviceptr(address), 0, words, self._api.CUstream(stream)

        def launch(*arguments: Any) -> tuple[Any]:
            code: tuple[Any] = self._api.cuMemsetD32Async(*what)
            return code if code[0] else self._launch(*arguments)

        return launch

    def relaunch(
        self, code: Any, config: Any, kernel: Any, params: int, extra: int, ordinal: int
    ) -> Any:
        """Retry a launch for which the driver returned `code`, if the thread had no context. Return
        the last result."""
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
        """Return a 128-byte CUtensorMap. The innermost dimension comes first; `strides` (in bytes)
        excludes it.

        `dtype` is the suffix of a CU_TENSOR_MAP_DATA_TYPE_* name. There is no interleaving. L2
        promotion is 256 B if all rows begin at multiples of 256 bytes, which speeds up products of
        around 10 µs by 0 to 5 % (on an H200). Other rows would load a third slower with it, so they
        use 128 B, a row of a 16-bit tile.
        """
        api = self._api
        wide, narrow = api.cuuint64_t, api.cuuint32_t
        pattern = f"{swizzle}B" if swizzle else "NONE"
        promoted = 256 if math.gcd(256, address, *strides) == 256 else 128
        fill = "NAN_REQUEST_ZERO_FMA" if nan else "NONE"
        # a map belongs to no context, but one must be current
        self._make_current(next(iter(self._contexts), 0))
        encoded = self._call(
            "cuTensorMapEncodeTiled",
            getattr(api.CUtensorMapDataType, "CU_TENSOR_MAP_DATA_TYPE_" + dtype),
            len(dims),
            address,
            # not read for one dimension, but must not be null
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

    # ---- memory of host calls, from numpipe's own pool so that no other library's settings change
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
        """Allocate device memory, aligned to 256 bytes, for work that is queued on `stream` after
        this call."""
        with self.relaxed(ordinal):
            return int(self._call("cuMemAllocFromPoolAsync", nbytes, self._pool(ordinal), stream))

    def blank(self, ordinal: int, written: bool, fill: str = "zeros") -> int:
        """Return 16 bytes of zeros that take the place of an array without elements, which TMA does
        not support.

        TMA reads zeros outside of an array, so it reads only zeros. If `fill` is "nan", all bits
        are set, which is a NaN in every float type. Stores use separate memory (`written`)."""
        key = ordinal, written, fill
        with self._lock:
            if key not in self._blanks:
                self._blanks[key] = self.kept((b"\xff" if fill == "nan" else b"\0") * 16, ordinal)
            return self._blanks[key]

    def kept(self, data: bytes, ordinal: int) -> int:
        """Allocate device memory with these contents for the rest of the process."""
        with self.aside(ordinal) as stream:
            address = self.allocate(len(data), stream, ordinal)
            self.poke(address, data, ordinal)
        return address

    def counter(self, ordinal: int) -> int:
        """Return 8 new bytes of zeros for the work indices of a launch (`tile_scheduler`),
        allocated for the rest of the process."""
        with self._lock:
            if not self._counters.get(ordinal):
                first = self.kept(bytes(_COUNTERS), ordinal)
                self._counters[ordinal] = list(range(first, first + _COUNTERS, 8))
            return self._counters[ordinal].pop()

    def free(self, address: int, stream: int, ordinal: int) -> None:
        """Free memory after everything that is queued on `stream` so far. If the stream is being
        captured, a later call frees it.

        Python may collect garbage at any time, and that must neither invalidate a capture nor add a
        free of memory to a graph that did not allocate it."""
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
        """Set the first `words` 4-byte words of each row to zero; rows are `pitch` bytes apart. A
        graph can capture this."""
        with self.on(ordinal):
            self._call("cuMemsetD2D32Async", address, pitch, 0, words, rows, stream)

    # ---- several GPUs (`local_gpus`)
    def share_pool(self, ordinal: int, ordinals: Sequence[int], pool: Any = None) -> None:
        """Give GPUs read and write access to a memory pool of another GPU, by default numpipe's own
        pool."""
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
        """Give GPUs read and write access to the memory at an address if it belongs to a pool,
        which contexts do not give access to."""
        name = self._api.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE
        # returns an error, or 0, for memory that does not belong to a pool
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
        """Allocate host memory that every GPU can write to and that is never freed. Return its
        addresses on the host and on the GPUs."""
        address = int(self._call("cuMemHostAlloc", nbytes, 0x1 | 0x2))  # portable, mapped
        return address, int(self._call("cuMemHostGetDevicePointer", address, 0))

    def poke(self, address: int, data: bytes, ordinal: int) -> None:
        """Write to device memory immediately."""
        with self.aside(ordinal) as stream:
            self._call("cuMemcpyHtoDAsync", address, data, len(data), stream)
            self._call("cuStreamSynchronize", stream)

    def peek(self, address: int, nbytes: int, ordinal: int) -> bytes:
        """Read device memory, even while kernels run."""
        found = (ctypes.c_char * nbytes)()
        with self.aside(ordinal) as stream:
            self._call("cuMemcpyDtoHAsync", ctypes.addressof(found), address, nbytes, stream)
            self._call("cuStreamSynchronize", stream)
        return bytes(found)

    def reached(self, event: Any, ordinal: int) -> bool:
        """Return whether everything queued before the event has finished."""
        with self.aside(ordinal):
            code = self._api.cuEventQuery(event)[0]
        if int(code) not in (0, NOT_READY):
            raise self.error("cuEventQuery", code)
        return int(code) == 0

    def synchronize(self, stream: int, ordinal: int) -> None:
        """Wait until everything queued on `stream` has finished. Raises DriverError if a kernel
        failed."""
        with self.on(ordinal):
            self._call("cuStreamSynchronize", stream)


_open: Callable[[], Driver] = Driver
_opened: Driver | None = None
_opening = threading.Lock()


def opened() -> Driver | None:
    """Return the driver of this process if it was opened, else None. Opens nothing and waits for no
    lock."""
    return _opened


def get() -> Driver:
    """Return the driver of this process. Raises DriverMissing or DriverError, at each call, if
    there is none."""
    global _opened
    if _opened is None:
        with _opening:
            if _opened is None:
                _opened = _open()
    return _opened


class _Forked:
    """The driver's functions in a child of a process that used them; all raise DriverError."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("CU"):  # an enumeration, for a call that would be refused
            raise forked(name)
        return functools.partial(_refuse, name)


def _refuse(name: str = "cuInit", *_: Any) -> Any:
    raise forked(name)


@in_child
def _forget() -> None:
    """Prevent a forked child from using the driver that its parent opened."""
    global _open, _opened, _opening
    _opening = threading.Lock()
    if _opened is not None:
        _opened.abandon()
        _opened, _open = None, _refuse


def abandoned() -> bool:
    """Return whether this process was forked from one that had opened the driver."""
    return _open is _refuse
