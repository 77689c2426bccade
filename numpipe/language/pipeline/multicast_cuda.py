"""Multicast on the GPU: ranks and masks from this CTA's place in its cluster, a lane for each CTA that is told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...core import numba as nb
from ...core.op import cuda_meaning, predicated
from ...intrinsics import barrier, cluster, cp_async_bulk, mbarrier
from ...plan.cluster import Dims, mask_of
from ...plan.context_cuda import cluster_place
from . import multicast as source

I32, I64 = nb.types.int32, nb.types.int64


def rank(builder: Any, place: list[Any], dims: Dims) -> Any:
    """`rank_of` a place."""
    found = nb.const(0)
    for at, of in zip(reversed(place), reversed(dims), strict=True):
        found = builder.add(builder.mul(found, nb.const(of)), at)
    return found


def peer_of_lane(builder: Any, peers: tuple[Dims, ...], dims: Dims) -> tuple[Any, Any]:
    """(rank of the CTA that a lane tells, int32 that is 0 in lanes that tell one): lane i of each warp the i-th of `peers`.

    Shifts are looked up in four bits of a constant for each lane, so that all lanes do the same.
    """
    lane = builder.and_(nb.thread_index(builder), nb.const(31))
    nibble = builder.zext(builder.shl(builder.and_(lane, nb.const(15)), nb.const(2)), nb.i64)
    place = []
    for axis, (at, of) in enumerate(zip(cluster_place(builder, dims), dims, strict=True)):
        if of > 1:
            table = sum(shift[axis] << 4 * number for number, shift in enumerate(peers))
            entry = builder.lshr(nb.const(table - (table >> 63 << 64), nb.i64), nibble)
            moved = builder.add(at, builder.and_(builder.trunc(entry, nb.i32), nb.const(15)))
            at = builder.select(builder.icmp_unsigned("<", moved, nb.const(of)), moved, builder.sub(moved, nb.const(of)))
        place.append(at)
    return rank(builder, place, dims), builder.zext(builder.icmp_unsigned(">=", lane, nb.const(len(peers))), nb.i32)


def arrive(typing_context: Any, context: Any, builder: Any, peers: tuple[Dims, ...], dims: Dims, address: Any) -> None:
    """Lanes of each warp arrive on the mbarrier at a shared address: of this CTA, or of all those that `peers` lead to."""
    alone = len(peers) == 1
    if alone:
        idle = builder.and_(nb.thread_index(builder), nb.const(31))
    else:
        to, idle = peer_of_lane(builder, peers, dims)
        address = nb.call(context, builder, cluster.map_shared, (I32, I32), (address, to))[1]
    inner, emit = predicated(mbarrier.arrive if alone else mbarrier.arrive_remote)(typing_context, I32, I32)
    emit(context, builder, inner, [address, idle])


@cuda_meaning(source.arrive_at_peers)
def _arrive_at_peers(typing_context: Any, ring: Any, part: Any, address: Any) -> Any:
    plan = ring.plan
    context, builder, args = yield nb.types.void(ring, part, I32)
    arrive(typing_context, context, builder, plan.peers[nb.literal(part)], plan.cluster, args[2])
    if (plan.manual_consumed or plan.delay) and not plan.private:  # the arrival may stand before a loop's end: see `join`
        nb.call(context, builder, barrier.warp_sync, (), ())


def own_share(builder: Any, dims: Dims, along: tuple[int, ...]) -> Any:
    """`multicast.own_share`"""
    place, number = cluster_place(builder, dims), nb.const(0)
    for axis in reversed(along):
        number = builder.add(builder.mul(number, nb.const(dims[axis])), place[axis])
    return number


def load(context: Any, builder: Any, ring: Any, block: Any, copy: Sequence[Any], barrier: Any) -> None:
    """`multicast.load`; `copy` is one of `ring_cuda.copies_of`."""
    place, tensor, coords, address, policy = copy
    if not block.along:
        nb.call(context, builder, cp_async_bulk.load, (I32, I64, place, I32, policy),
                (address, tensor, coords, barrier, nb.nothing(context)))
        return
    dims = ring.plan.cluster
    others = [nb.const(0) if axis in block.along else at for axis, at in enumerate(cluster_place(builder, dims))]
    mask = builder.shl(nb.const(mask_of((0, 0, 0), dims, block.along)), rank(builder, others, dims))
    nb.call(context, builder, cp_async_bulk.multicast, (I32, I64, place, I32, I32, policy),
            (address, tensor, coords, barrier, mask, nb.nothing(context)))
