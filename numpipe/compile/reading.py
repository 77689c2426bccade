"""The names that code may read: the names in its bytecode, and the names that are only in its text.

A name that leads to a package of `VERSIONED` needs no description beyond itself. Bytecode that
imports anything else raises Unknown.
"""

from __future__ import annotations

import dis
import functools
import re
import sys
import types
from collections.abc import Iterator
from opcode import opmap
from typing import Any

VERSIONED = {
    "numpipe",
    "numpy",
    "ml_dtypes",
    "numba",
    "builtins",
    "abc",
    "_abc",
    "collections",
    "_collections",
    "copyreg",
    "dataclasses",
    "enum",
    "functools",
    "_functools",
    "itertools",
    "math",
    "numbers",
    "operator",
    "_operator",
    "reprlib",
    "types",
    "typing",
}
"""Packages whose names mean the same as long as their version, or Python's, is the same."""


class Unknown(Exception):
    """A value on which the machine code may depend, and which no text describes completely."""


def is_versioned(module: str) -> bool:
    return module.partition(".")[0] in VERSIONED


def versioned(module: str, name: str, value: object) -> str:
    """Return the name of an object that does not change as long as the versions do not."""
    if not is_versioned(module) or "<locals>" in name:
        raise Unknown(value)
    return f"{module}:{name}"


def module_name(name: str) -> str:
    """Return the name of a module; in worker processes the script is called __mp_main__."""
    return "__main__" if name == "__mp_main__" else name


def name_of_class(kind: type) -> str:
    """Return the name of a class of a versioned package, "" for others.

    Python assigns the module "builtins" to classes from text that exec ran.
    """
    if not is_versioned(kind.__module__):
        return ""
    found: Any = sys.modules.get(kind.__module__)
    for part in kind.__qualname__.split("."):
        found = getattr(found, part, None)
    compiled = not kind.__flags__ & 1 << 9  # Py_TPFLAGS_HEAPTYPE
    return f"{kind.__module__}.{kind.__qualname__}" if found is kind or compiled else ""


# ---- bytecode and text
def codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield the bytecode of a function, and of those in it."""
    yield code
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            yield from codes(each)


_GLOBAL = opmap["LOAD_GLOBAL"]
_NAMED = {_GLOBAL, *(opmap.get(name) for name in ("LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"))}


@functools.lru_cache(maxsize=1024)
def reads(code: types.CodeType) -> set[str]:
    """Return the globals that bytecode reads."""
    if len(code.co_names) > 127:  # some arguments have two bytes
        return set(code.co_names)
    shift = sys.version_info >= (3, 11)
    return {
        code.co_names[low >> shift if operation == _GLOBAL else low]
        for operation, low in zip(code.co_code[::2], code.co_code[1::2], strict=True)
        if operation in _NAMED
    }


def check_imports(code: types.CodeType) -> None:
    """Raise Unknown if bytecode imports something that versions do not determine."""
    if opmap["IMPORT_NAME"] not in code.co_code[::2]:
        return
    found = list(dis.get_instructions(code))
    for number, one in enumerate(found):
        relative = found[number - 2].argval != 0
        if one.opname == "IMPORT_NAME" and (relative or not is_versioned(one.argval)):
            raise Unknown(code)


_TOKENS = re.compile(
    r"""
    \"{3} (?: \\. | [^\\] )*? \"{3} | '{3} (?: \\. | [^\\] )*? '{3}
    | " (?: \\. | [^"\\\n] )* " | ' (?: \\. | [^'\\\n] )* ' | \#[^\n]*
    | (?P<dot>\.\s*)? (?P<name>[^\W\d]\w*)
    """,
    re.VERBOSE | re.DOTALL,
)


@functools.lru_cache(maxsize=256)
def identifiers(text: str) -> tuple[set[str], set[str]]:
    """Return names and attributes in a function's text after its name.

    Names in strings and comments do not count.
    """
    body = re.split(r"\bdef\s+\w+", text, maxsplit=1)[-1]
    names, attributes = set[str](), set[str]()
    for token in _TOKENS.finditer(body):
        (attributes if token["dot"] else names).add(token["name"])
    return names - {None}, attributes
