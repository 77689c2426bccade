"""``c[rows, columns] = tile`` on the GPU."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

from ...arch.dimensions import Ints
from ...arch.dtypes import packing
from ...core import numba as nb
from ...core.numba import I32
from ...plan.plans import ArrayArg
from . import store as source
from .array_views_cuda import Block, indices_of, starts, stops
from .elements_cuda import write_element
from .elementwise_cuda import inside_of, place_of
from .indices import plain
from .indices_cuda import settled
from .layout_names import COLUMN, EITHER, ROW, ROWS
from .layouts import ACCUMULATOR, before
from .refs import whole_slices
from .refs_cuda import GmemType, LimitedType
from .scatter import all_of_tile, scattered, stored_form
from .scattered_shared_cuda import owner
from .store_ring import batches, put
from .store_ring_cuda import BatchType
from .store_rows import through_panel
from .store_rows_cuda import store_rows
from .tile_cuda import TileType, cast_to_store, in_pairs, registers
from .words_cuda import store_words


def writing(
    ref: GmemType,
    tile: TileType,
    axes: Ints,
    reduction: str = "",
    statement: str = "",
    parts: Sequence = (),
) -> Callable[..., None]:
    """Return ``emit(context, builder, array, start, tile)``, the code for `store.write_out`:
    `start` has a value for each dimension.

    `statement`: PTX of an address $0 and a value $1, what a lane does with an element; "" stores
    it. `parts`: the parts of the index, one of which may be a vector.
    """
    scatters = scattered(parts) is not None
    limited = [axis for axis, part in enumerate(parts) if isinstance(part, LimitedType)]
    ring = (
        not scatters
        and (ref.stores_alone or not limited)
        and (ref.role.computes or ref.takes_over)
        and source.through_tma(ref.arg, axes, tile.form)
    )
    place = nb.UniTuple(I32, ref.arg.ndim)
    stored = batches(BatchType, ref, tile, axes, reduction) if ring else []
    for batch in stored:
        nb.returns(put, (ref, batch, place))
    panel = (
        not scatters
        and not reduction
        and ref.role.computes
        and through_panel(ref.arg, axes, tile.form)
        and ref.unit.plan_row_stores()
    )
    bits = 8 * tile.dtype.itemsize
    how = statement or f"st.global.{'f' if bits >= 32 else 'b'}{bits} [$0], $1;"

    def emit(
        builder: Any,
        array: Any,
        start: Sequence,
        value: Any,
        last: Sequence = (),
    ) -> None:
        def by_ring() -> list:
            for batch in stored:
                builder.apply(
                    put,
                    (ref, batch, place),
                    (array, value, builder.make_tuple(place, start)),
                )
            return []

        def by_lanes() -> list:
            block = Block(builder, ref, array, start, axes, last, parts, tile.form)
            if panel:
                store_rows(builder, tile, value, block, int(ref.arg.order == "row"))
            else:
                _Lanes(builder, tile, value, block, how).store(ref.arg, axes)
            return []

        if stored and limited:
            whole = [
                builder.icmp_signed("<=", builder.add(start[axis], size), last[axis])
                for axis, size in zip(axes, tile.shape, strict=True)
                if axis in limited
            ]
            builder.one_of(functools.reduce(builder.and_, whole), by_ring, by_lanes)
        elif stored:
            by_ring()
        elif ref.role.computes:
            by_lanes()

    return emit


def _store(ref: Any, index: Any, tile: Any) -> Any:
    if not isinstance(ref, GmemType):
        return None
    given = plain(whole_slices(index))
    if source.plan_number(ref, given, tile):
        builder, args = yield nb.none
        if ref.role.computes:
            at = settled(builder, ref, args[0], index, args[1], True)
            write_element(builder, ref, args[0], at, args[2], tile)
        return
    stored, convert = cast_to_store(tile, ref.arg.dtype)
    parts = all_of_tile(given, stored)
    axes = source.plan(ref, parts, stored)
    laid = TileType(stored_form(stored.form, parts))
    write = writing(ref, laid, axes, parts=parts)
    known = ref.role.computes or source.takes_over(ref, axes, parts, stored.form)
    builder, args = yield nb.none
    at = (
        settled(builder, ref, args[0], index, args[1], True)
        if known
        else starts(builder, index, args[1])
    )
    write(
        builder,
        args[0],
        at,
        builder.cast(convert(builder, args[2]), stored, laid),
        stops(builder, index, args[1]),
    )


nb.overload(operator.setitem, _store)


class _Lanes:
    """A store in which each lane writes its own elements. Bounds checks are unsigned, so a negative
    index is outside."""

    def __init__(self, builder: Any, tile: TileType, value: Any, to: Block, statement: str) -> None:
        self.builder = builder
        self.tile = tile
        self.value = value
        self.to = to
        self.statement, self.stores = statement, statement.startswith("st.")
        self.run = tile.form.name.vector or tile.form.name.run
        self.indices = {
            axis: indices_of(builder, tile.form, axis, *vector)
            for axis, *vector in to.indices
            if tile.form.name.word in (ACCUMULATOR, ROWS)
        }
        """for a scatter: the index of each element of a lane, by dimension"""

    def store(self, array: ArrayArg, axes: Ints) -> None:
        # adjacent elements are contiguous, and rows are aligned
        side_by_side = array.order == "row" and axes[-1] == array.ndim - 1
        by_row = self.tile.form.settled(COLUMN).name.lanes
        side_by_side &= array.tma or bool(array.adjacent and by_row)
        side_by_side &= not self.to.indices and self.tile.shape[-1] % 2 == 0
        # red.global has vectors of float32 for `add`
        side_by_side &= self.stores or (
            bool(self.tile.form.name.vector) and "add.f32" in self.statement
        )
        if self.tile.form.name.vector or self.tile.form.name.word == ROWS:
            self._runs(side_by_side)
        elif self.tile.layout != ACCUMULATOR:
            self._line(side_by_side)
        else:
            with self.builder.if_then(self.to.inside):
                self._plane()
            self.builder.join()

    def _element(self, number: int) -> Any:
        """Return an element of a lane, in the register class that the statement takes: 32 bits are
        stored as float32."""
        builder, dtype = self.builder, self.tile.dtype
        if packing(dtype).per_register == 2:
            pair = builder.extract_value(self.value, number // 2)
            return builder.trunc(
                builder.lshr(pair, 8 * dtype.itemsize) if number % 2 else pair, nb.i16
            )
        word = builder.extract_value(self.value, number)
        return builder.bitcast(word, nb.f32) if word.type == nb.i32 and self.stores else word

    def _run(self, first: int, count: int, address: Any, chosen: Any) -> None:
        """Store `count` adjacent elements of a lane from element `first` on, with as few
        instructions as possible; lanes for which `chosen` is false skip them."""
        builder, itemsize = self.builder, self.tile.dtype.itemsize
        parts = registers(builder, self.tile, self.value)
        if count * itemsize == 2:
            words, kind = [builder.trunc(parts[first // 2], nb.i16)], "b16"
        else:
            if itemsize == 1:  # two registers of two elements each make a word
                parts = [builder.trunc(part, nb.i16) for part in parts]
                pack = "mov.b32 $0, {$1, $2};"
                parts = [builder.pure_asm(nb.i32, pair, pack) for pair in in_pairs(parts)]
            words, kind = parts[first * itemsize // 4 :][: count * itemsize // 4], "b32"
        words = [builder.bitcast(word, nb.i32) if word.type == nb.f32 else word for word in words]
        predicate = None if chosen is None else builder.zext(chosen)
        statement, _, own = self.statement.split()[0].rpartition(".")
        kind = kind if statement == "st.global" else own
        for n in range(0, len(words), 4):
            at = builder.add(address, 4 * n)
            store_words(builder, kind, at, words[n : n + 4], predicate, statement)

    def _plane(self) -> None:
        """Store an accumulator's elements, with branches for the bounds."""
        builder, tile, to = self.builder, self.tile, self.to
        (row, column), shape, strides = to.start, to.size, to.stride
        lane_row, lane_column = place_of(builder, tile)
        if 1 not in self.indices:
            lane_column = builder.add(column, lane_column)
        lines: dict[int, list[tuple[int, int]]] = {}
        for number, (down, right) in enumerate(tile.form.places):
            lines.setdefault(down or 0, []).append((number, right or 0))
        for down, elements in sorted(lines.items()):
            r = (
                self.indices[0][elements[0][0]]
                if 0 in self.indices
                else builder.add(builder.add(row, lane_row), down)
            )
            with builder.if_then(builder.icmp_unsigned("<", r, shape[0])):
                line = to.moved(to.base, r, strides[0])
                for number, right in elements:
                    c = (
                        self.indices[1][number]
                        if 1 in self.indices
                        else builder.add(lane_column, right)
                    )
                    with builder.if_then(builder.icmp_unsigned("<", c, shape[1])):
                        word = self._element(number)
                        address = to.moved(line, c, strides[1])
                        builder.execute([address, word], self.statement)

    def _line(self, at_once: bool) -> None:
        """Store a vector, or a tile of one row or column, from one of the lanes that hold each
        element. With `at_once`, lanes that share a row store their adjacent elements together."""
        builder, tile, to = self.builder, self.tile, self.to
        start, shape, strides = to.start, to.size, to.stride
        form = tile.form
        if to.indices:
            form = form.settled(to.indices[0][1].layout)
        form = form.settled(COLUMN)  # a column has fewer elements a lane than a row
        lanes, dim = form.name.lanes, int(form.name.word == ROW)
        first = before(tile.shape, form.layout) if tile.layout == EITHER else 0
        indices = indices_of(builder, form, *to.indices[0]) if to.indices else None
        own = place_of(builder, TileType(form))[dim]
        stores = owner(builder, form.record) or nb.const(1, nb.i1)
        base, inside = to.base, builder.and_(to.inside, stores)
        axis = 0 if len(start) == 1 else dim
        if len(start) == 2:  # the dimension in which the tile has a single element
            inside = builder.and_(
                inside, builder.icmp_unsigned("<", start[1 - axis], shape[1 - axis])
            )
            base = to.moved(base, start[1 - axis], strides[1 - axis])
        masks = inside_of(builder, form)

        one = nb.const(1, nb.i64)
        line = None if indices else to.moved(base, builder.add(start[axis], own), one)

        def each(count: int, begin: int = 0, end: int = len(form.places)) -> None:
            for i in range(begin, end, count):
                distance = form.places[i][dim] or 0
                if count > 1 and to.splits(form, distance, count):
                    each(1, i, i + count)
                    continue
                further = nb.const(distance)
                at = indices[i] if indices else builder.add(builder.add(start[axis], own), further)
                here = (
                    to.has(form, own, distance)
                    if dim and lanes and not indices
                    else builder.icmp_unsigned("<", at, shape[axis])
                )
                chosen = builder.and_(inside, here)
                chosen = chosen if masks[i] is None else builder.and_(chosen, masks[i])
                address = (
                    to.moved(line, further, one) if at_once else to.moved(base, at, strides[axis])
                )
                if count > 1:
                    self._run(i, count, address, chosen)
                else:
                    builder.emit_where(chosen, self.statement, address, self._element(first + i))

        if not (at_once and dim and lanes and first == 0):
            each(1)
            return
        with builder.if_else(to.whole_pairs(tile.shape, self.run)) as (runs, elements):
            with runs:
                each(self.run)
            with elements:
                each(1)

    def _runs(self, at_once: bool) -> None:
        """Store a tile that is coalesced or by rows. With `at_once`, a lane stores its adjacent
        elements together if the array has all of them or none; otherwise element by element.
        Predicates skip elements outside the array."""
        builder, tile, to = self.builder, self.tile, self.to
        (row, column), vector = place_of(builder, tile), self.run
        chosen = owner(builder, tile.form.record)
        mine = to.inside if chosen is None else builder.and_(to.inside, chosen)
        where = tile.form.places
        masks, lanes = inside_of(builder, tile.form), tile.form.name.lanes

        def place(number: int, stride: Any) -> tuple[Any, list]:
            """Return (address, whether the array has the row and the column) of an element, at a
            constant distance from one address for each row of a tile by rows."""
            down, right = (part or 0 for part in where[number])
            first, begin = (
                nb.const(0) if axis in self.indices else builder.add(to.start[axis], own)
                for axis, own in enumerate((row, column))
            )
            r = self.indices[0][number] if 0 in self.indices else builder.add(first, down)
            c = self.indices[1][number] if 1 in self.indices else builder.add(begin, right)
            tests = [
                builder.icmp_unsigned("<", n, size) for n, size in zip((r, c), to.size, strict=True)
            ]
            if self.indices:
                return to.moved(to.moved(to.base, r, to.stride[0]), c, stride), tests
            tests[1] = to.has(tile.form, column, right) if lanes else tests[1]
            line = to.moved(to.moved(to.base, first, to.stride[0]), begin, stride)
            line = to.moved(line, nb.const(down), to.stride[0])
            return to.moved(line, nb.const(right), stride), tests

        def inside(number: int, tests: list) -> Any:
            masked = [] if masks[number] is None else [masks[number]]
            return functools.reduce(builder.and_, [*tests, *masked], mine)

        def runs(checked: bool = True) -> None:
            for first in range(0, len(where), vector):
                if to.splits(tile.form, where[first][1], vector):
                    elements(range(first, first + vector))
                    continue
                at, tests = place(first, nb.const(1, nb.i64))
                here = inside(first, tests if lanes else tests[:1]) if checked else None
                self._run(first, vector, at, here)

        def by_rows() -> None:
            if self.stores:
                runs()
                return
            # ptxas branches around each reduction that has a predicate
            all_rows = builder.and_(mine, to.aligned(tile.shape, 1))
            with builder.if_else(all_rows) as (every, some):
                with every:
                    runs(checked=False)
                with some:
                    runs()

        def elements(numbers: Sequence[int] = range(len(where))) -> None:
            for number in numbers:
                at, tests = place(number, to.stride[1])
                word, chosen = self._element(number), inside(number, tests)
                builder.emit_where(chosen, self.statement, at, word)

        if not at_once:
            elements()
            return
        whole = (
            to.whole_pairs(tile.shape, vector)
            if lanes
            else to.aligned(tile.shape[1:], min(16 // tile.dtype.itemsize, vector))
        )
        with builder.if_else(whole) as (quick, slow):
            with quick:
                by_rows()
            with slow:
                elements()
