"""The source of a random kernel while it is written: its variables, their layouts and bounds; places in arrays; its outputs.

`programs` writes the statements, `products` what stands around them.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import ml_dtypes
import numpy as np

POISON, TRIPS = 77, 3
ROWS, COLUMNS, LINE = 260, 300, 700
MOST = {"float32": 2**24, "int32": 2**24, "float16": 2**11, "ml_dtypes.bfloat16": 2**8, "int8": 127, "uint8": 255}
SHAPES = ((64, 64), (64, 64), (64, 32), (128, 32), (64, 24), (8, 64), (8, 256), (24, 16), (32, 64), (16, 40), (40, 24), (8, 8),
          (32, 128))
SOURCES = {"f": ("float32", -4, 4), "g": ("int32", 0, 63), "h": ("float16", -3, 3), "e": ("int8", -3, 3)}
LINES = {"v": ("float32", -4, 4), "w": ("int8", -3, 3), "n": ("int32", 0, 63)}
ROOM = 80_000
"""bytes of shared memory that a program's pipelines and tiles take"""


def name_of(dtype: str) -> str:
    return dtype if "." in dtype else f"np.{dtype}"


def dtype_of(dtype: str) -> np.dtype:
    return np.dtype(ml_dtypes.bfloat16 if "." in dtype else dtype)


def indented(lines: list[str], by: int = 4) -> list[str]:
    return [" " * by + line for line in lines]


@dataclass(frozen=True)
class Tile:
    """A variable of a program: a register tile or a vector, and what its numbers lie between."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    layout: str
    low: int
    high: int

    @property
    def lanes(self) -> str:
        """What layouts that meet have in common: "" of an accumulator's, or the lanes of a row."""
        return self.layout.partition(" ")[2]

    @property
    def word(self) -> str:
        return self.layout.partition(" ")[0]


def layout_of(shape: tuple[int, ...]) -> str:
    """The layout of a tile that is loaded, or made."""
    if len(shape) == 1:
        row, column = shape[0] <= 256, shape[0] % 64 == 0
        return "either" if row and column else "row" if row else "column"
    pairs = shape[1] // 2
    return "accumulator" if shape[0] % 64 == 0 and shape[1] <= 256 else f"rows {min(pairs & -pairs, 32)}"


@dataclass
class Source:
    """The source of a kernel while it is written, and what stands in it so far."""

    rng: random.Random
    wgs: int = 1
    ctas: int = 1
    roles: bool = True
    lines: list[str] = field(default_factory=list)
    outputs: dict[str, tuple[tuple[int, ...], str]] = field(default_factory=dict)
    seen: list[Tile] = field(default_factory=list)
    loops: list[str] = field(default_factory=list)
    depth: int = 1
    room: int = ROOM
    number: int = 0
    inside: bool = False
    """of a pipeline"""
    owners: int = 0
    """who have a block of each output: all warpgroups of all CTAs, or those of all tiles"""
    had: set[str] = field(default_factory=set)
    """kinds of statements"""

    # ---- what the text is made of
    def new(self, prefix: str) -> str:
        self.number += 1
        return f"{prefix}{self.number}"

    def add(self, line: str) -> None:
        self.lines.append("    " * self.depth + line)

    def chance(self, percent: int) -> bool:
        return self.rng.randrange(100) < percent

    def start(self, most: int = 40, warpgroups: bool = True) -> str:
        """A number from 0 to `most`, known when the kernel is compiled or not."""
        known = [("0", 0), ("1", 1), ("8", 8), ("13", 13), ("32", 32), ("p", 5), ("table[2]", 3), ("table[p]", 3), ("p * 8", 40),
                 *((f"table[{loop}]", 3) for loop in self.loops), *((f"{loop} * 4", 4 * TRIPS) for loop in self.loops),
                 *[("wg * 8", 8)] * warpgroups]
        return self.rng.choice([text for text, top in known if top <= most])

    def part(self, size: int, most: int = 40, limits: bool = True, aligned: bool = False) -> str:
        """Elements of a dimension; `aligned`: from where the TMA may store them."""
        start = self.rng.choice(["0", "16", "table[2] * 16", "wg * 32"]) if aligned else self.start(most)
        if limits and self.chance(25):
            stop = self.rng.choice(["p * 8 + 3", "table[1] * 16", "p - 2", "50", f"{start} + {size // 2}", f"{start} + table[3]"])
            return f"ds({start}, {size}, stop={stop})"
        return f"ds({start}, {size})"

    def tile(self, text: str, shape: tuple[int, ...], dtype: str, layout: str, low: int, high: int) -> Tile:
        made = Tile(self.new("t"), shape, dtype, layout, low, high)
        self.add(f"{made.name} = {text}")
        self.seen.append(made)
        return made

    def like(self, old: Tile, text: str, low: int, high: int, dtype: str | None = None) -> Tile:
        return self.tile(text, old.shape, dtype or old.dtype, old.layout, low, high)

    def any(self, *kinds: str, flat: bool = False) -> Tile | None:
        found = [t for t in self.seen if (len(t.shape) == 1) == flat and (not kinds or t.dtype in kinds)]
        return self.rng.choice(found) if found else None

    def load_line(self, dtype: str, size: int, lanes: str = "", word: str = "") -> Tile | None:
        """A vector that meets a tile along its columns, or rows; None where it does not lie so."""
        array = next((name for name, (of, _, _) in LINES.items() if of == dtype), None)
        if array is None or (not lanes and layout_of((size,)) not in (word, "either")):
            return None
        _, low, high = LINES[array]
        index, lies = self.part(size, limits=not lanes), f"{word} {lanes}"
        text = f"numpipe.load_tile({array}.at[{index}], '{lies}')" if lanes else f"{array}[{index}]"
        return self.tile(text, (size,), dtype, lies if lanes else layout_of((size,)), min(low, 0), high)

    def output(self, shape: tuple[int, ...], dtype: str) -> tuple[str, str]:
        """An array with a block for each program and step, and the index of this one."""
        name = self.new("y")
        self.outputs[name] = ((self.owners or self.ctas * self.wgs, *[TRIPS] * len(self.loops), *shape), dtype)
        return name, ", ".join(["own", *self.loops])

    def parts(self, t: Tile, limits: bool = True) -> str:
        """Where a tile is stored."""
        return ", ".join(self.part(n, limits=limits, aligned=axis == 1 and not t.lanes) for axis, n in enumerate(t.shape))

    def scalar(self, text: str, dtype: str) -> None:
        name, own = self.output((), dtype)
        self.add(f"{name}[{own}] = {text}")

    def view(self, name: str, sides: tuple[int, ...], dtype: str, low: int, high: int) -> None:
        """A part of a shared tile as a register tile."""
        turned = len(sides) == 2 and self.chance(20)
        sides = sides[::-1] if turned else sides
        shapes = [shape for shape in SHAPES if shape[0] <= sides[0] and shape[1] <= sides[1]] if len(sides) == 2 else [
            (n,) for n in (8, 24, 64, 128) if n <= sides[0]]
        if shapes:
            shape = self.rng.choice(shapes)
            parts = [f"ds({self.start(whole - n)}, {n})" for whole, n in zip(sides, shape, strict=True)]
            self.tile(f"{name}{'.T' * turned}[{', '.join(parts)}]", shape, dtype, layout_of(shape), low, high)

    # ---- the whole
    @property
    def inputs(self) -> list[str]:
        return ["table", "counts", "order", *SOURCES, *LINES]

    def text(self) -> str:
        """The function."""
        return "\n".join([f"def program({', '.join([*self.inputs, *self.outputs])}, p, s):", "    cta = numpipe.program_id(0)",
                          "    wg = numpipe.axis_index('wg')", f"    own = cta * {self.wgs} + wg", *self.lines, ""])

    def source(self) -> str:
        """The kernel's file."""
        return "\n".join(["import ml_dtypes", "import numpy as np", "import numpipe",
                          "from numpipe import SMEM, BlockSpec, Element, ds", "",
                          f"@numpipe.kernel(num_compute_wgs={self.wgs}, wg_axis='wg', grid={self.ctas}"
                          f"{', warp_specialized=False' * (not self.roles)})", self.text()])

    def arguments(self) -> tuple[tuple[str, str], ...]:
        """What the program is called with."""
        found = {"table": "rng.integers(0, 4, 8).astype(np.int32)", "counts": f"rng.integers(0, {TRIPS + 1}, 4)",
                 "order": "rng.permutation(256).astype(np.int32)"}
        for known, shape in ((SOURCES, (ROWS, COLUMNS)), (LINES, (LINE,))):
            found |= {name: f"rng.integers({low}, {high + 1}, {shape}).astype({name_of(dtype)})"
                      for name, (dtype, low, high) in known.items()}
        found |= {name: f"np.full({sides}, {POISON}, {name_of(dtype)})" for name, (sides, dtype) in self.outputs.items()}
        return (*found.items(), ("p", "np.int32(rng.integers(0, 6))"), ("s", "np.float32(rng.integers(-3, 4))"))

    @property
    def features(self) -> tuple[str, ...]:
        """What is counted of a drawn program."""
        return (*(f"statement {name}" for name in sorted(self.had)), *sorted(f"{t.dtype} tiles" for t in {
            t.dtype: t for t in self.seen}.values()), *["several warpgroups"] * (self.wgs > 1))
