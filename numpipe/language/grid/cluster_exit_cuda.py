"""`cluster_exit` on the GPU."""

from __future__ import annotations

from typing import Any

from ...core import numba as nb
from ...core.numba import I32
from ...core.op import cuda_meaning
from ..memory.scratch_cuda import BarriersType
from ..pipeline.ring_cuda import RingType, counter_of
from ..pipeline.steps import await_released
from . import cluster_exit as source

NOTHING = nb.Tuple(())


@cuda_meaning(source.await_peers)
def _await_peers(np_: Any) -> Any:
    rings = (
        [
            RingType(np_, plan, NOTHING, NOTHING, 0, (), False)
            for plan in source.shared_rings(np_.unit)
        ]
        if np_.loads
        else []
    )
    sums = (
        [BarriersType(np_, of, of.kind.shape) for of in source.shared_sums(np_.unit)]
        if np_.computes
        else []
    )
    for ring in rings:
        nb.returns(await_released, (ring,))
    for consumed in sums:
        nb.returns(source.await_read, (consumed,))
    builder, args = yield
    if np_.unit.meets_at_end:
        return
    zero = nb.const(0)
    for ring in rings:
        grid = builder.make_tuple(nb.UniTuple(I32, 0), [])
        value = builder.struct(
            ring,
            np=args[0],
            grid=grid,
            first=zero,
            steps=builder.load(counter_of(builder, ring, args[0])),
        )
        builder.apply(await_released, (ring,), (value,))
    for consumed in sums:
        value = builder.struct(consumed, np=args[0], first=zero)
        builder.apply(source.await_read, (consumed,), (value,))
