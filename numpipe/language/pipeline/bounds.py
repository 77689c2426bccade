"""Where a pipeline's blocks lie: what it means that the array has no element where an index map
says.

A block of whole sides may stick out of its array, or lie beyond it, as the last ones of a grid do:
TMA reads what is outside as `oob_fill`, and does not store it. An index that names an element is
another thing: of a squeezed dimension, or the start of an `Element`. Where the whole block lies
outside, the index is wrong, unless the BlockSpec says what it means (`mode`)::

    mode     the index map returns row 7 of 4        and, of an Element(64), start -80
    None     the hazard "out-of-bounds"              the same
    "zero"   zeros (or `oob_fill`); nothing stored   the same
    "clip"   row 3                                   start 0

The simulator checks every copy; on the GPU ``CompilerParams(debug=True)`` does (`bounds_cuda`).
"""

from __future__ import annotations

from collections.abc import Sequence

from ...core.machine import failure
from ...diagnostics.errors import SimulationError
from ...plan.block import Block


def named(block: Block) -> tuple[int, ...]:
    """Return the dimensions along which an index names an element of the array."""
    return tuple(axis for axis, scale in enumerate(block.scales) if scale == 1)


def bounded(
    block: Block, start: list[int], sizes: Sequence[int], what: str, written: bool
) -> list[int]:
    """Return where a block that starts at `start`, by its index map `what`, is taken from an array
    of these sizes.

    `written`: it is stored. Raises SimulationError for a block that lies outside and has no mode,
    but for arrays without elements.
    """
    for axis in named(block):
        at, side, size = start[axis], block.sides[axis], int(sizes[axis])
        if block.mode == "clip":
            start[axis] = min(max(at, 0), max(size - side, 0))
        elif block.mode == "zero":
            # TMA traps at a store before the array
            start[axis] = size if written and at <= -side else at
        elif not -side < at < size and all(sizes):
            fix = (
                f'return {1 - side}…{size - 1}, or say what it means, BlockSpec(…, mode="zero") '
                'or mode="clip"'
            )
            raise failure(
                SimulationError,
                "out-of-bounds",
                (
                    f"{what} returned element {at} for dimension {axis}, of which the array has "
                    f"{size}"
                    + f": all {side} elements from there on lie outside" * (side > 1)
                    + f"; {fix}"
                ),
                fix,
                "takes a block of an array",
            )
    return start
