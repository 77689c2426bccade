"""What code may read by name: the globals of its bytecode, and the names in its text that bytecode does not have.

A name that leads to a package of `VERSIONED` says all by itself. Bytecode that imports anything else raises Unknown.
"""

from __future__ import annotations

import functools
import keyword
import linecache
import re
import sys
import types
from collections.abc import Iterator
from opcode import opmap
from typing import Any

from ..diagnostics import source

VERSIONED = {"numpipe", "numpy", "ml_dtypes", "numba", "builtins", "abc", "_abc", "collections", "_collections", "copyreg",
             "dataclasses", "enum", "functools", "_functools", "itertools", "math", "numbers", "operator", "_operator", "reprlib",
             "types", "typing"}
"""packages whose names mean the same as long as their version, or that of Python, is the same"""
SINGLE = {type(None), type(...), type(NotImplemented), bool}
"""types of which equal values are one object"""


class Unknown(Exception):
    """A value on which the machine code may depend, and of which no text says all."""


def is_versioned(module: str) -> bool:
    return module.partition(".")[0] in VERSIONED


def versioned(module: str, name: str, value: object) -> str:
    """Return the name of what does not change while the versions stay."""
    if not is_versioned(module) or "<locals>" in name:
        raise Unknown(value)
    return f"{module}:{name}"


def module_name(name: str) -> str:
    return "__main__" if name == "__mp_main__" else name  # which a worker process calls the script that started it


def name_of_class(kind: type) -> str:
    """Return the name of a class that the versions of packages tell; "" for others, as those of a text that exec ran, to which
    Python gives the module "builtins"."""
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


_GLOBAL, _CONSTANT, _SAME, _EXTENDED, _IMPORT = (opmap[name] for name in (
    "LOAD_GLOBAL", "LOAD_CONST", "IS_OP", "EXTENDED_ARG", "IMPORT_NAME"))
_NAMED = {opmap[name] for name in ("LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS") if name in opmap}  # in the body of a class
_CACHE = opmap.get("CACHE", -1)


@functools.lru_cache(maxsize=1024)
def reads(code: types.CodeType) -> tuple[frozenset[str], bool]:
    """Return the globals that bytecode reads, and whether it asks by `is` if two objects are the same one."""
    names, extended, compares, before = set(), 0, False, (_CACHE, 0)
    for operation, low in zip(code.co_code[::2], code.co_code[1::2], strict=True):
        argument = extended << 8 | low
        extended = argument if operation == _EXTENDED else 0
        if operation == _GLOBAL:
            names.add(code.co_names[argument >> (sys.version_info >= (3, 11))])
        elif operation in _NAMED:
            names.add(code.co_names[argument])
        elif operation == _SAME:
            compares |= before[0] != _CONSTANT or type(code.co_consts[before[1]]) not in SINGLE
        elif operation == _IMPORT:
            _check_imports(code)
        if operation not in (_EXTENDED, _CACHE):
            before = operation, argument
    generated = code.co_filename == "<string>" and code.co_name.startswith("__")  # by dataclasses: they compare classes
    return frozenset(names), compares and not generated


def _check_imports(code: types.CodeType) -> None:
    """Raise Unknown where bytecode imports what versions do not tell."""
    import dis

    found = list(dis.get_instructions(code))
    for number, one in enumerate(found):
        if one.opname == "IMPORT_NAME" and (found[number - 2].argval != 0 or not is_versioned(one.argval)):  # its level
            raise Unknown(code)


_TOKENS = re.compile(r"""
    [rbfuRBFU]{0,2} (?: \"{3} (?: \\. | [^\\] )*? \"{3} | '{3} (?: \\. | [^\\] )*? '{3} | " (?: \\. | [^"\\\n] )* "
                      | ' (?: \\. | [^'\\\n] )* ')
    | \#[^\n]* | \d[\w.]* | (?P<dot>\.\s*)? (?P<name>[^\W\d]\w*) (?P<keyword>\s*=(?!=))? | (?P<other>[][(){}:])
    """, re.VERBOSE | re.DOTALL)


@functools.lru_cache(maxsize=256)
def identifiers(text: str) -> tuple[frozenset[str], frozenset[str]]:
    """Return the names in the body of a function's text, and the attributes: without its strings and comments."""
    names, attributes, depth = set(), set(), 0
    place = "decorators"
    for token in _TOKENS.finditer(text):
        name, other = token["name"], token["other"]
        if place == "body":
            if name and token["dot"]:
                attributes.add(name)
            elif name and not token["keyword"]:
                names.add(name)
        elif place == "decorators":
            if name == "def" and not token["dot"]:
                place, depth = "signature", 0
        elif other == ":" and not depth:
            place = "body"
        elif other:
            depth += (other in "([{") - (other in ")]}")
    return frozenset(names - set(keyword.kwlist)), frozenset(attributes)


def lines(function: types.FunctionType) -> list[str]:
    """Return the text of a function; of one that nobody remembered as far as it has bytecode."""
    try:
        if (text := source.remembered(function)) is not None:
            return text[0]
        last = max(line or 0 for code in codes(function.__code__) for *_, line in code.co_lines())
        return linecache.getlines(function.__code__.co_filename)[function.__code__.co_firstlineno - 1:last]
    except (OSError, SyntaxError, ValueError):
        return []
