"""Register tiles from and to shared memory element by element, on the GPU.

Loads are LLVM's, not statements, so that those which nothing uses are dropped, as of a vector that may lie both ways.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...core import numba as nb
from ...plan.layout import Layout, swizzled
from .layouts import COLUMN, EITHER, ROW, own_place, places
from .tile_cuda import TileType, from_words, registers, to_words
from .words_cuda import Value, store_words

Start = tuple[Any, Any]
"""row and column at which a part of a tile starts, int32"""


def addresses(builder: Any, layout: Layout, base: Any, tile: TileType, start: Start) -> Callable[[int], Any]:
    """Return a function that gives the address of an element of a lane, by its number in `layouts.places`.

    A swizzle repeats every 8 lines and every panel: what an element is further off than that is added to the address.
    """
    row, column = own_place(tile.form, Value(builder, builder.and_(nb.thread_index(builder), nb.const(127))))
    first, known = (Value(builder, start[0]), Value(builder, start[1])), {}
    where, flat = places(tile.shape, tile.layout), len(tile.shape) == 1
    panel = layout.shape[1] if layout.flat else layout.per_panel

    def address(number: int) -> Any:
        down, right = where[number]
        far = [0, down if right is None else right] if flat else [down or 0, right or 0]
        own = [Value(builder, nb.const(0)), row if right is None else column] if flat else [row, column]
        moved = [far[axis] // period * period for axis, period in enumerate((panel, 8) if layout.inner == 0 else (8, panel))]
        near = tuple(distance - part for distance, part in zip(far, moved, strict=True))
        key = (*near, flat and right is None)
        if key not in known:
            at = layout.offset(*(each + begin + distance for each, begin, distance in zip(own, first, near, strict=True)))
            known[key] = swizzled(at + Value(builder, base), layout.width).value
        return builder.add(known[key], nb.const(layout.offset(*moved)))

    return address


def load(builder: Any, layout: Layout, base: Any, tile: TileType, start: Start) -> list[Any]:
    """Return the registers of a part of a tile."""
    address, machine = addresses(builder, layout, base, tile, start), nb.ir.IntType(8 * tile.dtype.itemsize)
    words = []
    for number in range(tile.elements):
        pointer = builder.inttoptr(address(number), nb.ir.PointerType(machine, 3))
        found = builder.load(pointer, align=tile.dtype.itemsize)
        words.append(found if machine == nb.i32 else builder.zext(found, nb.i32))
    return from_words(builder, tile, words)


def owner(builder: Any, layout: str) -> Any:
    """Return whether a lane is the one of those that hold its elements that stores them; None where each has its own."""
    thread = builder.and_(nb.thread_index(builder), nb.const(127))
    if layout == ROW:
        return builder.icmp_unsigned("<", thread, nb.const(4))
    return builder.icmp_unsigned("==", builder.and_(thread, nb.const(3)), nb.const(0)) if layout == COLUMN else None


def store(builder: Any, layout: Layout, base: Any, tile: TileType, start: Start, value: Any) -> None:
    """Store a tile to a part of another; of a vector in either layout the row, as warp 0 has it."""
    address, words = addresses(builder, layout, base, tile, start), to_words(builder, tile, registers(builder, tile, value))
    lies = ROW if tile.layout == EITHER else tile.layout
    chosen = owner(builder, lies)
    chosen = None if chosen is None else builder.zext(chosen, nb.i32)
    for number in range(len(places(tile.shape, lies))):
        word = words[number] if tile.dtype.itemsize == 4 else builder.trunc(words[number], nb.i16)
        store_words(builder, f"b{8 * tile.dtype.itemsize}", address(number), [word], chosen)
