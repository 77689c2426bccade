"""Stores of register tiles to arrays in global memory: ``c[rows, columns] = tile``, clipped at the
array's edges.

======================================  ============================================================
index                                   value
======================================  ============================================================
``c[ds(i, 128), ds(j, 64)]``            a tile (128, 64), or one with a single row or column:
                                        ``c[ds(i, 64), ds(j, 1)]``
``bias[ds(j, 64)]``                     a vector (64,), along columns or along rows
``y[rows, ds(j, 64)]``, ``y[rows, :]``  a tile (M, 64), scattered: its row i goes to row
                                        ``rows[i]`` of the array (`scatter`)
``c[ds(i, 128, stop=n), …]``            a tile (128, …); elements from element n of the array on
                                        are not written
``y[i, j]``, ``sums[i]``                a number: `elements`
======================================  ============================================================

The index of an array with more dimensions has an integer along each of the others: ``c[b, ds(i,
128), ds(j, 64)] = tile``, or ``c[b, ds(i, 128), head, ds(j, 64)] = tile``, ``sums[b, head, ds(i,
128)] = vector``. A `ds` may extend past the array's end and is clipped. An integer outside its
dimension, and a negative start, are errors on the simulated SM. The GPU writes nothing outside the
array, but a TMA store with a negative start stops the kernel with an illegal instruction (measured
on an H200).

Tiles of float32, float16, bfloat16 and int32 are converted to an array of a 16-bit or 32-bit float
type: float32 is rounded to float16, int32 becomes float32. Floats are not converted to integers,
nor bfloat16 to float16; conversions to 8-bit types, which saturate, require `astype`.

How a tile is written depends on the array:

- Arrays whose rows TMA can address, and column-major matrices of 16-bit types, use the store ring:
  panels in swizzled shared memory (transposed for column-major matrices), so that the stores of a
  tile overlap the loads and products of the next.
- Other row-major arrays of 16-bit and 32-bit types, and column-major arrays of 16-bit types, use a
  panel in shared memory from which the lanes write rows or columns (`store_rows`).
- Other arrays, tiles whose columns do not lie along the last dimension, vectors, and tiles of one
  row or column are written by the lanes directly. If several lanes hold an element, one writes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...arch.dimensions import Ints
from ...arch.dtypes import BOOL, TILES
from ...core.machine import failure
from ...core.op import called
from ...diagnostics.errors import SimulationError, SpecError
from ...plan.plans import ArrayArg
from .array_views import block_axes, check_inside, check_parts, check_placed, ends, placed, starts
from .elements import check_number, is_element, is_number, write_element
from .indices import plain, settled
from .layouts import ACCUMULATOR, Form
from .refs import Ds, GmemRef, Index, method_of, whole_slices
from .scatter import all_of_tile, check_all, check_scatter, scatter, scattered, sizes_of
from .store_ring import Batch, batches, put
from .store_rows import store_rows, through_panel, write_inside
from .tile import Tile, cast_to_store, form_of


def check(
    what: str,
    name: str,
    dtype: Any,
    sizes: Ints,
    form: Form,
    known: Sequence[str] = tuple(map(str, TILES)),
) -> None:
    """Raise SpecError unless a tile has the shape `sizes` of a block of array `name`, and a type
    that can be stored there. `known`: the types of tiles."""
    if sizes != form.shape:
        raise SpecError(f"{what}: the index selects {sizes}, but the tile is {form.shape}")
    if form.dtype == BOOL:
        number = (
            "mask.astype(np.int32)"
            if str(dtype).startswith(("int", "uint"))
            else "np.where(mask, 1.0, 0.0)"
        )
        convert = "" if str(dtype) in ("int32", "float32") else f".astype({name}.dtype)"
        raise SpecError(
            f"{what}: the tile is a mask; fix: store {number}{convert}, or np.where(mask, x, y)"
        )
    if dtype != form.dtype:
        raise SpecError(
            f"{what}: the array is {dtype}, but the tile is {form.dtype}; fix: "
            + (
                f"store tile.astype({name}.dtype)"
                if str(dtype) in known
                else (
                    f"pass an array of {form.dtype if str(form.dtype) in known else known[0]} as "
                    f"'{name}'"
                )
            )
        )


def plan(ref: Any, parts: Sequence, tile: Any) -> Ints:
    """Return the dimensions of the block that a tile is stored to. Raises SpecError if the store is
    not supported."""
    name = ref.arg.name
    axes, form = block_axes(ref, parts, f"{name}[…]", gathers=True), form_of(tile, stored(name))
    if form is None:
        sizes = sizes_of(parts, axes)
        fix = (
            f": numpipe.full({sizes}, value, {name}.dtype) is one; fix for a sum that began with a "
            f"number, as 0 + tile: begin with numpipe.zeros({sizes}, np.float32)"
            if sizes and is_number(tile)
            else ""
        )
        raise SpecError(
            f"'{name}[…] = value': the value must be a register tile, got {called(tile)}{fix}"
        )
    ref.unit.check_output(ref.index, stored(name))
    if scattered(parts) is not None:
        check_scatter(name, [parts[axis] for axis in axes])
    check(stored(name), name, ref.arg.dtype, sizes_of(parts, axes), form)
    if takes_over(ref, axes, parts, form):
        check_placed(ref, placed(parts), stored(name))
    return axes


def takes_over(ref: Any, axes: Ints, parts: Sequence, form: Form) -> bool:
    """Return whether this role stores a tile that another role computes. Only tiles in the store
    ring are handed over; the computing lanes store all others."""
    return ref.takes_over and scattered(parts) is None and through_tma(ref.arg, axes, form)


def plan_number(ref: Any, parts: Sequence, value: Any) -> bool:
    """Return whether a number is stored to a single element. Raises SpecError if the array does not
    accept it."""
    if not is_element(parts) or not is_number(value):
        return False
    name = ref.arg.name
    block_axes(ref, parts, f"{name}[…]")
    what = f"'{name}[…] = value'"
    ref.unit.check_output(ref.index, what)
    check_number(what, name, ref.arg.dtype, value)
    return True


def stored(name: str) -> str:
    """Return how messages about a store begin."""
    return f"'{name}[…] = tile'"


def through_tma(array: ArrayArg, axes: Ints, form: Form) -> bool:
    """Return whether a tile that lies along `axes` of this array is stored through the store
    ring."""
    if form.layout != ACCUMULATOR or form.dtype.itemsize > 4 or not (array.tma and array.tma_store):
        return False
    if array.order == "col":
        # stmatrix transposes 16-bit elements only
        return axes[0] == 0 and form.dtype.itemsize == 2 and len(axes) == 2
    # panels are at least 16 bytes wide
    return axes[-1] == array.ndim - 1 and form.shape[1] * form.dtype.itemsize % 16 == 0


@method_of(GmemRef, "__setitem__")
def store(ref: GmemRef, index: Any, tile: Any) -> None:
    """Store `tile`, or a number, to ``ref[index]``. In a role that neither computes nor stores,
    this does nothing."""
    tile = cast_to_store(tile, ref.arg.dtype)
    given = whole_slices(index)
    parts = all_of_tile(plain(given), tile)
    number = plan_number(ref, parts, tile)
    axes = () if number else plan(ref, parts, tile)
    if not (ref.np.computes or (not number and takes_over(ref, axes, parts, tile.form))):
        return
    parts, absent = settled(ref, given, parts)
    if absent:
        return
    if number:
        write_element(ref, parts, tile, f"'{ref.name}[…] = value'")
        return
    check_all(ref, plain(given), parts, stored(ref.name))
    if (along := scattered(parts)) is not None:
        scatter(ref, axes, parts, tile, stored(ref.name), isinstance(given[along], Index))
    else:
        check_parts(ref, parts, stored(ref.name))
        clipped = any(isinstance(part, Ds) and part.least < 0 for part in parts)
        last = ends(ref, parts)
        write_out(ref, axes, starts(parts), tile, stored(ref.name), last=last, clipped=clipped)


def write_out(
    ref: GmemRef,
    axes: Ints,
    at: tuple,
    tile: Tile,
    what: str,
    reduction: str = "",
    last: Ints | None = None,
    clipped: bool = False,
) -> None:
    """Store a tile that fits, or reduce it into the array. `at` has the start along each dimension;
    `what` begins messages.

    `last`: the end of each dimension, if it is not the array's end everywhere.
    `clipped`: whether the tile may start before the array (`least` of a `ds`).
    """
    array, through, start = ref.array, through_tma(ref.arg, axes, tile.form), tuple(map(int, at))
    last = array.shape if last is None else last
    through &= all(
        last[axis] == array.shape[axis] or (ref.stores_alone and start[axis] + size <= last[axis])
        for axis, size in zip(axes, tile.shape, strict=True)
    )
    first = tuple(start[axis] for axis in axes)
    if min(first) < 0 and (through or not clipped):
        wrong = str(first) if len(first) > 1 else str(first[0])
        raise failure(
            SimulationError,
            "out-of-bounds",
            f"{what}: negative start {wrong}: "
            + (
                "a TMA store stops the kernel there"
                if through
                else "the GPU writes only elements inside the array"
            ),
            "starts of 0 or more: elements past the end are clipped",
            f"stores to '{ref.name}'",
        )
    check_inside(
        ref,
        start,
        axes,
        what,
        "a TMA store stops the kernel",
        "the GPU writes nothing",
        "stores to",
    )
    if through:
        number = int(ref.arg.order == "row")
        column, line = first[number] * ref.dtype.itemsize, ("row", "column")[number]
        if column % 16:
            raise SpecError(
                f"{what}: {line} {first[number]} of {ref.dtype} is {column} B into a "
                f"{('column', 'row')[number]}, but TMA stores must start at a multiple of 16 B"
            )
        for batch in batches(Batch, ref, tile, axes, reduction):
            put(ref, batch, start)
    elif ref.takes_over:  # the lanes that have the tile store it
        return
    elif not reduction and through_panel(ref.arg, axes, tile.form) and ref.unit.plan_row_stores():
        store_rows(ref, axes, start, tile, last)
    else:
        write_inside(ref, axes, start, tile.value, last, reduction)
