"""What Numba does again and again, or for Python that kernels are not written in, in less time.

Nothing here changes what is compiled. `replacements` are put in place by `hopper.compiling_for_hopper`, for as long as it compiles.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from typing import Any

from numba.cuda import cgutils, itanium_mangler, lowering, utils
from numba.cuda.core import (
    analysis,
    base,
    compiler_machinery,
    errors,
    interpreter,
    ir_utils,
    postproc,
    targetconfig,
    transforms,
    typeinfer,
)
from numba.cuda.core import ir as numba_ir
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


_kinds: dict[type, str] = {}


def _kind(value: Any) -> str:
    """How the variables in a part of a statement are found, by its class: looked up, not compared with one class after another."""
    kind = _kinds.get(value.__class__)
    if kind is None:
        kind = _kinds[value.__class__] = next((name for name, classes in (
            ("variable", numba_ir.var_types), ("instruction", numba_ir.inst_types), ("several", (list, tuple)), ("by name", dict))
            if isinstance(value, classes)), "")
    return kind


def list_variables(statement: Any, value: Any) -> list[Any]:
    """The variables in a part of a statement."""
    kind = _kind(value)
    if kind == "variable":
        return [value]
    if kind == "instruction":
        return value.list_vars()  # type: ignore[no-any-return]
    found: list[Any] = []
    for part in value.values() if kind == "by name" else value if kind == "several" else ():
        kind = _kind(part)
        if kind == "variable":
            found.append(part)
        elif kind:
            found += list_variables(statement, part)
    return found


def uses(blocks: dict[int, Any]) -> dict[int, set[str]]:
    """Which variables each block reads before it defines them: with one look at a statement, not two."""
    used: dict[int, set[str]] = {}
    for offset, block in blocks.items():
        reads = used[offset] = set[str]()
        defined = set[str]()
        for statement in block.body:
            if isinstance(statement, numba_ir.assign_types):
                names = [variable.name for variable in list_variables(statement, statement.value)]
                if statement.target.name not in names:
                    defined.add(statement.target.name)
            else:
                names = [variable.name for variable in ir_utils.compat_list_vars_stmt(statement)]
            reads.update(name for name in names if name not in defined)
    return used


def find_singly_assigned_variable(lower: Any) -> None:
    """Variables of one assignment, read in its block only, which need no stack slot: their assignments are counted once.

    Numba goes through the whole block again for each of them, in time that grows with the square of the block.
    """
    assigned = Counter(statement.target.name for block in lower.blocks.values() for statement in block.body
                       if isinstance(statement, numba_ir.assign_types))
    elsewhere = set().union(*uses(lower.func_ir.blocks).values(), analysis.must_use_alloca(lower.func_ir.blocks))
    lower._singly_assigned_vars = {name for name, count in assigned.items() if count == 1} - elsewhere
    lower._blk_local_varmap = {}


def post_process(self: postproc.PostProcessor, emit_dels: bool = False, extend_lifetimes: bool = False) -> None:
    """What is live where is computed when it is asked for: Numba does it after each of five passes, for generators.

    Nothing tells where a variable is no longer needed: no value of a kernel counts references to it.
    """
    self.func_ir.blocks = transforms.canonicalize_cfg(self.func_ir.blocks)
    self.func_ir.variable_lifetime = postproc.VariableLifetime(self.func_ir.blocks)
    self.func_ir.generator_info = None


_alloca = lowering.Lower.alloca_lltype
_storevar = lowering.CUDALower.storevar


def alloca(self: Any, name: str, lltype: Any, datamodel: Any = None) -> Any:
    """A variable's place: without the size that only a debugger is told, for which LLVM parses a module with a value in it."""
    if self.context.enable_debuginfo:
        return _alloca(self, name, lltype, datamodel)
    return cgutils.alloca_once(self.builder, lltype, name=name, zfill=False)


def storevar(self: Any, value: Any, name: str, argidx: int | None = None) -> None:
    """A variable's new value, in its place: without reading the old one first, whose references nobody counts."""
    if self.context.enable_debuginfo:
        _storevar(self, value, name, argidx)
    elif name in self._singly_assigned_vars and not self._disable_sroa_like_opt:
        self._blk_local_varmap[name] = value
    else:
        self._alloca_var(name, self.typeof(name))
        self.builder.store(value, self.getvar(name))


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
    (numba_ir.Inst, "_rec_list_vars", list_variables),
    (lowering.Lower, "_find_singly_assigned_variable", find_singly_assigned_variable),
    (lowering.Lower, "alloca_lltype", alloca),
    (lowering.CUDALower, "storevar", storevar),
    (lowering, "new_error_context", ErrorContext),
    (typeinfer, "new_error_context", ErrorContext),
    (targetconfig.TargetConfig, "get_mangle_string", mangle_string),
    (postproc.PostProcessor, "run", post_process),
    (compiler_machinery.PassManager, "_runPass", run_pass),
    (interpreter, "peep_hole_delete_with_exit", _unchanged),
    (interpreter, "peep_hole_fuse_dict_add_updates", _unchanged),
)
"""(module or class, name, what stands there while a kernel is compiled)"""
