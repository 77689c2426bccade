"""The largest elements of each row of a register tile on the GPU: a loop over the k, whose body
loops over a lane's elements."""

from __future__ import annotations

from typing import Any

from ...arch.dimensions import Ints
from ...arch.dtypes import INT32
from ...core import numba as nb
from ...core.op import cuda_meaning
from . import top_k as source
from .elementwise_cuda import inside_of, place_of
from .tile_cuda import TileType, assembled, floats, narrowed, registers, undefined

LEAST, LAST = -0x80000000, 0x7FFFFFFF


@cuda_meaning(source.top_k)
def _top_k(np_: Any, tile: Any, k: Any) -> Any:
    *forms, count = source.top_forms(tile, k)
    tile, values, columns = map(TileType, forms)
    pair = nb.Tuple([values, columns])
    builder, args = yield pair(np_, tile, k)
    if not np_.computes:
        return builder.make_tuple(pair, [undefined(values), undefined(columns)])
    ranks = registers(builder, tile, args[1])
    if tile.dtype != INT32:
        ranks = [_rank(builder, value) for value in floats(builder, tile.dtype, ranks)]
    every = [
        rank if inside is None else builder.select(inside, rank, LEAST)
        for rank, inside in zip(ranks, inside_of(builder, tile.form), strict=True)
    ]
    of = dict(zip(tile.form.places, every, strict=True))
    # a lane's first column
    own = place_of(builder, tile)[1]
    where = values.form.places
    rows = list(dict.fromkeys(row for row, _ in where))

    # round, then for each row the rank and the column found last, then the results: ranks, and
    # columns
    begin = [
        nb.const(0),
        *[nb.const(LAST)] * len(rows),
        *[nb.const(-1)] * len(rows),
        *[nb.const(LEAST)] * len(where),
        *[nb.const(source.ABSENT)] * len(where),
    ]
    entry = builder.block
    loop, behind = builder.append_basic_block("top"), builder.append_basic_block("found")
    builder.branch(loop)
    builder.position_at_end(loop)
    state = [builder.phi(value.type) for value in begin]
    for phi, value in zip(state, begin, strict=True):
        phi.add_incoming(value, entry)
    number, before = state[0], state[1 : 1 + 2 * len(rows)]
    ranked, indexed = state[-2 * len(where) : -len(where)], state[-len(where) :]
    best = {
        row: _next(
            builder,
            [(column or 0, rank) for (r, column), rank in of.items() if r == row],
            own,
            before[i],
            before[len(rows) + i],
            tile.form.record.distances(1),
        )
        for i, row in enumerate(rows)
    }
    mine = {
        column: builder.icmp_unsigned("==", number, builder.add(own, column or 0))
        for column in dict.fromkeys(column for _, column in where)
    }
    ranked, indexed = (
        [builder.select(mine[c], best[r][i], old) for (r, c), old in zip(where, olds, strict=True)]
        for i, olds in enumerate((ranked, indexed))
    )
    following = builder.add(number, 1)
    new = [
        following,
        *(best[row][0] for row in rows),
        *(best[row][1] for row in rows),
        *ranked,
        *indexed,
    ]
    for phi, value in zip(state, new, strict=True):
        phi.add_incoming(value, builder.block)
    builder.cbranch(builder.icmp_unsigned("<", following, count), loop, behind)
    builder.position_at_end(behind)

    found = (
        ranked
        if tile.dtype == INT32
        else [_value(builder, rank, index) for rank, index in zip(ranked, indexed, strict=True)]
    )
    found = narrowed(builder, tile.dtype, found)
    return builder.make_tuple(
        pair, [assembled(builder, values, found), assembled(builder, columns, indexed)]
    )


def _rank(builder: Any, value: Any) -> Any:
    """Return an int32 that is ordered as a float32 is: -0 as 0, NaN as the greatest."""
    bits = builder.bitcast(builder.fadd(value, 0.0), nb.i32)
    rank = builder.select(builder.icmp_signed("<", bits, 0), builder.xor(bits, 0x7FFFFFFF), bits)
    return builder.select(builder.fcmp_unordered("uno", value, value), LAST, rank)


def _next(
    builder: Any,
    elements: list[tuple[int, Any]],
    own: Any,
    before: Any,
    column_before: Any,
    distances: Ints,
) -> tuple[Any, Any]:
    """Return (rank, column) of a row's next element after (`before`, `column_before`). All lanes
    that share the row, at these `distances`, get it."""
    rank, column = nb.const(LEAST), nb.const(LAST)
    seen = builder.sub(column_before, own)
    # so that the first of several equal elements is kept
    for at, element in sorted(elements, reverse=True, key=lambda element: element[0]):
        behind = builder.or_(
            builder.icmp_signed("<", element, before),
            builder.and_(
                builder.icmp_signed("==", element, before),
                builder.icmp_signed(">", at, seen),
            ),
        )
        better = builder.and_(behind, builder.icmp_signed(">=", element, rank))
        rank = builder.select(better, element, rank)
        column = builder.select(better, builder.add(own, at), column)
    for distance in distances:
        other, place = (
            builder.emit_asm(
                nb.i32,
                [value],
                f"shfl.sync.bfly.b32 $0, $1, {distance}, 31, 0xffffffff;",
                memory=False,
            )
            for value in (rank, column)
        )
        better = builder.or_(
            builder.icmp_signed(">", other, rank),
            builder.and_(
                builder.icmp_signed("==", other, rank), builder.icmp_signed("<", place, column)
            ),
        )
        rank, column = builder.select(better, other, rank), builder.select(better, place, column)
    return rank, column


def _value(builder: Any, rank: Any, index: Any) -> Any:
    """Return the float32 with a given rank; -inf where there is no element."""
    bits = builder.select(builder.icmp_signed("<", rank, 0), builder.xor(rank, LAST), rank)
    there = builder.icmp_signed(">=", index, 0)
    return builder.select(there, builder.bitcast(bits, nb.f32), float("-inf"))
