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
def divisor(d: Any) -> tuple[Any, Any]:
    """What `divide` needs of a divisor that many numbers are divided by: (d, 2³² / d), one division for all of them.

    0 counts as 1: a loop over no tiles divides nothing.
    """
    d = max(int(d), 1)
    return np.int32(d), np.uint32(0xFFFFFFFF // d).view(np.int32)


@op
def divide(a: Any, by: tuple[Any, Any]) -> Any:
    """``a // d`` of a non-negative int32 by a `divisor`: a multiplication and a correction, 20 cycles instead of 150.

    >>> int(divide(1000, divisor(7)))
    142
    """
    return np.int32(int(a) // int(by[0]))


@op
def add(a: Any, b: Any) -> Any:
    """``a + b`` of int32 values."""
    return np.int32(a) + np.int32(b)


@op
def successor(k: Any) -> Any:
    """``k + 1``, opaque to the compiler: a loop counted with it is not unrolled."""
    return np.int32(k) + np.int32(1)

