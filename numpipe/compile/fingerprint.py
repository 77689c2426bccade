"""The key of a kernel's image in the disk cache: a digest of all that its machine code depends on.

That is the text of its function; every value that the function may read, followed into other functions, classes and modules; the
types and options of a call; and what compiles it (`compilers`). Nothing is rewritten and nothing of the compiler imported to find
out.

What code may read is found as Python finds it: globals and captured variables by name, attributes of modules by every name in all
of the code. Objects that are equal only to themselves (functions, classes, modules, most instances) are numbered as they are met,
and described once. Others are described wherever they stand, so an equal copy, as another process gets it by pickle, is the same. A
value of which no digest can hold all (an open file, a C object, a function that imports) gives no key: each process compiles such a
kernel.
"""

from __future__ import annotations

import contextlib
import dataclasses
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

_UNREAD = {"__module__", "__dict__", "__weakref__", "__doc__", "__annotations__", "__annotate_func__", "__annotations_cache__",
           "__dataclass_fields__", "__firstlineno__", "__static_attributes__", "__parameters__", "__orig_bases__", "_abc_impl"}
"""attributes of a class on which no constant depends that its other attributes do not tell"""
_OF_FUNCTIONS = {"__numpipe_source__", "__wrapped__", "function", "__module__", "__name__", "__qualname__", "__type_params__",
                 *_UNREAD}
"""attributes of a function that are described, or not read, whatever names there are"""
_NAMED_TUPLE = {"__new__", "__slots__", "__getnewargs__", "__repr__", "__replace__", "_make", "_replace", "_asdict"}
_REFLECTION = {"getattr", "hasattr", "vars", "locals", "__dict__", "attrgetter", "methodcaller", "dir", "format", "format_map"}
"""names with which code may read attributes that it does not name"""
_ANYTHING = {"globals", "eval", "exec", "compile", "__import__", "import_module", "modules", "_getframe", "open", "input",
             "__doc__", "__annotations__", "__code__", "__globals__", "__builtins__", "__firstlineno__"}
"""names with which code may read anything, and what no digest holds"""
_CELLS = re.compile(r"ipykernel_\d+")
"""the folder that a notebook's process names its cells by: the rest of a cell's name is a digest of its text"""
_MOST = 20_000
"""values that one kernel may depend on"""
_MOST_BYTES = 1 << 20
"""bytes of an array that is a constant"""


class Fingerprint:
    """What the machine code of a function depends on, and with `key` what a compile of it depends on besides."""

    def __init__(self, *values: Any) -> None:
        self.names: set[str] = set()
        """all attributes, and all strings, that the code names"""
        self._spaces: list[tuple[str, Any, set[str]]] = []
        """modules, classes, and functions with attributes: what each is, it, and the names that were read in it"""
        self._numbers: dict[int, tuple[str, Any]] = {}
        """the number, or the name, of each object by its id; it keeps the object, or another one might get its id"""
        self._met: list[tuple[str, Any]] = []
        """those that are still to be described"""
        self._active: set[int] = set()
        """ids of the values around the one that is being described"""
        self._values: list[Any] = []
        """all values that are the same object as another one, or equal to it, as the code may ask"""
        self._count = 0
        self._compares = False
        """whether code compares objects by `is`"""
        self._digest: Any = hashlib.sha256()
        self._add(*values)

    def key(self, *values: Any) -> str | None:
        """Return 64 hexadecimal digits of all values that were added, these among them; None where a digest cannot hold one."""
        self._add(*values)
        if self._digest is None or (tools := compiler()) is None:
            return None
        found = self._digest.copy()
        found.update(tools.encode())
        if self._compares:
            first: dict[int, int] = {}
            found.update(repr([first.setdefault(id(value), number) for number, value in enumerate(self._values)]).encode())
        return str(found.hexdigest())

    def _add(self, *values: Any) -> None:
        try:
            if self._digest is not None:
                self._digest.update(repr(self.texts(values)).encode())
                for text in self._described():
                    self._digest.update(repr(text).encode())
        except Exception as error:  # a user's too: it reads attributes
            self._digest = None
            if log.on("compile"):
                log.say("compile", f"kept in memory only: it depends on {error}")

    def _described(self) -> Iterator[Any]:
        """Yield texts of the objects that were met, and of what the code may read of modules: both may meet more."""
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
                    if isinstance(holder, type):
                        if name in vars(holder):
                            yield text, name, self.member(vars(holder)[name])
                    elif (value := _attribute(holder, name)) is not _MISSING:
                        yield text, name, self.text(value)

    def unread(self, holder: Any, read: set[str]) -> set[str]:
        """Return the attributes of a module, a function or a class that the code may read, and that are not described yet."""
        return (self.names.union(vars(holder)) if isinstance(holder, type) and self.names & _REFLECTION else self.names) - read

    def text(self, value: Any) -> Any:
        """Return strings and lists of them that say all of a value that code may read."""
        kind = type(value)
        if kind in _SINGLE:
            return f"{kind.__name__} {value!r}"
        self._count += 1
        if self._count > _MOST:
            raise reading.Unknown(f"more than {_MOST} values")
        if kind in _ATOMS:
            return f"{kind.__name__} {value!r}"
        if not isinstance(value, _PLAIN):  # of equal constants Python makes one object or several, as it happens
            self._values.append(value)
        if isinstance(value, enum.Enum):
            return [self.text(kind), value._name_, self.text(value._value_), self.state(value)]
        if kind.__eq__ is _OBJECT.__eq__ or isinstance(value, type):
            return self.number(value)
        if id(value) in self._active:  # a list in itself
            raise reading.Unknown(value)
        self._active.add(id(value))
        try:
            return _text(value, self)
        finally:
            self._active.discard(id(value))

    def texts(self, values: Any) -> list[Any]:
        return [self.text(value) for value in values]

    def number(self, value: Any) -> str:
        """Return a text that stands for an object, which is described elsewhere, or is known by its name."""
        if (found := self._numbers.get(id(value))) is None:
            name = reading.name_of_class(value) if isinstance(value, type) else ""
            found = self._numbers[id(value)] = name or f"object {len(self._numbers)}", value
            if not name:
                self._met.append(found)
        return found[0]

    def state(self, value: Any) -> Any:
        """Return texts of the attributes of an instance; without those that are computed when they are first read."""
        kind = type(value)
        found = dict(object.__getattribute__(value, "__dict__")) if kind.__dictoffset__ else {}
        for each in kind.__mro__ if not reading.is_versioned(kind.__module__) else ():
            for name, member in vars(each).items():
                if isinstance(member, types.MemberDescriptorType):
                    with contextlib.suppress(AttributeError):  # not assigned
                        found[name] = member.__get__(value)
        return [(name, self.text(part)) for name, part in found.items()
                if not (isinstance(value, enum.Enum) and name in _OF_MEMBERS)
                and not isinstance(vars(kind).get(name), functools.cached_property)]

    def function(self, function: types.FunctionType) -> Any:
        """Return texts of a function, and of all that it reads and calls."""
        module = str(function.__globals__.get("__name__"))
        code = function.__code__
        cells = []
        for cell in function.__closure__ or ():
            try:
                cells.append(self.text(cell.cell_contents))
            except ValueError:
                cells.append("not assigned")
        defaults = self.texts(chain(function.__defaults__ or (), *(function.__kwdefaults__ or {}).items()))
        if reading.is_versioned(module) and function.__globals__ is vars(sys.modules.get(module, types)):
            return [module, function.__qualname__, code.co_code.hex(), cells, defaults]  # what it reads by name is of its package
        self.attributes(function)
        text = reading.lines(function)
        known = [reading.reads(each) for each in reading.codes(code)]
        names = set().union(*(names for names, _ in known))
        self._compares |= any(compares for _, compares in known)
        if source.remembered(function) is not None:
            names |= self.unreached(text, code)
        builtins = function.__globals__.get("__builtins__", {})
        builtins = builtins if isinstance(builtins, dict) else vars(builtins)
        values = [self.text(function.__globals__.get(name, builtins.get(name, _MISSING))) for name in sorted(names)]
        file = _CELLS.sub("ipykernel", code.co_filename)
        return [file, function.__name__, function.__qualname__, text, self.code(code), cells, defaults, sorted(names), values]

    def unreached(self, text: list[str], code: types.CodeType) -> set[str]:
        """Return the globals in the text of a function that its bytecode does not have, as those behind ``if 0:``: the pass over
        the text may look at them. Attributes there are noted."""
        bound = {name for each in reading.codes(code) for name in (*each.co_varnames, *each.co_cellvars, *each.co_freevars)}
        named, attributes = reading.identifiers("".join(text))
        self.names.update(attributes)
        return set(named - bound)

    def attributes(self, function: Any) -> None:
        """Note the attributes that a function was given."""
        if vars(function).keys() - _OF_FUNCTIONS:
            self._spaces.append((self.number(function), function, set(_OF_FUNCTIONS)))

    def code(self, code: types.CodeType) -> Any:
        """Return texts of the bytecode of a function, with that of those in it."""
        self.names.update(code.co_names)
        self.names.update(text for text in code.co_consts if isinstance(text, str) and text.isidentifier())
        return [code.co_firstlineno, code.co_code.hex(), code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars,
                [self.code(each) if isinstance(each, types.CodeType) else self.text(each) for each in code.co_consts]]

    def module(self, module: types.ModuleType) -> Any:
        name = reading.module_name(module.__name__)
        if reading.is_versioned(module.__name__) and sys.modules.get(module.__name__) is module:
            return name
        self._spaces.append((self.number(module), module, set()))
        return [name, self.text(type(module))]

    def kind(self, kind: type) -> Any:
        """Return texts of a class: its bases, and what Python reads of it unasked; it is noted for what it has beside that."""
        members = {name: member for name, member in vars(kind).items() if name not in _UNREAD}
        if issubclass(kind, enum.Enum):  # beside its members it has tables of them
            members = {name: member for name, member in members.items() if isinstance(member, _METHODS)}
            members |= {name: [member._value_, self.state(member)] for name, member in kind.__members__.items()}
        elif hasattr(kind, "_field_defaults"):  # a NamedTuple, whose generated methods follow from the fields
            generated = {*_NAMED_TUPLE, *kind._fields}  # type: ignore[attr-defined]
            members = {name: member for name, member in members.items() if name not in generated}
        elif "__dataclass_params__" in members:
            members["__dataclass_params__"] = repr(members["__dataclass_params__"])
            members["__dataclass_fields__"] = [(field.name, dict(field.metadata)) for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
        always = {name: member for name, member in members.items() if (name.startswith("_") and name.endswith("_"))
                  or name in ("_fields", "_field_defaults") or (issubclass(kind, enum.Enum) and name in kind.__members__)}
        self._spaces.append((self.number(kind), kind, {*_UNREAD, *always, *(vars(kind).keys() - members.keys())}))
        return [f"{reading.module_name(kind.__module__)}.{kind.__qualname__}", self.texts(kind.__bases__), self.text(type(kind)),
                [(name, self.member(m)) for name, m in always.items()]]

    def member(self, member: Any) -> Any:
        """Return texts of an attribute of a class."""
        if isinstance(member, types.MemberDescriptorType | types.GetSetDescriptorType):
            return "slot"
        if isinstance(member, property):
            return ["property", *self.texts((member.fget, member.fset))]
        if isinstance(member, functools.cached_property):
            return ["cached_property", self.text(member.func)]
        if isinstance(member, staticmethod | classmethod):
            return [type(member).__name__, self.text(member.__func__)]
        return self.text(member)


class _Missing:
    def __repr__(self) -> str:
        return "missing"


_MISSING = _Missing()
_OBJECT: Any = object
_SINGLE = {*reading.SINGLE, _Missing}
_ATOMS = {int, str, bytes}
_PLAIN = int, float, complex, str, bytes, tuple, frozenset, range, slice, np.dtype, np.generic
_OF_MEMBERS = {"_value_", "_name_", "__objclass__", "_sort_order_", "_hashable_values_", "_unhashable_values_", "_inverted_"}
_METHODS = types.FunctionType | property | staticmethod | classmethod | functools.cached_property


@functools.singledispatch
def _text(value: Any, found: Fingerprint) -> Any:
    """Return texts of an object: those of what pickle would rebuild it from, although nothing is pickled."""
    kind = type(value)
    if value.nbytes > _MOST_BYTES if isinstance(value, np.ndarray) else hasattr(kind, "__dlpack__"):  # another library's array
        raise reading.Unknown(kind)
    state = found.state(value)  # first: an object may make its dictionary when it is asked
    try:
        parts = value.__reduce_ex__(4)
    except Exception:
        raise reading.Unknown(value) from None
    if isinstance(parts, str):  # the name of a global
        return reading.versioned(getattr(value, "__module__", ""), parts, value)
    if kind.__reduce_ex__ is _OBJECT.__reduce_ex__ and kind.__reduce__ is _OBJECT.__reduce__ and (
            getattr(kind, "__getstate__", None) is getattr(_OBJECT, "__getstate__", None)):
        parts = *parts[:2], None, *parts[3:]  # its attributes, which follow
    if parts[0] is getattr:  # a method of a class of C, by its name
        parts = "getattr", *parts[1:]
    return [found.texts(list(part) if isinstance(part, Iterator) else part for part in parts), state]


@_text.register(float)
def _float(value: float, found: Fingerprint) -> Any:
    nan = found.number(value) if value != value else ""  # which is equal to nothing, but found in a tuple that holds it
    return [found.text(type(value)), struct.pack("<d", value).hex(), nan, found.state(value)]


@_text.register(np.dtype)
def _dtype(value: Any, found: Fingerprint) -> Any:
    if value.metadata:
        raise reading.Unknown(value)
    return f"{type(value).__name__} {value!r}"


@_text.register(np.generic)
def _number(value: Any, found: Fingerprint) -> Any:
    if value.dtype.hasobject:
        raise reading.Unknown(value)
    return [_dtype(value.dtype, found), value.tobytes().hex(), found.number(value) if value != value else ""]


@_text.register(tuple)
@_text.register(list)
def _sequence(value: Any, found: Fingerprint) -> Any:
    return [found.text(type(value)), found.texts(value), *_more(value, found)]


@_text.register(dict)
def _table(value: Any, found: Fingerprint) -> Any:
    return [found.text(type(value)), [(found.text(key), found.text(item)) for key, item in value.items()], *_more(value, found)]


@_text.register(frozenset)
@_text.register(set)
def _set(value: Any, found: Fingerprint) -> Any:
    return [found.text(type(value)), found.texts(sorted(value, key=_order)), found.state(value)]


def _more(value: Any, found: Fingerprint) -> list[Any]:
    """Return texts of what a container has beside its items, as a defaultdict has a factory."""
    kind = type(value)
    if kind in (tuple, list, dict):
        return []
    parts = () if kind.__reduce__ is _OBJECT.__reduce__ else value.__reduce__()[1:3]
    return [found.state(value), found.texts(parts)]


@_text.register(types.MappingProxyType)
def _mapping(value: Any, found: Fingerprint) -> Any:
    return ["mappingproxy", found.text(dict(value))]


@_text.register(types.ModuleType)
def _module(value: types.ModuleType, found: Fingerprint) -> Any:
    return found.module(value)


@_text.register(type)
def _class(value: type, found: Fingerprint) -> Any:
    return found.kind(value)


@_text.register(types.FunctionType)
def _python(value: types.FunctionType, found: Fingerprint) -> Any:
    return found.function(value)


@_text.register(types.MethodType)
def _method(value: types.MethodType, found: Fingerprint) -> Any:
    return ["method", *found.texts((value.__self__, value.__func__))]


@_text.register(Function)
@_text.register(type(functools.cache(len)))
def _wrapper(value: Any, found: Fingerprint) -> Any:
    found.attributes(value)
    return [type(value).__name__, found.text(value.function if isinstance(value, Function) else value.__wrapped__)]


@_text.register(Op)
@_text.register(types.BuiltinFunctionType)
@_text.register(np.ufunc)
def _builtin(value: Any, found: Fingerprint) -> Any:
    if isinstance(owner := getattr(value, "__self__", None), types.ModuleType | None):
        found.names.add(value.__name__)  # the code can do what it does, whatever it calls it
        module = getattr(value, "__module__", None) or "numpy"
        return reading.versioned(module, getattr(value, "__qualname__", value.__name__), value)
    return ["method", found.text(owner), value.__name__]


def _order(item: Any) -> str:
    """Return a text by which the items of a set are in one order in all processes."""
    if isinstance(item, enum.Enum):
        return f"{type(item).__module__}.{type(item).__qualname__}.{item._name_} {item._value_!r}"
    if type(item) in _ATOMS or type(item) in _SINGLE or type(item) is float:
        return f"{type(item).__name__} {item!r}"
    if (found := Fingerprint(item).key()) is None:
        raise reading.Unknown(item)
    return found


def _attribute(holder: Any, name: str) -> Any:
    if type(holder) is types.ModuleType and (name in vars(holder) or "__getattr__" not in vars(holder)):
        return vars(holder).get(name, _MISSING)
    try:
        return getattr(holder, name, _MISSING)
    except Exception:
        raise reading.Unknown(holder) from None
