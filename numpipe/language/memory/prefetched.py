"""``numpipe.prefetched(table)``: a copy of the beginning of an integer array in shared memory,
which every role of the CTA reads.

::

    # once a CTA; elements of `table` may steer a kernel without it too
    pages = numpipe.prefetched(table)
    spec = BlockSpec((64, 64), lambda k: (pages[s, k], 0))
    pipe = numpipe.pipeline(grid=(counts[s],), in_specs=(spec,))

    issuing role   wait until the array may be read (the kernel's entry); expect the bytes;
                   cp.async.bulk
    every role     wait for phase 0; read as often as it likes

It uses one mbarrier, which has only this phase.

The bytes are never overwritten, so nothing has to be released, and a role's wait is all that orders
its reads. The memory role issues the copy. In a kernel without one, each compute warpgroup has its
own bytes and its own barrier, since each has its own control flow.

The copy holds the first elements of the array, in memory order: at most `size`, rounded down to a
multiple of 16 bytes (PTX ISA, "cp.async.bulk"). Other elements are read from the array. If the rows
of the array are not contiguous, or the array does not begin at a multiple of 16 bytes, the copy is
empty and every element is read from the array.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...arch.dimensions import round_up
from ...arch.dtypes import INT32
from ...core.arith import is_integer
from ...core.inert import Inert, NoValue
from ...core.lanes import one_lane
from ...core.machine import TensorMap, current
from ...core.op import called, constant, context_op, helper
from ...diagnostics.argument_checks import whole
from ...diagnostics.errors import CompileError, SpecError
from ...intrinsics import cp_async_bulk, mbarrier, memory
from ...plan.allocations import SMEM, Barrier, Scratch
from ...plan.context import Context, only_if, own_part
from ..tiles.load import STEERING, load, without_value
from ..tiles.refs import GmemRef, whole_slices
from .copies import OTHER_WARPS
from .phases import next_phase, wait
from .scratch import BarrierRef, own_barriers

__all__ = ["prefetched"]

ALIGNED = 16
"""Bytes: a cp.async.bulk moves a multiple of this, and begins at one."""
SIZE, MOST = 1024, 16384
"""The default number of elements that have room, and the maximum."""
NAME = "numpipe.prefetched"
"""The name of the copy among the rings that a role uses."""


# ---- what both executions check
def planned(np_: Any, site: str, table: Any, size: Any) -> Scratch:
    """Return the allocation of a copy, given values or Numba types. Raises SpecError for an array
    whose elements cannot steer the kernel."""
    arg = getattr(table, "arg", None)
    if arg is None:
        raise SpecError(
            f"prefetched(table): table must be an array of the kernel, got {called(table)}"
        )
    if arg.dtype not in STEERING or arg.output:
        raise SpecError(
            f"prefetched(table): {without_value(arg, ())}; fix: load from such arrays with "
            f"{arg.name}[…]"
        )
    size = constant(f"prefetched({arg.name})", "size", size, whole(1, MOST))
    unit = ALIGNED // arg.dtype.itemsize
    kind = SMEM((round_up(size, unit),), arg.dtype), Barrier()
    scratch: Scratch = np_.unit.plan_scratch(site, kind, np_.unit.warp_specialized)
    np_.unit.rings_of[np_.role].add(f"{NAME} @ {site}")
    return scratch


def check_index(name: str, ndim: int, parts: Sequence) -> str | None:
    """Return what makes an element inert, or None, given the parts of an index or their Numba
    types. Raises SpecError unless there is an integer for each dimension."""
    if len(parts) != ndim or not all(
        isinstance(part, NoValue) or is_integer(part) for part in parts
    ):
        raise SpecError(
            f"prefetched({name})[…] must be indexed by an integer for each of the array's {ndim} "
            f"dimension{'s' * (ndim > 1)}; fix: for blocks and indices with modes, use the array "
            f"itself, {name}[…]"
        )
    return next((part.what for part in parts if isinstance(part, NoValue)), None)


def unreachable(kernel: str, site: str) -> str:
    """Return the message for a call that the memory role does not reach."""
    return (
        f"kernel {kernel}, {NAME} at {site}: only compute warpgroups come here, so nobody issues "
        "the copy: call it at the kernel's beginning, and use here what it returns"
    )


def no_value(name: str) -> str:
    """Return the message for a copy that is used as a number."""
    return f"prefetched({name}) has no value: its elements have, prefetched({name})[i]"


class TableFacts:
    """Properties common to a `Prefetched` and its Numba type."""

    landed: Any

    @property
    def issues(self) -> bool:
        """Whether this is the memory role, one lane of which issues the copy for all."""
        return bool(self.landed.np.loads)

    @property
    def alone(self) -> bool:
        """Whether a warpgroup has its own copy, which one of its lanes issues."""
        return not self.landed.np.unit.warp_specialized


class Prefetched(TableFacts):
    """The beginning of an array in shared memory, on the simulated SM: `nbytes` bytes from
    `address` on."""

    def __init__(self, ref: GmemRef, address: int, landed: BarrierRef, size: int) -> None:
        self.ref = ref
        self.address = address
        self.landed = landed
        array = ref.array
        whole = array.flags.c_contiguous and array.ctypes.data % ALIGNED == 0 and current().moves
        self.nbytes = min(array.size, size) * array.itemsize // ALIGNED * ALIGNED if whole else 0
        self.source = (
            TensorMap(array.reshape(-1), (self.nbytes // array.itemsize,), 0, ref.name)
            if self.nbytes
            else None
        )
        self.arrival = landed.address
        self.shape, self.dtype, self.ndim = ref.shape, ref.dtype, ref.ndim

    def __getitem__(self, index: Any) -> Any:
        parts, array = whole_slices(index), self.ref.array
        inert = check_index(self.ref.name, self.ndim, parts)
        if inert is not None:
            return load(self.ref, index) if self.landed.np.computes else Inert(inert)
        inside = all(0 <= int(part) < size for part, size in zip(parts, array.shape, strict=True))
        offset = (
            int(np.ravel_multi_index(tuple(map(int, parts)), array.shape)) * array.itemsize
            if inside
            else self.nbytes
        )
        if offset >= self.nbytes:
            return load(self.ref, index)
        machine: Any = current()
        at = self.address + offset
        if hasattr(machine, "lane"):
            return machine.load(at, array.dtype, f"prefetched '{self.ref.name}'")
        words = np.array(
            [memory.load_word(at + 4 * word) for word in range(array.itemsize // 4)], INT32
        )
        return words.view(array.dtype)[0]

    def _value(self, *_: Any) -> Any:
        raise CompileError(no_value(self.ref.name))

    __bool__ = __int__ = __index__ = __float__ = _value


# ---- the copy, and the wait of each role
@helper
def issue(table):  # type: ignore[no-untyped-def]
    """Start the copy, in one lane, and arrive for the whole warpgroup."""
    mbarrier.arrive_count(table.arrival, OTHER_WARPS)
    mbarrier.arrive_expect_tx(table.arrival, table.nbytes)
    if table.nbytes > 0:
        cp_async_bulk.load_bytes(table.address, table.source, table.nbytes, table.arrival)


@helper
def issue_alone(table):  # type: ignore[no-untyped-def]
    one_lane(issue, table)


@helper
def begin(table):  # type: ignore[no-untyped-def]
    """Issue the copy and wait for it, in a role that has not done so yet. The phase records whether
    it has."""
    if next_phase(table.landed) == 0:
        only_if(table, "alone", issue_alone)
        only_if(table, "issues", issue)
        wait(table.landed)


@context_op(site=True)
def prefetched(np_: Context, site: str, table: Any, size: int = SIZE) -> Prefetched:
    """Copy the beginning of an integer array into shared memory, inside a kernel. The result is
    indexed like the array.

    table  an int32 or int64 array that the kernel does not store to, with contiguous rows. Its
           elements may steer every role, with or without this function.
    size   a compile-time int: the number of elements, in memory order, that are copied to shared
           memory (by default 4 KiB of int32); elements beyond are read from the array

    ``t = numpipe.prefetched(table)``, then ``t[i]`` or ``t[i, j]``, with an integer for each
    dimension. Each call in the source copies once per CTA, and each role waits there until the copy
    has landed. Use it for scattered numbers that are read repeatedly; otherwise it gains nothing,
    see "Data that steers".

    Raises SpecError for other arrays and sizes. PTX ISA, "cp.async.bulk".
    """
    if np_.compute_only:
        raise CompileError(unreachable(np_.unit.kernel, site))
    machine, (tile, barrier) = current(), planned(np_, site, table, size).tree
    landed = own_barriers(np_, barrier)
    machine.mbar_init_at_entry(landed.address, barrier.arrivals, landed.name, observed=True)
    found = Prefetched(table, own_part(np_.unit, tile.memory), landed, tile.kind.shape[0])
    begin(found)
    return found
