"""Single-stream pipelines: a warpgroup that loads for itself what it computes with.

No memory role takes part. Every compute warpgroup that comes to the pipeline runs the whole of it, with a ring of its own
(slots, barriers and counter), which it fills between its own steps::

    step          prologue        0            1            2                  slots = 3, delay_release = 0
    fills          0 1 2               3            4            5
    releases                           0            1            2
    computes                   0            1            2

One elected lane fills. It waits until all four warps have released the slot, as the memory role would: the protocol is that
of `ring`, only who runs it is another. With ``delay_release=1`` the products of a step run while the slot before is filled.
"""

from __future__ import annotations

import numpy as np

from ._op import helper, op
from .arith import successor
from .intrinsics import wgmma
from .lanes import one_lane
from .ring import Ring, await_ready, delay_of, drain_to_delay, each, fill, release, set_steps_done, unravel


@op
def slots_of(ring: Ring) -> int:
    """Slots of the ring."""
    return ring.plan.slots


@helper
def fill_step(ring, grid, k, steps, first):  # type: ignore[no-untyped-def]
    """Fill the slot of step k of a loop, if the loop has that step."""
    if k < steps:
        each(ring, "all", 0, fill, unravel(k, grid), first + k)


@helper
def fill_first(ring, grid, steps, first):  # type: ignore[no-untyped-def]
    """Before the loop: fill as many slots as there are, or steps."""
    k = np.int32(0)
    while k < min(steps, slots_of(ring)):
        fill_step(ring, grid, k, steps, first)
        k = successor(k)


@helper
def begin_alone(ring, grid, steps, first):  # type: ignore[no-untyped-def]
    """Before a loop."""
    one_lane(fill_first, ring, grid, steps, first)


@helper
def advance_alone(ring, grid, k, steps, first):  # type: ignore[no-untyped-def]
    """Before step k of a loop: release what is drained, fill it again, wait for the next tiles; False after the last step."""
    delay = delay_of(ring)
    if k < steps:
        drain_to_delay(ring)
        if k > delay:
            each(ring, "consumed", 0, release, first + k - 1 - delay)
            one_lane(fill_step, ring, grid, k - 1 - delay + slots_of(ring), steps, first)
        await_ready(ring, 0, first + k)
        return True
    set_steps_done(ring, first + steps)
    wgmma.wait_group(0)
    for back in range(delay, -1, -1):
        if k > back:
            each(ring, "consumed", 0, release, first + k - 1 - back)
    return False
