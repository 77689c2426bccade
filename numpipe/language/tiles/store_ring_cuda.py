"""The store ring on the GPU: batches of panels as Numba values, and their copies."""

from __future__ import annotations

from typing import Any

from ...core import numba as nb
from ...core.lanes_cuda import elected
from ...core.op import cuda_meaning
from ...intrinsics import cp_async_bulk
from ...plan.budget import PANEL_BYTES
from ...plan.context_cuda import compute_warpgroup
from . import store_ring as source
from .panel_cuda import sub_tile, write
from .refs_cuda import GmemType, gmem_value
from .tile_cuda import TileType
from .tma_cuda import Copy

I32 = nb.types.int32


class BatchType(nb.types.Type):  # type: ignore[misc]
    """Some panels of a register tile: `places` are their (row, column) in it; the value is the whole tile's."""

    def __init__(self, tile: TileType, places: tuple[tuple[int, int], ...], width: int, axes: tuple[int, int],
                 reduction: str = "") -> None:
        self.tile, self.places, self.width, self.axes, self.reduction = tile, places, width, axes, reduction
        super().__init__(name=f"batch({tile}, {places}, {width}, {axes}{f', {reduction}' if reduction else ''})")

    @property
    def machine(self) -> Any:
        return self.tile.machine

    def panels(self, builder: Any, value: Any) -> Any:
        """(panel type, registers, row, column) of each."""
        for row, column in self.places:
            yield (*sub_tile(builder, self.tile, value, row, column, self.width), row, column)


nb.machine_model(BatchType, lambda ty: ty.machine)


def _staging(builder: Any, ref: GmemType, number: int) -> Any:
    unit = ref.unit
    warpgroup = compute_warpgroup(builder, unit)
    own = builder.mul(warpgroup, nb.const(unit.store_slots * PANEL_BYTES))
    return builder.add(nb.smem(builder, unit.staging_base + number * PANEL_BYTES), own)


@cuda_meaning(source.await_staging)
def _await_staging(_context: Any, ref: Any) -> Any:
    context, builder, _ = yield nb.types.void(ref)
    none, value = nb.immediate(0)
    return nb.call(context, builder, cp_async_bulk.wait_group_read, (none,), (value,))[1]


@cuda_meaning(source.write_panels)
def _write_panels(_context: Any, ref: Any, batch: Any) -> Any:
    _, builder, args = yield nb.types.void(ref, batch)
    for number, (panel, registers, _, _) in enumerate(batch.panels(builder, args[1])):
        write(builder, panel, registers, _staging(builder, ref, number))


@cuda_meaning(source.copy_out)
def _copy_out(_context: Any, ref: GmemType, batch: Any, start: Any) -> Any:
    plan = source.plan_of(ref, len(start), batch)
    ref.unit.map_slot(plan.request)
    context, builder, args = yield nb.types.void(ref, batch, nb.types.UniTuple(I32, len(start)))
    table = gmem_value(context, builder, ref, args[0]).table
    Copy(context, builder, ref.unit, plan, table, nb.cgutils.unpack_tuple(builder, args[2]), _staging(builder, ref, 0)).store()
    nb.call(context, builder, cp_async_bulk.commit_group, (), ())


@cuda_meaning(source.drain_stores)
def _drain_stores(_context: Any, np_: Any) -> Any:
    context, builder, _ = yield nb.types.void(np_)
    if np_.unit.stores:
        none, value = nb.immediate(0)
        with builder.if_then(elected(builder)):
            nb.call(context, builder, cp_async_bulk.wait_group, (none,), (value,))
