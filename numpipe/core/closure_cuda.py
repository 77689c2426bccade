"""Callable values in Numba."""

from __future__ import annotations

import itertools
from typing import Any

from . import numba as nb
from .facts import Facts, facts_of
from .op import Op

_serials = itertools.count()
_names: dict[int, tuple[int, Any]] = {}
_lowered: set[Any] = set()


def _serial(function: Any) -> int:
    """A number for a function that no other function ever gets (an id can be reused after it dies)."""
    if id(function) not in _names:
        _names[id(function)] = (next(_serials), function)
    return _names[id(function)][0]


class BoundType(nb.types.Callable):  # type: ignore[misc]
    """An operation bound to its first argument; its calls are calls of the operation."""

    def __init__(self, function: Op[..., Any], captures: Any) -> None:
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
        return (BoundType, self)


nb.struct_model(BoundType, lambda ty: [("captures", ty.captures)])


def _lower_call(bound: BoundType) -> None:
    if bound in _lowered:
        return
    _lowered.add(bound)

    def call(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        captures = nb.fields(context, builder, bound, args[0]).captures
        argtypes = (bound.captures, *sig.args[1:])
        return nb.call(context, builder, bound.function, argtypes, (captures, *args[1:]))[1]

    nb.lowering_registry.lower((BoundType, bound), bound, nb.types.VarArg(nb.types.Any))(call)


def bound_type(function: Op[..., Any], captures: Any) -> BoundType:
    """The type of `function` bound to a value of type `captures`, ready to be called."""
    value = BoundType(function, captures)
    _lower_call(value)
    return value


def bound_value(context: Any, builder: Any, ty: BoundType, captures: Any) -> Any:
    """A value of it."""
    return nb.struct(context, builder, ty, captures=captures)


def bound(function: Op[..., Any], captures: Any) -> Any:
    """Typing of ``bind(captures)``."""
    plain = nb.unliteral(captures)
    value = bound_type(function, plain)
    return value(plain), lambda context, builder, sig, args: bound_value(context, builder, value, args[0])
