"""Copies between global and shared memory that a kernel issues itself, and the calls that order
them.

::

    block = a.at[ds(m * 64, 64), ds(k * 64, 64)]
    numpipe.copy_gmem_to_smem(block, buffer.at[slot], landed.at[slot])
    numpipe.barrier_wait(landed.at[slot])  # the tile is there

    numpipe.commit_smem()  # what the warpgroup wrote is visible to the TMA
    numpipe.copy_smem_to_gmem(tile, c.at[ds(m * 64, 64), ds(n * 64, 64)])
    numpipe.wait_smem_to_gmem(0)  # it is in global memory

All lanes of a warpgroup call these functions, and one lane issues the copies: one TMA copy for each
panel of the tile (`plan.layout`). The memory role does not issue them. Any warpgroup may wait for a
load, which ends a phase of a barrier; only the warpgroup that issued a store can wait for it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...arch.dtypes import REDUCTIONS
from ...core import arith
from ...core.lanes import one_lane
from ...core.op import called, constant, context_op, helper, op
from ...diagnostics.argument_checks import FLAG, NONE, whole, word
from ...diagnostics.errors import SpecError
from ...intrinsics import cp_async_bulk, fence, mbarrier
from ...plan.allocations import ARRIVALS_A_WARPGROUP, ClusterBarrier
from ...plan.cluster_ranks import Sharing
from ...plan.context import Context
from ...plan.copy_plans import CopyPlan, cut, cut_prefetch
from ...plan.layout import Layout
from ...plan.plans import ArrayArg
from ...plan.specs import axis_names
from ...plan.unit import Unit
from ..tiles.array_views import GmemView, check_inside, check_read
from ..tiles.atomics import COPIES
from ..tiles.fence_order import before_async
from ..tiles.fence_order import meet as meet  # also for kernels that issue copies
from ..tiles.tma import Copy
from .scratch import one_barrier

__all__ = [
    "async_prefetch",
    "commit_smem",
    "commit_smem_to_gmem_group",
    "copy_gmem_to_smem",
    "copy_smem_to_gmem",
    "wait_smem_to_gmem",
]

# ---- what both executions check ------------------------------------------------------------------
LOAD = "copy_gmem_to_smem"
STORE = "copy_smem_to_gmem"
PREFETCH = "async_prefetch"
WAIT = "wait_smem_to_gmem"
OPERANDS = {
    "view": "a view of an array, array.at[ds(i, 64), ds(j, 64)]",
    "tile": (
        "a tile in shared memory that the kernel has allocated, as numpipe.scratch gives it "
        "(buffer.at[slot] where it has slots)"
    ),
    "barrier": "one of a numpipe.Barrier(…) that the kernel has allocated",
}
"""How messages name a copy's operands, by the attribute `operand` of values and types."""


def check_operands(operation: str, **parameters: tuple[str, Any]) -> None:
    """Raise SpecError for a parameter whose value, or Numba type, is not the required kind of
    operand (`OPERANDS`)."""
    for name, (operand, value) in parameters.items():
        if getattr(value, "operand", "") != operand:
            raise SpecError(
                f"{operation}: {name} must be {OPERANDS[operand]}, got "
                f"{getattr(value, 'what', None) or called(value)}"
            )


def check_load(
    np_: Any, src: Any, dst: Any, barrier: Any, predicate: Any, axes: Any
) -> tuple[CopyPlan, Sharing | None]:
    """Return the boxes of a copy to a tile, or of a CTA's share of it, and how CTAs share the copy.

    Raises SpecError for a barrier that counts arrivals of other CTAs, and for a tile that cannot be
    shared among the CTAs.
    """
    check_operands(LOAD, src=("view", src), dst=("tile", dst), barrier=("barrier", barrier))
    check_landing(LOAD, dst, barrier)
    check_copied(LOAD, np_.unit, src, dst)
    check_predicate(LOAD, np_, predicate)
    if np_.computes:
        np_.unit.copies_in = True
    sharing = np_.unit.tile_sharing(
        dst.layout, src.axes, axis_names(LOAD, constant(LOAD, "collective_axes", axes)), LOAD
    )
    np_.unit.reaches |= sharing is not None
    return plan_of(src, dst, lines=sharing and sharing.rows), sharing


def check_landing(operation: str, dst: Any, barrier: Any) -> None:
    """Raise SpecError unless a copy that completes on `barrier` may write the tile `dst`."""
    one_barrier(operation, barrier.shape)
    if isinstance(barrier.plan.kind, ClusterBarrier):
        raise SpecError(
            f"{operation}: barrier is {barrier.plan.kind}, which counts arrivals of several CTAs, "
            "but a copy arrives in one CTA only; fix: pass a numpipe.Barrier, wait for it, and "
            "call barrier_arrive on the ClusterBarrier"
        )
    if not dst.writable:
        raise SpecError(
            f"{operation}: dst is a tile of a pipeline, which loads its slots itself; fix: copy "
            "to a tile that the kernel allocates, numpipe.scratch(numpipe.SMEM(…))"
        )


def check_store(
    np_: Any, src: Any, dst: Any, predicate: Any, commit: Any, reduction: Any
) -> CopyPlan:
    """Return the boxes of a copy from a tile. Raises SpecError for an input, and for an array that
    the TMA cannot write."""
    check_operands(STORE, src=("tile", src), dst=("view", dst))
    constant(STORE, "commit_group", commit, FLAG)
    array = np_.unit.arrays[dst.ref.index]
    reduction = check_reduction(reduction, array.dtype)
    check_copied(STORE, np_.unit, dst, src)
    np_.unit.check_output(dst.ref.index, STORE)
    if not array.tma_store:
        raise SpecError(
            f"{STORE}: the rows of '{array.name}' are not a multiple of 16 B, but a TMA store "
            f"writes whole 16-byte chunks; fix: store a register tile, {array.name}[…] = tile"
        )
    check_predicate(STORE, np_, predicate)
    if np_.computes:
        np_.unit.copies_out = True
    return plan_of(dst, src, written=True, reduction=reduction)


def check_prefetch(np_: Any, view: Any) -> CopyPlan:
    check_operands(PREFETCH, src=("view", view))
    array = reachable(PREFETCH, np_.unit, view)
    return cut_prefetch(
        array.name,
        view.ref.index,
        array.ndim,
        array.order != "row",
        view.axes,
        view.shape,
        array.dtype.itemsize,
    )


def check_copied(operation: str, unit: Unit, view: Any, tile: Any) -> None:
    """Raise SpecError if a view and a tile differ in shape or type, or if the TMA cannot copy
    between them."""
    array, layout, dtype = reachable(operation, unit, view, tile.layout), tile.layout, tile.dtype
    if view.shape != layout.sides:
        raise SpecError(
            f"{operation}: {array.name}.at[…] has shape {view.shape}, but the tile has shape "
            f"{layout.sides}: they must be equal"
        )
    if array.dtype != dtype:
        raise SpecError(
            f"{operation}: '{array.name}' is {array.dtype}, but the tile is {dtype}: a copy does "
            "not convert"
        )
    if view.axes[-1 if layout.flat else layout.inner] != array.contiguous:
        raise SpecError(
            f"{operation}: the tile's rows must be along dimension {array.contiguous} of "
            f"'{array.name}', which is contiguous; fix: "
            + (
                f"use tile.T of a tile {view.shape[::-1]}"
                if array.contiguous in view.axes
                else "write ds(start, size) there"
            )
        )


def plan_of(view: Any, tile: Any, **options: Any) -> CopyPlan:
    """Return the boxes of a copy between a view and a tile of the same shape and type."""
    array = view.ref.arg
    return cut(view.ref.index, array.ndim, array.order != "row", view.axes, tile.layout, **options)


def reachable(operation: str, unit: Unit, view: GmemView, layout: Layout | None = None) -> ArrayArg:
    """Return the array of a view. Raises SpecError unless the TMA can address the array and the
    view has as many dimensions as a tile. `layout` is the layout of the copied tile."""
    array, axes = view.ref.arg, view.axes
    if not axes or (layout is not None and len(axes) != len(layout.sides)):
        has = f"{array.name}.at[…] has {len(axes)} dimension{'s' * (len(axes) != 1)}"
        if layout is None:
            raise SpecError(f"{operation}: {has}; fix: write ds(i, size) instead of an integer")
        fix = (
            f"copy between a view of two and it, or have a tile of one, SMEM(({view.shape[0]},), "
            "dtype)"
            if len(axes) == 1
            else "write an integer in place of a ds(start, size), or have a tile of two"
            if axes
            else "write ds(i, size) in place of an integer"
        )
        raise SpecError(f"{operation}: {has}, the tile {len(layout.sides)}, {layout.sides}: {fix}")
    if not array.tma:
        raise SpecError(
            f"{operation}: '{array.name}': "
            + unit.obstacles.get(
                view.ref.index,
                "TMA cannot address this array: base and strides must be multiples of 16 bytes",
            )
        )
    return array


def check_reduction(given: Any, dtype: np.dtype) -> str:
    """Return the name of a reduction, "" for None. Raises SpecError for an unknown reduction, or
    one that the dtype does not support."""
    reduction = constant(STORE, "reduction_op", given, NONE | word(*REDUCTIONS))
    if reduction is None:
        return ""
    if dtype.name not in REDUCTIONS[reduction]:
        same = (
            reduction in ("add", "and", "or", "xor") and f"u{dtype.name}" in REDUCTIONS[reduction]
        )
        fix = (
            f"; u{dtype.name} has the same bits: pass the array as array.view(np.u{dtype.name}), "
            "and a tile of that type"
        )
        raise SpecError(
            f"{STORE}: reduction_op={reduction!r} is not for {dtype}: it takes "
            f"{', '.join(REDUCTIONS[reduction])}" + fix * same
        )
    return str(reduction)


def check_predicate(operation: str, np_: Any, value: Any) -> None:
    """Raise SpecError for a predicate that is not a bool. The memory role has no predicates."""
    if np_.computes and not (arith.kind(value) is bool or arith.is_integer(value)):
        raise SpecError(f"{operation}: predicate must be a bool, got {called(value)}")


# ---- a copy under way ----------------------------------------------------------------------------
class Transfer(Copy):
    """A copy of a view on the simulated SM."""

    def __init__(
        self,
        plan: CopyPlan,
        view: GmemView,
        address: int = 0,
        nbytes: int = 0,
        arrival: int = 0,
        sharing: Sharing | None = None,
    ) -> None:
        super().__init__(plan, view.ref, view.start, address, arrival)
        self.nbytes, self.view, self.sharing = nbytes, view, sharing

    def prefetch(self) -> None:
        unit = 16 // self.ref.dtype.itemsize
        for at, _ in self.boxes:
            if at[-1] % unit:
                raise SpecError(
                    f"{PREFETCH}: {self.ref.name}.at[…] starts at element {at[-1]} of the "
                    "contiguous dimension, but TMA copies must start at multiples of 16 B, "
                    f"{unit} elements"
                )
        super().prefetch()


@op
def issue(transfer: Transfer, how: str) -> None:
    """Issue one TMA instruction for each box. `how` is "load", "store" (which may be a reduction)
    or "prefetch"."""
    if how != "prefetch":
        load, view = how == "load", transfer.view
        what = f"{LOAD if load else STORE}: {view.ref.name}.at[…]"
        check_read(view.ref, view.start, view.axes, view.shape, what)
        check_inside(
            transfer.ref,
            transfer.start,
            view.axes,
            what,
            *(
                ("the TMA reads 0", "the TMA reads 0", "loads from")
                if load
                else ("the TMA stops the kernel", "the TMA writes nothing", "stores to")
            ),
        )
    if transfer.sharing is not None:
        transfer.share(transfer.sharing, (LOAD, transfer.address, transfer.arrival), f"{LOAD}: src")
    getattr(transfer, how)()


OTHER_WARPS = ARRIVALS_A_WARPGROUP - 1


@helper
def load(transfer, predicate):  # type: ignore[no-untyped-def]
    """Load, in one lane, and arrive for the whole warpgroup with the number of bytes to expect.

    The elected lane checks the predicate. It is not a branch around the election, in which the
    whole warp takes part.
    """
    mbarrier.arrive_count(transfer.arrival, OTHER_WARPS)
    if predicate:
        mbarrier.arrive_expect_tx(transfer.arrival, transfer.nbytes)
        issue(transfer, "load")
    else:
        mbarrier.arrive(transfer.arrival)


@helper
def store(transfer, predicate, commit):  # type: ignore[no-untyped-def]
    if predicate:
        issue(transfer, "store")
    if commit:
        cp_async_bulk.commit_group()


@helper
def fence_and_meet():  # type: ignore[no-untyped-def]
    # By every writer, before the barrier: the TMA and wgmma read through the async proxy.
    fence.proxy_async()
    meet()


# ---- the operations ------------------------------------------------------------------------------
@context_op
def copy_gmem_to_smem(
    np_: Context,
    src: Any,
    dst: Any,
    barrier: Any,
    *,
    predicate: Any = True,
    collective_axes: str | tuple[str, ...] | None = None,
) -> None:
    """Start copying a view of an array to a tile in shared memory, inside a kernel. The copy has
    landed when the barrier's phase ends.

    src              ``array.at[ds(i, rows), ds(j, columns)]``; elements outside the array read as
                     zeros. Along the contiguous dimension it starts at a multiple of 16 bytes.
    dst              a tile of that shape and type (`numpipe.scratch`, `numpipe.run_scoped`). No
                     other warpgroup may still use it: the others have signaled this warpgroup that
                     their reads and writes are over. This warpgroup's own accesses are complete,
                     because its warps meet first (not with `unsafe_no_auto_barriers`: then call
                     `commit_smem`).
    barrier          one barrier of a `numpipe.Barrier`. The copy counts as an arrival of its phase,
                     which ends when the bytes have landed too.
    predicate        a run-time bool, the same in all lanes: if it is False nothing is copied, but
                     the arrival still happens.
    collective_axes  None, the name of an axis of the cluster, or a tuple of names: the CTAs along
                     these axes all issue this copy, of the same `src` to the same `dst` on the same
                     `barrier`, each with its own tile and barrier and with the same predicate. Each
                     loads a share of the tile, which lands in all of them (multicast), and each
                     barrier gets the bytes of the whole tile. No CTA may issue it before the tile
                     is free in *all* of them: use a `numpipe.ClusterBarrier`.

    All lanes of a warpgroup call it; one lane issues (PTX ISA, "cp.async.bulk.tensor"). Raises
    SpecError if shapes or types differ, for arrays that the TMA cannot address, if `barrier` is not
    a barrier, and for axes that the cluster does not have.
    """
    plan, sharing = check_load(np_, src, dst, barrier, predicate, collective_axes)
    if np_.computes:
        before_async(dst)
        one_lane(
            load,
            Transfer(plan, src, dst.address, dst.layout.nbytes, barrier.address, sharing),
            bool(predicate),
        )


@context_op
def copy_smem_to_gmem(
    np_: Context,
    src: Any,
    dst: Any,
    *,
    predicate: Any = True,
    commit_group: bool = True,
    reduction_op: str | None = None,
) -> None:
    """Start copying a tile in shared memory to a view of an array, inside a kernel.

    src           a tile in shared memory. What this warpgroup wrote to it is visible to the copy,
                  which begins with `commit_smem` (not with `unsafe_no_auto_barriers`); other
                  warpgroups call `commit_smem` and arrive at a barrier. Do not write the tile
                  again until `wait_smem_to_gmem` says that it has been read.
    dst           ``array.at[ds(i, rows), ds(j, columns)]`` of its shape and type, with
                  non-negative starts; elements outside the array are not written
    predicate     a run-time bool, the same in all lanes: False copies nothing
    commit_group  True closes the warpgroup's group of stores after this one; False leaves it open
                  for more (`commit_smem_to_gmem_group`)
    reduction_op  None, or how an element is combined with the array's element: "add", "min",
                  "max", "inc", "dec", "and", "or", "xor", if the element type supports it
                  (`arch.dtypes.REDUCTIONS`). Each element is updated atomically, in any order. The
                  caller passes an initialized array; one that the call allocates (`out_type`) is
                  uninitialized.

    All lanes of a warpgroup call it; one lane issues (PTX ISA, "cp.async.bulk.tensor",
    "cp.reduce.async.bulk.tensor"). The kernel waits for all groups before it ends. Raises SpecError
    if shapes or types differ, for inputs, and for arrays that the TMA cannot write.
    """
    plan = check_store(np_, src, dst, predicate, commit_group, reduction_op)
    if np_.computes:
        before_async(src)
        one_lane(store, Transfer(plan, dst, src.address), bool(predicate), commit_group)


COPIES.append(copy_smem_to_gmem)


@context_op
def commit_smem(np_: Context, *, meet: bool = True) -> None:
    """Make what this warpgroup has written to shared memory visible to the TMA and wgmma, inside a
    kernel.

    Every lane executes a proxy fence, then the warps meet. So a copy that follows may also
    overwrite what they have read. Copies by the warpgroup itself, and wgmma on tiles that the
    kernel allocated, begin with it, unless `CompilerParams` set `unsafe_no_auto_barriers`. Other
    warpgroups must be signaled with a `barrier_arrive` after it.

    meet  a compile-time bool. False omits the barrier between the four warps. Use it only if every
          reader, including this warpgroup, waits for a `barrier_arrive` of each warp
    """
    together = constant("commit_smem", "meet", meet, FLAG)
    if np_.computes:
        (fence_and_meet if together else fence.proxy_async)()


@context_op
def commit_smem_to_gmem_group(np_: Context) -> None:
    """Close the group of this warpgroup's stores since the previous group, inside a kernel (PTX
    ISA, "cp.async.bulk.commit_group")."""
    if np_.computes:
        one_lane(cp_async_bulk.commit_group)


@context_op
def wait_smem_to_gmem(np_: Context, n: int, wait_read_only: bool = False) -> None:
    """Wait until at most the newest `n` groups of this warpgroup's stores are still in flight,
    inside a kernel.

    n               a compile-time int
    wait_read_only  True waits only until the older groups have been *read*: their tiles may be
                    written again, but the data may not be in global memory yet

    The lane that issued them waits, then the warps meet (PTX ISA, "cp.async.bulk.wait_group"). A
    store of a register tile, ``array[…] = tile``, and a store of a pipeline's output are groups
    too, and count among the newest.
    """
    pending = constant(WAIT, "n", n, whole(0))
    read = constant(WAIT, "wait_read_only", wait_read_only, FLAG)
    if np_.computes:
        one_lane(cp_async_bulk.wait_group_read if read else cp_async_bulk.wait_group, pending)
        meet()


@context_op
def async_prefetch(np_: Context, src: Any, *, predicate: Any = True) -> None:
    """Prefetch a view of an array into the L2 cache, inside a kernel, for a copy that follows.

    src        ``array.at[ds(i, rows), ds(j, columns)]``
    predicate  a run-time bool, the same in all lanes: False prefetches nothing

    Nothing waits for it. All lanes of a warpgroup call it; one lane issues (PTX ISA,
    "cp.async.bulk.prefetch.tensor"). Raises SpecError for arrays that the TMA cannot address.
    """
    plan = check_prefetch(np_, src)
    if np_.computes:
        one_lane(issue, Transfer(plan, src), "prefetch")
