"""How many products a wait may leave in flight, where the kernel does not say: ``s = numpipe.wgmma_wait(s)``.

wgmmas end in the order of their issue, so a wait for one may leave as many in flight as were issued after it. They are counted
from the wait backwards, on every way to it that no constant closes, to where the accumulator was made; the least number is right
on all of them. What is not seen (a function that is called, a `while`, a value of another name) counts for nothing, so that the
wait is longer and never too short::

    for (j,), (k_tile, v_tile) in pipe(k, v):
        s = numpipe.wgmma(None, q_tile, k_tile.T)
        out = numpipe.wgmma(out, p, v_tile)
        s = numpipe.wgmma_wait(s)                   # 1: `out` is behind it
        ...
        out = numpipe.wgmma_wait(out)               # 0
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import NamedTuple

from ...core.op import does
from ...language.tiles import products
from .fold import MISSING, stores
from .nodes import own, walk
from .rewriter import Rewriter


class Asked(NamedTuple):
    """What the source alone does not say."""

    issues: Callable[[ast.AST], bool]
    """whether a node is a call that issues a product"""
    arm: Callable[[ast.expr], bool | None] = lambda _: None
    """what the test of an `if` is, where that is known when the kernel is compiled"""


class Waits(Rewriter):
    """``numpipe.wgmma_wait(acc)``, told how many groups it may leave."""

    def count_pending(self, node: ast.FunctionDef) -> None:
        """Complete the waits of a function that has not been rewritten yet."""
        names = self.local | {name for name, _ in stores(node)}

        def arm(test: ast.expr) -> bool | None:
            value = self.constants.evaluate(test, names)
            return None if value is MISSING else bool(value)

        dropped = {id(part.value) for part in own(node.body) if isinstance(part, ast.Expr)}  # an error, told as that
        for call in own(node.body):
            if isinstance(call, ast.Call) and len(call.args) == 1 and not call.keywords and id(call) not in dropped and (
                    does(self.value(call.func), "waits")):
                name = call.args[0].id if isinstance(call.args[0], ast.Name) else ""
                groups = pending(node, call, name, Asked(self._issues, arm))
                call.func = self.named("wait_for", products.drained_behind, call)
                call.args.append(ast.copy_location(ast.Constant(groups), call))

    def _issues(self, node: ast.AST) -> bool:
        return isinstance(node, ast.Call) and does(self.value(node.func), "issues")


def pending(function: ast.FunctionDef, wait: ast.AST, name: str, asked: Asked) -> int:
    """The groups that a wait for the accumulator `name` may leave, in the source of a function; 0 where that is not seen."""
    way = _way(function.body, wait)
    if way is None or not name:
        return 0
    return min(_before(way, name, asked), products.MOST)


Step = tuple[list[ast.stmt], int, tuple[ast.AST, str] | None]
"""statements, the position in them, and what they are a part of: with the part's name"""


def in_place(body: list[ast.stmt]) -> list[ast.stmt]:
    """Statements, with those of a `with` in its place: they run once, whatever is entered and left."""
    return [part for statement in body for part in (in_place(statement.body) if isinstance(statement, ast.With) else [statement])]


def _way(body: list[ast.stmt], wait: ast.AST, owner: tuple[ast.AST, str] | None = None) -> list[Step] | None:
    """The blocks around a wait, outermost first."""
    body = in_place(body)
    for position, statement in enumerate(body):
        if not any(node is wait for node in walk(statement)):
            continue
        for field in ("body", "orelse"):
            inner = getattr(statement, field, None)
            if isinstance(inner, list) and (found := _way(inner, wait, (statement, field))) is not None:
                return [(body, position, owner), *found]
        return [(body, position, owner)]
    return None


def _before(way: list[Step], name: str, asked: Asked) -> int:
    """The least number of groups between the accumulator's making and the innermost block's position."""
    *outer, (body, position, part_of) = way
    owner, field = part_of or (None, "")
    count = 0
    for statement in reversed(body[:position]):
        made, issued = _statement(statement, name, asked)
        if made:
            return count
        count += issued
    if not outer:
        return 0  # made by nobody here: it is a parameter
    if isinstance(owner, ast.For) and field == "body":  # from the step before, or from before the loop
        if any(isinstance(node, (ast.Continue, ast.Break)) for node in own(body)):
            return 0  # a step may end before it issues what stands behind
        again = 0
        for statement in reversed(body[position:]):
            made, issued = _statement(statement, name, asked)
            if made:
                return min(count + again, count + _before(outer, name, asked))
            again += issued
        return count + _before(outer, name, asked)
    if isinstance(owner, ast.If):
        return count + _before(outer, name, asked)
    return 0


def _statement(statement: ast.stmt, name: str, asked: Asked) -> tuple[bool, int]:
    """(whether a statement makes the accumulator, the wgmmas it is sure to issue). What binds the name otherwise makes it too."""
    if isinstance(statement, ast.If) and (taken := asked.arm(statement.test)) is not None:
        return _block(statement.body if taken else statement.orelse, name, asked)
    if isinstance(statement, ast.If):
        arms = [_block(arm, name, asked) for arm in (statement.body, statement.orelse)]
        return any(made for made, _ in arms), 0 if any(made for made, _ in arms) else min(count for _, count in arms)
    if isinstance(statement, (ast.For, ast.While, ast.FunctionDef)):
        return _binds(statement, name), 0
    sure = not any(isinstance(node, (ast.IfExp, ast.BoolOp, ast.Lambda)) for node in walk(statement))
    return _binds(statement, name), sum(asked.issues(node) for node in walk(statement)) if sure else 0


def _block(body: list[ast.stmt], name: str, asked: Asked) -> tuple[bool, int]:
    parts = [_statement(statement, name, asked) for statement in in_place(body)]
    return any(made for made, _ in parts), sum(count for _, count in parts)


def _binds(statement: ast.stmt, name: str) -> bool:
    return any(isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store) for node in walk(statement))
