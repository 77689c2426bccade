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
from pathlib import Path
from typing import Any

from llvmlite import ir
from numba.cuda import cgutils, debuginfo, lowering

__all__ = ["Place"]

Place = Callable[[str, int], "tuple[str, int] | None"]
"""returns the user's file and line for a line of a compiled function, or None for a function that
is not the user's"""


class _Lines(debuginfo.DummyDIBuilder):  # type: ignore[misc]
    """Numba's interface for debug information, with one object per function; this implementation
    emits only lines."""

    def __init__(
        self, place: Place, module: Any, filepath: str, cgctx: Any, directives_only: bool
    ) -> None:
        self._place, self._module, self._compiled = place, module, filepath
        self._scope: Any = None
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
        module, add = self._module, self._module.add_debug_info
        path = Path(self._file.replace('"', "'"))  # ptxas fails on an escaped quote
        file = add("DIFile", {"directory": str(path.parent), "filename": path.name})
        unit = add(
            "DICompileUnit",
            {
                "language": ir.DIToken("DW_LANG_C_plus_plus"),
                "file": file,
                "producer": "numpipe",
                "runtimeVersion": 0,
                "isOptimized": True,
                "emissionKind": ir.DIToken("DebugDirectivesOnly"),
            },
            is_distinct=True,
        )
        kind = add(
            "DISubroutineType",
            {"types": module.add_metadata([ir.Constant(ir.MetaDataType(), None)])},
        )
        self._scope = add(
            "DISubprogram",
            {
                "name": qualname,
                "linkageName": qualname,
                "scope": file,
                "file": file,
                "line": at,
                "type": kind,
                "isLocal": False,
                "isDefinition": True,
                "scopeLine": at,
                "isOptimized": True,
                "unit": unit,
            },
            is_distinct=True,
        )
        function.set_metadata("dbg", self._scope)
        cgutils.get_or_insert_named_metadata(module, "llvm.dbg.cu").add(unit)
        flags = cgutils.get_or_insert_named_metadata(module, "llvm.module.flags")
        for name, version in (("Dwarf Version", 4), ("Debug Info Version", 3)):
            flag = module.add_metadata([ir.IntType(32)(2), name, ir.IntType(32)(version)])
            if flag not in flags.operands:
                flags.add(flag)

    def mark_location(self, builder: Any, line: int) -> None:
        if self._scope is None:
            return
        compiled, at = self._at
        if line not in (compiled, compiled + 1):
            found = self._place(self._compiled, line)
            at = found[1] if found is not None and found[0] == self._file else at
        builder.debug_metadata = self._module.add_debug_info(
            "DILocation", {"line": at, "column": 1, "scope": self._scope}
        )


def replacements(place: Place) -> tuple[tuple[Any, str, Any], ...]:
    """Return (owner, name, value) of the replacements in Numba's lowering while a kernel with a
    line table is compiled."""
    return (
        (debuginfo, "DummyDIBuilder", functools.partial(_Lines, place)),
        # lines before the definition belong to expressions of the function here, not to a decorator
        (lowering.BaseLower, "_adjust_line_if_prologue", lambda _, line: line),
    )
