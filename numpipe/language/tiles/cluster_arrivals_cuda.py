"""Arrivals on mbarriers of several CTAs of a cluster: in each warp, a lane arrives for each of
these CTAs."""

from __future__ import annotations

from typing import Any

from ...core import numba as nb
from ...core.op import predicated
from ...intrinsics import cluster, mbarrier
from ...plan.cluster_ranks import Dims
from ...plan.context_cuda import cluster_place

I32 = nb.types.int32


def rank(builder: Any, place: list[Any], dims: Dims) -> Any:
    """Return `plan.cluster_ranks.rank_of` a place."""
    found = nb.const(0)
    for at, of in zip(reversed(place), reversed(dims), strict=True):
        found = builder.add(builder.mul(found, nb.const(of)), at)
    return found


def arrive(
    typing_context: Any,
    context: Any,
    builder: Any,
    peers: tuple[Dims, ...],
    dims: Dims,
    address: Any,
    led: tuple[int, ...] = (),
    wide: bool = False,
) -> None:
    """Emit arrivals of each warp on the mbarrier at a shared address: lane i arrives in the CTA
    that the i-th of `peers` leads to. Or lane 0 does, in the CTA that is first along the dimensions
    `led` of the cluster.

    A lane looks its shift up in four bits of a constant, so that all lanes do the same. An arrival
    says no scope, unless it is `wide`: with ``.release.cluster`` it becomes a fence of the whole
    GPU, and a loop half as fast.
    """
    idle = lane = builder.and_(nb.thread_index(builder), nb.const(31))  # 0 in lanes that arrive
    operation = mbarrier.arrive
    remote = mbarrier.arrive_remote_release if wide else mbarrier.arrive_remote
    if led:
        place = [
            nb.const(0) if axis in led else at
            for axis, at in enumerate(cluster_place(builder, dims))
        ]
        to = rank(builder, place, dims)
        operation = remote
        address = nb.call(context, builder, cluster.map_shared, (I32, I32), (address, to))[1]
    elif len(peers) > 1:
        nibble = builder.zext(builder.shl(builder.and_(lane, nb.const(15)), nb.const(2)), nb.i64)
        place = []
        for axis, (at, of) in enumerate(zip(cluster_place(builder, dims), dims, strict=True)):
            if of > 1:
                table = sum(shift[axis] << 4 * number for number, shift in enumerate(peers))
                entry = builder.lshr(nb.const(table - (table >> 63 << 64), nb.i64), nibble)
                moved = builder.add(at, builder.and_(builder.trunc(entry, nb.i32), nb.const(15)))
                at = builder.select(
                    builder.icmp_unsigned("<", moved, nb.const(of)),
                    moved,
                    builder.sub(moved, nb.const(of)),
                )
            place.append(at)
        to = rank(builder, place, dims)
        idle = builder.zext(builder.icmp_unsigned(">=", lane, nb.const(len(peers))), nb.i32)
        operation = remote
        address = nb.call(context, builder, cluster.map_shared, (I32, I32), (address, to))[1]
    inner, emit = predicated(operation)(typing_context, I32, I32)
    emit(context, builder, inner, [address, idle])
