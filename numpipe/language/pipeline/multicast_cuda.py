"""Multicast on the GPU: ranks and masks from this CTA's place in its cluster."""

from __future__ import annotations

from typing import Any

from ...core import numba as nb
from ...core.op import cuda_meaning
from ...intrinsics import barrier
from ...plan.block import Block
from ...plan.cluster import Dims, mask_of
from ...plan.context_cuda import cluster_place
from ..memory.peers_cuda import arrive, rank
from . import multicast as source

I32 = nb.types.int32


@cuda_meaning(source.arrive_at_peers)
def _arrive_at_peers(typing_context: Any, ring: Any, part: Any, address: Any) -> Any:
    plan = ring.plan
    context, builder, args = yield nb.types.void(ring, part, I32)
    arrive(typing_context, context, builder, plan.peers[nb.literal(part)], plan.cluster, args[2])
    if (plan.manual_consumed or plan.delay) and not plan.private:  # the arrival may stand before a loop's end: see `join`
        nb.call(context, builder, barrier.warp_sync, (), ())


def own_share(builder: Any, dims: Dims, block: Block) -> tuple[Any, Any, Any]:
    """`multicast.own_share`"""
    place, number = cluster_place(builder, dims), nb.const(0)
    for axis in reversed(block.along):
        number = builder.add(builder.mul(number, nb.const(dims[axis])), place[axis])
    rows = builder.mul(number, nb.const(block.share_rows))
    others = [nb.const(0) if axis in block.along else at for axis, at in enumerate(place)]
    mask = builder.shl(nb.const(mask_of((0, 0, 0), dims, block.along)), rank(builder, others, dims))
    return rows, builder.mul(rows, nb.const(block.layout.width)), mask
