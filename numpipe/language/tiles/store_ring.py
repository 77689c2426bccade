"""The store ring: register tiles to global memory, through panels in shared memory that TMA reads.

A panel has 64 rows of at most 128 bytes of a tile, which are a run of each lane's registers; to an
array whose first dimension is contiguous, at most 64 columns of 64 rows, which lie turned in shared
memory (stmatrix.trans). Each compute warpgroup has a ring of its own: `store_slots` staging panels.
A tile is stored in batches of at most that many panels::

    put    one lane     wait until the TMA stores of the batch before have read the panels
           all          named barrier; write the panels (stmatrix, swizzled); proxy fence;
                        named barrier
           one lane     one TMA store a panel, one bulk group: they run while the warpgroup goes on

Nothing waits for global memory until the kernel ends, so the stores of a tile overlap the next
tile's loads. By default a ring has as many panels as a tile, or as the load rings leave room for:
three load slots and room for the whole tile beat four slots and two panels at every size measured.
Both executions run `put` as it stands.
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
from ...plan.copy_plans import CopyPlan, cut
from ...plan.layout import Layout
from ...plan.profiling import mark_store
from .layouts import BLOCK
from .refs import GmemRef
from .shared_tiles import write
from .tile import Tile
from .tma import Copy


def panel_layout(columns: int, itemsize: int, inner: int = 1) -> Layout:
    """Return the layout in shared memory of a panel of `columns`; `inner`: the dimension of a tile
    that is contiguous there."""
    width: Any = (BLOCK, columns)[inner] * itemsize
    return Layout((BLOCK, columns), itemsize, inner, width, (columns, BLOCK)[inner] * width)


@dataclass(frozen=True)
class Batch:
    """Panels of a tile that are stored together.

    panels     (row, column in the tile, columns) of each
    inner      which dimension of the tile is contiguous in the array
    axes       dimensions of the array along which rows and columns of the tile lie
    reduction  how an element is combined with the array's; "" to store it
    """

    tile: Tile
    panels: tuple[tuple[int, int, int], ...]
    inner: int
    axes: tuple[int, ...]
    reduction: str


def batches(
    kind: Callable[..., Any], ref: Any, tile: Any, axes: tuple[int, ...], reduction: str
) -> list[Any]:
    """Return a tile's batches, each made by `kind`.

    Those that are neighbours in the array's memory follow each other.
    """
    inner = int(ref.arg.order == "row")
    panels = panels_of(tile.shape, tile.dtype.itemsize, inner)
    if not inner:
        panels.sort(key=lambda panel: panel[1])
    slots = ref.unit.plan_staging(len(panels))
    return [
        kind(tile, tuple(panels[k : k + slots]), inner, axes, reduction)
        for k in range(0, len(panels), slots)
    ]


def panels_of(shape: tuple[int, ...], itemsize: int, inner: int = 1) -> list[tuple[int, int, int]]:
    """Return (row, column, columns) of each panel of a tile of this shape.

    Panels of rows are 128 bytes wide, and behind these 64, 32 and 16 where fewer are left; panels
    of columns have 64 of them, and the last one what is left.

    >>> panels_of((64, 88), 2)
    [(0, 0, 64), (0, 64, 16), (0, 80, 8)]
    """
    rows, columns = shape
    widths = [128 // itemsize >> part for part in range(4)] if inner else [64, columns % 64 or 64]
    across: list[tuple[int, int]] = []
    while (column := sum(width for _, width in across)) < columns:
        across.append((column, next(width for width in widths if width <= columns - column)))
    return [(row, *part) for row in range(0, rows, BLOCK) for part in across]


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
    for number, (row, column, width) in enumerate(batch.panels):
        panel = batch.tile.value[row : row + BLOCK, column : column + width]
        write(
            panel_layout(width, panel.dtype.itemsize, batch.inner),
            staging(ref, number),
            panel,
            "staging panel",
        )


@op
def copy_out(ref: GmemRef, batch: Batch, start: tuple[Any, ...]) -> None:
    """Issue the TMA stores, or reductions, of a batch, as one bulk group."""
    for plan in plans_of(ref, len(start), batch):
        Copy(plan, ref, start, staging(ref, 0)).store()
    cp_async_bulk.commit_group()


def plans_of(ref: Any, rank: int, batch: Any) -> list[CopyPlan]:
    """Return the copies of a batch to an array of this rank: those of panels of one width are one
    plan."""
    places: dict[int, list[tuple[int, int, int]]] = {}
    for number, (row, column, width) in enumerate(batch.panels):
        places.setdefault(width, []).append((number * PANEL_BYTES, row, column))
    panels = {
        width: cut(
            ref.index,
            rank,
            not batch.inner,
            batch.axes,
            panel_layout(width, batch.tile.dtype.itemsize, batch.inner),
            written=True,
            policy=ref.unit.params.store_eviction_policy,
            reduction=batch.reduction,
        )
        for width in places
    }
    return [replace(panel, places=tuple(places[width])) for width, panel in panels.items()]


@helper
def put(ref, batch, start):  # type: ignore[no-untyped-def]
    """Store a batch of panels; `start` is where the tile that the batch is a part of starts in the
    array."""
    mark_store(ref, "store begin")
    one_lane(await_staging, ref)
    # nobody writes before the old panels have been read
    barrier.sync(1 + special.warpgroup_index(), 128)
    write_panels(ref, batch)
    fence.proxy_async()  # by every writer, before the barrier: TMA reads through the async proxy
    barrier.sync(1 + special.warpgroup_index(), 128)
    one_lane(copy_out, ref, batch, start)
    mark_store(ref, "store end")


@op
def drain_stores(np_: Context) -> None:
    """Wait, before the kernel ends, for all TMA stores of this lane (shared memory and order both
    end with the CTA)."""
    if np_.unit.stores:
        current().bulk_wait(0, read=False)
