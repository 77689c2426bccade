"""Types that a kernel may allocate in shared memory in addition to its rings: tiles, barriers, and
unions.

::

    numpipe.SMEM((2, 64, 64), np.float16)      two slots of a 64 x 64 tile, with the layout of a
                                               pipeline's block
    numpipe.Barrier(num_barriers=2)            two mbarriers
    numpipe.ClusterBarrier("cluster")          an mbarrier in each CTA of a cluster, on which all of
                                               them arrive
    numpipe.RefUnion(one, (another, third))    the same bytes as `one`, and as `another` and `third`
                                               together

These are types: `numpipe.scratch` and `numpipe.run_scoped` make the values in a kernel. A type is a
compile-time constant, so it may be written in the kernel or in a module, or be a field of a Static.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, get_args

import numpy as np

from ..arch.dimensions import Ints, round_up
from ..arch.dtypes import ELEMENTS
from ..diagnostics.argument_checks import (
    FLAG,
    POSITIVE,
    Rule,
    as_tuple,
    each,
    element_type,
    require,
    whole,
)
from ..diagnostics.errors import SpecError
from .budget import Region
from .cluster_ranks import ALONE, Dims, shifts
from .layout import ATOM, Layout, block_layout, flat_layout
from .nested_tuples import leaves
from .specs import axis_names
from .transforms import Transform
from .transforms import check as check_transforms

__all__ = ["SMEM", "Barrier", "ClusterBarrier", "RefUnion"]

SIDES = Rule(
    ("a tuple of positive compile-time ints",),
    lambda sides: isinstance(sides, tuple) and sides != () and each(POSITIVE).holds(sides),
)
SHAPE = Rule((f"{SIDES}, (n,) or (*slots, rows, columns)",), SIDES.holds)
BARRIER = {"num_arrivals": whole(1, 1 << 16), "num_barriers": POSITIVE | SIDES}
MAX_BARRIERS = 32
"""Barriers of one `Barrier`, whose parities are the bits of an int32."""
ARRIVALS_A_WARPGROUP = 4
"""Lane 0 of each warp arrives for its warp."""


@dataclass(frozen=True)
class SMEM:
    """A tile in shared memory, or slots of one: `shape` ends in the tile's rows and columns.

    shape       compile-time ints. (n,) is a vector with contiguous elements. In longer shapes, the
                dimensions before the last two are slots: ``buffer.at[slot]``, with a run-time
                `slot`, is a tile. A row is a multiple of 16 bytes, and the number of rows is a
                multiple of 8 (the layout of a pipeline's blocks: `layout`); a tile begins at a
                multiple of 1024 bytes.
    dtype       element type
    transforms  the layout of a tile in shared memory, as in `BlockSpec`; missing transforms are
                inferred

    Raises SpecError for shapes that have no such layout.

    >>> SMEM((2, 64, 32), np.float16).slots
    2
    """

    shape: Ints
    dtype: Any
    memory_space: ClassVar[str] = "SMEM"
    """Read by ``BlockSpec(…, memory_space=numpipe.SMEM)``, where the class itself names the
    space."""
    transforms: tuple[Transform, ...] = ()

    def __post_init__(self) -> None:
        if isinstance(self.shape, list):
            object.__setattr__(self, "shape", tuple(self.shape))
        require("SMEM", vars(self), shape=SHAPE)
        dtype = element_type("SMEM", self.dtype)
        if dtype.name not in ELEMENTS or not dtype.isnative:
            raise SpecError(
                f"SMEM: dtype must be one that arrays of a kernel have, {', '.join(ELEMENTS)}, "
                f"got {dtype!r}"
            )
        object.__setattr__(self, "shape", tuple(map(int, self.shape)))
        object.__setattr__(self, "dtype", dtype)
        check_transforms(self.transforms, "SMEM")
        _ = self.layout

    @functools.cached_property
    def layout(self) -> Layout:
        """The layout of one tile."""
        if len(self.shape) == 1:
            return flat_layout(
                self.shape[0], self.dtype, f"SMEM: vector {self.shape}", self.transforms
            )
        return block_layout(
            (self.shape[-2], self.shape[-1]),
            1,
            self.dtype,
            f"SMEM: tile {self.shape[-2:]}",
            self.transforms,
        )

    @property
    def slots(self) -> int:
        return int(np.prod(self.shape[:-2]))

    @property
    def stride(self) -> int:
        """Bytes from the beginning of one slot to the beginning of the next."""
        return round_up(self.layout.nbytes, ATOM)

    @property
    def nbytes(self) -> int:
        return self.slots * self.stride

    def __repr__(self) -> str:
        return f"SMEM({self.shape}, {self.dtype}{f', {self.transforms}' * bool(self.transforms)})"


@dataclass(frozen=True)
class Barrier:
    """One or several mbarriers in shared memory, for `numpipe.barrier_arrive` and
    `numpipe.barrier_wait`.

    num_arrivals  the number of arrivals that complete a phase, each by a compute warpgroup, or by a
                  `copy_gmem_to_smem`, whose bytes must land too
    num_barriers  the number of barriers, at most 32: an int, or a tuple for more dimensions.
                  ``barriers.at[slot]`` is one of them.

    Raises SpecError for invalid counts.

    >>> Barrier(num_barriers=(2, 3)).count
    6
    """

    num_arrivals: int = 1
    num_barriers: int | Ints = 1

    def __post_init__(self) -> None:
        require("Barrier", vars(self), **BARRIER)
        if self.count > MAX_BARRIERS:
            raise SpecError(
                f"Barrier: num_barriers={self.num_barriers} is {self.count} barriers, and the "
                f"phases of at most {MAX_BARRIERS} fit the 32 bits that a warpgroup keeps for "
                "them: allocate several"
            )

    @property
    def shape(self) -> Ints:
        return as_tuple(self.num_barriers)

    @property
    def count(self) -> int:
        return int(np.prod(self.shape))


@dataclass(frozen=True)
class ClusterBarrier(Barrier):
    """A `Barrier` in each CTA of a cluster: `numpipe.barrier_arrive` arrives on the barrier of
    every CTA along an axis, including its own.

    collective_axes  name of an axis of the cluster (`cluster_names` of the kernel), or a tuple of
                     names: with (x, y), a CTA arrives on the CTAs that differ from it in x only,
                     and on those that differ in y only
    num_arrivals     the number of arriving warpgroups *of each of these CTAs* that complete a
                     phase. The mbarrier counts the warpgroups of all CTAs: num_arrivals times (sum
                     of the axes' sizes - number of axes + 1).
    num_barriers     as in `Barrier`
    leader_tracked   True: CTAs arrive only on the *leader*, the first CTA along all the axes, and
                     num_arrivals of each CTA complete its phase. The other CTAs do not wait; before
                     they arrive again, the leader must signal them.
    orders_stores    True: what was stored to shared memory before an arrival can be loaded by other
                     CTAs after the wait (`numpipe.cluster_ref`); an arrival is then a fence of the
                     whole GPU. False: arrivals only signal that data has been read.

    `numpipe.barrier_wait` waits for the CTA's own barrier. Copies cannot arrive on it, because they
    would signal only one CTA. Along one axis, a CTA that has waited for a phase may arrive for the
    next. Along two axes, other CTAs may not have completed the previous phase, and must signal the
    CTA first (the simulator reports violations).

    Raises SpecError for invalid counts and names. PTX ISA, "mbarrier.arrive": .shared::cluster.

    >>> ClusterBarrier("cluster", num_barriers=2).axes
    ('cluster',)
    """

    collective_axes: str | tuple[str, ...] = ()
    leader_tracked: bool = False
    orders_stores: bool = False

    def __init__(
        self,
        collective_axes: str | tuple[str, ...],
        num_barriers: int | Ints = 1,
        num_arrivals: int = 1,
        leader_tracked: bool = False,
        orders_stores: bool = False,
    ) -> None:
        super().__init__(num_arrivals, num_barriers)
        for name in ("leader_tracked", "orders_stores", "collective_axes"):
            object.__setattr__(self, name, locals()[name])
        require("ClusterBarrier", vars(self), leader_tracked=FLAG, orders_stores=FLAG)
        _ = self.axes

    @property
    def axes(self) -> tuple[str, ...]:
        return axis_names("ClusterBarrier", self.collective_axes)

    def __repr__(self) -> str:
        return (
            f"ClusterBarrier({self.collective_axes!r}, num_barriers={self.num_barriers}, "
            f"num_arrivals={self.num_arrivals}"
            f"{', leader_tracked=True' * self.leader_tracked}"
            f"{', orders_stores=True' * self.orders_stores})"
        )


@dataclass(frozen=True, init=False)
class RefUnion:
    """Members that share the same bytes: in a kernel, a tuple of references, one per member.

    A member is an `SMEM`, or a tuple of them, which are placed one after the other. The union is as
    large as its largest member. Writing one member destroys the contents of the others. The kernel
    must separate their uses with a barrier between the last access through one member and the first
    access through another (the simulator reports missing barriers).

    >>> RefUnion(
    ...     SMEM((64, 64), np.float32), (SMEM((64, 64), np.float16), SMEM((64, 64), np.float16))
    ... )
    RefUnion(SMEM((64, 64), float32), (SMEM((64, 64), float16), SMEM((64, 64), float16)))
    """

    members: tuple

    def __init__(self, *members: Any) -> None:
        if len(members) < 2:
            raise SpecError(f"RefUnion takes at least 2 members, got {len(members)}")
        object.__setattr__(self, "members", members)
        for member in members:
            for part in leaves(member):
                if not isinstance(part, SMEM):
                    raise SpecError(
                        f"RefUnion: members are SMEM(…) or tuples of them, got {part!r}"
                        + (
                            "; barriers keep their bytes for the whole kernel: allocate them apart"
                            if isinstance(part, Barrier)
                            else ""
                        )
                    )

    def __repr__(self) -> str:
        return f"RefUnion({', '.join(map(repr, self.members))})"


# ---- a type as a literal: how it travels through the compiler ------------------------------------
def is_allocation(value: Any) -> bool:
    """Return whether a constant is a type that can be allocated, or a tuple of such types."""
    if type(value) is tuple:
        return bool(value) and all(map(is_allocation, value))
    return isinstance(value, (SMEM, Barrier, RefUnion))


_NAMES: dict[str, Any] = {
    "__builtins__": {},
    "np": np,
    **{name: element.dtype for name, element in ELEMENTS.items()},
    **{
        kind.__name__: kind
        for kind in (SMEM, Barrier, ClusterBarrier, RefUnion, *get_args(Transform))
    },
}
"""The names in the `repr` of a type."""


@functools.cache
def parse(text: str) -> Any:
    """Return the type with this `repr`. Types are passed as text, because Numba keeps string
    literals but not all nested tuples.

    >>> parse(repr(SMEM((64, 64), np.float16)))
    SMEM((64, 64), float16)
    """
    return eval(text, dict(_NAMES))


# ---- where an allocation lies --------------------------------------------------------------------
@dataclass(frozen=True)
class SmemPlan:
    """The place of tiles: the first slot is `offset` bytes after the beginning of the warpgroup's
    bytes in `memory`."""

    kind: SMEM
    memory: Region
    offset: int

    @property
    def slots(self) -> Ints:
        return self.kind.shape[:-2]


@dataclass(frozen=True)
class BarrierPlan:
    """The location of a group of barriers. `index` is the number of the int32 in which a warpgroup
    keeps their phase parities."""

    kind: Barrier
    memory: Region
    index: int
    name: str
    cluster: Dims = ALONE
    groups: tuple[Ints, ...] = ()
    """Dimensions of the cluster along which CTAs arrive on each other's `ClusterBarrier`."""

    @property
    def peers(self) -> tuple[Dims, ...]:
        """The shifts from a CTA to the CTAs that it shares the barrier with, itself first. It
        arrives on their barriers, unless one CTA leads (`leads`)."""
        return shifts(self.cluster, self.groups)

    @property
    def wide(self) -> bool:
        """Whether arrivals and waits have cluster scope, so that other CTAs may load what was
        stored before."""
        return len(self.peers) > 1 and getattr(self.kind, "orders_stores", False)

    @property
    def led(self) -> Ints:
        """The cluster's dimensions along which the first CTA's barrier counts the arrivals of all
        CTAs; () if each CTA's barrier does."""
        return self.groups[0] if self.groups and getattr(self.kind, "leader_tracked", False) else ()

    @property
    def arrivals(self) -> int:
        """The number of arrivals that complete a phase of the mbarrier: each warp arrives for its
        warpgroup."""
        return ARRIVALS_A_WARPGROUP * self.kind.num_arrivals * len(self.peers)

    def name_of(self, copy: int, number: int) -> str:
        """Return the name that reports use for mbarrier `number` of the `copy`-th warpgroup."""
        index = (
            ", ".join(str(i) for i in np.unravel_index(number, self.kind.shape))
            if self.kind.count > 1
            else ""
        )
        owner = f" of warpgroup {copy}" if self.memory.owners else ""
        return f"barrier{f'[{index}]' * bool(index)}{owner} @ {self.name}"


@dataclass(frozen=True)
class Scratch:
    """An allocation of a kernel: its type `kind`, and `tree`, the plans of its parts, nested like
    the type.

    `memory` holds its tiles. `what` says what numpipe needs it for, if the kernel did not request
    it.
    """

    name: str
    kind: Any
    tree: Any
    memory: Region
    what: str = ""

    @property
    def barriers(self) -> list[BarrierPlan]:
        return [plan for plan in leaves(self.tree) if isinstance(plan, BarrierPlan)]


def nbytes(kind: Any) -> int:
    """Return the bytes that the tiles of a type take; its barriers are in the header."""
    if isinstance(kind, tuple):
        return sum(map(nbytes, kind))
    if isinstance(kind, RefUnion):
        return max(map(nbytes, kind.members))
    return kind.nbytes if isinstance(kind, SMEM) else 0


def place(kind: Any, offset: int, memory: Region, barriers: Iterator[BarrierPlan]) -> Any:
    """Return the plans of a type's parts. Tiles begin at `offset` of a region; the plans of
    barriers are taken from `barriers` in order."""
    if isinstance(kind, tuple):
        plans = []
        for part in kind:
            plans.append(place(part, offset, memory, barriers))
            offset += nbytes(part)
        return tuple(plans)
    if isinstance(kind, RefUnion):
        return tuple(place(member, offset, memory, barriers) for member in kind.members)
    return next(barriers) if isinstance(kind, Barrier) else SmemPlan(kind, memory, offset)
