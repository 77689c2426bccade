"""Indices with modes as Numba values, and what a kernel compiled with debug reports about indices
without modes."""

from __future__ import annotations

from typing import Any

from ...core import numba as nb
from ...core.inert import NoValue
from ...core.op import cuda_meaning
from ...plan.outside_cuda import clipped, report
from . import indices as source
from .array_views_cuda import starts
from .refs import All, Ds, Index, whole_slices
from .refs_cuda import GmemType
from .tile_cuda import TileType, assembled, registers


class IndexType(nb.FieldsType, Index):
    pass


nb.struct_model(IndexType, lambda ty: [("value", ty.value)])


@cuda_meaning(source.index)
def _index(value: Any, mode: Any) -> Any:
    result = IndexType(nb.unliteral(value), source.checked(value, mode))
    builder, args = yield result(result.value, mode)
    return builder.struct(result, value=args[0])


def settled(
    builder: Any,
    ref: GmemType,
    array: Any,
    index: Any,
    value: Any,
    stored: bool = False,
) -> list:
    """Return the starts of an index, with the modes of its parts applied.

    For a number outside the array, return the array's size if TMA may do the store: TMA traps at a
    negative start.
    """
    given = whole_slices(index)
    debug = bool(ref.unit.params.debug)
    start = starts(builder, index, value)
    for axis, (whole, part) in enumerate(zip(given, source.plain(given), strict=True)):
        mode = whole.mode if isinstance(whole, Index) else None
        if isinstance(part, (Ds, All, NoValue)) or (mode is None and not debug):
            continue
        size = builder.extract_value(builder.fields(ref, array).shape, axis)
        vector = isinstance(part, TileType)
        each = registers(builder, part, start[axis]) if vector else [start[axis]]
        if mode == "clip":
            each = [clipped(builder, one, builder.sub(size, 1)) for one in each]
        if mode is None:
            for one in each:
                report(
                    builder,
                    ref.unit,
                    f"'{ref.arg.name}[…]'",
                    axis,
                    one,
                    size,
                    builder.icmp_unsigned(">=", one, size),
                    ref.role.computes and not (vector or ref.by_lane),
                )
        if stored and not vector and mode != "clip":
            each = [
                builder.select(builder.icmp_unsigned("<", one, size), one, size) for one in each
            ]
        start[axis] = assembled(builder, part, each) if vector else each[0]
    return start


def report_view(builder: Any, view: Any, sizes: Any, start: list, once: bool = False) -> None:
    """Report, in a kernel compiled with debug, the integers of a view's index that are outside the
    array. A store then continues past the end."""
    for axis in range(len(start)):
        if axis not in view.axes:
            size = builder.extract_value(sizes, axis)
            inside = builder.icmp_unsigned("<", start[axis], size)
            report(
                builder,
                view.ref.unit,
                f"{view.ref.arg.name}.at[…]",
                axis,
                start[axis],
                size,
                builder.not_(inside),
                once,
            )
            start[axis] = builder.select(inside, start[axis], size)
