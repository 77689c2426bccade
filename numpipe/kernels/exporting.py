"""`Kernel.export`: a kernel compiled for some signatures, in a file that `numpipe.load` makes a
kernel of (`loading`)."""

from __future__ import annotations

import ast
import errno
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ..arch.dtypes import ELEMENTS
from ..diagnostics.argument_checks import FUNCTION, NONE, PATH, require
from ..diagnostics.errors import SpecError
from ..diagnostics.versions import installed
from ..plan.specs import ArrayType, Persistent
from .archive import VERSION, Entry, Function, Manifest, Parameter, write
from .arguments import MISSING
from .call_records import Described
from .call_results import HostView
from .calls import Calls
from .evaluation import Evaluation
from .expressions import Expression, described
from .options import parameter_names
from .sources import literal, text_of
from .variants import Variant

_MAKERS = ("numpipe", "numba-cuda", "llvmlite", "nvidia-nvvm", "nvidia-nvjitlink")
MOST_CHOICES = 64
"""ways through `choose`"""


def export(
    calls: Calls,
    path: str | os.PathLike[str],
    signatures: tuple[Any, ...],
    choose: Callable[..., Any] | None,
) -> None:
    """Write the file of the kernel whose calls these are: see `Kernel.export`."""
    what = f"kernel {calls.definition.name}: export"
    if calls.definition.options.semaphores is not None:
        raise SpecError(
            f"{what}: a file holds kernels of one GPU, and this one has semaphores: compile it "
            "where it is called, numpipe.warmup does so ahead of calls"
        )
    require("export", locals(), path=PATH, choose=FUNCTION | NONE)
    if not Path(path).parent.is_dir():  # before what takes long
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
    """A file that is being made."""

    def __init__(self, calls: Calls, choose: Callable[..., Any] | None) -> None:
        self.definition, self.described = calls.definition, calls.described
        self.variant = calls.variant
        self.what = f"kernel {self.definition.name}: export"
        self.images: list[bytes] = []
        self._entries: dict[Any, tuple[Variant, Entry]] = {}
        self._functions: dict[tuple[Any, ...], Function] = {}
        self._objects: dict[str, Any] = {}
        """Statics that `choose` may return, by their descriptions"""
        self._chooser: Expression | None = None
        if choose is not None:
            self._chooser = Expression(self._function("choose", choose, {}), f"{self.what}: choose")

    def add(self, signature: Any) -> None:
        """Compile the kernel for a signature, with all Statics that a call may choose for it."""
        if not isinstance(signature, (tuple, list)):
            raise SpecError(
                f"{self.what}: a signature is a tuple of a call's arguments, arrays or ArrayTypes, "
                f"or (args, named), got {type(signature).__name__}: write export(path, (a, b)), "
                "with a comma for a single one: (a,)"
            )
        args, named = tuple(signature), {}
        if (
            len(signature) == 2
            and isinstance(signature[0], (tuple, list))
            and isinstance(signature[1], Mapping)
        ):
            args, named = tuple(signature[0]), dict(signature[1])
        out = named.pop("out", None)
        if self._chooser is None or not named.keys().isdisjoint(self.definition.statics):
            self._compile(self.described(args, named, out))
            return
        for choice in self._choices(self._chooser, args, named):
            self._compile(self.described(args, named | choice, out))

    def _choices(
        self, chooser: Expression, args: tuple[Any, ...], named: dict[str, Any]
    ) -> list[dict[str, Any]]:
        """Return all that `choose` may return for a signature."""
        definition = self.definition
        bound = definition.arguments.bind(args, dict.fromkeys(definition.statics) | named)
        call = definition.describe(bound, types=True, sizes=False)
        # without outputs that are left out
        known = {name: _Typed(info) for name, info in call.arrays.items()}
        passed = [*known, *call.numbers]
        if unknown := [name for name in chooser.__signature__.parameters if name not in passed]:
            raise SpecError(
                f"kernel {definition.name}: choose takes {', '.join(unknown)}, but an export knows "
                f"{', '.join(passed)}"
            )
        found: list[dict[str, Any]] = []
        answers: list[bool] = []
        for _ in range(MOST_CHOICES):
            choice = _Exploration(chooser.functions, answers, self._objects).outcome(chooser, known)
            if choice is not _RAISES:
                if not isinstance(choice, dict) or not choice or choice.keys() - definition.statics:
                    statics = ", ".join(definition.statics) or "there are none"
                    raise SpecError(
                        f"{self.what}: choose must return a dictionary of some of the Statics "
                        f"({statics}), got {choice!r}"
                    )
                found.append(choice)
            while answers and not answers[-1]:
                answers.pop()
            if not answers:
                break
            answers[-1] = False
        else:
            raise SpecError(
                f"{self.what}: choose has more than {MOST_CHOICES} ways through it: "
                "decide less often"
            )
        if not found:
            raise SpecError(f"{self.what}: choose raises for all arrays of a signature")
        return found

    def _function(self, option: Any, function: Any, statics: Mapping[str, Any]) -> str:
        """Note a function of shapes for the values of these Statics; returns its text."""
        what = f"kernel {self.definition.name}: {option}"
        taken: dict[str, Any] = {}
        if callable(function):
            names = parameter_names(function, option)
            taken = {name: statics[name] for name in names if name in statics}
        texts = self._texts(taken)
        if (option, texts) not in self._functions:
            objects = self._objects if option == "choose" else None
            text = (
                f"def constant():\n    return {literal(function)}"
                if not callable(function)
                else text_of(function, taken, what, objects)
            )
            self._functions[option, texts] = Function(option, texts, text)
        return self._functions[option, texts].text

    def _compile(self, call: Described) -> None:
        variant = self.variant(call)
        statics = self._texts(dict(variant.statics))
        key = variant.arrays, variant.scalars, statics
        if key in self._entries:
            first, _ = self._entries[key]
            if first.key != variant.key and first.image.cubin != variant.image.cubin:
                raise SpecError(
                    f"{self.what}: a file cannot tell {dict(first.statics)} from "
                    f"{dict(variant.statics)}, and their machine code differs: give the classes "
                    "different names"
                )
            return
        options, grid = self.definition.options, self.definition.grid
        functions = {"out_type": options.out_type, "workspace": options.workspace}
        for option, function in {**functions, "grid": grid if callable(grid) else None}.items():
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
        dims = tuple(grid) if isinstance(grid, (tuple, list)) else (grid,)
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


# ---- what `choose` may return
_RAISES = object()


class _Unknown(Exception):
    """A value that depends on the sizes or scalars of a call."""


class _Typed(HostView):
    """An array of unknown sizes."""

    def __init__(self, info: Any) -> None:
        self.dtype, self.ndim = info.dtype, len(info.shape)

    def __getattr__(self, name: str) -> Any:
        raise _Unknown  # its shape


class _Exploration(Evaluation):
    """An evaluation for arrays of unknown sizes, where answers say which tests are true.

    It adds an answer, yes, for each test beyond them. The same test of the same variables has one.
    """

    def __init__(self, functions: Any, answers: list[bool], objects: Mapping[str, Any]) -> None:
        super().__init__(functions)
        self._answers, self._objects, self._asked = answers, objects, 0
        self._known: dict[tuple[int, str], tuple[bool, Any]] = {}
        """answers by the variables (the id of their dictionary, which is kept) and the test"""

    def outcome(self, chooser: Expression, arrays: dict[str, Any]) -> Any:
        """Return what the function returns, `_RAISES` where it raises."""
        try:
            names = chooser.__signature__.parameters
            return self.call([*self.functions][-1], [arrays.get(name, _Unknown) for name in names])
        except _Unknown:
            raise SpecError(
                f"{chooser.what} must return constants, and one depends on a size or a scalar: "
                "choose between constants, {'n': 1 if … else 2}"
            ) from None
        except Exception:
            return _RAISES

    def value(self, node: ast.expr, names: dict[str, Any]) -> Any:
        match node:
            case ast.Name(id=name) if names.get(name) is _Unknown:
                raise _Unknown
            case ast.Call(func=ast.Name(id="Static"), args=[ast.Constant(value=text)]):
                return self._objects[str(text)]
        return super().value(node, names)

    def truth(self, test: ast.expr, names: dict[str, Any]) -> bool:
        try:
            return super().truth(test, names)
        except _Unknown:
            key = id(names), ast.dump(test)
            if key not in self._known:
                if self._asked == len(self._answers):
                    self._answers.append(True)
                self._known[key] = self._answers[self._asked], names
                self._asked += 1
            return self._known[key][0]

    def assign(self, targets: list[ast.expr], value: ast.expr, names: dict[str, Any]) -> None:
        found = [each for one in targets for each in ast.walk(one) if isinstance(each, ast.Name)]
        for each in found:
            self._known = {
                key: known for key, known in self._known.items() if repr(each.id) not in key[1]
            }
        try:
            super().assign(targets, value, names)
        except _Unknown:
            names |= {each.id: _Unknown for each in found}

    def fail(self, error: ast.expr, names: dict[str, Any]) -> None:
        raise RuntimeError  # whatever its message would say of sizes


def signature(text: str, names: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments that a command line gives as source, with ``float16[512, 512]`` for an
    array; `names` has other names.

    Raises SpecError for what is no list of arguments.

    >>> signature("float16[512, 512], n=3", {})
    ((ArrayType(shape=(512, 512), dtype=dtype('float16')),), {'n': 3})
    """

    def value(node: ast.expr) -> Any:
        match node:
            case ast.Subscript(value=ast.Name(id=dtype), slice=dims) if dtype in ELEMENTS:
                shape = eval(compile(ast.Expression(dims), text, "eval"), dict(names))
                return ArrayType(
                    shape if isinstance(shape, tuple) else (shape,), ELEMENTS[dtype].dtype
                )
        return eval(compile(ast.Expression(node), text, "eval"), dict(names))

    why: object = "it is no list of arguments"
    try:
        match ast.parse(f"f({text})", mode="eval").body:
            case ast.Call(func=ast.Name()) as call if all(named.arg for named in call.keywords):
                return tuple(value(argument) for argument in call.args), {
                    str(named.arg): value(named.value) for named in call.keywords
                }
    except Exception as error:  # of whatever the text calls
        why = f"{type(error).__name__}: {error}"
    raise SpecError(
        f'signature {text!r}: {why}; write a call\'s arguments, e.g. "float16[64, 64], n=3"'
    )
