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

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ...arch.target import SECTOR
from .gpu import Gpu
from .ways import Floats, Ways

__all__ = ["Product", "cycles", "work"]

Sizes = int | npt.NDArray[np.int64]
Flags = bool | npt.NDArray[np.bool_]


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


def work(of: Ways, product: Product, gpu: Gpu) -> Work:
    """Return the work of a product that is cut in these ways."""
    down = _cover(product.rows, of.tm * of.cluster) * of.cluster
    beside = _cover(product.columns, of.tn * of.across) * of.across
    tiles = product.batches * down * beside
    steps = _cover(product.k, of.tk)
    size = of.cluster * of.across * of.along
    slots = gpu.at_once[size.astype(int) - 1] // size * size
    units = tiles * of.along * of.parts
    active = np.minimum(np.where(of.stream > 0, tiles * steps, units), slots)
    high, wide = np.minimum(of.tm, product.rows / down), np.minimum(of.tn, product.columns / beside)
    return Work(tiles, steps, units, slots, active, high, wide)


def cycles(of: Ways, product: Product, gpu: Gpu) -> Floats:
    """Return about how many cycles a product takes, cut in each of these ways."""
    tiles, steps, units, slots, active, high, wide = work(of, product, gpu)
    rows, columns, k, turned, aligned, batches = product
    by = gpu.constants
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
        / gpu.sms
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
