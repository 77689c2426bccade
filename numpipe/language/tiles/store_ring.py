"""The store ring: register tiles are written to panels in shared memory, which TMA stores to global
memory.

A panel is 64 rows of at most 128 bytes of a tile, which each lane has in consecutive registers. For
an array whose first dimension is contiguous, it is 64 rows of at most 64 columns, transposed in
shared memory (stmatrix.trans). Each compute warpgroup has its own ring of `store_slots` staging
panels. A tile is stored in batches of at most that many panels::

    put    one lane     wait until the TMA stores of the previous batch have read the panels
           all lanes    named barrier; write the panels (stmatrix, swizzled); proxy fence;
                        named barrier
           one lane     one TMA store per panel, as one bulk group: they run while the warpgroup
                        continues

With ``CompilerParams(store_role=True)``, warps of the memory warpgroup issue the stores, one for
each compute warpgroup, so compute warpgroups never wait for a store to read its panels. A ring then
has at least two slots if there is room for two panels. Each slot has two mbarriers; batch s uses
slot ``s % S``, and the count of batches continues from tile to tile::

    compute    wait free[slot], phase - 1         store    wait filled[slot], phase
    warpgroup  write the panels; proxy fence      warp     TMA stores, one bulk group
               arrive filled[slot], each warp              wait until they have read the panels
                                                           arrive free[slot]

Writes to global memory are waited for only at the end of the kernel, so the stores of a tile
overlap the next tile's loads. By default, a ring has as many panels as a tile, or as many as the
load rings leave room for: three load slots and room for the whole tile were faster than four slots
and two panels at every size measured. `put` runs unchanged in the simulator and on the GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from ...arch.dimensions import Ints
from ...core.lanes import each_warp, one_lane
from ...core.machine import current
from ...core.op import formula, helper, op
from ...intrinsics import cp_async_bulk, fence, mbarrier
from ...plan.allocations import ARRIVALS_A_WARPGROUP
from ...plan.budget import PANEL_BYTES
from ...plan.context import Context, only_if
from ...plan.copy_plans import CopyPlan, cut
from ...plan.layout import Layout
from ...plan.plans import COUNTERS, RingPlan
from ...plan.profiling import mark_store
from ...plan.unit import STORE_RING, Unit
from .fence_order import meet
from .layouts import BLOCK
from .refs import GmemRef
from .shared_tiles import write
from .tile import Tile
from .tma import Copy


def panel_layout(columns: int, itemsize: int, inner: int = 1) -> Layout:
    """Return the layout in shared memory of a panel with this many columns; `inner` is the
    dimension that is contiguous there."""
    width: Any = (BLOCK, columns)[inner] * itemsize
    return Layout((BLOCK, columns), itemsize, inner, width, (columns, BLOCK)[inner] * width)


@dataclass(frozen=True)
class Batch:
    """Panels of a tile that are stored together.

    panels     (row, column in the tile, columns) of each panel
    inner      the dimension of the tile that is contiguous in the array
    axes       the dimensions of the array along which the tile's rows and columns lie
    reduction  how an element is combined with the array's; "" to store it
    """

    tile: Tile
    panels: tuple[tuple[int, int, int], ...]
    inner: int
    axes: Ints
    reduction: str


def batches(kind: Callable, ref: Any, tile: Any, axes: Ints, reduction: str) -> list:
    """Return a tile's batches, each created by `kind`.

    Panels that are adjacent in the array's memory are consecutive.
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


def panels_of(shape: Ints, itemsize: int, inner: int = 1) -> list[tuple[int, int, int]]:
    """Return (row, column, columns) of each panel of a tile of this shape.

    Panels of rows are 128 bytes wide; remaining columns are divided into panels of 64, 32 and 16
    bytes. Panels of columns have 64 columns, and the last one has the remaining ones.

    >>> panels_of((64, 88), 2)
    [(0, 0, 64), (0, 64, 16), (0, 80, 8)]
    """
    rows, columns = shape
    widths = [128 // itemsize >> part for part in range(4)] if inner else [64, columns % 64 or 64]
    across: list[tuple[int, int]] = []
    while (column := sum(width for _, width in across)) < columns:
        across.append((column, next(width for width in widths if width <= columns - column)))
    return [(row, *part) for row in range(0, rows, BLOCK) for part in across]


@formula
def staging(ref: GmemRef) -> Any:
    """Return the address of this warpgroup's staging panels."""
    return ref.np.part_of(ref.unit.staging)


@helper
def await_staging(ref):  # type: ignore[no-untyped-def]
    """Wait until the TMA stores of the previous batch have read their panels."""
    cp_async_bulk.wait_group_read(0)


@op
def write_panels(batch: Batch, address: Any) -> None:
    """Write the batch's registers to swizzled panels at this address (stmatrix for 16-bit
    types)."""
    for number, (row, column, width) in enumerate(batch.panels):
        panel = batch.tile.value[row : row + BLOCK, column : column + width]
        write(
            panel_layout(width, panel.dtype.itemsize, batch.inner),
            int(address) + number * PANEL_BYTES,
            panel,
            "staging panel",
        )


@op
def copy_out(ref: GmemRef, batch: Batch, start: tuple, address: Any) -> None:
    """Issue the TMA stores or reductions of a batch, whose panels are at this address, as one bulk
    group."""
    for plan in plans_of(ref, len(start), batch):
        Copy(plan, ref, start, int(address)).store()
    cp_async_bulk.commit_group()


def plans_of(ref: Any, rank: int, batch: Any) -> list[CopyPlan]:
    """Return the copies of a batch to an array of this rank; panels of the same width share a
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
    """Store a batch of panels of a tile that starts at `start` in the array."""
    only_if(ref, "stores_alone", put_alone, batch, start)
    only_if(ref, "hands_over", hand_over, batch)
    only_if(ref, "takes_over", take_over, batch, start)


@helper
def put_alone(ref, batch, start):  # type: ignore[no-untyped-def]
    mark_store(ref, "store begin")
    one_lane(await_staging, ref)
    # wait until the previous contents of the panels have been read
    meet()
    write_panels(batch, staging(ref))
    # executed by every writing lane, before the barrier: TMA reads through the async proxy
    fence.proxy_async()
    meet()
    one_lane(copy_out, ref, batch, start, staging(ref))
    mark_store(ref, "store end")


# ---- a ring whose stores another role issues -----------------------------------------------------
@formula
def next_batch(ref: GmemRef) -> Any:
    """Return the number of batches that this role has written, or stored, for its warpgroup."""
    return ref.np.state[counter_word(ref.unit)]


@formula
def count_batch(ref: GmemRef, number: Any) -> None:
    """Record that batch `number` has been written, or stored."""
    ref.np.state[counter_word(ref.unit)] = number + 1


def counter_word(unit: Unit) -> int:
    """Return the index of the state word that counts batches. It also stands for the phases of the
    ring's barriers, which are computed from the count."""
    return COUNTERS + int(unit.handover(STORE_RING)[0].index)


@formula
def phase_of(ref: GmemRef, batch: Any) -> Any:
    return batch // ref.unit.staging_slots


@formula
def filled(ref: GmemRef, batch: Any) -> Any:
    """Return the address of the mbarrier that completes when a batch's panels are written."""
    return barrier_of(ref.np, STORE_RING, 0, batch)


@formula
def free(ref: GmemRef, batch: Any) -> Any:
    """Return the address of the mbarrier that completes when a batch's panels may be written
    again."""
    return barrier_of(ref.np, STORE_RING, 1, batch)


def barrier_of(np_: Any, ring: str | RingPlan, number: int, step: Any) -> Any:
    """Return the address of the barrier of a step's slot: 0 is *filled*, 1 is *free*."""
    plan = np_.unit.handover(ring)[number]
    return np_.part_of(plan.memory) + step % plan.kind.count * 8


@formula
def slot_of(ref: GmemRef, batch: Any) -> Any:
    """Return the address of a batch's slot."""
    unit = ref.unit
    slot = batch % unit.staging_slots
    return ref.np.part_of(unit.staging) + slot * (unit.staged * PANEL_BYTES)


@op
def declare(ref: GmemRef) -> None:
    """Declare the ring's barriers to the simulator; the kernel's entry code initializes them."""
    declare_barriers(ref.np, STORE_RING, ref.np.number)


def declare_barriers(np_: Context, ring: str | RingPlan, owner: int) -> None:
    for name, of in zip(("filled", "free"), np_.unit.handover(ring), strict=True):
        for slot in range(of.kind.count):
            current().mbar_init_at_entry(
                of.memory.at(owner) + 8 * slot, of.arrivals, f"{name} {of.name_of(owner, slot)}"
            )


@op
def show() -> None:
    """Make this warp's writes visible to TMA, and to the lane that arrives for the warp."""
    current().fence_proxy_async()


@helper
def hand_over(ref, batch):  # type: ignore[no-untyped-def]
    """Write a batch's panels for another role to store."""
    declare(ref)
    number = next_batch(ref)
    mark_store(ref, "store begin")
    # wait until the slot's previous contents have been read
    mbarrier.wait(free(ref, number), phase_of(ref, number) - 1, number)
    write_panels(batch, slot_of(ref, number))
    show()
    each_warp(mbarrier.arrive, filled(ref, number))
    mark_store(ref, "store end")
    count_batch(ref, number)


@helper
def take_over(ref, batch, start):  # type: ignore[no-untyped-def]
    """Store a batch that a compute warpgroup has written, to the array from `start` on."""
    declare(ref)
    number = next_batch(ref)
    mbarrier.wait(filled(ref, number), phase_of(ref, number), number)
    mark_store(ref, "store begin")
    copy_out(ref, batch, start, slot_of(ref, number))
    cp_async_bulk.wait_group_read(0)
    mark_store(ref, "store end")
    mbarrier.arrive_count(free(ref, number), ARRIVALS_A_WARPGROUP)
    count_batch(ref, number)


@op
def drain_stores(np_: Context) -> None:
    """Wait for all TMA stores of this lane before the kernel ends, because shared memory, and the
    order of memory accesses, end with the CTA."""
    if np_.unit.stores:
        current().bulk_wait(0, read=False)
