"""The key of a kernel's image in the disk cache: a digest of everything that its machine code
depends on.

It covers the text of the kernel's function; every value that the function may read, followed into
other functions, classes and modules; the types and options of a call; and the compilers
(`compilers`). Computing it does not rewrite the source and does not import the compiler.

The values that code may read are found as Python finds them: globals and captured variables by
name, attributes of modules by every name in all of the code. Objects that are equal only to
themselves (functions, classes, modules, most instances) are numbered when first encountered, and
described once. Other values are described at each use, so an equal copy, such as one that another
process unpickles, has the same key; ``is`` between such values is not part of the key. A value that
no digest can represent (an open file, a C object, a function that imports) gives no key, and each
process compiles such a kernel itself.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import hashlib
import re
import struct
import sys
import types
from collections.abc import Iterator
from itertools import chain
from typing import Any

import numpy as np

from ..core.functions import Function
from ..core.op import Op
from ..diagnostics import log, source
from . import reading
from .compilers import compiler

_UNREAD = {
    "__module__",
    "__dict__",
    "__weakref__",
    "__doc__",
    "__annotations__",
    "__annotate_func__",
    "__annotations_cache__",
    "__dataclass_fields__",
    "__firstlineno__",
    "__static_attributes__",
    "__parameters__",
    "__orig_bases__",
    "_abc_impl",
    "_value2member_map_",
    "_hashable_values_",
    "_unhashable_values_",
    "_unhashable_values_map_",
}
"""Attributes of a class that no constant depends on beyond what its other attributes tell."""
_OF_FUNCTIONS = {
    "__numpipe_source__",
    "__wrapped__",
    "function",
    "__module__",
    "__name__",
    "__qualname__",
    "__type_params__",
    *_UNREAD,
}
"""Attributes of a function that are described, or never read, whatever names the code has."""
_REFLECTION = {
    "getattr",
    "hasattr",
    "vars",
    "locals",
    "__dict__",
    "attrgetter",
    "methodcaller",
    "dir",
    "format",
    "format_map",
}
"""Names with which code may read attributes that it does not name."""
_ANYTHING = {
    "globals",
    "eval",
    "exec",
    "compile",
    "__import__",
    "import_module",
    "modules",
    "_getframe",
    "open",
    "input",
    "__doc__",
    "__annotations__",
    "__code__",
    "__globals__",
    "__builtins__",
    "__firstlineno__",
}
"""Names with which code may read anything, which no digest can represent."""
_CELLS = re.compile(r"ipykernel_\d+")
"""The folder of a notebook's cells; the names of files in it are digests of their text."""
_MOST = 20_000
"""Maximum number of values that one kernel may depend on."""
_MOST_BYTES = 1 << 20
"""Maximum bytes of an array that is a constant."""


class Fingerprint:
    """The dependencies of a function's machine code; `key` adds the other dependencies of a
    compile."""

    def __init__(self, *values: Any) -> None:
        self.names: set[str] = set()
        """All attributes, and all strings, that the code names."""
        self._spaces: list[tuple[str, Any, set[str]]] = []
        """Modules, classes, and functions with attributes: text, object, described attributes."""
        self._numbers: dict[int, tuple[str, Any]] = {}
        """The number or name of each object by its id, and the object, which keeps the id valid."""
        self._met: list[tuple[str, Any]] = []
        """The objects that are still to be described."""
        self._count = 0
        self._digest: Any = hashlib.sha256()
        self._add(*values)

    def key(self, *values: Any) -> str | None:
        """Return a digest, 64 hexadecimal digits, of all added values and these; None if one cannot
        be described."""
        self._add(*values)
        if self._digest is None or (tools := compiler()) is None:
            return None
        found = self._digest.copy()
        found.update(tools.encode())
        return str(found.hexdigest())

    def _add(self, *values: Any) -> None:
        try:
            if self._digest is not None:
                self._digest.update(repr(self.texts(values)).encode())
                for text in self._described():
                    self._digest.update(repr(text).encode())
        except Exception as error:  # including a user's exception: attributes are read here
            self._digest = None
            if log.on("compile"):
                log.say("compile", f"kept in memory only: it depends on {error}")

    def _described(self) -> Iterator:
        """Yield texts of encountered objects and of attributes that the code may read; both may add
        more."""
        while self._met or any(self.unread(holder, read) for _, holder, read in self._spaces):
            while self._met:
                text, value = self._met.pop()
                yield text, _text(value, self)
            everything = all(isinstance(holder, type) for _, holder, _ in self._spaces)
            if found := self.names & (_ANYTHING if everything else _ANYTHING | _REFLECTION):
                raise reading.Unknown(f"what code reads by {', '.join(sorted(found))}")
            for text, holder, read in list(self._spaces):
                for name in sorted(self.unread(holder, read)):
                    read.add(name)
                    if (value := _attribute(holder, name)) is not _MISSING:
                        yield text, name, self.text(value)

    def unread(self, holder: Any, read: set[str]) -> set[str]:
        """Return the attributes of a holder that the code may read and that have not been
        described."""
        return (
            self.names.union(vars(holder))
            if isinstance(holder, type) and self.names & _REFLECTION
            else self.names
        ) - read

    def text(self, value: Any) -> Any:
        """Return strings, and lists of strings, that describe everything of a value that code may
        read."""
        kind = type(value)
        if kind in _SINGLE:
            return f"{kind.__name__} {value!r}"
        self._count += 1
        if self._count > _MOST:
            raise reading.Unknown(f"more than {_MOST} values")
        if kind in _ATOMS:
            return f"{kind.__name__} {value!r}"
        if isinstance(value, enum.Enum):
            return [self.text(kind), value._name_, self.text(value._value_), self.state(value)]
        if kind is float:
            return f"float {struct.pack('<d', value).hex()}"
        if kind.__eq__ is _OBJECT.__eq__ or isinstance(value, type):
            return self.number(value)
        return _text(value, self)

    def texts(self, values: Any) -> list:
        return [self.text(value) for value in values]

    def number(self, value: Any) -> str:
        """Return a text for an object that is described elsewhere, or is identified by its name."""
        if (found := self._numbers.get(id(value))) is None:
            name = reading.name_of_class(value) if isinstance(value, type) else ""
            found = self._numbers[id(value)] = name or f"object {len(self._numbers)}", value
            if not name:
                self._met.append(found)
        return found[0]

    def state(self, value: Any) -> Any:
        """Return texts of the attributes of an instance, except for cached properties."""
        kind = type(value)
        found = dict(object.__getattribute__(value, "__dict__")) if kind.__dictoffset__ else {}
        for each in kind.__mro__ if not reading.is_versioned(kind.__module__) else ():
            for name, member in vars(each).items():
                if isinstance(member, types.MemberDescriptorType):
                    with contextlib.suppress(AttributeError):  # not assigned
                        found[name] = member.__get__(value)
        return [
            (name, self.text(part))
            for name, part in found.items()
            if not isinstance(vars(kind).get(name), functools.cached_property)
        ]

    def unreached(self, text: str, code: types.CodeType) -> set[str]:
        """Return the globals that a text names and its bytecode does not, such as those after ``if
        0:``.

        The pass over the text may read them. Attributes there are recorded.
        """
        named, attributes = reading.identifiers(text)
        self.names.update(attributes)
        for each in reading.codes(code):
            named = named.difference(each.co_varnames, each.co_cellvars, each.co_freevars)
        return named

    def attributes(self, function: Any) -> None:
        """Record the attributes that were set on a function."""
        if vars(function).keys() - _OF_FUNCTIONS:
            self.note(function, set(_OF_FUNCTIONS))

    def note(self, holder: Any, read: set[str]) -> None:
        """Describe the attributes of a module, class or function that the code names, except
        `read`."""
        self._spaces.append((self.number(holder), holder, read))

    def code(self, code: types.CodeType) -> Any:
        """Return texts of the bytecode of a function, including the functions nested in it."""
        self.names.update(code.co_names)
        self.names.update(
            text for text in code.co_consts if isinstance(text, str) and text.isidentifier()
        )
        consts = [
            self.code(each) if isinstance(each, types.CodeType) else self.text(each)
            for each in code.co_consts
        ]
        names = code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars
        return [code.co_firstlineno, code.co_code.hex(), code.co_linetable.hex(), names, consts]


_MISSING = object()
_OBJECT: Any = object
_SINGLE = {type(None), type(...), type(NotImplemented), bool}
_ATOMS = {int, str, bytes}


@functools.singledispatch
def _text(value: Any, found: Fingerprint) -> Any:
    """Return texts of what pickle would rebuild an object from; nothing is pickled."""
    kind = type(value)
    if kind in (tuple, list):
        return [kind.__name__, found.texts(value)]
    if kind is dict:
        return ["dict", [found.texts(item) for item in value.items()]]
    # another library's array
    if value.nbytes > _MOST_BYTES if isinstance(value, np.ndarray) else hasattr(kind, "__dlpack__"):
        raise reading.Unknown(kind)
    state = found.state(value)  # first, because an object may create its dictionary on access
    parts = value.__reduce_ex__(4)
    if isinstance(parts, str):  # the name of a global
        return reading.versioned(getattr(value, "__module__", ""), parts, value)
    if (
        kind.__reduce_ex__ is _OBJECT.__reduce_ex__
        and kind.__reduce__ is _OBJECT.__reduce__
        and (getattr(kind, "__getstate__", None) is getattr(_OBJECT, "__getstate__", None))
    ):
        parts = *parts[:2], None, *parts[3:]  # its attributes, which follow
    if parts[0] is getattr:  # a method of a class of C, by its name
        parts = "getattr", *parts[1:]
    return [
        found.texts(list(part) if isinstance(part, Iterator) else part for part in parts),
        state,
    ]


@_text.register(np.dtype)
def _dtype(value: Any, found: Fingerprint) -> Any:
    return f"{type(value).__name__} {value!r}"


@_text.register(frozenset)
@_text.register(set)
def _set(value: Any, found: Fingerprint) -> Any:
    # in the same order in all processes
    items = sorted(value, key=lambda item: str(Fingerprint(item).key()))
    return [found.text(type(value)), found.texts(items), found.state(value)]


@_text.register(property)
@_text.register(functools.cached_property)
@_text.register(staticmethod)
@_text.register(classmethod)
def _descriptor(value: Any, found: Fingerprint) -> Any:
    functions = (getattr(value, name, None) for name in ("fget", "fset", "func", "__func__"))
    return [type(value).__name__, *found.texts(functions)]


@_text.register(types.MappingProxyType)
def _mapping(value: Any, found: Fingerprint) -> Any:
    return ["mappingproxy", found.text(dict(value))]


@_text.register(types.ModuleType)
def _module(value: types.ModuleType, found: Fingerprint) -> Any:
    name = reading.module_name(value.__name__)
    if reading.is_versioned(value.__name__) and sys.modules.get(value.__name__) is value:
        return name
    found.note(value, set())
    return [name, found.text(type(value))]


@_text.register(type)
def _class(value: type, found: Fingerprint) -> Any:
    """Return texts of the bases, and of what Python reads implicitly. Other attributes are
    recorded."""
    always = {
        name: member
        for name, member in vars(value).items()
        if (name.startswith("_") and name.endswith("_")) or name in ("_fields", "_field_defaults")
    }
    for name in _UNREAD & always.keys():
        del always[name]
    found.note(value, {*_UNREAD, *always})
    name = f"{reading.module_name(value.__module__)}.{value.__qualname__}"
    return [name, found.texts((*value.__bases__, type(value), *chain(*always.items())))]


@_text.register(types.FunctionType)
def _function(value: types.FunctionType, found: Fingerprint) -> Any:
    """Return texts of a function, and of everything that it reads and calls."""
    module, code = str(value.__globals__.get("__name__")), value.__code__
    cells = [found.text(cell.cell_contents) for cell in value.__closure__ or ()]
    defaults = found.texts((value.__defaults__, value.__kwdefaults__))
    if reading.is_versioned(module) and value.__globals__ is vars(sys.modules.get(module, types)):
        # the names that it reads belong to its package
        return [module, value.__qualname__, code.co_code.hex(), cells, defaults]
    found.attributes(value)
    text, names = source.remembered(value), set[str]()
    for each in reading.codes(code):
        reading.check_imports(each)
        names |= reading.reads(each)
    if text is not None:
        names |= found.unreached("".join(text[0]), code)
    builtins = value.__globals__.get("__builtins__", {})
    reach = (builtins if isinstance(builtins, dict) else vars(builtins)) | value.__globals__
    globals_ = [(name, found.text(reach[name])) for name in sorted(names & reach.keys())]
    file = _CELLS.sub("ipykernel", code.co_filename)
    return [file, value.__qualname__, text, found.code(code), cells, defaults, globals_]


@_text.register(types.MethodType)
def _method(value: types.MethodType, found: Fingerprint) -> Any:
    return ["method", *found.texts((value.__self__, value.__func__))]


@_text.register(Function)
@_text.register(type(functools.cache(len)))
def _wrapper(value: Any, found: Fingerprint) -> Any:
    found.attributes(value)
    return [
        type(value).__name__,
        found.text(value.function if isinstance(value, Function) else value.__wrapped__),
    ]


@_text.register(Op)
@_text.register(types.BuiltinFunctionType)
@_text.register(np.ufunc)
def _builtin(value: Any, found: Fingerprint) -> Any:
    if isinstance(owner := getattr(value, "__self__", None), types.ModuleType | None):
        found.names.add(value.__name__)  # the code can do what it does, whatever it calls it
        module = getattr(value, "__module__", None) or "numpy"
        return reading.versioned(module, getattr(value, "__qualname__", value.__name__), value)
    return ["method", found.text(owner), value.__name__]


def _attribute(holder: Any, name: str) -> Any:
    plain = type(holder) is types.ModuleType and "__getattr__" not in vars(holder)
    if plain or isinstance(holder, type):
        return vars(holder).get(name, _MISSING)
    return getattr(holder, name, _MISSING)
