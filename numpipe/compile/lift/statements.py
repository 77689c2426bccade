"""Rewriting of ``with numpipe.region``, ``with numpipe.turn``, `assert`, and calls that print or
check.

A `with` becomes its statements between two operations. `debug_print`, `device_assert` and `assert`
get the kernel's context and their place in the source. `breakpoint()` remains Python's own, so that
a debugger stops in the kernel's frame.
"""

from __future__ import annotations

import ast
from typing import Any

from ...diagnostics.errors import SpecError
from ...diagnostics.format import fields, parse
from ...language.pipeline import warpgroup_order
from ...plan import debug, profiling
from .calls_and_slices import Calls
from .constants import MISSING, literal_node, truth
from .nodes import tuple_of
from .rewriter import NOT_MINE
from .turn_placement import leaves


class Statements(Calls):
    """Rules for ``with`` and ``assert`` statements, `debug_print` and `device_assert`."""

    open_turns: tuple[tuple[str, int], ...] = ()
    """Names and lines of the blocks of `numpipe.turn` that contain the statement."""

    # ---- with
    def with_block(self, node: ast.With) -> list[ast.stmt]:
        call = node.items[0].context_expr
        function: Any = self.callee(call)
        turn = function is warpgroup_order.turn
        if function is not profiling.region and not turn:
            self.error(
                "'with' needs context managers, which do not exist on the GPU; fix: write the "
                "calls themselves",
            )
        assert isinstance(call, ast.Call)
        what = function.__name__
        if len(node.items) > 1 or node.items[0].optional_vars is not None:
            self.error(
                f"a {what} must be the only item of its 'with'; "
                f'fix: with numpipe.{what}("name"):',
            )
        for word, left in leaves(node.body, ast.Break, ast.Continue):
            harm = "the turn without passing it" if turn else "the region without ending it"
            self.error(f"'{word}' leaves {harm}; fix: move it after the 'with'", left)
        (argument,) = self.bind(function, call)
        name = self.value(argument)
        if name is None and turn:
            return self._block(node.body)
        if not isinstance(name, str):
            self.error(
                f"{what}: name must be a compile-time string, got {ast.unparse(argument)}", argument
            )
        operations = (
            (warpgroup_order.enter_turn, warpgroup_order.leave_turn)
            if turn
            else (profiling.region_begin, profiling.region_end)
        )
        outside = self.open_turns
        constant = self._token(name) if turn else name
        self.open_turns += ((name, node.lineno),) * turn
        begin, end = (self.statement(operation, [constant]) for operation in operations)
        body = self._block(node.body)
        self.open_turns = outside
        return [begin, *body, end]

    def _token(self, name: str) -> int:
        """Return the number of an order token in the kernel. Reject blocks that could only wait
        forever."""
        unit, tokens = self.unit, self.session.tokens
        if unit.turns > 1:
            self.error(
                "numpipe.turn orders compute warpgroups that share a tile, but with "
                "schedule='pingpong' they take turns on whole tiles; fix: leave it out, or use "
                "schedule='cooperative'",
            )
        for other, line in self.open_turns:
            if other == name:
                self.error(
                    f"numpipe.turn({name!r}) is inside a block of the same token, at line {line}: "
                    "a warpgroup would wait for a turn that it must pass on first; fix: leave it "
                    "out, or give it another name",
                )
        number = tokens.setdefault(name, len(tokens))
        if unit.compute_wgs > 1 and number >= unit.token_room:
            memory = " (the memory role's too)" if unit.warp_specialized else ""
            have = (
                f", those before it are {', '.join(map(repr, tokens))[: -len(repr(name)) - 2]}"
                if number
                else ""
            )
            self.error(
                f"numpipe.turn({name!r}): no named barriers are left: a token takes "
                f"{unit.compute_wgs}, one for each compute warpgroup{have}; of the CTA's 16, 0 is "
                f"the CTA's, 1…{unit.warpgroups} are the warpgroups'{memory}, 15 is of out_specs, "
                f"so that {unit.token_room} tokens fit; let blocks share one",
            )
        return number

    # ---- prints and checks
    def debug_call(self, node: ast.Call, function: Any) -> Any:
        if function is debug.debug_print:
            return self._print(node)
        if function is debug.device_assert:
            condition, message = self.bind(function, node)
            return self._check(
                condition, self._message(message, node), ast.unparse(node), node, always=True
            )
        if function is print:
            self.error(
                "'print' would be called by every lane of a warpgroup; fix: "
                'numpipe.debug_print("…{}…", value)',
            )
        if function is breakpoint:
            node.func = self.call(debug.simulated_only, [node.func])
            return self.by_type(node)
        return NOT_MINE

    def _print(self, node: ast.Call) -> ast.Call:
        """Check the format here, so that a wrong format is also rejected in a call that never
        runs."""
        written, *values = self.bind(debug.debug_print, node)
        text = self.value(written)
        if text is MISSING:
            self.error(
                f"debug_print: the format must be a compile-time string, got "
                f"{ast.unparse(written)}; fix: pass values for its fields, "
                'debug_print("k={}", k)',
                written,
            )
        try:
            fields(parse(text), len(values))
        except SpecError as error:
            self.error(str(error), written)
        return self.call(debug.debug_print, [literal_node(text, written), *map(self.visit, values)])

    def assertion(self, node: ast.Assert) -> Any:
        """Evaluate a condition that is known at compile time; check any other at run time, on the
        GPU only if the kernel enables it."""
        test = truth(self.value(node.test))
        condition = ast.unparse(node.test)
        if test is MISSING:
            message = "" if node.msg is None else self._message(node.msg, node)
            return ast.copy_location(
                ast.Expr(
                    self._check(node.test, message, f"assert {condition}", node, always=False)
                ),
                node,
            )
        if not test:
            reason = (
                ""
                if node.msg is None
                else (
                    ": "
                    f"{ast.unparse(node.msg) if (msg := self.value(node.msg)) is MISSING else msg}"
                )
            )
            self.error(f"'assert {condition}' failed{reason}")
        return None

    def _message(self, message: ast.expr, node: ast.AST) -> str:
        text = self.value(message)
        if not isinstance(text, str):
            self.error(
                "the message of an assertion on run-time values must be a constant string, got "
                f"{ast.unparse(message)}; fix: print values with numpipe.debug_print",
                message if hasattr(message, "lineno") else node,
            )
        return text

    def _check(
        self, condition: ast.expr, message: str, statement: str, node: ast.AST, *, always: bool
    ) -> ast.expr:
        place = (message, statement, self.source.filename, node.lineno, always)  # type: ignore[attr-defined]
        checks: list[ast.expr] = [
            self.call(debug.check, [part, *place]) for part in _conjuncts(self.visit(condition))
        ]
        return checks[0] if len(checks) == 1 else tuple_of(checks, node)


def _conjuncts(condition: ast.expr) -> list[ast.expr]:
    """Return rewritten conditions that must all hold, each to be checked separately.

    `and` would need the truth of values that the memory role does not have.
    """
    if isinstance(condition, ast.BoolOp) and isinstance(condition.op, ast.And):
        return [each for part in condition.values for each in _conjuncts(part)]
    return [condition]
