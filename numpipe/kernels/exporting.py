"""`Kernel.export`: compile a kernel for given signatures and write a file, which `numpipe.load`
reads (see `loading`)."""

from __future__ import annotations

import ast
import dataclasses
import enum
import errno
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ..arch.dtypes import ELEMENTS
from ..diagnostics.argument_checks import FUNCTION, NONE, PATH, as_tuple, require
from ..diagnostics.errors import SpecError
from ..diagnostics.versions import installed
from ..plan.specs import ArrayType, Persistent
from .archive import VERSION, Entry, Function, Manifest, Parameter, write
from .arguments import MISSING
from .call_records import Described
from .calls import Calls
from .expressions import described
from .options import bound_defaults, parameter_names
from .sources import literal, text_of
from .variants import Variant

_MAKERS = ("numpipe", "numba-cuda", "llvmlite", "nvidia-nvvm", "nvidia-nvjitlink")


def export(
    calls: Calls,
    path: str | os.PathLike[str],
    signatures: tuple,
    choose: Callable | None,
) -> None:
    """Write the export file of the kernel that `calls` belongs to (see `Kernel.export`)."""
    what = f"kernel {calls.definition.name}: export"
    if calls.definition.options.semaphores is not None:
        raise SpecError(
            f"{what}: a file holds kernels of one GPU, and this one has semaphores: compile it "
            "where it is called; numpipe.warmup compiles it ahead of calls"
        )
    require("export", locals(), path=PATH, choose=FUNCTION | NONE)
    if not Path(path).parent.is_dir():  # before the slow part
        folder = str(Path(path).parent)
        raise FileNotFoundError(errno.ENOENT, f"{what}: there is no such folder", folder)
    if not signatures:
        raise SpecError(
            f"{what}: give at least one signature, a tuple of a call's arguments: "
            f"export({str(path)!r}, (a, b))"
        )
    export = _Export(calls, choose)
    for signature in signatures:
        export.add(signature)
    write(Path(path), export.manifest(), export.images)


class _Export:
    """An export file under construction."""

    def __init__(self, calls: Calls, choose: Callable | None) -> None:
        self.definition, self.described = calls.definition, calls.described
        self.variant = calls.variant
        self.what = f"kernel {self.definition.name}: export"
        self.images: list[bytes] = []
        self._entries: dict[Any, tuple[Variant, Entry]] = {}
        self._functions: dict[tuple, Function] = {}
        self._choose = choose
        if choose is not None:
            self._function("choose", choose, {})

    def add(self, signature: Any) -> None:
        """Compile the kernel for a signature, with the Statics that `choose` returns for it."""
        if not isinstance(signature, (tuple, list)):
            raise SpecError(
                f"{self.what}: a signature must be a tuple of a call's arguments, arrays or "
                f"ArrayTypes, or (args, named), got {type(signature).__name__}: write "
                "export(path, (a, b)), or export(path, (a,)) for a single argument"
            )
        args, named = tuple(signature), {}
        if (
            len(signature) == 2
            and isinstance(signature[0], (tuple, list))
            and isinstance(signature[1], Mapping)
        ):
            args, named = tuple(signature[0]), dict(signature[1])
        out = named.pop("out", None)
        if self._choose is not None and named.keys().isdisjoint(self.definition.statics):
            named |= self._choice(self._choose, args, named)
        self._compile(self.described(args, named, out))

    def _choice(self, choose: Callable, args: tuple, named: dict[str, Any]) -> dict[str, Any]:
        """Return what `choose` returns for a signature's shapes."""
        definition = self.definition
        bound = definition.arguments.bind(args, dict.fromkeys(definition.statics) | named)
        call = definition.describe(bound, types=True, sizes=False)
        choice = definition.results.ask(choose, "choose", call.known)
        if not isinstance(choice, dict) or not choice or choice.keys() - definition.statics:
            statics = ", ".join(definition.statics) or "there are none"
            raise SpecError(
                f"{self.what}: choose must return a dictionary of some of the Statics "
                f"({statics}), got {choice!r}"
            )
        return choice

    def _function(self, option: Any, function: Any, statics: Mapping[str, Any]) -> None:
        """Record a function of shapes for these values of the Statics."""
        what = f"kernel {self.definition.name}: {option}"
        taken = {}
        defaults = {}
        if callable(function):
            of = self.definition.arguments
            defaults = bound_defaults(function, (*of.names, *of.scalars, *of.statics))
            names = parameter_names(function, option)
            taken = {name: statics[name] for name in names if name in statics}
        texts = self._texts(taken)
        if (option, texts) not in self._functions:
            text = (
                f"def constant():\n    return {literal(function)}"
                if not callable(function)
                else text_of(function, taken, what, option == "choose", defaults)
            )
            self._functions[option, texts] = Function(option, texts, text)

    def _compile(self, call: Described) -> None:
        variant = self.variant(call)
        statics = self._texts(dict(variant.statics))
        key = variant.arrays, variant.scalars, statics
        if key in self._entries:
            first, _ = self._entries[key]
            if first.key != variant.key and first.image.cubin != variant.image.cubin:
                raise SpecError(
                    f"{self.what}: {dict(first.statics)} and {dict(variant.statics)} have the "
                    "same text in a file, but their machine code differs: give the classes "
                    "different names"
                )
            return
        options, grid = self.definition.options, self.definition.grid
        functions = {
            "out_type": options.out_type,
            "workspace": options.workspace,
            "grid": grid if callable(grid) else None,
        }
        for option, function in functions.items():
            if function is not None:
                self._function(option, function, dict(variant.statics))
        data = variant.image.to_bytes()
        self.images.append(data)
        self._entries[key] = (
            variant,
            Entry(
                variant.arrays,
                tuple(dtype.name for dtype in variant.scalars),
                statics,
                len(data),
                hashlib.sha256(data).hexdigest(),
            ),
        )

    def manifest(self) -> Manifest:
        definition, options, grid = self.definition, self.definition.options, self.definition.grid
        fixed, tiled = not callable(grid) and not isinstance(grid, Persistent), definition.tiled
        dims = as_tuple(grid)
        variant, _ = next(iter(self._entries.values()))
        return Manifest(
            version=VERSION,
            kernel=definition.name,
            parameters=tuple(self._parameters()),
            grid=tuple(map(int, dims)) if fixed else None,
            ctas=grid.ctas if isinstance(grid, Persistent) else None,
            tiled=None if tiled is None else (tiled.grid.rank, tiled.grid.parallel),
            grid_names=options.grid_names,
            signature=None if options.signature is None else options.signature.text,
            attributes=options.attributes,
            cluster_names=options.cluster_names,
            stores=tuple(definition.stores["all"]),
            seen=tuple(definition.stores["seen"]),
            functions=tuple(self._functions.values()),
            entries=tuple(entry for _, entry in self._entries.values()),
            target=variant.image.target,
            made_with=tuple(installed(*_MAKERS).items()),
        )

    def _parameters(self) -> Iterator[Parameter]:
        arguments = self.definition.arguments
        for name in (*arguments.names, self.definition.workspace):
            if name is not None:
                yield Parameter(name, "array", None)
        for name, value in (*arguments.scalars.items(), *arguments.statics.items()):
            kind: Any = "scalar" if name in arguments.positional else "keyword"
            if name in arguments.statics:
                kind = "left out" if name in arguments.without else "static"
            what = f"{self.what}: '{name}'"
            if name not in self.definition.own_names:
                yield Parameter(name, kind, None if value is MISSING else described(value, what))

    def _texts(self, statics: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
        return tuple(
            (name, described(value, f"{self.what}: '{name}'")) for name, value in statics.items()
        )


def signature(text: str, names: Mapping[str, Any]) -> tuple[tuple, dict[str, Any]]:
    """Parse a call's arguments given as source on the command line, with ``float16[512, 512]`` for
    an array; `names` defines additional names.

    The text is parsed and never executed: it may contain constants, names, members of enumerations,
    tuples, and calls of dataclasses and named tuples. Raises SpecError for anything else.

    >>> signature("float16[512, 512], n=3", {})
    ((ArrayType(shape=(512, 512), dtype=dtype('float16'), order='C'),), {'n': 3})
    """
    why = "it is not a list of arguments"
    try:
        call = ast.parse(f"f({text})", mode="eval").body
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name):
            return _arguments(call, names)
    except Exception as error:  # also raised by a dataclass that refuses its arguments
        why = f"{type(error).__name__}: {error}"
    raise SpecError(
        f'signature {text!r}: {why}; write a call\'s arguments, e.g. "float16[64, 64], n=3"'
    )


def _arguments(call: ast.Call, names: Mapping[str, Any]) -> tuple[tuple, dict[str, Any]]:
    """Return the values of a call's arguments."""
    if any(each.arg is None for each in call.keywords):
        raise ValueError("** is not allowed here")
    values = {str(each.arg): _value(each.value, names) for each in call.keywords}
    return tuple(_value(each, names) for each in call.args), values


def _value(node: ast.expr, names: Mapping[str, Any]) -> Any:
    """Return the value of a part of a signature. Raises ValueError for what is not allowed there,
    and whatever a dataclass raises."""
    match node:
        case ast.Name(name) if name in ELEMENTS:
            return ELEMENTS[name].dtype
        case ast.Name(name) if name in names:
            return names[name]
        case ast.Tuple(items):
            return tuple(_value(item, names) for item in items)
        case ast.Subscript(ast.Name(name), shape) if name in ELEMENTS:
            sizes = _value(shape, names)
            return ArrayType(as_tuple(sizes), name)
        case ast.Attribute(ast.Name(name), one) if isinstance(names.get(name), enum.EnumMeta):
            return names[name][one]
        case ast.Call(ast.Name(name)) if _is_record(names.get(name)):
            values, named = _arguments(node, names)
            return names[name](*values, **named)
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise ValueError(
            f"{ast.unparse(node)} is neither a constant, an array, nor a name or dataclass of the "
            "kernel's module"
        ) from None


def _is_record(kind: Any) -> bool:
    """Return whether a value is a dataclass or a namedtuple class."""
    return isinstance(kind, type) and (
        dataclasses.is_dataclass(kind) or (issubclass(kind, tuple) and hasattr(kind, "_fields"))
    )
