"""The line table of a kernel's LLVM IR, which assigns a line of the user's source to each
instruction.

Numba's own line tables would contain lines of the rewritten source and of numpipe's functions.
Here, a function passed by the caller maps a line of the rewritten source to the user's line.
Functions for which it returns None get no table. When LLVM inlines them, it assigns the line of the
call, which is a line of the user's source.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from numba.cuda import debuginfo, lowering

__all__ = ["Place"]

Place = Callable[[str, int], "tuple[str, int] | None"]
"""returns the user's file and line for a line of a compiled function, or None for a function that
is not the user's"""


class _Lines(debuginfo.DIBuilder):  # type: ignore[misc]
    """Numba's debug information of a function, without its variables."""

    mark_variable = debuginfo.DummyDIBuilder.mark_variable

    def __init__(
        self, place: Place, module: Any, filepath: str, cgctx: Any, directives_only: bool
    ) -> None:
        # Numba's constructor needs the working directory, which may be gone
        self.module, self.cgctx = module, cgctx
        self.subprograms: list = []
        self.emission_kind = "DebugDirectivesOnly"
        self._place, self._compiled = place, filepath
        self._file = ""
        self._at = 0, 0
        """the line of the compiled function's definition, and the corresponding user's line"""

    def mark_subprogram(
        self, function: Any, qualname: str, argnames: Any, argtypes: Any, line: int
    ) -> None:
        compiled = line - 1  # Numba assumes that the first line is a decorator's
        if (found := self._place(self._compiled, compiled)) is None:
            return
        self._file, at = found
        self._at = compiled, at
        self.filepath = self._file.replace('"', "'")  # ptxas fails on an escaped quote
        self.difile = self._di_file()
        self.initialize()
        # profilers show the second name, which would be mangled
        scope = self._add_subprogram(qualname, qualname, at, function, {})
        function.set_metadata("dbg", scope)

    def mark_location(self, builder: Any, line: int) -> None:
        if not self.subprograms:
            return
        compiled, at = self._at
        if line not in (compiled, compiled + 1):
            found = self._place(self._compiled, line)
            at = found[1] if found is not None and found[0] == self._file else at
        super().mark_location(builder, at)

    def finalize(self) -> None:
        if self.subprograms:
            super().finalize()


def replacements(place: Place) -> tuple[tuple[Any, str, Any], ...]:
    """Return (owner, name, value) of the replacements in Numba's lowering while a kernel with a
    line table is compiled."""
    return (
        (debuginfo, "DummyDIBuilder", functools.partial(_Lines, place)),
        # lines before the definition belong to expressions of the function here, not to a decorator
        (lowering.BaseLower, "_adjust_line_if_prologue", lambda _, line: line),
    )
