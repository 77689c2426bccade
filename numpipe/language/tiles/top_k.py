"""The largest elements of each row of a register tile: ``values, columns = numpipe.top_k(x, 4)``.

There is one round for each of the k elements: every lane finds its largest element that comes after
the previous round's, the lanes of a row agree on one (two shuffles and a step for each doubling
of their number), and the lane that has the
column of the result keeps it. Elements are ordered by rank, then by column, so no element is
modified and none is found twice.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ...arch.dimensions import round_up
from ...arch.dtypes import FLOAT32, HALVES, INT32
from ...arch.register_layouts import WARPS
from ...core.op import constant, context_op
from ...diagnostics.argument_checks import whole
from ...diagnostics.errors import SpecError
from ...plan.context import Context
from .conversions import moved
from .layout_names import COLUMN, ROW
from .layouts import Form
from .row_layouts import lanes_for
from .tile import Tile, tile_form

__all__ = ["top_k"]

MOST = 32
ABSENT = -1
"""The index where there is no element: in columns from k on."""


def top_forms(tile: Any, k: Any) -> tuple[Form, Form, Form, int]:
    """Return (form that the tile is moved to, form of the values, form of their columns, k). Raises
    SpecError for unsupported tiles and counts."""
    form = tile_form(tile, "top_k")
    if len(form.shape) != 2 or form.dtype not in (FLOAT32, *HALVES, INT32):
        raise SpecError(
            f"top_k expects a tile (M, N) of float32, float16, bfloat16 or int32, got {form}"
        )
    most = whole(1, min(MOST, form.shape[1]))
    k = int(constant(f"top_k of a tile {form.shape}", "k", k, most))
    form = by_row(form)
    found = replace(form, shape=(form.shape[0], round_up(k, 8)))
    return form, found, replace(found, dtype=INT32), k


def by_row(form: Form) -> Form:
    """Return the form that a tile is moved to so that the lanes of one warp have all of a row."""
    form = form.uncoalesced()
    if (1 in form.shape and form.record.mask(1) & WARPS) or form.name.word == COLUMN:
        return replace(form, layout=f"{ROW} {lanes_for(form.shape[1])}")
    return form


def nothing(dtype: np.dtype) -> Any:
    """Return the value used where there is no element."""
    return np.iinfo(np.int32).min if dtype == INT32 else -np.inf


@context_op
def top_k(np_: Context, tile: Any, k: int) -> tuple[Tile, Tile]:
    """Return the k largest elements of each row of a register tile, and their columns, inside a
    kernel.

    tile  (M, N) of float32, float16, bfloat16 or int32
    k     1 to 32, at most N: a compile-time constant

    Both results are tiles of M rows; their number of columns is k rounded up to a multiple of 8.
    The first holds the values, of the tile's type, in descending order; the second holds the int32
    columns that they come from. Among equal elements the first comes first; NaN are the largest, as
    in `numpy.sort`; -0 counts as 0 and is returned as 0. In columns from k on, the value is -inf
    (for int32 the smallest integer) and the index is -1. Stored as a block, the result is clipped
    to an array of k columns::

        values, columns = numpipe.top_k(scores, 2)
        best[ds(row, 64), ds(0, 8)] = values

    It takes about seven instructions for each element and each of the k; for k = 1, ``argmax`` is
    faster. Raises SpecError for other tiles and counts. The counterpart in JAX is
    ``jax.lax.top_k``.
    """
    form, values, columns, k = top_forms(tile, k)
    if not np_.computes:
        return Tile(None, values), Tile(None, columns)
    moved(tile, form)
    x = tile.value if tile.dtype == INT32 else tile.value.astype(FLOAT32) + FLOAT32.type(0)
    order = np.argsort(-x.astype(np.int64) if tile.dtype == INT32 else -x, axis=1, kind="stable")
    if tile.dtype != INT32:  # argsort puts NaN last; here they come first, in order
        nan = np.take_along_axis(np.isnan(x), order, axis=1)
        order = np.take_along_axis(order, np.argsort(~nan, axis=1, kind="stable"), axis=1)
    found = np.full(values.shape, nothing(tile.dtype), x.dtype)
    index = np.full(values.shape, ABSENT, np.int32)
    index[:, :k] = order[:, :k]
    found[:, :k] = np.take_along_axis(x, order[:, :k], axis=1)
    return Tile(found.astype(values.dtype), values), Tile(index, columns)
