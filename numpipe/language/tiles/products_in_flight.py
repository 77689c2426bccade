"""Products in flight, as loops and slots see them: the one place that knows how an SM tells that a
product is done.

On Hopper a warpgroup waits for its own products (`drain`), each warp for itself, and then tells
others (`commit_to`). An SM that tells an mbarrier itself when products end needs other meanings
here, and nothing above.

``drain(pending)``                  wait until at most `pending` of this warpgroup's newest products
                                    are in flight
``drained(value, pending)``         a value, with the accumulators in it, when at most `pending`
                                    products are in flight
``drained_behind(acc, groups)``     an accumulator after whose product `groups` more were issued,
                                    when it can be read
``commit_to(ring, part, address)``  tell an mbarrier that what was drained reads a slot no more

What stays in flight while a slot is released is counted in groups that every step is sure to issue.
"""

from __future__ import annotations

from typing import Any

from ...core.lanes import each_warp
from ...core.machine import current
from ...core.op import op
from ...intrinsics import cluster, mbarrier
from ...intrinsics.wgmma import wait_group as drain
from ...plan.cluster_ranks import place_of, rank_of, shifted
from .mma import wait_for as drained_behind
from .mma import wgmma_wait as drained

__all__ = ["MOST", "commit_to", "drain", "drained", "drained_behind"]

MOST = 7
"""groups that a wait can leave in flight"""


@op
def commit_to(ring: Any, part: int, address: Any) -> None:
    """Tell the mbarrier at `address`, in all CTAs that fill a part of a slot, that what was drained
    reads the slot no more.

    By a lane of each warp for each CTA, because a wait for products is a wait of each warp:
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
