"""Which elements of a register tile each lane of the warpgroup holds.

Lane ``4 g + t`` of warp w has its first element at row ``16 w + g`` and column ``2 t``. The
distances to its other elements do not depend on the lane, so a layout is a list of (row, column)
distances, one for each element of a lane, in register order:

===========  ============  ==============================================  =========================
layout       shape         elements of a lane                              lanes that hold each
===========  ============  ==============================================  =========================
accumulator  (M, N)        64 b + 8 h, 8 j + o   for block b, columns j,   one
                           half h, odd o
row          (N,), (1, N)  8 j + o, along the columns                      32: all g, all warps
column       (M,), (M, 1)  64 b + 8 h, along the rows                      4: a quad, all t
either       (n,)          those of a row, then those of a column          as above; unused elements
                                                                           are not computed
coalesced v  (M, N)        64 b + 32/L s, L v p + i   for block b, panel   one
                           p, step s, i < v
rows L, …    (M, N)        see `row_layouts`                               one or several
===========  ============  ==============================================  =========================

In a coalesced layout, the first element of lane l of warp w is at row ``16 w + l / L`` and column
``v (l % L)``. A lane has v adjacent elements (16 bytes of the type that was loaded), which one
instruction loads or stores. The L lanes of a row (8, or fewer for short rows) have 128 bytes. Each
warp has the same rows as in an accumulator.

"accumulator" is the layout of ``wgmma.mma_async.m64nN`` (PTX ISA, "Register Fragments for wgmma").
Packed to 16 bits, registers ``4 i … 4 i + 3`` of a block of 64 rows are the A operand of its i-th
k16 step, without any movement.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...arch.products import WGMMA
from ...arch.register_layouts import WARP, WARPS, Bits, Place, RegisterLayout, Registers
from ...diagnostics.errors import SpecError
from . import row_layouts
from .row_layouts import ROWS, lanes_for, lanes_of, word_of

FRAGMENTS = WGMMA.accumulator
"""layout record of two-dimensional tiles, unless they are cast or small"""
ACCUMULATOR, ROW, COLUMN, EITHER = FRAGMENTS.name, "row", "column", "either"
COALESCED = "coalesced"
BLOCK, GROUP = FRAGMENTS.units
"""the numbers of rows and columns after which an accumulator's layout repeats"""
WIDEST = WGMMA.widest
"""the largest number of columns of an accumulator"""


def coalesced(vector: int) -> str:
    """Return the name of the coalesced layout whose lanes have `vector` adjacent elements."""
    return f"{COALESCED} {vector}"


def vector_of(layout: str) -> int:
    """Return the number of adjacent elements of a lane in a coalesced layout; 0 for other
    layouts."""
    return int(layout.removeprefix(COALESCED)) if layout.startswith(COALESCED) else 0


def lanes_across(columns: int, vector: int) -> int:
    """Return how many lanes share a row of a coalesced tile; together they have at most 128 bytes
    of the type that was loaded."""
    return min(8, columns // vector)


def coalesced_form(form: Form, what: str) -> Form:
    """Return a tile's form in the coalesced layout of its type. Raises SpecError if it has none."""
    if form.dtype.itemsize == 1:
        raise SpecError(
            f"{what}: {form.dtype} has no coalesced layout; fix: cast a tile of 16 or 32 bits, "
            "then convert it with astype"
        )
    vector = 16 // form.dtype.itemsize
    columns, row = form.shape[-1], form.shape[-1] * form.dtype.itemsize
    if form.layout != ACCUMULATOR or (row not in (32, 64) and row % 128):
        raise SpecError(
            f"{what}: the rows of a coalesced tile (M, N) have 32, 64 or a multiple of 128 bytes, "
            f"got {form.dtype} {form.shape}, rows of {row} bytes"
            if form.layout == ACCUMULATOR
            else f"{what}: only two-dimensional tiles have a coalesced layout, got {form}"
        )
    assert columns % vector == 0
    return Form(form.shape, form.dtype, coalesced(vector))


def only_accumulator(form: Form, what: str) -> None:
    """Raise SpecError for a coalesced tile, for operations that require an accumulator's layout."""
    if vector_of(form.layout) or lanes_of(form.layout):
        fix = (
            f'numpipe.layout_cast(tile, "{ACCUMULATOR}")'
            if fits(form.shape)
            else f'numpipe.layout_cast(v, "{word_of(form.layout)}")'
            if len(form.shape) == 1
            else "use a tile of 64 x j rows and at most 256 columns"
        )
        raise SpecError(
            f"{what}: expected a tile in accumulator layout, got {form.shape} in {form.layout} "
            f"layout; fix: {fix}"
        )


def fits(shape: tuple[int, ...]) -> bool:
    """Return whether an accumulator can have this two-dimensional shape."""
    return (
        len(shape) == 2
        and shape[0] >= BLOCK
        and not shape[0] % BLOCK
        and GROUP <= shape[1] <= WIDEST
        and not shape[1] % GROUP
    )


def by_rows(form: Form, layout: str, what: str) -> Form:
    """Return a tile's form in a layout by rows: "rows" or "rows 32" for a tile, "row 32" or "column
    32" for a vector.

    Raises SpecError for unknown layouts, and for shapes that the layout does not support.
    """
    word, shape = word_of(layout), form.shape
    lanes = lanes_for(shape[-1]) if layout == ROWS else lanes_of(layout)
    if lanes not in row_layouts.LANES or (word == ROWS) != (len(shape) == 2):
        raise SpecError(
            f"{what}: the layout by rows of a {'vector' if len(shape) == 1 else 'tile (M, N)'} "
            "must be "
            + ('"row L" or "column L"' if len(shape) == 1 else '"rows" or "rows L"')
            + f", where L lanes (4, 8, 16 or 32) share a row, got {layout!r}"
        )
    if (word != "column" and shape[-1] % (2 * lanes)) or (word != "row" and shape[0] % 8):
        raise SpecError(
            f"{what}: {shape} has no layout {layout!r}, which needs a multiple of {2 * lanes} "
            "columns (two for each lane that shares a row) and a multiple of 8 rows"
        )
    return Form(shape, form.dtype, f"{word} {lanes}")


@dataclass(frozen=True)
class Form:
    """Shape in elements, dtype and layout of a register tile."""

    shape: tuple[int, ...]
    dtype: np.dtype
    layout: str = ACCUMULATOR

    @property
    def record(self) -> RegisterLayout:
        """The record of the form's layout; see `record`."""
        return record(self.shape, self.layout)

    @property
    def places(self) -> tuple[Place, ...]:
        """The elements of a lane; see `places`."""
        return places(self.shape, self.layout)

    def __str__(self) -> str:
        return f"{self.dtype} {self.shape}" + (
            f" ({self.layout} layout)" if len(self.shape) == 1 or " " in self.layout else ""
        )


def said(shape: object, dtype: object, layout: str) -> str:
    """Return a tile's type as messages print it, with the layout unless the shape determines it.

    >>> said((64,), "float32", COLUMN), said((64, 64), "float32", ACCUMULATOR)
    ('tile (64,) float32 (column layout)', 'tile (64, 64) float32')
    """
    by_shape = " " not in layout and ("(1, " in str(shape) or ", 1)" in str(shape))
    return f"tile {shape} {dtype}" + (
        "" if layout == ACCUMULATOR or by_shape else f" ({layout} layout)"
    )


def cast_for(one: str, other: str) -> str:
    """Return the layout to which one of two tiles should be cast so that both have the same.

    >>> cast_for(ROW, COLUMN), cast_for(coalesced(8), ACCUMULATOR)
    ('column', 'accumulator')
    """
    return (
        other if lanes_of(other) else ACCUMULATOR if vector_of(one) or vector_of(other) else other
    )


def joined(one: Form, other: Form) -> Form | None:
    """Return the form that two tiles can both take at no cost, or None. A vector in either layout
    takes the other tile's form.

    >>> vector, row, column = (
    ...     Form((64,), np.dtype(np.float32), of) for of in (EITHER, ROW, COLUMN)
    ... )
    >>> joined(vector, row) == row, joined(column, vector) == column, joined(row, column)
    (True, True, None)
    """
    if (one.shape, one.dtype) != (other.shape, other.dtype) or EITHER not in (
        one.layout,
        other.layout,
    ):
        return one if one == other else None
    return other if one.layout == EITHER else one


def layout_of(shape: tuple[int, ...]) -> str:
    """Return the default layout of a two-dimensional shape.

    >>> layout_of((64, 1)), layout_of((1, 128)), layout_of((64, 128))
    ('column', 'row', 'accumulator')
    """
    return COLUMN if shape[1] == 1 else ROW if shape[0] == 1 else ACCUMULATOR


def vector_layout(size: int, what: str) -> str:
    """Return the layout of a vector of `size` elements: "either" if both a row and a column support
    the size. Raises SpecError if neither does."""
    row = size % GROUP == 0 and GROUP <= size <= WIDEST
    column = size % BLOCK == 0 and size >= BLOCK
    if not row and not column:
        raise SpecError(
            f"{what}: a vector has a multiple of 8 elements up to 256 (along the columns of a "
            f"tile), or a multiple of 64 (along its rows), got {size}"
        )
    return EITHER if row and column else ROW if row else COLUMN


@functools.lru_cache(maxsize=1024)
def record(shape: tuple[int, ...], layout: str) -> RegisterLayout:
    """Return the layout record of a tile of this shape. For a vector in either layout, it is the
    record of a row.

    >>> record((64, 128), coalesced(8)).units, record((64,), COLUMN).axes
    ((64, 64), (0,))
    """
    if lanes_of(layout):
        return row_layouts.record(shape, layout)
    if vector := vector_of(layout):
        across = lanes_across(shape[1], vector)
        return RegisterLayout(
            layout,
            ((Bits(WARPS, BLOCK // 4), Bits(WARP & -across, 1)), (Bits(across - 1, vector),)),
            (
                Registers(0, BLOCK),
                Registers(1, across * vector),
                Registers(0, 32 // across, across // 2),
                Registers(1, 1, vector),
            ),
        )
    return FRAGMENTS if layout == ACCUMULATOR else FRAGMENTS.along(int(layout != COLUMN))


def panel_width(form: Form) -> int:
    """Return the number of adjacent bytes that the lanes of a coalesced tile hold of a row."""
    vector = vector_of(form.layout)
    return lanes_across(form.shape[1], vector) * vector * form.dtype.itemsize


def run_offset(form: Form, thread: Any, down: int) -> Any:
    """Return the unswizzled byte offset, in a coalesced tile's panel, of the row `down` rows below
    a lane's first row."""
    row, column = form.record.own(thread)
    return (row + down) * panel_width(form) + column * form.dtype.itemsize


@functools.lru_cache(maxsize=1024)
def places(shape: tuple[int, ...], layout: str) -> tuple[Place, ...]:
    """Return the elements of a lane, in the order of its registers.

    >>> places((64, 8), ACCUMULATOR)
    ((0, 0), (0, 1), (8, 0), (8, 1))
    >>> places((8,), ROW), places((64,), COLUMN)
    (((None, 0), (None, 1)), ((0, None), (8, None)))
    """
    if layout == EITHER:
        return places(shape, ROW) + places(shape, COLUMN)
    return record(shape, layout).places(shape)


@functools.lru_cache(maxsize=1024)
def sources(shape: tuple[int, ...], layout: str, have: tuple[int, ...], of: str) -> tuple[int, ...]:
    """Return, for each element of a lane of a result, the index of the element of an operand (shape
    `have`, layout `of`) that it is computed from.

    An operand in either layout is read as the row or the column that the result needs; as a row for
    a tile. All arithmetic uses this function and `places`, so broadcasting moves nothing. Unused
    elements of a vector in either layout are dropped.

    >>> sources((64, 8), ACCUMULATOR, (8,), ROW)
    (0, 1, 0, 1)
    """
    if layout == of:
        return tuple(range(len(places(shape, layout))))
    if of == EITHER:
        part = COLUMN if layout == COLUMN else ROW
        first = len(places(have, ROW)) if part == COLUMN else 0
        return tuple(first + i for i in sources(shape, layout, have, part))
    number = {place: i for i, place in enumerate(places(have, of))}
    along = word_of(of) == ROW
    return tuple(
        number[(None, column) if along else (row, None)] for row, column in places(shape, layout)
    )


def combined(symbol: str, forms: list[Form]) -> tuple[tuple[int, ...], str]:
    """Return (shape, layout) of the result of an operation on tiles of these forms, broadcast as in
    NumPy. Raises SpecError if they do not fit."""
    shapes = [form.shape for form in forms]
    if any(vector_of(form.layout) for form in forms):
        if len({(form.shape, form.layout) for form in forms}) > 1:
            lie = " and ".join(
                dict.fromkeys(f"{form.shape} in {form.layout} layout" for form in forms)
            )
            raise SpecError(
                f"'{symbol}' of tiles {lie}: no lane has the elements of both; fix: convert the "
                'coalesced tile, numpipe.layout_cast(x, "accumulator")'
            )
        return forms[0].shape, forms[0].layout
    flat = [form for form in forms if len(form.shape) == 1]
    try:
        shape = tuple(int(n) for n in np.broadcast_shapes(*shapes))
    except ValueError:
        raise SpecError(
            f"tiles of shapes {' and '.join(map(str, dict.fromkeys(shapes)))} cannot be broadcast "
            "together"
        ) from None
    lanes = {lanes_of(form.layout) for form in forms}
    if lanes != {0}:
        return shape, _by_row(symbol, forms, shape, lanes)
    if len(shape) == 2:
        for form in flat:
            if form.layout == COLUMN:
                raise SpecError(
                    f"'{symbol}': a vector {form.shape} is broadcast along the columns of a tile, "
                    "as in NumPy, but this vector is along rows (column layout); fix: write v[:, "
                    'None], or numpipe.layout_cast(v, "row")'
                )
        layout = layout_of(shape)
        if layout == ACCUMULATOR and not fits(shape):
            raise SpecError(
                f"'{symbol}' of tiles of shapes {' and '.join(map(str, shapes))} would result in "
                f"shape {shape}, which no tile has: expected a multiple of 64 rows and a multiple "
                "of 8 columns up to 256"
            )
        return shape, layout
    kinds = {form.layout for form in flat} - {EITHER}
    if len(kinds) > 1:
        raise SpecError(
            f"'{symbol}' of two vectors of {shape[0]} elements, one along columns (row layout) "
            "and one along rows (column layout): no lane has the elements of both; fix: "
            'numpipe.layout_cast(v, "row")'
        )
    return shape, kinds.pop() if kinds else EITHER


def _by_row(symbol: str, forms: list[Form], shape: tuple[int, ...], lanes: set[int]) -> str:
    """Return the layout of an operation on tiles of which some have layouts by rows. Raises
    SpecError if the others cannot be combined with them."""
    words = [word_of(form.layout) for form in forms if len(form.shape) == 1]
    if len(lanes) > 1 or len(set(words)) > 1 or (len(shape) == 2 and COLUMN in words):
        lie = " and ".join(dict.fromkeys(f"{form.shape} in {form.layout} layout" for form in forms))
        most = max(lanes)
        raise SpecError(
            f"'{symbol}' of tiles {lie}: no lane has the elements of both; fix: "
            f'numpipe.layout_cast(x, "rows {most}"); for a vector along the columns "row {most}", '
            f'for one along the rows "column {most}", then v[:, None]'
        )
    if len(shape) == 1:
        return f"{words[0]} {max(lanes)}"
    word = layout_of(shape)
    return f"{ROWS if word == ACCUMULATOR else word} {max(lanes)}"


def expanded_form(form: Form, parts: tuple[Any, ...]) -> Form:
    """Return the form of ``v[:, None]`` or ``v[None, :]``, given the index's parts. Raises
    SpecError for other indices."""
    index = ", ".join(map(str, parts)).replace("none", "None")
    if index not in (":, None", "None, :"):
        raise SpecError(
            "tile[…]: an index of a register tile has a slice for each dimension, x[:, 0:32], "
            "x[64:128, :], v[ds(8, 16)]; or it adds a dimension to a vector, v[:, None], v[None, "
            ":]. Single elements can be read from arrays and, in per-lane code, from tiles in "
            "shared memory"
            + f"; fix: .reshape(-1) makes a vector of a tile {form.shape}"
            * (1 in form.shape)
        )
    if len(form.shape) != 1:
        raise SpecError(
            f"tile[{index}]: a dimension can be added only to a vector, got a tile {form.shape}"
        )
    want = COLUMN if index == ":, None" else ROW
    if lanes_of(form.layout):
        want = f"{want} {lanes_of(form.layout)}"
    if form.layout not in (want, EITHER):
        if lanes_of(form.layout):
            raise SpecError(f'v[{index}] of {form}; fix: numpipe.layout_cast(v, "{want}")[{index}]')
        lies = {ROW: "along columns (row layout)", COLUMN: "along rows (column layout)"}
        fix = (
            f'numpipe.layout_cast(v, "{want}")[{index}]'
            if vector_layout(form.shape[0], "v") == EITHER
            else (
                "use a vector of a multiple of 64 elements"
                if want == COLUMN
                else "use a vector of a multiple of 8 elements, at most 256"
            )
        )
        raise SpecError(
            f"v[{index}] needs a vector {lies[want]}, but this one of {form.shape[0]} elements is "
            f"{lies[form.layout]}; fix: {fix}"
        )
    return Form(
        (form.shape[0], 1) if word_of(want) == COLUMN else (1, form.shape[0]), form.dtype, want
    )
