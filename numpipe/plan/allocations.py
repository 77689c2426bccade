"""What a kernel may allocate in shared memory beside its rings: tiles, barriers, and unions of them.

::

    numpipe.SMEM((2, 64, 64), np.float16)      two slots of a 64 x 64 tile, which lies as a block of a pipeline does
    numpipe.Barrier(num_barriers=2)            two mbarriers
    numpipe.ClusterBarrier("cluster")          an mbarrier in each CTA of a cluster, on which all of them arrive
    numpipe.RefUnion(one, (another, third))    the same bytes as `one`, and as `another` and `third` together

These are types: values are made in a kernel, by `numpipe.scratch` and `numpipe.run_scoped`. A type is a compile-time constant,
so it may be written in the kernel, in a module, or be a field of a Static.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ..arch.dtypes import ELEMENTS
from ..diagnostics.errors import SpecError
from .cluster import ALONE, Dims, shifts
from .layout import ATOM, Layout, block_layout
from .regions import Region
from .specs import axis_names
from .transforms import SwizzleTransform, TilingTransform, Transform, TransposeTransform, is_int
from .transforms import check as check_transforms

__all__ = ["SMEM", "Barrier", "ClusterBarrier", "RefUnion"]

MAX_BARRIERS = 32
"""of one `Barrier`: their parities are the bits of an int32"""
ARRIVALS_A_WARPGROUP = 4
"""lane 0 of each warp arrives for its warp"""


@dataclass(frozen=True)
class SMEM:
    """A tile in shared memory, or slots of one: `shape` ends in the tile's rows and columns.

    shape       compile-time ints. Dimensions before the last two are slots: ``buffer.at[slot]``, with a run-time `slot`, is a
                tile. A row is a multiple of 16 bytes, and there is a multiple of 8 of them (the layout is that of a pipeline's
                blocks: `layout`); a tile begins at a multiple of 1024 bytes.
    dtype       of the elements
    transforms  how a tile lies in shared memory, as for `BlockSpec`; what is left out is inferred

    Raises SpecError for shapes that have no such layout.

    >>> SMEM((2, 64, 32), np.float16).slots
    2
    """

    shape: tuple[int, ...]
    dtype: Any
    memory_space: ClassVar[str] = "SMEM"
    """so that the class itself says where a `BlockSpec` puts an operand"""
    transforms: tuple[Transform, ...] = ()

    def __post_init__(self) -> None:
        shape = tuple(self.shape) if isinstance(self.shape, (tuple, list)) else ()
        if len(shape) < 2 or not all(is_int(n) and n >= 1 for n in shape):
            raise SpecError(f"SMEM: shape must be a tuple of at least 2 positive compile-time ints, (*slots, rows, columns), got "
                            f"{self.shape!r}")
        try:
            dtype = np.dtype(self.dtype)
        except TypeError as error:
            raise SpecError(f"SMEM: dtype must be an element type, got {self.dtype!r} ({error})") from None
        if dtype.name not in ELEMENTS or not dtype.isnative:
            raise SpecError(f"SMEM: dtype must be one that arrays of a kernel have, {', '.join(ELEMENTS)}, got {dtype!r}")
        object.__setattr__(self, "shape", tuple(int(n) for n in shape))
        object.__setattr__(self, "dtype", dtype)
        check_transforms(self.transforms, "SMEM")
        _ = self.layout

    @property
    def layout(self) -> Layout:
        """Of one tile."""
        return block_layout((self.shape[-2], self.shape[-1]), 1, self.dtype, f"SMEM: tile {self.shape[-2:]}", self.transforms)

    @property
    def slots(self) -> int:
        return int(np.prod(self.shape[:-2]))

    @property
    def stride(self) -> int:
        """Bytes from one slot to the next."""
        return -(-self.layout.nbytes // ATOM) * ATOM

    @property
    def nbytes(self) -> int:
        return self.slots * self.stride

    def __str__(self) -> str:
        return f"SMEM({self.shape}, {self.dtype}{f', {self.transforms}' * bool(self.transforms)})"


@dataclass(frozen=True)
class Barrier:
    """An mbarrier in shared memory, or several: `numpipe.barrier_arrive`, `numpipe.barrier_wait`.

    num_arrivals  what completes a phase: arrivals, each by a compute warpgroup, or by a `copy_gmem_to_smem`, whose bytes have
                  to land too
    num_barriers  how many there are, at most 32: an int, or a tuple for more dimensions. ``barriers.at[slot]`` is one of them.

    Raises SpecError for counts that cannot be.

    >>> Barrier(num_barriers=(2, 3)).count
    6
    """

    num_arrivals: int = 1
    num_barriers: int | tuple[int, ...] = 1

    def __post_init__(self) -> None:
        if not is_int(self.num_arrivals) or not 1 <= self.num_arrivals <= 1 << 16:
            raise SpecError("Barrier: num_arrivals must be a compile-time int of at least 1: the warpgroups and copies whose "
                            f"arrival completes a phase, got {self.num_arrivals!r}")
        shape = self.num_barriers if isinstance(self.num_barriers, tuple) else (self.num_barriers,)
        if not shape or not all(is_int(n) and n >= 1 for n in shape):
            raise SpecError(f"Barrier: num_barriers must be a positive compile-time int, or a tuple of them, got "
                            f"{self.num_barriers!r}")
        if np.prod(shape) > MAX_BARRIERS:
            raise SpecError(f"Barrier: num_barriers={self.num_barriers} is {np.prod(shape)} barriers, and the phases of at most "
                            f"{MAX_BARRIERS} fit the 32 bits that a warpgroup keeps for them: allocate several")

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.num_barriers) if isinstance(self.num_barriers, tuple) else (self.num_barriers,)

    @property
    def count(self) -> int:
        return int(np.prod(self.shape))

    def __str__(self) -> str:
        return f"Barrier(num_arrivals={self.num_arrivals}, num_barriers={self.num_barriers})"


@dataclass(frozen=True)
class ClusterBarrier(Barrier):
    """A `Barrier` in each CTA of a cluster: `numpipe.barrier_arrive` arrives on that of every CTA along an axis, its own too.

    collective_axes  name of an axis of the cluster (`cluster_names` of the kernel), or a tuple of such: with (x, y) a CTA's arrival
                     is for those that differ from it in x only, and those that differ in y only
    num_arrivals     what completes a phase *of each of these CTAs*: warpgroups that arrive. The mbarrier counts them in all CTAs,
                     sum of the axes' sizes - number of axes + 1 times as many.
    num_barriers     as of a `Barrier`

    `numpipe.barrier_wait` waits for its own CTA's. Copies do not arrive on it: they would tell one CTA only. Along one axis, those
    who have waited for a phase may arrive for the next; along two, others may still be missing in the phase before, and a CTA has
    to hear of them first (the simulator reports where it has not).

    Raises SpecError for counts and names that cannot be. PTX ISA, "mbarrier.arrive": .shared::cluster.

    >>> ClusterBarrier("cluster", num_barriers=2).axes
    ('cluster',)
    """

    collective_axes: str | tuple[str, ...] = ()

    def __init__(self, collective_axes: str | tuple[str, ...], num_barriers: int | tuple[int, ...] = 1,
                 num_arrivals: int = 1) -> None:
        for name, value in (("collective_axes", collective_axes), ("num_barriers", num_barriers), ("num_arrivals", num_arrivals)):
            object.__setattr__(self, name, value)
        self.__post_init__()
        _ = self.axes

    @property
    def axes(self) -> tuple[str, ...]:
        return axis_names("ClusterBarrier", self.collective_axes)

    def __str__(self) -> str:
        return f"ClusterBarrier({self.axes}, num_arrivals={self.num_arrivals}, num_barriers={self.num_barriers})"


@dataclass(frozen=True, init=False)
class RefUnion:
    """Members that share their bytes: in a kernel, a tuple of references, as many as there are members.

    A member is an `SMEM`, or a tuple of them, which lie side by side. The union is as large as its largest member. What one
    member holds is lost where another is written; that their lives do not overlap is for the kernel to see to, with a barrier
    between the last access through one and the first through the other (the simulator reports where there is none).

    >>> RefUnion(SMEM((64, 64), np.float32), (SMEM((64, 64), np.float16), SMEM((64, 64), np.float16)))
    RefUnion(SMEM((64, 64), float32), (SMEM((64, 64), float16), SMEM((64, 64), float16)))
    """

    members: tuple[Any, ...]

    def __init__(self, *members: Any) -> None:
        if len(members) < 2:
            raise SpecError(f"RefUnion takes at least 2 members, got {len(members)}")
        object.__setattr__(self, "members", members)
        for member in members:
            for part in _leaves(member):
                if not isinstance(part, SMEM):
                    raise SpecError(f"RefUnion: members are SMEM(…) or tuples of them, got {part!r}"
                                    + ("; barriers keep their bytes for the whole kernel: allocate them apart"
                                       if isinstance(part, Barrier) else ""))

    def __repr__(self) -> str:
        return f"RefUnion({', '.join(map(said, self.members))})"


def _leaves(member: Any) -> Iterator[Any]:
    if isinstance(member, tuple):
        for part in member:
            yield from _leaves(part)
    else:
        yield member


def said(kind: Any) -> str:
    """A type as messages show it."""
    return f"({', '.join(map(said, kind))})" if isinstance(kind, tuple) else str(kind)


# ---- a type as a literal: how it travels through the compiler --------------------------------------------------------
def is_allocation(value: Any) -> bool:
    """Whether a constant is a type that can be allocated, or a tuple of such."""
    if type(value) is tuple:
        return bool(value) and all(is_allocation(part) for part in value)
    return isinstance(value, (SMEM, Barrier, RefUnion))


_RECORDS: dict[str, Any] = {kind.__name__: kind for kind in (
    SMEM, Barrier, ClusterBarrier, RefUnion, TilingTransform, SwizzleTransform, TransposeTransform)}


def spelled(kind: Any) -> str:
    """A text that `parse` makes the type of again: a literal that Numba keeps, as it does not keep all nested tuples."""
    return repr(_parts(kind))


def _parts(value: Any) -> Any:
    """A type as nested tuples of literals: (name, its fields)."""
    if isinstance(value, tuple):
        return "tuple", *map(_parts, value)
    if type(value).__name__ in _RECORDS:
        return type(value).__name__, *(_parts(getattr(value, field.name)) for field in dataclasses.fields(value))
    return value.name if isinstance(value, np.dtype) else int(value) if isinstance(value, np.integer) else value


def parse(text: str) -> Any:
    """
    >>> parse(spelled(SMEM((64, 64), np.float16)))
    SMEM(shape=(64, 64), dtype=dtype('float16'), transforms=())
    """
    return _made(ast.literal_eval(text))


def _made(parts: Any) -> Any:
    if not isinstance(parts, tuple):
        return parts
    name, *values = parts[0], *map(_made, parts[1:])
    if name == "tuple":
        return tuple(values)
    kind = _RECORDS[name]
    return RefUnion(*values[0]) if kind is RefUnion else kind(**dict(zip(
        (field.name for field in dataclasses.fields(kind)), values, strict=True)))


# ---- where a type lies ----------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class SmemPlan:
    """Tiles: the first slot is `offset` bytes behind what the warpgroup has of a region."""

    kind: SMEM
    memory: Region
    offset: int

    @property
    def slots(self) -> tuple[int, ...]:
        return self.kind.shape[:-2]


@dataclass(frozen=True)
class BarrierPlan:
    """Barriers; `index` is the int32 in which a warpgroup keeps their phases."""

    kind: Barrier
    memory: Region
    index: int
    name: str
    cluster: Dims = ALONE
    groups: tuple[tuple[int, ...], ...] = ()
    """of a `ClusterBarrier`: dimensions of the cluster along which CTAs arrive for each other"""

    @property
    def peers(self) -> tuple[Dims, ...]:
        """From a CTA to those on whose barriers it arrives, itself first."""
        return shifts(self.cluster, self.groups)

    @property
    def arrivals(self) -> int:
        """That complete a phase of the mbarrier: each warp's for its warpgroup."""
        return ARRIVALS_A_WARPGROUP * self.kind.num_arrivals * len(self.peers)

    def name_of(self, copy: int, number: int) -> str:
        """One of its mbarriers in reports."""
        index = ", ".join(str(i) for i in np.unravel_index(number, self.kind.shape)) if self.kind.count > 1 else ""
        return f"barrier{f'[{index}]' * bool(index)}{f' of warpgroup {copy}' * bool(self.memory.owners)} @ {self.name}"


@dataclass(frozen=True)
class Scratch:
    """An allocation: its type, where it is written, and `tree`, the plans of its parts as they are nested.

    `memory` is that of its tiles; `what` it is for, if numpipe itself made it.
    """

    name: str
    kind: Any
    tree: Any
    memory: Region
    what: str = ""

    @property
    def barriers(self) -> list[BarrierPlan]:
        return [plan for plan in _leaves(self.tree) if isinstance(plan, BarrierPlan)]

    def has_barrier(self, address: int) -> bool:
        """Whether the mbarrier at an address is one of it."""
        return any(address in of.memory for of in self.barriers)


def nbytes(kind: Any) -> int:
    """Bytes of shared memory that tiles of a type take; barriers take theirs from the header."""
    if isinstance(kind, tuple):
        return sum(map(nbytes, kind))
    if isinstance(kind, RefUnion):
        return max(map(nbytes, kind.members))
    return kind.nbytes if isinstance(kind, SMEM) else 0


def barriers(kind: Any) -> int:
    """mbarriers of a type."""
    return sum(part.count for part in _leaves(kind) if isinstance(part, Barrier))


def allocations(kind: Any) -> int:
    """Barriers of a type, as the kernel allocates them: each of one or several mbarriers."""
    return sum(isinstance(part, Barrier) for part in _leaves(kind))


def place(kind: Any, offset: int, memory: Region, barrier: Callable[[Barrier], BarrierPlan]) -> Any:
    """The plans of a type's parts, for tiles from `offset` of a region on."""
    if isinstance(kind, tuple):
        plans = []
        for part in kind:
            plans.append(place(part, offset, memory, barrier))
            offset += nbytes(part)
        return tuple(plans)
    if isinstance(kind, RefUnion):
        return tuple(place(member, offset, memory, barrier) for member in kind.members)
    return barrier(kind) if isinstance(kind, Barrier) else SmemPlan(kind, memory, offset)
