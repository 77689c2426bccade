"""The protocol of load rings: slots in shared memory that the memory role fills, and that compute
warpgroups read and release.

A *load ring* has S slots of shared memory, two mbarriers per slot, and one int32 per warpgroup: the
step counter. Step s uses slot ``s % S``, and is that slot's phase number ``s // S``::

                 fill                                 await_ready … release
    memory   wait consumed[slot], phase - 1       compute   wait ready[slot], phase
    role     expect bytes, arrive ready[slot]     role      read the tiles
             TMA loads -> complete ready[slot]              arrive consumed[slot], each warp

    ready[slot]     1 arrival and the tiles' bytes complete a phase: the tiles have landed
    consumed[slot]  4 arrivals per compute warpgroup complete a phase: the slot may be filled again

Each of a warpgroup's four warps arrives, because `wgmma.wait_group` waits for one warp only: one
lane's arrival would not show that the other three warps have finished. `protocol.BARRIERS` has
these numbers, and `protocol.MOMENTS` the events that are recorded.

If a body waits for its operands separately, or releases them separately, each operand has its own
ready or consumed barrier (`RingPlan.manual`), and the slot is filled in *parts*, one per operand
(`RingPlan.parts`). The body and the ring wait and release with the same functions, `await_ready`
and `release`. The ring stays correct if the body omits a wait: before a part is released it is
waited for, so no slot is filled again while an old copy is in flight.

The steps of a ring are the steps of its pipeline, unless its blocks depend only on the first few
dimensions of the grid. Then a step of the ring is a block: it is filled when one of these indices
changes, and released after the last pipeline step that uses it (`begins`, `ends`, `step_of`).

The counter continues over tiles and pipelines. A ring need not be empty between them (and is not,
unless `CompilerParams.drain` is set); phase numbers tell a waiter which use of the slot it waits
for. The GPU waits for the parity of the number; the simulator checks that the number is the one
reached.

In a cluster, CTAs may fill slots for each other: each loads its share of a block, and a copy of it
lands in all of them. A slot is then free when the warpgroups of all these CTAs have released it,
and ready when all shares have landed; each CTA announces the bytes for its own barrier::

    CTA 0   wait consumed[s]; expect the whole block on ready[s];
            multicast the first half to CTAs 0 and 1
    CTA 1   wait consumed[s]; expect the whole block on ready[s];
            multicast the second half to CTAs 0 and 1
    both    wait ready[s]; read; lane i of each warp arrives on consumed[s] of the i-th of the two

A share may land before its bytes are announced, but the phase cannot end without the arrival of
that announcement. A share also shows that its sender's slot had been released, so a warpgroup that
has waited for a step's shares may release to all their senders. All threads of the cluster
synchronize at the start of the kernel, and at its end a CTA waits for the last releases
(`cluster_exit`), so a CTA exists as long as others arrive at it or copy to it. Arrivals at other
CTAs have no scope: `.release.cluster` would be a fence of the whole GPU, and halve the speed of a
loop (PTX ISA, "cp.async.bulk.tensor": .multicast::cluster; "mbarrier.arrive": .shared::cluster).

The functions below run unchanged in the simulator and on the GPU. Tiles that leave a kernel use the
store ring (`store_ring`) or the slots of outputs (`pipeline_outputs`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import index
from typing import Any

import numpy as np

from ...arch.dimensions import Ints
from ...core.arith import is_read
from ...core.machine import current, failure
from ...core.op import formula, helper, op
from ...diagnostics.errors import PipelineDeadlock, PipelineRace, SimulationError
from ...intrinsics import mbarrier
from ...plan.block import wrong_indices
from ...plan.context import Context, StoringFacts, counter, set_counter
from ...plan.plans import RingPlan
from ...plan.protocol import MOMENTS
from ...plan.unit import Unit
from ..tiles import products_in_flight
from ..tiles.refs import GmemRef, SmemTile
from ..tiles.tma import Copy
from .bounds import bounded


class RingFacts(StoringFacts):
    """Compile-time facts that a `Ring` and its Numba type have in common.

    awaits, releases  whether the ring itself waits for a step's tiles, and releases slots while the
                      loop runs; otherwise the body does
    unreleased        the oldest step that the end of a loop must release, counted back from the
                      last step; -1 if none
    keeps             whether the end of a loop must release any
    """

    plan: RingPlan

    @property
    def awaits(self) -> bool:
        return "ready" not in self.plan.manual

    @property
    def releases(self) -> bool:
        return "consumed" not in self.plan.manual

    @property
    def unreleased(self) -> int:
        return self.plan.delay - ("consumed" in self.plan.manual)

    @property
    def keeps(self) -> bool:
        return self.unreleased >= 0


class Ring(RingFacts):
    """A load ring in one pipeline loop of a warpgroup, on the simulated SM.

    plan, refs, index_maps  its place in shared memory; the arrays that it loads, and which blocks
    grid, steps             the loop's grid; the number of steps that this warpgroup runs
    first                   the ring's step counter when the loop begins
    waited                  the parts that the body is certain to wait for in every step before it
                            releases them
    slots, delay            from the plan: the number of slots; the number of steps that a slot is
                            kept after use
    private                 whether every compute warpgroup has its own ring
    writers                 threads of the warpgroups that together write an output's tile
    released                (part, step) of each release by the body of this loop
    """

    def __init__(
        self,
        np_: Context,
        plan: RingPlan,
        refs: tuple[GmemRef, ...],
        index_maps: tuple,
        grid: tuple,
        steps: Any,
        waited: Ints = (),
    ) -> None:
        self.np = np_
        self.plan = plan
        self.refs = refs
        self.index_maps = index_maps
        self.grid = grid
        self.steps = steps
        self.waited = waited
        self.slots = plan.slots
        self.delay = plan.delay
        self.private = bool(plan.private)
        self.writers = 128 * np_.unit.compute_wgs
        self.first = counter(np_, plan.index)
        self.released: set[tuple[int, int]] = set()
        machine = current()
        for address, count, name in np_.unit.barriers(plan):
            machine.mbar_init_at_entry(address, count, name)


# ---- what a ring is made of (the plan's constants; slots and phases from the step) ---------------
@formula
def slot_of(ring: Ring, step: Any) -> Any:
    return step % ring.plan.slots


@formula
def phase_of(ring: Ring, step: Any) -> Any:
    """Return the phase number of a step on its slot's barriers: ``step // S``."""
    return step // ring.plan.slots


@formula
def stage_of(ring: Ring, slot: Any) -> Any:
    """Return the address of a slot."""
    return ring.np.part_of(ring.plan.memory) + slot * ring.plan.stage_stride


@formula
def barrier(ring: Ring, kind: str, slot: Any, part: int) -> Any:
    """Return the address of a part's barrier in a slot; `kind` is one of `protocol.BARRIERS`."""
    return ring.np.part_of(ring.plan.header, ring.plan.barrier_offset(kind, part)) + slot * 8


@op
def stage_bytes(ring: Ring, part: int) -> int:
    """Return the number of bytes that ready[slot] expects: the total of the operands that share a
    part's ready barrier."""
    return ring.plan.expected(part)


@op
def announces(ring: Ring, part: int, loaded: bool) -> bool:
    """Return whether a ready barrier's bytes are announced before a part is loaded or, with
    `loaded`, after its loads.

    A barrier of a single part announces before. If parts share a barrier, it announces after the
    last one: the arrival must show the readers that all parts had been released, which the memory
    role knows only then. Bytes may land before they are announced, because the phase cannot end
    without that arrival (PTX ISA, "mbarrier": tx-count).
    """
    return ring.plan.announces(part, bool(loaded))


@op
def begins_consumed(ring: Ring, part: int) -> bool:
    """Return whether a part is the first of the parts that share its consumed barrier."""
    return part in ring.plan.parts_of("consumed")


@op
def each(ring: Ring, parts: str, part: int, function: Any, *args: Any) -> None:
    """Call ``function(ring, part, *args)`` for some parts of a slot; each part is a compile-time
    constant (`RingPlan.chosen`)."""
    for number in ring.plan.chosen(parts, part, ring.waited):
        function(ring, number, *args)


@op
def note_released(ring: Ring, part: int, step: Any) -> None:
    """Record a release by the body. The simulator raises PipelineRace for a second release of a
    part in a step; on the GPU this does nothing."""
    if (part, int(step)) in ring.released:
        raise release_misused(ring, part, step, True)
    ring.released.add((part, int(step)))


@op
def check_released(ring: Ring, k: Any) -> None:
    """In the simulator, raise PipelineDeadlock if a body did not release a part in step k - 1. On
    the GPU, which would wait forever, this does nothing."""
    plan = ring.plan
    used = int(k) - 1 - plan.delay
    if "consumed" not in plan.manual or used < 0 or not ends(ring, used) or not current().moves:
        return
    step = step_of(ring, used, 0)
    for part in plan.parts_of("consumed"):
        if (part, int(step)) not in ring.released:
            raise release_misused(ring, part, step, False)


def release_misused(ring: Ring, part: int, step: Any, again: bool) -> SimulationError:
    """Return the error for a duplicate release (`again`), or for a missing one."""
    plan, machine, unit, slot = ring.plan, current(), ring.np.unit, int(step) % ring.plan.slots
    delayed = f", {plan.delay} later for delay_release={plan.delay}" if plan.delay else ""
    did, harm = (
        ("arrives twice", "the tile would be loaded over while another warpgroup reads it")
        if again
        else ("did not arrive", "the memory role would wait forever")
    )
    barrier = f"consumed[{slot}]{unit.whose(plan, part, 'consumed')}"
    fix = (
        "with manual_consumed_barriers every compute warpgroup arrives once on each consumed "
        f"barrier of a step{delayed}"
    )
    return failure(
        PipelineRace if again else PipelineDeadlock,
        "too-many-arrivals" if again else "too-few-arrivals",
        f"kernel {unit.kernel}: warpgroup {machine.warpgroup} ({machine.role}) of CTA "
        f"{machine.cta} {did} on {barrier} for step {int(step)}: {harm}; {fix}",
        fix,
        f"{did} on {barrier}",
        ring=plan.name,
        slot=slot,
        step=int(step),
        barrier=barrier,
        phase=int(step) // plan.slots,
    )


@op
def set_steps_done(ring: Ring, steps: Any) -> None:
    """Store the step counter when a pipeline loop of `steps` steps ends."""
    set_counter(ring.np, ring.plan.index, ring.first + blocks_in(ring, steps))


# ---- steps of the pipeline and steps of the ring -------------------------------------------------
@formula
def begins(ring: Ring, k: Any) -> bool:
    """Return whether the pipeline's step k is the first that uses its block."""
    return own_step(ring, k)[1]  # type: ignore[no-any-return]


@formula
def ends(ring: Ring, k: Any) -> bool:
    """Return whether step k of the pipeline is the last step in which this warpgroup uses the
    step's block."""
    following = k + 1
    return (following == ring.steps) | own_step(ring, following)[1]  # type: ignore[no-any-return]


@formula
def step_of(ring: Ring, k: Any, back: Any) -> Any:
    """Return the ring's step that the pipeline's step k - back belongs to."""
    if ring.plan.dims is None:
        return ring.first + k - back  # a sum that the loop computes anyway
    return ring.first + own_step(ring, k - back)[0]


@op
def blocks_of(ring: Ring) -> Any:
    """Return the number of blocks that this warpgroup's loop uses."""
    return blocks_in(ring, ring.steps)


def own_step(ring: Any, k: Any) -> tuple[Any, Any]:
    """Return (the number, in this loop, of the block that the pipeline's step k uses, whether the
    block begins in this step)."""
    dims = ring.plan.dims
    if dims is None:
        return k, True
    if dims == 0:
        return 0, k == 0
    begins: Any = True
    for size in reversed(ring.grid[dims:]):
        begins = begins & (k % size == 0)
        k = k // size
    return k, begins


def blocks_in(ring: Ring, steps: Any) -> Any:
    """Return the number of the ring's steps in the first `steps` steps of the pipeline."""
    return np.int32(own_step(ring, steps - 1)[0] + 1 if steps > 0 else 0)


@op
def note(ring: Ring, event: str, step: Any, part: int) -> None:
    """Record an event of a step: in the trace and reports of the simulator, and in the profile on
    the GPU if it is enabled.

    Only the GPU records events that begin or end an interval (`protocol.Moment`); the simulated SM
    derives the intervals from its own events.
    """
    plan = ring.plan
    if not MOMENTS[event].noted:
        return
    which = {"operand": part} if plan.one_by_one(event) else {}
    current().note(event, ring=plan.name, slot=int(step) % plan.slots, step=int(step), **which)


def start_of(ring: Ring, number: int, indices: Any) -> list[int]:
    """Return the start of an operand's block in its array, in elements, from its index map."""
    block = ring.plan.blocks[number]
    index_map = ring.index_maps[number]
    what = index_map_of(ring.np.unit, ring.plan, number)
    block_indices = (0,) * block.rank if index_map is None else index_map(*indices)
    try:
        if not isinstance(block_indices, tuple):
            raise TypeError
        start = [
            index(part) * scale for part, scale in zip(block_indices, block.scales, strict=True)
        ]
    except (TypeError, ValueError):
        raise wrong_indices(what, block.rank, block_indices) from None
    start = (
        start
        if index_map is None
        else bounded(
            block,
            start,
            ring.refs[number].array.shape,
            what,
            ring.plan.written,
            [axis for axis, part in enumerate(block_indices) if is_read(part)],
        )
    )
    if block.elements:
        block.check_start(start[block.contiguous], what)
    return start


@op
def copy_in(ring: Ring, indices: Any, slot: Any, part: int) -> None:
    """Issue the TMA loads of one part of a step: one copy for each panel of each operand."""
    for copy in copies_of(
        ring, ring.plan.parts[part], indices, slot, barrier(ring, "ready", slot, part)
    ):
        copy.load()


def copies_of(
    ring: Ring, operands: Sequence[int], indices: Any, slot: Any, arrival: int = 0
) -> Iterator[Copy]:
    """Yield the copies of some operands' blocks; of blocks that CTAs share, only this CTA's
    shares."""
    plan, stage = ring.plan, int(stage_of(ring, slot))
    for number in operands:
        block, start = plan.blocks[number], start_of(ring, number, indices)
        copy = Copy(plan.copies[number], ring.refs[number], start, stage, arrival)
        if block.along:
            copy.share(
                block.sharing(plan.cluster),
                (plan.name, number),
                index_map_of(ring.np.unit, plan, number),
            )
        yield copy


def index_map_of(unit: Unit, plan: RingPlan, number: int) -> str:
    """Return the name of an operand's index map in messages."""
    return (
        f"kernel {unit.kernel}, pipeline at {plan.name.rsplit(' @ ', 1)[1]}: "
        f"{plan.labels[number]} for '{unit.arrays[plan.args[number]].name}': index_map"
    )


@op
def tiles_of(ring: Ring, slot: Any) -> tuple[SmemTile, ...]:
    plan, stage = ring.plan, int(stage_of(ring, slot))
    return tuple(
        SmemTile(stage + offset, layout, ref.array.dtype, ring.np.role, plan.written)
        for offset, layout, ref in zip(plan.offsets, plan.layouts, ring.refs, strict=True)
    )


@op
def unravel(step: Any, grid: tuple) -> tuple:
    """Return the grid indices of a linear step, last index fastest."""
    return tuple(map(np.int32, unraveled(step, grid)))


def unraveled(step: Any, grid: Sequence) -> tuple:
    """Implement `unravel` for ints, or for values in compiled code."""
    indices: list = []
    for size in reversed(grid[1:]):
        indices.append(step % size)
        step = step // size
    return (step, *reversed(indices))


@op
def next_indices(k: Any, indices: tuple, grid: tuple) -> tuple:
    """Return the grid indices of step k. The GPU counts on from the previous step's `indices`: a
    division takes about a hundred cycles."""
    return unravel.function(k, grid)


# ---- load ring, memory role ----------------------------------------------------------------------
@helper
def fill(ring, part, indices, step):  # type: ignore[no-untyped-def]
    """Fill a part of the slot of `step` as soon as its last readers have released it."""
    note(ring, "fill", step, part)
    slot = slot_of(ring, step)
    if begins_consumed(ring, part):
        mbarrier.wait(barrier(ring, "consumed", slot, part), phase_of(ring, step) - 1, step)
    note(ring, "issue", step, part)
    if announces(ring, part, False):
        mbarrier.arrive_expect_tx(barrier(ring, "ready", slot, part), stage_bytes(ring, part))
    copy_in(ring, indices, slot, part)
    if announces(ring, part, True):
        mbarrier.arrive_expect_tx(barrier(ring, "ready", slot, part), stage_bytes(ring, part))
    note(ring, "issued", step, part)


@helper
def await_consumed(ring, part, step):  # type: ignore[no-untyped-def]
    """Wait until a part of the slot of `step` has been released."""
    mbarrier.wait(barrier(ring, "consumed", slot_of(ring, step), part), phase_of(ring, step), step)


# ---- load ring, compute role ---------------------------------------------------------------------
@helper
def await_ready(ring, part, step):  # type: ignore[no-untyped-def]
    """Wait until a part of `step`, and the parts that share its ready barrier, have landed."""
    note(ring, "wait", step, part)
    mbarrier.wait(barrier(ring, "ready", slot_of(ring, step), part), phase_of(ring, step), step)
    note(ring, "compute", step, part)


@helper
def release(ring, part, step):  # type: ignore[no-untyped-def]
    """Release a part of the slot of `step`, whose products have been waited for."""
    each(ring, "unwaited", part, await_ready, step)  # the body may have omitted this wait
    note(ring, "release", step, part)
    products_in_flight.commit_to(ring, part, barrier(ring, "consumed", slot_of(ring, step), part))


@helper
def release_used(ring, k, back):  # type: ignore[no-untyped-def]
    """Release, before step k of the loop, the blocks that step k - 1 - back was the last to use."""
    if k > back and ends(ring, k - 1 - back):
        each(ring, "consumed", 0, release, step_of(ring, k, 1 + back))


@helper
def release_delayed(ring, part, k):  # type: ignore[no-untyped-def]
    """Release, in step k, a part of the block that the step `delay` before was the last to use; the
    end of the loop releases the last ones."""
    delay = ring.delay
    if (delay == 0 or k >= delay) and ends(ring, k - delay):
        note_released(ring, part, step_of(ring, k, delay))
        release(ring, part, step_of(ring, k, delay))
