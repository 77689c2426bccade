"""A kernel's parameters, and how the arguments of a call are bound to them.

Positional parameters are arrays and scalars, inputs before outputs; keyword-only parameters annotated `Static` are
compile-time constants. A call may name any of them.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable
from types import FunctionType
from typing import Any

import numpy as np

from .errors import SpecError, at
from .specs import Static

SCALAR = (bool, int, float, np.generic)


class Statics(tuple[tuple[str, Any], ...]):
    """Names and values of a call's Statics, as part of dictionary keys: 1, True and 1.0 are different constants.

    >>> Statics([("n", 1)]) == Statics([("n", True)])
    False
    """

    types: tuple[Any, ...]

    def __new__(cls, pairs: Iterable[tuple[str, Any]]) -> Statics:
        made = super().__new__(cls, pairs)
        made.types = tuple([_types(value) for _, value in made])
        return made

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Statics) and self.types == other.types and tuple.__eq__(self, other))

    __hash__ = tuple.__hash__


def _types(value: Any) -> Any:
    """The types in a value, those of a dataclass' fields and a tuple's items included."""
    if isinstance(value, tuple):
        return (type(value), *[_types(v) for v in value])
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return (type(value), *[_types(v) for v in vars(value).values()]) if hasattr(value, "__dict__") else type(value)
    return type(value)


class Parameters:
    """Names of the positional parameters, names and defaults of the Statics."""

    def __init__(self, function: Callable[..., Any]) -> None:
        if not isinstance(function, FunctionType):
            raise SpecError(f"@numpipe.kernel decorates a Python function, got {_a(function)}")
        self.kernel = function.__name__
        if self.kernel == "<lambda>":
            code = function.__code__
            raise SpecError(at(code.co_filename, code.co_firstlineno, "a kernel must be a `def`: the source of a lambda cannot be "
                                                                      "told from the line around it"))
        self.names: list[str] = []
        self.statics: dict[str, Any] = {}
        for name, parameter in inspect.signature(function).parameters.items():
            self._add(name, parameter, function)
        if not self.names:
            raise SpecError(f"kernel {self.kernel}: it has no array parameters")
        self.defaults = Statics(self.statics.items())
        self._hashable([(name, value) for name, value in self.defaults if value is not inspect.Parameter.empty])

    def _add(self, name: str, parameter: inspect.Parameter, function: FunctionType) -> None:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise SpecError(f"kernel {self.kernel}: *{name} is not supported: a kernel's parameters are written out")
        if _is_static(parameter.annotation, function):
            if parameter.kind is not parameter.KEYWORD_ONLY:
                raise SpecError(f"kernel {self.kernel}: '{name}' is Static and must be keyword-only: put it after '*'")
            self.statics[name] = parameter.default
        elif parameter.default is not parameter.empty:
            default = repr(parameter.default)
            raise SpecError(f"kernel {self.kernel}: '{name}' has a default ({default}), which only Statics can have: write "
                            f"'*, {name}: numpipe.Static = {default}', or drop the default")
        else:
            self.names.append(name)

    # ---- a call
    def static_values(self, named: dict[str, Any]) -> Statics:
        """Values of the Statics, taken out of the call's keywords."""
        values = []
        for name, default in self.statics.items():
            value = named.pop(name, default)
            if value is inspect.Parameter.empty:
                raise SpecError(f"kernel {self.kernel}: the Static '{name}' has no default: pass {name}=")
            values.append((name, value))
        self._hashable(values)
        return Statics(values)

    def by_position(self, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
        """All arguments but the Statics, those given by keyword behind the positional ones."""
        full = list(args)
        left = dict(named)
        for parameter in self.names[len(args):]:
            if parameter not in left:
                break
            full.append(left.pop(parameter))
        if left:
            self._refuse(len(full), left)
        if len(full) > len(self.names):
            raise SpecError(f"kernel {self.kernel}: takes {len(self.names)} arguments ({', '.join(self.names)}), got {len(full)}")
        return tuple(full)

    def _refuse(self, bound: int, left: dict[str, Any]) -> None:
        name = next(iter(left))
        if name in self.names[:bound]:
            raise SpecError(f"kernel {self.kernel}: argument '{name}' is given by position and by name")
        if name in self.names:
            raise SpecError(f"kernel {self.kernel}: argument '{self.names[bound]}' is missing, but '{name}' behind it is given")
        known = [*self.names, *self.statics, "out", "target", "stream"]
        raise SpecError(f"kernel {self.kernel}: unexpected argument '{name}'; its arguments are {', '.join(known)}")

    def _hashable(self, values: list[tuple[str, Any]]) -> None:
        for name, value in values:
            try:
                hash(value)
            except TypeError:
                raise SpecError(f"kernel {self.kernel}: the Static '{name}' must be hashable (a number, a tuple, a frozen "
                                f"dataclass), got {_a(value)}: there is one compile a value") from None


def _is_static(annotation: Any, function: FunctionType) -> bool:
    if isinstance(annotation, str):  # from __future__ import annotations
        if annotation.strip("\"'").rpartition(".")[2] == "Static":
            return True
        try:
            annotation = eval(annotation, function.__globals__)
        except Exception:
            return False
    return annotation is Static


def _a(value: Any) -> str:
    return f"{value!r}, a {type(value).__name__}"


# ---- scalars ------------------------------------------------------------------------------------------------------
def scalar_dtype(value: Any, name: str, kernel: str) -> np.dtype:
    """The type that a scalar has in the kernel: bool, int32 and float32 for Python's, its own for a NumPy scalar."""
    if isinstance(value, np.generic):
        if value.dtype.kind not in "biuf" or value.dtype.itemsize > 8:
            raise SpecError(f"kernel {kernel}: the scalar '{name}' is {value.dtype}: pass a bool, an int, a float or a NumPy "
                            "scalar of such a type")
        return value.dtype
    return np.dtype(np.bool_ if isinstance(value, bool) else np.int32 if isinstance(value, int) else np.float32)


def scalar_value(value: Any, kernel: str, names: list[str]) -> Any:
    """A scalar as Python's number; SpecError for an int that int32 cannot hold (`names`: the scalars', for the message)."""
    if type(value) is int and not -(1 << 31) <= value < 1 << 31:
        raise SpecError(f"kernel {kernel}: the scalar {value} (one of {', '.join(names)}) does not fit int32, as which Python ints "
                        f"are passed: pass np.int64({value})")
    return value.item() if isinstance(value, np.generic) else value
