"""Loops over pipelines and tiles, rewritten: the ring's iterator, and a counted loop over this CTA's tiles."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from ...core import arith
from ...core.facts import Facts
from ...core.op import does
from ...language.grid import splits, tile_loop
from ...language.pipeline import barriers, emit, pipelines
from ...language.tiles import products
from ...plan import profiling
from .arithmetic import Arithmetic
from .fold import MISSING, literal_node
from .nodes import assign, children, load, located, operation, walk
from .order_tokens import sure_turns
from .pipeline_names import PipelineNames
from .rewriter import NOT_MINE
from .turns import is_loop, leaves
from .waits import in_place

PIPELINE = Facts("a pipeline", 0, pipelines=True)
_HELD = pipelines.steps, pipelines.make_pipeline, emit.emitted


class Loops(PipelineNames, Arithmetic):
    """``for … in pipe(arrays)`` and ``for … in numpipe.tiles(…)``, and what may not happen in them."""

    def _pipeline_call(self, node: ast.AST) -> bool:
        """Whether an expression is ``pipe(arrays)``: a call of a pipeline, made in place or bound to a name."""
        if not isinstance(node, ast.Call):
            return False
        return self._made_by(node.func, pipelines.pipeline, pipelines.make_pipeline) is not None

    def _emitted_facts(self, made: ast.expr) -> Facts | None:
        """What is known of an emitted pipeline; None for what is none."""
        for builder in (emit.emit_pipeline_warp_specialized, emit.emit_pipeline):
            if (call := self._made_by(made, builder, emit.emitted)) is not None:
                return getattr(call, "facts", PIPELINE)
        return None

    def _nested_facts(self, name: str) -> Facts | None:
        """What is known of the nested function that a name stands for."""
        places = self._binds(name)
        return self.facts.get(id(places[0])) if len(places) == 1 else None

    @staticmethod
    def _holds_pipeline(body: list[ast.stmt]) -> bool:
        """Whether statements, already rewritten, run a pipeline, or call a function that does."""
        for statement in body:
            for node in walk(statement):
                facts: Facts | None = getattr(node, "facts", None)
                if facts.pipelines if facts is not None else operation(node) in _HELD:
                    return True
        return False

    def own_loop(self, node: ast.For) -> Any:
        """A loop over a pipeline or over tiles."""
        if self._pipeline_call(node.iter):
            return self._pipeline_loop(node)
        if isinstance(node.iter, ast.Call) and self.value(node.iter.func) is tile_loop.tiles:
            return self._tiles_loop(node)
        if isinstance(node.iter, ast.Call) and self.value(node.iter.func) is tile_loop.nd_loop:
            return self._nd_loop(node)
        if isinstance(node.iter, ast.Call) and self.value(node.iter.func) is splits.split_tiles:
            self.check_split_loop(node)
            return self._tiles_loop(node, split=True)
        if self._looks_like_a_pipeline(node):
            self.error(node, pipelines.IN_A_FOR)
        return NOT_MINE

    @staticmethod
    def _looks_like_a_pipeline(node: ast.For) -> bool:
        pair = node.target.elts if isinstance(node.target, ast.Tuple) else []
        return isinstance(node.iter, ast.Call) and 2 <= len(pair) <= 4 and all(isinstance(p, ast.Tuple) for p in pair)

    def plain_loop(self, node: ast.For) -> ast.For:
        node.iter = self._settled(self.visit(node.iter), ints=True)
        node.body, node.orelse = self._block(node.body), self._block(node.orelse)
        return node

    def _pipeline_loop(self, node: ast.For) -> list[ast.stmt]:
        assert isinstance(node.iter, ast.Call)
        self._stays_inside(node)
        self._not_itself(node)
        unpacked = self._unpacks(node.target, len(node.iter.args))
        targets = {n.id for n in walk(node.target) if isinstance(n, ast.Name)}
        carried = self._carried(node, targets)
        shared = [k.value for k in node.iter.keywords if k.arg == "allocations"]
        arrays = ast.copy_location(ast.Tuple([*node.iter.args, *shared], ast.Load()), node.iter)
        if len(shared) != len(node.iter.keywords) or any(isinstance(a, ast.Starred) for a in node.iter.args):
            self.error(node.iter, "a pipeline is called on its arrays by position")
        nested, groups, last = (ast.copy_location(ast.Constant(0), node.iter) for _ in range(3))
        facts: list[ast.expr] = [literal_node(fact, node.iter) for fact in (unpacked, self._waited(node), None)]
        made = node.iter = self.call(pipelines.steps, [node.iter.func, arrays, nested, groups, *facts, last], node.iter)
        loop = self.plain_loop(node)
        nested.value, groups.value = int(self._holds_pipeline(loop.body)), self._groups(loop.body)
        made.args[-2] = literal_node(sure_turns(loop.body), made)
        return [loop, *(located(assign(name, self.call(products.drained, [load(name), literal_node(0, node)], node)), node)
                        for name in carried)]

    def _unpacks(self, target: ast.expr, arrays: int) -> tuple[int, ...]:
        """``for (indices), (tiles)``: a pair, with a tile for each array; behind it groups of barriers: how many names each has."""
        groups = target.elts if isinstance(target, ast.Tuple) else []
        if not 2 <= len(groups) <= 4 or not all(isinstance(group, ast.Tuple) for group in groups[2:]):
            self.error(target, "a pipeline loop is written `for (indices), (tiles) in pipe(arrays):`, got "
                               f"`for {ast.unparse(target)}`")
        tiles = groups[1]
        if isinstance(tiles, ast.Tuple) and len(tiles.elts) != arrays and not any(isinstance(t, ast.Starred) for t in tiles.elts):
            self.error(target, f"the pipeline is called on {arrays} arrays, but the loop unpacks {len(tiles.elts)} tiles: "
                               f"{ast.unparse(tiles)}")
        barriers = [group.elts for group in groups[2:] if isinstance(group, ast.Tuple)]
        return tuple(-1 if any(isinstance(part, ast.Starred) for part in parts) else len(parts) for parts in barriers)

    def _waited(self, node: ast.For) -> tuple[int, ...]:
        """The ready barriers, by number, that every step of a loop waits for before it could release the tile.

        ``numpipe.barrier_wait(k_ready)`` as a statement, on every way through the step, with nothing that names the consumed
        barrier before it. A loop's groups do not say what they are; that two groups are ready and consumed barriers, or one
        group ready ones, is seen from the waits, which a consumed barrier refuses.
        """
        assert isinstance(node.target, ast.Tuple)
        ready, consumed = [[n.id if isinstance(n, ast.Name) else "" for n in group.elts] if isinstance(group, ast.Tuple) else []
                           for group in (*node.target.elts[2:], None, None)[:2]]
        bound = {n.id for s in node.body for n in walk(s) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        numbers = {name: number for number, name in enumerate(ready) if name and name not in bound}
        sure = set(numbers.values())

        def follow(body: list[ast.stmt], waited: set[int]) -> set[int] | None:
            """What was waited for behind some statements; None: the step has ended in them."""
            for statement in in_place(body):
                if isinstance(statement, ast.If):
                    test = self.value(statement.test)
                    arms = [statement.body, statement.orelse] if test is MISSING else [statement.body if test else statement.orelse]
                    behind = [after for arm in arms if (after := follow(arm, set(waited))) is not None]
                    if not behind:
                        return None
                    waited = set.intersection(*behind)
                    continue
                if any(isinstance(inner, (ast.Continue, ast.Return)) for inner in walk(statement)):
                    sure.intersection_update(waited)
                    return None
                call = statement.value if isinstance(statement, ast.Expr) else None
                name = call.args[0] if isinstance(call, ast.Call) and len(call.args) == 1 else None
                if isinstance(call, ast.Call) and isinstance(name, ast.Name) and name.id in numbers and (
                        self.value(call.func) is barriers.barrier_wait):
                    waited.add(numbers[name.id])
                named = {inner.id for inner in walk(statement) if isinstance(inner, ast.Name)}
                sure.difference_update({number for number in sure - waited if {*consumed[number:number + 1]} & named})
            return waited

        after = follow(node.body, set())
        return tuple(sorted(sure if after is None else sure & after))

    def _groups(self, body: list[ast.stmt]) -> int:
        """Products that every step issues: what may stay in flight is counted in them, so none may be missing."""
        sure = 0
        for statement in body:
            if isinstance(statement, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Expr, ast.Return)):
                sure += self._products(statement)
            if any(isinstance(node, (ast.Continue, ast.Return)) for node in walk(statement)):
                break
        return sure

    def _products(self, node: ast.AST) -> int:
        """Products that evaluating `node` is sure to issue."""
        match node:
            case ast.Lambda():
                return 0
            case ast.IfExp(test=first) | ast.BoolOp(values=[first, *_]):
                return self._products(first)
        facts: Facts | None = getattr(node, "facts", None)
        own = isinstance(node, ast.Call) and does(self.value(node.func), "issues")
        return own + (facts.products if facts else 0) + sum(self._products(child) for child in children(node))

    def _stays_inside(self, node: ast.For) -> None:
        """`break` and `return` would leave slots that the memory role still fills."""
        for word, left in leaves(node.body, ast.Break):
            harm = ("the memory role would still load the remaining steps" if self.unit.warp_specialized else
                    "the next steps are being loaded, and nobody would wait for them")
            self.error(left, f"'{word}' leaves the pipeline loop of line {node.lineno}: {harm}; run all steps, or make the grid "
                             "smaller")
        if node.orelse:
            self.error(node.orelse[0], "a pipeline loop has no 'else'")

    def _carried(self, node: ast.For, targets: set[str]) -> list[str]:
        """Names re-bound in the loop and bound before it: among them the accumulators in flight at its end."""
        inside = {id(n) for statement in node.body for n in walk(statement)}
        result, names = [], self.scopes[-1][1]
        for name, places in names.items():
            here = [p for p in places if id(p) in inside]
            if name in targets and (use := self._used_after(node, name)):
                self.error(use, f"'{name}' belongs to a step of the pipeline loop of line {node.lineno} and is used after it, "
                                "where its slot is filled again: take what is needed of it in the loop")
            if not here or name in targets:
                continue
            inner_targets = {n.id for s in node.body for f in walk(s) if isinstance(f, ast.For)
                             for n in walk(f.target) if isinstance(n, ast.Name)}
            before = [p for p in places if id(p) not in inside and getattr(p, "lineno", 0) <= node.lineno]
            if before and self._stays_in_steps(node, name):
                continue
            if before and name not in inner_targets:
                result.append(name)
            elif not before and self._used_after(node, name):
                self.error(here[0], f"'{name}' is born in the pipeline loop of line {node.lineno} and used after it: with no "
                                    "steps it would have no value; bind it before the loop")
        return sorted(result)

    def _stays_in_steps(self, node: ast.For, name: str) -> bool:
        """Whether a name is read only in this and other pipeline loops, and every step of them gives it a value first."""
        def mentions(node: ast.AST) -> bool:
            return any(isinstance(n, ast.Name) and n.id == name for n in walk(node))

        def begins(body: list[ast.stmt]) -> bool:
            first = next((s for s in body if mentions(s)), None)
            if isinstance(first, ast.With):
                return begins(first.body)
            return isinstance(first, ast.Assign) and not mentions(first.value)

        scope = self.scopes[-1][0]
        loops = [loop for loop in walk(scope) if isinstance(loop, ast.For) and begins(loop.body) and (
            is_loop(loop) or self._pipeline_call(loop.iter))]
        inside = {id(n) for loop in loops for s in loop.body for n in walk(s)} if node in loops else set()
        other = {id(n) for f in walk(scope) if isinstance(f, ast.FunctionDef) and f is not scope
                 and any(a.arg == name for a in f.args.args) for n in walk(f)}  # a parameter that is called so
        return all(id(n) in inside | other for n in walk(scope)
                   if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load))

    def _used_after(self, loop: ast.For, name: str) -> ast.Name | None:
        """Where a name is read behind a loop, before it is bound again."""
        end = loop.end_lineno or loop.lineno
        rebound = [getattr(p, "lineno", 0) for p in self.scopes[-1][1][name] if getattr(p, "lineno", 0) > end]

        def read(node: ast.AST) -> Iterator[ast.Name]:
            for child in children(node):
                own = isinstance(child, (ast.FunctionDef, ast.Lambda)) and any(
                    (isinstance(n, ast.arg) and n.arg == name) or (isinstance(n, ast.Name) and n.id == name
                                                                  and isinstance(n.ctx, ast.Store)) for n in walk(child))
                if own:  # another variable of that name
                    continue
                if isinstance(child, ast.Name) and child.id == name and isinstance(child.ctx, ast.Load):
                    yield child
                yield from read(child)

        return next((n for n in read(self.scopes[-1][0]) if n.lineno > end and not any(line <= n.lineno for line in rebound)), None)

    def _nd_loop(self, node: ast.For) -> list[ast.stmt]:
        """``for i, j in nd_loop((m, n)):`` is a loop over tiles of so many counts, in row order."""
        assert isinstance(node.iter, ast.Call)
        keywords = {k.arg: k.value for k in node.iter.keywords}
        given = [*node.iter.args, *([keywords["grid"]] if "grid" in keywords else [])]
        if len(given) != 1 or set(keywords) - {"grid"}:
            self.error(node.iter, "numpipe.nd_loop takes one argument, the grid: for i, j in numpipe.nd_loop((m, n)):")
        known = self.value(given[0])
        grid = literal_node(known, given[0]) if isinstance(known, tuple) else given[0]
        if not isinstance(grid, ast.Tuple) or not grid.elts:
            self.error(given[0], "numpipe.nd_loop: the grid is written as a tuple, (m, n), with a size for each index, got "
                                 f"{ast.unparse(given[0])}")
        if not isinstance(node.target, ast.Tuple) or len(node.target.elts) != len(grid.elts):
            self.error(node.target, f"numpipe.nd_loop of {len(grid.elts)} dimensions gives a tuple of {len(grid.elts)} indices, "
                                    f"got `for {ast.unparse(node.target)} in`")
        node.iter = ast.copy_location(ast.Call(node.iter.func, grid.elts, []), node.iter)
        return self._tiles_loop(node, True)

    def _tiles_loop(self, node: ast.For, any_rank: bool = False, split: bool = False) -> list[ast.stmt]:
        assert isinstance(node.iter, ast.Call)
        counts = list(node.iter.args)
        options = {k.arg: k.value for k in node.iter.keywords}
        if not split:
            self._check_tiles_loop(node, counts, options)
        names = [self.temporary("count") for _ in counts]
        setup: list[ast.stmt] = [assign(n, self.visit(c)) for n, c in zip(names, counts, strict=True)]
        loads: list[ast.expr] = [load(n) for n in names]
        setup += [ast.Expr(self.call(tile_loop.check_count, [literal_node(number, count), loaded], count))
                  for number, (count, loaded) in enumerate(zip(counts, loads, strict=True))]
        t = self.temporary("tile")
        index = load(t)
        plane = [literal_node(1, node)] if len(counts) == 3 and self.value(counts[0]) == 1 else loads[:1]
        way = self.walk(node, options, [*plane, *loads[1:]], any_rank)
        setup += way.setup
        in_turns = self.turn_taking(node)
        total = loads[0]
        for other in loads[1:]:
            total = self.call(arith.mul, [total, other], node)
        parts = self.parts_of(node, options, way, total) if split else None
        setup += parts.setup if parts is not None else []
        if self.is_dynamic(node, options):
            if parts is not None and parts.count is not None:
                self.error(options["dynamic"], "numpipe.split_tiles: dynamic=True takes whole tiles from a counter, and split= "
                                               "cuts them: an owner could wait for a part that nobody has begun; leave one out")
            return self.dealt(node, setup, way, total, in_turns, parts.placed if parts is not None else None)
        stride, end = self.temporary("stride"), self.temporary("tiles")
        before: ast.expr = self.call(tile_loop.before_first_tile, [], node)
        own: ast.expr = self.call(tile_loop.tile_stride, [], node)
        if parts is not None and parts.count is not None:
            before, own, total = literal_node(-1, node), literal_node(1, node), parts.count
        if in_turns:
            cta = self.temporary("cta")
            setup.append(assign(cta, own))
            before, own = self.own_tiles(node, before, cta)
        step = [index, load(stride)]
        # a `range` would cost a 64-bit division; the index moves at the top, so that `continue` works
        setup += [assign(stride, own), assign(end, total), assign(t, before)]
        advance: list[ast.stmt] = [assign(t, self.call(arith.add, list(step), node)),
                                   ast.Expr(self.call(profiling.mark_tile, [index], node))]
        if parts is not None:
            advance += parts.placed(index)
        elif way.ahead:  # the indices of a tile are read while the one before is computed
            entry = self.temporary("entry")
            first, again = (assign(entry, way.place(self.call(arith.add, list(step), node), load(end))) for _ in range(2))
            setup.append(first)
            advance += [ast.Assign([node.target], load(entry)), again]
        else:
            advance.append(ast.Assign([node.target], way.place(index, load(end))))
        test = self.call(arith.lt, [self.call(arith.add, list(step), node), load(end)], node)
        body, ordered = self.tile_body(node, in_turns)
        loop = self.tile_loop(node, test, [*advance, *body])
        behind = [self.end_of_turns(node, t, cta, end)] if ordered else []
        return [located(statement, node) for statement in (*setup, loop, *behind)]

    def _check_tiles_loop(self, node: ast.For, counts: list[ast.expr], options: dict[str | None, ast.expr]) -> None:
        if set(options) - {"order", "group", "dynamic"} or any(isinstance(c, ast.Starred) for c in counts) or not counts:
            self.error(node, "numpipe.tiles takes the tile counts, order=, group= and dynamic=")
        if isinstance(node.target, ast.Tuple) and len(node.target.elts) != len(counts) and len(counts) > 1:
            self.error(node, f"numpipe.tiles of {len(counts)} counts gives {len(counts)} indices, the loop unpacks "
                             f"{len(node.target.elts)}: {ast.unparse(node.target)}")
        if not isinstance(node.target, ast.Tuple) and len(counts) == 1:
            self.error(node, "numpipe.tiles gives a tuple of indices, for one count too: write "
                             f"`for ({ast.unparse(node.target)},) in numpipe.tiles(…):`")
