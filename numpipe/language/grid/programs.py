"""Where in the grid a CTA is, by number: `program_id` and `num_programs`; by name there are `axis_index` and `axis_size`."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...core.machine import current
from ...core.op import constant, op
from ...diagnostics.errors import SpecError
from ...plan.unit import Unit

__all__ = ["num_programs", "program_id"]


def check(operation: str, axis: Any) -> Any:
    """A dimension of a grid, 0…2, given as a constant or as its Numba type."""
    axis = constant(operation, "axis", axis)
    if isinstance(axis, bool) or not isinstance(axis, int) or not 0 <= axis <= 2:
        raise SpecError(f"{operation}(axis): axis is a compile-time int of 0…2, a dimension of the grid, got {axis!r}")
    return axis


def check_ctas(unit: Unit | None, operation: str, axis: int) -> int:
    """`axis`, unless this is a kernel over tiles and CTAs have no such dimension: its own source asks for steps (`wrapped`)."""
    words = None if unit is None else unit.params.dimension_semantics
    if words is not None and axis >= words.count("parallel"):
        why = (f"is sequential: write {operation}({axis}), with the number, in the kernel itself, and pass its value to functions"
               if axis < len(words) else f"is none of the {len(words)} that the kernel's grid has")
        raise SpecError(f"{operation}({axis}): dimension {axis} {why}")
    return axis


@op
def program_id(axis: int) -> Any:
    """Index of this CTA along dimension `axis` of the grid (0…2, a compile-time int): blockIdx.x, y or z, an int32."""
    return np.int32(current().cta[_of_ctas("program_id", axis)])


@op
def num_programs(axis: int) -> Any:
    """CTAs along dimension `axis` of the grid (0…2, a compile-time int): gridDim.x, y or z, an int32."""
    return np.int32(current().grid[_of_ctas("num_programs", axis)])


def _of_ctas(operation: str, axis: Any) -> int:
    return check_ctas(current().unit, operation, check(operation, axis))
