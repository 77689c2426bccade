"""Inert values, which the memory role does not have.

The memory role runs the kernel's control flow to know what to load, but it computes nothing. The
contents of tiles, and the index of the compute warpgroup, are *inert* there. Arithmetic on an inert
value gives an inert value. Control flow that depends on one (a branch, a loop bound, an index map)
is an error on the GPU and simulated, because loads must not depend on it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn

from ..diagnostics.errors import CompileError

REASON = (
    "steers control flow, a grid or an index, but loads must not depend on tile data or on the "
    "warpgroup axis, because the memory role has no such value: use it in tile.at[…] and in stores"
)


class NoValue:
    """The base class of `Inert` and of its Numba type, for ``isinstance``."""

    what: str


def first_inert(values: Iterable[Any]) -> Any:
    """Return the first value, or Numba type, that only the compute role has, or None."""
    return next((value for value in values if isinstance(value, NoValue)), None)


class Inert(NoValue):
    """A value that only the compute role has, as represented in the memory role."""

    def __init__(self, what: str) -> None:
        self.what = what

    def __repr__(self) -> str:
        return self.what

    def _steers(self, *_: Any) -> NoReturn:
        raise CompileError(f"{self.what} {REASON}")

    __bool__ = __int__ = __index__ = __float__ = _steers

    def _stays(self, *other: Any) -> Any:
        # a tile operand implements the operation itself
        return NotImplemented if any(getattr(o, "inert", False) for o in other) else self

    def astype(self, _dtype: Any) -> Inert:
        return self

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __floordiv__ = __rfloordiv__ = (
        _stays
    )
    __mod__ = __rmod__ = __truediv__ = __rtruediv__ = __neg__ = __and__ = __or__ = __xor__ = _stays
    __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = _stays
    __hash__ = None  # type: ignore[assignment]
