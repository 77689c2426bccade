"""Quicker replacements of what Numba does again and again, or for Python that kernels are not written in.

They change nothing in what is compiled. `kernels.compiling_for` puts the `replacements` in place for as long as it compiles;
without them a compile takes a fifth more CPU time. Each was compared with the source of Numba that it replaces. Where Numba has
another source, its own code runs, and one warning says so.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import pkgutil
import warnings
from collections.abc import Callable
from importlib import metadata
from typing import Any

from numba.cuda.core import errors, postproc, transforms
from numba.cuda.cudaimpl import registry as lowering_registry
from numba.cuda.target import CUDATargetContext


def _refresh_if_changed(refresh: Callable[[Any], None]) -> Callable[[Any], None]:
    """Look for new declarations only in what has grown, nearly always one registry; Numba looks in forty at each call it types."""
    seen: dict[Any, tuple[list[Any], int, int]] = {}

    def refreshed(context: Any) -> None:
        others, size, lowered = seen.get(context, ([], -1, 0))
        if sum(map(len, others)) != size:
            refresh(context)
            others = [getattr(registry, kind) for one in (context, context.typing_context)
                      for registry, loader in one._registries.items() for kind in loader.registry_items
                      if (registry, kind) != (lowering_registry, "functions")]
        elif len(lowering_registry.functions) != lowered:  # by a module that was imported meanwhile
            context.install_registry(lowering_registry)
        seen[context] = others, sum(map(len, others)), len(lowering_registry.functions)

    return refreshed


def post_process(self: postproc.PostProcessor, emit_dels: bool = False, extend_lifetimes: bool = False) -> None:
    """Compute which variables are live only when something asks; Numba does it after each of five passes, for generators.

    Nothing marks where a variable is no longer needed: no value of a kernel counts references to it.
    """
    self.func_ir.blocks = transforms.canonicalize_cfg(self.func_ir.blocks)
    self.func_ir.variable_lifetime = postproc.VariableLifetime(self.func_ir.blocks)
    self.func_ir.generator_info = None


def run_pass(self: Any, index: int, one: Any, state: Any) -> None:
    """Run a pass without events, times, dumps and checks: each function has sixteen passes, and most do little."""
    one.analysis = self._analysis
    with errors.new_error_context("Pass {0}", one.name()):
        for run in (one.run_initialization, one.run_pass, one.run_finalizer):
            run(state)


TABLE: tuple[tuple[Any, str, tuple[str, ...]], ...] = (
    (_refresh_if_changed(CUDATargetContext.refresh), "c5d1ccbc40e3602b", (
        "target:CUDATargetContext.refresh", "core.base:BaseContext.install_registry",
        "target:CUDATargetContext.load_additional_registries", "typing.context:BaseContext.refresh",
        "typing.context:BaseContext.install_registry", "typing.context:BaseContext._load_builtins",
        "target:CUDATypingContext.load_additional_registries", "typing.templates:BaseRegistryLoader.new_registrations")),
    (post_process, "92f6a479318087d7", ("core.postproc:PostProcessor.run",)),
    (run_pass, "146e346271456615", ("core.compiler_machinery:PassManager._runPass",)),
)
"""(the replacement of the first of these functions of numba.cuda, digest of the functions' source, the functions)"""


def digest(functions: tuple[str, ...]) -> str:
    """Return the digest of the source of functions of numba.cuda; "" where one is not there, or has no source."""
    try:
        source = "".join(inspect.getsource(pkgutil.resolve_name(f"numba.cuda.{path}")) for path in functions)
    except (ImportError, AttributeError, OSError, TypeError):
        return ""
    return hashlib.sha256(source.encode()).hexdigest()[:16]


@functools.cache
def replacements() -> tuple[tuple[Any, str, Any], ...]:
    """Return (class, name, its replacement) for all of `TABLE`; nothing where Numba's source is another than the table knows."""
    changed = [functions[0].partition(":")[2] for _, known, functions in TABLE if digest(functions) != known]
    if changed:
        warnings.warn(f"numpipe: numba-cuda {metadata.version('numba-cuda')} has another {', '.join(changed)} than the one that "
                      "numpipe's quicker code was compared with, so Numba's own runs: kernels are the same, and take a fifth "
                      "longer to compile", RuntimeWarning, stacklevel=2)
        return ()
    return tuple((pkgutil.resolve_name(f"numba.cuda.{owner}"), name, ours)
                 for ours, _, (first, *_) in TABLE for owner, _, name in [first.rpartition(".")])
