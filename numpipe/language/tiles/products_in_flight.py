"""Products in flight: the only module that knows how an SM reports that a product is complete.
Loops and slots use it.

On Hopper a warpgroup waits for its own products (`drain`), each warp for itself, and then signals
the others (`commit_to`). For an SM that arrives on an mbarrier itself when products complete, only
this module would change.

``drain(pending)``                  wait until at most `pending` of this warpgroup's newest products
                                    are in flight
``drained(value, pending)``         a value, with the accumulators in it, when at most `pending`
                                    products are in flight
``drained_before(acc, groups)``     an accumulator that can be read, given that `groups` more
                                    products were issued after its own
``commit_to(ring, part, address)``  signal an mbarrier that the drained products no longer read a
                                    slot

The number of products that stay in flight when a slot is released counts only groups that every
step is certain to issue.
"""

from __future__ import annotations

from typing import Any

from ...core.lanes import each_warp
from ...core.machine import current
from ...core.op import op
from ...intrinsics import cluster, mbarrier
from ...intrinsics.wgmma import wait_group as drain
from ...plan.cluster_ranks import place_of, rank_of, shifted
from .mma import wait_for as drained_before
from .mma import wgmma_wait as drained

__all__ = ["MOST", "commit_to", "drain", "drained", "drained_before"]

MOST = 7
"""The number of groups that a wait can leave in flight."""


@op
def commit_to(ring: Any, part: int, address: Any) -> None:
    """Signal the mbarrier at `address`, in all CTAs that fill a part of a slot, that the drained
    products no longer read the slot.

    A lane of each warp arrives for each CTA, because each warp waits for products separately:
    `protocol.WARPS`.
    """
    peers = ring.plan.peers[part]
    if len(peers) == 1:
        each_warp(mbarrier.arrive, address)
        return
    dims = ring.plan.cluster
    here = place_of(current().cta, dims)
    for shift in peers:
        each_warp(
            mbarrier.arrive_remote,
            cluster.map_shared(address, rank_of(shifted(here, shift, dims), dims)),
        )
