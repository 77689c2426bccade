"""Recording of kernel calls instead of running them, for `numpipe.explain` of an op.

While `noting` is active, a kernel call that names a target is recorded and runs nothing, and ops
allocate nothing (`ops.op_outputs`)."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import numpy as np

from ..launch.array_info import ArrayInfo, dense_strides

F = TypeVar("F", bound=Callable)
_places = itertools.count(1)
"""counter for the addresses of imagined arrays, which are 2**40 bytes apart so that none overlap"""


class Noted(NamedTuple):
    """A call that was recorded instead of run."""

    kernel: Any
    args: tuple
    named: dict[str, Any]
    out: Any


@dataclass
class Notes:
    """The recorded calls, and the reasons why operands are copied first."""

    calls: list[Noted] = field(default_factory=list)
    copied: list[str] = field(default_factory=list)


OPS: list = []
"""functions of arrays whose calls can be recorded"""


def noted(op: F) -> F:
    """Register an op whose calls can be recorded; it allocates, and reports copies, only through
    `ops.op_outputs`."""
    OPS.append(op)
    return op


_taken: ContextVar[Notes | None] = ContextVar("numpipe notes", default=None)


def imagined(
    shape: Sequence[int], dtype: Any, strides: Sequence[int] | None = None, offset: int = 0
) -> ArrayInfo:
    """Describe a nonexistent GPU array, contiguous by default. It begins `offset` bytes after an
    aligned address."""
    dtype = np.dtype(dtype)
    strides = dense_strides(shape, dtype.itemsize) if strides is None else tuple(strides)
    return ArrayInfo(
        "cuda", (next(_places) << 40) + offset, tuple(shape), strides, dtype, 0, True, None
    )


def taken() -> Notes | None:
    """Return the active notes, or None if calls are not being recorded."""
    return _taken.get()


@contextlib.contextmanager
def noting() -> Iterator[Notes]:
    """Record calls inside the with block."""
    notes = Notes()
    token = _taken.set(notes)
    try:
        yield notes
    finally:
        _taken.reset(token)
