"""The CUDA driver's devices, contexts, streams, events and host memory: the base of
`driver.Driver`.

The GPU's copy engine alone makes a copy to or from page-locked ("pinned") memory, at the speed of
PCIe; pageable memory goes through a buffer of the driver's, which one thread fills. CUDA driver
API: cuMemHostRegister, cuPointerGetAttribute.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from .driver_errors import CAPTURE_IMPLICIT, PEER_ACCESS_ALREADY_ENABLED, DriverError, DriverMissing


class Contexts:
    """libcuda, initialised; the primary context of each device is retained once."""

    def __init__(self) -> None:
        """Load libcuda and initialise it. Raises DriverMissing, or DriverError when cuInit
        fails."""
        try:
            from cuda.bindings import driver as api
        except ImportError as error:
            raise DriverMissing(f"the package cuda-bindings is not installed ({error})") from None
        self._api: Any = api
        try:
            self._call("cuInit", 0)
        except (DriverError, DriverMissing):
            raise
        # cuda.bindings raises a type of its own, differently per release
        except Exception as error:
            raise DriverMissing(f"libcuda was not found ({type(error).__name__})") from None
        self.count: int = self._call("cuDeviceGetCount")
        self._contexts: dict[int, Any] = {}
        self._asides: dict[int, Any] = {}
        self._lock = threading.RLock()

    def _call(self, function: str, *args: Any) -> Any:
        result = getattr(self._api, function)(*args)
        if result[0]:
            raise self.error(function, result[0])
        return result[1] if len(result) == 2 else result[1:]

    @staticmethod
    def error(call: str, code: Any) -> DriverError:
        """Return the exception for a call that returned `code`."""
        return DriverError(call, int(code), getattr(code, "name", "an unknown error"))

    # ---- devices
    def version(self) -> int:
        """Return the CUDA version that the driver supports, 1000 × major + 10 × minor."""
        return int(self._call("cuDriverGetVersion"))

    def properties(self, ordinal: int) -> tuple[str, tuple[int, int], int, int, float]:
        """Return (name, compute capability, SMs, largest dynamic shared memory of a CTA in
        bytes, bandwidth of the memory in bytes a second)."""
        device = self._call("cuDeviceGet", ordinal)
        name = (
            bytes(self._call("cuDeviceGetName", 256, device))
            .split(b"\0")[0]
            .decode(errors="replace")
        )
        attributes = (
            "COMPUTE_CAPABILITY_MAJOR",
            "COMPUTE_CAPABILITY_MINOR",
            "MULTIPROCESSOR_COUNT",
            "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN",
            "MEMORY_CLOCK_RATE",
            "GLOBAL_MEMORY_BUS_WIDTH",
        )
        major, minor, sms, smem, clock, width = (
            int(
                self._call(
                    "cuDeviceGetAttribute",
                    getattr(self._api.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{a}"),
                    device,
                )
            )
            for a in attributes
        )
        # a clock in kHz, a width in bits, two transfers a cycle
        return name, (major, minor), sms, smem, clock * width * 250.0

    @contextlib.contextmanager
    def on(self, ordinal: int) -> Iterator[None]:
        """Make the device's primary context current in this thread inside the block."""
        context = self._contexts.get(ordinal)
        if context is None:
            with self._lock:
                context = self._contexts.get(ordinal) or self._call(
                    "cuDevicePrimaryCtxRetain", self._call("cuDeviceGet", ordinal)
                )
                self._contexts[ordinal] = context
        self._call("cuCtxPushCurrent", context)
        try:
            yield
        finally:
            self._call("cuCtxPopCurrent")

    @contextlib.contextmanager
    def relaxed(self, ordinal: int) -> Iterator[None]:
        """Do as `on`, for calls that a capture in its strict modes forbids on any stream: to
        allocate, free, lock pages, load code.

        They belong to streams that are not captured, so a graph loses nothing by them, but in mode
        "global" one of them alone ends the captures of the whole process: CUDA driver API,
        cuThreadExchangeStreamCaptureMode. Garbage is freed at any time.
        """
        mode = self._api.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        before = self._call("cuThreadExchangeStreamCaptureMode", mode)
        try:
            with self.on(ordinal):
                yield
        finally:
            self._call("cuThreadExchangeStreamCaptureMode", before)

    @contextlib.contextmanager
    def aside(self, ordinal: int) -> Iterator[Any]:
        """Do as `relaxed`, and yield a stream of numpipe's own, which does not synchronise with the
        default stream."""
        with self.relaxed(ordinal):
            with self._lock:
                if ordinal not in self._asides:
                    # CU_STREAM_NON_BLOCKING
                    self._asides[ordinal] = self._call("cuStreamCreate", 1)
            yield self._asides[ordinal]

    def _make_current(self, ordinal: int) -> None:
        """Give a thread that has no context the device's primary one: without, calls fail, and
        tools report each failure."""
        if int(self._call("cuCtxGetCurrent")) == 0:
            with self.on(ordinal):
                pass
            self._call("cuCtxSetCurrent", self._contexts[ordinal])

    # ---- streams
    def stream_device(self, stream: int) -> int:
        """Return the GPU of a stream that was made with cuStreamCreate. Raises DriverError where
        the driver does not know it."""
        self._call("cuCtxPushCurrent", self._call("cuStreamGetCtx", stream))
        try:
            return int(self._call("cuCtxGetDevice"))
        finally:
            self._call("cuCtxPopCurrent")

    def capturing(self, stream: int, ordinal: int) -> bool:
        """Whether work on the stream goes into a CUDA graph, or must not be queued because another
        stream is captured."""
        with self.on(ordinal):
            code, status, *_ = self._api.cuStreamIsCapturing(stream)
        if int(code) not in (0, CAPTURE_IMPLICIT):
            raise self.error("cuStreamIsCapturing", code)
        return int(code) != 0 or int(status) != 0

    def pointer_device(self, address: int) -> int:
        """Return the GPU that the memory at `address` belongs to."""
        name = self._api.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
        return int(self._call("cuPointerGetAttribute", name, address))

    # ---- several GPUs
    def enable_peer(self, ordinal: int, peer: int) -> None:
        """Let what runs in a GPU's primary context reach what another one's has allocated."""
        with self.on(peer):
            pass
        with self.on(ordinal):
            try:
                self._call("cuCtxEnablePeerAccess", self._contexts[peer], 0)
            except DriverError as error:
                if error.code != PEER_ACCESS_ALREADY_ENABLED:
                    raise

    def finish(self, ordinal: int) -> None:
        """Wait for all work of a GPU's primary context."""
        with self.on(ordinal):
            self._call("cuCtxSynchronize")

    # ---- host memory
    def lock_pages(self, address: int, nbytes: int, ordinal: int) -> None:
        """Lock host memory in place, for copies to and from every GPU; whole pages."""
        with self.relaxed(ordinal):
            self._call("cuMemHostRegister", address, nbytes, 1)  # CU_MEMHOSTREGISTER_PORTABLE

    def unlock_pages(self, address: int, ordinal: int) -> None:
        """Undo `lock_pages`; no copy may be under way."""
        with self.relaxed(ordinal):
            self._call("cuMemHostUnregister", address)

    def page_locked(self, address: int, nbytes: int, ordinal: int) -> bool:
        """Whether host memory is page-locked, whoever locked it: its first and its last byte
        are."""
        name = self._api.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
        with self.on(ordinal):
            for end in (address, address + nbytes - 1):
                # CUDA_ERROR_INVALID_VALUE for pageable memory
                code, kind = self._api.cuPointerGetAttribute(name, end)
                if code or int(kind) != 1:  # CU_MEMORYTYPE_HOST
                    return False
        return True

    # ---- chunks and events: the caller made a context current (`on`), once for many of them
    def queue_chunk(self, host: int, device: int, nbytes: int, inwards: bool, stream: int) -> None:
        """Queue a copy between page-locked memory and a GPU's."""
        if inwards:
            self._call("cuMemcpyHtoDAsync", device, host, nbytes, stream)
        else:
            self._call("cuMemcpyDtoHAsync", host, device, nbytes, stream)

    def mark(self, event: Any, stream: int) -> Any:
        """Put an event, None: a new one, behind what is queued on the stream; returns it."""
        if event is None:
            event = self._call("cuEventCreate", 2)  # CU_EVENT_DISABLE_TIMING
        self._call("cuEventRecord", event, stream)
        return event

    def await_mark(self, event: Any) -> None:
        """Wait until what is queued before the event has ended. Raises DriverError for a kernel
        that failed."""
        self._call("cuEventSynchronize", event)

    def unmark(self, event: Any, ordinal: int) -> None:
        """Destroy an event, for which nobody may be waiting; no context need be current."""
        with self.relaxed(ordinal):
            self._call("cuEventDestroy", event)
