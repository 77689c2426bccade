"""NaN checks on the GPU: a stored NaN leaves a record of the lane's first NaN, like an index
outside an array does (`plan.wait_records`)."""

from __future__ import annotations

from typing import Any

from ...core import numba as nb
from ...core.op import cuda_meaning
from ...plan import wait_records
from ...plan.outside_cuda import report
from ...plan.params import LoweringSemantics
from . import nan_checks as source
from .elementwise_cuda import inside_of, place_of
from .mathematics import isnan
from .tile_cuda import TileType, assembled, part_of_either, registers


@cuda_meaning(source.no_nan)
def _no_nan(np_: Any, site: Any, target: Any, value: Any) -> Any:
    builder, args = yield value
    unit, stored = np_.unit, args[3]
    if not np_.computes or not unit.params.debug:
        return stored
    what = f"{nb.literal(target)} @ {nb.literal(site)}"
    if isinstance(value, TileType) and value.dtype in source.CHECKED:
        held, place = _first(builder, value, stored)
        report(builder, unit, what, len(value.shape), *place, held, kind=wait_records.NAN)
    elif isinstance(value, nb.Float):
        once = unit.params.lowering_semantics is not LoweringSemantics.Lane
        report(
            builder,
            unit,
            what,
            0,
            nb.const(0),
            nb.const(0),
            builder.fcmp_unordered("uno", stored, stored),
            once,
            wait_records.NAN,
        )
    return stored


def _first(builder: Any, tile: TileType, value: Any) -> tuple[Any, tuple[Any, Any]]:
    """Return whether a lane holds a NaN, and the place of the first: its row and column or, in a
    vector, its element and 0."""
    form = tile.form.settled()
    one, masks = TileType(form), inside_of(builder, form)
    settled = assembled(builder, one, part_of_either(builder, tile, value, one))
    kind, mask = nb.returns(isnan, (one,)), builder.apply(isnan, (one,), (settled,))
    own, held, first = place_of(builder, one), nb.ir.Constant(nb.i1, 0), (nb.const(0), nb.const(0))
    for bit, place, inside in reversed(
        list(zip(registers(builder, kind, mask), form.places, masks, strict=True))
    ):
        bit = bit if inside is None else builder.and_(bit, inside)
        here = [
            builder.add(mine, at) for at, mine in zip(place, own, strict=True) if at is not None
        ]
        held = builder.or_(held, bit)
        first = (
            builder.select(bit, here[0], first[0]),
            builder.select(bit, here[1], first[1]) if here[1:] else first[1],
        )
    return held, first
