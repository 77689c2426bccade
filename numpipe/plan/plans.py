"""Plans that a Unit hands out: the place of a ring in shared memory, its barriers, and how its
slots are copied."""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, NamedTuple

import numpy as np

from ..arch.dimensions import Ints, Names, round_up
from ..arch.dtypes import INT32
from ..diagnostics.errors import SpecError
from .block import Block
from .budget import Region
from .cluster_ranks import ALONE, Dims, shifts
from .copy_plans import CopyPlan
from .layout import Layout
from .protocol import BARRIERS, MOMENTS, SlotBarrier

# int32 words of a warpgroup's state, one group after another. Each name but STATE and the first two
# is the beginning of a group.
COUNTERS = 16  # step counters of rings
PHASES = 16  # parities of the barriers that the kernel allocates
WARPGROUP = COUNTERS + PHASES  # the number of the compute warpgroup (`context_cuda`)
PROFILE = WARPGROUP + 1  # where its next event goes (`profiling_cuda`)
TURN = PROFILE + 4  # whose turn comes next (`pingpong`)
SCHEDULER = TURN + 1  # its work index (`tile_scheduler`)
BEGUN = SCHEDULER + 9  # whether it knows that the launches of all peers have begun (`peer_arrays`)
# the number of its GPU in the mesh, and the address of the packed parameter, in two words
GPU = BEGUN + 1
STATE = GPU + 3  # the number of words


@dataclass(frozen=True)
class ArrayArg:
    """The properties of a kernel's array parameter that its compilation depends on.

    order      "row" (last dimension contiguous) or "col" (first)
    tma        whether TMA can address it
    tma_store  whether TMA may also write it, in whole 16-byte chunks (measured on an H200): its
               rows (columns, if it is column-major) end at a multiple of 16 bytes, or are followed
               by padding that numpipe added
    output     whether the call treats it as an output: checks that it is writable, copies it back
               to the host
    workspace  whether it is the kernel's own workspace, for partial sums (`partials`)
    semaphores whether it is the kernel's own, and holds the counters by which the GPUs of a mesh
               wait for each other
    sizes      its size along each dimension that is a compile-time constant, and None along the
               others; empty if all are run-time values
    adjacent   whether the size along the last dimension is a constant, and the elements along it
               are adjacent in memory
    dense      whether its rows are known to follow each other without gaps, too
    """

    name: str
    dtype: np.dtype
    ndim: int
    order: Literal["row", "col"] = "row"
    tma: bool = True
    tma_store: bool = True
    output: bool = True
    workspace: bool = False
    semaphores: bool = False
    sizes: tuple[int | None, ...] = ()
    adjacent: bool = False
    dense: bool = False

    @property
    def own(self) -> bool:
        """Whether numpipe passes it, rather than the caller."""
        return self.workspace or self.semaphores

    @functools.cached_property
    def flat(self) -> ArrayArg:
        """The same array, contiguous, with a single dimension."""
        return replace(self, ndim=1, order="row", tma=True, tma_store=False, sizes=(), dense=False)

    @functools.cached_property
    def words(self) -> ArrayArg:
        """The same array as words of 32 bits, of one dimension."""
        return replace(self.flat, dtype=INT32, tma=False)

    def check_plain(self, what: str) -> None:
        """Raise SpecError for semaphores, which are not an array of numbers; `what` begins the
        message."""
        if self.semaphores:
            raise SpecError(
                f"{what}: semaphores are signalled and waited for, "
                f"numpipe.signal({self.name}.at[i], rank) and numpipe.wait({self.name}.at[i], "
                "value), and nothing else: pass an array for numbers"
            )

    @property
    def contiguous(self) -> int:
        """The number of its contiguous dimension."""
        return self.ndim - 1 if self.order == "row" else 0


class BarrierPlace(NamedTuple):
    """The place of an mbarrier in a kernel. `kind` is one of `protocol.BARRIERS`, for a slot of a
    ring; "own", for a `numpipe.Barrier`; or "sums", for partial sums that CTAs of a cluster
    exchange (`cluster_sums`)."""

    kind: str
    plan: RingPlan | None = None
    slot: int | None = None


@dataclass(frozen=True)
class RingPlan:
    """A load ring: the place of its slots, barriers and counter. Addresses are offsets in the CTA's
    shared memory.

    A slot has the barriers of `protocol.BARRIERS`, starting at `barriers`: one kind for all slots,
    then the next kind. It is filled in `parts`: all operands together, or one after another if the
    body itself uses barriers of a kind (`manual`), to wait for each operand or to release each.
    Then every part has its own barrier of that kind.

    private  the number of compute warpgroups that have a copy of the ring each, one after the
             other; 0 if they share one
    labels   names of the operands in messages
    dims     the first dimensions of the grid, whose indices determine the block that is loaded: a
             slot is filled when one of them changes; None: all of them
    cluster  CTAs of the cluster along x, y, z, which may fill each other's slots
    written  whether the body writes the tiles
    numbers  whether its slots hold numbers, not tiles
    """

    name: str
    index: int
    slots: int
    delay: int
    args: Ints
    blocks: tuple[Block, ...]
    offsets: Ints
    stage_bytes: int
    stage_stride: int
    base: int
    barriers: int
    manual: Names = ()
    private: int = 0
    labels: Names = ()
    dims: int | None = None
    cluster: Dims = ALONE
    written: ClassVar[bool] = False
    numbers: ClassVar[bool] = False
    kinds: ClassVar[tuple[SlotBarrier, ...]] = tuple(BARRIERS.values())

    @functools.cached_property
    def layouts(self) -> tuple[Layout, ...]:
        return tuple(block.layout for block in self.blocks)

    @functools.cached_property
    def copies(self) -> tuple[CopyPlan, ...]:
        return tuple(
            block.copies(arg, offset, self.written)
            for arg, block, offset in zip(self.args, self.blocks, self.offsets, strict=True)
        )

    @functools.cached_property
    def memory(self) -> Region:
        """The bytes of its slots."""
        return Region(
            self.base, self.slots * self.stage_stride, self.private if self.private > 1 else 0
        )

    @functools.cached_property
    def header(self) -> Region:
        """The bytes of its barriers."""
        return Region(
            self.barriers, self.barrier_bytes_of_one, self.private if self.private > 1 else 0
        )

    @functools.cached_property
    def parts(self) -> tuple[Ints, ...]:
        """The operands that are filled together, in the order in which they are filled."""
        operands = tuple(range(len(self.args)))
        return tuple((n,) for n in operands) if self.manual else (operands,)

    def parts_of(self, kind: str) -> Ints:
        """Return the first part of each barrier of this kind: every part if each has a barrier,
        else part 0."""
        return tuple(range(len(self.parts))) if kind in self.manual else (0,)

    def chosen(self, parts: str, part: int, waited: Ints = ()) -> Ints:
        """Return the parts that `ring.each` iterates over.

        "all"       every part
        "unwaited"  one for each ready barrier of the operands that the consumed barrier of `part`
                    frees, if the body must wait for it and is not certain to (`waited`)
        a kind      one for each barrier of the kind
        """
        if parts == "all":
            return tuple(range(len(self.parts)))
        if parts != "unwaited":
            return self.parts_of(parts)
        if "ready" not in self.manual:
            return ()
        freed = (part,) if "consumed" in self.manual else self.parts_of("ready")
        return tuple(number for number in freed if number not in waited)

    def one_by_one(self, event: str) -> bool:
        """Return whether an event of the ring (`ring.note`) concerns one operand, not all operands
        of a step."""
        of = MOMENTS[event].of
        return len(self.parts) > 1 if of == "parts" else of in self.manual

    def barrier_offset(self, kind: str, part: int) -> int:
        """Return the offset of a part's barrier of a kind in slot 0 from the first barrier."""
        before = itertools.takewhile(lambda row: row.name != kind, self.kinds)
        groups = sum(len(self.parts_of(row.name)) for row in before) + (
            part if kind in self.manual else 0
        )
        return 8 * self.slots * groups

    def expected(self, part: int) -> int:
        """Return the bytes that complete the ready barrier of a part."""
        return (
            sum(self.layouts[n].nbytes for n in self.parts[part])
            if "ready" in self.manual
            else self.stage_bytes
        )

    def announces(self, part: int, loaded: bool) -> bool:
        """Return whether a ready barrier's bytes are announced before a part is loaded, or after it
        (`loaded`): see `ring.announces`."""
        if len(self.parts_of("ready")) == len(self.parts):
            return not loaded
        return loaded and part == len(self.parts) - 1

    @functools.cached_property
    def peers(self) -> tuple[tuple[Dims, ...], ...]:
        """For each part, the shifts from a CTA to the CTAs that fill its slots, and whose slots it
        fills, itself first.

        Parts that share a consumed barrier wait for, and are released to, the same CTAs.
        """
        groups = (
            self.parts if "consumed" in self.manual else [range(len(self.args))] * len(self.parts)
        )
        return tuple(
            shifts(self.cluster, tuple(sorted({self.blocks[n].along for n in operands})))
            for operands in groups
        )

    def check_shared(self, where: str, other: RingPlan, slots: int, manual: Names) -> None:
        """Raise SpecError if another pipeline's ring, `other`, cannot use this one's slots and
        barriers."""

        def blocks(plan: RingPlan) -> str:
            return ", ".join(
                f"{of.shape} of {of.itemsize} B, rows of {of.width} B along {of.inner}"
                for of in plan.layouts
            )

        for what, have, want in (
            ("slots", self.slots, slots),
            ("blocks in shared memory", blocks(self), blocks(other)),
            (
                f"barriers, which the body uses itself ({', '.join(BARRIERS)}),",
                *(tuple(kind in of for kind in BARRIERS) for of in (self.manual, manual)),
            ),
            ("peers in the cluster (collective_axes)", self.peers, other.peers),
        ):
            if have != want:
                raise SpecError(
                    f"{where}: allocations of {self.name} have other {what} than this pipeline, "
                    f"{other.name}: {have}, and it needs {want}; pipelines that share them have "
                    "the same"
                )

    def step_at(self, slot: int, phase: int) -> int:
        """Return the step that uses a slot in its phase number `phase`."""
        return phase * self.slots + slot

    @property
    def barrier_bytes_of_one(self) -> int:
        """Bytes of the barriers of one copy of the ring."""
        return 8 * self.slots * sum(len(self.parts_of(row.name)) for row in self.kinds)


class OutPlan(RingPlan):
    """An output ring: slots that the body writes, without mbarriers (`pipeline_outputs`)."""

    written, kinds = True, ()


class NumberPlan(RingPlan):
    """A ring of numbers (`number_ring`): an int32 in each slot, after the barriers. Every compute
    warpgroup reads all of them."""

    numbers = True

    @property
    def barrier_bytes_of_one(self) -> int:
        return super().barrier_bytes_of_one + round_up(4 * self.slots, 8)
