"""Matrix products over tiles by every schedule, and the use of each tile.

A product is a row of `FACTORS`, drawn from left to right. Pipelines in both forms traverse K, one
after another, with barriers of the ring or of the kernel, or by a ring that the kernel builds from
copies and barriers. Numbers are small integers, so sums are exact in any order. Statements of
`programs` use a tile.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from numpipe.plan.protocol import BARRIERS
from tests.fuzz.case import Case
from tests.fuzz.programs import Program
from tests.fuzz.sources import POISON, Tile, indented, name_of
from tests.kernels.covering import Factors, Needs

KINDS = {
    "float16": 16,
    "ml_dtypes.bfloat16": 16,
    "ml_dtypes.float8_e4m3fn": 32,
    "ml_dtypes.float8_e5m2": 32,
    "float32": 8,
    "int8": 32,
    "uint8": 32,
}
"""types of operands, and the elements along K that an instruction multiplies"""
WORKING = 150_000
"""bytes of shared memory for slots"""
MOST, EXCHANGED, PANEL = 230_000, 16_384, 128
"""bytes of shared memory: of a CTA without barriers; of a warpgroup's reductions and casts; of a
row in a store's slot"""

OFTEN_NOT = False, False, False, True
SIDES = 64, 16, 32, 96, 128, 192
FACTORS: Factors = {
    "form": ("loop", "loop", "body", "hand"),
    "schedule": ("cooperative", "pingpong"),
    "threads": (1, 2, 3),  # warpgroups
    "cluster": (1, 1, 1, 2, 4),
    "dtype": tuple(KINDS),
    "product": ("wgmma", "wgmma", "mma.sync"),
    "split": ("", "", "stream", "2", "3", "pair"),  # along K; "pair": between the CTAs of a cluster
    "along": ("", "m", "n", "k"),  # the axis of a cluster
    "used": (True, False),  # by statements of a program
    "rows": (64, 64, 128),
    "tn": (*SIDES, 8, 24, 40),
    "steps_wide": (1, 2, 4),
    "slots": (2, 1, 3, 4),
    "delay": (0, 1, 2),
    "manual": ("", "", "", "ready", "consumed", "ready consumed"),  # barriers
    "second": OFTEN_NOT,  # another pipeline adds to the tile
    "transposed": OFTEN_NOT,  # b is K x N
    "registers": OFTEN_NOT,  # a is multiplied from registers
    "turns": (False, True),
    "trips": ("", "", "trips[mt]", "(p * mt + 2 * nt) % 4", "table[1]"),
    "dynamic": OFTEN_NOT,
    "order": ('"row"', '"column"', '"grouped", group=2', '"snake", group=2', "places"),
    "skips": OFTEN_NOT,
    "store_role": OFTEN_NOT,
    "m_tiles": (2, 1, 3),
    "n_tiles": (2, 1, 3),
}
"""the first value of each factor is the default"""

PLAIN = {"trips": ("",), "dynamic": (False,), "skips": (False,)}
WHOLE = {**PLAIN, "second": (False,), "order": ('"row"',)}
LOADED = {"second": (False,), "registers": (False,), "turns": (False,)}
MOVED = {"transposed": (False,), "registers": (False,)}
INTEGER = {**MOVED, "split": ("",), "tn": SIDES}
ACROSS = {**PLAIN, "order": FACTORS["order"][:-1]}
NEEDS: Needs = {
    ("form", "body"): LOADED,
    ("form", "hand"): {
        **LOADED,
        "schedule": ("cooperative",),
        "threads": (1,),
        "cluster": (1,),
        "split": ("",),
        "manual": ("",),
        "transposed": (False,),
    },
    ("schedule", "pingpong"): {"threads": (2, 3), "turns": (False,)},
    ("threads", 1): {"turns": (False,)},
    ("threads", 3): {"rows": (64,)},
    ("cluster", 1): {"split": ("", "stream", "2", "3"), "along": ("",)},
    ("cluster", 2): {
        **ACROSS,
        "split": ("", "stream", "2", "pair"),
        "along": ("m", "n", "k"),
        "tn": SIDES,
    },
    ("cluster", 4): {
        **ACROSS,
        "split": ("", "stream", "2", "pair"),
        "along": ("m", "n", "k"),
        "tn": (64, 32, 96, 128, 192),
    },
    ("split", ""): {"along": ("", "m", "n")},
    **{("split", n): {**WHOLE, "along": ("", "m", "n")} for n in ("stream", "2", "3")},
    ("split", "pair"): {
        **WHOLE,
        "along": ("k",),
        "used": (False,),
        "tn": (64,),
        "store_role": (False,),
    },
    ("dynamic", True): {"store_role": (False,)},
    ("dtype", "int8"): INTEGER,
    ("dtype", "uint8"): INTEGER,
    ("dtype", "float32"): MOVED,
    ("dtype", "ml_dtypes.float8_e4m3fn"): MOVED,
    ("dtype", "ml_dtypes.float8_e5m2"): MOVED,
    ("used", True): {"rows": (64,), "tn": (64, 16, 32)},
    ("rows", 128): {"tn": (64, 16, 32)},
    ("slots", 1): {"delay": (0,)},
    ("slots", 2): {"delay": (0, 1)},
}


@dataclass
class Product(Program):
    """A kernel over tiles while it is written."""

    def draw(self) -> None:
        row: dict[str, Any] = {}
        for name, values in FACTORS.items():
            left = [NEEDS[drawn][name] for drawn in row.items() if name in NEEDS.get(drawn, ())]
            row[name] = self.rng.choice([v for v in values if all(v in few for few in left)])
        vars(self).update(row)
        self.drawn = [f"product {n} {v}" for n, v in row.items() if v != FACTORS[n][0]]
        self.wgs = 1 if self.schedule == "pingpong" else self.threads
        self.wide = self.dtype in ("float16", "ml_dtypes.bfloat16")
        self.tm, self.tk = self.rows * self.wgs, KINDS[self.dtype] * self.steps_wide
        self.transposed &= self.tk % (8 * self.cluster) == 0
        slot = self.tk * (self.tm + self.tn) * (1 + self.second) * 32 // KINDS[self.dtype]
        while self.slots > 1 and slot * self.slots > WORKING:
            self.slots, self.delay = self.slots - 1, min(self.delay, self.slots - 2)
        self.ring = slot * self.slots
        self.counts = [
            count * (self.cluster if self.along == name else 1)
            for name, count in (("m", self.m_tiles), ("n", self.n_tiles))
        ]
        cut = self.rng.choice([0, 3])
        k = self.tk * self.rng.choice([2, 1, 3, 5]) - self.rng.choice([0, 0, 7])
        self.shape = self.tm * self.counts[0] - cut, self.tn * self.counts[1] - cut, k
        self.owners = self.counts[0] * self.counts[1] * self.wgs

    # ---- one tile
    @property
    def steps(self) -> str:
        return "part.steps" if self.split else self.trips or "steps"

    @property
    def multiply(self) -> str:
        return "wgmma" if self.product == "wgmma" else "mma"

    def options(self, steps: str, step: str) -> str:
        """Return a pipeline's options; blocks that the CTAs of a cluster share are loaded
        together."""
        b = (self.tn, self.tk), ("nt", step)
        blocks = (
            ("m", (self.tm, self.tk), ("mt", step)),
            ("n", *(x[:: -1 if self.transposed else 1] for x in b)),
        )
        specs = ""
        for axis, sides, index in blocks:
            shared = ', collective_axes="pair"' * (self.along not in ("", "k", axis))
            specs += f"BlockSpec({sides}, lambda k: ({', '.join(index)}){shared}), "
        manual = "".join(f", {BARRIERS[kind].option}=True" for kind in self.manual.split())
        return (
            f"grid=({steps},), max_concurrent_steps={self.slots}, delay_release={self.delay}, "
            f"in_specs=({specs}){manual}"
        )

    def step(self) -> list[str]:
        where = f"[ds(wg * {self.rows}, {self.rows}), :]"
        left = f"a_tile{'' if self.registers else '.at'}{where}"
        right = f"b_tile{'' if self.transposed else '.T'}"
        lines = [f"acc = numpipe.{self.multiply}(acc, {left}, {right})"]
        if self.turns:
            lines = ['with numpipe.turn("products"):', *indented(lines)]
        if "ready" in self.manual:
            lines = ["numpipe.barrier_wait(a_ready)", "numpipe.barrier_wait(b_ready)", *lines]
        consumed = "consumed" in self.manual
        if consumed or self.registers:
            flying = 0 if self.registers else self.delay
            lines.append(f"acc = numpipe.wgmma_wait(acc, {flying})")
        arrivals = [f"numpipe.barrier_arrive({name}_consumed)" for name in "ba"]
        return lines + arrivals * consumed

    def barriers(self) -> str:
        return "".join(f", (a_{kind}, b_{kind})" for kind in self.manual.split())

    def walk(self, steps: str, step: str) -> list[str]:
        return [
            f"pipe = numpipe.pipeline({self.options(steps, step)})",
            f"for (k,), (a_tile, b_tile){self.barriers()} in pipe(a, b):",
            *indented(self.step()),
        ]

    def ring_by_hand(self) -> list[str]:
        copies = [
            f"    numpipe.copy_gmem_to_smem({name}.at[ds({index} * {rows}, {rows}), "
            f"ds(k * {self.tk}, {self.tk})], {name}_slots.at[slot], landed.at[slot])"
            for name, index, rows in (("a", "mt", self.tm), ("b", "nt", self.tn))
        ]
        return [
            f"steps_here = {self.steps}",
            "def load(k):",
            f"    slot = k % {self.slots}",
            *copies,
            f"for k in range(min({self.slots}, steps_here)):",
            "    load(k)",
            "for k in range(steps_here):",
            f"    slot = k % {self.slots}",
            "    numpipe.barrier_wait(landed.at[slot])",
            f"    acc = numpipe.{self.multiply}(acc, a_slots.at[slot], b_slots.at[slot].T)",
            "    acc = numpipe.wgmma_wait(acc, 0)",
            f"    if k + {self.slots} < steps_here:",
            f"        load(k + {self.slots})",
        ]

    # ---- the function's body
    def write(self) -> None:
        kind = "int32" if "int8" in self.dtype else "float32"
        zeros = f"numpipe.zeros(({self.rows}, {self.tn}), np.{kind})"
        self.add("wg = numpipe.axis_index('wg')", f"steps = cdiv(a.shape[1], {self.tk})")
        if self.form == "hand":
            for name, rows in (("a", self.tm), ("b", self.tn)):
                sides = self.slots, rows, self.tk
                self.add(f"{name}_slots = numpipe.scratch(SMEM({sides}, {name}.dtype))")
            barrier = f"Barrier(num_arrivals=2, num_barriers={self.slots})"
            self.add(f"landed = numpipe.scratch({barrier})")
        names = [f"{name}t{'_cluster' * (self.along == name)}" for name in "mn"]
        counts = f"{self.m_tiles}, {self.n_tiles}"
        if self.split:
            split = {"stream": "", "pair": ', split="pair"'}.get(
                self.split, f", split={self.split}"
            )
            tiles = f"split_tiles({counts}, steps=steps{split})"
            names.append("part")
        else:
            tiles = f"tiles({counts}, order={self.order}{', dynamic=True' * self.dynamic})"
        self.add(f"for {', '.join(names)} in numpipe.{tiles}:")
        self.depth += 1
        if self.along in ("m", "n"):
            first = f"{self.along}t_cluster * {self.cluster}"
            self.add(f"{self.along}t = {first} + numpipe.axis_index('pair')")
        self.add(f"own = (mt * {self.counts[1]} + nt) * {self.wgs} + wg")
        if self.skips:
            self.add("if (mt + nt) % 3 == 1:", "    continue")
        step = "part.begin + k" if self.split else "k"
        if self.form == "body":
            given = f"a_tile, b_tile{self.barriers().replace('(', '').replace(')', '')}"
            self.add(f"def body(indices, {given}, acc):")
            self.add(*indented(["k, = indices", *self.step(), "return acc"]))
            self.add("def compute(pipeline):", f"    acc = pipeline({zeros})")
            self.depth += 1
            self.use(kind)
            self.depth -= 1
            options = f"compute_context=compute, {self.options(self.steps, step)}"
            self.add(f"numpipe.emit_pipeline_warp_specialized(body, {options})(a, b)")
            return
        hand = self.form == "hand"
        self.add(f"acc = {zeros}")
        self.add(*(self.ring_by_hand() if hand else self.walk(self.steps, step)))
        self.add(*self.walk("steps", "steps - 1 - k") * self.second)
        self.use(kind)

    def use(self, kind: str) -> None:
        """Write the use of a tile's sums."""
        columns, column = self.tn, f"nt * {self.tn}"
        if self.split == "pair":
            columns //= self.cluster
            column += f" + numpipe.axis_index('pair') * {columns}"
            self.add("acc = numpipe.combine(acc, part, axis='pair')")
        elif self.split:
            self.add("acc = numpipe.combine(acc, part, work)", "if part.begin == 0:")
            self.depth += 1
        if self.used:
            most = (9 if self.dtype == "uint8" else 4) * 6 * self.tk * (1 + self.second)
            self.seen = [Tile("acc", (self.rows, self.tn), kind, "accumulator", -most, most)]
            self.statements(self.rng.randint(1, 4))
            self.store()
        row = f"ds(mt * {self.tm} + wg * {self.rows}, {self.rows})"
        self.add(f"c[{row}, ds({column}, {columns})] = acc.astype(c.dtype)")
        self.depth -= self.split not in ("", "pair")

    def known(self) -> list[Callable[[], None]]:
        return self.on_tiles()

    # ---- the whole kernel
    def case(self) -> Case:
        m, n, k = self.shape
        low, high = (0, 4) if self.dtype == "uint8" else (-2, 3)
        sides = {"a": (m, k), "b": (k, n) if self.transposed else (n, k)}
        made = {
            name: f"rng.integers({low}, {high}, {side}).astype({name_of(self.dtype)})"
            for name, side in sides.items()
        }
        results = ["int32"] if "int8" in self.dtype else ["float32", "float16"][: 1 + (k < 250)]
        made["c"] = f"np.full(({m}, {n}), {POISON}, np.{self.rng.choice(results)})"
        for name in made if self.wide and self.cluster == 1 else "c":
            if self.form != "hand" and self.chance(20):
                made[name] = f"np.asfortranarray({made[name]})"
        places = f"np.argwhere(np.ones(({self.m_tiles}, {self.n_tiles})))"
        made["places"] = f"rng.permutation({places}).astype(np.int32)"
        made["trips"] = f"rng.integers(0, 5, {self.counts[0]}).astype(np.int32)"
        # arrays that steer come before the outputs, and c is the last of them
        c = made.pop("c")
        arguments = (*made.items(), *self.arguments(), ("c", c))
        options = [
            f"grid=numpipe.persistent({self.cluster * self.rng.choice([1, 2, 3])})",
            f"num_compute_wgs={self.threads}",
            f'schedule="{self.schedule}"',
            *[f'cluster={self.cluster}, cluster_names="pair"'] * (self.cluster > 1),
        ]
        work = self.split not in ("", "pair")
        if work:
            parts = "" if self.split == "stream" else f", split={self.split}"
            options.append(f"workspace=Workspace(({self.tm}, {self.tn}){parts})")
        left = MOST - self.ring - self.wgs * EXCHANGED * self.used
        slots = self.rng.choice([1, 2, 3])
        chosen = [f"product={self.product!r}"] * (self.product != "wgmma")
        chosen += ["store_role=True"] * self.store_role
        if slots * self.tm * PANEL <= left and self.chance(30):
            chosen.append(f"store_slots={slots}")
        options.append(f"compiler_params=CompilerParams({', '.join(chosen)})")
        parameters = [*(name for name, _ in arguments), *["work"] * work]
        text = self.text("product", ", ".join(options), parameters)
        features = *self.drawn, *self.features
        cluster = self.cluster
        return Case(text, arguments, features, "product", cluster, self.wgs, cluster)


def product(rng: random.Random) -> Case:
    """Draw a product."""
    made = Product(rng)
    made.draw()
    made.write()
    return made.case()
