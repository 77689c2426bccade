"""Nested functions and lambdas, rewritten: functions of the module, bound to what they captured, by value."""

from __future__ import annotations

import ast
from typing import Any

from ...core.facts import Facts
from ...core.functions import function
from ...language.pipeline import emit
from .bodies import misuse, without_yield
from .fold import stores
from .loops import Loops
from .nodes import assign, definition, load, located, own, parameters, walk
from .order_tokens import holds_turns
from .rewriter import CONTEXT

ENVIRONMENT = "__env"
PIPELINE = "__np_pipeline"


class Nested(Loops):
    """``def`` and ``lambda`` in a kernel."""

    def nested_function(self, node: ast.FunctionDef) -> Any:
        for decorator in node.decorator_list:
            if self.value(decorator) is not function:
                self.error(decorator, f"nested function '{node.name}': decorators are not supported in a kernel")
        return located(assign(node.name, self._nested(node, node.name)), node)

    def nested_lambda(self, node: ast.Lambda) -> Any:
        return self._nested(located(definition("lambda_", node.args, [ast.Return(node.body)]), node), "lambda_")

    def _nested(self, node: ast.FunctionDef, name: str) -> ast.expr:
        arguments = node.args
        called = "a lambda" if name == "lambda_" else f"nested function '{name}'"
        if arguments.defaults or arguments.kw_defaults:
            self.error(node, f"{called}: its parameters have no defaults: it captures by value what it uses of the kernel, or use "
                             "@numpipe.function")
        if arguments.vararg or arguments.kwarg or arguments.kwonlyargs or arguments.posonlyargs:
            self.error(node, f"{called}: plain positional parameters only")
        for inner in walk(node):
            if isinstance(inner, (ast.Nonlocal, ast.Global)):
                self.error(inner, f"'{type(inner).__name__.lower()}' cannot be compiled: captures are by value; return the "
                                  "value instead")
        node.returns = None
        for argument in arguments.args:
            argument.annotation = None
        self.temporaries += 1
        lifted = f"{name}__{self.temporaries}"
        coroutine = self._coroutine(node)
        self.lift_body(node)
        self.facts[id(node)] = self.binders[lifted] = self._facts(node, name, coroutine)
        own = {n for n, _ in stores(node)}
        used = {n.id for s in node.body for n in walk(s) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
        enclosing = self.local | {CONTEXT}
        captures = sorted(n for n in used - own if n in enclosing)
        self._by_value(node, name, captures)
        unpack = [located(assign(c, ast.Subscript(load(ENVIRONMENT), ast.Constant(i), ast.Load())), node)
                  for i, c in enumerate(captures)]
        given = parameters([ENVIRONMENT])
        given.args += arguments.args
        self.out.append(ast.copy_location(definition(lifted, given, [*unpack, *node.body]), node))
        captured: list[ast.expr] = [load(c) for c in captures] or [ast.Constant(0)]
        return located(ast.Call(load(f"__np_bind_{lifted}"), [ast.Tuple(captured, ast.Load())], []), node)

    def _coroutine(self, node: ast.FunctionDef, always: bool = False) -> bool:
        """Whether a function was a carry_coroutine; it is the compute context it stands for now."""
        yields = sorted((part for part in own(node.body) if isinstance(part, ast.Yield)), key=lambda y: (y.lineno, y.col_offset))
        if not yields or not (always or self._carries(node.name)):
            return False
        if len(yields) > 1 or yields[0].value is None:
            self.error(yields[-1], f"carry_coroutine '{node.name}' " + (
                f"yields {len(yields)} times: it yields the initial carry, once, and receives the final one" if len(yields) > 1 else
                "yields nothing: it yields the initial carry, and receives the final one"))
        if node.args.args:
            self.error(node, f"carry_coroutine '{node.name}' takes arguments, but is called with none")
        without_yield(node, PIPELINE)
        return True

    def _carries(self, name: str) -> bool:
        """Whether an enclosing function gives `name` as carry_coroutine."""
        for scope, _ in self.scopes:
            for call in walk(scope):
                if isinstance(call, ast.Call) and self.value(call.func) is emit.emit_pipeline_warp_specialized:
                    given = [k.value for k in call.keywords if k.arg == "carry_coroutine"]
                    if any(isinstance(value, ast.Name) and value.id == name for value in given):
                        return True
        return False

    def _facts(self, node: ast.FunctionDef, name: str, coroutine: bool) -> Facts:
        """What callers may know of a function, which has been rewritten."""
        count = len(node.args.args)
        why = misuse(node, "yields to" if coroutine else "calls")[0] if count == 1 else ""
        returned = [n.value for s in node.body for n in walk(s) if isinstance(n, ast.Return)]
        return Facts(name if name != "lambda_" else "lambda", count, self._groups(node.body), self._holds_pipeline(node.body),
                     any(not (value is None or (isinstance(value, ast.Constant) and value.value is None)) for value in returned),
                     coroutine, why, holds_turns(node.body))

    def _by_value(self, node: ast.AST, name: str, captures: list[str]) -> None:
        line = getattr(node, "lineno", 0)
        if name in captures and name != "lambda_":
            self.error(node, f"nested function '{name}' calls itself: recursion cannot be compiled")
        for capture in captures:
            for place in next((names[capture] for _, names in reversed(self.scopes) if capture in names), []):
                if getattr(place, "lineno", 0) > line:
                    self.error(place, f"'{capture}' is re-bound after '{name}' of line {line} captured it: captures are by "
                                      "value in a kernel; use another name")
