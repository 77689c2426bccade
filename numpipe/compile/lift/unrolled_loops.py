"""Loops that are unrolled at compile time: ``for … in`` a constant tuple, `zip`, `enumerate`,
`reversed` or `sorted` of constants, and `numpipe.static_range`.

Each round becomes a copy of the body in which the loop's names are constants, so they may be bounds
of slices, shapes and dtypes. A `break` or `continue` that constants decide leaves out the rest; one
that is decided at run time is rejected, because no loop is left that it could leave.
"""

from __future__ import annotations

import ast
import copy
from typing import Any

from ...core.static_range import static_range
from .constants import bindings
from .loops import Loops
from .nodes import Block, item, load, located, walk
from .rewriter import NOT_MINE
from .turn_placement import leaves
from .wait_counts import in_place

STATEMENTS = 1024
"""The most statements into which the loops of one function may be unrolled."""


class UnrolledLoops(Loops):
    """``for`` over constants."""

    statements = 0
    """The number of statements that loops have been unrolled into."""

    def unrolled_loop(self, node: ast.For) -> Any:
        """Replace a loop over constants by a copy of its body for each of them."""
        values = self.value(node.iter)
        if not isinstance(values, (tuple, list, range)):
            if self.callee(node.iter) is static_range:
                self.error(
                    f"{ast.unparse(node.iter)}: numpipe.static_range takes one to three ints that "
                    "are known at compile time; fix: for a number of run time, range(…)",
                    node.iter,
                )
            return NOT_MINE
        self._check_size(node, len(values))
        names = self.scopes[-1][1]
        inside = {id(part) for part in walk(node)}
        outside = {
            name: [place for place in names[name] if id(place) not in inside]
            for name, _ in bindings([node])
        }
        items, result, ended = self.temporary("items"), Block(), False
        self.constants.known[items] = values
        body, node.body = node.body, []
        for number in range(len(values)):
            value = item(load(items), number)
            bound = located(ast.Assign([copy.deepcopy(node.target)], value), node.target)
            new = [bound, *copy.deepcopy(body)]
            node.body += new
            self._bind_round(new, outside)
            rewritten, ended = self._round(node, new)
            result += rewritten
            if ended:
                break
        for name in outside:
            self.constants.known.pop(name, None)
        self.folded.difference_update(walk(*result))
        return [*result, *([] if ended else self._block(node.orelse))]

    def _check_size(self, node: ast.For, rounds: int) -> None:
        size = rounds * sum(isinstance(part, ast.stmt) for part in walk(*node.body))
        self.statements += size
        if self.statements > STATEMENTS:
            self.error(
                f"this loop is unrolled at compile time: its {rounds} rounds are {size} "
                f"statements, and a function's unrolled loops have at most {STATEMENTS} together; "
                f"fix: for i in range({rounds}):, which loops at run time, or fewer rounds",
                node.iter,
            )

    def _bind_round(self, body: Block, outside: dict[str, list[ast.AST]]) -> None:
        """Say where the names of a round are bound, and which of them are bound once in every
        run of it: these are constants until the loop ends."""
        sure = {
            part
            for statement in in_place(body)
            if isinstance(statement, (ast.Assign, ast.AnnAssign))
            for part in walk(statement)
        }
        bound = bindings(body)
        for name, before in outside.items():
            places = [place for other, place in bound if other == name]
            self.scopes[-1][1][name] = before + places
            self.once.update((place, len(places) == 1 and place in sure) for place in places)

    def _round(self, node: ast.For, body: Block) -> tuple[Block, bool]:
        """Return the rewritten statements of a round up to one that leaves it, and whether that
        one ends the loop."""
        result: Block = []
        for statement in body:
            for new in self._block([statement]):
                if isinstance(new, (ast.Break, ast.Continue)):
                    return result, isinstance(new, ast.Break)
                for word, left in leaves([new], ast.Break, ast.Continue):
                    if word != "return":
                        self.error(
                            f"'{word}' is decided at run time, and the loop of line {node.lineno} "
                            f"over {ast.unparse(node.iter)} is unrolled at compile time; fix: put "
                            "the statements that it would skip into an 'if', or loop at run time, "
                            "for i in range(…):",
                            left,
                        )
                result.append(new)
        return result, False
