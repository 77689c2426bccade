"""``c[rows, columns] = tile`` on the GPU."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

from ...arch.dtypes import packing
from ...core import numba as nb
from . import store as source
from .elementwise_cuda import place_of
from .layouts import ACCUMULATOR, COLUMN, EITHER, ROW, places, vector_of
from .refs import whole_slices
from .refs_cuda import DsType, GmemType
from .shared_cuda import store_words
from .store_ring import put
from .store_ring_cuda import BatchType
from .tile_cuda import TileType, registers
from .views_cuda import Block

I32 = nb.types.int32


Statement = tuple[str, str]
"""(PTX of an address $0 and a value $1, constraint of the value)"""


@dataclass(frozen=True)
class Writing:
    """How tiles of a type are brought to an array: in batches of panels through the store ring, or by the lanes, one by one."""

    ref: GmemType
    tile: TileType
    axes: tuple[int, ...]
    batches: tuple[BatchType, ...]
    statement: Statement


def writing(typing_context: Any, ref: GmemType, tile: TileType, axes: tuple[int, ...], reduction: str = "",
            statement: Statement | None = None) -> Writing:
    """`store.write_out` at compile time; `statement`: what a lane does with an element, to store it if None."""
    batched: list[BatchType] = []
    if ref.role == "compute" and source.through_tma(ref.arg, axes, tile.form):
        batched = [BatchType(tile, *given, (axes[0], axes[1]), reduction) for given in source.staged(ref, tile.form)]
        for batch in batched:
            nb.returns(typing_context, put, (ref, batch, nb.types.UniTuple(I32, ref.arg.ndim)))
    bits = 8 * tile.dtype.itemsize
    word = ("st.global.f32 [$0], $1;", "f") if bits == 32 else (f"st.global.b{bits} [$0], $1;", "h")
    return Writing(ref, tile, axes, tuple(batched), statement or word)


def write_out(context: Any, builder: Any, how: Writing, ref_value: Any, start: list[Any], value: Any) -> None:
    """The code; `start` has a place for each dimension of the array."""
    if how.ref.role == "memory":
        return
    if not how.batches:
        _store_by_lanes(context, builder, how, ref_value, start, value)
        return
    place = nb.types.UniTuple(I32, how.ref.arg.ndim)
    for batch in how.batches:
        nb.call(context, builder, put, (how.ref, batch, place), (ref_value, value, context.make_tuple(builder, place, start)))


def _store(typing_context: Any, ref: Any, index: Any, tile: Any) -> Any:
    if not isinstance(ref, GmemType):
        return None
    parts = whole_slices(index)
    how = writing(typing_context, ref, tile, source.plan(ref, parts, tile))
    context, builder, args = yield nb.types.none(ref, index, tile)
    given = nb.cgutils.unpack_tuple(builder, args[1]) if isinstance(index, nb.types.BaseTuple) else args[1:2]
    start = [] if ref.role == "memory" else [
        found if isinstance(part, DsType) else context.cast(builder, found, part, I32)
        for part, found in zip(parts, given, strict=True)]
    write_out(context, builder, how, args[0], start, args[2])


nb.overload(operator.setitem, _store)


def _store_by_lanes(context: Any, builder: Any, how: Writing, ref_value: Any, start: list[Any], value: Any) -> None:
    """Each lane its own elements, bounds checked (unsigned: a negative index is outside too); any strides."""
    block = Block(context, builder, how.ref, ref_value, start, how.axes)
    if vector_of(how.tile.layout):
        _store_runs(builder, how, value, block, neighbours(how))
        return
    if how.tile.layout != ACCUMULATOR:
        _store_line(builder, how, value, block)
        return
    with builder.if_then(block.inside):
        _store_plane(builder, how, value, block)
    nb.join(builder)


def _store_plane(builder: Any, how: Writing, value: Any, to: Block) -> None:
    """A tile's elements, clipped."""
    tile, (row, column), shape, strides = how.tile, to.start, to.size, to.stride
    lane_row, lane_column = place_of(builder, tile)
    lane_column = builder.add(column, lane_column)
    per_block = tile.shape[1] // 2  # accumulator elements of a lane in a block of 64 rows
    for block in range(tile.shape[0] // 64):
        for half in (0, 1):
            r = builder.add(builder.add(row, lane_row), nb.const(64 * block + 8 * half))
            with builder.if_then(builder.icmp_unsigned("<", r, shape[0])):
                line = to.moved(to.base, r, strides[0])
                for j in range(tile.shape[1] // 8):
                    for odd in (0, 1):
                        c = builder.add(lane_column, nb.const(8 * j + odd))
                        with builder.if_then(builder.icmp_unsigned("<", c, shape[1])):
                            word = _element(builder, how, value, block * per_block + 4 * j + 2 * half + odd)
                            text, code = how.statement
                            nb.emit_asm(builder, nb.void, [to.moved(line, c, strides[1]), word], text,
                                        f"l,{code},~{{memory}}")


def _store_line(builder: Any, how: Writing, value: Any, to: Block) -> None:
    """A vector, or a tile of one row or column: by one of the lanes that hold an element, in a statement that the others skip."""
    tile, start, shape, strides = how.tile, to.start, to.size, to.stride
    by_rows = tile.layout in (COLUMN, EITHER)  # which has fewer elements a lane
    layout = COLUMN if by_rows else ROW
    first = len(places(tile.shape, ROW)) if tile.layout == EITHER else 0
    thread = builder.and_(nb.thread_index(builder), nb.const(127))
    own = place_of(builder, tile)[0 if by_rows else 1]
    other = builder.icmp_unsigned("==", builder.and_(thread, nb.const(3)), nb.const(0)) if by_rows else (
        builder.icmp_unsigned("<", thread, nb.const(4)))
    base, inside = to.base, builder.and_(to.inside, other)
    axis = 0 if len(start) == 1 or by_rows else 1
    if len(start) == 2:  # the dimension in which the tile has one element
        inside = builder.and_(inside, builder.icmp_unsigned("<", start[1 - axis], shape[1 - axis]))
        base = to.moved(base, start[1 - axis], strides[1 - axis])
    for i, place in enumerate(places(tile.shape, layout)):
        at = builder.add(builder.add(start[axis], own), nb.const(place[0 if by_rows else 1] or 0))
        chosen = builder.and_(inside, builder.icmp_unsigned("<", at, shape[axis]))
        _write(builder, how, to.moved(base, at, strides[axis]), _element(builder, how, value, first + i), chosen)


def _write(builder: Any, how: Writing, address: Any, word: Any, chosen: Any) -> None:
    """What a lane does with an element, in a statement that lanes skip which are not `chosen`."""
    text, code = how.statement
    nb.emit_asm(builder, nb.void, [address, word, builder.zext(chosen, nb.i32)],
                f"{{ .reg .pred own; setp.ne.u32 own, $2, 0; @own {text} }}", f"l,{code},r,~{{memory}}")


def neighbours(how: Writing) -> bool:
    """Whether elements side by side in a coalesced tile may be written at once: they are in the array, and rows are aligned."""
    array = how.ref.arg
    return array.tma and array.order == "row" and how.axes[1] == array.ndim - 1 and how.statement[0].startswith("st.")


def _store_runs(builder: Any, how: Writing, value: Any, to: Block, at_once: bool) -> None:
    """A coalesced tile: what a lane has side by side in one statement, where the block starts at a multiple of that and the array
    has all its columns; else element by element. Rows that are not there are skipped by predicates."""
    tile, (top, left), shape, strides = how.tile, to.start, to.size, to.stride
    (row, column), vector = place_of(builder, tile), vector_of(tile.layout)
    where = places(tile.shape, tile.layout)
    nbytes = vector * tile.dtype.itemsize

    def chosen(*tests: Any) -> Any:
        found = to.inside
        for test in tests:
            found = builder.and_(found, test)
        return found

    def element(number: int, axis: int) -> Any:
        own, start = ((row, top), (column, left))[axis]
        return builder.add(builder.add(start, own), nb.const(where[number][axis] or 0))

    def runs() -> None:
        each = nbytes // 4
        parts = registers(builder, tile, value)
        if tile.dtype.itemsize == 1:  # two registers, of two elements each, are a word
            parts = [builder.or_(low, builder.shl(high, nb.const(16))) for low, high in zip(parts[::2], parts[1::2], strict=True)]
        for first in range(0, len(where), vector):
            r = element(first, 0)
            at = to.moved(to.moved(to.base, r, strides[0]), element(first, 1), strides[1])
            words = parts[first * len(parts) // len(where):][:each]
            words = [builder.bitcast(word, nb.i32) if word.type == nb.f32 else word for word in words]
            for n in range(0, each, 4):
                store_words(builder, "b32", builder.add(at, nb.const(4 * n, nb.i64)), words[n:n + 4],
                            builder.zext(chosen(builder.icmp_unsigned("<", r, shape[0])), nb.i32), "global")

    def elements() -> None:
        for number in range(len(where)):
            r, c = element(number, 0), element(number, 1)
            at = to.moved(to.moved(to.base, r, strides[0]), c, strides[1])
            _write(builder, how, at, _element(builder, how, value, number),
                   chosen(builder.icmp_unsigned("<", r, shape[0]), builder.icmp_unsigned("<", c, shape[1])))

    if not at_once:
        elements()
        return
    with builder.if_else(to.aligned(tile.shape[1], min(16, nbytes) // tile.dtype.itemsize)) as (quick, slow):
        with quick:
            runs()
        with slow:
            elements()


def _element(builder: Any, how: Writing, value: Any, number: int) -> Any:
    """An element of a lane, in the register class of the statement."""
    if packing(how.tile.dtype).per_register == 2:
        packed = builder.extract_value(value, number // 2)
        return builder.trunc(builder.lshr(packed, nb.const(8 * how.tile.dtype.itemsize)) if number % 2 else packed, nb.i16)
    word = builder.extract_value(value, number)
    return builder.bitcast(word, nb.f32) if word.type != nb.f32 and how.statement[1] == "f" else word
