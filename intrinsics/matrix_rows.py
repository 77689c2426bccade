"""Arguments of `ldmatrix` and `stmatrix` on the simulator: a number for each lane of the warpgroup,
among them the addresses of the rows of 8 × 8 matrices."""

from __future__ import annotations

from typing import Any

import numpy as np

from numpipe.diagnostics.errors import SpecError

WARPS, LANES = 4, 32
"""warps of a warpgroup, and lanes of a warp"""


def per_lane(operation: str, name: str, value: Any) -> np.ndarray:
    """Return an integer for each lane of the warpgroup as an array (warps, lanes). Raises SpecError
    for anything else."""
    array = np.asarray(value)
    if array.shape != (WARPS * LANES,) or array.dtype.kind not in "iu":
        raise SpecError(
            f"{operation}: {name} must be an integer for each of the 128 lanes of the warpgroup on "
            f"the simulated SM, got {array.dtype}{list(array.shape)}"
        )
    return array.reshape(WARPS, LANES)


def row_addresses(operation: str, addr: Any, count: int) -> np.ndarray:
    """Return the row addresses of `count` matrices for each warp, from `addr` of each lane."""
    chunks = per_lane(operation, "addr", addr)[:, : 8 * count]
    if (chunks % 16).any():
        raise SpecError(
            f"{operation}: row address {int(chunks[chunks % 16 != 0][0])} is not a multiple of 16 "
            "bytes"
        )
    return chunks
