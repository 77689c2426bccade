"""`Kernel.export`: a kernel compiled for some signatures, in a file that `numpipe.load` makes a kernel of (`loading`)."""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.metadata
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..arch.dtypes import ELEMENTS
from ..diagnostics.errors import SpecError
from ..plan.specs import ArrayType, Persistent
from .archive import VERSION, Array, Entry, Manifest, Parameter, described, write
from .arguments import MISSING, SCALAR, Call
from .definition import described as as_array
from .recording import record

if TYPE_CHECKING:
    from .kernels import Kernel

_MAKERS = ("numpipe", "numba-cuda", "llvmlite", "nvidia-nvvm", "nvidia-nvjitlink")


def export(kernel: Kernel, path: str | os.PathLike[str], signatures: tuple[Any, ...], choose: Callable[..., Any] | None) -> None:
    """Write a kernel's file: see `Kernel.export`."""
    export = _Export(kernel, choose)
    if not signatures:
        raise SpecError(f"{export.what}: give at least one signature, a tuple of a call's arguments: export({str(path)!r}, (a, b))")
    for signature in signatures:
        export.add(signature)
    write(Path(path), export.manifest(), export.images)


class _Export:
    """A file that is being made."""

    def __init__(self, kernel: Kernel, choose: Callable[..., Any] | None) -> None:
        self.kernel, self.definition, self.what = kernel, kernel.definition, f"kernel {kernel.name}: export"
        self.images: dict[str, bytes] = {}
        self._choose = choose
        self._choices: list[dict[str, Any]] = []
        self._made: set[int] = set()
        """the numbers of the choices that calls with the arrays of one signature may make"""
        self._entries: dict[Any, Entry] = {}

    def add(self, signature: Any) -> None:
        """Compile the kernel for a signature, with each of the Statics that a call may choose for it."""
        if not isinstance(signature, (tuple, list)):
            raise SpecError(f"{self.what}: a signature is a tuple of a call's arguments, arrays or ArrayTypes, or (args, named), "
                            f"got {type(signature).__name__}: write export(path, (a, b)), with a comma for a single one: (a,)")
        args, named = tuple(signature), {}
        if len(signature) == 2 and isinstance(signature[0], (tuple, list)) and isinstance(signature[1], Mapping):
            args, named = tuple(signature[0]), dict(signature[1])
        functions: dict[str, str] = {}
        self._made.clear()
        if self._choose is not None:
            number = functools.wraps(self._choose)(lambda **known: self._number(known))
            functions["choose"] = self._recorded(number, "choose", self._arrays(args), {}, {})
        for choice in [self._choices[number] for number in sorted(self._made)] or [{}]:
            given = {**named, **choice}
            self._compile(self.kernel.described(args, given, given.pop("out", None)), functions)

    def _arrays(self, args: tuple[Any, ...]) -> dict[str, tuple[Any, int]]:
        passed = zip(self.definition.parameters, args, strict=False)
        infos = {name: as_array(value, name, self.kernel.name) for name, value in passed if not isinstance(value, SCALAR)}
        return {name: (info.dtype, len(info.shape)) for name, info in infos.items()}

    def _number(self, known: Mapping[str, Any]) -> int:
        """Return the number of the choice that `choose` makes: an expression can return it, whatever the Statics are."""
        assert self._choose is not None
        choice = self._choose(**known)
        if not isinstance(choice, Mapping) or not choice or not choice.keys() <= self.kernel.statics.keys():
            raise SpecError(f"{self.what}: choose must return a dictionary of some of the Statics "
                            f"({', '.join(self.kernel.statics)}), got {choice!r}")
        if dict(choice) not in self._choices:
            self._choices.append(dict(choice))
        number = self._choices.index(dict(choice))
        self._made.add(number)
        return number

    def _recorded(self, function: Callable[..., Any], option: str, arrays: Mapping[str, tuple[Any, int]],
                  scalars: Mapping[str, Any], statics: Mapping[str, Any]) -> str:
        return json.dumps(record(function, option, self.kernel.name, arrays, scalars, statics).to_json())

    def _compile(self, call: Call, functions: Mapping[str, str]) -> None:
        variant, options = call.variant, self.kernel.options
        if variant.key in self._entries:
            return
        statics = tuple((name, self._described(name, value)) for name, value in variant.statics)
        arrays = {array.name: (array.dtype, array.ndim) for array in variant.arrays if not array.workspace}
        scalars = dict(zip(call.names, variant.scalars, strict=True))
        own = {"out_type": options.out_type, "workspace": options.workspace, "steps": self.definition.steps,
               "grid": options.grid if callable(options.grid) else None}
        found = {option: self._recorded(function if callable(function) else functools.partial(_same, function), option, arrays,
                                        scalars, dict(variant.statics))
                 for option, function in own.items() if function is not None}
        member, data = f"{len(self._entries)}.image", variant.image.to_bytes()
        self.images[member] = data
        self._entries[variant.key] = Entry(
            tuple(map(Array.of, variant.arrays)), tuple(dtype.name for dtype in variant.scalars), statics,
            tuple({**functions, **found}.items()), member, hashlib.sha256(data).hexdigest())
        self._target = variant.image.target

    def manifest(self) -> Manifest:
        options, definition, grid = self.kernel.options, self.definition, self.kernel.options.grid
        dims = () if isinstance(grid, Persistent) else tuple(grid) if isinstance(grid, (tuple, list)) else (grid,)
        choices = tuple(tuple((name, self._described(name, value)) for name, value in choice.items()) for choice in self._choices)
        return Manifest(
            VERSION, self.kernel.name, tuple(self._parameters()), None if callable(grid) else tuple(map(int, dims)),
            grid.ctas if isinstance(grid, Persistent) else None, options.grid_names,
            None if options.signature is None else options.signature.text, options.attributes, options.cluster_names,
            definition.own_names, tuple(definition.stores["all"]), tuple(definition.stores["seen"]), options.workspace is not None,
            choices, tuple(self._entries.values()), self._target, tuple(_versions()))

    def _parameters(self) -> Iterator[Parameter]:
        arguments = self.definition.arguments
        for name in arguments.names:
            yield Parameter(name, "array", name in arguments.positional, None)
        for kind, values in (("scalar", arguments.scalars), ("static", arguments.statics)):
            for name, value in values.items():
                if name not in self.definition.own_names:
                    yield Parameter(name, "left out" if name in arguments.without else kind,  # type: ignore[arg-type]
                                    name in arguments.positional,
                                    None if value is MISSING else self._described(name, value))

    def _described(self, name: str, value: Any) -> str:
        return described(value, f"{self.what}: '{name}'")


def signature(text: str, names: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments that a command line gives as source, with ``float16[512, 512]`` for an array; `names` has other names.

    Raises SpecError for what is no list of arguments.

    >>> signature("float16[512, 512], n=3", {})
    ((ArrayType((512, 512), 'float16'),), {'n': 3})
    """
    def value(node: ast.expr) -> Any:
        match node:
            case ast.Subscript(value=ast.Name(id=dtype), slice=dims) if dtype in ELEMENTS:
                shape = eval(compile(ast.Expression(dims), text, "eval"), dict(names))
                return ArrayType(shape if isinstance(shape, tuple) else (shape,), ELEMENTS[dtype].dtype)
        return eval(compile(ast.Expression(node), text, "eval"), dict(names))

    try:
        call = ast.parse(f"f({text})", mode="eval").body
        assert isinstance(call, ast.Call)
        return tuple(value(argument) for argument in call.args), {str(named.arg): value(named.value) for named in call.keywords}
    except (SyntaxError, NameError, AttributeError, AssertionError) as error:
        raise SpecError(f"signature {text!r}: {error}: write a call's arguments, e.g. \"float16[64, 64], n=3\"") \
            from None


def _same(value: Any) -> Any:
    return value


def _versions() -> Iterator[tuple[str, str]]:
    for package in _MAKERS:
        try:
            yield package, importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
