"""The CTA's shared memory: bytes, and for every byte the access that wrote it last and the accesses
that have read it since.

The map is exact: a sorted list of segments that tile the address range and split where accesses
begin and end. A write replaces all segments that it covers by one, so a ring of slots stays a
handful of segments.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..arch.dimensions import round_up
from . import conflicts, race_report
from .clocks import lacks
from .footprints import READS, WRITES
from .state import SM, Access, Warpgroup

POISON = 0xFF  # 0xFFFF is a NaN in float16 and bfloat16, so unwritten bytes do not look like zeros

_WHOLE = "write all of an output tile in every block, before it is read or stored"


@dataclass(eq=False, slots=True)
class Segment:
    """Bytes with one history: the last write, each reader's newest read since then (which covers
    its earlier ones), each warp's newest atomic since then, and the read that was to be the last.
    """

    write: Access | None
    reads: dict[Any, Access]
    last: Access | None = None
    atomics: dict[int, Access] = field(default_factory=dict)


class SharedMemory:
    """`nbytes` of poisoned bytes; `chunks` is the same memory in units of 16 bytes (an opaque
    16-byte dtype)."""

    def __init__(self, sm: SM, nbytes: int) -> None:
        self.sm = sm
        self.nbytes = nbytes
        self.bytes = np.full(round_up(nbytes, 1024), POISON, np.uint8)
        self.chunks = self.bytes.view(np.complex128)
        self._starts = [0]
        self._segments = [Segment(None, {})]

    def check_range(self, who: Warpgroup, lo: int, hi: int, what: str) -> None:
        """Raise SimulationError unless [lo, hi) lies in the CTA's shared memory."""
        if lo < 0 or hi > self.nbytes:
            raise race_report.violation(
                who,
                f"{what} touches SMEM[{lo}:{hi}), but the CTA has {self.nbytes} bytes of shared "
                "memory",
                hazard="out-of-bounds",
                span=(lo, hi),
                fix="stay within what the CTA has",
            )

    def _split(self, at: int) -> int:
        """Return the index of the segment that starts at `at`, splitting a segment if needed."""
        starts = self._starts
        i = bisect_left(starts, at)
        if i < len(starts) and starts[i] == at:
            return i
        if at >= self.nbytes:
            return len(starts)
        old = self._segments[i - 1]
        starts.insert(i, at)
        self._segments.insert(i, Segment(old.write, dict(old.reads), old.last, dict(old.atomics)))
        return i

    def _between(self, lo: int, hi: int) -> slice:
        """Return where the segments of [lo, hi) are, after splitting those that reach beyond it."""
        return slice(self._split(lo), self._split(hi))

    def read(
        self,
        access: Access,
        key: Any,
        lo: int,
        hi: int,
        known: list[int],
        asynchronous: bool,
        last: bool = False,
    ) -> None:
        """Record a read of bytes [lo, hi). Raises PipelineRace if nothing orders it after the write
        of these bytes.

        `known` is the reader's vector clock. `last`: any other read of these bytes, before they are
        written again, is an error.
        """
        self.sm.scheduler.touch_bytes(self.sm.place, lo, hi, WRITES if last else READS)
        part = self._between(lo, hi)
        unwritten = any(segment.write is None for segment in self._segments[part])
        if unwritten and race_report.slot_of(self.sm, lo) is None:
            access.agent.hold()  # others may write first
            part = self._between(lo, hi)
        for segment in self._segments[part]:
            if segment.write is None or segment.last is not None:
                since = "" if segment.last is None else f" since {segment.last.tell()}"
                raise conflicts.unwritten(
                    self.sm, access, lo, hi, since, _WHOLE if since or last else ""
                )
            earlier = (segment.write,), segment.atomics.values()
            self._check(access, lo, hi, known, asynchronous, segment, *earlier)
            before = segment.reads.get(key)
            if before is not None and access.repeats(before):
                access.again, access.agent.stale = True, (access, segment.write)
            segment.reads[key] = access
            if last:
                segment.last = access

    def update(self, access: Access, warp: int, lo: int, hi: int, known: list[int]) -> None:
        """Record an atomic on [lo, hi). Raises PipelineRace unless the warp's clock `known` covers
        the bytes' write and all reads."""
        part = self._between(lo, hi)
        for segment in self._segments[part]:
            write = segment.write
            if write is None:
                raise conflicts.unwritten(
                    self.sm,
                    access,
                    lo,
                    hi,
                    "",
                    "store initial values for the atomics, hist[...] = numpipe.full(…)",
                )
            earlier = (write,), segment.reads.values()
            self._check(access, lo, hi, known, False, segment, *earlier)
            segment.atomics[warp] = access

    def write(self, access: Access, lo: int, hi: int, known: list[int], asynchronous: bool) -> None:
        """Record a write of [lo, hi). Raises PipelineRace unless the writer's clock `known` covers
        all earlier writes and reads."""
        # an mbarrier of the entry is initialized by the warpgroup that reaches it first, and exists
        # for all
        if access.kind != "mbarrier":
            self.sm.scheduler.touch_bytes(self.sm.place, lo, hi, WRITES)
        part = self._between(lo, hi)
        for segment in self._segments[part]:
            # a reader gives a better name to the hazard than the fill that it has waited for
            earlier = segment.reads.values(), segment.atomics.values(), (segment.write,)
            self._check(access, lo, hi, known, asynchronous, segment, *earlier)
        over = self._segments[part.start].write
        if over is not access:
            access.over, access.readers = over, tuple(self._segments[part.start].reads.values())
            if over is not None:  # one is enough, and a chain of all would never be freed
                over.over, over.readers = None, ()
        self._segments[part] = [Segment(access, {})]
        self._starts[part] = [lo]
        self._merge(part.start + 1, access)
        self._merge(part.start, access)

    def _check(
        self,
        access: Access,
        lo: int,
        hi: int,
        known: list[int],
        asynchronous: bool,
        segment: Segment,
        *earlier: Iterable[Access | None],
    ) -> None:
        """Raise PipelineRace unless `access`, which knows `known`, comes after all of these
        accesses of a segment."""
        for other in itertools.chain(*earlier):
            if other is not None and lacks(
                known, other.async_needs if asynchronous else other.needs
            ):
                raise conflicts.Conflict(
                    self.sm, other, access, lo, hi, known, asynchronous, segment.write
                ).error()

    def _merge(self, i: int, access: Access) -> None:
        """Join segment i to the previous one, if one access wrote both and nobody read them."""
        if 0 < i < len(self._segments):
            left, right = self._segments[i - 1], self._segments[i]
            if (
                left.write is access
                and right.write is access
                and not (left.reads or right.reads or left.atomics or right.atomics)
            ):
                del self._segments[i], self._starts[i]

    def loads(self) -> list[Access]:
        """Return the TMA loads that wrote the present contents of shared memory."""
        return [
            each.write
            for each in self._segments
            if each.write is not None and each.write.box is not None
        ]

    def reads(self) -> list[Access]:
        """Return each reader's newest read of the present contents of shared memory."""
        return [read for segment in self._segments for read in segment.reads.values()]

    def forget(self, access: Access, lo: int, hi: int) -> None:
        """Forget the contents of [lo, hi) (an invalidated mbarrier); the next user must come after
        `access`."""
        self.sm.scheduler.touch_bytes(self.sm.place, lo, hi, WRITES)
        part = self._between(lo, hi)
        self._segments[part] = [Segment(None, {access: access})]
        self._starts[part] = [lo]
        self.bytes[lo:hi] = POISON
