"""Register tiles loaded from and stored to shared memory element by element, on the GPU.

Loads are LLVM loads, not inline PTX, so that unused loads are dropped, such as one of the two of a
vector that may have either layout.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

from ...arch.dimensions import Ints
from ...arch.register_layouts import RegisterLayout
from ...core import numba as nb
from ...core.formula_cuda import Value
from ...plan.layout import Layout, swizzled
from .elementwise_cuda import each_way, inside_of
from .layout_names import EITHER
from .tile_cuda import TileType, from_runs, from_words, part_of_either, to_words
from .words_cuda import store_words, type_of_bytes, words_of

Start = tuple[Any, Any]
"""The row and column at which a part of a tile starts, int32."""


def addresses(
    builder: Any,
    layout: Layout,
    base: Any,
    tile: TileType,
    start: Start,
    origin: tuple[int, int] = (0, 0),
) -> Callable[[int], Any]:
    """Return a function that gives the address of an element of a lane, by its number in
    `layouts.places`.

    `origin`: the row and column of the tile that lie at `start`.

    A swizzle repeats every 8 lines and every panel, so whole multiples of these are added to the
    address as constants.
    """
    row, column = tile.form.record.own(Value(builder, builder.lane_index()))
    first, known, zero = [Value(builder, at) for at in start], {}, Value(builder, nb.const(0))
    where = tile.form.places
    own: Any = [
        zero if part is None else at for part, at in zip(where[0], (row, column), strict=True)
    ]
    if flat := len(tile.shape) == 1:
        own = [zero, row if where[0][1] is None else column]
    # an offset known at compile time is part of the instruction
    panel = 1 if layout.flat else layout.per_panel

    def address(number: int) -> Any:
        down, right = (part or 0 for part in where[number])
        far = [0, down + right] if flat else [down - origin[0], right - origin[1]]
        moved = [
            far[axis] // period * period
            for axis, period in enumerate((panel, 8) if layout.inner == 0 else (8, panel))
        ]
        near = tuple(distance - part for distance, part in zip(far, moved, strict=True))
        if near not in known:
            at = layout.offset(
                *(
                    each + begin + distance
                    for each, begin, distance in zip(own, first, near, strict=True)
                )
            )
            known[near] = swizzled(at + Value(builder, base), layout.width).value
        return builder.add(known[near], layout.offset(*moved))

    return address


def panels(tile: TileType, sides: Ints) -> dict[tuple[int, int], list[int]]:
    """Return the elements of a lane that lie in each panel of a tile, keyed by the panel's first
    row and column."""
    found: dict[tuple[int, int], list[int]] = {}
    for number, place in enumerate(tile.form.places):
        row, column = ((at or 0) // side * side for at, side in zip(place, sides, strict=True))
        found.setdefault((row, column), []).append(number)
    return found


def load_bytes(builder: Any, address: Any, nbytes: int) -> list:
    """Load a number of bytes from the CTA's own shared memory as 32-bit integers."""
    pointer = builder.inttoptr(address, nb.ir.PointerType(type_of_bytes(nbytes), 3))
    return words_of(builder, builder.load(pointer, align=nbytes))


def load(
    builder: Any,
    layout: Layout,
    base: Any,
    tile: TileType,
    start: Start,
    even: bool = False,
    load_at: Callable[[Any, Any, int], list] = load_bytes,
) -> list:
    """Return the registers of a part of a tile. `even`: the part starts at an even column, so that
    pairs of columns are loaded at once. `load_at` loads a number of bytes from an address,
    as `load_bytes` does.

    For 32-bit elements by rows, whose lanes have every other word, lanes 16 … 31 load the second
    element of a pair first, to avoid the banks of the other lanes.
    """
    if tile.layout == EITHER:  # in each of its layouts, of which LLVM drops what is not used
        ways = [TileType(form) for form in each_way(tile.form)]
        every = [load(builder, layout, base, way, start, even, load_at) for way in ways]
        return [register for found in every for register in found]
    place, dtype = addresses(builder, layout, base, tile, start), tile.dtype
    masks = inside_of(builder, tile.form)

    def address(number: int) -> Any:
        inside = masks[number]
        return place(number) if inside is None else builder.select(inside, place(number), base)

    pairs = layout.inner == 1 and 1 in tile.form.record.axes
    if pairs and even and tile.shape[-1] % 2 == 0:
        run = math.gcd(tile.form.name.run, tile.shape[-1], 16 // dtype.itemsize)
        found = [
            part
            for number in range(0, tile.elements, run)
            for part in load_at(builder, address(number), run * dtype.itemsize)
        ]
        return from_runs(builder, tile, found, run)
    words = []
    if pairs and dtype.itemsize == 4 and tile.form.name.lanes:
        late = builder.icmp_unsigned("!=", builder.and_(builder.thread_index(), 16), 0)
        for number in range(0, tile.elements, 2):
            one, two = (
                load_at(
                    builder, builder.select(late, address(number + 1 - i), address(number + i)), 4
                )[0]
                for i in (0, 1)
            )
            words += [builder.select(late, two, one), builder.select(late, one, two)]
        return from_words(builder, tile, words)
    for number in range(tile.elements):
        words += load_at(builder, address(number), dtype.itemsize)
    return from_words(builder, tile, words)


def owner(builder: Any, layout: RegisterLayout) -> Any:
    """Return whether this lane is the one, among the lanes that hold its elements, that stores
    them; None if each element has a single lane."""
    if not layout.copies:
        return None
    other = builder.and_(builder.lane_index(), layout.copies)
    return builder.icmp_unsigned("==", other, 0)


def store(
    builder: Any,
    layout: Layout,
    base: Any,
    tile: TileType,
    start: Start,
    value: Any,
    numbers: Sequence[int] | None = None,
    origin: tuple[int, int] = (0, 0),
) -> None:
    """Store a tile, or some of its elements, to a part of another. For a vector in either layout,
    store the row as warp 0 has it."""
    one = TileType(tile.form.settled())
    address = addresses(builder, layout, base, one, start, origin)
    words = to_words(builder, one, part_of_either(builder, tile, value, one))
    own, masks = owner(builder, one.form.record), inside_of(builder, one.form)
    for number in range(one.elements) if numbers is None else numbers:
        word = words[number] if tile.dtype.itemsize == 4 else builder.trunc(words[number], nb.i16)
        tests = [test for test in (own, masks[number]) if test is not None]
        chosen = builder.zext(functools.reduce(builder.and_, tests)) if tests else None
        store_words(builder, f"b{8 * tile.dtype.itemsize}", address(number), [word], chosen)
