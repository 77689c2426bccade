"""`Kernel.export`: a kernel compiled for some signatures, in a file that `numpipe.load` makes a kernel of (`loading`)."""

from __future__ import annotations

import ast
import dataclasses
import errno
import functools
import hashlib
import importlib.metadata
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..arch.dtypes import ELEMENTS
from ..diagnostics.arguments import FUNCTION, NONE, PATH, require
from ..diagnostics.errors import SpecError
from ..plan.specs import ArrayType, Persistent
from .archive import VERSION, Array, Entry, Manifest, Parameter, write
from .arguments import MISSING, Call, scalar_dtype
from .calls import Calls
from .options import grid_dims
from .recording import record
from .static_texts import described
from .variants import Variant

_MAKERS = ("numpipe", "numba-cuda", "llvmlite", "nvidia-nvvm", "nvidia-nvjitlink")


def export(calls: Calls, path: str | os.PathLike[str], signatures: tuple[Any, ...], choose: Callable[..., Any] | None) -> None:
    """Write the file of the kernel whose calls these are: see `Kernel.export`."""
    export = _Export(calls, choose)
    if calls.definition.options.semaphores is not None:
        raise SpecError(f"{export.what}: a file holds kernels of one GPU, and this one has semaphores: compile it where it is "
                        "called, numpipe.warmup does so ahead of calls")
    require("export", locals(), path=PATH, choose=FUNCTION | NONE)
    if not Path(path).parent.is_dir():  # before what takes long
        raise FileNotFoundError(errno.ENOENT, f"{export.what}: there is no such folder", str(Path(path).parent))
    if not signatures:
        raise SpecError(f"{export.what}: give at least one signature, a tuple of a call's arguments: export({str(path)!r}, (a, b))")
    for signature in signatures:
        export.add(signature)
    write(Path(path), export.manifest(), export.images)


class _Export:
    """A file that is being made."""

    def __init__(self, calls: Calls, choose: Callable[..., Any] | None) -> None:
        self.definition, self.described = calls.definition, calls.described
        self.what = f"kernel {self.definition.name}: export"
        self.images: dict[str, bytes] = {}
        self._choose = choose
        self._choices: dict[tuple[tuple[str, str], ...], dict[str, Any]] = {}
        """what `choose` returned, by its description"""
        self._entries: dict[Any, tuple[Variant, Entry]] = {}

    def add(self, signature: Any) -> None:
        """Compile the kernel for a signature, with each of the Statics that a call may choose for it."""
        if not isinstance(signature, (tuple, list)):
            raise SpecError(f"{self.what}: a signature is a tuple of a call's arguments, arrays or ArrayTypes, or (args, named), "
                            f"got {type(signature).__name__}: write export(path, (a, b)), with a comma for a single one: (a,)")
        args, named = tuple(signature), {}
        if len(signature) == 2 and isinstance(signature[0], (tuple, list)) and isinstance(signature[1], Mapping):
            args, named = tuple(signature[0]), dict(signature[1])
        out = named.pop("out", None)
        if self._choose is None or not named.keys().isdisjoint(self.definition.statics):
            self._compile(self.described(args, named, out), {})
            return
        made: dict[int, dict[str, Any]] = {}
        wrong: list[SpecError] = []
        chooser = self._recorded(self._numbered(made, wrong), "choose", *self._types(args, named), {})
        if wrong or not made:
            raise wrong[0] if wrong else SpecError(f"{self.what}: choose raises for all arrays of a signature")
        for choice in made.values():
            self._compile(self.described(args, named | choice, out), {"choose": chooser})

    def _types(self, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[dict[str, tuple[Any, int]], dict[str, np.dtype]]:
        """Return the types of the arrays and of the scalars that a call passes, whatever its Statics are."""
        definition = self.definition
        call = definition.arguments.bind(args, dict.fromkeys(definition.statics) | named)
        definition.describe(call, types=True)
        arrays = zip(definition.results.array_names(call), call.infos, strict=False)  # without outputs that are left out
        scalars = zip(call.names, call.numbers, strict=True)
        return ({name: (info.dtype, len(info.shape)) for name, info in arrays},
                {name: scalar_dtype(value, name, definition.name) for name, value in scalars})

    def _numbered(self, made: dict[int, dict[str, Any]], wrong: list[SpecError]) -> Callable[..., int]:
        """Return `choose` as a function that returns the number of a choice, which an expression can hold.

        `made` gets the choices, `wrong` errors: raised, they would be recorded as what `choose` does for some shapes.
        """
        choose, what, known = self._choose, self.what, self.definition.statics

        @functools.wraps(choose)  # type: ignore[arg-type]
        def number(**arguments: Any) -> int:
            choice = choose(**arguments)  # type: ignore[misc]
            try:
                if not isinstance(choice, Mapping) or not choice or not choice.keys() <= known.keys():
                    raise SpecError(f"{what}: choose must return a dictionary of some of the Statics "
                                    f"({', '.join(known) or 'there are none'}), got {choice!r}")
                texts = self._texts(choice.items())
            except SpecError as error:
                wrong.append(error)
                return 0
            self._choices.setdefault(texts, dict(choice))
            found = [*self._choices].index(texts)
            made[found] = self._choices[texts]
            return found

        return number

    def _recorded(self, function: Callable[..., Any], option: str, arrays: Mapping[str, tuple[Any, int]],
                  scalars: Mapping[str, Any], statics: Mapping[str, Any]) -> str:
        return json.dumps(record(function, option, self.definition.name, arrays, scalars, statics).to_json())

    def _compile(self, call: Call, functions: dict[str, str]) -> None:
        variant: Variant = call.variant
        statics = self._texts(variant.statics)
        key = variant.arrays, variant.scalars, statics
        if key in self._entries:
            first, entry = self._entries[key]
            if first.key != variant.key and first.image.cubin != variant.image.cubin:
                raise SpecError(f"{self.what}: a file cannot tell {dict(first.statics)} from {dict(variant.statics)}, and their "
                                "machine code differs: give the classes different names")
            merged = tuple((dict(entry.functions) | functions).items())
            self._entries[key] = first, dataclasses.replace(entry, functions=merged)
            return
        options = self.definition.options
        arrays = {array.name: (array.dtype, array.ndim) for array in variant.arrays if not array.workspace}
        own = {"out_type": options.out_type, "workspace": options.workspace, "steps": self.definition.steps,
               "grid": options.grid if callable(options.grid) else None}
        found = {option: self._recorded(function if callable(function) else functools.partial(_same, function), option, arrays,
                                        dict(zip(call.names, variant.scalars, strict=True)), dict(variant.statics))
                 for option, function in own.items() if function is not None}
        member, data = f"{len(self._entries)}.image", variant.image.to_bytes()
        self.images[member] = data
        self._entries[key] = variant, Entry(
            tuple(map(Array.of, variant.arrays)), tuple(dtype.name for dtype in variant.scalars), statics,
            tuple({**functions, **found}.items()), member, hashlib.sha256(data).hexdigest())
        self._target = variant.image.target

    def manifest(self) -> Manifest:
        options, definition, grid = self.definition.options, self.definition, self.definition.options.grid
        dims = None if callable(grid) else () if isinstance(grid, Persistent) else grid_dims(
            grid, self.definition.name, options.grid_names)
        return Manifest(
            VERSION, self.definition.name, tuple(self._parameters()), dims, grid.ctas if isinstance(grid, Persistent) else None,
            options.grid_names, None if options.signature is None else options.signature.text, options.attributes,
            options.cluster_names, definition.own_names, tuple(definition.stores["all"]), tuple(definition.stores["seen"]),
            options.workspace is not None, tuple(self._choices), tuple(entry for _, entry in self._entries.values()),
            self._target, tuple(_versions()))

    def _parameters(self) -> Iterator[Parameter]:
        arguments = self.definition.arguments
        for name in arguments.names:
            yield Parameter(name, "array", name in arguments.positional, None)
        for kind, values in (("scalar", arguments.scalars), ("static", arguments.statics)):
            for name, value in values.items():
                if name not in self.definition.own_names:
                    yield Parameter(name, "left out" if name in arguments.without else kind,  # type: ignore[arg-type]
                                    name in arguments.positional,
                                    None if value is MISSING else described(value, f"{self.what}: '{name}'"))

    def _texts(self, statics: Iterable[tuple[str, Any]]) -> tuple[tuple[str, str], ...]:
        return tuple((name, described(value, f"{self.what}: '{name}'")) for name, value in statics)


def signature(text: str, names: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments that a command line gives as source, with ``float16[512, 512]`` for an array; `names` has other names.

    Raises SpecError for what is no list of arguments.

    >>> signature("float16[512, 512], n=3", {})
    ((ArrayType(shape=(512, 512), dtype=dtype('float16')),), {'n': 3})
    """
    def value(node: ast.expr) -> Any:
        match node:
            case ast.Subscript(value=ast.Name(id=dtype), slice=dims) if dtype in ELEMENTS:
                shape = eval(compile(ast.Expression(dims), text, "eval"), dict(names))
                return ArrayType(shape if isinstance(shape, tuple) else (shape,), ELEMENTS[dtype].dtype)
        return eval(compile(ast.Expression(node), text, "eval"), dict(names))

    why: object = "it is no list of arguments"
    try:
        match ast.parse(f"f({text})", mode="eval").body:
            case ast.Call(func=ast.Name()) as call if all(named.arg for named in call.keywords):
                return tuple(value(argument) for argument in call.args), {
                    str(named.arg): value(named.value) for named in call.keywords}
    except Exception as error:  # of whatever the text calls
        why = f"{type(error).__name__}: {error}"
    raise SpecError(f"signature {text!r}: {why}; write a call's arguments, e.g. \"float16[64, 64], n=3\"")


def _same(value: Any) -> Any:
    return value


def _versions() -> Iterator[tuple[str, str]]:
    for package in _MAKERS:
        try:
            yield package, importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
