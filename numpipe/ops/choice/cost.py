"""Estimate the cycles that a matrix product takes with each of thousands of configs, in a fraction
of a millisecond.

`cycles` counts what the CTA with the most work does. In each step it multiplies, or waits for the
slowest of its tensor cores, the latency of its ring, L2 and memory; then it exchanges partial sums
and stores. The constants (`gpu.Constants`) are fitted to measurements.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ...arch.target import SECTOR
from .gpu import Gpu
from .ways import Floats, Ways


class Product(NamedTuple):
    """A product, given as numbers, or as float32 arrays with one element per config. `rows` is the
    size along the rows of a tile: of the transpose if `turned`.

    `aligned` is the alignment of the operands' rows in bytes, a power of two up to 128. If it is
    less than 32, a `SECTOR`, each row of a block costs one more sector of L2.
    """

    rows: Any
    columns: Any
    k: Any
    turned: Any
    aligned: Any
    batches: int = 1


class Work(NamedTuple):
    """The work that each config makes of a product."""

    tiles: Floats
    steps: Floats
    """steps of a tile"""
    units: Floats
    """work items that CTAs take: tiles or parts of tiles"""
    own: Floats
    """steps of a work item"""
    ctas: Floats
    """most CTAs that run at the same time"""
    high: Floats
    """rows of a tile that lie inside the output, on average"""
    wide: Floats
    """columns of a tile that lie inside the output, on average"""


def work(of: Ways, product: Product, gpu: Gpu) -> Work:
    """Return the work of a product tiled in each of these ways."""
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
    """Return the estimated cycles of a product tiled in each of these ways."""
    tiles, steps, units, own, ctas, high, wide = work(of, product, gpu)
    rows, columns, k, _, aligned, batches = product
    by = gpu.constants
    elements, depth = of.tm * of.tn, of.tk * 2
    operands = 2.0 * batches * k * (rows + columns)  # bytes
    # a step while `at_work` CTAs are running
    multiplied = of.tk * of.tm * np.maximum(of.tn, by.least_columns) * by.multiply
    waited = by.latency / (of.slots - 1)
    sectors = np.where(np.asarray(aligned) < SECTOR, np.float32(by.unaligned), np.float32(1))
    l2 = (high / of.across + wide / of.cluster) * depth * sectors * (by.l2 / gpu.sms)
    missed = np.minimum(depth * (high + wide), operands / (tiles * steps)) * by.memory
    alone, shared = multiplied * multiplied + waited * waited, l2 * l2 + missed * missed
    constant = by.step + by.meeting * _some(of.cluster * of.across - 1)

    def step(at_work: Floats) -> Floats:
        return np.sqrt(alone + shared * at_work * at_work) + constant  # type: ignore[no-any-return]

    # after the steps of a tile: ping-pong hides all stores except the last
    stored = by.store * elements / of.wgs
    hidden = stored * of.turns
    others = np.minimum(of.parts, steps) - 1
    handed = by.hand * _some(of.parts - 1) + by.hand_element * elements * others
    exchanged = by.exchange * elements * (1 - 1 / of.along)
    full = np.floor(units / ctas)
    rest = units - full * ctas
    whole = own * (full * step(ctas) + _some(rest) * step(rest))
    whole += (full + _some(rest)) * (stored - hidden + exchanged + handed) + hidden
    # if the steps of all tiles are divided evenly, other CTAs have parts of a CTA's tile
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
    """Return 1 for counts other than 0."""
    return np.minimum(count, 1)
