"""Plans of whole pipelines: every choice of the pipeline API, as the fields of one dataclass.

`pipeline_sources` writes a plan as a kernel's file. `any_plan` draws one that satisfies the rules;
numpipe's tests also run plans that cover all pairs of choices.

A kernel is `chain` links, each a pipeline over a grid of 1 to 3 dimensions. Step s of link t
computes a tile of every compute warpgroup, its *value*, from the blocks of `inputs` arrays
(products or sums of them). The value is stored to output blocks, added to a sum that is stored when
the link ends (`carry`), or stored directly.
"""

from __future__ import annotations

import functools
import inspect
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from tests.kernels.covering import Factors, Needs, Row, Rule, Rules, completed, keeps, rules_of

SMEM = 227 * 1024


def choice(*values: Any, default: Any = None) -> Any:
    """Return a field with the values that a covering array covers; the first one is the default."""
    return field(default=values[0] if default is None else default, metadata={"values": values})


@dataclass(frozen=True)
class Plan:
    builder: str = choice("ws", "single", "inside")
    """"ws": a memory role loads; "single": each warpgroup loads for itself; "inside": each compute
    warpgroup of a kernel with a memory role loads for itself"""
    form: str = choice("loop", "body")
    """"loop" or "body" """
    slots: int = choice(1, 2, 3, 4, default=2)
    delay: int = choice(0, 1, 2)
    carry: str = choice("none", "tile", "tuple")
    """"none", "tile", or a "tuple" of a tile and a number that depends on the order of steps"""
    ready: bool = choice(False, True)
    consumed: bool = choice(False, True)
    rank: int = choice(1, 2, 3)
    static: bool = choice(False, True)
    """whether the grid is the constant `extent`; otherwise scalar arguments give it"""
    inputs: int = choice(2, 0, 1, 3)
    outputs: int = choice(0, 1, 2)
    reads: str = choice("all", "some", "none", "origin")
    """grid dimensions that the last input's block depends on: "all", "some" (all but the last) or
    "none"; or "origin", the first block"""
    writes: str = choice("all", "some", "none", "origin")
    """the same for the first output: blocks that do not change with each step are revisited, and
    accumulate sums"""
    dims: str = choice("plain", "squeezed", "element")
    """of arrays: "plain"; "squeezed", a first dimension that tiles do not have; "element", blocks
    that start at elements"""
    edges: str = choice("none", "zeros", "nan")
    """"none": blocks are in bounds; else out-of-bounds elements read as "zeros", or as "nan" in the
    last input"""
    wgs: int = choice(1, 2, 3)
    steps: str = choice("equal", "unequal")
    """"equal", or "unequal": warpgroup w takes 2 w + 1 steps"""
    chain: int = choice(1, 2, 5)
    chained: str = choice("range", "nested", "sites", "shared")
    """links are steps of a loop ("range") or of an outer pipeline ("nested"), or are written one by
    one, each with its own ring ("sites") or all on the same ring ("shared")"""
    own: str = choice("none", "slots", "delay")
    """"slots" or "delay", if the last input's BlockSpec sets it for itself"""
    tree: str = choice("flat", "tuple", "named")
    """the first two inputs may be a "tuple" or a NamedTuple ("named")"""
    context: str = choice("context", "coroutine")
    """"context" or "coroutine", in a body with a carry"""
    memory: str = choice("last", "first")
    """"last" or "first": the warpgroup that loads"""
    gmem: bool = choice(False, True)
    """whether a BlockSpec passes the stored array to the body"""
    use: str = choice("product", "load")
    """whether values come from wgmma ("product") or from tiles in registers ("load")"""
    layout: str = choice("inferred", "narrow", "turned")
    """the last input's tile has panels of 32 bytes whatever its width ("narrow"), or is transposed
    ("turned")"""
    drain: bool = choice(False, True)
    """whether each pipeline ends by emptying its rings"""
    tn: int = choice(16, 64)
    tk: int = choice(16, 64)
    extent: tuple[int, int, int] = (3, 1, 2)

    # ---- derived properties
    @property
    def alone(self) -> bool:
        """Whether each warpgroup has a pipeline for itself."""
        return self.builder != "ws"

    @property
    def names(self) -> list[str]:
        """Names of the inputs."""
        return ["a", "b", "d"][: self.inputs]

    @property
    def rows(self) -> int:
        """Rows of a block that has a part for each warpgroup."""
        return 64 if self.alone else 64 * self.wgs

    @property
    def stores(self) -> bool:
        """Whether tiles are stored to c, in addition to the outputs."""
        return self.carry != "none" or not self.outputs

    @property
    def last_slots(self) -> int:
        """Slots of the last input."""
        return self.slots + 1 if self.own == "slots" else self.slots

    @property
    def last_delay(self) -> int:
        return self.slots - 1 if self.own == "delay" else self.delay

    def grids(self, steps: range = range(7)) -> list[tuple[int, ...]]:
        """Grids with these numbers of steps; a static plan has one grid."""
        return (
            [self.extent[: self.rank]] if self.static else [GRIDS[n][self.rank - 1] for n in steps]
        )

    @property
    def features(self) -> tuple[str, ...]:
        """The choices that differ from the default."""
        chosen = [(name, getattr(self, name), values[0]) for name, values in FACTORS.items()]
        return tuple(
            f"pipeline {name} {value}" for name, value, ordinary in chosen if value != ordinary
        )

    @property
    def smem_bytes(self) -> int:
        """Shared memory of a CTA in bytes, rounded up: blocks, and one panel per warpgroup for
        stores."""
        sizes = [
            2 * self.tk * (self.rows if n == "a" or self.use == "load" else self.tn)
            for n in self.names
        ]
        load = sum(-(-size // 1024) * 1024 for size in sizes) * (self.slots + 1)
        out = self.rows * self.tn * (4, 6)[self.outputs > 1] * self.slots if self.outputs else 0
        private = self.wgs if self.alone else 1
        outer = 2 * 128 * self.tk * (self.chained == "nested")
        # each of the chains that share a ring has its own output slots
        sites = {"sites": (self.chain, self.chain), "shared": (1, self.chain + 1)}.get(
            self.chained, (1, 1)
        )
        return 1024 + private * (load * sites[0] + out * sites[1] + outer) + self.wgs * 8192

    @property
    def barriers(self) -> int:
        """An upper bound of the mbarriers of a CTA."""
        # an input may have its own ring
        ready, consumed = (self.inputs if manual else 2 for manual in (self.ready, self.consumed))
        private = self.wgs if self.alone else 1
        return private * (
            (ready + consumed) * (self.slots + 1) * (self.chain if self.chained == "sites" else 1)
            + 4
        )


GRIDS: list[list[tuple[int, ...]]] = [
    [(0,), (0, 3), (2, 0, 1)],
    [(1,), (1, 1), (1, 1, 1)],
    [(2,), (1, 2), (2, 1, 1)],
    [(3,), (3, 1), (1, 3, 1)],
    [(4,), (2, 2), (2, 1, 2)],
    [(5,), (5, 1), (1, 1, 5)],
    [(6,), (2, 3), (1, 2, 3)],
    [(9,), (3, 3), (2, 2, 2)],
    [(11,), (5, 2), (3, 1, 4)],
]
"""by number of steps, up to 6, and rank - 1"""

FACTORS: Factors = {f.name: f.metadata["values"] for f in fields(Plan) if f.metadata}
"""what a covering array covers"""


@functools.cache
def fits(
    builder: str,
    slots: int,
    ready: bool,
    consumed: bool,
    inputs: int,
    outputs: int,
    wgs: int,
    chain: int,
    chained: str,
    use: str,
    tn: int,
    tk: int,
) -> bool:
    plan = Plan(
        builder=builder,
        slots=slots,
        ready=ready,
        consumed=consumed,
        inputs=inputs,
        outputs=outputs,
        wgs=wgs,
        chain=chain,
        chained=chained,
        use=use,
        tn=tn,
        tk=tk,
    )
    return plan.smem_bytes <= SMEM and 8 * plan.barriers <= 1024


NO = (False,)
INDEXED = "all", "some", "none"
NEEDS: Needs = {
    ("builder", "single"): {
        "ready": NO,
        "consumed": NO,
        "steps": ("equal",),
        "chained": ("range", "nested", "sites"),
        "context": ("context",),
        "memory": ("last",),
    },
    ("form", "loop"): {
        "builder": ("ws", "single"),
        "ready": NO,
        "consumed": NO,
        "chained": ("range", "nested", "sites"),
        "context": ("context",),
        "memory": ("last",),
    },
    ("inputs", 0): {
        "ready": NO,
        "consumed": NO,
        "reads": ("all",),
        "edges": ("none", "zeros"),
        "own": ("none",),
        "layout": ("inferred",),
        "tree": ("flat",),
        "use": ("product",),
    },
    ("inputs", 1): {"tree": ("flat",)},
    ("outputs", 0): {"writes": ("all",)},
    ("carry", "none"): {"context": ("context",)},
    ("rank", 1): {"reads": ("all", "none", "origin"), "writes": ("all", "none", "origin")},
    ("dims", "element"): {"reads": INDEXED, "writes": INDEXED, "use": ("product",)},
    ("chain", 1): {"chained": ("range", "nested")},
    ("own", "slots"): {"reads": ("all", "some")},
    ("steps", "unequal"): {"outputs": (0,)},  # all warpgroups share the outputs
    ("gmem", True): {"carry": ("none",), "outputs": (0,)},
    ("writes", "origin"): {"chain": (1,)},  # each link would store to the same block
}
MILD = Plan(slots=1, inputs=0)
# tiles of values have the shape of blocks
RULES: Rules = (
    Rule(fits, {name: getattr(MILD, name) for name in inspect.signature(fits).parameters}),
    *rules_of({**NEEDS, ("builder", "inside"): NEEDS["builder", "single"]}),
    Rule(lambda delay, slots: delay < slots),
    # each warpgroup would store to the same block
    Rule(lambda writes, builder, wgs: writes != "origin" or builder == "ws" or wgs == 1),
    Rule(lambda use, tn, tk: use == "product" or tn == tk),
    Rule(  # a kernel has fewer than 16 rings
        lambda chained, chain, inputs, outputs, own, reads: (
            chained != "sites"
            or chain * ((inputs > 0) + (own != "none" or reads != "all") + outputs) < 16
        )
    ),
)


def allowed(plan: Plan) -> bool:
    """Return whether a plan satisfies all rules."""
    return keeps(vars(plan), DRAWN, RULES)


MORE: Factors = {
    "slots": (2, 1, 3, 4, 5),
    "chain": (1, 2, 3, 5),
    "tn": (16, 8, 40, 64),
    "tk": (16, 32, 64),
}
DRAWN: Factors = {**FACTORS, **MORE}


def any_plan(rng: random.Random) -> tuple[Plan, tuple[int, ...]]:
    """Draw any plan that satisfies the rules, and sizes of its grid."""

    def from_one_on(row: Row, name: str, values: Sequence[Any]) -> Sequence[Any]:
        first = rng.randrange(max(1, len(values)))
        return *values[first:], *values[:first]

    row = completed({}, DRAWN, DRAWN, RULES, list(DRAWN), from_one_on)
    assert row is not None
    plan, grid = Plan(**row), rng.choice(GRIDS)[row["rank"] - 1]
    return replace(plan, extent=(*grid, 1, 1)[:3]) if plan.static else plan, grid
