"""What a kernel built with ``CompilerParams(profile_space=n, profile_dir=path)`` writes, byte by byte.

In its module's global memory the kernel has `SYMBOL`, which the host fills before the first launch: the address of a buffer in
device memory (u64), CTAs that write to it (u32), events for each of their warpgroups (u32). The buffer has a part for each such
warpgroup, CTA by CTA::

    byte 0    u32  events that happened: more than there is room for are counted, not kept
         4    u32  the SM
         8    u64  %globaltimer when the warpgroup began     16  u64  %clock64 then
        24    u64  %globaltimer when it ended                32  u64  %clock64 then
        64    events of 16 bytes: u32 kind | ring << 8 | operand << 16; u32 step, tile or region; u64 %clock64
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

SYMBOL = "np_profile"
CONTROL_BYTES = 16
PART_BYTES = 64
EVENT_BYTES = 16
KINDS = ("fill", "issue", "issued", "wait", "compute", "release", "store", "begin", "store begin", "store end", "tile",
         "region begin", "region end")
"""what an event is, by its number"""
SAMPLED = 8
"""CTAs that are recorded, the first of the grid"""

_CONTROL = struct.Struct("<QII")
_PART = struct.Struct("<IIQQQQ24x")
_EVENT = struct.Struct("<IIQ")


def control(buffer: int, ctas: int, room: int) -> bytes:
    return _CONTROL.pack(buffer, ctas, room)


def buffer_bytes(warpgroups: int, room: int, ctas: int = SAMPLED) -> int:
    """Of a kernel with so many warpgroups a CTA and events a warpgroup."""
    return ctas * warpgroups * (PART_BYTES + EVENT_BYTES * room)


@dataclass(frozen=True)
class Moment:
    """An event: `ring` is the number of a ring, `step` a step of it, a tile or a region, `time` in nanoseconds of %globaltimer."""

    kind: str
    ring: int
    operand: int
    step: int
    time: float


@dataclass(frozen=True)
class Part:
    """What one warpgroup of one CTA has recorded; `lost` events had no room."""

    cta: int
    warpgroup: int
    sm: int
    begin: int
    end: int
    moments: tuple[Moment, ...]
    lost: int


def parts(memory: bytes, warpgroups: int, room: int) -> list[Part]:
    """The parts of a buffer, of CTAs that ran."""
    found = []
    stride = PART_BYTES + EVENT_BYTES * room
    for number in range(len(memory) // stride):
        happened, sm, began, first, ended, last = _PART.unpack_from(memory, number * stride)
        if not ended:
            continue
        scale = (ended - began) / (last - first) if last > first else 0.0  # SMs have clocks of their own; the timer is everybody's
        moments = []
        for index in range(min(happened, room)):
            word, step, clock = _EVENT.unpack_from(memory, number * stride + PART_BYTES + index * EVENT_BYTES)
            moments.append(Moment(KINDS[word & 0xFF], word >> 8 & 0xFF, word >> 16, step, began + (clock - first) * scale))
        found.append(Part(number // warpgroups, number % warpgroups, sm, began, ended, tuple(moments), max(0, happened - room)))
    return found
