"""A ring of numbers on the GPU: where they are."""

from __future__ import annotations

from typing import Any

from ...core import numba as nb
from ...core.op import cuda_meaning
from . import number_ring as source

I32 = nb.types.int32


@cuda_meaning(source.number_at)
def _number_at(_context: Any, ring: Any, slot: Any) -> Any:
    plan = ring.plan
    return I32(ring, I32), lambda context, builder, sig, args: builder.add(
        nb.smem(builder, plan.base), builder.mul(args[1], nb.const(plan.stage_stride)))
