"""`numpipe.load`: load a kernel from a file that `Kernel.export` wrote.

A loaded kernel is called like the original, but needs neither its source nor a compiler. Calls,
outputs, bound calls and launches work as for any kernel. Only the origin of their parts differs:
parameters and options come from the file's manifest, machine code from its images, and functions of
shapes from its expressions."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from ..diagnostics.argument_checks import PATH, require
from ..diagnostics.errors import ImageError, SpecError, TargetError
from ..diagnostics.frames import brief
from ..launch.attributes import of_options
from ..plan.image import Image
from ..plan.params import CompilerParams
from ..plan.specs import persistent
from ..plan.split import Grid, SplitOptions
from .archive import Archive, Entry, Texts
from .arguments import MISSING, SCALAR, Parameters
from .call_records import Bound
from .definition import Definition
from .expressions import Expression, constant_of, described
from .kernel import Kernel
from .options import Options, Signature
from .tiled import Tiled
from .variants import Key, Variant

__all__ = ["load"]

MOST_ANSWERS = 1024
"""results of a function of shapes that are cached for calls with the same shapes"""


@brief
def load(path: str | os.PathLike[str]) -> Kernel:
    """Load a kernel from a file that `Kernel.export` wrote. It is called, bound and captured into
    graphs like the original.

    Calls may have any shapes, but only the types, layouts and Statics that the file has machine
    code for. A Static equals one in the file if its class has the same name and its fields have the
    same values. Loading needs NumPy, ml_dtypes and cuda-bindings, but not Numba or a compiler. The
    only code of the file that the host evaluates is its functions of shapes: checked syntax,
    without builtins, within a budget. The kernel cannot be simulated, because the file holds no
    source.

    Raises ImageError for a damaged or unrelated file, and OSError for a file that cannot be read. A
    call raises ImageError, with a list of what is in the file, if the file holds no machine code
    for it, and TargetError if it needs a GPU or the source.

    >>> block = numpipe.BlockSpec((64, 64), lambda i: (i, 0))
    >>> grid = lambda x: (x.shape[0] // 64,)
    >>> @numpipe.kernel(grid=grid, in_specs=block, out_specs=block)
    ... def double(x, y):
    ...     y[...] = x[...] + x[...]
    >>> x, y = np.ones((128, 64), np.float32), np.zeros((128, 64), np.float32)
    >>> double.export("double.numpipe", (x, y))
    >>> loaded = numpipe.load("double.numpipe")
    >>> loaded.inspect("resources", x, y).smem_bytes == double.inspect(
    ...     "resources", x, y
    ... ).smem_bytes
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
        self._variants: dict[Entry, _Variant] = {}
        self._begin(definition, self._variant)

    def __repr__(self) -> str:
        return f"<numpipe kernel {self.name}({', '.join(self.parameters)}) of {self.archive.path}>"

    def __reduce__(self) -> Any:
        """Pickle the kernel as the path of its file, which other processes load."""
        return load, (self._place,)

    def _variant(self, definition: Definition, key: Key, obstacles: dict[int, str]) -> Variant:
        """Return the variant for a key. Raises ImageError if the file does not have it."""
        arrays = key[0]
        scalars = tuple(dtype.name for dtype in key[1])
        statics = _texts(dict(key[2]))
        for entry in self.archive.manifest.entries:
            if (entry.arrays, entry.scalars, entry.statics) == (arrays, scalars, statics):
                variant = _Variant(self.archive, entry, definition, key, obstacles)
                return self._variants.setdefault(entry, variant)
        call = self.archive.manifest.shown(arrays, scalars, statics)
        raise _absent(self.archive, call + "".join(f" ({each})" for each in obstacles.values()))

    def export(self, path: Any, /, *signatures: Any, choose: Any = None) -> NoReturn:
        what = "cannot be exported again; copy the file, or export it where the source is"
        raise _sourceless(self.archive, what)


def _sourceless(archive: Archive, what: str) -> TargetError:
    return TargetError(
        f"kernel {archive.manifest.kernel}: it was loaded from {archive.path}, which holds "
        f"machine code and no source: it {what}"
    )


def _absent(archive: Archive, call: str) -> ImageError:
    name = archive.manifest.kernel
    return ImageError(
        f"kernel {name}: {archive.path} holds no machine code for {call}; it holds\n{archive}\n"
        f"export it for this call too: {name}.export({str(archive.path)!r}, …)"
    )


def _texts(statics: Mapping[str, Any]) -> Texts:
    """Return descriptions of a call's Statics, for comparison with the descriptions in a file."""

    def text(value: Any) -> str:
        try:
            return described(value, "")
        except SpecError:
            return repr(value)  # matches no file

    return tuple((name, text(value)) for name, value in statics.items())


class _Definition(Definition):
    """The definition of a loaded kernel."""

    def __init__(self, archive: Archive) -> None:
        manifest, self.archive = archive.manifest, archive
        self.stores = {"all": list(manifest.stores), "seen": list(manifest.seen)}
        values = {
            each.name: MISSING if each.default is None else constant_of(each.default)
            for each in manifest.parameters
        }
        scalars, statics = (
            {name: values[name] for name in manifest.names(*kinds)}
            for kinds in (("scalar", "keyword"), ("static", "left out"))
        )
        if not all(value is MISSING or isinstance(value, SCALAR) for value in scalars.values()):
            raise SpecError("the default of a scalar is not a scalar")
        arguments = Parameters(
            manifest.kernel,
            manifest.names("array"),
            scalars,
            statics,
            manifest.names("array", "scalar"),
            manifest.names("left out"),
        )
        functions = {each.option: _ByStatics(archive, each.option) for each in manifest.functions}
        self._choose = functions.get("choose")
        attributes = manifest.attributes
        of_options(
            manifest.kernel, attributes.cluster, attributes.cooperative, attributes.programmatic
        )
        grid = manifest.grid or functions.get("grid") or persistent(manifest.ctas)
        options = Options(
            grid,
            manifest.grid_names,
            functions.get("out_type"),
            None if manifest.signature is None else Signature.parse(manifest.signature),
            SplitOptions(),
            True,
            CompilerParams(),
            "gpu",
            attributes=attributes,
            cluster_names=manifest.cluster_names,
            workspace=functions.get("workspace"),
        )
        tiled = None
        if manifest.tiled is not None:
            tiled = Tiled(manifest.kernel, (), (), Grid(*manifest.tiled, manifest.grid), True)
        self._begin(arguments, options, tiled)

    def read(self) -> NoReturn:
        what = "runs on a GPU only, not on the simulated SM, and cannot be inspected or compiled"
        raise _sourceless(self.archive, what)

    def fingerprint(self) -> NoReturn:
        self.read()

    def bind(self, args: tuple, named: dict[str, Any]) -> Bound:
        """Bind a call's arguments, and choose the Statics if the call passes none."""
        if self._choose is not None and named.keys().isdisjoint(self.statics):
            bound = self.arguments.bind(args, dict.fromkeys(self.statics) | named)
            choice = self.results.ask(self._choose, "choose", self.known(bound))
            if not isinstance(choice, dict) or not choice.keys() <= self.statics.keys():
                raise self.archive.refused(f"choose returns {choice!r}")
            named = named | choice
        return super().bind(args, named)


class _ByStatics:
    """A function of shapes, with one `Expression` for each value of the Statics that it takes."""

    def __init__(self, archive: Archive, option: str) -> None:
        self._archive = archive
        expressions = {
            function.statics: Expression(function.text, f"{archive.path}: {option}")
            for function in archive.manifest.functions
            if function.option == option
        }
        taken = {
            (*each.__signature__.parameters, "", *(name for name, _ in statics))
            for statics, each in expressions.items()
        }
        self.__signature__ = next(iter(expressions.values())).__signature__
        # shapes, types and scalars determine the result, so a call like an earlier one skips the
        # evaluation
        keep = functools.lru_cache(MOST_ANSWERS, typed=True)
        self._known = {statics: keep(each.__call__) for statics, each in expressions.items()}
        self._statics = [name for name, _ in next(iter(self._known))]
        if len(taken) > 1 or not self.__signature__.parameters.keys() >= {*self._statics}:
            raise archive.refused(f"its functions {option} take different arguments")

    def __call__(self, **known: Any) -> Any:
        statics = _texts({name: known[name] for name in self._statics})
        if statics not in self._known:
            arrays = [
                f"{name} {value.dtype.name} {value.ndim}d"
                for name, value in known.items()
                if hasattr(value, "ndim") and name not in self._statics
            ]
            shown = ", ".join([*arrays, *(f"{name}={text}" for name, text in statics)])
            raise _absent(self._archive, shown)
        return self._known[statics](**known)


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

    @property
    def lifted(self) -> Any:
        return self.definition.read()  # raises TargetError

    def shown(self, what: str) -> Any:
        self.find()  # needed for "resources" and "sass"
        if what not in ("resources", "sass"):
            raise _sourceless(
                self._archive, f"has no {what!r} to inspect, only 'resources' and 'sass'"
            )
        return super().shown(what)
