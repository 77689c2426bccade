"""Atomics on shared memory on the GPU: each lane executes ``red.shared`` on its own elements."""

from __future__ import annotations

import functools
from typing import Any

from ...arch.dtypes import FLOAT32
from ...core import numba as nb
from ...core.numba import I32
from ...plan.outside_cuda import within
from . import shared_atomics as source
from .elements_cuda import in_type
from .elementwise_cuda import inside_of
from .fence_order import before_access
from .layout_names import COLUMN
from .layouts import Form
from .refs import method_of
from .refs_cuda import SharedType, SmemType
from .scattered_shared_cuda import addresses, owner
from .shared_tiles_cuda import converge
from .tile_cuda import TileType, registers


class IndexedType(nb.FieldsType, source.IndexedLike):
    """The Numba type of `shared_atomics.Indexed`."""

    tile: SmemType
    index: TileType

    def __post_init__(self) -> None:
        super().__post_init__()
        self.form = source.index_form(self.tile, self.index)


nb.struct_model(IndexedType, lambda ty: [("address", I32), ("index", ty.index)])


@method_of(SharedType, "indexed")
def _indexed(of: Any, target: Any, index: Any) -> Any:
    result = IndexedType(of, index)
    builder, args = yield result
    return builder.struct(
        result,
        address=builder.fields(target, args[0]).of,
        index=args[1],
    )


def emit(
    builder: Any, reduction: str, dtype: Any, address: Any, value: Any, chosen: Any = None
) -> None:
    """Emit one atomic, in the lanes that are `chosen`."""
    kind = (
        "f"
        if dtype == FLOAT32
        else "b"
        if reduction in ("and", "or", "xor")
        else "s"
        if dtype.kind == "i" and reduction != "add"
        else "u"
    )
    text = f"red.relaxed.cta.shared.{reduction}.{kind}32 [$0], $1;"
    if chosen is None:
        builder.execute([address, value], text)
    else:
        builder.emit_where(chosen, text, address, value)


def shared_atomic(name: str, dst: Any, value: Any) -> Any:
    """Type and emit an atomic on shared memory."""
    form = source.check_shared(name, dst, value)
    reduction, indexed = name.removeprefix("atomic_"), isinstance(dst, IndexedType)
    tile = dst.tile if indexed else dst
    builder, args = yield nb.VOID(dst, value)
    if not tile.role.computes:
        return
    fields = builder.fields(dst, args[0]) if indexed else None
    base = fields.address if fields else args[0]
    builder.apply(before_access, (tile,), (base,))
    settled = TileType(form.settled(COLUMN))

    def elements(have: Any, of: Any) -> list:
        want = TileType(Form(form.shape, have.dtype, settled.layout))
        return registers(builder, want, builder.cast(of, have, want))

    tiled = isinstance(value, TileType)
    number = None if tiled else in_type(builder, args[1], value, tile.dtype)
    values = elements(value, args[1]) if tiled else None
    indices = elements(dst.index, fields.index) if fields else None
    at = (
        None
        if fields
        else addresses(builder, tile.layout, base, settled, (nb.const(0), nb.const(0)))
    )
    first, masks = owner(builder, settled.form.record), inside_of(builder, settled.form)
    for element, mask in enumerate(masks):
        tests = [test for test in (first, mask) if test is not None]
        own = functools.reduce(builder.and_, tests) if tests else None
        if indices is not None:
            inside = builder.icmp_unsigned("<", indices[element], tile.layout.shape[1])
            last = tile.layout.shape[1] - 1
            of = f"{name}: a tile {tile.layout.sides} in shared memory: index"
            within(builder, tile.debugged, of, 0, indices[element], last, False)
            chosen = inside if own is None else builder.and_(own, inside)
            address = builder.add(base, builder.shl(indices[element], 2))
        else:
            assert at is not None
            chosen, address = own, at(element)
        emit(
            builder,
            reduction,
            tile.dtype,
            address,
            number if values is None else values[element],
            chosen,
        )
    builder.join()
    converge(builder)
