"""Configs of the attention kernels, the configs that fit each head depth, and the choice among them
by sequence length."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..arch.targets import DEFAULT
from ..core.arith import cdiv
from ..core.functions import Function, function
from ..launch.array_info import ArrayInfo
from ..plan.specs import ArrayType
from .declaration import of_function

DEPTHS = (64, 128, 256)
"""head depths that have configs; other depths use those of the next larger one"""
WIDTHS = (32, 64, 96, 128, 192, 256)
"""columns that blocks of Q, K and V may have; columns beyond the head's depth are zeros"""
AT_ONCE = 3  # CTAs per SM of a config with `alone`


L2 = 32 << 20
"""most bytes that the heads which are computed at the same time may read"""


@dataclass(frozen=True)
class Config:
    """How attention is tiled and scheduled.

    keys       rows of K and V in a step
    wgs        compute warpgroups, of 64 rows of Q each
    slots      steps in shared memory at once
    lazy       rescale sums only when a maximum has risen by more than `RISE`; False rescales at
               each step, which is the most accurate
    turns      make warpgroups issue their products one after another, so that one warpgroup's
               softmax overlaps the others' products
    dynamic    CTAs take tiles from a counter, the longest first; helps if tiles differ in length,
               as they do with a causal mask
    registers  registers per lane of the memory role
    early      number of keys whose exponentials are computed before the wait for the product with
               V, which ptxas would otherwise move up; None leaves the order to ptxas
    mixed      rescale the product with V in two halves, each along with exponentials of half of the
               other keys, so that the units of both kinds of instructions are busy; not if `lazy`
    q_slots    tiles of Q in shared memory at once; with two, the next tile is loaded while one is
               in use
    alone      each CTA has a single tile and a single warpgroup that does its own loads, with
               several CTAs per SM (`attention_short`)
    """

    keys: int = 128
    wgs: int = 2
    slots: int = 2
    lazy: bool = False
    turns: bool = True
    early: int | None = None
    mixed: bool = False
    q_slots: int = 1
    dynamic: bool = True
    registers: int = 40
    alone: bool = False

    @property
    def rows(self) -> int:
        return 64 * self.wgs


CONFIGS = {
    "2 warpgroups, 128 keys": Config(early=32, q_slots=2),
    "2 warpgroups, 128 keys, mixed": Config(early=64, mixed=True, q_slots=2, registers=24),
    "2 warpgroups, 128 keys, lazy": Config(lazy=True, turns=False, early=32, q_slots=2),
    "3 warpgroups, 80 keys, lazy": Config(
        80, 3, lazy=True, turns=False, dynamic=False, registers=32
    ),
    "3 warpgroups, 128 keys": Config(128, 3, early=32, q_slots=2, registers=32),
    "3 warpgroups, 128 keys, lazy": Config(128, 3, lazy=True, q_slots=2, registers=32),
    "2 warpgroups, 64 keys": Config(64, early=32),
    "2 warpgroups, 64 keys, lazy": Config(64, lazy=True, early=32),
    "1 warpgroup, 128 keys": Config(128, 1, turns=False, early=32, q_slots=2),
    "1 warpgroup, 128 keys, lazy": Config(128, 1, lazy=True, turns=False, early=32, q_slots=2),
    "1 warpgroup, 64 keys": Config(64, 1, turns=False, early=32),
    "1 warpgroup, 64 keys, lazy": Config(64, 1, lazy=True, turns=False, early=32),
    "alone, 64 keys": Config(64, 1, alone=True),
    "alone, 64 keys, 1 slot": Config(64, 1, slots=1, alone=True),
}
FITTING = {
    **{
        (64, causal): ("3 warpgroups, 128 keys", "3 warpgroups, 128 keys, lazy")
        for causal in (False, True)
    },
    (128, False): (
        "2 warpgroups, 128 keys, mixed",
        "3 warpgroups, 80 keys, lazy",
        "2 warpgroups, 128 keys, lazy",
    ),
    (128, True): (
        "2 warpgroups, 128 keys",
        "2 warpgroups, 128 keys, lazy",
        "3 warpgroups, 80 keys, lazy",
    ),
    **{
        (256, causal): ("2 warpgroups, 64 keys", "2 warpgroups, 64 keys, lazy")
        for causal in (False, True)
    },
}
"""(depth, causal) -> configs that fit in registers and shared memory, for many rows: first the one
for exact results, then the one for lazy rescaling, then the others"""
SMALLER = {
    64: (
        ("2 warpgroups, 128 keys", "2 warpgroups, 128 keys, lazy"),
        ("1 warpgroup, 128 keys", "1 warpgroup, 128 keys, lazy"),
        ("alone, 64 keys", "alone, 64 keys"),
    ),
    128: (
        ("1 warpgroup, 128 keys", "1 warpgroup, 128 keys, lazy"),
        ("alone, 64 keys, 1 slot", "alone, 64 keys, 1 slot"),
    ),
    256: (("1 warpgroup, 64 keys", "1 warpgroup, 64 keys, lazy"),),
}
"""depth -> pairs of configs with fewer rows, for short sequences: (exact, lazy)"""


@function
def by_head(b, h, s, d):  # type: ignore[no-untyped-def]
    return b, h, s, d


@function
def by_position(b, h, s, d):  # type: ignore[no-untyped-def]
    return b, s, h, d


@dataclass(frozen=True)
class Form:
    """The parts of the computation other than the config.

    depth   columns of a block, one of `WIDTHS`; a head may have fewer elements
    causal  whether query i sees only keys up to i + diagonal
    layout  dimensions of the arrays: "bhsd" (batch, head, position, depth) or "bshd"
    sums    whether to store the logarithms of the sums
    ranges  whether a table gives the queries and keys of each tile (`attention_varlen`)
    score   function of (score, batch, head, query, key) and of arrays, or None
    slope   derivative of `score`, which gradients need: a function of the same arguments, or None
    mask    function of (batch, head, query, key) and of arrays, or None
    arrays  how many arrays each of them takes
    dropout probability with which weights are dropped after the softmax
    """

    depth: int
    causal: bool = False
    layout: str = "bhsd"
    sums: bool = False
    ranges: bool = False
    score: Function | None = None
    slope: Function | None = None
    mask: Function | None = None
    arrays: tuple[int, int] = (0, 0)
    dropout: float = 0.0

    @classmethod
    def of(
        cls,
        depth: int,
        *given: Any,
        depths: tuple = WIDTHS,
        score: Any = None,
        mask: Any = None,
        seed: Any = None,
        **more: Any,
    ) -> tuple[Form, list[ArrayInfo]]:
        """Return the form of a call with heads of this depth, and the arrays of its functions and
        of dropout."""
        (of_score, *for_score), (of_mask, *for_mask) = score or (None,), mask or (None,)
        more |= {"score": of_score, "mask": of_mask, "arrays": (len(for_score), len(for_mask))}
        width = next(each for each in depths if each >= depth)
        of_dropout = [seed] if more.get("dropout") else []
        return cls(width, *given, **more), [*for_score, *for_mask, *of_dropout]

    @property
    def functions(self) -> bool:
        """Whether there is a score or a mask function, or dropout."""
        return self.score is not None or self.mask is not None or self.dropout > 0

    @property
    def dropped(self) -> int:
        """How many of 2**16 draws of dropout drop a weight."""
        return round(self.dropout * 2**16)

    @property
    def share(self) -> float:
        """What weights that are kept are multiplied by."""
        return 1 / (1 - self.dropout) if self.dropout < 1 else 0.0

    @property
    def even(self) -> bool:
        """Whether all tiles are alike."""
        return not (self.uneven or self.ranges)

    @property
    def uneven(self) -> bool:
        """Whether tiles of queries may see different numbers of keys."""
        return self.causal or self.mask is not None

    @property
    def absent(self) -> list[str]:
        """Parameters of the kernel that it does without."""
        pairs = zip(("score", "mask"), self.arrays, strict=True)
        names = [each for name, count in pairs for each in of_function(name)[count:]]
        return names + ["blocks"] * (self.mask is None) + ["seeds"] * (not self.dropout)

    @property
    def unlisted(self) -> list[str]:
        """Parameters that a kernel without a list of tiles does not have."""
        return [] if self.ranges else ["table", "count"]

    @property
    def heads(self) -> int:
        return self.layout.index("h")

    @property
    def positions(self) -> int:
        return self.layout.index("s")

    @property
    def place(self) -> Function:
        """The kernel function of an index (batch, head, position, depth) of an array."""
        return by_head if self.layout == "bhsd" else by_position

    def block(self, positions: Any) -> tuple:
        """Return the block shape (`BlockSpec`) of some positions of a head."""
        sizes = {"s": positions, "d": self.depth}
        return tuple(map(sizes.get, self.layout))

    def results(self, q: Any) -> tuple[ArrayType, ...]:
        sums = ArrayType((q.shape[0], q.shape[self.heads], q.shape[self.positions]), np.float32)
        return (ArrayType(q.shape, q.dtype), sums)[: 1 + self.sums]


def with_functions(
    depth: int, exact: bool = True, alone: bool = False, causal: bool = False
) -> Config:
    """Return the config for a depth if there are functions of scores or dropout, for which the
    other configs do not have enough registers.

    alone  there is a score function, but no mask and no dropout, and results may depend on the
           batch. The lists of a mask need the same blocks, exact or not
    """
    if alone and depth in range(65, 129) and not (exact and causal):
        return CONFIGS[FITTING[128, False][not exact]]
    name = f"2 warpgroups, {128 if depth <= 128 else 64} keys"
    return CONFIGS[name if exact else f"{name}, lazy"]


@functools.lru_cache(maxsize=1024)
def choose(
    depth: int,
    causal: bool = False,
    exact: bool = True,
    queries: int = 1 << 20,
    keys: int = 1 << 20,
    heads: int = 1,
    sms: int = DEFAULT.sms,
    alone: bool = True,
) -> Config:
    """Return the config for a depth and for the number of queries, keys and heads (heads of all
    batches together).

    `FITTING` has the config for many rows. If there are few tiles, or the last tile of each head is
    mostly empty, one of `SMALLER` takes fewer cycles, because it makes more tiles of fewer rows.
    """
    fitting = next(known for known in DEPTHS if known >= depth)
    configs = [CONFIGS[pair[not exact]] for pair in (FITTING[fitting, causal], *SMALLER[fitting])]
    return min(
        [config for config in configs if alone or not config.alone],
        key=lambda config: _cycles(
            config, depth, keys, cdiv(cdiv(queries, config.rows) * heads, sms)
        ),
    )


def _cycles(config: Config, depth: int, keys: int, tiles: int) -> float:
    """Estimate the cycles of the SM that has the most tiles.

    A step costs products at 4096 operations per cycle, exponentials and the work around them at 16
    per cycle, and loads from L2 at 24 bytes per cycle. With several warpgroups on an SM, the
    products of one overlap the exponentials of another; a single warpgroup does them one after the
    other. Each tile starts with a load and ends with a store, which other CTAs on the SM can hide.
    """
    steps: int = cdiv(keys, config.keys)
    together = AT_ONCE if config.alone else config.wgs
    products = 4 * config.rows * config.keys * depth / 4096
    exponentials = 1.25 * config.rows * config.keys / 16
    step: float = max(products, exponentials) + min(products, exponentials) / together + 200
    if not config.alone:
        return tiles * (500 + steps * step)
    busy, one = max(step - 150, 4 * config.keys * depth / 24), 400 + products + exponentials
    rounds: int = cdiv(tiles, AT_ONCE)
    return max(tiles * steps * busy, rounds * (1000 + steps * one))
