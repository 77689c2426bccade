"""Reductions into an array: ``numpipe.atomic_add(c.at[rows, columns], tile)`` adds to a block that
other CTAs may also update.

::

    m = numpipe.program_id(0)
    numpipe.atomic_add(
        total.at[ds(0, 64), ds(0, 64)], tile
    )  # as all other CTAs do, in any order
    numpipe.atomic_max(top.at[ds(m * 64, 64)], tile.max(axis=1))  # of int32

Each element of the array is replaced by the sum, minimum and so on of its value and the tile's,
atomically: relaxed, at GPU scope. The old value is not returned. The caller initializes the array,
so it cannot be one that the call allocates (`out_type`). Within the kernel, no other operation may
read or write the reduced elements: the simulator reports those that do.

======================  =======================================  ===================================
tile                    how (PTX ISA)                            types
======================  =======================================  ===================================
(M, N) into rows that   store ring:                              add: float32, float16, bfloat16,
TMA can address         ``cp.reduce.async.bulk.tensor`` from     int32; min, max: float16, bfloat16,
                        panels in shared memory, 16 bytes at a   int32; and, or, xor: int32; uint32
                        time                                     as int32
coalesced (M, N) of     by the lanes, four elements at a time:   add: float32
float32                 ``red.relaxed.gpu.global.add.v4.f32``
                        (see `register_order`)
other tiles, vectors,   by the lanes:                            add: float32, float16, bfloat16,
(M, 1), (1, N),         ``red.relaxed.gpu.global`` for each      int32; min, max, and, or, xor:
elements                element; 16-bit types by a               int32; uint32 as int32
                        compare-and-swap loop
======================  =======================================  ===================================

Sums of floats are rounded at each addition, and their order differs from run to run, so results are
not bit-identical. float32 subnormals are flushed to 0 (``red.add.f32``).
"""

from __future__ import annotations

from typing import Any

from ...arch.dtypes import REDUCTIONS
from ...core.arith import named
from ...core.op import Op, called
from ...diagnostics.errors import SpecError
from .array_views import GmemView, check_placed
from .elements import check_number, is_number, write_element
from .refs import SmemLike
from .shared_atomics import IndexedLike, check_shared, update_shared
from .store import check, through_tma, write_out
from .tile import form_of

__all__ = ["atomic_add", "atomic_and", "atomic_max", "atomic_min", "atomic_or", "atomic_xor"]

_LANES: dict[str, tuple[str, ...]] = {
    "add": ("int32", "uint32", "float32", "float16", "bfloat16"),
    **dict.fromkeys(("min", "max", "and", "or", "xor"), ("int32", "uint32")),
}
"""types that red.global supports"""
_RESULTS = {
    "add": "the sum of it and of the tile's",
    "min": "the smaller of it and of the tile's",
    "max": "the larger of it and of the tile's",
    "and": "``it & the tile's``",
    "or": "``it | the tile's``",
    "xor": "``it ^ the tile's``",
}


COPIES: list[Op] = []
"""the copy of a tile in shared memory to an array, by TMA (`memory.copies`)"""


def from_shared(dst: Any, tile: Any) -> bool:
    """Return whether an atomic adds a tile in shared memory to a view of an array; also of
    types."""
    return isinstance(dst, GmemView) and isinstance(tile, SmemLike)


def in_shared(dst: Any) -> bool:
    """Return whether the destination of an atomic, or its type, is in shared memory."""
    return isinstance(dst, (IndexedLike, SmemLike))


def of_lane(dst: Any) -> bool:
    """Return whether the destination of an atomic, or its type, is an element of shared memory in
    per-lane code."""
    return getattr(dst, "operand", None) == "element of a tile"


def check_atomic(name: str, dst: Any, tile: Any) -> None:
    """Raise SpecError unless a tile fits a view, and its type supports the reduction."""
    if not isinstance(dst, GmemView):
        raise SpecError(
            f"{name}(dst, tile): dst must be a view of an array, got {called(dst)}; fix: pass "
            "array.at[ds(i, 64), ds(j, 64)]"
        )
    form, ref, reduction = form_of(tile, name), dst.ref, name.removeprefix("atomic_")
    array, place = ref.arg, f"{name}: {ref.arg.name}.at[…]"
    if form is None and (dst.axes or not is_number(tile)):
        raise SpecError(
            f"{name}(dst, tile): the second argument must be a register tile, or a tile in shared "
            f"memory that the kernel has allocated, got {called(tile)}"
        )
    ref.unit.check_output(ref.index, name)
    tma = form is not None and through_tma(array, dst.axes, form)
    known = (REDUCTIONS if tma else _LANES)[reduction]
    if form is not None:
        check(place, array.name, array.dtype, dst.shape, form, known)
    if tma:
        check_placed(ref, dst.placed, name)
    dtype = array.dtype if form is None else form.dtype
    if dtype.name not in known:
        instead = (
            "; a tile (M, N) to an array that TMA can store, whose rows are multiples of 16 B, has "
            "float16 and bfloat16 too"
            if form is not None and dtype.name in REDUCTIONS[reduction]
            else ""
        )
        raise SpecError(
            f"{name}: expected {', '.join(_LANES[reduction])} for this reduction in global "
            f"memory, got {dtype}{instead}"
        )
    if form is None:
        check_number(place, array.name, array.dtype, tile)


def _atomic(reduction: str) -> Op:
    name = f"atomic_{reduction}"

    def operation(dst: Any, tile: Any) -> None:
        if of_lane(dst):
            dst.update(name, tile)
            return
        if from_shared(dst, tile):
            COPIES[0](dst.ref.np, tile, dst, True, True, reduction)
            return
        if in_shared(dst):
            update_shared(name, dst, tile, check_shared(name, dst, tile))
            return
        check_atomic(name, dst, tile)
        if not dst.axes:
            write_element(dst.ref, dst.start, tile, f"{name}: {dst.ref.name}.at[…]", reduction)
        elif not tile.inert or dst.ref.takes_over:
            write_out(
                dst.ref, dst.axes, dst.start, tile, f"{name}: {dst.ref.name}.at[…]", reduction
            )

    return named(
        operation,
        name,
        f"""Make each element of a view of an array {_RESULTS[reduction]}, atomically, in a kernel.

    dst   in shared memory a tile, or ``hist.at[indices]``: see
          `numpipe.language.tiles.shared_atomics`; in global memory
          ``array.at[ds(i, 64), ds(j, 64)]``, or ``array.at[ds(i, 64)]`` for a vector, with an
          integer along each other dimension. Elements outside the array are left out; starts are
          not negative. ``array.at[i, j]`` is a single element
    tile  a register tile of that shape and of the array's type; for a single element a number (see
          `elements`). Or a tile in shared memory that the kernel has allocated: the TMA adds it
          while the kernel goes on, as `copy_smem_to_gmem` with ``reduction_op="add"`` does, and the
          tile may be written again after `wait_smem_to_gmem`

    All lanes of a warpgroup call it. With more than one compute warpgroup each of them does so:
    give them rows of their own, or pass num_compute_wgs=1. Other CTAs may do the same to the same
    elements, and nothing else within the kernel. Raises SpecError where shapes or types differ, for
    inputs, and for types without this reduction (PTX ISA, "red", "cp.reduce.async.bulk.tensor").
    `numpipe.language.tiles.atomics` says which instruction is used, and for which types.
    """,
    )


ATOMICS = {f"atomic_{reduction}": _atomic(reduction) for reduction in _LANES}
atomic_add, atomic_min, atomic_max, atomic_and, atomic_or, atomic_xor = ATOMICS.values()
