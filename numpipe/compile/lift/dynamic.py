"""Loops over tiles that a CTA takes from the launch's counter, ``numpipe.tiles(…, dynamic=True)`` (`grid.tile_scheduler`)."""

from __future__ import annotations

import ast
from collections.abc import Callable

from ...language.grid import tile_scheduler
from ...language.tiles import products
from ...plan import profiling
from .fold import MISSING, literal_node
from .nodes import assign, load, located, operation
from .orders import Walk
from .turns import Turns, leaves, pipeline_in, with_skips


class DynamicTiles(Turns):
    """``dynamic=`` of `numpipe.tiles`."""

    def is_dynamic(self, node: ast.For, options: dict[str | None, ast.expr]) -> bool:
        """Whether a loop says so; refuses what is no constant, and loops that would leave tiles to nobody."""
        said = options.get("dynamic")
        known = False if said is None else self.value(said)
        if known is MISSING or not isinstance(known, bool):
            self.error(said or node, "numpipe.tiles: dynamic= is True or False, known at compile time: a literal, a constant of "
                                     f"the module or a Static field, got {ast.unparse(said or node)}")
        if not known:
            return False
        if self.over_tiles:
            self.error(node.iter, "numpipe.tiles: dynamic=True in another loop over tiles: CTAs have other tiles of that one, and "
                                  "would not agree on this one's; give numpipe.tiles the counts of both")
        for word, left in leaves(node.body, ast.Break):
            self.error(left, f"'{word}' leaves the loop over tiles of line {node.lineno}, which takes them from a counter "
                             "(dynamic=True): those that the CTA has taken would be nobody's; run all tiles, or leave dynamic out")
        return True

    def dealt(self, node: ast.For, setup: list[ast.stmt], walk: Walk, total: ast.expr, in_turns: bool,
              placed: Callable[[ast.expr], list[ast.stmt]] | None = None) -> list[ast.stmt]:
        """The loop; `setup` is before it, `total` its number of tiles. `placed`: what binds its names to a tile's number, if it is
        not the walk alone."""
        assert isinstance(node.iter, ast.Call)

        t, end, ring = (self.temporary(what) for what in ("tile", "tiles", "scheduler"))
        site = literal_node(self.session.site(self.source, node.iter), node)
        setup += [assign(end, self.call(tile_scheduler.none_or_more, [total], node)),
                  assign(ring, self.call(tile_scheduler.scheduler, [site], node)),
                  assign(t, self.call(tile_scheduler.first_tile, [load(ring), load(end)], node))]
        top = [ast.Expr(self.call(profiling.mark_tile, [load(t)], node)),
               ast.Expr(self.call(tile_scheduler.fetch_ahead, [], node)),
               *(placed(load(t)) if placed else [ast.Assign([node.target], walk.place(load(t), load(end)))])]
        read = located(ast.Expr(self.call(tile_scheduler.next_ticket, [load(ring)], node)), node)
        go_on = located(assign(t, self.call(tile_scheduler.next_tile, [load(ring)], node)), node)
        body, ordered = self.tile_body(node, in_turns)
        test = self.call(tile_scheduler.is_tile, [load(t), load(end)], node)
        loop = self.tile_loop(node, test, [*top, *_going_on(body, read, go_on)])
        behind = ast.Expr(self.call(tile_scheduler.end_tiles, [literal_node(int(ordered), node)], node))
        return [located(statement, node) for statement in (*setup, loop, behind)]


def _going_on(body: list[ast.stmt], read: ast.stmt, go_on: ast.stmt) -> list[ast.stmt]:
    """The body of a loop, rewritten already: `read` behind its last pipeline and what waits for that one's products, `go_on` at its
    end, and before each `continue` what has not come by there."""
    running = [number for number, statement in enumerate(body) if pipeline_in(statement)]
    at = running[-1] + 1 if running else len(body)
    while at < len(body) and isinstance(wait := body[at], ast.Assign) and operation(wait.value) is products.drained:
        at += 1
    return [*with_skips(body[:at], [read, go_on]), read, *with_skips(body[at:], [go_on]), go_on]
