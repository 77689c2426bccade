"""The number of products that a wait may leave in flight, where the kernel does not say it: ``s = numpipe.wgmma_wait(s)``.

wgmmas end in the order of their issue, so a wait for one may leave as many in flight as were issued after it. The pass counts these
backwards from the wait to where the accumulator was assigned, on every path that constants do not rule out, and takes the least
number. What the pass does not see (a function that is called, a `while`, a value of another name) counts as no product, so that
the wait is longer and never too short. The simulated SM, which knows the groups, reports one that leaves too many in flight::

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
from .nodes import names, own, walk
from .rewriter import Rewriter

Step = tuple[list[ast.stmt], int, tuple[ast.AST, str] | None]
"""statements, the position in them, and the statement whose part they are, with the part's name"""


class Waits(Rewriter):
    """``numpipe.wgmma_wait(acc)``, which is told how many groups it may leave."""

    def count_pending(self, node: ast.FunctionDef) -> None:
        """Complete the waits of a function that has not been rewritten yet."""
        local = self.local | {name for name, _ in stores(node)}

        def issues(part: ast.AST) -> bool:
            return isinstance(part, ast.Call) and does(self.value(part.func), "issues")

        def arm(test: ast.expr) -> bool | None:
            value = self.constants.evaluate(test, local)
            return None if value is MISSING else bool(value)

        dropped = {id(part.value) for part in own(node.body) if isinstance(part, ast.Expr)}  # refused later, by `unused_product`
        for call in own(node.body):
            if isinstance(call, ast.Call) and len(call.args) == 1 and not call.keywords and id(call) not in dropped and (
                    does(self.value(call.func), "waits")):
                name = call.args[0].id if isinstance(call.args[0], ast.Name) else ""
                groups = pending(node, call, name, issues, arm)
                call.func = self.named("wait_for", products.drained_behind, call)
                call.args.append(ast.copy_location(ast.Constant(groups), call))


def pending(function: ast.FunctionDef, wait: ast.AST, name: str, issues: Callable[[ast.AST], bool],
            arm: Callable[[ast.expr], bool | None] = lambda _: None) -> int:
    """Return how many groups a wait for the accumulator `name` may leave, in the source of a function; 0 where that is not seen.

    `issues` says whether a node is a call that issues a product, `arm` what the test of an `if` is, where that is known when the
    kernel is compiled.
    """
    way = _way(function.body, wait)
    return 0 if way is None or not name else min(_Count(name, issues, arm).before(way), products.MOST)


def in_place(body: list[ast.stmt]) -> list[ast.stmt]:
    """Return statements, with each `with` replaced by its body, which runs exactly once too."""
    return [part for statement in body for part in (in_place(statement.body) if isinstance(statement, ast.With) else [statement])]


def _way(body: list[ast.stmt], wait: ast.AST, owner: tuple[ast.AST, str] | None = None) -> list[Step] | None:
    """Return the blocks around a wait, outermost first."""
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


class _Count(NamedTuple):
    """Counts the products that are issued between the assignment of the accumulator `name` and a wait for it."""

    name: str
    issues: Callable[[ast.AST], bool]
    arm: Callable[[ast.expr], bool | None]

    def before(self, way: list[Step]) -> int:
        """Return the least number of groups between the accumulator's assignment and the position in the innermost block."""
        *outer, (body, position, part_of) = way
        owner, field = part_of or (None, "")
        made, count = self.behind(body[:position])
        if made:
            return count
        if not outer:
            return 0  # nothing here makes it: it is a parameter
        if isinstance(owner, ast.For) and field == "body":  # from the step before, or from before the loop
            if any(isinstance(node, (ast.Continue, ast.Break)) for node in own(body)):
                return 0  # a step may end before it issues what stands behind
            made, again = self.behind(body[position:])
            return count + min(self.before(outer), again) if made else count + self.before(outer)
        return count + self.before(outer) if isinstance(owner, ast.If) else 0

    def behind(self, body: list[ast.stmt]) -> tuple[bool, int]:
        """Return whether statements assign the accumulator, and the groups issued after that, or by all statements if none does."""
        count = 0
        for statement in reversed(body):
            made, issued = self.statement(statement)
            if made:
                return True, count
            count += issued
        return False, count

    def statement(self, statement: ast.stmt) -> tuple[bool, int]:
        """Return whether a statement assigns the accumulator (binds its name), and how many wgmmas it is sure to issue."""
        if isinstance(statement, ast.If) and (taken := self.arm(statement.test)) is not None:
            return self.block(statement.body if taken else statement.orelse)
        if isinstance(statement, ast.If):
            arms = [self.block(arm) for arm in (statement.body, statement.orelse)]
            return any(made for made, _ in arms), 0 if any(made for made, _ in arms) else min(count for _, count in arms)
        binds = self.name in names(ast.Store, statement)
        if isinstance(statement, (ast.For, ast.While, ast.FunctionDef)) or any(
                isinstance(node, (ast.IfExp, ast.BoolOp, ast.Lambda)) for node in walk(statement)):
            return binds, 0
        return binds, sum(self.issues(node) for node in walk(statement))

    def block(self, body: list[ast.stmt]) -> tuple[bool, int]:
        parts = [self.statement(statement) for statement in in_place(body)]
        return any(made for made, _ in parts), sum(count for _, count in parts)
