"""cp.async.bulk.tensor, the TMA: one lane starts the copy of a box between an array in GMEM and
shared memory.

A tensor map, made on the host, says what is copied and how it lies in shared memory: on the GPU
`tensor_map` is the 64-bit address of a CUtensorMap (64-byte aligned, in parameter, constant or
global memory), on the simulator a TensorMap.

Coordinates are elements in *array order*, outermost dimension first, as NumPy indexes; PTX lists
them the other way round. They may be negative or beyond the array: a load fills such elements with
zeros, a store leaves out what is beyond, but stops the kernel at a negative coordinate (an illegal
instruction on an H200).

A load ends on an mbarrier. A store belongs to a *bulk group* of the lane that issued it, and only
that lane can wait:

    store, store, commit_group     group 1       wait_group_read(1): group 1 has left shared memory
    store,        commit_group     group 2       wait_group(0):      both are in GMEM

The `eviction_policy` of a load or store says which of its lines L2 gives up first: with
``"evict_first"`` they are the first to go, with ``"evict_last"`` the last. That is a hint: it
changes no result.

PTX ISA, "Data Movement and Conversion Instructions: Tensor copy" and "Bulk copy"; createpolicy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpipe.arch.dtypes import REDUCTIONS
from numpipe.core.machine import TensorMap, check_policy, current
from numpipe.core.op import constant, op, ptx
from numpipe.diagnostics.errors import SpecError


def check_rank(operation: str, rank: int) -> None:
    """Raise SpecError unless a tensor map can have `rank` dimensions."""
    if not 1 <= rank <= 5:
        raise SpecError(
            f"cp_async_bulk.{operation}: {rank} coordinates; a tensor map has 1 … 5 dimensions"
        )


def _coordinates(operation: str, tensor_map: TensorMap, coords: Sequence[int]) -> tuple[int, ...]:
    check_rank(operation, len(coords))
    if len(coords) != tensor_map.array.ndim:
        raise SpecError(
            f"cp_async_bulk.{operation}: {len(coords)} coordinates {tuple(map(int, coords))} for "
            f"{tensor_map.name}, an array of {tensor_map.array.ndim} dimensions: give one for each"
        )
    return tuple(int(c) for c in coords)


@op
def load(
    dst: int,
    tensor_map: Any,
    coords: tuple[int, ...],
    mbar: int,
    eviction_policy: str | None = None,
) -> None:
    """Start copying the box at `coords` from GMEM to shared address `dst`. Scope: one elected lane.

    Its bytes complete on the mbarrier at address `mbar`, where they have to be announced. `dst` is
    aligned to 128 bytes (1024 with the 128-byte swizzle). `coords` is a tuple of 1 … 5 integers,
    outermost first::

        mbarrier.arrive_expect_tx(ready, 128 * 64 * 2)
        cp_async_bulk.load(slot, a_map, (m, k), ready)

    PTX ISA: cp.async.bulk.tensor, ".L2::cache_hint".
    """
    check_policy(
        "cp_async_bulk.load", constant("cp_async_bulk.load", "eviction_policy", eviction_policy)
    )
    current().tma_load(dst, tensor_map, _coordinates("load", tensor_map, coords), mbar)


@op
def multicast(
    dst: int,
    tensor_map: Any,
    coords: tuple[int, ...],
    mbar: int,
    ctas: int,
    eviction_policy: str | None = None,
) -> None:
    """`load` to several CTAs of the cluster: to the same shared address `dst` in each, completing
    on each one's mbarrier `mbar`.

    `ctas` has a bit for each rank, ``0b11`` for the first two: CTAs of this cluster, which are
    running. Each of them announces the bytes that it gets, from whomever. Scope: one elected lane::

        mbarrier.arrive_expect_tx(ready, 2 * 64 * 64 * 2)  # this CTA's half and the other one's
        cp_async_bulk.multicast(slot + 8192 * rank, a_map, (m + 64 * rank, k), ready, 0b11)

    PTX ISA: cp.async.bulk.tensor, ".multicast::cluster".
    """
    check_policy(
        "cp_async_bulk.multicast",
        constant("cp_async_bulk.multicast", "eviction_policy", eviction_policy),
    )
    current().tma_load(dst, tensor_map, _coordinates("multicast", tensor_map, coords), mbar, ctas)


@ptx(
    "$gate cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [$dst], [$src], "
    "$nbytes, [$mbar];",
    dst="r",
    src="l",
    nbytes="r",
    mbar="r",
)
def load_bytes(dst: int, src: Any, nbytes: int, mbar: int) -> None:
    """Start copying `nbytes` from global address `src` to shared address `dst`; they complete on
    the mbarrier at address `mbar`.

    Bytes and both addresses are multiples of 16. On the simulator `src` is a TensorMap of an array
    of one dimension, whose first bytes are copied. Scope: one elected lane::

        mbarrier.arrive_expect_tx(ready, 4096)
        cp_async_bulk.load_bytes(table, address, 4096, ready)

    PTX ISA: cp.async.bulk.
    """
    current().bulk_load(dst, src, nbytes, mbar)


@op
def store(
    tensor_map: Any, coords: tuple[int, ...], src: int, eviction_policy: str | None = None
) -> None:
    """Start copying shared address `src` to the box at `coords` in GMEM. Scope: one elected lane.

    Lanes that stored in `src` execute `fence.proxy_async` and meet at a barrier first; `src` may be
    written again after `wait_group_read`::

        cp_async_bulk.store(c_map, (m, n), panel)
        cp_async_bulk.commit_group()

    With ``eviction_policy="evict_first"``, output that nobody reads soon leaves room for inputs.
    PTX ISA: cp.async.bulk.tensor, ".L2::cache_hint".
    """
    check_policy(
        "cp_async_bulk.store", constant("cp_async_bulk.store", "eviction_policy", eviction_policy)
    )
    current().tma_store(tensor_map, _coordinates("store", tensor_map, coords), src)


def check_reduction(operation: str) -> None:
    """Raise SpecError unless the TMA has this reduction."""
    if operation not in REDUCTIONS:
        raise SpecError(
            f"cp_async_bulk.reduce: operation={operation!r}; one of {', '.join(REDUCTIONS)}"
        )


@op
def reduce(tensor_map: Any, coords: tuple[int, ...], src: int, operation: str) -> None:
    """`store` that combines: each element of the box at `coords` becomes ``operation`` of itself
    and of the copy's.

    ``"add"``, ``"min"``, ``"max"``, ``"and"``, ``"or"``, ``"xor"``, and ``"inc"`` and ``"dec"``,
    which wrap round at the copy's value; a compile-time constant. Elements change one by one and at
    once (relaxed, at GPU scope), so that several CTAs may add to one place, in any order.
    ``numpipe.arch.dtypes.REDUCTIONS`` lists the types that an operation takes. The copies belong to
    a bulk group as stores do. Scope: one elected lane::

        cp_async_bulk.reduce(c_map, (m, n), panel, "add")
        cp_async_bulk.commit_group()

    PTX ISA: cp.reduce.async.bulk.tensor.
    """
    check_reduction(constant("cp_async_bulk.reduce", "operation", operation))
    current().tma_store(tensor_map, _coordinates("reduce", tensor_map, coords), src, operation)


@op
def prefetch(tensor_map: Any, coords: tuple[int, ...]) -> None:
    """Bring the box at `coords` into L2, so that a later load finds it there. Scope: one elected
    lane.

    Nothing waits for it, and it changes no result: on the simulator its coordinates are checked, no
    more. PTX ISA: cp.async.bulk.prefetch.tensor.
    """
    current().note(
        "prefetch", tensor=tensor_map.name, coords=_coordinates("prefetch", tensor_map, coords)
    )


@ptx("cp.async.bulk.commit_group;")
def commit_group() -> None:
    """Close the lane's open bulk group: the stores since the last commit. Scope: the lane that
    stored.

    PTX ISA: cp.async.bulk.commit_group.
    """
    current().bulk_commit()


def _check_pending(n: int) -> None:
    if n < 0:
        raise SpecError(
            f"cp_async_bulk.wait_group: n={n}; the number of groups that may stay unfinished is 0 "
            "or more"
        )


@ptx("cp.async.bulk.wait_group $n;", check=_check_pending, n="n")
def wait_group(n: int) -> None:
    """Block until at most the newest `n` groups of this lane are unfinished, i.e. not yet written
    to GMEM.

    `n` is an immediate. ``wait_group(0)`` before the CTA ends: its shared memory must not go while
    copies read it. Scope: the lane that stored. PTX ISA: cp.async.bulk.wait_group.
    """
    current().bulk_wait(n, read=False)


@ptx("cp.async.bulk.wait_group.read $n;", check=_check_pending, n="n")
def wait_group_read(n: int) -> None:
    """Block until all but the newest `n` groups of this lane have *read* their shared memory, which
    may be refilled.

    `n` is an immediate. A ring of s store slots waits with n = s - 1 before it writes the next
    slot. Scope: the lane that stored. PTX ISA: cp.async.bulk.wait_group, ".read".
    """
    current().bulk_wait(n, read=True)


@ptx("prefetch.tensormap [$tensor_map];", memory=False, tensor_map="l")
def prefetch_tensormap(tensor_map: Any) -> None:
    """Bring a tensor map into the descriptor cache, so that the first copy does not wait for it.
    Scope: a lane.

    `tensor_map` is a generic address; on the simulator it has no effect. PTX ISA: prefetch,
    prefetchu.
    """
    current().note("prefetch.tensormap", tensor_map=tensor_map)
