"""Turns on tiles, placed: `take_turn` before the first pipeline of a tile, `pass_turn` behind the last (`language.pipeline.turns`).

Statically, so that nothing of it is asked at run time: a statement of the tile's body that runs a pipeline, however deep inside,
is what the turn is taken for. Where the last such statement is a pipeline loop of the tile's body itself, or calls a pipeline that
it emits, that pipeline's end passes the turn, which is sooner than behind it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TypeGuard

from ...core.facts import Facts
from ...language.pipeline import pipelines, turns
from .nodes import children, load, operation, walk
from .rewriter import Rewriter

WHY = "with schedule='pingpong' compute warpgroups take turns on tiles"


def pipeline_in(statement: ast.AST) -> ast.AST | None:
    """Where a statement, already rewritten, runs a pipeline, or calls a function that does."""
    for node in walk(statement):
        facts: Facts | None = getattr(node, "facts", None)
        if is_loop(node):
            return node.iter
        if facts is not None and facts.pipelines:
            return node
    return None


def is_loop(node: ast.AST) -> TypeGuard[ast.For]:
    """Whether a node is a loop over a pipeline, already rewritten."""
    return isinstance(node, ast.For) and operation(node.iter) is pipelines.steps


class Turns(Rewriter):
    """What a loop over tiles becomes where warpgroups take turns; what a kernel may not hold then."""

    over_tiles = 0
    """loops over tiles that the statement is in"""

    def turn_taking(self, node: ast.For) -> bool:
        """Whether the tiles of a loop are taken in turns; refuses the loops where that would have no meaning."""
        if self.unit.turns < 2:
            return False
        if not self.lifts_kernel or len(self.scopes) > 1:
            self.error(node.iter, f"{WHY} of the kernel function's own loops: a loop over tiles in a function that it calls would "
                                  "share its tiles out among the warpgroups once more; write it in the kernel function")
        if self.over_tiles:
            self.error(node.iter, f"{WHY}, one for each tile of the outer loop: a loop over tiles in another one has none to share "
                                  "out; give numpipe.tiles the counts of both, or use schedule='cooperative'")
        for word, left in leaves(node.body, ast.Break):
            self.error(left, f"'{word}' leaves the loop over tiles of line {node.lineno}, and {WHY}: those of the other warpgroups "
                             "come behind this one, and their blocks are loaded; run all tiles, or make the counts smaller")
        return True

    def own_tiles(self, node: ast.For, before: ast.expr, cta: str) -> tuple[ast.expr, ast.expr]:
        """The index before a warpgroup's first tile, and from one of its tiles to the next; those of the CTA: `before`, `cta`."""
        stride = load(cta)
        return self.call(turns.before_own, [before, stride], node), self.call(turns.own_stride, [stride], node)

    def in_turns(self, body: list[ast.stmt], node: ast.For) -> tuple[list[ast.stmt], bool]:
        """The body of a loop over tiles, rewritten already, with its turns; whether it has any."""
        running = [number for number, statement in enumerate(body) if pipeline_in(statement)]
        if not running:
            return body, False
        take, give = (ast.copy_location(ast.Expr(self.call(operation, [], node)), node)
                      for operation in (turns.take_turn, turns.pass_turn))
        first, behind = running[0], running[-1] + 1
        taken = [*with_skips(body[first:behind], [give]), *[give] * (not _passes(body[behind - 1]))]
        return [*with_skips(body[:first], [take, give]), take, *taken, *body[behind:]], True

    def tile_body(self, node: ast.For, in_turns: bool) -> tuple[list[ast.stmt], bool]:
        """The body of a loop over tiles, rewritten, and whether it has turns."""
        self.over_tiles += 1
        body = self._block(node.body)
        self.over_tiles -= 1
        return self.in_turns(body, node) if in_turns else (body, False)

    def tile_loop(self, node: ast.For, test: ast.expr, body: list[ast.stmt]) -> ast.While:
        """A loop over tiles, which are counted in `body`."""
        loop = ast.copy_location(ast.While(test, body, self._block(node.orelse)), node)
        loop.over_tiles = True  # type: ignore[attr-defined]
        return loop

    def end_of_turns(self, node: ast.For, last: str, cta: str, end: str) -> ast.stmt:
        """Behind a loop whose tiles were taken in turns."""
        return ast.Expr(self.call(turns.end_turns, [load(name) for name in (last, cta, end)], node))

    def check_turns(self, node: ast.FunctionDef) -> None:
        """In a kernel function that has been rewritten: pipelines stand in loops over tiles, of which there is one."""
        if self.unit.turns < 2:
            return
        for statement in _outside(node.body):
            found = pipeline_in(statement)
            if found is not None:
                self.error(found, f"{WHY}, so that a slot is released by one of them: a pipeline outside a loop over tiles has "
                                  "all of them as its readers; put it into `for … in numpipe.tiles(…):`, or use "
                                  "schedule='cooperative'")
        if not any(getattr(inner, "over_tiles", False) for inner in walk(node)):
            self.error(node, f"{WHY}, and the kernel has no loop over tiles: write `for m, n in numpipe.tiles(…):`, or use "
                             "schedule='cooperative'")


def _passes(statement: ast.stmt) -> bool:
    """Whether a statement is a pipeline loop, or emits a pipeline, that is told to pass the turn then."""
    made: ast.AST | None = statement.iter if is_loop(statement) else None
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        made = statement.value.func if getattr(statement.value.func, "may_pass_turn", False) else None
    if not isinstance(made, ast.Call):
        return False
    last = made.args[-1]
    assert isinstance(last, ast.Constant)
    last.value = 1
    return True


def leaves(body: list[ast.stmt], *of_loops: type[ast.stmt]) -> Iterator[tuple[str, ast.stmt]]:
    """`return` that leaves a block with this body, and those of `of_loops` (`break`, `continue`) whose loop is not in it."""
    def below(node: ast.AST, inner: bool) -> Iterator[tuple[str, ast.stmt]]:
        if isinstance(node, ast.Return) or (isinstance(node, of_loops) and not inner):
            yield type(node).__name__.lower(), node
        if not isinstance(node, (ast.FunctionDef, ast.Lambda)):
            for child in children(node):
                yield from below(child, inner or isinstance(node, (ast.For, ast.While)))

    for statement in body:
        yield from below(statement, False)


def with_skips(body: list[ast.stmt], before: list[ast.stmt]) -> list[ast.stmt]:
    """The body of a loop, with statements before each `continue` of it."""
    found: list[ast.stmt] = []
    for statement in body:
        new = _Skips(before).visit(statement)
        found += new if isinstance(new, list) else [new]
    return found


def _outside(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that are in no loop over tiles: the smallest ones, or those that hold no such loop."""
    for statement in body:
        if getattr(statement, "over_tiles", False):
            continue
        if any(getattr(inner, "over_tiles", False) for inner in walk(statement)):
            for _, part in ast.iter_fields(statement):
                if isinstance(part, list) and part and isinstance(part[0], ast.stmt):
                    yield from _outside(part)
        else:
            yield statement


class _Skips(ast.NodeTransformer):
    """Puts statements before each `continue` of the loop that a statement is in."""

    def __init__(self, before: list[ast.stmt]) -> None:
        self.before = before

    def visit_For(self, node: ast.AST) -> ast.AST:
        return node

    visit_While = visit_FunctionDef = visit_Lambda = visit_For

    def visit_Continue(self, node: ast.Continue) -> list[ast.stmt]:
        return [*self.before, node]
