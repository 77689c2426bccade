"""What Numba does again and again, or for Python that kernels are not written in, in less time.

Nothing here changes what is compiled. `replacements` are put in place by `hopper.compiling_for`, for as long as it compiles.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from numba.cuda import itanium_mangler, lowering, utils
from numba.cuda.core import base, compiler_machinery, errors, interpreter, postproc, targetconfig, transforms, typeinfer
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


def _values(config: Any) -> dict[str, Any]:
    """The flags of a compile, which are compared for each call that is typed: without a property call for each of thirty."""
    return {**_defaults(config.__class__), **config._values}


@functools.cache
def _defaults(kind: Any) -> dict[str, Any]:
    return {name: option.default for name, option in kind.options.items()}


def post_process(self: postproc.PostProcessor, emit_dels: bool = False, extend_lifetimes: bool = False) -> None:
    """What is live where is computed when it is asked for: Numba does it after each of five passes, for generators.

    Nothing tells where a variable is no longer needed: no value of a kernel counts references to it.
    """
    self.func_ir.blocks = transforms.canonicalize_cfg(self.func_ir.blocks)
    self.func_ir.variable_lifetime = postproc.VariableLifetime(self.func_ir.blocks)
    self.func_ir.generator_info = None


class ErrorContext:
    """What is said of an error in here: formatted where there is one, as Numba's generator does, but entered thousands of times."""

    def __init__(self, fmt: str, *args: Any, **kwargs: Any) -> None:
        self.fmt, self.args, self.kwargs = fmt, args, kwargs

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if isinstance(error, errors.NumbaError):
            error.add_context(self.fmt.format(*self.args, **self.kwargs))


_get_mangle_string = targetconfig.TargetConfig.get_mangle_string
_mangled: dict[tuple[type, str], str] = {}


def mangle_string(self: Any) -> str:
    """The flags of a compile in the name of a function: those of nearly all functions are the same, and compressed once."""
    key = self.__class__, self.summary()
    if key not in _mangled:
        _mangled[key] = _get_mangle_string(self)
    return _mangled[key]


def run_pass(self: Any, index: int, one: Any, state: Any) -> None:
    """A pass, without events, times, dumps and checks of it: there are sixteen of each function, and most do little."""
    one.analysis = self._analysis
    with ErrorContext("Pass {0}", one.name()):
        for run in (one.run_initialization, one.run_pass, one.run_finalizer):
            run(state)


def _unchanged(func_ir: Any) -> Any:
    """In the place of passes over what a kernel has none of: `with` and dictionaries."""
    return func_ir


replacements: tuple[tuple[Any, str, Any], ...] = (
    (CUDATargetContext, "refresh", _refresh_if_changed(CUDATargetContext.refresh)),
    (targetconfig.TargetConfig, "values", _values),
    (itanium_mangler, "_escape_string", functools.lru_cache(4096)(itanium_mangler.escape_string)),
    (base, "_has_loc", functools.lru_cache(4096)(base._has_loc)),
    (utils, "pysignature", functools.lru_cache(4096)(utils.pysignature)),
    (lowering, "new_error_context", ErrorContext),
    (typeinfer, "new_error_context", ErrorContext),
    (targetconfig.TargetConfig, "get_mangle_string", mangle_string),
    (postproc.PostProcessor, "run", post_process),
    (compiler_machinery.PassManager, "_runPass", run_pass),
    (interpreter, "peep_hole_delete_with_exit", _unchanged),
    (interpreter, "peep_hole_fuse_dict_add_updates", _unchanged),
)
"""(module or class, name, what stands there while a kernel is compiled)"""
