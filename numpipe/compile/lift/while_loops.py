"""Iteration counts of `while` loops: in simulated code each iteration reports its beginning, so
that an endless loop is found."""

from __future__ import annotations

import ast
import copy

from ...core.machine import current
from .nodes import load, located

NAME = "__np_a_round_begins"
"""No operation has this name; their names begin with __np_ too."""


def begin_round() -> None:
    """Report to the simulated SM that an iteration of a loop begins."""
    current().round()


def counted(module: ast.Module) -> ast.Module:
    """Return a rewritten module whose `while` loops count their iterations; the module itself if it
    has none."""
    if not any(isinstance(node, ast.While) for node in ast.walk(module)):
        return module
    module = copy.deepcopy(module)
    for node in ast.walk(module):
        if isinstance(node, ast.While):
            node.body.insert(0, located(ast.Expr(ast.Call(load(NAME), [], [])), node.test))
    return module
