"""The file that `Kernel.export` writes and `numpipe.load` reads: a zip archive of a manifest
and of images.

``manifest.json``  a `Manifest`: the kernel's parameters and options, its functions of shapes and
                   its signatures
``0.image`` …      machine code, one member for each signature, as `launch.image` has it

Members are stored as they are, so ``unzip -l`` and ``python -m zipfile -l`` list them. Nothing of a
file is executed on the host: functions of shapes are evaluated as `Expression`s, and Statics are
compared with the text that describes them.
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
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..arch.dtypes import BY_DTYPE
from ..arch.targets import TARGETS
from ..core.records import parsed, record
from ..diagnostics.errors import ImageError
from ..diagnostics.regular import content
from ..launch.attributes import Attributes
from ..launch.image import Image
from ..plan.folded import MOST
from ..plan.plans import ArrayArg

VERSION = 2
MANIFEST = "manifest.json"
MOST_BYTES = 1 << 30
"""of a file"""
MOST_LISTED = 20
"""signatures that a message lists"""
_DATE = (1980, 1, 1, 0, 0, 0)
"""of all members: the same images make the same file"""
Texts = tuple[tuple[str, str], ...]
"""names of Statics, and descriptions of their values"""


@dataclass(frozen=True)
class Parameter:
    """A parameter of a kernel.

    kind     "array": one without a default, which may be a scalar too; the last one may be a
             workspace.
             "scalar" and "keyword": a run-time scalar, which a call may pass by position, or not.
             "static"; "left out": one of ``without=``
    default  the text of a constant, as `described` returns it; None: it has none
    """

    name: str
    kind: Literal["array", "scalar", "keyword", "static", "left out"]
    default: str | None


@dataclass(frozen=True)
class Function:
    """A function of shapes: the kernel's option, the Statics that it takes, and its text."""

    option: Literal["grid", "out_type", "workspace", "choose"]
    statics: Texts
    text: str


@dataclass(frozen=True)
class Entry:
    """A signature of a kernel, with its machine code.

    scalars  types of the run-time scalars, in the order in which the kernel takes them
    image    the member of the archive; `sha256` is the digest of its bytes
    """

    arrays: tuple[ArrayArg, ...]
    scalars: tuple[str, ...]
    statics: Texts
    image: str
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """All that a file says of its kernel, but for the machine code.

    grid       CTAs; None: a function, or `persistent` with `ctas` CTAs where there is none
    tiled      dimensions of the grid of a kernel over tiles, and how many of them are parallel
    stores     parameters that it may store to; `seen`: those whose stores were seen
    target     the architecture of the machine code
    made_with  versions of what compiled it, by name
    """

    version: int
    kernel: str
    parameters: tuple[Parameter, ...]
    grid: tuple[int, ...] | None
    ctas: int | None
    tiled: tuple[int, int] | None
    grid_names: tuple[str, ...]
    signature: str | None
    attributes: Attributes
    cluster_names: tuple[str, ...]
    stores: tuple[str, ...]
    seen: tuple[str, ...]
    functions: tuple[Function, ...]
    entries: tuple[Entry, ...]
    target: str
    made_with: tuple[tuple[str, str], ...]

    def names(self, *kinds: str) -> list[str]:
        """Return the names of the parameters of these kinds."""
        return [each.name for each in self.parameters if each.kind in kinds]

    def shown(
        self, arrays: Iterable[ArrayArg], scalars: Iterable[str], statics: Iterable[tuple[str, str]]
    ) -> str:
        """Return a signature as people read it."""
        passed = {each.name: each for each in arrays if not each.own}
        names = [name for name in self.names("array") if name not in passed]
        names = names[: len(names) - self.workspace] + self.names("scalar", "keyword")
        hidden = self.names("left out")
        return ", ".join(
            [
                *map(_shown, passed.values()),
                *(f"{name} {kind}" for name, kind in zip(names, scalars, strict=False)),
                *(f"{name}={text}" for name, text in statics if name not in hidden),
            ]
        )

    @property
    def workspace(self) -> bool:
        """Whether its last array is a workspace, whose shape a function of shapes says."""
        return any(each.option == "workspace" for each in self.functions)

    def check(self) -> None:
        """Raise ValueError for a manifest that no export writes."""
        names = [each.name for each in self.parameters]
        members = {entry.image for entry in self.entries}
        if self.target not in {target.name for target in TARGETS.values()}:
            raise ValueError(f"it is for {self.target[:50]!r}, which numpipe does not know")
        if len({*names}) < len(names) or not all(map(str.isidentifier, [self.kernel, *names])):
            raise ValueError("two of its parameters have one name, or one has none")
        if not self.names("array") or not 0 < len(members) == len(self.entries):
            raise ValueError("it has no arrays, or no image for each signature")
        if self.tiled is not None and not 0 <= self.tiled[1] <= self.tiled[0] <= MOST:
            raise ValueError("its grid has no such dimensions")


def _shown(array: ArrayArg) -> str:
    barred = ", with rows that TMA cannot store" if not array.tma_store else ""
    barred = barred if array.tma else ", which TMA cannot address"
    order = " column-major" if array.order == "col" else ""
    return f"{array.name} {array.dtype.name} {array.ndim}d{order}{barred}"


# ---- the file
def write(path: Path, manifest: Manifest, images: Mapping[str, bytes]) -> None:
    """Write the file in one step: who reads it meanwhile finds the old one, or none."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.tmp")
    text = json.dumps(
        dataclasses.asdict(manifest), indent=1, default=lambda dtype: BY_DTYPE[dtype].name
    )
    try:
        with zipfile.ZipFile(unfinished, "w", zipfile.ZIP_STORED) as archive:
            for name, data in ((MANIFEST, text.encode()), *images.items()):
                archive.writestr(zipfile.ZipInfo(name, _DATE), data)
        os.replace(unfinished, path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


class Archive:
    """A file that was read and checked; its images are unpacked when they are first used."""

    def __init__(self, path: Path) -> None:
        """Read a file. Raises ImageError for one of other content, OSError for none."""
        self.path = path
        try:
            self._images = _members(path)
            written = parsed(self._images.pop(MANIFEST, b""))
            version = written.get("version", VERSION) if isinstance(written, dict) else VERSION
            if version != VERSION:
                what = f"it has version {str(version)[:50]} of the form"
                raise ValueError(f"{what}, and this numpipe reads version {VERSION}")
            self.manifest = record(Manifest, written)
            self.manifest.check()
            digests = {
                name: hashlib.sha256(data).hexdigest() for name, data in self._images.items()
            }
            if {entry.image: entry.sha256 for entry in self.manifest.entries} != digests:
                raise ValueError("its images are not those of its manifest")
        except ValueError as error:
            raise self.refused(error) from None

    def refused(self, error: object) -> ImageError:
        return ImageError(f"{self.path} cannot be used: {error}; export the kernel again")

    def image(self, entry: Entry) -> Image:
        """Return the machine code of a signature. Raises ImageError where it is another's."""
        image = Image.from_bytes(self._images[entry.image], f"{self.path}: {entry.image}")
        known = [(array.name, array.order) for array in entry.arrays]
        found = list(zip(image.arrays, image.majors, strict=True))
        if found != known or image.target != self.manifest.target:
            kernel = f"{', '.join(image.arrays)} for {image.target}"
            raise self.refused(f"its member {entry.image} is of another kernel: of {kernel}")
        return image

    def __str__(self) -> str:
        """What is in the file, a line a signature."""
        entries = self.manifest.entries
        lines = [
            f"    {self.manifest.shown(entry.arrays, entry.scalars, entry.statics)}"
            for entry in entries[:MOST_LISTED]
        ]
        more = [f"    and {len(entries) - MOST_LISTED} more"] * (len(entries) > MOST_LISTED)
        return "\n".join([*lines, *more])


def _members(path: Path) -> dict[str, bytes]:
    """Return what is in a zip archive, by name. ValueError for another file, OSError for none."""
    data = content(path, MOST_BYTES)
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            listed = archive.infolist()
            sizes = sum(info.file_size for info in listed)
            if len({info.filename for info in listed}) < len(listed):
                raise ValueError("two of its members have one name")
            if sizes > len(data) or any(
                info.compress_type != zipfile.ZIP_STORED for info in listed
            ):
                raise ValueError("its members are compressed")
            return {info.filename: archive.read(info) for info in listed}
    except (
        zipfile.BadZipFile,
        RuntimeError,
        EOFError,
        OverflowError,
        OSError,
        struct.error,
    ) as error:
        raise ValueError(f"it is no archive, or damaged: {error}") from None
