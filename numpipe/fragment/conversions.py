"""From one layout of a register tile to another: ``numpipe.layout_cast(v, "row")``.

=======================  =====================  ====================================================================================
from                     to                     costs
=======================  =====================  ====================================================================================
a vector in either       row, column            nothing: what is not used is not computed
row                      column                 through shared memory: 4 bytes an element, a named barrier of the warpgroup before
column                   row                    the stores, and one between them and the loads
float32 accumulator      A operand of wgmma     `astype`, in the same lanes: no cast is needed
the same                                        nothing
=======================  =====================  ====================================================================================

Nothing is converted where it is not written: a mismatch is an error that names both layouts, and the cast. What goes through shared
memory is listed by ``kernel.inspect("resources")``, with its line and its bytes.
"""

from __future__ import annotations

from typing import Any, NoReturn

from .._machine import current
from .._op import constant, op
from ..errors import SpecError
from .elementwise import form_of
from .layouts import COLUMN, EITHER, ROW, Form, vector_layout
from .tile import Tile

CAST = "layout_cast"


def layout_cast(tile: Any, layout: str) -> NoReturn:
    """A vector as other lanes hold it, inside a kernel: along the columns of a tile, or along its rows.

    tile    a vector (n,), of any type
    layout  "row": along the columns, as it is broadcast to tiles; "column": along the rows, as ``tile.sum(axis=1)`` gives it. A
            compile-time constant

    A row's statistics that scale the columns of another product, for example::

        norms = np.sqrt((k * k).sum(axis=1))                    # along the rows of k
        s = s / numpipe.layout_cast(norms, "row")               # along the columns of q @ k.T

    From one to the other it goes through 4 n bytes of shared memory, with two barriers of the warpgroup; a vector that was loaded,
    or made by `full` or `iota`, has both. Raises SpecError for tiles of two dimensions, and for a vector of a size that cannot lie
    so (along columns 8 x i elements up to 256, along rows 64 x j).
    """
    raise RuntimeError("numpipe.layout_cast is used inside a kernel")


def check_cast(form: Any, layout: Any, given: str) -> tuple[Form, int]:
    """(what a cast gives, bytes of shared memory that it needs); SpecError for what cannot be cast."""
    if not isinstance(form, Form):
        raise SpecError(f"{CAST}(tile, layout): tile must be a register tile, got {given}")
    if layout not in (ROW, COLUMN):
        raise SpecError(f"{CAST}: layout must be \"row\" (along the columns of a tile) or \"column\" (along its rows), got "
                        f"{layout!r}")
    if len(form.shape) != 1:
        raise SpecError(f"{CAST}: vectors are cast, got a tile {form.shape}, whose layout is that of its shape: a tile is "
                        "transposed through shared memory, tile[...] = x and then tile.T[...]")
    possible = vector_layout(form.shape[0], CAST)
    if possible not in (layout, EITHER):
        raise SpecError(f"{CAST}: a vector of {form.shape[0]} elements does not lie in {layout} layout: along columns there are "
                        "8 x i elements, at most 256, along rows 64 x j")
    result = Form(form.shape, form.dtype, layout)
    return result, 0 if form.layout in (layout, EITHER) else 4 * form.shape[0]


@op
def cast(np_: Any, tile: Any, layout: Any, site: Any) -> Tile:
    """`layout_cast`, in a kernel of which `np_` is the context; `site` is its line."""
    made, nbytes = check_cast(form_of(tile), constant(CAST, "layout", layout), type(tile).__name__)
    if np_.memory:
        return Tile(None, made.shape, made.dtype, made.layout)
    if nbytes:
        np_.unit.plan_cast(str(site), f"{tile.form} to {layout} layout", nbytes)
        machine = current()
        for _ in range(2):  # before the stores, which others may still be reading, and before the loads
            machine.bar_sync(1 + machine.warpgroup, 128)
    return Tile(tile.value, made.shape, made.dtype, made.layout)
