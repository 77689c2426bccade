"""What the rewritten source has only when it is simulated.

Each iteration of a `while` loop reports its beginning, so that an endless loop is found. A name
that an `if` may have changed (`language.tiles.branches`) may be unbound after it. CPython would
reject reading it there, and Numba does not; simulated, it stays unbound.
"""

from __future__ import annotations

import ast
import copy
from typing import Any

from ...core.machine import current
from ...language.tiles import branches
from .nodes import load, located, operation

NAME = "__np_a_round_begins"
"""No operation has this name; their names begin with __np_ too."""


def begin_round() -> None:
    """Report to the simulated SM that an iteration of a loop begins."""
    current().round()


def for_simulation(module: ast.Module) -> ast.Module:
    """Return a copy of a rewritten module as it is simulated, which shares its expressions."""
    return _Simulated().visit(module)  # type: ignore[no-any-return]


class _Simulated(ast.NodeTransformer):
    def visit(self, node: ast.AST) -> Any:
        return node if isinstance(node, ast.expr) else super().visit(node)

    def generic_visit(self, node: ast.AST) -> Any:
        new = copy.copy(node)
        for name, value in ast.iter_fields(node):
            setattr(new, name, value[:] if isinstance(value, list) else value)
        return super().generic_visit(new)

    def visit_While(self, node: ast.While) -> Any:
        new = self.generic_visit(node)
        new.body.insert(0, located(ast.Expr(ast.Call(load(NAME), [], [])), node.test))
        return new

    def visit_Assign(self, node: ast.Assign) -> Any:
        if operation(node.value) is not branches.after_branch:
            return node
        unbound = ast.ExceptHandler(load("UnboundLocalError"), None, [ast.Pass()])
        return located(ast.Try([node], [unbound], [], []), node)
