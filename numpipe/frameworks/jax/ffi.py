"""Handlers for XLA's foreign function interface, as ctypes callbacks.

XLA compiles a custom call to a call of a C function, the *handler*, with one argument, the *call
frame*: the buffers of operands and results, the stream, and functions that the handler calls. The
structures below declare the parts of ``xla/ffi/api/c_api.h`` that are read here; jaxlib has the
header in ``jax.ffi.include_dir()``. Every structure starts with its size and a list of extensions,
and new versions only add fields at the end, so these declarations work with all versions from 0.1
on (JAX 0.5 to 0.11).

A handler is called at two times:

====================  ==============================================================================
when it is looked up  with an extension in the frame that asks for *metadata*: the version that the
                      handler was made for and its traits, such as whether calls may be captured in
                      a *command buffer*, XLA's term for a CUDA graph
to run                with buffers and a stream; while XLA records a command buffer, the stream is
                      being captured
====================  ==============================================================================

An exception in a handler is passed to XLA as an error with its text, which JAX raises as
``jax.errors.JaxRuntimeError``; no exception passes through C.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from ctypes import POINTER, Structure, c_char_p, c_int, c_int64, c_size_t, c_uint32, c_void_p
from typing import Any, ClassVar

from ...arch.dimensions import Ints
from ...diagnostics.errors import SpecError, TargetError

VERSIONS = (0, 1), (0, 4)
"""first version of the interface that has everything used here, and the newest whose structures
were compared with these"""
COMMAND_BUFFER = 1
"""trait: each call queues the same operations, which can be captured and replayed"""
METADATA = 1
"""type of the extension that asks for metadata"""
INVALID_ARGUMENT, FAILED_PRECONDITION, INTERNAL = 3, 9, 13
"""XLA error codes"""


def _sized(*fields: tuple[str, Any]) -> list[tuple[str, Any]]:
    """Return the fields of a structure, after the two that all structures have."""
    return [("struct_size", c_size_t), ("extension_start", c_void_p), *fields]


class Version(Structure):
    _fields_: ClassVar = _sized(("major", c_int), ("minor", c_int))


class Metadata(Structure):
    _fields_: ClassVar = [("struct_size", c_size_t), ("version", Version), ("traits", c_uint32)]


class Extension(Structure):
    """An extension of the kind METADATA."""

    _fields_: ClassVar = [
        ("struct_size", c_size_t),
        ("type", c_int),
        ("next", c_void_p),
        ("metadata", POINTER(Metadata)),
    ]


class Api(Structure):
    """XLA's function table, up to `stream_get`; the entries between the errors and it are not
    called."""

    _fields_: ClassVar = _sized(
        ("version", Version),
        ("internal", c_void_p),
        ("error_create", c_void_p),
        ("error_message", c_void_p),
        ("error_destroy", c_void_p),
        ("register", c_void_p),
        ("stream_get", c_void_p),
    )


class Buffer(Structure):
    _fields_: ClassVar = _sized(
        ("dtype", c_int), ("data", c_void_p), ("rank", c_int64), ("dims", POINTER(c_int64))
    )


class Buffers(Structure):
    """The operands or the results: `items` points to the addresses of `size` Buffers."""

    _fields_: ClassVar = _sized(("size", c_int64), ("types", c_void_p), ("items", c_void_p))


class Frame(Structure):
    """A call frame, without the attributes, which are not used."""

    _fields_: ClassVar = _sized(
        ("api", c_void_p),
        ("context", c_void_p),
        ("stage", c_int),
        ("operands", Buffers),
        ("results", Buffers),
    )


class _ErrorArguments(Structure):
    _fields_: ClassVar = _sized(("message", c_char_p), ("code", c_int))


class _StreamArguments(Structure):
    _fields_: ClassVar = _sized(("context", c_void_p), ("stream", c_void_p))


# ---- handlers ------------------------------------------------------------------------------------
_HANDLER = ctypes.CFUNCTYPE(c_void_p, c_void_p)
_FUNCTION = ctypes.PYFUNCTYPE(c_void_p, c_void_p)
"""type of XLA's own functions, which do not block, so the GIL is not released"""
_STREAM_SIZE = ctypes.sizeof(_StreamArguments)
_DATA = Buffer.data.offset


class Handler:
    """A handler: C calls it at `address`, and it calls a Python function with a stream and the
    addresses of all buffers.

    The stream is the CUDA driver's handle, or 0 on the CPU. The addresses are those of the
    operands, then those of the results; shapes and types are known from tracing and not read again.
    """

    def __init__(
        self,
        function: Callable[[int, Ints], None],
        operands: int,
        results: int,
        *,
        streams: bool,
    ) -> None:
        """`operands` and `results` are counts. `streams` says whether the platform has streams; if
        so,
        `function` receives the call's stream."""
        self._function, self._streams = function, streams
        self._operands, self._results = c_void_p * operands, c_void_p * results
        self._counts = operands, results
        self._callback = _HANDLER(self._called)  # keep it alive: C only has its address
        self.address = ctypes.cast(self._callback, c_void_p).value or 0

    def _called(self, address: int) -> int | None:
        frame = Frame.from_address(address)
        try:
            if frame.extension_start:
                extension = Extension.from_address(frame.extension_start)
                if extension.type == METADATA:
                    _describe(extension.metadata.contents, frame.api)
                    return None
            operands, results = frame.operands, frame.results
            if (operands.size, results.size) != self._counts:
                raise TargetError(
                    f"XLA passes {operands.size} operands and {results.size} results, and the "
                    f"call was made for {self._counts}; fix: report a numpipe bug"
                )
            read = c_void_p.from_address
            pointers = tuple(
                [
                    read(buffer + _DATA).value or 0
                    for buffer in (
                        *self._operands.from_address(operands.items or 0),
                        *self._results.from_address(results.items or 0),
                    )
                ]
            )
            self._function(_stream(frame) if self._streams else 0, pointers)
        except BaseException as error:  # no exception may pass through C, not even an interrupt
            return _failed(frame.api, error)
        return None


def _describe(metadata: Metadata, api: int | None) -> None:
    """Answer XLA's query for the handler's metadata."""
    version = Api.from_address(api).version if api else None
    answer = VERSIONS[0] if version is None else min(VERSIONS[1], (version.major, version.minor))
    metadata.version.major, metadata.version.minor = answer
    metadata.traits = COMMAND_BUFFER


def _stream(frame: Frame) -> int:
    arguments = _StreamArguments(_STREAM_SIZE, None, frame.context)
    if _function(frame.api, "stream_get")(ctypes.addressof(arguments)):
        raise TargetError("XLA has no stream for this call; fix: report a numpipe bug")
    return arguments.stream or 0


@functools.cache
def _function(api: int, name: str) -> Callable[[int], int | None]:
    """Return one of XLA's functions, which takes the address of its arguments and returns the
    address of an error or None."""
    return _FUNCTION(getattr(Api.from_address(api), name))


def _failed(api: int, error: BaseException) -> int | None:
    """Return the address of an XLA error with the text of a Python exception; XLA takes
    ownership."""
    code = (
        INVALID_ARGUMENT
        if isinstance(error, SpecError)
        else FAILED_PRECONDITION
        if isinstance(error, TargetError)
        else INTERNAL
    )
    kind = type(error)
    text = f"{kind.__module__}.{kind.__qualname__}: {error}"
    message = text.replace("\0", " ").encode(errors="replace")
    arguments = _ErrorArguments(ctypes.sizeof(_ErrorArguments), None, message, code)
    return _function(api, "error_create")(ctypes.addressof(arguments))
