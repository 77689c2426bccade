"""From one layout of a register tile to another: ``numpipe.layout_cast(v, "row")``,
``layout_cast(x, "accumulator")``.

=======================  =====================  ====================================================
from                     to                     costs
=======================  =====================  ====================================================
a vector in either       row, column            nothing: what is not used is not computed
row                      column                 through shared memory: 4 bytes an element, a named
                                                barrier of the warpgroup before
column                   row                    the stores, and one between them and the loads
accumulator              coalesced              through shared memory, panels of 64 rows x 128
                                                bytes, one after the other: a
coalesced                accumulator            barrier of the warpgroup before, and within, as
                                                warps keep their rows, of the warp
by rows (`by_row`)     any, or from any       through shared memory, of a tile 64 x 64 elements
                                                after 64 x 64: two barriers each
float32 accumulator      A operand of wgmma     `astype`, in the same lanes: no cast is needed
the same                                        nothing
=======================  =====================  ====================================================

What costs is not done where it is not written: a mismatch is an error that names both layouts, and
the cast. A vector in either layout becomes a row or a column by itself where an `if`, a loop, a
carry or a function's results join it with one (`layouts.joined`). What goes through shared memory
is listed by ``kernel.inspect("resources")``, with its line and its bytes.
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
    """Return a vector, or a tile, in another layout, so that other lanes hold its elements, inside
    a kernel.

    tile    a vector (n,), of any type, or a tile (M, N) of numbers
    layout  of a vector "row": along the columns, as it is broadcast to tiles; or "column": along
            the rows, as ``tile.sum(axis=1)`` gives it. Of a tile "accumulator", or "coalesced", as
            `load_tile` gives it. By rows, of a tile "rows" or "rows 32", of vectors that meet it
            "row 32" or "column 32" (`by_row`). A compile-time constant

    A row's statistics that scale the columns of another product, for example::

        norms = np.sqrt((k * k).sum(axis=1))  # along the rows of k
        s = s / numpipe.layout_cast(norms, "row")  # along the columns of q @ k.T

    From one to the other it goes through 4 n bytes of shared memory, with two barriers of the
    warpgroup; a vector that was loaded, or made by `full` or `iota`, has both. A tile takes 64 rows
    of at most 128 bytes. Raises SpecError for layouts that there are not, and for sizes that cannot
    lie so: along columns 8 x i elements up to 256, along rows 64 x j; coalesced rows have 32, 64 or
    128 x i bytes.
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
    """Return (the form that a cast of a tile gives, bytes of shared memory that it needs); raise
    SpecError for other casts."""
    form, layout = form_of(tile, f"'{CAST}'"), constant(CAST, "layout", layout)
    if form is None:
        raise SpecError(f"{CAST}(tile, layout): tile must be a register tile, got {called(tile)}")
    flat = len(form.shape) == 1
    if lanes_of(form.layout) or (isinstance(layout, str) and (layout == ROWS or lanes_of(layout))):
        return _plan_by_rows(np_, site, form, layout)
    known = (ROW, COLUMN) if flat else (ACCUMULATOR, COALESCED)
    if layout not in known:
        raise SpecError(
            f"{CAST}: the layout of a {'vector' if flat else 'tile (M, N)'} is one of "
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
    """Return how many panels of 64 x 64 elements a tile has; of a vector one."""
    return math.prod(-(-size // 64) for size in shape) if len(shape) == 2 else 1


def _plan_by_rows(np_: ContextFacts, site: Any, form: Form, layout: str) -> tuple[Form, int]:
    """Return what `plan_cast` does, of a cast from or to a layout by rows."""
    if vector_of(form.layout) or layout == COALESCED or 1 in form.shape:
        raise SpecError(
            f"{CAST}: {form} is cast as a vector: x.reshape(-1)"
            if 1 in form.shape
            else (
                f"{CAST}: from {form} to {layout!r} there is no way in one step: cast to "
                f'"{ACCUMULATOR}" first'
            )
        )
    flat = len(form.shape) == 1
    if layout == ACCUMULATOR and not fits(form.shape):
        raise SpecError(
            f"{CAST}: an accumulator has 64 x j rows and at most 256 columns, got {form}"
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
            f"{CAST}: a vector of {form.shape[0]} elements does not lie in {layout} layout: along "
            "columns there are 8 x i elements, at most 256, along rows 64 x j"
        )
    return Form(form.shape, form.dtype, layout), 0 if form.layout in (
        layout,
        EITHER,
    ) else 4 * form.shape[0]


def _plan_tile(form: Form, layout: str) -> tuple[Form, int]:
    if form.dtype.itemsize == 1 or (form.layout != ACCUMULATOR and not vector_of(form.layout)):
        raise SpecError(
            f"{CAST}: tiles (M, N) of 16 and 32 bits are cast, got {form}: cast what they are "
            "made of"
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
            f"{panel_width(form) // 8} bytes side by side, and 16 are moved: cast before astype"
        )
    return plain, BLOCK * panel_width(form)


def _chunks(form: Form, result: Form) -> tuple[Any, Any]:
    """Return the chunks that the warps store, and load, in a cast: of a tile those of one panel,
    the others being like it."""
    if len(form.shape) == 2:
        panel = rows(panel_width(form if result.layout == ACCUMULATOR else result))
        return panel, panel
    count = form.shape[0]
    if result.layout == COLUMN:  # of the columns, which all warps have, the first one stores them
        return of_columns(count)[:1], of_rows(count)
    return of_rows(count), of_columns(count)
