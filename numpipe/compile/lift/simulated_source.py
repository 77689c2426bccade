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


def for_simulation(node: Any) -> Any:
    """Return a copy of a rewritten module, or of a statement in it, as it is simulated. It shares
    the expressions."""
    if not isinstance(node, (ast.Module, ast.stmt)):
        return node
    if isinstance(node, ast.Assign) and operation(node.value) is branches.after_branch:
        unbound = ast.ExceptHandler(load("UnboundLocalError"), None, [ast.Pass()])
        return located(ast.Try([node], [unbound], [], []), node)
    new = copy.copy(node)
    for name, value in ast.iter_fields(node):
        if isinstance(value, list):
            setattr(new, name, [*map(for_simulation, value)])
    if isinstance(new, ast.While):
        new.body.insert(0, located(ast.Expr(ast.Call(load(NAME), [], [])), new.test))
    return new
