"""``with`` in a kernel, rewritten: `numpipe.region`, with an event before and one behind, and `numpipe.turn`, taken and passed."""

from __future__ import annotations

import ast

from ...core.op import Op
from ...language.pipeline import order_tokens
from ...plan import profiling
from .calls import Calls
from .fold import literal_node
from .subset import WITH
from .turns import leaves

LEFT = {"region": "the region without ending it", "turn": "the turn without passing it"}


class WithBlocks(Calls):
    """Statements that stand between two operations; nothing else is entered and left."""

    open_turns: tuple[tuple[str, int], ...] = ()
    """names and lines of the blocks of `numpipe.turn` that a statement is in"""

    def with_block(self, node: ast.With) -> list[ast.stmt]:
        item = node.items[0]
        call = item.context_expr
        function = self.value(call.func) if isinstance(call, ast.Call) else None
        if function is not profiling.region and function is not order_tokens.turn:
            self.error(node, WITH)
        assert isinstance(call, ast.Call)
        what = function.__name__
        if len(node.items) > 1 or item.optional_vars is not None:
            self.error(node, f"a {what} stands alone: with numpipe.{what}(\"name\"):")
        for word, left in leaves(node.body, ast.Break, ast.Continue):
            self.error(left, f"'{word}' leaves {LEFT[what]}: put it behind the 'with'")
        argument, = self.bind(function, call)
        name = self.value(argument)
        if name is None and function is order_tokens.turn:
            return self._block(node.body)
        if not isinstance(name, str):
            self.error(argument, f"{what}: name must be a compile-time string, got {ast.unparse(argument)}")
        if function is profiling.region:
            return self._between(node, profiling.region_begin, profiling.region_end, literal_node(name, node))
        number = self._token(node, name)
        self.open_turns += (name, node.lineno),
        placed = self._between(node, order_tokens.enter_turn, order_tokens.leave_turn, literal_node(number, node))
        self.open_turns = self.open_turns[:-1]
        return placed

    def _between(self, node: ast.With, enter: Op[..., None], leave: Op[..., None], argument: ast.expr) -> list[ast.stmt]:
        """The block's statements, with an operation on the context and an argument before and behind them."""
        begin, end = (ast.copy_location(ast.Expr(self.call(operation, [argument], node)), node)
                      for operation in (enter, leave))
        return [begin, *self._block(node.body), end]

    def _token(self, node: ast.With, name: str) -> int:
        """The number of an order token among the kernel's; refuses blocks that could only wait for ever."""
        unit, tokens = self.unit, self.session.tokens
        if unit.turns > 1:
            self.error(node, "numpipe.turn orders compute warpgroups that share a tile, and with schedule='pingpong' they have "
                             "whole tiles in turn: leave it out, or use schedule='cooperative'")
        for other, line in self.open_turns:
            if other == name:
                self.error(node, f"numpipe.turn({name!r}) in a block of the same token, of line {line}: a warpgroup would wait for "
                                 "a turn that it has to pass first; leave it out, or give it another name")
        number = tokens.setdefault(name, len(tokens))
        if unit.compute_wgs > 1 and number >= unit.token_room:
            memory = " (the memory role's too)" if unit.warp_specialized else ""
            have = f", those before it are {', '.join(map(repr, tokens))[:-len(repr(name)) - 2]}" if number else ""
            self.error(node, f"numpipe.turn({name!r}): no named barriers are left: a token takes {unit.compute_wgs}, one for each "
                             f"compute warpgroup{have}; of the CTA's 16, 0 is the CTA's, 1…{unit.warpgroups} are the "
                             f"warpgroups'{memory}, 15 is of out_specs, so that {unit.token_room} tokens fit; let blocks share one")
        return number
