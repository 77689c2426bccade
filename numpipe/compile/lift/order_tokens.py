"""Blocks of `numpipe.turn` in statements that have been rewritten: which of them every run goes through."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from ...core.facts import Facts
from ...language.pipeline import order_tokens
from .nodes import operation, walk


def holds_turns(body: Sequence[ast.AST]) -> bool:
    """Whether statements go through a block, or call a function that does."""
    return any(_enters(node) or _calls(node) for statement in body for node in walk(statement))


def sure_turns(body: Sequence[ast.stmt]) -> tuple[int, ...] | None:
    """The tokens whose blocks a run of statements goes through, in order; None where that is not the same in every run."""
    found: list[int] = []
    always = True
    for statement in body:
        if holds_turns([statement]):
            call = statement.value if isinstance(statement, ast.Expr) else None
            if call is None or not _enters(call) or not always:
                return None
            found.append(ast.literal_eval(call.args[1]))  # type: ignore[attr-defined]
        always = always and not any(isinstance(node, ast.Continue) for node in walk(statement))
    return tuple(found)


def _enters(node: ast.AST) -> bool:
    return operation(node) is order_tokens.enter_turn


def _calls(node: ast.AST) -> bool:
    facts: Facts | None = getattr(node, "facts", None)
    return facts is not None and facts.turns
