"""The number of products that a wait may leave in flight if the kernel does not specify it: ``s =
numpipe.wgmma_wait(s)``.

wgmmas end in the order of their issue, so a wait for one may leave in flight as many as were issued
after it. The pass goes through the function once and counts, for each name, the products issued
since it was bound, on every path that constants do not rule out, and takes the minimum. What the
pass does not see (a called function, a `while`, a value with another name) counts as no product, so
that the wait may be longer than needed but never too short. The simulated SM, which knows the
groups, reports a wait that leaves too many in flight::

    for (j,), (k_tile, v_tile) in pipe(k, v):
        s = numpipe.wgmma(None, q_tile, k_tile.T)
        out = numpipe.wgmma(out, p, v_tile)
        s = numpipe.wgmma_wait(s)  # 1: `out` was issued after it
        ...
        out = numpipe.wgmma_wait(out)  # 0
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from typing import Any

from ...core.op import does
from ...language.tiles import products_in_flight
from .constants import MISSING, stores
from .nodes import Block, names, own, surely, walk
from .rewriter import Rewriter


class Waits(Rewriter):
    """``numpipe.wgmma_wait(acc)``, which is told how many groups it may leave."""

    def count_pending(self, node: ast.FunctionDef) -> None:
        """Complete the waits of a function that has not been rewritten yet."""
        local = self.local | {name for name, _ in stores(node)}

        def known(part: ast.expr) -> Any:
            return self.constants.evaluate(part, local)

        def issues(part: ast.AST) -> bool:
            return isinstance(part, ast.Call) and does(known(part.func), "issues")

        def arm(test: ast.expr) -> bool | None:
            value = known(test)
            return None if value is MISSING else bool(value)

        every = list(own(node.body))
        unused = {id(part.value) for part in every if isinstance(part, ast.Expr)}
        waits = [
            part
            for part in every
            if isinstance(part, ast.Call)
            and len(part.args) == 1
            and not part.keywords
            and id(part) not in unused  # `unused_product` refuses it later
            and does(known(part.func), "waits")
        ]
        for call, groups in pending(node, waits, issues, arm).items():
            call.func = self.named("wait_for", products_in_flight.drained_before, call)
            call.args.append(ast.copy_location(ast.Constant(groups), call))


def pending(
    function: ast.FunctionDef,
    waits: Iterable[ast.Call],
    issues: Callable[[ast.AST], bool],
    arm: Callable[[ast.expr], bool | None] = lambda _: None,
) -> dict[ast.Call, int]:
    """Return how many groups each of these waits may leave in flight, in the source of a function.

    `issues` returns whether a node is a call that issues a product, `arm` the value of an `if` test
    that is known at compile time.
    """
    count = _Count(waits, issues, arm)
    if count.groups:
        count.block(function.body, {})
    return count.groups


def in_place(body: Block) -> Block:
    """Return statements, with each `with` replaced by its body, which runs exactly once too."""
    return [
        part
        for statement in body
        for part in (in_place(statement.body) if isinstance(statement, ast.With) else [statement])
    ]


class _Count:
    """Counts the products issued since each name was bound; `groups` has the least at each wait."""

    def __init__(
        self,
        waits: Iterable[ast.Call],
        issues: Callable[[ast.AST], bool],
        arm: Callable[[ast.expr], bool | None],
    ) -> None:
        self.groups = dict.fromkeys(waits, products_in_flight.MOST)
        self.issues, self.arm = issues, arm

    def block(self, body: Block, issued: dict[str, int]) -> set[str]:
        """Follow statements, and update what was `issued` since each name was bound, if it was.

        Return the names that they may bind.
        """
        every = set[str]()
        for statement in in_place(body):
            bound = names(ast.Store, statement)
            match statement:
                case ast.If(test=first):
                    self.note(first, issued)
                    taken, arms = self.arm(first), [statement.body, statement.orelse]
                    if taken is not None:
                        arms = [statement.body if taken else statement.orelse]
                    ends = [dict(issued) for _ in arms]
                    bound = set().union(*map(self.block, arms, ends))
                    issued.update({name: min(end[name] for end in ends) for name in issued})
                case ast.For(iter=first) | ast.While(test=first):
                    self.note(first, issued)
                    self.steps(statement, issued)
                    self.block(statement.orelse, {})
                case _:
                    self.note(statement, issued)
                    more = sum(map(self.issues, surely(statement)))
                    issued.update({name: count + more for name, count in issued.items()})
            issued.update(dict.fromkeys(bound, 0))
            every |= bound
        return every

    def steps(self, loop: ast.For | ast.While, issued: dict[str, int]) -> None:
        """Follow the body of a loop from before the loop, and from the previous step."""
        leaves = any(isinstance(part, (ast.Continue, ast.Break)) for part in own(loop.body))
        begin: dict[str, int] = {}
        if isinstance(loop, ast.For) and not leaves:  # others may end before they issue
            begin = {name: issued.get(name, 0) for name in names(ast.Load, *self.groups)}
        for _ in range(2):
            end = dict(begin)
            self.block(loop.body, end)
            begin = {name: min(count, end[name]) for name, count in begin.items()}

    def note(self, node: ast.AST, issued: dict[str, int]) -> None:
        """Give the waits in an expression, or in a statement without others in it, their count."""
        for part in walk(node):
            if isinstance(part, ast.Call) and part in self.groups:
                of = part.args[0]
                count = issued.get(of.id, 0) if isinstance(of, ast.Name) else 0
                self.groups[part] = min(self.groups[part], count)
