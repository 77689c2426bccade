"""`debug_print`, `device_assert` and ``assert``, rewritten: with the kernel's context and the place in the source."""

from __future__ import annotations

import ast
from typing import Any

from .. import debug, profiling
from .._format import fields, parse
from ..errors import SpecError
from .calls import Calls
from .fold import MISSING, literal_node
from .subset import WITH


class Debugging(Calls):
    """What looks into a running kernel. `breakpoint()` stays Python's own, so that a debugger stops in the kernel's frame."""

    def visit_Call(self, node: ast.Call) -> Any:
        function = self.value(node.func)
        if function is debug.debug_print:
            return self._print(node)
        if function is debug.device_assert:
            condition, message = self.bind(function, node)
            return self._check(condition, self._message(message, node), ast.unparse(node), node, always=True)
        if function is print:
            self.error(node, "'print' would be called by every lane of a warpgroup: use numpipe.debug_print(\"…{}…\", value)")
        if function is breakpoint:
            node.func = self.call(debug.simulated_only, [node.func], node)
        return super().visit_Call(node)

    def visit_With(self, node: ast.With) -> list[ast.stmt]:
        """``with numpipe.region("name"):``, the only thing that is entered and left: an event before and one behind."""
        item = node.items[0]
        call = item.context_expr
        if not isinstance(call, ast.Call) or self.value(call.func) is not profiling.region:
            self.error(node, WITH)
        if len(node.items) > 1 or item.optional_vars is not None:
            self.error(node, "a region stands alone: with numpipe.region(\"name\"):")
        self._stays_in_region(node.body, False)
        name, = self.bind(profiling.region, call)
        if not isinstance(self.value(name), str):
            self.error(name, f"region: name must be a compile-time string, got {ast.unparse(name)}")
        text = self.value(name)
        begin, end = (ast.copy_location(ast.Expr(self.call(what, [self.context_name(node), literal_node(text, node)], node)), node)
                      for what in (profiling.region_begin, profiling.region_end))
        return [begin, *self._block(node.body), end]

    def _stays_in_region(self, body: list[ast.stmt], in_loop: bool) -> None:
        for statement in body:
            if isinstance(statement, ast.Return) or (isinstance(statement, (ast.Break, ast.Continue)) and not in_loop):
                word = type(statement).__name__.lower()
                self.error(statement, f"'{word}' leaves the region without ending it: put it behind the 'with'")
            if isinstance(statement, (ast.FunctionDef, ast.Lambda)):
                continue
            inner = in_loop or isinstance(statement, (ast.For, ast.While))
            for part in ("body", "orelse"):
                self._stays_in_region(getattr(statement, part, []), inner)

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
        args = [self.context_name(node), literal_node(text, written), *(self.visit(value) for value in values)]
        return self.call(debug.print_line, args, node)

    def visit_Assert(self, node: ast.Assert) -> Any:
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
            self.call(debug.check, [self.context_name(node), self.visit(part), *(literal_node(p, node) for p in place)], node)
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
