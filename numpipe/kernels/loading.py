"""`numpipe.load`: a kernel of a file that `Kernel.export` wrote. It is called as the kernel was, without its source and a compiler.

Calls, outputs, bound calls and launches are those of any kernel. What differs is where things come from: parameters and options
from the file's manifest, machine code from its images, functions of shapes from its expressions.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from ..diagnostics.arguments import PATH, require
from ..diagnostics.errors import ImageError, SpecError, TargetError
from ..diagnostics.frames import brief
from ..launch.image import Image
from ..plan import folded
from ..plan.params import CompilerParams
from ..plan.specs import persistent
from ..plan.split import SplitOptions
from .archive import Archive, Array, Entry
from .arguments import MISSING, SCALAR, Call, Parameters, scalar_dtype
from .definition import Definition
from .expressions import Expression
from .judge import Judge
from .kernels import Kernel
from .options import Options, Signature
from .results import Results
from .static_texts import constant_of, described
from .variants import Key, Variant

__all__ = ["load"]

_KINDS = {"b": "bool", "i": "int", "u": "int", "f": "float"}
"""of scalars, as an `Expression` has them, by the kind of their dtype"""


@brief
def load(path: str | os.PathLike[str]) -> Kernel:
    """Return the kernel in a file that `Kernel.export` wrote; it is called, bound and captured into graphs as the kernel was.

    Calls may have any shapes, and the types, layouts and Statics that the file holds machine code for: a Static is equal to one of
    the file's if its class has the same name and its fields the same values. Needs NumPy, ml_dtypes and cuda-bindings, no Numba
    and no compiler, and runs nothing of the file on the host. There is no simulated SM for it, because the file holds no source.

    Raises ImageError for a file that is damaged or something else, OSError for one that cannot be read. A call raises ImageError,
    with a list of what is in the file, where that holds no machine code for it, and TargetError where it needs a GPU or the source.

    >>> block = numpipe.BlockSpec((64, 64), lambda i: (i, 0))
    >>> @numpipe.kernel(grid=lambda x: (x.shape[0] // 64,), in_specs=block, out_specs=block, num_compute_wgs=1)
    ... def double(x, y):
    ...     y[...] = x[...] + x[...]
    >>> x, y = np.ones((128, 64), np.float32), np.zeros((128, 64), np.float32)
    >>> double.export("double.numpipe", (x, y))
    >>> loaded = numpipe.load("double.numpipe")
    >>> loaded.inspect("resources", x, y).smem_bytes == double.inspect("resources", x, y).smem_bytes
    True
    """
    require("load", locals(), path=PATH)
    return Loaded(Archive(Path(path)))


class Loaded(Kernel):
    """A kernel that was loaded from a file."""

    def __init__(self, archive: Archive) -> None:
        self.__name__ = self.__qualname__ = archive.manifest.kernel
        self.archive, self._place = archive, os.path.abspath(archive.path)
        try:
            definition = _Definition(archive)
        except SpecError as error:
            raise archive.refused(error) from None
        self._variants: dict[str, _Variant] = {}
        """by the member of the file"""
        self._begin(definition, self._variant)

    def __repr__(self) -> str:
        return f"<numpipe kernel {self.name}({', '.join(self.parameters)}) of {self.archive.path}>"

    def __reduce__(self) -> Any:
        """Pickle it as what other processes load: the file."""
        return load, (self._place,)

    def _variant(self, definition: Definition, key: Key, obstacles: dict[int, str]) -> Variant:
        """Return the variant for a key; a Static and its description share one. Raises ImageError where the file has none."""
        manifest, names = self.archive.manifest, self.archive.manifest.names("left out")
        arrays, scalars, statics = tuple(map(Array.of, key[0])), tuple(dtype.name for dtype in key[1]), _texts(dict(key[2]))
        for entry in manifest.entries:
            if (entry.arrays, entry.scalars) == (arrays, scalars) and dict(entry.statics) == statics:
                return self._variants.setdefault(entry.image, _Variant(self.archive, entry, definition, key, obstacles))
        call = [*(str(array) for array in arrays if not array.workspace),
                *(f"{name} {dtype}" for name, dtype in zip(manifest.scalar_names(arrays), scalars, strict=True)
                  if name not in manifest.own),
                *(f"{name}={value!r}" for name, value in key[2] if name not in names)]
        raise _absent(self.archive, call, "".join(f" ({obstacle})" for obstacle in obstacles.values()))

    def export(self, path: Any, /, *signatures: Any, choose: Any = None) -> NoReturn:
        raise _sourceless(self.archive, "cannot be exported again; copy the file, or export it where its source is")


def _sourceless(archive: Archive, what: str) -> TargetError:
    return TargetError(f"kernel {archive.manifest.kernel}: it was loaded from {archive.path}, which holds machine code and no "
                       f"source: it {what}")


class _Definition(Definition):
    """The definition of a loaded kernel."""

    def __init__(self, archive: Archive) -> None:
        manifest, self.archive = archive.manifest, archive
        values = {one.name: MISSING if one.default is None else constant_of(one.default) for one in manifest.parameters}
        scalars = {name: values[name] for name in manifest.names("scalar")}
        statics = {name: values[name] for name in manifest.names("static", "left out")}
        self.arguments = Parameters.of(manifest.kernel, manifest.names("array"), scalars, statics,
                                       [one.name for one in manifest.parameters if one.positional], manifest.names("left out"))
        self.name, self.parameters, self.statics = manifest.kernel, self.arguments.names, self.arguments.statics
        self.own_names = manifest.own
        self.arguments.hide(self.own_names)
        self.grid_rank, self.size_names = folded.rank_of(self.own_names)
        self._scalars = tuple(self.arguments.scalars)
        self._workspace = manifest.entries[0].arrays[-1].name if manifest.workspace else None
        self._semaphores = None
        self.stores = {"all": list(manifest.stores), "seen": list(manifest.seen)}
        functions = {option: _ByTypes(archive, option) for option in ("out_type", "grid", "steps", "workspace", "choose")
                     if any(option in known for known in archive.functions)}
        self.steps, self._choose = functions.get("steps"), functions.get("choose")
        self._choices = [{name: constant_of(text) for name, text in choice} for choice in manifest.choices]
        self.options = Options(
            functions.get("grid") or manifest.grid or persistent(manifest.ctas), manifest.grid_names, functions.get("out_type"),
            None if manifest.signature is None else Signature.parse(manifest.signature),
            SplitOptions(), True, CompilerParams(), "gpu", attributes=manifest.attributes, cluster_names=manifest.cluster_names,
            workspace=functions.get("workspace"))
        self.options.check(self.name, len(self.parameters))
        self.results = _Results(self.arguments, self.options)

    def read(self) -> NoReturn:
        raise _sourceless(self.archive, "runs on a GPU only, not on the simulated SM, and nothing can look at it or compile it")

    def fingerprint(self) -> NoReturn:
        self.read()

    def bind(self, args: tuple[Any, ...], named: dict[str, Any], own: bool = True) -> Call:
        """Bind a call's arguments, and choose Statics where it passes none."""
        if self._choose is not None and named.keys().isdisjoint(self.statics):
            call = self.arguments.bind(args, dict.fromkeys(self.statics) | named)
            named = named | self._choices[self.results.ask(self._choose, "choose", call)]
        return super().bind(args, named, own)


class _Results(Results):
    """The outputs of a loaded kernel."""

    def _call(self, function: Callable[..., Any], what: str, known: dict[str, Any], has: str) -> Any:
        if not isinstance(function, _ByTypes):
            return super()._call(function, what, known, has)
        result = super()._call(function.of(known), what, known, has)
        function.check(result)
        return result


class _ByTypes:
    """A function of shapes, which a file has as an `Expression` for each signature: a call's types say which one is meant."""

    def __init__(self, archive: Archive, option: str) -> None:
        self._archive, self._option = archive, option
        self._known = [(entry, functions[option]) for entry, functions in zip(
            archive.manifest.entries, archive.functions, strict=True) if option in functions]
        self.__signature__ = inspect.signature(self._known[0][1])

    def __call__(self, **known: Any) -> Any:
        return self.of(known)(**known)

    def of(self, known: Mapping[str, Any]) -> Expression:
        """Return the expression for the arguments of a call. Raises ImageError where there is none."""
        manifest = self._archive.manifest
        passed = {name: known[name] for name in manifest.names("array") if name in known}
        arrays = {name: (value.dtype, len(value.shape)) for name, value in passed.items() if not isinstance(value, SCALAR)}
        statics = {} if self._option == "choose" else _texts(
            {name: known[name] for name in manifest.names("static", "left out") if name in known})
        for entry, expression in self._known:
            types = {array.name: (array.arg.dtype, array.ndim) for array in entry.arrays if array.name in passed}
            if types == arrays and statics.items() <= dict(entry.statics).items() and all(
                    kind == _KINDS[scalar_dtype(known[name], name, manifest.kernel).kind]
                    for name, kind in expression.scalars if name in known):
                return expression
        raise _absent(self._archive, [f"{name} {dtype.name} {rank}d" for name, (dtype, rank) in arrays.items()] + [
            f"{name} {scalar_dtype(value, name, manifest.kernel)}" for name, value in passed.items() if name not in arrays] + [
            f"{name}={known[name]!r}" for name in statics])

    def check(self, result: Any) -> None:
        """Raise ImageError for what the function that was recorded never returned. Callers check what other functions return."""
        own, choices = len(self._archive.manifest.own), len(self._archive.manifest.choices)
        if (self._option == "steps" and not (isinstance(result, tuple) and len(result) == own and all(
                type(size) is int and size >= 0 for size in result))) or (
                self._option == "choose" and not (type(result) is int and 0 <= result < choices)):
            raise self._archive.refused(f"{self._option} returns {result!r}")


def _texts(statics: Mapping[str, Any]) -> dict[str, str]:
    """Return descriptions of a call's Statics, which are compared with those of a file; "" of one that no file has."""
    def text(value: Any) -> str:
        try:
            return described(value, "")
        except SpecError:
            return ""

    return {name: text(value) for name, value in statics.items()}


def _absent(archive: Archive, call: list[str], why: str = "") -> ImageError:
    name = archive.manifest.kernel
    return ImageError(f"kernel {name}: {archive.path} holds no machine code for {', '.join(call)}{why}; it holds\n{archive}\n"
                      f"export it for this call too: {name}.export({str(archive.path)!r}, …)")


class _Variant(Variant):
    """A variant of a loaded kernel: its machine code comes from the file."""

    def __init__(self, archive: Archive, entry: Entry, *known: Any) -> None:
        super().__init__(*known)
        self._archive, self._entry = archive, entry

    @property
    def image(self) -> Image:
        return self.find()

    def find(self) -> Image:
        with self._lock:
            self._image = self._image or self._archive.image(self._entry)
            return self._image

    def _build(self) -> Any:
        return self.definition.read()  # raises TargetError

    def simulate(self, calls: Sequence[Call], grid: tuple[int, int, int], seed: Any, trace: Any,
                 judge: Judge | None = None) -> None:
        self.definition.read()

    def shown(self, what: str) -> Any:
        self.find()  # "resources" and "sass" are shown of it
        if what not in ("resources", "sass"):
            raise _sourceless(self._archive, f"has no {what!r} to inspect, only 'resources' and 'sass'")
        return super().shown(what)
