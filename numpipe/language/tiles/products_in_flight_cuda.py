"""Products in flight on the GPU: each warp arrives for itself, after its wait."""

from __future__ import annotations

from typing import Any

from ...core import numba as nb
from ...core.numba import I32
from ...core.op import cuda_meaning
from ...intrinsics import barrier
from . import products_in_flight as source
from .cluster_arrivals_cuda import arrive


@cuda_meaning(source.commit_to)
def _commit_to(ring: Any, part: Any, address: Any) -> Any:
    plan = ring.plan
    builder, args = yield nb.VOID(ring, part, I32)
    arrive(builder, plan.peers[nb.literal(part)], plan.cluster, args[2])
    # The arrival may come before the end of a loop: see `join`.
    if ("consumed" in plan.manual or plan.delay) and not plan.private:
        builder.issue(barrier.warp_sync)
