"""Outputs of a pipeline: the body writes tiles in shared memory, and TMA stores each when its block
ends.

An *output ring* has S slots, no mbarriers, and a step counter like a load ring's. Its steps are
blocks, and block s uses slot ``s % S``. All compute warpgroups write their parts of a tile; the
elected lane of the first warpgroup stores it::

                     all compute warpgroups         one lane of the first
    a block ends     write the tile
    (before the step fence.proxy.async              wait until the next block's slot has been read
    that changes it, and named barrier ---------->  TMA stores, one bulk group
    and after the    write the next block's tile    …
    loop)

One barrier per block tells the storing lane that the tile is written, and tells the writers that
the next slot is free, because the lane waits for that before it reaches the barrier. With a single
slot the store must come before the wait, so the start of a block has its own wait and barrier.

With ``CompilerParams(store_role=True)``, a warp of the memory warpgroup, the one that stores for
the first compute warpgroup, stores the blocks. A slot then has two mbarriers, *filled* and *free*,
as in `store_ring`: each warp of the compute warpgroups arrives on filled when a block ends, and
waits for free when one begins.

A block that several steps share stays in its slot between them, and can be read and written again.
The end of a loop waits for nothing: the last stores continue, and the end of the kernel waits for
them. The counter continues over tiles and pipelines.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...core.lanes import each_warp
from ...core.machine import current
from ...core.op import formula, helper, op
from ...diagnostics.errors import SpecError
from ...intrinsics import barrier, cp_async_bulk, fence, mbarrier
from ...plan.allocations import ARRIVALS_A_WARPGROUP
from ...plan.context import only_if
from ...plan.kernel_shape import OUTPUTS_BARRIER
from ...plan.plans import RingPlan
from ..tiles import fence_order
from ..tiles.store_ring import barrier_of, declare_barriers, show
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
    """Return the number of bulk groups that may still be in flight when a block's slot is needed:
    the groups since the slot's last use.

    With several slots, the wait comes before the newest block is stored. Other groups of the same
    lane only prolong the wait.
    """
    return max(0, plan.slots - 2)


@op
def await_slot(ring: Ring) -> None:
    """Wait until the stores of the block that last used the next slot have read it."""
    current().bulk_wait(unread(ring.plan), read=True)


@op
def first_lane(ring: Ring, function: Callable, *args: Any) -> None:
    """Call ``function(*args)`` in one lane of the first warpgroup that writes a tile. It is always
    the same lane, because bulk groups belong to the lane that committed them."""
    machine = current()
    if ring.plan.private or machine.warpgroup == ring.np.unit.first_compute:
        machine.scoped("one", function, args)


@op
def check_start(ring: Ring, indices: tuple) -> None:
    """Check, in the memory role, that a tile's place depends neither on the warpgroup nor on tile
    data, because all warpgroups write the tile."""
    for number in range(len(ring.refs)):
        start_of(ring, number, indices)


@op
def copy_block(ring: Ring, indices: tuple, slot: Any) -> None:
    """Issue the TMA stores of a slot, one for each panel of each operand, as one bulk group."""
    for copy in copies_of(ring, range(len(ring.refs)), indices, int(slot)):
        copy.store(once=True)
    cp_async_bulk.commit_group()


# ---- around a step -------------------------------------------------------------------------------
@helper
def meet(ring):  # type: ignore[no-untyped-def]
    """Synchronize all warpgroups that write a tile."""
    if ring.private:
        fence_order.meet()
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
    # executed by every writing lane, before the barrier: TMA reads through the async proxy
    fence.proxy_async()
    if ring.slots > 1:
        first_lane(ring, await_slot, ring)
    meet(ring)
    note(ring, "store", step_of(ring, k, 1), 0)
    first_lane(ring, copy_block, ring, unravel(k - 1, grid), slot_of(ring, step_of(ring, k, 1)))


@helper
def begin_block(ring, k):  # type: ignore[no-untyped-def]
    """Wait, before step k, for the slot of a block that begins there, unless the end of the
    previous block already waited for it."""
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
    """Return the address of the mbarrier that completes when the block of a ring's step is
    written."""
    return barrier_of(ring.np, ring.plan, 0, step)


@formula
def free(ring: Ring, step: Any) -> Any:
    """Return the address of the mbarrier that completes when the slot may be written again."""
    return barrier_of(ring.np, ring.plan, 1, step)


@formula
def is_first(ring: Ring) -> bool:
    """Return whether this role stores for the first compute warpgroup."""
    return ring.np.number == 0  # type: ignore[no-any-return]


@op
def declare(ring: Ring) -> None:
    """Declare the ring's barriers to the simulator; the kernel's entry code initializes them."""
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
    """Arrive on the barrier of a step's block: this warpgroup has written its part, and the role
    that stores the block waits for it."""
    show()
    each_warp(mbarrier.arrive, filled(ring, step))


@helper
def take_over(ring, grid, k):  # type: ignore[no-untyped-def]
    """Store, before step k, the block that the compute warpgroups last wrote in step k - 1."""
    declare(ring)
    if is_first(ring):
        step = step_of(ring, k, 1)
        mbarrier.wait(filled(ring, step), phase_of(ring, step), step)
        note(ring, "store", step, 0)
        copy_block(ring, unravel(k - 1, grid), slot_of(ring, step))
        cp_async_bulk.wait_group_read(0)
        mbarrier.arrive_count(free(ring, step), ARRIVALS_A_WARPGROUP)


# ---- what both executions check ------------------------------------------------------------------
def check_specs(where: str, specs: Sequence, labels: Sequence[str]) -> None:
    """Raise SpecError for options of a BlockSpec that do not apply to outputs."""
    for spec, label in zip(specs, labels, strict=True):
        if not spec.loaded:
            continue
        if spec.block[5]:
            raise SpecError(
                f"{where}: {label}: collective_axes={spec.block[5]} is only for inputs, which "
                "CTAs of a cluster load for each other; fix: leave out collective_axes"
            )
        if spec.delay_release is not None:
            raise SpecError(
                f"{where}: {label}: delay_release={spec.delay_release} is only for inputs: a slot "
                "of an output is free as soon as its TMA store has read it; fix: leave out "
                "delay_release"
            )
        if spec.block[1] != "zeros":
            raise SpecError(
                f"{where}: {label}: oob_fill={spec.block[1]!r} is only for inputs: elements "
                "outside the array are not stored; fix: leave out oob_fill"
            )
