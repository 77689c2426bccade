"""Where the rings of a kernel are in shared memory, and which of its arguments' tensor maps they copy by: what a Unit hands out."""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import numpy as np

from ..diagnostics.errors import SpecError
from ..traces.protocol import BARRIERS, MOMENTS, SlotBarrier
from .block import Block
from .budget import Region
from .cluster import ALONE, Dims, freed_by
from .copies import CopyPlan
from .layout import Layout

COUNTERS = 16  # int32 state of rings, per warpgroup
PHASES = 16  # int32 behind them: phases of the kernel's own barriers
WARPGROUP = COUNTERS + PHASES  # int32 behind those: which compute warpgroup it is (`context_cuda`)
PROFILE = WARPGROUP + 1  # int32 behind that: where its next event goes (`profiling_cuda`)
TURN = PROFILE + 4  # int32 behind that: whose turn comes next (`turns`)
SCHEDULER = TURN + 1  # int32 behind that: what a warpgroup knows of tickets (`tile_scheduler`)
STATE = SCHEDULER + 9  # int32 in all


@dataclass(frozen=True)
class ArrayArg:
    """A kernel parameter that is an array, as far as compilation depends on it.

    order: "row" (last dimension contiguous) or "col" (first). tma: whether TMA can address it. tma_store: whether TMA may
    also write it: it writes whole 16-byte chunks of a row (measured on an H200), so a row must end at a multiple of
    16 bytes, or be followed by padding of ours.
    """

    name: str
    dtype: np.dtype
    ndim: int
    order: Literal["row", "col"] = "row"
    tma: bool = True
    tma_store: bool = True
    output: bool = True
    """whether the call treats it as one: checks that it is writable, copies it back to the host"""
    workspace: bool = False
    """whether it is the kernel's own, for partial sums (`partials`)"""

    @property
    def contiguous(self) -> int:
        """Its contiguous dimension."""
        return self.ndim - 1 if self.order == "row" else 0


class BarrierPlace(NamedTuple):
    """Which of a kernel's mbarriers one is: that of a slot of a ring (`protocol.BARRIERS`), "own", of a `numpipe.Barrier`, or
    "sums", of what CTAs of a cluster exchange (`reduce_scatter`)."""

    kind: str
    plan: RingPlan | None = None
    slot: int | None = None


@dataclass(frozen=True)
class RingPlan:
    """A load ring: where its slots, barriers and counter are. Addresses are offsets in the CTA's shared memory.

    A slot has the barriers of `protocol.BARRIERS`, from `barriers` on: those of a kind for all slots, then those of the next kind.
    It is filled in `parts`: all operands together, or one after another where the body uses barriers of a kind itself (`manual`),
    to wait for each operand or to release each. Then every part has a barrier of that kind of its own.

    labels  how messages call the operands
    dims    grid dimensions, counted from the first, whose indices say which block is loaded: a slot is filled when one of them
            changes; None: all of the grid's
    cluster  CTAs of the cluster along x, y, z, which may fill each other's slots
    """

    name: str
    index: int
    slots: int
    delay: int
    args: tuple[int, ...]
    blocks: tuple[Block, ...]
    offsets: tuple[int, ...]
    stage_bytes: int
    stage_stride: int
    base: int
    barriers: int
    manual: tuple[str, ...] = ()
    private: int = 0
    """compute warpgroups that have a copy of the ring each, one behind the other; 0: they share one"""
    labels: tuple[str, ...] = ()
    dims: int | None = None
    cluster: Dims = ALONE
    written: ClassVar[bool] = False
    """whether the body writes the tiles"""
    kinds: ClassVar[tuple[SlotBarrier, ...]] = tuple(BARRIERS.values())
    numbers: ClassVar[bool] = False
    """whether its slots hold numbers, not tiles"""

    @functools.cached_property
    def layouts(self) -> tuple[Layout, ...]:
        """Of the tiles in shared memory."""
        return tuple(block.layout for block in self.blocks)

    @functools.cached_property
    def copies(self) -> tuple[CopyPlan, ...]:
        """By operand: the TMA copies of a block."""
        return tuple(block.copies(arg, offset, self.written)
                     for arg, block, offset in zip(self.args, self.blocks, self.offsets, strict=True))

    @functools.cached_property
    def memory(self) -> Region:
        """Its slots."""
        return Region(self.base, self.slots * self.stage_stride, self.private if self.private > 1 else 0)

    @functools.cached_property
    def header(self) -> Region:
        """Its barriers."""
        return Region(self.barriers, self.barrier_bytes_of_one, self.private if self.private > 1 else 0)

    @functools.cached_property
    def parts(self) -> tuple[tuple[int, ...], ...]:
        """Operands that are filled together, in the order they are filled."""
        operands = tuple(range(len(self.args)))
        return tuple((n,) for n in operands) if self.manual else (operands,)

    def parts_of(self, kind: str) -> tuple[int, ...]:
        """The parts that begin the group of operands of a barrier of this kind."""
        return tuple(range(len(self.parts))) if kind in self.manual else (0,)

    def chosen(self, parts: str, part: int, waited: tuple[int, ...] = ()) -> tuple[int, ...]:
        """The parts that `ring.each` goes through.

        "all"       every part
        "unwaited"  one for each ready barrier that nobody may have waited for, of the operands that the consumed barrier of
                    `part` frees: the body does it, and it is not sure to (`waited`)
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
        """Whether an event of the ring (`ring.note`) is of one operand, not of all that a step has."""
        of = MOMENTS[event].of
        return len(self.parts) > 1 if of == "parts" else of in self.manual

    def barrier_offset(self, kind: str, part: int) -> int:
        """Where a part's barrier of a kind in slot 0 is, from the first barrier on."""
        before = list(itertools.takewhile(lambda name: name != kind, (row.name for row in self.kinds)))
        groups = sum(len(self.parts_of(name)) for name in before) + (part if kind in self.manual else 0)
        return 8 * self.slots * groups

    def expected(self, part: int) -> int:
        """Bytes that complete the ready barrier of a part."""
        return sum(self.layouts[n].nbytes for n in self.parts[part]) if "ready" in self.manual else self.stage_bytes

    def announces(self, part: int, loaded: bool) -> bool:
        """Whether the bytes of a part's ready barrier are announced before (or after) it is loaded: see `ring.announces`."""
        if len(self.parts_of("ready")) == len(self.parts):
            return not loaded
        return loaded and part == len(self.parts) - 1

    @functools.cached_property
    def peers(self) -> tuple[tuple[Dims, ...], ...]:
        """By part: from a CTA to those that fill its slots, and whose slots it fills: itself first, alone without multicast.

        A part that shares its consumed barrier waits for, and is released to, the CTAs of all those that do.
        """
        each = "consumed" in self.manual
        return tuple(freed_by(self.cluster, [self.blocks[n] for n in (operands if each else range(len(self.args)))])
                     for operands in self.parts)

    def check_shared(self, where: str, own: RingPlan, slots: int, manual: tuple[str, ...]) -> None:
        """Raise SpecError where another pipeline's ring, `own`, cannot use this one's slots and barriers."""
        for what, have, want in (("slots", self.slots, slots), ("blocks in shared memory", spell(self.layouts), spell(own.layouts)),
                                 (f"barriers, which the body uses itself ({', '.join(BARRIERS)}),",
                                  *(tuple(kind in of for kind in BARRIERS) for of in (self.manual, manual))),
                                 ("peers in the cluster (collective_axes)", self.peers, own.peers)):
            if have != want:
                raise SpecError(f"{where}: allocations of {self.name} have other {what} than this pipeline, {own.name}: {have}, "
                                f"and it needs {want}; pipelines that share them have the same")

    def step_at(self, slot: int, phase: int) -> int:
        """The ring's step whose use of a slot is its phase number `phase`."""
        return phase * self.slots + slot

    @property
    def barrier_bytes_of_one(self) -> int:
        """Bytes of the barriers, those of one copy where warpgroups have copies."""
        return 8 * self.slots * sum(len(self.parts_of(row.name)) for row in self.kinds)


class OutPlan(RingPlan):
    """An output ring: slots that the body writes, without mbarriers (`outputs`)."""

    written, kinds = True, ()


class NumberPlan(RingPlan):
    """A ring of numbers (`number_ring`): an int32 a slot, behind the barriers; all compute warpgroups read each of them."""

    numbers = True

    @property
    def barrier_bytes_of_one(self) -> int:
        return super().barrier_bytes_of_one + -(-4 * self.slots // 8) * 8


def spell(layouts: tuple[Layout, ...]) -> str:
    """Layouts in messages."""
    return ", ".join(f"{layout.shape} of {layout.itemsize} B, rows of {layout.width} B along {layout.inner}" for layout in layouts)
