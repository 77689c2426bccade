"""Statics as text: what a file says of a constant that a kernel was compiled for, and another process compares with its own.

A dataclass, a NamedTuple and an Enum are described by their class' name and by their fields, so the process that reads the file
needs no class of the one that wrote it: any object of such a class is the same constant.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..arch.dtypes import BY_DTYPE
from ..core.functions import Function
from ..core.records import parsed
from ..diagnostics.errors import SpecError
from .expressions import constant, number

MOST_DEPTH = 16
"""of tuples and dataclasses in each other"""


def described(value: Any, what: str) -> str:
    """Return JSON that says all of a Static's value. Raises SpecError, which begins with `what`, for one that no text describes.

    >>> described((1, np.dtype("float16"), True), "the Static 'cfg'")
    '[1,{"dtype":"float16"},true]'
    """
    return value.text if isinstance(value, Described) else json.dumps(_plain(value, what), separators=(",", ":"))


def _plain(value: Any, what: str, depth: int = 0) -> Any:
    def part(value: Any) -> Any:
        return _plain(value, what, depth + 1)

    if depth <= MOST_DEPTH:
        if isinstance(value, enum.Enum):
            return {"enum": f"{type(value).__qualname__}.{value.name}"}
        if value is None or type(value) in (bool, str):
            return value
        if (noted := constant(value)) is not None:
            plain = type(value) is int or (type(value) is float and math.isfinite(value))
            return value if plain else {"number": list(noted[2:])}
        if (isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.generic))) and (
                dtype := np.dtype(value)) in BY_DTYPE:
            return {"dtype": dtype.name}
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            fields = {name: part(v) for name, v in zip(value._fields, value, strict=True)}
            return {"class": type(value).__qualname__, "fields": fields}
        if type(value) is tuple:
            return [part(v) for v in value]
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = {field.name: part(getattr(value, field.name)) for field in dataclasses.fields(value)}
            return {"class": type(value).__qualname__, "fields": fields}
        if isinstance(value, Function) and "<locals>" not in value.__qualname__:  # type: ignore[attr-defined]
            return {"function": f"{value.__module__}.{value.__qualname__}"}  # type: ignore[attr-defined]
    raise SpecError(f"{what} is {value!r}, a {type(value).__name__}, which a file cannot describe: Statics of an exported kernel "
                    "are numbers, strings, element types, numpipe functions of a module, and tuples, dataclasses, NamedTuples and "
                    "Enums of these")


@dataclass(frozen=True)
class Described:
    """A Static as a file describes it; it stands for the value where a call leaves the Static out."""

    text: str

    def __repr__(self) -> str:
        return _spelled(json.loads(self.text))


def constant_of(text: str) -> Any:
    """Return the number, string or None that a text describes, or a `Described`. Raises ValueError for what `described` never says.

    >>> constant_of('{"number":["float","inf"]}'), constant_of('{"class":"Config","fields":{"tm":128}}')
    (inf, Config(tm=128))
    """
    plain = parsed(text.encode())
    _spelled(plain)
    if isinstance(plain, dict):
        return number(*plain["number"]) if "number" in plain else Described(text)
    return Described(text) if isinstance(plain, list) else plain


def shown(text: str) -> str:
    """Return a text as people write the value: ``Config(tm=128, tn=256)``."""
    return _spelled(parsed(text.encode()))


def _spelled(plain: Any, depth: int = 0) -> str:
    """Return a value as people write it. Raises ValueError for what `described` never says."""
    def part(plain: Any) -> str:
        return _spelled(plain, depth + 1)

    match plain:
        case _ if depth > MOST_DEPTH:
            raise ValueError("a Static is nested too deeply")
        case {"class": str(name), "fields": dict(fields), **rest} if not rest:
            return f"{name}({', '.join(f'{field}={part(value)}' for field, value in fields.items())})"
        case {"number": [str(kind), value], **rest} if not rest:
            return repr(number(kind, value))
        case {"enum": str(name), **rest} | {"dtype": str(name), **rest} | {"function": str(name), **rest} if not rest:
            return name
        case list():
            return f"({', '.join(map(part, plain))}{',' * (len(plain) == 1)})"
        case None | bool() | int() | float() | str():
            return repr(plain)
    raise ValueError(f"{str(plain)[:60]!r} is no Static")
