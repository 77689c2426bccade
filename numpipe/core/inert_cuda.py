"""Inert values in Numba: arithmetic stays inert, and using one in control flow is a typing
error."""

from __future__ import annotations

import operator
from typing import Any

from ..diagnostics.errors import CompileError
from . import numba as nb
from .inert import REASON, NoValue, first_inert


class InertType(nb.FieldsType, NoValue):
    what: str

    def unify(self, context: Any, other: Any) -> Any:
        """Make a variable inert if it is a number on one path and inert on another."""
        return self if isinstance(other, (nb.types.Number, nb.Boolean)) else None


nb.register_model(InertType)(nb.models.OpaqueModel)
for _number in (nb.types.Number, nb.Boolean):
    nb.lower_cast(_number, InertType)(lambda builder, fromty, toty, value: nb.nothing)


STEERLESS: list[type] = [InertType]
"""types with an attribute `what` whose values must not affect control flow"""


def _stays(*args: Any) -> Any:
    """Type arithmetic with an inert value. If a tile is involved, its own typer is used
    (`tile_cuda`)."""
    inert = first_inert(args)
    if inert is not None and not any(
        isinstance(a, tuple(STEERLESS)) and not isinstance(a, InertType) for a in args
    ):
        yield inert(*args)


def steers(*args: Any) -> None:
    """Raise CompileError for an operand that must not affect control flow. Used as a typer, it
    returns None for all others."""
    for arg in args:
        if isinstance(arg, tuple(STEERLESS)):
            raise CompileError(f"{getattr(arg, 'what', arg)} {REASON}")


_ARITHMETIC: tuple = (
    operator.add,
    operator.sub,
    operator.mul,
    operator.floordiv,
    operator.truediv,
    operator.mod,
    operator.neg,
    operator.and_,
    operator.or_,
    operator.xor,
    operator.lt,
    operator.le,
    operator.gt,
    operator.ge,
    operator.eq,
    operator.ne,
    operator.iadd,
    operator.isub,
    operator.imul,
)
_STEERING: tuple = (
    bool,
    int,
    float,
    range,
    operator.index,
    operator.truth,
    operator.not_,
)
for _typer, _functions in ((_stays, _ARITHMETIC), (steers, _STEERING)):
    for _function in _functions:
        nb.overload(_function, _typer)
