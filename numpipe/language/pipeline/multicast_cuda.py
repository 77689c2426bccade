"""Multicast on the GPU: ranks and masks from this CTA's place in its cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...core import numba as nb
from ...intrinsics import cp_async_bulk
from ...plan.cluster import Dims, mask_of
from ...plan.context_cuda import cluster_place
from ..tiles.peers_cuda import rank

I32, I64 = nb.types.int32, nb.types.int64


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
