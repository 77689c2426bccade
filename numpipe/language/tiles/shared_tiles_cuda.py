"""Register tiles loaded from and stored to shared memory on the GPU: ldmatrix and stmatrix for
16-bit types, ld.shared and st.shared for others."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ...arch.dtypes import FLOAT32
from ...core import numba as nb
from ...core.formula_cuda import Value
from ...diagnostics.errors import SpecError
from ...intrinsics.ldmatrix_cuda import emit as ldmatrix
from ...plan.layout import Layout
from . import scattered_shared_cuda as anywhere
from . import shared_tiles as source
from .addresses import Access, accesses, detour, lane_offset
from .fence_order import before_access
from .refs import ASSIGNED, All
from .refs_cuda import AtType, SmemType, inside, view
from .tile_cuda import TileType, assembled, cast_to_store, undefined, words
from .words_cuda import load_words, store_words


def in_place(builder: Any, layout: Layout, registers: list) -> list:
    """Convert registers from a tile's order to the order in which accesses move them, or back; the
    swap is its own inverse (`detour`)."""
    turn = detour(layout)
    if turn is None:
        return registers
    bit = builder.and_(builder.thread_index(), 1 << turn.bit)
    other = builder.icmp_unsigned("!=", bit, 0)
    return [
        builder.select(other, registers[r ^ 4 * turn.groups], registers[r])
        for r in range(len(registers))
    ]


def write_registers(builder: Any, layout: Layout, address: Any, registers: list) -> None:
    """Store a tile's registers (`tile_cuda.words`) to shared memory."""
    registers = in_place(builder, layout, registers)
    for access, at in addresses(builder, layout, address):
        run = registers[access.first : access.first + access.count]
        if layout.itemsize != 2:
            store_words(builder, "u16" if layout.itemsize == 1 else "f32", at, run)
            continue
        names = ", ".join(f"${i + 1}" for i in range(access.count))
        kind = f"x{access.count}{'.trans' if layout.inner == 0 else ''}"
        builder.execute(
            [at, *run],
            f"stmatrix.sync.aligned.m8n8.{kind}.shared.b16 [$0], {{{names}}};",
        )


def read_registers(builder: Any, layout: Layout, address: Any, dtype: np.dtype) -> list:
    """Load a tile's registers from shared memory."""
    machine, kind = (nb.i32, "u16") if layout.itemsize == 1 else (nb.f32, "f32")
    found: list = [None] * (layout.shape[0] * layout.shape[1] * max(layout.itemsize, 2) // 512)
    for access, at in addresses(builder, layout, address):
        found[access.first : access.first + access.count] = (
            ldmatrix(builder, access.count, layout.inner == 0, at)
            if layout.itemsize == 2
            else load_words(builder, machine, kind, at, access.count)
        )
    register = nb.f32 if dtype == FLOAT32 else nb.i32
    return [builder.bitcast(part, register) for part in in_place(builder, layout, found)]


def addresses(
    builder: Any, layout: Layout, address: Any, matrices: bool = True
) -> Iterator[tuple[Access, Any]]:
    """Yield (access, address) for each access that a lane needs for the whole tile."""
    thread = builder.lane_index()
    start = builder.add(address, lane_offset(layout, Value(builder, thread), matrices).value)
    for access in accesses(layout, matrices):
        at = builder.xor(start, access.xor) if access.xor else start
        yield access, builder.add(at, access.add) if access.add else at


def converge(builder: Any) -> None:
    """Order previous operations of all lanes of a warp before the next operations of any of them:
    one lane can then arrive for all, and read what the others wrote (PTX ISA, "bar.warp.sync")."""
    builder.execute([], "bar.warp.sync 0xffffffff;")


# ---- tile[...] and tile[...] = value in a kernel's source
def part_of(tile: SmemType, index: Any) -> tuple[tuple, tuple]:
    """Return (parts of an index, where they start, None where unknown). Raises SpecError for a part
    outside the tile."""
    parts = source.chosen(tile, index)
    starts = tuple(0 if isinstance(part, All) or part.inert else part.start for part in parts)
    if tile.role.computes:
        source.check_part(tile, parts, starts, False)
    return parts, starts


def starts_of(
    builder: Any, tile: SmemType, index: Any, parts: tuple, value: Any
) -> tuple[Any, Any]:
    """Return (row, column) at which a part of a tile starts, as int32."""
    values = (
        builder.unpack_tuple(value) if isinstance(index, nb.BaseTuple) else [value] * len(parts)
    )
    found = [
        nb.const(0) if isinstance(part, All) else of for part, of in zip(parts, values, strict=True)
    ]
    return (nb.const(0), found[0]) if tile.layout.flat else (found[0], found[1])


def _either(
    builder: Any,
    tile: SmemType,
    starts: tuple,
    at: tuple[Any, Any],
    rows: Callable[[], list],
    elements: Callable[[], list],
) -> list:
    """Access a part of a tile by rows if it starts where the swizzle pattern repeats, else by
    elements. If only the running kernel knows that, it has code for both."""
    units = (tile.layout.per_panel, 8) if tile.layout.inner == 0 else (8, tile.layout.per_panel)
    tests = [
        builder.icmp_unsigned("==", builder.and_(value, unit - 1), 0)
        for start, value, unit in zip(starts, at, units, strict=True)
        if start is None
    ]
    if not tests:
        return rows()
    return builder.one_of(functools.reduce(builder.and_, tests), rows, elements)  # type: ignore[no-any-return]


def _get_item(whole: Any, index: Any) -> Any:
    if not isinstance(whole, SmemType):
        return None
    parts, starts = part_of(whole, index)
    result = TileType(source.load_form(whole, parts))
    quick = source.by_rows(whole, result.form, parts, starts)
    part, address = view(whole, index) if quick else (whole, lambda builder, base, _: base)
    builder, args = yield result
    if not whole.role.computes:
        return undefined(result)
    builder.apply(before_access, (whole,), (args[0],))
    place = inside(builder, whole, index, args[1], "tile[…]")
    at = starts_of(builder, whole, index, parts, place)

    def rows() -> list:
        return read_registers(builder, part.layout, address(builder, args[0], place), whole.dtype)

    def elements() -> list:
        even = starts[-1] is not None and starts[-1] % 2 == 0
        return anywhere.load(builder, whole.layout, args[0], result, at, even)

    found = _either(builder, whole, starts, at, rows, elements) if quick else elements()
    converge(builder)
    return assembled(builder, result, found)


def _set_item(whole: Any, index: Any, value: Any) -> Any:
    if isinstance(whole, AtType):
        raise SpecError(ASSIGNED)
    if not isinstance(whole, SmemType):
        return None
    parts, starts = part_of(whole, index)
    stored, convert = cast_to_store(value, whole.dtype)
    quick = source.by_rows(whole, source.check_store(whole, parts, stored), parts, starts)
    part, address = view(whole, index) if quick else (whole, lambda builder, base, _: base)
    builder, args = yield nb.none
    if not whole.role.computes:
        return
    builder.apply(before_access, (whole,), (args[0],))
    place, value = inside(builder, whole, index, args[1], "tile[…]"), convert(builder, args[2])
    at = starts_of(builder, whole, index, parts, place)

    def rows() -> list:
        write_registers(
            builder, part.layout, address(builder, args[0], place), words(builder, stored, value)
        )
        return []

    def elements() -> list:
        layout = source.layout_of_rows(whole, stored.form)
        anywhere.store(builder, layout, args[0], stored, at, value)
        return []

    if quick:
        _either(builder, whole, starts, at, rows, elements)
    else:
        elements()
    converge(builder)


nb.overload(operator.getitem, _get_item)
nb.overload(operator.setitem, _set_item)
