"""The byte formats in which kernels with ``CompilerParams(debug=True)`` report waits that take too
long, and indices outside their arrays, to the host.

The kernel's module has a *control block* in global memory, `SYMBOL`, which the host fills before
the first launch (byte, type)::

    0       u64   address of the records, in pinned host memory
    LIMIT   u64   the longest that a wait may take, in nanoseconds of %globaltimer
    20      u32   number of records begun
    STOPPED u64   %globaltimer when a wait exceeded the limit; 0 before. All waits return then
    36      u32   the kernel's number in this process
    PASSED  u64   %globaltimer when a wait or a test last succeeded, or a CTA began

A *record* describes a warp's wait: 64 bytes, `Record`; its first word is written last. The state of
an mbarrier is opaque in PTX, except for its pending count. On an H200 bit 63 is the parity of the
phase, and two fields count up to 0: arrivals in bits 43 … 62, bytes in bits 32 … 41, in units of
2048, rounded up.

A CTA has *words* in the header of its shared memory, `WORDS_BYTES` bytes from `Unit.barrier_room`
on::

    0       u32   1: a wait of the CTA timed out, so it omits arrivals, announcements and copies
    ASKED   u128  a bit for each mbarrier of the header: a record has its state
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from ..arch.dimensions import Dim3

SYMBOL = "np_watch"
CONTROL_BYTES = 64
RECORD_BYTES = 64
MBARRIER, OUTSIDE, SHARED, FLAG, NAN = 1, 2, 3, 5, 6
"""The first word of a record: a wait for an mbarrier, an index outside its array, a place outside a
part of shared memory (`outside_cuda`), a wait for a flag of another CTA, or a NaN that is stored.
"""
CAPACITY = 1024
"""Number of records that the host has room for; a CTA writes up to 4 per warpgroup."""
GRACE = 4_000_000_000
"""Nanoseconds after `STOPPED` in which a kernel should have ended; a later wait traps."""
SETTLING = 50_000_000
"""Nanoseconds that a warp whose wait timed out sleeps, until the CTA's copies have landed."""
LIMIT, STOPPED, PASSED = 8, 24, 40
"""Offsets in the control block."""
WORDS_BYTES, ASKED = 24, 4
"""The size of a CTA's words, and an offset in them."""
FLAG_PLACE = 0
"""The place, in `Unit.places`, that names the flags of other CTAs."""
REGISTERS, MEETING = "registers (setmaxnreg.inc)", "others at a named barrier"
"""The beginnings of the names of places, in `Unit.places`, where a wait has no time limit."""

_CONTROL = struct.Struct("<QQIIQII24x")
_RECORD = struct.Struct("<II3IIIiQ24x")


def control(records: int, limit: int, number: int) -> bytes:
    """Return a control block, given the address of the records, the longest wait in nanoseconds,
    and the kernel's number."""
    return _CONTROL.pack(records, limit, 0, 0, 0, 0, number)


@dataclass(frozen=True)
class Record:
    """A warp's unsuccessful wait for a phase of the mbarrier at `address`, an offset in the CTA's
    dynamic shared memory. `state` is what an arrival there returned, 0 if there was none.

    For an index outside its array (`kind` OUTSIDE), `address` is the number of its place
    (`Unit.places`), `phase` the index, and `state` the array's size, with the dimension in the bits
    from 32 on. For a place in shared memory (`kind` SHARED), the start of a part of a tile, or an
    index of slots, barriers or elements, `state` has the last valid place.

    For a wait on a flag (FLAG), `address` is the number of the workspace's name in these places,
    and `phase` the part.

    For a NaN that is stored (NAN), `address` is the number of the store's line in these places,
    `phase` the row in the tile, or the element of a vector, and `state` the column, with the tile's
    dimensions in the bits from 32 on.
    """

    kernel: int
    cta: Dim3
    warp: int
    """in the CTA"""
    address: int
    phase: int
    state: int = 0
    kind: int = 1

    @property
    def warpgroup(self) -> int:
        return self.warp // 4

    @property
    def parity(self) -> int:
        """The parity of the current phase."""
        return self.state >> 63

    @property
    def pending(self) -> int:
        """The number of arrivals that the phase lacked before this one."""
        return -(self.state >> 43) & 0xFFFFF

    @property
    def missing_bytes(self) -> int:
        """The bytes that the phase lacked, rounded up to a multiple of 2048."""
        return 2048 * (-(self.state >> 32) & 0x3FF)


def records(memory: bytes) -> list[Record]:
    """Return the records that are complete."""
    return [
        Record(kernel, (x, y, z), thread // 32, address, phase, state, kind)
        for kind, kernel, x, y, z, thread, address, phase, state in _RECORD.iter_unpack(memory)
        if kind
    ]
