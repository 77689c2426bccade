"""A warpgroup's time as spans that lie one behind the other, and its tiles and regions.

A warpgroup computes from its note "compute", when a step's tiles are there, until it releases that
step or waits for another one. Time in between that is spent blocked, issuing or storing counts as
such, except `drain`: there the warpgroup's own products run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from ..plan.protocol import BARRIERS, COMPUTING, KINDS, MOMENTS, OF_A_RING, Moment
from .events import Event

MEANS = {
    COMPUTING: "computing",
    "store": "storing",
    "issue": "issuing copies",
    "data": "waiting for data",
    "slot": "waiting for free slots",
    "barrier": "waiting at barriers",
    "other": "other instructions",
}
"""the kinds of spans, in words"""


@dataclass(frozen=True)
class Span:
    """Part of a warpgroup's time: its `kind` is one of `MEANS`, "tile" or "region"; `step` and
    `slot` where known."""

    kind: str
    start: int
    end: int
    ring: str | None = None
    slot: int | None = None
    step: int | None = None
    name: str = ""
    """of a tile or region"""
    unfinished: bool = False
    """whether the trace does not see the end of the region or tile"""


def spans(events: Iterable[Event]) -> list[Span]:
    """Return the spans of one warpgroup, in order, without gaps from its first event to its
    last."""
    done: list[Span] = []
    at: int | None = None
    mode: tuple[str, dict[str, Any]] = "other", {}
    place: dict[str, Any] = {}

    def until(time: int, kind: str, where: dict[str, Any]) -> None:
        nonlocal at
        at = time if at is None else at
        if time > at or (kind == "issue" and time == at):
            span = Span(kind, at, time, where.get("ring"), where.get("slot"), where.get("step"))
            if (
                kind != "issue"
                and done
                and dataclasses.replace(done[-1], start=at, end=time) == span
            ):
                span = dataclasses.replace(done.pop(), end=time)  # it goes on
            done.append(span)
        at = max(time, at)

    for event in events:
        until(event.start, *mode)
        if event.kind == "note":
            place = place if event.aside else event.details
            note = MOMENTS.get(event.note, Moment(event.note))
            if note.computing == "begins":
                mode = COMPUTING, place
            elif note.computing == "ends" or (
                note.computing == "releases"
                and mode[1].get("ring") == place.get("ring")
                # the release of the step that it computes, or of a later one
                and mode[1].get("step", -1) <= place["step"]
            ):
                mode = "other", {}
        elif event.kind in KINDS:
            slot = (
                OF_A_RING.fullmatch(event.details.get("mbar", "")) if event.kind == "wait" else None
            )
            if kind := KINDS[event.kind].span if slot is None else BARRIERS[slot["kind"]].span:
                until(
                    event.end,
                    kind,
                    mode[1] if event.kind == "drain" else {**place, **event.details},
                )
    return done


def tiles(events: Iterable[Event], last: int) -> Iterator[Span]:
    """Yield the tiles of a warpgroup: each ends where the next begins, a region around its loop
    ends, or the warpgroup does.

    `last`: where a tile ends whose end the trace does not see.
    """
    begun: Event | None = None
    depth = outside = 0
    for event in events:
        note = event.note
        depth += (note == "region begin") - (note == "region end")
        over = event.kind == "end" or note == "tile begin" or depth < outside
        if over and begun is not None:
            yield Span("tile", begun.start, event.start, name=str(begun.details["number"]))
            begun = None
        if note == "tile begin":
            begun, outside = event, depth
    if begun is not None:
        yield Span("tile", begun.start, last, name=str(begun.details["number"]), unfinished=True)


def regions(events: Iterable[Event], last: int) -> Iterator[Span]:
    """Yield the regions of a warpgroup, in the order in which they end.

    `last`: where regions end whose end the trace does not see, since the run failed or events were
    lost.
    """
    open_: list[Event] = []
    for event in events:
        if event.note == "region begin":
            open_.append(event)
        elif event.note == "region end" and open_:
            begun = open_.pop()
            yield Span("region", begun.start, event.end, name=begun.details["region"])
        elif event.kind == "end":
            last = event.end
    for begun in reversed(open_):
        yield Span("region", begun.start, last, name=begun.details["region"], unfinished=True)
