"""int32 arithmetic of kernels: Numba widens int32 + int32 to int64, and a 64-bit division costs a hundred instructions."""

from __future__ import annotations

from typing import Any

import numpy as np

from ._op import op


@op
def quotient(a: Any, b: Any) -> Any:
    """``a // b`` of non-negative int32 values."""
    return np.int32(int(a) // int(b))


@op
def remainder(a: Any, b: Any) -> Any:
    """``a % b`` of non-negative int32 values."""
    return np.int32(int(a) % int(b))


@op
def cdiv(a: Any, b: Any) -> Any:
    """Ceiling division, ``-(-a // b)``: how many blocks of b cover a.

    >>> int(cdiv(130, 64))
    3
    """
    if b <= 0:
        raise ZeroDivisionError(f"cdiv({a}, {b}): the divisor must be positive")
    return np.int32(-(-int(a) // int(b)))


@op
def add(a: Any, b: Any) -> Any:
    """``a + b`` of int32 values."""
    return np.int32(a) + np.int32(b)


@op
def successor(k: Any) -> Any:
    """``k + 1``, opaque to the compiler: a loop counted with it is not unrolled."""
    return np.int32(k) + np.int32(1)


@op
def minimum(a: Any, b: Any) -> Any:
    """The smaller of two int32 values."""
    return np.int32(min(int(a), int(b)))
