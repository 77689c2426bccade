"""A ring of numbers: one lane of the CTA stores them, and each compute warpgroup reads all of them,
in order.

Slots, phases and barriers work as in a load ring (`ring`). A slot is an int32 in shared memory, and
no copy fills it::

                 put                                  take
    one lane     wait consumed[slot], phase - 1       wait ready[slot], phase       compute
                 store the number                     read it                       role
                 arrive ready[slot]                   arrive consumed[slot], each warp

    ready[slot]     1 arrival completes a phase: the number is there
    consumed[slot]  4 arrivals a compute warpgroup complete a phase: the slot may have another
                    number
"""

from __future__ import annotations

from ...core.lanes import each_warp
from ...core.machine import current
from ...core.op import helper, ptx
from ...intrinsics import mbarrier, memory
from .ring import barrier, phase_of, slot_of, stage_of


@ptx(
    "{ .reg .pred np_scheduler; $gate st.volatile.shared.b32 [$address], $number; }",
    address="r",
    number="r",
)
def store_number(address: int, number: int) -> None:
    """Store a number like `memory.store_word`, but also in the memory role."""
    current().store_word(address, number)


@ptx("shfl.sync.idx.b32 $ret, $number, 0, 31, 0xffffffff;", returns="r", number="r")
def uniform(number: int) -> int:
    """Return, in all lanes, the number of the warp's lane 0, whose arrival frees the slot after its
    own read.

    It also tells ptxas that the lanes have the same number, which a loop around wgmma requires.
    """
    return number


@helper
def put_number(ring, step, number):  # type: ignore[no-untyped-def]
    """Store the number of `step` as soon as all warpgroups have read the previous number in its
    slot. Scope: one lane."""
    slot = slot_of(ring, step)
    mbarrier.wait(barrier(ring, "consumed", slot, 0), phase_of(ring, step) - 1, step)
    store_number(stage_of(ring, slot), number)
    mbarrier.arrive(barrier(ring, "ready", slot, 0))


@helper
def take_number(ring, step):  # type: ignore[no-untyped-def]
    """Wait for the number of `step`, and return it. Scope: a compute warpgroup."""
    slot = slot_of(ring, step)
    mbarrier.wait(barrier(ring, "ready", slot, 0), phase_of(ring, step), step)
    number = uniform(memory.load_word(stage_of(ring, slot)))
    each_warp(mbarrier.arrive, barrier(ring, "consumed", slot, 0))
    return number
