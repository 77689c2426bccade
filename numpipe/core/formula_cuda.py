"""The CUDA implementation of a `formula`, which runs its source on LLVM values with Python's
operators."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from . import numba as nb
from .numba import BOOLEAN, I32

RESULTS = {"Any": I32, "bool": BOOLEAN, "None": nb.VOID}


class Value:
    """An LLVM int32, or the bool of a comparison. Quotients and remainders are unsigned."""

    def __init__(self, builder: Any, value: Any) -> None:
        self.builder, self.value = builder, value

    def _apply(self, instruction: str, other: Any, *symbol: str) -> Value:
        if isinstance(other, Value):
            other = other.value
            if other.type != self.value.type:
                other = self.builder.zext(other, self.value.type)
        return Value(self.builder, getattr(self.builder, instruction)(*symbol, self.value, other))

    def __eq__(self, other: Any) -> Value:  # type: ignore[override]
        return self._apply("icmp_signed", other, "==")

    def __ge__(self, other: Any) -> Value:
        return self._apply("icmp_signed", other, ">=")

    def __rand__(self, other: bool) -> Value:
        return Value(self.builder, nb.const(other, self.value.type))._apply("and_", self)

    __hash__ = None  # type: ignore[assignment]


def _operator(name: str, instruction: str) -> None:
    setattr(Value, f"__{name}__", lambda self, other: self._apply(instruction, other))


for _name, _instruction in (
    ("add", "add"), ("radd", "add"), ("sub", "sub"), ("mul", "mul"), ("floordiv", "udiv"),
    ("mod", "urem"), ("and", "and_"), ("or", "or_"), ("xor", "xor"), ("lshift", "shl"),
    ("rshift", "lshr"),
):  # fmt: skip
    _operator(_name, _instruction)


def typer_of(function: Callable) -> Callable:
    """Return the typer of a formula."""
    signature = inspect.signature(function)
    kinds = [parameter.annotation for parameter in signature.parameters.values()]
    result = RESULTS[signature.return_annotation]

    def typer(*given: Any) -> Any:
        types = [I32 if kind == "Any" else ty for kind, ty in zip(kinds, given, strict=True)]
        builder, args = yield result(*types)
        values = []
        for kind, ty, value in zip(kinds, types, args, strict=True):
            if kind == "Any":
                values.append(Value(builder, value))
            elif kind in ("int", "str"):
                values.append(nb.literal(ty))
            else:
                values.append(ty.compiled(builder, value))
        found = function(*values)
        if result is nb.VOID:
            return None
        return (
            found.value if isinstance(found, Value) else builder.context.get_constant(result, found)
        )

    return typer
