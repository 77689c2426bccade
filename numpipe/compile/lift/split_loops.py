"""Loops over parts of tiles, ``for m, n, part in numpipe.split_tiles(…)``: how they differ from
loops over tiles."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass

from ...diagnostics.argument_checks import told
from ...language.grid import cluster_sums, split_k, tile_loop
from ...plan import context
from .constants import MISSING, literal_node
from .nodes import Block, Keywords, assign, item, load
from .rewriter import Rewriter

_OPTIONS = {"steps", "split", "order", "group", "dynamic"}


@dataclass(frozen=True)
class Parts:
    """The parts of the tiles of a loop, or its whole tiles."""

    setup: Block
    """Statements before the loop."""
    count: ast.expr | None
    """The number of parts of this CTA, which are numbered consecutively; None if parts are whole
    tiles, and have the tiles' numbers."""
    placed: Callable[[ast.expr, ast.expr], Block]
    """(number of a part, number of parts) -> the statements that bind the loop's names."""


class SplitLoops(Rewriter):
    """The arguments of `numpipe.split_tiles` and `numpipe.combine`."""

    def check_split_loop(self, node: ast.For, counts: list[ast.expr], options: Keywords) -> None:
        """Reject a loop whose arguments or names do not fit a loop over parts."""
        if set(options) - _OPTIONS or any(isinstance(c, ast.Starred) for c in counts) or not counts:
            self.error(
                "numpipe.split_tiles takes the tile counts, steps=, split=, order=, group= and "
                "dynamic=",
                node.iter,
            )
        if "steps" not in options:
            self.error(
                "numpipe.split_tiles: steps= is missing, the number of blocks of K of a whole "
                "tile; fix: steps=cdiv(a.shape[1], tk)",
                node.iter,
            )
        target = node.target.elts if isinstance(node.target, ast.Tuple) else [node.target]
        if len(target) != len(counts) + 1 or not isinstance(target[-1], ast.Name):
            self.error(
                f"numpipe.split_tiles of {len(counts)} counts gives {len(counts)} indices and a "
                f"part, got `for {ast.unparse(node.target)} in`",
                node.target,
            )

    def parts_of(
        self,
        node: ast.For,
        options: Keywords,
        place: Callable[[ast.expr, ast.expr], ast.expr],
        total: ast.expr,
    ) -> Parts:
        """Return the parts of the `total` tiles of a loop; `place` gives a tile's indices."""
        assert isinstance(node.target, ast.Tuple)
        *indices, part = node.target.elts

        def bind(tile: ast.expr, value: ast.expr) -> Block:
            return [
                ast.Assign(
                    [ast.copy_location(ast.Tuple(indices, ast.Store()), node.target)],
                    place(tile, total),
                ),
                ast.Assign([part], value),
            ]

        split = options.get("split", literal_node(split_k.STREAM, node))
        known, steps = self.value(split), self.visit(options["steps"])
        if known is None:
            name = self.temporary("steps")
            return Parts(
                [assign(name, steps)],
                None,
                lambda index, _: bind(index, self.call(split_k.whole_tile, [load(name)])),
            )
        stream = isinstance(known, str) and known == split_k.STREAM
        # Each CTA along the axis has a part of each tile, so the tiles belong to the cluster.
        if isinstance(known, str) and not stream:
            self._check_axis(split, "split_tiles: split", known)
            name = self.temporary("part")
            here = self.call(context.axis_index, [known])
            value = self.call(
                split_k.cluster_part,
                [steps, here, self.unit.sizes[known]],
            )
            return Parts([assign(name, value)], None, lambda index, _: bind(index, load(name)))
        if (
            not stream
            and known is not MISSING
            and (isinstance(known, bool) or not isinstance(known, int) or known < 1)
        ):
            self.error(split_k.no_split(told(known)), split)
        begin, locate = (
            (split_k.begin_stream, split_k.place_stream)
            if stream
            else (split_k.begin_split, split_k.place_split)
        )
        parts = literal_node(1, split) if stream else self.visit(split)
        begun, found = self.temporary("parts"), self.temporary("part")
        at_run_time = not stream and known is MISSING
        setup: Block = [self.statement(split_k.check_split, [parts], split)] if at_run_time else []
        setup.append(assign(begun, self.call(begin, [total, steps, parts, *self._own()])))

        def placed(index: ast.expr, _: ast.expr) -> Block:
            place = self.call(locate, [index, load(begun), *self._own()])
            return [assign(found, place), *bind(item(load(found), 0), item(load(found), 1))]

        return Parts(setup, item(load(begun), 0), placed)

    def _own(self) -> list[ast.expr]:
        """Return the index of this CTA, or of its cluster if the kernel names its cluster axes, and
        the number of CTAs or clusters."""
        return [self.call(op) for op in (tile_loop.own_place, tile_loop.tile_stride)]

    def _check_axis(self, node: ast.expr, what: str, axis: object) -> None:
        """Reject a value that is not an axis of the cluster."""
        if axis not in self.unit.cluster_axes:
            named = (
                f"the cluster's axes are {', '.join(map(repr, self.unit.cluster_axes))}"
                if self.unit.cluster_axes
                else (
                    "the kernel names none: @numpipe.kernel(cluster=(2,), "
                    "cluster_names=('cluster',))"
                )
            )
            self.error(f"numpipe.{what}={axis!r} is not an axis of the cluster: {named}", node)

    def combination(self, acc: ast.expr, work: ast.expr, axis: ast.expr) -> ast.Call | None:
        """Return the exchange that implements ``numpipe.combine(acc, part, axis=axis)``; None
        without an axis."""
        name = self.value(axis)
        if name is None:
            return None
        if not isinstance(name, str):
            self.error(
                "numpipe.combine: axis= must be the name of an axis of the cluster, a "
                f"compile-time string, got {ast.unparse(axis)}",
                axis,
            )
        self._check_axis(axis, "combine: axis", name)
        if self.value(work) is not None:
            self.error(
                f"numpipe.combine: axis={name!r} exchanges sums through shared memory, but "
                f"{ast.unparse(work)} is a workspace in global memory; fix: leave one of them out",
                work,
            )
        return self.call(cluster_sums.reduce_scatter, [self.visit(acc), name])
