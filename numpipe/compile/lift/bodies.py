"""The body form, rewritten: a pipeline that calls functions, and generator functions that carry through it."""

from __future__ import annotations

import ast
import inspect
from typing import Any

from ...core.facts import Facts
from ...language.pipeline import emit, emit_single, pipelines
from ...language.pipeline.barriers import MANUAL
from .calls import Calls
from .fold import literal_node
from .nodes import children, load, located, walk
from .rewriter import NOT_MINE


class Bodies(Calls):
    """``emit_pipeline_warp_specialized(…)`` and ``emit_pipeline(…)``."""

    def emits(self, node: ast.Call, called: Any) -> Any:
        if called is emit.emit_pipeline_warp_specialized:
            return self._emit(node)
        if called is emit_single.emit_pipeline:
            return self._emit_alone(node)
        return NOT_MINE

    def not_called(self, node: ast.Expr) -> Any:
        """A pipeline that is emitted and not run."""
        called = self.value(node.value.func) if isinstance(node.value, ast.Call) else None
        if called is emit.emit_pipeline_warp_specialized or called is emit_single.emit_pipeline:
            self.error(node, emit.not_called(called.__name__))
        return NOT_MINE

    def _emit(self, node: ast.Call) -> ast.Call:
        """The loop form's pipeline, and what it calls."""
        said = dict(zip(inspect.signature(emit.emit_pipeline_warp_specialized).parameters,
                        self.bind(emit.emit_pipeline_warp_specialized, node), strict=True))
        body, grid, in_specs, compute, coroutine = (said.pop(name) for name in (
            "body", "grid", "in_specs", "compute_context", "carry_coroutine"))
        looped = [said.pop(name) for name in ("out_specs", "max_concurrent_steps", "delay_release", "steps_of", *MANUAL)]
        given = self.value(coroutine) is not None
        if given and self.value(compute) is not None:
            self.error(node, "emit_pipeline_warp_specialized: compute_context and carry_coroutine are two ways to say the same: "
                             "give one")
        self._index_maps_fit(grid, in_specs, looped[0])
        pipe = [*(self.visit(part) for part in (grid, in_specs, *looped)),
                literal_node(self._known_grid(grid), node), literal_node(self.session.site(self.source, node), node)]
        context, facts = self.facts_of(coroutine if given else compute)
        made = self.call(emit.emitted, [self.call(pipelines.make_pipeline, pipe, node), self.visit(body), context,
                                        literal_node(int(given), node), *map(self.visit, said.values()), literal_node(0, node)],
                         node)
        # its own end may pass a turn only if no other pipeline comes behind it
        made.may_pass_turn = not facts.pipelines if facts else isinstance(context, ast.Constant)  # type: ignore[attr-defined]
        return made

    def _emit_alone(self, node: ast.Call) -> ast.Call:
        """A single-stream pipeline: it holds loads of the memory role where its body does."""
        body, grid, in_specs, out_specs, slots, delay, carry = self.bind(emit_single.emit_pipeline, node)
        self._index_maps_fit(grid, in_specs, out_specs)
        pipe = [*(self.visit(part) for part in (grid, in_specs, out_specs, slots, delay)),
                literal_node(None, node), literal_node(self._known_grid(grid), node),
                literal_node(self.session.site(self.source, node), node)]
        given, facts = self.facts_of(body)
        made = self.call(emit_single.emitted_alone, [self.call(emit_single.make_alone, pipe, node), given, self.visit(carry)], node)
        made.facts = Facts("a pipeline", 0, pipelines=facts is not None and facts.pipelines)  # type: ignore[attr-defined]
        return made

    def facts_of(self, function: ast.expr) -> tuple[ast.expr, Facts | None]:
        """A function that is passed, rewritten, and what is known of it."""
        raise NotImplementedError


class _Yield(ast.NodeTransformer):
    def __init__(self, parameter: str) -> None:
        self.parameter = parameter

    def visit_Yield(self, node: ast.Yield) -> ast.Call:
        assert node.value is not None
        return located(ast.Call(load(self.parameter), [node.value], []), node)


def without_yield(function: ast.FunctionDef, parameter: str) -> None:
    """``final = yield initial`` becomes ``final = parameter(initial)``, in place: the compute context it stands for."""
    function.args.args.append(ast.copy_location(ast.arg(parameter), function))
    function.body = [_Yield(parameter).visit(statement) for statement in function.body]


def misuse(function: ast.FunctionDef, said: str = "calls") -> tuple[str, ast.AST]:
    """Why a function does not call its first parameter exactly once whatever happens, or ""; and the node to blame."""
    parameter = function.args.args[0].arg
    uses = [n for statement in function.body for n in walk(statement)
            if isinstance(n, ast.Name) and n.id == parameter and isinstance(n.ctx, ast.Load)]
    calls = {id(n.func): n for statement in function.body for n in walk(statement) if isinstance(n, ast.Call)}
    if not uses:
        return f"never {said} the pipeline: write carry = {parameter}(carry) once", function
    passed = next((use for use in uses if id(use) not in calls), None)
    if passed is not None:
        return f"passes the pipeline on (line {passed.lineno}): it calls it itself, {parameter}(carry)", passed
    if len(uses) > 1:
        return f"{said} the pipeline {len(uses)} times (line {uses[1].lineno}): a pipeline runs once; emit another one", uses[1]
    use, call = uses[0], calls[id(uses[0])]
    if len(call.args) != 1 or call.keywords:
        return f"{said} the pipeline with {len(call.args) + len(call.keywords)} arguments (line {use.lineno}): it takes the "\
               "initial carry", call
    left = next((n for statement in function.body for n in walk(statement)
                 if isinstance(n, ast.Return) and n.lineno < use.lineno), None)
    if not _always(function.body, use):
        return f"{said} the pipeline under a condition or in a loop (line {use.lineno}): every warpgroup runs it, once", use
    if left is not None:
        return f"may return (line {left.lineno}) before it {said} the pipeline: every warpgroup runs it, once", left
    return "", function


def _always(body: list[ast.stmt], use: ast.AST) -> bool:
    """Whether running `body` evaluates `use` exactly once, whatever happens."""
    def sure(node: ast.AST) -> bool:
        if node is use:
            return True
        match node:
            case ast.For() | ast.While() | ast.If() | ast.FunctionDef() | ast.Lambda():
                return False
            case ast.IfExp(test=test):
                return sure(test)
            case ast.BoolOp(values=values):
                return sure(values[0])
        return any(sure(child) for child in children(node))

    return any(sure(statement) for statement in body)
