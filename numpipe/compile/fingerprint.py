"""The key of a kernel's image in the disk cache: a digest of all that its machine code depends on.

The AST pass leaves a function in which every constant is a literal: globals, captured values, defaults, fields of Statics, and the
helpers of other modules are part of it. So the digest is of that function, of the shape of the kernel (types, options, target), and
of what compiles: numpipe's own files, Numba, llvmlite, NVVM, nvJitLink and the variables that choose among them.

Names that the rewritten function still reads must be numpipe's, NumPy's, Numba's or Python's own. Of anything else nobody knows on
what it depends: such a kernel has no key, and is compiled by each process.
"""

from __future__ import annotations

import contextlib
import dataclasses
import dis
import enum
import functools
import glob
import hashlib
import importlib.metadata
import math
import os
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .. import intrinsics
from ..core.op import Op
from ..plan.shape import KernelShape
from ..plan.unit import Unit
from .lift.lift import Lifted

COMPILERS = ("numba", "numba-cuda", "llvmlite", "nvidia-nvvm", "nvidia-nvjitlink")
"""the packages that decide what machine code a kernel becomes, beside numpipe"""
_VARIABLES = ("NUMBA_", "CUDA_HOME", "CUDA_PATH", "CONDA_PREFIX", "LD_LIBRARY_PATH")
_VERSIONED = ("numpipe", "numpy", "ml_dtypes", "numba", "math", "builtins", "operator")
"""packages whose names mean the same as long as their version, or that of Python, is the same"""


class _Unknown(Exception):
    """A value on which the machine code may depend, and of which no text says all."""


def fingerprint(lifted: Lifted, unit: Unit, scalars: Sequence[tuple[str, np.dtype]]) -> str | None:
    """Return the key of a kernel's image, 64 hexadecimal digits; None where the kernel reads what no digest can hold."""
    shape = [(field.name, repr(getattr(unit, field.name))) for field in dataclasses.fields(KernelShape)]
    places = [(source.filename, source.first) for source in lifted.sources]  # images name lines, in their rings and assertions
    try:
        code, makers = _value(lifted.compiled, {}), compiler()
    except _Unknown:
        return None
    return _digest(makers, code, shape, sorted(unit.obstacles.items()), [(name, str(kind)) for name, kind in scalars], places,
                   sorted(lifted.sites), lifted.positions.lines() if unit.params.lineinfo else ())


@functools.cache
def compiler() -> str:
    """Return a digest of what compiles: numpipe's own files, the versions of the compilers and of Python, the environment."""
    versions = {name: _version(name) for name in COMPILERS}
    chosen = {name: value for name, value in os.environ.items() if name.startswith(_VARIABLES)}
    files = hashlib.sha256()
    for folder in sorted({Path(__file__).parents[1], Path(intrinsics.__file__).parent}):  # beside each other in a source tree
        for file in sorted(folder.rglob("*.py")):
            files.update(str(file.relative_to(folder)).encode() + b"\0" + file.read_bytes() + b"\0")
    return _digest(files.hexdigest(), sorted(versions.items()), sorted(chosen.items()), sys.version, np.__version__)


def _version(package: str) -> Any:
    """Return the version of a package; of a library of CUDA that is no package the files, as far as they lie in a toolkit."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(package)
    library = {"nvidia-nvvm": "nvvm/lib64/libnvvm.so*", "nvidia-nvjitlink": "lib64/libnvJitLink.so*"}.get(package)
    roots = [*(os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH", "CONDA_PREFIX")), *glob.glob("/usr/local/cuda*"),
             *(root for path in sys.path for root in glob.glob(f"{path}/nvidia/*"))]
    files = sorted({file for root in roots if root and library for file in glob.glob(f"{root}/{library}")})
    if not files:
        raise _Unknown(package)
    return [(file, os.stat(file).st_size, os.stat(file).st_mtime_ns) for file in files]


def _digest(*parts: Any) -> str:
    return hashlib.sha256("\0".join(map(repr, parts)).encode()).hexdigest()


# ---- a function and what it reads
def _function(function: types.FunctionType, seen: dict[Any, int]) -> Any:
    """Return a text of a rewritten function, and of all that it reads and calls."""
    if function in seen:
        return seen[function]
    seen[function] = len(seen)
    cells = [_value(cell.cell_contents, seen) for cell in function.__closure__ or ()]
    defaults = [_value(value, seen) for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())]
    return [_code(function.__code__, function.__globals__, seen), cells, defaults]


def _code(code: types.CodeType, names: dict[str, Any], seen: dict[Any, int]) -> Any:
    read = sorted({instruction.argval for instruction in dis.get_instructions(code) if instruction.opname == "LOAD_GLOBAL"})
    builtins = vars(sys.modules["builtins"])
    constants = [_code(each, names, seen) if isinstance(each, types.CodeType) else _value(each, seen) for each in code.co_consts]
    return [code.co_code.hex(), constants, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars,
            [(name, _value(names.get(name, builtins.get(name)), seen)) for name in read]]


@functools.singledispatch
def _value(value: Any, seen: dict[Any, int]) -> Any:
    raise _Unknown(value)


@_value.register(type(None))
@_value.register(type(...))
@_value.register(bool)
@_value.register(int)
@_value.register(float)
@_value.register(complex)
@_value.register(str)
@_value.register(bytes)
@_value.register(np.dtype)
@_value.register(np.generic)
@_value.register(enum.Enum)
def _constant(value: Any, seen: dict[Any, int]) -> Any:
    text = value.hex() if isinstance(value, float) and math.isfinite(value) else repr(value)
    return f"{type(value).__module__}.{type(value).__qualname__} {text}"


@_value.register(tuple)
@_value.register(frozenset)
def _several(value: Any, seen: dict[Any, int]) -> Any:
    parts = [_value(part, seen) for part in value]
    return [_value(type(value), seen), sorted(parts, key=repr) if isinstance(value, frozenset) else parts]


@_value.register(types.ModuleType)
def _module(value: types.ModuleType, seen: dict[Any, int]) -> Any:
    return _versioned(value.__name__, "", value)


@_value.register(Op)
def _operation(value: Op[..., Any], seen: dict[Any, int]) -> Any:
    if (function := getattr(value, "lifted", None)) is not None:
        return _function(function, seen)
    return _versioned(value.__module__, value.__qualname__, value)  # type: ignore[attr-defined]


@_value.register(types.FunctionType)
def _called(value: types.FunctionType, seen: dict[Any, int]) -> Any:
    if value.__globals__.get("__name__", "").partition(".")[0] in _VERSIONED:
        return _versioned(value.__module__, value.__qualname__, value)
    return _function(value, seen)


@_value.register(types.BuiltinFunctionType)
@_value.register(np.ufunc)
def _builtin(value: Any, seen: dict[Any, int]) -> Any:
    return _versioned(getattr(value, "__module__", None) or "numpy", getattr(value, "__qualname__", value.__name__), value)


@_value.register(type)
def _class(value: type, seen: dict[Any, int]) -> Any:
    if hasattr(value, "_field_defaults") and issubclass(value, tuple):  # a NamedTuple of the user's
        return [value.__qualname__, value._fields, [(k, _value(v, seen)) for k, v in value._field_defaults.items()]]  # type: ignore[attr-defined]
    return _versioned(value.__module__, value.__qualname__, value)


def _versioned(module: str, name: str, value: object) -> str:
    """Return the name of what does not change while the versions stay."""
    if module.partition(".")[0] not in _VERSIONED or "<locals>" in name:
        raise _Unknown(value)
    return f"{module}:{name}"
