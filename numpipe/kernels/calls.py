"""The calls of a kernel: bind, describe, plan and run them.

`call_records` defines the records passed between these steps. A repeated call on the same arrays
skips them: `launch.repeats` finds its launch.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any

from .. import launch
from ..diagnostics import log
from ..diagnostics.argument_checks import NONE, require, word
from ..launch.current_gpu import TARGET_NAMES
from ..launch.mesh import Mesh, compiling, key_of
from ..launch.peer_access import Together
from ..launch.repeats import Repeats
from ..launch.table import Table
from ..plan.specs import Persistent
from . import jit, run_target
from .arguments import scalar_kind, scalar_values
from .call_records import Described
from .definition import Definition
from .planned_calls import Plan, Planned
from .variants import Key, Variant

_TARGET = NONE | word(*TARGET_NAMES)
UNKNOWN = object()
"""marks Statics for which no call is cached"""


class Calls:
    """The calls of one kernel, and its variants."""

    def __init__(
        self, definition: Definition, table: Table, make: Callable[..., Variant] = Variant
    ) -> None:
        """`make` creates a variant from the definition, a key and the reasons why TMA cannot
        address arrays."""
        self.definition, self.table, self._get, self._make = definition, table, table.get, make
        self.repeats = Repeats(table)
        self.variants: dict[Key, Variant] = {}
        self._steering = definition.options.takes - set(definition.statics)
        """parameters that `grid`, `out_type` and `semaphores` depend on"""
        self._steered = not self._steering.isdisjoint(definition.arguments.scalars)

    def variant(self, call: Described) -> Variant:
        """Return the variant that a call needs."""
        key, obstacles = self.definition.key(call)
        variant = self.variants.get(key) or self.variants.setdefault(
            key, self._make(self.definition, key, obstacles)
        )
        variant.obstacles = obstacles  # errors name the arrays of the latest call
        return variant

    def resolve(
        self,
        args: tuple,
        named: dict[str, Any],
        out: Any,
        target: str | None,
        stream: Any,
        mesh: Mesh | None = None,
        own: int = 0,
    ) -> Planned:
        """Bind, describe and plan a call. In a `mesh`, it is the call on this process's GPU number
        `own`."""
        definition = self.definition
        bound = definition.bind(args, named)
        return self.plan(definition.describe(bound, out, target, mesh, own), stream)

    def plan(self, call: Described, stream: Any = None) -> Planned:
        """Find or create the plan of a call, and allocate the outputs that the call leaves out, for
        a launch on `stream`."""
        definition, name, target = self.definition, self.definition.name, call.target
        arrays, numbers, missing = call.arrays, call.numbers, call.missing
        infos = [*arrays.values()]
        wanted = (
            target
            if infos and infos[0][0] != "host"
            else (target, os.environ.get(launch.TARGET_VARIABLE))
        )
        kinds = [scalar_kind(value) for value in numbers.values()]
        # scalars may decide the grid, or be passed where arrays may be
        if self._steered or len(kinds) > len(definition.arguments.scalars):
            kinds += [(p, value if p in self._steering else None) for p, value in numbers.items()]
        key = (
            *[(i[0], i[1] & 15, i[2], i[3], i[4], i[5], i[6]) for i in infos],
            call.bound.statics,
            *kinds,
            wanted,
            key_of(call.mesh),
        )
        # an invalid target may not be hashable
        plan = self.table.get(key) if target is None or isinstance(target, str) else None
        if plan is None:
            plan = self.table.keep(key, self._plan(call))
        results: Sequence = call.results or ()
        fresh = 0
        if missing and not results:
            handle = None if stream is None else launch.as_stream(stream)
            results = [
                launch.output_like_kind(infos[0], output, handle) for output in plan.allocated
            ]
            fresh = len(results)
            infos += [
                launch.describe_fresh(array, p, name)
                for array, p in zip(results, missing, strict=True)
            ]
        return Planned(call, plan, infos, scalar_values(numbers, name), results, fresh)

    def constants(self, named: dict[str, Any]) -> Any:
        """Return the cached object that represents the Statics of a call with these named
        arguments, or UNKNOWN if none is cached."""
        found = self._get((*named, *map(id, named.values())))
        return (
            self._get(self.definition.arguments.constants(named), UNKNOWN)
            if found is None
            else found[0]
        )

    def keep_constants(self, named: dict[str, Any], statics: Any) -> Any:
        """Return a fast-hashing object that represents a call's Statics from now on, or UNKNOWN if
        a named argument is not a Static."""
        if self.definition.arguments.constants(named) is None:
            return UNKNOWN
        constants = self.table.get(statics) or self.table.keep(statics, object())
        self.table.keep((*named, *map(id, named.values())), (constants, tuple(named.values())))
        return constants

    def learn(
        self,
        calls: Sequence[Planned],
        named: dict[str, Any],
        launched: launch.Launch | Together,
        mesh: Mesh | None = None,
    ) -> None:
        """Cache the launch of a call, or the launches of a call in a `mesh`, for reuse. Named
        arguments are part of the cache key if all are Statics."""
        first = calls[0].described
        constants = self.keep_constants(named, first.bound.statics) if named else None
        if constants is UNKNOWN:
            return
        infos = [call.infos for call in calls]
        count = len(infos[0]) - len(first.missing)
        each = [
            [
                *[*call.described.bound.arguments.values()][:count],
                *[info if info.owner is None else info.owner for info in call.infos[count:]],
            ]
            for call in calls
        ]
        if mesh is not None:
            constants = mesh, constants
        lists = mesh is not None and mesh.rank is None
        passed = list(zip(*each, strict=True)) if lists else each[0]
        self.repeats.learn(
            constants, passed[:count], passed[count:], infos, calls[0].fresh, launched
        )

    def described(
        self,
        args: tuple,
        named: dict[str, Any],
        out: Any = None,
        *,
        whole: bool = False,
        mesh: Mesh | None = None,
    ) -> Described:
        """Describe a call without running it, including the outputs that it leaves out. An
        ArrayType can be passed in place of an array.

        If `whole`, also check what only a run depends on: values of scalars and the kernel's
        `signature`. Raises SpecError if they do not fit."""
        definition, results = self.definition, self.definition.results
        bound = definition.bind(args, named)
        call = definition.describe(bound, out, mesh=mesh, types=True, sizes=whole)
        definition.check_outputs(call.numbers)
        launch.check_sizes(call.arrays, definition.name)
        if call.missing and out is None:
            call = results.complete(call, runs=False)
        if whole:
            results.check_signature(call.arrays)
            scalar_values(call.numbers, definition.name)
        return call

    def _plan(self, call: Described) -> Plan:
        """Create the plan of a call, before its outputs are allocated."""
        timed = log.Timed()
        definition, target, mesh = self.definition, call.target, call.mesh
        options, results = definition.options, definition.results
        require(f"kernel {definition.name}", locals(), target=_TARGET)
        missing = call.missing if call.results is None else ()
        definition.check_outputs(call.numbers)
        if missing:
            call = results.complete(call, runs=True)
        if call.results is not None:
            results.check(call)
        results.check_signature(call.arrays)
        arrays, infos = call.arrays, [*call.arrays.values()]
        launch.check_sizes(arrays, definition.name)
        place = launch.same_place(infos, [*arrays], definition.name)
        variant, facts = self.variant(call), {}
        if mesh is not None and mesh.gpus is not None:
            facts = self.agree(mesh, call, variant)
            for name, info in arrays.items():
                mesh.gpus.check_place(call.own, info, name, definition.name)
        choice = run_target.choose(
            f"kernel {definition.name}", target or options.target, infos, place
        )
        grid = run_target.ctas(definition, choice, call)
        outputs = [array.name for array in variant.arrays if array.output and array.name in arrays]
        for name in outputs:
            launch.check_writable(arrays[name], name, definition.name)
        empty = 0 in grid or (bool(outputs) and all(0 in arrays[name].shape for name in outputs))
        device = choice.device.ordinal if choice.device else 0
        semaphores = results.semaphores(call) if call.gpus else 0
        prepared = None
        if choice.target == "gpu" and not empty:
            jit.check(definition, call, variant)
            with compiling(mesh, f"kernel {definition.name}", facts):
                prepared = variant.prepared(infos, self.table)
            if isinstance(options.grid, Persistent) and options.grid.ctas is None:
                grid = prepared.fitting(grid, device if place == "host" else infos[0].device)
        if timed:
            shapes = ", ".join(
                f"{name} {info.dtype.name}{list(info.shape)}" for name, info in arrays.items()
            )
            timed.say(
                f"{definition.name}: plan for {shapes} on "
                f"{'GPU' if prepared else 'the simulated SM'}, grid {grid}"
            )
        return Plan(
            variant,
            prepared,
            grid,
            [arrays[name] for name in missing],
            empty,
            device,
            launch.foreign(infos),
            semaphores,
        )

    def agree(self, mesh: Mesh, call: Described, variant: Variant) -> dict[str, str]:
        """Compare a call with the calls of the other ranks, if each GPU has its own process, and
        return what was compared. Raises SpecError for differences."""
        facts = {
            "numpipe": version("numpipe"),
            "the number of GPUs": str(mesh.size),
            "the kernel's source": str(variant.digest),
        }
        facts |= {
            f"'{name}'": f"{info.dtype.name} {info.shape} with strides {info.strides}"
            for name, info in call.arrays.items()
        }
        facts |= {
            f"'{name}'": str(kind) for name, kind in zip(call.numbers, variant.scalars, strict=True)
        }
        facts |= {f"'{name}'": repr(value) for name, value in call.bound.statics}
        facts |= {
            "what TMA addresses": ", ".join(
                array.name for array in variant.arrays if array.tma and array.tma_store
            ),
            "the number of semaphores": str(self.definition.results.semaphores(call)),
        }
        mesh.gpus.agree(facts, f"kernel {self.definition.name}", "calls it")  # type: ignore[union-attr]
        return facts
