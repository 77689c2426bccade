"""NaN checks: with ``CompilerParams(debug=True, check_nan=True)``, a NaN that a kernel stores is
reported with its element and line.

The AST pass wraps the value of each ``x[…] = value`` in a call of `no_nan`, whether x is an array,
a tile in shared memory, or an output's block; 16-bit and 32-bit floats are checked. Not checked are
the sums of `numpipe.atomic_add` and `numpipe.combine`, and TMA copies.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...arch.dtypes import BFLOAT16, FLOAT16, FLOAT32
from ...core.machine import failure
from ...core.op import context_op
from ...diagnostics.errors import SimulationError
from ...diagnostics.nan_report import FIX, said
from ...plan.context import Context
from .tile import Tile

CHECKED = FLOAT32, FLOAT16, BFLOAT16


@context_op(site=True)
def no_nan(np_: Context, site: str, target: str, value: Any) -> Any:
    """Return the value that ``target = value`` stores. Raises SimulationError if one of its
    elements is NaN."""
    tile = isinstance(value, Tile)
    if not np_.computes or not (
        value.dtype in CHECKED if tile else isinstance(value, (float, np.floating))
    ):
        return value
    found = np.argwhere(np.isnan(np.asarray(value.value if tile else value, np.float32)))
    if len(found):
        message = said(target, tuple(map(int, found[0])), len(found))
        raise failure(SimulationError, "nan-stored", message, FIX, f"stores to {target}")
    return value
