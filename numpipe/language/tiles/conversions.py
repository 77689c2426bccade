"""Layout casts of register tiles: ``numpipe.layout_cast(v, "row")``, ``layout_cast(x,
"accumulator")``.

=======================  =====================  ====================================================
from                     to                     cost
=======================  =====================  ====================================================
a deferred vector        any of its `ways`      nothing: what is not used is not computed
row                      column                 through shared memory: its bytes, a named barrier
                                                of the warpgroup before
column                   row                    the stores, and one between them and the loads
accumulator              coalesced              through shared memory, panels of 64 rows x 128
                                                bytes, one after the other: a
coalesced                accumulator            barrier of the warpgroup before, and within, as
                                                warps keep their rows, of the warp
by rows (`by_row`)       any, or from any       through shared memory, a tile in panels of at
                                                least 4096 elements (`panel`): two barriers each
float32 accumulator      A operand of wgmma     `astype`, in the same lanes: no cast is needed
the same                                        none
=======================  =====================  ====================================================

An operation moves an operand that lies otherwise than it needs (`layouts.combined`, `laid`) in the
same ways, so no kernel has to name a layout; a cast before a loop moves a tile once. A deferred
vector has every layout, and takes one by itself where an `if`, a loop, a carry or a function's
results join it with another (`layouts.joined`). What goes through shared memory is listed by
``kernel.inspect("resources")`` with its bytes, and casts with their lines.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from ...core.arith import cdiv
from ...core.machine import current
from ...core.op import constant, context_op
from ...diagnostics.errors import SpecError
from ...plan.context import Context, ContextFacts
from ...plan.layout import Layout
from .exchange import ROOM, each_to_all, exchange, rows
from .layout_names import COALESCED, COLUMN, ROW, ROWS, name_of
from .layouts import ACCUMULATOR, BLOCK, Form, by_rows, coalesced_form, fits, panel_width, ways
from .tile import Tile, tile_form

__all__ = ["layout_cast"]

CAST = "layout_cast"


@context_op(site=True)
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

    Between "row" and "column", a vector takes its bytes of shared memory and two barriers of the
    warpgroup; a loaded vector, and one made by `full` or `iota`, already has both layouts. A tile
    takes 64 rows of at most 128 bytes. Raises SpecError for unknown layouts, and for sizes that a
    layout does not support: along columns, a multiple of 8 up to 256; along rows, a multiple of 64;
    coalesced rows, 32, 64 or a multiple of 128 bytes.
    """
    return moved(tile, plan_cast(np_, site, tile, layout))


def plan_cast(np_: ContextFacts, site: Any, tile: Any, layout: Any) -> Form:
    """Return the form that a cast of a tile gives; raise SpecError for layouts that it cannot
    have."""
    result = _cast_form(tile, layout)
    nbytes = moved_bytes(tile.form, result)
    if nbytes and np_.computes:
        np_.unit.plan_exchange(nbytes, (constant(CAST, "site", site), described(tile.form, result)))
    return result


def described(have: Form, form: Form) -> str:
    """Return how reports name a move from one layout to another."""
    before = f" ({have.layout} layout)" if have.layout == ACCUMULATOR else ""
    return f"{have}{before} to {form.layout} layout"


def _cast_form(tile: Any, layout: Any) -> Form:
    form, layout = tile_form(tile, CAST), constant(CAST, "layout", layout)
    if isinstance(layout, str) and name_of(layout).by_row:
        return by_rows(form, layout, CAST)
    line = len(form.shape) == 1 or 1 in form.shape
    known = (ROW, COLUMN) if line else (ACCUMULATOR, COALESCED)
    if layout not in known:
        raise SpecError(
            f"{CAST}: the layout of a {'vector' if line else 'tile (M, N)'} must be one of "
            f"{', '.join(map(repr, known))}, got {layout!r}"
        )
    if layout == COALESCED:
        plain = Form(form.shape, form.dtype)
        return form if form.name.vector else coalesced_form(plain, CAST)
    if layout == ACCUMULATOR and not fits(form.shape):
        raise SpecError(
            f"{CAST}: an accumulator has a multiple of 64 rows, and a multiple of 8 columns up to "
            f"256, got {form}"
        )
    if line and layout not in ways(form.shape):
        raise SpecError(
            f"{CAST}: a vector of {max(form.shape)} elements has no {layout} layout: a row layout "
            "has a multiple of 8 elements up to 256, a column layout a multiple of 64"
        )
    return replace(form, layout=layout)


def moved(tile: Tile, form: Form) -> Tile:
    """Return a tile whose lanes have the elements that `form` says, on the simulated SM, where only
    the exchange between the warps is simulated.

    Operations move their operands so; a compile does where it casts them to the types of the
    operation's parameters.
    """
    if tile.form == form or tile.inert:
        return tile if tile.form == form else Tile(None, form)
    machine, have = current(), tile.form
    nbytes = moved_bytes(have, form)
    if nbytes and machine.role.computes:
        machine.unit.plan_exchange(nbytes)
        what = f"a register tile in {form.layout} layout"
        if not (width := chunk_width(have, form)):
            way = panel(have, form)
            for _ in range(1 if way.flat else math.prod(map(cdiv, form.shape, way.shape))):
                exchange(machine, *each_to_all(-(-nbytes // 64) * 16), what)
        else:
            # of one panel, because all panels are alike
            exchange(machine, rows(width), rows(width), what, apart=True)
    return Tile(tile.value, form)


def chunk_width(have: Form, form: Form) -> int:
    """Return the bytes of a row of the panels in which a tile moves between an accumulator's layout
    and a coalesced one, without addresses of elements; 0 for other moves."""
    lines, other = (have, form) if have.name.vector else (form, have)
    if not lines.name.vector or other.layout != ACCUMULATOR or have.dtype.itemsize not in (2, 4):
        return 0
    width = panel_width(lines)
    return width if width <= 128 else 0


def moved_bytes(have: Form, form: Form) -> int:
    """Return the bytes of shared memory that `moved` needs; raise SpecError for a vector that is
    too long."""
    if have.single or have.holds(form.layout):
        return 0
    if width := chunk_width(have, form):
        return BLOCK * width
    way = panel(have, form)
    if way.nbytes > ROOM:
        fix = "take parts of it" if way.flat else f'cast it to "{ROWS}" first'
        raise SpecError(
            f"{have} would be moved to {form.layout} layout through {way.nbytes} bytes of shared "
            f"memory, but {ROOM} is the maximum; fix: {fix}"
        )
    return way.nbytes


def panel(have: Form, form: Form) -> Layout:
    """Return the layout in shared memory of a panel, in which a part of a tile moves between two
    layouts: large enough that a register is in the same panel in all lanes. A vector has one
    panel."""
    size = form.dtype.itemsize
    if len(form.shape) == 1 or 1 in form.shape:
        return Layout((1, math.prod(form.shape)), size, 1, 16, 16)
    rows, columns = (
        1 << max(of.record.own(127)[axis].bit_length() for of in (have, form)) for axis in (0, 1)
    )
    columns = max(columns, min(BLOCK, BLOCK * BLOCK // rows))
    rows, width = max(rows, BLOCK * BLOCK // columns), min(128, columns * size)
    return Layout((rows, columns), size, 1, width, rows * width)
