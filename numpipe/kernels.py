"""`@numpipe.kernel`: a kernel function, its options, and what a call does.

A call binds its arguments, allocates outputs, finds (or makes) the plan for these shapes and types, and runs it: on the
GPU through the launcher, in CPython on the simulated SM. Plans are remembered by shapes, strides and types, so a repeated
call on device arrays is a few dictionary look-ups and one driver call.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

import numpy as np

from . import _log, launch, targets
from ._frames import brief, shorten
from ._plans import ArrayArg
from ._source import remember
from ._unit import Unit
from .arguments import SCALAR, Call, Parameters, scalar_dtype, scalar_kind, scalar_value
from .bound import Bound, bind
from .compile import asked as asked_of
from .compile import blame
from .compile.fold import StaticArray
from .compile.lift import Lifted, lift, read
from .compile.positions import Source
from .compile.stored import stored
from .debug import SimulatedOnly
from .errors import NumpipeError, SpecError
from .launch import attributes
from .launch.arrays import ArrayInfo
from .launch.faults import DriverError, naming, of_kernel
from .options import Options, names
from .repeats import MISS, Repeats
from .results import Results
from .shapes import Signature
from .specs import ArrayType, CompilerParams, Persistent
from .tiled import Tiled, tiled

_REMEMBERED = 512


@dataclass
class _Plan:
    """What a call on arrays of these shapes and types does."""

    grid: tuple[int, int, int]
    unit_key: tuple[Any, ...]
    scalars: tuple[str, ...]
    """names of the run-time scalars, as both executions pass them"""
    prepared: Any
    empty: bool
    """no output has an element: nothing to do"""
    device: int
    """CUDA ordinal for host arrays"""
    outputs: int
    """how many of the arrays, the last ones, are outputs"""


class Asked(NamedTuple):
    """A call, understood: what `Kernel.resolve` makes of its arguments."""

    call: Call
    infos: list[ArrayInfo]
    """all arrays, outputs included"""
    values: list[Any]
    """the run-time scalars"""
    results: Any
    """the outputs that were not passed by position; None: there are none"""
    fresh: int
    """how many of the arrays, the last ones, were allocated for this call"""
    plan: _Plan

    def result(self, out: Any) -> Any:
        """What the call returns."""
        if self.results is None:
            return None
        if out is not None:
            return out
        results = launch.deliver(self.infos[0], self.results) if self.fresh else self.results
        return results[0] if len(results) == 1 else tuple(results)


@dataclass(frozen=True)
class Described:
    """What a call would compile, and run on."""

    unit_key: tuple[Any, ...]
    obstacles: dict[int, str]
    """why TMA cannot address an array, by argument"""
    infos: list[ArrayInfo]
    """the arrays, outputs included"""
    values: Callable[[], list[Any]]
    """the run-time scalars as the kernel gets them"""
    grid: Callable[[launch.Device], tuple[int, int, int]]
    """CTAs on a device"""


def kernel(function: Callable[..., Any] | None = None, /, *, grid: Any = (1,), grid_names: Sequence[str] = (),
           out_type: Any = None, signature: str | None = None, num_compute_wgs: int | None = None, wg_axis: str | None = None,
           memory_registers: int | None = None, warp_specialized: bool = True, in_specs: Any = None, out_specs: Any = None,
           compiler_params: CompilerParams | None = None, target: str | None = None, cluster: Any = None,
           cluster_names: Sequence[str] = (), cooperative: bool = False, programmatic: bool | None = None,
           schedule: str = "cooperative", without: Sequence[str] = (), workspace: Any = None) -> Any:
    """Make a kernel of a Python function over references.

    grid              CTAs: a tuple of 1 to 3 ints, a function of the kernel's arguments (by parameter name) that returns
                      one, or `persistent()`
    grid_names        names of the grid's axes, for `axis_index`
    out_type          function of the arguments (by parameter name) returning an ArrayType, or a tuple of them: the trailing
                      parameters without a default are outputs, which the call allocates and returns. Without it the caller
                      passes them.
    signature         shapes that belong together, in NumPy's gufunc notation: ``"(m,k),(n,k)->(m,n)"``; checked at the call
    num_compute_wgs   compute warpgroups of a CTA (one more is the memory role); default: 2, without a memory role 1
    wg_axis           name of the compute warpgroups' axis; default: "wg"
    memory_registers  registers a lane of the memory role keeps (a multiple of 8, 24…256; default: 40); compute warpgroups
                      share the rest. These three may instead be said by the kernel's emit_pipeline_warp_specialized.
    warp_specialized  False: no memory role. All warpgroups of the CTA (at most 8) run the kernel function in the compute role,
                      with the registers of the launch, and each loads for itself: pipelines are single-stream there
    in_specs, out_specs
                      BlockSpecs, with index maps over the kernel's whole grid: the function is given a tile for each instead of
                      arrays, inputs before outputs (see `pipeline`), and is called at each step of a pipeline. By
                      ``CompilerParams(dimension_semantics=("parallel", …, "sequential"))`` the first dimensions of the grid are
                      CTAs, the others the pipeline's; without, all are CTAs. `program_id` and `num_programs` are of the whole
                      grid.
    compiler_params   see CompilerParams
    schedule          "cooperative": the compute warpgroups share each tile of a loop over `tiles`. "pingpong": they take turns on
                      whole tiles, and one stores its tile while the next multiplies: the warpgroup axis has size 1 then, so
                      that ``rows = tm // axis_size("wg")`` are all rows of the tile. Every pipeline stands in a loop over
                      `tiles` or `nd_loop` of the kernel function (see `numpipe.turns`).
    target            "gpu", "sim" or "auto" (default: the environment's NUMPIPE_TARGET, else "auto")
    cluster           CTAs of a cluster, an int or up to 3 along the grid's dimensions: they run at the same time on the SMs of one
                      GPC. The grid is a multiple of it in each dimension; at most 8 CTAs, 16 where they fit
    cluster_names     names of the cluster's axes, for `axis_index` and for the `collective_axes` of a BlockSpec: its CTAs may load
                      blocks for each other. Loops over `tiles` deal tiles to clusters then, not to CTAs.
    cooperative       True: all CTAs run at the same time, or the launch is refused
    programmatic      programmatic dependent launch: the kernel may be launched while the one before it in the stream ends, and
                      waits for that end before it touches global memory. False: not before that end. Default: True, for
                      cooperative kernels False
    without           names of parameters that this kernel has not: they are None in its source, where ``if bias is not None:`` is
                      decided when it is compiled. So one function may be several kernels, with and without an array or a scalar
    workspace         a `Workspace`, or a function of the arrays and Statics (by parameter name) that returns one: the last array
                      parameter is global memory for partial sums (`combine`), which numpipe allocates and calls do not pass

    Positional parameters are arrays or scalars, outputs behind inputs. Parameters with a default (a bool, int, float or
    NumPy scalar) and keyword-only ones are run-time scalars; those annotated `numpipe.Static` are compile-time constants,
    one compile a value. Any may be passed by name: for ``def k(a, b, c, alpha=1.0)`` with an out_type, call ``k(a, b)``,
    ``k(a, b, alpha=2.0)`` or ``k(a, b, out=c)``; without, ``k(a, b, c)`` or ``k(a, b, c, 2.0)``. A Python int is an int32
    (a float where the default is one), a float a float32, a NumPy scalar has its own type. Calls take besides ``out=``,
    ``target=`` and ``stream=``.

    Raises SpecError for arguments that do not fit, CompileError for source that cannot be compiled, TargetError where the
    target cannot run, LaunchError when the driver fails; on the simulated SM PipelineRace and PipelineDeadlock.
    """
    options = Options(grid, names(grid_names), out_type, None if signature is None else Signature.parse(signature),
                      asked_of.Said(num_compute_wgs, wg_axis, memory_registers), warp_specialized,
                      CompilerParams() if compiler_params is None else compiler_params, target, in_specs, out_specs, schedule,
                      without=names(without), workspace=workspace)

    def make(function: Callable[..., Any]) -> Kernel:
        given = attributes.given(getattr(function, "__name__", repr(function)), cluster, cooperative, programmatic)
        named = attributes.axis_names(getattr(function, "__name__", repr(function)), cluster, cluster_names)
        return Kernel(function, dataclasses.replace(options, attributes=given, cluster_names=named))

    return make if function is None else make(function)


class Kernel:
    """A kernel function; call it on arrays."""

    def __init__(self, function: Callable[..., Any], options: Options) -> None:
        options = options.without_workspace(function)
        self._arguments = Parameters(function, options.without)
        functools.update_wrapper(self, function)
        self.function, self.options = function, options
        remember(function)
        self.name = self._arguments.kernel
        self.parameters, self.statics = self._arguments.names, self._arguments.statics
        self._tiled = tiled(self.name, self.parameters, options.in_specs, options.out_specs, options.grid, options.compiler_params,
                            options.warp_specialized)
        if self._tiled is not None:
            self._all_dims = options.grid
            options = self.options = dataclasses.replace(
                options, grid=self._tiled.ctas(options.grid),
                compiler_params=options.compiler_params.replace(dimension_semantics=self._tiled.grid.semantics))
            self._arguments.hide(self._tiled.grid.hidden)
        self._workspace = None if options.workspace is None else self._arguments.reserve_last()
        """the parameter that is the workspace"""
        self._own_scalars = 0 if self._tiled is None else len(self._tiled.grid.hidden)
        """how many scalars it passes itself"""
        options.check(self.name, len(self.parameters))
        self._results = Results(self._arguments, options)
        self._repeats = Repeats(self._arguments, self._call)
        self._steering = options.takes - set(self.statics)
        """the parameters that `grid` and `out_type` depend on"""
        self._lock = threading.RLock()
        self._plans: dict[tuple[Any, ...], _Plan] = {}
        self._built: dict[tuple[Any, ...], Any] = {}
        self._prepared: dict[tuple[Any, ...], Any] = {}
        self._lifted: dict[tuple[Any, ...], Lifted] = {}
        self._splits: dict[tuple[Any, ...], asked_of.Split] = {}
        self._checked: set[tuple[Any, ...]] = set()

    def __repr__(self) -> str:
        return f"<numpipe kernel {self.name}({', '.join(self.parameters)})>"

    @functools.cached_property
    def source(self) -> Source:
        return self._read()

    def _read(self) -> Source:
        """The function's source, with the values that its module's names have now."""
        source = read(self.function)
        return source if self._tiled is None else self._tiled.source(source, self.parameters)

    @functools.cached_property
    def stored(self) -> set[str]:
        """The names that the kernel stores to."""
        if self._tiled is not None:
            return set(self.parameters[len(self._tiled.ins):])
        return stored(self.source)

    @functools.cached_property
    def first_output(self) -> int:
        """Index of the first parameter that the kernel stores to; from there on parameters are outputs."""
        return next((i for i, name in enumerate(self.parameters) if name in self.stored), len(self.parameters))

    def _output(self, name: str) -> bool:
        return name in self.parameters[self.first_output:]

    def _check_outputs(self, call: Call) -> None:
        """No scalar stands where an output belongs."""
        scalars = {name: value for name, value in zip(self.parameters, call.args, strict=False) if isinstance(value, SCALAR)}
        for name in scalars and scalars.keys() & stored(self.source, surely=True):
            value, scalar = scalars[name], next(iter(self._arguments.scalars), None)
            raise SpecError(f"kernel {self.name}: argument '{name}' is an output, which needs an array, got {value!r}"
                            + ("" if self.options.out_type is None else ": leave it out, out_type says what it is")
                            + ("" if scalar is None else f"; pass scalars behind the outputs by name, e.g. {scalar}={value!r}"))

    def takes(self, name: str) -> bool:
        """Whether a parameter has this name."""
        return name in self.parameters or name in self.statics or name in self._arguments.scalars

    def outputs(self, /, *args: Any, **named: Any) -> list[str]:
        """The parameters that a call with these arguments returns or stores to."""
        passed = len(self._arguments.bind(args, named).args)
        return self.parameters[min(passed, self.first_output):]

    def array_names(self, call: Call) -> list[str]:
        """The parameters that are arrays in a call."""
        return self._results.array_names(call)

    def ask(self, function: Callable[..., Any], what: str, view: Callable[[ArrayInfo], Any], /, *args: Any, **named: Any) -> Any:
        """Call a function with the arguments of a call that its parameters name, arrays as `view` shows them."""
        return self._results.ask(function, what, self._arguments.bind(args, named), view)

    # ---- calls
    def __getitem__(self, launch: Any) -> NoReturn:
        """Not how a kernel is launched here: SpecError."""
        raise SpecError(f"kernel {self.name}: {self.name}[…](…) is how numba.cuda launches; call {self.name}(…): the grid and the "
                        "warpgroups are said once, @numpipe.kernel(grid=…, num_compute_wgs=…), a stream is passed as stream=")

    __iter__ = None  # without it Python would iterate by __getitem__

    def __call__(self, /, *args: Any, out: Any = None, target: str | None = None, stream: Any = None, **named: Any) -> Any:
        """Run the kernel; returns the outputs it allocated (or `out`)."""
        try:
            try:
                if target is None:
                    result = self._repeats(args, named, out, stream)
                    if result is not MISS:
                        return result
                return self._call(args, named, out, target, stream)
            except DriverError as error:
                raise of_kernel(error, self.name) from error
        except NumpipeError as error:
            shorten(error)  # NUMPIPE_TRACEBACK=full shows the frames below
            raise

    @brief
    def bind(self, /, *args: Any, out: Any = None, target: str | None = None, **named: Any) -> Bound:
        """A call to be made often, with all that it needs prepared: ``bound()`` launches it, see `Bound`."""
        with naming(self.name):
            return bind(self, self.resolve(args, named, out, target, None), out)

    @brief
    def simulate(self, /, *args: Any, seed: int | None = None, trace: Any = None, out: Any = None, **named: Any) -> Any:
        """Run on the simulated SM: `seed` picks a random legal schedule (None: the virtual-time order).

        `trace` is a numpipe.Trace that collects events, or the name of a file for them, ``run.json`` (for ui.perfetto.dev) or
        ``run.txt``, which is written also when the run ends in a race or a deadlock.
        """
        from .traces.trace import collecting

        with collecting(trace) as events:
            return self._call(args, named, out, "sim", None, seed, events, judged=True)

    def _call(self, given: tuple[Any, ...], named: dict[str, Any], out: Any, target: str | None, stream: Any,
              seed: int | None = None, trace: Any = None, judged: bool = False) -> Any:
        asked = self.resolve(given, named, out, target, stream)
        launched = self.run(asked, stream, seed, trace, judged)
        if launched is not None and len(asked.values) == self._own_scalars:
            plan, made = asked.plan, asked.infos[len(asked.infos) - asked.fresh:]
            if asked.values:  # they follow from the arrays' shapes
                launched = plan.prepared.alone(plan.grid, asked.infos, asked.values, launched.stream)
            self._repeats.learn(asked.call, named, asked.infos, made, launched)
        return asked.result(out)

    def resolve(self, given: tuple[Any, ...], named: dict[str, Any], out: Any, target: str | None, stream: Any) -> Asked:
        """Bind a call's arguments, allocate the outputs that it leaves out, and find or make its plan."""
        call = self._arguments.bind(given, named)
        if self._tiled is not None and self._tiled.grid.hidden:
            call = self._with_steps(self._tiled, call)
        args, extra, statics = call
        infos: list[ArrayInfo] = []
        scalars: list[Any] = []
        kinds: list[Any] = []  # which arguments are scalars, and what a plan depends on of each
        name = self.name
        for parameter, arg in zip(self.parameters, args, strict=False):
            if isinstance(arg, SCALAR):
                scalars.append(arg)
                kinds += (parameter, scalar_kind(arg), arg if parameter in self._steering else None)
            else:
                infos.append(launch.describe(arg, parameter, name))
        if extra:
            scalars += extra
            kinds += [scalar_kind(value) for value in extra]
            if self._steering:
                kinds += [value for scalar, value in zip(self._arguments.scalars, extra, strict=True) if scalar in self._steering]
        results: Any = None
        fresh = 0
        if len(args) != len(self.parameters):
            if out is None:
                results = self._results.allocate(call, infos, scalars, stream)
                fresh = len(results)
            else:
                results = self._results.elsewhere(out, call)
            describe = launch.describe_fresh if fresh else launch.describe
            infos += [describe(r, p, name) for r, p in zip(results, self.parameters[len(args):], strict=True)]
        elif out is not None:
            self._results.elsewhere(out, call)  # refused
        asked = target if infos and infos[0][0] != "host" else (target, os.environ.get(launch.TARGET_VARIABLE))
        key = (tuple([(i[0], i[1] & 15, i[2], i[3], i[4], i[5], i[6]) for i in infos]), statics, tuple(kinds), asked)
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plan(key, call, infos, scalars, target, out)
        values = [scalar_value(s, p, name) for s, p in zip(scalars, plan.scalars, strict=True)] if scalars else scalars
        return Asked(call, infos, values, results, fresh, plan)

    def run(self, asked: Asked, stream: Any, seed: int | None = None, trace: Any = None,
            judged: bool = False) -> launch.Launch | None:
        """Run a call; returns what it launched on arrays of the GPU.

        `judged`: the simulated SM is to tell which accesses of arrays that overlap conflict, so they are not refused.
        """
        plan, infos = asked.plan, asked.infos
        if plan.empty:
            return None
        if plan.prepared is None:
            for info in infos[len(infos) - asked.fresh:]:
                info.array.reshape(-1).view(np.uint8)[...] = 0xFF  # type: ignore[union-attr]
            if not judged:
                launch.check_overlap(infos, [a.name for a in plan.unit_key[0]], max(plan.outputs, asked.fresh), self.name)
            self._simulate(plan, infos, asked.values, seed, trace, asked.fresh)
            return None
        if infos[0].kind != "host":
            handle = launch.current_stream(infos) if stream is None else launch.as_stream(stream)
            launched: launch.Launch = plan.prepared.at(plan.grid, infos, handle)
            foreign = launch.foreign(infos)
            if foreign:
                launch.order(infos, handle, f"kernel {self.name}")
            plan.prepared.run(launched, asked.values)
            if foreign:
                launch.settle(infos, handle, asked.fresh)
            return launched
        launch.run(plan.prepared, plan.grid, infos, asked.values, 0 if stream is None else launch.as_stream(stream),
                   outputs=max(plan.outputs, asked.fresh), fresh=asked.fresh, device=plan.device)
        return None

    def _with_steps(self, of: Tiled, call: Call) -> Call:
        """The call with the sizes of a kernel over tiles' sequential dimensions, which it passes itself."""
        steps = of.steps(self._results.ask(self._all_dims, "grid", call))
        return call._replace(scalars=(*call.scalars[:len(call.scalars) - len(steps)], *steps))

    # ---- plans
    def _array_arg(self, name: str, info: ArrayInfo) -> ArrayArg:
        """An array as far as compilation depends on it; host arrays are copied to padded rows."""
        host = info.kind == "host"
        output = self._output(name)
        return ArrayArg(name, info.dtype, len(info.shape), launch.major_order(info), host or launch.tma_addressable(info) is None,
                        host or not output or not info.shape or info.shape[-1] * info.dtype.itemsize % 16 == 0, output)

    def _obstacle(self, arrays: list[ArrayArg], info: ArrayInfo, obstacles: dict[int, str]) -> None:
        """Note why TMA cannot address the last of `arrays`: the error that its use in a pipeline gives."""
        if not arrays[-1].tma:
            reason = str(launch.tma_addressable(info))
            obstacles[len(arrays) - 1] = str(launch.not_addressable(info, reason, arrays[-1].name, self.name))

    def _plan(self, key: tuple[Any, ...], call: Call, infos: list[ArrayInfo], scalars: list[Any], target: str | None,
              out: Any) -> _Plan:
        timed = _log.Timed("launch")
        with self._lock:
            self._check_outputs(call)
            if out is not None:
                self._results.check(call, infos, scalars)
            self._results.check_signature(call, infos)
            names = self._results.array_names(call)
            place = launch.same_place(infos, names, self.name)
            choice = targets.choose(self.name, target or self.options.target, infos, place)
            arrays: list[ArrayArg] = []
            obstacles: dict[int, str] = {}
            for name, info in zip(names, infos, strict=True):
                arrays.append(self._array_arg(name, info))
                self._obstacle(arrays, info, obstacles)
            unnamed = self._scalar_names(names)
            kinds = tuple(scalar_dtype(s, p, self.name) for s, p in zip(scalars, unnamed, strict=True))
            unit_key = (self._with_workspace(arrays), kinds, call.statics)
            grid = targets.ctas(self.name, self.options, choice, lambda grid: self._results.ask(grid, "grid", call))
            outputs = sum(map(self._output, names))
            written = infos[len(infos) - outputs:]
            for name, info in zip(names[len(infos) - outputs:], written, strict=True):
                launch.check_writable(info, name, self.name)
            nothing = 0 in grid or (bool(written) and all(0 in info.shape for info in written))
            plan = _Plan(grid, unit_key, tuple(unnamed), None, nothing,
                         choice.device.ordinal if choice.device else 0, outputs)
            if choice.target == "gpu" and not plan.empty:
                plan.prepared = self._prepare(unit_key, infos, obstacles)
                if isinstance(self.options.grid, Persistent) and self.options.grid.ctas is None:
                    plan.grid = plan.prepared.function.fitting(grid, plan.device if infos[0].kind == "host" else infos[0].device)
            if len(self._plans) >= _REMEMBERED:
                self._plans.clear()
            self._plans[key] = plan
            if timed:
                shapes = ", ".join(f"{name} {info.dtype.name}{list(info.shape)}" for name, info in zip(names, infos, strict=True))
                timed.say(f"{self.name}: plan for {shapes} on {'GPU' if plan.prepared else 'the simulated SM'}, grid {grid}")
            return plan

    def unit(self, unit_key: tuple[Any, ...], obstacles: dict[int, str] | None = None, simulated: bool = False) -> Unit:
        """A new Unit: one compile or one simulation."""
        options = self.options
        split = self._splits.get(unit_key)
        if split is None:
            default = asked_of.Split() if options.warp_specialized else asked_of.Split(num_compute_wgs=1, memory_registers=0)
            split = self._splits[unit_key] = asked_of.split(self.source, self._known(unit_key), options.split, default)
        return Unit(self.name, unit_key[0], options.grid_names, split.wg_axis, split.num_compute_wgs, split.memory_registers,
                    options.compiler_params, simulated=simulated, obstacles=obstacles or {},
                    memory_thread=split.memory_thread_idx, warp_specialized=options.warp_specialized, schedule=options.schedule,
                    **options.cluster)

    @staticmethod
    def _known(unit_key: tuple[Any, ...]) -> dict[str, Any]:
        """What is known before compilation of the arrays and Statics, by parameter name."""
        arrays, _, statics = unit_key
        return {a.name: StaticArray(a.dtype, a.ndim) for a in arrays} | dict(statics)

    def lifted(self, unit_key: tuple[Any, ...]) -> Lifted:
        """The rewritten kernel function for these types and Statics."""
        lifted = self._lifted.get(unit_key)
        if lifted is None:
            arrays, _, statics = unit_key
            known = {a.name: StaticArray(a.dtype, a.ndim) for a in arrays}
            order = [*known, *self._scalar_names(known)]  # as both executions pass them
            lifted = lift(self._read(), order, dict(statics), known, self.unit(unit_key))
            self._lifted[unit_key] = lifted
        return lifted

    def _scalar_names(self, arrays: Collection[str]) -> list[str]:
        """The run-time scalars' names when these parameters are arrays, in the order of both executions."""
        return [*(p for p in self.parameters if p not in arrays), *self._arguments.scalars]

    def _scalars(self, unit_key: tuple[Any, ...]) -> list[tuple[str, Any]]:
        """Names and types of the run-time scalars."""
        return list(zip(self._scalar_names([a.name for a in unit_key[0]]), unit_key[1], strict=True))

    # ---- the workspace
    def _with_workspace(self, arrays: list[ArrayArg]) -> tuple[ArrayArg, ...]:
        """All arrays of the kernel: those of a call, and the workspace."""
        own = [] if self._workspace is None else [ArrayArg(self._workspace, np.dtype(np.float32), 2, workspace=True)]
        return (*arrays, *own)

    def workspace_of(self, unit_key: tuple[Any, ...]) -> Callable[[tuple[int, int, int], Sequence[ArrayInfo]], Any] | None:
        """The shape of the workspace, of a grid and the arrays of a call; None: the kernel has none."""
        if self._workspace is None:
            return None
        arrays, _, statics = unit_key
        return functools.partial(self._results.workspace, [array.name for array in arrays[:-1]], dict(statics))

    # ---- the two executions
    def built(self, unit_key: tuple[Any, ...], obstacles: dict[int, str] | None = None) -> Any:
        """The compiled kernel for these types and Statics."""
        built = self._built.get(unit_key)
        if built is None:
            from .compile.build import build

            built = self._built[unit_key] = build(self.unit(unit_key, obstacles), self.lifted(unit_key), self._scalars(unit_key))
        return built

    def _prepare(self, unit_key: tuple[Any, ...], infos: list[ArrayInfo], obstacles: dict[int, str]) -> Any:
        prepared = self._prepared.get(unit_key)
        if prepared is None:
            built = self.built(unit_key, obstacles)
            outputs = sum(array.output for array in unit_key[0] if not array.workspace)
            prepared = launch.Prepared(built, infos, unit_key[1], outputs, self.options.attributes, self.workspace_of(unit_key))
            self._prepared[unit_key] = prepared
        return prepared

    def _simulate(self, plan: _Plan, infos: list[ArrayInfo], scalars: list[Any], seed: int | None, trace: Any,
                  fresh: int) -> None:
        from .simulate import simulate

        arrays = [info.array for info in infos]
        if (workspace := self.workspace_of(plan.unit_key)) is not None:
            arrays.append(np.zeros(workspace(plan.grid, infos), np.float32))
            fresh += 1
        values = [np.dtype(kind).type(value) for kind, value in zip(plan.unit_key[1], scalars, strict=True)]
        unit, lifted = self.unit(plan.unit_key, simulated=True), self.lifted(plan.unit_key)
        try:
            simulate(unit, lifted.simulated, arrays, values, plan.grid, seed=seed, trace=trace, fresh=fresh)  # type: ignore[arg-type]
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
            with contextlib.suppress(SimulatedOnly):  # a breakpoint: this kernel is being looked at
                front_end(self.unit(unit_key), self.lifted(unit_key), self._scalars(unit_key))

    # ---- inspection
    @brief
    def compiled(self, /, *args: Any, out: Any = None, **named: Any) -> Any:
        """The compiled kernel for arguments of these types; an ArrayType may stand for an array. Needs no GPU."""
        asked = self.described(args, named, out)
        with self._lock:
            return self.built(asked.unit_key, asked.obstacles)

    def adopt(self, compiled: launch.Compiled, asked: Described) -> None:
        """Launch machine code that another process made of this kernel for such a call; one that is prepared stays as it is."""
        with self._lock:
            if asked.unit_key not in self._prepared:
                arrays, kinds, _ = asked.unit_key
                outputs = sum(a.output for a in arrays if not a.workspace)
                self._prepared[asked.unit_key] = launch.Prepared(compiled, asked.infos, kinds, outputs, self.options.attributes,
                                                                 self.workspace_of(asked.unit_key))

    def described(self, args: tuple[Any, ...], named: dict[str, Any], out: Any = None, *, shapes: bool = False) -> Described:
        """What a call with these arguments would compile, and run on; an ArrayType may stand for an array.

        `shapes`: raise SpecError where they do not agree with the kernel's `signature`, which compiling does not depend on.
        """
        call = self._arguments.bind(args, named)
        self._check_outputs(call)
        arrays: list[ArrayArg] = []
        infos: list[ArrayInfo] = []
        scalars: list[tuple[np.dtype, Any]] = []
        obstacles: dict[int, str] = {}

        def add(name: str, value: Any) -> None:
            if isinstance(value, SCALAR):
                scalars.append((scalar_dtype(value, name, self.name), value))
            elif isinstance(value, ArrayType):
                arrays.append(ArrayArg(name, value.dtype, len(value.shape), output=self._output(name)))
                infos.append(launch.imagined(value.shape, value.dtype))
            else:
                info = launch.describe(value, name, self.name)
                arrays.append(self._array_arg(name, info))
                infos.append(info)
                self._obstacle(arrays, info, obstacles)

        for name, value in zip(self.parameters, call.args, strict=False):
            add(name, value)
        missing = self.parameters[len(call.args):]
        if missing and out is None and self.options.out_type is None:
            raise SpecError(f"kernel {self.name}: pass all of {', '.join(self.parameters)}: it has no out_type")
        outputs = self._results.asked_types(call) if missing and out is None else self._results.elsewhere(out, call)
        for name, value in zip(missing, outputs, strict=True):
            add(name, value)
        if shapes:
            self._results.check_signature(call, infos)
        first = len(scalars)
        for name, value in zip(self._arguments.scalars, call.scalars, strict=True):
            add(name, value)
        kinds = tuple(kind for kind, _ in scalars)

        def grid(device: launch.Device) -> tuple[int, int, int]:
            return targets.ctas(self.name, self.options, launch.Choice("gpu", "asked for", device),
                                lambda given: self._results.ask(given, "grid", call))

        def values() -> list[Any]:
            if self._tiled is None or not self._tiled.grid.hidden:
                return [kind.type(value) for kind, value in scalars]
            stepped = self._with_steps(self._tiled, call).scalars
            return [kind.type(value) for kind, value in zip(kinds, (*(v for _, v in scalars[:first]), *stepped), strict=True)]

        return Described((self._with_workspace(arrays), kinds, call.statics), obstacles, infos, values, grid)

    @brief
    def inspect(self, what: str, /, *args: Any, **named: Any) -> Any:
        """The kernel compiled for these arguments, for people to read; an ArrayType may stand for an array. Needs no GPU.

        "ptx", "sass", "llvm"   its code, as text ("sass" needs nvdisasm)
        "source"                the rewritten kernel function, which both executions run
        "resources"             a `Resources`: registers, spills, shared memory and what it is for, barriers, tensor maps, bytes of
                                machine code, seconds of the compile; print it for a table
        "gate"                  what the build gate finds wrong with the machine code: empty when it passes

        Raises SpecError for another word, TargetError where a tool is missing, and what compiling raises. The Numba kernel
        underneath is ``kernel.compiled(*args).kernel``.

        >>> print(matmul.inspect("resources", a, b))
        """
        from .compile.build import check_inspect

        check_inspect(what, self.name)
        return self.compiled(*args, **named).inspect(what)
