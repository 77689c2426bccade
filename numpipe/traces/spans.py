"""What a warpgroup did at every moment: its events as spans that lie one behind the other, and its tiles and regions.

When a warpgroup computes is said by its notes: from "compute", when a step's tiles are there, until it releases that step or waits
for another one. Time that is spent blocked, issuing or storing in between is that, except `drain`: there its own products run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from .events import Event
from .protocol import BARRIERS, KINDS, MOMENTS, OF_A_RING, Moment

MEANS = {
    "compute": "computing",
    "store": "storing",
    "issue": "issuing copies",
    "data": "waiting for data",
    "slot": "waiting for free slots",
    "barrier": "waiting at barriers",
    "other": "other instructions",
}
"""kinds of spans"""


@dataclass(frozen=True)
class Span:
    """From `start` to `end` a warpgroup did `kind` (`MEANS`), was in a tile, or in a region; `step` and `slot` where known."""

    kind: str
    start: int
    end: int
    ring: str | None = None
    slot: int | None = None
    step: int | None = None
    name: str = ""
    """of a tile or region"""
    unfinished: bool = False
    """a region or tile that the trace does not see the end of"""

    @property
    def length(self) -> int:
        return self.end - self.start


def kind_of(event: Event) -> str:
    """What a warpgroup's event that took time is; "" if it is nothing by itself."""
    found = OF_A_RING.fullmatch(event.details.get("mbar", "")) if event.kind == "wait" else None
    return BARRIERS[found["kind"]].span if found is not None else KINDS[event.kind].span if event.kind in KINDS else ""


def spans(events: Iterable[Event]) -> list[Span]:
    """Those of one warpgroup, in order, without gaps from its first event to its last."""
    found: list[Span] = []
    at: int | None = None
    mode: tuple[str, dict[str, Any]] = "other", {}
    place: dict[str, Any] = {}

    def until(time: int, kind: str, where: dict[str, Any]) -> None:
        nonlocal at
        at = time if at is None else at
        if time > at or (kind == "issue" and time == at):
            span = Span(kind, at, time, where.get("ring"), where.get("slot"), where.get("step"))
            if kind != "issue" and found and dataclasses.replace(found[-1], start=at, end=time) == span:
                span = dataclasses.replace(found.pop(), end=time)  # it goes on
            found.append(span)
        at = max(time, at)

    for event in events:
        until(event.start, *mode)
        if event.kind == "note":
            place, note = place if event.aside else event.details, MOMENTS.get(event.note, Moment(event.note))
            if note.computing == "begins":
                mode = "compute", place
            elif note.computing == "ends" or (note.computing == "releases" and _is_over(mode[1], place)):
                mode = "other", {}
        elif kind := kind_of(event):
            until(event.end, kind, mode[1] if event.kind == "drain" else {**place, **event.details})
    return found


def _is_over(computed: dict[str, Any], released: dict[str, Any]) -> bool:
    """Whether a release says that the warpgroup is done with the step it computed."""
    return computed.get("ring") == released.get("ring") and computed.get("step", -1) <= released["step"]


def tiles(events: Iterable[Event], last: int) -> Iterator[Span]:
    """The tiles of a warpgroup: each ends where the next begins, a region around its loop ends, or the warpgroup does.

    `last`: where one ends of which the trace does not see the end.
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
    """The regions of a warpgroup, in the order they end.

    `last`: where those end of which the trace does not see the end, since the run failed or events were lost.
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
