"""Blocks outside their array, on the GPU: clipped if the BlockSpec says so, and reported to the
host if the kernel is compiled with debug."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...arch.dimensions import Ints
from ...plan.outside_cuda import clipped, report
from ...plan.plans import RingPlan
from ...plan.unit import Unit
from .bounds import named


def sized(plan: RingPlan, unit: Unit) -> Ints:
    """Return the operands of a ring for which copying blocks requires the sizes of their arrays."""
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
    start: list,
    sizes: Sequence,
) -> list:
    """Apply `bounds.bounded` to an operand; `sizes` are int32. A store before the array, at which
    TMA traps, is moved past its end."""
    block = plan.blocks[number]
    for axis in named(block):
        at, side, size = start[axis], block.sides[axis], sizes[axis]
        before = builder.icmp_signed("<=", at, -side)
        if block.mode == "clip":
            start[axis] = clipped(builder, at, builder.sub(size, side))
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
