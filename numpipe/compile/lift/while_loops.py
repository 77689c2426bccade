"""Rounds of `while` loops: in simulated code each says that it begins, so that a loop without end
is found."""

from __future__ import annotations

import ast
import copy

from ...core.machine import current
from .nodes import load, located

NAME = "__np_a_round_begins"
"""no operation is called like this, whose names begin with __np_ too"""


def begin_round() -> None:
    """Tell the simulated SM that a round of a loop begins."""
    current().round()


def counted(module: ast.Module) -> ast.Module:
    """Return a rewritten module whose `while` loops count their rounds; the module itself where it
    has none."""
    if not any(isinstance(node, ast.While) for node in ast.walk(module)):
        return module
    module = copy.deepcopy(module)
    for node in ast.walk(module):
        if isinstance(node, ast.While):
            node.body.insert(0, located(ast.Expr(ast.Call(load(NAME), [], [])), node.test))
    return module
