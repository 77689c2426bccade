"""Copies between global and shared memory that a kernel issues itself, and what orders them.

::

    numpipe.copy_gmem_to_smem(a.at[ds(m * 64, 64), ds(k * 64, 64)], buffer.at[slot], landed.at[slot])
    numpipe.barrier_wait(landed.at[slot])                       # the tile is there

    numpipe.commit_smem()                                       # what the warpgroup has written is there for the TMA
    numpipe.copy_smem_to_gmem(tile, c.at[ds(m * 64, 64), ds(n * 64, 64)])
    numpipe.wait_smem_to_gmem(0)                                # it is in global memory

A warpgroup calls them with all its lanes, and one of its lanes issues: as many TMA copies as the tile has panels (`plan.layout`).
The memory role issues none of them. Which warpgroup waits is free for loads, whose end is a phase of a barrier; stores end
for the warpgroup that issued them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...arch.dtypes import REDUCTIONS
from ...core.lanes import one_lane
from ...core.op import constant, helper, op
from ...diagnostics.errors import SpecError
from ...intrinsics import barrier as named
from ...intrinsics import cp_async_bulk, fence, mbarrier, special
from ...plan.allocations import ARRIVALS_A_WARPGROUP, ClusterBarrier
from ...plan.context import Context
from ...plan.plans import ArrayArg
from ...plan.unit import Unit
from ..tiles.order import before_async
from ..tiles.refs import SmemTile, tensor_map
from ..tiles.views import GmemView
from .boxes import Boxes, contiguous, cut, cut_prefetch
from .shared import BarrierRef, one_barrier

__all__ = [
    "async_prefetch", "commit_smem", "commit_smem_to_gmem_group", "copy_gmem_to_smem", "copy_smem_to_gmem", "wait_smem_to_gmem",
]

# ---- what both executions check -------------------------------------------------------------------------------------
LOAD, STORE, PREFETCH = "copy_gmem_to_smem", "copy_smem_to_gmem", "async_prefetch"


A_VIEW = "a view of an array, array.at[ds(i, 64), ds(j, 64)]"
A_TILE = ("a tile in shared memory that the kernel has allocated, as numpipe.scratch gives it (buffer.at[slot] where it has "
          "slots)")
A_BARRIER = "one of a numpipe.Barrier(…) that the kernel has allocated"


def check_kinds(operation: str, **given: tuple[bool, str, str]) -> None:
    """SpecError for a parameter that is none of its kind: whether it is, what it must be, and how messages call what it is."""
    for name, (fits, kind, got) in given.items():
        if not fits:
            raise SpecError(f"{operation}: {name} must be {kind}, got {got}")


def check_load(unit: Unit, src: Any, dst: Any, barrier: Any) -> Boxes:
    """The boxes of a copy to a tile; SpecError for a barrier that is not its CTA's own."""
    one_barrier(LOAD, barrier.shape)
    if isinstance(barrier.plan.kind, ClusterBarrier):
        raise SpecError(f"{LOAD}: barrier is {barrier.plan.kind}, whose phases count arrivals of several CTAs, and a copy arrives "
                        "in its own only: give it a numpipe.Barrier, and barrier_arrive on the ClusterBarrier when that is over")
    return check(LOAD, unit, src, dst)


def check_prefetch(unit: Unit, view: Any) -> Boxes:
    """The boxes of a prefetch."""
    array = unit.arrays[view.ref.index]
    rows_and_columns(PREFETCH, array, view.axes)
    reachable(PREFETCH, unit, view.ref.index)
    return cut_prefetch(array, view.ref.index, view.axes, view.sizes)


def check(operation: str, unit: Unit, view: Any, tile: Any) -> Boxes:
    """The boxes of a copy between a view and a tile; SpecError where the two differ, or the TMA cannot do it."""
    index, axes, sizes, layout, dtype = view.ref.index, view.axes, view.sizes, tile.layout, tile.dtype
    array, store = unit.arrays[index], operation == STORE
    rows_and_columns(operation, array, axes)
    if not store and not tile.writable:
        raise SpecError(f"{operation}: dst is a tile of a pipeline, whose slots the pipeline loads itself: copy to a tile of your "
                        "own, numpipe.scratch(numpipe.SMEM(…))")
    reachable(operation, unit, index)
    if sizes != layout.shape:
        raise SpecError(f"{operation}: {array.name}.at[…] has {sizes} elements, the tile {layout.shape}: both must be of one shape")
    if array.dtype != dtype:
        raise SpecError(f"{operation}: '{array.name}' is {array.dtype}, the tile {dtype}: a copy does not convert")
    if axes[layout.inner] != contiguous(array):
        raise SpecError(f"{operation}: dimension {contiguous(array)} of '{array.name}' is contiguous, and the tile's rows must lie "
                        f"along it: " + (f"use tile.T of a tile {sizes[::-1]}" if contiguous(array) in axes else
                                         "a ds(start, size) has to be there"))
    if store:
        unit.check_output(index, operation, f"copy to {array.name}.at[…] by its own name, or in a function that is called by name "
                                            "and gets it as an argument")
        if not array.tma_store:
            raise SpecError(f"{operation}: rows of '{array.name}' are no multiple of 16 B, and a TMA store writes whole 16-byte "
                            f"chunks: store a register tile, {array.name}[…] = tile")
    return cut(array, index, axes, layout, store)


def rows_and_columns(operation: str, array: ArrayArg, axes: tuple[int, ...]) -> None:
    """A view that is copied has two dimensions, as tiles in shared memory have."""
    if len(axes) != 2:
        mend = f"pass a view of '{array.name}' that has 2, array.reshape(1, -1)" if array.ndim < 2 else (
            "write ds(i, 1) in place of an integer")
        raise SpecError(f"{operation}: copies move tiles of 2 dimensions, and {array.name}.at[…] has {len(axes)}: {mend}")


def reachable(operation: str, unit: Unit, index: int) -> None:
    """The TMA can address the array."""
    if not unit.arrays[index].tma:
        raise SpecError(f"{operation}: '{unit.arrays[index].name}': " + unit.obstacles.get(
            index, "TMA cannot address this array: base and strides must be multiples of 16 bytes"))


def check_reduction(reduction: Any, dtype: np.dtype) -> str:
    """The name of a reduction, "" for None."""
    if reduction is None:
        return ""
    if reduction not in REDUCTIONS:
        raise SpecError(f"{STORE}: reduction_op must be None or one of {', '.join(map(repr, REDUCTIONS))}, got {reduction!r}")
    if dtype.name not in REDUCTIONS[reduction]:
        same = reduction in ("add", "and", "or", "xor") and f"u{dtype.name}" in REDUCTIONS[reduction]
        mend = f"; u{dtype.name} has the same bits: pass the array as array.view(np.u{dtype.name}), and a tile of that type"
        raise SpecError(f"{STORE}: reduction_op={reduction!r} is not for {dtype}: it takes {', '.join(REDUCTIONS[reduction])}"
                        + mend * same)
    return str(reduction)


def check_flag(operation: str, name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise SpecError(f"{operation}: {name} must be True or False, got {value!r}")
    return value


def check_groups(n: Any) -> int:
    if isinstance(n, bool) or not isinstance(n, int) or n < 0:
        raise SpecError(f"wait_smem_to_gmem: n must be a compile-time int of at least 0: the groups that may still be on their "
                        f"way, got {n!r}")
    return n


def check_predicate(operation: str, value: Any) -> None:
    if not isinstance(value, (bool, int, np.bool_, np.integer)):
        raise SpecError(f"{operation}: predicate must be a bool, got {type(value).__name__}")


# ---- a copy under way ------------------------------------------------------------------------------------------------
class Transfer:
    """A copy that is ready to be issued, on the simulated SM."""

    def __init__(self, boxes: Boxes, view: GmemView, address: int, barrier: BarrierRef | None = None, reduction: str = "") -> None:
        self.boxes, self.view, self.address, self.reduction = boxes, view, address, reduction
        self.nbytes = boxes.nbytes
        self.arrival = 0 if barrier is None else barrier.address
        """address of the mbarrier of a load"""

    def coordinates(self, down: int, right: int) -> tuple[int, ...]:
        at = [int(place) for place in self.view.start]
        at[self.boxes.axes[0]] += down
        at[self.boxes.axes[1]] += right
        return tuple(self.boxes.in_memory(at))

    @property
    def tensor(self) -> Any:
        return tensor_map(self.view.ref, self.boxes.request)


@op
def issue_loads(transfer: Transfer) -> None:
    """One TMA load a box."""
    for offset, down, right in transfer.boxes.places:
        cp_async_bulk.load(transfer.address + offset, transfer.tensor, transfer.coordinates(down, right), transfer.arrival)


@op
def issue_stores(transfer: Transfer) -> None:
    """One TMA store, or reduction, a box."""
    for offset, down, right in transfer.boxes.places:
        args = transfer.tensor, transfer.coordinates(down, right), transfer.address + offset
        if transfer.reduction:
            cp_async_bulk.reduce(*args, transfer.reduction)
        else:
            cp_async_bulk.store(*args)


@op
def issue_prefetches(transfer: Transfer) -> None:
    """One prefetch a box."""
    unit = 16 // transfer.view.dtype.itemsize
    for _, down, right in transfer.boxes.places:
        at = transfer.coordinates(down, right)
        if at[-1] % unit:
            raise SpecError(f"{PREFETCH}: {transfer.view.ref.name}.at[…] starts at element {at[-1]} of the contiguous dimension; "
                            f"the TMA starts at multiples of 16 B, {unit} elements")
        cp_async_bulk.prefetch(transfer.tensor, at)


OTHER_WARPS = ARRIVALS_A_WARPGROUP - 1


@helper
def load(transfer, predicate):  # type: ignore[no-untyped-def]
    """By one lane: a warpgroup's whole arrival, with the bytes that are to land."""
    mbarrier.arrive_count(transfer.arrival, OTHER_WARPS)
    if predicate:
        mbarrier.arrive_expect_tx(transfer.arrival, transfer.nbytes)
        issue_loads(transfer)
    else:
        mbarrier.arrive(transfer.arrival)


@helper
def store(transfer, predicate, commit):  # type: ignore[no-untyped-def]
    """By one lane."""
    if predicate:
        issue_stores(transfer)
    if commit:
        cp_async_bulk.commit_group()


@helper
def fence_and_meet():  # type: ignore[no-untyped-def]
    fence.proxy_async()  # by every writer, before the barrier: the TMA and wgmma read through the async proxy
    meet()


@helper
def meet():  # type: ignore[no-untyped-def]
    """The warps of a warpgroup wait for each other, at the named barrier that its store ring has too."""
    named.sync(1 + special.warpgroup_index(), 128)


# ---- the operations --------------------------------------------------------------------------------------------------
@op(context=True)
def copy_gmem_to_smem(np_: Context, src: Any, dst: Any, barrier: Any, *, predicate: Any = True) -> None:
    """Start copying a view of an array to a tile in shared memory, inside a kernel; it has landed when the barrier's phase is over.

    src        ``array.at[ds(i, rows), ds(j, columns)]``; what lies outside the array reads as zeros. Along the contiguous
               dimension it starts at a multiple of 16 bytes.
    dst        a tile of that shape and type (`numpipe.scratch`, `numpipe.run_scoped`). No other warpgroup may use it any more:
               whoever read or wrote it has told this one. What this one did with it is over, because its warps meet first (not so
               with `unsafe_no_auto_barriers`: then `commit_smem` says it).
    barrier    one of a `numpipe.Barrier`. The copy counts as an arrival of its phase, which is over when the bytes are there too.
    predicate  a run-time bool, the same in all lanes: where it is False nothing is copied, and the arrival is made all the same.

    By all lanes of a warpgroup; one of them issues (PTX ISA, "cp.async.bulk.tensor"). Raises SpecError where shapes or types
    differ, for arrays that the TMA cannot address, and for what is no barrier.
    """
    check_kinds(LOAD, src=(isinstance(src, GmemView), A_VIEW, type(src).__name__),
                dst=(isinstance(dst, SmemTile), A_TILE, type(dst).__name__),
                barrier=(isinstance(barrier, BarrierRef), A_BARRIER, type(barrier).__name__))
    boxes = check_load(np_.unit, src, dst, barrier)
    if not np_.memory:
        check_predicate(LOAD, predicate)
        before_async(dst)
        one_lane(load, Transfer(boxes, src, dst.address, barrier), bool(predicate))


@op(context=True)
def copy_smem_to_gmem(np_: Context, src: Any, dst: Any, *, predicate: Any = True, commit_group: bool = True,
                      reduction_op: str | None = None) -> None:
    """Start copying a tile in shared memory to a view of an array, inside a kernel.

    src           a tile in shared memory. What this warpgroup wrote to it is there for the copy, which begins with `commit_smem`
                  (not so with `unsafe_no_auto_barriers`); other warpgroups say `commit_smem` and arrive at a barrier. Until
                  `wait_smem_to_gmem` says that it has been read, nobody writes it.
    dst           ``array.at[ds(i, rows), ds(j, columns)]`` of its shape and type, with starts that are not negative; what lies
                  outside the array is not written
    predicate     a run-time bool, the same in all lanes: False copies nothing
    commit_group  close the warpgroup's group of stores with this one; False leaves it open for more
                  (`commit_smem_to_gmem_group`)
    reduction_op  None, or how an element is combined with what the array holds: "add", "min", "max", "inc", "dec", "and", "or",
                  "xor", as far as there is one for its type (`arch.dtypes.REDUCTIONS`). Elements change at once each, in any order.
                  What the array holds is what the caller passes; one that the call allocates (`out_type`) holds nothing.

    By all lanes of a warpgroup; one of them issues (PTX ISA, "cp.async.bulk.tensor", "cp.reduce.async.bulk.tensor"). The kernel
    waits for all groups before it ends. Raises SpecError where shapes or types differ, for inputs, and for arrays that the TMA
    cannot write.
    """
    check_kinds(STORE, src=(isinstance(src, SmemTile), A_TILE, type(src).__name__),
                dst=(isinstance(dst, GmemView), A_VIEW, type(dst).__name__))
    commit = check_flag(STORE, "commit_group", constant(STORE, "commit_group", commit_group))
    reduction = check_reduction(constant(STORE, "reduction_op", reduction_op), dst.dtype)
    boxes = check(STORE, np_.unit, dst, src)
    if not np_.memory:
        check_predicate(STORE, predicate)
        np_.unit.copies_out = True
        before_async(src)
        one_lane(store, Transfer(boxes, dst, src.address, reduction=reduction), bool(predicate), commit)


@op(context=True)
def commit_smem(np_: Context) -> None:
    """Make what this warpgroup has written to shared memory visible to the TMA and wgmma, inside a kernel.

    A proxy fence by every lane, then the warps meet. So what they have read may also be written again by a copy that follows.
    Copies by the warpgroup itself, and wgmma, begin with it on tiles of the kernel's own, unless `CompilerParams` say
    `unsafe_no_auto_barriers`; others have to be told, by `barrier_arrive` behind it.
    """
    if not np_.memory:
        fence_and_meet()


@op(context=True)
def commit_smem_to_gmem_group(np_: Context) -> None:
    """Close the group of this warpgroup's stores since the last one, inside a kernel (PTX ISA, "cp.async.bulk.commit_group")."""
    if not np_.memory:
        one_lane(cp_async_bulk.commit_group)


@op(context=True)
def wait_smem_to_gmem(np_: Context, n: int, wait_read_only: bool = False) -> None:
    """Wait until at most the newest `n` groups of this warpgroup's stores are on their way, inside a kernel.

    n               a compile-time int
    wait_read_only  the others have been *read* only: their tiles may be written again; they may not be in global memory yet

    The lane that issued them waits, then the warps meet (PTX ISA, "cp.async.bulk.wait_group"). A store of a register tile,
    ``array[…] = tile``, and one of a pipeline's output are groups too, and count among the newest.
    """
    pending = check_groups(constant("wait_smem_to_gmem", "n", n))
    read = check_flag("wait_smem_to_gmem", "wait_read_only", constant("wait_smem_to_gmem", "wait_read_only", wait_read_only))
    if not np_.memory:
        one_lane(cp_async_bulk.wait_group_read if read else cp_async_bulk.wait_group, pending)
        meet()


@op(context=True)
def async_prefetch(np_: Context, src: Any) -> None:
    """Bring a view of an array into the L2 cache, inside a kernel: a copy that follows finds it there.

    src  ``array.at[ds(i, rows), ds(j, columns)]``

    Nothing waits for it. By all lanes of a warpgroup; one issues (PTX ISA, "cp.async.bulk.prefetch.tensor"). Raises SpecError for
    arrays that the TMA cannot address.
    """
    check_kinds(PREFETCH, src=(isinstance(src, GmemView), A_VIEW, type(src).__name__))
    boxes = check_prefetch(np_.unit, src)
    if not np_.memory:
        one_lane(issue_prefetches, Transfer(boxes, src, 0))
