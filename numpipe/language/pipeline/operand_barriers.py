"""Barriers that a pipeline passes to its body, to wait for and release each operand of a step
separately.

::

    pipe = numpipe.pipeline(…, manual_produced_barriers=True, manual_consumed_barriers=True)
    for (k,), (a_tile, b_tile), (a_ready, b_ready), (a_consumed, b_consumed) in pipe(a, b):
        …

    def body(indices, a_tile, b_tile, a_ready, b_ready, a_consumed, b_consumed, acc):
        numpipe.barrier_wait(a_ready)                    # b may still be on its way
        numpipe.barrier_wait(b_ready)
        acc = numpipe.wgmma_wait(numpipe.wgmma(acc, a_tile, b_tile.T), 0)
        numpipe.barrier_arrive(a_consumed)               # the memory role may load the next a
        numpipe.barrier_arrive(b_consumed)
        return acc

    numpipe.emit_pipeline_warp_specialized(body, …, manual_produced_barriers=True,
    manual_consumed_barriers=True)(a, b)

If specs are nested, the barriers come in the same tuples: for a NamedTuple w of specs,
``barrier_wait(w_ready.scales)``.

A barrier is a value that names a ring, an operand and a step. `ring` implements waiting and
releasing; this file defines who may do it. The memory role runs a body only for the pipelines in
it, and there both operations do nothing.

The same operations take the barriers that a kernel allocates itself (`numpipe.Barrier`); `phases`
implements them for these.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from ...arch.dimensions import Ints, Names
from ...core.op import called, constant, helper, op
from ...diagnostics.argument_checks import FLAG
from ...diagnostics.errors import CompileError, SpecError
from ...plan.nested_tuples import Tree
from ...plan.protocol import BARRIERS
from ..memory import phases
from ..memory.scratch import BarrierRef, one_barrier
from .ring import Ring, await_ready, note, release_delayed, step_of
from .steps import Loop, LoopFacts, Place

__all__ = ["barrier_arrive", "barrier_test", "barrier_wait"]

PASSED = {row.option: row for row in BARRIERS.values() if row.option}
MANUAL = tuple(PASSED)
"""Options of a pipeline."""
RENAMED = {"manual_ready_barriers": "manual_produced_barriers"}
"""The names of options in Pallas before JAX 0.12, which are accepted too."""


@dataclass(eq=False)
class StepBarrier:
    """The ready or consumed barrier of one operand in a step, or its Numba type."""

    ring: Any
    kind: str
    part: int

    @property
    def what(self) -> str:
        return f"a {self.kind} barrier"

    def no_value(self) -> CompileError:
        """Return the error for a barrier that is used as a number."""
        return CompileError(f"{self.what} has no value; fix: pass it to {use(self.kind)}")


class Barrier(StepBarrier):
    """A barrier of step k of the loop, counted from 0, on the simulated SM."""

    def __init__(self, ring: Ring, kind: str, part: int, k: Any) -> None:
        super().__init__(ring, kind, part)
        self.k = k

    def _value(self, *_: Any) -> NoReturn:
        raise self.no_value()

    __bool__ = __int__ = __index__ = __float__ = _value


def kinds(loop: LoopFacts) -> list[tuple[str, Place]]:
    """Return the kind of each barrier that a body receives, and the position of its operand."""
    return [
        (kind, place)
        for kind in loop.manual
        for place in loop.places
        if place is not None and not place.written
    ]


@op
def barriers_of(loop: Loop, k: Any) -> tuple[Barrier, ...]:
    """Return the barriers of step k that the body receives: one ready, then one consumed barrier
    for each operand."""
    if loop.manual and loop.np.computes:
        for ring in loop.rings:  # a body that omits its waits is nevertheless in this step
            note(ring, "begin", step_of(ring, k, 0), 0)
    return tuple(
        Barrier(loop.rings[place.ring], kind, place.operand, k) for kind, place in kinds(loop)
    )


def shape_of(tree: Tree, loaded: Collection[int]) -> Tree:
    """Return the shape of a step's barriers of one kind: the shape of the specs, without the leaves
    that are not loaded. A NamedTuple with such leaves becomes a tuple."""
    numbers = itertools.count()

    def kept(part: Tree) -> Tree | None:
        if part.parts is None:
            return part if next(numbers) in loaded else None
        parts = tuple(of for of in map(kept, part.parts) if of is not None)
        return Tree(parts, part.kind if len(parts) == len(part.parts) else tuple) if parts else None

    return kept(tree) or Tree(())


def by_kind(loop: LoopFacts, barriers: Sequence, make: Callable[[Tree, list], Any]) -> list:
    """Return the barriers in groups, one for each kind that the pipeline's options request, each in
    the shape of its specs."""
    left = iter(barriers)
    return [loop.barrier_tree.build(left, make) for _ in loop.manual]


# ---- what both executions check
def check_manual(where: str, single: bool, *options: Any) -> Names:
    """Return the kinds of barriers that a pipeline's options, in the order of MANUAL, request.

    Raises SpecError for an option that is not a bool, and for barriers of a `single` pipeline,
    whose warpgroup waits for the step itself.
    """
    kinds = []
    for row, option in zip(PASSED.values(), options, strict=True):
        value = constant(where, row.option, option, FLAG)
        if value and single:
            raise SpecError(
                f"{where}: {row.option}=True in a single-stream pipeline, whose warpgroup loads "
                "all tiles of a step itself; fix: leave it out, or use a memory role, "
                "warp_specialized=True"
            )
        kinds += [row.name] * value
    return tuple(kinds)


def check_groups(pipe: Any, unpacked: Ints) -> None:
    """Raise SpecError unless a loop unpacks all barriers of a step.

    `unpacked`: the number of names in each group after the tiles, -1 where unknown.
    """
    where, manual = pipe.where, pipe.manual
    if len(unpacked) != len(manual):
        groups = ", ".join(["(indices)", "(tiles)", *(f"({kind} barriers)" for kind in manual)])
        raise SpecError(
            f"{where}: the loop unpacks {2 + len(unpacked)} groups, but each step has "
            f"{2 + len(manual)}; fix: write `for {groups} in pipe(arrays):`; barriers come with "
            f"{' and '.join(f'{name}=True' for name in MANUAL)}"
        )
    loaded = len(pipe.barrier_tree.parts or ())
    for kind, count in zip(manual, unpacked, strict=True):
        if count not in (-1, loaded):
            raise SpecError(
                f"{where}: the loop unpacks {count} {kind} barriers, but the pipeline has "
                f"{loaded}: one for each array that it loads, in the tuples of in_specs"
            )


def use(kind: str) -> str:
    return f"numpipe.{BARRIERS[kind].use}(…)"


def name_of(given: Any) -> str:
    """Return the name that messages use for an argument, given a value or a Numba type."""
    return given.what if isinstance(given, StepBarrier) else called(given)


def check_use(operation: str, kind: str, barrier: Any) -> bool:
    """Return whether the kernel allocated a barrier, given the barrier or its Numba type. Raises
    SpecError for anything else that is not a pipeline's barrier of this kind."""
    own = getattr(barrier, "operand", "") == "barrier"
    if own:
        one_barrier(operation, barrier.shape)
    elif not isinstance(barrier, StepBarrier) or barrier.kind != kind:
        fix = (
            f"; that one is for {use(barrier.kind)}"
            if isinstance(barrier, StepBarrier)
            else f", which the body is given with {BARRIERS[kind].option}=True"
        )
        raise SpecError(f"{operation} takes a {kind} barrier{fix}, got {name_of(barrier)}")
    return own


# ---- the operations
def apply(
    operation: str,
    kind: str,
    barrier: Any,
    own: Callable[[BarrierRef], None],
    function: Callable[..., None],
) -> None:
    """Call, in the compute role, ``own(barrier)`` for a barrier that the kernel allocated, else
    ``function(ring, part, k)``."""
    if check_use(operation, kind, barrier):
        if barrier.np.computes:
            own(barrier)
    elif barrier.ring.np.computes:
        function(barrier.ring, barrier.part, barrier.k)


@helper
def await_step(ring, part, k):  # type: ignore[no-untyped-def]
    """Wait for the part of the ring that the pipeline's step k uses."""
    await_ready(ring, part, step_of(ring, k, 0))


@op
def barrier_wait(barrier: Any) -> None:
    """Wait until the tile of a ready barrier has landed; then it may be used.

    In pipelines with ``manual_produced_barriers=True`` (`pipeline`,
    `emit_pipeline_warp_specialized`), all lanes of every compute warpgroup that uses the tile call
    it. Waiting again for the same tile costs a test and has no effect. Using a tile without waiting
    for it is a race, which the simulator reports (PTX ISA, "mbarrier.try_wait").

    With a `numpipe.Barrier` it waits for the next phase: the n-th call waits for phase n (from 0).
    Then this warpgroup sees what the arriving warpgroups did before, and the data of copies. Some
    warpgroup must wait for each phase before the next one can complete, and a warpgroup that waits
    at all must wait for every phase; the simulator reports violations.

    Raises SpecError for anything but a ready barrier, or one barrier of a `numpipe.Barrier`.
    """
    apply("barrier_wait", "ready", barrier, phases.wait, await_step)


@op
def barrier_arrive(barrier: Any, predicate: Any = True) -> None:
    """Release the tile of a consumed barrier: this warpgroup no longer reads it, and the memory
    role may overwrite it.

    In pipelines with ``manual_consumed_barriers=True`` (`pipeline`,
    `emit_pipeline_warp_specialized`), every compute warpgroup arrives exactly once on each barrier
    of a step. Products that read the tile must have been waited for (`wgmma_wait`). Arriving too
    early is a race, not arriving is a deadlock, and arriving twice releases a tile that is still
    being read: the simulator reports all three.

    With ``delay_release=d`` the barrier given in a step belongs to the tile d steps before, after a
    wait that leaves the products of d steps in flight. In the first d steps there is no such tile:
    arriving there does nothing, and may be omitted. The ring releases the tiles of the last d steps
    when the loop ends.

    The warpgroup waits until the tile has landed, unless its source shows that it did, and lane 0
    of each of its four warps arrives: wgmma_wait waits per warp, so one lane's arrival would not
    cover the other warps (PTX ISA, "mbarrier.arrive").

    With a `numpipe.Barrier` it is this warpgroup's arrival in the current phase, one of
    `num_arrivals`. Warpgroups that wait for the phase see what this one wrote before (call
    `commit_smem` first to make it visible to the TMA and wgmma). The previous phase must be over:
    this warpgroup has waited for it, or has been signaled by one that has.

    ``barrier_arrive(barrier, predicate=p)`` is ``if p: barrier_arrive(barrier)``.

    Raises SpecError for anything but a consumed barrier, or one barrier of a `numpipe.Barrier`.
    """
    apply("barrier_arrive", "consumed", barrier, phases.arrive, release_delayed)


@op
def barrier_test(barrier: Any) -> Any:
    """Return whether the phase of a `numpipe.Barrier` that this warpgroup waits for next is
    complete; never blocks.

    All lanes of the warpgroup get the same answer, so it may control an `if` or a `while`. If it is
    True, the same data may be read as after a wait. It does not count as a wait, however: the wait
    for the phase must follow, and returns at once. The memory role has no answer, so loads cannot
    depend on it (PTX ISA, "mbarrier.test_wait").

    Raises SpecError for anything but one barrier of a `numpipe.Barrier`.
    """
    check_tested(barrier)
    return phases.test(barrier)


def check_tested(barrier: Any) -> None:
    if getattr(barrier, "operand", "") != "barrier":
        raise SpecError(
            "barrier_test expects one barrier of a numpipe.Barrier(…) that the kernel allocates, "
            f"got {name_of(barrier)}"
        )
    one_barrier("barrier_test", barrier.shape)
