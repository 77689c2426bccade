"""Footprints: what a step of a schedule touches that other steps touch too, which determines the
steps that do not commute.

A step is the work of a task of the scheduler until it yields. Two steps are *independent* if both
orders leave the same state and let the same tasks continue; steps that are not known to be
independent are dependent. A thing is touched in one of these ways:

=========  =========================================================================================
ARRIVE     contributes to the end of a use (an mbarrier's phase, a named barrier's or the cluster
           barrier's use), whose number is `epoch`. Arrivals of one use commute; announced bytes and
           copies count too. Arrivals of different uses do not commute. So two that could both be
           next commute if there is `room` for the `amount` of both, and neither ends the use alone
AWAIT      continues because a use has ended. Each arrival of this use comes before. Arrivals of
           other uses commute with it if nothing is wrong; otherwise the simulated SM reports the
           wait, or the arrival, and a step that fails commutes with nothing (`failed`). Whether the
           arrival that ends the next use fails depends on the waits before it, so the waits for a
           use are a thing of their own, which it tests (`state.Mbarrier.waits_of`)
TEST       asks whether a use has ended: every arrival may change the answer
WRITE      anything else
=========  =========================================================================================

Bytes of shared memory and elements of arrays are read, written, or updated by atomics of one kind,
which commute.
"""

from __future__ import annotations

from typing import Any, TypeAlias

ARRIVE, AWAIT, TEST, WRITE = range(4)
READS, WRITES = "r", "w"
"""How memory is touched; any other word names a kind of atomics that commute."""
Thing: TypeAlias = tuple
Amount: TypeAlias = tuple[int, int]
"""Arrivals and bytes, or registers."""
Touched: TypeAlias = "tuple[Any, tuple[tuple[int, int], ...], str]"
"""A touched part of memory: its base, the [first, last) of each of its dimensions, and how it is
touched."""


class Footprint:
    """What one step touches."""

    __slots__ = ("amounts", "failed", "memory", "things")

    def __init__(self) -> None:
        self.things: dict[Thing, list[tuple[int, int]]] = {}
        self.amounts: list[tuple[Thing, int, int, Amount, Amount]] = []
        self.memory: dict[Any, list[Touched]] = {}
        """By its base, whose parts may overlap: (view, box, how)."""
        self.failed = False
        """Whether the step ended in a report, which may depend on anything that it touched."""

    def __bool__(self) -> bool:
        return bool(self.things or self.memory)

    def touch(
        self,
        thing: Thing,
        how: int,
        epoch: int = 0,
        amount: Amount | None = None,
        room: Amount = (0, 0),
    ) -> None:
        self.things.setdefault(thing, []).append((how, epoch))
        if amount is not None:
            self.amounts.append((thing, how, epoch, amount, room))

    def touch_memory(
        self, base: Any, view: Any, box: tuple[tuple[int, int], ...], how: str
    ) -> None:
        parts = self.memory.setdefault(base, [])
        if (
            parts
            and len(box) == 1
            and parts[-1][::2] == (view, how)
            and parts[-1][1][0][1] == box[0][0]
        ):
            box = ((parts[-1][1][0][0], box[0][1]),)  # contiguous bytes
            parts.pop()
        parts.append((view, box, how))


def dependent(one: Footprint, other: Footprint) -> bool:
    """Return whether two steps may not commute."""
    failed = one.failed or other.failed
    for key in one.things.keys() & other.things.keys():
        if failed or any(_conflict(a, b) for a in one.things[key] for b in other.things[key]):
            return True
    for base in one.memory.keys() & other.memory.keys():
        if any(
            (failed or a[2] != b[2] or a[2] == WRITES) and _overlap(a, b)
            for a in one.memory[base]
            for b in other.memory[base]
        ):
            return True
    return False


def wakes(asleep: Footprint, run: Footprint) -> bool:
    """Return whether a step that could have been next may not commute with the one that was run
    instead."""
    return dependent(asleep, run) or any(
        a[:3] == b[:3] and not _fit(a[3], *b[3:], ends=a[1] == ARRIVE)
        for a in asleep.amounts
        for b in run.amounts
    )


def _fit(asleep: Amount, amount: Amount, room: Amount, *, ends: bool) -> bool:
    arrivals, nbytes = asleep[0] + amount[0], asleep[1] + amount[1]
    return (arrivals < room[0] or (arrivals == room[0] and nbytes <= room[1])) and not (
        ends and room in (asleep, amount)
    )


def enables(first: Footprint, later: Footprint) -> bool:
    """Return whether `later` could not have continued without `first`, an arrival of a use that it
    awaited."""
    return not later.failed and any(
        (AWAIT, epoch) in later.things[key]
        for key in first.things.keys() & later.things.keys()
        for how, epoch in first.things[key]
        if how == ARRIVE
    )


def _conflict(a: tuple[int, int], b: tuple[int, int]) -> bool:
    (how, epoch), (other, its) = sorted((a, b))
    if other == WRITE:
        return True
    if how == ARRIVE:
        return epoch != its if other == ARRIVE else other == TEST or epoch == its
    return False


def _overlap(a: Touched, b: Touched) -> bool:
    """Return whether parts of one base may have bytes in common; for two views of different shape,
    assume that they do."""
    return a[0] != b[0] or all(
        lo < its_hi and its_lo < hi for (lo, hi), (its_lo, its_hi) in zip(a[1], b[1], strict=True)
    )
