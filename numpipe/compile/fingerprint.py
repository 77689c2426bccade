"""The key of a kernel's image in the disk cache: a digest of all that its machine code depends on.

That is the text of its function; every value that the function may read, followed into other functions, classes and modules; the
types and options of a call; and what compiles: numpipe's own files, Numba, llvmlite, NVVM, nvJitLink and the variables that choose
among them. Nothing is rewritten and nothing of the compiler imported to find out.

What bytecode may read is found as Python finds it: globals and captured variables by name, attributes of modules by every name in
all of the bytecode. A value of which no digest can hold all (an open file, a C object, a function that imports) gives no key: each
process compiles such a kernel.
"""

from __future__ import annotations

import enum
import functools
import glob
import hashlib
import linecache
import math
import os
import re
import sys
import types
from collections.abc import Iterator
from itertools import chain
from opcode import opmap
from pathlib import Path
from typing import Any

import numpy as np

from .. import intrinsics
from ..core.functions import Function
from ..core.op import Op
from ..diagnostics import source

_COMPILERS = re.compile(r"(numba|numba_cuda|llvmlite|nvidia_(?:nvvm|nvjitlink)\w*|nvidia_cuda_nvcc\w*)-(.+)\.dist-info")
"""the packages that decide what machine code a kernel becomes, beside numpipe"""
_LIBRARIES = "nvvm/lib64/libnvvm.so*", "lib64/libnvJitLink.so*"
"""those of them that may be a toolkit's files"""
_VARIABLES = ("NUMBA_", "CUDA_HOME", "CUDA_PATH", "CONDA_PREFIX", "LD_LIBRARY_PATH")
_VERSIONED = {"numpipe", "numpy", "ml_dtypes", "numba", "builtins", "collections", "copyreg", "dataclasses", "enum", "functools",
              "itertools", "math", "operator", "types", "typing"}
"""packages whose names mean the same as long as their version, or that of Python, is the same"""
_UNREAD = {"__module__", "__dict__", "__weakref__", "__doc__", "__annotations__", "__annotate_func__", "__annotations_cache__",
           "__dataclass_fields__", "__firstlineno__", "__static_attributes__", "__parameters__", "__orig_bases__", "_abc_impl"}
"""attributes of a class on which no constant depends that its other attributes do not tell"""
_NAMED_TUPLE = {"__new__", "__slots__", "__getnewargs__", "__repr__", "__replace__", "_make", "_replace", "_asdict"}
_REFLECTION = {"getattr", "hasattr", "vars", "globals", "locals", "eval", "exec", "__import__", "__dict__", "import_module"}
"""names with which code may read what it does not name"""
_MOST = 20_000
"""values that one kernel may depend on"""
_MOST_BYTES = 1 << 20
"""bytes of an array that is a constant"""


class _Unknown(Exception):
    """A value on which the machine code may depend, and of which no text says all."""


class Fingerprint:
    """What the machine code of a function depends on, and with `key` what a compile of it depends on besides."""

    def __init__(self, *values: Any) -> None:
        self._names: set[str] = set()
        """all attributes, and all strings, that the bytecode names"""
        self._modules: list[types.ModuleType] = []
        self._read: set[tuple[int, str]] = set()
        self._seen: dict[int, tuple[int, Any]] = {}
        """the number of each object by its id; it keeps the object, or another one might get its id"""
        self._digest: Any = hashlib.sha256()
        self._add(*values)

    def key(self, *values: Any) -> str | None:
        """Return 64 hexadecimal digits of all values that were added, these among them; None where a digest cannot hold one."""
        self._add(*values)
        return None if self._digest is None else self._digest.hexdigest()

    def _add(self, *values: Any) -> None:
        try:
            if self._digest is not None:
                texts = [compiler(), [self.text(value) for value in values], *self._of_modules()]
                self._digest.update(repr(texts).encode())
        except (_Unknown, RecursionError):
            self._digest = None

    def _of_modules(self) -> Iterator[Any]:
        """Yield texts of what the code may read of the users' modules: reading them may add names and modules."""
        while todo := [(module, name) for module in self._modules for name in sorted(self._names)
                       if (id(module), name) not in self._read]:
            if _REFLECTION & self._names:
                raise _Unknown("a module that code may read by reflection")
            for module, name in todo:
                self._read.add((id(module), name))
                if (value := _attribute(module, name)) is not _MISSING:
                    yield _module_name(module.__name__), name, self.text(value)

    def text(self, value: Any) -> Any:
        """Return strings and lists of them that say all of a value that code may read."""
        if type(value) in _ATOMS:
            return f"{type(value).__name__} {value!r}"
        if id(value) in self._seen:
            return self._seen[id(value)][0]
        if len(self._seen) > _MOST:
            raise _Unknown(value)
        if not isinstance(value, _PLAIN):  # of equal constants Python makes one object or several, as it happens
            self._seen[id(value)] = len(self._seen), value
        return _text(value, self)

    def texts(self, values: Any) -> list[Any]:
        return [self.text(value) for value in values]

    def function(self, function: types.FunctionType) -> Any:
        """Return texts of a function, and of all that it reads and calls."""
        module = str(function.__globals__.get("__name__"))
        code, ours = function.__code__, not _is_versioned(module)
        cells = []
        for cell in function.__closure__ or ():
            try:
                cells.append(self.text(cell.cell_contents))
            except ValueError:
                cells.append("not assigned")
        defaults = self.texts(chain(function.__defaults__ or (), (function.__kwdefaults__ or {}).items()))
        if not ours:  # what it reads by name is of its package
            return [module, code.co_qualname if sys.version_info >= (3, 11) else code.co_name, code.co_code.hex(), cells, defaults]
        builtins = vars(sys.modules["builtins"])
        names = sorted({name for each in _codes(code) for name in _globals(each)})
        values = [self.text(function.__globals__.get(name, builtins.get(name, _MISSING))) for name in names]
        return [code.co_filename, _lines(function), self.code(code), cells, defaults, names, values]

    def code(self, code: types.CodeType) -> Any:
        """Return texts of the bytecode of a function, with that of those in it."""
        self._names.update(code.co_names)
        self._names.update(text for text in code.co_consts if isinstance(text, str) and text.isidentifier())
        return [code.co_firstlineno, code.co_code.hex(), code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars,
                [self.code(each) if isinstance(each, types.CodeType) else self.text(each) for each in code.co_consts]]

    def module(self, module: types.ModuleType) -> str:
        if not _is_versioned(module.__name__):
            self._modules.append(module)
        return _module_name(module.__name__)

    def kind(self, kind: type) -> Any:
        """Return texts of a class: its bases, and what it defines."""
        name = f"{_module_name(kind.__module__)}.{kind.__qualname__}"
        if _is_versioned(kind.__module__):
            if "<locals>" in name:
                raise _Unknown(kind)
            return name
        members = {name: member for name, member in vars(kind).items() if name not in _UNREAD}
        if issubclass(kind, enum.Enum):  # beside its members it has tables of them
            members = {name: member for name, member in members.items() if isinstance(member, _METHODS)}
            members |= {name: member.value for name, member in kind.__members__.items()}
        elif hasattr(kind, "_field_defaults"):  # a NamedTuple, whose generated methods follow from the fields
            generated = {*_NAMED_TUPLE, *kind._fields}  # type: ignore[attr-defined]
            members = {name: member for name, member in members.items() if name not in generated}
        elif "__dataclass_params__" in members:
            members["__dataclass_params__"] = repr(members["__dataclass_params__"])
        return [name, self.texts(kind.__bases__), type(kind).__qualname__, [(name, self.member(m)) for name, m in members.items()]]

    def member(self, member: Any) -> Any:
        """Return texts of an attribute of a class."""
        if isinstance(member, types.MemberDescriptorType | types.GetSetDescriptorType):
            return "slot"
        if isinstance(member, property):
            return self.texts((member.fget, member.fset))
        return self.text(member.func if isinstance(member, functools.cached_property) else getattr(member, "__func__", member))


class _Missing:
    def __repr__(self) -> str:
        return "missing"


_MISSING = _Missing()
_ATOMS = {type(None), type(...), type(NotImplemented), bool, int, str, bytes, complex, _Missing}
_PLAIN = float, tuple, frozenset, np.dtype, np.generic
_METHODS = types.FunctionType | property | staticmethod | classmethod | functools.cached_property


@functools.singledispatch
def _text(value: Any, found: Fingerprint) -> Any:
    """Return texts of an object: those of what pickle would rebuild it from, although nothing is pickled."""
    if getattr(value, "nbytes", 0) > _MOST_BYTES or (hasattr(value, "__dlpack__") and not isinstance(value, np.ndarray)):
        raise _Unknown(value)
    try:
        parts = value.__reduce_ex__(4)
    except Exception:
        raise _Unknown(value) from None
    if isinstance(parts, str):  # the name of a global
        return _versioned(getattr(value, "__module__", ""), parts, value)
    return found.texts(list(part) if isinstance(part, Iterator) else part for part in parts)


@_text.register(float)
def _float(value: float, found: Fingerprint) -> Any:
    return ["float", value.hex() if math.isfinite(value) else repr(value), found.text(type(value))]


@_text.register(np.dtype)
def _dtype(value: Any, found: Fingerprint) -> Any:
    return f"{type(value).__name__} {value!r}"


@_text.register(np.generic)
def _number(value: Any, found: Fingerprint) -> Any:
    return [repr(value.dtype), value.tobytes().hex()]


@_text.register(tuple)
@_text.register(list)
def _sequence(value: Any, found: Fingerprint) -> Any:
    return [found.text(type(value)), found.texts(value)]


@_text.register(dict)
def _table(value: Any, found: Fingerprint) -> Any:
    return [found.text(type(value)), [(found.text(key), found.text(item)) for key, item in value.items()]]


@_text.register(frozenset)
@_text.register(set)
def _set(value: Any, found: Fingerprint) -> Any:
    return [found.text(type(value)), sorted((found.text(item) for item in value), key=repr)]


@_text.register(types.ModuleType)
def _module(value: types.ModuleType, found: Fingerprint) -> Any:
    return found.module(value)


@_text.register(type)
def _class(value: type, found: Fingerprint) -> Any:
    return found.kind(value)


@_text.register(types.FunctionType)
def _python(value: types.FunctionType, found: Fingerprint) -> Any:
    return found.function(value)


@_text.register(Function)
@_text.register(type(functools.cache(len)))
def _wrapper(value: Any, found: Fingerprint) -> Any:
    return [type(value).__name__, found.text(value.__wrapped__)]


@_text.register(Op)
@_text.register(types.BuiltinFunctionType)
@_text.register(np.ufunc)
def _builtin(value: Any, found: Fingerprint) -> Any:
    return _versioned(getattr(value, "__module__", None) or "numpy", getattr(value, "__qualname__", value.__name__), value)


def _versioned(module: str, name: str, value: object) -> str:
    """Return the name of what does not change while the versions stay."""
    if not _is_versioned(module) or "<locals>" in name:
        raise _Unknown(value)
    return f"{module}:{name}"


def _module_name(name: str) -> str:
    return "__main__" if name == "__mp_main__" else name  # which a worker process calls the script that started it


def _is_versioned(module: str) -> bool:
    return module.partition(".")[0] in _VERSIONED


def _attribute(module: types.ModuleType, name: str) -> Any:
    if name in vars(module) or "__getattr__" not in vars(module):
        return vars(module).get(name, _MISSING)
    try:
        return getattr(module, name, _MISSING)
    except Exception:
        raise _Unknown(module) from None


# ---- bytecode
def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield the bytecode of a function, and of those in it."""
    yield code
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            yield from _codes(each)


@functools.lru_cache(maxsize=1024)
def _globals(code: types.CodeType) -> frozenset[str]:
    """Return the globals that bytecode reads."""
    names, extended = set(), 0
    for operation, low in zip(code.co_code[::2], code.co_code[1::2], strict=True):
        argument = extended << 8 | low
        extended = argument if operation == opmap["EXTENDED_ARG"] else 0
        if operation == opmap["LOAD_GLOBAL"]:
            names.add(code.co_names[argument >> (sys.version_info >= (3, 11))])
        elif operation == opmap["LOAD_NAME"]:  # in the body of a class
            names.add(code.co_names[argument])
        elif operation == opmap["IMPORT_NAME"] and not _is_versioned(code.co_names[argument]):
            raise _Unknown(code)
    return frozenset(names)


def _lines(function: types.FunctionType) -> list[str]:
    """Return the text of a function, as far as it has bytecode."""
    codes = list(_codes(function.__code__))
    try:
        if (text := source.remembered(function)) is not None:
            return text[0]
        last = max(line or 0 for code in codes for *_, line in code.co_lines())
        return linecache.getlines(function.__code__.co_filename)[function.__code__.co_firstlineno - 1:last]
    except (OSError, SyntaxError, ValueError):
        return []


# ---- what compiles
@functools.cache
def compiler() -> str:
    """Return a digest of what compiles: numpipe's own files, the versions of the compilers and of Python, the environment."""
    found = hashlib.sha256()
    for folder in sorted({Path(__file__).parents[1], Path(intrinsics.__file__).parent}):  # beside each other in a source tree
        records = sorted(folder.parent.glob("numpipe-*.dist-info/RECORD"))  # of a wheel: it has the files' digests
        for file in records or sorted(folder.rglob("*.py")):
            found.update(f"{file.relative_to(folder.parent)}\0".encode() + file.read_bytes())
    packages = {entry for path in sys.path if os.path.isdir(path) for entry in os.listdir(path) if _COMPILERS.fullmatch(entry)}
    roots = {*(os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH", "CONDA_PREFIX")), *glob.glob("/usr/local/cuda*")}
    libraries = sorted((file, os.stat(file).st_size, os.stat(file).st_mtime_ns)
                       for root in roots if root for library in _LIBRARIES for file in glob.glob(f"{root}/{library}"))
    chosen = sorted((name, value) for name, value in os.environ.items() if name.startswith(_VARIABLES))
    return repr([found.hexdigest(), sorted(packages), libraries, chosen, sys.version, sys.flags.optimize, np.__version__])
