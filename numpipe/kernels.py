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
from .arguments import SCALAR, Parameters, scalar_dtype, scalar_value
from .compile import blame
from .compile.fold import StaticArray
from .compile.lift import Lifted, lift, read
from .compile.positions import Source
from .errors import SpecError, TargetError
from .launch.arrays import ArrayInfo
from .options import Options, grid_dims, names
from .results import Results
from .shapes import Signature
from .specs import ArrayType, CompilerParams, Persistent

SIMULATED_CTAS = 2
MAX_SIMULATED_ELEMENTS = 1 << 23
"""array elements that a call simulates without being asked to: about ten seconds of a GEMM"""
_REMEMBERED = 512


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
    options = Options(grid, names(grid_names), out_type, None if signature is None else Signature.parse(signature),
                      num_compute_wgs, wg_axis, memory_registers, CompilerParams() if compiler_params is None else compiler_params,
                      target)
    if function is None:
        return lambda f: Kernel(f, options)
    return Kernel(function, options)


class Kernel:
    """A kernel function; call it on arrays."""

    def __init__(self, function: Callable[..., Any], options: Options) -> None:
        self._arguments = Parameters(function)
        functools.update_wrapper(self, function)
        self.function, self.options = function, options
        self.name = self._arguments.kernel
        self.parameters, self.statics = self._arguments.names, self._arguments.statics
        options.check(self.name, len(self.parameters))
        self._results = Results(self.name, self.parameters, options)
        self._lock = threading.RLock()
        self._plans: dict[tuple[Any, ...], _Plan] = {}
        self._built: dict[tuple[Any, ...], Any] = {}
        self._prepared: dict[tuple[Any, ...], Any] = {}
        self._lifted: dict[tuple[Any, ...], Lifted] = {}
        self._checked: set[tuple[Any, ...]] = set()
        self._named = any(value is inspect.Parameter.empty for value in self.statics.values())
        """whether every call must name a Static"""

    def __repr__(self) -> str:
        return f"<numpipe kernel {self.name}({', '.join(self.parameters)})>"

    @functools.cached_property
    def source(self) -> Source:
        return read(self.function)

    @functools.cached_property
    def first_output(self) -> int:
        """Index of the first parameter that the kernel stores to; from there on parameters are outputs."""
        stored = {node.targets[0].value.id for node in ast.walk(self.source.parse())
                  if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript)
                  and isinstance(node.targets[0].value, ast.Name)}
        return next((i for i, name in enumerate(self.parameters) if name in stored), len(self.parameters))

    # ---- calls
    def __call__(self, *args: Any, out: Any = None, target: str | None = None, stream: Any = None, **named: Any) -> Any:
        """Run the kernel; returns the outputs it allocated (or `out`)."""
        statics = self._arguments.defaults
        if named or self._named or len(args) > len(self.parameters):
            statics = self._arguments.static_values(named)
            args = self._arguments.by_position(args, named)
        infos: list[ArrayInfo] = []
        scalars: list[Any] = []
        name = self.name
        for parameter, arg in zip(self.parameters, args, strict=False):
            if isinstance(arg, SCALAR):
                scalars.append(arg)
            else:
                infos.append(launch.describe(arg, parameter, name))
        results: Any = None
        if len(args) != len(self.parameters):
            results = (self._results.allocate(args, infos, scalars, statics, stream) if out is None else
                       self._results.given(out, len(args)))
            infos += [launch.describe(r, p, name) for r, p in zip(results, self.parameters[len(args):], strict=True)]
        elif out is not None:
            raise self._results.nowhere()
        kinds = tuple([type(s) if type(s) in (bool, int, float) else s.dtype for s in scalars])
        asked = target if infos and infos[0][0] != "host" else (target, os.environ.get(launch.TARGET_VARIABLE))
        key = (tuple([(i[0], i[1] & 15, i[2], i[3], i[4], i[5], i[6]) for i in infos]), statics, kinds, asked)
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plan(key, args, infos, scalars, statics, target, out)
        if not plan.empty:
            values = self._scalar_values(scalars, plan)
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

    def _scalar_values(self, scalars: list[Any], plan: _Plan) -> list[Any]:
        return [scalar_value(s, self.name, self._scalar_names(plan.unit_key)) for s in scalars] if scalars else []

    # ---- plans
    def _array_arg(self, name: str, info: ArrayInfo) -> ArrayArg:
        """An array as far as compilation depends on it; host arrays are copied to padded rows."""
        host = info.kind == "host"
        output = name in self.parameters[self.first_output:]
        return ArrayArg(name, info.dtype, len(info.shape), launch.major_order(info), host or launch.tma_addressable(info) is None,
                        host or not output or not info.shape or info.shape[-1] * info.dtype.itemsize % 16 == 0)

    def _obstacle(self, arrays: list[ArrayArg], info: ArrayInfo, obstacles: dict[int, str]) -> None:
        """Note why TMA cannot address the last of `arrays`: the error that its use in a pipeline gives."""
        if not arrays[-1].tma:
            reason = str(launch.tma_addressable(info))
            obstacles[len(arrays) - 1] = str(launch.not_addressable(info, reason, arrays[-1].name, self.name))

    def _plan(self, key: tuple[Any, ...], args: tuple[Any, ...], infos: list[ArrayInfo], scalars: list[Any], statics: Any,
              target: str | None, out: Any = None) -> _Plan:
        with self._lock:
            if out is not None:
                self._results.check(args, infos, scalars, statics, out)
            self._results.check_signature(args, infos)
            choice = self._target(target, infos)
            names = self._results.array_names(args)
            place = launch.same_place(infos, names, self.name)
            if choice.target == "sim" and place != "host":
                raise TargetError(f"kernel {self.name}: target='sim' runs on host arrays, got arrays on the GPU: pass NumPy arrays")
            arrays: list[ArrayArg] = []
            obstacles: dict[int, str] = {}
            for name, info in zip(names, infos, strict=True):
                arrays.append(self._array_arg(name, info))
                self._obstacle(arrays, info, obstacles)
            unnamed = [p for p in self.parameters if p not in names]
            kinds = tuple(scalar_dtype(s, p, self.name) for s, p in zip(scalars, unnamed, strict=True))
            unit_key = (tuple(arrays), kinds, statics)
            grid = self._grid(args, statics, choice)
            outputs = sum(name in self.parameters[self.first_output:] for name in names)
            written = infos[len(infos) - outputs:]
            for name, info in zip(names[len(infos) - outputs:], written, strict=True):
                launch.check_writable(info, name, self.name)
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
            grid = self._results.ask(grid, "grid", args, statics)
        dims = grid_dims(grid, self.name)
        self.options.check_names(dims, self.name)
        return (*dims, 1, 1)[:3]  # type: ignore[return-value]

    def unit(self, unit_key: tuple[Any, ...], obstacles: dict[int, str] | None = None, simulated: bool = False) -> Unit:
        """A new Unit: one compile or one simulation."""
        options = self.options
        return Unit(self.name, unit_key[0], options.grid_names, options.wg_axis, options.num_compute_wgs,
                    options.memory_registers, options.compiler_params, simulated=simulated, obstacles=obstacles or {})

    def lifted(self, unit_key: tuple[Any, ...]) -> Lifted:
        """The rewritten kernel function for these types and Statics."""
        lifted = self._lifted.get(unit_key)
        if lifted is None:
            arrays, _, statics = unit_key
            known = {a.name: StaticArray(a.dtype, a.ndim) for a in arrays}
            order = [*known, *self._scalar_names(unit_key)]  # as both executions pass them
            lifted = lift(read(self.function), order, dict(statics), known, self.unit(unit_key))
            self._lifted[unit_key] = lifted
        return lifted

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
        unit, lifted = self.unit(plan.unit_key, simulated=True), self.lifted(plan.unit_key)
        try:
            simulate(unit, lifted.simulated, arrays, values, plan.grid, seed=seed, trace=trace)  # type: ignore[arg-type]
        except Exception as error:
            told = blame.simulated(error, unit, lifted)
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
        statics = self._arguments.static_values(named)
        args = self._arguments.by_position(args, named)
        infos = [launch.describe(a, p, self.name) for p, a in zip(self.parameters, args, strict=False)
                 if not isinstance(a, SCALAR)]
        scalars = [a for a in args if isinstance(a, SCALAR)]
        results = None
        if len(args) != len(self.parameters):
            if out is None:
                results = self._results.allocate(args, infos, scalars, statics, None)
                for value in results:
                    value.view(np.uint8)[...] = 0xFF
            else:
                results = self._results.given(out, len(args))
            infos += [launch.describe(r, p, self.name) for r, p in zip(results, self.parameters[len(args):], strict=True)]
        elif out is not None:
            raise self._results.nowhere()
        key = (tuple((i[0], i[2], i[3], i[4], i[6]) for i in infos), statics, tuple(type(s) for s in scalars), "sim", "simulate")
        plan = self._plans.get(key) or self._plan(key, args, infos, scalars, statics, "sim", out)
        if not plan.empty:
            self._simulate(plan, infos, self._scalar_values(scalars, plan), statics, seed=seed, trace=trace)
        return None if results is None else results[0] if len(results) == 1 else tuple(results)

    # ---- inspection
    def compiled(self, *args: Any, **named: Any) -> Any:
        """The compiled kernel for arguments of these types; an ArrayType may stand for an array. Needs no GPU."""
        statics = self._arguments.static_values(named)
        args = self._arguments.by_position(args, named)
        described: list[ArrayArg] = []
        obstacles: dict[int, str] = {}
        kinds: list[Any] = []

        def add(name: str, value: Any) -> None:
            if isinstance(value, ArrayType):
                described.append(ArrayArg(name, value.dtype, len(value.shape)))
                return
            info = launch.describe(value, name, self.name)
            described.append(self._array_arg(name, info))
            self._obstacle(described, info, obstacles)

        for name, value in zip(self.parameters, args, strict=False):
            if isinstance(value, SCALAR):
                kinds.append(scalar_dtype(value, name, self.name))
            else:
                add(name, value)
        if len(args) != len(self.parameters):
            if self.options.out_type is None:
                raise SpecError(f"kernel {self.name}: pass all of {', '.join(self.parameters)}: it has no out_type")
            for name, value in zip(self.parameters[len(args):], self._results.asked_types(args, statics), strict=True):
                add(name, value)
        with self._lock:
            return self.built((tuple(described), tuple(kinds), statics), obstacles)

    def inspect(self, what: str, *args: Any, **named: Any) -> Any:
        """"ptx", "sass", "llvm", "source", "resources" or "gate" of the kernel compiled for these arguments; needs no GPU.

        "gate" lists what the build gate finds wrong with its machine code: empty when it passes.

        The Numba kernel underneath is ``kernel.compiled(*args).kernel``.
        """
        built = self.compiled(*args, **named)
        if what == "gate":
            from .compile import gate

            return gate.findings(built)
        return built.inspect(what)


@functools.lru_cache(maxsize=8)
def _warn_once(why: str) -> None:
    warnings.warn(f"numpipe: {why}; kernels run on the simulated SM (target='sim' or NUMPIPE_TARGET=sim says so without this "
                  "warning)", stacklevel=5)
