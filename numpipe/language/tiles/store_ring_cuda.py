"""The store ring on the GPU: batches of panels as Numba values, and their copies."""

from __future__ import annotations

from typing import Any

from ...arch.dimensions import Ints
from ...core import numba as nb
from ...core.lanes_cuda import elected
from ...core.numba import I32
from ...core.op import cuda_meaning
from ...intrinsics import barrier, cp_async_bulk, fence
from ...plan.budget import PANEL_BYTES
from . import store_ring as source
from .layouts import BLOCK
from .refs_cuda import GmemType
from .shared_tiles_cuda import write_registers
from .tile_cuda import TileType, words
from .tma_cuda import Copy


class BatchType(nb.FieldsType):
    """The type of a `Batch`; its value is the value of the whole tile."""

    tile: TileType
    panels: tuple[tuple[int, int, int], ...]
    inner: int
    axes: Ints
    reduction: str


nb.machine_model(BatchType, lambda ty: ty.tile.machine)


def registers_of(tile: TileType, row: int, column: int, width: int) -> slice:
    """Return the registers that hold the panel of a tile at (row, column) with `width` columns."""
    panel = [
        number * tile.registers // tile.elements
        for number, (down, right) in enumerate(tile.form.places)
        if row <= (down or 0) < row + BLOCK and column <= (right or 0) < column + width
    ]
    return slice(panel[0], panel[-1] + 1)


def write_panel(
    builder: Any,
    tile: TileType,
    value: Any,
    row: int,
    column: int,
    width: int,
    address: Any,
    inner: int = 1,
) -> None:
    """Write a panel of a tile to shared memory at `address`: each warp writes its 16 rows."""
    panel = words(builder, tile, value)[registers_of(tile, row, column, width)]
    write_registers(builder, source.panel_layout(width, tile.dtype.itemsize, inner), address, panel)


@cuda_meaning(source.write_panels)
def _write_panels(batch: Any, address: Any) -> Any:
    builder, args = yield nb.VOID(batch, I32)
    for number, (row, column, width) in enumerate(batch.panels):
        place = builder.add(args[1], number * PANEL_BYTES)
        write_panel(builder, batch.tile, args[0], row, column, width, place, batch.inner)


@cuda_meaning(source.show)
def _show() -> Any:
    builder, _ = yield
    builder.issue(fence.proxy_async)
    builder.issue(barrier.warp_sync)


cuda_meaning(source.declare)(nb.no_code)


@cuda_meaning(source.copy_out)
def _copy_out(ref: GmemType, batch: Any, start: Any, address: Any) -> Any:
    plans = source.plans_of(ref, len(start), batch)
    for plan in plans:
        ref.unit.map_slot(plan.request)
    place = nb.UniTuple(I32, len(start))
    builder, args = yield nb.VOID(ref, batch, place, I32)
    table, first = builder.fields(ref, args[0]).table, builder.unpack_tuple(args[2])
    for plan in plans:
        Copy(builder, ref.unit, plan, table, first, args[3]).store()
    builder.issue(cp_async_bulk.commit_group)


@cuda_meaning(source.drain_stores)
def _drain_stores(np_: Any) -> Any:
    builder, _ = yield
    if np_.unit.stores:
        none, value = nb.immediate(0)
        alone = nb.const(1, nb.i1) if np_.role.lanes == "one" else elected(builder)
        with builder.if_then(alone):
            builder.apply(cp_async_bulk.wait_group, (none,), (value,))
