"""cp.async.bulk.tensor, the TMA: one lane starts the copy of a box between a GMEM array and shared
memory.

A tensor map, created on the host, describes the array, and how its boxes are arranged in shared
memory. On the GPU, `tensor_map` is the 64-bit address of a CUtensorMap (64-byte aligned, in
parameter, constant or global memory); on the simulator, it is a TensorMap.

Coordinates are in elements and in *array order*, outermost dimension first as in NumPy indexing;
PTX lists them in reverse. They may be negative or beyond the array. A load fills elements outside
the array with zeros. A store omits elements beyond the array, but a negative coordinate stops the
kernel (an illegal instruction on an H200).

A load completes on an mbarrier. A store belongs to a *bulk group* of the lane that issued it, and
only that lane can wait for it:

    store, store, commit_group     group 1       wait_group_read(1): group 1 has left shared memory
    store,        commit_group     group 2       wait_group(0):      both are in GMEM

The `eviction_policy` of a load or store tells L2 which lines to evict first: lines with
``"evict_first"`` are evicted before others, lines with ``"evict_last"`` after them. It is a hint
and does not change results.

PTX ISA, "Data Movement and Conversion Instructions: Tensor copy" and "Bulk copy"; createpolicy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpipe.arch.dtypes import REDUCTIONS
from numpipe.core.machine import EVICTION_POLICY, TensorMap, current
from numpipe.core.op import constant, op, ptx
from numpipe.diagnostics.errors import SpecError


def check_rank(operation: str, rank: int) -> None:
    """Raise SpecError unless `rank` is a valid number of dimensions of a tensor map."""
    if not 1 <= rank <= 5:
        raise SpecError(f"cp_async_bulk.{operation}: expected 1 … 5 coordinates, got {rank}")


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

    The copy completes its bytes on the mbarrier at address `mbar`, where they must be announced.
    `dst` must be aligned to 128 bytes (1024 with the 128-byte swizzle). `coords` is a tuple of 1 …
    5 integers, outermost first::

        mbarrier.arrive_expect_tx(ready, 128 * 64 * 2)
        cp_async_bulk.load(slot, a_map, (m, k), ready)

    PTX ISA: cp.async.bulk.tensor, ".L2::cache_hint".
    """
    constant("cp_async_bulk.load", "eviction_policy", eviction_policy, EVICTION_POLICY)
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
    """Start a `load` to several CTAs of the cluster. It writes to the same shared address `dst` in
    each CTA, and completes on the mbarrier at `mbar` of each.

    `ctas` has one bit per rank, such as ``0b11`` for the first two. They must be CTAs of this
    cluster that are still running. Each of them announces the bytes that it receives, from any CTA.
    Scope: one elected lane::

        mbarrier.arrive_expect_tx(ready, 2 * 64 * 64 * 2)  # this CTA's half and the other one's
        cp_async_bulk.multicast(slot + 8192 * rank, a_map, (m + 64 * rank, k), ready, 0b11)

    PTX ISA: cp.async.bulk.tensor, ".multicast::cluster".
    """
    constant("cp_async_bulk.multicast", "eviction_policy", eviction_policy, EVICTION_POLICY)
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
    """Start copying `nbytes` from global address `src` to shared address `dst`, completing on the
    mbarrier at address `mbar`.

    The size and both addresses must be multiples of 16. On the simulator `src` is a TensorMap of a
    one-dimensional array, whose first bytes are copied. Scope: one elected lane::

        mbarrier.arrive_expect_tx(ready, 4096)
        cp_async_bulk.load_bytes(table, address, 4096, ready)

    PTX ISA: cp.async.bulk.
    """
    current().bulk_load(dst, src, nbytes, mbar)


@op
def store(
    tensor_map: Any, coords: tuple[int, ...], src: int, eviction_policy: str | None = None
) -> None:
    """Start copying from shared address `src` to the box at `coords` in GMEM. Scope: one elected
    lane.

    Before the call, lanes that wrote to `src` must execute `fence.proxy_async` and then synchronize
    at a barrier. After `wait_group_read`, `src` may be overwritten::

        cp_async_bulk.store(c_map, (m, n), panel)
        cp_async_bulk.commit_group()

    With ``eviction_policy="evict_first"``, output that is not read soon leaves room in L2 for
    inputs. PTX ISA: cp.async.bulk.tensor, ".L2::cache_hint".
    """
    constant("cp_async_bulk.store", "eviction_policy", eviction_policy, EVICTION_POLICY)
    current().tma_store(tensor_map, _coordinates("store", tensor_map, coords), src)


def check_reduction(operation: str) -> None:
    """Raise SpecError unless TMA supports this reduction."""
    if operation not in REDUCTIONS:
        raise SpecError(
            f"cp_async_bulk.reduce: operation must be one of {', '.join(REDUCTIONS)}, got "
            f"{operation!r}"
        )


@op
def reduce(tensor_map: Any, coords: tuple[int, ...], src: int, operation: str) -> None:
    """Start a copy like `store` that combines each element of the box at `coords` with the copied
    element.

    `operation` is a compile-time constant: ``"add"``, ``"min"``, ``"max"``, ``"and"``, ``"or"``,
    ``"xor"``, or ``"inc"`` and ``"dec"``, which wrap around at the copied value. Elements are
    updated independently and atomically (relaxed, at GPU scope), so several CTAs may add to the
    same place in any order. ``numpipe.arch.dtypes.REDUCTIONS`` lists the types that each operation
    supports. The copies belong to a bulk group, as stores do. Scope: one elected lane::

        cp_async_bulk.reduce(c_map, (m, n), panel, "add")
        cp_async_bulk.commit_group()

    PTX ISA: cp.reduce.async.bulk.tensor.
    """
    check_reduction(constant("cp_async_bulk.reduce", "operation", operation))
    current().tma_store(tensor_map, _coordinates("reduce", tensor_map, coords), src, operation)


@op
def prefetch(tensor_map: Any, coords: tuple[int, ...]) -> None:
    """Load the box at `coords` into L2, so that a later load finds it there. Scope: one elected
    lane.

    It does not change results, and nothing waits for it. The simulator only checks its coordinates.
    PTX ISA: cp.async.bulk.prefetch.tensor.
    """
    current().note(
        "prefetch", tensor=tensor_map.name, coords=_coordinates("prefetch", tensor_map, coords)
    )


@ptx("cp.async.bulk.commit_group;")
def commit_group() -> None:
    """Close the lane's open bulk group, which contains the stores since the last commit. Scope: the
    lane that stored.

    PTX ISA: cp.async.bulk.commit_group.
    """
    current().bulk_commit()


def _check_pending(n: int) -> None:
    if n < 0:
        raise SpecError(
            f"cp_async_bulk.wait_group: n must be 0 or more, the number of groups that may stay "
            f"unfinished, got {n}"
        )


@ptx("cp.async.bulk.wait_group $n;", check=_check_pending, n="n")
def wait_group(n: int) -> None:
    """Block until all but the newest `n` groups of this lane are finished, which means written to
    GMEM.

    `n` is an immediate. Use ``wait_group(0)`` before the CTA ends, because its shared memory must
    exist until copies have read it. Scope: the lane that stored. PTX ISA: cp.async.bulk.wait_group.
    """
    current().bulk_wait(n, read=False)


@ptx("cp.async.bulk.wait_group.read $n;", check=_check_pending, n="n")
def wait_group_read(n: int) -> None:
    """Block until all but the newest `n` groups of this lane have *read* their shared memory, which
    may then be refilled.

    `n` is an immediate. A ring of s store slots waits with n = s - 1 before writing to the next
    slot. Scope: the lane that stored. PTX ISA: cp.async.bulk.wait_group, ".read"."""
    current().bulk_wait(n, read=True)


@ptx("prefetch.tensormap [$tensor_map];", memory=False, tensor_map="l")
def prefetch_tensormap(tensor_map: Any) -> None:
    """Load a tensor map into the descriptor cache, so that the first copy does not wait for it.
    Scope: a lane.

    `tensor_map` is a generic address. On the simulator it has no effect. PTX ISA: prefetch,
    prefetchu.
    """
    current().note("prefetch.tensormap", tensor_map=tensor_map)
