"""Blocks of `numpipe.turn` in statements that have been rewritten: which of them every run goes through."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from .nodes import added, called_facts, walk


def holds_turns(body: Sequence[ast.AST]) -> bool:
    """Whether statements go through a block, or call a function that does."""
    return any(added(node) == "enter_turn" or ((facts := called_facts(node)) is not None and facts.turns)
               for statement in body for node in walk(statement))


def sure_turns(body: Sequence[ast.stmt]) -> tuple[int, ...] | None:
    """The tokens whose blocks a run of statements goes through, in order; None where that is not the same in every run."""
    found: list[int] = []
    always = True
    for statement in body:
        if holds_turns([statement]):
            call = statement.value if isinstance(statement, ast.Expr) else None
            if not isinstance(call, ast.Call) or added(call) != "enter_turn" or not always:
                return None
            found.append(ast.literal_eval(call.args[1]))
        always = always and not any(isinstance(node, ast.Continue) for node in walk(statement))
    return tuple(found)
