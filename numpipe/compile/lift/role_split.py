"""The split of a kernel's CTA into roles, as given by the kernel's options or by a pipeline in its
source.

`emit_pipeline_warp_specialized` may set num_compute_wgs, wg_axis and memory_registers, but warps
and registers are assigned before the kernel starts, once per CTA. So a search of the source finds
these options, as constants, before anything is compiled.
"""

from __future__ import annotations

import ast
from typing import Any, ClassVar

from ...core.functions import Function
from ...diagnostics.errors import CompileError, Position, SpecError
from ...language.pipeline.body_form import emit_pipeline_warp_specialized
from ...plan.split import Split, SplitOptions
from .constants import MISSING, Constants
from .lift import read
from .nodes import definition, parameters_of
from .positions import Source
from .rewriter import NOT_MINE, Known

BUILDER = emit_pipeline_warp_specialized.__name__


def split(
    source: Source, known: dict[str, Any], said: SplitOptions, default: Split | None = None
) -> Split:
    """Return the split given by the kernel (`said`) or its pipelines, else the `default`; `known`:
    its Statics and arrays.

    Raises SpecError if they contradict each other, CompileError if a pipeline's option is not a
    constant.
    """
    search = _Search(source, known, source.name)
    search.rewrite_body(search.tree)
    found: dict[str, Any] = {}
    for name, value, position in search.found:
        own = getattr(said, name)
        if own is not None and own != value:
            raise SpecError(
                position.stamp(
                    f"kernel {source.name}: {BUILDER} has {name}={value!r}, but @numpipe.kernel "
                    f"has {own!r}: a CTA has only one split into roles; fix: set {name} in only "
                    "one of them"
                )
            )
        first, where = found.setdefault(name, (value, position))
        if first != value:
            raise SpecError(
                position.stamp(
                    f"kernel {source.name}: {BUILDER} has {name}={value!r}, but the call at line "
                    f"{where.line} has {first!r}: a CTA has only one split into roles; fix: give "
                    "both the same value, or make two kernels"
                )
            )
    asked = SplitOptions(**{name: value for name, (value, _) in found.items()})
    asked.check(source.name)
    return (default or Split()).given(asked).given(said)


class _Search(Known):
    """A search for the options of the pipelines that a function, or one that it calls, emits."""

    def __init__(
        self, source: Source, known: dict[str, Any], kernel: str, active: tuple = ()
    ) -> None:
        super().__init__(source, Constants(source.namespace, known))
        self.kernel, self.active = kernel, active
        self.found: list[tuple[str, Any, Position]] = []

    def inner(self, node: ast.FunctionDef | ast.Lambda) -> Any:
        self.rewrite_body(
            node
            if isinstance(node, ast.FunctionDef)
            else definition("", node.args, [ast.Return(node.body)])
        )
        return node

    def call(self, node: ast.Call, function: Any) -> Any:
        for keyword in node.keywords if function is emit_pipeline_warp_specialized else ():
            if keyword.arg in SplitOptions._fields:
                value, position = self.value(keyword.value), self.source.position(keyword.value)
                if value is MISSING:
                    raise CompileError(
                        position.stamp(
                            f"kernel {self.kernel}: {keyword.arg}={ast.unparse(keyword.value)} "
                            "must be a constant, because warps and registers are assigned before "
                            "the kernel runs"
                        )
                    )
                if value is not None:
                    self.found.append((keyword.arg, value, position))
        if not isinstance(function, Function):
            return NOT_MINE
        self._follow(function, node)
        for part in (*node.args, *node.keywords):
            self.visit(part)
        return node

    def passed(self, node: ast.Name | ast.Attribute) -> Any:
        """A function that is passed on will be called: search it too."""
        todo = [self.value(node)]
        for value in todo:
            if isinstance(value, Function):
                self._follow(value, None)
            todo += value if isinstance(value, tuple) else ()
        return NOT_MINE

    def _follow(self, function: Any, call: ast.Call | None) -> None:
        """Search a `@numpipe.function`, with the arguments of the call that are constants."""
        if function in self.active:
            return
        try:
            source = read(function.function)
        except CompileError:
            return  # rewriting the function raises this error
        inner = _Search(source, {}, self.kernel, (*self.active, function))
        if call is not None:
            args = [
                *zip(parameters_of(inner.tree), call.args, strict=False),
                *((k.arg, k.value) for k in call.keywords),
            ]
            known = {name: self.value(argument) for name, argument in args if name is not None}
            inner.constants.known = {
                name: value for name, value in known.items() if value is not MISSING
            }
        inner.rewrite_body(inner.tree)
        self.found += inner.found

    of_calls = (call,)
    of_type: ClassVar = {
        ast.Call: (Known.called,),
        ast.Name: (passed,),
        ast.Attribute: (passed,),
        ast.If: (Known.known_branch,),
        ast.IfExp: (Known.known_choice,),
        ast.Assign: (Known.known_names,),
        ast.FunctionDef: (inner,),
        ast.Lambda: (inner,),
    }
