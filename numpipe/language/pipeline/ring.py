"""The ring: the one place where the protocol of loads is written.

A *load ring* is S slots of shared memory, two mbarriers a slot, and one int32 a warpgroup: the step
counter. Step s uses slot ``s % S``; it is that slot's phase number ``s // S``::

                 fill                                 await_ready … release
    memory   wait consumed[slot], phase - 1       compute   wait ready[slot], phase
    role     expect bytes, arrive ready[slot]     role      read the tiles
             TMA loads -> complete ready[slot]              arrive consumed[slot], each warp

    ready[slot]     1 arrival and the tiles' bytes complete a phase: the tiles have landed
    consumed[slot]  4 arrivals a compute warpgroup complete a phase: the slot may be filled again

A warpgroup arrives once for each of its four warps, because `wgmma.wait_group` is a wait of a warp:
one lane's arrival would not say that the other three have drained. `protocol.BARRIERS` has these
numbers, `protocol.MOMENTS` what is noted on the way.

A body that waits for its operands one by one, or releases them so, has a ready, or consumed,
barrier for each of them (`RingPlan.manual`); the slot is then filled in *parts*, an operand each
(`RingPlan.parts`). The body and the ring wait and release by the same functions, `await_ready` and
`release`. The ring stays right without the body's waits: a part that is released is waited for
first, so that no slot is filled again while an old copy is on its way.

A ring's steps are those of its pipeline, unless its blocks depend on the first few dimensions of
the grid only: then a step is a block, filled when one of these indices changes, and released when
the last pipeline step that uses it is done (`begins`, `ends`, `step_of`).

The counter runs on over tiles and pipelines: a ring need not be empty between them (and is not,
unless `CompilerParams.drain` asks for that), and phase numbers tell a waiter which use of the slot
it means (the GPU waits for the number's parity, the simulator checks that the number is the one
reached).

In a cluster CTAs may fill slots for each other: each loads its share of a block, and one copy of it
lands in all of them. A slot is then free when the warpgroups of all these CTAs have released it,
and ready when all shares have come, whose bytes each CTA announces for itself::

    CTA 0   wait consumed[s]; expect the whole block on ready[s];
            multicast the first half to CTAs 0 and 1
    CTA 1   wait consumed[s]; expect the whole block on ready[s];
            multicast the second half to CTAs 0 and 1
    both    wait ready[s]; read; lane i of each warp arrives on consumed[s] of the i-th of the two

A share may land before its bytes are announced; the phase cannot end without that announcement's
arrival. A share also tells that its sender's slot had been released, so a warpgroup that has waited
for a step's shares may release to all their senders. All threads of the cluster meet at the
kernel's beginning, and at its end a CTA waits for the last releases (`leaving`): so a CTA which
others arrive at or copy to is there. An arrival there says no scope: `.release.cluster` would be a
fence of the whole GPU, and a loop half as fast (PTX ISA, "cp.async.bulk.tensor":
.multicast::cluster; "mbarrier.arrive": .shared::cluster).

Both executions run the functions below as they stand. Tiles that leave a kernel go through the
store ring (`store_ring`) or the slots of outputs (`outputs`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import index
from typing import Any

import numpy as np

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
    """The facts of a `Ring` and of its Numba type that are known when the kernel is compiled.

    awaits, releases  whether the ring waits for a step's tiles, and releases slots while the loop
                      runs; else the body does
    unreleased        the oldest step that a loop's end has to release, counted back from the last
                      one; -1: none
    keeps             whether it has to release any
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

    plan, refs, index_maps  where it is; the arrays that it loads, and which blocks of them
    grid, steps             the loop's grid; how many steps this warpgroup runs
    first                   the ring's step counter when the loop begins
    waited                  parts that the body is sure to wait for in every step, before it
                            releases them
    slots, delay            the plan's: how many slots there are; steps a slot is kept after the
                            step that used it
    private                 whether every compute warpgroup has a ring of its own
    writers                 threads of the warpgroups that write an output's tile together
    released                (part, step) of what the body of this loop has released
    """

    def __init__(
        self,
        np_: Context,
        plan: RingPlan,
        refs: tuple[GmemRef, ...],
        index_maps: tuple[Any, ...],
        grid: tuple[Any, ...],
        steps: Any,
        waited: tuple[int, ...] = (),
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
    """Return the address of a slot's barrier of a kind (`protocol.BARRIERS`) that a part belongs
    to."""
    return ring.np.part_of(ring.plan.header, ring.plan.barrier_offset(kind, part)) + slot * 8


@op
def stage_bytes(ring: Ring, part: int) -> int:
    """Return the bytes that ready[slot] expects: those of the operands that share a part's ready
    barrier."""
    return ring.plan.expected(part)


@op
def announces(ring: Ring, part: int, loaded: bool) -> bool:
    """Return whether a ready barrier's bytes are announced before a part is loaded, or behind its
    loads (`loaded`).

    They are announced before if the barrier is one part's. If parts share it, behind the last one:
    the arrival must tell the readers that all parts had been released, and the memory role knows
    that only then. Bytes may land before they are announced: without that arrival the phase cannot
    end (PTX ISA, "mbarrier": tx-count).
    """
    return ring.plan.announces(part, bool(loaded))


@op
def begins_consumed(ring: Ring, part: int) -> bool:
    """Return whether a part is the first of those that share its consumed barrier."""
    return part in ring.plan.parts_of("consumed")


@op
def each(ring: Ring, parts: str, part: int, function: Any, *args: Any) -> None:
    """Call ``function(ring, part, *args)`` for some parts of a slot, each a compile-time constant
    (`RingPlan.chosen`)."""
    for number in ring.plan.chosen(parts, part, ring.waited):
        function(ring, number, *args)


@op
def note_released(ring: Ring, part: int, step: Any) -> None:
    """Note a release by the body; the simulator raises where it is the second of a part in a step.
    Nothing on the GPU."""
    if (part, int(step)) in ring.released:
        raise release_misused(ring, part, step, True)
    ring.released.add((part, int(step)))


@op
def check_released(ring: Ring, k: Any) -> None:
    """In the simulator, raise where a body left a part unreleased in step k - 1. Nothing on the
    GPU, which would wait for ever."""
    plan = ring.plan
    used = int(k) - 1 - plan.delay
    if "consumed" not in plan.manual or used < 0 or not ends(ring, used) or not current().moves:
        return
    step = step_of(ring, used, 0)
    for part in plan.parts_of("consumed"):
        if (part, int(step)) not in ring.released:
            raise release_misused(ring, part, step, False)


def release_misused(ring: Ring, part: int, step: Any, again: bool) -> SimulationError:
    """Return the error for a release too many (`again`), or one too few."""
    plan, machine, unit, slot = ring.plan, current(), ring.np.unit, int(step) % ring.plan.slots
    delayed = f", {plan.delay} later for delay_release={plan.delay}" if plan.delay else ""
    did, harm = (
        ("arrives twice", "the tile would be loaded over while another warpgroup reads it")
        if again
        else ("did not arrive", "the memory role would wait for ever")
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
    """Return whether the pipeline's step k is the last one, of this warpgroup, that uses its
    block."""
    following = k + 1
    return (following == ring.steps) | own_step(ring, following)[1]  # type: ignore[no-any-return]


@formula
def step_of(ring: Ring, k: Any, back: Any) -> Any:
    """Return the ring's step to which the pipeline's step k - back belongs."""
    if ring.plan.dims is None:
        return ring.first + k - back  # a sum that the loop already has
    return ring.first + own_step(ring, k - back)[0]


@op
def blocks_of(ring: Ring) -> Any:
    """Return how many blocks this warpgroup's loop uses."""
    return blocks_in(ring, ring.steps)


def own_step(ring: Any, k: Any) -> tuple[Any, Any]:
    """Return the number, in this loop, of the block that the pipeline's step k uses, and whether it
    begins there."""
    dims = ring.plan.dims
    if dims is None:
        return k, True
    if dims == 0:
        return 0, k == 0
    begins: Any = True
    for size in reversed(ring.grid[dims:]):  # as in `unravel`: LLVM makes one of the two
        begins = begins & (k % size == 0)
        k = k // size
    return k, begins


def blocks_in(ring: Ring, steps: Any) -> Any:
    """Return how many steps of the ring `steps` steps of the pipeline are."""
    return np.int32(own_step(ring, steps - 1)[0] + 1 if steps > 0 else 0)


@op
def note(ring: Ring, event: str, step: Any, part: int) -> None:
    """Record a moment of a step in the simulator's trace and reports; on the GPU in the profile,
    where one is asked for.

    Only the GPU records what opens or closes a time (`protocol.Moment`); the simulated SM knows
    that from its own events.
    """
    plan = ring.plan
    if not MOMENTS[event].noted:
        return
    which = {"operand": part} if plan.one_by_one(event) else {}
    current().note(event, ring=plan.name, slot=int(step) % plan.slots, step=int(step), **which)


def start_of(ring: Ring, number: int, indices: Any) -> list[int]:
    """Return where an operand's block starts in its array, in elements, by its index map."""
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
        else bounded(block, start, ring.refs[number].array.shape, what, ring.plan.written)
    )
    if block.elements:
        block.check_start(start[block.contiguous], what)
    return start


@op
def copy_in(ring: Ring, indices: Any, slot: Any, part: int) -> None:
    """Issue the TMA loads of one part of a step: a copy for each panel of each operand."""
    for copy in copies_of(
        ring, ring.plan.parts[part], indices, slot, barrier(ring, "ready", slot, part)
    ):
        copy.load()


def copies_of(
    ring: Ring, operands: Sequence[int], indices: Any, slot: Any, arrival: int = 0
) -> Iterator[Copy]:
    """Yield the copies of some operands' blocks, or of this CTA's shares of them to all that have
    one."""
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
    """Return how messages call the index map of an operand."""
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
def unravel(step: Any, grid: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the grid indices of a linear step, last index fastest."""
    return tuple(map(np.int32, unraveled(step, grid)))


def unraveled(step: Any, grid: Sequence[Any]) -> tuple[Any, ...]:
    """`unravel`, of ints or of the values of compiled code."""
    indices: list[Any] = []
    for size in reversed(grid[1:]):
        indices.append(step % size)
        step = step // size
    return (step, *reversed(indices))


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
    """Wait until a part of `step`, and those that share its ready barrier, have landed."""
    note(ring, "wait", step, part)
    mbarrier.wait(barrier(ring, "ready", slot_of(ring, step), part), phase_of(ring, step), step)
    note(ring, "compute", step, part)


@helper
def release(ring, part, step):  # type: ignore[no-untyped-def]
    """Release a part of the slot of `step`, whose products have been waited for."""
    each(ring, "unwaited", part, await_ready, step)  # the body may have left out this wait
    note(ring, "release", step, part)
    products_in_flight.commit_to(ring, part, barrier(ring, "consumed", slot_of(ring, step), part))


@helper
def release_used(ring, k, back):  # type: ignore[no-untyped-def]
    """Release, before step k of the loop, what step k - 1 - back was the last to use."""
    if k > back and ends(ring, k - 1 - back):
        each(ring, "consumed", 0, release, step_of(ring, k, 1 + back))


@helper
def release_delayed(ring, part, k):  # type: ignore[no-untyped-def]
    """Release, in step k, what the step `delay` before was the last to use; the loop's end releases
    the last ones."""
    delay = ring.delay
    if (delay == 0 or k >= delay) and ends(ring, k - delay):
        note_released(ring, part, step_of(ring, k, delay))
        release(ring, part, step_of(ring, k, delay))
