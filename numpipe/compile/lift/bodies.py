"""Rewriting of calls that take a function or allocation types: pipelines that are emitted with a
body, `run_scoped` and `scratch`.

An emitted pipeline becomes the pipeline of the loop form and the functions that it calls. The type
of an allocation is a constant, which is passed to the operation as text.
"""

from __future__ import annotations

import ast
import copy
import inspect
from typing import Any

from ...core.functions import Facts, Function
from ...core.op import plain_signature
from ...diagnostics.errors import SpecError
from ...language.memory import scratch
from ...language.pipeline import body_form, pipelines
from ...plan.allocations import SMEM, Barrier, ClusterBarrier, RefUnion, is_allocation
from ...plan.nested_tuples import Tree, leaves, tree_of
from .constants import MISSING, literal_node, named_tuple, one_of
from .function_calls import Functions
from .loops import BUILDERS
from .nodes import item, load, located, parameters, parameters_of
from .rewriter import NOT_MINE
from .subset import mismatch, spelled

REFERENCES = "__np_references"


class Bodies(Functions):
    """``emit_pipeline_warp_specialized(…)``, ``emit_pipeline(…)``, ``run_scoped(…)`` and
    ``scratch(…)``."""

    # ---- pipelines
    def not_called(self, node: ast.Expr) -> Any:
        """Reject a pipeline that is emitted and not run."""
        called = self.callee(node.value)
        if one_of(called, BUILDERS):
            self.error(body_form.not_called(called.__name__))
        return NOT_MINE

    def emits(self, node: ast.Call, called: Any) -> Any:
        """Rewrite an emitted pipeline as the pipeline of the loop form, with the functions that it
        calls."""
        if not one_of(called, BUILDERS):
            return NOT_MINE
        options = dict(
            zip(inspect.signature(called).parameters, self.bind(called, node), strict=True)
        )
        alone, nothing = called is body_form.emit_pipeline, literal_node(None, node)
        body, compute, coroutine, carry, state = (
            options.pop(name, nothing)
            for name in (
                "body",
                "compute_context",
                "carry_coroutine",
                "init_carry",
                "pipeline_state",
            )
        )
        pipe = [
            options.pop(name, literal_node(option.default, node))
            for name, option in inspect.signature(pipelines.pipeline).parameters.items()
        ]
        carries = self.value(coroutine) is not None
        if carries and self.value(compute) is not None:
            self.error(
                "emit_pipeline_warp_specialized: compute_context and carry_coroutine do the "
                "same; fix: give only one of them",
            )
        # The remaining options describe the CTA's split into roles, which must be the kernel's.
        if not alone:
            where = f"kernel {self.unit.kernel}, pipeline at {self.session.site(self.source, node)}"
            try:
                body_form.check_options(
                    where, self.unit, {name: self.value(value) for name, value in options.items()}
                )
            except SpecError as error:
                raise SpecError(self.source.position(node).stamp(str(error))) from None
        loop = self.loop_form(node, pipe, alone)
        lifted, facts = self.facts_of(body)
        context, around = self.facts_of(coroutine if carries else compute)
        emitted = self.call(
            body_form.emitted,
            [
                loop,
                lifted,
                context,
                int(carries),
                self.visit(carry),
                self.visit(state),
                0,
            ],
        )
        if alone:  # it contains loads of the memory role where its body does
            for part in (loop, emitted):
                part.facts = Facts("a pipeline", 0, pipelines=facts is not None and facts.pipelines)  # type: ignore[attr-defined]
        else:  # its own end may pass a turn only if no other pipeline follows
            emitted.may_pass_turn = (  # type: ignore[attr-defined]
                not around.pipelines if around else isinstance(context, ast.Constant)
            )
        return emitted

    # ---- allocations
    def allocation(self, node: ast.Call, function: Any) -> Any:
        if function is scratch.scratch:
            kind, array = self.bind(function, node)
            of, tree = self._tree_of(kind)
            given = [self._type(kind, True) if of is None else of, self.visit(array)]
            references = self.call(scratch.scratch, given)
            return references if tree is None else self._in_tree(tree, references, node)
        if function is not scratch.run_scoped:
            return NOT_MINE
        self._types_by_position(node)
        called, *kinds, axes = self.bind(scratch.run_scoped, node)
        inner, facts = self.facts_of(called)
        types = []
        for kind in kinds:
            of, tree = self._tree_of(kind)
            types.append(
                self._type(kind, False)
                if of is None or tree is None
                else self._in_tree(
                    tree,
                    self.call(scratch.scoped, [of, self.visit(copy.deepcopy(axes))], kind),
                    kind,
                )
            )
        call = self.call(scratch.run_scoped, [inner, *types, self.visit(axes)])
        call.facts = facts  # type: ignore[attr-defined]
        return call

    def _types_by_position(self, node: ast.Call) -> None:
        """Convert types that are given by the names of the function's parameters into positional
        ones.

        Reject a function that does not take a reference for each type.
        """
        starred = any(isinstance(a, ast.Starred) for a in node.args)
        if not node.args or starred or any(k.arg is None for k in node.keywords):
            return
        called = node.args[0]
        value = self.value(called)
        if value is not MISSING and not isinstance(value, Function) and not callable(value):
            self.error(
                "run_scoped: function must be nested in the kernel, or decorated with "
                f"@numpipe.function, got {ast.unparse(called)}",
                called,
            )
        if isinstance(value, Function):
            signature = inspect.signature(value.function)
        elif (nested := self._function_of(called)) is not None:
            signature = plain_signature(parameters_of(nested))
        else:
            return
        own = ("collective_axes", "function")
        named = {str(k.arg): k.value for k in node.keywords if k.arg not in own}
        names = list(signature.parameters)
        if named:  # then none of the preceding ones may be left out
            signature = plain_signature(names)
        if (wrong := mismatch(signature, len(node.args) - 1, list(named))) is not None:
            self.error(
                f"run_scoped: {ast.unparse(called)}{spelled(signature)} is called with a reference "
                f"for each type: {wrong}",
            )
        if named:
            node.args += [named[name] for name in names[len(node.args) - 1 :]]
            node.keywords = [k for k in node.keywords if k.arg not in named]

    def _tree_of(self, node: ast.expr) -> tuple[ast.expr | None, Tree | None]:
        """Return a type that contains NamedTuples as the text of plain tuples, and its shape;
        (None, None) for any other."""
        whole = self.value(node)
        if whole is MISSING or not (parts := leaves(whole)) or not all(map(is_allocation, parts)):
            return None, None
        tree = tree_of(whole)
        plain = tree.build(iter(parts), lambda _, inner: tuple(inner))
        return (
            (None, None) if repr(plain) == repr(whole) else (literal_node(repr(plain), node), tree)
        )

    def _in_tree(self, tree: Tree, references: ast.expr, node: ast.expr) -> ast.Call:
        """Return a call of a lambda that makes NamedTuples from references in plain tuples."""

        def shaped(tree: Tree, value: ast.expr) -> ast.expr:
            if tree.parts is None:
                return value
            parts = [
                shaped(part, item(copy.deepcopy(value), number))
                for number, part in enumerate(tree.parts)
            ]
            if not tree.fields:
                return ast.Tuple(parts, ast.Load())
            self.temporaries += 1
            return ast.Call(self.named(f"class_{self.temporaries}", tree.kind, node), parts, [])

        made = ast.Lambda(parameters([REFERENCES]), shaped(tree, load(REFERENCES)))
        return located(ast.Call(self.visit(located(made, node)), [references], []), node)

    def _type(self, node: ast.expr, always: bool) -> ast.expr:
        """Return the type of an allocation as text. Anything else is passed on, or rejected if
        `always`."""
        value = self.value(node)
        if is_allocation(value):
            return literal_node(repr(value), node)
        self._check_type(node)
        if always:
            if isinstance(node, ast.Dict):
                self.error(
                    "numpipe.scratch: dictionaries are not supported in a kernel; fix: use a "
                    "NamedTuple, whose parts have names too, or a tuple of types",
                    node,
                )
            for part in ast.walk(node):  # a type that was not imported
                if isinstance(part, ast.Call) and isinstance(part.func, ast.Name):
                    self.name(part.func)
            self.error(
                "numpipe.scratch takes a type, numpipe.SMEM(shape, dtype), numpipe.Barrier(…) or "
                f"numpipe.RefUnion(…), which is a compile-time constant, got {ast.unparse(node)}",
                node,
            )
        return self.visit(node)  # type: ignore[no-any-return]

    def _check_type(self, node: ast.expr) -> None:
        """Raise the error for a type that is written in place and is not a constant, or not a
        type."""
        if isinstance(node, ast.Tuple):
            for part in node.elts:
                self._check_type(part)
        if not isinstance(node, ast.Call):
            return
        kind = self.value(node.func)
        parts = (*node.args, *(keyword.value for keyword in node.keywords))
        if named_tuple(kind):
            for part in parts:
                self._check_type(part)
        if kind not in (SMEM, Barrier, ClusterBarrier, RefUnion):
            return
        for part in parts:
            self._check_type(part)
            if self.value(part) is MISSING and part not in self.constants.failed:
                self.error(
                    f"{ast.unparse(part)} is not a compile-time constant, which the type of an "
                    "allocation must be; fix: use literals, constants of the module or fields of "
                    "a Static",
                    part,
                )
            self.visit(part)  # raises the error that explains why
        try:
            kind(
                *map(self.value, node.args),
                **{str(k.arg): self.value(k.value) for k in node.keywords},
            )
        except SpecError as error:
            self.error(str(error), node, SpecError)
        except TypeError as error:
            self.error(f"{ast.unparse(node)}: {error}", node)
