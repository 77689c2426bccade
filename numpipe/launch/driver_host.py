"""What numpipe asks the CUDA driver of host memory: locking pages, and whether they are locked.

A copy to or from page-locked ("pinned") memory is made by the GPU's copy engine alone, at the speed of PCIe; pageable memory goes
through a buffer of the driver's, filled by one thread.

CUDA driver API: cuMemHostRegister, cuMemHostUnregister, cuPointerGetAttribute, cuEventDestroy.
"""

from __future__ import annotations

import contextlib
from typing import Any

_PORTABLE = 0x1
_MEMORYTYPE_HOST = 1


class HostMemory:
    """The part of `driver.Driver` that locks pages. Addresses and sizes are multiples of the page size."""

    _api: Any

    def _call(self, function: str, *args: Any) -> Any:
        raise NotImplementedError

    def on(self, ordinal: int) -> contextlib.AbstractContextManager[None]:
        raise NotImplementedError

    def lock_pages(self, address: int, nbytes: int, ordinal: int) -> None:
        """Lock host memory in place, for copies to and from every GPU."""
        with self.on(ordinal):
            self._call("cuMemHostRegister", address, nbytes, _PORTABLE)

    def unlock_pages(self, address: int, ordinal: int) -> None:
        """Undo `lock_pages`; no copy may be under way."""
        with self.on(ordinal):
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

    def unmark(self, event: Any, ordinal: int) -> None:
        """Destroy an event that nobody waits for."""
        with self.on(ordinal):
            self._call("cuEventDestroy", event)
