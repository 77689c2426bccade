"""How a matrix product is cut and scheduled: `Config`, those that have a name, the choice by the model, and the space of all.

The model (`numpipe.model.product`) predicts a product's time from its sizes in some milliseconds. `choose` asks it about `CONFIGS`.
`space` is wider: tiles whose columns divide the output evenly, cut along K in the ways that fill the SMs, and of all these the few
that may be the fastest, for `numpipe.autotune` to measure.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from ..language.grid import orders
from ..plan.budget import fit_slots
from ..tools import model

__all__ = ["CONFIGS", "Config", "choose", "space"]


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
    wgs       compute warpgroups
    skinny    the tile's rows lie along the longer side of the output: where that is wider than tall, its transpose is computed
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
    wgs: int = 2
    skinny: bool = False
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
        return self.tm // (self.wgs if self.schedule == "cooperative" else 1) * self.tn <= 128 * 128

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
    "skinny 64x16": Config(64, 16, 128, slots=10, panels=1, wgs=1, skinny=True),
    "skinny 64x32": Config(64, 32, 128, slots=9, panels=1, wgs=1, skinny=True),
    "skinny 64x64": Config(64, 64, slots=13, panels=1, wgs=1, skinny=True),
    "skinny 128x64 split 2 in a cluster": Config(128, 64, slots=8, panels=1, split="cluster", cluster=2, skinny=True),
}
"""What each is good for: many steps, and the least power; few steps; large products; equal sides; rows that L2 serves badly; one
tile an SM; 128 rows (two); up to 16, 32 and 64 rows or columns (two), where reading the other operand takes all the time."""


@functools.lru_cache(maxsize=1024)
def choose(m: int, n: int, k: int, sms: int = model.H200.sms, batches: int = 1, fused: bool = False,
           aligned: bool | None = None, fixed: bool = False) -> Config:
    """Return the one of CONFIGS that the model (`numpipe.model.product`) predicts to be the fastest, or within 1 % of that.

    fused    whether there is an epilogue beside alpha, for which not every config has the registers
    aligned  whether the operands' rows begin at multiples of 128 bytes; None: those of contiguous ones that are summed along
    fixed    only configs that sum a row's products in one order, wherever in the output it lies
    """
    if 0 in (m, n, k, batches):
        return next(iter(CONFIGS.values()))
    on_lines = 2 * k % 128 == 0 if aligned is None else aligned

    def predicted(config: Config) -> tuple[float, float, float]:
        """Seconds of all; those of the SMs, were memory quick; elements through shared memory, which costs power."""
        shape = (max(m, n), min(m, n), k) if config.skinny else (m, n, k)
        told = model.product(shape, batches=batches, tile=(config.tm, config.tn), depth=config.tk, slots=config.depth,
                             schedule=config.schedule, order=orders.Grouped(config.group), store_slots=config.panels or 1,
                             num_compute_wgs=config.wgs, split=config.split, cluster=config.cluster, aligned=on_lines,
                             device=replace(model.H200, sms=sms))
        tiles = _count(shape[0], config.tm) * _count(shape[1], config.tn)
        return told.seconds, told.limits["longest SM"], tiles * (config.tm + config.tn)

    costs = {config: predicted(config) for config in CONFIGS.values() if config.fuses or not fused if not (fixed and config.split)}
    for part in (0, 1):
        costs = {config: cost for config, cost in costs.items() if cost[part] <= 1.01 * min(each[part] for each in costs.values())}
    return min(costs, key=lambda config: costs[config][2])


_COOPERATIVE = {64: (1, 256), 128: (2, 256), 192: (3, 192), 256: (2, 128)}
"""rows of a tile -> compute warpgroups that share them, and the most columns for which they have the registers"""
_PINGPONG = {64: (2, 256), 128: (2, 192)}
"""the same of a warpgroup's own tile"""
_CUTS: tuple[tuple[int | str | None, int], ...] = (
    (None, 1), ("stream", 1), *(("cluster", ctas) for ctas in (2, 4, 8)), *((parts, 1) for parts in (2, 3, 4, 6, 8, 12, 16)))
"""`split` and `cluster`"""


def _count(size: int, block: int) -> int:
    """Return how many blocks cover a size."""
    return -(-size // block)


def space(m: int, n: int, k: int, sms: int = model.H200.sms, aligned: bool = True, most: int = 16) -> list[Config]:
    """Return the `most` configs that a rough count of cycles puts first for a product of these sizes, the best of them first.

    >>> [(config.tm, config.tn, config.split) for config in space(377, 13712, 8152, aligned=False, most=2)]
    [(192, 192, 'stream'), (192, 184, 'stream')]
    """
    counted = {config: _cycles(config, m, n, k, sms, aligned) for config in _fitting(m, n, k, sms)}
    ordered = sorted(counted, key=lambda config: (counted[config], config.tm, config.tn, str(config.split)))
    return list(itertools.islice((config for config in ordered if config.depth >= 3), most))


def _fitting(m: int, n: int, k: int, sms: int) -> Iterator[Config]:
    """Yield configs whose tiles divide the output's columns evenly, cut in the ways that may fill the SMs."""
    for skinny in (False, True)[:1 + (m < n)]:
        rows, columns = (n, m) if skinny else (m, n)
        for schedule, shapes in (("cooperative", _COOPERATIVE), ("pingpong", _PINGPONG)):
            for tm, (wgs, widest) in shapes.items():
                for across in range(_count(columns, widest), _count(columns, 16) + 1):
                    tn = _count(_count(columns, across), 16) * 16
                    if _count(columns, tn) != across or tn < (16 if tm == 64 else 48):
                        continue
                    tk = 128 if tn <= 32 and schedule == "cooperative" else 64
                    tiles, steps = _count(rows, tm) * across, _count(k, tk)
                    for split, cluster in _CUTS if schedule == "cooperative" else _CUTS[:1]:
                        parts = split if isinstance(split, int) else cluster
                        useful = split is None or (
                            tiles % sms and sms <= 4 * tiles <= 32 * sms if split == "stream" else
                            tiles * parts <= 2 * sms and steps >= 3 * parts and (split != "cluster" or tn % (8 * parts) == 0))
                        if useful:
                            yield Config(tm, tn, tk, None, schedule, 1 if tn <= 64 else 2, max(1, 1536 // tm), "evict_first",
                                         cluster, wgs, skinny, split)


def _cycles(config: Config, m: int, n: int, k: int, sms: int, aligned: bool) -> float:
    """Return about how many cycles the SM with the most work needs, or the memory."""
    (rows, columns), turns = (n, m) if config.skinny and m < n else (m, n), config.schedule == "pingpong"
    tiles, steps = _count(rows, config.tm) * _count(columns, config.tn), _count(k, config.tk)
    step = config.tk * max(config.tm * config.tn / 2048, (config.tm + config.tn) * 2 / (40 if aligned else 24))
    stored, summed = config.tm * config.tn / (200 if turns else 60), config.tm * config.tn / 15
    if config.split == "stream":
        busy = tiles / sms * steps * step + 2 * summed + stored
    else:
        parts = config.split if isinstance(config.split, int) else config.cluster
        slots = sms // config.cluster * config.cluster
        busy = _count(tiles * parts, slots) * (_count(steps, parts) * step + stored + (0 if turns else 600))
        busy += 800 * (config.cluster > 1) + (summed * (parts - 1) if config.cluster == 1 else 0)
    return max(busy, 0.85e-3 * (m * k + n * k + m * n))  # two bytes of each, at 4 TB/s and 1.7 GHz
