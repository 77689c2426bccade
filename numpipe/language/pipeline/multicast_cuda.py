"""Multicast on the GPU: ranks and masks from this CTA's place in its cluster."""

from __future__ import annotations

from typing import Any

from ...core import numba as nb
from ...plan.block import Block
from ...plan.cluster import Dims, mask_of
from ...plan.context_cuda import cluster_place
from ..tiles.peers_cuda import rank

I32 = nb.types.int32


def own_share(builder: Any, dims: Dims, block: Block) -> tuple[Any, Any, Any]:
    """`multicast.own_share`"""
    place, number = cluster_place(builder, dims), nb.const(0)
    for axis in reversed(block.along):
        number = builder.add(builder.mul(number, nb.const(dims[axis])), place[axis])
    rows = builder.mul(number, nb.const(block.share_rows))
    others = [nb.const(0) if axis in block.along else at for axis, at in enumerate(place)]
    mask = builder.shl(nb.const(mask_of((0, 0, 0), dims, block.along)), rank(builder, others, dims))
    return rows, builder.mul(rows, nb.const(block.layout.width)), mask
