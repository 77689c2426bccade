"""`debug_print`, `device_assert` and ``assert``, rewritten: with the kernel's context and the place in the source."""

from __future__ import annotations

import ast
from typing import Any

from ...diagnostics.errors import SpecError
from ...diagnostics.format import fields, parse
from ...plan import debug
from .fold import MISSING, literal_node
from .rewriter import NOT_MINE
from .with_blocks import WithBlocks


class Debugging(WithBlocks):
    """What looks into a running kernel. `breakpoint()` stays Python's own, so that a debugger stops in the kernel's frame."""

    def debug_call(self, node: ast.Call, function: Any) -> Any:
        if function is debug.debug_print:
            return self._print(node)
        if function is debug.device_assert:
            condition, message = self.bind(function, node)
            return self._check(condition, self._message(message, node), ast.unparse(node), node, always=True)
        if function is print:
            self.error(node, "'print' would be called by every lane of a warpgroup: use numpipe.debug_print(\"…{}…\", value)")
        if function is breakpoint:
            node.func = self.call(debug.simulated_only, [node.func], node)
            return self.by_type(node)
        return NOT_MINE

    def _print(self, node: ast.Call) -> ast.Call:
        """The format is looked at here, so that a call that never runs is no exception."""
        written, *values = self.bind(debug.debug_print, node)
        text = self.value(written)
        if text is MISSING:
            self.error(written, f"debug_print: the format is a compile-time string, got {ast.unparse(written)}: values go into "
                                "its fields, debug_print(\"k={}\", k)")
        try:
            fields(parse(text), len(values))
        except SpecError as error:
            self.error(written, str(error))
        return self.call(debug.debug_print, [literal_node(text, written), *map(self.visit, values)], node)

    def assertion(self, node: ast.Assert) -> Any:
        """Decided here where the condition is known; else checked at run time, on the GPU if the kernel asks for it."""
        test = self.value(node.test)
        if test is MISSING:
            condition = ast.unparse(node.test)
            message = "" if node.msg is None else self._message(node.msg, node)
            return ast.copy_location(ast.Expr(self._check(node.test, message, f"assert {condition}", node, always=False)), node)
        said = "" if node.msg is None else f": {ast.unparse(node.msg) if (told := self.value(node.msg)) is MISSING else told}"
        if not test:
            self.error(node, f"'assert {ast.unparse(node.test)}' failed{said}")
        return None

    def _message(self, message: ast.expr, node: ast.AST) -> str:
        told = self.value(message)
        if not isinstance(told, str):
            self.error(message if hasattr(message, "lineno") else node,
                       f"the message of an assertion on run-time values is a constant string, got {ast.unparse(message)}: print "
                       "values with numpipe.debug_print")
        return told

    def _check(self, condition: ast.expr, message: str, statement: str, node: ast.AST, *, always: bool) -> ast.expr:
        place = (message, statement, self.source.filename, node.lineno, always)  # type: ignore[attr-defined]
        checks: list[ast.expr] = [
            self.call(debug.check, [self.visit(part), *(literal_node(p, node) for p in place)], node)
            for part in _conjuncts(condition)]
        return checks[0] if len(checks) == 1 else ast.copy_location(ast.Tuple(checks, ast.Load()), node)


def _conjuncts(condition: ast.expr) -> list[ast.expr]:
    """Conditions that must hold together, each to be checked for itself: `and` would ask the memory role for the truth of what
    it does not have."""
    match condition:
        case ast.BoolOp(op=ast.And(), values=parts):
            return [c for part in parts for c in _conjuncts(part)]
        case ast.Compare(left=left, ops=[_, _, *_] as ops, comparators=rights):
            if all(isinstance(middle, (ast.Name, ast.Constant, ast.Attribute)) for middle in rights[:-1]):  # looked at twice
                return [ast.copy_location(ast.Compare(a, [o], [b]), condition)
                        for a, o, b in zip([left, *rights], ops, rights, strict=False)]
    return [condition]
