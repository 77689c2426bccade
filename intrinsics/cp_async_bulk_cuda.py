"""The CUDA implementation of tensor copies, whose PTX statement depends on the number of
coordinates."""

from __future__ import annotations

from typing import Any

from numpipe.core import numba as nb
from numpipe.core.machine import check_policy
from numpipe.core.numba import I32, I64
from numpipe.core.op import cuda_meaning, immediate
from numpipe.diagnostics.errors import SpecError

from . import cp_async_bulk


def _rank(operation: str, coords: Any) -> int:
    if not isinstance(coords, nb.types.BaseTuple) or not all(
        isinstance(t, nb.types.Integer) for t in coords
    ):
        raise SpecError(
            f"cp_async_bulk.{operation}: coords must be a tuple of 1 … 5 integers, "
            f"outermost dimension first, got {coords}"
        )
    cp_async_bulk.check_rank(operation, len(coords))
    return len(coords)


def _innermost_first(first: int, rank: int) -> str:
    """Return PTX's coordinate list for coordinates that are in array order in operands `first`,
    `first` + 1, …"""
    return ", ".join(f"${first + i}" for i in reversed(range(rank)))


def _unpacked(builder: Any, coords: Any, rank: int) -> list[Any]:
    return [builder.extract_value(coords, i) for i in range(rank)]


def _hinted(what: str, given: Any, statement: str) -> str:
    """Add the L2 cache hint to a statement that contains "$hint" among its qualifiers and "$policy"
    as its last operand."""
    policy = immediate(what, "eviction_policy", given)
    check_policy(what, policy)
    if policy is None:
        return statement.replace("$hint", "").replace("$policy", "")
    hinted = statement.replace("$hint", ".L2::cache_hint").replace("$policy", ", policy")
    return f"{{ .reg .b64 policy; createpolicy.fractional.L2::{policy}.b64 policy, 1.0; {hinted} }}"


@cuda_meaning(cp_async_bulk.load)
def _load(dst: Any, tensor_map: Any, coords: Any, mbar: Any, eviction_policy: Any = None) -> Any:
    rank = _rank("load", coords)
    # Numba lowers an omitted policy as None
    policy = eviction_policy or nb.types.none
    text = _hinted(
        "cp_async_bulk.load",
        policy,
        "$gate "
        f"cp.async.bulk.tensor.{rank}d.shared::cluster.global.mbarrier::complete_tx::bytes$hint "
        f"[$0], [$1, {{{_innermost_first(3, rank)}}}], [$2]$policy;",
    )

    def codegen(builder: Any, args: Any) -> Any:
        destination, address, coordinates, barrier = args[:4]
        builder.emit_gated(
            nb.void,
            [destination, address, barrier, *_unpacked(builder, coordinates, rank)],
            text,
            ",".join(["r,l,r", *"r" * rank, "~{memory}"]),
        )

    return nb.types.void(I32, I64, nb.types.UniTuple(I32, rank), I32, policy), codegen


@cuda_meaning(cp_async_bulk.multicast)
def _multicast(
    dst: Any,
    tensor_map: Any,
    coords: Any,
    mbar: Any,
    ctas: Any,
    eviction_policy: Any = None,
) -> Any:
    rank = _rank("multicast", coords)
    policy = eviction_policy or nb.types.none
    text = _hinted(
        "cp_async_bulk.multicast",
        policy,
        f"$gate cp.async.bulk.tensor.{rank}d.shared::cluster.global.mbarrier::complete_tx::bytes"
        ".multicast::cluster$hint "
        f"[$0], [$1, {{{_innermost_first(4, rank)}}}], [$2], mask$policy;",
    )

    def codegen(builder: Any, args: Any) -> Any:
        destination, address, coordinates, barrier, mask = args[:5]
        builder.emit_gated(
            nb.void,
            [destination, address, barrier, mask, *_unpacked(builder, coordinates, rank)],
            f"{{ .reg .b16 mask; cvt.u16.u32 mask, $3; {text} }}",
            ",".join(["r,l,r,r", *"r" * rank, "~{memory}"]),
        )

    return nb.types.void(I32, I64, nb.types.UniTuple(I32, rank), I32, I32, policy), codegen


@cuda_meaning(cp_async_bulk.store)
def _store(tensor_map: Any, coords: Any, src: Any, eviction_policy: Any = None) -> Any:
    rank = _rank("store", coords)
    policy = eviction_policy or nb.types.none
    text = _hinted(
        "cp_async_bulk.store",
        policy,
        f"$gate cp.async.bulk.tensor.{rank}d.global.shared::cta.bulk_group$hint "
        f"[$0, {{{_innermost_first(2, rank)}}}], [$1]$policy;",
    )

    def codegen(builder: Any, args: Any) -> Any:
        address, coordinates, source = args[:3]
        builder.emit_gated(
            nb.void,
            [address, source, *_unpacked(builder, coordinates, rank)],
            text,
            ",".join(["l,r", *"r" * rank, "~{memory}"]),
        )

    return nb.types.void(I64, nb.types.UniTuple(I32, rank), I32, policy), codegen


@cuda_meaning(cp_async_bulk.reduce)
def _reduce(tensor_map: Any, coords: Any, src: Any, operation: Any) -> Any:
    rank = _rank("reduce", coords)
    name = immediate("cp_async_bulk.reduce", "operation", operation)
    cp_async_bulk.check_reduction(name)
    text = (
        f"$gate cp.reduce.async.bulk.tensor.{rank}d.global.shared::cta.{name}.bulk_group "
        f"[$0, {{{_innermost_first(2, rank)}}}], [$1];"
    )

    def codegen(builder: Any, args: Any) -> Any:
        builder.emit_gated(
            nb.void,
            [args[0], args[2], *_unpacked(builder, args[1], rank)],
            text,
            ",".join(["l,r", *"r" * rank, "~{memory}"]),
        )

    return nb.types.void(I64, nb.types.UniTuple(I32, rank), I32, operation), codegen


@cuda_meaning(cp_async_bulk.prefetch)
def _prefetch(tensor_map: Any, coords: Any) -> Any:
    rank = _rank("prefetch", coords)
    text = f"cp.async.bulk.prefetch.tensor.{rank}d.L2.global [$0, {{{_innermost_first(1, rank)}}}];"

    def codegen(builder: Any, args: Any) -> Any:
        builder.emit_asm(
            nb.void,
            [args[0], *_unpacked(builder, args[1], rank)],
            text,
            ",".join(["l", *"r" * rank]),
        )

    return nb.types.void(I64, nb.types.UniTuple(I32, rank)), codegen
