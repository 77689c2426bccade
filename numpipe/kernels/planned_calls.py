"""Planned calls, and how they run: on GPU arrays, on host arrays, or on the simulated SM."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from .. import launch
from ..arch.dimensions import Dim3
from ..diagnostics.errors import CompileError, SpecError
from . import run_target
from .call_records import Described
from .simulation_checks import Judge, of_gpu
from .variants import Variant


class Plan(NamedTuple):
    """What calls on arrays of the same layouts share; cached in the kernel's table."""

    variant: Variant
    prepared: launch.Prepared | None
    """the machine code, ready to launch; None: the call is simulated, or there is nothing to do"""
    grid: Dim3
    allocated: Sequence[launch.ArrayInfo]
    """descriptions of the outputs that a call allocates"""
    empty: bool
    """whether there is nothing to do: the grid has no CTA, or no output has an element"""
    device: int
    """CUDA ordinal of the GPU for host arrays"""
    foreign: bool
    """whether some array's library does not know the kernel's stream (see `launch.order`)"""
    semaphores: int
    """number of semaphores per GPU; 0: a kernel of one GPU"""


class Planned(NamedTuple):
    """A call that is ready to run.

    For GPU arrays, its parameters are packed into a `launch.Launch` per stream. The kernel's table
    caches these launches, and `launch.repeats` finds them for calls on the same arrays."""

    described: Described
    plan: Plan
    infos: Sequence[launch.ArrayInfo]
    """all arrays, in the order in which the kernel takes them"""
    values: Sequence
    """the run-time scalars, after validation"""
    results: Sequence
    """the missing outputs, passed as ``out=`` or allocated"""
    fresh: int
    """number of trailing arrays that were allocated for this call"""

    @property
    def kernel(self) -> str:
        """The kernel's name."""
        return self.plan.variant.definition.name

    @property
    def outputs(self) -> int:
        """The number of trailing arrays that are outputs."""
        return max(self.plan.variant.outputs, self.fresh)

    def alone(self, stream: int) -> launch.Launch:
        """Return a launch on a stream that is not shared with other callers, with the scalars
        written."""
        assert self.plan.prepared is not None
        return self.plan.prepared.alone(self.plan.grid, self.infos, self.values, stream)

    def run(self, stream: Any, judge: Judge | None = None) -> launch.Launch | None:
        """Run the call. Return its launch if it ran on GPU arrays.

        With a `judge`, overlapping arrays are allowed, because the simulated SM reports which of
        their accesses conflict."""
        _, plan, infos, values, _, fresh = self
        if plan.empty:
            return None
        if plan.prepared is None:
            simulate((self,), judge)
            return None
        if infos[0].kind == "host":
            handle = 0 if stream is None else launch.as_stream(stream)
            launch.run(
                plan.prepared,
                plan.grid,
                infos,
                values,
                handle,
                outputs=self.outputs,
                fresh=fresh,
                device=plan.device,
            )
            return None
        handle = launch.current_stream(infos) if stream is None else launch.as_stream(stream)
        if launch.COLLECTING.now is not None:
            launch.COLLECTING.now.take(plan.prepared, plan.grid, infos, values, handle)
            return None
        if plan.foreign:
            launch.order(infos, handle, f"kernel {self.kernel}")
        launched = plan.prepared(plan.grid, infos, values, handle)
        if plan.foreign:
            launch.settle(infos, handle, fresh)
        return launched


def result(calls: Sequence[Planned], out: Any, lists: bool = False) -> Any:
    """Return what a finished call that was passed `out` returns.

    calls  the call, or the calls of several GPUs
    lists  whether each output is a list of these GPUs' arrays; if False, outputs are the first
           call's
    """
    if out is not None or not calls[0].results:
        return out
    each = [
        launch.deliver(call.infos[0], call.results) if call.fresh else call.results
        for call in calls
    ]
    found = [list(arrays) for arrays in zip(*each, strict=True)] if lists else each[0]
    return found[0] if len(found) == 1 else tuple(found)


def simulate(calls: Sequence[Planned], judge: Judge | None) -> None:
    """Run a call on the simulated SM; for a kernel of several GPUs, run the calls of all GPUs
    together.

    Allocated outputs are initialized to NaN. Overlapping arrays are refused unless there is a
    `judge`."""
    plan = calls[0].plan
    variant, definition = plan.variant, plan.variant.definition
    lifted = variant.lifted  # first, because a loaded kernel raises here, without the imports below

    from ..compile.check import error_lines
    from ..language.pipeline.pipelines import KEPT
    from .simulate import simulate

    grid, unit = plan.grid, variant.unit(simulated=True)
    check = launch.check_overlap if judge is None else launch.check_elements
    judge = judge or Judge()
    if judge.ctas is not None:
        grid = run_target.on(definition, judge.ctas)
    arrays = []
    for call in calls:
        own = [info.array for info in call.infos]
        for array in own[len(own) - call.fresh :]:
            array.reshape(-1).view(np.uint8)[...] = 0xFF  # type: ignore[union-attr]
        check(call.infos, [array.name for array in variant.arrays], call.outputs, definition.name)
        if variant.workspace is not None:
            own.append(np.zeros(variant.workspace(grid, call.infos), np.float32))
        elif variant.gpus:
            own.append(np.zeros(plan.semaphores, np.int32))
        arrays.append(own)

    def ended(memory: Any) -> None:
        fresh: dict[str, Any] = {}
        passed: dict[str, Any] = {}
        for gpu, call in enumerate(calls):
            inputs = len(call.infos) - call.fresh
            for number, (array, info) in enumerate(zip(variant.arrays, call.infos, strict=False)):
                if number >= inputs or array.name in definition.stores["all"]:
                    name = of_gpu(array.name, gpu, variant.gpus)
                    (passed if number < inputs else fresh)[name] = info.array
        judge.end(memory, fresh, passed)
        for error in (*judge.unwritten.values(), *judge.kept.values()):
            error_lines.simulated(error, unit, lifted)

    try:
        simulate(
            unit,
            lifted.simulated,
            arrays,  # type: ignore[arg-type]
            [variant.typed(call.values) for call in calls],
            grid,
            seed=judge.seed,
            trace=judge.trace,
            fresh=calls[0].fresh,
            ended=ended,
            limit=judge.limit,
            at_once=definition.options.attributes.cooperative,
        )
    except Exception as error:
        if "check_kept" in lifted.text and isinstance(error, SpecError | CompileError):
            # the memory role skips loops, and only a compile knows the values of variables after
            # them
            try:
                variant.check_compiles()
            except CompileError as refused:
                if KEPT in str(refused):
                    raise
        explained = error_lines.simulated(error, unit, lifted)
        if explained is error:
            raise
        raise explained from error
    variant.check_compiles()
