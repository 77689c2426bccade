"""The errors that numpipe raises: a small family. A message says what is wrong, where, which
numbers disagree, and the fix."""

from __future__ import annotations

import io
import os
import tokenize
import unicodedata
from dataclasses import dataclass
from typing import TYPE_CHECKING

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


class NumpipeError(Exception):
    """Base of every error numpipe raises on purpose."""


class SpecError(NumpipeError, ValueError):
    """An argument, spec or option is wrong; raised before anything is compiled or launched."""


class CompileError(NumpipeError):
    """The kernel's source cannot be compiled; the message starts with the user's ``file:line``."""


class SerializedWgmma(CompileError):
    """ptxas would wait for each product before the next one begins: half of the speed, with right
    results.

    The message has ptxas' code (C75xx) and our name for it, at the line of the statement that
    causes it. With ``CompilerParams(allow_serialized_wgmma=True)`` such a kernel is compiled.
    """


class ImageError(NumpipeError, ValueError):
    """Bytes are not the image of a compiled kernel: they are damaged, of another version of
    numpipe, or something else. Or a file that `numpipe.load` read holds no machine code for a
    call."""


class TargetError(NumpipeError, RuntimeError):
    """The asked-for target cannot run here: no GPU, not sm_90, a broken driver, too much work to
    simulate."""


class JitRefused(NumpipeError, RuntimeError):
    """A call would have to compile its kernel first, which `numpipe.jit` or ``NUMPIPE_JIT=error``
    does not allow."""


class LaunchError(NumpipeError, RuntimeError):
    """The driver refused a launch or reported a failure of an earlier one."""


class SimulationError(NumpipeError, RuntimeError):
    """A kernel broke a rule of the machine on the simulated SM.

    `report` says the same in fields (`numpipe.reports.Report`); None where the kernel itself raised
    the error.
    """

    report: Report | None = None


class PipelineRace(SimulationError):
    """Nothing orders two accesses: a slot is read or refilled too early, a phase is stale, or a
    fence is missing."""


class PipelineDeadlock(SimulationError):
    """Every warpgroup waits and nothing is in flight."""


def at(filename: str, line: int, message: str) -> str:
    """Stamp a message with the user's line, in the ``file:line:`` form that editors understand."""
    return f"{filename}:{line}: {message}"


# ---- where ---------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Position:
    """A piece of the user's source, which an error underlines.

    Lines count from 1, columns from 0 in characters, and `end_column` is behind the last one.
    `text` is the first line as it was when the source was read, so that a file that changed since,
    or is gone, is shown as it ran. Without `text` an error says ``file:line`` only.
    """

    filename: str
    line: int
    column: int = 0
    end_line: int = 0
    end_column: int = 0
    text: str = ""

    @property
    def place(self) -> tuple[str, int]:
        """The file's full path and the line, for profilers; text that is in no file keeps the name
        that Python gave it."""
        return (
            self.filename if self.filename.startswith("<") else os.path.abspath(self.filename)
        ), self.line

    @property
    def columns(self) -> tuple[int, int]:
        """Return the first column to underline in `text`, and the one behind the last: at most up
        to the end of the code."""
        start = min(self.column, len(self.text))
        if self.end_line == self.line and start < self.end_column <= len(self.text):
            return start, self.end_column
        return start, start + _code_length(self.text[start:])

    def snippet(self) -> str:
        """Return the line and, below it, carets; "" where the text is not known.

        >>> print(Position("k.py", 3, 4, 3, 9, "x = first + 1").snippet())
            x = first + 1
                ^^^^^
        """
        start, end = self.columns
        if start >= end:
            return ""
        margin = len(self.text) - len(self.text.lstrip())
        # carets move as far as the characters above: a tab stays a tab, and a wide character takes
        # two columns
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
    """Return how many columns of a terminal a character takes."""
    if (
        character == "\t"
        or unicodedata.combining(character)
        or unicodedata.category(character) in ("Mn", "Me", "Cf")
    ):
        return int(character == "\t")
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def _code_length(text: str) -> int:
    """Return the length of a piece of a line without the comment at its end."""
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                text = text[: token.start[1]]
                break
    except (tokenize.TokenError, SyntaxError):  # a bracket or a string that another line closes
        pass
    return len(text.rstrip().removesuffix("\\").rstrip())


for _name in __all__:
    # where users find them, and what tracebacks show
    globals()[_name].__module__ = "numpipe.errors"
