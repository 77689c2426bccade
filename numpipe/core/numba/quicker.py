"""Quicker replacements of what Numba does again and again, or for Python that kernels are not written in.

They change nothing in what is compiled. `kernels.compiling_for` puts the `replacements` in place for as long as it compiles;
without them a compile takes a third more CPU time. Each was compared with the source of Numba that it replaces. Where Numba has
another source, its own code runs, and one warning says so.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import linecache
import pkgutil
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from importlib import metadata
from typing import Any

from numba.cuda import itanium_mangler
from numba.cuda.core import analysis, byteflow, errors, ir, postproc, targetconfig, transforms
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


_flows: dict[Any, tuple[Any, Any]] = {}
"""what `find_flow` found in this compile, and the constants that its key names"""
_find_flow = byteflow.Flow.run


def find_flow(self: Any) -> None:
    """Find the blocks of bytecode once: Numba does for each types of arguments that a function is compiled for, in each role."""
    code = self._bytecode.func_id.code
    key = (code.co_code, id(code.co_consts), code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars,
           getattr(code, "co_exceptiontable", b""))
    if key not in _flows:
        _find_flow(self)
        _flows[key] = self, code.co_consts
    self.block_infos, self.cfgraph = _flows[key][0].block_infos, _flows[key][0].cfgraph


def run_pass(self: Any, index: int, one: Any, state: Any) -> None:
    """Run a pass without events, times, dumps and checks: each function has sixteen passes, and most do little."""
    one.analysis = self._analysis
    with errors.new_error_context("Pass {0}", one.name()):
        for run in (one.run_initialization, one.run_pass, one.run_finalizer):
            run(state)


def same_flags(self: Any, other: Any) -> Any:
    """Compare the flags that were set; all others have the same defaults."""
    if not isinstance(other, targetconfig.TargetConfig):
        return NotImplemented
    if type(self) is not type(other):
        return self.values() == other.values()
    return all(getattr(self, name) == getattr(other, name) for name in self._values.keys() | other._values.keys())


@functools.cache
def _hash_of(flags: Any) -> int:
    return hash(tuple(sorted(flags.options)))


def hash_of_flags(self: Any) -> int:
    """Return what Numba computes of the names of all flags: a number of their class."""
    return _hash_of(self.__class__)


def without_location(self: Any) -> Any:
    """Let a code generator that takes no location be called with one: Numba asks for its signature at each call of it."""
    function = self.func
    code = getattr(function, "__code__", None)
    if code is None or hasattr(function, "__wrapped__") or hasattr(function, "__signature__"):
        takes = "loc" in inspect.signature(function).parameters
    else:
        takes = "loc" in code.co_varnames[:code.co_argcount + code.co_kwonlyargcount]
    if takes:
        return function

    def wrapper(*args: Any, **named: Any) -> Any:
        named.pop("loc")
        return function(*args, **named)

    for name in ("__name__", "libs"):
        if (value := getattr(function, name, None)) is not None:
            setattr(wrapper, name, value)
    return wrapper


def find_singly_assigned(self: Any) -> None:
    """Find the variables that one statement assigns and its block alone reads: they need no memory. Numba counts for each anew."""
    blocks = self.func_ir.blocks
    self._singly_assigned_vars, self._blk_local_varmap = set(), {}
    if self.func_ir.func_id.is_generator:
        return
    kept, read, assigned, places = analysis.must_use_alloca(blocks), set[str](), Counter[tuple[int, str]](), Counter[str]()
    for label, block in blocks.items():
        defined = set()
        for statement in block.body:
            if isinstance(statement, ir.assign_types):
                target, names = statement.target.name, [one.name for one in list_variables(self, statement.value)]
                assigned[label, target] += 1
                if target not in names:
                    defined.add(target)
            else:
                names = [one.name for one in statement.list_vars()]
            read.update(name for name in names if name not in defined)
        places.update(defined)
    self._singly_assigned_vars = {name for (label, name), times in assigned.items() if times == 1 and places[name] == 1
                                  and name not in kept and name not in read}


_NO_VARIABLES = frozenset((str, int, bool, float, type(None), ir.Loc))


def list_variables(self: Any, value: Any) -> list[Any]:
    """List the variables in a part of a statement; what is no statement is told by its class, not by what it might be."""
    kind = value.__class__
    if kind in _NO_VARIABLES:
        return []
    if kind is ir.Var:
        return [value]
    if isinstance(value, (list, tuple, dict)):
        return [name for part in (value.values() if isinstance(value, dict) else value) for name in list_variables(self, part)]
    if isinstance(value, ir.var_types):
        return [value]
    return value.list_vars() if isinstance(value, ir.inst_types) else []


def over_statements(states: Any, block: Any, handler: Any) -> Iterator[Any]:
    """Hand the statements of a block to a step of the SSA form, for each variable anew, without a log of each."""
    for statement in block.body:
        if isinstance(statement, ir.assign_types):
            yield handler.on_assign(states, statement)
        else:
            yield handler.on_other(states, statement)


def unchanged(function: Any) -> Any:
    """Stand in for a pass over a function that looks for `with`, or for merged dicts: kernels have neither."""
    return function


TABLE: tuple[tuple[Any, str, tuple[str, ...]], ...] = (
    (_refresh_if_changed(CUDATargetContext.refresh), "c5d1ccbc40e3602b", (
        "target:CUDATargetContext.refresh", "core.base:BaseContext.install_registry",
        "target:CUDATargetContext.load_additional_registries", "typing.context:BaseContext.refresh",
        "typing.context:BaseContext.install_registry", "typing.context:BaseContext._load_builtins",
        "target:CUDATypingContext.load_additional_registries", "typing.templates:BaseRegistryLoader.new_registrations")),
    (post_process, "92f6a479318087d7", ("core.postproc:PostProcessor.run",)),
    (find_flow, "e756da9ec9767f82", ("core.byteflow:Flow.run", "core.byteflow:adapt_state_infos")),
    (run_pass, "146e346271456615", ("core.compiler_machinery:PassManager._runPass",)),
    (same_flags, "1ffd3de26caebd40", ("core.targetconfig:TargetConfig.__eq__", "core.targetconfig:TargetConfig.values")),
    (hash_of_flags, "90aae8bf650a6e70", ("core.targetconfig:TargetConfig.__hash__", "core.targetconfig:TargetConfig.values")),
    (without_location, "6ba7851670f88a94", ("core.base:_wrap_missing_loc.__call__", "core.base:_has_loc")),
    (find_singly_assigned, "bce7d984d8a86fce", ("lowering:Lower._find_singly_assigned_variable", "core.analysis:compute_use_defs")),
    (list_variables, "043539bffabcfcb1", ("core.ir:Inst._rec_list_vars",)),
    (over_statements, "3b7500b76333165d", ("core.ssa:_run_ssa_block_pass",)),
    (functools.lru_cache(1024)(itanium_mangler.escape_string), "509527e93b1bef66", ("itanium_mangler:_escape_string",)),
    (unchanged, "1e4a6381e0733190", ("core.interpreter:peep_hole_delete_with_exit",)),
    (unchanged, "3ccfe5589a813019", ("core.interpreter:peep_hole_fuse_dict_add_updates",)),
)
"""(the replacement of the first of these functions of numba.cuda, digest of the functions' source, the functions)"""


def source_of(function: Any) -> str:
    """Return what `inspect.getsource` does, for functions like those in `TABLE`, without taking their text apart."""
    code = inspect.unwrap(function).__code__
    lines = linecache.getlines(code.co_filename)[code.co_firstlineno - 1:]
    margin = len(lines[0]) - len(lines[0].lstrip()) if lines else 0
    end = next((n for n, line in enumerate(lines) if line.startswith("def ", margin)), None)
    if end is None:
        raise OSError(f"no source of {function!r}")
    behind = (n for n in range(end + 1, len(lines)) if lines[n].strip() and lines[n][:margin + 1].strip() not in ("", ")"))
    return "".join(lines[:next(behind, len(lines))]).rstrip() + "\n"


def digest(functions: tuple[str, ...]) -> str:
    """Return the digest of the source of functions of numba.cuda; "" where one is not there, or has no source."""
    try:
        source = "".join(source_of(pkgutil.resolve_name(f"numba.cuda.{path}")) for path in functions)
    except (ImportError, AttributeError, OSError, TypeError):
        return ""
    return hashlib.sha256(source.encode()).hexdigest()[:16]


def forget() -> None:
    """Drop what was found in one compile."""
    _flows.clear()


@functools.cache
def replacements() -> tuple[tuple[Any, str, Any], ...]:
    """Return (class, name, its replacement) for all of `TABLE`; nothing where Numba's source is another than the table knows."""
    changed = [functions[0].partition(":")[2] for _, known, functions in TABLE if digest(functions) != known]
    if changed:
        warnings.warn(f"numpipe: numba-cuda {metadata.version('numba-cuda')} has another {', '.join(changed)} than the one that "
                      "numpipe's quicker code was compared with, so Numba's own runs: kernels are the same, and take a third "
                      "longer to compile", RuntimeWarning, stacklevel=2)
        return ()
    return tuple((pkgutil.resolve_name(f"numba.cuda.{module}:{owner}"), name, ours) for ours, _, (first, *_) in TABLE
                 for module, _, path in [first.partition(":")] for owner, _, name in [path.rpartition(".")])
