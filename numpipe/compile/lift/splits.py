"""``for m, n, part in numpipe.split_tiles(…)``: a loop over this CTA's parts, the tile of each found by an order of tiles."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass

from ...language.grid import reduce_scatter, splits
from ...plan import context
from .fold import MISSING, literal_node
from .nodes import assign, load
from .orders import TileOrders, Walk

_OPTIONS = {"steps", "split", "order", "group", "dynamic"}


@dataclass(frozen=True)
class Parts:
    """What a loop over parts has in place of that over tiles."""

    setup: list[ast.stmt]
    count: ast.expr | None
    """how many this CTA has, which are numbered one by one; None: parts are whole tiles, numbered as these"""
    placed: Callable[[ast.expr], list[ast.stmt]]
    """number of a part -> the statements that bind the loop's names"""


class SplitLoops(TileOrders):
    """The arguments of `numpipe.split_tiles`, rewritten."""

    def check_split_loop(self, node: ast.For) -> None:
        """Refuse what is no loop over parts."""
        call = node.iter
        assert isinstance(call, ast.Call)
        options = {k.arg for k in call.keywords}
        counts = len(call.args)
        if options - _OPTIONS or any(isinstance(c, ast.Starred) for c in call.args) or not counts:
            self.error(call, "numpipe.split_tiles takes the tile counts, steps=, split=, order=, group= and dynamic=")
        if "steps" not in options:
            self.error(call, "numpipe.split_tiles: steps= is missing, the blocks of K of a whole tile: cdiv(a.shape[1], tk)")
        target = node.target.elts if isinstance(node.target, ast.Tuple) else [node.target]
        if len(target) != counts + 1 or not isinstance(target[-1], ast.Name):
            self.error(node.target, f"numpipe.split_tiles of {counts} counts gives {counts} indices and a part, got "
                                    f"`for {ast.unparse(node.target)} in`")

    def parts_of(self, node: ast.For, options: dict[str | None, ast.expr], walk: Walk, total: ast.expr) -> Parts:
        """The parts of the tiles of a loop, whose counts have been multiplied to `total`."""
        if walk.ahead:
            self.error(options["order"] or node, "numpipe.split_tiles takes no host table: order= is a name or an object of "
                                                 "numpipe.orders")
        assert isinstance(node.target, ast.Tuple)
        *indices, part = node.target.elts

        def bind(tile: ast.expr, made: ast.expr) -> list[ast.stmt]:
            return [ast.Assign([ast.copy_location(ast.Tuple(indices, ast.Store()), node.target)], walk.place(tile, total)),
                    ast.Assign([part], made)]

        split = options.get("split", literal_node(splits.STREAM, node))
        known, steps = self.value(split), self.visit(options["steps"])
        if known is None:
            name = self.temporary("steps")
            return Parts([assign(name, steps)], None, lambda index: bind(index, self.call(splits.whole_tile, [load(name)], node)))
        stream = known == splits.STREAM
        if isinstance(known, str) and not stream:
            return self._by_ctas_of_a_cluster(node, split, known, steps, bind)
        if self.unit.clustered:
            self.error(split, "numpipe.split_tiles: the CTAs of a cluster go through the same tiles, and here each has parts of "
                              "its own: leave cluster_names out, or split=None, or the name of an axis of the cluster")
        if not stream and known is not MISSING and (isinstance(known, bool) or not isinstance(known, int) or known < 1):
            self.error(split, splits.no_split(repr(known)))
        begin, place = ((splits.begin_stream, splits.place_stream) if stream else (splits.begin_split, splits.place_split))
        parts = literal_node(1, split) if stream else self.visit(split)
        begun, found = self.temporary("parts"), self.temporary("part")
        at_run_time = not stream and known is MISSING
        setup: list[ast.stmt] = [ast.Expr(self.call(splits.check_split, [parts], split))] if at_run_time else []
        setup.append(assign(begun, self.call(begin, [total, steps, parts], node)))

        def item(of: str, number: int) -> ast.expr:
            return ast.Subscript(load(of), ast.Constant(number), ast.Load())

        def placed(index: ast.expr) -> list[ast.stmt]:
            return [assign(found, self.call(place, [index, load(begun)], node)), *bind(item(found, 0), item(found, 1))]

        return Parts(setup, item(begun, 0), placed)

    def _by_ctas_of_a_cluster(self, node: ast.For, split: ast.expr, axis: str, steps: ast.expr,
                              bind: Callable[[ast.expr, ast.expr], list[ast.stmt]]) -> Parts:
        """A part of each tile for each CTA along an axis of the cluster: its tiles are those of the cluster."""
        self._check_axis(split, "split_tiles: split", axis)
        part, here = self.temporary("part"), self.call(context.axis_index, [literal_node(axis, node)], node)
        made = self.call(splits.cluster_part, [steps, here, literal_node(self.unit.sizes[axis], node)], node)
        return Parts([assign(part, made)], None, lambda index: bind(index, load(part)))

    def _check_axis(self, node: ast.expr, what: str, axis: object) -> None:
        """Refuse what is no axis of the cluster."""
        if axis not in self.unit.cluster_axes:
            named = (f"the cluster's axes are {', '.join(map(repr, self.unit.cluster_axes))}" if self.unit.cluster_axes else
                     "the kernel names none: @numpipe.kernel(cluster=(2,), cluster_names=('cluster',))")
            self.error(node, f"numpipe.{what}={axis!r} is no axis of the cluster: {named}")

    def combination(self, node: ast.Call, acc: ast.expr, work: ast.expr, axis: ast.expr) -> ast.Call | None:
        """``numpipe.combine(acc, part, axis=axis)``; None without an axis."""
        name = self.value(axis)
        if name is None:
            return None
        if not isinstance(name, str):
            self.error(axis, "numpipe.combine: axis= is the name of an axis of the cluster, a compile-time string, got "
                             f"{ast.unparse(axis)}")
        self._check_axis(axis, "combine: axis", name)
        if self.value(work) is not None:
            self.error(work, f"numpipe.combine: axis={name!r} exchanges sums through shared memory, and {ast.unparse(work)} is a "
                             "workspace in global memory: leave one of them out")
        return self.call(reduce_scatter.reduce_scatter, [self.visit(acc), literal_node(name, node)], node)
