"""Partial sums that the CTAs of a cluster exchange through shared memory: each adds up, and keeps,
a share of the columns.

The CTAs along an axis of the cluster have parts of one tile's steps, and so sums of the whole tile
each. CTA number p of n keeps share p of its columns, and sends the others to the CTAs whose shares
they are, straight from its registers::

    tile of 128 columns, 2 CTAs:

             CTA 0: steps 0 … k / 2 - 1         CTA 1: steps k / 2 … k - 1
    send     its columns 64 … 127 to CTA 1      its columns 0 … 63 to CTA 0
    add      columns 0 … 63, own + of CTA 1     columns 64 … 127, own + of CTA 0

There is no owner, as `splits` has one: so the way between two SMs is used in both directions, and
all CTAs store.

Warpgroup w of a CTA exchanges with warpgroup w of the others. It has a buffer for what they send, a
region each, and two mbarriers, as a slot of a ring has: *ready* ends a phase with the bytes of all
regions, *consumed* when the warpgroups of all CTAs have read theirs::

    expect          announce the bytes on its own ready barrier (lane 0 of each warp a quarter)
    await consumed  all others have read what was sent to them the last time
    send            st.async to the buffers of the others, on their ready barriers
    await ready     what they have sent has come
    add             it, in the order of the places behind its own
    arrive          on the consumed barriers of all: the buffer may be written again

No CTA waits for one that is not there: those of a cluster run at the same time, and go through the
same tiles. A warpgroup that comes first sends, and waits, while the memory role loads the next
tile. The sum of an element is made by one CTA, in the same order each time: the same bits.

The buffer is written by st.async, an ordinary store that completes on an mbarrier, and read by
ordinary loads: no proxy fence. (A bulk copy would take a second buffer, a fence and a barrier of
the warpgroup before it.) The barriers say no scope, as the ring's do (`multicast`). A CTA stays
until all have read what it sent last (`leaving`). The buffer is an allocation as `scratch` makes
them, and no slot of the ring: when the last product has ended, the next tile's blocks may already
land there.

PTX ISA, "st.async"; "mbarrier: Tracking asynchronous operations"; "Cluster of Cooperative Thread
Arrays".
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...arch.dtypes import FLOAT32
from ...arch.register_layouts import LANES
from ...core.arith import sub
from ...core.lanes import each_warp
from ...core.machine import current
from ...core.op import helper, op
from ...diagnostics.errors import SpecError
from ...intrinsics import mbarrier
from ...plan.allocations import SMEM, Barrier, BarrierPlan, ClusterBarrier, SmemPlan
from ...plan.cluster_ranks import place_of, rank_of, shifted
from ...plan.context import Context
from ...plan.layout import ATOM
from ...plan.unit import Unit
from ..memory import phases
from ..memory.scratch import BarrierRef
from ..tiles.layouts import ACCUMULATOR, GROUP, Form, places, record
from ..tiles.tile import Tile

WHAT = "partial sums"


@dataclass(frozen=True)
class SumsPlan:
    """An exchange of tiles of this shape between the `size` CTAs along a dimension of the cluster.

    `consumed` has the cluster, and its `peers` are the shifts to those that a CTA exchanges with:
    the i-th lies i places along.
    """

    shape: tuple[int, int]
    along: int
    size: int
    buffer: SmemPlan
    ready: BarrierPlan
    consumed: BarrierPlan

    @property
    def share(self) -> Form:
        """The tile that a CTA keeps."""
        return Form((self.shape[0], self.shape[1] // self.size), FLOAT32)

    @property
    def region(self) -> int:
        """Bytes of a share, which one other CTA sends."""
        return 4 * math.prod(self.share.shape)

    @property
    def quarter(self) -> int:
        """Bytes that a warp announces: those that it will read."""
        return (self.size - 1) * self.region // 4


def check(unit: Unit, axis: str, form: Any, got: str) -> Form:
    """Return the form of the share that a CTA keeps of a sum of tiles; SpecError for a tile that
    cannot be shared."""
    what = f"numpipe.combine(acc, part, axis={axis!r})"
    if not isinstance(form, Form) or form.layout != ACCUMULATOR or form.dtype != FLOAT32:
        raise SpecError(
            f"{what}: acc is a float32 register tile (rows, columns), got "
            f"{form if isinstance(form, Form) else got}: combine before astype"
        )
    rows, columns = form.shape
    size = unit.sizes[axis]
    if columns % (GROUP * size):
        raise SpecError(
            f"{what}: {size} CTAs along {axis!r} keep a share each of a tile's columns, a "
            f"multiple of 8, and this one has {columns}: make them a multiple of {8 * size}, or "
            "the cluster smaller"
        )
    return Form((rows, columns // size), FLOAT32)


def plan(unit: Unit, axis: str, shape: tuple[int, ...], site: str) -> SumsPlan:
    """Return an exchange, with shared memory and barriers for each compute warpgroup."""
    along, size = unit.cluster_axes.index(axis), unit.sizes[axis]
    atoms = 4 * shape[0] * shape[1] // size // ATOM
    kind = SMEM((size - 1, atoms, 8, 32), np.float32), Barrier(), ClusterBarrier(axis)
    buffer, ready, consumed = unit.plan_scratch(
        site, kind, False, f"{WHAT} of CTAs along {axis!r}"
    ).tree
    return SumsPlan((shape[0], shape[1]), along, size, buffer, ready, consumed)


class Sums:
    """An exchange of one warpgroup on the simulated SM."""

    def __init__(self, np_: Context, plan: SumsPlan) -> None:
        self.plan, self.own, self.quarter = plan, np_.unit.number(current().warpgroup), plan.quarter
        self.ready, self.consumed = (
            BarrierRef(np_, of, self.own, of.kind.shape, 0) for of in (plan.ready, plan.consumed)
        )
        for ref, name in ((self.ready, "ready"), (self.consumed, "consumed")):
            current().mbar_init_at_entry(
                ref.address, ref.plan.arrivals, f"{name} {ref.plan.name_of(self.own, 0)}"
            )

    def chunks(self, region: int) -> np.ndarray:
        """Return the addresses of the 16-byte chunks of a region, a row for each warp: float4 i of
        lane l is at 16 (128 i + l)."""
        lanes = np.arange(self.plan.region // 16).reshape(-1, 4, 32).swapaxes(0, 1).reshape(4, -1)
        found: np.ndarray = (
            self.plan.buffer.memory.at(self.own) + region * self.plan.region + 16 * lanes
        )
        return found


@functools.lru_cache(maxsize=64)
def _elements(shape: tuple[int, int]) -> np.ndarray:
    """Return the number of an element of a tile, in row order, by warp, chunk and word."""
    down, right = (
        np.array(part).reshape(-1, 4) for part in zip(*places(shape, ACCUMULATOR), strict=True)
    )
    row, column = (
        own.reshape(4, 1, 32, 1) for own in record(shape, ACCUMULATOR).own(np.arange(LANES))
    )
    found: np.ndarray = (row + down[None, :, None]) * shape[1] + column + right[None, :, None]
    return found.reshape(4, -1, 4)


# ---- the operation
@op(context=True, site=True)
def reduce_scatter(np_: Context, site: str, acc: Tile, axis: str) -> Tile:
    """``numpipe.combine(acc, part, axis=axis)`` as the AST pass writes it."""
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
    """Return the tile plus what the others sent."""
    plan, total = sums.plan, np.array(tile.value).reshape(-1)
    for region in range(plan.size - 1):
        with np.errstate(all="ignore"):  # floats overflow to inf, as on the GPU
            total[_elements(plan.share.shape)] += (
                current().smem_read(sums.chunks(region), WHAT).view(np.float32)
            )
    return Tile(total.reshape(plan.share.shape), plan.share)
