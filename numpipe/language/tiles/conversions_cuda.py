"""Layout casts on the GPU: one lane stores each element to shared memory, and all lanes load the
elements they need."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ...core import numba as nb
from ...core.formula_cuda import Value
from ...core.op import cuda_meaning
from ...diagnostics.errors import SpecError
from ...plan.context_cuda import ContextType
from ...plan.layout import swizzled
from . import conversions as source
from . import scattered_shared_cuda as anywhere
from .layouts import ACCUMULATOR, BLOCK, panel_width, run_offset
from .reduce_cuda import EXCHANGE, barrier
from .shared_tiles_cuda import converge, read_registers
from .store_ring import panel_layout
from .store_ring_cuda import registers_of, write_panel
from .tile_cuda import (
    TileType,
    assembled,
    from_words,
    part_of_either,
    registers,
    undefined,
)
from .words_cuda import load_words, store_words


@cuda_meaning(source.layout_cast)
def _layout_cast(np_: Any, site: Any, tile: Any, layout: Any) -> Any:
    result = TileType(source.plan_cast(np_, site, tile, layout))
    _, args = yield result(np_, site, result, layout)
    return args[2]


@nb.lower_cast(TileType, TileType)
def cast(builder: Any, have: TileType, result: TileType, value: Any) -> Any:
    """Move a tile to another layout, through shared memory where other lanes need its elements.

    Numba emits this cast if the type of an operation's parameter has another layout than the
    operand. The role and the kernel's shared memory are found in the context of the enclosing
    function, which is its first parameter or one of its captured values.
    """
    nbytes = source.moved_bytes(have.form, result.form)
    if not nbytes:
        return assembled(builder, result, part_of_either(builder, have, value, result))
    first = builder.context.fndesc.argtypes[0]
    known = first if isinstance(first, nb.BaseTuple) else (first,)
    np_ = next((each for each in known if isinstance(each, ContextType)), None)
    if np_ is None:
        raise SpecError(
            f"an operand {have.form} of a lambda would be moved to {result.layout} layout: fix: "
            "write a nested function, def f(…): return …, in place of the lambda"
        )
    if not np_.computes:
        return undefined(result)
    what = source.described(have.form, result.form)
    casts = [] if what in {text for _, text in np_.unit.casts} else [("an operand", what)]
    np_.unit.plan_exchange(nbytes, *casts)
    if not source.chunk_width(have.form, result.form):
        return assembled(builder, result, _by_element(builder, have, value, result))
    barrier(builder)
    way = _from_coalesced if result.layout == ACCUMULATOR else _to_coalesced
    return assembled(builder, result, way(builder, have, value, result))


def _by_element(builder: Any, have: TileType, value: Any, result: TileType) -> list:
    """Return a tile's registers in another layout: panel by panel, those that have an element store
    it, and all load theirs."""
    base, size = builder.external(EXCHANGE, nb.i32), have.dtype.itemsize
    none, panel = (nb.const(0), nb.const(0)), source.panel(have.form, result.form)
    if panel.flat:
        flat = panel.sides
        one = TileType(have.form.settled())
        parts = assembled(builder, one, part_of_either(builder, have, value, one))
        barrier(builder)
        anywhere.store(builder, panel, base, TileType(replace(one.form, shape=flat)), none, parts)
        barrier(builder)
        return anywhere.load(builder, panel, base, TileType(replace(result.form, shape=flat)), none)
    found: list = [None] * result.elements
    stored, loaded = (anywhere.panels(tile, panel.shape) for tile in (have, result))
    for origin in stored:
        barrier(builder)
        anywhere.store(builder, panel, base, have, none, value, stored[origin], origin)
        barrier(builder)
        address = anywhere.addresses(builder, panel, base, result, none, origin)
        for number in loaded[origin]:
            (found[number],) = anywhere.load_bytes(builder, address(number), size)
    return from_words(builder, result, found)


def _panels(tile: TileType) -> Iterator[tuple[int, int, int]]:
    """Return (row, column, columns) of each panel in which a coalesced tile is moved."""
    columns = panel_width(tile.form) // tile.dtype.itemsize
    return itertools.product(
        range(0, tile.shape[0], BLOCK), range(0, tile.shape[1], columns), (columns,)
    )


def _runs(builder: Any, tile: TileType, row: int, column: int) -> Iterator[tuple[int, int, Any]]:
    """Yield (first register, words, offset in the panel) for each of a lane's runs of at most 16
    bytes in a coalesced tile."""
    width, vector = panel_width(tile.form), tile.form.name.vector
    thread = Value(builder, builder.lane_index())
    where, each = tile.form.places, vector * tile.dtype.itemsize // 4
    for first in range(0, len(where), vector):
        r, c = where[first]
        if (r or 0) // BLOCK * BLOCK == row and (c or 0) == column:
            start = run_offset(tile.form, thread, (r or 0) - row)
            for n in range(0, each, 4):
                yield first * each // vector + n, min(4, each), swizzled(start + 4 * n, width).value


def _to_coalesced(builder: Any, have: TileType, value: Any, result: TileType) -> list:
    """Return an accumulator's registers in coalesced layout. In each panel, each warp stores its 16
    rows and loads whole lines."""
    base, found = builder.external(EXCHANGE, nb.i32), [None] * result.registers
    for row, column, columns in _panels(result):
        write_panel(builder, have, value, row, column, columns, base)
        converge(builder)
        for first, words, offset in _runs(builder, result, row, column):
            for i, word in enumerate(
                load_words(builder, nb.i32, "b32", builder.add(base, offset), words)
            ):
                found[first + i] = builder.bitcast(word, result.machine.element)
        converge(builder)
    return found


def _from_coalesced(builder: Any, have: TileType, value: Any, result: TileType) -> list:
    """Return a coalesced tile's registers in accumulator layout."""
    base, parts = builder.external(EXCHANGE, nb.i32), registers(builder, have, value)
    found: list = [None] * result.registers
    for row, column, columns in _panels(have):
        for first, words, offset in _runs(builder, have, row, column):
            run = [builder.bitcast(word, nb.i32) for word in parts[first : first + words]]
            store_words(builder, "b32", builder.add(base, offset), run)
        converge(builder)
        layout = panel_layout(columns, have.dtype.itemsize)
        found[registers_of(result, row, column, columns)] = read_registers(
            builder, layout, base, result.dtype
        )
        converge(builder)
    return found
