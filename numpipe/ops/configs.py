"""How a matrix product is cut and scheduled: `Config`, those that have a name, the choice by the model, and the space of all.

The model (`numpipe.model.product`) predicts a product's time from its sizes in some milliseconds. `choose` asks it about `CONFIGS`.
`space` is wider: tiles whose columns divide the output evenly, cut along K in the ways that fill the SMs, and of all these the few
that may be the fastest, for `numpipe.autotune` to measure.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..plan.budget import fit_slots
from . import costs, learned

__all__ = ["CONFIGS", "Config", "choose", "space"]


FUSED = 128 * 128
"""elements of a warpgroup's tile at most, for an epilogue's arrays and functions to have registers beside it"""

LOOKED_AT = 400
"""configs of the fewest counted cycles, which are looked at closely"""


@dataclass(frozen=True)
class Config:
    """How the product is cut and scheduled. Sizes are in elements.

    tm, tn    tile of the output: a CTA's (cooperative), or a compute warpgroup's (ping-pong)
    tk        depth of a step
    slots     steps in shared memory at once; None: as many as fit beside the staging panels
    schedule  "cooperative" or "pingpong"
    panels    staging panels (64 x 64 elements, 8 KB) of a compute warpgroup for tiles on their way out, 1…8; None: up to a tile's
    group     rows of tiles that share blocks of b in L2: 1000 to 2000 rows of the output
    policy    what L2 does with the output's lines; "evict_first" leaves room for inputs
    cluster   CTAs of a cluster, along M: each loads a share of the blocks of b for all of them; with split="cluster" along K
    across    CTAs of a cluster along N: each loads a share of the blocks of a
    wgs       compute warpgroups
    turned    the transpose of the output is computed: the tile's rows lie along N, its columns along M
    split     parts of the steps of a tile; "stream": those of all tiles are shared out evenly; "cluster": a part for each CTA of it
    dynamic   CTAs take tiles from a counter, so that quicker ones compute more
    """

    tm: int = 128
    tn: int = 256
    tk: int = 64
    slots: int | None = 3
    schedule: str = "cooperative"
    panels: int | None = None
    group: int = 16
    policy: str | None = None
    cluster: int = 1
    across: int = 1
    wgs: int = 2
    turned: bool = False
    split: int | str | None = None
    dynamic: bool = False

    @property
    def share(self) -> int:
        """Columns of a tile that a CTA stores."""
        return self.tn // (self.cluster if self.split == "cluster" else 1)

    @property
    def strip(self) -> int:
        """Columns of a tile that an epilogue computes at a time."""
        return math.gcd(self.share, 64)

    @property
    def fuses(self) -> bool:
        """Whether accumulators leave registers for an epilogue's arrays and functions; with more than 128 a lane it is slow."""
        return self.tm // (self.wgs if self.schedule == "cooperative" else 1) * self.tn <= FUSED

    @property
    def depth(self) -> int:
        """The slots of the ring, for 16-bit types."""
        sums = 4 * self.tm * (self.tn - self.share) * (self.wgs if self.schedule == "pingpong" else 1)
        return self.slots or fit_slots(((self.tm, self.tk), np.float16), ((self.tn, self.tk), np.float16), other_bytes=sums,
                                       store_slots=self.panels or 1, num_compute_wgs=self.wgs)


CONFIGS = {
    "cooperative 128x256": Config(group=12, policy="evict_first"),
    "ping-pong 64x256": Config(64, 256, slots=5, schedule="pingpong", panels=1, group=32, policy="evict_first"),
    "ping-pong 128x192": Config(128, 192, slots=4, schedule="pingpong", panels=2, policy="evict_first"),
    "ping-pong 128x128": Config(128, 128, slots=5, schedule="pingpong", panels=4, policy="evict_first"),
    "cooperative 128x256 cluster 2": Config(slots=4, panels=2, policy="evict_first", cluster=2),
    "cooperative 128x128": Config(128, 128, slots=6, panels=2, group=4, policy="evict_first"),
    "cooperative 128x128 split 2 in a cluster": Config(128, 128, slots=5, panels=1, group=4, split="cluster", cluster=2),
    "cooperative 128x64": Config(128, 64, 128, slots=4, panels=1, group=1, policy="evict_first"),
    "skinny 64x16": Config(64, 16, 128, slots=10, panels=1, wgs=1),
    "skinny 64x32": Config(64, 32, 128, slots=9, panels=1, wgs=1),
    "skinny 64x64": Config(64, 64, slots=13, panels=1, wgs=1),
    "skinny 128x64 split 2 in a cluster": Config(128, 64, slots=8, panels=1, split="cluster", cluster=2),
}
"""What each is good for: many steps, and the least power; few steps; large products; equal sides; rows that L2 serves badly; one
tile an SM; 128 rows (two); up to 16, 32 and 64 rows or columns (two), where reading the other operand takes all the time."""


@functools.lru_cache(maxsize=4096)
def choose(m: int, n: int, k: int, sms: int = costs.SMS, batches: int = 1, fused: bool = False, aligned: bool | None = None,
           fixed: bool = False) -> Config:
    """Return the config that is predicted to be the fastest for a product of these sizes.

    fused    whether there is an epilogue beside alpha, for which not every config has the registers
    aligned  whether the operands' rows begin at multiples of 128 bytes; None: those of contiguous ones that are summed along
    fixed    only configs that sum a row's products in one order, wherever in the output it lies
    """
    if 0 in (m, n, k, batches):
        return Config()
    return next(_ordered(m, n, k, sms, batches, fused, 2 * k % 128 == 0 if aligned is None else aligned, fixed))


def space(m: int, n: int, k: int, sms: int = costs.SMS, aligned: bool = True, most: int = 16) -> list[Config]:
    """Return the `most` configs that are predicted to be the fastest, the best of them first, no two that differ in `tn` alone.

    >>> len(space(377, 13712, 8152, aligned=False, most=2))
    2
    """
    found: dict[tuple[object, ...], Config] = {}
    for config in _ordered(m, n, k, sms, aligned=aligned):
        found.setdefault((config.tm, config.tk, config.schedule, config.turned, config.split, config.cluster, config.across), config)
        if len(found) == most:
            break
    return list(found.values())


def _ordered(m: int, n: int, k: int, sms: int, batches: int = 1, fused: bool = False, aligned: bool = True,
             fixed: bool = False) -> Iterator[Config]:
    """Yield configs, the fastest first."""
    every, count = _every(), len(costs.ways().tm)
    products = [costs.Product(*sides, k, turned, aligned, batches, sms) for turned, sides in ((False, (m, n)), (True, (n, m)))]
    counted = np.concatenate([costs.cycles(costs.ways(), product) for product in products])
    if fused:
        counted[every.tm / np.where(every.turns > 0, 1, every.wgs) * every.tn > FUSED] = np.inf
    if fixed:
        counted[(every.stream > 0) | (every.parts > 1) | (every.along > 1)] = np.inf
    best = np.argpartition(counted, LOOKED_AT)[:LOOKED_AT]
    best = best[np.isfinite(counted[best])]
    turned = best >= count
    product = costs.Product(np.where(turned, n, m), np.where(turned, m, n), k, turned, aligned, batches, sms)
    few = costs.Ways(*(field[best] for field in every))
    for at in np.argsort(learned.corrected(few, product), kind="stable"):
        yield _config(costs.Ways(*(field[at] for field in few)), bool(turned[at]))


@functools.cache
def _every() -> costs.Ways:
    """Return all ways, for a product and again for its transpose."""
    return costs.Ways(*(np.tile(field, 2) for field in costs.ways()))


def _config(way: costs.Ways, turned: bool) -> Config:
    """Return one of the ways as a config."""
    tm, tn, tk, wgs, turns, stream, along, parts, cluster, across, slots, panels = map(int, way)
    split = "stream" if stream else "cluster" if along > 1 else parts if parts > 1 else None
    return Config(tm, tn, tk, slots, ("cooperative", "pingpong")[turns], panels, max(1, 1536 // tm), "evict_first",
                  max(along, cluster), across, wgs, turned, split)
