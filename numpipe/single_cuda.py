"""Single-stream pipelines on the GPU: what the ring of a loop is made of."""

from __future__ import annotations

from typing import Any

from . import _numba as nb
from . import single as source
from ._op import cuda_meaning
from .ring_cuda import RingType, blocks_in, constant_of_plan, of_pipeline_step, own_step, ring_value

I32 = nb.types.int32
constant_of_plan(source.slots_of, lambda plan: plan.slots)
of_pipeline_step(source.block_of, I32, lambda builder, ring, value, k: own_step(builder, ring, value, k)[0])


def _first_use(builder: Any, ring: RingType, value: Any, block: Any) -> Any:
    dims = ring.plan.dims
    if dims == 0:
        return nb.const(0)
    for size in [] if dims is None else nb.cgutils.unpack_tuple(builder, value.grid)[dims:]:
        block = builder.mul(block, size)
    return block


of_pipeline_step(source.first_use, I32, _first_use)


@cuda_meaning(source.blocks_of)
def _blocks_of(_context: Any, ring: Any) -> Any:
    def codegen(context: Any, builder: Any, _sig: Any, args: Any) -> Any:
        value = ring_value(context, builder, ring, args[0])
        return blocks_in(context, builder, ring, value, value.steps)

    return I32(ring), codegen


def _field(operation: Any, name: str, type: Any) -> None:
    def typer(_context: Any, ring: Any) -> Any:
        return type(ring)(ring), lambda context, builder, sig, args: getattr(ring_value(context, builder, ring, args[0]), name)

    cuda_meaning(operation)(typer)


_field(source.grid_in, "grid", lambda ring: nb.types.UniTuple(I32, ring.rank))
_field(source.first_of, "first", lambda ring: I32)
