"""Livelocks: `while` loops that go round for ever. In simulated code each round says that it begins
(`compile.lift.while_loops`).

A warpgroup whose loop executes no operation never gives way, so nobody can end it: its rounds are
counted alone. One whose loop waits and arrives may hand a barrier to and fro with others for ever:
rounds are counted since anybody of the cluster has touched a tile or an array. A loop that does
touch some is taken for endless after a million rounds, which take minutes to simulate.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from ..diagnostics.errors import PipelineDeadlock, SimulationError
from ..traces.deadlocks import Hint
from . import deadlock_search, race_report
from .state import Warpgroup

MOST = 1_000_000
"""rounds of a loop without an operation, and of one that touches tiles or arrays"""
IDLE = 20_000
"""rounds with operations since anybody has touched a tile or an array; twice the failed tests that
count as a deadlock"""
TURNS = 4_000
"""those of them in which a phase has ended"""


@dataclass
class Rounds:
    """Rounds of `while` loops that a warpgroup has begun.

    idle       since anybody of its cluster has touched a tile or an array
    touched    how often that had been, and `time` the warpgroup's virtual time then
    turns      those of the idle rounds in which a phase has ended; `progress` is that of the SMs in
               the newest
    busy       rounds in which somebody did touch one
    """

    idle: int = 0
    touched: int = -1
    time: int = 0
    turns: int = 0
    progress: int = 0
    busy: int = 0


def begin(who: Warpgroup) -> None:
    """Count a round of the warpgroup's innermost loop; raise PipelineDeadlock where there are too
    many."""
    rounds: Rounds = who.loops
    touched, progress = 0, 0
    for sm in who.sm.group:
        touched += sm.touched
        progress += sm.progress
    if touched != rounds.touched:
        rounds.busy += 1
        rounds.touched, rounds.time, rounds.idle, rounds.turns = touched, who.time, 0, 0
    rounds.idle += 1
    if progress != rounds.progress:
        rounds.progress, rounds.turns = progress, rounds.turns + 1
    if who.time == rounds.time:
        if rounds.idle > MOST:
            raise _alone(who)
    elif rounds.idle > IDLE or rounds.turns > TURNS:
        raise _together(who)
    if rounds.busy > MOST:
        raise endless(
            who,
            f"has gone round its loops {MOST} times and has not ended: the simulated SM takes it "
            "for endless",
        )


def endless(who: Warpgroup, what: str) -> SimulationError:
    """Return the error of a loop that ends by nobody's doing."""
    return race_report.race(
        who,
        what,
        hazard="livelock",
        error=PipelineDeadlock,
        fix=(
            "change in the body what the loop's condition tests, or end it by a count; to wait "
            "for somebody, wait for a barrier (barrier_wait), which takes no rounds"
        ),
    )


def _alone(who: Warpgroup) -> SimulationError:
    return endless(
        who,
        f"has gone round this loop {MOST} times, and executed no operation in it: what its "
        "condition tests does not change",
    )


def _together(who: Warpgroup) -> SimulationError:
    """Return the error of warpgroups that wait for each other and arrive, and do nothing else."""
    fix = (
        "end the loop by a count, or by a value that its body changes, in all warpgroups that "
        "wait for each other there"
    )
    hint = Hint(
        "livelock",
        f"hint: for {who.loops.idle} rounds of a loop of {who.name} nobody has touched a tile or "
        "an array: the warpgroups only tell each other to go on",
        fix,
    )
    found = deadlock_search.report_of(who.sm, "warpgroups go round, and get nowhere", [hint])
    now = race_report.party(who, "goes round its loop again and again")
    return race_report.failed(PipelineDeadlock, dataclasses.replace(found, now=now, waiting=()))
