"""About how many cycles a matrix product takes, in each of the ways to cut it: thousands of them,
in about a millisecond.

`ways` lists them once, as arrays with an element for each: tiles, how these are cut along K, the
clusters that load together. `cycles` adds up, for all at once, what the CTA with the most work
does: it fills its ring, and for each step multiplies, or waits for what is slowest of its tensor
cores, of its port to the L2, of the L2, and of the memory; then it exchanges partial sums, and
stores. The constants are fitted, by least squares of the logarithm, to the measurements that
`learned` learns from.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..arch.targets import DEFAULT
from ..plan.budget import HEADER, PANEL_BYTES
from ..plan.layout import ATOM

__all__ = ["LINE", "SECTOR", "SMS", "Product", "Ways", "cycles", "ways", "work"]

SMS = 132
"""of an H100 or H200"""
AT_ONCE = np.array((0, 132, 132, 117, 120, 110, 102, 105, 120))
"""CTAs that run at once in clusters of 1…8 on the 132 SMs of an H200
(cuOccupancyMaxActiveClusters): a cluster lies in one GPC"""
SECTOR, LINE = 32, 128
"""bytes of the L2: what it reads at once, and keeps together"""
Floats = npt.NDArray[np.float64]
Sizes = int | npt.NDArray[np.int64]
Flags = bool | npt.NDArray[np.bool_]


class Ways(NamedTuple):
    """Ways to cut a product, an element for each; the fields are those of `configs.Config`."""

    tm: Floats
    tn: Floats
    tk: Floats
    wgs: Floats
    turns: Floats
    """1 for ping-pong"""
    stream: Floats
    """1 where the steps of all tiles are shared out evenly"""
    along: Floats
    """CTAs of a cluster along K"""
    parts: Floats
    """parts of a tile, of CTAs that hand them over in global memory"""
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
"""(whether ping-pong, rows of a tile) -> compute warpgroups, and the most columns for which they
have the registers"""
_LOADS = ((1, 1), (2, 1), (1, 2), (4, 1), (1, 4), (2, 2), (4, 2), (2, 4))
"""CTAs of a cluster along M and N that load together"""
_TOGETHER = (*((along, 1) for along in range(2, 9)), (2, 2), (3, 2), (4, 2), (2, 4))
"""CTAs of a cluster along K, and along N"""
_PARTS = (2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32)
_LEAST_SLOTS = 3
_LARGE = 128 * 128
"""elements of a tile from which stores are worth their panels"""
_MOST_BYTES = 182 << 10
"""of a ring in steps of 64 whose tiles have 64 rows, and 64 columns or more: with more in flight
all wait longer for the L2 than they gain (an H200)"""


def _slots(tm: int, tn: int, tk: int, panels: int, wgs: int, turns: int, along: int) -> int:
    """Return how many steps of 16-bit operands fit into shared memory, beside staging panels and
    partial sums."""
    sums = 4 * tm * (tn - tn // along) * (wgs if turns else 1)
    step = sum(-(-side * tk * 2 // ATOM) * ATOM for side in (tm, tn))
    most = _MOST_BYTES if tm == tk == 64 and tn >= 64 else DEFAULT.smem_bytes
    return min(DEFAULT.smem_bytes - HEADER - wgs * panels * PANEL_BYTES - sums, most) // step


def _cuts(turns: int) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield (stream, along, parts, cluster, across)."""
    yield from ((0, 1, 1, *load) for load in _LOADS)
    if not turns:
        yield from ((1, 1, 1, *load) for load in _LOADS[:3])
        yield from ((0, along, 1, 1, across) for along, across in _TOGETHER)
        yield from ((0, 1, parts, *load) for parts in _PARTS for load in _LOADS[:6])


def _staged(
    tm: int, tn: int, tk: int, wgs: int, turns: int, along: int, plain: bool
) -> Iterator[tuple[int, int]]:
    """Yield (staging panels, slots) of a tile. Large ones that are not cut along K may also have
    panels for half of a warpgroup's tile, and cooperative ones for all of it: at any K some
    products are faster with these than with the slots they cost."""
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
def ways() -> Ways:
    """Return all ways of which at least three steps fit into shared memory."""
    rows = []
    for (turns, tm), (wgs, widest) in _SHAPES.items():
        for tn in range(8 if tm == 64 else 48, widest + 1, 8):
            for tk in (
                (64,) if turns or tm > 64 or tn > 64 else (64, 128) if tn > 32 else (64, 128, 256)
            ):
                for stream, along, parts, cluster, across in _cuts(turns):
                    if tn % (8 * cluster * along):
                        continue
                    for panels, slots in _staged(
                        tm, tn, tk, wgs, turns, along, plain=not stream and along * parts == 1
                    ):
                        rows.append(
                            (
                                tm,
                                tn,
                                tk,
                                wgs,
                                turns,
                                stream,
                                along,
                                parts,
                                cluster,
                                across,
                                slots,
                                panels,
                            )
                        )
    return Ways(*np.array(rows, np.float64).T)


class _Constants(NamedTuple):
    """Cycles, and bytes a cycle, fitted to measurements on an H200."""

    port: float = 250.0
    l2: float = 90.0
    unaligned: float = 1.86
    unaligned_port: float = 1.32
    least_columns: float = 27.0
    alone: float = 1.25
    products: float = 0.943
    latency: float = 316.0
    step: float = 75.6
    meeting: float = 11.2
    norm: float = 1.59
    fill: float = 1330.0
    store: float = 100.0
    store_element: float = 0.106
    store_piece: float = 26.6
    store_turned: float = 0.399
    turn: float = 0.396
    exchange: float = 225.0
    exchange_element: float = 0.156
    hand: float = 1650.0
    hand_element: float = 0.204
    stream: float = 2060.0
    along: float = 75.0
    cluster: float = 478.0
    memory: float = 2700.0
    written: float = 2.31
    held: float = 80.0
    mix: float = 10.0
    launch: float = 1980.0


_FITTED = _Constants()


class Product(NamedTuple):
    """A product, or several: `rows` are those that the tiles' rows lie along, those of the
    transpose where it is `turned`.

    `aligned`: the operands' rows begin at multiples of so many bytes, a power of two up to 128; of
    less than 32, a `SECTOR`, each row of a block costs the L2 a sector more. Fields are numbers, or
    arrays with an element for each way.
    """

    rows: Sizes
    columns: Sizes
    k: Sizes
    turned: Flags
    aligned: Sizes
    batches: int = 1
    sms: int = SMS


class Work(NamedTuple):
    """What a way to cut makes of a product: `tiles`, `steps` of a tile, `units` of work for a CTA,
    CTAs at once (`slots`), at most (`active`), and the rows and columns of a tile that lie inside
    the output, on average (`high`, `wide`)."""

    tiles: Floats
    steps: Floats
    units: Floats
    slots: Floats
    active: Floats
    high: Floats
    wide: Floats


def work(of: Ways, product: Product) -> Work:
    """Return the work of a product that is cut in these ways."""
    down = _cover(product.rows, of.tm * of.cluster) * of.cluster
    beside = _cover(product.columns, of.tn * of.across) * of.across
    tiles = product.batches * down * beside
    steps = _cover(product.k, of.tk)
    size = of.cluster * of.across * of.along
    slots = AT_ONCE[size.astype(int)] * product.sms // SMS // size * size
    units = tiles * of.along * of.parts
    active = np.minimum(np.where(of.stream > 0, tiles * steps, units), slots)
    high, wide = np.minimum(of.tm, product.rows / down), np.minimum(of.tn, product.columns / beside)
    return Work(tiles, steps, units, slots, active, high, wide)


def cycles(of: Ways, product: Product, by: _Constants = _FITTED) -> Floats:
    """Return about how many cycles a product takes, cut in each of these ways."""
    tiles, steps, units, slots, active, high, wide = work(of, product)
    rows, columns, k, turned, aligned, batches, sms = product
    size, elements, streams = of.cluster * of.across * of.along, of.tm * of.tn, of.stream > 0
    parts = np.minimum(of.along * of.parts, np.maximum(steps, 1))
    once = 2.0 * batches * k * (rows + columns)  # bytes of the operands
    # a step, with so many CTAs at work
    depth, even = of.tk * 2, np.asarray(aligned) >= SECTOR
    products = (
        of.tk
        / 16
        * of.tm
        / 64
        * np.maximum(of.tn / 2, by.least_columns)
        * by.products
        * np.where(of.wgs > 1, 1, by.alone)
    )
    port = (high + wide) * depth * np.where(even, 1, by.unaligned_port) / by.port
    l2 = (
        (high / of.across + wide / of.cluster)
        * depth
        * np.where(even, 1, by.unaligned)
        / sms
        / by.l2
    )
    missed = (
        np.minimum(1, once / (tiles * steps * depth * (high + wide)))
        * depth
        * (high + wide)
        / by.memory
    )
    alone = products**by.norm + port**by.norm + (by.latency / (of.slots - 1)) ** by.norm
    constant = by.step + by.meeting * (of.cluster * of.across > 1)

    def step(ctas: Floats) -> Floats:
        return (alone + (l2**by.norm + missed**by.norm) * ctas**by.norm) ** (1 / by.norm) + constant

    # behind the steps of a tile
    pieces = np.where(
        turned,
        _cover(of.tn, 64),
        of.tn // 64 + of.tn % 64 // 32 + of.tn % 32 // 16 + of.tn % 16 // 8,
    )
    stored = (
        by.store
        + by.store_element * elements / of.wgs
        + by.store_piece * pieces
        + by.store_turned * elements / 4 * turned
    )
    hidden = np.where(of.turns > 0, stored * by.turn, stored)
    full, rest = units // slots, units % slots
    exchanged = np.where(
        of.along > 1, by.exchange + by.exchange_element * elements * (of.along - 1) / of.along, 0
    )
    handed = np.where(of.parts > 1, by.hand + by.hand_element * elements * (parts - 1), 0)
    own = _cover(steps, parts)
    whole = (
        full * own * step(slots)
        + (rest > 0) * own * step(rest)
        + _cover(units, slots) * (hidden + exchanged + handed)
    )
    whole += stored - hidden
    share = tiles * steps / np.maximum(active, 1)
    # other parts of a tile that its owner adds
    met = np.ceil(steps / np.maximum(share, 1e-9)).clip(1, 32)
    shared = share * step(active) + by.stream + by.hand + met * by.hand_element * elements
    shared += hidden * np.maximum(1, share // np.maximum(1, steps))
    busy = (
        by.fill
        + np.where(streams, shared, whole)
        + np.where(size > 1, by.cluster, 0)
        + np.where(of.along > 1, by.along, 0)
    )
    # memory: of operands that the L2 does not hold, each wave of tiles reads its rows and columns
    # again
    together = np.minimum(rows, 1536)
    waves = np.maximum(1, tiles / np.maximum(active, 1))
    again = (
        2
        * k
        * np.where(
            streams, tiles * (high + wide), waves * (together + active * high * wide / together)
        )
    )
    read = once + np.clip(once / by.held / 1e6 - 0.5, 0, 1) * np.maximum(0, again - once)
    memory = (read + by.written * 2 * batches * rows * columns) / by.memory + by.fill
    return (busy**by.mix + memory**by.mix) ** (1 / by.mix) + by.launch


def _cover(size: Floats | Sizes, block: Floats | int) -> Floats:
    """Return how many blocks cover a size."""
    return np.ceil(np.asarray(size, np.float64) / block)
