"""Ordinary loads and stores by the warps of a warpgroup: the generic proxy.

PTX ISA, "Memory Consistency Model: Proxies".

Single elements, at any address, are accessed as one row of addresses per warp. The hardware orders
an atomic (PTX ISA, "red", "atom") with other atomics on the same bytes; it is ordered with loads
and stores only as these are ordered with each other.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from . import race_report, sites
from .boxes import UPDATES, Intervals, combined, intervals
from .clocks import FENCED, GENERIC
from .footprints import WRITES
from .gmem import IN_TURN
from .gmem_accesses import LOAD, STORE
from .state import Access, Warpgroup

Addresses = npt.NDArray[np.int64]


def _touch(who: Warpgroup, addresses: Addresses, nbytes: int, what: str, kind: str) -> Addresses:
    """Record the `nbytes` that each warp touches at each of its addresses, for all warps or the
    first ones. Return the addresses of the bytes."""
    who.sm.memory.check_range(who, int(addresses.min()), int(addresses.max()) + nbytes, what)
    who.elapse_moving(nbytes * addresses.size)
    note_all(who, what, kind, ((0, intervals(own, nbytes)) for own in addresses))
    return addresses[..., None] + np.arange(nbytes)


def load(who: Warpgroup, addresses: Addresses, nbytes: int, what: str) -> np.ndarray:
    where = _touch(who, addresses, nbytes, what, "read")
    return who.sm.memory.bytes[where]  # type: ignore[no-any-return]


def store(who: Warpgroup, addresses: Addresses, values: np.ndarray, what: str) -> None:
    where = _touch(who, addresses, values.shape[-1], what, "write")
    who.sm.memory.bytes[where] = values


def update(
    who: Warpgroup, addresses: Addresses, values: np.ndarray, reduction: str, what: str
) -> None:
    _touch(who, addresses, values.itemsize, what, "atomic")
    combine(who, addresses, values, reduction)


def combine(who: Warpgroup, addresses: Addresses, values: np.ndarray, reduction: str) -> None:
    """Combine each value with the element at its address, one after another. Atomics of one kind
    commute, except sums of floats, which round."""
    nbytes, how = values.itemsize, reduction if values.dtype.kind in "iub" else WRITES
    lo, hi = int(addresses.min()), int(addresses.max()) + nbytes
    who.scheduler.touch_bytes(who.place, lo, hi, how)
    elements = who.sm.memory.bytes.view(values.dtype)
    with np.errstate(all="ignore"):
        UPDATES[reduction].at(elements, addresses // nbytes, values)


@functools.lru_cache(maxsize=4096)
def _intervals(chunks: bytes, nbytes: int) -> Intervals:
    """Return the bytes that int64 chunk addresses cover. Cached, because a few patterns serve every
    tile."""
    return intervals(np.frombuffer(chunks, np.int64), nbytes)


def intervals_of(row: np.ndarray, nbytes: int = 16) -> tuple[int, Intervals]:
    """Return (first chunk, byte intervals relative to it) of one warp's chunk addresses."""
    first = int(row[0])
    return first, _intervals((row - first).tobytes(), nbytes)


def _checked(who: Warpgroup, chunks: np.ndarray, what: str, nbytes: int = 16) -> np.ndarray:
    """Return addresses of chunks of `nbytes`, one row per warp. Raises SimulationError for
    addresses outside the CTA's memory."""
    chunks = np.ascontiguousarray(chunks, np.int64)
    if chunks.size:
        who.sm.memory.check_range(who, int(chunks.min()), int(chunks.max()) + nbytes, what)
    who.elapse_moving(nbytes * chunks.size)
    return chunks


def _access(who: Warpgroup, kind: str, what: str, warp: int) -> Access:
    """Return the access of one warp. Return the same object until a field that reports show
    changes, so that adjacent
    segments can be merged."""
    epoch = who.epoch(warp)
    clocks = who.clocks
    site = sites.user_site()
    old = who.recent.get((kind, warp))
    if (
        old is not None
        and old.what == what
        and old.needs[0][1] == epoch
        and old.site == site
        and old.last_note is who.last_note
    ):
        return old
    number = who.first_warp + warp
    fenced = ((clocks.index(FENCED, number), epoch),) if kind != "read" else None
    access = who.recent[kind, warp] = Access(
        who, kind, what, ((clocks.index(GENERIC, number), epoch),), fenced
    )
    return access


def note(
    who: Warpgroup,
    what: str,
    kind: str,
    warp: int,
    known: list[int],
    first: int,
    touched: Intervals,
) -> None:
    """Record a warp's "read", "write" or "atomic" of byte intervals relative to `first`, given what
    the warp knows."""
    memory, access = who.sm.memory, _access(who, kind, what, warp)
    for lo, hi in touched:
        if kind == "write":
            memory.write(access, first + lo, first + hi, known, False)
        elif kind == "atomic":
            memory.update(access, who.first_warp + warp, first + lo, first + hi, known)
        else:
            memory.read(
                access, ("read", who.first_warp + warp), first + lo, first + hi, known, False
            )


def note_all(
    who: Warpgroup,
    what: str,
    kind: str,
    touched: Iterable[tuple[int, Intervals]],
) -> None:
    """Record an access of the executing warps, for each of them with the arguments of `note`."""
    who.breathe()
    for warp, (first, parts) in zip(who.warps(), touched, strict=False):
        note(who, what, kind, warp, who.vectors[warp].tolist(), first, parts)


def checked(
    who: Warpgroup, chunks: np.ndarray, values: np.ndarray, what: str
) -> tuple[np.ndarray, np.ndarray]:
    """Return addresses of chunks of 4 or 16 bytes, one row per warp, and the values to store there.
    Raises SimulationError for addresses outside the CTA's memory."""
    values = np.ascontiguousarray(values)
    nbytes = 4 if values.shape[-1:] == (4,) else 16
    chunks = _checked(who, chunks, what, nbytes)
    return chunks, values.view(np.float32 if nbytes == 4 else np.complex128)[..., 0]


def write_chunks(who: Warpgroup, chunks: np.ndarray, values: np.ndarray, what: str) -> None:
    start = who.time
    chunks, values = checked(who, chunks, values, what)
    if not chunks.size:
        return
    note_all(who, what, "write", map(intervals_of, chunks))
    who.sm.memory.chunks[chunks >> 4] = values
    who.record(start, who.time, "write", what=what, nbytes=16 * chunks.size)


def read_chunks(who: Warpgroup, chunks: np.ndarray, what: str) -> np.ndarray:
    chunks = _checked(who, chunks, what)
    if not chunks.size:
        return np.empty((*chunks.shape, 16), np.uint8)
    note_all(who, what, "read", map(intervals_of, chunks))
    read: np.ndarray = who.sm.memory.chunks[chunks >> 4].view(np.uint8).reshape(*chunks.shape, 16)
    return read


def _word(who: Warpgroup, address: int, operation: str, kind: str) -> np.ndarray:
    """Return the four bytes at an address that every executing warp reads or writes."""
    address = int(address)
    if address % 4:
        raise race_report.illegal(
            who, f"{operation} at SMEM[{address}]; a word is 4 bytes at a multiple of 4"
        )
    who.sm.memory.check_range(who, address, address + 4, operation)
    who.elapse_wait()
    note_all(who, operation, kind, [(address, ((0, 4),))] * 4)
    word: np.ndarray = who.sm.memory.bytes[address : address + 4]
    return word


def store_word(who: Warpgroup, address: int, value: int) -> None:
    race_report.one_lane(who, "store_word")
    _word(who, address, "store_word", "write").view(np.uint32)[0] = int(value) & 0xFFFFFFFF


def load_word(who: Warpgroup, address: int) -> int:
    return int(_word(who, address, "load_word", "read").view(np.int32)[0])


def read_array(
    who: Warpgroup, array: np.ndarray, index: tuple[slice, ...], what: str
) -> np.ndarray:
    values, start = array[index].copy(), who.time
    delay = who.gmem.link(who, array)
    who.elapse_moving(2 * values.nbytes)
    if delay:  # others issue their copies meanwhile
        who.wake(who.time + delay)
        who.switch()
    else:
        who.breathe()
    who.gmem.read(Access(who, LOAD, what, who.needs()), array, index, who.known())
    who.record(start, who.time, "read", what=f"load from {what}", nbytes=values.nbytes)
    return values


def write_array(
    who: Warpgroup,
    array: np.ndarray,
    index: tuple,
    values: np.ndarray,
    what: str,
    reduction: str = "",
) -> None:
    start, nbytes = who.time, np.asarray(values).nbytes
    who.elapse_moving(2 * nbytes)
    who.breathe()
    access = Access(who, STORE, what, who.needs())
    in_turn = reduction == "add" and getattr(who.unit, "takes_turns", False)
    kind = IN_TURN if in_turn else reduction
    who.gmem.write(access, array, _inside(access, array, index), who.known(), kind)
    array[index] = combined(reduction, array[index], values)
    who.record(start, who.time, "write", what=f"{reduction or 'store'} to {what}", nbytes=nbytes)


def scatter_array(
    who: Warpgroup,
    array: np.ndarray,
    index: tuple,
    axis: int,
    places: np.ndarray,
    values: np.ndarray,
    what: str,
) -> None:
    """Store to scattered places along a dimension, one run of neighboring places after the
    other."""
    access, size = Access(who, STORE, what, who.needs()), array.shape[axis]
    outside, order = places[(places < 0) | (places >= size)], np.argsort(places, kind="stable")
    if outside.size:
        raise race_report.violation(
            access,
            f"scattered store to {what}: index {int(outside[0])} along dimension {axis} is "
            f"outside the array's {size}; the GPU does not write there",
            hazard="out-of-bounds",
            fix=f"indices in 0…{size - 1}",
        )
    sorted_places = places[order]
    twice = sorted_places[1:][np.diff(sorted_places) == 0]
    if twice.size:
        raise race_report.violation(
            access,
            f"scattered store to {what}: index {int(twice[0])} along dimension {axis} occurs more "
            "than once, and which of its elements is stored last is undefined",
            hazard="unordered-accesses",
            fix="use indices that are all different",
        )
    for run in np.split(order, np.flatnonzero(np.diff(sorted_places) != 1) + 1):
        where = (
            *index[:axis],
            slice(int(places[run[0]]), int(places[run[-1]]) + 1),
            *index[axis + 1 :],
        )
        write_array(who, array, where, np.take(values, run, axis=axis), what)


def _inside(access: Access, array: np.ndarray, index: tuple) -> tuple[slice, ...]:
    """Return the index as slices. Raises SimulationError if it leaves the array, because no
    hardware clips ordinary accesses."""
    every: tuple = (*index, *[slice(None)] * (array.ndim - len(index)))
    found = []
    for axis, (part, size) in enumerate(zip(every, array.shape, strict=True)):
        start, stop = (
            (part.start or 0, size if part.stop is None else part.stop)
            if isinstance(part, slice)
            else (part, part + 1)
        )
        if not 0 <= start <= stop <= size:
            did = f"{access.kind} {'to' if access.kind == STORE else 'of'} {access.what}"
            raise race_report.violation(
                access,
                f"{did}: elements {start} … {stop - 1} along dimension {axis} of an array that has "
                f"{size}: ordinary {access.kind}s are not clipped; {access.kind} only what lies "
                "inside",
                hazard="out-of-bounds",
            )
        found.append(slice(int(start), int(stop)))
    return tuple(found)
