"""What a call of a kernel does: its arguments are understood, a plan for arrays like these is found or made, and run.

Plans are remembered by shapes, strides and types: on the GPU a plan holds what the launcher prepared, without a GPU only the grid.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from .. import launch
from ..diagnostics import log
from ..diagnostics.errors import SpecError
from ..launch.info import ArrayInfo
from ..launch.launcher import bounded
from ..plan.plans import ArrayArg
from ..plan.specs import ArrayType, Persistent
from . import targets
from .arguments import SCALAR, Call, scalar_dtype, scalar_kind, scalar_value
from .options import Options
from .variants import Variants


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


class Calls(Variants):
    """A kernel, as it is called."""

    def __init__(self, function: Callable[..., Any], options: Options) -> None:
        super().__init__(function, options)
        self._steering = self.options.takes - set(self.statics)
        """the parameters that `grid` and `out_type` depend on"""
        self._plans: dict[tuple[Any, ...], _Plan] = {}

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
            self._simulate(plan.unit_key, plan.grid, infos, asked.values, seed, trace, asked.fresh)
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

    # ---- plans
    def _plan(self, key: tuple[Any, ...], call: Call, infos: list[ArrayInfo], scalars: list[Any], target: str | None,
              out: Any) -> _Plan:
        timed = log.Timed("launch")
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
            bounded(self._plans, key, plan)
            if timed:
                shapes = ", ".join(f"{name} {info.dtype.name}{list(info.shape)}" for name, info in zip(names, infos, strict=True))
                timed.say(f"{self.name}: plan for {shapes} on {'GPU' if plan.prepared else 'the simulated SM'}, grid {grid}")
            return plan

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

    # ---- without arrays
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

    def adopt(self, image: launch.Image, asked: Described) -> None:
        """Take what another process compiled of this kernel for such a call; where there is an image already, that stays."""
        with self._lock:
            self._images.setdefault(asked.unit_key, image)
