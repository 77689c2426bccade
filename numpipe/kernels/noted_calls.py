"""Calls of kernels that are noted instead of made: what a function of arrays would launch, for
`numpipe.explain` of an op.

While notes are taken, a kernel's call with a target notes itself and runs nothing, and ops allocate
nothing (`ops.op_outputs`).
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import numpy as np

from ..launch.array_info import ArrayInfo

F = TypeVar("F", bound=Callable[..., Any])
_places = itertools.count(1)
"""of arrays that are not there: each begins 2**40 bytes behind the one before, so that none
overlap"""


class Noted(NamedTuple):
    """A call that was not made."""

    kernel: Any
    args: tuple[Any, ...]
    named: dict[str, Any]
    out: Any


@dataclass
class Notes:
    """What was noted: calls, and why operands are copied before."""

    calls: list[Noted] = field(default_factory=list)
    copied: list[str] = field(default_factory=list)


OPS: list[Any] = []
"""functions of arrays whose calls can be noted"""


def noted(op: F) -> F:
    """Add an op to those whose calls can be noted: it allocates, and says what it copies, by
    `ops.op_outputs` alone."""
    OPS.append(op)
    return op


_taken: ContextVar[Notes | None] = ContextVar("numpipe notes", default=None)


def imagined(
    shape: Sequence[int], dtype: Any, strides: Sequence[int] | None = None, offset: int = 0
) -> ArrayInfo:
    """Describe an array of a GPU that is not there, contiguous by default; `offset`: where it
    begins behind a line of memory."""
    dtype = np.dtype(dtype)
    dense = [dtype.itemsize * math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    strides = tuple(dense if strides is None else strides)
    return ArrayInfo(
        "cuda", (next(_places) << 40) + offset, tuple(shape), strides, dtype, 0, True, None
    )


def taken() -> Notes | None:
    """Return the notes that are being taken; None where calls are made."""
    return _taken.get()


@contextlib.contextmanager
def noting() -> Iterator[Notes]:
    """Take notes while it lasts."""
    notes = Notes()
    token = _taken.set(notes)
    try:
        yield notes
    finally:
        _taken.reset(token)
