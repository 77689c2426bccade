"""Where a pipeline's blocks lie, on the GPU: clipped where a BlockSpec says so, and told to the
host if the kernel is debugged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...core import numba as nb
from ...plan.outside_cuda import clipped, report
from ...plan.plans import RingPlan
from ...plan.unit import Unit
from .bounds import named


def sized(plan: RingPlan, unit: Unit) -> tuple[int, ...]:
    """Return the operands of a ring for which the sizes of their arrays have to be known where
    blocks are copied."""
    return tuple(
        number
        for number, block in enumerate(plan.blocks)
        if named(block)
        and (
            block.mode == "clip"
            or (block.mode is None and unit.params.debug)
            or (block.mode == "zero" and plan.written)
        )
    )


def bounded(
    builder: Any,
    unit: Unit,
    plan: RingPlan,
    number: int,
    what: str,
    start: list[Any],
    sizes: Sequence[Any],
) -> list[Any]:
    """`bounds.bounded` of an operand; `sizes` are int32. A store before the array, at which TMA
    traps, goes behind its end."""
    block = plan.blocks[number]
    for axis in named(block):
        at, side, size = start[axis], block.sides[axis], sizes[axis]
        before = builder.icmp_signed("<=", at, nb.const(-side))
        if block.mode == "clip":
            start[axis] = clipped(builder, at, builder.sub(size, nb.const(side)))
            continue
        if block.mode is None:
            report(
                builder,
                unit,
                what,
                axis,
                at,
                size,
                builder.or_(before, builder.icmp_signed(">=", at, size)),
            )
        if plan.written:
            start[axis] = builder.select(before, size, at)
    return start
