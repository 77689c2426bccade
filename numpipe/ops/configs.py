"""How a matrix product is cut and scheduled: `Config`, and which one a product's sizes ask for.

There are some 14,000 (`costs.ways`, and each for the transpose too). `choose` takes the one that is
predicted to be the fastest: the cycles of all are counted, and the count of the best corrected by
what was learned from measurements (`learned`), in some milliseconds. `space` are the first ones of
that order, for `numpipe.autotune` to measure.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from ..plan.budget import fit_slots
from . import costs, learned

__all__ = ["Config", "choose", "space", "ways_of"]

FUSED = 128 * 128
"""elements of a warpgroup's tile at most, for an epilogue's arrays and functions to have registers
beside it"""
DEEP = 6
"""slots from which a ring is as fast with one of them kept"""
LOOKED_AT = 600
"""configs of the fewest counted cycles, whose count is corrected"""
TURNED = 1.01
"""how many times as fast the transpose must be predicted to be, to be computed: predictions that
differ by less do not tell which is faster"""


@dataclass(frozen=True)
class Config:
    """How the product is cut and scheduled. Sizes are in elements.

    tm, tn    tile of the output: a CTA's (cooperative), or a compute warpgroup's (ping-pong)
    tk        depth of a step
    slots     steps in shared memory at once; None: as many as fit beside the staging panels
    schedule  "cooperative" or "pingpong"
    panels    staging panels (64 x 64 elements, 8 KB) of a compute warpgroup for tiles on their way
              out, 1…8; None: up to a tile's
    group     rows of tiles that share blocks of b in L2: 1000 to 2000 rows of the output; where all
              tiles run at once, fewer
    policy    what L2 does with the output's lines; "evict_first" leaves room for inputs
    cluster   CTAs of a cluster, along M: each loads a share of the blocks of b for all of them;
              with split="cluster" along K
    across    CTAs of a cluster along N: each loads a share of the blocks of a
    wgs       compute warpgroups
    turned    the transpose of the output is computed: the tile's rows lie along N, its columns
              along M
    split     parts of the steps of a tile; "stream": those of all tiles are shared out evenly;
              "cluster": a part for each CTA of it
    once      blocks of a and b are the first that make room in the L2: there is one row, or one
              column, of tiles
    dynamic   CTAs take tiles from a counter, so that quicker ones compute more
    delay     steps a slot is kept after use, so that products of as many stay in flight; None: as
              the schedule has it
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
        """Columns of a tile that a CTA stores."""
        return self.tn // (self.cluster if self.split == "cluster" else 1)

    @property
    def strip(self) -> int:
        """Columns of a tile that an epilogue computes at a time."""
        return math.gcd(self.share, 64)

    @property
    def fuses(self) -> bool:
        """Whether accumulators leave registers for an epilogue's arrays and functions; with more
        than 128 a lane it is slow."""
        return self.tm // (self.wgs if self.schedule == "cooperative" else 1) * self.tn <= FUSED

    @property
    def depth(self) -> int:
        """The slots of the ring, for 16-bit types."""
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


@functools.lru_cache(maxsize=4096)
def choose(
    m: int,
    n: int,
    k: int,
    sms: int = costs.SMS,
    batches: int = 1,
    fused: bool = False,
    aligned: int | None = None,
    fixed: bool = False,
    crosswise: tuple[bool, bool] = (False, False),
) -> Config:
    """Return the config that is predicted to be the fastest for a product of these sizes.

    fused      whether there is an epilogue beside alpha, for which not every config has the
               registers
    aligned    the operands' rows begin at multiples of so many bytes, a power of two up to 128;
               None: those of contiguous ones that are summed along
    fixed      only configs that sum a row's products in one order, wherever in the output it lies
    crosswise  whether a, and b, are contiguous along M, and N, rather than along K
    """
    if 0 in (m, n, k, batches):
        return Config()
    aligned = math.gcd(2 * k, costs.LINE) if aligned is None else aligned
    return next(_ordered(m, n, k, sms, batches, fused, aligned, fixed, crosswise))


def space(
    m: int,
    n: int,
    k: int,
    sms: int = costs.SMS,
    aligned: int = costs.LINE,
    most: int = 16,
    turned: bool = True,
    widths: int = 1,
) -> list[Config]:
    """Return the `most` configs that are predicted to be the fastest, the best of them first.

    turned  whether those that compute the transpose may be among them: `matmul` passes their
            kernels the operands' transposes
    widths  how many may differ in little but `tn`

    >>> first, second = space(377, 13712, 8152, aligned=16, most=2)
    >>> first == choose(377, 13712, 8152, aligned=16)
    True
    """
    found: list[Config] = []
    kinds: Counter[tuple[object, ...]] = Counter()
    for config in _ordered(m, n, k, sms, aligned=aligned):
        kind = (
            config.tm,
            config.tk,
            config.schedule,
            config.turned,
            config.split,
            config.cluster,
            config.across,
        )
        if config.turned > turned or kinds[kind] == widths:
            continue
        kinds[kind] += 1
        found.append(config)
        if len(found) == most:
            break
    return found


def _ordered(
    m: int,
    n: int,
    k: int,
    sms: int,
    batches: int = 1,
    fused: bool = False,
    aligned: int = costs.LINE,
    fixed: bool = False,
    crosswise: tuple[bool, bool] = (False, False),
) -> Iterator[Config]:
    """Yield configs, the fastest first."""
    ways, both = costs.ways(), (False, True)
    sides = {False: (m, n), True: (n, m)}
    possible = np.ones(len(ways.tm), bool)
    if fused:  # and their arrays are read in strips of at least 64 bytes
        possible &= (ways.tm / np.where(ways.turns > 0, 1, ways.wgs) * ways.tn <= FUSED) & (
            ways.tn % 32 == 0
        )
    if fixed:
        possible &= (ways.stream == 0) & (ways.parts * ways.along == 1)
    counted = []
    for turned in both:
        # rows of an operand's block, which are cut into powers of two
        wide = (ways.tn % 32 == 0) | (not crosswise[not turned])
        cycles = costs.cycles(ways, costs.Product(*sides[turned], k, turned, aligned, batches, sms))
        counted.append(np.where(possible & wide & (batches == 1 or not turned), cycles, np.inf))
    every = np.concatenate(counted)
    best = np.argpartition(every, LOOKED_AT)[:LOOKED_AT]
    best = best[np.isfinite(every[best])]
    turned, number = best >= len(possible), best % len(possible)
    few = costs.Ways(*(field[number] for field in ways))
    product = costs.Product(
        np.where(turned, n, m), np.where(turned, m, n), k, turned, aligned, batches, sms
    )
    for at in np.argsort(
        learned.corrected(few, product) * np.where(turned, TURNED, 1), kind="stable"
    ):
        yield _config(
            costs.Ways(*(field[at] for field in few)), bool(turned[at]), *sides[bool(turned[at])]
        )


def ways_of(several: Iterable[Config]) -> costs.Ways:
    """Return configs as ways to cut, in their order; a config's `turned` is of the product
    (`costs.Product`)."""
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
    return costs.Ways(*np.array(rows, np.float64).T)


def _config(way: costs.Ways, turned: bool, rows: int, columns: int) -> Config:
    """Return one of the ways as a config, for an output, or its transpose where it is `turned`, of
    so many rows and columns."""
    tm, tn, tk, wgs, turns, stream, along, parts, cluster, across, slots, panels = map(int, way)
    split = "stream" if stream else "cluster" if along > 1 else parts if parts > 1 else None
    size = max(along, cluster) * across
    delay = delay_of(bool(turns), tk, wgs, slots)
    once = rows <= tm * cluster or columns <= tn * across
    return Config(
        tm,
        tn,
        tk,
        slots,
        ("cooperative", "pingpong")[turns],
        panels,
        _strip(tm, tn, size, cluster, rows, columns),
        "evict_first",
        max(along, cluster),
        across,
        wgs,
        turned,
        split,
        once,
        delay=delay,
    )


def delay_of(turns: bool, tk: int, wgs: int, slots: int) -> int | None:
    """Return the `delay` of a config: a step's products stay in flight where there is a slot to
    spare for them.

    On an H200 it is worth 10 to 25 % where one warpgroup multiplies what the L2 has, and costs 9 %
    of the memory's speed with the few slots of steps of 256.
    """
    return 1 if not turns and tk < 256 and (wgs == 1 or slots >= DEEP) else None


def _strip(tm: int, tn: int, size: int, cluster: int, rows: int, columns: int) -> int:
    """Return the `group` of a product whose tiles lie in clusters of `size` CTAs, `cluster` of them
    along M.

    A cluster along M takes a block of b for all its CTAs at once, so b costs less, and a strip may
    be higher: in the mean of eleven products on an H200 that is worth some tenths of a percent.
    Where all tiles run at once, the SMs of a GPC, some 16, share what they load at a time on its
    way from the L2: so they should have a square of the output. CTAs fill one GPC after another;
    clusters are dealt to the eight GPCs in turn (an H200).
    """
    if -(-rows // tm) * -(-columns // tn) > costs.SMS:
        return max(1, (1536 if cluster == 1 else 2048) // (tm * cluster)) * cluster
    best = math.sqrt(8 * rows / columns if size > 1 else 16 * tn / tm)
    return int(2 ** min(3, max(0, round(math.log2(best))))) * cluster
