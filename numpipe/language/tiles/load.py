"""``c[rows, columns]``: a block of an array in global memory, loaded as a register tile by the
lanes that hold its elements.

====================================  ==============================================================
index                                 value
====================================  ==============================================================
``c[ds(i, 128), ds(j, 64)]``          a tile (128, 64)
``bias[ds(j, 64)]``                   a vector (64,): along the columns of a tile or, with
                                      ``[:, None]``, along its rows
``scale[k]``                          a number
``table[v]``, ``x[v, ds(j, 64)]``     a gather: elements, rows or columns at the indices in an int32
                                      vector v
``bias[h, rows, columns]``            a gather of elements, as in NumPy: int32 tiles of indices are
                                      broadcast, here (64, 1) and (1, 64) to a tile (64, 64)
``c[ds(i, 128, stop=n), …]``          the same block, with zeros from element n of the array on
====================================  ==============================================================

An array of more dimensions takes integers along the others: ``c[b, ds(i, 128), ds(j, 64)]``,
``bias[layer, ds(j, 64)]``. The rows and columns of a tile are in the order of the array's
dimensions. Elements that a ``ds`` selects outside the array are 0, and are not accessed. An index
outside the array, a number or an element of v, is the hazard `out-of-bounds`, unless it has a mode
(`numpipe.index`). A gathered vector has the layout of v.

Load operands of products through a pipeline. Use these loads for what an epilogue reads once: a
bias, a residual, ``beta * c``. A lane has two adjacent columns of each row, so a row is loaded in
pieces of 4 or 8 bytes, and each warp instruction covers 8 pieces of 16 or 32 bytes. If the pieces
would not be aligned (an odd first column, or an array with rows of odd length), elements are loaded
one by one.

An element of an int32 or int64 array that the launch does not write is also a number in the memory
role, which reads it itself. So it may steer the kernel: use it in `if`, `range`, `while`, index
maps, and the grids of pipelines. The memory role has no values of other arrays, so its loads cannot
depend on them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...arch.dimensions import Ints
from ...arch.dtypes import BFLOAT16, FLOAT32, INT32, INT64, packing
from ...core.arith import as_read, is_integer
from ...core.inert import Inert, NoValue
from ...core.machine import current
from ...core.op import called, constant, op
from ...diagnostics.errors import SpecError
from ...plan.plans import ArrayArg
from .array_views import (
    GmemView,
    block_axes,
    check_inside,
    check_parts,
    check_read,
    ends,
    index_form,
    starts,
)
from .conversions import moved
from .fence_order import before_access
from .indices import check_gathered, plain, settled
from .layout_names import COALESCED, COLUMN, ROW, ROWS, name_of
from .layouts import ACCUMULATOR, Form, by_rows, coalesced_form, combined, has_coalesced, layout_of
from .refs import Ds, GmemRef, SmemLike, SmemTile, method_of, whole_slices
from .row_layouts import WHOLE, shared_lanes
from .scattered_shared import load as load_anywhere
from .shared_tiles import layout_of_rows
from .tile import Tile, check_dtype, check_form, form_of

__all__ = ["load_tile"]

AUTO, RUNS = "auto", "runs"
STEERING = INT32, INT64
"""Types of arrays whose elements may steer: each role, including the memory role, reads them
itself."""


def block_form(name: str, dtype: np.dtype, sizes: Sequence[int | Form]) -> Form | None:
    """Return the form of a register tile for a block of these sizes; None for a single element.

    A size may be the form of a vector of indices. Raises SpecError for more than one such vector,
    and for one in another layout.
    """
    if not sizes and dtype in STEERING:
        return None
    check_dtype(dtype, f"{name}[…]")
    if not sizes and not packing(dtype).computed:
        raise SpecError(
            f"{name}[…]: an element of type {dtype} cannot be loaded as a number; fix: load a "
            "tile, and convert it with astype"
        )
    whole = tuple(size.shape[0] if isinstance(size, Form) else size for size in sizes)
    form = check_form(whole, dtype, f"{name}[…]") if sizes else None
    indices = [size for size in sizes if isinstance(size, Form)]
    if form is None or not indices:
        return form
    (vector,) = indices if len(indices) == 1 else [None]
    if vector is None or len(vector.shape) != 1 or vector.dtype != INT32:
        raise SpecError(
            f"{name}[…]: only one part of the index may be a vector of int32, with ds(start, "
            f"size) and integers for the others, got {' and '.join(map(str, indices))}"
        )
    word = vector.name.word
    if len(sizes) == 1 or (word == layout_of(form.shape) and word in (ROW, COLUMN)):
        return replace(form, layout=vector.layout)
    return form


def plan(ref: Any, parts: Sequence) -> tuple[Ints, Form | None]:
    """Return (the dimensions of a block of an array, the form of its register tile or None), given
    the parts of an index, or their Numba types."""
    name = ref.arg.name
    ref.arg.check_plain(f"{name}[…]")
    axes = block_axes(ref, parts, f"{name}[…]", gathers=True)
    return axes, block_form(
        name,
        ref.arg.dtype,
        [form_of(parts[axis], f"{name}[…]") or parts[axis].size for axis in axes],
    )


def element_form(ref: Any, parts: Sequence) -> Form | None:
    """Return the form of a tile whose elements are gathered one by one, at indices in several tiles
    or in one of two dimensions; None for other indices. `parts`: the index, or its Numba types.

    Raises SpecError for indices of another type, and for shapes that cannot be broadcast.
    """
    name, dtype = ref.arg.name, ref.arg.dtype
    forms = [form_of(part, f"{name}[…]") for part in parts]
    tiles = [form for form in forms if form is not None]
    if not tiles or (len(tiles) == 1 and len(tiles[0].shape) == 1):
        return None
    others = [part for part, form in zip(parts, forms, strict=True) if form is None]
    if (
        len(parts) != ref.arg.ndim
        or any(form.dtype != INT32 for form in tiles)
        or not all(isinstance(part, NoValue) or is_integer(part) for part in others)
    ):
        raise SpecError(
            f"array '{name}' has {ref.arg.ndim} dimension{'s' * (ref.arg.ndim != 1)}: expected "
            f"{name}[…] with an integer or a tile of int32 along each of them, got {parts}"
        )
    ref.arg.check_plain(f"{name}[…]")
    check_dtype(dtype, f"{name}[…]")
    shape, layout = combined(f"{name}[…]", tiles)
    return Form(shape, dtype, layout)


def number_type(dtype: np.dtype) -> np.dtype:
    """Return the type of an element as a number of a kernel: float32 for bfloat16."""
    return FLOAT32 if dtype == BFLOAT16 else dtype


def without_value(arg: ArrayArg, parts: Sequence) -> str:
    """Return how messages name a single element of an array, and why the memory role does not have
    it; "" if the memory role reads it too.

    The memory role reads elements that nobody writes during the launch, at indices that it knows.
    `parts`: the indices, or their Numba types.
    """
    if arg.dtype not in STEERING:
        return f"an element of array '{arg.name}' (of {arg.dtype}: those of int32 and int64 steer)"
    if arg.output:
        return (
            f"an element of array '{arg.name}' (an output of the call: those of an array steer "
            "that nothing stores to, passed before the first output)"
        )
    return next((part.what for part in parts if isinstance(part, NoValue)), "")


def load_form(view: Any, layout: Any, columns: Any = None) -> Form:
    """Return the form of the tile that `load_tile` loads from a view. Raises SpecError for layouts
    that `load_tile`, or the tile, does not support."""
    shared = isinstance(view, SmemLike)
    if not (shared or isinstance(view, GmemView)):
        raise SpecError(
            f"load_tile(view, layout): view must be a view of an array, got {called(view)}; fix: "
            "pass array.at[ds(i, 64), ds(j, 64)]"
        )
    layout, columns = (
        constant("load_tile", name, value)
        for name, value in (("layout", layout), ("columns", columns))
    )
    name, dtype, shape = (
        ("tile", view.dtype, view.layout.sides)
        if shared
        else (f"{view.ref.arg.name}.at", view.ref.arg.dtype, view.shape)
    )
    if columns is not None:
        known = isinstance(columns, int) and columns > 0
        if not shared or len(shape) > 1 or not known or shape[0] % columns:
            raise SpecError(
                "load_tile: columns must divide the size of a one-dimensional tile in shared "
                f"memory, got {columns!r} for {name} {shape}"
            )
        shape = shape[0] // columns, columns
        if layout == AUTO:
            layout = f"{ROWS} {shared_lanes(*shape, dtype.itemsize)}"
    if layout == RUNS:
        shared_by = f"{ROW} {WHOLE}" if len(shape) == 1 else f"{ROWS} 32"
        layout = f"{shared_by} {16 // dtype.itemsize}"
    if isinstance(layout, str) and name_of(layout).by_row and shape:
        check_dtype(dtype, "load_tile")
        return by_rows(Form(shape, dtype), layout, "load_tile")
    if layout not in (AUTO, ACCUMULATOR, COALESCED):
        fit = '"coalesced", "accumulator", "rows" or "rows 32" for a tile of two dimensions'
        if len(shape) < 2:
            fit = '"auto", "row 32" or "column 32" for a vector'
        raise SpecError(f"load_tile: layout must be {fit}, got {layout!r}")
    form = block_form(name, dtype, shape)
    if form is None:
        raise SpecError(
            "load_tile(view, layout): the view is a single element; fix: write "
            f"{view.ref.arg.name}[i, j]"
        )
    wide = layout == AUTO and not shared and has_coalesced(form)
    return coalesced_form(form, "load_tile") if wide or layout == COALESCED else form


@op
def load_tile(view: Any, layout: str = AUTO, columns: int | None = None) -> Tile:
    """Load a block of an array as a register tile in a chosen layout, inside a kernel.

    view    ``array.at[ds(i, 64), ds(j, 64)]``, of which elements outside the array are 0; or a
            tile in shared memory, or a view of one
    layout  "coalesced": a lane has 16 adjacent bytes, and 8 lanes have a whole 128-byte line of a
            row. "accumulator": the layout of ``array[ds(i, 64), ds(j, 64)]``. "auto": coalesced for
            a block of an array that has that layout, else that of ``array[…]``. "rows", "rows 32":
            as many lanes as possible, or 32, share a row (`by_row`), the layout of tiles that are
            not accumulators; for a vector "row 32", along the columns of such a tile, or "column
            32", along its rows. "rows 128": each lane has the same columns of all rows, to combine
            rows without other lanes. "runs": 32 lanes share a row, and each has 16 adjacent bytes
            at a time, for scans along rows; for a vector, all lanes share it, for stores of 16
            bytes
    columns  the columns of the result, if `view` is a one-dimensional tile in shared memory: rows
             of any length that follow each other without gaps, as in a contiguous array. The
             layout "auto" then spreads the lanes for the fewest bank conflicts

    Use it in kernels that compute element by element, and for data that is read and written once: a
    load or store instruction of a warp moves 4 whole lines instead of 8 pieces of 32 bytes.
    A tile that meets one in another layout is moved, through shared memory, and so is one that is
    reduced; ``numpipe.layout_cast(tile, "accumulator")`` does that once, for several uses::

        x = numpipe.load_tile(a.at[ds(i, 64), ds(0, 64)])
        b[ds(i, 64), ds(0, 64)] = np.maximum(x, 0.0)

    Raises SpecError if `view` is not a view, for coalesced rows that are not 32, 64, 128, 256, 384
    … bytes, and for other layouts.
    """
    form = load_form(view, layout, columns)
    if not current().role.computes:
        return Tile(None, form)
    if isinstance(view, SmemTile):
        before_access(view)
        return Tile(load_anywhere(layout_of_rows(view, form), view.address, form, (0, 0)), form)
    value = np.zeros(form.shape, form.dtype)
    check_read(view.ref, view.start, view.axes, view.shape, f"load_tile: {view.ref.name}.at[…]")
    _read_block(view.ref, view.axes, view.start, value)
    return Tile(value, form)


@method_of(GmemRef, "__getitem__")
def load(ref: GmemRef, index: Any) -> Any:
    """Return the block ``ref[index]`` as a register tile, or a single element as a number."""
    array, given = ref.array, whole_slices(index)
    if (form := element_form(ref, parts := plain(given))) is not None:
        return _elements(ref, given, form)
    axes, form = plan(ref, parts)
    machine = current()
    if not machine.role.computes and (
        form is not None or (unknown := without_value(ref.arg, parts))
    ):
        return Inert(unknown) if form is None else Tile(None, form)
    parts, absent = settled(ref, given, parts)
    if absent:
        return (
            number_type(ref.dtype).type(0)
            if form is None
            else Tile(np.zeros(form.shape, form.dtype), form)
        )
    check_inside(
        ref, parts, axes, f"'{ref.name}[…]'", "the GPU reads 0", "the GPU reads 0", "loads from"
    )
    if form is None:
        found = machine.gmem_read(
            array, tuple(slice(int(part), int(part) + 1) for part in parts), ref.name
        )
        return as_read(found.astype(number_type(ref.dtype)).reshape(-1)[0])
    check_parts(ref, parts, f"'{ref.name}[…]'")
    value = np.zeros(form.shape, form.dtype)
    gathered = next(
        (number for number, axis in enumerate(axes) if isinstance(parts[axis], Tile)), None
    )
    if gathered is None:
        _read_block(ref, axes, parts, value)
        return Tile(value, form)
    axis = axes[gathered]
    vector = parts[axis]
    moved(vector, index_form(form, gathered, vector.form))
    check_gathered(ref, given)
    for indices, part in _runs(vector.value, array.shape[axis]):
        sizes = (*form.shape[:gathered], part.size, *form.shape[gathered + 1 :])
        found = np.zeros(sizes, form.dtype)
        _read_block(ref, axes, (*parts[:axis], part, *parts[axis + 1 :]), found)
        chosen: Any = (*[slice(None)] * gathered, indices)
        value[chosen] = np.take(found, vector.value[indices] - part.start, axis=gathered)
    return Tile(value, form)


def _elements(ref: GmemRef, given: Sequence, form: Form) -> Tile:
    """Gather elements, at most one for each element of the tile's form."""
    machine = current()
    if not machine.role.computes or any(isinstance(part, NoValue) for part in given):
        return Tile(None, form)
    parts, absent = settled(ref, given, plain(given))
    axes = tuple(axis for axis, part in enumerate(parts) if isinstance(part, Tile))
    check_inside(
        ref, parts, axes, f"'{ref.name}[…]'", "the GPU reads 0", "the GPU reads 0", "loads from"
    )
    check_gathered(ref, given)
    where = np.broadcast_arrays(*(getattr(part, "value", part) for part in parts))
    inside = np.logical_and.reduce(
        [(at >= 0) & (at < size) for at, size in zip(where, ref.array.shape, strict=True)]
    )
    value = np.zeros(form.shape, form.dtype)
    if inside.any() and not absent:
        chosen = [at[inside] for at in where]
        box = tuple(slice(int(at.min()), int(at.max()) + 1) for at in chosen)
        found = machine.gmem_read(ref.array, box, ref.name)
        value[inside] = found[tuple(at - part.start for at, part in zip(chosen, box, strict=True))]
    return Tile(value, form)


def _read_block(ref: GmemRef, axes: Ints, parts: tuple, value: np.ndarray) -> None:
    """Copy the elements of a block that are inside the array, and before the stops of its parts, to
    their places in `value`."""
    start = list(map(int, starts(parts)))
    sizes = dict(zip(axes, value.shape, strict=True))
    inside = tuple(
        slice(max(0, place), max(0, min(place + sizes.get(axis, 1), size)))
        for axis, (place, size) in enumerate(zip(start, ends(ref, parts), strict=True))
    )
    if all(part.start < part.stop for part in inside):
        found = current().gmem_read(ref.array, inside, ref.name)
        where = tuple(
            slice(inside[axis].start - start[axis], inside[axis].stop - start[axis])
            for axis in axes
        )
        value[where] = found.reshape(tuple(found.shape[axis] for axis in axes))


def _runs(indices: np.ndarray, size: int) -> Iterator[tuple[np.ndarray, Ds]]:
    """Yield (positions in `indices`, their range) for each run of consecutive numbers among the
    indices that are inside the array."""
    known = np.unique(indices[(indices >= 0) & (indices < size)])
    for run in np.split(known, np.flatnonzero(np.diff(known) > 1) + 1) if known.size else []:
        yield np.flatnonzero((indices >= run[0]) & (indices <= run[-1])), Ds(int(run[0]), len(run))
