"""Programs of register and shared tiles, vectors, limits, atomics and data that steers.

`program` draws the source of a kernel. Its statements load tiles, compute with those that there are, and store them; they stand in
loops, branches and pipelines that elements of `table` and `counts` steer. Every layout is followed, so that what meets lies alike,
and the bounds of every number, so that each is exact in its type: a kernel, on any machine, gives the bits of `meaning`. Each
store has an output of its own, with a block for each program and each step of the loops around it, and `POISON` around that.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.fuzz.case import Case
from tests.fuzz.sources import LINES, MOST, SHAPES, SOURCES, TRIPS, Source, Tile, dtype_of, layout_of, name_of


class Program(Source):
    """A program of statements drawn at random."""

    # ---- loads
    def load(self) -> None:
        shape = self.rng.choice(SHAPES)
        array = self.rng.choice("ffggheh")
        dtype, low, high = SOURCES[array]
        named = self.chance(25)
        index = ", ".join(self.part(n, limits=not named) for n in shape)
        lanes = [n for n in (4, 8, 16, 32) if shape[1] % (2 * n) == 0]
        if named:
            n = self.rng.choice(lanes)
            self.tile(f"numpipe.load_tile({array}.at[{index}], 'rows {n}')", shape, dtype, f"rows {n}", min(low, 0), high)
        elif layout_of(shape) == "accumulator" and self.chance(25):
            rows = [f"order[ds({self.start(100)}, {shape[0]})]", f"{self.part(shape[1], 40, False)}"]
            if self.chance(40):
                rows = [self.part(shape[0], 40, False), f"order[ds({self.start(30)}, {shape[1]})]"]
            self.tile(f"{array}[{', '.join(rows)}]", shape, dtype, "accumulator", min(low, 0), high)
        else:
            self.tile(f"{array}[{index}]", shape, dtype, layout_of(shape), min(low, 0), high)

    # ---- arithmetic
    def compute(self) -> None:
        t = self.any(flat=self.chance(20))
        if t is None:
            return
        most, kind = MOST[t.dtype], np.dtype(dtype_of(t.dtype)).kind
        text, low, high = self.other(t)
        symbol = self.rng.choice(["+", "+", "-", "*", "maximum", "minimum", "where", "abs", "neg", "bits", "floor"])
        ends = [a * b for a in (t.low, t.high) for b in (low, high)]
        found = {"+": (t.low + low, t.high + high), "-": (t.low - high, t.high - low), "*": (min(ends), max(ends)),
                 "neg": (-t.high, -t.low), "abs": (0, max(-t.low, t.high))}.get(symbol, (min(t.low, low), max(t.high, high)))
        if symbol in "+-*":
            made = f"{t.name} {symbol} {text}"
        elif symbol in ("maximum", "minimum"):
            made = f"np.{symbol}({t.name}, {text})"
        elif symbol == "where":
            compared = f"{t.name} {self.rng.choice(['<', '>=', '=='])} {self.rng.randint(-2, 2) if kind != 'u' else 1}"
            made = f"np.where({compared}, {t.name}, {text})"
        elif symbol in ("neg", "abs"):
            made = f"-{t.name}" if symbol == "neg" else f"abs({t.name})"
        elif t.dtype != "int32":
            return
        elif symbol == "bits":
            mask = self.rng.choice([7, 63])
            made, found = f"({t.name} & {mask})", (0, mask)
        else:
            by = self.rng.choice([2, 3, 8])
            made, found = self.rng.choice([(f"{t.name} // {by}", (t.low // by, t.high // by)), (f"{t.name} % {by}", (0, by - 1)),
                                           (f"({t.name} >> 1)", (t.low >> 1, t.high >> 1))])
        if -most * (kind != "u") <= found[0] and found[1] <= most:
            self.like(t, made, *found)

    def other(self, t: Tile) -> tuple[str, int, int]:
        """What is computed with a tile: a tile or a vector that lies as it does, or a number."""
        alike = [o for o in self.seen if o.shape == t.shape and o.dtype == t.dtype and o.layout == t.layout]
        if len(t.shape) == 2 and self.chance(50):
            rows = [o for o in self.seen if o.shape == t.shape[1:] and o.dtype == t.dtype and o.lanes == t.lanes
                    and o.word in ("row", "either")]
            columns = [o for o in self.seen if o.shape == t.shape[:1] and o.dtype == t.dtype and o.lanes == t.lanes
                       and o.word in ("column", "either")]
            word = self.rng.choice(["row", "column"])
            if not rows and not columns and (line := self.load_line(t.dtype, t.shape[word == "row"], t.lanes, word)):
                (rows if word == "row" else columns).append(line)
            if rows or columns:
                o = self.rng.choice(rows + columns)
                across = o in rows and (o not in columns or self.chance(50))
                return o.name if across else f"{o.name}[:, None]", o.low, o.high
        if self.chance(60):
            o = self.rng.choice(alike)
            return o.name, o.low, o.high
        if t.dtype == "float32" and self.chance(50):
            return self.rng.choice([("s", -3, 3), ("f[3, 5]", -4, 4), ("v[table[0]]", -4, 4)])
        if t.dtype == "int32" and self.chance(50):
            return self.rng.choice([("p", 0, 5), ("table[p]", 0, 3), ("n[7]", 0, 63)])
        c = self.rng.randint(1 if t.dtype == "uint8" else -3, 3)
        return str(c) if t.dtype in ("int32", "int8", "uint8") else f"{float(c)}", c, c

    def convert(self) -> None:
        t = self.any(flat=self.chance(20))
        to = self.rng.choice([dtype for dtype, most in MOST.items()])
        if t is not None and to != t.dtype and -MOST[to] * (to != "uint8") <= t.low and t.high <= MOST[to]:
            self.like(t, f"{t.name}.astype({name_of(to)})", t.low, t.high, to)

    def reduce(self) -> None:
        t = self.any("float32", "int32", "float16")
        if t is None:
            return
        operation, axis = self.rng.choice(["sum", "max", "min", "argmax"]), self.rng.choice([0, 1, 1, None])
        count = int(np.prod(t.shape)) if axis is None else t.shape[axis]
        low, high, dtype, more = t.low, t.high, t.dtype, ""
        if operation == "sum":
            low, high = low * count if low < 0 else low, high * count if high > 0 else high
            if t.dtype == "float16" or max(-low, high) > MOST[dtype]:
                return
        if axis is None:
            if operation != "argmax":
                number = self.new("x")
                self.add(f"{number} = {t.name}.{operation}()")
                self.scalar(number, dtype)
                if dtype != "float16" and t.high - t.low < 2**20 and operation == "min":
                    self.like(t, f"{t.name} - {number}", 0, t.high - t.low)
            return
        if operation == "argmax":
            low, high, dtype, more = 0, count, "int32", ".astype(np.int32)"
        word = "row" if axis == 0 else "column"
        self.tile(f"{t.name}.{operation}(axis={axis}){more}", (t.shape[1 - axis],), dtype, f"{word} {t.lanes}".strip(), low, high)

    def cut(self) -> None:
        """A part of a register tile."""
        t = self.any()
        if t is None:
            return
        rows, columns = (t.shape[0], 2 * int(t.lanes)) if t.lanes else (64, 8)
        first = [self.rng.randrange(0, size, unit) for size, unit in zip(t.shape, (rows, columns), strict=True)]
        sides = [self.rng.randrange(unit, size - at + 1, unit) for size, unit, at in zip(
            t.shape, (rows, columns), first, strict=True)]
        index = ", ".join(":" if side == size else f"{at}:{at + side}"
                          for at, side, size in zip(first, sides, t.shape, strict=True))
        self.tile(f"{t.name}[{index}]", (sides[0], sides[1]), t.dtype, t.layout, t.low, t.high)

    def cast(self) -> None:
        t = self.any(flat=self.chance(40))
        if t is None:
            return
        known = [f"rows {n}" for n in (4, 8, 16, 32) if t.shape[-1] % (2 * n) == 0]
        if len(t.shape) == 1:
            plain = layout_of(t.shape)
            known = [f"row {n}" for n in (4, 8, 16, 32) if t.shape[0] % (2 * n) == 0] + [f"column {n}" for n in (4, 8, 16, 32)]
            known += ["row"] * (plain != "column") + ["column"] * (plain != "row")
        elif layout_of(t.shape) == "accumulator":
            known.append("accumulator")
        to = self.rng.choice([layout for layout in known if layout != t.layout] or [None])
        if to is not None:
            self.tile(f"numpipe.layout_cast({t.name}, '{to}')", t.shape, t.dtype, to, t.low, t.high)

    def scan(self) -> None:
        t = self.rng.choice([t for t in self.seen if t.layout == "accumulator" and t.dtype in ("float32", "int32")] or [None])
        axis = self.rng.choice([0, 1])
        if t is not None and max(-t.low, t.high) * t.shape[axis] < 2**24:
            if self.chance(50):
                self.like(t, f"np.maximum.accumulate({t.name}, axis={axis})", t.low, t.high)
            else:
                n = t.shape[axis]
                self.like(t, f"np.cumsum({t.name}, axis={axis})", min(t.low, t.low * n), max(t.high, t.high * n))

    # ---- stores
    def store(self, t: Tile | None = None) -> None:
        t = t or self.any(flat=self.chance(30))
        if t is None:
            return
        how = self.rng.choice(["block", "block", "block", "scatter", "atomic"])
        if how == "atomic" and t.dtype in ("float32", "int32") and max(-t.low, t.high) < 2**16:
            name, own = self.output(tuple(n + 50 for n in t.shape), t.dtype)
            operation = self.rng.choice(["add"] if t.dtype == "float32" else ["add", "min", "max", "and", "or", "xor"])
            self.add(f"numpipe.atomic_{operation}({name}.at[{own}, "
                     f"{self.parts(t, limits=False)}], {t.name})")
        elif how == "scatter" and t.layout == "accumulator":
            axis = self.rng.choice([0, 1])
            name, own = self.output((256, t.shape[1] + 50) if axis == 0 else (t.shape[0] + 50, 256), t.dtype)
            parts = [f"order[ds({self.start(40)}, {t.shape[axis]})]", self.part(t.shape[1 - axis])]
            self.add(f"{name}[{own}, {', '.join(parts if axis == 0 else reversed(parts))}] = {t.name}")
        else:
            less = self.rng.choice([50, 50, -5])
            name, own = self.output(tuple(n + less for n in t.shape), t.dtype)
            self.add(f"{name}[{own}, {self.parts(t)}] = {t.name}")

    # ---- shared memory
    def shared(self) -> None:
        """A tile that is written in part, from any start, and read in part; and bins in which indices are counted."""
        if self.loops or self.depth > 1:
            return
        if self.wgs > 1 or self.chance(50):
            return self.bins()
        t = self.any()
        if t is None or self.room < 40_000:
            return
        sides = max(t.shape[0] // 8 * 8 + 16, 72), max(t.shape[1], 32) // 32 * 32 + 64
        if sides[0] * sides[1] * 4 > 45_000:
            return
        self.room -= sides[0] * sides[1] * 4
        name, (low, high) = self.new("m"), (min(t.low, 1), max(t.high, 1))
        self.add(f"{name} = numpipe.scratch(SMEM({sides}, {name_of(t.dtype)}))")
        self.add(f"{name}[...] = numpipe.full({sides}, 1, {name_of(t.dtype)})")
        self.add(f"{name}[ds({self.start(sides[0] - t.shape[0])}, {t.shape[0]}), ds({self.start(sides[1] - t.shape[1])}, "
                 f"{t.shape[1]})] = {t.name}")
        if t.dtype in ("float32", "int32") and max(-low, high) < 2**20 and self.chance(50):
            self.add(f"numpipe.atomic_add({name}, numpipe.iota({sides}, 1).astype({name_of(t.dtype)}))")
            high += sides[1]
        for _ in range(2):
            self.view(name, sides, t.dtype, low, high)

    def bins(self) -> None:
        found = [t for t in self.seen if t.dtype == "int32" and t.low >= 0 and t.high < 128 and len(t.shape) == 2]
        if not found:
            return
        t, name = self.rng.choice(found), self.new("m")
        operation, value = self.rng.choice(["add", "min", "max", "and", "or", "xor"]), self.rng.choice(["1", "p", t.name])
        scoped = self.wgs > 1 or self.chance(30)
        self.add(f"def in_{name}({name}):" if scoped else f"{name} = numpipe.scratch(SMEM((128,), np.int32))")
        self.depth += scoped
        self.add(f"{name}[...] = numpipe.full(128, 5, np.int32)")
        self.add(f"numpipe.atomic_{operation}({name}.at[{t.name}], {value})")
        if scoped:  # each warpgroup has its own
            array, own = self.output((150,), "int32")
            self.add(f"{array}[{own}, {self.part(128)}] = {name}[...]")
            self.depth -= 1
            self.add(f"numpipe.run_scoped(in_{name}, SMEM((128,), np.int32))")
        else:
            self.tile(f"{name}[...]", (128,), "int32", layout_of((128,)), 0, 5 + 127 * int(np.prod(t.shape)))

    # ---- control
    def block(self, header: str, loops: list[str], trips: int, before: Any = None, after: str = "") -> None:
        """Statements of their own; one of the tiles made there is added up, or chosen, and seen behind them."""
        seen, at = list(self.seen), len(self.lines)
        self.add(header)
        self.loops += loops
        self.depth += 1
        if before:
            before()
        self.statements(self.rng.randint(1, 3))
        kept = [t for t in self.seen if t not in seen and max(-t.low, t.high) * trips <= MOST[t.dtype] and t.dtype != "uint8"]
        result = self.rng.choice(kept) if kept else None
        if result is None or self.chance(20):
            self.tile("numpipe.full((64, 8), 1, np.int32)", (64, 8), "int32", "accumulator", 1, 1)
            result = self.seen[-1]
        made = Tile(self.new("r"), result.shape, result.dtype, result.layout, min(result.low * trips, 0),
                    max(result.high * trips, 0))
        self.add(f"{made.name} = {made.name} + {result.name}")
        self.store(self.rng.choice([t for t in self.seen if t not in seen]))
        if after:
            self.add(after)
        self.depth -= 1
        del self.loops[len(self.loops) - len(loops):]
        zeros = f"numpipe.full({made.shape if len(made.shape) == 2 else made.shape[0]}, 0, {name_of(made.dtype)})"
        plain = layout_of(made.shape)
        if plain != made.layout and not (plain == "either" and made.layout in ("row", "column")):
            zeros = f"numpipe.layout_cast({zeros}, '{made.layout}')"
        self.lines.insert(at, "    " * self.depth + f"{made.name} = {zeros}")
        self.seen = [*seen, made]

    def branch(self) -> None:
        t = self.any("float32", "int32")
        known = ["table[3] > 1", "counts[p % 4] == 2", "p >= 2 or table[0] == 0", *(f"table[{loop}] < 2" for loop in self.loops)]
        if self.depth >= 4:
            return
        before, by_tile = self.inside, t is not None and self.chance(20)
        self.inside = self.inside or by_tile  # what a tile decides loads nothing
        self.block(f"if np.any({t.name} > 2):" if t is not None and by_tile else f"if {self.rng.choice(known)}:", [], 1)
        self.inside = before

    def loop(self) -> None:
        if len(self.loops) < 2:
            i = self.new("i")
            bound = self.rng.choice(["counts[0]", "table[1]", "2", *(f"counts[{loop}]" for loop in self.loops)])
            if self.chance(75):
                return self.block(f"for {i} in range({bound}):", [i], TRIPS)
            self.add(f"{i} = 0")
            self.block(f"while {i} < {bound} and table[{i}] < 3:", [i], TRIPS, after=f"{i} = {i} + 1")

    def pipe(self) -> None:
        """A pipeline of one or two inputs, and perhaps an output."""
        if len(self.loops) > 1 or self.inside or (not self.loops and self.depth > 1):
            return
        k, slots = self.new("k"), self.rng.choice([1, 2, 3])
        specs, arrays, views, nbytes = [], [], [], 0
        for _ in range(self.rng.choice([1, 1, 2])):
            flat = self.chance(30)
            array = self.rng.choice("vw" if flat else "fghe")
            dtype, low, high = (LINES if flat else SOURCES)[array]
            index = self.rng.choice([k, f"table[{k}]", f"table[{k}] + {k}", f"(p + {k}) % 3", "cta"])
            if flat:
                sides: tuple[int, ...] = (self.rng.choice([128, 256, 512]),)
                specs.append(f"BlockSpec({sides}, lambda {k}: ({index},))")
            elif self.chance(40):
                sides, unit = self.rng.choice([(72, 96), (80, 160), (64, 128)]), 16 // dtype_of(dtype).itemsize
                specs.append(f"BlockSpec((Element({sides[0]}), Element({sides[1]})), "
                             f"lambda {k}: ({index} - 1, ({index}) * {unit} - {unit}))")
            elif self.chance(30):
                sides = (self.rng.choice([128, 256]),)
                specs.append(f"BlockSpec((None, {sides[0]}), lambda {k}: (({index}) * 5, 0))")
            else:
                sides = self.rng.choice([(64, 64), (128, 64), (8, 128), (32, 256), (24, 32)])
                specs.append(f"BlockSpec({sides}, lambda {k}: ({index}, {self.rng.choice(['0', '1', 'p % 2'])}))")
            arrays.append(array)
            views.append((self.new("s"), sides, dtype, min(low, 0), high))
            nbytes += slots * int(np.prod(sides)) * dtype_of(dtype).itemsize
        out = self.wgs == 1 and not self.loops and self.chance(40)
        nbytes += 2 * out * nbytes // slots
        if nbytes > self.room:
            return
        self.room -= nbytes
        more, names = "", [name for name, *_ in views]
        if out:
            (_, sides, dtype, _, _), target, tiles = views[0], self.new("y"), self.new("o")
            self.outputs[target] = ((self.ctas, TRIPS, *(n - 3 for n in sides)), dtype)
            more = (f", out_specs=(BlockSpec((None, None, {', '.join(map(str, sides))}), "
                    f"lambda {k}: (cta, {k}{', 0' * len(sides)})),)")
            arrays.append(target)
            names.append(tiles)
        grid = self.rng.choice(["counts[2]", "counts[1]", "3", "table[0]", *(f"counts[{loop}]" for loop in self.loops)])
        pipe = self.new("pipe")
        self.add(f"{pipe} = numpipe.pipeline(grid=({grid},), max_concurrent_steps={slots}, in_specs=({', '.join(specs)},){more})")

        def before() -> None:
            for view in views:
                self.view(*view)
            if out:
                self.add(f"{names[-1]}[...] = {names[0]}[...] + {names[0]}[...]")

        self.inside = True
        self.block(f"for ({k},), ({', '.join(names)},) in {pipe}({', '.join(arrays)}):", [k], TRIPS, before)
        self.inside = False

    def known(self) -> list[Callable[[], None]]:
        """Kinds of statements, each as often as it is drawn."""
        return [self.load] * 3 + [self.compute] * 6 + [self.reduce] * 3 + [self.convert] * 2 + [self.store] * 2 + [
            self.cut, self.cast, self.scan, self.shared, self.shared, self.branch, self.loop, self.pipe, self.pipe]

    def statements(self, count: int) -> None:
        known = self.known()
        for _ in range(count):
            statement = self.rng.choice(known)
            before = len(self.lines)
            statement()
            if len(self.lines) > before:
                self.had.add(statement.__name__)


def program(rng: random.Random) -> Case:
    """Draw a program."""
    made = Program(rng, wgs=rng.choice([1, 1, 1, 2]), ctas=rng.choice([1, 2]), roles=rng.choice([True, True, False]))
    made.load()
    made.statements(rng.randint(1, 9))
    for t in made.seen[-3:]:
        made.store(t)
    builder = "memory role" if made.roles else "no memory role"
    return Case(made.source(), made.arguments(), (builder, *made.features), "program", made.ctas, made.wgs)
