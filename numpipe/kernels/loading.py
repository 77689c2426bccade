"""`numpipe.load`: a kernel of a file that `Kernel.export` wrote. It is called as the kernel was, without its source and a compiler.

Calls, outputs, bound calls and launches are those of any kernel. What differs is where things come from: parameters and options
from the file's manifest, machine code from its images, functions of shapes from its expressions.
"""

from __future__ import annotations

import functools
import inspect
import json
import os
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from ..diagnostics.errors import ImageError, TargetError
from ..diagnostics.frames import brief
from ..plan.params import CompilerParams
from ..plan.specs import Persistent
from ..plan.split import SplitOptions
from .archive import Archive, Array, Described, Entry, described
from .arguments import MISSING, Call, Parameters
from .definition import Definition
from .expressions import Expression
from .kernels import Kernel
from .options import Options, Signature
from .results import HostView, Results
from .variants import Key, Variant

__all__ = ["load"]


@brief
def load(path: str | os.PathLike[str]) -> Kernel:
    """Return the kernel in a file that `Kernel.export` wrote; it is called, bound and captured into graphs as the kernel was.

    Calls may have any shapes, and the types, layouts and Statics that the file holds machine code for: a Static is equal to one of
    the file's when its class has the same name and its fields the same values. Needs NumPy, ml_dtypes and cuda-bindings, no Numba
    and no compiler, and runs nothing of the file on the host. There is no simulated SM for it, because the file holds no source.

    Raises ImageError for a file that is damaged or something else, and later for a call that it holds no machine code for, with a
    list of what is in it; FileNotFoundError where there is no file.

    >>> scaled = numpipe.load("scale.numpipe")
    >>> y = scaled(x)
    """
    return Loaded(Archive(Path(path)))


class Loaded(Kernel):
    """A kernel that was loaded from a file."""

    def __init__(self, archive: Archive) -> None:
        self.__name__ = self.__qualname__ = archive.manifest.kernel
        self.archive = archive
        self._begin(_Definition(archive), functools.partial(_Variant, archive))

    def __repr__(self) -> str:
        return f"<numpipe kernel {self.name}({', '.join(self.parameters)}) of {self.archive.path}>"

    def __reduce__(self) -> Any:
        return load, (str(self.archive.path),)

    def export(self, path: Any, /, *signatures: Any, choose: Any = None) -> NoReturn:
        raise _sourceless(self.name, self.archive, "cannot be exported again; copy the file, or export it where its source is")


def _sourceless(kernel: str, archive: Archive, what: str) -> TargetError:
    return TargetError(f"kernel {kernel}: it was loaded from {archive.path}, which holds machine code and no source: it {what}")


class _Definition(Definition):
    """The definition of a loaded kernel."""

    def __init__(self, archive: Archive) -> None:
        manifest = archive.manifest
        names = [one.name for one in manifest.parameters if one.kind == "array"]
        scalars = {one.name: _value(one.default) for one in manifest.parameters if one.kind == "scalar"}
        statics = {one.name: MISSING if one.default is None else _value(one.default) for one in manifest.parameters
                   if one.kind in ("static", "left out")}
        self.arguments = Parameters.of(manifest.kernel, names, scalars, statics, [
            one.name for one in manifest.parameters if one.positional], [
            one.name for one in manifest.parameters if one.kind == "left out"])
        self.name, self.parameters, self.statics = manifest.kernel, names, statics
        self.own_names = manifest.own
        self.arguments.hide(self.own_names)
        self._scalars = tuple(self.arguments.scalars)
        self._workspace = next((array.name for array in manifest.entries[0].arrays if array.workspace), None)
        self.stores = {"all": list(manifest.stores), "seen": list(manifest.seen)}
        entries = [(entry, archive.functions(entry)) for entry in manifest.entries]

        def function(option: str, by_statics: bool = True) -> Any:
            known = [(entry, functions[option]) for entry, functions in entries if option in functions]
            return _ByTypes(archive, option, known, self.parameters[:self.first_output], list(statics) if by_statics else []) if (
                known) else None

        self.steps = function("steps")
        self._choose = function("choose", by_statics=False)
        self._choices = [dict(choice) for choice in manifest.choices]
        grid = function("grid") or manifest.grid or Persistent(manifest.ctas)
        self.options = Options(
            grid, manifest.grid_names, function("out_type"),
            None if manifest.signature is None else Signature.parse(manifest.signature),
            SplitOptions(), True, CompilerParams(), None, attributes=manifest.attributes, cluster_names=manifest.cluster_names,
            workspace=function("workspace"))
        self.results = Results(self.arguments, self.options)

    def bind(self, args: tuple[Any, ...], named: dict[str, Any]) -> Call:
        """Bind a call's arguments, and choose the Statics that it leaves out."""
        if self._choose is not None and named.keys().isdisjoint(self.statics):
            call = self.arguments.bind(args, dict.fromkeys(self.statics) | named)
            chosen = self._choices[self.results.ask(self._choose, "choose", call)]
            named = named | {name: _value(text) for name, text in chosen.items()}
        return super().bind(args, named)


def _value(text: str | None) -> Any:
    """Return a number of the file, or what stands for a Static; MISSING where there is none."""
    if text is None:
        return MISSING
    plain = json.loads(text)
    if plain is None or isinstance(plain, (bool, int, float, str)):
        return plain
    if isinstance(plain, dict) and plain.keys() == {"float"}:
        return float(plain["float"])
    if isinstance(plain, dict) and plain.keys() == {"number"}:
        return np.dtype(plain["number"][0]).type(plain["number"][1])
    return Described(text)


class _ByTypes:
    """A function of shapes that a file has an `Expression` of for each signature: the call's types say which one is meant."""

    def __init__(self, archive: Archive, option: str, known: list[tuple[Entry, Expression]], inputs: list[str],
                 statics: list[str]) -> None:
        self._archive, self._option, self._known, self._statics = archive, option, known, statics
        taken = dict.fromkeys([*(name for _, expression in known for name, _ in (*expression.arrays, *expression.scalars)),
                               *(array.name for array in known[0][0].arrays if array.name in inputs), *statics])
        self.__signature__ = inspect.Signature([inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in taken])

    def __call__(self, **known: Any) -> Any:
        statics = {name: described(known[name], f"the Static '{name}'") for name in self._statics}
        views = {name: value for name, value in known.items() if isinstance(value, HostView)}
        for entry, expression in self._known:
            arrays = {array.name: array.arg for array in entry.arrays}
            same = all(name in arrays and (arrays[name].dtype, arrays[name].ndim) == (view.dtype, view.ndim)
                       for name, view in views.items())
            if same and (not statics or dict(entry.statics) == statics):
                taken = {name for name, _ in (*expression.arrays, *expression.scalars)}
                return expression(**{name: value for name, value in known.items() if name in taken})
        raise _absent(self._archive, [*(f"{name} {view.dtype.name} {view.ndim}d" for name, view in views.items()),
                                      *(f"{name}={value!r}" for name, value in known.items() if name in statics)])


def _absent(archive: Archive, call: list[str], why: str = "") -> ImageError:
    name = archive.manifest.kernel
    return ImageError(f"kernel {name}: {archive.path} holds no machine code for {', '.join(call)}{why}; it holds\n{archive}\n"
                      f"export it for this call too: {name}.export({str(archive.path)!r}, …)")


class _Variant(Variant):
    """A variant of a loaded kernel: its machine code comes from the file."""

    def __init__(self, archive: Archive, definition: Definition, key: Key, obstacles: dict[int, str]) -> None:
        super().__init__(definition, key, obstacles)
        self._archive = archive
        statics = {name: described(value, f"the Static '{name}'") for name, value in self.statics}
        self._entry = next((entry for entry in archive.manifest.entries
                            if tuple(array.arg for array in entry.arrays) == self.arrays and dict(entry.statics) == statics
                            and entry.scalars == tuple(dtype.name for dtype in self.scalars)), None)
        if self._entry is None:
            call = [*map(str, map(Array.of, [array for array in self.arrays if not array.workspace])),
                    *(dtype.name for dtype in self.scalars), *(f"{name}={value!r}" for name, value in self.statics)]
            raise _absent(archive, call, "".join(f" ({obstacle})" for obstacle in obstacles.values()))

    @property
    def image(self) -> Any:
        assert self._entry is not None
        with self._lock:
            self._image = self._image or self._archive.image(self._entry)
            return self._image

    def find(self) -> Any:
        return self.image

    def shown(self, what: str) -> Any:
        if what == "resources" or what == "sass":
            self.image  # noqa: B018  # is what both are shown of
            return super().shown(what)
        raise _sourceless(self.definition.name, self._archive, f"has no {what!r} to inspect, only 'resources' and 'sass'")

    @property
    def built(self) -> Any:
        raise _sourceless(self.definition.name, self._archive, "cannot be compiled; inspect(\"resources\", …) shows what was")

    @property
    def _source(self) -> Any:
        raise _sourceless(self.definition.name, self._archive, "runs on a GPU only, not on the simulated SM, and no tool reads it")
