"""The body form, rewritten: a pipeline that calls functions, and generator functions that carry through it."""

from __future__ import annotations

import ast
import inspect
from typing import Any

from ...core.facts import Facts
from ...diagnostics.errors import SpecError
from ...language.pipeline import emit, pipelines
from .calls import Calls
from .fold import literal_node
from .nodes import children, load, located, walk
from .rewriter import NOT_MINE

LOOPED = inspect.signature(pipelines.pipeline).parameters
"""options that they have of the loop form's pipeline"""


def builds(called: Any) -> bool:
    """Whether a function is one that emits a pipeline."""
    return called is emit.emit_pipeline_warp_specialized or called is emit.emit_pipeline


class Bodies(Calls):
    """``emit_pipeline_warp_specialized(…)`` and ``emit_pipeline(…)``."""

    def not_called(self, node: ast.Expr) -> Any:
        """A pipeline that is emitted and not run."""
        if isinstance(node.value, ast.Call) and builds(called := self.value(node.value.func)):
            self.error(node, emit.not_called(called.__name__))
        return NOT_MINE

    def emits(self, node: ast.Call, called: Any) -> Any:
        """The pipeline of the loop form, and what it calls."""
        if not builds(called):
            return NOT_MINE
        said = dict(zip(inspect.signature(called).parameters, self.bind(called, node), strict=True))
        alone, nothing = called is emit.emit_pipeline, literal_node(None, node)
        body, compute, coroutine, carry, state = (said.pop(name, nothing) for name in (
            "body", "compute_context", "carry_coroutine", "init_carry", "pipeline_state"))
        pipe = [said.pop(name, literal_node(option.default, node)) for name, option in LOOPED.items()]
        given = self.value(coroutine) is not None
        if given and self.value(compute) is not None:
            self.error(node, "emit_pipeline_warp_specialized: compute_context and carry_coroutine are two ways to say the same: "
                             "give one")
        if not alone:
            self._one_split(node, said)
        loop = self.loop_form(node, pipe, alone)
        lifted, facts = self.facts_of(body)
        context, around = self.facts_of(coroutine if given else compute)
        made = self.call(emit.emitted, [loop, lifted, context, literal_node(int(given), node), self.visit(carry), self.visit(state),
                                        literal_node(0, node)], node)
        if alone:  # it holds loads of the memory role where its body does
            for part in (loop, made):
                part.facts = Facts("a pipeline", 0, pipelines=facts is not None and facts.pipelines)  # type: ignore[attr-defined]
        else:  # its own end may pass a turn only if no other pipeline comes behind it
            made.may_pass_turn = not around.pipelines if around else isinstance(context, ast.Constant)  # type: ignore[attr-defined]
        return made

    def _one_split(self, node: ast.Call, said: dict[str, ast.expr]) -> None:
        """Refuse options of the CTA's split into roles that are not those of the kernel."""
        where = f"kernel {self.unit.kernel}, pipeline at {self.session.site(self.source, node)}"
        try:
            emit.check_options(where, self.unit, {name: self.value(value) for name, value in said.items()})
        except SpecError as error:
            raise SpecError(self.source.position(node).stamp(str(error))) from None

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
