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
        quad's running r: it is combined with that of the previous lane, then with that of the lane
        two before. The elements are f(r of the previous lane, p) and r, and both are combined with
        the last element of the previous 8 columns. ``np.cumsum`` adds that element to r of the
        previous lane first, and then p, or p + q.
axis 0  Rows of a warp are combined with those 1, 2 and 4 before, in the first 8 rows and in the
        second 8; then with the totals of the previous warps, in order. An element is f(all previous
        warps, r), in the second 8 rows f(f(all previous warps, total of the first 8), r).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...arch.dtypes import BOOL, FLOAT32, INT32
from ...core.op import Op, called, constant, op
from ...diagnostics.errors import SpecError
from ...plan.context import Context, ContextFacts
from ...plan.nested_tuples import leaves, made, tree_of
from .elementwise import check_axis, integers
from .exchange import each_to_all, exchange
from .layouts import ACCUMULATOR, BLOCK, COLUMN, EITHER, ROW, Form, only_accumulator
from .tile import Tile, form_of

__all__ = ["scan"]

Line = list[np.ndarray]
"""One column or one row of each of the tiles that are scanned together."""


def plan(np_: ContextFacts, tile: Any, axis: Any, name: str) -> tuple[Form, int, int]:
    """Return (the form of a scanned tile, its axis as in a tile (M, N), bytes of shared memory for
    the totals of the warps)."""
    form, axis = form_of(tile, f"'{name}'"), constant(name, "axis", axis)
    if form is None:
        raise SpecError(f"{name}(…) expects a register tile, got {called(tile)}")
    if form.dtype not in (FLOAT32, INT32):
        raise SpecError(
            f"{name} takes tiles of float32 or int32, got {form}; fix: use "
            f".astype(np.{INT32 if form.dtype == BOOL else FLOAT32}) first"
        )
    only_accumulator(form, name)
    if axis is None and len(form.shape) == 2:
        raise SpecError(
            f"{name}: axis must be 0 or 1 for shape {form.shape}; without an axis, NumPy scans "
            "the flattened array, which is not supported"
        )
    along = check_axis(form, 0 if axis is None else axis, name)
    if len(form.shape) == 1:
        form, along = (
            Form(form.shape, form.dtype, ROW if form.layout == EITHER else form.layout),
            int(form.layout != COLUMN),
        )
    nbytes = (
        0
        if along or alone(form, along)
        else form.shape[0] // BLOCK * (16 * form.shape[1] if form.layout == ACCUMULATOR else 16)
    )
    if nbytes and np_.computes:
        np_.unit.plan_exchange(nbytes)
    return form, along, nbytes


def alone(form: Form, axis: int) -> bool:
    """Return whether there is nothing to add, because the axis has a single element."""
    return form.layout == (COLUMN if axis else ROW)


# ---- running sums
@op(context=True, numpy=np.cumsum, method="cumsum")
def cumsum(np_: Context, tile: Any, axis: Any = None) -> Tile:
    """Implement ``np.cumsum(tile, axis)`` in a kernel."""
    form, along, nbytes = plan(np_, tile, axis, "cumsum")
    if not np_.computes:
        return Tile(None, form)
    if nbytes:
        exchange(np_, *each_to_all(nbytes // 4), "cumsum of a register tile")
    if form.dtype == INT32:
        sums = np.cumsum(tile.value, axis=along if tile.value.ndim == 2 else None, dtype=np.int64)
        return Tile(integers("cumsum", sums, INT32).reshape(form.shape), form)
    with np.errstate(all="ignore"):
        if along:
            return Tile(_by_lines(_sum_rows, along, [form], [tile.value])[0], form)
        return Tile(tile.value if alone(form, along) else _sum_columns(tile.value), form)


def _add(one: Line, other: Line) -> Line:
    return [one[0] + other[0]]


def _sum_rows(columns: list[Line]) -> list[Line]:
    found, base = list[Line](), [np.full_like(columns[0][0], -0.0)]
    for first in range(0, len(columns), 8):
        own = columns[first : first + 8]
        pairs = [_add(*own[i : i + 2]) for i in range(0, 8, 2)]
        quad = _running(_add, pairs)
        before = [base, *(_add(base, line) for line in quad)]
        found += [_add(before[i // 2], pairs[i // 2] if i % 2 else own[i]) for i in range(8)]
        base = before[4]
    return found


def _sum_columns(values: np.ndarray) -> np.ndarray:
    """Return sums in the order of `_along_columns`, over the rows of all warps."""
    found = values.reshape(-1, 2, 8, *values.shape[1:]).copy()
    for distance in (1, 2, 4):
        found[:, :, distance:] = found[:, :, :-distance] + found[:, :, distance:]
    total: Any = None
    for one, other in found:
        both = one[-1] + other[-1]
        if total is not None:
            one += total
            both = total + both
        other += one[-1]
        total = both
    return found.reshape(values.shape)


# ---- maxima and minima, which never round
def _accumulate(function: np.ufunc) -> Op[..., Any]:
    name = f"np.{function.__name__}.accumulate"

    def operation(np_: Context, tile: Any, axis: Any = 0) -> Tile:
        form, along, nbytes = plan(np_, tile, axis, name)
        if not np_.computes:
            return Tile(None, form)
        if nbytes:
            exchange(np_, *each_to_all(nbytes // 4), f"{name} of a register tile")
        return Tile(
            function.accumulate(tile.value, axis=along if len(tile.shape) == 2 else 0), form
        )

    operation.__name__ = operation.__qualname__ = name
    operation.__doc__ = f"``{name}(tile, axis)``: NaN from the first NaN on."
    return op(context=True, numpy=function.accumulate)(operation)


ACCUMULATED: dict[str, Op[..., Any]] = {
    "max": _accumulate(np.maximum),
    "min": _accumulate(np.minimum),
}


# ---- any function
def plan_scan(np_: ContextFacts, tiles: Any, axis: Any) -> tuple[list[Form], int, int]:
    """Return (the forms of a scan, its axis as in a tile (M, N), bytes of shared memory). Raises
    SpecError if the tiles differ."""
    every = leaves(tiles)
    if not every:
        raise SpecError(
            "scan(function, tile, axis): tile must be a register tile, or a tuple of them, got ()"
        )
    for tile in every:
        if form_of(tile, "'scan'") is None:
            raise SpecError(
                "scan(function, tile, axis): tile must be a register tile, or a tuple of them, "
                f"got {called(tile)}"
            )
    plans = [plan(np_, tile, axis, "scan") for tile in every]
    places = list(dict.fromkeys((form.shape, form.layout) for form, _, _ in plans))
    if len(places) > 1:
        raise SpecError(
            "scan: tiles that are scanned together must have one shape and one layout, got "
            + " and ".join(str(form) for form, _, _ in plans)
        )
    nbytes = sum(plan[2] for plan in plans)
    if nbytes and np_.computes:
        np_.unit.plan_exchange(nbytes)
    return [form for form, _, _ in plans], plans[0][1], nbytes


def line_form(form: Form, along: int) -> Form:
    """Return the form of a line on the simulated SM: a vector. If a tile has a single row or
    column, all elements of the vector are equal."""
    if form.layout != ACCUMULATOR:
        return Form((8,), form.dtype, ROW)
    return (
        Form((form.shape[0],), form.dtype, COLUMN)
        if along
        else Form((form.shape[1],), form.dtype, ROW)
    )


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


@op(context=True)
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

    def combined(one: Line, other: Line) -> Line:
        found = function(
            *(
                tree.build(
                    (
                        Tile(np.broadcast_to(part, form.shape), form)
                        for part, form in zip(line, given, strict=True)
                    ),
                    made,
                )
                for line in (one, other)
            )
        )
        check_line(given, tile, found)
        return [each.value[: part.size] for each, part in zip(leaves(found), one, strict=True)]

    if not np_.computes:
        return tree.build((Tile(None, form) for form in forms), made)
    if nbytes:
        exchange(np_, *each_to_all(nbytes // 4), "scan of a register tile")
    scanned = functools.partial(_along_rows if along else _along_columns, combined)
    values = _by_lines(scanned, along, forms, [part.value for part in leaves(tile)])
    return tree.build((Tile(value, form) for value, form in zip(values, forms, strict=True)), made)


# ---- in the order of the GPU
Combine = Callable[[Line, Line], Line]


def _by_lines(
    scanned: Callable[[list[Line]], list[Line]],
    along: int,
    forms: list[Form],
    values: list[np.ndarray],
) -> list[np.ndarray]:
    """Return scanned tiles: ``scanned(lines)`` applied to their lines, or the tiles themselves if
    they have a single line."""
    if alone(forms[0], along):
        return values
    flat = [
        value.reshape((1, -1) if along else (-1, 1)) if value.ndim == 1 else value
        for value in values
    ]
    lines = [
        [value[:, i] if along else value[i] for value in flat] for i in range(flat[0].shape[along])
    ]
    every = zip(*scanned(lines), strict=True)
    return [
        np.stack(parts, axis=along).reshape(form.shape)
        for parts, form in zip(every, forms, strict=True)
    ]


def _running(combine: Combine, lines: list[Line]) -> list[Line]:
    """Return what each lane has after combining with the lanes 1, 2 and 4 before."""
    distance = 1
    while distance < len(lines):
        lines = [
            line if i < distance else combine(lines[i - distance], line)
            for i, line in enumerate(lines)
        ]
        distance *= 2
    return lines


def _along_rows(combine: Combine, columns: list[Line]) -> list[Line]:
    found: list[Line] = []
    for first in range(0, len(columns), 8):
        own = columns[first : first + 8]
        quad = _running(combine, [combine(*own[i : i + 2]) for i in range(0, 8, 2)])
        firsts = [
            own[0],
            *(combine(before, one) for before, one in zip(quad, own[2::2], strict=False)),
        ]
        here = [line for pair in zip(firsts, quad, strict=True) for line in pair]
        base = found[-1:]
        found += [combine(base[0], line) for line in here] if base else here
    return found


def _along_columns(combine: Combine, rows: list[Line]) -> list[Line]:
    found: list[Line] = []
    total: list[Line] = []  # of all previous warps; empty before the first

    def behind(lines: list[Line]) -> list[Line]:
        return [combine(total[0], line) for line in lines] if total else lines

    for first in range(0, len(rows), 16):  # the rows of a warp
        one, other = (_running(combine, rows[start : start + 8]) for start in (first, first + 8))
        base = behind([one[-1]])[0]
        found += behind(one) + [combine(base, line) for line in other]
        total = behind([combine(one[-1], other[-1])])
    return found
