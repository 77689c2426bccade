"""Programs of register and shared tiles, vectors, limits, atomics and steering arrays.

`program` draws the source of a kernel. Its statements load tiles, compute with the tiles so far,
and store them, in loops, branches and pipelines that elements of `table` and `counts` steer. The
generator tracks every layout, so that tiles are combined only in the same one, and the bounds of
every number, so that each is exact in its type: a kernel gives the bits of `meaning` on any
machine. Each store has an output of its own, with a block for each program and each step of the
loops around it, surrounded by `POISON`.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np

from tests.fuzz.case import Case
from tests.fuzz.sources import (
    LANES,
    LINES,
    MOST,
    SHAPES,
    SOURCES,
    TRIPS,
    Source,
    Tile,
    fits,
    indented,
    layout_of,
    name_of,
    size_of,
)

ARITHMETIC = [
    ("{a} + {b}",),
    ("{a} + {b}",),
    ("{a} - {b}",),
    ("{a} * {b}",),
    ("np.maximum({a}, {b})",),
    ("np.minimum({a}, {b})",),
    ("np.where({a} < 2, {a}, {b})", "{a}", "{b}"),
    ("np.where({a} == 1, {a}, {b})", "{a}", "{b}"),
    ("np.where(({a} < 2) & ~({a} == 1) | ({a} > 5), {a}, {b})", "{a}", "{b}"),
    ("np.where(({a} != 0) ^ ({a} >= 2), {a}, {b})", "{a}", "{b}"),
    ("-{a}",),
    ("abs({a})",),
]
"""expressions of two tiles, and expressions of their bounds if these differ"""
OF_INTEGERS = [
    ("({a} & 7)", "0", "7"),
    ("({a} & 63)", "0", "63"),
    ("{a} // 3",),
    ("{a} // 8",),
    ("{a} % 3", "0", "2"),
    ("{a} % 8", "0", "7"),
    ("({a} >> 1)",),
]
OF_FLOATS = [("np.floor({a} * 0.5)",), ("np.round({a} * 0.5)",), ("np.trunc({a} * 0.5)",)]
NUMBERS = {
    "float32": [("s", -3, 3), ("f[3, 5]", -4, 4), ("v[table[0]]", -4, 4)],
    "int32": [("p", 0, 5), ("table[p]", 0, 3), ("n[7]", 0, 63)],
}
BITWISE = "add", "min", "max", "and", "or", "xor"


class Program(Source):
    """A program of statements drawn at random."""

    # ---- loads
    def load(self) -> None:
        shape, array = self.rng.choice(SHAPES), self.rng.choice("fghe")
        dtype, low, high = SOURCES[array]
        layout, how = layout_of(shape), self.rng.choice(["block", "block", "named", "gather"])
        parts = [self.part(n, limits=how == "block") for n in shape]
        if how == "gather" and layout == "accumulator":
            axis = self.rng.choice([0, 1])
            parts[axis] = f"order[ds({self.start()}, {shape[axis]})]"
            if self.chance(30):  # of elements
                other = f"order[ds({self.start()}, {shape[1 - axis]})]"
                rows, columns = (parts[0], other) if axis == 0 else (other, parts[1])
                parts = [f"{rows}[:, None]", f"{columns}[None, :]"]
        text = f"{array}[{', '.join(parts)}]"
        if how == "named":
            layout = f"rows {self.rng.choice([n for n in LANES if shape[1] % (2 * n) == 0])}"
            text = f"numpipe.load_tile({array}.at[{', '.join(parts)}], '{layout}')"
        self.tile(text, shape, dtype, layout, min(low, 0), high)

    # ---- arithmetic
    def compute(self) -> None:
        t = self.any(flat=self.chance(20))
        if t is None:
            return
        other, *bounds = self.other(t)
        known = ARITHMETIC + OF_INTEGERS * (t.dtype == "int32") + OF_FLOATS * (t.dtype == "float32")
        text, *of = self.rng.choice(known)
        mine = {t.low, t.high, 0 if t.low < 0 < t.high else t.low}
        # each is monotonic in both arguments, or in the parts of `mine`, so bounds map to bounds
        ends = [
            int(eval(end.format(a=f"({a})", b=f"({b})"), {"np": np}))
            for end in of or [text]
            for a in mine
            for b in bounds
        ]
        self.like(t, text.format(a=t.name, b=other), min(ends), max(ends))

    def other(self, t: Tile) -> tuple[str, int, int]:
        """Return another operand and its bounds: a tile, a vector of a tile's layout, or a
        number."""
        if len(t.shape) == 2 and self.chance(50):
            word = self.rng.choice(["row", "column"])
            size = t.shape[word == "row"]
            line = self.one_of(
                [
                    o
                    for o in self.seen
                    if (o.shape, o.dtype, o.lanes) == ((size,), t.dtype, t.lanes)
                    and o.word in (word, "either")
                ]
            )
            if line := line or self.load_line(t.dtype, size, t.lanes, word):
                return line.name + "[:, None]" * (word == "column"), line.low, line.high
        if self.chance(60):
            alike = t.shape, t.dtype, t.layout
            o = self.rng.choice([o for o in self.seen if (o.shape, o.dtype, o.layout) == alike])
            return o.name, o.low, o.high
        c = self.rng.randint(1 if t.dtype == "uint8" else -3, 3)
        constant = str(c if "int" in t.dtype else float(c)), c, c
        return self.rng.choice([constant, *NUMBERS.get(t.dtype, [])])

    def convert(self) -> None:
        t, to = self.any(flat=self.chance(20)), self.rng.choice(list(MOST))
        if t is not None and to != t.dtype:
            self.like(t, f"{t.name}.astype({name_of(to)})", t.low, t.high, to)

    def reduce(self) -> None:
        t = self.any("float32", "int32", "float16")
        if t is None:
            return
        operation = self.rng.choice(["sum", "max", "min", "argmax"])
        axis = self.rng.choice([0, 1, 1, None]) if operation != "argmax" else 1
        count = int(np.prod(t.shape)) if axis is None else t.shape[axis]
        low, high, dtype = t.low, t.high, t.dtype
        if operation == "sum":
            low, high = min(low, low * count), max(high, high * count)
            if t.dtype == "float16" or not fits(dtype, low, high):
                return
        text = f"{t.name}.{operation}(axis={axis})"
        if operation == "argmax":
            text, low, high, dtype = f"{text}.astype(np.int32)", 0, count, "int32"
        if axis is None:
            number = self.new("x")
            name, own = self.output((), dtype)
            self.add(f"{number} = {t.name}.{operation}()", f"{name}[{own}] = {number}")
            if dtype != "float16":
                self.like(t, f"{t.name} - {number}", t.low - high, t.high - low)
        else:
            layout = f"{'row' if axis == 0 else 'column'} {t.lanes}".strip()
            self.tile(text, (t.shape[1 - axis],), dtype, layout, low, high)

    def cut(self) -> None:
        """Slice a register tile."""
        t = self.any()
        if t is None:
            return
        parts, sides = [], []
        units = (t.shape[0], 2 * int(t.lanes)) if t.lanes else (64, 8)
        for size, unit in zip(t.shape, units, strict=True):
            at = self.rng.randrange(0, size, unit)
            side = self.rng.randrange(unit, size - at + 1, unit)
            parts.append(":" if side == size else f"{at}:{at + side}")
            sides.append(side)
        text = f"{t.name}[{', '.join(parts)}]"
        self.tile(text, tuple(sides), t.dtype, t.layout, t.low, t.high)

    def cast(self) -> None:
        t = self.any(flat=self.chance(40))
        if t is None:
            return
        plain = layout_of(t.shape)
        known = ["row", "column"] if plain == "either" else [plain]
        for word in ("rows",) if len(t.shape) == 2 else ("row", "column"):
            lanes = [n for n in LANES if word == "column" or t.shape[-1] % (2 * n) == 0]
            known += [f"{word} {n}" for n in lanes]
        to = self.one_of([layout for layout in known if layout != t.layout])
        if to:
            text = f"numpipe.layout_cast({t.name}, '{to}')"
            self.tile(text, t.shape, t.dtype, to, t.low, t.high)

    def scan(self) -> None:
        t = self.any("float32", "int32")
        if t is not None and t.layout == "accumulator":
            axis = self.rng.choice([0, 1])
            if self.chance(50):
                text = f"np.maximum.accumulate({t.name}, axis={axis})"
                self.like(t, text, t.low, t.high)
            else:
                n = t.shape[axis]
                low, high = min(t.low, t.low * n), max(t.high, t.high * n)
                self.like(t, f"np.cumsum({t.name}, axis={axis})", low, high)

    # ---- stores
    def store(self, t: Tile | None = None) -> None:
        t = t or self.any(flat=self.chance(30))
        if t is None:
            return
        how = self.rng.choice(["block", "block", "block", "scatter", "atomic"])
        atomic = how == "atomic" and t.dtype in ("float32", "int32") and t.most < 2**16
        aligned = not t.lanes
        parts = [
            self.part(n, limits=not atomic, aligned=aligned and axis == 1)
            for axis, n in enumerate(t.shape)
        ]
        # a start that the table chooses lies inside the array
        whole = atomic or any("table" in part for part in parts)
        more = [50 if whole else self.rng.choice([50, 50, -5])] * len(parts)
        if how == "scatter" and t.layout == "accumulator":
            axis = self.rng.choice([0, 1])
            parts[axis], more[axis] = (
                f"order[ds({self.start()}, {t.shape[axis]})]",
                256 - t.shape[axis],
            )
        name, own = self.output(tuple(map(sum, zip(t.shape, more, strict=True))), t.dtype)
        place = f"[{own}, {', '.join(parts)}]"
        if atomic:
            operation = self.rng.choice(BITWISE[: 1 if t.dtype == "float32" else None])
            self.add(f"numpipe.atomic_{operation}({name}.at{place}, {t.name})")
        else:
            self.add(f"{name}{place} = {t.name}")

    # ---- shared memory
    def shared(self) -> None:
        """Write a part of a shared tile from any start, and read a part; or count in bins."""
        if self.loops or self.depth > 1:
            return
        if self.wgs > 1 or self.chance(50):
            return self.bins()
        t = self.any()
        if t is None:
            return
        sides = max(t.shape[0] // 8 * 8 + 16, 72), max(t.shape[1], 32) // 32 * 32 + 64
        nbytes = size_of(sides, "float32")
        if nbytes > min(45_000, self.room // 2):
            return
        self.room -= nbytes
        name, dtype = self.new("m"), name_of(t.dtype)
        low, high = min(t.low, 1), max(t.high, 1)
        starts = [f"ds({self.start(n - m)}, {m})" for n, m in zip(sides, t.shape, strict=True)]
        self.add(
            f"{name} = numpipe.scratch(SMEM({sides}, {dtype}))",
            f"{name}[...] = numpipe.full({sides}, 1, {dtype})",
            f"{name}[{', '.join(starts)}] = {t.name}",
        )
        if t.dtype in ("float32", "int32") and fits(t.dtype, low, high + 512) and self.chance(50):
            self.add(f"numpipe.atomic_add({name}, numpipe.iota({sides}, 1).astype({dtype}))")
            high += sides[1]
        for _ in range(2):
            self.view(name, sides, t.dtype, low, high)

    def bins(self) -> None:
        """Count the numbers of a tile in bins."""
        tiles = [t for t in self.seen if t.dtype == "int32" and len(t.shape) == 2]
        t = self.one_of([t for t in tiles if t.low >= 0 and t.high < 128])
        if t is None:
            return
        name, operation = self.new("m"), self.rng.choice(BITWISE)
        value = self.rng.choice(["1", "p", t.name])
        scoped = self.wgs > 1 or self.chance(30)  # each warpgroup has its own
        bins = "SMEM((128,), np.int32)"
        self.add(f"def in_{name}({name}):" if scoped else f"{name} = numpipe.scratch({bins})")
        self.depth += scoped
        self.add(f"{name}[...] = numpipe.full(128, 5, np.int32)")
        self.add(f"numpipe.atomic_{operation}({name}.at[{t.name}], {value})")
        if scoped:
            array, own = self.output((150,), "int32")
            self.add(f"{array}[{own}, {self.part(128)}] = {name}[...]")
            self.depth -= 1
            self.add(f"numpipe.run_scoped(in_{name}, {bins})")
        else:
            high = 5 + 127 * int(np.prod(t.shape))
            self.tile(f"{name}[...]", (128,), "int32", layout_of((128,)), 0, high)

    # ---- control
    def block(
        self, header: str, loop: str = "", first: Callable[[], None] | None = None, last: str = ""
    ) -> None:
        """Write a block of statements; one of its tiles is accumulated, and visible after the
        block."""
        seen, at, trips = list(self.seen), len(self.lines), TRIPS if loop else 1
        self.add(header)
        self.loops += [loop] * bool(loop)
        self.depth += 1
        if first:
            first()
        self.statements(self.rng.randint(1, 3))
        made = [t for t in self.seen if t not in seen and t.dtype != "uint8"]
        result = self.one_of([t for t in made if t.most * trips <= MOST[t.dtype]])
        if result is None or self.chance(20):
            text = "numpipe.full((64, 8), 1, np.int32)"
            result = self.tile(text, (64, 8), "int32", "accumulator", 1, 1)
        low, high = min(result.low * trips, 0), max(result.high * trips, 0)
        total = Tile(self.new("r"), result.shape, result.dtype, result.layout, low, high)
        self.add(f"{total.name} = {total.name} + {result.name}")
        self.store(self.rng.choice([t for t in self.seen if t not in seen]))
        self.add(*[last] * bool(last))
        self.depth -= 1
        self.loops = self.loops[: len(self.loops) - bool(loop)]
        shape = total.shape if len(total.shape) == 2 else total.shape[0]
        zeros = f"numpipe.full({shape}, 0, {name_of(total.dtype)})"
        plain = layout_of(total.shape)
        if total.layout not in (("row", "column", "either") if plain == "either" else (plain,)):
            zeros = f"numpipe.layout_cast({zeros}, '{total.layout}')"
        self.lines.insert(at, "    " * self.depth + f"{total.name} = {zeros}")
        self.seen = [*seen, total]

    def branch(self) -> None:
        if self.depth >= 4:
            return
        known = ["table[3] > 1", "counts[p % 4] == 2", "p >= 2 or table[0] == 0"]
        test, t = self.rng.choice([*known, *(f"table[{loop}] < 2" for loop in self.loops)]), None
        if self.chance(20):
            t = self.any("float32", "int32")
        before, self.inside = self.inside, self.inside or t is not None
        self.block(f"if np.any({t.name} > 2):" if t else f"if {test}:")
        self.inside = before  # a branch on a tile's values may not contain a pipeline

    def bound(self) -> str:
        """Return a number up to TRIPS."""
        known = ["counts[0]", "table[1]", "2", *(f"counts[{loop}]" for loop in self.loops)]
        return self.rng.choice(known)

    def loop(self) -> None:
        if len(self.loops) < 2:
            i, bound = self.new("i"), self.bound()
            if self.chance(75):
                return self.block(f"for {i} in range({bound}):", i)
            self.add(f"{i} = 0")
            self.block(f"while {i} < {bound} and table[{i}] < 3:", i, last=f"{i} = {i} + 1")

    def pipe(self) -> None:
        """Write a pipeline of one or two inputs, and perhaps an output."""
        if len(self.loops) > 1 or self.inside or (not self.loops and self.depth > 1):
            return
        k, slots = self.new("k"), self.rng.choice([1, 2, 3])
        specs, arrays, views, nbytes = [], [], [], 0
        for array in self.rng.sample([*SOURCES, *LINES], self.rng.choice([1, 1, 2])):
            dtype, low, high = {**LINES, **SOURCES}[array]
            at = self.rng.choice([k, f"table[{k}]", f"table[{k}] + {k}", f"(p + {k}) % 3", "cta"])
            sides: tuple[int, ...] = (self.rng.choice([128, 256]),)
            block, index = str(sides), f"{at},"
            if array in SOURCES and self.chance(40):  # blocks that start anywhere
                sides, unit = self.rng.choice([(72, 96), (80, 160)]), 16 // size_of((), dtype)
                block = f"({', '.join(f'Element({side})' for side in sides)})"
                index = f"{at} - 1, ({at}) * {unit} - {unit}"
            elif array in SOURCES:
                sides = self.rng.choice([(64, 64), (128, 64), (8, 128), (32, 256), (24, 32)])
                block, index = str(sides), f"{at}, {self.rng.choice(['0', '1', 'p % 2'])}"
            # a block that the table chooses may lie outside the array
            outside = ', mode="zero"' * ("table" in at and "Element" not in block)
            specs.append(f"BlockSpec({block}, lambda {k}: ({index}){outside})")
            arrays.append(array)
            views.append((self.new("s"), sides, dtype, min(low, 0), high))
            nbytes += slots * size_of(sides, dtype)
        out = self.wgs == 1 and not self.loops and self.chance(40)
        nbytes += 2 * out * nbytes
        if nbytes > self.room:
            return
        self.room -= nbytes
        out_specs, names = "", [name for name, *_ in views]
        if out:
            (_, sides, dtype, _, _), target = views[0], self.new("y")
            self.outputs[target] = (self.ctas, TRIPS, *(n - 3 for n in sides)), dtype
            index = f"cta, {k}{', 0' * len(sides)}"
            out_specs = f", out_specs=(BlockSpec({(None, None, *sides)}, lambda {k}: ({index})),)"
            arrays.append(target)
            names.append(self.new("o"))
        pipe = self.new("pipe")
        options = f"max_concurrent_steps={slots}, in_specs=({', '.join(specs)},){out_specs}"
        self.add(f"{pipe} = numpipe.pipeline(grid=({self.bound()},), {options})")

        def first() -> None:
            for view in views:
                self.view(*view)
            if out:
                self.add(f"{names[-1]}[...] = {names[0]}[...] + {names[0]}[...]")

        self.inside = True
        self.block(f"for ({k},), ({', '.join(names)},) in {pipe}({', '.join(arrays)}):", k, first)
        self.inside = False

    # ---- statements
    def on_tiles(self) -> list[Callable[[], None]]:
        """Return statements without control flow, each as often as it should be drawn."""
        return [
            *[self.load] * 3,
            *[self.compute] * 6,
            *[self.reduce] * 3,
            *[self.convert] * 2,
            *[self.store] * 2,
            self.cut,
            self.cast,
            self.scan,
        ]

    def known(self) -> list[Callable[[], None]]:
        more = [self.shared, self.shared, self.branch, self.loop, self.pipe, self.pipe]
        return self.on_tiles() + more

    def statements(self, count: int) -> None:
        known = self.known()
        for _ in range(count):
            statement = self.rng.choice(known)
            before = len(self.lines)
            statement()
            if len(self.lines) > before:
                self.had.add(f"statement {statement.__name__}")


def program(rng: random.Random) -> Case:
    """Draw a program."""
    made = Program(rng, wgs=rng.choice([1, 1, 1, 2]), ctas=rng.choice([1, 2]))
    roles = rng.choice([True, True, False])
    made.load()
    made.statements(rng.randint(1, 9))
    for t in made.seen[-3:]:
        made.store(t)
    arguments = made.arguments()
    options = (
        f"num_compute_wgs={made.wgs}, wg_axis='wg', grid={made.ctas}, warp_specialized={roles}"
    )
    made.lines[:0] = indented(
        [
            "cta = numpipe.program_id(0)",
            "wg = numpipe.axis_index('wg')",
            f"own = cta * {made.wgs} + wg",
        ]
    )
    text = made.text("program", options, [name for name, _ in arguments])
    return Case(text, arguments, tuple(made.features), "program", made.ctas, made.wgs)
