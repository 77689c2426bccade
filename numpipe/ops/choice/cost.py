"""About how many cycles a matrix product takes, with each of thousands of configs: a count in a
fraction of a millisecond.

`cycles` adds up what the CTA with the most work does. For each step it multiplies, or waits for the
slowest of its tensor cores, the latency of its ring, the L2 and the memory; then it exchanges
partial sums, and stores. The constants (`gpu.Constants`) are fitted to measurements by `fit`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ...arch.target import SECTOR
from .gpu import Gpu
from .ways import Floats, Ways

__all__ = ["Product", "Work", "cycles", "work"]


class Product(NamedTuple):
    """A product: numbers, or float32 arrays with an element for each way. `rows` are those that the
    rows of a tile lie along: those of the transpose where it is `turned`.

    `aligned`: rows of the operands begin at multiples of so many bytes, a power of two up to 128.
    If it is less than 32, a `SECTOR`, each row of a block costs the L2 another sector.
    """

    rows: Any
    columns: Any
    k: Any
    turned: Any
    aligned: Any
    batches: int = 1


class Work(NamedTuple):
    """What a way to cut makes of a product."""

    tiles: Floats
    steps: Floats
    """of a tile"""
    units: Floats
    """of work that a CTA takes: tiles, or parts of tiles"""
    own: Floats
    """steps of a unit"""
    ctas: Floats
    """that run at the same time, at most"""
    high: Floats
    """rows of a tile that lie inside the output, on average"""
    wide: Floats
    """columns of a tile that lie inside the output, on average"""


def work(of: Ways, product: Product, gpu: Gpu) -> Work:
    """Return the work of a product that is cut in these ways."""
    down = np.ceil(product.rows / (of.tm * of.cluster)) * of.cluster
    beside = np.ceil(product.columns / (of.tn * of.across)) * of.across
    tiles = product.batches * down * beside
    steps = np.ceil(product.k / of.tk)
    parts = of.along * of.parts
    size = of.cluster * of.across * of.along
    at_once = gpu.at_once.astype(np.float32)[size.astype(np.int8) - 1]
    return Work(
        tiles,
        steps,
        tiles * parts,
        np.ceil(steps / np.minimum(parts, steps)),
        np.floor(at_once / size) * size,
        np.minimum(of.tm, product.rows / down),
        np.minimum(of.tn, product.columns / beside),
    )


def cycles(of: Ways, product: Product, gpu: Gpu) -> Floats:
    """Return about how many cycles a product takes, cut in each of these ways."""
    tiles, steps, units, own, ctas, high, wide = work(of, product, gpu)
    rows, columns, k, _, aligned, batches = product
    by = gpu.constants
    elements, depth = of.tm * of.tn, of.tk * 2
    operands = 2.0 * batches * k * (rows + columns)  # bytes
    # a step, while so many CTAs are at work
    multiplied = of.tk * of.tm * np.maximum(of.tn, by.least_columns) * by.multiply
    waited = by.latency / (of.slots - 1)
    sectors = np.where(np.asarray(aligned) < SECTOR, np.float32(by.unaligned), np.float32(1))
    l2 = (high / of.across + wide / of.cluster) * depth * sectors * (by.l2 / gpu.sms)
    missed = np.minimum(depth * (high + wide), operands / (tiles * steps)) * by.memory
    alone, shared = multiplied * multiplied + waited * waited, l2 * l2 + missed * missed
    constant = by.step + by.meeting * _some(of.cluster * of.across - 1)

    def step(at_work: Floats) -> Floats:
        return np.sqrt(alone + shared * at_work * at_work) + constant  # type: ignore[no-any-return]

    # after the steps of a tile: ping-pong hides all stores but the last
    stored = by.store * elements / of.wgs
    hidden = stored * of.turns
    others = np.minimum(of.parts, steps) - 1
    handed = by.hand * _some(of.parts - 1) + by.hand_element * elements * others
    exchanged = by.exchange * elements * (1 - 1 / of.along)
    full = np.floor(units / ctas)
    rest = units - full * ctas
    whole = own * (full * step(ctas) + _some(rest) * step(rest))
    whole += (full + _some(rest)) * (stored - hidden + exchanged + handed) + hidden
    # where the steps of all tiles are shared out, others have parts of a CTA's tile
    active = np.minimum(tiles * steps, ctas)
    share = tiles * steps / active
    met = np.clip(np.ceil(steps / share), 1, 32)
    even = share * step(active) + by.hand + met * by.hand_element * elements
    even += stored * np.maximum(1, np.floor(share / steps))
    busy = whole + of.stream * (even - whole)
    busy += by.cluster * _some(of.cluster * of.across * of.along - 1)
    memory = (operands + 2.0 * batches * rows * columns) * by.memory
    return np.maximum(busy, memory) + by.launch  # type: ignore[no-any-return]


def _some(count: Floats) -> Floats:
    """Return 1 where a count is not 0."""
    return np.minimum(count, 1)
