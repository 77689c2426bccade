"""Inert values in Numba: arithmetic stays inert, steering is a typing error."""

from __future__ import annotations

import operator
from typing import Any

from ..diagnostics.errors import CompileError
from . import numba as nb
from .inert import REASON


class InertType(nb.types.Type):  # type: ignore[misc]
    def __init__(self, what: str) -> None:
        self.what = what
        super().__init__(name=f"inert({what})")

    def unify(self, context: Any, other: Any) -> Any:
        """A variable that is a number at one time, and inert at another, is inert."""
        return self if isinstance(other, (nb.types.Number, nb.types.Boolean)) else None


@nb.register_model(InertType)
class _InertModel(nb.models.OpaqueModel):  # type: ignore[misc]
    pass


for _number in (nb.types.Number, nb.types.Boolean):
    nb.lower_cast(_number, InertType)(lambda context, builder, fromty, toty, value: nb.nothing(context))


#: types whose values must not steer control flow: classes with an attribute `what`
STEERLESS: list[type] = [InertType]


def _arithmetic(function: Any) -> None:
    @nb.typing_registry.register_global(function)
    class Template(nb.AbstractTemplate):  # type: ignore[misc]
        key = function

        def generic(self, args: Any, kws: Any) -> Any:
            inert = next((a for a in args if isinstance(a, InertType)), None)
            tiles = any(isinstance(a, tuple(STEERLESS)) and not isinstance(a, InertType) for a in args)  # stay tiles: see tile_cuda
            return None if inert is None or tiles else inert(*args)

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return nb.nothing(context)

    for pattern in ((InertType, nb.types.Any), (nb.types.Any, InertType), (InertType,)):
        nb.lowering_registry.lower(function, *pattern)(lower)


_ARITHMETIC: tuple[Any, ...] = (
    operator.add, operator.sub, operator.mul, operator.floordiv, operator.truediv, operator.mod, operator.neg,
    operator.and_, operator.or_, operator.xor, operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne,
    operator.iadd, operator.isub, operator.imul)
for _function in _ARITHMETIC:
    _arithmetic(_function)


def _steering(function: Any) -> None:
    @nb.typing_registry.register_global(function)
    class Template(nb.AbstractTemplate):  # type: ignore[misc]
        key = function

        def generic(self, args: Any, kws: Any) -> Any:
            for arg in args:
                if isinstance(arg, tuple(STEERLESS)):
                    raise CompileError(f"{getattr(arg, 'what', arg)} {REASON}")
            return None


_STEERING: tuple[Any, ...] = (bool, int, float, range, operator.index, operator.truth, operator.not_)
for _function in _STEERING:
    _steering(_function)
