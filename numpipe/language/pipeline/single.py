"""Single-stream pipelines: a warpgroup that loads for itself what it computes with.

No memory role takes part. Every compute warpgroup that comes to the pipeline runs the whole of it, with rings of its own
(slots, barriers and counters), which it fills between its own steps::

    step          prologue        0            1            2                  slots = 3, delay_release = 0
    fills          0 1 2               3            4            5
    releases                           0            1            2
    computes                   0            1            2

One elected lane fills. It waits until all four warps have released the slot, as the memory role would: the protocol is that
of `ring` and `steps`, only who fills, and when, is another. With ``delay_release=1`` the products of a step run while the slot
of the step before is filled.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...core.arith import successor
from ...core.op import helper, op
from .ring import Ring, blocks_of, each, ends, fill, own_step, unravel


# ---- blocks of a ring in this loop, numbered from 0 --------------------------------------------------------------
@op
def block_of(ring: Ring, k: Any) -> Any:
    """The block that the pipeline's step k uses."""
    return np.int32(own_step(ring, k)[0])


@op
def first_use(ring: Ring, block: Any) -> Any:
    """The pipeline's step that begins a block."""
    dims = ring.plan.dims
    return block if dims is None else np.int32(block * np.prod([int(n) for n in ring.grid[dims:]])) if dims else np.int32(0)


# ---- one lane ----------------------------------------------------------------------------------------------------
@helper
def fill_block(ring, block):  # type: ignore[no-untyped-def]
    """Fill the slot of a block, if the loop uses one of that number."""
    if block < blocks_of(ring):
        each(ring, "all", 0, fill, unravel(first_use(ring, block), ring.grid), ring.first + block)


@helper
def fill_slots(ring):  # type: ignore[no-untyped-def]
    """Before the loop: fill as many slots as there are, or blocks."""
    block = np.int32(0)
    while block < ring.slots:
        fill_block(ring, block)
        block = successor(block)


@helper
def fill_used(ring, k):  # type: ignore[no-untyped-def]
    """Before step k: fill the slot that was released there."""
    used = k - 1 - ring.delay
    if used >= 0 and ends(ring, used):
        fill_block(ring, block_of(ring, used) + ring.slots)
