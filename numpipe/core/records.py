"""Frozen dataclasses read from JSON. Each value is checked against the type of its field, and no
other objects are created. `plain` converts values for JSON."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import types
from collections.abc import Mapping
from typing import Any, Literal, NoReturn, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

from ..arch.dtypes import ELEMENTS

T = TypeVar("T")


def parsed(text: bytes) -> Any:
    """Parse a JSON text in UTF-8. Raises ValueError, also for NaN, infinities and texts that are
    nested too deeply."""

    def refuse(constant: str) -> NoReturn:
        raise ValueError(f"{constant} is not a JSON number")

    try:
        return json.loads(text.decode("utf8"), parse_constant=refuse)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def record(kind: type[T], value: Any, **given: Any) -> T:
    """Undo ``dataclasses.asdict``: create an instance of this dataclass from the result of `parsed`
    and from `given` fields.

    Fields can be bools, strings, floats and non-negative ints, element types by name, tuples of
    these (arrays in JSON), dictionaries, Literals, records, or one of these or None. Raises
    ValueError that names the first field whose value has the wrong type, or a missing or unknown
    field.

    >>> from numpipe.launch import MapRequest
    >>> record(
    ...     MapRequest,
    ...     {"arg": 0, "box": [8, 64], "swizzle": 128, "fill": "zeros", "written": False},
    ... ).box
    (8, 64)
    """
    return _typed(kind, value, "", given)  # type: ignore[no-any-return]


def plain(value: Any) -> Any:
    """Convert a value for JSON: NumPy integers to ints, tuples to lists."""
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, (tuple, list)):
        return [plain(each) for each in value]
    return int(value) if hasattr(value, "__index__") and not isinstance(value, bool) else value


_hints = functools.cache(get_type_hints)


def _typed(
    kind: Any, value: Any, where: str, given: Mapping[str, Any] = types.MappingProxyType({})
) -> Any:
    origin, args = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if origin in (Union, types.UnionType):
        [other] = [arg for arg in args if arg is not types.NoneType]
        return None if value is None else _typed(other, value, where)
    if origin is tuple and isinstance(value, list):
        kinds = args[:1] * len(value) if args[-1] is ... else args
        if len(kinds) == len(value):
            return tuple(
                [
                    _typed(of, part, f"{where}[{n}]")
                    for n, (of, part) in enumerate(zip(kinds, value, strict=True))
                ]
            )
    elif origin is dict and isinstance(value, dict):
        return {key: _typed(args[1], part, f"{where}[{key[:50]!r}]") for key, part in value.items()}
    elif origin is Literal:
        if isinstance(value, str) and value in args:
            return value
    elif kind is np.dtype:
        if isinstance(value, str) and value in ELEMENTS:
            return ELEMENTS[value].dtype
    elif isinstance(kind, type) and dataclasses.is_dataclass(kind) and isinstance(value, dict):
        hints = _hints(kind)
        names = {field.name for field in dataclasses.fields(kind)} - given.keys()
        for name in sorted(value.keys() ^ names):
            raise ValueError(
                f"{where and f'{where}: '}the field {name[:50]!r} is "
                f"{'unknown' if name in value else 'missing'}"
            )
        return kind(
            **{
                name: _typed(hints[name], value[name], f"{where}.{name}".strip("."))
                for name in names
            },
            **given,
        )
    elif type(value) is kind and (not isinstance(value, (int, float)) or 0 <= value < math.inf):
        return value
    name = kind.__name__ if isinstance(kind, type) and origin is None else str(kind)
    shown = (
        "an array"
        if isinstance(value, list)
        else "an object"
        if isinstance(value, dict)
        else repr(value)[:60]
    )
    raise ValueError(f"{where or 'it'} is {shown}, not {name}")
