"""Arrivals on mbarriers of several CTAs of a cluster: in each warp, one lane arrives for each
CTA."""

from __future__ import annotations

from typing import Any

from ...arch.dimensions import Ints
from ...core import numba as nb
from ...core.formula_cuda import Value
from ...core.numba import I32
from ...core.op import predicated
from ...intrinsics import cluster, mbarrier
from ...plan.cluster_ranks import Dims, first_of, rank_of
from ...plan.context_cuda import cluster_place


def arrive(
    builder: Any,
    peers: tuple[Dims, ...],
    dims: Dims,
    address: Any,
    led: Ints = (),
    wide: bool = False,
) -> None:
    """Emit each warp's arrivals on the mbarrier at a shared address: lane i arrives in the CTA at
    offset ``peers[i]``. With `led`, lane 0 arrives instead, in the CTA that is first along the
    dimensions `led` of the cluster.

    Each lane reads its shift from four bits of a constant, so all lanes execute the same code. An
    arrival has no scope unless it is `wide`: ``.release.cluster`` makes it a fence of the whole
    GPU, which halves the speed of a loop.
    """
    idle = lane = builder.and_(builder.thread_index(), 31)  # 0 in lanes that arrive
    to = None
    if led:
        to = first_of(cluster_place(builder, dims), dims, led).value
    elif len(peers) > 1:
        nibble = builder.zext(builder.shl(builder.and_(lane, 15), 2), nb.i64)
        place = []
        for axis, (at, of) in enumerate(zip(cluster_place(builder, dims), dims, strict=True)):
            if of > 1:
                table = sum(shift[axis] << 4 * number for number, shift in enumerate(peers))
                entry = builder.lshr(table - (table >> 63 << 64), nibble)
                distance: Any = Value(builder, builder.trunc(entry))
                moved = at + (distance & 15)
                inside = builder.icmp_unsigned("<", moved.value, of)
                at = Value(builder, builder.select(inside, moved.value, (moved - of).value))
            place.append(at)
        to = rank_of(place, dims).value
        idle = builder.zext(builder.icmp_unsigned(">=", lane, len(peers)))
    operation = mbarrier.arrive
    if to is not None:
        operation = mbarrier.arrive_remote_release if wide else mbarrier.arrive_remote
        address = builder.issue(cluster.map_shared, address, to)
    _, emit = predicated(operation)(I32, I32)
    emit(builder, [address, idle])
