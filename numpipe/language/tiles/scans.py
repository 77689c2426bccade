"""Running sums of register tiles: ``np.cumsum(x, axis=1)``, ``x.cumsum(axis=0)``.

An element is in another lane than its neighbours, so lanes tell each other what they have; what a sum of rows costs:

=======================  ===========================================================================================================
along axis 1             for each 8 columns of a row: 4 shuffles among the lanes of a quad
along axis 0             for each column and 8 rows that a lane has: 4 shuffles among the quads; then 4 N bytes of shared memory for
                         each 16 rows, and two barriers of the warpgroup
a vector                 the same, as one row or one column; one in either layout becomes one along the columns
=======================  ===========================================================================================================

Floats are added in one order, on the GPU and on the simulated SM, 8 elements at a time. Their base is the sum of all before them.

axis 1  The lanes of a quad have two columns each, p and q. Each adds p + q to that of the lane before, then to that of two lanes
        before, which makes its running sum r; the totals of the quads, added one after the other, make the bases. With r of the
        lane before, the elements are (base + r) + p and (base + r) + (p + q).
axis 0  The quads of a warp have a row each, which they add to those of 1, 2 and 4 quads before: r. Of each 64 rows a warp has 8
        and 8 more; their totals, added, are the warp's. The warps' totals, added one after the other, make the base of the first
        8 rows; that of the others is this plus the total of the first. An element is base + r.

So infinities and NaN come through where NumPy has them, and nowhere before.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...arch.dtypes import BOOL, FLOAT32, INT32
from ...core.op import called, constant, op
from ...diagnostics.errors import SpecError
from ...plan.context import Context, ContextFacts
from .elementwise import check_axis, integers
from .exchange import each_to_all, exchange
from .layouts import ACCUMULATOR, COLUMN, EITHER, ROW, Form, only_accumulator
from .reduce import by_lanes
from .tile import Tile, form_of


def plan(np_: ContextFacts, tile: Any, axis: Any, name: str = "cumsum") -> tuple[Form, int, int]:
    """Return (the form of what runs along a tile, its axis as of (M, N), bytes of shared memory for the totals of the warps)."""
    form, axis = form_of(tile, f"'{name}'"), constant(name, "axis", axis)
    if form is None:
        raise SpecError(f"{name}(…) of register tiles: got {called(tile)}")
    if form.dtype not in (FLOAT32, INT32):
        raise SpecError(f"{name} takes tiles of float32 or int32, got {form}: use "
                        f".astype(np.{INT32 if form.dtype == BOOL else FLOAT32}) first")
    only_accumulator(form, name)
    if axis is None and len(form.shape) == 2:
        raise SpecError(f"{name}: axis must be 0 or 1 for shape {form.shape}: without it NumPy's is of the rows one after another")
    along = check_axis(form, 0 if axis is None else axis, name)
    if len(form.shape) == 1:
        form, along = Form(form.shape, form.dtype, ROW if form.layout == EITHER else form.layout), int(form.layout != COLUMN)
    nbytes = 0 if along or alone(form, along) else form.shape[0] // 64 * (16 * form.shape[1] if form.layout == ACCUMULATOR else 16)
    if nbytes and not np_.memory:
        np_.unit.plan_exchange(nbytes)
    return form, along, nbytes


def alone(form: Form, axis: int) -> bool:
    """Return whether there is nothing to add: along the axis that has one element."""
    return form.layout == (COLUMN if axis else ROW)


@op(context=True, numpy=np.cumsum, method="cumsum")
def cumsum(np_: Context, tile: Any, axis: Any = None) -> Tile:
    """Return ``np.cumsum(tile, axis)`` in a kernel."""
    form, along, nbytes = plan(np_, tile, axis)
    if np_.memory:
        return Tile(None, form)
    if nbytes:
        exchange(np_, *each_to_all(nbytes // 4), "cumsum of a register tile")
    if alone(form, along):
        return Tile(tile.value, form)
    if form.dtype == INT32:
        sums = integers("cumsum", np.cumsum(tile.value, axis=None if len(form.shape) == 1 else along, dtype=np.int64), INT32)
    else:
        with np.errstate(all="ignore"):
            sums = (_along_rows if along else _along_columns)(by_lanes(tile.value, form.layout))
    return Tile(sums.reshape(form.shape).astype(form.dtype), form)


def _running(sums: np.ndarray) -> np.ndarray:
    """Return running sums along the last axis, each added to those 1, 2, 4 … before."""
    distance = 1
    while distance < sums.shape[-1]:
        before = np.full_like(sums, -0.0)
        before[..., distance:] = sums[..., :-distance]
        sums, distance = sums + before, 2 * distance
    return sums


def _before(totals: np.ndarray) -> np.ndarray:
    """Return the sums of what comes before each element of the last axis; the first is -0, which changes nothing when added."""
    return np.concatenate([np.full_like(totals[..., :1], -0.0), np.cumsum(totals, axis=-1)[..., :-1]], axis=-1)


def _along_rows(x: np.ndarray) -> np.ndarray:
    own = x[..., 0] + x[..., 1]
    quad = _running(own)
    before = np.concatenate([np.full_like(quad[..., :1], -0.0), quad[..., :-1]], axis=-1)
    base = _before(quad[..., -1])[..., None] + before
    return np.stack([base + x[..., 0], base + own], axis=-1)


def _along_columns(x: np.ndarray) -> np.ndarray:
    x = np.moveaxis(x, (0, 1, 2, 3), (-4, -3, -2, -1))  # blocks, warps, halves, quads last
    quads = _running(x)
    totals = quads[..., -1]
    warps = totals[..., 0] + totals[..., 1]
    base = _before(warps.reshape(*warps.shape[:-2], -1)).reshape(warps.shape)
    found = np.stack([base, base + totals[..., 0]], axis=-1)[..., None] + quads
    return np.moveaxis(found, (-4, -3, -2, -1), (0, 1, 2, 3))
