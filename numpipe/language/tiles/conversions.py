"""Layout casts of register tiles: ``numpipe.layout_cast(v, "row")``, ``layout_cast(x,
"accumulator")``.

=======================  =====================  ====================================================
from                     to                     cost
=======================  =====================  ====================================================
a vector in either       row, column            none: unused elements are not computed
row                      column                 through shared memory, 4 bytes per element, with a
column                   row                    barrier of the warpgroup before the stores and one
                                                between the stores and the loads
accumulator              coalesced              through shared memory, one panel of 64 rows x 128
coalesced                accumulator            bytes at a time, with a barrier of the warpgroup
                                                before it; then only the warp synchronizes, because
                                                warps keep their rows
by rows                  any, or from any       through shared memory, 64 x 64 elements at a time,
(`row_layouts`)                                 with two barriers each
float32 accumulator      A operand of wgmma     `astype`, in the same lanes: no cast is needed
the same                                        none
=======================  =====================  ====================================================

Casts that cost something are never implicit: a mismatch is an error that names both layouts and the
cast. A vector in either layout becomes a row or a column without a cast where an `if`, a loop, a
carry or a function's results join it with one (`layouts.joined`). ``kernel.inspect("resources")``
lists the casts through shared memory, with line and bytes.
"""

from __future__ import annotations

import math
from typing import Any

from ...core.op import called, constant, op
from ...diagnostics.errors import SpecError
from ...plan.context import Context, ContextFacts
from .exchange import each_to_all, exchange, of_columns, of_rows, rows
from .layouts import (
    ACCUMULATOR,
    BLOCK,
    COALESCED,
    COLUMN,
    EITHER,
    ROW,
    Form,
    by_rows,
    coalesced_form,
    fits,
    panel_width,
    vector_layout,
    vector_of,
)
from .row_layouts import ROWS, lanes_of
from .tile import Tile, form_of

__all__ = ["layout_cast"]

CAST = "layout_cast"


@op(context=True, site=True)
def layout_cast(np_: Context, site: str, tile: Any, layout: str) -> Tile:
    """Convert a vector or a tile to another layout, inside a kernel, so that other lanes hold its
    elements.

    tile    a vector (n,) of any type, or a tile (M, N) of numbers
    layout  a compile-time constant. For a vector: "row", along the columns, as it is broadcast to
            tiles; or "column", along the rows, as ``tile.sum(axis=1)`` returns it. For a tile:
            "accumulator", or "coalesced", as `load_tile` returns it. By rows: "rows" or "rows 32"
            for a tile, "row 32" or "column 32" for a vector that is combined with one

    For example, a statistic of each row that scales the columns of another product::

        norms = np.sqrt((k * k).sum(axis=1))  # along the rows of k
        s = s / numpipe.layout_cast(norms, "row")  # along the columns of q @ k.T

    Between "row" and "column", a vector takes 4 n bytes of shared memory and two barriers of the
    warpgroup; a loaded vector, and one made by `full` or `iota`, already has both layouts. A tile
    takes 64 rows of at most 128 bytes. Raises SpecError for unknown layouts, and for sizes that a
    layout does not support: along columns, a multiple of 8 up to 256; along rows, a multiple of 64;
    coalesced rows, 32, 64 or a multiple of 128 bytes.
    """
    result, nbytes = plan_cast(np_, site, tile, layout)
    if not np_.computes:
        return Tile(None, result)
    if nbytes:
        if lanes_of(tile.form.layout) or lanes_of(result.layout):
            for _ in range(panels(result.shape)):
                exchange(np_, *each_to_all(-(-nbytes // 64) * 16), f"{CAST} of a register tile")
        else:
            exchange(
                np_,
                *_chunks(tile.form, result),
                f"{CAST} of a register tile",
                apart=len(result.shape) == 2,
            )
    return Tile(tile.value, result)


def plan_cast(np_: ContextFacts, site: Any, tile: Any, layout: Any) -> tuple[Form, int]:
    """Return (the form that a cast results in, bytes of shared memory that it needs). Raises
    SpecError for unsupported casts."""
    form, layout = form_of(tile, f"'{CAST}'"), constant(CAST, "layout", layout)
    if form is None:
        raise SpecError(f"{CAST}(tile, layout): tile must be a register tile, got {called(tile)}")
    flat = len(form.shape) == 1
    if lanes_of(form.layout) or (isinstance(layout, str) and (layout == ROWS or lanes_of(layout))):
        return _plan_by_rows(np_, site, form, layout)
    known = (ROW, COLUMN) if flat else (ACCUMULATOR, COALESCED)
    if layout not in known:
        raise SpecError(
            f"{CAST}: the layout of a {'vector' if flat else 'tile (M, N)'} must be one of "
            f"{', '.join(map(repr, known))}, got {layout!r}"
        )
    result, nbytes = (_plan_vector if flat else _plan_tile)(form, layout)
    if nbytes and np_.computes:
        before = f" ({form.layout} layout)" if form.layout == ACCUMULATOR else ""
        np_.unit.plan_exchange(
            nbytes, (constant(CAST, "site", site), f"{form}{before} to {result.layout} layout")
        )
    return result, nbytes


def panels(shape: tuple[int, ...]) -> int:
    """Return the number of 64 x 64 panels of a tile; 1 for a vector."""
    return math.prod(-(-size // 64) for size in shape) if len(shape) == 2 else 1


def _plan_by_rows(np_: ContextFacts, site: Any, form: Form, layout: str) -> tuple[Form, int]:
    """Implement `plan_cast` for a cast from or to a layout by rows."""
    if vector_of(form.layout) or layout == COALESCED or 1 in form.shape:
        raise SpecError(
            f"{CAST}: {form} is cast as a vector; fix: cast x.reshape(-1)"
            if 1 in form.shape
            else f"{CAST}: {form} cannot be cast to {layout!r} in one step; fix: cast to "
            f'"{ACCUMULATOR}" first'
        )
    flat = len(form.shape) == 1
    if layout == ACCUMULATOR and not fits(form.shape):
        raise SpecError(
            f"{CAST}: an accumulator has a multiple of 64 rows, and a multiple of 8 columns up to "
            f"256, got {form}"
        )
    result = (
        by_rows(form, layout, CAST)
        if layout == ROWS or lanes_of(layout)
        else Form(form.shape, form.dtype)
        if not flat
        else _plan_vector(Form(form.shape, form.dtype, EITHER), layout)[0]
    )
    if result == form:
        return form, 0
    nbytes = form.dtype.itemsize * (form.shape[0] if flat else 64 * 64)
    if np_.computes:
        np_.unit.plan_exchange(
            nbytes, (constant(CAST, "site", site), f"{form} to {result.layout} layout")
        )
    return result, nbytes


def _plan_vector(form: Form, layout: str) -> tuple[Form, int]:
    if vector_layout(form.shape[0], CAST) not in (layout, EITHER):
        raise SpecError(
            f"{CAST}: a vector of {form.shape[0]} elements has no {layout} layout: a row layout "
            "has a multiple of 8 elements up to 256, a column layout a multiple of 64"
        )
    return Form(form.shape, form.dtype, layout), 0 if form.layout in (
        layout,
        EITHER,
    ) else 4 * form.shape[0]


def _plan_tile(form: Form, layout: str) -> tuple[Form, int]:
    if form.dtype.itemsize == 1 or (form.layout != ACCUMULATOR and not vector_of(form.layout)):
        raise SpecError(
            f"{CAST}: expected a tile (M, N) of 16 or 32 bits, got {form}; fix: cast the values "
            "it is computed from"
        )
    plain = Form(form.shape, form.dtype)
    if (layout == ACCUMULATOR) == (form.layout == ACCUMULATOR):
        return form, 0
    if layout == COALESCED:
        result = coalesced_form(plain, CAST)
        return result, BLOCK * panel_width(result)
    if panel_width(form) > 128:
        raise SpecError(
            f"{CAST}: a lane of this {form.dtype} tile in {form.layout} layout has "
            f"{panel_width(form) // 8} adjacent bytes, but the cast moves 16 at a time; fix: cast "
            "before astype"
        )
    return plain, BLOCK * panel_width(form)


def _chunks(form: Form, result: Form) -> tuple[Any, Any]:
    """Return the chunks that the warps store, and those that they load. For a tile, these are the
    chunks of one panel, because all panels are alike."""
    if len(form.shape) == 2:
        panel = rows(panel_width(form if result.layout == ACCUMULATOR else result))
        return panel, panel
    count = form.shape[0]
    if result.layout == COLUMN:  # all warps hold the columns, so the first warp stores them
        return of_columns(count)[:1], of_rows(count)
    return of_rows(count), of_columns(count)
