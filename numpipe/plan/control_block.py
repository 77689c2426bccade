"""The byte formats that the host and a kernel of several GPUs share: the control block, a launch's
words, and the record of a wait.

The *control block* is in symmetric memory, one for each stream on each GPU; int32 words::

    0 ... 61   BEGIN       launches that each peer has begun and this GPU has not yet met: a launch
                           of rank r adds 1 to word r of every peer, and subtracts 1 from its own
                           words of its peers. The host never writes them
    62         unused
    63         LOST        1: a wait of a launch on this stream took too long. From then on every
                           wait returns at once, also in queued launches. The host never writes it
    64         GO          1: every peer has begun this launch
    65 ... 127             zeros
    128 ...    SEMAPHORES  the kernel's semaphores. With debug=True they are followed by as many for
                           each rank, which count what the kernel has added to each: word
                           SEMAPHORES + count * (1 + rank) + index

Before each launch the host clears the words from GO on.

The *launch's words* are 128 bytes of the packed parameter, after maps and counter (byte, type)::

    0    i32   the rank of this GPU
    4    i32   the number of GPUs
    8    u64   address of the record, in pinned host memory
    16   u64   longest wait for a peer, in nanoseconds of %globaltimer
    24   u64   address of this GPU's control block

They are followed by a section for each rank: its tensor maps, then the addresses of its arrays, 8
bytes each, padded to a multiple of 128.

A *record* is written by the lane that sets LOST (byte, type); its first word is written last::

    0    u32   1: it waited for a semaphore; 2: for a peer to begin
    4    i32   the rank of its GPU
    8    i32   the semaphore's index, or the peer's rank
    12   i32   the observed value
    16   i32   the value that it waited for
    20   u32   the CTA: x, y, z
    32   u32   the thread of the CTA
    36   i32   the number of the wait's place in `Image.places`; -1: none
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from ..arch.dimensions import Dim3, round_up

MOST_GPUS = 62
"""The maximum number of GPUs of a mesh."""
LOST, GO, SEMAPHORES = 63, 64, 128
WORDS_BYTES = 128
RECORD_BYTES = 64
PATIENCE = 8.0
"""Seconds that a wait for a peer may take."""
SEMAPHORE, BEGIN = 1, 2
"""Kinds of records."""

_WORDS = struct.Struct(f"<iiQQQ{WORDS_BYTES - 32}x")
_RECORD = struct.Struct(f"<I4i4Ii{RECORD_BYTES - 40}x")


def words(rank: int, gpus: int, record: int, seconds: float, block: int) -> bytes:
    """Return a launch's words. `record` and `block` are addresses, `seconds` is the longest
    wait."""
    return _WORDS.pack(rank, gpus, record, int(1e9 * seconds), block)


def section_bytes(maps: int, arrays: int) -> int:
    """Return the bytes of a rank's section in the packed parameter.

    >>> section_bytes(2, 3)
    384
    """
    return 128 * maps + round_up(8 * arrays, 128)


@dataclass(frozen=True)
class Waited:
    """A record of a wait that took too long."""

    kind: int
    rank: int
    index: int
    seen: int
    wanted: int
    cta: Dim3
    thread: int
    place: int = -1


def read(memory: bytes) -> Waited | None:
    """Return the record, or None if no wait was given up."""
    kind, rank, index, seen, wanted, x, y, z, thread, place = _RECORD.unpack(memory)
    return Waited(kind, rank, index, seen, wanted, (x, y, z), thread, place) if kind else None
