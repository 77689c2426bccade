"""Products ``a @ b.T`` over tiles by all schedules: persistent or dynamic, in turns, in clusters, cut along K; and what each tile
is then used for, by the statements of `programs`.

K is walked by pipelines in both forms, one behind the other or one inside the other, with barriers of the ring or by hand, or by a
ring that the kernel makes of copies and barriers. Numbers are small integers, so that sums are exact in any order.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from tests.fuzz.case import Case
from tests.fuzz.programs import Program
from tests.fuzz.sources import POISON, Tile, indented, name_of

KINDS = {"float16": 16, "ml_dtypes.bfloat16": 16, "ml_dtypes.float8_e4m3fn": 32, "ml_dtypes.float8_e5m2": 32, "float32": 8,
         "int8": 32, "uint8": 32}
"""types of operands, and the elements along K that a product multiplies"""
WORKING = 150_000
"""bytes of shared memory for slots"""
MOST, EXCHANGED, PANEL = 230_000, 16_384, 128
"""bytes of shared memory: of a CTA, but for barriers; of a warpgroup's reductions and casts, at most; of a row in a store's slot"""


@dataclass
class Product(Program):
    """A kernel over tiles while it is written: fields that are drawn by `draw`, in the order in which they depend on each other."""

    def draw(self) -> None:
        rng = self.rng
        self.form = rng.choice(["loop", "loop", "body", "hand"])
        self.schedule = rng.choice(["cooperative", "pingpong"]) if self.form != "hand" else "cooperative"
        self.threads = 1 if self.form == "hand" else rng.choice([2, 3]) if self.schedule == "pingpong" else rng.choice([1, 2, 3])
        self.wgs = 1 if self.schedule == "pingpong" else self.threads
        self.cluster = rng.choice([1, 1, 1, 2, 4]) if self.form != "hand" else 1
        self.split = rng.choice([None, None, "stream", "2", "pair"] if self.cluster > 1 else [None, None, None, "stream", "2", "3"])
        self.dtype = rng.choice(list(KINDS))
        if self.form == "hand":
            self.split = None
        if "int8" in self.dtype:
            self.split = None  # parts are float32
        self.along = "k" if self.split == "pair" else rng.choice(["m", "n"]) if self.cluster > 1 else ""
        self.wide = self.dtype in ("float16", "ml_dtypes.bfloat16")
        self.used = self.chance(60)
        self.rows = 64 if self.used or self.threads == 3 else rng.choice([64, 64, 128])
        sides = [64, 16, 32] if self.used or self.rows == 128 else [64, 16, 32, 96, 128, 192]
        self.tn = rng.choice(sides if "int8" in self.dtype or self.cluster > 1 else [*sides, 8, 24, 40])
        if self.tn % (8 * self.cluster) or self.split == "pair":
            self.tn = 64
        self.tm = self.rows * self.wgs
        self.tk = KINDS[self.dtype] * rng.choice([1, 2, 4])
        if self.split == "pair":
            self.used = False
        self.slots = rng.choice([2, 1, 3, 4])
        self.delay = rng.choice([d for d in (0, 1, 2) if d < self.slots])
        self.manual = "" if self.form == "hand" else rng.choice(["", "", "", "ready", "consumed", "both"])
        self.nested = self.form == "loop" and not self.manual and self.cluster == 1 and self.split is None and self.chance(15)
        self.tk = 4 * KINDS[self.dtype] if self.nested else self.tk  # parts of a block are 128 bytes wide
        self.second = self.form == "loop" and not self.nested and self.split is None and self.chance(20)
        self.turned = (self.wide and self.form != "hand" and not self.nested and self.tk % (8 * self.cluster) == 0
                       and self.chance(25))
        self.registers = self.wide and self.form == "loop" and self.chance(40)
        self.turns = self.form == "loop" and self.wgs > 1 and not self.nested and self.chance(25)
        plain = self.split is None and self.cluster == 1
        self.trips = rng.choice(["", "", "trips[mt]", "(p * mt + 2 * nt) % 4", "table[1]"]) if plain else ""
        self.dynamic = self.split is None and self.cluster == 1 and self.chance(25)
        self.order = rng.choice(['"row"', '"column"', '"grouped", group=2', '"snake", group=2', '"hilbert"', "places"])
        if self.split is not None or (self.cluster > 1 and self.order == "places"):
            self.order = '"row"'
        self.skips = plain and self.chance(15)
        self.fields = f"grid=numpipe.persistent({self.cluster * rng.choice([1, 2, 3])}), num_compute_wgs={self.threads}"
        item = 4 if self.dtype == "float32" else 2 if self.wide else 1
        slot = item * self.tk * (self.tm * (1 + self.nested) + self.tn) * (1 + self.second)
        while self.slots > 1 and slot * self.slots > WORKING:
            self.slots, self.delay = self.slots - 1, min(self.delay, self.slots - 2)
        self.ring = slot * self.slots
        self.m_tiles, self.n_tiles = rng.choice([2, 1, 3]), rng.choice([2, 1, 3])
        across = {name: self.cluster if self.along == name else 1 for name in "mn"}
        self.counts = self.m_tiles * across["m"], self.n_tiles * across["n"]
        self.shape = (self.tm * self.counts[0] - rng.choice([0, 5]), self.tn * self.counts[1] - rng.choice([0, 3]),
                      max(1, self.tk * rng.choice([2, 1, 3, 5]) - rng.choice([0, 0, 7])))
        self.group = across
        self.owners = self.counts[0] * self.counts[1] * self.wgs

    # ---- as text
    @property
    def steps(self) -> str:
        """The steps of a tile's first pipeline."""
        return "part.steps" if self.split else self.trips or "steps"

    def left(self, name: str = "a_tile", columns: str = ":") -> str:
        where = f"[ds(wg * {self.rows}, {self.rows}), {columns}]"
        return f"{name}{where}" if self.registers else f"{name}.at{where}"

    def specs(self, step: str) -> list[str]:
        """Of a and of b: those blocks that the CTAs of a cluster have in common are loaded together."""
        shared = {side: ', collective_axes="pair"' * (self.along == other) for side, other in (("a", "n"), ("b", "m"))}
        b = f"({self.tk}, {self.tn}), lambda k: ({step}, nt)" if self.turned else f"({self.tn}, {self.tk}), lambda k: (nt, {step})"
        return [f"BlockSpec(({self.tm}, {self.tk}), lambda k: (mt, {step}){shared['a']})", f"BlockSpec({b}{shared['b']})"]

    def step(self) -> list[str]:
        right = "b_tile" if self.turned else "b_tile.T"
        product = f"acc = numpipe.wgmma(acc, {self.left()}, {right})"
        lines = ["numpipe.barrier_wait(a_ready)", "numpipe.barrier_wait(b_ready)"] * (self.manual in ("ready", "both"))
        lines += ['with numpipe.turn("products"):', f"    {product}"] if self.turns else [product]
        if self.manual in ("consumed", "both"):
            lines += [f"acc = numpipe.wgmma_wait(acc, {0 if self.registers else self.delay})", "numpipe.barrier_arrive(b_consumed)",
                      "numpipe.barrier_arrive(a_consumed)"]
        elif self.registers:
            lines.append("acc = numpipe.wgmma_wait(acc, 0)")
        return lines

    def barriers(self) -> list[str]:
        kinds = {"": [], "both": ["ready", "consumed"]}.get(self.manual, [self.manual])
        return [f"a_{kind}, b_{kind}" for kind in kinds]

    def options(self, steps: str, step: str) -> str:
        said = "".join(f", manual_{kind}_barriers=True" for kind in ("ready", "consumed") if self.manual in (kind, "both"))
        return (f"grid=({steps},), max_concurrent_steps={self.slots}, delay_release={self.delay}, "
                f"in_specs=({', '.join(self.specs(step))}){said}")

    def loop_text(self, name: str, steps: str, step: str) -> list[str]:
        groups = "".join(f", ({pair})" for pair in self.barriers())
        return [f"{name} = numpipe.pipeline({self.options(steps, step)})",
                f"for (k,), (a_tile, b_tile){groups} in {name}(a, b):", *indented(self.step())]

    def nested_text(self) -> list[str]:
        """a in blocks of 2 tk, and inside each b in blocks of tk."""
        return [f"outer = numpipe.pipeline(grid=({self.steps},), max_concurrent_steps={self.slots}, delay_release={self.delay}, "
                f"in_specs=(BlockSpec(({self.tm}, {2 * self.tk}), lambda i: (mt, i)),))",
                "for (i,), (a_tile,) in outer(a):",
                f"    inner = numpipe.pipeline(grid=(2,), max_concurrent_steps={self.slots}, "
                f"in_specs=(BlockSpec(({self.tn}, {self.tk}), lambda k: (nt, 2 * i + k)),))",
                "    for (k,), (b_tile,) in inner(b):",
                f"        acc = numpipe.wgmma(acc, {self.left(columns=f'ds(k * {self.tk}, {self.tk})')}, b_tile.T)",
                *["        acc = numpipe.wgmma_wait(acc, 0)"] * self.registers]

    def hand_text(self) -> list[str]:
        """A ring that the kernel makes itself."""
        def copy(name: str, index: str, rows: int) -> str:
            return (f"    numpipe.copy_gmem_to_smem({name}.at[ds({index} * {rows}, {rows}), ds(k * {self.tk}, {self.tk})], "
                    f"{name}_slots.at[slot], landed.at[slot])")

        return [f"steps_here = {self.steps}", "", "def load(k):", f"    slot = k % {self.slots}", copy("a", "mt", self.tm),
                copy("b", "nt", self.tn), "", f"for k in range(min({self.slots}, steps_here)):", "    load(k)",
                "for k in range(steps_here):", f"    slot = k % {self.slots}", "    numpipe.barrier_wait(landed.at[slot])",
                "    acc = numpipe.wgmma_wait(numpipe.wgmma(acc, a_slots.at[slot], b_slots.at[slot].T), 0)",
                f"    if k + {self.slots} < steps_here:", f"        load(k + {self.slots})"]

    def write(self) -> None:
        """The function's body."""
        integer = "int8" in self.dtype
        kind = "int32" if integer else "float32"
        acc = f"numpipe.zeros(({self.rows}, {self.tn}), np.{kind})"
        self.add("wg = numpipe.axis_index('wg')")
        self.add(f"steps = cdiv(a.shape[1], {self.tk * (1 + self.nested)})")
        if self.form == "hand":
            for name, rows in (("a", self.tm), ("b", self.tn)):
                self.add(f"{name}_slots = numpipe.scratch(SMEM(({self.slots}, {rows}, {self.tk}), {name}.dtype))")
            self.add(f"landed = numpipe.scratch(Barrier(num_arrivals=2, num_barriers={self.slots}))")
        counts = f"{self.m_tiles}, {self.n_tiles}"
        at = {name: f"{name}t_cluster" if self.group[name] > 1 else f"{name}t" for name in "mn"}
        if self.split:
            how = {"stream": "", "pair": ', split="pair"'}.get(self.split, f", split={self.split}")
            self.add(f"for {at['m']}, {at['n']}, part in numpipe.split_tiles({counts}, steps=steps{how}):")
        else:
            counts += f", order={self.order}{', dynamic=True' * self.dynamic}"
            self.add(f"for {at['m']}, {at['n']} in numpipe.tiles({counts}):")
        self.depth += 1
        for name in "mn":
            if self.group[name] > 1:
                self.add(f"{name}t = {at[name]} * {self.cluster} + numpipe.axis_index('pair')")
        self.add(f"own = (mt * {self.counts[1]} + nt) * {self.wgs} + wg")
        if self.skips:
            for line in ("if (mt + nt) % 3 == 1:", "    continue"):
                self.add(line)
        step = "part.begin + k" if self.split else "k"
        if self.form == "body":
            given = ", ".join(["a_tile", "b_tile", *self.barriers(), "acc"])
            for line in (f"def body(indices, {given}):", *indented(["k, = indices", *self.step(), "return acc"]), "",
                         "def compute(pipeline):", f"    acc = pipeline({acc})"):
                self.add(line)
            self.depth += 1
            self.behind(kind)
            self.depth -= 1
            self.add("")
            options = f"compute_context=compute, {self.options(self.steps, step)}"
            self.add(f"numpipe.emit_pipeline_warp_specialized(body, {options})(a, b)")
        else:
            lines = (self.nested_text() if self.nested else self.hand_text() if self.form == "hand"
                     else self.loop_text("pipe", self.steps, step))
            for line in (f"acc = {acc}", *lines, *self.loop_text("again", "steps", "steps - 1 - k") * self.second):
                self.add(line)
            self.behind(kind)

    def behind(self, kind: str) -> None:
        """What a tile's sums are used for."""
        most = (9 if self.dtype == "uint8" else 4) * 6 * self.tk * (1 + self.nested) * (1 + self.second)
        if self.split == "pair":
            columns = self.tn // self.cluster
            self.add("acc = numpipe.combine(acc, part, axis='pair')")
            self.add(f"c[ds(mt * {self.tm} + wg * {self.rows}, {self.rows}), "
                     f"ds(nt * {self.tn} + numpipe.axis_index('pair') * {columns}, {columns})] = acc.astype(c.dtype)")
            return
        if self.split:
            self.add("acc = numpipe.combine(acc, part, work)")
            self.add("if part.begin == 0:")
            self.depth += 1
        if self.used:
            self.seen = [Tile("acc", (self.rows, self.tn), kind, "accumulator", -most, most)]
            self.inside = True  # loads that could be ahead of a turn stay out
            self.statements(self.rng.randint(1, 4))
            self.store()
        self.add(f"c[ds(mt * {self.tm} + wg * {self.rows}, {self.rows}), ds(nt * {self.tn}, {self.tn})] = acc.astype(c.dtype)")
        if self.split:
            self.depth -= 1

    def known(self) -> list[Callable[[], None]]:
        return [self.load, *[self.compute] * 6, *[self.reduce] * 3, *[self.convert] * 2, *[self.store] * 2,
                self.cut, self.cast, self.scan]

    def case(self) -> Case:
        m, n, k = self.shape
        low, high = (0, 4) if self.dtype == "uint8" else (-2, 3)
        made = {name: f"rng.integers({low}, {high}, {sides}).astype({name_of(self.dtype)})"
                for name, sides in (("a", (m, k)), ("b", (k, n) if self.turned else (n, k)))}
        made["places"] = f"rng.permutation(np.argwhere(np.ones(({self.m_tiles}, {self.n_tiles})))).astype(np.int32)"
        made["trips"] = f"rng.integers(0, 5, {self.counts[0]}).astype(np.int32)"
        out = "int32" if "int8" in self.dtype else self.rng.choice(["float32", "float32", "float16" if k < 250 else "float32"])
        made["c"] = f"np.full(({m}, {n}), {POISON}, np.{out})"
        for name in [*["a", "b"] * (self.wide and self.cluster == 1), "c"]:
            made[name] = f"np.asfortranarray({made[name]})" if self.chance(20) and self.form != "hand" else made[name]
        before, outputs = self.arguments(), len(self.outputs) + 2
        c = ("c", made.pop("c"))
        arguments = (*before[:-outputs], *made.items(), *before[-outputs:-2], c, *before[-2:])
        more = [f'schedule="{self.schedule}"'] * (self.schedule != "cooperative")
        more += [f'cluster={self.cluster}, cluster_names="pair"'] * (self.cluster > 1)
        work = self.split is not None and self.split != "pair"
        if work:
            parts = "" if self.split == "stream" else f", split={self.split}"
            more.append(f"workspace=Workspace(({self.tm}, {self.tn}){parts})")
        left = MOST - self.ring - self.wgs * EXCHANGED * self.used
        choices = [slots for slots in (1, 2, 3) if slots * self.tm * PANEL <= left]
        if choices and self.chance(30):
            more.append(f"compiler_params=CompilerParams(store_slots={self.rng.choice(choices)})")
        text = "\n".join([
            "import ml_dtypes", "import numpy as np", "import numpipe",
            "from numpipe import SMEM, Barrier, BlockSpec, CompilerParams, Workspace, cdiv, ds", "", "",
            f"@numpipe.kernel({', '.join([self.fields, *more])})",
            f"def product({', '.join([name for name, _ in arguments] + ['work'] * work)}):", *self.lines, ""])
        return Case(text, arguments, self.features, "product", self.cluster, self.wgs, self.cluster)

    @property
    def features(self) -> tuple[str, ...]:
        said = {"pingpong": self.schedule == "pingpong", "cluster": self.cluster > 1, "split in a cluster": self.split == "pair",
                "split-K": self.split not in (None, "pair", "stream"), "stream-K": self.split == "stream", "dynamic": self.dynamic,
                "manual barriers": bool(self.manual), "nested": self.nested, "two pipelines": self.second, "turns": self.turns,
                "data that steers": self.trips in ("trips[mt]", "table[1]"), "operand in registers": self.registers,
                "delay_release": self.delay > 0, "skipped tiles": self.skips, "host table": self.order == "places",
                "several warpgroups": self.threads > 1, "K x N operand": self.turned, "uses a tile": self.used}
        form = "ring by hand" if self.form == "hand" else f"{self.form} form"
        return tuple(dict.fromkeys([form, "memory role", "tiles", f"{self.slots} slots", f"{self.dtype} operands",
                                    *(name for name, has in said.items() if has), *super().features]))


def product(rng: random.Random) -> Case:
    """Draw a product."""
    made = Product(rng)
    made.draw()
    made.write()
    return made.case()
