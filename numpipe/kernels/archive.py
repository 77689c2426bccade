"""The file format of `Kernel.export` and `numpipe.load`: a manifest and machine code.

The first line is a `Manifest` as JSON, with the kernel's parameters and options, its functions of
shapes and its signatures. ``head -1 k.numpipe | jq`` shows it. The machine code of each signature
follows, in the format of `plan.image` and in the order of the manifest's entries.

The only code of a file that the host evaluates is its functions of shapes. They are `Expression`s,
a small, checked subset of Python. Statics are compared by the text that describes them.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..arch.dimensions import Ints, Names
from ..arch.dtypes import BY_DTYPE
from ..arch.targets import TARGETS
from ..core.records import parsed, record
from ..diagnostics.errors import ImageError
from ..diagnostics.regular_files import content, put
from ..launch.attributes import Attributes
from ..plan.folded_grids import MOST
from ..plan.image import Image
from ..plan.plans import ArrayArg

VERSION = 4
MOST_BYTES = 1 << 30
"""maximum size of a file"""
MOST_LISTED = 20
"""maximum number of signatures that a message lists"""
Texts = tuple[tuple[str, str], ...]
"""names of Statics, with descriptions of their values"""


@dataclass(frozen=True)
class Parameter:
    """A parameter of a kernel.

    kind     "array": without a default. It may also be a scalar, and the last one may be a
             workspace.
             "scalar", "keyword": a run-time scalar that calls may, or may not, pass by position.
             "static"; "left out": one of ``without=``
    default  text of a constant, as `described` returns it; None: no default
    """

    name: str
    kind: Literal["array", "scalar", "keyword", "static", "left out"]
    default: str | None


@dataclass(frozen=True)
class Function:
    """A function of shapes: the kernel option it was passed as, the Statics that it takes, and its
    text."""

    option: Literal["grid", "out_type", "workspace", "choose"]
    statics: Texts
    text: str


@dataclass(frozen=True)
class Entry:
    """A signature of a kernel, with its machine code.

    scalars  types of the run-time scalars, in the order in which the kernel takes them
    size     number of bytes of its image; `sha256` is the image's digest
    """

    arrays: tuple[ArrayArg, ...]
    scalars: Names
    statics: Texts
    size: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """Everything in a file except for the machine code.

    grid       numbers of CTAs; None: given by a grid function, or else `persistent` with `ctas`
    CTAs
    tiled      for a kernel over tiles: the grid's rank, and the number of parallel dimensions
    stores     parameters that it may store to; `seen`: those with a store in the source
    target     architecture of the machine code
    made_with  versions of the packages that compiled it, by name
    """

    version: int
    kernel: str
    parameters: tuple[Parameter, ...]
    grid: Ints | None
    ctas: int | None
    tiled: tuple[int, int] | None
    grid_names: Names
    signature: str | None
    attributes: Attributes
    cluster_names: Names
    stores: Names
    seen: Names
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
        """Format a signature for messages."""
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
        """Whether its last array is a workspace, whose shape is given by a function of shapes."""
        return any(each.option == "workspace" for each in self.functions)

    def check(self) -> None:
        """Raise ValueError for a manifest that no export writes."""
        names = [each.name for each in self.parameters]
        if self.target not in {target.name for target in TARGETS.values()}:
            raise ValueError(f"its target {self.target[:50]!r} is unknown to this numpipe")
        if len({*names}) < len(names) or not all(map(str.isidentifier, [self.kernel, *names])):
            raise ValueError("two of its parameters have the same name, or a name is invalid")
        if not self.names("array") or not self.entries:
            raise ValueError("it has no arrays, or no signatures")
        if self.tiled is not None and not 0 <= self.tiled[1] <= self.tiled[0] <= MOST:
            raise ValueError("the dimensions of its grid are invalid")


def _shown(array: ArrayArg) -> str:
    restriction = ", with rows that TMA cannot store" if not array.tma_store else ""
    restriction = restriction if array.tma else ", which TMA cannot address"
    order = " column-major" if array.order == "col" else ""
    return f"{array.name} {array.dtype.name} {array.ndim}d{order}{restriction}"


# ---- the file
def write(path: Path, manifest: Manifest, images: Sequence[bytes]) -> None:
    """Write the file atomically: concurrent readers find the old file or none."""
    text = json.dumps(dataclasses.asdict(manifest), default=lambda dtype: BY_DTYPE[dtype].name)
    put(path, b"".join([text.encode(), b"\n", *images]))


class Archive:
    """A file that was read and checked. Its images are unpacked when first used."""

    def __init__(self, path: Path) -> None:
        """Read a file. Raises ImageError if its content is invalid, OSError if it cannot be
        read."""
        self.path = path
        try:
            line, _, images = content(path, MOST_BYTES).partition(b"\n")
            written = parsed(line)
            version = written.get("version", VERSION) if isinstance(written, dict) else VERSION
            if version != VERSION:
                what = f"its format has version {str(version)[:50]}"
                raise ValueError(f"{what}, and this numpipe reads version {VERSION}")
            self.manifest = record(Manifest, written)
            self.manifest.check()
            self._images: dict[str, bytes] = {}
            """images by digest"""
            place = 0
            for entry in self.manifest.entries:
                data = images[place : place + entry.size]
                if hashlib.sha256(data).hexdigest() != entry.sha256:
                    raise ValueError("an image does not match its manifest")
                self._images[entry.sha256] = data
                place += entry.size
            if place != len(images):
                raise ValueError("the sizes of its images differ from its manifest")
        except ValueError as error:
            raise self.refused(error) from None

    def refused(self, error: object) -> ImageError:
        return ImageError(f"{self.path} cannot be used: {error}; export the kernel again")

    def image(self, entry: Entry) -> Image:
        """Return the machine code of a signature. Raises ImageError if it belongs to another
        kernel."""
        image = Image.from_bytes(self._images[entry.sha256], f"{self.path}: its machine code")
        known = [(array.name, array.order) for array in entry.arrays]
        found = list(zip(image.arrays, image.majors, strict=True))
        if found != known or image.target != self.manifest.target:
            kernel = f"{', '.join(image.arrays)} for {image.target}"
            raise self.refused(f"its machine code belongs to another kernel: {kernel}")
        return image

    def __str__(self) -> str:
        """List what is in the file, one signature per line."""
        entries = self.manifest.entries
        lines = [
            f"    {self.manifest.shown(entry.arrays, entry.scalars, entry.statics)}"
            for entry in entries[:MOST_LISTED]
        ]
        more = [f"    and {len(entries) - MOST_LISTED} more"] * (len(entries) > MOST_LISTED)
        return "\n".join([*lines, *more])
