"""The ring: the one place where the pipeline protocol is written.

A *load ring* is S slots of shared memory, two mbarriers a slot, and one int32 a warpgroup: the step counter. Step s uses
slot ``s % S``; it is that slot's phase number ``s // S``::

                 fill(s)                              await_ready(s) … release(s)
    memory   wait consumed[slot], phase - 1       compute   wait ready[slot], phase
    role     expect bytes, arrive ready[slot]     role      read the tiles
             TMA loads -> complete ready[slot]              arrive consumed[slot], each warp

    ready[slot]     1 arrival and stage_bytes bytes complete a phase: the tiles have landed
    consumed[slot]  4 arrivals a compute warpgroup complete a phase: the slot may be filled again

The counter runs on over tiles and pipelines: no ring is ever drained between tiles, and phase numbers tell a waiter which
use of the slot it means (the GPU waits for the number's parity, the simulator checks that the number is the one reached).

A *store ring* is private to a compute warpgroup: `store_slots` staging panels of 64 rows x 128 bytes. A tile is stored in
batches of so many panels: `put` waits until the TMA stores of the batch before have read the panels, writes them, fences,
and issues one TMA store a panel; they run while the warpgroup goes on. Both executions run the functions below as they
stand.
"""

from __future__ import annotations

from operator import index
from typing import Any

import numpy as np

from ._block import wrong_indices
from ._layout import swizzle_of
from ._machine import TensorMap, current
from ._op import helper, op
from ._unit import PANEL_BYTES, MapRequest, RingPlan, Unit
from .arith import quotient, remainder, successor
from .context import Context, counter, set_counter
from .fragment.panel import write
from .intrinsics import barrier, cp_async_bulk, fence, mbarrier, special, wgmma
from .lanes import each_warp, one_lane
from .refs import GmemRef, SmemTile


class Ring:
    """A load ring on the simulated SM: its plan, the arrays it loads and their index maps."""

    def __init__(self, np_: Context, plan: RingPlan, refs: tuple[GmemRef, ...], index_maps: tuple[Any, ...],
                 groups: int) -> None:
        self.np, self.plan, self.refs, self.index_maps, self.groups = np_, plan, refs, index_maps, groups
        machine = current()
        for address, count, name in np_.unit.barriers(plan):
            machine.mbar_init_at_entry(address, count, name)


# ---- what a ring is made of (the plan's constants; slots and phases from the step) -----------------------------
@op
def slot_of(ring: Ring, step: Any) -> Any:
    """Slot of a step: ``step % S``."""
    return step % ring.plan.slots


@op
def phase_of(ring: Ring, step: Any) -> Any:
    """Phase number of a step on its slot's barriers: ``step // S``."""
    return step // ring.plan.slots


@op
def ready(ring: Ring, slot: Any) -> Any:
    """Address of ready[slot]."""
    return ring.plan.ready + 8 * slot


@op
def consumed(ring: Ring, slot: Any) -> Any:
    """Address of consumed[slot]."""
    return ring.plan.consumed + 8 * slot


@op
def stage_bytes(ring: Ring) -> int:
    """Bytes that fill a slot: what ready[slot] expects."""
    return ring.plan.stage_bytes


@op
def delay_of(ring: Ring) -> int:
    """Steps a slot is kept after the step that used it."""
    return ring.plan.delay


@op
def steps_done(ring: Ring) -> Any:
    """The warpgroup's step counter."""
    return counter(ring.np, ring.plan.index)


@op
def set_steps_done(ring: Ring, steps: Any) -> None:
    """Store the step counter when a pipeline loop ends."""
    set_counter(ring.np, ring.plan.index, steps)


@op
def note(ring: Ring, event: str, step: Any) -> None:
    """Tell the simulator's trace and reports what is going on; nothing on the GPU."""
    plan = ring.plan
    current().note(event, ring=plan.name, slot=int(step) % plan.slots, step=int(step))


@op
def copy_in(ring: Ring, indices: Any, slot: Any) -> None:
    """Issue the TMA loads of one step: for each operand one copy a panel, from where its index map says."""
    plan, unit = ring.plan, ring.np.unit
    stage = plan.base + slot * plan.stage_stride
    for number, (ref, index_map, block) in enumerate(zip(ring.refs, ring.index_maps, plan.blocks, strict=True)):
        found, layout, inner = index_map(*indices), block.layout, block.contiguous
        try:
            if not isinstance(found, tuple):
                raise TypeError
            start = [index(part) * scale for part, scale in zip(found, block.scales, strict=True)]
        except (TypeError, ValueError):
            raise wrong_indices(index_map_of(unit, plan, number), block.rank, found) from None
        if block.elements:
            block.check_start(start[inner], index_map_of(unit, plan, number))
        tensor = tensor_map(ref, unit.load_map(plan, number))
        for panel in range(layout.panels):
            at = block.in_memory([*start[:inner], start[inner] + panel * layout.per_panel, *start[inner + 1:]])
            address = stage + plan.offsets[number] + panel * layout.panel_stride
            cp_async_bulk.load(address, tensor, at, ready(ring, slot))


def index_map_of(unit: Unit, plan: RingPlan, number: int) -> str:
    """How messages call the index map of an operand."""
    return (f"kernel {unit.kernel}, pipeline at {plan.name.rsplit(' @ ', 1)[1]}: in_specs[{number}] for "
            f"'{unit.arrays[plan.args[number]].name}': index_map")


def tensor_map(ref: GmemRef, request: MapRequest) -> TensorMap:
    """The simulator's tensor map of an array: dimensions in memory order, as the driver's encoder wants them."""
    cached = ref.tensor_maps.get(request)
    if cached is None:
        array = ref.array if ref.unit.arrays[ref.index].order == "row" else ref.array.T
        cached = TensorMap(array, request.box, request.swizzle, ref.name, request.fill, padded=True)
        ref.tensor_maps[request] = cached
        ref.unit.map_slot(request)
    return cached


@op
def tiles_of(ring: Ring, slot: Any) -> tuple[SmemTile, ...]:
    """The tiles in a slot, one per operand."""
    plan = ring.plan
    stage = plan.base + int(slot) * plan.stage_stride
    return tuple(SmemTile(stage + offset, layout, ref.array.dtype, ring.np.memory)
                 for offset, layout, ref in zip(plan.offsets, plan.layouts, ring.refs, strict=True))


@op
def unravel(step: Any, grid: tuple[Any, ...]) -> tuple[Any, ...]:
    """Grid indices of a linear step, last index fastest."""
    indices: list[Any] = []
    for size in reversed(grid[1:]):
        indices.append(remainder(step, size))
        step = quotient(step, size)
    return (np.int32(step), *reversed(indices))


@op
def drain_to_delay(ring: Ring) -> None:
    """Wait until only wgmmas of the last `delay` steps are in flight.

    Every wgmma is a group; `groups` is how many each step is sure to issue, so the newest ``delay * groups`` groups belong
    to the last `delay` steps.
    """
    current().wgmma_wait(pending_groups(ring.plan.delay, ring.groups))


def pending_groups(delay: int, groups: int) -> int:
    """Groups that may stay in flight; 7 is the most that wgmma.wait_group can leave."""
    return min(7, delay * groups)


# ---- load ring, memory role --------------------------------------------------------------------------------------
@helper
def fill(ring, indices, step):  # type: ignore[no-untyped-def]
    """Fill the slot of `step` as soon as its last readers have released it."""
    note(ring, "fill", step)
    slot = slot_of(ring, step)
    mbarrier.wait(consumed(ring, slot), phase_of(ring, step) - 1, step)
    mbarrier.arrive_expect_tx(ready(ring, slot), stage_bytes(ring))
    copy_in(ring, indices, slot)


@helper
def produce(ring, grid, steps, first):  # type: ignore[no-untyped-def]
    """The whole producer of an innermost pipeline loop."""
    k = np.int32(0)
    while k < steps:
        fill(ring, unravel(k, grid), first + k)
        k = successor(k)  # unrolled, the loop only costs instructions: it waits for slots
    set_steps_done(ring, first + steps)


# ---- load ring, compute role -------------------------------------------------------------------------------------
@helper
def await_ready(ring, step):  # type: ignore[no-untyped-def]
    """Wait until the tiles of `step` have landed."""
    note(ring, "wait", step)
    mbarrier.wait(ready(ring, slot_of(ring, step)), phase_of(ring, step), step)
    note(ring, "compute", step)


@helper
def release(ring, step):  # type: ignore[no-untyped-def]
    """Give the slot of `step` back: every warp for itself, because wgmma.wait_group is a wait per warp."""
    note(ring, "release", step)
    each_warp(mbarrier.arrive, consumed(ring, slot_of(ring, step)))


@helper
def advance(ring, k, steps, first):  # type: ignore[no-untyped-def]
    """Before step k of a loop: release what is drained, wait for the next tiles; False after the last step.

    A step's slot is released `delay` steps later, after a wait that leaves only the newer steps' wgmmas in flight.
    """
    delay = delay_of(ring)
    if k < steps:
        drain_to_delay(ring)
        if k > delay:
            release(ring, first + k - 1 - delay)
        await_ready(ring, first + k)
        return True
    set_steps_done(ring, first + steps)
    wgmma.wait_group(0)
    for back in range(delay, -1, -1):
        if k > back:
            release(ring, first + k - 1 - back)
    return False


# ---- store ring, compute role ------------------------------------------------------------------------------------
@op
def staging(ref: GmemRef, panel: int) -> Any:
    """Address of this warpgroup's staging panel number `panel`."""
    unit = ref.unit
    return unit.staging_base + (current().warpgroup * unit.store_slots + panel) * PANEL_BYTES


@op
def await_staging(ref: GmemRef) -> None:
    """Wait until the TMA stores of the last batch have read their panels."""
    current().bulk_wait(0, read=True)


@op
def write_panels(ref: GmemRef, batch: Any) -> None:
    """The batch's registers -> swizzled staging panels (stmatrix for 16-bit types)."""
    for number, (panel, _, _) in enumerate(batch.panels()):
        write(panel, staging(ref, number))


@op
def copy_out(ref: GmemRef, batch: Any, start: tuple[Any, ...]) -> None:
    """Issue the TMA stores of a batch, as one bulk group."""
    rows, columns = batch.axes
    for number, (panel, down, right) in enumerate(batch.panels()):
        tensor = tensor_map(ref, store_map(ref.index, len(start), batch.axes, panel.shape, panel.dtype.itemsize))
        at = [int(place) for place in start]
        at[rows] += down
        at[columns] += right
        cp_async_bulk.store(tensor, tuple(at), staging(ref, number))
    cp_async_bulk.commit_group()


def store_map(index: int, rank: int, axes: tuple[int, int], shape: tuple[int, int], itemsize: int) -> MapRequest:
    """The tensor map of a panel's store: its rows and columns lie along two dimensions of the array, `axes`."""
    box = [1] * rank
    box[axes[0]], box[axes[1]] = shape
    return MapRequest(index, tuple(box), swizzle_of(shape[1] * itemsize), written=True)


@helper
def put(ref, batch, start):  # type: ignore[no-untyped-def]
    """Store a batch of panels; `start` is where the tile that the batch is a part of starts in the array."""
    one_lane(await_staging, ref)
    barrier.sync(1 + special.warpgroup_index(), 128)  # nobody writes before the old panels have been read
    write_panels(ref, batch)
    fence.proxy_async()  # by every writer, before the barrier: TMA reads through the async proxy
    barrier.sync(1 + special.warpgroup_index(), 128)
    one_lane(copy_out, ref, batch, start)


@op
def drain_stores(np_: Context) -> None:
    """Before the kernel ends: every TMA store of this lane has written (shared memory and order both end with the CTA)."""
    if np_.unit.store_slots:
        current().bulk_wait(0, read=False)
