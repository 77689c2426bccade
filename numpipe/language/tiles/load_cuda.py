"""``c[rows, columns]`` on the GPU: ordinary loads, ``ld.global``, of one or two elements.

They are LLVM loads, not inline PTX, so that unused loads are dropped: a vector is loaded both along
the columns and along the rows. ``ld.global.nc`` is never used: a kernel may start while the
previous kernel in the stream is still writing, and that path does not see changes to data that it
has cached.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

from ...arch.dtypes import BFLOAT16, FLOAT32, INT32, INT64
from ...core import numba as nb
from ...core.arith_cuda import type_of
from ...core.inert import NoValue
from ...core.inert_cuda import InertType
from ...core.op import cuda_meaning
from . import load as source
from .array_views_cuda import Block, indices_of, stops
from .elementwise import Plan
from .elementwise_cuda import each_way, elements, place_of
from .fence_order import before_access
from .indices import plain
from .indices_cuda import settled
from .layouts import Form, laid
from .refs import whole_slices
from .refs_cuda import GmemType, SmemType
from .scattered_shared_cuda import load as load_anywhere
from .shared_tiles import layout_of_rows
from .shared_tiles_cuda import converge
from .tile_cuda import TileType, assembled, from_runs, from_words, in_pairs, undefined
from .words_cuda import words_of


def _packed(builder: Any, tile: TileType, two: Sequence) -> list:
    """Return the registers of two elements that were loaded separately."""
    return from_words(builder, tile, [word for each in two for word in words_of(builder, each)])


def _loaded(builder: Any, block: Block, tile: TileType) -> Any:
    """Load a tile; a deferred one in each of its layouts, of which LLVM drops what is not used."""
    forms = each_way(tile.form)
    fragments = [form for form in forms if not form.name.lanes]
    groups = ([fragments] if fragments else []) + [[form] for form in forms if form.name.lanes]
    return assembled(
        builder, tile, [part for group in groups for part in _registers(builder, block, group)]
    )


def _registers(builder: nb.Builder, block: Block, forms: list[Form], whole: bool = False) -> list:
    """Load a tile in layouts whose lanes have the same place as their own: in pairs if the first
    column is even and the array has all columns, else by elements. A tile that is `whole` is inside
    the array, and starts at an even column if pairs may be loaded at once."""
    first_form = forms[0]
    tile = TileType(first_form)
    row, column = place_of(builder, tile)
    flat, run = len(first_form.shape) == 1, first_form.name.vector or first_form.name.run
    width, lanes = first_form.shape[-1], first_form.name.lanes
    where = [place for form in forms for place in form.places]
    beyond = [form.outside(place)[1] for form in forms for place in form.places]
    gathered = {
        axis: [index for form in forms for index in indices_of(builder, form, axis, *vector)]
        for axis, *vector in block.indices
    }

    def address(element: int) -> tuple[Any, Any]:
        """Return (address, inside) of an element. An element outside the array gets the address
        of the first element."""
        rows, columns = where[element]
        along = (
            [(0, column if rows is None else row, columns if rows is None else rows)]
            if flat
            else [
                (0, nb.const(0) if rows is None else row, rows or 0),
                (1, nb.const(0) if columns is None else column, columns or 0),
            ]
        )
        at, inside = block.base, block.inside
        for axis, own, distance in along:
            n = (
                gathered[axis][element]
                if axis in gathered
                else (builder.add(builder.add(block.start[axis], own), distance or 0))
            )
            inside = builder.and_(inside, builder.icmp_unsigned("<", n, block.size[axis]))
            at = block.moved(at, n, block.stride[axis])
        return builder.select(inside, at, block.base), inside

    lines: dict[Any, tuple[Any, Any]] = {}
    yes = nb.const(1, nb.i1)

    def by_row(element: int, pair: bool = False) -> tuple[Any, Any]:
        """Return `address` of an element, or of a pair that is inside the array or outside it as a
        whole: one address per row, plus an offset. A row outside the array is read as its first."""
        rows, columns = where[element]
        stride = nb.const(1, nb.i64) if pair else block.stride[-1]
        if (rows, pair) not in lines:
            at = block.moved(block.base, builder.add(block.start[-1], column), stride)
            inside = block.inside
            if not flat:
                first = builder.add(block.start[0], 0 if rows is None else row)
                down = nb.const(rows or 0)
                here = builder.icmp_unsigned("<", builder.add(first, down), block.size[0])
                inside = builder.and_(inside, here)
                line = block.moved(block.moved(at, first, block.stride[0]), down, block.stride[0])
                at = line if whole else builder.select(inside, line, at)
            lines[rows, pair] = at, yes if whole else inside
        line, inside = lines[rows, pair]
        outside = beyond[element] and (pair or whole)
        here = yes
        if outside or not whole:
            here = block.has(first_form, column, columns or 0, outside)
        at = block.moved(line, nb.const(columns or 0), stride)
        return builder.select(here, at, block.base), builder.and_(inside, here)

    rowwise = bool(lanes) and not gathered and where[0][1] is not None
    one: Any = by_row if rowwise else address

    def splits(first: int) -> bool:
        right = where[first][1]
        return right is None or block.splits(first_form, right, run)

    def registers(pairs: bool) -> list:
        found: dict[int, list] = {}
        lines.clear()  # each branch computes its own addresses
        # both branches move some pairs by elements. If these came first, LLVM would load them
        # before the branch, and the other loads would wait for them
        for first in sorted(range(0, len(where), run), key=lambda first: pairs and splits(first)):
            if pairs and not splits(first):
                at, inside = by_row(first, True) if rowwise else address(first)
                words = words_of(builder, block.load(at, inside, run))
                found[first] = from_runs(builder, tile, words, run)
                continue
            found[first] = [
                register
                for pair in range(first, first + run, 2)
                for register in _packed(
                    builder, tile, [block.load(*one(element)) for element in (pair, pair + 1)]
                )
            ]
        return [register for first in sorted(found) for register in found[first]]

    pairs = block.pairs and not width % run and (rowwise or block.lines)

    def in_pairs(test: Callable, shape: Sequence[int] = first_form.shape) -> list:
        if not pairs:
            return registers(False)
        return builder.one_of(test(shape, run), lambda: registers(True), lambda: registers(False))

    if all(place[1] is None for place in where):
        return registers(False)
    if whole:
        return in_pairs(block.even)
    if not rowwise:
        return in_pairs(block.aligned, (width,))
    if block.room:
        return in_pairs(block.whole_pairs)
    return builder.one_of(
        builder.and_(block.inside, block.aligned(first_form.shape, run if pairs else 1)),
        lambda: _registers(builder, block, forms, True),
        lambda: in_pairs(block.whole_pairs),
    )


def _load(ref: Any, index: Any) -> Any:
    if not isinstance(ref, GmemType):
        return None
    parts, arg = plain(whole_slices(index)), ref.arg
    if (form := source.element_form(ref, parts)) is not None:
        builder, args = yield TileType(form)
        return _elements(builder, ref, index, args, form)
    axes, form = source.plan(ref, parts)
    tile = None if form is None else TileType(form)
    unknown = source.without_value(arg, parts) if tile is None and not ref.role.computes else ""
    memory = not ref.role.computes and (tile is not None or bool(unknown))
    result = tile or (InertType(unknown) if memory else type_of(source.number_type(arg.dtype)))
    builder, args = yield result
    if memory:
        return nb.nothing if tile is None else undefined(tile)
    start = settled(builder, ref, args[0], index, args[1])
    block = Block(builder, ref, args[0], start, axes, stops(builder, index, args[1]), parts, form)
    if tile is not None:
        return _loaded(builder, block, tile)
    if ref.by_lane and block.dtype.itemsize in (2, 4):
        bits = _own_element(block)
    else:
        bits = block.load(block.base, block.inside)  # the same element in all lanes
    if block.dtype == BFLOAT16:
        return builder.bitcast(builder.shl(builder.zext(bits), 16), nb.f32)
    kind = {FLOAT32: nb.f32, INT64: nb.i64}.get(block.dtype)
    return builder.bitcast(bits, kind) if kind else bits


def _own_element(block: Block) -> Any:
    """Load a lane's element, or return 0 outside the array. A predicate of the load, unlike a
    selection among its results, does not wait for the element, so loads overlap."""
    builder, bits = block.builder, 8 * block.dtype.itemsize
    return builder.emit_asm(
        nb.ir.IntType(bits),
        [block.base, builder.zext(block.inside)],
        "{ .reg .pred own; setp.ne.u32 own, $2, 0; "
        f"mov.b{bits} $0, 0; @own ld.global.b{bits} $0, [$1]; }}",
    )


def _elements(builder: Any, ref: GmemType, index: Any, args: Sequence, form: Form) -> Any:
    """Gather the elements of a tile at tiles of indices."""
    given = whole_slices(index)
    tile, parts = TileType(form), plain(given)
    if not ref.role.computes or any(isinstance(part, NoValue) for part in parts):
        return undefined(tile)
    start = settled(builder, ref, args[0], index, args[1])
    axes = tuple(axis for axis, part in enumerate(parts) if isinstance(part, TileType))
    block = Block(builder, ref, args[0], start, axes)
    indices, clipped = [], []
    for axis in axes:
        want = TileType(laid(parts[axis].form, form.shape, form.layout))
        moved = builder.cast(start[axis], parts[axis], want)
        # a clipped index is inside, unless the array may be empty; a cast does not keep the
        # registers of a lane that are outside the tile
        sizes = ref.arg.sizes if getattr(given[axis], "mode", "") == "clip" else ()
        clipped.append(any(sizes[axis : axis + 1]) and want == parts[axis])
        indices.append(elements(builder, want, moved, Plan(INT32, form)))
    found, strides = [], list(block.stride)
    if ref.arg.tma and ref.arg.order == "row" and axes[-1] == ref.arg.ndim - 1:
        strides[-1] = nb.const(1, nb.i64)
    for places in zip(*indices, strict=True):
        at, inside = block.base, block.inside
        for sure, n, size, stride in zip(clipped, places, block.size, strides, strict=True):
            if not sure:
                here = builder.icmp_unsigned("<", n, size)
                inside, n = builder.and_(inside, here), builder.select(here, n, 0)
            at = block.moved(at, n, stride)
        found.append(block.load(at, inside))
    packs = [part for pair in in_pairs(found) for part in _packed(builder, tile, pair)]
    return assembled(builder, tile, packs)


nb.overload(operator.getitem, _load)


@cuda_meaning(source.load_tile)
def _load_tile(view: Any, layout: Any = None, columns: Any = None) -> Any:
    tile = TileType(source.load_form(view, layout, columns))
    given = layout, nb.none if columns is None else columns
    if isinstance(view, SmemType):
        builder, args = yield tile(view, *given)
        if not view.role.computes:
            return undefined(tile)
        builder.apply(before_access, (view,), (args[0],))
        start = nb.const(0), nb.const(0)
        parts = load_anywhere(builder, layout_of_rows(view, tile.form), args[0], tile, start, True)
        converge(builder)
        return assembled(builder, tile, parts)
    ref = view.ref
    builder, args = yield tile(view, *given)
    if not ref.role.computes:
        return undefined(tile)
    fields = builder.fields(view, args[0])
    start = builder.unpack_tuple(fields.start)
    return _loaded(builder, Block(builder, ref, fields.ref, start, view.axes), tile)
