"""A fake of LLVM's IR builder whose values are NumPy arrays with an element per lane.

It shows which address each lane computes, without a compiler.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from numpipe.core import numba as nb


class LaneInts(np.ndarray):
    """An LLVM int32 with a value per lane."""

    type = nb.i32


def _instruction(operation: Callable[..., Any]) -> Any:
    """Return an instruction of the builder; its operands may be LLVM constants."""

    def built(*operands: Any) -> Any:
        found = operation(*(getattr(each, "constant", each) for each in operands))
        return np.asarray(found).view(LaneInts)

    return staticmethod(built)


class LaneBuilder:
    """Integer instructions on all lanes at once."""

    add, mul = _instruction(np.add), _instruction(np.multiply)
    udiv = _instruction(np.floor_divide)
    and_, or_, xor = (_instruction(getattr(np, f"bitwise_{name}")) for name in ("and", "or", "xor"))
    shl, lshr = _instruction(np.left_shift), _instruction(np.right_shift)
