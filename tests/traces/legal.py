"""A check that a trace, of a GPU or simulated, is a legal schedule of the pipeline's protocol
(`numpipe.language.pipeline.ring`).

It deliberately implements the protocol a second time, and imports nothing from the ring. These are
the rules for one CTA, whose SM has a single clock::

    memory role    fill ... issue(k)           after release(k - S) of all readers; steps in order
    compute role   compute(k) ... release(k)   compute after issue(k); release after compute, once,
                                               in order
    output rings   store(k)                    after everything that any warpgroup computed before
                                               it; blocks in order

An event is recorded by one lane: an issue after its wait for the slot and before its copies, a
compute after its wait for the tiles, and a release before its arrival. These orders are therefore
the orders of the barriers, and hold without a margin, however long the work in between takes. The
check does not know when copies landed and products ended, which a GPU does not record.

If the warpgroups load for themselves, each has its own ring. If they alternate, each step has one
of them as its reader.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, zip_longest
from typing import Any

from numpipe.diagnostics.errors import PipelineRace, SimulationError, reported
from numpipe.diagnostics.reports import Party, Report
from numpipe.plan.protocol import COMPUTING, Ring
from numpipe.plan.roles import COMPUTE
from numpipe.traces.events import Event, Recording, cta_name, moment, of_ctas, of_warpgroups

COMPARED = (
    "fill",
    "wait",
    COMPUTING,
    "release",
    "store",
    "tile begin",
    "region begin",
    "region end",
)
"""the notes that both a GPU and the simulated SM record"""
_RACES = "refilled-while-read", "read-before-ready", "read-after-release", "unordered-accesses"
"""the hazards that are a PipelineRace"""


@dataclass(frozen=True)
class _Action:
    """A warpgroup's "fill", "issue", "compute", "release" or "store" of a step of a ring; `order`
    is its index among the warpgroup's events."""

    what: str
    ring: Ring
    step: int
    slot: int
    operand: int | None
    event: Event
    order: int


_Users = dict[int, list[_Action]]
"""the actions of each warpgroup on a ring"""


def check_legal(trace: Recording, simulated: Recording | None = None) -> None:
    """Check that a trace follows the rules of the ring protocol (see above) and, optionally, that
    it is of the same run as `simulated`, a trace of the same kernel, arguments and grid on the
    simulated SM: each warpgroup must do the same to the same steps, slots, tiles and regions, in
    the same order. A GPU profile that passes did what the simulated SM has checked.

    Raises PipelineRace, or SimulationError if nothing raced, naming the two events; its `report`
    contains them."""
    _check(trace)
    if simulated is not None:
        _compare(trace, simulated)


def _check(trace: Recording) -> None:
    named = _rings(trace)
    for events in of_ctas(trace.events).values():
        warpgroups = of_warpgroups(events)
        for own in warpgroups.values():
            _in_time(own, trace.clock)
        actions = {number: _actions(own, named) for number, own in warpgroups.items()}
        rings: dict[Ring, _Users] = defaultdict(dict)
        for number, done in actions.items():
            for action in done:
                rings[action.ring].setdefault(number, []).append(action)
        cut = {
            number
            for number, own in warpgroups.items()
            if "lost" in own[-1].details or own[-1].kind != "end"
        }
        compute = [number for number, own in warpgroups.items() if own[-1].role == COMPUTE.name]
        for ring, users in rings.items():
            rules = _Rules(trace.clock, cut, ring.slots)
            rules.steps(users, ring.turns)
            if ring.turns:
                rules.in_turns(users, compute)
            elif not _fillers(users):
                if not ring.private:
                    rules.stores(users, actions)
            elif ring.private:
                for number in compute:
                    rules.ring({number: users[number]} if number in users else {}, [number])
            else:
                rules.ring(users, compute)


_Named = dict[tuple[str, bool], "Ring | None"]
"""rings by (name, whether it is an output ring); None if two rings have the same name, which is
then ambiguous"""


def _rings(trace: Recording) -> _Named:
    """Return the rings of a trace by name; rings with the same index are the same ring."""
    by_index, named = {ring.index: ring for ring in trace.rings}, _Named()
    for ring in trace.rings:
        one, key = by_index[ring.index], (ring.name, ring.output)
        named[key] = one if named.get(key, one) is one else None
    return named


# ---- what happened -------------------------------------------------------------------------------
def _actions(events: list[Event], named: _Named) -> list[_Action]:
    """Return a warpgroup's actions on the steps of rings, in order."""
    actions = []
    filling = None
    for order, event in enumerate(events):
        place = None
        what = event.note or event.kind
        if event.kind == "note" and not event.aside:
            place = event.details if what in ("fill", COMPUTING, "release", "store") else None
            filling = event.details if what == "fill" else None
        elif event.kind == "issue":
            place = filling
        if (
            place is not None
            and (ring := named.get((place.get("ring", ""), what == "store"))) is not None
        ):
            actions.append(
                _Action(
                    what, ring, place["step"], place["slot"], place.get("operand"), event, order
                )
            )
    return actions


def _fillers(ring: _Users) -> set[int]:
    return {
        number for number, done in ring.items() if any(action.what == "fill" for action in done)
    }


_Parts = dict[int | None, _Action]
"""actions of one step, by operand"""
_ByStep = dict[int, _Parts]


def _by_step(done: Iterable[_Action], what: str) -> _ByStep:
    """Return the first action of kind `what` of each step, for each operand."""
    by_step: _ByStep = {}
    for action in done:
        if action.what == what:
            by_step.setdefault(action.step, {}).setdefault(action.operand, action)
    return by_step


def _each(by_step: _ByStep) -> list[_Action]:
    return [action for parts in by_step.values() for action in parts.values()]


def _matching(actions: _Parts, operand: int | None) -> list[_Action]:
    """Return the actions for the operand or for all operands; if `operand` is None, return all
    actions."""
    return [
        action
        for number, action in actions.items()
        if operand is None or number is None or number == operand
    ]


# ---- the rules -----------------------------------------------------------------------------------
def _in_time(events: Sequence[Event], clock: str) -> None:
    for event in events:
        if event.end < event.start:
            raise SimulationError(
                f"{_who(event)}: {_text(event)} ends at {event.end} {clock}, before it starts at "
                f"{event.start}"
            )
    for before, now in pairwise(events):
        if now.end < before.end:
            raise SimulationError(
                f"{_who(now)}: {_text(now)} ends at {now.end} {clock}, before {_text(before)}, "
                f"which precedes it and ends at {before.end}: a warpgroup's events must be in the "
                "order of its instructions"
            )


@dataclass(frozen=True)
class _Rules:
    """The rules of one ring.

    cut  warpgroups whose last events are missing
    """

    clock: str
    cut: set[int]
    slots: int

    def steps(self, ring: _Users, turns: bool) -> None:
        """Check that each warpgroup takes steps in order, each in its slot. With `turns`, readers
        skip the steps of other readers."""
        for done in ring.values():
            before: dict[tuple[str, int | None], _Action] = {}
            for action in done:
                if action.slot != action.step % self.slots:
                    raise self.error(
                        "wrong-phase",
                        action,
                        f"step {action.step} of a ring of {self.slots} slots must be in slot "
                        f"{action.step % self.slots}",
                    )
                last = before.get((action.what, action.operand))
                due = 0 if last is None else last.step + 1
                if turns and action.what in (COMPUTING, "release"):
                    due = max(due, action.step)
                # waits may be repeated
                repeated = action.step < due and action.what in ("fill", "release", "store")
                if action.step > due or repeated:
                    # the body waits, or the release does it
                    if action.what == COMPUTING and action.operand is not None:
                        continue
                    released = "too-many-arrivals" if action.step < due else "too-few-arrivals"
                    hazard = released if action.what == "release" else "wrong-phase"
                    raise self.error(
                        hazard, action, f"steps must be consecutive; the next step is {due}", last
                    )
                if action.step < due:
                    continue
                before[action.what, action.operand] = action

    def in_turns(self, ring: _Users, readers: Sequence[int]) -> None:
        """Check a load ring whose readers alternate: together they act as one reader, and no step
        has two."""
        first, whose = readers[0], dict[int, _Action]()
        read = [action for number in readers for action in ring.get(number, [])]
        for action in read:
            other = whose.setdefault(action.step, action)
            if other.event.warpgroup != action.event.warpgroup:
                raise self.error(
                    "wrong-phase",
                    action,
                    "a step must be read by only one of the warpgroups that take turns",
                    other,
                )
        cut = self.cut | {first} if self.cut & set(readers) else self.cut
        replace(self, cut=cut).ring(
            {**{number: ring[number] for number in ring if number not in readers}, first: read},
            [first],
        )

    def ring(self, ring: _Users, readers: Sequence[int]) -> None:
        """Check a load ring together with the warpgroups that read it."""
        fillers = _fillers(ring)
        issues = _by_step((action for number in fillers for action in ring[number]), "issue")
        for number in readers:
            done = ring.get(number, [])
            computed, released = _by_step(done, COMPUTING), _by_step(done, "release")
            for issue in _each(issues):
                self.refill(issue, released, computed, number)
            for compute in _each(computed):
                self.use(
                    compute, issues.get(compute.step, {}), released.get(compute.step, {}), fillers
                )
            for release in _each(released):
                used = _matching(computed.get(release.step, {}), release.operand)
                if not used or any(compute.order > release.order for compute in used):
                    raise self.error(
                        "read-after-release",
                        release,
                        "a slot may be released only after its tiles have been waited for and used",
                        used[-1] if used else None,
                    )
            if number in self.cut:
                continue
            for compute in _each(computed):
                if not _matching(released.get(compute.step, {}), compute.operand):
                    raise self.error(
                        "too-few-arrivals",
                        compute,
                        "the warpgroup ends without releasing this step",
                    )
            if not fillers & self.cut and (missed := issues.keys() - computed.keys()):
                step = min(missed)
                raise self.error(
                    "exit-in-flight",
                    next(iter(issues[step].values())),
                    f"warpgroup {number} ends without waiting for step {step}",
                )

    def refill(self, issue: _Action, released: _ByStep, computed: _ByStep, reader: int) -> None:
        """Check that a slot is refilled only after a reader has released it."""
        step = issue.step - self.slots
        if step < 0:
            return
        freed = _matching(released.get(step, {}), issue.operand)
        if not freed and reader not in self.cut:
            raise self.error(
                "refilled-while-read",
                issue,
                f"the slot was not released by warpgroup {reader} after step {step}",
                next(iter(computed.get(step, {}).values()), None),
            )
        for action in freed:
            if issue.event.start < action.event.start:
                raise self.error(
                    "refilled-while-read",
                    issue,
                    "a slot may be filled again only after all its readers have released it",
                    action,
                )

    def use(self, compute: _Action, issued: _Parts, released: _Parts, fillers: set[int]) -> None:
        """Check that tiles are used after the issue of their copies and before their release."""
        copies = _matching(issued, compute.operand)
        if not copies and not fillers & self.cut:
            raise self.error(
                "read-before-ready",
                compute,
                f"no warpgroup issues the copies of step {compute.step}",
            )
        for action in copies:
            if compute.event.start < action.event.start:
                raise self.error(
                    "read-before-ready",
                    compute,
                    "a wait for the tiles must not end before their copies are issued",
                    action,
                )
        for action in _matching(released, compute.operand):
            if action.order < compute.order and action.operand == compute.operand:
                raise self.error(
                    "read-after-release",
                    compute,
                    "a slot must not be used after its release",
                    action,
                )

    def stores(self, ring: _Users, actions: _Users) -> None:
        """Check that a block of an output that several warpgroups write is stored after all of them
        have written it."""
        stored = {number: _by_step(done, "store") for number, done in ring.items()}
        for number, steps in stored.items():
            for step, operands in steps.items():
                own = operands[None]
                written = [
                    action
                    for action in actions[number]
                    if action.what == COMPUTING and action.order < own.order
                ]
                for other in stored.values():
                    theirs = other.get(step, {}).get(None)
                    if (
                        written
                        and theirs is not None
                        and theirs.event.start < written[-1].event.start
                    ):
                        raise self.error(
                            "unordered-accesses",
                            theirs,
                            "a block may be stored only after all warpgroups have written it",
                            written[-1],
                        )

    def error(
        self, hazard: str, now: _Action, rule: str, before: _Action | None = None
    ) -> SimulationError:
        """Return the error that names the action and the one before it, if there is one."""
        did, earlier = self.text(now), None
        text = f"{_who(now.event)}: {did}"
        if before is not None:
            other = self.text(before)
            text += f", but {_who(before.event, short=True)}: {other}"
            earlier = _party(before, other)
        kind = PipelineRace if hazard in _RACES else SimulationError
        report = Report(hazard, f"{text}: {rule}", _party(now, did), earlier, cause=rule)
        return reported(kind, report)

    def text(self, action: _Action) -> str:
        return f"{_text(action.event, action.step)} at {action.event.start} {self.clock}"


# ---- a trace against the simulated run of the same kernel ----------------------------------------
def _compare(trace: Recording, simulated: Recording) -> None:
    """Raise SimulationError if a warpgroup's actions differ from those in the other trace, in CTAs
    that both traces have."""
    theirs = of_ctas(simulated.events)
    ours = {cta: events for cta, events in of_ctas(trace.events).items() if cta in theirs}
    if not ours:
        raise SimulationError(
            f"the traces have no CTA in common: {sorted(trace.ctas)}, but the simulated run has "
            f"{sorted(simulated.ctas)}; give both runs the same arguments and grid"
        )
    named, known = _rings(trace), _rings(simulated)
    for cta, events in ours.items():
        own, other = of_warpgroups(events), of_warpgroups(theirs[cta])
        for warpgroup in sorted(own.keys() | other.keys()):
            done, wanted = own.get(warpgroup, []), other.get(warpgroup, [])
            cut = bool(done) and "lost" in done[-1].details
            pairs = zip_longest(
                *(
                    [event for event in events if event.note in COMPARED]
                    for events in (done, wanted)
                )
            )
            for number, (have, want) in enumerate(pairs):
                if have is None and cut:
                    break
                if have is None or want is None or _plain(have, named) != _plain(want, known):
                    raise SimulationError(
                        f"warpgroup {warpgroup} of {cta_name(cta)}: its event {number} is "
                        f"{_at(have)}, but {_at(want)} in the simulated run: both runs must record "
                        "the same events in the same order; fix: give them the same kernel, "
                        "arguments and grid"
                    )


def _at(event: Event | None) -> str:
    return "nothing" if event is None else f"{_text(event)} at {event.start}"


def _plain(event: Event, named: _Named) -> dict[str, Any]:
    """Return an event's details without its statement, which a GPU does not record, and with the
    ring's number instead of its name, because a ring may have several names."""
    details = {key: value for key, value in event.details.items() if key != "statement"}
    if "ring" in details:
        ring = named.get((details["ring"], event.note == "store"))
        details["ring"] = None if ring is None else ring.index
    return details


# ---- words ---------------------------------------------------------------------------------------
def _who(event: Event, short: bool = False) -> str:
    return f"warpgroup {event.warpgroup} ({event.role})" + (
        "" if short else f" of {cta_name(event.place)}"
    )


def _text(event: Event, step: int | None = None) -> str:
    """Describe an event: ``release of step 3 (slot 0) of a, b @ gemm.py:53``."""
    details = event.details
    if event.note in ("tile begin", "region begin", "region end"):
        return f"{event.note} {details.get('number', details.get('region'))}"
    if event.kind == "wait":
        return (
            f"wait for {details.get('mbar')} phase {details.get('phase')} step "
            f"{details.get('step')}"
        )
    return moment(event.note or event.kind, details, step)


def _party(action: _Action, did: str) -> Party:
    event, details = action.event, action.event.details
    return Party(
        did,
        event.warpgroup,
        event.role,
        event.cta,
        ring=details.get("ring"),
        slot=details.get("slot"),
        step=action.step,
        barrier=details.get("mbar"),
        phase=details.get("phase"),
        gpu=event.gpu,
    )
