"""Devices, contexts, streams, events and host memory of the CUDA driver; the base class of
`driver.Driver`.

Copies to and from page-locked ("pinned") memory are made by the GPU's copy engine at the speed of
PCIe. Copies of pageable memory go through a buffer of the driver, which a single thread fills. CUDA
driver API: cuMemHostRegister, cuPointerGetAttribute.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from .driver_errors import CAPTURE_IMPLICIT, PEER_ACCESS_ALREADY_ENABLED, DriverError, DriverMissing


class Contexts:
    """The initialized libcuda, with the primary context of each used device, which is retained
    once."""

    def __init__(self) -> None:
        """Load and initialize libcuda. Raises DriverMissing if it is missing, and DriverError if
        cuInit fails."""
        try:
            from cuda.bindings import driver as api
        except ImportError as error:
            raise DriverMissing(f"the package cuda-bindings is not installed ({error})") from None
        self._api: Any = api
        try:
            self._call("cuInit", 0)
        except (DriverError, DriverMissing):
            raise
        # cuda.bindings raises a type of its own, which differs between releases
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
        """Return (name, compute capability, SMs, maximum dynamic shared memory per CTA in bytes,
        memory bandwidth in bytes per second)."""
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
        # the clock is in kHz, the width in bits, with two transfers per cycle
        return name, (major, minor), sms, smem, clock * width * 250.0

    @contextlib.contextmanager
    def on(self, ordinal: int) -> Iterator[None]:
        """Make the device's primary context current in this thread within the block."""
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
        """Like `on`, for calls that strict capture modes forbid on any stream: allocating, freeing,
        locking pages, loading code.

        Such calls use streams that are not captured, so they do not affect a graph, but in capture
        mode "global" a single one of them would end all captures of the process (CUDA driver API,
        cuThreadExchangeStreamCaptureMode). The garbage collector may free memory at any time.
        """
        mode = self._api.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        before = self._call("cuThreadExchangeStreamCaptureMode", mode)
        try:
            with self.on(ordinal):
                yield
        finally:
            self._call("cuThreadExchangeStreamCaptureMode", before)

    @contextlib.contextmanager
    def aside(self, ordinal: int) -> Iterator:
        """Like `relaxed`, yielding a stream of numpipe's own that does not synchronize with the
        default stream."""
        with self.relaxed(ordinal):
            with self._lock:
                if ordinal not in self._asides:
                    # CU_STREAM_NON_BLOCKING
                    self._asides[ordinal] = self._call("cuStreamCreate", 1)
            yield self._asides[ordinal]

    def _make_current(self, ordinal: int) -> None:
        """Make the device's primary context current in a thread that has none. Otherwise calls
        would fail, and profilers and debuggers would report each failure."""
        if int(self._call("cuCtxGetCurrent")) == 0:
            with self.on(ordinal):
                pass
            self._call("cuCtxSetCurrent", self._contexts[ordinal])

    # ---- streams
    def stream_device(self, stream: int) -> int:
        """Return the GPU of a stream that was created with cuStreamCreate. Raises DriverError if
        the driver does not know it."""
        self._call("cuCtxPushCurrent", self._call("cuStreamGetCtx", stream))
        try:
            return int(self._call("cuCtxGetDevice"))
        finally:
            self._call("cuCtxPopCurrent")

    def capturing(self, stream: int, ordinal: int) -> bool:
        """Return whether work on the stream would be captured into a CUDA graph, or must not be
        queued because another stream is being captured."""
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
        """Give a GPU's primary context access to memory that another GPU's primary context
        allocated."""
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
        """Lock whole pages of host memory in place, for copies to and from every GPU."""
        with self.relaxed(ordinal):
            self._call("cuMemHostRegister", address, nbytes, 1)  # CU_MEMHOSTREGISTER_PORTABLE

    def unlock_pages(self, address: int, ordinal: int) -> None:
        """Undo `lock_pages`; no copy may be in progress."""
        with self.relaxed(ordinal):
            self._call("cuMemHostUnregister", address)

    def page_locked(self, address: int, nbytes: int, ordinal: int) -> bool:
        """Return whether host memory is page-locked, by anyone; only its first and last bytes are
        checked."""
        name = self._api.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
        with self.on(ordinal):
            for end in (address, address + nbytes - 1):
                # CUDA_ERROR_INVALID_VALUE for pageable memory
                code, kind = self._api.cuPointerGetAttribute(name, end)
                if code or int(kind) != 1:  # CU_MEMORYTYPE_HOST
                    return False
        return True

    # ---- chunks and events: the caller has made a context current (`on`), once for many of them
    def queue_chunk(self, host: int, device: int, nbytes: int, inwards: bool, stream: int) -> None:
        """Queue a copy between page-locked memory and GPU memory."""
        if inwards:
            self._call("cuMemcpyHtoDAsync", device, host, nbytes, stream)
        else:
            self._call("cuMemcpyDtoHAsync", host, device, nbytes, stream)

    def mark(self, event: Any, stream: int) -> Any:
        """Record an event (None: a new one) after the work queued on the stream, and return it."""
        if event is None:
            event = self._call("cuEventCreate", 2)  # CU_EVENT_DISABLE_TIMING
        self._call("cuEventRecord", event, stream)
        return event

    def await_mark(self, event: Any) -> None:
        """Wait until the work queued before the event has finished. Raises DriverError if a kernel
        failed."""
        self._call("cuEventSynchronize", event)

    def unmark(self, event: Any, ordinal: int) -> None:
        """Destroy an event that nobody is waiting for; no context needs to be current."""
        with self.relaxed(ordinal):
            self._call("cuEventDestroy", event)
