"""Rewriting of nested functions and lambdas: they become functions of the module, bound to the
values that they captured.

A generator function that carries through a pipeline becomes the compute context that it stands for.
"""

from __future__ import annotations

import ast
from typing import Any

from ...core.functions import Facts, function
from ...language.pipeline import body_form
from .calls_and_slices import Calls
from .constants import one_of, stores
from .loops import BUILDERS, holds_pipeline, makes_pipeline
from .nodes import (
    argument,
    assign,
    definition,
    item,
    load,
    located,
    names,
    own,
    parameters,
    surely,
    walk,
)
from .rewriter import CONTEXT
from .turn_placement import holds_turns
from .wait_counts import Waits

ENVIRONMENT = "__env"
PIPELINE = "__np_pipeline"


class Nested(Calls, Waits):
    """``def`` and ``lambda`` in a kernel."""

    def lift_body(self, node: ast.FunctionDef) -> None:
        """Rewrite the body of a function, in place."""
        # on the user's source, where products and waits are recognized by their names
        self.count_pending(node)
        self.rewrite_body(node)
        self.settle_bound(node)  # for the branches that remain

    def nested_function(self, node: ast.FunctionDef) -> Any:
        for decorator in node.decorator_list:
            if self.value(decorator) is not function:
                self.error(
                    f"nested function '{node.name}': decorators are not supported in a kernel; "
                    "fix: remove the decorator",
                    decorator,
                )
        return located(assign(node.name, self._nested(node, node.name)), node)

    def nested_lambda(self, node: ast.Lambda) -> Any:
        return self._nested(
            located(definition("lambda_", node.args, [ast.Return(node.body)]), node), "lambda_"
        )

    def _nested(self, node: ast.FunctionDef, name: str) -> ast.expr:
        arguments = node.args
        called = "a lambda" if name == "lambda_" else f"nested function '{name}'"
        if arguments.defaults or arguments.kw_defaults:
            self.error(
                f"{called}: default arguments are not supported; fix: use the kernel's names "
                "directly, which are captured by value, or use @numpipe.function",
                node,
            )
        if (
            arguments.kwarg
            or arguments.kwonlyargs
            or arguments.posonlyargs
            or (arguments.vararg and name == "lambda_")
        ):
            self.error(f"{called}: only positional parameters are supported", node)
        rest = arguments.vararg
        if rest is not None:  # it becomes the tuple that callers pack (`Facts.packed`)
            self._packed_by_callers(name)
            arguments.vararg = None
            arguments.args.append(rest)
        node.returns = None
        for parameter in arguments.args:
            parameter.annotation = None
        self.temporaries += 1
        lifted = f"{name}__{self.temporaries}"
        coroutine = self._coroutine(node)
        self.lift_body(node)
        self.facts[id(node)] = self.binders[lifted] = self._facts(
            node, name, coroutine, rest is not None
        )
        free = names(ast.Load, *node.body) - {n for n, _ in stores(node)}
        # which the casts of operands need; index maps are lambdas, and have none
        casts = {CONTEXT} if name != "lambda_" else free & {CONTEXT}
        captures = sorted(free & self.local | casts)
        if name in captures and name != "lambda_":
            self.error(f"nested function '{name}' calls itself: recursion cannot be compiled", node)
        for capture in captures:
            for place in self._binds(capture):
                if getattr(place, "lineno", 0) > node.lineno:
                    self.error(
                        f"'{capture}' is reassigned after '{name}' at line {node.lineno} captured "
                        "it, but captures are by value in a kernel; fix: use another name",
                        place,
                    )
        unpack = [
            located(assign(c, item(load(ENVIRONMENT), i)), node) for i, c in enumerate(captures)
        ]
        outside = parameters([ENVIRONMENT])
        outside.args += arguments.args
        self.out.append(ast.copy_location(definition(lifted, outside, [*unpack, *node.body]), node))
        captured: list[ast.expr] = [load(c) for c in captures] or [ast.Constant(0)]
        return located(
            ast.Call(load(f"__np_bind_{lifted}"), [ast.Tuple(captured, ast.Load())], []), node
        )

    def _packed_by_callers(self, name: str) -> None:
        """Raise an error if a function that takes ``*rest`` is passed to code that does not pack
        its extra arguments into a tuple."""
        nodes = [part for scope, _ in self.scopes for part in walk(scope)]
        packs = set()
        for call in nodes:
            if isinstance(call, ast.Call):
                packs.add(id(call.func))
                if one_of(self.value(call.func), BUILDERS):
                    packs.add(id(argument(call, "body", 0)))
        for use in nodes:
            if (
                isinstance(use, ast.Name)
                and use.id == name
                and isinstance(use.ctx, ast.Load)
                and id(use) not in packs
            ):
                self.error(
                    f"nested function '{name}' has '*', so it must be called by its own name or "
                    "be the body of a pipeline; fix: write its parameters out",
                    use,
                )

    def _coroutine(self, node: ast.FunctionDef, always: bool = False) -> bool:
        """Rewrite a carry_coroutine as a compute context. Return whether the function is a
        carry_coroutine."""
        yields = sorted(
            (part for part in own(node.body) if isinstance(part, ast.Yield)),
            key=lambda y: (y.lineno, y.col_offset),
        )
        if not yields or not (always or self._carries(node.name)):
            return False
        if len(yields) > 1 or yields[0].value is None:
            self.error(
                f"carry_coroutine '{node.name}' "
                + (
                    f"yields {len(yields)} times: it yields the initial carry, once, and receives "
                    "the final one"
                    if len(yields) > 1
                    else "yields nothing: it yields the initial carry, and receives the final one"
                ),
                yields[-1],
            )
        if node.args.args:
            self.error(
                f"carry_coroutine '{node.name}' takes arguments, but is called with none", node
            )
        # ``yield initial`` becomes ``pipeline(initial)``
        node.args.args.append(ast.copy_location(ast.arg(PIPELINE), node))
        node.body = [_Yield().visit(statement) for statement in node.body]
        return True

    def _carries(self, name: str) -> bool:
        """Return whether an enclosing function passes `name` as carry_coroutine."""
        return any(
            isinstance(call, ast.Call)
            and self.value(call.func) is body_form.emit_pipeline_warp_specialized
            and getattr(argument(call, "carry_coroutine"), "id", None) == name
            for scope, _ in self.scopes
            for call in walk(scope)
        )

    def _facts(
        self, node: ast.FunctionDef, name: str, coroutine: bool, rest: bool = False
    ) -> Facts:
        """Return what callers may know of a rewritten function."""
        count = len(node.args.args) - rest
        why = _misuse(node, "yields to" if coroutine else "calls") if count == 1 else ""
        returned = [n.value for n in walk(*node.body) if isinstance(n, ast.Return)]
        bound = {
            target.id
            for part in walk(*node.body)
            if isinstance(part, ast.Assign) and makes_pipeline(part.value)
            for target in part.targets
            if isinstance(target, ast.Name)
        }
        makes = [
            value is not None and (makes_pipeline(value) or getattr(value, "id", None) in bound)
            for value in returned
        ]
        return Facts(
            name if name != "lambda_" else "lambda",
            count,
            self._groups(node.body),
            holds_pipeline(node.body),
            any(
                not (value is None or (isinstance(value, ast.Constant) and value.value is None))
                for value in returned
            ),
            coroutine,
            why,
            holds_turns(node.body),
            rest,
            bool(makes) and all(makes),
        )


class _Yield(ast.NodeTransformer):
    def visit_Yield(self, node: ast.Yield) -> ast.Call:
        assert node.value is not None
        return located(ast.Call(load(PIPELINE), [node.value], []), node)


def _misuse(function: ast.FunctionDef, verb: str) -> str:
    """Return why a function does not call its first parameter, the pipeline, exactly once on every
    path; "" if it does."""
    parameter = function.args.args[0].arg
    uses = [
        n
        for statement in function.body
        for n in walk(statement)
        if isinstance(n, ast.Name) and n.id == parameter and isinstance(n.ctx, ast.Load)
    ]
    calls = {id(n.func): n for n in walk(*function.body) if isinstance(n, ast.Call)}
    if not uses:
        return f"never {verb} the pipeline: write carry = {parameter}(carry) once"
    if (passed := next((use for use in uses if id(use) not in calls), None)) is not None:
        return (
            f"passes the pipeline on (line {passed.lineno}): it calls it itself, {parameter}(carry)"
        )
    if len(uses) > 1:
        return (
            f"{verb} the pipeline {len(uses)} times (line {uses[1].lineno}): a pipeline runs "
            "once; emit another one"
        )
    use, call = uses[0], calls[id(uses[0])]
    if len(call.args) != 1 or call.keywords:
        return (
            f"{verb} the pipeline with {len(call.args) + len(call.keywords)} arguments (line "
            f"{use.lineno}): it takes the initial carry"
        )
    if not any(part is use for statement in function.body for part in surely(statement)):
        return (
            f"{verb} the pipeline under a condition or in a loop (line {use.lineno}): every "
            "warpgroup runs it, once"
        )
    for node in walk(*function.body):
        if isinstance(node, ast.Return) and node.lineno < use.lineno:
            return (
                f"may return (line {node.lineno}) before it {verb} the pipeline: every warpgroup "
                "runs it, once"
            )
    return ""
