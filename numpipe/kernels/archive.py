"""The file that `Kernel.export` writes and `numpipe.load` reads: a zip archive of a manifest and of images, nothing else.

``manifest.json``  a `Manifest`: the kernel's parameters and options; the types, Statics and functions of shapes of each signature
``0.image`` …      machine code, one member for each signature, as `launch.image` has it

Members are stored as they are, so ``unzip -l`` and ``python -m zipfile -l`` list them. Nothing of a file is executed on the host:
functions of shapes are `Expression`s, and Statics are compared with the text that describes them (`static_texts`).
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import os
import struct
import threading
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..arch.dtypes import BY_DTYPE, ELEMENTS
from ..arch.targets import TARGETS
from ..core.records import parsed, record
from ..diagnostics.errors import ImageError
from ..diagnostics.regular import content
from ..launch.attributes import Attributes, axis_names, names_of, of_options
from ..launch.image import Image
from ..plan.plans import ArrayArg
from .arguments import SCALAR
from .expressions import Expression
from .static_texts import constant_of, shown

VERSION = 1
MANIFEST = "manifest.json"
MOST_BYTES = 1 << 30
"""of a file"""
MOST_LISTED = 20
"""signatures that a message lists"""
_DATE = (1980, 1, 1, 0, 0, 0)
"""of all members: the same images make the same file"""
_SCALARS = {"bool", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)), "float16", "float32", "float64"}


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
        barred = ", which TMA cannot address" if not self.tma else "" if self.tma_store else ", with rows that TMA cannot store"
        return f"{self.name} {self.dtype} {self.ndim}d{' column-major' * (self.order == 'col')}{barred}"

    @property
    def arg(self) -> ArrayArg:
        """The array as keys of variants have it. Raises ValueError for an element type that numpipe does not know."""
        if self.dtype not in ELEMENTS:
            raise ValueError(f"array {self.name[:50]!r} has elements of {self.dtype[:50]!r}, which numpipe does not know")
        return ArrayArg(self.name, ELEMENTS[self.dtype].dtype, self.ndim, self.order, self.tma, self.tma_store, self.output,
                        self.workspace)


@dataclass(frozen=True)
class Parameter:
    """A parameter of a kernel: "array" is one without a default, which may be a scalar too; "left out" is one of ``without=``.

    positional  whether a call may pass it by position
    default     JSON, as `described` returns it; None: it has none
    """

    name: str
    kind: Literal["array", "scalar", "static", "left out"]
    positional: bool
    default: str | None


@dataclass(frozen=True)
class Entry:
    """A signature of a kernel, with its machine code.

    scalars    types of the run-time scalars, in the order in which the kernel takes them
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


@dataclass(frozen=True)
class Manifest:
    """All that a file says of its kernel, but for the machine code.

    grid        CTAs; None: "grid" is a function of each signature; empty: `persistent`, with as many CTAs as `ctas` says
    own         run-time scalars that the kernel passes itself, from "steps"
    stores      parameters that it may store to; `seen`: those whose stores were seen
    workspace   whether its last array is a workspace, whose shape a function of each signature says
    choices     Statics of which "choose", a function of signatures, returns the number; empty: calls have the defaults
    target      the architecture of the machine code
    made_with   versions of what compiled it, by name
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

    def names(self, *kinds: str) -> list[str]:
        """Return the names of the parameters of these kinds."""
        return [parameter.name for parameter in self.parameters if parameter.kind in kinds]

    def scalar_names(self, arrays: Sequence[Array]) -> list[str]:
        """Return the run-time scalars' names, as `Definition.scalar_names` does for these arrays."""
        known = {array.name for array in arrays}
        return [*(name for name in self.names("array") if name not in known), *self.names("scalar"), *self.own]

    def shown(self, entry: Entry) -> str:
        """Return a signature as people read it."""
        scalars = zip(self.scalar_names(entry.arrays), entry.scalars, strict=True)
        return ", ".join([*(str(array) for array in entry.arrays if not array.workspace),
                          *(f"{name} {dtype}" for name, dtype in scalars if name not in self.own),
                          *(f"{name}={shown(text)}" for name, text in entry.statics if name not in self.names("left out"))])

    def check(self) -> None:
        """Raise ValueError for a manifest that no export writes: what is loaded trusts it."""
        if self.version != VERSION:
            raise ValueError(f"it has version {self.version} of the form, and this numpipe reads version {VERSION}")
        if self.target not in {target.name for target in TARGETS.values()}:
            raise ValueError(f"it is for {self.target[:50]!r}, which numpipe does not know")
        arrays, statics = self.names("array"), self.names("static", "left out")
        names = [*(parameter.name for parameter in self.parameters), *self.own]
        for name in (self.kernel, *names):
            if not name.isidentifier():
                raise ValueError(f"{name[:50]!r} is no name")
        for parameter in self.parameters:
            value = None if parameter.default is None else constant_of(parameter.default)
            fits = {"array": parameter.default is None and parameter.positional, "static": not parameter.positional,
                    "scalar": parameter.default is None or isinstance(value, SCALAR),
                    "left out": parameter.default == "null" and not parameter.positional}
            if not fits[parameter.kind]:
                raise ValueError(f"its parameter {parameter.name} cannot be {parameter.kind}")
        attributes = self.attributes
        of_options(self.kernel, attributes.cluster, attributes.cooperative, attributes.programmatic)
        axis_names(self.kernel, attributes.cluster[:len(self.cluster_names)], self.cluster_names)
        names_of(self.kernel, "grid_names", self.grid_names)
        for right, what in (
                (len({*names}) == len(names), "two of its parameters have one name"),
                (arrays and self.entries, "it has no arrays or no signature"),
                ({name for choice in self.choices for name, _ in choice} <= {*statics}, "it chooses something else than Statics")):
            if not right:
                raise ValueError(what)
        for choice in self.choices:
            for _, text in choice:
                constant_of(text)
        for entry in self.entries:
            self._check_entry(entry, arrays, statics)

    def _check_entry(self, entry: Entry, arrays: list[str], statics: list[str]) -> None:
        """Raise ValueError for a signature that this kernel cannot have."""
        given = [array.arg.name for array in entry.arrays if not array.workspace]
        functions = dict(entry.functions)
        wanted = {"grid": self.grid is None, "steps": bool(self.own), "workspace": self.workspace}
        for right, what in (
                ([name for name in arrays if name in given] == given, f"takes {', '.join(given)[:100]}"),
                ([array.workspace for array in entry.arrays[len(given):]] == [True] * self.workspace, "has another workspace"),
                ([name for name, _ in entry.statics] == statics, "has other Statics"),
                (len(entry.scalars) == len(self.scalar_names(entry.arrays)) and {*entry.scalars} <= _SCALARS,
                 f"has scalars of {', '.join(entry.scalars)[:100]}"),
                (functions.keys() <= {"out_type", "choose", *wanted} and len(functions) == len(entry.functions)
                 and all(wanted[name] == (name in functions) for name in wanted),
                 f"has the functions {', '.join(functions)[:100]}"),
                ("choose" not in functions or self.choices, "chooses between nothing")):
            if not right:
                raise ValueError(f"a signature of its {what}, which {self.kernel} cannot have")
        for _, text in entry.statics:
            constant_of(text)


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
    """A file that was read. All is checked then, but for what is in the images, which are unpacked when they are first used."""

    def __init__(self, path: Path) -> None:
        """Read a file. Raises ImageError for one that `write` did not write, OSError for one that cannot be read."""
        self.path = path
        try:
            members = _members(path)
            self.manifest = record(Manifest, parsed(members.pop(MANIFEST, b"")))
            self.manifest.check()
            if {entry.image: entry.sha256 for entry in self.manifest.entries} != {
                    name: hashlib.sha256(content).hexdigest() for name, content in members.items()}:
                raise ValueError("its images are not those of its manifest")
            self.functions = [
                {name: Expression.from_json(parsed(text.encode()), f"{path}: {name}") for name, text in entry.functions}
                for entry in self.manifest.entries]
            """the functions of shapes of each signature, by name"""
        except ImageError:
            raise
        except (ValueError, TypeError, IndexError) as error:
            raise self.refused(error) from None
        self._images = members

    def refused(self, error: object) -> ImageError:
        return ImageError(f"{self.path} cannot be used: {error}; export the kernel again")

    def image(self, entry: Entry) -> Image:
        """Return the machine code of a signature. Raises ImageError where it is another's, or of another numpipe."""
        image = Image.from_bytes(self._images[entry.image], f"{self.path}: {entry.image}")
        known = [(array.name, array.order) for array in entry.arrays]
        if list(zip(image.arrays, image.majors, strict=True)) != known or image.target != self.manifest.target:
            raise self.refused(f"its member {entry.image} is of another kernel: of {', '.join(image.arrays)} for {image.target}")
        return image

    def __str__(self) -> str:
        """What is in the file, a line a signature."""
        entries = self.manifest.entries
        lines = [f"    {self.manifest.shown(entry)}" for entry in entries[:MOST_LISTED]]
        return "\n".join([*lines, f"    and {len(entries) - MOST_LISTED} more"] if len(entries) > MOST_LISTED else lines)


def _members(path: Path) -> dict[str, bytes]:
    """Return what is in a zip archive, by name. Raises ValueError for another file and OSError where there is none."""
    data = content(path, MOST_BYTES)
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            infos = {info.filename: info for info in archive.infolist()}
            if len(infos) != len(archive.infolist()) or sum(info.file_size for info in infos.values()) > len(data) or any(
                    info.compress_type != zipfile.ZIP_STORED for info in infos.values()):
                raise ValueError("two of its members have one name, or members are compressed")
            return {name: archive.read(info) for name, info in infos.items()}
    except (zipfile.BadZipFile, RuntimeError, EOFError, OverflowError, OSError, struct.error) as error:
        raise ValueError(f"it is no archive, or damaged: {error}") from None
