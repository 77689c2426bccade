"""The errors that numpipe raises. A message gives the mistake, its place, the numbers that
disagree, and the fix."""

from __future__ import annotations

import dataclasses
import functools
import io
import os
import sys
import tokenize
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from .reports import Report

__all__ = [
    "CompileError",
    "ImageError",
    "JitRefused",
    "LaunchError",
    "NumpipeError",
    "PipelineDeadlock",
    "PipelineRace",
    "SerializedWgmma",
    "SimulationError",
    "SpecError",
    "TargetError",
]


def printable(show: Callable[[Any], str]) -> Callable[[Any], str]:
    """Decorate a ``__str__`` whose text is printed: characters that standard output cannot encode,
    such as "…" in ASCII, are replaced."""

    @functools.wraps(show)
    def shown(self: Any) -> str:
        text, encoding = show(self), getattr(sys.stdout, "encoding", None) or "utf8"
        try:
            text.encode(encoding)
        except UnicodeError:
            text = text.replace("…", "...").encode(encoding, "backslashreplace").decode(encoding)
        return text

    return shown


class NumpipeError(Exception):
    """Base class of all errors that numpipe raises on purpose."""

    __str__ = printable(Exception.__str__)


class SpecError(NumpipeError, ValueError):
    """An invalid argument, spec or option; raised before anything is compiled or launched."""


class OfKernel:
    """Base class of what describes one kernel."""

    kernel: str

    def refused(self, text: str) -> SpecError:
        """Return an error that begins with the kernel's name."""
        return SpecError(f"kernel {self.kernel}: {text}")


class CompileError(NumpipeError):
    """Source of a kernel that cannot be compiled; the message starts with the user's
    ``file:line``."""


class SerializedWgmma(CompileError):
    """Products that ptxas would serialize, waiting for each one before the next begins.

    Results would be correct, but at half the speed. The message has ptxas's code (C75xx) and
    numpipe's name for it, at the line of the statement that causes it. With
    ``CompilerParams(allow_serialized_wgmma=True)`` such a kernel is compiled anyway."""


class ImageError(NumpipeError, ValueError):
    """Bytes that are not a valid image of a compiled kernel: damaged, written by another version of
    numpipe, or something else. Also raised if a file that `numpipe.load` read has no machine code
    for a call."""


class TargetError(NumpipeError, RuntimeError):
    """A target that cannot run here: no GPU, not sm_90, a broken driver, or too much work to
    simulate."""


class JitRefused(NumpipeError, RuntimeError):
    """A call that would have to compile its kernel first, which `numpipe.jit` or
    ``NUMPIPE_JIT=error`` does not allow."""


class LaunchError(NumpipeError, RuntimeError):
    """A launch that the driver refused, or a failure of an earlier launch that it reported."""


class SimulationError(NumpipeError, RuntimeError):
    """A violation of a rule of the hardware, found on the simulated SM.

    `report` has the same content in fields (`numpipe.reports.Report`). It is None if the kernel
    itself raised the error."""

    report: Report | None = None


class PipelineRace(SimulationError):
    """Two conflicting accesses without an order between them: a slot is read or refilled too early,
    a phase is stale, or a fence is missing."""


class PipelineDeadlock(SimulationError):
    """A state in which every warpgroup waits and nothing is in flight."""


def at(filename: str, line: int, message: str) -> str:
    """Prefix a message with the user's line, in the ``file:line:`` form that editors understand."""
    return f"{filename}:{line}: {message}"


E = TypeVar("E", bound="SimulationError")


def reported(error: type[E], report: Report) -> E:
    """Return the error for a report; its text starts with the user's ``file:line:``."""
    first = [
        line
        for party in (report.now, *report.waiting)
        if party is not None
        for line in party.lines[:1]
    ]
    raised = error(at(first[0].filename, first[0].line, report.text) if first else report.text)
    raised.report = dataclasses.replace(report, text=str(raised))
    return raised


# ---- where ---------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Position:
    """A span of the user's source that an error underlines.

    Lines count from 1, columns from 0 in characters; `end_column` is exclusive. `text` is the first
    line as it was when the source was read, so that errors show what ran even if the file has since
    been edited or deleted. Without `text`, an error gives only ``file:line``."""

    filename: str
    line: int
    column: int = 0
    end_line: int = 0
    end_column: int = 0
    text: str = ""

    @property
    def place(self) -> tuple[str, int]:
        """The file's full path and the line, for profilers. Source that is not in a file keeps the
        name that Python gave it."""
        return (
            self.filename if self.filename.startswith("<") else os.path.abspath(self.filename)
        ), self.line

    @property
    def columns(self) -> tuple[int, int]:
        """The columns to underline in `text`, as a half-open range that ends at most at the end of
        the code."""
        start = min(self.column, len(self.text))
        if self.end_line == self.line and start < self.end_column <= len(self.text):
            return start, self.end_column
        return start, start + _code_length(self.text[start:])

    def snippet(self) -> str:
        """Return the line with carets below it, or "" if the text is unknown.

        >>> print(Position("k.py", 3, 4, 3, 9, "x = first + 1").snippet())
            x = first + 1
                ^^^^^
        """
        start, end = self.columns
        if start >= end:
            return ""
        margin = len(self.text) - len(self.text.lstrip())
        # the padding must be as wide as the text above it: tabs stay tabs, wide characters take two
        # columns
        ahead = "".join(c if c == "\t" else " " * _width(c) for c in self.text[margin:start])
        carets = "^" * sum(map(_width, self.text[start:end]))
        return f"{INDENT}{self.text.strip()}\n{INDENT}{ahead}{carets}"

    def stamp(self, message: str) -> str:
        """Return ``file:line: message``, with the snippet below its first line."""
        first, newline, rest = message.partition("\n")
        snippet = self.snippet()
        return at(
            self.filename, self.line, first + (f"\n{snippet}" if snippet else "") + newline + rest
        )


INDENT = "    "


def _width(character: str) -> int:
    """Return the number of terminal columns that a character takes."""
    if (
        character == "\t"
        or unicodedata.combining(character)
        or unicodedata.category(character) in ("Mn", "Me", "Cf")
    ):
        return int(character == "\t")
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def _code_length(text: str) -> int:
    """Return the length of a piece of a line, without a trailing comment."""
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                text = text[: token.start[1]]
                break
    except (tokenize.TokenError, SyntaxError):  # a bracket or string continues on another line
        pass
    return len(text.rstrip().removesuffix("\\").rstrip())


for _name in __all__:
    # the public module, where users find them, is the one that tracebacks should show
    globals()[_name].__module__ = "numpipe.errors"
