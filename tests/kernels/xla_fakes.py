"""A fake of XLA's side of its foreign function interface: its call frames, and the functions that
handlers call."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import addressof, c_void_p, sizeof

from numpipe.frameworks.jax import ffi

_SIDE = ctypes.PYFUNCTYPE(c_void_p, c_void_p)


class FakeXla:
    """A caller of handlers; `error` is the text and code of the last error that one created."""

    def __init__(self, version: tuple[int, int] = (0, 4)) -> None:
        self.stream, self.error = 0, ("", 0)
        self._functions = _SIDE(self._stream_get), _SIDE(self._error_create)
        self.api = ffi.Api()
        ffi._function.cache_clear()  # an address may be reused from an older fake
        self.api.version.major, self.api.version.minor = version
        self.api.stream_get, self.api.error_create = (
            ctypes.cast(f, c_void_p).value for f in self._functions
        )

    def _stream_get(self, address: int) -> int:
        arguments = ffi._StreamArguments.from_address(address)
        assert arguments.context == 0xC0 and arguments.struct_size == sizeof(ffi._StreamArguments)
        arguments.stream = self.stream
        return 0

    def _error_create(self, address: int) -> int:
        arguments = ffi._ErrorArguments.from_address(address)
        self.error = arguments.message.decode(), arguments.code
        return 0xE0

    def frame(self) -> ffi.Frame:
        return ffi.Frame(
            struct_size=sizeof(ffi.Frame), api=addressof(self.api), context=0xC0, stage=3
        )

    def call(
        self, handler: ffi.Handler, operands: Sequence[int], results: Sequence[int], stream: int = 0
    ) -> int | None:
        """Call a handler with buffers at these addresses, and return the address of an error, or
        None."""
        frame, self.stream, kept = self.frame(), stream, []
        for side, pointers in ((frame.operands, operands), (frame.results, results)):
            buffers = [
                ffi.Buffer(struct_size=sizeof(ffi.Buffer), data=pointer) for pointer in pointers
            ]
            items = (c_void_p * len(buffers))(*map(addressof, buffers))
            side.size, side.items = len(buffers), addressof(items)
            kept += [buffers, items]
        return _SIDE(handler.address)(addressof(frame))

    def ask(self, handler: ffi.Handler) -> ffi.Metadata:
        """Query a handler for its metadata, as XLA does on registration."""
        frame, metadata = self.frame(), ffi.Metadata()
        extension = ffi.Extension(
            struct_size=sizeof(ffi.Extension), type=ffi.METADATA, metadata=ctypes.pointer(metadata)
        )
        frame.extension_start = addressof(extension)
        assert not _SIDE(handler.address)(addressof(frame))
        return metadata
