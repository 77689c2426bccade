"""Where a pipeline's blocks lie, on the GPU: clipped where the BlockSpec says so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...core import numba as nb
from ...plan.block import Block
from ...plan.plans import RingPlan
from .bounds import named

I32 = nb.types.int32


def sized(plan: RingPlan) -> tuple[int, ...]:
    """Return the operands of a ring for which the sizes of their arrays have to be known where blocks are copied."""
    return tuple(number for number, block in enumerate(plan.blocks) if block.mode == "clip" and named(block))


def narrowed(builder: Any, value: Any) -> Any:
    """Return an integer as an int32: the nearest that there is, where it is wider and there is none."""
    if value.type.width <= 32:
        return value
    for comparison, limit in (("<", 2 ** 31 - 1), (">", -2 ** 31)):
        bound = nb.const(limit, value.type)
        value = builder.select(builder.icmp_signed(comparison, value, bound), value, bound)
    return builder.trunc(value, nb.i32)


def bounded(builder: Any, block: Block, start: list[Any], sizes: Sequence[Any]) -> list[Any]:
    """`bounds.bounded`; `sizes` are int32."""
    def extreme(comparison: str, one: Any, other: Any) -> Any:
        return builder.select(builder.icmp_signed(comparison, one, other), one, other)

    for axis in named(block):
        last = extreme(">", builder.sub(sizes[axis], nb.const(block.sides[axis])), nb.const(0))
        start[axis] = extreme("<", extreme(">", start[axis], nb.const(0)), last)
    return start
