"""Shared memory that a kernel allocates itself: tiles, slots of tiles, and barriers.

::

    buffer = numpipe.scratch(
        numpipe.SMEM((2, 64, 64), np.float16)
    )  # two slots, shared by the compute warpgroups
    landed = numpipe.scratch(numpipe.Barrier(num_barriers=2))
    tile = buffer.at[k % 2]  # a tile, as a pipeline hands one to its body

An allocation belongs to a call in the source and lasts as long as the kernel: executing the call
again returns the same bytes with their contents, and the phases of barriers continue. Nothing is
freed, because initializing a barrier again costs a fence and a barrier of the CTA each time, to
save bytes that few kernels need. The memory role gets references too, but its operations on them
have no effect.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from ...arch.dimensions import Ints
from ...core.arith import is_integer
from ...core.inert import Inert, NoValue
from ...core.machine import current, failure
from ...core.op import context_op
from ...diagnostics.argument_checks import as_tuple
from ...diagnostics.errors import CompileError, SimulationError, SpecError
from ...plan.allocations import BarrierPlan, SmemPlan, parse
from ...plan.context import Context
from ...plan.roles import Role
from ..tiles.refs import At, SharedTile, SmemTile, whole_slices

__all__ = ["run_scoped", "scratch"]

NO_SLOTS = "slots of shared memory have no value; fix: buffer.at[slot] is a tile"
NO_VALUE = (
    "a barrier has no value; fix: pass it to barrier_arrive, barrier_wait, barrier_test or a copy"
)


@dataclass(eq=False)
class Slots:
    """Slots of a tile: ``slots.at[slot]`` is one slot, ``slots.at[slot, rows, columns]`` a part of
    one."""

    plan: SmemPlan
    address: int
    role: Role
    tile: type[SharedTile] = SmemTile

    @property
    def shape(self) -> Ints:
        return self.plan.kind.shape

    @property
    def dtype(self) -> np.dtype:
        dtype: np.dtype = self.plan.kind.dtype
        return dtype

    @property
    def at(self) -> At:
        return At(self._slot)

    def _slot(self, index: Any) -> SharedTile:
        parts, lead, kind = whole_slices(index), self.plan.slots, self.plan.kind
        check_slots(lead, parts)
        number = linear(lead, parts[: len(lead)])
        tile = self.tile(
            self.address + number * kind.stride, kind.layout, kind.dtype, self.role, True
        )
        return tile.at[parts[len(lead) :]] if len(parts) > len(lead) else tile

    def _none(self, *_: Any) -> NoReturn:
        raise SpecError(NO_SLOTS)

    __getitem__ = __setitem__ = _none


class BarrierFacts:
    """Properties common to a `BarrierRef` and its Numba type."""

    plan: BarrierPlan

    @property
    def wide(self) -> bool:
        """Whether arrivals and waits have cluster scope."""
        return self.plan.wide

    @property
    def narrow(self) -> bool:
        return not self.plan.wide


class BarrierRef(BarrierFacts):
    """A reference to barriers of an allocation: an array of `shape` that begins at barrier `first`,
    in row-major order."""

    operand = "barrier"

    def __init__(self, np_: Context, plan: BarrierPlan, copy: int, shape: Ints, first: int) -> None:
        self.np, self.plan, self.copy, self.shape, self.first = np_, plan, copy, shape, first

    @property
    def at(self) -> At:
        """``barriers.at[i]``, ``barriers.at[i, j]``: one barrier, or the barriers of the remaining
        dimensions."""
        return At(self._part)

    def _part(self, index: Any) -> BarrierRef:
        parts = whole_slices(index)
        left = check_barriers(self.shape, parts)
        first = self.first + linear(self.shape[: len(parts)], parts) * math.prod(left)
        return BarrierRef(self.np, self.plan, self.copy, left, first)

    @property
    def address(self) -> int:
        return self.plan.memory.at(self.copy) + 8 * self.first

    @property
    def name(self) -> str:
        return self.plan.name_of(self.copy, self.first)

    def __repr__(self) -> str:
        return group(self.shape)

    def __getitem__(self, index: Any) -> NoReturn:
        raise SpecError(NO_VALUE + "; barriers.at[i] is one of several")

    def _value(self, *_: Any) -> NoReturn:
        raise CompileError(NO_VALUE)

    __bool__ = __int__ = __index__ = __float__ = _value


# ---- what both executions check
def check_slots(lead: Ints, parts: tuple) -> None:
    """Raise SpecError unless an index (or its Numba types) has an integer for each slot dimension,
    followed by nothing or by two parts that select rows and columns of the tile."""
    if len(parts) not in (len(lead), len(lead) + 2) or not all(map(_is_place, parts[: len(lead)])):
        raise SpecError(
            f"buffer.at[…]: expected an integer for each dimension of slots {lead}, then nothing "
            "or "
            f"two of ds(start, size) and ':', got ({', '.join(map(str, parts))})"
        )


def check_barriers(shape: Ints, parts: tuple) -> Ints:
    """Return the dimensions that remain after indexing barriers. Takes values or Numba types."""
    if not 0 < len(parts) <= len(shape) or not all(map(_is_place, parts)):
        raise SpecError(
            f"barriers.at[…]: barriers of shape {shape} are indexed by up to {len(shape)} "
            f"integers, got ({', '.join(map(str, parts))})"
        )
    return shape[len(parts) :]


def _is_place(part: Any) -> bool:
    return is_integer(part) or isinstance(part, NoValue)


def linear(shape: Ints, index: tuple) -> int:
    """Return the row-major number of an index. Raises SimulationError if it is out of range, where
    the GPU would use whatever lies there."""
    number = 0
    for axis, (size, part) in enumerate(zip(shape, index, strict=True)):
        if isinstance(part, Inert):
            continue
        if not 0 <= part < size:
            raise failure(
                SimulationError,
                "out-of-bounds",
                f"….at[…]: index {part} along dimension {axis} is outside 0…{size - 1}; the GPU "
                "accesses whatever is there",
                f"an index in 0…{size - 1}",
                "accesses memory next to slots or barriers",
            )
        number = number * size + int(part)
    return number


def group(shape: Ints) -> str:
    count = math.prod(shape)
    return "a barrier" if count == 1 else f"{count} barriers of shape {shape}"


def one_barrier(operation: str, shape: Ints) -> None:
    """Raise SpecError unless `shape` is the shape of a single barrier."""
    if math.prod(shape) != 1:
        raise SpecError(
            f"{operation} expects one barrier, got {group(shape)}; fix: select one, "
            f"barriers.at[{', '.join('ijkl'[: len(shape)])}]"
        )


def shared_by(unit: Any, axes: Any) -> bool:
    """Return whether `collective_axes` requests one allocation shared by all compute warpgroups.
    Raises SpecError for other axes."""
    names = as_tuple(axes)
    if axes is None or not names:
        return False
    if names != (unit.wg_axis,):
        raise SpecError(
            "run_scoped: collective_axes must be None (an allocation for each compute warpgroup) "
            f"or {unit.wg_axis!r} (one for all warpgroups of the CTA), got {axes!r}"
        )
    return True


# ---- the operations
@context_op(site=True)
def scratch(np_: Context, site: str, kind: Any, of: Any = None) -> Any:
    """Allocate shared memory in a kernel, shared by all compute warpgroups of the CTA, and return
    references to it.

    kind  a compile-time constant: `SMEM` (a tile, or slots of one), `Barrier`, `RefUnion`, or a
          tuple or NamedTuple of these and of such tuples (the result then is a tuple of references
          in the same shape)
    of    an array of the kernel. A call in a function has an allocation for each array that it is
          given here

    The bytes are uninitialized at first, and barriers are in phase 0. Executing the same call again
    returns the same allocation.

    Raises SpecError if the CTA does not have that much shared memory, and reports the total.
    """
    return _refs(np_, np_.unit.plan_scratch(site_of(site, of), parse(kind), True).tree)


@context_op(site=True)
def run_scoped(
    np_: Context, site: str, function: Callable, *kinds: Any, collective_axes: Any = None
) -> Any:
    """Call ``function(*references)`` with allocations of these types, inside a kernel, and return
    its result.

    Types may also be given by the names of the function's parameters, ``run_scoped(scope,
    landed=Barrier())``.

    function         nested in the kernel, or decorated with `numpipe.function`; the memory role
                     calls it too
    kinds            as for `scratch`; the allocations of a pipeline (`get_allocations`) are passed
                     through unchanged
    collective_axes  None: each compute warpgroup has its own allocation. The warpgroup axis:
                     they share one.

    Memory is laid out at compile time, so a scope that has ended keeps its bytes. Use a `RefUnion`
    for allocations that are not in use at the same time.

    Raises SpecError if the CTA does not have that much shared memory, and reports the total.
    """
    shared, places = shared_by(np_.unit, collective_axes), sites(site, len(kinds))
    return function(
        *[
            _refs(np_, np_.unit.plan_scratch(place, parse(kind), shared).tree)
            if isinstance(kind, str)
            else kind
            # pass other values through
            for place, kind in zip(places, kinds, strict=True)
        ]
    )


@context_op(site=True)
def scoped(np_: Context, site: str, kind: Any, collective_axes: Any) -> Any:
    """Return the references of one allocation of a `run_scoped`; the AST pass supplies its
    shape."""
    return _refs(
        np_, np_.unit.plan_scratch(site, parse(kind), shared_by(np_.unit, collective_axes)).tree
    )


def site_of(site: str, array: Any) -> str:
    """Return a name for the allocation that a call makes for an array, or its type."""
    return f"{site} for {array.arg.name}" if hasattr(array, "arg") else site


def sites(site: str, count: int) -> list[str]:
    """Return a name for each of the `count` allocations that one call makes."""
    return [site] if count == 1 else [f"{site} ({number})" for number in range(count)]


def _refs(np_: Context, tree: Any) -> Any:
    if isinstance(tree, tuple):
        return tuple(_refs(np_, part) for part in tree)
    if isinstance(tree, SmemPlan):
        slots = Slots(tree, np_.part_of(tree.memory, tree.offset), np_.role)
        return slots if tree.slots else slots.at[()]
    ref = own_barriers(np_, tree)
    if np_.numbered:
        for number in range(tree.kind.count):
            name = tree.name_of(ref.copy, number)
            current().mbar_init_at_entry(
                ref.address + 8 * number, tree.arrivals, name, observed=True
            )
    return ref


def own_barriers(np_: Context, plan: BarrierPlan) -> BarrierRef:
    """Return the barriers of an allocation that this warpgroup uses: its own, or shared ones."""
    copy = np_.number if plan.memory.owners and np_.computes else 0
    return BarrierRef(np_, plan, copy, plan.kind.shape, 0)
