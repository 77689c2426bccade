"""Partial sums exchanged through shared memory by the CTAs of a cluster: each CTA adds up and keeps
a share of the columns.

The CTAs along an axis of the cluster each compute some of the steps of one tile, so each holds a
partial sum of the whole tile. CTA p of n keeps share p of the columns and sends the other shares to
their CTAs, directly from registers::

    tile of 128 columns, 2 CTAs:

             CTA 0: steps 0 … k / 2 - 1         CTA 1: steps k / 2 … k - 1
    send     its columns 64 … 127 to CTA 1      its columns 0 … 63 to CTA 0
    add      columns 0 … 63, own + of CTA 1     columns 64 … 127, own + of CTA 0

Unlike in `split_k`, no CTA owns the tile: the connection between two SMs is used in both
directions, and all CTAs store.

Warpgroup w of a CTA exchanges with warpgroup w of the other CTAs. It has a receive buffer, with a
region for each sender, and two mbarriers, like a slot of a ring: a phase of *ready* ends when the
bytes of all regions have arrived, a phase of *consumed* when the warpgroups of all CTAs have read
their regions::

    expect          announce the bytes on its own ready barrier (lane 0 of each warp a quarter)
    await consumed  all others have read what was sent to them the last time
    send            st.async to the buffers of the others, on their ready barriers
    await ready     the data of the others has arrived
    add             the regions, starting with the next CTA's
    arrive          on the consumed barriers of all: the buffer may be written again

The CTAs of a cluster run at the same time and loop over the same tiles, so every CTA that is waited
for exists. A warpgroup that arrives first sends and waits, while the memory role loads the next
tile. Each element is summed by one CTA, always in the same order, so the result is bitwise
reproducible.

The buffer is written by st.async, an ordinary store that completes on an mbarrier, and is read by
ordinary loads, so no proxy fence is needed. (A bulk copy would need a second buffer, a fence, and a
barrier of the warpgroup before it.) The barriers specify no scope, like the ring's. A CTA does not
exit until all others have read what it sent last (`cluster_exit`). The buffer is allocated like
`scratch`, and is not a slot of the ring: when the last product has ended, blocks of the next tile
may already be landing in the ring.

PTX ISA, "st.async"; "mbarrier: Tracking asynchronous operations"; "Cluster of Cooperative Thread
Arrays".
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...arch.dimensions import Ints
from ...arch.dtypes import FLOAT32
from ...arch.register_layouts import LANES
from ...core.arith import sub
from ...core.lanes import each_warp
from ...core.machine import current
from ...core.op import context_op, helper, op
from ...diagnostics.errors import SpecError
from ...intrinsics import mbarrier
from ...plan.allocations import SMEM, Barrier, BarrierPlan, ClusterBarrier, SmemPlan
from ...plan.cluster_ranks import place_of, rank_of, shifted
from ...plan.context import Context
from ...plan.layout import ATOM
from ...plan.unit import Unit
from ..memory import phases
from ..memory.scratch import own_barriers
from ..tiles.layouts import ACCUMULATOR, GROUP, Form, places, record
from ..tiles.tile import Tile

WHAT = "partial sums"


@dataclass(frozen=True)
class SumsPlan:
    """An exchange of tiles of one shape between the `size` CTAs along a dimension of the cluster.

    `consumed` belongs to the cluster. Its `peers` are the rank shifts to the CTAs that a CTA
    exchanges with: the i-th is i places along the dimension.
    """

    shape: tuple[int, int]
    along: int
    size: int
    buffer: SmemPlan
    ready: BarrierPlan
    consumed: BarrierPlan

    @property
    def share(self) -> Form:
        """The part of the whole sum that each CTA keeps, as a tile."""
        return Form((self.shape[0], self.shape[1] // self.size), FLOAT32)

    @property
    def region(self) -> int:
        """Bytes of one share, which one other CTA sends."""
        return 4 * math.prod(self.share.shape)

    @property
    def quarter(self) -> int:
        """Bytes that each warp announces: a quarter of the bytes that the warpgroup receives."""
        return (self.size - 1) * self.region // 4


def check(unit: Unit, axis: str, form: Any, got: str) -> Form:
    """Return the form of the share of a tile that each CTA keeps. Raises SpecError for a tile that
    cannot be divided."""
    what = f"numpipe.combine(acc, part, axis={axis!r})"
    if not isinstance(form, Form) or form.layout != ACCUMULATOR or form.dtype != FLOAT32:
        raise SpecError(
            f"{what}: acc must be a float32 register tile (rows, columns), got "
            f"{form if isinstance(form, Form) else got}; fix: combine before astype"
        )
    rows, columns = form.shape
    size = unit.sizes[axis]
    if columns % (GROUP * size):
        raise SpecError(
            f"{what}: {size} CTAs along {axis!r} each keep a share of a tile's columns, a "
            f"multiple of 8, but this tile has {columns}; fix: make them a multiple of "
            f"{8 * size}, or use a smaller cluster"
        )
    return Form((rows, columns // size), FLOAT32)


def plan(unit: Unit, axis: str, shape: Ints, site: str) -> SumsPlan:
    """Plan an exchange: allocate shared memory and barriers for each compute warpgroup."""
    along, size = unit.cluster_axes.index(axis), unit.sizes[axis]
    atoms = 4 * shape[0] * shape[1] // size // ATOM
    kind = SMEM((size - 1, atoms, 8, 32), np.float32), Barrier(), ClusterBarrier(axis)
    buffer, ready, consumed = unit.plan_scratch(
        site, kind, False, f"{WHAT} of CTAs along {axis!r}"
    ).tree
    return SumsPlan((shape[0], shape[1]), along, size, buffer, ready, consumed)


class Sums:
    """One warpgroup's exchange on the simulated SM."""

    def __init__(self, np_: Context, plan: SumsPlan) -> None:
        self.plan, self.own, self.quarter = plan, np_.number, plan.quarter
        self.ready, self.consumed = (own_barriers(np_, of) for of in (plan.ready, plan.consumed))
        for ref, name in ((self.ready, "ready"), (self.consumed, "consumed")):
            current().mbar_init_at_entry(
                ref.address, ref.plan.arrivals, f"{name} {ref.plan.name_of(self.own, 0)}"
            )

    def chunks(self, region: int) -> np.ndarray:
        """Return the addresses of a region's 16-byte chunks, one row per warp: float4 i of lane l
        is at 16 (128 i + l)."""
        lanes = np.arange(self.plan.region // 16).reshape(-1, 4, 32).swapaxes(0, 1).reshape(4, -1)
        found: np.ndarray = (
            self.plan.buffer.memory.at(self.own) + region * self.plan.region + 16 * lanes
        )
        return found


@functools.lru_cache(maxsize=64)
def _elements(shape: tuple[int, int]) -> np.ndarray:
    """Return the row-major number of each element of a tile, indexed by warp, chunk and word."""
    down, right = (
        np.array(part).reshape(-1, 4) for part in zip(*places(shape, ACCUMULATOR), strict=True)
    )
    row, column = (
        own.reshape(4, 1, 32, 1) for own in record(shape, ACCUMULATOR).own(np.arange(LANES))
    )
    found: np.ndarray = (row + down[None, :, None]) * shape[1] + column + right[None, :, None]
    return found.reshape(4, -1, 4)


# ---- the operation
@context_op(site=True)
def reduce_scatter(np_: Context, site: str, acc: Tile, axis: str) -> Tile:
    """Implement ``numpipe.combine(acc, part, axis=axis)``; the AST pass inserts the call."""
    form = check(np_.unit, axis, acc.form if isinstance(acc, Tile) else None, type(acc).__name__)
    if acc.inert:
        return Tile(None, form)
    if np_.unit.sizes[axis] == 1:
        return acc
    whole: Tile = scattered(Sums(np_, plan(np_.unit, axis, acc.shape, site)), acc)
    return whole


@helper
def scattered(sums, tile):  # type: ignore[no-untyped-def]
    """Return this CTA's share of the columns of the sum of all CTAs' tiles."""
    each_warp(mbarrier.arrive_expect_tx, sums.ready.address, sums.quarter)
    mbarrier.wait(sums.consumed.address, sub(phases.next_phase(sums.consumed), 1), -1)
    phases.passed(sums.consumed)
    own = send(sums, tile)
    phases.wait(sums.ready)
    own = add(sums, own)
    phases.arrive_at_peers(sums.consumed)
    return own


# ---- the steps of an exchange
@op
def send(sums: Sums, tile: Tile) -> Tile:
    """Send each other CTA its share of the columns; return this CTA's own share."""
    plan, machine = sums.plan, current()
    here, shares = place_of(machine.cta, plan.consumed.cluster), np.hsplit(tile.value, plan.size)
    for region, shift in enumerate(plan.consumed.peers[1:]):
        to = shifted(here, shift, plan.consumed.cluster)
        sent = shares[to[plan.along]].reshape(-1)[_elements(plan.share.shape)]
        machine.smem_send(
            sums.chunks(region),
            sent.view(np.uint8),
            rank_of(to, plan.consumed.cluster),
            sums.ready.address,
            WHAT,
        )
    return Tile(np.array(shares[here[plan.along]]), plan.share)


@op
def add(sums: Sums, tile: Tile) -> Tile:
    """Return the tile plus the shares that the other CTAs sent."""
    plan, total = sums.plan, np.array(tile.value).reshape(-1)
    for region in range(plan.size - 1):
        with np.errstate(all="ignore"):  # floats overflow to inf, as on the GPU
            total[_elements(plan.share.shape)] += (
                current().smem_read(sums.chunks(region), WHAT).view(np.float32)
            )
    return Tile(total.reshape(plan.share.shape), plan.share)
