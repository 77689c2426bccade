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

A block that several steps share stays in its slot between them, to be read and written again.
Nothing is waited for when a loop ends: the last stores run on, and the kernel's end drains them.
The counter runs on over tiles and pipelines.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...core.machine import current
from ...core.op import helper, op
from ...diagnostics.errors import SpecError
from ...intrinsics import barrier, cp_async_bulk, fence, special
from ...plan.kernel_shape import OUTPUTS_BARRIER
from ...plan.plans import RingPlan
from .ring import Ring, begins, copies_of, ends, note, slot_of, start_of, step_of, unravel


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
    """Store, before step k, the block that step k - 1 was the last to write."""
    if k > 0 and ends(ring, k - 1):
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
    if ring.slots == 1 and begins(ring, k):
        first_lane(ring, await_slot, ring)
        meet(ring)


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
