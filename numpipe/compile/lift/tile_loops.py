"""Rewriting of loops over tiles: ``for m, n in numpipe.tiles(…)`` becomes a counted loop over this
CTA's tiles, in their order.

`numpipe.nd_loop` and `numpipe.split_tiles` become the same loop. With ``dynamic=True`` the CTA
takes its tiles from the launch's counter (`grid.tile_scheduler`). Compute warpgroups that share a
tile read the next tile's number after the last pipeline of the current tile, so that it arrives
while that tile is stored.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...core import arith
from ...language.grid import split_k, tile_loop, tile_scheduler
from ...language.grid.orders import NAMES, Order, Row, Table, tile_numbers
from ...language.pipeline import pingpong, ring
from ...language.tiles import products_in_flight
from ...plan import profiling
from .constants import MISSING, StaticArray, literal_node
from .nodes import Block, Keywords, assign, item, load, located, operation, tuple_of
from .split_loops import Parts, SplitLoops
from .turn_placement import Turns, leaves, pipeline_in, with_skips


@dataclass(frozen=True)
class Walk:
    """The order of a loop over tiles, as given in the source."""

    setup: Block
    """statements before the loop"""
    place: Callable[[ast.expr, ast.expr], ast.expr]
    """(number of a tile, number of tiles) -> the tile's indices, a tuple"""
    ahead: bool = False
    """Whether the indices come from memory: the loop requests them one tile ahead."""


class TileLoops(SplitLoops, Turns):
    """``for … in numpipe.tiles(…)``, ``numpipe.nd_loop(…)`` and ``numpipe.split_tiles(…)``."""

    def tiles_loop(self, node: ast.For, function: Any) -> Block:
        """Return the replacement of a loop over `numpipe.tiles`, `nd_loop` or `split_tiles` (the
        `function`)."""
        assert isinstance(node.iter, ast.Call)
        if function is tile_loop.nd_loop:
            node.iter.args, node.iter.keywords = self._nd_grid(node, node.iter), []
        counts = node.iter.args
        options = {k.arg: k.value for k in node.iter.keywords}
        (self.check_split_loop if function is split_k.split_tiles else self._check_tiles_loop)(
            node, counts, options
        )
        names = [self.temporary("count") for _ in counts]
        setup: Block = [assign(n, self.visit(c)) for n, c in zip(names, counts, strict=True)]
        loads: list[ast.expr] = [load(n) for n in names]
        setup += [
            self.statement(tile_loop.check_count, [number, loaded], count)
            for number, (count, loaded) in enumerate(zip(counts, loads, strict=True))
        ]
        t = self.temporary("tile")
        index = load(t)
        plane = (
            [literal_node(1, node)]
            if len(counts) == 3 and self.value(counts[0]) == 1
            else loads[:1]
        )
        way = self._walk(node, options, [*plane, *loads[1:]], function is tile_loop.nd_loop)
        setup += way.setup
        in_turns = self.turn_taking(node)

        total = loads[0]
        for other in loads[1:]:
            total = self.call(arith.mul, [total, other])
        parts = Parts([], None, lambda t, end: [ast.Assign([node.target], way.place(t, end))])
        if function is split_k.split_tiles:
            if way.ahead:
                self.error(
                    "numpipe.split_tiles does not support a host table: order= must be a name or "
                    "an object of numpipe.orders",
                    options["order"],
                )
            parts = self.parts_of(node, options, way.place, total)
        setup += parts.setup
        if self._is_dynamic(node, options):
            if parts.count is not None:
                self.error(
                    "numpipe.split_tiles: dynamic=True takes whole tiles from a counter, but "
                    "split= cuts them: the owner of a tile could wait for a part that no CTA has "
                    "started; fix: leave one of them out",
                    options["dynamic"],
                )
            return self._dynamic_loop(node, setup, total, in_turns, parts.placed)
        stride, end = self.temporary("stride"), self.temporary("tiles")
        own: ast.expr = self.call(tile_loop.tile_stride)
        # the loop adds `own` first
        before: ast.expr = self.call(arith.sub, [self.call(tile_loop.own_place), own])
        if parts.count is not None:
            before, own, total = literal_node(-1, node), literal_node(1, node), parts.count
        if in_turns:  # the warpgroup's own first tile and stride, from the CTA's
            cta = self.temporary("cta")
            setup.append(assign(cta, own))
            before = self.call(pingpong.before_own, [before, load(cta)])
            own = self.call(pingpong.own_stride, [load(cta)])
        step = arith.add, [index, load(stride)]
        if parts.count is None and not way.ahead:
            step = tile_loop.next_static_tile, [index, load(stride), load(end)]
        # a `range` would cost a 64-bit division; the index moves at the top, so that `continue`
        # works
        setup += [assign(stride, own), assign(end, total), assign(t, before)]
        advance: Block = [
            assign(t, self.call(*step)),
            self.statement(profiling.mark_tile, [index]),
        ]
        if way.ahead:  # the indices of a tile are read while the previous tile is computed
            entry = self.temporary("entry")
            first, again = (assign(entry, way.place(self.call(*step), load(end))) for _ in range(2))
            setup.append(first)
            advance += [ast.Assign([node.target], load(entry)), again]
        else:
            advance += parts.placed(index, load(end))
        test = self.call(arith.lt, [self.call(*step), load(end)])
        body, ordered = self.tile_body(node, in_turns)
        after = (
            self.statement(pingpong.end_turns, [load(name) for name in (t, cta, end)])
            if ordered
            else None
        )
        return self._with_loop(node, setup, test, [*advance, *body], after)

    def _with_loop(
        self,
        node: ast.For,
        setup: Block,
        test: ast.expr,
        body: Block,
        after: ast.stmt | None,
    ) -> Block:
        """Return the loop over tiles with the statements before and after it."""
        loop = ast.copy_location(ast.While(test, body, self._block(node.orelse)), node)
        loop.over_tiles = True  # type: ignore[attr-defined]
        return [
            located(statement, node) for statement in (*setup, loop, after) if statement is not None
        ]

    def _check_tiles_loop(self, node: ast.For, counts: list[ast.expr], options: Keywords) -> None:
        if (
            set(options) - {"order", "group", "dynamic"}
            or any(isinstance(c, ast.Starred) for c in counts)
            or not counts
        ):
            self.error("numpipe.tiles takes the tile counts, order=, group= and dynamic=")
        if (
            isinstance(node.target, ast.Tuple)
            and len(node.target.elts) != len(counts)
            and len(counts) > 1
        ):
            self.error(
                f"numpipe.tiles of {len(counts)} counts gives {len(counts)} indices, the loop "
                f"unpacks {len(node.target.elts)}: {ast.unparse(node.target)}",
            )
        if not isinstance(node.target, ast.Tuple) and len(counts) == 1:
            self.error(
                "numpipe.tiles gives a tuple of indices, even for a single count; fix: `for "
                f"({ast.unparse(node.target)},) in numpipe.tiles(…):`",
            )

    def _nd_grid(self, node: ast.For, call: ast.Call) -> list[ast.expr]:
        """Return the counts of ``for i, j in nd_loop((m, n)):``, a loop over all index tuples in
        row-major order."""
        keywords = {k.arg: k.value for k in call.keywords}
        given = [*call.args, *([keywords["grid"]] if "grid" in keywords else [])]
        if len(given) != 1 or set(keywords) - {"grid"}:
            self.error(
                "numpipe.nd_loop takes one argument, the grid; fix: for i, j in "
                "numpipe.nd_loop((m, n)):",
                call,
            )
        known = self.value(given[0])
        grid = literal_node(known, given[0]) if isinstance(known, tuple) else given[0]
        if not isinstance(grid, ast.Tuple) or not grid.elts:
            self.error(
                "numpipe.nd_loop: the grid must be a tuple with a size for each index, (m, n), "
                f"got {ast.unparse(given[0])}",
                given[0],
            )
        if not isinstance(node.target, ast.Tuple) or len(node.target.elts) != len(grid.elts):
            self.error(
                f"numpipe.nd_loop of {len(grid.elts)} dimensions gives a tuple of "
                f"{len(grid.elts)} indices, got `for {ast.unparse(node.target)} in`",
                node.target,
            )
        return grid.elts

    # ---- order= and group=
    def _walk(
        self,
        node: ast.For,
        options: Keywords,
        counts: list[ast.expr],
        any_rank: bool,
    ) -> Walk:
        """Return the order of a loop over tiles whose numbers are in `counts`, as names of values;
        `any_rank` for `nd_loop`."""
        written, group = options.get("order"), options.get("group", ast.Constant(16))
        order = "row" if written is None else self.value(written)
        if written is not None and (order is MISSING or isinstance(order, StaticArray)):
            return self._host_table(node, written, counts)
        if isinstance(order, (Table, np.ndarray)):
            self.error(
                "numpipe.tiles: a host table must be an argument of the kernel, a 2-D int32 "
                "array; fix: pass the array, and write order= with the parameter's name",
                written or node,
            )
        if isinstance(order, Order):
            if "group" in options:
                self.error(
                    f"numpipe.tiles: order={order!r} already has a group; fix: leave group= out",
                )
            kind = type(order)
            parameters = list(order.parameters)
        elif isinstance(order, str) and order in NAMES:
            kind = NAMES[order]
            parameters = [self.visit(group)] if order in ("grouped", "snake") else []
        else:
            self.error(f"numpipe.tiles: order={order!r} is unknown: {tile_loop.KNOWN}")
        if kind is Row and len(counts) == 1:
            return Walk([], lambda t, _: self.call(tile_numbers.place_line, [t]))
        if any_rank and len(counts) > 3:
            grid = tuple_of(counts, node)
            return Walk([], lambda t, _: self.call(ring.unravel, [t, grid]))
        if len(counts) not in (2, 3):
            self.error(
                f"numpipe.tiles: order={order!r} with {len(counts)} counts: 'row' takes 1 to 3, "
                "the others take 2, or 3: planes, rows, columns",
            )
        setup: Block = []

        def before(what: str, value: ast.expr) -> ast.expr:
            name = self.temporary(what)
            setup.append(assign(name, value))
            return load(name)

        begun = before("begun", self.call(kind.begin, [*counts[-2:], *parameters]))

        def in_plane(t: ast.expr, _: ast.expr) -> ast.expr:
            return self.call(kind.place, [t, begun, *parameters])

        if len(counts) == 2:
            return Walk(setup, in_plane)
        if self.value(counts[0]) == 1:  # nothing to divide by
            return Walk(
                setup, lambda t, end: self.call(tile_numbers.only_plane, [in_plane(t, end)])
            )
        by_plane = before("by", self.call(arith.divisor, [self.call(arith.mul, counts[1:])]))

        def place(t: ast.expr, end: ast.expr) -> ast.expr:
            first, second = (
                item(self.call(tile_numbers.in_plane, [t, by_plane]), part) for part in (0, 1)
            )
            return self.call(tile_numbers.with_plane, [first, in_plane(second, end)])

        return Walk(setup, place)

    def _host_table(self, node: ast.For, written: ast.expr, counts: list[ast.expr]) -> Walk:
        if (
            isinstance(written, ast.Call)
            and isinstance(kind := self.value(written.func), type)
            and issubclass(kind, Order)
        ):
            self.error(
                f"numpipe.tiles: {ast.unparse(written)}: the parameters of an order object must "
                "be compile-time constants; fix: pass a run-time group separately: "
                f'order="{kind.name}", group=…',
                written,
            )
        columns = len(node.target.elts) if isinstance(node.target, ast.Tuple) else len(counts)
        grid = tuple_of(counts if len(counts) > 1 else [], node)
        table = self.visit(written)
        return Walk(
            [self.statement(tile_loop.check_table, [table, columns, grid], written)],
            lambda t, end: self.call(tile_loop.table_entry, [table, t, end, columns]),
            ahead=True,
        )

    # ---- dynamic=True
    def _is_dynamic(self, node: ast.For, options: Keywords) -> bool:
        """Return whether a loop sets dynamic=True. Reject a value that is not a constant, and loops
        that would leave tiles unassigned."""
        written = options.get("dynamic")
        known = False if written is None else self.value(written)
        if known is MISSING or not isinstance(known, bool):
            self.error(
                "numpipe.tiles: dynamic= must be True or False, known at compile time (a "
                "literal, a constant of the module or a Static field), got "
                f"{ast.unparse(written or node)}",
                written or node,
            )
        if not known:
            return False
        if self.over_tiles:
            self.error(
                "numpipe.tiles: dynamic=True inside another loop over tiles: CTAs run different "
                "tiles of the outer loop, so they cannot share the inner loop's counter; fix: "
                "give numpipe.tiles the counts of both",
                node.iter,
            )
        for word, left in leaves(node.body, ast.Break):
            self.error(
                f"'{word}' leaves the loop over tiles at line {node.lineno}, which takes them "
                "from a counter (dynamic=True): tiles that the CTA has already taken would not "
                "be computed; fix: run all tiles, or leave dynamic out",
                left,
            )
        return True

    def _dynamic_loop(
        self,
        node: ast.For,
        setup: Block,
        total: ast.expr,
        in_turns: bool,
        placed: Callable[[ast.expr, ast.expr], Block],
    ) -> Block:
        """Return the loop; `total` is its number of tiles, `placed` binds the loop's names to a
        tile's number."""
        assert isinstance(node.iter, ast.Call)
        t, end, tickets = (self.temporary(what) for what in ("tile", "tiles", "scheduler"))
        site = self.session.site(self.source, node.iter)
        setup += [
            assign(end, self.call(tile_scheduler.none_or_more, [total])),
            assign(tickets, self.call(tile_scheduler.scheduler, [site])),
            assign(t, self.call(tile_scheduler.first_tile, [load(tickets), load(end)])),
        ]
        top = [
            self.statement(profiling.mark_tile, [load(t)]),
            self.statement(tile_scheduler.fetch_ahead),
            *placed(load(t), load(end)),
        ]
        read = self.statement(tile_scheduler.next_ticket, [load(tickets)])
        go_on = located(assign(t, self.call(tile_scheduler.next_tile, [load(tickets)])), node)
        body, ordered = self.tile_body(node, in_turns)
        test = self.call(tile_scheduler.is_tile, [load(t), load(end)])
        after = self.statement(tile_scheduler.end_tiles, [int(ordered)])
        return self._with_loop(node, setup, test, [*top, *_going_on(body, read, go_on)], after)


def _going_on(body: Block, read: ast.stmt, go_on: ast.stmt) -> Block:
    """Return the rewritten body of a loop with `read` after its last pipeline and the waits for its
    products, and `go_on` at its end. Each `continue` is preceded by the statements that it would
    skip."""
    running = [number for number, statement in enumerate(body) if pipeline_in(statement)]
    at = running[-1] + 1 if running else len(body)
    while (
        at < len(body)
        and isinstance(wait := body[at], ast.Assign)
        and operation(wait.value) is products_in_flight.drained
    ):
        at += 1
    return [*with_skips(body[:at], [read, go_on]), read, *with_skips(body[at:], [go_on]), go_on]
