"""The file that `Kernel.export` writes and `numpipe.load` reads: a zip archive of a manifest and of images, nothing else.

``manifest.json``  a `Manifest`: the kernel's parameters and options; the types, Statics and functions of shapes of each signature
``0.image`` …      machine code, one member for each signature, as `launch.image` has it

Members are stored as they are, so ``unzip -l`` and ``python -m zipfile -l`` list them. Nothing of a file is executed on the host:
functions of shapes are `Expression`s, and Statics are compared with the text that describes them (`described`).
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import io
import json
import math
import os
import threading
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ..arch.dtypes import BY_DTYPE, ELEMENTS
from ..core.functions import Function
from ..core.records import parsed, record
from ..diagnostics.errors import ImageError, SpecError
from ..launch.attributes import Attributes
from ..launch.image import Image
from ..plan.plans import ArrayArg
from .expressions import Expression

VERSION = 1
MANIFEST = "manifest.json"
MOST_MANIFEST = 1 << 24
"""bytes of a manifest"""
MOST_IMAGE = 1 << 28
"""bytes of an image"""
_DATE = (1980, 1, 1, 0, 0, 0)
"""of all members: the same kernel makes the same file"""


@dataclass(frozen=True)
class Array:
    """An array of a signature, as `plans.ArrayArg` has it, with the name of its element type."""

    name: str
    dtype: str
    ndim: int
    order: Literal["row", "col"]
    tma: bool
    tma_store: bool
    output: bool
    workspace: bool

    @classmethod
    def of(cls, array: ArrayArg) -> Array:
        return cls(array.name, BY_DTYPE[array.dtype].name, array.ndim, array.order, array.tma, array.tma_store, array.output,
                   array.workspace)

    def __str__(self) -> str:
        layout = " column-major" * (self.order == "col") + ("" if self.tma else ", which TMA cannot address")
        return f"{self.name} {self.dtype} {self.ndim}d{layout}"

    @property
    def arg(self) -> ArrayArg:
        if self.dtype not in ELEMENTS:
            raise ValueError(f"array {self.name[:50]!r} has elements of {self.dtype[:50]!r}, which numpipe does not know")
        return ArrayArg(self.name, ELEMENTS[self.dtype].dtype, self.ndim, self.order, self.tma, self.tma_store, self.output,
                        self.workspace)


@dataclass(frozen=True)
class Parameter:
    """A parameter of a kernel: "array" is one without a default, which may be a scalar too; "left out" is one of ``without=``.

    positional  whether a call may pass it by position
    default     JSON; of a Static it is what `described` says; None: it has none
    """

    name: str
    kind: Literal["array", "scalar", "static", "left out"]
    positional: bool
    default: str | None


@dataclass(frozen=True)
class Entry:
    """A signature of a kernel, with its machine code.

    statics    name and description (`described`) of each Static
    functions  the functions of shapes: "out_type", "grid", "workspace", "steps" or "choose", and the JSON of an `Expression`
    image      the member of the archive; `sha256` is the digest of its bytes
    """

    arrays: tuple[Array, ...]
    scalars: tuple[str, ...]
    statics: tuple[tuple[str, str], ...]
    functions: tuple[tuple[str, str], ...]
    image: str
    sha256: str

    def __str__(self) -> str:
        arrays = [str(array) for array in self.arrays if not array.workspace]
        return ", ".join([*arrays, *self.scalars, *(f"{name}={shown(text)}" for name, text in self.statics)])


@dataclass(frozen=True)
class Manifest:
    """All that a file says of its kernel, but for the machine code.

    grid        CTAs; None: "grid" is a function of each signature; empty: `persistent`, with as many CTAs as `ctas` says
    own         run-time scalars that the kernel passes itself, from "steps"
    stores      parameters that it may store to; `seen`: those whose stores were seen
    workspace   whether its last array is a workspace, whose shape a function of each signature says
    choices     Statics of which "choose", a function of each signature, returns the number; empty: calls have the defaults
    made_with   versions of what compiled it, by name
    target      the architecture of the machine code
    """

    version: int
    kernel: str
    parameters: tuple[Parameter, ...]
    grid: tuple[int, ...] | None
    ctas: int | None
    grid_names: tuple[str, ...]
    signature: str | None
    attributes: Attributes
    cluster_names: tuple[str, ...]
    own: tuple[str, ...]
    stores: tuple[str, ...]
    seen: tuple[str, ...]
    workspace: bool
    choices: tuple[tuple[tuple[str, str], ...], ...]
    entries: tuple[Entry, ...]
    target: str
    made_with: tuple[tuple[str, str], ...]


def described(value: Any, what: str) -> str:
    """Return JSON that says all of a Static's value: another process compares it with what it is passed there.

    A dataclass, a NamedTuple and an Enum are described by the class' name and by the fields, so the process needs no class of this
    one: any object of such a class matches. Raises SpecError, which begins with `what`, for values that no text describes.

    >>> described((1, np.dtype("float16"), True), "the Static 'cfg'")
    '[1,{"dtype":"float16"},true]'
    """
    return json.dumps(_plain(value, what), separators=(",", ":"))


def _plain(value: Any, what: str) -> Any:
    if isinstance(value, Described):
        return json.loads(value.text)
    if isinstance(value, enum.Enum):
        return {"enum": f"{type(value).__qualname__}.{value.name}"}
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {"float": repr(value)}
    if isinstance(value, np.generic):
        return {"number": [value.dtype.name, _plain(value.item(), what)]}
    if isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.generic)):
        return {"dtype": np.dtype(value).name}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {"class": type(value).__qualname__, "fields": {name: _plain(v, what) for name, v in value._asdict().items()}}  # type: ignore[attr-defined]
    if isinstance(value, tuple):
        return [_plain(v, what) for v in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: _plain(getattr(value, field.name), what) for field in dataclasses.fields(value)}
        return {"class": type(value).__qualname__, "fields": fields}
    if isinstance(value, Function):
        return {"function": f"{value.__module__}.{value.__qualname__}"}  # type: ignore[attr-defined]
    raise SpecError(f"{what} is {value!r}, a {type(value).__name__}, which a file cannot describe: Statics of an exported kernel "
                    "are numbers, strings, dtypes, numpipe functions, and tuples, dataclasses, NamedTuples and Enums of these")


@dataclass(frozen=True)
class Described:
    """A Static's value as a file describes it; it stands for the value where a call leaves the Static out."""

    text: str

    def __repr__(self) -> str:
        return shown(self.text)


def shown(text: str) -> str:
    """Return what `described` said as people write it: ``Config(tm=128, tn=256)``."""
    def spell(value: Any) -> str:
        match value:
            case {"class": str(name), "fields": dict(fields)}:
                return f"{name}({', '.join(f'{field}={spell(v)}' for field, v in fields.items())})"
            case dict():
                return str(next(iter(value.values()), value))
            case list():
                return f"({', '.join(map(spell, value))}{',' * (len(value) == 1)})"
        return repr(value)

    return spell(json.loads(text))


# ---- the file
def write(path: Path, manifest: Manifest, images: Mapping[str, bytes]) -> None:
    """Write the file in one step: who reads it meanwhile finds the old one, or none."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.tmp")
    try:
        with zipfile.ZipFile(unfinished, "w", zipfile.ZIP_STORED) as archive:
            text = json.dumps(dataclasses.asdict(manifest), indent=1).encode()
            for name, content in ((MANIFEST, text), *images.items()):
                archive.writestr(zipfile.ZipInfo(name, _DATE), content)
        os.replace(unfinished, path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


class Archive:
    """A file that was read. Its images are checked and unpacked when they are first used."""

    def __init__(self, path: Path) -> None:
        """Read a file. Raises ImageError for one that `write` did not write, FileNotFoundError where there is none."""
        self.path = path
        try:
            if not path.is_file() and path.exists():
                raise ValueError("it is no file")
            self._data = path.read_bytes()
            self.manifest = record(Manifest, parsed(self._member(MANIFEST, MOST_MANIFEST)))
            self._check()
        except (ValueError, KeyError, zipfile.BadZipFile, NotImplementedError) as error:
            raise self.refused(error) from None

    def refused(self, error: object) -> ImageError:
        return ImageError(f"{self.path} cannot be used: {error}; export the kernel again")

    def _member(self, name: str, most: int) -> bytes:
        with zipfile.ZipFile(io.BytesIO(self._data)) as archive:
            info = archive.getinfo(name)
            if info.file_size > most or info.compress_type != zipfile.ZIP_STORED:
                raise ValueError(f"its member {name} has {info.file_size} bytes, at most {most} are possible, not compressed")
            return archive.read(name)

    def _check(self) -> None:
        """Raise ValueError for a manifest that no export writes."""
        manifest = self.manifest
        if manifest.version != VERSION:
            raise ValueError(f"it has version {manifest.version} of the form, and this numpipe reads version {VERSION}")
        names = [parameter.name for parameter in manifest.parameters]
        for name in (manifest.kernel, *names, *manifest.own, *manifest.stores, *manifest.seen):
            if not name.isidentifier():
                raise ValueError(f"{name[:50]!r} is no name")
        if len({*names}) != len(names) or not manifest.entries:
            raise ValueError("it has no signature, or two parameters of one name")
        for entry in manifest.entries:
            for array in entry.arrays:
                array.arg  # noqa: B018  # raises ValueError for a type that numpipe does not know
            if any(scalar not in _SCALARS for scalar in entry.scalars):
                raise ValueError(f"its scalars are of {', '.join(entry.scalars)}")
            self.functions(entry)
        for text in [parameter.default for parameter in manifest.parameters] + [
                text for of in ([e.statics for e in manifest.entries], manifest.choices) for one in of for _, text in one]:
            if text is not None:
                parsed(text.encode())

    def functions(self, entry: Entry) -> dict[str, Expression]:
        """Return the functions of a signature, by name. Raises ImageError for what is none."""
        return {name: self.expression(text, name) for name, text in entry.functions}

    def expression(self, text: str, name: str) -> Expression:
        return Expression.from_json(parsed(text.encode()), f"{self.path}: {name[:50]}")

    def image(self, entry: Entry) -> Image:
        """Return the machine code of a signature. Raises ImageError where it is damaged or another's."""
        try:
            data = self._member(entry.image, MOST_IMAGE)
            if hashlib.sha256(data).hexdigest() != entry.sha256:
                raise ValueError(f"its member {entry.image} is damaged")
        except (ValueError, KeyError, zipfile.BadZipFile, NotImplementedError) as error:
            raise self.refused(error) from None
        image = Image.from_bytes(data, f"{self.path}: {entry.image}")
        arrays = tuple(array.name for array in entry.arrays)
        if image.arrays != arrays or image.target != self.manifest.target:
            raise self.refused(f"its member {entry.image} is of another kernel: of {', '.join(image.arrays)} for {image.target}")
        return image

    def __str__(self) -> str:
        """What is in the file, a line a signature."""
        return "\n".join(f"    {entry}" for entry in self.manifest.entries)


_SCALARS = {"bool", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)), "float16", "float32", "float64"}
