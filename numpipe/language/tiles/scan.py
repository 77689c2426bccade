"""Scans of register tiles: ``np.cumsum``, ``np.maximum.accumulate``, ``np.minimum.accumulate`` and
``numpipe.scan``.

Element i of a scan combines elements 0 … i, in this order. The lanes exchange their elements:

==============  ================================================================================
along axis 1    4 shuffles among the lanes of a quad for each 8 columns of a row
along axis 0    4 shuffles among the quads for each column and 8 rows that a lane has; then 4 N
                bytes of shared memory for each 16 rows, and two barriers of the warpgroup
a vector        the same, as one row or one column; a vector that may have either layout is a row
==============  ================================================================================

If the function rounds, the GPU and the simulator combine in the same order. A function combines
whole lines, on the GPU two registers of each lane at a time: columns for a scan along rows, rows
for a scan along columns. Nothing is combined with an element that does not exist, so infinities and
NaN appear in the same elements as in NumPy.

axis 1  Of every 8 columns a lane of a quad has two, p and q. The lane computes f(p, q), then the
        quad's running r: it is combined with the previous lane's, then with the one two lanes
        before. With the last element l of the previous 8 columns, the elements are f(f(l, r of
        the previous lane), p) and f(l, r). A lane with more adjacent columns (``"rows 32 8"``)
        combines f(p, q) of each two, in order; its last element takes the place of f(p, q).
axis 0  Rows of a warp are combined with those 1, 2 and 4 before, in the first 8 rows and in the
        second 8; then with the totals of the previous warps, in order. An element is f(all previous
        warps, r), in the second 8 rows f(f(all previous warps, total of the first 8), r).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...arch.dimensions import Ints
from ...arch.dtypes import BOOL, FLOAT32, INT32
from ...arch.register_layouts import WARP, WARPS
from ...core.op import Op, called, constant, context_op
from ...diagnostics.errors import SpecError
from ...plan.context import Context, ContextFacts
from ...plan.nested_tuples import leaves, made, tree_of
from .conversions import moved
from .elementwise import check_axis, integers
from .exchange import ROOM, each_to_all, exchange
from .layout_names import COLUMN, ROW
from .layouts import Form
from .row_layouts import WHOLE, lanes_for
from .tile import Tile, form_of, tile_form

__all__ = ["scan"]

Line = Any
"""A list of one column or one row of each of the tiles that are scanned together; None if it is
outside them."""
Combine = Callable[[Line, Line], Line]


def plan(np_: ContextFacts, tile: Any, axis: Any, name: str) -> tuple[Form, int, int]:
    """Return (the form of a scanned tile, its axis as in a tile (M, N), bytes of shared memory for
    the totals of the warps)."""
    form, axis = tile_form(tile, name), constant(name, "axis", axis)
    if form.dtype not in (FLOAT32, INT32):
        raise SpecError(
            f"{name} takes tiles of float32 or int32, got {form}; fix: use "
            f".astype(np.{INT32 if form.dtype == BOOL else FLOAT32}) first"
        )
    if axis is None and len(form.shape) == 2:
        raise SpecError(
            f"{name}: axis must be 0 or 1 for shape {form.shape}; without an axis, NumPy scans "
            "the flattened array, which is not supported"
        )
    along = check_axis(form, 0 if axis is None else axis, name)
    form = form.uncoalesced()
    if form.name.lanes == WHOLE:  # a row that each warp has all of
        form = replace(form, layout=f"{ROW} {lanes_for(form.shape[-1])}")
    along = along if len(form.shape) == 2 else form.record.axes[0]
    lines = None if along or alone(form, along) else lines_of(form, along)
    nbytes = 0
    if lines and lines.warps > 1:  # at once
        each = form.covered[-1] if len(form.record.axes) > 1 else 1
        nbytes = min(ROOM, 16 * -(-form.covered[0] // lines.step) * each)
    if nbytes and np_.computes:
        np_.unit.plan_exchange(nbytes)
    return form, along, nbytes


def alone(form: Form, axis: int) -> bool:
    """Return whether there is nothing to add, because the axis has a single element."""
    return form.single or axis not in form.record.axes


@dataclass(frozen=True)
class Lines:
    """How the elements of a tile lie along the axis of a scan.

    lanes      of a warp that share a row
    among      lanes that exchange elements: those that share a row, or those that share a column
               and what lies between them
    distances  between these lanes, of a running sum's steps
    step       number of rows after which the pattern of a lane's rows repeats
    halves     the rows that a lane has in each step
    warps      which have different rows
    run        adjacent columns of a lane
    """

    lanes: int
    among: int
    distances: Ints
    step: int
    halves: Ints
    warps: int
    run: int = 2

    @property
    def height(self) -> int:
        """Rows that lie one after another in the lanes of a warp."""
        return self.among // self.lanes


def lines_of(form: Form, along: int) -> Lines:
    """Return how a tile's elements lie along an axis.

    >>> (
    ...     lines_of(Form((64, 64), FLOAT32), 0).halves,
    ...     lines_of(Form((8, 64), FLOAT32, "rows 8"), 0),
    ... )
    ((0, 8), Lines(lanes=8, among=32, distances=(8, 16), step=4, halves=(0,), warps=1, run=2))
    """
    of = form.record
    lanes, distances = (of.mask(1) & WARP) + 1, of.distances(along)
    if along:
        return Lines(lanes, lanes, distances, 0, (), 1, of.registers[-1].count)
    step, *rest = [each for each in of.registers if each.axis == 0]
    halves = (0, rest[0].step) if rest else (0,)
    warps = 1 << (of.mask(0) & WARPS).bit_count()
    return Lines(lanes, lanes << len(distances), distances, step.step, halves, warps)


# ---- running sums
def _scanned(
    np_: Context,
    tile: Any,
    axis: Any,
    name: str,
    scan_values: Callable[[np.ndarray, Form, int], np.ndarray],
) -> Tile:
    """Return a scanned tile, whose elements ``scan_values(elements, form, along)`` determines."""
    form, along, nbytes = plan(np_, tile, axis, name)
    if not np_.computes:
        return Tile(None, form)
    if nbytes:
        exchange(np_, *each_to_all(nbytes // 4), f"{name} of a register tile")
    return Tile(scan_values(moved(tile, form).value, form, along), form)


@context_op(numpy=np.cumsum, method="cumsum")
def cumsum(np_: Context, tile: Any, axis: Any = None) -> Tile:
    """Implement ``np.cumsum(tile, axis)`` in a kernel."""
    return _scanned(np_, tile, axis, "cumsum", _running_sums)


def _running_sums(values: np.ndarray, form: Form, along: int) -> Any:
    if form.dtype == INT32:
        sums = np.cumsum(values, axis=along if values.ndim == 2 else 0, dtype=np.int64)
        return integers("cumsum", sums, INT32)
    with np.errstate(all="ignore"):
        return _by_lines(_add, along, [form], [values])[0]


def _add(one: Line, other: Line) -> Line:
    return [one[0] + other[0]]


# ---- maxima and minima, which never round
def _accumulate(function: np.ufunc) -> Op:
    name = f"np.{function.__name__}.accumulate"

    def scan_values(values: np.ndarray, _: Form, along: int) -> Any:
        return function.accumulate(values, axis=along if values.ndim == 2 else 0)

    def operation(np_: Context, tile: Any, axis: Any = 0) -> Tile:
        return _scanned(np_, tile, axis, name, scan_values)

    operation.__name__ = operation.__qualname__ = name
    operation.__doc__ = f"``{name}(tile, axis)``: NaN from the first NaN on."
    return context_op(numpy=function.accumulate)(operation)


ACCUMULATED: dict[str, Op] = {
    "max": _accumulate(np.maximum),
    "min": _accumulate(np.minimum),
}


# ---- any function
def plan_scan(np_: ContextFacts, tiles: Any, axis: Any) -> tuple[list[Form], int, int]:
    """Return (the forms of a scan, its axis as in a tile (M, N), bytes of shared memory). Raises
    SpecError if the tiles differ."""
    every = leaves(tiles)
    other = next((called(tile) for tile in every if form_of(tile, "'scan'") is None), None)
    if other or not every:
        raise SpecError(
            "scan(function, tile, axis): tile must be a register tile, or a tuple of them, got "
            f"{other or '()'}"
        )
    forms, axes, sizes = zip(*(plan(np_, tile, axis, "scan") for tile in every), strict=True)
    if len({(form.shape, form.layout) for form in forms}) > 1:
        raise SpecError(
            "scan: tiles that are scanned together must have one shape and one layout, got "
            + " and ".join(map(str, forms))
        )
    nbytes = sum(sizes)
    if nbytes and np_.computes:
        np_.unit.plan_exchange(nbytes)
    return list(forms), axes[0], nbytes


def line_form(form: Form, along: int) -> Form:
    """Return the form of a line on the simulated SM: a vector. If a tile has a single row or
    column, all elements of the vector are equal."""
    if len(form.record.axes) == 1:
        return Form((8,), form.dtype, ROW)
    size, word = (form.shape[0], COLUMN) if along else (form.shape[1], ROW)
    return Form((size,), form.dtype, form.name.along(word))


def check_line(given: Sequence[Form], tiles: Any, found: Any) -> None:
    """Raise SpecError for a function that does not return lines of the same form as its
    arguments."""
    forms = [form_of(part, "scan") for part in leaves(found)]
    if forms != list(given) or tree_of(found) != tree_of(tiles):
        raise SpecError(
            "scan: function(a, b) must return the same types as a and b, "
            f"{' and '.join(map(str, given))}, computed elementwise, got "
            + " and ".join(
                str(form or called(part)) for form, part in zip(forms, leaves(found), strict=True)
            )
        )


@context_op
def scan(np_: Context, function: Callable[[Any, Any], Any], tile: Any, axis: int) -> Any:
    """Scan a register tile with an associative function, inside a kernel: element i of the result
    combines the first i + 1 elements.

    function  nested in the kernel, or a `numpipe.function`: ``function(a, b)`` takes two vectors
              and returns a third, of the same shape and type, computed elementwise; the length of
              the vectors is unspecified. Associative: f(f(a, b), c) equals f(a, f(b, c)), except
              for rounding
    tile      float32 or int32, two-dimensional or a vector; or a tuple of tiles of one shape,
              which are scanned together: a, b and the function's result are then tuples of
              vectors
    axis      0 or 1, for a vector 0; a compile-time constant

    ``np.cumsum``, ``np.maximum.accumulate`` and ``np.minimum.accumulate`` are faster where they
    apply. A recurrence h[i] = a[i] h[i - 1] + b[i] along the rows of a tile::

        def step(before, behind):
            return behind[0] * before[0], behind[0] * before[1] + behind[1]


        _, h = numpipe.scan(step, (a, b), axis=1)

    Along axis 1 it uses the same shuffles as ``np.cumsum``, and calls the function seven times for
    every 8 columns. Raises SpecError for other tiles, and for a function that returns another form.
    The counterpart in JAX is ``jax.lax.associative_scan``.
    """
    forms, along, nbytes = plan_scan(np_, tile, axis)
    tree, given = tree_of(tile), [line_form(form, along) for form in forms]
    shapes = [form.shape for form in given]

    def combined(one: Line, other: Line) -> Line:
        lines = (map(Tile, map(np.broadcast_to, line, shapes), given) for line in (one, other))
        found = function(*(tree.build(line, made) for line in lines))
        check_line(given, tile, found)
        return [each.value[: part.size] for each, part in zip(leaves(found), one, strict=True)]

    values: list = [None] * len(forms)
    if np_.computes:
        if nbytes:
            exchange(np_, *each_to_all(nbytes // 4), "scan of a register tile")
        parts = [moved(part, form).value for part, form in zip(leaves(tile), forms, strict=True)]
        values = _by_lines(combined, along, forms, parts)
    return tree.build(map(Tile, values, forms), made)


# ---- in the order of the GPU
def _by_lines(
    combine: Combine, along: int, forms: list[Form], values: list[np.ndarray]
) -> list[np.ndarray]:
    """Return scanned tiles: the tiles themselves if they have a single line."""
    if alone(forms[0], along):
        return values
    flat = [
        value.reshape((1, -1) if along else (-1, 1)) if value.ndim == 1 else value
        for value in values
    ]
    count = flat[0].shape[along]
    lines: list[Line] = [
        [value[:, i] if along else value[i] for value in flat] for i in range(count)
    ]
    covered = forms[0].covered[along if len(forms[0].shape) == 2 else 0]
    lines += [None] * (covered - count)
    both = functools.partial(_both, combine)
    scanned = _along_rows if along else _along_columns
    found = scanned(lines_of(forms[0], along), both, lines)[:count]
    return [
        np.stack(parts, axis=along).reshape(form.shape)
        for parts, form in zip(zip(*found, strict=True), forms, strict=True)
    ]


def _both(combine: Combine, one: Line, other: Line) -> Line:
    """Combine two lines, if they are in the tile."""
    return None if one is None or other is None else combine(one, other)


def _running(combine: Combine, lines: list[Line]) -> list[Line]:
    """Return what each lane has after combining with the lanes 1, 2, 4 … before."""
    distance = 1
    while distance < len(lines):
        lines = [
            line if i < distance else combine(lines[i - distance], line)
            for i, line in enumerate(lines)
        ]
        distance *= 2
    return lines


def _after(combine: Combine, before: list[Line], line: Line) -> Line:
    """Combine a line with what is before it, a list of one line; empty at the beginning."""
    return combine(before[0], line) if before else line


def in_lane(combine: Combine, lines: list[Line]) -> list[Line]:
    """Return the running totals of a lane's adjacent lines, two at a time: half as many steps wait
    for each other, and sums have smaller errors."""
    found: list[Line] = []
    for at in range(0, len(lines), 2):
        pair = itertools.accumulate(lines[at : at + 2], combine)
        found += [_after(combine, found[-1:], line) for line in pair]
    return found


def _along_rows(lines: Lines, combine: Combine, columns: list[Line]) -> list[Line]:
    found: list[Line] = []
    run = lines.run
    for first in range(0, len(columns), run * lines.lanes):
        starts = range(first, first + run * lines.lanes, run)
        own = [in_lane(combine, columns[at : at + run]) for at in starts]
        lanes = _running(combine, [each.pop() for each in own])
        base = before = found[-1:]
        for each, last in zip(own, lanes, strict=True):
            found += [_after(combine, before, line) for line in each]
            found.append(_after(combine, base, last))
            before = found[-1:]
    return found


def _along_columns(lines: Lines, combine: Combine, rows: list[Line]) -> list[Line]:
    found: list[Line] = []
    total: list[Line] = []  # of all previous rows; empty before the first
    own = lines.height * len(lines.halves)
    for first in range(0, len(rows), own):  # the rows of a warp
        one, *more = (
            _running(combine, rows[start : start + lines.height])
            for start in range(first, first + own, lines.height)
        )
        found += [_after(combine, total, line) for line in one]
        base = found[-1]
        for other in more:
            found += [combine(base, line) for line in other]
        last = combine(one[-1], more[0][-1]) if more else one[-1]
        total = [_after(combine, total, last)]
    return found
