"""About how many cycles a matrix product takes, in each of the ways to cut it: thousands of them, in about a millisecond.

`ways` lists them once, as arrays with an element for each: tiles, how these are cut along K, the clusters that load together.
`cycles` adds up, for all at once, what the CTA with the most work does: it fills its ring, and for each step multiplies, or waits
for what is slowest of its tensor cores, of its own port to the L2, of the L2, and of the memory's latency; then it exchanges partial
sums and stores. The constants are fitted to measured times (`examples/benchmarks/random_products.py --fit`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..plan.budget import HEADER, PANEL_BYTES
from ..arch.targets import DEFAULT
from ..plan.layout import ATOM

__all__ = ["SMS", "Ways", "cycles", "ways"]

SMS = 132
"""of an H100 or H200"""
Floats = npt.NDArray[np.float64]
Sizes = int | npt.NDArray[np.int64]


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


_SHAPES = {(0, 64): (1, 256), (0, 128): (2, 256), (0, 192): (3, 192), (0, 256): (2, 160), (1, 64): (2, 256), (1, 128): (2, 192)}
"""(whether ping-pong, rows of a tile) -> compute warpgroups, and the most columns for which they have the registers"""
_LOADS = ((1, 1), (2, 1), (1, 2), (4, 1), (1, 4), (2, 2), (4, 2), (2, 4))
"""CTAs of a cluster along M and N that load together"""
_PARTS = (2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32)
_LEAST_SLOTS = 3


def _slots(tm: int, tn: int, tk: int, panels: int, wgs: int, turns: int, along: int) -> int:
    """Return how many steps of 16-bit operands fit into shared memory, beside staging panels and partial sums."""
    sums = 4 * tm * (tn - tn // along) * (wgs if turns else 1)
    step = sum(-(-side * tk * 2 // ATOM) * ATOM for side in (tm, tn))
    return (DEFAULT.smem_bytes - HEADER - wgs * panels * PANEL_BYTES - sums) // step


def _cuts(turns: int) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield (stream, along, parts, cluster, across)."""
    yield from ((0, 1, 1, *load) for load in _LOADS)
    if not turns:
        yield from ((1, 1, 1, *load) for load in _LOADS[:3])
        yield from ((0, along, 1, 1, across) for along, across in ((2, 1), (4, 1), (8, 1), (2, 2), (4, 2), (2, 4)))
        yield from ((0, 1, parts, *load) for parts in _PARTS for load in _LOADS[:3])


@functools.cache
def ways() -> Ways:
    """Return all ways of which at least three steps fit into shared memory."""
    rows = []
    for (turns, tm), (wgs, widest) in _SHAPES.items():
        for tn in range(8 if tm == 64 else 48, widest + 1, 8):
            for tk in (64, 128)[:1 + (tm == 64 and tn <= 64 and not turns)]:
                for stream, along, parts, cluster, across in _cuts(turns):
                    if tn % (8 * cluster * along):
                        continue
                    panels = 1 if tn <= 64 else 2
                    slots = _slots(tm, tn, tk, panels, wgs, turns, along)
                    if slots < 6 and (more := _slots(tm, tn, tk, 1, wgs, turns, along)) > slots:
                        panels, slots = 1, more
                    if slots >= _LEAST_SLOTS:
                        rows.append((tm, tn, tk, wgs, turns, stream, along, parts, cluster, across, slots, panels))
    return Ways(*np.array(rows, np.float64).T)


class _Constants(NamedTuple):
    """Cycles, and bytes a cycle of an SM, fitted to measurements on an H200."""

    port: float = 1.943e+19
    l2: float = 3469.0
    unaligned: float = 40.57
    least_columns: float = 1.459
    fill: float = 168.7
    store: float = 5.339e-11
    store_element: float = 0.09153
    exchange: float = 3.989e-12
    exchange_element: float = 0.07076
    hand: float = 2218.0
    hand_element: float = 0.4037
    turn: float = 6.398e-15
    latency: float = 254.7
    memory: float = 3.695e+16
    launch: float = 2532.0
    stream: float = 1386.0
    along: float = 3.061e-12
    cluster: float = 517.8
    products: float = 0.9332
    step: float = 303.9
    norm: float = 0.8748


_FITTED = _Constants()


def cycles(of: Ways, rows: Sizes, columns: Sizes, k: Sizes, sms: int, aligned: bool | npt.NDArray[np.bool_], batches: int = 1,
           by: _Constants = _FITTED) -> Floats:
    """Return about how many cycles products of these sizes take, cut in each way; `rows`: those that the tiles' rows lie along."""
    down, beside = _cover(rows, of.tm * of.cluster) * of.cluster, _cover(columns, of.tn * of.across) * of.across
    tiles, steps, size, elements = batches * down * beside, _cover(k, of.tk), of.cluster * of.across * of.along, of.tm * of.tn
    slots = np.where(size >= 4, sms * 10 // 11, sms) // size * size  # CTAs at once: GPCs hold few clusters of 4 and 8
    parts = np.minimum(of.along * of.parts, np.maximum(steps, 1))
    units, streams = tiles * of.along * of.parts, of.stream > 0
    active = np.minimum(np.where(streams, tiles * steps, units), slots)
    high, wide, excess = np.minimum(of.tm, rows / down), np.minimum(of.tn, columns / beside), np.where(aligned, 1, by.unaligned)
    # a step
    products = of.tk / 16 * of.tm / 64 * np.maximum(of.tn / 2, by.least_columns) * by.products
    port = (high + wide) * of.tk * 2 / by.port * (1 + excess) / 2
    l2 = (high / of.across + wide / of.cluster) * of.tk * 2 * excess * active / sms / by.l2
    slowest = (products**by.norm + port**by.norm + l2**by.norm + (by.latency / (of.slots - 1))**by.norm)**(1 / by.norm)
    step = slowest + by.step * (1 - of.turns / 2)
    # behind the steps of a tile
    stored = by.store + by.store_element * elements / np.where(of.wgs > 1, 1, 0.6)
    hidden = np.where(of.turns > 0, stored * by.turn, stored)
    rounds = _cover(units, slots)
    exchanged = np.where(of.along > 1, by.exchange + by.exchange_element * elements * (of.along - 1) / of.along, 0)
    handed = np.where(of.parts > 1, by.hand + by.hand_element * elements * (parts - 1), 0)
    whole = rounds * (_cover(steps, parts) * step + hidden + exchanged + handed) + stored - hidden
    share = tiles * steps / np.maximum(active, 1)
    met = np.ceil(steps / np.maximum(share, 1e-9)).clip(1, 32)  # other parts of a tile that its owner adds
    shared = share * step + by.stream + by.hand + met * by.hand_element * elements + hidden * np.maximum(1, share // np.maximum(1, steps))
    busy = by.fill + np.where(streams, shared, whole) + np.where(size > 1, by.cluster, 0) + np.where(of.along > 1, by.along, 0)
    memory = 2 * batches * (rows * k + columns * k + rows * columns) / by.memory + 0.7 * by.fill
    return (busy**4 + memory**4)**0.25 + by.launch  # type: ignore[no-any-return]


def _cover(size: Floats | int, block: Floats) -> Floats:
    """Return how many blocks cover a size."""
    return np.ceil(size / block)
