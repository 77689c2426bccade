"""Single-stream pipelines on the GPU: what the ring of a loop is made of."""

from __future__ import annotations

from typing import Any

from ...core import numba as nb
from . import single as source
from .ring_cuda import RingType, of_pipeline_step, own_step

I32 = nb.types.int32
of_pipeline_step(source.block_of, I32, lambda builder, ring, value, k: own_step(builder, ring, value, k)[0])


def _first_use(builder: Any, ring: RingType, value: Any, block: Any) -> Any:
    dims = ring.plan.dims
    if dims == 0:
        return nb.const(0)
    for size in [] if dims is None else nb.cgutils.unpack_tuple(builder, value.grid)[dims:]:
        block = builder.mul(block, size)
    return block


of_pipeline_step(source.first_use, I32, _first_use)
