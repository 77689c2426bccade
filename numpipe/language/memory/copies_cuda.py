"""Copies on the GPU: types hold the boxes, values hold addresses and starts."""

from __future__ import annotations

from typing import Any

from ...core import numba as nb
from ...core.lanes import one_lane
from ...core.numba import BOOLEAN, I32, I64
from ...core.op import constant, cuda_meaning
from ...diagnostics.argument_checks import FLAG, whole
from ...intrinsics import cp_async_bulk, fence
from ...plan.cluster_ranks import Sharing
from ...plan.context_cuda import by_compute
from ...plan.copy_plans import CopyPlan
from ..tiles.array_views_cuda import ViewType
from ..tiles.fence_order import before_async, meet
from ..tiles.indices_cuda import report_view
from ..tiles.tma_cuda import Copy
from . import copies as source
from .copies import WAIT
from .scratch_cuda import barrier_address


class TransferType(nb.Type):  # type: ignore[misc]
    def __init__(
        self, plan: CopyPlan, view: ViewType, nbytes: int = 0, sharing: Sharing | None = None
    ) -> None:
        self.plan, self.view, self.nbytes, self.sharing = plan, view, nbytes, sharing
        # a vector takes one instruction in place of one for each 256 elements
        self.adjacent = (
            len(plan.places) > len(plan.axes) == 1 and sharing is None and plan.policy is None
        )
        super().__init__(name=f"transfer({plan}, {view}, {nbytes}, {sharing})")


nb.struct_model(
    TransferType, lambda ty: [("view", ty.view), ("address", I32), ("arrival", I32)], "arrival"
)
nb.constant_attributes(TransferType, I32, nbytes=lambda ty: ty.nbytes)


@cuda_meaning(source.issue)
def _issue(transfer: Any, how: Any) -> Any:
    plan, ref = transfer.plan, transfer.view.ref
    ref.unit.map_slot(plan.request)
    builder, args = yield nb.VOID(transfer, how)
    value = builder.fields(transfer, args[0])
    view = builder.fields(transfer.view, value.view)
    array = builder.fields(ref, view.ref)
    start = builder.unpack_tuple(view.start)
    table = array.table
    if ref.unit.params.debug and nb.literal(how) != "prefetch":
        report_view(builder, transfer.view, array.shape, start)
    copy = Copy(builder, ref.unit, plan, table, start, value.address, value.arrival)
    if transfer.sharing is not None:
        copy.share(transfer.sharing)
    if nb.literal(how) == "load" and transfer.adjacent:
        inside, address = _adjacent(builder, transfer, array, start)
        with builder.if_else(inside) as (whole, parts):
            with whole:
                operands = value.address, address, nb.const(transfer.nbytes), value.arrival
                kinds = I32, I64, I32, I32
                builder.apply(cp_async_bulk.load_bytes, kinds, operands)
            with parts:
                copy.load()
    else:
        getattr(copy, nb.literal(how))()


def _adjacent(builder: Any, transfer: TransferType, array: Any, start: Any) -> tuple[Any, Any]:
    """Return (whether a vector is inside its array, the address of its first element)."""
    inside, address = nb.const(1, nb.i1), array.pointer
    sizes, strides = (builder.unpack_tuple(of) for of in (array.shape, array.strides))
    itemsize = nb.const(transfer.view.ref.arg.dtype.itemsize, nb.i64)
    for axis, (first, size, stride) in enumerate(zip(start, sizes, strides, strict=True)):
        count = transfer.view.shape[0] if axis in transfer.plan.axes else 1
        last = builder.sub(size, count)
        fits = builder.and_(
            builder.icmp_signed(">=", first, 0), builder.icmp_signed("<=", first, last)
        )
        inside = builder.and_(inside, fits)
        far = builder.mul(builder.mul(builder.sext(first, nb.i64), stride), itemsize)
        address = builder.add(address, far)
    return inside, address


# ---- the operations
@by_compute(source.copy_gmem_to_smem)
def _copy_in(
    np_: Any, src: Any, dst: Any, barrier: Any, predicate: Any, collective_axes: Any
) -> Any:
    plan, sharing = source.check_load(np_, src, dst, barrier, predicate, collective_axes)
    transfer = TransferType(plan, src, dst.layout.nbytes, sharing)
    builder, args = yield one_lane, (source.load._numba_type_, transfer, BOOLEAN)
    builder.apply(before_async, (dst,), args[2:3])
    arrival = barrier_address(builder, barrier, args[3])
    return (
        nb.nothing,
        builder.struct(transfer, view=args[1], address=args[2], arrival=arrival),
        builder.cast(args[4], predicate, BOOLEAN),
    )


@by_compute(source.copy_smem_to_gmem)
def _copy_out(
    np_: Any, src: Any, dst: Any, predicate: Any, commit_group: Any, reduction_op: Any
) -> Any:
    transfer = TransferType(
        source.check_store(np_, src, dst, predicate, commit_group, reduction_op), dst
    )
    builder, args = yield one_lane, (source.store._numba_type_, transfer, BOOLEAN, BOOLEAN)
    builder.apply(before_async, (src,), args[1:2])
    return (
        nb.nothing,
        builder.struct(transfer, view=args[2], address=args[1]),
        builder.cast(args[3], predicate, BOOLEAN),
        nb.const(int(nb.literal(commit_group)), nb.i1),
    )


@by_compute(source.async_prefetch)
def _prefetch(np_: Any, src: Any, _predicate: Any) -> Any:
    transfer = TransferType(source.check_prefetch(np_, src), src)
    builder, args = yield (
        one_lane,
        (source.issue._numba_type_, transfer, nb.types.literal("prefetch")),
    )
    return nb.nothing, builder.struct(transfer, view=args[1]), nb.nothing


@by_compute(source.commit_smem)
def _commit_smem(np_: Any, meet: Any) -> Any:
    together = constant("commit_smem", "meet", meet, FLAG)
    yield (source.fence_and_meet if together else fence.proxy_async), ()
    return ()


@by_compute(source.commit_smem_to_gmem_group)
def _commit_group(np_: Any) -> Any:
    yield one_lane, (cp_async_bulk.commit_group._numba_type_,)
    return (nb.nothing,)


@by_compute(source.wait_smem_to_gmem)
def _wait_stores(np_: Any, n: Any, wait_read_only: Any) -> Any:
    kind, number = nb.immediate(constant(WAIT, "n", n, whole(0)))
    read = constant(WAIT, "wait_read_only", wait_read_only, FLAG)
    wait = (cp_async_bulk.wait_group_read if read else cp_async_bulk.wait_group)._numba_type_
    builder, _ = yield meet, ()
    builder.apply(one_lane, (wait, kind), (nb.nothing, number))
    return ()
