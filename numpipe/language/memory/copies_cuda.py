"""Copies on the GPU: what they are made of in the types; addresses and starts in the values."""

from __future__ import annotations

from typing import Any

from ...core import numba as nb
from ...core.lanes import one_lane
from ...core.op import cuda_meaning, immediate
from ...diagnostics.errors import SpecError
from ...intrinsics import cp_async_bulk
from ..tiles.order import before_async
from ..tiles.refs_cuda import SmemType, gmem_value
from ..tiles.views_cuda import ViewType
from . import copies as source
from .boxes import Boxes
from .shared_cuda import BarriersType, barrier_address

I32, I64, BOOL = nb.types.int32, nb.types.int64, nb.types.boolean


class TransferType(nb.types.Type):  # type: ignore[misc]
    """A copy: its boxes, and where it is from or to."""

    def __init__(self, boxes: Boxes, view: ViewType, barrier: BarriersType | None = None, reduction: str = "") -> None:
        self.boxes, self.view, self.barrier, self.reduction = boxes, view, barrier, reduction
        super().__init__(name=f"transfer({boxes}, {view}, {barrier}, {reduction})")


nb.struct_model(TransferType, lambda ty: [("view", ty.view), ("address", I32), ("arrival", I32)])
nb.constant_attributes(TransferType, I32, nbytes=lambda ty: ty.boxes.nbytes)
nb.field_attributes(TransferType, arrival=I32)


def _each_box(operation: Any, issue: Any) -> None:
    """An operation on a transfer: ``issue(call, transfer, tensor, coordinates, address, barrier)`` for each of its boxes."""

    @cuda_meaning(operation)
    def typer(_context: Any, transfer: Any) -> Any:
        boxes, ref = transfer.boxes, transfer.view.ref
        slot, place = ref.unit.map_slot(boxes.request), transfer.view.place
        context, builder, args = yield nb.types.void(transfer)
        value = nb.fields(context, builder, transfer, args[0])
        view = nb.fields(context, builder, transfer.view, value.view)
        tensor = builder.add(gmem_value(context, builder, ref, view.ref).table, nb.const(128 * slot, nb.i64))
        for offset, down, right in boxes.places:
            at = nb.cgutils.unpack_tuple(builder, view.start)
            for axis, moved in zip(boxes.axes, (down, right), strict=True):
                at[axis] = builder.add(at[axis], nb.const(moved))
            coords = context.make_tuple(builder, place, boxes.in_memory(at))
            address = builder.add(value.address, nb.const(offset))
            function, typed = issue(transfer, (I64, tensor), (place, coords), (I32, address), (I32, value.arrival))
            nb.call(context, builder, function, [ty for ty, _ in typed], [found for _, found in typed])


def _store(transfer: TransferType, tensor: Any, coords: Any, address: Any, _barrier: Any) -> Any:
    if not transfer.reduction:
        return cp_async_bulk.store, (tensor, coords, address)
    return cp_async_bulk.reduce, (tensor, coords, address, (nb.types.literal(transfer.reduction), nb.ir.Constant(nb.i64, 0)))


_each_box(source.issue_loads, lambda transfer, tensor, coords, address, barrier:
          (cp_async_bulk.load, (address, tensor, coords, barrier)))
_each_box(source.issue_stores, _store)
_each_box(source.issue_prefetches, lambda transfer, tensor, coords, address, barrier:
          (cp_async_bulk.prefetch, (tensor, coords)))


# ---- the operations
def _said(ty: Any) -> str:
    return str(nb.unliteral(ty))


def _predicate(operation: str, ty: Any) -> None:
    if not isinstance(ty, (nb.types.Boolean, nb.types.BooleanLiteral, nb.types.Integer)):
        raise SpecError(f"{operation}: predicate must be a bool, got {_said(ty)}")


def _truth(context: Any, builder: Any, ty: Any, value: Any) -> Any:
    if isinstance(ty, nb.types.BooleanLiteral):
        return nb.const(int(ty.literal_value), nb.i1)
    return context.cast(builder, value, ty, BOOL)


def _transfer(context: Any, builder: Any, ty: TransferType, view: Any, address: Any = None, barrier: Any = None) -> Any:
    return nb.struct(context, builder, ty, view=view, address=nb.const(0) if address is None else address,
                     arrival=nb.const(0) if barrier is None else barrier)


@cuda_meaning(source.copy_gmem_to_smem)
def _copy_in(typing_context: Any, np_: Any, src: Any, dst: Any, barrier: Any, predicate: Any) -> Any:
    source.check_kinds(
        source.LOAD, src=(isinstance(src, ViewType), source.A_VIEW, _said(src)),
        dst=(isinstance(dst, SmemType), source.A_TILE, _said(dst)),
        barrier=(isinstance(barrier, BarriersType), source.A_BARRIER, getattr(barrier, "what", _said(barrier))))
    transfer = TransferType(source.check_load(np_.unit, src, dst, barrier), src, barrier)
    memory = np_.role == "memory"
    if not memory:
        _predicate(source.LOAD, predicate)
        nb.returns(typing_context, one_lane, (source.load._numba_type_, transfer, BOOL))
    context, builder, args = yield nb.types.void(np_, src, dst, barrier, predicate)
    if not memory:
        nb.call(context, builder, before_async, (dst,), args[2:3])
        value = _transfer(context, builder, transfer, args[1], args[2], barrier_address(context, builder, barrier, args[3]))
        chosen = _truth(context, builder, predicate, args[4])
        _by_one(context, builder, source.load, (transfer, BOOL), (value, chosen))


@cuda_meaning(source.copy_smem_to_gmem)
def _copy_out(typing_context: Any, np_: Any, src: Any, dst: Any, predicate: Any, commit_group: Any, reduction_op: Any) -> Any:
    source.check_kinds(source.STORE, src=(isinstance(src, SmemType), source.A_TILE, _said(src)),
                       dst=(isinstance(dst, ViewType), source.A_VIEW, _said(dst)))
    commit = source.check_flag(source.STORE, "commit_group", immediate(source.STORE, "commit_group", commit_group))
    reduction = source.check_reduction(immediate(source.STORE, "reduction_op", reduction_op), dst.ref.arg.dtype)
    transfer = TransferType(source.check(source.STORE, np_.unit, dst, src), dst, None, reduction)
    memory = np_.role == "memory"
    if not memory:
        _predicate(source.STORE, predicate)
        np_.unit.copies_out = True
        nb.returns(typing_context, one_lane, (source.store._numba_type_, transfer, BOOL, BOOL))
    context, builder, args = yield nb.types.void(np_, src, dst, predicate, commit_group, reduction_op)
    if not memory:
        nb.call(context, builder, before_async, (src,), args[1:2])
        value = _transfer(context, builder, transfer, args[2], args[1])
        chosen = _truth(context, builder, predicate, args[3])
        _by_one(context, builder, source.store, (transfer, BOOL, BOOL), (value, chosen, nb.const(int(commit), nb.i1)))


@cuda_meaning(source.async_prefetch)
def _prefetch(typing_context: Any, np_: Any, src: Any) -> Any:
    source.check_kinds(source.PREFETCH, src=(isinstance(src, ViewType), source.A_VIEW, _said(src)))
    transfer = TransferType(source.check_prefetch(np_.unit, src), src)
    memory = np_.role == "memory"
    if not memory:
        nb.returns(typing_context, one_lane, (source.issue_prefetches._numba_type_, transfer))
    context, builder, args = yield nb.types.void(np_, src)
    if not memory:
        _by_one(context, builder, source.issue_prefetches, (transfer,), (_transfer(context, builder, transfer, args[1]),))


def _by_one(context: Any, builder: Any, function: Any, argtypes: tuple[Any, ...], values: tuple[Any, ...]) -> None:
    nb.call(context, builder, one_lane, (function._numba_type_, *argtypes), (nb.nothing(context), *values))


def _plain(operation: Any, function: Any, *args: Any) -> None:
    """An operation of the context alone: ``function(*args)`` in the compute role."""

    @cuda_meaning(operation)
    def typer(typing_context: Any, np_: Any) -> Any:
        types = [arg._numba_type_ for arg in args]
        memory = np_.role == "memory"
        if not memory:
            nb.returns(typing_context, function, types)
        context, builder, _ = yield nb.types.void(np_)
        if not memory:
            nb.call(context, builder, function, types, [nb.nothing(context) for _ in types])


_plain(source.commit_smem, source.fence_and_meet)
_plain(source.commit_smem_to_gmem_group, one_lane, cp_async_bulk.commit_group)


@cuda_meaning(source.wait_smem_to_gmem)
def _wait_stores(typing_context: Any, np_: Any, n: Any, wait_read_only: Any) -> Any:
    pending = source.check_groups(immediate("wait_smem_to_gmem", "n", n))
    read = source.check_flag("wait_smem_to_gmem", "wait_read_only",
                             immediate("wait_smem_to_gmem", "wait_read_only", wait_read_only))
    wait = cp_async_bulk.wait_group_read if read else cp_async_bulk.wait_group
    kind, number = nb.immediate(pending)
    memory = np_.role == "memory"
    context, builder, _ = yield nb.types.void(np_, n, wait_read_only)
    if not memory:
        _by_one(context, builder, wait, (kind,), (number,))
        nb.call(context, builder, source.meet, (), ())
