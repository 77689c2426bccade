"""A call of a kernel: it reads its arguments, finds or makes the plan for arguments like these, and
runs it.

An array goes down these steps, a function each:

============================  ======================================================================
`Parameters.bind`             binds the arguments to parameters: a `Call`
`Definition.describe`         describes the arrays, and tells scalars from them
`Calls.resolve`               allocates outputs that the call leaves out; finds the plan, by shapes,
                              strides and types
`Calls._plan`                 makes one where there is none: the target, the variant that is
                              compiled, the grid
`Calls.run`                   to the simulated SM by `Variant.simulate`; to the GPU by
                              `Prepared.at`, which makes or finds the launch of these addresses, and
                              `Prepared.run`, which makes the driver's call
============================  ======================================================================
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import numpy as np

from .. import launch
from ..diagnostics import log
from ..diagnostics.argument_checks import NONE, require, word
from ..diagnostics.errors import SpecError
from ..launch.mesh import Mesh, compiling, key_of
from ..launch.table import Table
from ..plan.specs import ArrayType, Persistent
from . import jit, run_target
from .arguments import Call, scalar_kind, scalar_value
from .definition import Definition, described
from .simulation_checks import Judge
from .variants import Key, Variant

_TARGET = NONE | word(*launch.current_gpu.TARGET_NAMES)
UNKNOWN = object()
"""stands for Statics under which no call is kept"""


@dataclass
class Plan:
    """The plan of calls on arrays of the same shapes and types."""

    variant: Variant
    grid: tuple[int, int, int]
    types: tuple[ArrayType, ...]
    """types of the outputs that a call allocates"""
    empty: bool
    """whether there is nothing to do: no CTA, or no output with an element"""
    device: int
    """CUDA ordinal for host arrays"""
    prepared: launch.Prepared | None = None
    """the prepared kernel that it launches; None: it is simulated"""
    semaphores: int = 0
    """how many semaphores each GPU has"""


class Calls:
    """The calls of one kernel, and its variants."""

    def __init__(
        self, definition: Definition, table: Table, make: Callable[..., Variant] = Variant
    ) -> None:
        """`make` returns a variant for the definition, a key and the arrays' obstacles."""
        self.definition, self.table, self._get, self._make = definition, table, table.get, make
        self.variants: dict[Key, Variant] = {}
        self._steering = definition.options.takes - set(definition.statics)
        """the parameters that `grid` and `out_type` depend on"""
        self._steered = not self._steering.isdisjoint(definition.arguments.scalars)

    def variant(self, call: Call) -> Variant:
        """Return the variant that a call needs."""
        key, obstacles = self.definition.key(call)
        variant = self.variants.get(key) or self.variants.setdefault(
            key, self._make(self.definition, key, obstacles)
        )
        variant.obstacles = obstacles  # an error names the arrays of the newest call
        return variant

    def resolve(
        self,
        args: tuple[Any, ...],
        named: dict[str, Any],
        out: Any,
        target: str | None,
        stream: Any,
        mesh: Mesh | None = None,
        own: int = 0,
    ) -> Call:
        """Bind a call's arguments, allocate the outputs that it leaves out, and find or make its
        plan; it is the call of GPU number `own` of this process' in a `mesh`."""
        definition = self.definition
        call = definition.bind(args, named)
        call.gpus = 0 if mesh is None else mesh.size
        definition.check_mesh(call.gpus)
        definition.describe(call)
        infos, name = call.infos, definition.name
        missing = (
            definition.results.missing(call) if len(call.args) < len(definition.parameters) else ()
        )
        if out is not None:
            outputs = definition.results.elsewhere(out, call)
            call.results = outputs if missing else None
            infos += [
                launch.describe(array, p, name) for array, p in zip(outputs, missing, strict=True)
            ]
        wanted = (
            target
            if infos and infos[0][0] != "host"
            else (target, os.environ.get(launch.TARGET_VARIABLE))
        )
        kinds = [scalar_kind(value) for value in call.numbers]
        # some decide the grid, or stand where arrays may
        if self._steered or len(kinds) > len(call.scalars):
            kinds += [
                (p, value if p in self._steering else None)
                for p, value in zip(call.names, call.numbers, strict=True)
            ]
        key = (
            *[(i[0], i[1] & 15, i[2], i[3], i[4], i[5], i[6]) for i in infos],
            call.statics,
            *kinds,
            wanted,
            key_of(mesh),
        )
        # a key must be hashable
        plan = self.table.get(key) if target is None or isinstance(target, str) else None
        if plan is None:
            require(f"kernel {name}", locals(), target=_TARGET)
        types: tuple[ArrayType, ...] = ()
        if missing and out is None:
            if plan is None:
                types = definition.results.types(call)
                definition.results.check_signature(call)
                if infos and infos[0].kind != "host":  # before the outputs are allocated there
                    run_target.choose(name, target or definition.options.target, infos, "device")
            call.results = definition.results.allocate(
                call, types if plan is None else plan.types, stream
            )
            call.fresh = len(call.results)
            infos += [
                launch.describe_fresh(array, p, name)
                for array, p in zip(call.results, missing, strict=True)
            ]
        if plan is None:
            plan = self.table.keep(key, self._plan(call, types, target, out, mesh, own))
        call.plan, call.variant = plan, plan.variant
        call.values = [
            scalar_value(value, p, name) for p, value in zip(call.names, call.numbers, strict=True)
        ]
        return call

    def constants(self, named: dict[str, Any]) -> Any:
        """Return the object that stands for the Statics of a call with these named arguments;
        UNKNOWN where no call had them."""
        found = self._get((*named, *map(id, named.values())))
        return (
            self._get(self.definition.arguments.constants(named), UNKNOWN)
            if found is None
            else found[0]
        )

    def keep_constants(self, named: dict[str, Any], statics: Any) -> Any:
        """Return the object that stands for a call's Statics from now on, which has a quicker hash;
        UNKNOWN where an argument is named that is no Static."""
        if self.definition.arguments.constants(named) is None:
            return UNKNOWN
        constants = self.table.get(statics) or self.table.keep(statics, object())
        self.table.keep((*named, *map(id, named.values())), (constants, tuple(named.values())))
        return constants

    def described(
        self,
        args: tuple[Any, ...],
        named: dict[str, Any],
        out: Any = None,
        *,
        whole: bool = False,
        gpus: int = 0,
    ) -> Call:
        """Return a call that is not run, with its variant; an ArrayType may stand for an array.

        `whole`: check also what a run depends on and a compile does not, values of scalars and the
        kernel's `signature`. Raises SpecError where they do not fit.
        """
        definition = self.definition
        call = definition.bind(args, named, own=whole)
        call.gpus = gpus
        definition.check_mesh(gpus)
        definition.check_outputs(call)
        definition.describe(call, types=True)
        launch.check_sizes(call.infos, definition.results.array_names(call), definition.name)
        missing = definition.results.missing(call)
        if missing and out is None and definition.options.out_type is None:
            raise SpecError(
                f"kernel {definition.name}: pass all of {', '.join(definition.parameters)}: it "
                "has no out_type"
            )
        outputs = (
            definition.results.types(call)
            if missing and out is None
            else definition.results.elsewhere(out, call)
        )
        outs = [
            described(value, p, definition.name) for p, value in zip(missing, outputs, strict=True)
        ]
        if out is None and call.infos:  # they would be allocated beside the first array
            outs = [info._replace(kind=call.infos[0].kind) for info in outs]
        call.infos += outs
        if whole:
            definition.results.check_signature(call)
            call.values = [
                scalar_value(value, p, definition.name)
                for p, value in zip(call.names, call.numbers, strict=True)
            ]
        call.variant = self.variant(call)
        return call

    def _plan(
        self,
        call: Call,
        types: tuple[ArrayType, ...],
        target: str | None,
        out: Any,
        mesh: Mesh | None,
        own: int,
    ) -> Plan:
        """Make the plan of a call whose outputs are there; those of `types` were allocated for
        it."""
        timed = log.Timed("launch")
        definition, infos = self.definition, call.infos
        options = definition.options
        definition.check_outputs(call)
        if out is not None:
            definition.results.check(call)
        definition.results.check_signature(call)
        names = definition.results.array_names(call)
        launch.check_sizes(infos, names, definition.name)
        place = launch.same_place(infos, names, definition.name)
        variant, facts = self.variant(call), {}
        if mesh is not None and mesh.gpus is not None:
            facts = self.agree(mesh, call, variant)
            for name, info in zip(names, infos, strict=True):
                mesh.gpus.check_place(own, info, name, definition.name)
        choice = run_target.choose(definition.name, target or options.target, infos, place)
        grid = run_target.ctas(definition, choice, call)
        outputs = [
            (name, info)
            for name, info, array in zip(names, infos, variant.arrays, strict=False)
            if array.output
        ]
        for name, info in outputs:
            launch.check_writable(info, name, definition.name)
        empty = 0 in grid or (bool(outputs) and all(0 in info.shape for _, info in outputs))
        plan = Plan(variant, grid, types, empty, choice.device.ordinal if choice.device else 0)
        if call.gpus:
            plan.semaphores = definition.results.semaphores(call)
        if choice.target == "gpu" and not empty:
            jit.check(definition, call, variant)
            with compiling(mesh, f"kernel {definition.name}", facts):
                plan.prepared = variant.prepared(infos, self.table)
            if isinstance(options.grid, Persistent) and options.grid.ctas is None:
                plan.grid = plan.prepared.fitting(
                    grid, plan.device if place == "host" else infos[0].device
                )
        if timed:
            shapes = ", ".join(
                f"{name} {info.dtype.name}{list(info.shape)}"
                for name, info in zip(names, infos, strict=True)
            )
            timed.say(
                f"{definition.name}: plan for {shapes} on "
                f"{'GPU' if plan.prepared else 'the simulated SM'}, grid {grid}"
            )
        return plan

    def agree(self, mesh: Mesh, call: Call, variant: Variant) -> dict[str, str]:
        """Compare a call with those of the other ranks, where each GPU has a process; returns what
        was compared. SpecError for what differs."""
        names = self.definition.results.array_names(call)
        facts = {
            "numpipe": version("numpipe"),
            "the number of GPUs": str(mesh.size),
            "the kernel's source": str(variant.digest),
        }
        facts |= {
            f"'{name}'": f"{info.dtype.name} {info.shape} with strides {info.strides}"
            for name, info in zip(names, call.infos, strict=True)
        }
        facts |= {
            f"'{name}'": str(kind) for name, kind in zip(call.names, variant.scalars, strict=True)
        }
        facts |= {f"'{name}'": repr(value) for name, value in call.statics}
        facts |= {
            "what TMA addresses": ", ".join(
                array.name for array in variant.arrays if array.tma and array.tma_store
            ),
            "the number of semaphores": str(self.definition.results.semaphores(call)),
        }
        mesh.gpus.agree(facts, f"kernel {self.definition.name}", "calls it")  # type: ignore[union-attr]
        return facts

    def run(
        self,
        call: Call,
        stream: Any,
        seed: Any = None,
        trace: Any = None,
        judge: Judge | None = None,
    ) -> launch.Launch | None:
        """Run a call; returns the launch that it made on arrays of the GPU.

        With a `judge` arrays that overlap are not refused, because the simulated SM tells which of
        their accesses conflict.
        """
        plan, infos, fresh = call.plan, call.infos, call.fresh
        if plan.empty:
            return None
        outputs = max(plan.variant.outputs, fresh)
        if plan.prepared is None:
            self.begin_simulated(call, judge)
            grid = (
                plan.grid
                if judge is None or judge.ctas is None
                else run_target.on(self.definition, judge.ctas)
            )
            plan.variant.simulate((call,), grid, seed, trace, judge)
            return None
        if infos[0].kind == "host":
            launch.run(
                plan.prepared,
                plan.grid,
                infos,
                call.values,
                0 if stream is None else launch.as_stream(stream),
                outputs=outputs,
                fresh=fresh,
                device=plan.device,
            )
            return None
        handle = launch.current_stream(infos) if stream is None else launch.as_stream(stream)
        if launch.COLLECTING.now is not None:
            launch.COLLECTING.now.take(plan.prepared, plan.grid, infos, call.values, handle)
            return None
        launched: launch.Launch = plan.prepared.at(plan.grid, infos, handle)
        foreign = launch.foreign(infos)
        if foreign:
            launch.order(infos, handle, f"kernel {self.definition.name}")
        plan.prepared.run(launched, call.values)
        if foreign:
            launch.settle(infos, handle, fresh)
        return launched

    def begin_simulated(self, call: Call, judge: Judge | None) -> None:
        """Fill the outputs that a simulated call has allocated with NaN; refuse arrays that
        overlap, unless there is a `judge`."""
        plan, infos, fresh = call.plan, call.infos, call.fresh
        for info in infos[len(infos) - fresh :]:
            info.array.reshape(-1).view(np.uint8)[...] = 0xFF  # type: ignore[union-attr]
        if judge is None:
            outputs = max(plan.variant.outputs, fresh)
            launch.check_overlap(
                infos, [a.name for a in plan.variant.arrays], outputs, self.definition.name
            )


def result(calls: Sequence[Call], out: Any, lists: bool = False) -> Any:
    """Return what a call returns that has run, and was passed `out`.

    calls  the call, or those of several GPUs
    lists  whether each output is a list of these GPUs' arrays; else outputs are the first call's
    """
    if calls[0].results is None or out is not None:
        return out
    each = [
        launch.deliver(call.infos[0], call.results) if call.fresh else call.results
        for call in calls
    ]
    found = [list(arrays) for arrays in zip(*each, strict=True)] if lists else each[0]
    return found[0] if len(found) == 1 else tuple(found)
