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

from ..traces.protocol import MOMENTS

SYMBOL = "np_profile"
CONTROL_BYTES = 16
PART_BYTES = 64
EVENT_BYTES = 16
KINDS = tuple(MOMENTS)
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
    """What one warpgroup of one CTA has recorded, in nanoseconds of %globaltimer; `lost` events had no room."""

    cta: int
    warpgroup: int
    sm: int
    begin: float
    end: float
    moments: tuple[Moment, ...]
    lost: int


def parts(memory: bytes, warpgroups: int, room: int, ctas: int) -> list[Part]:
    """The parts of a buffer after a launch of so many CTAs; those of others hold whatever was there before."""
    found = []
    stride = PART_BYTES + EVENT_BYTES * room
    headers = [_PART.unpack_from(memory, at) for at in range(0, len(memory) - stride + 1, stride)]
    for cta in range(min(ctas, len(headers) // warpgroups)):
        own = headers[cta * warpgroups:(cta + 1) * warpgroups]
        clocks = _Clocks([header[2:] for header in own if header[4]])
        for number, (happened, sm, _, first, ended, last) in enumerate(own):
            if ended:
                at = (cta * warpgroups + number) * stride + PART_BYTES
                events = (_EVENT.unpack_from(memory, at + index * EVENT_BYTES) for index in range(min(happened, room)))
                moments = tuple(Moment(KINDS[word & 0xFF], word >> 8 & 0xFF, word >> 16, step, clocks.time(clock))
                                for word, step, clock in events)
                found.append(Part(cta, number, sm, clocks.time(first), clocks.time(last), moments, max(0, happened - room)))
    return found


class _Clocks:
    """From a CTA's %clock64, which all its warpgroups share, to nanoseconds of %globaltimer.

    One scale for all of them: the timer is everybody's, but steps by up to 1000 ns, so that scales of their own would tell what
    warpgroups did to each other in a wrong order.
    """

    def __init__(self, times: list[tuple[int, int, int, int]]) -> None:
        """`times`: %globaltimer and %clock64 when each warpgroup began, and when it ended."""
        self.timer, self.zero = min(((began, first) for began, first, _, _ in times), default=(0, 0))
        ended, last = max(((ended, last) for _, _, ended, last in times), default=(0, 0))
        self.scale = (ended - self.timer) / (last - self.zero) if last > self.zero else 0.0

    def time(self, clock: int) -> float:
        return self.timer + (clock - self.zero) * self.scale
