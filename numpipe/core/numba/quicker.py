"""What Numba does again and again, or for Python that kernels are not written in, in less time.

Nothing here changes what is compiled. `replacements` are put in place by `hopper.compiling_for_hopper`, for as long as it compiles.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba.cuda.core import compiler_machinery, errors, postproc, transforms
from numba.cuda.cudaimpl import registry as lowering_registry
from numba.cuda.target import CUDATargetContext


def _refresh_if_changed(refresh: Callable[[Any], None]) -> Callable[[Any], None]:
    """Numba looks for new declarations at each call it types, in forty registries: only in what has grown, nearly always one."""
    seen: dict[Any, tuple[list[Any], int, int]] = {}

    def refreshed(context: Any) -> None:
        others, size, lowered = seen.get(context, ([], -1, 0))
        if sum(map(len, others)) != size:
            refresh(context)
            others = [getattr(registry, kind) for one in (context, context.typing_context)
                      for registry, loader in one._registries.items() for kind in loader.registry_items
                      if (registry, kind) != (lowering_registry, "functions")]
        elif len(lowering_registry.functions) != lowered:  # by an operation that was typed for the first time
            context.install_registry(lowering_registry)
        seen[context] = others, sum(map(len, others)), len(lowering_registry.functions)

    return refreshed


def post_process(self: postproc.PostProcessor, emit_dels: bool = False, extend_lifetimes: bool = False) -> None:
    """What is live where is computed when it is asked for: Numba does it after each of five passes, for generators.

    Nothing tells where a variable is no longer needed: no value of a kernel counts references to it.
    """
    self.func_ir.blocks = transforms.canonicalize_cfg(self.func_ir.blocks)
    self.func_ir.variable_lifetime = postproc.VariableLifetime(self.func_ir.blocks)
    self.func_ir.generator_info = None


def run_pass(self: Any, index: int, one: Any, state: Any) -> None:
    """A pass, without events, times, dumps and checks of it: there are sixteen of each function, and most do little."""
    one.analysis = self._analysis
    with errors.new_error_context("Pass {0}", one.name()):
        for run in (one.run_initialization, one.run_pass, one.run_finalizer):
            run(state)


replacements: tuple[tuple[Any, str, Any], ...] = (
    (CUDATargetContext, "refresh", _refresh_if_changed(CUDATargetContext.refresh)),
    (postproc.PostProcessor, "run", post_process),
    (compiler_machinery.PassManager, "_runPass", run_pass),
)
"""(module or class, name, what stands there while a kernel is compiled)"""
