"""Scans of register tiles by any function: ``np.maximum.accumulate(x, axis=1)``, ``numpipe.scan(function, x, axis=1)``.

Element i of a scan is what elements 0 … i give, combined in this order. Lanes tell each other what they have as in `scans`, whose
shuffles, bytes and barriers are needed here too. Nothing is combined with an element that is not there. A function combines lines:
its columns where the scan is along rows, its rows where it is along columns; on the GPU two registers of each lane
at a time. Where it rounds, it does so in one order, on the GPU and on the simulated SM:

axis 1  Of each 8 columns a lane of a quad has two, p and q. They make f(p, q), then the quad's running r, each combined with that
        of the lane before, then with that of two lanes before. The elements are f(r of the lane before, p) and r, and both are
        combined with the last element of the 8 columns before.
axis 0  Rows of a warp are combined with those 1, 2 and 4 before, of the first 8 rows and of the second 8; the totals of the warps
        one after the other. An element is f(all warps before, r), in the second 8 rows f(f(all warps before, total of the first 8),
        r).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...core.op import Op, called, op
from ...diagnostics.errors import SpecError
from ...plan.context import Context, ContextFacts
from ...plan.trees import leaves, made, tree_of
from .exchange import each_to_all, exchange
from .layouts import ACCUMULATOR, COLUMN, ROW, Form
from .scans import alone, plan
from .tile import Tile, form_of

__all__ = ["scan"]

Line = list[np.ndarray]
"""a column or a row of each of the tiles that are scanned together"""


# ---- maxima and minima, which never round
def _accumulate(function: np.ufunc) -> Op[..., Any]:
    name = f"np.{function.__name__}.accumulate"

    def operation(np_: Context, tile: Any, axis: Any = 0) -> Tile:
        form, along, nbytes = plan(np_, tile, axis, name)
        if np_.memory:
            return Tile(None, form)
        if nbytes:
            exchange(np_, *each_to_all(nbytes // 4), f"{name} of a register tile")
        return Tile(function.accumulate(tile.value, axis=along if len(tile.shape) == 2 else 0), form)

    operation.__name__ = operation.__qualname__ = name
    operation.__doc__ = f"``{name}(tile, axis)``: NaN from the first NaN on."
    return op(context=True, numpy=function.accumulate)(operation)


ACCUMULATED: dict[str, Op[..., Any]] = {"max": _accumulate(np.maximum), "min": _accumulate(np.minimum)}


# ---- any function
def plan_scan(np_: ContextFacts, tiles: Any, axis: Any) -> tuple[list[Form], int, int]:
    """Return (the forms of a scan, its axis as of a tile (M, N), bytes of shared memory); raise SpecError for tiles that differ."""
    every = leaves(tiles)
    if not every:
        raise SpecError("scan(function, tile, axis): tile is a register tile, or a tuple of them, got ()")
    for tile in every:
        if form_of(tile, "'scan'") is None:
            raise SpecError(f"scan(function, tile, axis): tile is a register tile, or a tuple of them, got {called(tile)}")
    plans = [plan(np_, tile, axis, "scan") for tile in every]
    places = list(dict.fromkeys((form.shape, form.layout) for form, _, _ in plans))
    if len(places) > 1:
        raise SpecError("scan: tiles that are scanned together have one shape and one layout, got "
                        + " and ".join(str(form) for form, _, _ in plans))
    nbytes = sum(plan[2] for plan in plans)
    if nbytes and not np_.memory:
        np_.unit.plan_exchange(nbytes)
    return [form for form, _, _ in plans], plans[0][1], nbytes


def line_form(form: Form, along: int) -> Form:
    """Return the form of a line on the simulated SM: a vector; where a tile has one row or column, of equal elements."""
    if form.layout != ACCUMULATOR:
        return Form((8,), form.dtype, ROW)
    return Form((form.shape[0],), form.dtype, COLUMN) if along else Form((form.shape[1],), form.dtype, ROW)


def check_line(given: Sequence[Form], tiles: Any, found: Any) -> None:
    """Raise SpecError for a function that does not return lines like those it was given."""
    forms = [form_of(part, "scan") for part in leaves(found)]
    if forms != list(given) or tree_of(found) != tree_of(tiles):
        raise SpecError(f"scan: function(a, b) returns what a and b are, {' and '.join(map(str, given))}, element by element, got "
                        + " and ".join(str(form or called(part)) for form, part in zip(forms, leaves(found), strict=True)))


@op(context=True)
def scan(np_: Context, function: Callable[[Any, Any], Any], tile: Any, axis: int) -> Any:
    """Combine the elements of a register tile one after the other: element i is what the first i + 1 give, inside a kernel.

    function  nested in the kernel, or a `numpipe.function`: ``function(a, b)`` of two vectors that returns a third, of the same
              shape and type, element by element; how many elements they have is not said. Associative: f(f(a, b), c) is
              f(a, f(b, c)), but for rounding
    tile      float32 or int32: of two dimensions, or a vector; or a tuple of tiles of one shape, which are scanned together:
              a, b and what the function returns are then tuples of vectors
    axis      0 or 1, for a vector 0; a compile-time constant

    ``np.cumsum``, ``np.maximum.accumulate`` and ``np.minimum.accumulate`` are quicker where they fit. A recurrence
    h[i] = a[i] h[i - 1] + b[i] along the rows of a tile::

        def step(before, behind):
            return behind[0] * before[0], behind[0] * before[1] + behind[1]
        _, h = numpipe.scan(step, (a, b), axis=1)

    Along axis 1 it takes the shuffles of ``np.cumsum``, and calls the function seven times for each 8 columns. Raises SpecError for
    other tiles, and for a function that returns something else. JAX calls it ``jax.lax.associative_scan``.
    """
    forms, along, nbytes = plan_scan(np_, tile, axis)
    tree, given = tree_of(tile), [line_form(form, along) for form in forms]

    def combined(one: Line, other: Line) -> Line:
        found = function(*(tree.build((Tile(np.broadcast_to(part, form.shape), form)
                                       for part, form in zip(line, given, strict=True)), made) for line in (one, other)))
        check_line(given, tile, found)
        return [each.value[:part.size] for each, part in zip(leaves(found), one, strict=True)]

    if np_.memory:
        return tree.build((Tile(None, form) for form in forms), made)
    if nbytes:
        exchange(np_, *each_to_all(nbytes // 4), "scan of a register tile")
    values = [part.value for part in leaves(tile)]
    if not alone(forms[0], along):
        flat = [value.reshape((1, -1) if along else (-1, 1)) if value.ndim == 1 else value for value in values]
        lines = [[value[:, i] if along else value[i] for value in flat] for i in range(flat[0].shape[along])]
        every = zip(*(_along_rows if along else _along_columns)(combined, lines), strict=True)
        values = [np.stack(parts, axis=along).reshape(form.shape) for parts, form in zip(every, forms, strict=True)]
    return tree.build((Tile(value, form) for value, form in zip(values, forms, strict=True)), made)


Combine = Callable[[Line, Line], Line]


def _running(combine: Combine, lines: list[Line]) -> list[Line]:
    """Return what each lane has when all have been combined with those 1, 2 and 4 before."""
    distance = 1
    while distance < len(lines):
        lines = [line if i < distance else combine(lines[i - distance], line) for i, line in enumerate(lines)]
        distance *= 2
    return lines


def _along_rows(combine: Combine, columns: list[Line]) -> list[Line]:
    found: list[Line] = []
    for first in range(0, len(columns), 8):
        own = columns[first:first + 8]
        quad = _running(combine, [combine(*own[i:i + 2]) for i in range(0, 8, 2)])
        firsts = [own[0], *(combine(before, one) for before, one in zip(quad, own[2::2], strict=False))]
        here = [line for pair in zip(firsts, quad, strict=True) for line in pair]
        base = found[-1:]
        found += [combine(base[0], line) for line in here] if base else here
    return found


def _along_columns(combine: Combine, rows: list[Line]) -> list[Line]:
    found: list[Line] = []
    total: list[Line] = []  # of all warps before; none before the first

    def behind(lines: list[Line]) -> list[Line]:
        return [combine(total[0], line) for line in lines] if total else lines

    for first in range(0, len(rows), 16):  # a warp's
        one, other = (_running(combine, rows[start:start + 8]) for start in (first, first + 8))
        base = behind([one[-1]])[0]
        found += behind(one) + [combine(base, line) for line in other]
        total = behind([combine(one[-1], other[-1])])
    return found
