"""Rules for the arguments of public functions: a check together with its description, and one form
of error for all.

>>> def slept(seconds, times=1):
...     require("slept", locals(), seconds=finite(above=0), times=whole(1) | NONE)
>>> slept(0.5, times=True)
Traceback (most recent call last):
    ...
numpipe.errors.SpecError: slept: times must be an int >= 1 or None, got True
"""

from __future__ import annotations

import math
import os
import reprlib
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .errors import SpecError


@dataclass(frozen=True)
class Rule:
    """A rule for a value. `texts` complete the sentence "must be …", and `holds` accepts values of
    any kind without raising."""

    texts: tuple[str, ...]
    holds: Callable[[Any], bool]

    def __or__(self, other: Rule) -> Rule:
        return Rule(self.texts + other.texts, lambda value: self.holds(value) or other.holds(value))

    def __str__(self) -> str:
        *first, last = self.texts
        return f"{', '.join(first)} or {last}" if first else last


def require(where: str, values: Mapping[str, Any], **rules: Rule) -> None:
    """Raise SpecError for the first of `values` that breaks its rule. `values` is a function's
    ``locals()`` or a record's ``vars(self)``."""
    for name, rule in rules.items():
        if not rule.holds(values[name]):
            raise SpecError(f"{where}: {name} must be {rule}, got {told(values[name])}")


class _Short(reprlib.Repr):
    """Short representations of values: type and shape for arrays, the class if repr() fails."""

    def __init__(self) -> None:
        super().__init__()
        self.maxother = self.maxstring = 80
        self.maxlong = 20

    def repr1(self, x: Any, level: int) -> str:
        try:
            if isinstance(x, np.ndarray):
                return f"<{type(x).__name__} of {x.dtype} {x.shape}>"
            return super().repr1(x, level).encode("utf8", "backslashreplace").decode()
        except Exception:  # a class's __repr__ may raise anything
            return f"<{type(x).__name__}>"


told = _Short().repr
"""Formats a value for errors: ``told(np.zeros(3))`` is ``<ndarray of float64 (3,)>``."""


def as_tuple(value: Any) -> tuple:
    """Return a tuple or a list as a tuple, and any other value as a tuple of it."""
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def is_int(value: Any) -> bool:
    """Return whether a value is an integer and not a bool."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def whole(least: int | None = None, most: int | None = None) -> Rule:
    """Return the rule for an int or NumPy integer, not a bool."""
    bounds = "" if least is None else f" >= {least}" if most is None else f" of {least}…{most}"
    return Rule(
        (f"an int{bounds}",),
        lambda value: (
            is_int(value) and (least is None or value >= least) and (most is None or value <= most)
        ),
    )


def finite(least: float = -math.inf, above: float = -math.inf) -> Rule:
    """Return the rule for a finite Python or NumPy number, not a bool."""
    bounds = f" > {above}" if above > -math.inf else f" >= {least}" if least > -math.inf else ""
    return Rule(
        (f"a finite number{bounds}",),
        lambda value: (
            (is_int(value) or isinstance(value, (float, np.floating)))
            # an int may be too large for a float
            and bool(abs(value) <= sys.float_info.max and value >= least and value > above)
        ),
    )


def word(*words: str) -> Rule:
    """Return the rule for one of several strings."""
    return Rule(tuple(map(repr, words)), lambda value: isinstance(value, str) and value in words)


def a(*kinds: type, text: str = "") -> Rule:
    """Return the rule for an instance of one of these classes."""
    return Rule(
        (text,) if text else tuple(f"a {kind.__name__}" for kind in kinds),
        lambda value: isinstance(value, kinds),
    )


def each(rule: Rule, count: int | None = None) -> Rule:
    """Return the rule for a tuple or list whose items satisfy `rule`."""
    return Rule(
        (f"a tuple or list{'' if count is None else f' of {count}'}, each {rule}",),
        lambda value: (
            isinstance(value, (tuple, list))
            and count in (None, len(value))
            and all(map(rule.holds, value))
        ),
    )


def element_type(where: str, dtype: Any) -> np.dtype:
    """Return `dtype` as a NumPy dtype. Raises SpecError if it does not name one."""
    try:
        found: np.dtype = np.dtype(dtype)
    except (TypeError, ValueError) as error:
        raise SpecError(
            f"{where}: dtype must be an element type, got {told(dtype)} ({error})"
        ) from None
    return found


def _is_path(value: Any) -> bool:
    try:
        return isinstance(value, (str, os.PathLike)) and b"\0" not in os.fsencode(value) != b""
    except (TypeError, ValueError):  # e.g. PathLike without a path, or a lone surrogate
        return False


SHAPE = Rule(("a tuple of ints >= 0",), each(whole(0)).holds)


def sizes_of(where: str, shape: Any) -> tuple[int, ...]:
    """Return an int or a sequence of ints as a shape. Raises SpecError for anything else."""
    require(where, locals(), shape=whole(0) | SHAPE)
    return tuple(map(int, shape)) if isinstance(shape, Sequence) else (int(shape),)


SERIES = Rule(
    ("a list or another iterable",),
    lambda value: isinstance(value, Iterable) and not isinstance(value, (str, bytes, np.ndarray)),
)
NONE = Rule(("None",), lambda value: value is None)
FLAG = Rule(("True", "False"), lambda value: isinstance(value, bool))
FRACTION = Rule(("a number of 0…1",), lambda value: finite(0.0).holds(value) and value <= 1)
POSITIVE = whole(1)
INT32 = whole(-(1 << 31), (1 << 31) - 1)
FUNCTION = Rule(("a function",), callable)
STRING = a(str, text="a string")
PATH = Rule(("a path, as a string or a pathlib.Path",), _is_path)
MAPPING = a(Mapping, text="a mapping")
