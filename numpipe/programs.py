"""Where in the grid a CTA is, by number: `program_id` and `num_programs`; by name there are `axis_index` and `axis_size`."""

from __future__ import annotations

from typing import Any

import numpy as np

from ._machine import current
from ._op import constant, op
from .errors import SpecError


def check(operation: str, axis: Any) -> int:
    """A dimension of a grid, 0…2."""
    if isinstance(axis, bool) or not isinstance(axis, int) or not 0 <= axis <= 2:
        raise SpecError(f"{operation}(axis): axis is a compile-time int of 0…2, a dimension of the grid, got {axis!r}")
    return axis


@op
def program_id(axis: int) -> Any:
    """Index of this CTA along dimension `axis` of the grid (0…2, a compile-time int): blockIdx.x, y or z, an int32."""
    return np.int32(current().cta[check("program_id", constant("program_id", "axis", axis))])


@op
def num_programs(axis: int) -> Any:
    """CTAs along dimension `axis` of the grid (0…2, a compile-time int): gridDim.x, y or z, an int32."""
    return np.int32(current().grid[check("num_programs", constant("num_programs", "axis", axis))])
