"""The order of a loop over tiles, as its source says it: what runs before the loop, and the indices of a tile."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...core import arith
from ...language.grid import tile_loop
from ...language.grid.orders import NAMES, Order, Row, Table, places
from ...language.pipeline import ring
from .fold import MISSING, StaticArray, literal_node
from .nodes import assign, load
from .rewriter import Rewriter


@dataclass(frozen=True)
class Walk:
    """An order in a kernel's source."""

    setup: list[ast.stmt]
    """before the loop"""
    place: Callable[[ast.expr, ast.expr], ast.expr]
    """(number of a tile, number of tiles) -> its indices, a tuple"""
    ahead: bool = False
    """whether they come from memory: the loop asks for them one tile before it needs them"""


class TileOrders(Rewriter):
    """``order=`` and ``group=`` of `numpipe.tiles`."""

    def walk(self, node: ast.For, options: dict[str | None, ast.expr], counts: list[ast.expr], any_rank: bool) -> Walk:
        """The order of a loop over so many `counts`, names of values; `any_rank` for `nd_loop`."""
        said, group = options.get("order"), options.get("group", ast.Constant(16))
        order = "row" if said is None else self.value(said)
        if said is not None and (order is MISSING or isinstance(order, StaticArray)):
            return self._host_table(node, said, counts)
        if isinstance(order, (Table, np.ndarray)):
            self.error(said or node, "numpipe.tiles: a host table is an argument of the kernel, a 2-D int32 array: pass the array, "
                                     "and write order= with the parameter's name")
        if isinstance(order, Order):
            if "group" in options:
                self.error(node, f"numpipe.tiles: order={order!r} says what its group is: leave group= out")
            kind, parameters = type(order), [literal_node(value, node) for value in order.parameters]
        elif isinstance(order, str) and order in NAMES:
            kind = NAMES[order]
            parameters = [self.visit(group)] if order in ("grouped", "snake") else []
        else:
            self.error(node, f"numpipe.tiles: order={order!r} is unknown: {tile_loop.KNOWN}")
        if kind is Row and len(counts) == 1:
            return Walk([], lambda t, _: self.call(places.place_line, [t], node))
        if any_rank and len(counts) > 3:
            grid = ast.copy_location(ast.Tuple(counts, ast.Load()), node)
            return Walk([], lambda t, _: self.call(ring.unravel, [t, grid], node))
        if len(counts) not in (2, 3):
            self.error(node, f"numpipe.tiles: order={order!r} with {len(counts)} counts: 'row' takes 1 to 3, the others take 2, or "
                             "3: planes, rows, columns")
        return self._planes(node, kind, parameters, counts)

    def _planes(self, node: ast.For, kind: type[Order], parameters: list[ast.expr], counts: list[ast.expr]) -> Walk:
        setup: list[ast.stmt] = []

        def before(what: str, value: ast.expr) -> ast.expr:
            name = self.temporary(what)
            setup.append(assign(name, value))
            return load(name)

        begun = before("begun", self.call(kind.begin, [*counts[-2:], *parameters], node))
        if len(counts) == 2:
            return Walk(setup, lambda t, _: self.call(kind.place, [t, begun, *parameters], node))
        if self.value(counts[0]) == 1:  # nothing to divide by
            return Walk(setup, lambda t, _: self.call(places.only_plane, [
                self.call(kind.place, [t, begun, *parameters], node)], node))
        by_plane = before("by", self.call(arith.divisor, [self.call(arith.mul, counts[1:], node)], node))

        def place(t: ast.expr, _: ast.expr) -> ast.expr:
            first, second = (ast.Subscript(self.call(places.in_plane, [t, by_plane], node), ast.Constant(part), ast.Load())
                             for part in (0, 1))
            return self.call(places.with_plane, [first, self.call(kind.place, [second, begun, *parameters], node)], node)

        return Walk(setup, place)

    def _host_table(self, node: ast.For, said: ast.expr, counts: list[ast.expr]) -> Walk:
        if isinstance(said, ast.Call) and isinstance(kind := self.value(said.func), type) and issubclass(kind, Order):
            self.error(said, f"numpipe.tiles: {ast.unparse(said)}: what an order object is made of is known at compile time; a "
                             f"group of run time is said beside the name: order=\"{kind.name}\", group=…")
        columns = len(node.target.elts) if isinstance(node.target, ast.Tuple) else len(counts)
        grid = ast.copy_location(ast.Tuple(counts if len(counts) > 1 else [], ast.Load()), node)
        table, width = self.visit(said), literal_node(columns, node)
        check: Any = ast.Expr(self.call(tile_loop.check_table, [table, width, grid], said))
        return Walk([check], lambda t, end: self.call(tile_loop.table_entry, [table, t, end, width], node), ahead=True)
