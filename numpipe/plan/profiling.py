"""Profiles: the events of a running kernel (its pipelines' steps, and regions that a user names),
and how the GPU writes them.

::

    with numpipe.region("softmax"):
        …

Each warpgroup records its own events, in one lane, without waiting for other warpgroups. Without
``CompilerParams(profile_space=n, profile_dir=path)`` a kernel contains no profiling code. On the
simulated SM a `numpipe.Trace` has the events.

On the GPU the kernel's module has `SYMBOL` in global memory, which the host fills before the first
launch: the address of a buffer in device memory (u64), CTAs that write to it (u32), events for each
of their warpgroups (u32). The buffer has a part for each such warpgroup, CTA by CTA::

    byte 0    u32  events that happened: more than there is room for are counted, not kept
         4    u32  the SM
         8    u64  %globaltimer when the warpgroup began     16  u64  %clock64 then
        24    u64  %globaltimer when it ended                32  u64  %clock64 then
        64    events of 16 bytes: u32 kind | ring << 8 | operand << 16;
              u32 step, tile or region; u64 %clock64
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from ..core.machine import current
from ..core.op import constant, context_op, op, outside
from .context import Context
from .protocol import MOMENTS

__all__ = ["region"]

SYMBOL = "np_profile"
CONTROL_BYTES = 16
PART_BYTES = 64
EVENT_BYTES = 16
KINDS = tuple(MOMENTS)
"""The kinds of events, by number."""
SAMPLED = 8
"""The number of CTAs that are recorded, the first of the grid."""

_CONTROL = struct.Struct("<QII")
_PART = struct.Struct("<IIQQQQ24x")
_EVENT = struct.Struct("<IIQ")


def control(buffer: int, ctas: int, room: int) -> bytes:
    return _CONTROL.pack(buffer, ctas, room)


def buffer_bytes(warpgroups: int, room: int, ctas: int = SAMPLED) -> int:
    """Return the size in bytes of a kernel's profile buffer with space for `room` events of each
    warpgroup."""
    return ctas * warpgroups * (PART_BYTES + EVENT_BYTES * room)


@dataclass(frozen=True)
class Moment:
    """An event. `ring` is the number of a ring, `step` a step of it, a tile or a region, `time` is
    in nanoseconds of %globaltimer."""

    kind: str
    ring: int
    operand: int
    step: int
    time: float


@dataclass(frozen=True)
class Part:
    """The events of one warpgroup of one CTA, in nanoseconds of %globaltimer; `lost` events did not
    fit."""

    cta: int
    warpgroup: int
    sm: int
    begin: float
    end: float
    moments: tuple[Moment, ...]
    lost: int


def parts(memory: bytes, warpgroups: int, room: int, ctas: int) -> list[Part]:
    """Return the parts of a profile buffer that a launch of `ctas` CTAs has written; the other
    parts hold older bytes."""
    found = []
    stride = PART_BYTES + EVENT_BYTES * room
    headers = [_PART.unpack_from(memory, at) for at in range(0, len(memory) - stride + 1, stride)]
    for cta in range(min(ctas, len(headers) // warpgroups)):
        own = headers[cta * warpgroups : (cta + 1) * warpgroups]
        time = _timer([header[2:] for header in own if header[4]])
        for number, (happened, sm, _, first, ended, last) in enumerate(own):
            if ended:
                at = (cta * warpgroups + number) * stride + PART_BYTES
                events = (
                    _EVENT.unpack_from(memory, at + index * EVENT_BYTES)
                    for index in range(min(happened, room))
                )
                moments = tuple(
                    Moment(KINDS[word & 0xFF], word >> 8 & 0xFF, word >> 16, step, time(clock))
                    for word, step, clock in events
                )
                found.append(
                    Part(cta, number, sm, time(first), time(last), moments, max(0, happened - room))
                )
    return found


def _timer(times: list[tuple[int, int, int, int]]) -> Callable[[int], float]:
    """Return the function from a CTA's %clock64, which its warpgroups share, to nanoseconds of
    %globaltimer.

    `times` are %globaltimer and %clock64 when each warpgroup began, and when it ended. One scale
    serves all warpgroups, because the timer has steps of up to 1000 ns: separate scales could put
    events of two warpgroups in the wrong order.
    """
    timer, zero = min(((began, first) for began, first, _, _ in times), default=(0, 0))
    ended, last = max(((ended, last) for _, _, ended, last in times), default=(0, 0))
    scale = (ended - timer) / (last - zero) if last > zero else 0.0
    return lambda clock: timer + (clock - zero) * scale


# ---- operations
def region(name: str) -> NoReturn:
    """Name a part of a kernel in its traces: ``with numpipe.region("softmax"):`` around statements.

    `name` is a compile-time string. Regions may be nested, and each warpgroup has its own.
    `return`, and `break` or `continue` of a loop around it, may not leave a region. Regions appear
    in traces of the GPU (`CompilerParams.profile_space`) and of the simulated SM.
    """
    raise outside("region", ', as `with numpipe.region("name"):`')


@context_op
def region_begin(np_: Context, name: str) -> None:
    current().note("region begin", region=constant("region", "name", name))


@context_op
def region_end(np_: Context, name: str) -> None:
    current().note("region end", region=name)


@context_op
def mark_tile(np_: Context, tile: Any) -> None:
    current().note("tile begin", number=int(tile))


@op
def mark_store(ref: Any, event: str) -> None:
    """Record a step of storing a register tile; the simulated SM has its own events for that."""
