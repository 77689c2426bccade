"""How attention is cut for the SMs: configs, those that fit a depth, and the choice of one for the
lengths."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..arch.targets import DEFAULT
from ..core.arith import cdiv
from ..plan.specs import ArrayType

DEPTHS = (64, 128, 256)
"""depths that have configs; others take those of the next larger one"""
WIDTHS = (32, 64, 96, 128, 192, 256)
"""columns that blocks of Q, K and V may have; what lies beyond a head's elements are zeros"""
AT_ONCE = 3  # CTAs of `Config.alone` on an SM


@dataclass(frozen=True)
class Config:
    """How attention is cut and scheduled:

    keys       rows of K and V in a step
    wgs        compute warpgroups, of 64 rows of Q each
    slots      steps in shared memory at once
    lazy       sums are rescaled only where a maximum has risen by more than `RISE`; else at each
               step, as exact as can be
    turns      warpgroups issue their products one after another, so that one's softmax is beside
               the other's products
    dynamic    CTAs take tiles from a counter, the longest first: of use where tiles differ, that is
               with a causal mask
    registers  of each lane of the memory role
    early      keys whose exponentials come before the wait for the product with V, which ptxas
               would move up; None: as it likes
    q_slots    tiles of Q in shared memory at once: with two, the next one is on its way while one
               is in use
    alone      a CTA has one tile, and one warpgroup, which loads for itself; several CTAs are on an
               SM (`attention_short`)
    """

    keys: int = 128
    wgs: int = 2
    slots: int = 2
    lazy: bool = False
    turns: bool = True
    early: int | None = None
    q_slots: int = 1
    dynamic: bool = True
    registers: int = 40
    alone: bool = False

    @property
    def rows(self) -> int:
        return 64 * self.wgs


CONFIGS = {
    "2 warpgroups, 128 keys": Config(early=32, q_slots=2),
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
        "2 warpgroups, 128 keys",
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
"""(depth, causal) -> configs that fit into registers and shared memory, for many rows: that for
exact results, that for others, the rest"""
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
"""depth -> configs with fewer rows, for short lengths: for exact results, and for others"""


@dataclass(frozen=True)
class Form:
    """What is computed, beside the config.

    depth   columns of blocks, one of `WIDTHS`: a head has as many elements, or fewer
    causal  whether query i sees keys up to i + diagonal alone
    layout  dimensions of the arrays: "bhsd" (batch, head, position, depth) or "bshd"
    sums    whether the logarithms of the sums are stored
    """

    depth: int
    causal: bool = False
    layout: str = "bhsd"
    sums: bool = False

    @property
    def heads(self) -> int:
        return self.layout.index("h")

    @property
    def positions(self) -> int:
        return self.layout.index("s")

    def results(self, q: Any) -> tuple[ArrayType, ...]:
        sums = ArrayType((q.shape[0], q.shape[self.heads], q.shape[self.positions]), np.float32)
        return (ArrayType(q.shape, q.dtype), sums)[: 1 + self.sums]


@functools.lru_cache(maxsize=1024)
def choose(
    depth: int,
    causal: bool = False,
    exact: bool = True,
    queries: int = 1 << 20,
    keys: int = 1 << 20,
    heads: int = 1,
    sms: int = DEFAULT.sms,
) -> Config:
    """Return the config for a depth, and for so many queries and keys of so many heads: those of
    all batches together.

    Many rows take what `FITTING` says. Where tiles are few, or the last one of each head mostly
    empty, one of `SMALLER` takes fewer cycles: there are more tiles, of fewer rows.
    """
    fitting = next(known for known in DEPTHS if known >= depth)
    configs = [CONFIGS[pair[not exact]] for pair in (FITTING[fitting, causal], *SMALLER[fitting])]
    return min(
        configs,
        key=lambda config: _cycles(
            config, depth, keys, cdiv(cdiv(queries, config.rows) * heads, sms)
        ),
    )


def _cycles(config: Config, depth: int, keys: int, tiles: int) -> float:
    """Return about how many cycles the SM takes that has the most tiles.

    A step has products, of 4096 operations a cycle, exponentials, 16 a cycle, with what belongs to
    them, and bytes from L2, 24 a cycle. Where several warpgroups are on the SM, the products of one
    hide behind the exponentials of another; one alone does them one after the other. A tile begins
    with a load and ends with a store, which those of CTAs beside it hide.
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
