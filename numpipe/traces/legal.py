"""Whether a trace, of a GPU or simulated, is a legal schedule of the pipeline's protocol (`numpipe.language.pipeline.ring`).

Of the events of one CTA, whose SM has one clock::

    memory role        fill ... issue(k)              once all readers' release(k - S) are over; steps in order
    compute role       compute(k) ... release(k)      compute after issue(k); release after compute, once, in order
    output rings       store(k)                       after all that any warpgroup computed before it; blocks in order

An event is noted by one lane: an issue when its wait for the slot is over and before its copies, a compute when its wait for the
tiles is over, a release before its arrival. So these orders are those of the barriers, and hold without a margin, however long what
lies between takes; nothing is said of when copies landed and products ended, which a GPU does not tell.

A ring whose warpgroups load for themselves is one for each of them. Where they take turns, each step has one of them as its reader.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, zip_longest
from typing import Any

from ..diagnostics.errors import PipelineRace, SimulationError
from ..diagnostics.reports import Party, Report
from .events import Event, Recording, Ring, of_ctas, of_warpgroups

COMPARED = ("fill", "wait", "compute", "release", "store", "tile begin", "region begin", "region end")
"""notes that a GPU and the simulated SM both take"""


@dataclass(frozen=True)
class _Deed:
    """What a warpgroup did to a step of a ring: "fill", "issue", "compute", "release" or "store"; `order` among its own."""

    what: str
    ring: Any
    step: int
    slot: int
    operand: int | None
    event: Event
    order: int

    @property
    def time(self) -> int:
        return self.event.start


def check(trace: Recording, slack: float = 0) -> None:
    """What `Trace.check_legal` says, of one trace."""
    known = _Names(trace)
    for events in of_ctas(trace.events).values():
        warpgroups = of_warpgroups(events)
        for own in warpgroups.values():
            _in_time(own, trace.clock)
        deeds = {number: _deeds(own, known) for number, own in warpgroups.items()}
        rings: dict[Any, dict[int, list[_Deed]]] = defaultdict(dict)
        for number, done in deeds.items():
            for deed in done:
                rings[deed.ring].setdefault(number, []).append(deed)
        cut = {number for number, own in warpgroups.items() if "lost" in own[-1].details or own[-1].kind != "end"}
        compute = [number for number, own in warpgroups.items() if own[-1].role == "compute"]
        for ring, of_it in rings.items():
            slots, private = known.shape(ring, of_it)
            turns = known.turns(ring)
            judge = _Judge(trace.clock, slack, cut, slots)
            judge.steps(of_it, turns)
            if turns:
                judge.in_turns(of_it, compute)
                continue
            if _fillers(of_it):
                for number in compute if private else ():
                    judge.ring({number: of_it[number]} if number in of_it else {}, [number])
                if not private:
                    judge.ring(of_it, compute)
            elif not private:
                judge.stores(of_it, deeds)


class _Names:
    """Which ring a name means: rings of one index are one, and a name that two have says nothing."""

    def __init__(self, trace: Recording) -> None:
        self.rings: dict[tuple[str, bool], Ring | None] = {}
        self.known = bool(trace.rings)
        for ring in trace.rings:
            other = self.rings.setdefault((ring.name, ring.output), ring)
            if other is not None and other.index != ring.index:
                self.rings[ring.name, ring.output] = None
        self.by_index = {ring.index: ring for ring in trace.rings}

    def turns(self, ring: Any) -> bool:
        """Whether the readers of a ring take turns."""
        return self.known and self.by_index[ring].turns

    def of(self, details: dict[str, Any], output: bool) -> Any:
        """What names the ring of an event; None: it cannot be told."""
        if not self.known:
            return details["ring"]
        found = self.rings.get((details["ring"], output))
        return None if found is None else found.index

    def plain(self, event: Event) -> dict[str, Any]:
        """What an event says, with the ring instead of one of its names."""
        if "ring" not in event.details:
            return event.details
        return {**event.details, "ring": self.of(event.details, event.note == "store")}

    def shape(self, ring: Any, done: dict[int, list[_Deed]]) -> tuple[int, bool]:
        """(slots, whether warpgroups have one each) of a ring: known, or as its events have it."""
        if self.known:
            return self.by_index[ring].slots, self.by_index[ring].private
        slots = 1 + max(deed.slot for own in done.values() for deed in own)
        return slots, any(any(deed.what in ("compute", "release") for deed in done[number]) for number in _fillers(done))


# ---- what happened ---------------------------------------------------------------------------------------------------------
def _deeds(events: list[Event], known: _Names) -> list[_Deed]:
    found: list[_Deed] = []
    filling: dict[str, Any] | None = None
    for order, event in enumerate(events):
        place: dict[str, Any] | None = None
        what = event.note or event.kind
        if event.kind == "note" and not event.aside:
            place = event.details if what in ("fill", "compute", "release", "store") else None
            filling = event.details if what == "fill" else None
        elif event.kind == "issue":
            place = filling
        if place is not None and "ring" in place and (ring := known.of(place, what == "store")) is not None:
            found.append(_Deed(what, ring, place["step"], place["slot"], place.get("operand"), event, order))
    return found


def _fillers(ring: dict[int, list[_Deed]]) -> set[int]:
    return {number for number, done in ring.items() if any(deed.what == "fill" for deed in done)}


_Steps = dict[int, dict[int | None, _Deed]]


def _by_step(done: Iterable[_Deed], what: str) -> _Steps:
    """The first such deed at each step, for each operand."""
    found: _Steps = {}
    for deed in done:
        if deed.what == what:
            found.setdefault(deed.step, {}).setdefault(deed.operand, deed)
    return found


def _matching(deeds: dict[int | None, _Deed], operand: int | None) -> list[_Deed]:
    """Those that are of the operand, or of all operands; of any if that is not said."""
    return [deed for number, deed in deeds.items() if operand is None or number is None or number == operand]


# ---- the rules -------------------------------------------------------------------------------------------------------------
def _in_time(events: Sequence[Event], clock: str) -> None:
    for event in events:
        if event.end < event.start:
            raise SimulationError(f"{_who(event)}: {_said(event)} ends at {event.end} {clock}, before it starts at {event.start}")
    for before, now in pairwise(events):
        if now.end < before.end:
            raise SimulationError(f"{_who(now)}: {_said(now)} ends at {now.end} {clock}, before {_said(before)}, which comes "
                                  f"first, does at {before.end}: a warpgroup's events are in the order of its instructions")


@dataclass(frozen=True)
class _Judge:
    """Of one ring.

    slack  how much too early an event of another warpgroup may seem
    cut    warpgroups whose last events are missing
    """

    clock: str
    slack: float
    cut: set[int]
    slots: int

    def steps(self, ring: dict[int, list[_Deed]], turns: bool) -> None:
        """Each warpgroup takes steps in order, each in its slot; with `turns` readers leave out those of others."""
        for done in ring.values():
            before: dict[tuple[str, int | None], _Deed] = {}
            for deed in done:
                if deed.slot != deed.step % self.slots:
                    raise self.wrong(SimulationError, "wrong-phase", deed.event, None,
                                     f"step {deed.step} of {self.slots} slots is in slot {deed.step % self.slots}")
                last = before.get((deed.what, deed.operand))
                due = 0 if last is None else last.step + 1
                if turns and deed.what in ("compute", "release"):
                    due = max(due, deed.step)
                if deed.step > due or (deed.step < due and deed.what in ("fill", "release", "store")):  # waits may be repeated
                    if deed.what == "compute" and deed.operand is not None:  # the body waits, or the release does it
                        continue
                    released = "too-many-arrivals" if deed.step < due else "too-few-arrivals"
                    hazard = released if deed.what == "release" else "wrong-phase"
                    raise self.wrong(SimulationError, hazard, deed.event, None if last is None else last.event,
                                     f"steps are taken one after another; {due} is next")
                if deed.step < due:
                    continue
                before[deed.what, deed.operand] = deed

    def in_turns(self, ring: dict[int, list[_Deed]], readers: Sequence[int]) -> None:
        """A load ring whose readers take turns: all of them are one, and no step has two."""
        first, whose = readers[0], dict[int, _Deed]()
        read = [deed for number in readers for deed in ring.get(number, [])]
        for deed in read:
            other = whose.setdefault(deed.step, deed)
            if other.event.warpgroup != deed.event.warpgroup:
                raise self.wrong(SimulationError, "wrong-phase", deed.event, other.event, "a step is of one warpgroup's turn")
        cut = self.cut | {first} if self.cut & set(readers) else self.cut
        replace(self, cut=cut).ring({**{number: ring[number] for number in ring if number not in readers}, first: read}, [first])

    def ring(self, ring: dict[int, list[_Deed]], readers: Sequence[int]) -> None:
        """A load ring: who fills it, and who reads it."""
        fillers = _fillers(ring)
        issues = _by_step((deed for number in fillers for deed in ring[number]), "issue")
        for number in readers:
            done = ring.get(number, [])
            computed, released = _by_step(done, "compute"), _by_step(done, "release")
            for step, deeds in issues.items():
                for deed in deeds.values():
                    self.refill(deed, released, computed, number)
            for step, deeds in computed.items():
                for deed in deeds.values():
                    self.use(deed, issues.get(step, {}), released.get(step, {}), fillers)
            for step, deeds in released.items():
                for deed in deeds.values():
                    used = _matching(computed.get(step, {}), deed.operand)
                    if not used or any(each.order > deed.order for each in used):
                        raise self.wrong(PipelineRace, "read-after-release", deed.event, used[-1].event if used else None,
                                         "a slot is released when its tiles have been waited for and used")
            if number not in self.cut:
                for step, deeds in computed.items():
                    for deed in deeds.values():
                        if not _matching(released.get(step, {}), deed.operand):
                            raise self.wrong(SimulationError, "too-few-arrivals", deed.event, None,
                                             "the warpgroup ends without having released this step")
                if not fillers & self.cut and issues.keys() - computed.keys():
                    step = min(issues.keys() - computed.keys())
                    raise self.wrong(SimulationError, "exit-in-flight", next(iter(issues[step].values())).event, None,
                                     f"warpgroup {number} ends without having waited for step {step}", step)

    def refill(self, issue: _Deed, released: _Steps, computed: _Steps, reader: int) -> None:
        """A slot is filled again when all its readers have released it."""
        step = issue.step - self.slots
        if step < 0:
            return
        freed = _matching(released.get(step, {}), issue.operand)
        if not freed and reader not in self.cut:
            used = next((deed.event for deed in computed.get(step, {}).values()), None)
            raise self.wrong(PipelineRace, "refilled-while-read", issue.event, used,
                             f"the slot was not released by warpgroup {reader} after step {step}", issue.step)
        for deed in freed:
            if issue.time + self.slack < deed.time:
                raise self.wrong(PipelineRace, "refilled-while-read", issue.event, deed.event,
                                 "a slot is filled again when all that read it have released it", issue.step)

    def use(self, compute: _Deed, issued: dict[int | None, _Deed], released: dict[int | None, _Deed], fillers: set[int]) -> None:
        """Tiles are used after the issue of their copies, and before their release."""
        copies = _matching(issued, compute.operand)
        if not copies and not fillers & self.cut:
            raise self.wrong(PipelineRace, "read-before-ready", compute.event, None,
                             f"nobody issues the copies of step {compute.step}")
        for deed in copies:
            if compute.time + self.slack < deed.time:
                raise self.wrong(PipelineRace, "read-before-ready", compute.event, deed.event,
                                 "a wait for the tiles ends after the issue of their copies", compute.step)
        for deed in _matching(released, compute.operand):
            if deed.order < compute.order and deed.operand == compute.operand:
                raise self.wrong(PipelineRace, "read-after-release", compute.event, deed.event,
                                 "what is released is not used any more")

    def stores(self, ring: dict[int, list[_Deed]], deeds: dict[int, list[_Deed]]) -> None:
        """An output that several warpgroups write: it is stored when all of them are done with the block."""
        stored = {number: _by_step(done, "store") for number, done in ring.items()}
        for number, steps in stored.items():
            for step, of_it in steps.items():
                own = of_it[None]
                written = [deed for deed in deeds[number] if deed.what == "compute" and deed.order < own.order]
                for other in stored.values():
                    theirs = other.get(step, {}).get(None)
                    if written and theirs is not None and theirs.time + self.slack < written[-1].time:
                        raise self.wrong(PipelineRace, "unordered-accesses", theirs.event, written[-1].event,
                                         "a block is stored when all warpgroups have written it")

    def wrong(self, kind: type[SimulationError], hazard: str, now: Event, before: Event | None, rule: str,
              step: int | None = None) -> SimulationError:
        """The error that names both events; `step` of an issue, which does not say it."""
        did, other = self.said(now, step), None if before is None else self.said(before, step)
        text = f"{_who(now)}: {did}" + ("" if before is None else f", but {_who(before, short=True)}: {other}") + f": {rule}"
        made = kind(text)
        made.report = Report(hazard, text, _party(now, did, step), None if before is None else _party(before, other or "", step),
                             cause=rule)
        return made

    def said(self, event: Event, step: int | None = None) -> str:
        return f"{_said(event, step)} at {event.start} {self.clock}"


# ---- a trace against the simulated run of the same kernel ------------------------------------------------------------------
def compare(trace: Recording, simulated: Recording) -> None:
    """Raise SimulationError where a warpgroup does not do what it does in the other trace, in the CTAs that both have."""
    theirs = of_ctas(simulated.events)
    ours = {cta: events for cta, events in of_ctas(trace.events).items() if cta in theirs}
    names = _Names(trace), _Names(simulated)
    if not ours:
        raise SimulationError(f"the traces have no CTA in common: {sorted(trace.ctas)}, and {sorted(simulated.ctas)} simulated; "
                              "give both runs the same arguments and grid")
    for cta, events in ours.items():
        own, other = of_warpgroups(events), of_warpgroups(theirs[cta])
        for number in sorted(own.keys() | other.keys()):
            _same(own.get(number, []), other.get(number, []), f"warpgroup {number} of CTA {cta}", names)


def _same(own: list[Event], other: list[Event], who: str, names: tuple[_Names, _Names]) -> None:
    ours, theirs = ([event for event in events if event.note in COMPARED] for events in (own, other))
    cut = bool(own) and "lost" in own[-1].details
    for number, (have, want) in enumerate(zip_longest(ours, theirs)):
        if have is None and cut:
            return
        if have is None or want is None or names[0].plain(have) != names[1].plain(want):
            raise SimulationError(
                f"{who}: its event {number} is {'nothing' if have is None else f'{_said(have)} at {have.start}'}, and simulated "
                f"{'nothing' if want is None else f'{_said(want)} at {want.start}'}: both runs must do the same, in the same "
                "order; give them the same kernel, arguments and grid")


# ---- words -----------------------------------------------------------------------------------------------------------------
def _who(event: Event, short: bool = False) -> str:
    return f"warpgroup {event.warpgroup} ({event.role})" + ("" if short else f" of CTA {event.cta}")


def _said(event: Event, step: int | None = None) -> str:
    """``release of step 3 (slot 0) of a, b @ gemm.py:53``"""
    details = event.details
    if event.note in ("tile begin", "region begin", "region end"):
        return f"{event.note} {details.get('number', details.get('region'))}"
    if event.kind == "wait":
        return f"wait for {details.get('mbar')} phase {details.get('phase')} step {details.get('step')}"
    operand = f", operand {details['operand']}" if "operand" in details else ""
    where = f" (slot {details['slot']}{operand}) of {details['ring']}" if "ring" in details else ""
    step = details.get("step", step)
    return (event.note or event.kind) + ("" if step is None else f" of step {step}") + where


def _party(event: Event, did: str, step: int | None = None) -> Party:
    details = event.details
    return Party(did, event.warpgroup, event.role, event.cta, ring=details.get("ring"), slot=details.get("slot"),
                 step=details.get("step", step), barrier=details.get("mbar"), phase=details.get("phase"))
