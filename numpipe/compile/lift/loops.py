"""Rewriting of loops over pipelines: ``for … in pipe(arrays)`` becomes a loop over the ring's
iterator, and statements that it cannot contain are rejected."""

from __future__ import annotations

import ast
import math
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from ...arch.dimensions import Ints
from ...core.functions import Facts
from ...core.op import does
from ...language.grid import split_k, tile_loop
from ...language.pipeline import body_form, operand_barriers, pipelines
from ...language.tiles import products_in_flight
from .arithmetic import Arithmetic
from .constants import MISSING, literal_node, one_of, stores
from .nodes import (
    Block,
    Function,
    argument,
    assign,
    children,
    load,
    located,
    names,
    operation,
    own,
    running,
    surely,
    tuple_of,
    walk,
)
from .rewriter import NOT_MINE
from .tile_loops import TileLoops
from .turn_placement import is_loop, leaves, sure_turns
from .wait_counts import in_place

PIPELINE = Facts("a pipeline", 0, pipelines=True)
BUILDERS = body_form.emit_pipeline_warp_specialized, body_form.emit_pipeline
"""Functions that emit a pipeline."""


def holds_pipeline(body: Block) -> bool:
    """Return whether rewritten statements make or run a pipeline, or call a function that does."""
    return any(
        running((pipelines.steps, pipelines.make_pipeline, body_form.emitted), "pipelines", *body)
    )


def makes_pipeline(node: ast.AST) -> bool:
    """Return whether a rewritten call makes a pipeline for a loop, or calls a function that returns
    one."""
    facts: Facts | None = getattr(node, "facts", None)
    return operation(node) is pipelines.make_pipeline or (facts is not None and facts.makes)


class Loops(TileLoops, Arithmetic):
    """``for … in pipe(arrays)``, and what the names of pipelines and nested functions stand for."""

    # ---- what names are bound to
    def _binds(self, name: str) -> list[ast.AST]:
        """Return the nodes that bind a name, in the innermost function that binds it."""
        return next((scope[name] for _, scope in reversed(self.scopes) if name in scope), [])

    def _calls_of(self, value: ast.expr) -> list[ast.Call]:
        """Return the calls that a value may come from: the value itself, if it is a call, or the
        calls assigned to its name."""
        binds = self._binds(value.id) if isinstance(value, ast.Name) else []
        places = [place for place in binds if isinstance(place, ast.Name)]
        if not places:
            return [value] if isinstance(value, ast.Call) else []
        return [
            node.value
            for scope, _ in self.scopes
            for node in walk(scope)
            if isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Call)
            and any(target in places for target in node.targets)
        ]

    def _pipeline_call(self, node: ast.AST) -> bool:
        """Return whether an expression is ``pipe(arrays)``: a call of a pipeline that is made in
        place, or bound to a name, or returned by a function."""
        return isinstance(node, ast.Call) and any(
            makes_pipeline(call) or self.value(call.func) is pipelines.pipeline
            for call in self._calls_of(node.func)
        )

    def _emitted_facts(self, value: ast.expr) -> Facts | None:
        """Return the facts of an emitted pipeline; None for any other value."""
        for call in self._calls_of(value):
            if operation(call) is body_form.emitted or one_of(self.callee(call), BUILDERS):
                return getattr(call, "facts", PIPELINE)
        return None

    def _nested_facts(self, name: str) -> Facts | None:
        """Return the facts of the nested function that a name stands for."""
        places = self._binds(name)
        return self.facts.get(id(places[0])) if len(places) == 1 else None

    def _function_of(self, value: ast.expr) -> ast.FunctionDef | ast.Lambda | None:
        """Return the nested function or lambda that a value is, or None if unknown."""
        places = self._binds(value.id) if isinstance(value, ast.Name) else [value]
        function = places[0] if len(places) == 1 else None
        return function if isinstance(function, Function) else None

    # ---- loops
    def own_loop(self, node: ast.For) -> Any:
        """Rewrite a loop over a pipeline or over tiles."""
        if not isinstance(node.iter, ast.Call):
            return NOT_MINE
        if self._pipeline_call(node.iter):
            return self._pipeline_loop(node)
        function = self.value(node.iter.func)
        if one_of(function, (tile_loop.tiles, tile_loop.nd_loop, split_k.split_tiles)):
            return self.tiles_loop(node, function)
        pair = node.target.elts if isinstance(node.target, ast.Tuple) else []
        if 2 <= len(pair) <= 4 and all(isinstance(part, ast.Tuple) for part in pair):
            self.error(pipelines.IN_A_FOR)
        return NOT_MINE

    def _not_itself(self, node: ast.For) -> None:
        """Reject a loop inside a pipeline's loop that uses the same slots: a loop over the same
        pipeline and arrays, or one that shares its allocations."""
        assert isinstance(node.iter, ast.Call)
        pipe = node.iter.func
        call = ast.dump(node.iter)
        slots = self._slots(node.iter)
        keywords = node.iter.keywords
        if not isinstance(pipe, ast.Name) or len(self._binds(pipe.id)) != 1:
            return
        for inner in own(node.body):
            if isinstance(inner, ast.For) and ast.dump(inner.iter) == call:
                self.error(
                    f"{ast.unparse(inner.iter)} runs inside its own loop at line {node.lineno}, "
                    "whose slots are in use until that loop ends; fix: make a second pipeline "
                    "for it",
                    inner.iter,
                )
            if (
                isinstance(inner, ast.For)
                and isinstance(inner.iter, ast.Call)
                and slots is not None
                and (slots == self._slots(inner.iter) and (inner.iter.keywords or keywords))
            ):
                self.error(
                    f"{ast.unparse(inner.iter)} runs inside the loop at line {node.lineno} and "
                    "shares its slots, which are in use until that loop ends; fix: give it its "
                    "own allocations",
                    inner.iter,
                )

    def _slots(self, call: ast.Call) -> str | None:
        """Return the name of the pipeline whose slots a loop uses: its own, or the one whose
        ``get_allocations`` it is given."""
        shared = argument(call, "allocations")
        allocations: ast.AST | None = shared
        if isinstance(shared, ast.Name):
            allocations = (
                next(iter(self._calls_of(shared)), None)
                if len(self._binds(shared.id)) == 1
                else None
            )
        source: ast.AST | None = call.func if shared is None else None
        if isinstance(allocations, ast.Call):  # as it is written, or as an operation
            method = allocations.func
            source = (
                method.value
                if isinstance(method, ast.Attribute)
                else next(iter(allocations.args), None)
            )
        return source.id if isinstance(source, ast.Name) else None

    def plain_loop(self, node: ast.For) -> ast.For:
        node.iter = self._settled(self.visit(node.iter), ints=True)
        node.body, node.orelse = self._block(node.body), self._block(node.orelse)
        return node

    def _pipeline_loop(self, node: ast.For) -> Block:
        assert isinstance(node.iter, ast.Call)
        # slots that the memory role still fills would be abandoned
        for word, left in leaves(node.body, ast.Break):
            harm = (
                "the memory role would still load the remaining steps"
                if self.unit.warp_specialized
                else "the next steps are being loaded, and nobody would wait for them"
            )
            self.error(
                f"'{word}' leaves the pipeline loop at line {node.lineno}: {harm}; fix: run all "
                "steps, or make the grid smaller",
                left,
            )
        if node.orelse:
            self.error("a pipeline loop has no 'else'", node.orelse[0])
        self._not_itself(node)
        unpacked = self._unpacks(node.target, len(node.iter.args))
        carried = self._carried(node, names(ast.Store, node.target))
        shared = [k.value for k in node.iter.keywords if k.arg == "allocations"]
        arrays = tuple_of([*node.iter.args, *shared], node.iter)
        if len(shared) != len(node.iter.keywords) or any(
            isinstance(a, ast.Starred) for a in node.iter.args
        ):
            self.error("a pipeline is called with its arrays by position", node.iter)
        nested, groups, last = (ast.copy_location(ast.Constant(0), node.iter) for _ in range(3))
        facts = unpacked, self._waited(node), None
        call = node.iter = self.call(
            pipelines.steps, [node.iter.func, arrays, nested, groups, *facts, last], node.iter
        )
        changes = {
            name: statement
            for statement in walk(*node.body)
            if isinstance(statement, (ast.Assign, ast.AugAssign))
            for name in sorted(names(ast.Store, statement))
            if name in carried
        }
        loop = self.plain_loop(node)
        nested.value, groups.value = int(holds_pipeline(loop.body)), self._groups(loop.body)
        call.args[-2] = literal_node(sure_turns(loop.body), call)
        before = {name: self.temporary("before") for name in changes}
        for name, statement in changes.items():
            message = f"'{name}' is {{}} {pipelines.KEPT} {node.lineno}, and {{}} after a step: "
            args = [literal_node(message, node), load(before[name]), load(name)]
            loop.body.append(
                located(self.statement(pipelines.check_kept, args, statement), statement)
            )
        begin = [
            assign(name, self.call(pipelines.before_loop, [load(of)]))
            for of, name in before.items()
        ]
        return [
            *(located(statement, node) for statement in begin),
            loop,
            *(
                located(
                    assign(
                        name,
                        self.call(products_in_flight.drained, [load(name), 0]),
                    ),
                    node,
                )
                for name in carried
            ),
        ]

    def _unpacks(self, target: ast.expr, arrays: int) -> Ints:
        """Check the names of a loop, ``for (indices), (tiles), …``; return the number of names in
        each of its groups of barriers."""
        groups = target.elts if isinstance(target, ast.Tuple) else []
        if not 2 <= len(groups) <= 4 or not all(
            isinstance(group, ast.Tuple) for group in groups[2:]
        ):
            self.error(
                "expected a pipeline loop `for (indices), (tiles) in pipe(arrays):`, got `for "
                f"{ast.unparse(target)}`",
                target,
            )
        tiles = groups[1]
        if (
            isinstance(tiles, ast.Tuple)
            and len(tiles.elts) != arrays
            and not any(isinstance(t, ast.Starred) for t in tiles.elts)
        ):
            self.error(
                f"the pipeline is called with {arrays} arrays, but the loop unpacks "
                f"{len(tiles.elts)} tiles: {ast.unparse(tiles)}",
                target,
            )
        barriers = [group.elts for group in groups[2:] if isinstance(group, ast.Tuple)]
        return tuple(
            -1 if any(isinstance(part, ast.Starred) for part in parts) else len(parts)
            for parts in barriers
        )

    def _waited(self, node: ast.For) -> Ints:
        """Return the numbers of the ready barriers that every step of a loop waits for before it
        could release the tile, and ~number of those that it waits for later.

        A step waits with ``numpipe.barrier_wait(k_ready)`` as a statement, on every path through
        it, and does not name the consumed barrier before. A loop's groups are not labeled: whether
        two groups are ready and consumed barriers, or one group is ready barriers, follows from the
        waits, which do not accept a consumed barrier.
        """
        assert isinstance(node.target, ast.Tuple)
        ready, consumed = [
            [n.id if isinstance(n, ast.Name) else "" for n in group.elts]
            if isinstance(group, ast.Tuple)
            else []
            for group in (*node.target.elts[2:], None, None)[:2]
        ]
        bound = names(ast.Store, *node.body)
        numbers = {name: number for number, name in enumerate(ready) if name and name not in bound}
        sure, ends = set(numbers.values()), []

        def follow(body: Block, waited: set[int]) -> set[int] | None:
            """Return what has been waited for after some statements; None if the step has ended in
            them."""
            for statement in in_place(body):
                if isinstance(statement, ast.If):
                    test = self.value(statement.test)
                    arms = (
                        [statement.body, statement.orelse]
                        if test is MISSING
                        else [statement.body if test else statement.orelse]
                    )
                    behind = [
                        after for arm in arms if (after := follow(arm, set(waited))) is not None
                    ]
                    if not behind:
                        return None
                    waited = set.intersection(*behind)
                    continue
                if any(isinstance(inner, (ast.Continue, ast.Return)) for inner in walk(statement)):
                    ends.append(waited)
                    return None
                call = statement.value if isinstance(statement, ast.Expr) else None
                name = call.args[0] if isinstance(call, ast.Call) and len(call.args) == 1 else None
                if (
                    isinstance(call, ast.Call)
                    and isinstance(name, ast.Name)
                    and name.id in numbers
                    and (self.value(call.func) is operand_barriers.barrier_wait)
                ):
                    waited.add(numbers[name.id])
                named = {inner.id for inner in walk(statement) if isinstance(inner, ast.Name)}
                sure.difference_update(
                    {number for number in sure - waited if {*consumed[number : number + 1]} & named}
                )
            return waited

        after = follow(node.body, set())
        always = set(numbers.values()).intersection(*ends, *([] if after is None else [after]))
        return tuple(sorted(number if number in sure else ~number for number in always))

    def _groups(self, body: Block) -> int:
        """Return how many products every step issues. The number left in flight is counted in these
        products, so every step must issue all of them."""
        sure = 0
        for statement in body:
            for node in surely(statement):
                facts: Facts | None = getattr(node, "facts", None)
                issues = does(self.callee(node), "issues")
                sure += issues + (facts.products if facts else 0)
            if any(isinstance(node, (ast.Continue, ast.Return)) for node in walk(statement)):
                break
        return sure

    def _carried(self, node: ast.For, targets: set[str]) -> list[str]:
        """Return the names that a loop rebinds and that were bound before it, which include the
        accumulators in flight at its end."""
        inside = {id(n) for n in walk(*node.body)}
        inner_targets = names(
            ast.Store,
            *(loop.target for loop in walk(*node.body) if isinstance(loop, ast.For)),
        )
        result, reads = [], defaultdict(list)
        for read in _reads(self.scopes[-1][0]):
            reads[read.id].append(read)
        for name, places in self.scopes[-1][1].items():
            here = [p for p in places if id(p) in inside]
            if name in targets and (use := self._used_after(node, name, reads[name])):
                self.error(
                    f"'{name}' belongs to a step of the pipeline loop at line {node.lineno} but "
                    "is used after the loop, where its slot is filled again; fix: use it, or "
                    f"load it with {name}[...], in the loop",
                    use,
                )
            if not here or name in targets:
                continue
            before = [
                p for p in places if id(p) not in inside and getattr(p, "lineno", 0) <= node.lineno
            ]
            if before and self._stays_in_steps(node, name, reads[name]):
                continue
            if before and name not in inner_targets:
                result.append(name)
            elif not before and self._used_after(node, name, reads[name]):
                self.error(
                    f"'{name}' is first assigned in the pipeline loop at line {node.lineno} and "
                    "used after it: if the loop has no steps, it has no value; fix: assign it "
                    "before the loop",
                    here[0],
                )
        return sorted(result)

    def _stays_in_steps(self, node: ast.For, name: str, reads: list[ast.Name]) -> bool:
        """Return whether the `reads` of a name are in this and other pipeline loops, each step of
        which first assigns it a value."""

        def mentions(node: ast.AST) -> bool:
            return any(isinstance(n, ast.Name) and n.id == name for n in walk(node))

        def begins(body: Block) -> bool:
            first = next((s for s in body if mentions(s)), None)
            if isinstance(first, ast.With):
                return begins(first.body)
            return isinstance(first, ast.Assign) and not mentions(first.value)

        def in_steps(loop: ast.For) -> bool:
            return begins(loop.body) and (is_loop(loop) or self._pipeline_call(loop.iter))

        scope = self.scopes[-1][0]
        loops = (
            [loop for loop in walk(scope) if isinstance(loop, ast.For) and in_steps(loop)]
            if in_steps(node)
            else []
        )
        inside = {id(n) for loop in loops for n in walk(*loop.body)} if node in loops else set()
        return all(id(n) in inside for n in reads)

    def _used_after(self, loop: ast.For, name: str, reads: list[ast.Name]) -> ast.Name | None:
        """Return the first of the `reads` of a name that is after a loop, and before the name is
        bound again."""
        end = loop.end_lineno or loop.lineno
        lines = (getattr(place, "lineno", 0) for place in self.scopes[-1][1][name])
        rebound = min((line for line in lines if line > end), default=math.inf)
        return next((read for read in reads if end < read.lineno < rebound), None)


def _reads(node: ast.AST, hidden: frozenset[str] = frozenset()) -> Iterator[ast.Name]:
    """Yield where variables are read below a node, not where nested functions have their own."""
    for child in children(node):
        inner = hidden
        if isinstance(child, Function):
            inner = hidden.union(name for name, _ in stores(child))
        if (
            isinstance(child, ast.Name)
            and child.id not in hidden
            and isinstance(child.ctx, ast.Load)
        ):
            yield child
        yield from _reads(child, inner)
