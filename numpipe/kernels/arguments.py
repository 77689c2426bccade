"""The parameters of a kernel, and how the arguments of a call are bound to them.

=============================================  =====================================================
``def k(a, b, c)``                             arrays and scalars, inputs before outputs: a call may
                                               leave out the outputs
``def k(a, c, alpha)``                         scalars may follow the outputs: a call that leaves
                                               out the outputs passes them by name
``def k(a, b, c, alpha=1.0)``                  with a default: a run-time scalar, passed after the
                                               outputs or by name
``def k(a, b, c, *, alpha, beta=0.0)``         keyword-only: run-time scalars, with or without a
                                               default
``def k(a, b, c, *, cfg: Static = Config())``  annotated `Static`: a compile-time constant
=============================================  =====================================================

Any of them may be passed by name. Parameters that a kernel is made `without` are the constant None.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import numpy as np

from ..diagnostics.errors import SpecError, at
from ..plan.specs import Static
from .call_records import Bound, Statics

SCALAR = (bool, int, float, np.generic)
RESERVED = ("target", "stream", "trace", "mesh")
"""keywords of every call; ``out`` is another, but an array parameter may have that name"""
MISSING = inspect.Parameter.empty
"""default of a parameter that has none"""
_FLOAT32 = float(np.finfo(np.float32).max)
_EXACT = 1 << 53
"""a float represents all ints up to this one exactly"""


@dataclass(eq=False)
class Parameters:
    """The parameters of a kernel function, to which the arguments of calls are bound."""

    kernel: str
    names: list[str]
    """positional parameters without a default: arrays and scalars, outputs last"""
    scalars: dict[str, Any]
    """run-time scalars that have a default or are keyword-only, mapped to their defaults or
    `MISSING`"""
    statics: dict[str, Any]
    """Statics, mapped to their defaults or `MISSING`"""
    positional: list[str]
    """parameters that a call may pass by position"""
    without: Collection[str]
    several: bool = False
    """whether the kernel runs on several GPUs"""

    def __post_init__(self) -> None:
        self._begin()

    @classmethod
    def of(cls, function: Callable, without: Collection[str] = ()) -> Parameters:
        """Return the parameters of a function."""
        if not isinstance(function, FunctionType):
            raise SpecError(f"@numpipe.kernel decorates a Python function, got {_a(function)}")
        kernel = function.__name__
        if kernel == "<lambda>":
            code = function.__code__
            raise SpecError(
                at(
                    code.co_filename,
                    code.co_firstlineno,
                    "a kernel must be a `def`: the source of a lambda cannot be "
                    "separated from the rest of its line",
                )
            )
        parameters = inspect.signature(function).parameters
        if unknown := [name for name in without if name not in parameters]:
            raise SpecError(
                f"kernel {kernel}: without={tuple(without)}: it has no parameter "
                f"{', '.join(map(repr, unknown))}; its parameters are {', '.join(parameters)}"
            )
        found = cls(kernel, [], {}, {}, [], frozenset(without))
        for name, parameter in parameters.items():
            found._add(name, parameter, function)
        if not found.names:
            raise found.refused(f"it has no array parameters: write def {kernel}(x, …)")
        found._begin()
        found._hashable(found._static_defaults)
        return found

    def refused(self, text: str) -> SpecError:
        """Return an error of this kernel."""
        return SpecError(f"kernel {self.kernel}: {text}")

    def _begin(self) -> None:
        self._count = len(self.names)
        self._static_defaults = Statics(self.statics.items())
        self._must_name = any(
            value is MISSING for value in (*self.scalars.values(), *self.statics.values())
        )

    def _add(self, name: str, parameter: inspect.Parameter, function: FunctionType) -> None:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise self.refused(f"*{name} is not supported: list each parameter of the kernel")
        if name in RESERVED or (name == "out" and parameter.default is not MISSING):
            raise self.refused(
                f"a parameter cannot be called '{name}', because calls take "
                f"{name}= themselves; use another name"
            )
        keyword_only = parameter.kind is parameter.KEYWORD_ONLY
        if name in self.without:
            self.statics[name] = None
            return
        default = parameter.default
        if _is_static(parameter.annotation, function):
            if not keyword_only:
                raise self.refused(f"'{name}' is Static and must be keyword-only: put it after '*'")
            self.statics[name] = default
        elif keyword_only or default is not MISSING:
            if default is not MISSING:
                if not isinstance(default, SCALAR):
                    what = (
                        f"a {type(default).__name__}"
                        if hasattr(default, "shape")
                        else repr(default)
                    )
                    raise self.refused(
                        f"the default of '{name}' is {what}; a parameter "
                        "with a default is a run-time scalar (a bool, an int, a float or a NumPy "
                        f"scalar): for a compile-time constant write '*, {name}: numpipe.Static = "
                        "…', for an array drop the default"
                    )
                scalar_dtype(default, name, self.kernel)
                scalar_value(default, name, self.kernel)
            self.scalars[name] = default
        else:
            self.names.append(name)
        if not keyword_only:
            self.positional.append(name)

    def hide(self, names: Iterable[str]) -> None:
        """Add run-time scalars that numpipe passes; until it does, they are 1."""
        self.scalars |= dict.fromkeys(names, 1)

    def reserve_last(self, option: str, example: str) -> str:
        """Remove the last array, which numpipe passes itself, from the parameters, and return its
        name.

        Raises SpecError if it is the only array.
        """
        if len(self.names) < 2:
            raise self.refused(
                f"{option}= is for the last array parameter, after inputs "
                f"and outputs, but the only parameter is '{self.names[0]}': write "
                f"def {self.kernel}(…, {example})"
            )
        name = self.names.pop()
        self.positional.remove(name)
        self._count = len(self.names)
        return name

    # ---- a call
    def bind(self, args: tuple, named: dict[str, Any]) -> Bound:
        """Bind the arguments of a call.

        Raises SpecError for unknown, missing, duplicate or excess arguments, and for arrays passed
        as scalars.
        """
        arguments = dict(zip(self.names, args, strict=False))
        if not named and len(args) <= self._count and not self._must_name:
            arguments.update(self.scalars)
            return Bound(arguments, self._static_defaults)
        left = dict(named)
        statics = self._static_values(left)
        for name in self.names[len(arguments) :]:
            if name not in left:
                break
            arguments[name] = left.pop(name)
        passed = len(arguments)
        for name in self.names[passed:]:  # scalars after outputs that are left out
            if isinstance(left.get(name), SCALAR):
                arguments[name] = left.pop(name)
        self._take_scalars(arguments, args, left)
        for name in left:
            if name in self.names[:passed] or name in self.scalars:
                raise self.refused(
                    f"argument '{name}' is given by position and by name: pass it once"
                )
            if name in self.names:
                raise self.refused(
                    f"argument '{self.names[passed]}' is missing, but "
                    f"'{name}' after it is given: a call may leave out the last arrays only, which "
                    f"it allocates; fix: pass {self.names[passed]}= too, or put '{name}' before it "
                    f"in def {self.kernel}(…)"
                )
            known = [
                *self.names,
                *self.scalars,
                *self.statics,
                "out",
                "target",
                "stream",
                *["mesh"] * self.several,
            ]
            raise self.refused(
                f"unexpected argument '{name}'; its arguments are {', '.join(known)}"
            )
        return Bound(arguments, statics)

    def constants(self, named: dict[str, Any]) -> Statics | None:
        """Return the Statics of a call with these named arguments, or None if one of them is not a
        Static."""
        return self._static_values(dict(named)) if named.keys() <= self.statics.keys() else None

    def _static_values(self, left: dict[str, Any]) -> Statics:
        """Remove the Statics from the keywords of a call, and return their values."""
        if not self.statics or (not self._must_name and left.keys().isdisjoint(self.statics)):
            return self._static_defaults
        values = []
        for name, default in self.statics.items():
            value = left.pop(name, default)
            if value is MISSING:
                raise self.refused(f"the Static '{name}' has no default: pass {name}=…")
            if name in self.without and value is not None:
                raise self.refused(
                    f"argument '{name}' is given, but the kernel was made "
                    f"without={name!r}: leave it out of the call, or of without="
                )
            values.append((name, value))
        statics = Statics(values)
        try:
            hash(statics)
        except TypeError:
            self._hashable(values)  # raises an error that names the unhashable one
        return statics

    def _take_scalars(self, arguments: dict[str, Any], args: tuple, left: dict[str, Any]) -> None:
        """Add the scalars to `arguments`: the last positional ones, then keywords (removed from
        `left`), then defaults."""
        if len(args) > len(self.positional):
            raise self.refused(
                f"takes {len(self.positional)} arguments "
                f"({', '.join(self.positional)}), got {len(args)}"
            )
        more = args[self._count :]
        for index, (name, default) in enumerate(self.scalars.items()):
            if index < len(more):
                value = more[index]
            else:
                value = left.pop(name, default)
                if value is MISSING:
                    raise self.refused(f"the scalar '{name}' has no default: pass {name}=…")
            if not isinstance(value, SCALAR):
                raise self.refused(
                    f"'{name}' is a run-time scalar "
                    f"({'keyword-only' if default is MISSING else f'its default is {default!r}'}), "
                    f"got a {type(value).__name__}: pass a bool, an int, a float or a NumPy scalar"
                )
            if type(value) is int and type(default) is float and -_EXACT <= value <= _EXACT:
                value = float(value)
            arguments[name] = value

    def _hashable(self, values: Iterable[tuple[str, Any]]) -> None:
        for name, value in values:
            try:
                hash(value)
            except TypeError:
                raise self.refused(
                    f"the Static '{name}' must be hashable (a number, a "
                    f"tuple, a frozen dataclass), got {_a(value)}: each value is a separate compile"
                ) from None


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


# ---- scalars -------------------------------------------------------------------------------------
def scalar_kind(value: Any) -> Any:
    """Return what compilation depends on in a scalar's type; fast, for use in dictionary keys."""
    kind = type(value)
    if kind is float or kind is int or kind is bool:
        return kind
    return (
        value.dtype if isinstance(value, np.generic) else int if isinstance(value, int) else float
    )


def scalar_dtype(value: Any, name: str, kernel: str) -> np.dtype:
    """Return the type of a scalar in the kernel: bool, int32 or float32 for Python scalars, its own
    type for a NumPy scalar.

    Raises SpecError for a type that kernels do not support.
    """
    if isinstance(value, np.generic):
        if value.dtype.kind not in "biuf" or value.dtype.itemsize > 8:
            raise SpecError(
                f"kernel {kernel}: the scalar '{name}' must be a bool, an int, a float or a NumPy "
                f"scalar of such a type, got {value.dtype}"
            )
        return value.dtype
    return np.dtype(
        np.bool_ if isinstance(value, bool) else np.int32 if isinstance(value, int) else np.float32
    )


def scalar_value(value: Any, name: str, kernel: str) -> Any:
    """Return a scalar as a Python number. Raises SpecError for a Python int that does not fit
    int32, or a float that does not fit float32."""
    if isinstance(value, np.generic):
        return value.item()
    kind, fits = (
        ("int", -(1 << 31) <= value < 1 << 31)
        if isinstance(value, int)
        else ("float", -_FLOAT32 <= value <= _FLOAT32 or not math.isfinite(value))
    )
    if not fits:
        raise SpecError(
            f"kernel {kernel}: the scalar '{name}' = {value} does not fit {kind}32, the type of "
            f"Python {kind}s in kernels: pass np.{kind}64({value})"
        )
    return value


def scalar_values(numbers: Mapping[str, Any], kernel: str) -> list:
    """Return run-time scalars as Python numbers, in order. Raises SpecError as `scalar_value`
    does."""
    return [scalar_value(value, name, kernel) for name, value in numbers.items()]
