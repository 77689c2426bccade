"""Reductions on the GPU: a tree over a lane's own elements, butterfly shuffles, and shared memory
between the warps."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ...arch.dtypes import FLOAT32, HALVES, INT32, UINT32, packing
from ...core import numba as nb
from ...core.approximate_cuda import divide
from ...core.arith_cuda import EMIT, convert, type_of
from ...core.inert_cuda import InertType
from ...core.numba import F32
from ...core.op import cuda_meaning
from ...plan.context_cuda import own_part
from ...plan.unit import Unit
from . import reduce as source
from .elementwise_cuda import BY_PAIRS, inside_of, place_of, two_at_once
from .exchange import ROOM
from .fence_order_cuda import own_barrier
from .layout_names import COLUMN
from .layouts import GROUP
from .mathematics_cuda import differing, extreme
from .tile_cuda import TileType, assembled, floats, in_pairs, narrowed, packed, registers, undefined
from .words_cuda import load_words, store_words

Own = Callable[[Sequence[int]], Any]
"""Combines elements of a lane, given their numbers."""
Combine = Callable[[Any, Any], Any]
"""Combines two elements."""
EXCHANGE = "np_exchange"
NOWHERE = 1 << 30
"""above all indices of a tile"""
REDUX = {"sum": "add", "max": "max", "min": "min"}
"""operations of ``redux.sync``, which combines 32-bit integers of all lanes of a warp"""
WORDS = {INT32: "s32", UINT32: "u32"}
"""types of ``redux.sync``"""


def combination(builder: Any, operation: str, dtype: np.dtype) -> Combine:
    """Return a function that emits code to combine two elements into one."""
    if operation in source.VOTES:
        return builder.or_ if operation == "any" else builder.and_  # type: ignore[no-any-return]
    if operation in ("sum", *source.DIVIDED):
        return builder.fadd if dtype == FLOAT32 else builder.add  # type: ignore[no-any-return]
    return functools.partial(extreme(operation), builder, dtype)


def _tree(combine: Combine, values: Sequence) -> Any:
    """Combine all values in pairs, so that the sums do not depend on each other."""
    parts = list(values)
    while len(parts) > 1:
        parts = [
            combine(*parts[i : i + 2]) if i + 1 < len(parts) else parts[i]
            for i in range(0, len(parts), 2)
        ]
    return parts[0]


def _butterflies(
    builder: Any, combine: Combine, value: Any, distances: Sequence[int], redux: str = ""
) -> Any:
    """Combine a value across lanes with shuffles (shfl.bfly) at these lane distances, or across
    all lanes of a warp with one `redux`; every lane gets the result."""
    if redux and len(distances) == 5:
        text = f"redux.sync.{redux} $0, $1, 0xffffffff;"
        return builder.emit_asm(nb.i32, [value], text, memory=False)
    for distance in distances:
        text = f"shfl.sync.bfly.b32 $0, $1, {distance}, 31, 0xffffffff;"
        other = builder.emit_asm(value.type, [value], text, memory=False)
        value = combine(value, other)
    return value


def barrier(builder: Any) -> None:
    builder.execute([own_barrier(builder)], "bar.sync $0, 128;")


def of_warps(builder: Any, values: list, lanes: int = 1) -> Iterator[list]:
    """Yield each value, of 4 bytes, from all four warps in order.

    If `lanes` lanes share the columns, lane L g + t has value 2 j + o of columns 2 L j + 2 t + o,
    as do all g; with one lane, every lane has all values. The first barrier protects the previous
    exchange, which may still be being read. Values take turns where there is no room for all.
    """
    most = ROOM // (16 * lanes)
    if len(values) > most:
        for first in range(0, len(values), most):
            yield from of_warps(builder, values[first : first + most], lanes)
        return
    step, stride = min(lanes, 2), 4 * lanes
    size = stride * len(values)
    base = builder.external(EXCHANGE, nb.i32)
    thread = builder.lane_index()
    lane, warp = builder.and_(thread, 31), builder.lshr(thread, 5)
    own = builder.add(base, builder.shl(builder.and_(lane, lanes - 1), 3))
    to = builder.add(own, builder.mul(warp, size))
    first = builder.icmp_unsigned("<", lane, lanes)
    barrier(builder)
    chosen = builder.zext(first)
    for i in range(0, len(values), step):
        store_words(builder, "b32", builder.add(to, stride * i), values[i : i + step], chosen)
    barrier(builder)
    for i in range(0, len(values), step):
        found = [
            load_words(
                builder,
                values[0].type,
                "b32",
                builder.add(own, other * size + stride * i),
                step,
            )
            for other in range(4)
        ]
        yield from map(list, zip(*found, strict=True))


def define_exchange(outer: Any, unit: Unit) -> None:
    """Define the address of the warpgroup's memory for exchanges, in the kernel's entry module."""
    with outer.define(EXCHANGE, nb.i32) as (builder, _):
        builder.ret(own_part(builder, unit, unit.exchange))


def _vote(builder: Any, operation: str, bit: Any) -> Any:
    """Return whether any, or all, of the lanes' bits are set (PTX ISA, "barrier.red").

    The warp's vote on the barrier's result does not change it, but tells ptxas that it is uniform;
    on the barrier's result alone, ptxas treats the lanes of a branch as divergent.
    """
    text = (
        f"{{ .reg .pred mine, all; setp.ne.u32 mine, $2, 0; "
        f"bar.red.{'or' if operation == 'any' else 'and'}.pred all, $1, "
        "128, mine; vote.sync.any.pred all, all, 0xffffffff; selp.u32 $0, 1, 0, all; }"
    )
    found = builder.emit_asm(nb.i32, [own_barrier(builder), builder.zext(bit)], text)
    return builder.icmp_unsigned("!=", found, 0)


def _first(builder: Any, tile: TileType, parts: list, tops: list, along: int | None) -> Own:
    """Return how to find the least index of a lane's elements that equal the extreme of their line,
    which `tops` has for each element; a large number if none does."""
    axes = [axis for axis in tile.form.record.axes if along in (None, axis)]
    down, across = (tile.shape[-1] if 1 in axes else 1) * (0 in axes), int(1 in axes)
    row, column = place_of(builder, tile)
    base = builder.add(builder.mul(row, down), builder.mul(column, across))
    where = [(r or 0) * down + (c or 0) * across for r, c in tile.form.places]
    each = packing(tile.dtype).per_register

    def of(line: Sequence[int]) -> Any:
        top, at = tops[line[0]], nb.const(NOWHERE)
        if each > 1:
            top = packed(builder, tile.dtype, top, top)
        # the last one first
        for i in sorted(line, key=where.__getitem__, reverse=True):
            differ = differing(builder, tile.dtype, parts[i // each], top)[i % each]
            at = builder.select(differ, at, nb.const(where[i]))
        return builder.add(base, at)

    return of


def _reduction(name: str, np_: Any, tile: Any, axis: Any, keepdims: Any) -> Any:
    plan = source.plan(np_, name, tile, axis, keepdims)
    form = plan.result
    result = (
        TileType(form)
        if form.shape
        else InertType(source.REDUCED)
        if not np_.computes
        else type_of(form.dtype)
    )

    def finished(builder: Any, value: Any) -> Any:
        if name in source.VOTES:
            return builder.icmp_unsigned("!=", value, 0)
        return (
            divide(builder, value, nb.ir.Constant(nb.f32, plan.elements))
            if name in source.DIVIDED
            else value
        )

    tile = TileType(plan.form)
    builder, args = yield result(np_, tile, axis, keepdims)
    if not np_.computes:
        return undefined(result) if form.shape else nb.nothing
    kind, half = name.removeprefix("arg"), tile.dtype in HALVES
    of = FLOAT32 if half or name in source.DIVIDED else tile.dtype
    combine, neutral = combination(builder, kind, of), _neutral(kind, of)
    parts = registers(builder, tile, args[1])
    if name in source.INDICES and of == FLOAT32:
        # equal numbers have equal bits: -0 becomes 0
        add, zero = (BY_PAIRS["add"], nb.const(0)) if half else (EMIT["add"], 0.0)
        parts = [add(builder, tile.dtype, part, zero) for part in parts]
    masks = inside_of(builder, plan.form)

    def masked(values: list) -> list:
        """Return elements, with `neutral` in place of those that are outside the tile."""
        return [
            value if mask is None else builder.select(mask, value, value.type(neutral))
            for value, mask in zip(values, masks, strict=True)
        ]

    values = masked(floats(builder, tile.dtype, parts) if of != tile.dtype else parts)
    if name in source.VOTES and not form.shape:
        return _vote(builder, name, _tree(combine, values))
    word = WORDS.get(tile.dtype, "")
    redux = f"{REDUX[name]}.{word}" if word and name in REDUX else ""
    if name in source.VOTES:
        values = [builder.zext(value) for value in values]

    def reduced(own: Own, combine: Combine = combine, redux: str = redux) -> list:
        """Return the registers of the result, or the number alone."""
        if not plan.whole:
            return [
                finished(builder, value)
                for value in _along(builder, combine, tile, own, result, redux)
            ]
        record = tile.form.record
        distances = record.distances(*reversed(record.axes))
        total = _butterflies(builder, combine, own(range(len(values))), distances, redux)
        if plan.nbytes:
            total = _tree(combine, next(of_warps(builder, [total]))[: record.warps])
        return [finished(builder, total)] * (2 if form.shape else 1)

    def pairs(line: Sequence[int]) -> Any:
        """Return the extreme of a lane's 16-bit elements, which are compared in pairs."""
        two = functools.partial(two_at_once(f"{kind}.NaN"), builder, tile.dtype)
        top = _tree(two, [parts[i] for i in dict.fromkeys(i // 2 for i in line)])
        low_high = floats(builder, tile.dtype, [top])
        return _tree(combine, [low_high[i % 2] for i in line[:2]])

    own: Own = lambda line: _tree(combine, [values[i] for i in line])
    if not half:
        parts = values
    elif kind in ("max", "min"):
        own = pairs
        parts = [
            packed(builder, tile.dtype, *two) if any(inside) else part
            for part, two, inside in zip(parts, in_pairs(values), in_pairs(masks), strict=True)
        ]
    found = reduced(own)
    if name in source.TWICE:
        lines = found[:1] * len(values) if plan.whole else _of_lines(tile, found, result)
        if name in source.SPREADS:
            values = masked(_squares(builder, values, lines))
            found = reduced(own)
        else:
            own = _first(builder, tile, parts, lines, None if plan.whole else plan.axis)
            found = reduced(own, combination(builder, "min", INT32), "min.s32")
    if name == "std":
        found = [builder.pure_asm(nb.f32, [value], "sqrt.rn.f32 $0, $1;") for value in found]
    if form.shape:
        return assembled(builder, result, narrowed(builder, form.dtype, found))
    floating = of == FLOAT32 and name not in source.INDICES
    return convert(builder, found[0], F32, result) if floating else found[0]


def _neutral(name: str, dtype: np.dtype) -> float:
    """Return what does not change a reduction when it is combined with."""
    if name in ("max", "min"):
        low, high = (
            (-math.inf, math.inf)
            if dtype == FLOAT32
            else (0, -1)
            if dtype == UINT32
            else (-(1 << 31), (1 << 31) - 1)
        )
        return low if name == "max" else high
    return int(name == "all") if name in source.VOTES or dtype != FLOAT32 else -0.0


def _of_lines(tile: TileType, found: list, result: TileType) -> list:
    """Return, for each element of a lane, the result of its row, or of its column."""
    by_place = dict(zip(result.form.places, found, strict=True))
    rows = result.form.name.word == COLUMN
    return [by_place[(row, None) if rows else (None, column)] for row, column in tile.form.places]


def _squares(builder: Any, values: list, means: list) -> list:
    """Return the squared differences of elements from their means. Each is rounded, because ptxas
    would fuse the products with their sum."""
    apart = [builder.fsub(value, mean) for value, mean in zip(values, means, strict=True)]
    return [builder.pure_asm(nb.f32, [each, each], "mul.rn.f32 $0, $1, $2;") for each in apart]


def _along(
    builder: Any,
    combine: Combine,
    tile: TileType,
    own: Own,
    result: TileType,
    redux: str,
) -> list:
    """Return the registers of a reduction along an axis: each combines all elements of a row, or of
    a column."""
    rows, record = result.form.name.word == COLUMN, tile.form.record
    if int(rows) not in record.axes:  # a line, along the axis of which it has one element
        return [own([i]) for i in range(tile.elements)]
    distances, where = record.distances(int(rows)), tile.form.places
    parts = []
    for row, column in result.form.places:
        line = [i for i, at in enumerate(where) if (at[0] == row if rows else at[1] == column)]
        parts.append(_butterflies(builder, combine, own(line), distances, redux))
    if rows or record.warps == 1:
        return parts
    return [
        _tree(combine, each[: record.warps])
        for each in of_warps(builder, parts, record.mask(1) + 1)
    ]


def _partial(name: str, tile: Any) -> Any:
    form, part = source.partial_form(tile, f"partial_{name}")
    tile, result = TileType(form), TileType(part)
    builder, args = yield result(tile)
    combine = combination(builder, name, tile.dtype)
    # lanes that have other columns of every eight
    shared = [far for far in form.record.distances(1) if far * 2 >= GROUP]
    lines: dict[Any, list] = {}
    for value, (row, column) in zip(registers(builder, tile, args[0]), form.places, strict=True):
        lines.setdefault((row, (column or 0) % GROUP), []).append(value)
    return assembled(
        builder,
        result,
        [
            _butterflies(
                builder, combine, _tree(combine, lines[row, (column or 0) % GROUP]), shared
            )
            for row, column in part.places
        ],
    )


for _typer, _operations in ((_reduction, source.REDUCTIONS), (_partial, source.PARTIALS)):
    for _name, _operation in _operations.items():
        cuda_meaning(_operation)(functools.partial(_typer, _name))
