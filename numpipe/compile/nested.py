"""Nested functions and lambdas, rewritten: functions of the module, bound to what they captured, by value."""

from __future__ import annotations

import ast
from typing import Any

from .fold import stores
from .rewriter import CONTEXT, Rewriter


class Nested(Rewriter):
    """``def`` and ``lambda`` in a kernel."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        if node.decorator_list:
            self.error(node.decorator_list[0], f"nested function '{node.name}': decorators are not supported in a kernel")
        bound = self._nested(node, node.name)
        return ast.copy_location(ast.Assign([ast.copy_location(ast.Name(node.name, ast.Store()), node)], bound), node)

    def visit_Lambda(self, node: ast.Lambda) -> Any:
        returned = ast.copy_location(ast.Return(node.body), node)
        function = ast.copy_location(ast.FunctionDef("lambda_", node.args, [returned], [], None), node)
        return self._nested(function, "lambda_")

    def _nested(self, node: ast.FunctionDef, name: str) -> ast.expr:
        arguments = node.args
        if arguments.defaults or arguments.vararg or arguments.kwarg or arguments.kwonlyargs or arguments.posonlyargs:
            self.error(node, f"nested function '{name}': plain positional parameters only")
        for inner in ast.walk(node):
            if isinstance(inner, (ast.Nonlocal, ast.Global)):
                self.error(inner, f"'{type(inner).__name__.lower()}' cannot be compiled: captures are by value; return the "
                                  "value instead")
        node.returns = None
        for argument in arguments.args:
            argument.annotation = None
        self.temporaries += 1
        lifted = f"{name}__{self.temporaries}"
        self._body(node)
        own = {n for n, _ in stores(node)}
        used = {n.id for s in node.body for n in ast.walk(s) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
        enclosing = self.local | {CONTEXT}
        captures = sorted(n for n in used - own if n in enclosing)
        self._by_value(node, name, captures)
        unpack: list[ast.stmt] = [ast.Assign([ast.Name(c, ast.Store())], ast.Subscript(
            ast.Name("__env", ast.Load()), ast.Constant(i), ast.Load())) for i, c in enumerate(captures)]
        for statement in unpack:
            for part in ast.walk(statement):
                ast.copy_location(part, node)
        function = ast.FunctionDef(lifted, ast.arguments([], [ast.arg("__env"), *arguments.args], None, [], [], None, []),
                                   [*unpack, *node.body], [], None)
        if hasattr(node, "type_params"):  # Python 3.12
            setattr(function, "type_params", [])  # noqa: B010
        self.out.append(ast.copy_location(function, node))
        self.binders.append(lifted)
        captured: list[ast.expr] = [ast.Name(c, ast.Load()) for c in captures] or [ast.Constant(0)]
        call = ast.Call(ast.Name(f"__np_bind_{lifted}", ast.Load()), [ast.Tuple(captured, ast.Load())], [])
        for part in ast.walk(call):
            ast.copy_location(part, node)
        return call

    def _by_value(self, node: ast.AST, name: str, captures: list[str]) -> None:
        line = getattr(node, "lineno", 0)
        if name in captures and name != "lambda_":
            self.error(node, f"nested function '{name}' calls itself: recursion cannot be compiled")
        for _, names in self.scopes:
            for capture in captures:
                for place in names.get(capture, []):
                    if getattr(place, "lineno", 0) > line:
                        self.error(place, f"'{capture}' is re-bound after '{name}' of line {line} captured it: captures are by "
                                          "value in a kernel; use another name")
