"""A warpgroup's time, divided into consecutive spans, and its tiles and regions.

A warpgroup is computing from its "compute" note, when a step's tiles are there, until it releases
that step or waits for another one. Time in between that is spent blocked, issuing or storing counts
as such, except for `drain`, during which the warpgroup's own products run. Its own loads from GMEM
count as loading outside of this, and on the simulated SM only: a GPU does not record them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ..plan.protocol import BARRIERS, COMPUTING, KINDS, MOMENTS, OF_A_RING, Moment
from .events import Event

MEANS = {
    COMPUTING: "computing",
    "load": "loading",
    "store": "storing",
    "issue": "issuing copies",
    "data": "waiting for data",
    "slot": "waiting for free slots",
    "barrier": "waiting at barriers",
    "other": "other instructions",
}
"""kinds of spans, in words"""


@dataclass(frozen=True)
class Span:
    """An interval of a warpgroup's time. `kind` is "tile", "region" or a key of `MEANS`; `step` and
    `slot` are set if they are known."""

    kind: str
    start: int
    end: int
    ring: str | None = None
    slot: int | None = None
    step: int | None = None
    name: str = ""
    """name of a tile or region"""
    unfinished: bool = False
    """whether the end of the region or tile is missing from the trace"""
    about: dict[str, Any] = field(default_factory=dict, compare=False)
    """the details of the event that it begins with, or is"""


def spans(events: Iterable[Event]) -> list[Span]:
    """Return the spans of one warpgroup in order, without gaps from its first event to its last."""
    done: list[Span] = []
    at = None
    mode: tuple[str, dict[str, Any]] = "other", {}
    place: dict[str, Any] = {}

    def until(time: int, kind: str, where: dict[str, Any]) -> None:
        nonlocal at
        at = time if at is None else at
        if time > at or (kind == "issue" and time == at):
            place = where.get("ring"), where.get("slot"), where.get("step")
            span = Span(kind, at, time, *place, about=where)
            if (
                kind != "issue"
                and done
                and (done[-1].kind, done[-1].ring, done[-1].slot, done[-1].step) == (kind, *place)
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
            kind = KINDS[event.kind].span if slot is None else BARRIERS[slot["kind"]].span
            if kind and (kind, mode[0]) != ("load", COMPUTING):
                until(
                    event.end,
                    kind,
                    mode[1] if event.kind == "drain" else {**place, **event.details},
                )
    return done


def tiles(events: Iterable[Event], last: int) -> Iterator[Span]:
    """Yield the tiles of a warpgroup. Each ends where the next one begins, where a region around
    its loop ends, or where the warpgroup ends.

    `last`: the end of a tile whose end is missing from the trace.
    """
    begun = None
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

    `last`: the end of regions whose end is missing from the trace, because the run failed or events
    were lost."""
    open_ = []
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
