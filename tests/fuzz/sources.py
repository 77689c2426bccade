"""The source of a random kernel while it is written: variables with their layouts and bounds,
places in arrays, and outputs.

`programs` writes the statements, `products` what surrounds them.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

POISON, TRIPS = 77, 3
ROWS, COLUMNS, LINE = 260, 300, 700
MOST = {
    "float32": 2**24,
    "int32": 2**24,
    "float16": 2**11,
    "ml_dtypes.bfloat16": 2**8,
    "int8": 127,
    "uint8": 255,
}
SHAPES = (
    (64, 64),
    (64, 64),
    (64, 32),
    (128, 32),
    (64, 24),
    (8, 64),
    (8, 256),
    (24, 16),
    (32, 64),
    (16, 40),
    (40, 24),
    (8, 8),
    (32, 128),
)
SOURCES = {
    "f": ("float32", -4, 4),
    "g": ("int32", 0, 63),
    "h": ("float16", -3, 3),
    "e": ("int8", -3, 3),
}
LINES = {"v": ("float32", -4, 4), "w": ("int8", -3, 3), "n": ("int32", 0, 63)}
LANES = 4, 8, 16, 32
ROOM = 80_000
"""bytes of shared memory for a program's pipelines and tiles"""


def name_of(dtype: str) -> str:
    return dtype if "." in dtype else f"np.{dtype}"


def size_of(shape: tuple[int, ...], dtype: str) -> int:
    """Return the bytes of a tile."""
    return (
        int(np.prod(shape))
        * np.dtype(getattr(ml_dtypes, dtype[10:]) if "." in dtype else dtype).itemsize
    )


def fits(dtype: str, low: int, high: int) -> bool:
    """Return whether a type represents all integers between these bounds."""
    return -MOST[dtype] * (dtype != "uint8") <= low and high <= MOST[dtype]


def indented(lines: list[str]) -> list[str]:
    return ["    " + line for line in lines]


def layout_of(shape: tuple[int, ...]) -> str:
    """Return the layout of a tile that is loaded or computed."""
    if len(shape) == 1:
        row, column = shape[0] <= 256, shape[0] % 64 == 0
        return "either" if row and column else "row" if row else "column"
    pairs = shape[1] // 2
    accumulator = shape[0] % 64 == 0 and shape[1] <= 256
    return "accumulator" if accumulator else f"rows {min(pairs & -pairs, 32)}"


@dataclass(frozen=True)
class Tile:
    """A variable of a program: a register tile or a vector, and the bounds of its numbers."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    layout: str
    low: int
    high: int

    @property
    def lanes(self) -> str:
        """Return what matching layouts share: "" for the accumulator's, or the lanes of a row."""
        return self.layout.partition(" ")[2]

    @property
    def word(self) -> str:
        return self.layout.partition(" ")[0]

    @property
    def most(self) -> int:
        return max(-self.low, self.high)


@dataclass
class Source:
    """The source of a kernel while it is written, and what it has so far."""

    rng: random.Random
    wgs: int = 1
    ctas: int = 1
    lines: list[str] = field(default_factory=list)
    outputs: dict[str, tuple[tuple[int, ...], str]] = field(default_factory=dict)
    seen: list[Tile] = field(default_factory=list)
    loops: list[str] = field(default_factory=list)
    depth: int = 1
    room: int = ROOM
    number: int = 0
    inside: bool = False
    """whether a pipeline surrounds the statements"""
    owners: int = 0
    """who has a block of each output: all warpgroups of all CTAs, or of all tiles"""
    had: set[str] = field(default_factory=set)
    """kinds of statements so far"""

    # ---- pieces of text
    def new(self, prefix: str) -> str:
        self.number += 1
        return f"{prefix}{self.number}"

    def add(self, *lines: str) -> None:
        self.lines += ["    " * self.depth + line for line in lines]

    def chance(self, percent: int) -> bool:
        return self.rng.randrange(100) < percent

    def start(self, most: int = 40) -> str:
        """Return a number from 0 to `most`, possibly known at compile time."""
        known = [("0", 0), ("1", 1), ("8", 8), ("13", 13), ("32", 32), ("p", 5), ("p * 8", 40)]
        known += [(f"table[{index}]", 3) for index in ("2", "p", *self.loops)]
        known += [("wg * 8", 8), *((f"{loop} * 4", 4 * TRIPS) for loop in self.loops)]
        return self.rng.choice([text for text, top in known if top <= most])

    def part(self, size: int, limits: bool = True, aligned: bool = False) -> str:
        """Return a slice of a dimension; `aligned` restricts starts to those that TMA can store."""
        aligned_starts = ["0", "16", "table[2] * 16", "wg * 32"]
        start = self.rng.choice(aligned_starts) if aligned else self.start()
        stop = ""
        if limits and self.chance(25):
            stops = ["p * 8 + 3", "table[1] * 16", "p - 2", "50", f"{start} + {size // 2}"]
            stop = f", stop={self.rng.choice(stops)}"
        elif aligned and "table" in start:  # it may lie outside
            start = f'numpipe.index({start}, "zero")'
        return f"ds({start}, {size}{stop})"

    def tile(
        self, text: str, shape: tuple[int, ...], dtype: str, layout: str, low: int, high: int
    ) -> Tile:
        made = Tile(self.new("t"), shape, dtype, layout, low, high)
        self.add(f"{made.name} = {text}")
        self.seen.append(made)
        return made

    def like(self, old: Tile, text: str, low: int, high: int, dtype: str = "") -> None:
        """Add a tile computed from another one, unless its numbers would not be exact."""
        dtype = dtype or old.dtype
        if fits(dtype, low, high):
            self.tile(text, old.shape, dtype, old.layout, low, high)

    def any(self, *kinds: str, flat: bool = False) -> Tile | None:
        return self.one_of(
            [
                tile
                for tile in self.seen
                if (len(tile.shape) == 1) == flat and (not kinds or tile.dtype in kinds)
            ]
        )

    def one_of(self, known: list[Any]) -> Any:
        return self.rng.choice(known) if known else None

    def load_line(self, dtype: str, size: int, lanes: str, word: str) -> Tile | None:
        """Load a vector with the layout of a row or a column; None if there is none."""
        array = next((name for name, (of, _, _) in LINES.items() if of == dtype), None)
        if array is None or (not lanes and layout_of((size,)) not in (word, "either")):
            return None
        _, low, high = LINES[array]
        index = self.part(size, limits=not lanes)
        layout = f"{word} {lanes}" if lanes else layout_of((size,))
        text = (
            f"numpipe.load_tile({array}.at[{index}], '{layout}')" if lanes else f"{array}[{index}]"
        )
        return self.tile(text, (size,), dtype, layout, min(low, 0), high)

    def output(self, shape: tuple[int, ...], dtype: str) -> tuple[str, str]:
        """Add an output with a block for each program and step, and return its index."""
        name = self.new("y")
        owners = self.owners or self.ctas * self.wgs
        self.outputs[name] = (owners, *[TRIPS] * len(self.loops), *shape), dtype
        return name, ", ".join(["own", *self.loops])

    def view(self, name: str, sides: tuple[int, ...], dtype: str, low: int, high: int) -> None:
        """Load a part of a shared tile as a register tile."""
        transposed = len(sides) == 2 and self.chance(20)
        sides = sides[::-1] if transposed else sides
        shapes = SHAPES if len(sides) == 2 else [(n,) for n in (8, 24, 64, 128)]
        inside = [s for s in shapes if all(n <= side for n, side in zip(s, sides, strict=True))]
        shape = self.one_of(inside)
        if shape:
            left = [(side - n, n) for n, side in zip(shape, sides, strict=True)]
            parts = ", ".join(f"ds({self.start(most)}, {n})" for most, n in left)
            text = f"{name}{'.T' * transposed}[{parts}]"
            self.tile(text, shape, dtype, layout_of(shape), low, high)

    # ---- the whole kernel
    def text(self, name: str, options: str, parameters: list[str]) -> str:
        """Return the kernel's file."""
        lines = [
            "import ml_dtypes",
            "import numpy as np",
            "import numpipe",
            "from numpipe import SMEM, Barrier, BlockSpec, CompilerParams, Element, Workspace",
            "from numpipe import cdiv, ds",
            "",
            f"@numpipe.kernel({options})",
            f"def {name}({', '.join(parameters)}):",
            *self.lines,
            "",
        ]
        return "\n".join(lines)

    def arguments(self) -> tuple[tuple[str, str], ...]:
        """Return the arguments of a call."""
        found = {
            "table": "rng.integers(0, 4, 8).astype(np.int32)",
            "counts": f"rng.integers(0, {TRIPS + 1}, 4)",
            "order": "rng.permutation(256).astype(np.int32)",
            "p": "np.int32(rng.integers(0, 6))",
            "s": "np.float32(rng.integers(-3, 4))",
        }
        for known, shape in ((SOURCES, (ROWS, COLUMNS)), (LINES, (LINE,))):
            for name, (dtype, low, high) in known.items():
                numbers = f"rng.integers({low}, {high + 1}, {shape})"
                found[name] = f"{numbers}.astype({name_of(dtype)})"
        for name, (sides, dtype) in self.outputs.items():
            found[name] = f"np.full({sides}, {POISON}, {name_of(dtype)})"
        return tuple(found.items())

    @property
    def features(self) -> list[str]:
        """Return the kinds of statements, and the types of tiles."""
        return sorted({f"{tile.dtype} tiles" for tile in self.seen} | self.had)
