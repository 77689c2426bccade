"""What numpipe asks the CUDA driver for host memory: locking pages, whether they are locked, copying chunks of them.

A copy to or from page-locked ("pinned") memory is made by the GPU's copy engine alone, at the speed of PCIe; pageable memory goes
through a buffer of the driver's, filled by one thread.

CUDA driver API: cuMemHostRegister, cuMemHostUnregister, cuPointerGetAttribute, cuMemcpyHtoDAsync, cuMemcpyDtoHAsync.
"""

from __future__ import annotations

from typing import Any

from .contexts import Contexts

_PORTABLE = 0x1
_MEMORYTYPE_HOST = 1
_NO_TIMES = 2


class HostMemory(Contexts):
    """The part of `driver.Driver` for host memory, and for events behind what is queued."""

    def lock_pages(self, address: int, nbytes: int, ordinal: int) -> None:
        """Lock host memory in place, for copies to and from every GPU; whole pages."""
        with self.relaxed(ordinal):
            self._call("cuMemHostRegister", address, nbytes, _PORTABLE)

    def unlock_pages(self, address: int, ordinal: int) -> None:
        """Undo `lock_pages`; no copy may be under way."""
        with self.relaxed(ordinal):
            self._call("cuMemHostUnregister", address)

    def page_locked(self, address: int, nbytes: int, ordinal: int) -> bool:
        """Whether host memory is page-locked, whoever locked it: both ends are looked at."""
        name = self._api.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
        with self.on(ordinal):
            for end in (address, address + nbytes - 1):
                code, kind = self._api.cuPointerGetAttribute(name, end)  # CUDA_ERROR_INVALID_VALUE for pageable memory
                if code or int(kind) != _MEMORYTYPE_HOST:
                    return False
        return True

    # ---- chunks: a context is current (`on`), pushed once for many of them
    def queue_chunk(self, host: int, device: int, nbytes: int, inwards: bool, stream: int) -> None:
        """Queue a copy between page-locked memory and a GPU's."""
        if inwards:
            self._call("cuMemcpyHtoDAsync", device, host, nbytes, stream)
        else:
            self._call("cuMemcpyDtoHAsync", host, device, nbytes, stream)

    def mark_chunk(self, event: Any, stream: int) -> Any:
        """An event behind what is queued on the stream: the one given, or a new one for None."""
        if event is None:
            event = self._call("cuEventCreate", _NO_TIMES)
        self._call("cuEventRecord", event, stream)
        return event

    def await_chunk(self, event: Any) -> None:
        """Wait until the copy before the event is done."""
        self._call("cuEventSynchronize", event)

    def mark(self, event: Any, stream: int, ordinal: int) -> Any:
        """As `mark_chunk`, where no context is current."""
        with self.on(ordinal):
            return self.mark_chunk(event, stream)

    def await_mark(self, event: Any, ordinal: int) -> None:
        """As `await_chunk`; a kernel that failed is reported here."""
        with self.on(ordinal):
            self.await_chunk(event)

    def unmark(self, event: Any, ordinal: int) -> None:
        """Destroy an event that nobody waits for."""
        with self.relaxed(ordinal):
            self._call("cuEventDestroy", event)
