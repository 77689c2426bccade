"""Blocks of a pipeline that lie outside their array.

A block without squeezed dimensions may extend past the end of its array, or lie beyond it, as the
last blocks of a grid do: TMA reads elements outside the array as `oob_fill`, and does not store
them. It is different if an index names an element, in a squeezed dimension, or as the start of an
`Element`, and if it is data: read from an array, or computed from a number that was. If the whole
block then lies outside, the index is wrong, unless the `mode` of the
BlockSpec handles it::

    mode     the index map returns row 7 of 4        and, of an Element(64), start -80
    None     the hazard "out-of-bounds"              the same
    "zero"   zeros (or `oob_fill`); nothing stored   the same
    "clip"   row 3                                   start 0

"clip" does not apply to an index of whole blocks. The simulator checks every copy. On the GPU,
``CompilerParams(debug=True)`` enables the check of indices that name an element (`bounds_cuda`).
"""

from __future__ import annotations

from collections.abc import Container, Sequence

from ...arch.dimensions import Ints
from ...core.machine import failure
from ...diagnostics.errors import SimulationError
from ...plan.block import Block


def named(block: Block) -> Ints:
    """Return the dimensions along which an index names an element of the array."""
    return tuple(axis for axis, scale in enumerate(block.scales) if scale == 1)


def bounded(
    block: Block,
    start: list[int],
    sizes: Sequence[int],
    what: str,
    written: bool,
    read: Container[int] = (),
) -> list[int]:
    """Return the start of a block in an array of these sizes, given the `start` that its index map
    `what` returns.

    `written`: the block is stored. `read`: the dimensions whose index was read from an array.
    Raises SimulationError for a block that lies outside, whose index names an element or was read,
    and has no mode, except for arrays without elements.
    """
    for axis, scale in enumerate(block.scales):
        at, side, size = start[axis], block.sides[axis], int(sizes[axis])
        if scale == 1 and block.mode == "clip":
            start[axis] = min(max(at, 0), max(size - side, 0))
        elif scale == 1 and block.mode == "zero":
            # TMA traps at a store that starts before the array.
            start[axis] = size if written and at <= -side else at
        elif (
            not -side < at < size
            and all(sizes)
            and (scale == 1 or (axis in read and block.mode != "zero"))
        ):
            fix = (
                f"return {(scale - side) // scale}…{(size - 1) // scale}, or say what it means, "
                'BlockSpec(…, mode="zero")' + ' or mode="clip"' * (scale == 1)
            )
            unit, count = ("element", size) if scale == 1 else ("block", -(-size // scale))
            raise failure(
                SimulationError,
                "out-of-bounds",
                (
                    f"{what} returned {unit} {at // scale}{' from an array' * (scale > 1)} for "
                    f"dimension {axis}, of which the array has {count}"
                    + f": all {side} elements from there on lie outside" * (side > 1)
                    + f"; {fix}"
                ),
                fix,
                "takes a block of an array",
            )
    return start
