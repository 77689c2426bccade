"""Configs of a matrix product: the class `Config`, and `configs`, which lists all that exist."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ...arch.dimensions import round_up
from ...arch.targets import DEFAULT
from ...plan.budget import HEADER, PANEL_BYTES, fit_slots
from ...plan.layout import ATOM

Floats = npt.NDArray[np.float32]
FUSED = 128 * 128
"""most elements of a warpgroup's tile that leave registers for an epilogue's arrays and
functions"""
DEEP = 6
"""number of slots from which keeping one of them back costs a ring no speed"""


@dataclass(frozen=True)
class Config:
    """How a product is tiled and scheduled. Sizes are in elements.

    tm, tn    tile of the output: of a CTA (cooperative) or of a compute warpgroup (ping-pong)
    tk        depth of a step
    slots     steps in shared memory at once; None: as many as fit next to the staging panels
    schedule  "cooperative" or "pingpong"
    panels    staging panels (64 x 64 elements, 8 KB) of a compute warpgroup for tiles being stored,
              1…8; None: up to as many as a tile has
    group     rows of tiles that share blocks of b in L2: 1000 to 2000 rows of the output, or fewer
              if all tiles run at once
    policy    L2 eviction policy of the output; "evict_first" leaves room for inputs
    cluster   CTAs of a cluster along M, each of which loads a share of the blocks of b for all of
              them; with split="cluster", CTAs along K
    across    CTAs of a cluster along N, each of which loads a share of the blocks of a
    wgs       compute warpgroups
    turned    compute the transpose of the output: the tile's rows lie along N, its columns along M
    split     number of parts of a tile's steps; "stream" divides the steps of all tiles evenly;
              "cluster" gives each CTA of a cluster a part
    once      let L2 evict blocks of a and b first, because there is only one row, or one column, of
              tiles
    dynamic   CTAs take tiles from a counter, so that faster ones compute more
    delay     steps that a slot is kept after use, so that as many products stay in flight; None:
              the schedule's default
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
    once: bool = False
    dynamic: bool = False
    delay: int | None = None

    @property
    def share(self) -> int:
        """Columns of a tile that one CTA stores."""
        return self.tn // (self.cluster if self.split == "cluster" else 1)

    @property
    def strip(self) -> int:
        """Columns of a tile that the epilogue processes at a time."""
        return math.gcd(self.share, 64)

    @property
    def depth(self) -> int:
        """Number of slots of the ring, for 16-bit types."""
        sums = (
            4 * self.tm * (self.tn - self.share) * (self.wgs if self.schedule == "pingpong" else 1)
        )
        return self.slots or fit_slots(
            ((self.tm, self.tk), np.float16),
            ((self.tn, self.tk), np.float16),
            other_bytes=sums,
            store_slots=self.panels or 1,
            num_compute_wgs=self.wgs,
        )


class Ways(NamedTuple):
    """Configs as arrays with one element per config; the fields correspond to those of `Config`."""

    tm: Floats
    tn: Floats
    tk: Floats
    wgs: Floats
    turns: Floats
    """1 for ping-pong"""
    stream: Floats
    """1 if the steps of all tiles are divided evenly"""
    along: Floats
    """CTAs of a cluster along K"""
    parts: Floats
    """parts of a tile, computed by CTAs that combine them through global memory"""
    cluster: Floats
    across: Floats
    slots: Floats
    panels: Floats


_SHAPES = {
    (0, 64): (1, 256),
    (0, 128): (2, 256),
    (0, 192): (3, 192),
    (0, 256): (2, 160),
    (1, 64): (2, 256),
    (1, 128): (2, 192),
}
"""(whether ping-pong, rows of a tile) -> compute warpgroups, and the most columns that fit in their
registers"""
_LOADS = ((1, 1), (2, 1), (1, 2), (4, 1), (1, 4), (2, 2), (4, 2), (2, 4))
"""cluster sizes along (M, N) for CTAs that share loads"""
_TOGETHER = (*((along, 1) for along in range(2, 9)), (2, 2), (3, 2), (4, 2), (2, 4))
"""cluster sizes along (K, N)"""
_SHARED = ((1, 1), (2, 1), (1, 2), (1, 4), (2, 2))
"""cluster sizes along (M, N) for tiles that are cut into parts"""
_PARTS = (2, 3, 4, 5, 6, 8, 12, 16)
_LEAST_SLOTS = 3
_LARGE = 128 * 128
"""elements of a tile above which additional staging panels are worth their memory"""
_MOST_BYTES = 182 << 10
"""most bytes of a ring for tiles of 64 rows and at least 64 columns in steps of 64: with more in
flight, waits for L2 grow by more than the overlap gains (H200)"""


def _slots(tm: int, tn: int, tk: int, panels: int, wgs: int, turns: int, along: int) -> int:
    """Return how many steps of 16-bit operands fit in shared memory next to staging panels and
    partial sums."""
    sums = 4 * tm * (tn - tn // along) * (wgs if turns else 1)
    step = sum(round_up(side * tk * 2, ATOM) for side in (tm, tn))
    most = _MOST_BYTES if tm == tk == 64 and tn >= 64 else DEFAULT.smem_bytes
    return min(DEFAULT.smem_bytes - HEADER - wgs * panels * PANEL_BYTES - sums, most) // step


def _cuts(turns: int, tm: int) -> Iterator[tuple[int | str | None, int, int]]:
    """Yield the possible (split, cluster, across)."""
    yield from ((None, *load) for load in _LOADS)
    if not turns:
        yield from (("stream", *load) for load in _LOADS[:3])
        yield from (("cluster", *together) for together in _TOGETHER)
        if tm <= 128:
            yield from ((parts, *load) for parts in _PARTS for load in _SHARED)


def _staged(
    tm: int, tn: int, tk: int, wgs: int, turns: int, along: int, plain: bool
) -> Iterator[tuple[int, int]]:
    """Yield the possible (staging panels, slots) of a tile.

    Large tiles that are not cut along K may also have panels for half of a warpgroup's tile, and in
    the cooperative schedule for all of it: for some products, at any K, these are worth more than
    the slots they cost.
    """
    usual = 1 if tn <= 64 else 2
    slots = _slots(tm, tn, tk, usual, wgs, turns, along)
    if slots < 6 and (more := _slots(tm, tn, tk, 1, wgs, turns, along)) > slots:
        usual, slots = 1, more
    whole = tm // (1 if turns else wgs) // 64 * math.ceil(tn / 64)
    others = (
        {2, whole // 2, *(() if turns else (min(whole, 8),))}
        if plain and tm * tn >= _LARGE
        else set()
    )
    for panels in (usual, *sorted(others - {0, 1, usual})):
        slots = _slots(tm, tn, tk, panels, wgs, turns, along)
        if slots >= _LEAST_SLOTS:
            yield panels, slots


@functools.cache
def configs() -> tuple[Config, ...]:
    """Return all configs with room for at least three steps in shared memory, for an output that is
    not transposed."""
    found = []
    for (turns, tm), (wgs, widest) in _SHAPES.items():
        for tn in range(8 if tm == 64 else 48, widest + 1, 8):
            for tk in (
                (64,) if turns or tm > 64 or tn > 64 else (64, 128) if tn > 32 else (64, 128, 256)
            ):
                for split, cluster, across in _cuts(turns, tm):
                    if tn % (8 * cluster):
                        continue
                    along = cluster if split == "cluster" else 1
                    for panels, slots in _staged(tm, tn, tk, wgs, turns, along, plain=not split):
                        config = Config(
                            tm,
                            tn,
                            tk,
                            slots,
                            ("cooperative", "pingpong")[turns],
                            panels,
                            policy="evict_first",
                            cluster=cluster,
                            across=across,
                            wgs=wgs,
                            split=split,
                            delay=delay_of(bool(turns), tk, wgs, slots),
                        )
                        found.append(config)
    return tuple(found)


@functools.cache
def ways() -> Ways:
    """Return `configs` as arrays, one element per config."""
    return ways_of(configs())


def ways_of(several: Iterable[Config]) -> Ways:
    """Return configs as arrays, in their order, except `turned`, which belongs to the product
    (`cost.Product`)."""
    rows = []
    for config in several:
        along = config.cluster if config.split == "cluster" else 1
        rows.append(
            (
                config.tm,
                config.tn,
                config.tk,
                config.wgs,
                config.schedule == "pingpong",
                config.split == "stream",
                along,
                config.split if isinstance(config.split, int) else 1,
                config.cluster // along,
                config.across,
                config.depth,
                config.panels or 1,
            )
        )
    return Ways(*np.array(rows, np.float32).T)


def fitted(config: Config, turned: bool, rows: int, columns: int, sms: int) -> Config:
    """Return one of `configs` completed for an output of `rows` x `columns`, or for its transpose
    if `turned`."""
    above = 1 if config.split == "cluster" else config.cluster
    return replace(
        config,
        turned=turned,
        group=strip(config, above, rows, columns, sms),
        once=rows <= config.tm * above or columns <= config.tn * config.across,
    )


def delay_of(turns: bool, tk: int, wgs: int, slots: int) -> int | None:
    """Return the `delay` of a config: a step's products stay in flight if a slot can be spared.

    On an H200 this gains 10 to 25 % if a single warpgroup multiplies data that is in L2, and costs
    9 % of the memory bandwidth with the few slots that steps of 256 have.
    """
    return 1 if not turns and tk < 256 and (wgs == 1 or slots >= DEEP) else None


def strip(config: Config, above: int, rows: int, columns: int, sms: int) -> int:
    """Return the `group` of a product whose clusters have `above` CTAs along M.

    A cluster along M loads each block of b once for all its CTAs, so blocks of b cost less and a
    group may have more rows; averaged over eleven products on an H200 this gains a few tenths of a
    percent. If all tiles run at once, the SMs of a GPC, about 16, share what they load at the same
    time on its way from L2, so their tiles should form a square of the output. On an H200, CTAs
    fill one GPC after another, and clusters are dealt to the eight GPCs in turn.
    """
    if -(-rows // config.tm) * -(-columns // config.tn) > sms:
        return max(1, (1536 if above == 1 else 2048) // (config.tm * above)) * above
    clusters = config.cluster * config.across > 1
    best = math.sqrt(8 * rows / columns if clusters else 16 * config.tn / config.tm)
    return int(2 ** min(3, max(0, round(math.log2(best))))) * above
