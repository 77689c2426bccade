"""Launching of a compiled kernel: packed parameters and one driver call.

The parameters of a numpipe kernel, in order; each has its own pointer in the driver's ``void*[]``:

=========  =========================================================================================
0          the tensor maps, n x 128 bytes, 64-byte aligned (one map of zeros if the kernel needs
           none). If the kernel has a launch counter, 128 bytes follow that begin with its address.
           For a kernel of several GPUs, information about the other GPUs follows (`peer_access`)
per array  address; every dimension; every stride in elements: int64 each, in the array's own order
scalars    each of its own size
=========  =========================================================================================

All parameters are in one buffer, which is cached for recent combinations of arrays and stream
(`Launch`). A call on arrays seen before finds its buffer in the `Table` and launches without
writing anything except scalars.
"""

from __future__ import annotations

import ctypes
import dataclasses
import math
import struct
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..diagnostics import log
from ..diagnostics.errors import LaunchError, SpecError
from ..plan.control_block import WORDS_BYTES, section_bytes
from ..plan.image import Image
from . import driver, streams
from .array_info import ArrayInfo, flattened, memory_order, not_addressable, tma_addressable
from .attributes import MAX_GRID, PLAIN, PORTABLE_CLUSTER, Attributes, Grid
from .buffers import workspace
from .current_gpu import spell
from .debug_reports import WATCH
from .driver_errors import IMAGES, naming
from .overlapping_outputs import check_overlap
from .profiles import PROFILES
from .table import Table
from .tensormap import MAP_BYTES, MapRequest, encode

_WORD = 8
_ALIGN = 64
_WATCHED = WATCH.kernels

_COUNTER = struct.Struct(f"<Q{MAP_BYTES - 8}x")
_SCALARS = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "int32": "i",
    "int64": "q",
    "uint8": "B",
    "uint16": "H",
    "uint32": "I",
    "uint64": "Q",
    "float16": "e",
    "float32": "f",
    "float64": "d",
}
"""struct format codes of the scalar types"""


@dataclasses.dataclass(slots=True, eq=False)
class Launch:
    """One argument list of a kernel on one stream: parameters, grid and stream in the form that the
    driver takes. Call it to launch.

    It is immutable except for scalars, which `Prepared` writes before each launch. Without scalars,
    it can be used by several threads.
    """

    prepared: Prepared
    grid: Grid
    stream: int
    device: int
    launcher: driver.Launcher
    """function that launches, `Prepared.launcher`"""
    arguments: tuple[Any, Any, int, int]
    """arguments of cuLaunchKernelEx of cuda.bindings"""
    buffer: memoryview
    """the packed parameters"""
    pointers: Any
    """ctypes array of the parameters' addresses, which `arguments` points to"""

    def __call__(self) -> None:
        """Queue the kernel.

        Raises LaunchError, which may also report the failure of an earlier kernel, since the driver
        reports failures at the next call. Raises PipelineDeadlock for an earlier kernel that gave
        up waiting (`debug_reports`).
        """
        if _WATCHED:
            WATCH.check()
        code = self.launcher(*self.arguments)[0]
        if code:
            self.refused(code)

    def refused(self, code: Any) -> None:
        """Launch a second time if that may succeed; otherwise raise the error for the driver's
        result `code`."""
        code = driver.get().relaunch(code, *self.arguments, self.device)
        if code:
            error = driver.get().error("cuLaunchKernelEx", code)
            raise self.prepared.failed(
                streams.explained(error, self.stream, self.device), f"grid {self.grid}, "
            )


class Prepared:
    """A compiled kernel for arguments of one signature. It is loaded on its first launch, and made
    ready once per GPU.

    Call it with the grid, the arrays (all on one GPU), the scalars and the stream. It can be called
    from several threads.
    """

    def __init__(
        self,
        compiled: Image,
        infos: Sequence[ArrayInfo],
        scalars: Sequence = (),
        outputs: int = 0,
        attributes: Attributes = PLAIN,
        workspace: Callable[[Grid, Sequence[ArrayInfo]], tuple[int, int]] | None = None,
        table: Table | None = None,
    ) -> None:
        """`infos` give the rank and type of each array, `scalars` the dtypes of the scalar
        parameters in order.

        The last `outputs` arrays are outputs, which may not overlap any other array. `workspace`,
        for a kernel whose last array is a workspace that callers do not pass, returns the
        workspace's shape for a grid and arrays. `table` caches the launches.
        """
        # a memset precedes each launch, so there is no previous kernel to overlap with
        if compiled.gpus:
            attributes = dataclasses.replace(attributes, programmatic=False)
        self.compiled, self.name, self.attributes = compiled, compiled.name, attributes
        self._outputs, self._workspace = outputs, workspace
        words = (
            sum(1 + 2 * len(info.shape) for info in infos)
            + 5 * (workspace is not None)
            + 3 * bool(compiled.gpus)
        )
        maps = (max(len(compiled.maps), 1) + compiled.dynamic) * MAP_BYTES
        if compiled.gpus:
            maps += WORDS_BYTES + compiled.gpus * section_bytes(
                len(compiled.maps), len(compiled.arrays)
            )
        self._words = struct.Struct(f"<{words}q")
        self._scalar_types = [np.dtype(dtype) for dtype in scalars]
        self._scalars = struct.Struct(
            "<" + "".join(self._field(dtype) for dtype in self._scalar_types)
        )
        self._scalars_at = maps + self._words.size
        self.nbytes = self._scalars_at + self._scalars.size
        """bytes of all parameters of a launch"""
        self.offsets = [0, *range(maps, self.nbytes, _WORD)]
        """byte offset of each parameter"""
        self.observers: list = [
            by for wanted, by in ((compiled.debug, WATCH), (compiled.recording, PROFILES)) if wanted
        ]
        """notified when the kernel is loaded (`arm`) and launched (`launched`)"""
        self.kernel: Any = None
        """the driver's handle, valid on every GPU; None until loaded"""
        self._ready: dict[int, int | None] = {}
        """device -> number of CTAs that can run at once; None: a launch may have any number"""
        self._lock = threading.Lock()
        """held while scalars are written and the kernel is launched; the driver copies the
        parameters before a launch returns"""
        self.table = Table() if table is None else table
        self._counters: dict[tuple, int] = {}
        """addresses of launch counters, by stream and outputs, for a kernel that has one"""

    def _field(self, dtype: np.dtype) -> str:
        code = _SCALARS.get(dtype.name)
        if code is None:
            raise SpecError(
                f"kernel {self.name!r}: a scalar of type {dtype.name} is not supported; pass it "
                f"as one of {', '.join(_SCALARS)}"
            )
        return f"{code}{_WORD - dtype.itemsize}x"

    # ---- in the driver
    def config(self, grid: Grid, stream: int, device: int) -> Any:
        """Return the driver's launch configuration for a grid on a stream of a GPU, and load the
        kernel there.

        Configurations are shared between launches and must not be modified. Raises LaunchError."""
        threads, nbytes = self.compiled.threads, self.compiled.smem_bytes
        limit = self._at_once(device)
        if self.attributes.cooperative and limit is not None and math.prod(grid) > limit:
            raise LaunchError(
                f"kernel {self.name!r}: cooperative=True needs all CTAs to run at once, and the "
                f"grid {grid} has {math.prod(grid)}; GPU {device} holds {limit} of {threads} "
                f"threads and {nbytes} bytes of shared memory: use fewer CTAs, e.g. "
                "grid=numpipe.persistent(), or smaller tiles and fewer slots"
            )
        key = (self, "config", grid, stream)
        config = self.table.get(key)
        if config is None:
            for axis, count, most in zip("xyz", grid, MAX_GRID, strict=True):
                if not 0 < count <= most:
                    raise LaunchError(
                        f"kernel {self.name!r}: grid {axis} = {count} is outside 1 to {most}; "
                        "use grid=numpipe.persistent(), or order the grid's axes differently"
                    )
            config = driver.get().config(threads, nbytes, self.attributes)
            config.gridDimX, config.gridDimY, config.gridDimZ = grid
            config.hStream = stream
            self.table.keep(key, config)
        return config

    def fitting(self, grid: Grid, device: int) -> Grid:
        """Limit the grid of a persistent kernel to the clusters that the GPU can run at once.
        Raises LaunchError."""
        if self.attributes.size == 1:
            return grid
        most = self._at_once(device)
        return grid if most is None else (min(grid[0], most // (grid[1] * grid[2])), *grid[1:])

    def _at_once(self, device: int) -> int | None:
        """Make the kernel ready on a GPU. Return how many CTAs can run there at once, or None if a
        launch may have any number."""
        with self._lock:
            if device not in self._ready:
                self._ready[device] = self._load(device)
            return self._ready[device]

    def _load(self, device: int) -> int | None:
        compiled = self.compiled
        try:
            cuda = driver.get()
            timed = log.Timed()
            with cuda.aside(device):
                if self.kernel is None:
                    self.kernel = load(compiled.cubin, compiled.entry)
                cuda.allow_shared(self.kernel, compiled.smem_bytes, device)
                limit = self._limit(cuda, device)
                for by in self.observers:
                    by.arm(compiled, self.kernel, device)
            if timed:
                timed.say(
                    f"{self.name}: {len(compiled.cubin)} bytes of machine code loaded on GPU "
                    f"{device}"
                )
        except driver.DriverMissing as error:
            raise LaunchError(
                f"kernel {self.name!r}: {error.reason}; run it with target='sim'"
            ) from None
        except driver.DriverError as error:
            raise self.failed(error) from error
        return limit

    def _limit(self, cuda: driver.Driver, device: int) -> int | None:
        """Return how many CTAs can run at once on a GPU, which must be current, or None if a launch
        may have any number. Raises LaunchError if not even one cluster fits."""
        threads, nbytes, attributes = (
            self.compiled.threads,
            self.compiled.smem_bytes,
            self.attributes,
        )
        if attributes.size == 1:
            if not attributes.cooperative:
                return None
            return cuda.ctas_at_once(self.kernel, threads, nbytes, device)
        if attributes.size > PORTABLE_CLUSTER:
            cuda.allow_cluster(self.kernel, device)
        config = cuda.config(threads, nbytes, Attributes(attributes.cluster, programmatic=False))
        config.gridDimX, config.gridDimY, config.gridDimZ = attributes.cluster
        clusters: int = cuda.clusters_at_once(self.kernel, config)
        if clusters < 1:
            raise LaunchError(
                f"kernel {self.name!r}: a cluster of {attributes.size} CTAs, each of {threads} "
                f"threads and {nbytes} bytes of shared memory, does not fit on GPU {device}: a "
                "cluster runs on the SMs of one GPC, at most 18; use a smaller cluster, fewer "
                "slots or fewer warpgroups"
            )
        return clusters * attributes.size

    def launcher(
        self, grid: Grid, stream: int, device: int, cleared: tuple[int, int] | None = None
    ) -> driver.Launcher:
        """Return the function that launches this kernel. It is the driver's own function unless
        there are observers, a log, or words to clear."""
        cuda = driver.get()
        launch: driver.Launcher = (
            cuda.launcher(device) if cleared is None else cuda.launcher(device, (*cleared, stream))
        )

        def observed(*arguments: Any) -> tuple[Any]:
            cuda = driver.get()
            if cuda.capturing(stream, device):
                raise SpecError(
                    f"kernel {self.name}: it is built with CompilerParams(debug=True) or "
                    f"profile_space, and its stream ({stream:#x}) is being captured into a CUDA "
                    "graph: the host must be involved in each launch of such a kernel, which "
                    "replays of a graph are not; capture the kernel without these options, or "
                    "call it outside of the capture"
                )
            with cuda.on(device):
                result = launch(*arguments)
                if not result[0]:
                    for by in self.observers:
                        by.launched(self.compiled, grid, stream, device)
            return result

        function = observed if self.observers else launch
        if log.on("launch"):
            function = log.launches(
                function, f"{self.name}: grid {grid}, stream {stream:#x}, GPU {device}"
            )
        return function

    def failed(self, error: driver.DriverError, grid: str = "") -> LaunchError:
        """Return the error for a launch that the driver refused."""
        return LaunchError(
            f"kernel {self.name!r} ({grid}{self.compiled.threads} threads, "
            f"{self.compiled.smem_bytes} bytes of shared memory): {error}"
        )

    # ---- launches
    def __call__(
        self, grid: Grid, infos: Sequence[ArrayInfo], scalars: Sequence = (), stream: int = 0
    ) -> Launch | None:
        """Queue the kernel. Return its launch, or None for a grid without CTAs.

        The arrays must be on one GPU and have the signature that this object was created for; this
        is not checked again. Raises LaunchError; also SpecError for an input that TMA cannot
        address, for an output that overlaps another array, and for a scalar outside the range of
        its type.
        """
        if 0 in grid:
            return None
        key = (self, grid, stream, *[info[1:7] for info in infos])  # all except kind and owner
        launch: Launch = self.table.get(key) or self.table.keep(
            key, self._launch(grid, infos, stream)
        )
        if scalars or self._scalar_types:
            with self._lock:
                self._write(launch, scalars)
                launch()
        else:
            launch()
        return launch

    def alone(
        self,
        grid: Grid,
        infos: Sequence[ArrayInfo],
        scalars: Sequence,
        stream: int,
        work: ArrayInfo | None = None,
    ) -> Launch:
        """Return a launch that is not shared with other callers, with its scalars written; `work`
        is a workspace of the caller's."""
        launch = self._launch(grid, infos, stream, work)
        self._write(launch, scalars)
        return launch

    def workspace_shape(self, grid: Grid, infos: Sequence[ArrayInfo]) -> tuple[int, int] | None:
        """Return the number of slots of a launch's workspace and the words per slot, or None if the
        kernel has no workspace."""
        return None if self._workspace is None else self._workspace(grid, infos)

    def _launch(
        self, grid: Grid, infos: Sequence[ArrayInfo], stream: int, work: ArrayInfo | None = None
    ) -> Launch:
        check_overlap(infos, self.compiled.arrays, self._outputs, self.name)
        device = infos[0].device if infos else 0
        if self._workspace is not None:
            with naming(self.name):
                infos = [*infos, work or workspace(*self._workspace(grid, infos), stream, device)]
        parameters = self.table_of(infos, stream) + self.words_of(infos)
        return self.launch(parameters, grid, stream, device)

    def launch(
        self,
        parameters: bytes,
        grid: Grid,
        stream: int,
        device: int,
        cleared: tuple[int, int] | None = None,
    ) -> Launch:
        """Return a launch with these parameters, which exclude the scalars. `cleared` is the
        address and number of words to set to zero before each launch."""
        streams.check(stream, device, self.name)
        config = self.config(grid, stream, device)
        storage = ctypes.create_string_buffer(self.nbytes + _ALIGN)
        start = -ctypes.addressof(storage) % _ALIGN
        base = ctypes.addressof(storage) + start
        ctypes.memmove(base, parameters, len(parameters))
        pointers = (ctypes.c_void_p * len(self.offsets))(*[base + at for at in self.offsets])
        return Launch(
            self,
            grid,
            stream,
            device,
            self.launcher(grid, stream, device, cleared),
            (config, self.kernel, ctypes.addressof(pointers), 0),
            memoryview(storage)[start : start + self.nbytes],
            pointers,
        )

    def _write(self, launch: Launch, scalars: Sequence) -> None:
        try:
            self._scalars.pack_into(launch.buffer, self._scalars_at, *scalars)
        except (struct.error, OverflowError) as error:
            wanted = ", ".join(dtype.name for dtype in self._scalar_types)
            raise SpecError(
                f"kernel {self.name!r}: scalars {tuple(scalars)} do not fit ({wanted}): {error}"
            ) from error

    def together(self, launches: Sequence[Launch], scalars: Sequence) -> None:
        """Queue the launches of one call on several GPUs, with these scalars."""
        with self._lock:
            for launch in launches:
                self._write(launch, scalars)
            for launch in launches:
                launch()

    def words_of(self, infos: Sequence[ArrayInfo]) -> bytes:
        """Return the parameters between the table and the scalars."""
        words: list[int] = []
        for info, name in zip(infos, self.compiled.arrays, strict=True):
            size = info.dtype.itemsize
            if any([stride % size for stride in info.strides]):
                raise SpecError(
                    f"argument {name!r} of kernel {self.name!r}: strides {info.strides} in bytes "
                    f"are not multiples of its {size}-byte elements; pass a contiguous copy"
                )
            words += [info.ptr, *info.shape, *[stride // size for stride in info.strides]]
        return self._words.pack(*words)

    def table_of(self, infos: Sequence[ArrayInfo], stream: int) -> bytes:
        """Return the tensor maps of arrays, followed by the launch's counter."""
        counter = [_COUNTER.pack(self._counter(infos, stream))] if self.compiled.dynamic else []
        return b"".join([self.maps_of(infos) or bytes(MAP_BYTES), *counter])

    def maps_of(self, infos: Sequence[ArrayInfo]) -> bytes:
        """Return the tensor maps of arrays."""
        return b"".join(self._map(request, infos[request.arg]) for request in self.compiled.maps)

    def _counter(self, infos: Sequence[ArrayInfo], stream: int) -> int:
        """Return the address of the counter for launches on a stream with these outputs. Such
        launches run one after another, or are a race anyway.

        A counter is never reused for other launches, because a graph that captured a launch may be
        replayed at any time.
        """
        outputs = infos[len(infos) - self._outputs :]
        key = stream, *[(info.device, info.ptr) for info in (outputs or infos)]
        with self._lock:
            if key not in self._counters:
                self._counters[key] = driver.get().counter(infos[0].device if infos else 0)
            return self._counters[key]

    def _map(self, request: MapRequest, info: ArrayInfo) -> bytes:
        name, major = self.compiled.arrays[request.arg], self.compiled.majors[request.arg]
        if len(request.box) < len(info.shape):
            info = flattened(info, name, self.name)
        reason = tma_addressable(info)
        if reason:
            raise not_addressable(info, reason, name, self.name)
        try:
            ptr = (
                driver.get().blank(info.device, request.written, request.fill)
                if 0 in info.shape
                else info.ptr
            )
            return encode(
                ptr,
                info.dtype,
                memory_order(info.shape, major),
                memory_order(info.strides, major),
                request.box,
                request.swizzle,
                request.fill,
            )
        except driver.DriverError as error:
            raise LaunchError(f"argument {name!r} of kernel {self.name!r}: {error}") from error


# ---- machine code
def load(cubin: bytes, entry: str) -> Any:
    """Load machine code and return the driver's handle of its kernel, valid on every GPU.

    Raises DriverError, which names the driver's version if the driver does not accept the code.
    """
    cuda = driver.get()
    try:
        return cuda.load(cubin, entry)
    except driver.DriverError as error:
        if error.code not in IMAGES:
            raise
        runs = spell(cuda.version())
        raise driver.DriverError(
            error.call,
            error.code,
            error.name,
            f"the driver, for CUDA {runs}, does not accept the {len(cubin)} bytes of machine code "
            "for sm_90a: run it on an H100 or H200, where a new process compiles it again; if "
            "the package nvidia-nvjitlink is newer than the driver, update the driver, or "
            f'pip install "nvidia-nvjitlink=={runs}.*" "nvidia-nvvm=={runs}.*"',
        ) from error
