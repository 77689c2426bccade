"""The place of a CTA in the grid, by number: `program_id` and `num_programs`; by name there are `axis_index` and `axis_size`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...core.machine import current
from ...core.op import constant, op
from ...diagnostics.errors import SpecError
from ...plan.unit import Unit

__all__ = ["num_programs", "program_id"]


def check(operation: str, axis: Any) -> Any:
    """Return a dimension of a grid, 0…2, given as a constant or as its Numba type; SpecError for other values."""
    axis = constant(operation, "axis", axis)
    if isinstance(axis, bool) or not isinstance(axis, int) or not 0 <= axis <= 2:
        raise SpecError(f"{operation}(axis): axis is a compile-time int of 0…2, a dimension of the grid, got {axis!r}")
    return axis


def check_ctas(unit: Unit | None, operation: str, axis: int) -> int:
    """Return `axis`; SpecError in a kernel over tiles whose CTAs have no such dimension: only its source asks for steps."""
    words = None if unit is None else unit.params.dimension_semantics
    if words is not None and axis >= words.count("parallel"):
        why = (f"is sequential: write {operation}({axis}), with the number, in the kernel itself, and pass its value to functions"
               if axis < len(words) else f"is none of the {len(words)} that the kernel's grid has")
        raise SpecError(f"{operation}({axis}): dimension {axis} {why}")
    return axis


@op
def program_id(axis: int) -> Any:
    """Return the index of this CTA along dimension `axis` of the grid (0…2, a compile-time int): blockIdx.x, y or z, an int32."""
    return np.int32(current().cta[_of_ctas("program_id", axis)])


@op
def num_programs(axis: int) -> Any:
    """Return the CTAs along dimension `axis` of the grid (0…2, a compile-time int): gridDim.x, y or z, an int32."""
    return np.int32(current().grid[_of_ctas("num_programs", axis)])


def _of_ctas(operation: str, axis: Any) -> int:
    return check_ctas(current().unit, operation, check(operation, axis))


@op
def own_index() -> Any:
    """The index of this CTA in the grid, x fastest."""
    x, y, z = current().cta
    width, height, _ = current().grid
    return np.int32(x + width * (y + height * z))


@op
def cta_count() -> Any:
    """The number of CTAs of the grid."""
    return np.int32(math.prod(current().grid))
