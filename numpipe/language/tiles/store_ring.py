"""The store ring: register tiles to global memory, through panels in shared memory that TMA reads.

A panel has 64 rows of at most 128 bytes of a tile, which are a run of each lane's registers. Each compute warpgroup has a ring of
its own: `store_slots` staging panels. A tile is stored in batches of at most that many panels::

    put    one lane     wait until the TMA stores of the batch before have read the panels
           all          named barrier; write the panels (stmatrix, swizzled); proxy fence; named barrier
           one lane     one TMA store a panel, one bulk group: they run while the warpgroup goes on

Nothing waits for global memory until the kernel ends, so the stores of a tile overlap the next tile's loads. By default a ring has
as many panels as a tile, or as the load rings leave room for: three load slots and room for the whole tile beat four slots and two
panels at every size measured. Both executions run `put` as it stands.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from ...core.lanes import one_lane
from ...core.machine import current
from ...core.op import helper, op
from ...intrinsics import barrier, cp_async_bulk, fence, special
from ...plan.budget import PANEL_BYTES
from ...plan.context import Context, own_part
from ...plan.copies import CopyPlan, cut
from ...plan.layout import Layout, row_width
from ...plan.profiling import mark_store
from .refs import GmemRef
from .shared import write
from .tile import Tile
from .tma import Copy


def panel_layout(columns: int, itemsize: int) -> Layout:
    """Return the layout in shared memory of a panel of `columns`."""
    width: Any = columns * itemsize
    return Layout((64, columns), itemsize, 1, width, 64 * width)


@dataclass(frozen=True)
class Batch:
    """Panels of a tile that are stored together.

    places     (row, column) of each in the tile
    width      columns of a panel
    axes       dimensions of the array along which rows and columns of the tile lie
    reduction  how an element is combined with the array's; "" to store it
    """

    tile: Tile
    places: tuple[tuple[int, int], ...]
    width: int
    axes: tuple[int, ...]
    reduction: str


def batches(kind: Callable[..., Any], ref: Any, tile: Any, axes: tuple[int, ...], reduction: str) -> list[Any]:
    """Return a tile's batches, each made by `kind`; panels are the widest of 128, 64, 32 and 16 bytes that divides its rows."""
    itemsize, (rows, columns) = tile.dtype.itemsize, tile.shape
    width = row_width(columns * itemsize) // itemsize
    places = [(i, j) for i in range(0, rows, 64) for j in range(0, columns, width)]
    slots = ref.unit.plan_staging(len(places))
    return [kind(tile, tuple(places[k:k + slots]), width, axes, reduction) for k in range(0, len(places), slots)]


@op
def staging(ref: GmemRef, panel: int) -> Any:
    """Return the address of this warpgroup's staging panel number `panel`."""
    return own_part(ref.unit, ref.unit.staging) + panel * PANEL_BYTES


@op
def await_staging(ref: GmemRef) -> None:
    """Wait until the TMA stores of the last batch have read their panels."""
    current().bulk_wait(0, read=True)


@op
def write_panels(ref: GmemRef, batch: Batch) -> None:
    """Write the batch's registers to swizzled staging panels (stmatrix for 16-bit types)."""
    for number, (row, column) in enumerate(batch.places):
        panel = batch.tile.value[row:row + 64, column:column + batch.width]
        write(panel_layout(batch.width, panel.dtype.itemsize), staging(ref, number), panel, "staging panel")


@op
def copy_out(ref: GmemRef, batch: Batch, start: tuple[Any, ...]) -> None:
    """Issue the TMA stores, or reductions, of a batch, as one bulk group."""
    Copy(plan_of(ref, len(start), batch), ref, start, staging(ref, 0)).store()
    cp_async_bulk.commit_group()


def plan_of(ref: Any, rank: int, batch: Any) -> CopyPlan:
    """Return the copies of a batch to an array of this rank, a panel each."""
    panel = cut(ref.index, rank, False, batch.axes, panel_layout(batch.width, batch.tile.dtype.itemsize), written=True,
                policy=ref.unit.params.store_eviction_policy, reduction=batch.reduction)
    return replace(panel, places=tuple((number * PANEL_BYTES, *place) for number, place in enumerate(batch.places)))


@helper
def put(ref, batch, start):  # type: ignore[no-untyped-def]
    """Store a batch of panels; `start` is where the tile that the batch is a part of starts in the array."""
    mark_store(ref, "store begin")
    one_lane(await_staging, ref)
    barrier.sync(1 + special.warpgroup_index(), 128)  # nobody writes before the old panels have been read
    write_panels(ref, batch)
    fence.proxy_async()  # by every writer, before the barrier: TMA reads through the async proxy
    barrier.sync(1 + special.warpgroup_index(), 128)
    one_lane(copy_out, ref, batch, start)
    mark_store(ref, "store end")


@op
def drain_stores(np_: Context) -> None:
    """Wait, before the kernel ends, for all TMA stores of this lane (shared memory and order both end with the CTA)."""
    if np_.unit.stores:
        current().bulk_wait(0, read=False)
