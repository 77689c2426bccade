"""Which elements of a register tile each lane of the warpgroup holds.

Lane ``4 g + t`` of warp w has its first element at row ``16 w + g`` and column ``2 t``. The
distances to its other elements do not depend on the lane, so a layout is a list of (row, column)
distances, one for each element of a lane, in register order:

===========  ==================  ===================================================================
layout       shape               elements of a lane, and the lanes that hold each
===========  ==================  ===================================================================
accumulator  (M, N)              64 b + 8 h, 8 j + o for block b, columns j, half h, odd o; one lane
row          (N,), (1, N)        8 j + o, along the columns; 32 lanes: all g, all warps
column       (M,), (M, 1)        64 b + 8 h, along the rows; 4 lanes: a quad, all t
either       (n,), (1, n)        the elements of each layout that such a tile may need, one layout
             (n, 1)              after another (`ways`); unused ones are not computed
coalesced v  (M, N)              64 b + 32/L s, L v p + i for block b, panel p, step s, i < v; one
                                 lane
rows L, …    (M, N)              see `by_row`; one lane, or some
===========  ==================  ===================================================================

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
import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...arch.dimensions import Ints, Names, round_up
from ...arch.products import WGMMA
from ...arch.register_layouts import (
    LANES,
    WARP,
    WARPS,
    Bits,
    Place,
    RegisterLayout,
    Registers,
)
from ...diagnostics.errors import SpecError
from . import row_layouts
from .layout_names import COALESCED, COLUMN, EITHER, ROW, ROWS, LayoutName, name_of
from .row_layouts import covered_rows, lanes_for

FRAGMENTS = WGMMA.accumulator
"""layout record of two-dimensional tiles, unless they are cast or small"""
ACCUMULATOR = FRAGMENTS.name
BLOCK, GROUP = FRAGMENTS.units
"""the numbers of rows and columns after which an accumulator's layout repeats"""
WIDEST = WGMMA.widest
"""columns of an accumulator, at most"""
MOST = 32768
"""elements of a tile: 256 registers of float32 a lane"""
ROWS_OF_A_LANE = 128
"""most elements of a column that a lane has, of a vector that may be along the rows of a tile"""


def coalesced(vector: int) -> str:
    """Return the name of the coalesced layout whose lanes have `vector` adjacent elements."""
    return f"{COALESCED} {vector}"


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
    row = form.shape[-1] * form.dtype.itemsize
    if not has_coalesced(form):
        raise SpecError(
            f"{what}: the rows of a coalesced tile (M, N) have 32, 64 or a multiple of 128 bytes, "
            f"got {form.dtype} {form.shape}, rows of {row} bytes"
            if form.layout == ACCUMULATOR
            else f"{what}: only two-dimensional tiles have a coalesced layout, got {form}"
        )
    return Form(form.shape, form.dtype, coalesced(vector))


def has_coalesced(form: Form) -> bool:
    """Return whether a tile that is loaded has a coalesced layout."""
    row = form.shape[-1] * form.dtype.itemsize
    return (
        form.layout == ACCUMULATOR
        and form.dtype.itemsize > 1
        and (row in (32, 64) or row % 128 == 0)
    )


def only_accumulator(form: Form, what: str) -> None:
    """Raise SpecError for a coalesced tile, for operations that require an accumulator's layout."""
    if form.name.vector or form.name.lanes:
        fix = (
            f'numpipe.layout_cast(tile, "{ACCUMULATOR}")'
            if fits(form.shape)
            else "use a tile of 64, 128 or 192 rows (a multiple of 64) and at most 256 columns"
        )
        raise SpecError(
            f"{what}: expected a tile in accumulator layout, got {form.shape} in {form.layout} "
            f"layout; fix: {fix}"
        )


def fits(shape: Ints) -> bool:
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
    shape = form.shape
    if layout == ROWS:
        layout = f"{ROWS} {lanes_for(shape[-1])}"
    name = name_of(layout)
    word, lanes = name.word, name.lanes
    if word == ROWS and 1 in shape and len(shape) == 2:
        word = layout_of(shape)
    elif (lanes not in row_layouts.EVERY and (word == COLUMN or lanes != row_layouts.WHOLE)) or (
        word == ROWS
    ) != (len(shape) == 2):
        raise SpecError(
            f"{what}: the layout by rows of a {'vector' if len(shape) == 1 else 'tile (M, N)'} "
            "must be "
            + ('"row L" or "column L"' if len(shape) == 1 else '"rows" or "rows L"')
            + f", where L lanes (1, 2, 4, 8, 16 or 32, and 128 except in a column) share a row, "
            f"got {layout!r}"
        )
    return Form(shape, form.dtype, layout.replace(name.word, word))


@dataclass(frozen=True)
class Form:
    """Shape in elements, dtype and layout of a register tile."""

    shape: Ints
    dtype: np.dtype
    layout: str = ACCUMULATOR

    @property
    def name(self) -> LayoutName:
        """What the layout's name says."""
        return name_of(self.layout)

    @property
    def record(self) -> RegisterLayout:
        """The record of the form's layout; see `record`."""
        return record(self.shape, self.layout)

    @property
    def places(self) -> tuple[Place, ...]:
        """The elements of a lane; see `places`."""
        return places(self.shape, self.layout)

    @property
    def single(self) -> bool:
        """Whether there is one element, which all lanes have."""
        return math.prod(self.shape) == 1

    def settled(self, *preferred: str) -> Form:
        """Return the form in one layout: of a deferred tile, the first of `preferred` that it has,
        or the first of its own."""
        if self.layout != EITHER:
            return self
        own = ways(self.shape)
        return replace(self, layout=next((of for of in preferred if of in own), own[0]))

    def uncoalesced(self) -> Form:
        """Return the settled form; of a tile that is coalesced or `spread`, in its natural
        layout."""
        form = self.settled()
        moved = form.name.vector or form.spread
        return replace(form, layout=natural(form.shape)) if moved else form

    @property
    def spread(self) -> bool:
        """Whether all lanes share each row of a tile (M, N)."""
        return self.name.word == ROWS and self.name.lanes == row_layouts.WHOLE

    def holds(self, layout: str) -> bool:
        """Return whether the lanes have the elements as `layout` needs them: nothing is moved."""
        return layout == self.layout or (self.layout == EITHER and layout in ways(self.shape))

    @property
    def covered(self) -> Ints:
        """The shape that the registers of the lanes have room for: the tile's, rounded up."""
        sizes = list(self.shape)
        if 0 in self.record.axes and self.name.lanes:
            sizes[0] = covered_rows(sizes[0])
        if 1 in self.record.axes:
            unit = self.record.units[-1]
            sizes[-1] = round_up(sizes[-1], unit)
        return tuple(sizes)

    def outside(self, place: Place) -> tuple[bool, bool]:
        """Return whether the row, and the column, of an element of some lane lies outside."""
        row, column = (
            at is not None and at + most >= self.shape[axis if len(self.shape) == 2 else 0]
            for axis, (at, most) in enumerate(zip(place, farthest(self.record), strict=True))
        )
        return row, column

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
    first, second = name_of(one), name_of(other)
    return ACCUMULATOR if second.vector or (first.vector and not second.lanes) else other


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


def layout_of(shape: Ints) -> str:
    """Return the default layout of a two-dimensional shape.

    >>> layout_of((64, 1)), layout_of((1, 128)), layout_of((64, 128))
    ('column', 'row', 'accumulator')
    """
    return COLUMN if shape[1] == 1 else ROW if shape[0] == 1 else ACCUMULATOR


@functools.lru_cache(maxsize=1024)
def ways(shape: Ints) -> Names:
    """Return the layouts in which a vector, or a tile of one row or column, may be needed: along
    the columns of a tile, along its rows, or both.

    A tile that is loaded, or made by `full` or `iota`, has its elements in all of them; the first
    operation that needs one of them takes it.

    >>> ways((1024,))
    ('column', 'row 128', 'row 32', 'row 32 4', 'column 2', 'column 1')
    >>> ways((1, 64))
    ('row', 'row 128', 'row 16', 'row 32', 'row 8', 'row 4', 'row 2')
    """
    size = max(shape)
    if size == 1:
        return (f"{COLUMN} {row_layouts.LANES[-1]}",)
    fragments, lanes = list[str](), list[str]()
    if shape[-1] == size:
        fragments += [ROW] * fits((BLOCK, size))
        every = dict.fromkeys((row_layouts.WHOLE, lanes_for(size), *row_layouts.EVERY))
        lanes += [f"{ROW} {of}" for of in every if of >= 32 or size <= 32 * of]
        # of rows that warps have in registers, in groups
        lanes += [f"{ROW} 32 4"] * (size % 128 == 0 and size <= 1536)
    if shape[0] == size:
        fragments += [COLUMN] * fits((size, GROUP))
        # of tiles whose rows are no accumulator's: more than 256 columns have at most 64 rows
        columns = [
            f"{COLUMN} {of}"
            for of in (*row_layouts.EVERY, row_layouts.WHOLE)
            if size * of <= 32 * BLOCK or (size % BLOCK and size * 2 * of <= MOST)
        ]
        # a tile of more rows of a lane, in pairs of columns, would not fit in its registers
        fit = [of for of in columns if len(places(shape, of)) <= ROWS_OF_A_LANE]
        lanes += fit or ([] if lanes else columns)
    return tuple(fragments + lanes)


@functools.lru_cache(maxsize=1024)
def before(shape: Ints, layout: str) -> int:
    """Return the number of a lane's elements of a deferred tile that come before the elements of
    `layout`, one of its `ways`."""
    own = ways(shape)
    return sum(len(places(shape, of)) for of in own[: own.index(layout)])


def deferred(shape: Ints) -> str:
    """Return the layout of a tile of one row or column whose layout its use decides.

    >>> deferred((64,)), deferred((1,))
    ('either', 'column 4')
    """
    own = ways(shape)
    return EITHER if len(own) > 1 else own[0]


@functools.lru_cache(maxsize=1024)
def record(shape: Ints, layout: str) -> RegisterLayout:
    """Return the record of the layout of a tile of this shape. A deferred tile has the layout of
    its first way.

    >>> record((64, 128), coalesced(8)).units, record((64,), COLUMN).axes
    ((64, 64), (0,))
    """
    layout = ways(shape)[0] if layout == EITHER else layout
    name = name_of(layout)
    if name.lanes:
        return row_layouts.record(shape, layout)
    if vector := name.vector:
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
    vector = form.name.vector
    return lanes_across(form.shape[1], vector) * vector * form.dtype.itemsize


def run_offset(form: Form, thread: Any, down: int) -> Any:
    """Return the unswizzled byte offset, in a coalesced tile's panel, of the row `down` rows below
    a lane's first row."""
    row, column = form.record.own(thread)
    return (row + down) * panel_width(form) + column * form.dtype.itemsize


@functools.lru_cache(maxsize=1024)
def places(shape: Ints, layout: str) -> tuple[Place, ...]:
    """Return the elements of a lane, in the order of its registers.

    >>> places((64, 8), ACCUMULATOR)
    ((0, 0), (0, 1), (8, 0), (8, 1))
    >>> places((8,), ROW), places((64,), COLUMN)
    (((None, 0), (None, 1)), ((0, None), (8, None)))
    """
    if layout == EITHER:
        return tuple(place for of in ways(shape) for place in places(shape, of))
    of, name = record(shape, layout), name_of(layout)
    if name.lanes and name.word != ROW:
        shape = (covered_rows(shape[0]), *shape[1:])
    return of.places(shape)


@functools.lru_cache(maxsize=1024)
def farthest(of: RegisterLayout) -> tuple[int, int]:
    """Return the largest row, and column, that a lane has as its own."""
    row, column = (int(np.max(own)) for own in of.own(np.arange(LANES)))
    return row, column


@functools.lru_cache(maxsize=1024)
def sources(shape: Ints, layout: str, have: Ints, of: str) -> Ints:
    """Return, for each element of a lane of a result, the index of the element of an operand (shape
    `have`, layout `of`) that it is computed from.

    An operand in either layout is read as the row or the column that the result needs; as a row for
    a tile. All arithmetic uses this function and `places`, so broadcasting moves nothing. Unused
    elements of a vector in either layout are dropped.

    >>> sources((64, 8), ACCUMULATOR, (8,), ROW)
    (0, 1, 0, 1)
    """
    if math.prod(have) == 1:
        return (0,) * len(places(shape, layout))
    if layout == EITHER:
        return tuple(i for way in ways(shape) for i in sources(shape, way, have, of))
    if of == EITHER:
        part = needed(have, shape, layout)
        return tuple(before(have, part) + i for i in sources(shape, layout, have, part))
    if layout == of:
        return tuple(range(len(places(shape, layout))))
    number = {place: i for i, place in enumerate(places(have, of))}
    along = name_of(of).word == ROW
    return tuple(
        number[(None, column) if along else (row, None)] for row, column in places(shape, layout)
    )


def needed(have: Ints, shape: Ints, layout: str) -> str:
    """Return the layout in which an operand of shape `have` lies for a result (shape, layout).

    >>> needed((64,), (8, 64), "rows 32"), needed((64, 1), (64, 64), ACCUMULATOR)
    ('row 32', 'column')
    """
    if have == shape or len(shape) == 1 or 1 in shape:
        return layout
    return name_of(layout).along(COLUMN if have[-1] == 1 else ROW)


def laid(form: Form, shape: Ints, layout: str) -> Form:
    """Return the form that an operand of an operation that gives a result (shape, layout) is moved
    to; its own, if its lanes have what they need."""
    want = needed(form.shape, shape, layout)
    return form if form.single or form.holds(want) else replace(form, layout=want)


def combined(symbol: str, forms: list[Form]) -> tuple[Ints, str]:
    """Return (shape, layout) of the result of an operation on tiles of these forms, broadcast as in
    NumPy. Raises SpecError if they do not fit."""
    shapes = [form.shape for form in forms]
    try:
        shape = tuple(int(n) for n in np.broadcast_shapes(*shapes))
    except ValueError:
        raise SpecError(
            f"tiles of shapes {' and '.join(map(str, dict.fromkeys(shapes)))} cannot be broadcast "
            "together"
        ) from None
    if math.prod(shape) > MOST:
        raise SpecError(
            f"'{symbol}' of two vectors of {shape[0]} elements, one along columns (row layout) "
            "and one along rows (column layout): no lane has the elements of both; fix: "
            'numpipe.layout_cast(v, "row")'
        )
    if len(shape) == 1 or 1 in shape:
        words = dict.fromkeys(
            form.layout
            for form in forms
            if math.prod(form.shape) == math.prod(shape)
            and (len(shape) == 1 or form.name.word == layout_of(shape))
        )
        words.pop(EITHER, None)
        return shape, next(iter(words), deferred(shape))
    whole = {form.layout for form in forms if form.shape == shape}
    if len(whole) == 1 and not (name_of(*whole).vector and set(shapes) != {shape}):
        return shape, whole.pop()
    if whole and fits(shape):
        return shape, ACCUMULATOR
    lanes = {name_of(of).lanes for of in whole} or {
        form.name.lanes for form in forms if form.layout != EITHER and not form.single
    }
    most = max(lanes & {*row_layouts.EVERY, row_layouts.WHOLE}, default=0)
    if most and (whole or len(lanes) == 1):
        run = 2 if whole else max(form.name.run for form in forms)
        return shape, f"{ROWS} {most}" + f" {run}" * (run > 2)
    return shape, natural(shape)


def natural(shape: Ints) -> str:
    """Return the layout of a tile (M, N) that is loaded or made: the accumulator's, or by rows.

    >>> natural((64, 64)), natural((8, 64)), natural((3, 10))
    ('accumulator', 'rows 16', 'rows 8')
    """
    return ACCUMULATOR if fits(shape) else f"{ROWS} {lanes_for(shape[1])}"


def expanded_form(form: Form, parts: tuple) -> Form:
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
    word = COLUMN if index == ":, None" else ROW
    shape = (form.shape[0], 1) if word == COLUMN else (1, form.shape[0])
    keeps = form.name.word == word or form.single
    return Form(shape, form.dtype, form.layout if keeps else deferred(shape))
