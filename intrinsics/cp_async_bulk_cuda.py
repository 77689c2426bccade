"""The CUDA implementation of tensor copies, whose PTX statement depends on the number of
coordinates."""

from __future__ import annotations

from typing import Any

from numpipe.core import numba as nb
from numpipe.core.machine import EVICTION_POLICY
from numpipe.core.numba import I32, I64
from numpipe.core.op import constant, cuda_meaning, immediate
from numpipe.diagnostics.errors import SpecError

from . import cp_async_bulk


def _coordinates(operation: str, coords: Any, first: int) -> tuple[Any, str]:
    """Return the type of a copy's coordinates, and PTX's list of them, which is innermost first.
    They are in array order in operands `first`, `first` + 1, …"""
    if not isinstance(coords, nb.BaseTuple) or not all(isinstance(t, nb.Integer) for t in coords):
        raise SpecError(
            f"cp_async_bulk.{operation}: coords must be a tuple of 1 … 5 integers, "
            f"outermost dimension first, got {coords}"
        )
    rank = len(coords)
    cp_async_bulk.check_rank(operation, rank)
    listed = ", ".join(f"${first + i}" for i in reversed(range(rank)))
    return nb.UniTuple(I32, rank), f"{{{listed}}}"


def _hinted(what: str, given: Any, statement: str) -> tuple[Any, str]:
    """Return the type of a cache policy, and a statement with this L2 cache hint. The statement
    contains "$hint" among its qualifiers and "$policy" as its last operand."""
    kind = given or nb.none  # Numba lowers an omitted policy as None
    policy = immediate(what, "eviction_policy", kind)
    constant(what, "eviction_policy", policy, EVICTION_POLICY)
    if policy is None:
        return kind, statement.replace("$hint", "").replace("$policy", "")
    hinted = statement.replace("$hint", ".L2::cache_hint").replace("$policy", ", policy")
    create = f"createpolicy.fractional.L2::{policy}.b64 policy, 1.0;"
    return kind, f"{{ .reg .b64 policy; {create} {hinted} }}"


def _emit(builder: Any, text: str, coords: Any, *operands: Any) -> None:
    """Emit a statement with these operands, followed by the coordinates."""
    values = [*operands, *builder.unpack_tuple(coords)]
    builder.emit_gated(nb.void, values, text)


@cuda_meaning(cp_async_bulk.load)
def _load(dst: Any, tensor_map: Any, coords: Any, mbar: Any, eviction_policy: Any = None) -> Any:
    place, at = _coordinates("load", coords, 3)
    policy, text = _hinted(
        "cp_async_bulk.load",
        eviction_policy,
        f"$gate cp.async.bulk.tensor.{len(coords)}d.shared::cluster.global"
        f".mbarrier::complete_tx::bytes$hint [$0], [$1, {at}], [$2]$policy;",
    )
    builder, args = yield nb.VOID(I32, I64, place, I32, policy)
    _emit(builder, text, args[2], args[0], args[1], args[3])


@cuda_meaning(cp_async_bulk.multicast)
def _multicast(
    dst: Any,
    tensor_map: Any,
    coords: Any,
    mbar: Any,
    ctas: Any,
    eviction_policy: Any = None,
) -> Any:
    place, at = _coordinates("multicast", coords, 4)
    policy, text = _hinted(
        "cp_async_bulk.multicast",
        eviction_policy,
        f"$gate cp.async.bulk.tensor.{len(coords)}d.shared::cluster.global"
        ".mbarrier::complete_tx::bytes.multicast::cluster$hint "
        f"[$0], [$1, {at}], [$2], mask$policy;",
    )
    text = f"{{ .reg .b16 mask; cvt.u16.u32 mask, $3; {text} }}"
    builder, args = yield nb.VOID(I32, I64, place, I32, I32, policy)
    _emit(builder, text, args[2], args[0], args[1], args[3], args[4])


@cuda_meaning(cp_async_bulk.store)
def _store(tensor_map: Any, coords: Any, src: Any, eviction_policy: Any = None) -> Any:
    place, at = _coordinates("store", coords, 2)
    policy, text = _hinted(
        "cp_async_bulk.store",
        eviction_policy,
        f"$gate cp.async.bulk.tensor.{len(coords)}d.global.shared::cta.bulk_group$hint "
        f"[$0, {at}], [$1]$policy;",
    )
    builder, args = yield nb.VOID(I64, place, I32, policy)
    _emit(builder, text, args[1], args[0], args[2])


@cuda_meaning(cp_async_bulk.reduce)
def _reduce(tensor_map: Any, coords: Any, src: Any, operation: Any) -> Any:
    place, at = _coordinates("reduce", coords, 2)
    name = immediate("cp_async_bulk.reduce", "operation", operation)
    cp_async_bulk.check_reduction(name)
    text = (
        f"$gate cp.reduce.async.bulk.tensor.{len(coords)}d.global.shared::cta.{name}.bulk_group "
        f"[$0, {at}], [$1];"
    )
    builder, args = yield nb.VOID(I64, place, I32, operation)
    _emit(builder, text, args[1], args[0], args[2])


@cuda_meaning(cp_async_bulk.prefetch)
def _prefetch(tensor_map: Any, coords: Any) -> Any:
    place, at = _coordinates("prefetch", coords, 1)
    text = f"cp.async.bulk.prefetch.tensor.{len(coords)}d.L2.global [$0, {at}];"
    builder, args = yield nb.VOID(I64, place)
    values = [args[0], *builder.unpack_tuple(args[1])]
    builder.execute(values, text, memory=False)
