"""Types of allocations in a kernel's source: constants, which travel to the operations as texts."""

from __future__ import annotations

import ast
import inspect
from typing import Any

from ...core.functions import Function
from ...diagnostics.errors import SpecError
from ...language.memory import shared
from ...plan.allocations import SMEM, Barrier, ClusterBarrier, RefUnion, is_allocation
from .bodies import Bodies
from .fold import MISSING, literal_node
from .rewriter import NOT_MINE
from .subset import mismatch, plain_signature
from .subset import spelled as spelled_signature


class Allocations(Bodies):
    """``numpipe.scratch(…)`` and ``numpipe.run_scoped(…)``."""

    def allocation(self, node: ast.Call, function: Any) -> Any:
        if function is shared.scratch:
            kind, = self.bind(function, node)
            return self.call(shared.scratch, [self._type(kind, True)], node)
        if function is shared.run_scoped:
            return self._scoped(node)
        return NOT_MINE

    def _scoped(self, node: ast.Call) -> ast.Call:
        called, *kinds, axes = self.bind(shared.run_scoped, node)
        self._takes(called, self.value(called), len(kinds), node)
        function, facts = self.facts_of(called)
        hidden, axes = self.hidden(shared.run_scoped, node), self.visit(axes)
        call = self.call_with(hidden, shared.run_scoped, [function, *(self._type(kind, False) for kind in kinds), axes], node)
        call.facts = facts  # type: ignore[attr-defined]
        return call

    def _takes(self, called: ast.expr, value: Any, count: int, node: ast.Call) -> None:
        """The function takes a reference for each type."""
        if value is not MISSING and not isinstance(value, Function) and not callable(value):
            self.error(called, "run_scoped: function must be one that is nested in the kernel, or decorated with "
                               f"@numpipe.function, got {ast.unparse(called)}")
        places = [called] if isinstance(called, ast.Lambda) else self._binds(called.id) if isinstance(called, ast.Name) else []
        if isinstance(value, Function):
            signature = inspect.signature(value.function)
        elif len(places) == 1 and isinstance(places[0], (ast.FunctionDef, ast.Lambda)):
            signature = plain_signature(argument.arg for argument in places[0].args.args)
        else:
            return
        wrong = mismatch(signature, count, [])
        if wrong is not None:
            self.error(node, f"run_scoped: {ast.unparse(called)}{spelled_signature(signature)} is called with a reference for each "
                             f"type: {wrong}")

    def _type(self, node: ast.expr, always: bool) -> ast.expr:
        """A type, as its text; anything else is passed on, unless a type is wanted `always`."""
        value = self.value(node)
        if is_allocation(value):
            return literal_node(repr(value), node)
        self._wrong(node)
        if always:
            self.error(node, "numpipe.scratch takes a type, numpipe.SMEM(shape, dtype), numpipe.Barrier(…) or numpipe.RefUnion(…), "
                             f"which is a compile-time constant, got {ast.unparse(node)}")
        return self.visit(node)  # type: ignore[no-any-return]

    def _wrong(self, node: ast.expr) -> None:
        """Say what is wrong with a type that is written in place."""
        if isinstance(node, ast.Tuple):
            for part in node.elts:
                self._wrong(part)
        if not isinstance(node, ast.Call) or self.value(node.func) not in (SMEM, Barrier, ClusterBarrier, RefUnion):
            return
        for part in (*node.args, *(keyword.value for keyword in node.keywords)):
            self._wrong(part)
            if self.value(part) is MISSING and part not in self.constants.failed:
                self.error(part, f"{ast.unparse(part)} is no compile-time constant, and the type of an allocation is one: write "
                                 "literals, constants of the module or fields of a Static")
            self.visit(part)  # which says why it failed
        try:
            self.value(node.func)(*map(self.value, node.args), **{str(k.arg): self.value(k.value) for k in node.keywords})
        except SpecError as error:
            raise SpecError(self.source.position(node).stamp(f"kernel {self.unit.kernel}: {error}")) from None
        except TypeError as error:
            self.error(node, f"{ast.unparse(node)}: {error}")
