"""`@numpipe.kernel`: a kernel function, its options, and what a call does.

A call binds its arguments, allocates outputs, finds (or makes) the plan for these shapes and types, and runs it: on the
GPU through the launcher, in CPython on the simulated SM. Plans are remembered by shapes, strides and types, so a repeated
call on device arrays is a few dictionary look-ups and one driver call.
"""

from __future__ import annotations

import ast
import functools
import inspect
import os
import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import launch
from ._unit import ArrayArg, Unit
from .compile import blame
from .compile.fold import StaticArray
from .compile.lift import Source, lift, read
from .errors import SpecError, TargetError
from .launch.arrays import ArrayInfo
from .shapes import Signature
from .specs import ArrayType, CompilerParams, Persistent, Static

SIMULATED_CTAS = 2
MAX_SIMULATED_ELEMENTS = 1 << 23
"""array elements that a call simulates without being asked to: about ten seconds of a GEMM"""
_REMEMBERED = 512
_SCALAR = (bool, int, float, np.generic)


@dataclass(frozen=True)
class Options:
    """Options of `kernel`, as given."""

    grid: Any
    grid_names: tuple[str, ...]
    out_type: Any
    signature: Signature | None
    num_compute_wgs: int
    wg_axis: str
    memory_registers: int
    compiler_params: CompilerParams
    target: str | None


@dataclass
class _Plan:
    """What a call on arrays of these shapes and types does."""

    grid: tuple[int, int, int]
    unit_key: tuple[Any, ...]
    prepared: Any
    empty: bool
    """an output without elements: nothing to do"""
    device: int
    """CUDA ordinal for host arrays"""
    outputs: int
    """how many of the arrays, the last ones, are outputs"""


def kernel(function: Callable[..., Any] | None = None, /, *, grid: Any = (1,), grid_names: Sequence[str] = (),
           out_type: Any = None, signature: str | None = None, num_compute_wgs: int = 2, wg_axis: str = "wg",
           memory_registers: int = 40, compiler_params: CompilerParams | None = None,
           target: str | None = None) -> Any:
    """Make a kernel of a Python function over references.

    grid              CTAs: a tuple of 1 to 3 ints, a function of the kernel's arguments (by parameter name) that returns
                      one, or `persistent()`
    grid_names        names of the grid's axes, for `axis_index`
    out_type          function of the arguments (by parameter name) returning an ArrayType, or a tuple of them: the trailing
                      parameters are outputs, which the call allocates and returns. Without it the caller passes them.
    signature         shapes that belong together, in NumPy's gufunc notation: ``"(m,k),(n,k)->(m,n)"``; checked at the call
    num_compute_wgs   compute warpgroups of a CTA (one more is the memory role)
    wg_axis           name of the compute warpgroups' axis
    memory_registers  registers a lane of the memory role keeps (a multiple of 8, 24…256); compute warpgroups share the rest
    compiler_params   see CompilerParams
    target            "gpu", "sim" or "auto" (default: the environment's NUMPIPE_TARGET, else "auto")

    Positional parameters are arrays or scalars; keyword-only parameters annotated `numpipe.Static` are compile-time
    constants. A call takes besides them ``out=``, ``target=`` and ``stream=``.

    Raises SpecError for arguments that do not fit, CompileError for source that cannot be compiled, TargetError where the
    target cannot run, LaunchError when the driver fails; on the simulated SM PipelineRace and PipelineDeadlock.
    """
    options = Options(grid, tuple(grid_names), out_type, None if signature is None else Signature.parse(signature),
                      num_compute_wgs, wg_axis, memory_registers, compiler_params or CompilerParams(), target)
    if function is None:
        return lambda f: Kernel(f, options)
    return Kernel(function, options)


class Kernel:
    """A kernel function; call it on arrays."""

    def __init__(self, function: Callable[..., Any], options: Options) -> None:
        functools.update_wrapper(self, function)
        self.function, self.options = function, options
        self.name = function.__name__
        parameters = inspect.signature(function).parameters
        self.statics: dict[str, Any] = {}
        self.parameters: list[str] = []
        for name, parameter in parameters.items():
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                raise SpecError(f"kernel {self.name}: *{name} is not supported: a kernel's parameters are written out")
            if self._is_static(parameter):
                if parameter.kind is not parameter.KEYWORD_ONLY:
                    raise SpecError(f"kernel {self.name}: '{name}' is Static and must be keyword-only: put it after '*'")
                self.statics[name] = parameter.default
            else:
                self.parameters.append(name)
        if not self.parameters:
            raise SpecError(f"kernel {self.name}: it has no array parameters")
        self._lock = threading.RLock()
        self._plans: dict[tuple[Any, ...], _Plan] = {}
        self._out_types: dict[tuple[Any, ...], tuple[ArrayType, ...]] = {}
        self._built: dict[tuple[Any, ...], Any] = {}
        self._prepared: dict[tuple[Any, ...], Any] = {}
        self._lifted: dict[tuple[Any, ...], Callable[..., Any]] = {}
        self._checked: set[tuple[Any, ...]] = set()
        self._static_defaults = tuple(self.statics.items())

    def _is_static(self, parameter: inspect.Parameter) -> bool:
        annotation = parameter.annotation
        if isinstance(annotation, str):
            return annotation.rpartition(".")[2] == "Static"
        return annotation is Static

    def __repr__(self) -> str:
        return f"<numpipe kernel {self.name}({', '.join(self.parameters)})>"

    @functools.cached_property
    def source(self) -> Source:
        return read(self.function)

    @functools.cached_property
    def first_output(self) -> int:
        """Index of the first parameter that the kernel stores to; from there on parameters are outputs."""
        stored = {node.targets[0].value.id for node in ast.walk(self.source.tree)
                  if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript)
                  and isinstance(node.targets[0].value, ast.Name)}
        return next((i for i, name in enumerate(self.parameters) if name in stored), len(self.parameters))

    # ---- calls
    def __call__(self, *args: Any, out: Any = None, target: str | None = None, stream: Any = None, **named: Any) -> Any:
        """Run the kernel; returns the outputs it allocated (or `out`)."""
        statics = self._static_values(named) if named else self._static_defaults
        if named:
            args = self._by_position(args, named)
        infos: list[ArrayInfo] = []
        scalars: list[Any] = []
        name = self.name
        for parameter, arg in zip(self.parameters, args, strict=False):
            if isinstance(arg, _SCALAR):
                scalars.append(arg)
            else:
                infos.append(launch.describe(arg, parameter, name))
        results: Any = None
        if len(args) != len(self.parameters):
            if out is None:
                results = self._allocate(args, infos, scalars, statics, stream)
            else:
                results = out if isinstance(out, (tuple, list)) else (out,)
            infos += [launch.describe(r, p, name) for r, p in zip(results, self.parameters[len(args):], strict=False)]
        elif out is not None:
            raise SpecError(f"kernel {name}: out= was given, but all {len(args)} parameters were passed by position")
        kinds = tuple([type(s) if type(s) in (bool, int, float) else s.dtype for s in scalars])
        key = (tuple([(i[0], i[1] & 15, i[2], i[3], i[4], i[5]) for i in infos]), statics, kinds, target)
        try:
            plan = self._plans.get(key)
        except TypeError:
            raise self._unhashable(statics) from None
        if plan is None:
            plan = self._plan(key, args, infos, scalars, statics, target, out)
        if not plan.empty:
            values = [_scalar(s, self.name) for s in scalars]
            fresh = 0 if results is None or out is not None else len(results)
            if plan.prepared is None:
                self._simulate(plan, infos, values, statics)
            elif infos[0].kind != "host":
                handle = launch.current_stream(infos) if stream is None else launch.as_stream(stream)
                plan.prepared(plan.grid, infos, values, handle)
            else:
                launch.run(plan.prepared, plan.grid, infos, values, 0 if stream is None else launch.as_stream(stream),
                           outputs=max(plan.outputs, fresh), fresh=fresh, device=plan.device)
        if results is None:
            return None
        if out is not None:
            return out
        return results[0] if len(results) == 1 else tuple(results)

    def _static_values(self, named: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
        values = []
        for name, default in self.statics.items():
            value = named.pop(name, default)
            if value is inspect.Parameter.empty:
                raise SpecError(f"kernel {self.name}: the Static '{name}' has no default: pass {name}=")
            values.append((name, value))
        return tuple(values)

    def _by_position(self, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
        """Parameters given by keyword, behind the positional ones."""
        full = list(args)
        for parameter in self.parameters[len(args):]:
            if parameter not in named:
                break
            full.append(named.pop(parameter))
        if named:
            known = [*self.parameters, *self.statics, "out", "target", "stream"]
            raise SpecError(f"kernel {self.name}: unexpected argument {', '.join(named)}; its arguments are {', '.join(known)}")
        return tuple(full)

    def _unhashable(self, statics: tuple[tuple[str, Any], ...]) -> SpecError:
        for name, value in statics:
            try:
                hash(value)
            except TypeError:
                return SpecError(f"kernel {self.name}: the Static '{name}' must be hashable (a number, a tuple, a frozen "
                                 f"dataclass), got a {type(value).__name__}")
        return SpecError(f"kernel {self.name}: an argument is not hashable")

    # ---- outputs
    def _output_types(self, args: tuple[Any, ...], infos: list[ArrayInfo], scalars: list[Any],
                      statics: Any) -> tuple[ArrayType, ...]:
        missing = self.parameters[len(args):]
        if len(args) > len(self.parameters) or self.options.out_type is None:
            raise SpecError(f"kernel {self.name}: takes {len(self.parameters)} arguments ({', '.join(self.parameters)}), got "
                            f"{len(args)}" + ("" if len(args) > len(self.parameters) else
                                              f": pass {', '.join(missing)}, or give the kernel an out_type"))
        key = (tuple([(i.shape, i.dtype) for i in infos]), statics, tuple(scalars))
        try:
            types = self._out_types.get(key)
        except TypeError:
            raise self._unhashable(statics) from None
        if types is None:
            answer = self._ask(self.options.out_type, "out_type", args, statics)
            types = tuple(answer) if isinstance(answer, tuple) else (answer,)
            if not all(isinstance(t, ArrayType) for t in types) or len(types) != len(missing):
                raise SpecError(f"kernel {self.name}: out_type must return {len(missing)} ArrayType for {', '.join(missing)}, got "
                                f"{answer!r} (arguments passed: {', '.join(self.parameters[:len(args)]) or 'none'})")
            if self.options.signature is not None:
                self.options.signature.check(self.name, self.parameters, [i.shape for i in infos])
            if len(self._out_types) >= _REMEMBERED:
                self._out_types.clear()
            self._out_types[key] = types
        return types

    def _allocate(self, args: tuple[Any, ...], infos: list[ArrayInfo], scalars: list[Any], statics: Any, stream: Any) -> list[Any]:
        types = self._output_types(args, infos, scalars, statics)
        if not infos:
            raise SpecError(f"kernel {self.name}: with no array arguments outputs must be passed with out=")
        handle = None if stream is None else launch.as_stream(stream)
        return [launch.empty_like_kind(infos[0], t.shape, t.dtype, handle) for t in types]

    def _check_out(self, args: tuple[Any, ...], infos: list[ArrayInfo], scalars: list[Any], statics: Any, out: Any) -> None:
        """The arrays given as out= have the shapes and types of out_type."""
        given = len(out) if isinstance(out, (tuple, list)) else 1
        inputs, outputs = infos[:len(infos) - given], infos[len(infos) - given:]
        types = self._output_types(args, inputs, scalars, statics)
        missing = self.parameters[len(args):]
        if given != len(types):
            raise SpecError(f"kernel {self.name}: out= holds {given} arrays, the kernel has {len(types)} outputs "
                            f"({', '.join(missing)})")
        for info, expected, name in zip(outputs, types, missing, strict=True):
            if info.shape != expected.shape or info.dtype != expected.dtype:
                raise SpecError(f"kernel {self.name}: out= for '{name}' must be {expected.shape} {expected.dtype}, got "
                                f"{info.shape} {info.dtype}")

    def _ask(self, function: Callable[..., Any], what: str, args: tuple[Any, ...], statics: Any) -> Any:
        """Call a user's function of the kernel's arguments by parameter name."""
        known = dict(zip(self.parameters, args, strict=False)) | dict(statics)
        known = {name: _HostView(launch.describe(value, name, self.name)) if _is_array(value) else value
                 for name, value in known.items()}
        wanted = list(inspect.signature(function).parameters)
        unknown = [name for name in wanted if name not in known]
        if unknown:
            raise SpecError(f"kernel {self.name}: {what} takes {', '.join(unknown)}, but the call knows {', '.join(known)}")
        return function(**{name: known[name] for name in wanted})

    # ---- plans
    def _plan(self, key: tuple[Any, ...], args: tuple[Any, ...], infos: list[ArrayInfo], scalars: list[Any], statics: Any,
              target: str | None, out: Any = None) -> _Plan:
        with self._lock:
            if out is not None:
                self._check_out(args, infos, scalars, statics, out)
            if self.options.signature is not None:
                names = [p for p, a in zip(self.parameters, args, strict=False) if _is_array(a)] + self.parameters[len(args):]
                self.options.signature.check(self.name, names, [i.shape for i in infos])
            choice = self._target(target, infos)
            names = [p for p, a in zip(self.parameters, args, strict=False) if _is_array(a)] + self.parameters[len(args):]
            place = launch.same_place(infos, names, self.name)
            if choice.target == "sim" and place != "host":
                raise TargetError(f"kernel {self.name}: target='sim' runs on host arrays, got arrays on the GPU: pass NumPy arrays")
            arrays, obstacles = [], {}
            for number, (name, info) in enumerate(zip(names, infos, strict=True)):
                obstacle = None if place == "host" else launch.tma_addressable(info)
                if obstacle:
                    obstacles[number] = str(launch.not_addressable(info, obstacle, name, self.name))
                arrays.append(ArrayArg(name, info.dtype, len(info.shape), launch.major_order(info), obstacle is None))
            kinds = tuple(np.dtype(_scalar_dtype(s, self.name)) for s in scalars)
            unit_key = (tuple(arrays), kinds, statics)
            grid = self._grid(args, statics, choice)
            outputs = sum(name in self.parameters[self.first_output:] for name in names)
            written = infos[len(infos) - outputs:]
            plan = _Plan(grid, unit_key, None, any(0 in info.shape for info in written) or 0 in grid,
                         choice.device.ordinal if choice.device else 0, outputs)
            if choice.target == "gpu" and not plan.empty:
                plan.prepared = self._prepare(unit_key, infos, obstacles)
            if choice.target == "sim":
                self._fits_simulator(choice, infos)
            if len(self._plans) >= _REMEMBERED:
                self._plans.clear()
            self._plans[key] = plan
            return plan

    def _target(self, target: str | None, infos: list[ArrayInfo]) -> launch.Choice:
        asked = target or self.options.target
        if asked is None and any(i.kind != "host" for i in infos):
            asked = "gpu"
        choice = launch.choose_target(asked)
        if choice.fallback:
            _warn_once(choice.why)
        return choice

    def _fits_simulator(self, choice: launch.Choice, infos: list[ArrayInfo]) -> None:
        elements = sum(int(np.prod(i.shape, dtype=np.int64)) for i in infos)
        if choice.fallback and elements > MAX_SIMULATED_ELEMENTS:
            raise TargetError(f"kernel {self.name}: {choice.why}, and {elements} array elements are too many to simulate "
                              f"unasked (at most {MAX_SIMULATED_ELEMENTS}): pass target='sim' to simulate them all the same, or "
                              "smaller arrays")

    def _grid(self, args: tuple[Any, ...], statics: Any, choice: launch.Choice) -> tuple[int, int, int]:
        grid = self.options.grid
        if isinstance(grid, Persistent):
            device = choice.device
            ctas = grid.ctas or (SIMULATED_CTAS if device is None else device.sm_count)
            return (ctas, 1, 1)
        if callable(grid):
            grid = self._ask(grid, "grid", args, statics)
        dims = tuple(grid) if isinstance(grid, (tuple, list)) else (grid,)
        if not 1 <= len(dims) <= 3 or not all(isinstance(n, (int, np.integer)) and n >= 0 for n in dims):
            raise SpecError(f"kernel {self.name}: grid must be 1 to 3 non-negative ints, got {grid!r}")
        if self.options.grid_names and len(self.options.grid_names) != len(dims):
            raise SpecError(f"kernel {self.name}: grid {dims} has {len(dims)} dimensions, grid_names "
                            f"{self.options.grid_names} name {len(self.options.grid_names)}")
        return (*(int(n) for n in dims), 1, 1)[:3]  # type: ignore[return-value]

    def unit(self, unit_key: tuple[Any, ...], obstacles: dict[int, str] | None = None, simulated: bool = False) -> Unit:
        """A new Unit: one compile or one simulation."""
        options = self.options
        return Unit(self.name, unit_key[0], options.grid_names, options.wg_axis, options.num_compute_wgs,
                    options.memory_registers, options.compiler_params, simulated=simulated, obstacles=obstacles or {},
                    source=(self.source.tree, self.source.filename))

    def lifted(self, unit_key: tuple[Any, ...]) -> Callable[..., Any]:
        """The rewritten kernel function for these types and Statics."""
        function = self._lifted.get(unit_key)
        if function is None:
            arrays, _, statics = unit_key
            known = {a.name: StaticArray(a.dtype, a.ndim) for a in arrays}
            order = [*known, *self._scalar_names(unit_key)]  # as both executions pass them
            function = lift(read(self.function), order, dict(statics), known, axes=self.options.grid_names,
                            wg_axis=self.options.wg_axis, compute_wgs=self.options.num_compute_wgs)
            self._lifted[unit_key] = function
        return function

    def _scalar_names(self, unit_key: tuple[Any, ...]) -> list[str]:
        arrays = {a.name for a in unit_key[0]}
        return [p for p in self.parameters if p not in arrays]

    # ---- the two executions
    def built(self, unit_key: tuple[Any, ...], obstacles: dict[int, str] | None = None) -> Any:
        """The compiled kernel for these types and Statics."""
        built = self._built.get(unit_key)
        if built is None:
            from .compile.build import build

            scalars = list(zip(self._scalar_names(unit_key), unit_key[1], strict=True))
            built = self._built[unit_key] = build(self.unit(unit_key, obstacles), self.lifted(unit_key), scalars)
        return built

    def _prepare(self, unit_key: tuple[Any, ...], infos: list[ArrayInfo], obstacles: dict[int, str]) -> Any:
        prepared = self._prepared.get(unit_key)
        if prepared is None:
            built = self.built(unit_key, obstacles)
            prepared = self._prepared[unit_key] = launch.Prepared(built, infos, unit_key[1])
        return prepared

    def _simulate(self, plan: _Plan, infos: list[ArrayInfo], scalars: list[Any], statics: Any, *, seed: int | None = None,
                  trace: Any = None) -> None:
        from .simulate import simulate

        arrays = [info.array for info in infos]
        values = [np.dtype(kind).type(value) for kind, value in zip(plan.unit_key[1], scalars, strict=True)]
        unit, function = self.unit(plan.unit_key, simulated=True), self.lifted(plan.unit_key)
        try:
            simulate(unit, function, arrays, values, plan.grid, seed=seed, trace=trace)  # type: ignore[arg-type]
        except Exception as error:
            told = blame.simulated(error, unit)
            if told is error:
                raise
            raise told from error
        self._check_compiles(plan.unit_key)

    def _check_compiles(self, unit_key: tuple[Any, ...]) -> None:
        """What ran simulated must compile too, where the toolchain is installed (NUMPIPE_COMPILE_CHECK=0: do not ask)."""
        if unit_key in self._checked or os.environ.get("NUMPIPE_COMPILE_CHECK", "1") == "0":
            return
        self._checked.add(unit_key)
        from .compile.build import front_end, toolchain

        if toolchain() is None:
            scalars = list(zip(self._scalar_names(unit_key), unit_key[1], strict=True))
            front_end(self.unit(unit_key), self.lifted(unit_key), scalars)

    def simulate(self, *args: Any, seed: int | None = None, trace: Any = None, out: Any = None, **named: Any) -> Any:
        """Run on the simulated SM: `seed` picks a random legal schedule (None: the virtual-time order), `trace` collects events."""
        statics = self._static_values(named)
        args = self._by_position(args, named)
        infos = [launch.describe(a, p, self.name) for p, a in zip(self.parameters, args, strict=False)
                 if not isinstance(a, _SCALAR)]
        scalars = [a for a in args if isinstance(a, _SCALAR)]
        results = None
        if len(args) != len(self.parameters):
            if out is None:
                results = self._allocate(args, infos, scalars, statics, None)
                for value in results:
                    value.view(np.uint8)[...] = 0xFF
            else:
                results = list(out) if isinstance(out, (tuple, list)) else [out]
            infos += [launch.describe(r, p, self.name) for r, p in zip(results, self.parameters[len(args):], strict=True)]
        key = (tuple((i[2], i[3], i[4]) for i in infos), statics, tuple(type(s) for s in scalars), "sim", "simulate")
        plan = self._plans.get(key) or self._plan(key, args, infos, scalars, statics, "sim", out)
        if not plan.empty:
            self._simulate(plan, infos, [_scalar(s, self.name) for s in scalars], statics, seed=seed, trace=trace)
        return None if results is None else results[0] if len(results) == 1 else tuple(results)

    # ---- inspection
    def compiled(self, *args: Any, **named: Any) -> Any:
        """The compiled kernel for arguments of these types; an ArrayType may stand for an array. Needs no GPU."""
        statics = self._static_values(named)
        args = self._by_position(args, named)
        described: list[ArrayArg] = []
        kinds: list[Any] = []

        def add(name: str, value: Any) -> None:
            if isinstance(value, ArrayType):
                described.append(ArrayArg(name, value.dtype, len(value.shape)))
                return
            info = launch.describe(value, name, self.name)
            tma = info.kind == "host" or launch.tma_addressable(info) is None
            described.append(ArrayArg(name, info.dtype, len(info.shape), launch.major_order(info), tma))

        for name, value in zip(self.parameters, args, strict=False):
            if isinstance(value, _SCALAR):
                kinds.append(np.dtype(_scalar_dtype(value, self.name)))
            else:
                add(name, value)
        if len(args) != len(self.parameters):
            if self.options.out_type is None:
                raise SpecError(f"kernel {self.name}: pass all of {', '.join(self.parameters)}: it has no out_type")
            answer = self._ask(self.options.out_type, "out_type", args, statics)
            for name, value in zip(self.parameters[len(args):], answer if isinstance(answer, tuple) else (answer,), strict=True):
                add(name, value)
        with self._lock:
            return self.built((tuple(described), tuple(kinds), statics))

    def inspect(self, what: str, *args: Any, **named: Any) -> Any:
        """"ptx", "sass", "llvm", "source" or "resources" of the kernel compiled for these arguments; needs no GPU.

        The Numba kernel underneath is ``kernel.compiled(*args).kernel``.
        """
        return self.compiled(*args, **named).inspect(what)


class _HostView:
    """An array as out_type and grid functions see it: shape and dtype, nothing else."""

    def __init__(self, info: ArrayInfo) -> None:
        self.shape, self.dtype, self.ndim = info.shape, info.dtype, len(info.shape)


def _is_array(value: Any) -> bool:
    return not isinstance(value, (*_SCALAR, ArrayType)) and (hasattr(value, "shape") or hasattr(value, "__cuda_array_interface__"))


def _scalar_dtype(value: Any, kernel: str) -> Any:
    if isinstance(value, bool):
        return np.bool_
    if isinstance(value, int):
        return np.int32
    if isinstance(value, float):
        return np.float32
    return value.dtype


def _scalar(value: Any, kernel: str) -> Any:
    if type(value) is int and not -(1 << 31) <= value < 1 << 31:
        raise SpecError(f"kernel {kernel}: the scalar {value} does not fit int32: pass np.int64({value})")
    return value.item() if isinstance(value, np.generic) else value


@functools.lru_cache(maxsize=8)
def _warn_once(why: str) -> None:
    warnings.warn(f"numpipe: {why}; kernels run on the simulated SM (target='sim' or NUMPIPE_TARGET=sim says so without this "
                  "warning)", stacklevel=5)
