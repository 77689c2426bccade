"""What the functions of one kernel share while they are rewritten: the kernel's, and every `@numpipe.function` it reaches."""

from __future__ import annotations

import ast
import os
from typing import Any

from ...diagnostics.errors import Position
from ...plan.unit import Unit
from .positions import Positions, Source


class Session:
    """One kernel, rewritten for one set of types and Statics."""

    def __init__(self, unit: Unit) -> None:
        self.unit = unit
        self.positions = Positions()
        self.sources: list[Source] = []
        self.texts: list[str] = []
        self.functions: dict[Any, Any] = {}
        """rewritten functions, by function and known arguments"""
        self.active: list[Any] = []
        """functions being rewritten, outermost first"""
        self.sites: dict[str, Position] = {}
        self.tokens: dict[str, int] = {}
        """order tokens, with their numbers"""

    def site(self, source: Source, node: ast.Call) -> str:
        """Where a pipeline is written, by which its ring is known: a line, and as much more as tells it from others."""
        position = source.position(node)
        path = source.filename.replace("\\", "/").split("/")
        line, column = node.lineno, node.col_offset + 1
        spellings = [f"{path[-1]}:{line}", f"{path[-1]}:{line}:{column}",
                     *(f"{'/'.join(path[-n:])}:{line}:{column}" for n in range(2, len(path) + 1))]
        site = next((s for s in spellings if self.sites.get(s, position) == position), f"{os.path.join(*path)}:{line}:{column}")
        self.sites[site] = position
        return site
