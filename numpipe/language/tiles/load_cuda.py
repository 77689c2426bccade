"""``c[rows, columns]`` on the GPU: ordinary loads, ``ld.global``, of one or two elements.

They are LLVM loads, not inline PTX, so that unused loads are dropped: a vector is loaded both along
the columns and along the rows. ``ld.global.nc`` is never used: a kernel may start while the
previous kernel in the stream is still writing, and that path does not see changes to data that it
has cached.
"""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from ...arch.dtypes import BFLOAT16, FLOAT32, packing
from ...core import numba as nb
from ...core.arith_cuda import type_of
from ...core.inert_cuda import InertType
from ...core.op import cuda_meaning
from . import load as source
from .array_views_cuda import Block, indices_of, stops
from .elementwise_cuda import place_of
from .indices import plain
from .indices_cuda import settled
from .layouts import places, vector_of
from .refs import whole_slices
from .refs_cuda import GmemType
from .row_layouts import lanes_of
from .tile_cuda import TileType, assembled, undefined


def _bits(builder: Any, dtype: np.dtype, word: Any) -> Any:
    """Return a 32-bit word as a register of a tile of this type."""
    return builder.bitcast(word, nb.f32) if dtype == FLOAT32 else word


def _run(block: Block, address: Any, inside: Any, count: int) -> list[Any]:
    """Load `count` adjacent elements at once, as registers."""
    found, words = block.load(address, inside, count), count * block.dtype.itemsize // 4
    if not words:
        return [block.builder.zext(found, nb.i32)]
    parts = (
        [found]
        if words == 1
        else [block.builder.extract_element(found, nb.const(i)) for i in range(words)]
    )
    return [_bits(block.builder, block.dtype, part) for part in parts]


def _packed(block: Block, two: list[Any]) -> list[Any]:
    """Return the registers of two elements that were loaded separately."""
    builder = block.builder
    if packing(block.dtype).per_register == 2:
        low, high = (builder.zext(bits, nb.i32) for bits in two)
        return [builder.or_(low, builder.shl(high, nb.const(8 * block.dtype.itemsize)))]
    return [_bits(builder, block.dtype, word) for word in two]


def _loaded(builder: Any, block: Block, tile: TileType) -> Any:
    """Load a tile: in pairs if the first column is even and the array has all columns, else by
    elements."""
    row, column = place_of(builder, tile)
    flat, run = len(tile.shape) == 1, vector_of(tile.layout) or 2
    where = places(tile.shape, tile.layout)
    gathered = {axis: indices_of(builder, tile, axis, *vector) for axis, *vector in block.indices}

    def address(element: int) -> tuple[Any, Any]:
        """Return (address, inside) of an element; outside the array, the address is that of its
        first element."""
        rows, columns = where[element]
        along = (
            [(0, column if rows is None else row, columns if rows is None else rows)]
            if flat
            else [(0, row, rows or 0), (1, column, columns or 0)]
        )
        at, inside = block.base, block.inside
        for axis, own, distance in along:
            n = (
                gathered[axis][element]
                if axis in gathered
                else (builder.add(builder.add(block.start[axis], own), nb.const(distance or 0)))
            )
            inside = builder.and_(inside, builder.icmp_unsigned("<", n, block.size[axis]))
            at = block.moved(at, n, block.stride[axis])
        return builder.select(inside, at, block.base), inside

    lines: dict[Any, tuple[Any, Any]] = {}

    def neighbour(element: int) -> tuple[Any, Any]:
        """Return `address` of an element in an array that has all the block's columns: one address
        per row, plus an offset."""
        rows, columns = where[element]
        if rows not in lines:
            inside = block.inside
            at = block.moved(block.base, builder.add(block.start[-1], column), nb.const(1, nb.i64))
            if rows is not None:
                n = builder.add(builder.add(block.start[0], row), nb.const(rows))
                inside = builder.and_(inside, builder.icmp_unsigned("<", n, block.size[0]))
                at = block.moved(at, n, block.stride[0])
            lines[rows] = builder.select(inside, at, block.base), inside
        # The first row, which is read where this one is outside, has these columns too.
        line, inside = lines[rows]
        return builder.add(line, nb.const((columns or 0) * block.dtype.itemsize, nb.i64)), inside

    starts: dict[Any, tuple[Any, Any]] = {}

    def by_row(element: int) -> tuple[Any, Any]:
        """Return `address` of an element: one address per row, plus an offset. A row outside the
        array is read as the array's first row."""
        rows, right = where[element]
        first, distance = builder.add(block.start[-1], column), nb.const(right or 0)
        if rows not in starts:
            at, inside = block.moved(block.base, first, block.stride[-1]), block.inside
            if rows is not None:
                n = builder.add(builder.add(block.start[0], row), nb.const(rows))
                inside = builder.and_(inside, builder.icmp_unsigned("<", n, block.size[0]))
                at = builder.select(inside, block.moved(at, n, block.stride[0]), at)
            starts[rows] = at, inside
        line, inside = starts[rows]
        here = builder.icmp_unsigned("<", builder.add(first, distance), block.size[-1])
        at = block.moved(line, distance, block.stride[-1])
        return builder.select(here, at, block.base), builder.and_(inside, here)

    rowwise = bool(lanes_of(tile.layout)) and not gathered and where[0][1] is not None

    def registers(pairs: bool) -> list[Any]:
        found: list[Any] = []
        for first in range(0, len(where), run):
            if pairs and where[first][1] is not None:
                found += _run(
                    block,
                    *(neighbour if rowwise else address)(first),
                    run,
                )
                continue
            for pair in range(first, first + run, 2):
                found += _packed(
                    block,
                    [
                        block.load(*(by_row if rowwise else address)(element))
                        for element in (pair, pair + 1)
                    ],
                )
        return found

    if not block.pairs or all(place[1] is None for place in where):
        return assembled(builder, tile, registers(False))
    aligned = block.aligned(tile.shape[-1], run)
    return assembled(
        builder,
        tile,
        nb.one_of(builder, aligned, lambda: registers(True), lambda: registers(False)),
    )


def _load(_context: Any, ref: Any, index: Any) -> Any:
    if not isinstance(ref, GmemType):
        return None
    parts, arg = plain(whole_slices(index)), ref.arg
    axes, form = source.plan(ref, parts)
    tile = None if form is None else TileType(form)
    unknown = source.without_value(arg, parts) if tile is None and not ref.role.computes else ""
    memory = not ref.role.computes and (tile is not None or bool(unknown))
    result = tile or (
        InertType(unknown)
        if memory
        else nb.types.float32
        if arg.dtype == BFLOAT16
        else type_of(arg.dtype)
    )
    context, builder, args = yield result(ref, index)
    if memory:
        return nb.nothing(context) if tile is None else undefined(tile)
    start = settled(context, builder, ref, args[0], index, args[1])
    indices = [
        (number, parts[axis], start[axis])
        for number, axis in enumerate(axes)
        if isinstance(parts[axis], TileType)
    ]
    block = Block(
        context,
        builder,
        ref,
        args[0],
        start,
        axes,
        indices,
        stops(context, builder, index, args[1]),
    )
    if tile is not None:
        return _loaded(builder, block, tile)
    bits = block.load(block.base, block.inside)  # the same element in all lanes
    if block.dtype == BFLOAT16:
        return builder.bitcast(builder.shl(builder.zext(bits, nb.i32), nb.const(16)), nb.f32)
    return (
        builder.bitcast(bits, nb.i64)
        if block.dtype.itemsize == 8
        else _bits(builder, block.dtype, bits)
    )


nb.overload(operator.getitem, _load)


@cuda_meaning(source.load_tile)
def _load_tile(_context: Any, view: Any, layout: Any = None) -> Any:
    tile = TileType(source.load_form(view, layout))
    ref = view.ref
    context, builder, args = yield tile(view, layout)
    if not ref.role.computes:
        return undefined(tile)
    fields = nb.fields(context, builder, view, args[0])
    start = nb.cgutils.unpack_tuple(builder, fields.start)
    return _loaded(builder, Block(context, builder, ref, fields.ref, start, view.axes), tile)
