"""Slices and reshapes of register tiles on the GPU: a selection of a lane's registers, in order."""

from __future__ import annotations

import operator
from typing import Any

from ...arch.dtypes import packing
from ...core import numba as nb
from ...core.op import cuda_meaning
from . import tile_slices as source
from .refs import whole_slices
from .tile import TileLike
from .tile_cuda import TileType, assembled, part_of_either, registers


def _part(tile: Any, index: Any) -> Any:
    if not isinstance(tile, TileLike):
        return None
    have = tile.settled("tile[…]")
    form, slices = source.part_form(have.form, whole_slices(index))
    result = TileType(form)
    if not slices:
        have = TileType(source.source_form(have.form, form))
        builder, args = yield result(have, index)
        return assembled(builder, result, part_of_either(builder, have, args[0], result))
    have = TileType(have.form.settled())
    builder, args = yield result(have, index)
    parts, each = registers(builder, have, args[0]), packing(form.dtype).per_register
    return assembled(
        builder,
        result,
        [parts[i // each] for i in source.elements_of(have.form, form, slices)[::each]],
    )


nb.overload(operator.getitem, _part)


@cuda_meaning(source.reshape)
def _reshape(tile: Any, *shape: Any) -> Any:
    result = TileType(source.reshaped_form(tile, shape))
    have = TileType(source.source_form(tile.form, result.form))
    builder, args = yield result(have, *shape)
    return assembled(builder, result, part_of_either(builder, have, args[0], result))


nb.method(TileType, "reshape", source.reshape)


def _turned(ty: TileType) -> TileType:
    source.check_turned(ty.form)
    return ty


nb.attribute(TileType, "T", _turned, lambda _builder, _ty, value: value)
