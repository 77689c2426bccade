"""Loops that are unrolled at compile time: ``for … in`` a constant tuple, a tuple written in place,
`numpipe.static_range`, and `zip`, `enumerate` and `reversed` of these.

Each round becomes a copy of the body in which the loop's names are constants, so they may be bounds
of slices, shapes and dtypes. A `break` or `continue` that constants decide leaves out the rest; one
that is decided at run time is rejected, because no loop is left that it could leave.
"""

from __future__ import annotations

import ast
import copy
from typing import Any

from ...core.static_range import static_range
from .constants import MISSING, StaticArray, bindings
from .loops import Loops
from .nodes import assign, load, located, walk
from .rewriter import NOT_MINE
from .turn_placement import leaves
from .wait_counts import in_place

STATEMENTS = 1024
"""The most statements into which the loops of one function may be unrolled."""
_BUILTINS = zip, enumerate, reversed


class UnrolledLoops(Loops):
    """``for`` over values whose number is known at compile time."""

    statements = 0
    """The number of statements that loops have been unrolled into."""

    def unrolled_loop(self, node: ast.For) -> Any:
        """Replace a loop over a known number of values by a copy of its body for each value."""
        result: list[ast.stmt] = []
        items = self._items(node.iter, result)
        if items is None:
            return NOT_MINE
        self._check_size(node, len(items))
        bound = self.scopes[-1][1]
        inside = {id(part) for part in walk(node)}
        outside = {
            name: [place for place in bound[name] if id(place) not in inside]
            for name, _ in bindings([node])
        }
        body, node.body, ended = node.body, [], False
        for item in items:
            new = [*self._bound_to(node.target, item), *copy.deepcopy(body)]
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
                node.iter,
                f"this loop is unrolled at compile time: its {rounds} rounds are {size} "
                f"statements, and a function's unrolled loops have at most {STATEMENTS} together; "
                f"fix: for i in range({rounds}):, which loops at run time, or fewer rounds",
            )

    def _bind_round(self, body: list[ast.stmt], outside: dict[str, list[ast.AST]]) -> None:
        """Say where the names of a round are bound, and which of them are bound once in every
        run of it: these are constants until the loop ends."""
        sure = {
            part
            for statement in in_place(body)
            if isinstance(statement, (ast.Assign, ast.AnnAssign))
            for part in walk(statement)
        }
        here: dict[str, list[ast.AST]] = {name: [] for name in outside}
        for name, place in bindings(body):
            here[name].append(place)
        for name, places in here.items():
            self.scopes[-1][1][name] = outside[name] + places
            self.once.update((place, len(places) == 1 and place in sure) for place in places)

    def _round(self, node: ast.For, body: list[ast.stmt]) -> tuple[list[ast.stmt], bool]:
        """Return the rewritten statements of a round up to one that leaves it, and whether that
        one ends the loop."""
        result: list[ast.stmt] = []
        for statement in body:
            for new in self._block([statement]):
                if isinstance(new, (ast.Break, ast.Continue)):
                    return result, isinstance(new, ast.Break)
                for word, left in leaves([new], ast.Break, ast.Continue):
                    if word != "return":
                        self.error(
                            left,
                            f"'{word}' is decided at run time, and the loop of line {node.lineno} "
                            f"over {ast.unparse(node.iter)} is unrolled at compile time; fix: put "
                            "the statements that it would skip into an 'if', or loop at run time, "
                            "for i in range(…):",
                        )
                result.append(new)
        return result, False

    # ---- the values
    def _items(self, node: ast.expr, before: list[ast.stmt]) -> list[ast.expr] | None:
        """Return an expression for each value that a loop over `node` has; None if their number is
        not known. Statements that evaluate values of run time are appended to `before`."""
        value = self.value(node)
        if isinstance(value, (tuple, list, range)):
            return self._parts(self._constant_name(value, node), len(value))
        if isinstance(node, ast.Tuple):
            return [self._held(part, before) for part in node.elts]
        function = self.value(node.func) if isinstance(node, ast.Call) else None
        if function is static_range:
            self.error(
                node,
                f"{ast.unparse(node)}: numpipe.static_range takes one to three ints that are known "
                "at compile time; fix: for a number of run time, range(…)",
            )
        if not isinstance(node, ast.Call) or not any(function is each for each in _BUILTINS):
            return None
        if node.keywords or (len(node.args) != 1 and function is not zip):
            return None
        parts = [self._items(argument, before) for argument in node.args]
        if any(part is None for part in parts):
            return None
        columns: list[list[ast.expr]] = [part for part in parts if part is not None]
        if function is reversed:
            return columns[0][::-1]
        if function is enumerate:
            columns.insert(0, [ast.Constant(number) for number in range(len(columns[0]))])
        return [
            located(ast.Tuple(list(row), ast.Load()), node)
            for row in zip(*columns, strict=function is enumerate)
        ]

    def _held(self, node: ast.expr, before: list[ast.stmt]) -> ast.expr:
        """Return an expression for a value that is evaluated once, before the loop."""
        value = self.value(node)
        if value is not MISSING and not isinstance(value, StaticArray):
            return self._constant_name(value, node)
        if isinstance(node, ast.Tuple):
            return located(ast.Tuple([self._held(p, before) for p in node.elts], ast.Load()), node)
        name = self.temporary("item")
        before += self._block([located(assign(name, node), node)])
        return located(load(name), node)

    def _constant_name(self, value: Any, where: ast.expr) -> ast.Name:
        name = self.temporary("items")
        self.constants.known[name] = value
        return located(load(name), where)

    def _parts(self, of: ast.expr, count: int) -> list[ast.expr]:
        """Return an expression for each part of a constant."""
        return [
            located(ast.Subscript(copy.deepcopy(of), ast.Constant(at), ast.Load()), of)
            for at in range(count)
        ]

    def _bound_to(self, target: ast.expr, item: ast.expr) -> list[ast.stmt]:
        """Return the statements that bind a loop's names to a value."""
        value = self.value(item)
        parts: list[ast.expr] | None = None
        if isinstance(item, ast.Tuple):
            parts = item.elts
        elif isinstance(value, (tuple, list)):
            parts = self._parts(item, len(value))
        if not isinstance(target, ast.Tuple) or parts is None:
            return [located(ast.Assign([copy.deepcopy(target)], item), target)]
        if len(parts) != len(target.elts):
            self.error(
                target,
                f"the loop unpacks {len(target.elts)} names, {ast.unparse(target)}, but a value has "
                f"{len(parts)} parts",
            )
        return [
            statement
            for name, part in zip(target.elts, parts, strict=True)
            for statement in self._bound_to(name, part)
        ]
