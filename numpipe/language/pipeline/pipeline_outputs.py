"""Outputs of a pipeline: tiles in shared memory that the body writes, and TMA stores when their
block ends.

An *output ring* is S slots, without mbarriers, and a step counter like a load ring's: its steps are
blocks, and block s uses slot ``s % S``. All compute warpgroups write their parts of a tile; the
elected lane of the first of them stores it::

                     all compute warpgroups         one lane of the first
    a block ends     write the tile
    (the step before fence.proxy.async              wait until the next block's slot has been read
    a change, and    named barrier -------------->  TMA stores, one bulk group
    the loop's end)  write the next block's tile    …

One barrier for each block tells the storing lane that the tile is written, and the writers that the
next slot is free, because the lane has waited for that before it came. With a single slot the store
must come before the wait, so there the block's beginning has a wait and a barrier of its own.

With ``CompilerParams(store_role=True)`` the warp next to the loading one that works for the first
compute warpgroup stores the blocks. A slot then has two mbarriers, *filled* and *free*, as one of
`store_ring` has: each warp of the compute warpgroups arrives on filled when a block ends, and waits
for free where one begins.

A block that several steps share stays in its slot between them, to be read and written again.
Nothing is waited for when a loop ends: the last stores run on, and the kernel's end drains them.
The counter runs on over tiles and pipelines.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...core.lanes import each_warp
from ...core.machine import current
from ...core.op import formula, helper, op
from ...diagnostics.errors import SpecError
from ...intrinsics import barrier, cp_async_bulk, fence, mbarrier, special
from ...plan.allocations import ARRIVALS_A_WARPGROUP
from ...plan.context import only_if
from ...plan.kernel_shape import OUTPUTS_BARRIER
from ...plan.plans import RingPlan
from ..tiles.store_ring import declare_barriers, show
from .ring import (
    Ring,
    begins,
    copies_of,
    ends,
    note,
    phase_of,
    slot_of,
    start_of,
    step_of,
    unravel,
)


def unread(plan: RingPlan) -> int:
    """Return how many bulk groups may still be read when a block's slot is needed: those since its
    last use.

    With several slots the wait comes before the newest block is stored. Other groups of the same
    lane only make it longer.
    """
    return max(0, plan.slots - 2)


@op
def await_slot(ring: Ring) -> None:
    """Wait until the stores of the block that used the next slot last have read it."""
    current().bulk_wait(unread(ring.plan), read=True)


@op
def first_lane(ring: Ring, function: Callable[..., Any], *args: Any) -> None:
    """Call ``function(*args)`` in one lane of the first warpgroup that writes a tile: the same lane
    each time, for bulk groups belong to the lane that committed them."""
    machine = current()
    if ring.plan.private or machine.warpgroup == ring.np.unit.first_compute:
        machine.scoped("one", function, args)


@op
def check_start(ring: Ring, indices: tuple[Any, ...]) -> None:
    """Check, in the memory role, that a tile's place does not depend on the warpgroup or on tile
    data: all warpgroups write it."""
    for number in range(len(ring.refs)):
        start_of(ring, number, indices)


@op
def copy_block(ring: Ring, indices: tuple[Any, ...], slot: Any) -> None:
    """Issue the TMA stores of a slot, one for each panel of each operand, as one bulk group."""
    for copy in copies_of(ring, range(len(ring.refs)), indices, int(slot)):
        copy.store(once=True)
    cp_async_bulk.commit_group()


# ---- around a step -------------------------------------------------------------------------------
@helper
def meet(ring):  # type: ignore[no-untyped-def]
    """Let all warpgroups that write a tile wait for each other."""
    if ring.private:
        barrier.sync(1 + special.warpgroup_index(), 128)
    else:
        barrier.sync(OUTPUTS_BARRIER, ring.writers)


@helper
def end_block(ring, grid, k):  # type: ignore[no-untyped-def]
    """Store, or hand over, before step k, the block that step k - 1 was the last to write."""
    if k > 0 and ends(ring, k - 1):
        only_if(ring, "stores_alone", store_alone, grid, k)
        only_if(ring, "hands_over", hand_over, step_of(ring, k, 1))
        only_if(ring, "takes_over", take_over, grid, k)


@helper
def store_alone(ring, grid, k):  # type: ignore[no-untyped-def]
    # by every writer, before the barrier: TMA reads through the async proxy
    fence.proxy_async()
    if ring.slots > 1:
        first_lane(ring, await_slot, ring)
    meet(ring)
    note(ring, "store", step_of(ring, k, 1), 0)
    first_lane(ring, copy_block, ring, unravel(k - 1, grid), slot_of(ring, step_of(ring, k, 1)))


@helper
def begin_block(ring, k):  # type: ignore[no-untyped-def]
    """Wait, before step k, for the slot of a block that begins there, if the end of the previous
    block has not freed it."""
    only_if(ring, "stores_alone", await_only_slot, k)
    only_if(ring, "hands_over", await_free, k)


@helper
def await_only_slot(ring, k):  # type: ignore[no-untyped-def]
    if ring.slots == 1 and begins(ring, k):
        first_lane(ring, await_slot, ring)
        meet(ring)


# ---- blocks that another role stores -------------------------------------------------------------
@formula
def filled(ring: Ring, step: Any) -> Any:
    """Return the address of the barrier that tells that the block of a step of the ring is
    written."""
    return barrier_of(ring, 0, step)


@formula
def free(ring: Ring, step: Any) -> Any:
    """Return the address of the barrier that tells that its slot may be written again."""
    return barrier_of(ring, 1, step)


def barrier_of(ring: Any, number: int, step: Any) -> Any:
    memory = ring.np.unit.handover(ring.plan)[number].memory
    return ring.np.part_of(memory) + step % ring.plan.slots * 8


@formula
def is_first(ring: Ring) -> bool:
    """Return whether this role works for the first compute warpgroup."""
    return ring.np.number == 0  # type: ignore[no-any-return]


@op
def declare(ring: Ring) -> None:
    """Tell the simulator of the ring's barriers, which the kernel's entry initialises."""
    declare_barriers(ring.np, ring.plan, 0)


@helper
def await_free(ring, k):  # type: ignore[no-untyped-def]
    """Wait, before step k, until the slot of a block that begins there has been read."""
    declare(ring)
    if begins(ring, k):
        step = step_of(ring, k, 0)
        mbarrier.wait(free(ring, step), phase_of(ring, step) - 1, step)


@helper
def hand_over(ring, step):  # type: ignore[no-untyped-def]
    """Tell the role that stores the block of a step that this warpgroup has written its part."""
    show()
    each_warp(mbarrier.arrive, filled(ring, step))


@helper
def take_over(ring, grid, k):  # type: ignore[no-untyped-def]
    """Store, before step k, the block that step k - 1 of the compute warpgroups was the last to
    write."""
    declare(ring)
    if is_first(ring):
        step = step_of(ring, k, 1)
        mbarrier.wait(filled(ring, step), phase_of(ring, step), step)
        note(ring, "store", step, 0)
        copy_block(ring, unravel(k - 1, grid), slot_of(ring, step))
        cp_async_bulk.wait_group_read(0)
        mbarrier.arrive_count(free(ring, step), ARRIVALS_A_WARPGROUP)


# ---- what both executions check ------------------------------------------------------------------
def check_specs(where: str, specs: Sequence[Any], labels: Sequence[str]) -> None:
    """Raise SpecError for options of a BlockSpec that mean nothing for an output."""
    for spec, label in zip(specs, labels, strict=True):
        if not spec.loaded:
            continue
        if spec.block[5]:
            raise SpecError(
                f"{where}: {label}: collective_axes={spec.block[5]} is for inputs, which CTAs of "
                "a cluster load for each other; each stores blocks of its own: leave "
                "collective_axes out"
            )
        if spec.delay_release is not None:
            raise SpecError(
                f"{where}: {label}: delay_release={spec.delay_release} is for inputs; a slot of "
                "an output is free as soon as its TMA store has read it: leave delay_release out"
            )
        if spec.block[1] != "zeros":
            raise SpecError(
                f"{where}: {label}: oob_fill={spec.block[1]!r} is for inputs: what lies outside "
                "the array is not stored; leave oob_fill out"
            )
