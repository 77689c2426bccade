"""The store ring: register tiles to global memory, through panels in shared memory that TMA reads.

It is private to a compute warpgroup: `store_slots` staging panels of 64 rows x 128 bytes. A tile is stored in batches of so many
panels::

    put    one lane     wait until the TMA stores of the batch before have read the panels
           all          named barrier; write the panels (stmatrix, swizzled); proxy fence; named barrier
           one lane     one TMA store a panel, one bulk group: they run while the warpgroup goes on

Both executions run `put` as it stands.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ...core.lanes import one_lane
from ...core.machine import current
from ...core.op import helper, op
from ...intrinsics import barrier, cp_async_bulk, fence, special
from ...plan.budget import PANEL_BYTES
from ...plan.context import Context
from ...plan.copies import CopyPlan, cut
from ...plan.profiling import mark_store
from .panel import panel_layout
from .refs import GmemRef
from .shared import write
from .tma import Copy


@op
def staging(ref: GmemRef, panel: int) -> Any:
    """Address of this warpgroup's staging panel number `panel`."""
    unit = ref.unit
    return unit.staging_base + (unit.number(current().warpgroup) * unit.store_slots + panel) * PANEL_BYTES


@op
def await_staging(ref: GmemRef) -> None:
    """Wait until the TMA stores of the last batch have read their panels."""
    current().bulk_wait(0, read=True)


@op
def write_panels(ref: GmemRef, batch: Any) -> None:
    """The batch's registers -> swizzled staging panels (stmatrix for 16-bit types)."""
    for number, (panel, _, _) in enumerate(batch.panels()):
        layout = panel_layout(batch.width, panel.dtype.itemsize)
        write(layout, staging(ref, number), panel.value, "staging panel")


@op
def copy_out(ref: GmemRef, batch: Any, start: tuple[Any, ...]) -> None:
    """Issue the TMA stores, or reductions, of a batch, as one bulk group."""
    Copy(plan_of(ref, len(start), batch), ref, start, staging(ref, 0)).store()
    cp_async_bulk.commit_group()


def plan_of(ref: Any, rank: int, batch: Any) -> CopyPlan:
    """The copies of a batch to an array of this rank, a panel each: of values, and of their types."""
    itemsize = batch.tile.dtype.itemsize
    panel = cut(ref.index, rank, False, batch.axes, panel_layout(batch.width, itemsize), written=True,
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
    """Before the kernel ends: every TMA store of this lane has written (shared memory and order both end with the CTA)."""
    if np_.unit.stores:
        current().bulk_wait(0, read=False)
