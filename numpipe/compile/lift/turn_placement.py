"""Placement of ping-pong turns on tiles (`language.pipeline.pingpong`): `take_turn` before a tile's
first pipeline, `pass_turn` after its last.

This is decided from the source, because a flag that is read at run time does not fold: a turn is
taken for the statements of a tile's body that run a pipeline, at any depth. If the last of these is
a pipeline loop of the tile's body itself, or a call of a pipeline that it emits, the end of that
pipeline passes the turn, before it waits for its last products. A `continue` passes a turn that it
would skip.

`sure_turns` finds which blocks of `numpipe.turn` (order tokens) every run of some statements
executes.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import TypeGuard

from ...arch.dimensions import Ints
from ...language.pipeline import pingpong, pipelines, warpgroup_order
from .nodes import Block, children, operation, running, walk
from .rewriter import Rewriter

WHY = "with schedule='pingpong' compute warpgroups take turns on tiles"


def pipeline_in(statement: ast.AST) -> ast.AST | None:
    """Return the first node of a rewritten statement that runs a pipeline, or calls a function that
    does."""
    return next(running((pipelines.steps,), "pipelines", statement), None)


def is_loop(node: ast.AST) -> TypeGuard[ast.For]:
    """Return whether a node is a rewritten loop over a pipeline."""
    return isinstance(node, ast.For) and operation(node.iter) is pipelines.steps


def holds_turns(body: Sequence[ast.AST]) -> bool:
    """Return whether rewritten statements execute a block of `numpipe.turn`, or call a function
    that does."""
    return any(running((warpgroup_order.enter_turn,), "turns", *body))


def sure_turns(body: Sequence[ast.stmt]) -> Ints | None:
    """Return the tokens whose blocks a run of rewritten statements executes, in order; None if runs
    differ."""
    tokens: list[int] = []
    always = True
    for statement in body:
        if holds_turns([statement]):
            call = statement.value if isinstance(statement, ast.Expr) else None
            if call is None or operation(call) is not warpgroup_order.enter_turn or not always:
                return None
            tokens.append(ast.literal_eval(call.args[1]))  # type: ignore[attr-defined]
        always = always and not any(isinstance(node, ast.Continue) for node in walk(statement))
    return tuple(tokens)


class Turns(Rewriter):
    """Loops over tiles whose warpgroups take turns, and what such a kernel may not hold."""

    over_tiles = 0
    """The number of loops over tiles around the statement."""

    def turn_taking(self, node: ast.For) -> bool:
        """Return whether the tiles of a loop are taken in turns. Reject loops for which turns are
        meaningless."""
        if self.unit.turns < 2:
            return False
        if not self.lifts_kernel or len(self.scopes) > 1:
            self.error(
                f"{WHY} of the kernel function's own loops: a loop over tiles in a called "
                "function would divide its tiles among the warpgroups again; fix: write the loop "
                "in the kernel function",
                node.iter,
            )
        if self.over_tiles:
            self.error(
                f"{WHY}, one for each tile of the outer loop, so an inner loop over tiles has no "
                "turns to take; fix: give numpipe.tiles the counts of both, or use "
                "schedule='cooperative'",
                node.iter,
            )
        for word, left in leaves(node.body, ast.Break):
            self.error(
                f"'{word}' leaves the loop over tiles at line {node.lineno}, but {WHY}: the next "
                "tiles belong to the other warpgroups, and their blocks are loaded; fix: run all "
                "tiles, or make the counts smaller",
                left,
            )
        return True

    def tile_body(self, node: ast.For, in_turns: bool) -> tuple[Block, bool]:
        """Return the rewritten body of a loop over tiles, and whether it takes turns."""
        self.over_tiles += 1
        body = self._block(node.body)
        self.over_tiles -= 1
        running = [
            number for number, statement in enumerate(body) if in_turns and pipeline_in(statement)
        ]
        if not running:
            return body, False
        take, give = (
            self.statement(operation) for operation in (pingpong.take_turn, pingpong.pass_turn)
        )
        first, after = running[0], running[-1] + 1
        taken = [*with_skips(body[first:after], [give]), *[give] * (not _passes(body[after - 1]))]
        return [*with_skips(body[:first], [take, give]), take, *taken, *body[after:]], True

    def check_turns(self, node: ast.FunctionDef) -> None:
        """Reject a rewritten kernel with pipelines outside a loop over tiles, or without such a
        loop."""
        if self.unit.turns < 2:
            return
        loops = [inner for inner in walk(node) if getattr(inner, "over_tiles", False)]
        inside = {id(part) for loop in loops for part in walk(loop)}
        every = running((pipelines.steps,), "pipelines", *node.body)
        found = next((part for part in every if id(part) not in inside), None)
        if found is not None:
            self.error(
                f"{WHY}, so each slot is released by one of them, but all of them read a pipeline "
                "outside a loop over tiles; fix: put it into `for … in numpipe.tiles(…):`, or "
                "use schedule='cooperative'",
                found,
            )
        if not loops:
            self.error(
                f"{WHY}, but the kernel has no loop over tiles; fix: write `for m, n in "
                "numpipe.tiles(…):`, or use schedule='cooperative'",
                node,
            )


def _passes(statement: ast.stmt) -> bool:
    """Return whether a statement runs a pipeline, by a loop or a call; if so, have that pass the
    turn at its end."""
    call: ast.AST | None = statement.iter if is_loop(statement) else None
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        call = (
            statement.value.func if getattr(statement.value.func, "may_pass_turn", False) else None
        )
    if not isinstance(call, ast.Call):
        return False
    last = call.args[-1]
    assert isinstance(last, ast.Constant)
    last.value = 1
    return True


def leaves(body: Block, *of_loops: type[ast.stmt]) -> Iterator[tuple[str, ast.stmt]]:
    """Yield each `return` of a body, and each statement of `of_loops` (`break`, `continue`) whose
    loop is outside the body."""

    def below(node: ast.AST, inner: bool) -> Iterator[tuple[str, ast.stmt]]:
        if isinstance(node, ast.Return) or (isinstance(node, of_loops) and not inner):
            yield type(node).__name__.lower(), node
        if not isinstance(node, (ast.FunctionDef, ast.Lambda)):
            for child in children(node):
                yield from below(child, inner or isinstance(node, (ast.For, ast.While)))

    for statement in body:
        yield from below(statement, False)


def with_skips(body: Block, before: Block) -> Block:
    """Return the body of a loop, with statements put before each `continue` of that loop."""
    result: Block = []
    for statement in body:
        for field in (
            ()
            if isinstance(statement, (ast.For, ast.While, ast.FunctionDef))
            else ("body", "orelse")
        ):
            if inner := getattr(statement, field, None):
                setattr(statement, field, with_skips(inner, before))
        result += [*before, statement] if isinstance(statement, ast.Continue) else [statement]
    return result
