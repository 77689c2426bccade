"""Callable values in Numba."""

from __future__ import annotations

import itertools
from typing import Any

from . import numba as nb
from .functions import Facts, facts_of
from .op import Op

_serials = itertools.count()


def _serial(function: Op) -> int:
    """Return a number that is unique to the function, unlike an id, which may be reused after the
    function is gone."""
    return int(vars(function).setdefault("_serial", next(_serials)))


class BoundType(nb.types.Callable):  # type: ignore[misc]
    """The type of an operation bound to its first argument, of type `captures`. Calling it calls
    the operation."""

    def __init__(self, function: Op, captures: Any) -> None:
        self.function, self.captures = function, captures
        super().__init__(name=f"bound({function.__name__}@{_serial(function)}, {captures})")  # type: ignore[attr-defined]

    @property
    def facts(self) -> Facts | None:
        return facts_of(self.function)

    def get_call_type(self, context: Any, args: Any, kws: Any) -> Any:
        sig = self.function._numba_type_.get_call_type(context, (self.captures, *args), kws)
        return nb.signature(sig.return_type, *sig.args[1:], recvr=self)

    def get_call_signatures(self) -> Any:
        return (), True

    def get_impl_key(self, sig: Any) -> Any:
        return BoundType


nb.struct_model(BoundType, lambda ty: [("captures", ty.captures)])


@nb.lowered(BoundType, BoundType)
def _call(builder: Any, sig: Any, args: Any) -> Any:
    bound = sig.args[0]
    captures = builder.fields(bound, args[0]).captures
    return builder.apply(bound.function, (bound.captures, *sig.args[1:]), (captures, *args[1:]))


def bound_value(builder: Any, ty: BoundType, captures: Any) -> Any:
    return builder.struct(ty, captures=captures)


def bind_typer(function: Op, captures: Any) -> Any:
    """Type ``bind(captures)``."""
    plain = nb.unliteral(captures)
    result = BoundType(function, plain)
    builder, args = yield result(plain)
    return bound_value(builder, result, args[0])
