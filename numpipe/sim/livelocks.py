"""Livelocks: endless `while` loops. In simulated code each iteration reports its beginning
(`compile.lift.simulated_source`).

A warpgroup whose loop executes no operation never yields, so no other warpgroup can end the loop:
only its own iterations are counted. A loop that waits and arrives may exchange barrier arrivals
with others forever: its iterations are counted since any warpgroup of the cluster has accessed a
tile or an array. A loop that does access tiles or arrays counts as endless after a million
iterations, which take minutes to simulate.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from ..diagnostics.errors import PipelineDeadlock, SimulationError, reported
from ..traces.deadlocks import Hint
from . import deadlock_search, race_report
from .state import Warpgroup

MOST = 1_000_000
"""Iterations of a loop without an operation, and of one that accesses tiles or arrays."""
IDLE = 20_000
"""Iterations with operations since a tile or an array was last accessed; twice the failed tests
that count as a deadlock."""
TURNS = 4_000
"""The number of these in which a phase has ended."""


@dataclass
class Rounds:
    """Iterations of `while` loops that a warpgroup has begun.

    idle       since any warpgroup of its cluster has accessed a tile or an array
    touched    the number of such accesses then, and `time` the warpgroup's virtual time then
    turns      the idle iterations in which a phase has ended; `progress` is that of the SMs in
               the newest
    busy       iterations in which a tile or an array was accessed
    """

    idle: int = 0
    touched: int = -1
    time: int = 0
    turns: int = 0
    progress: int = 0
    busy: int = 0


def begin(who: Warpgroup) -> None:
    """Count an iteration of the warpgroup's innermost loop. Raises PipelineDeadlock if there are
    too many."""
    rounds = who.loops
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
            raise endless(
                who,
                f"has run {MOST} iterations of this loop without an operation in it: the values "
                "that its condition tests do not change",
            )
    elif rounds.idle > IDLE or rounds.turns > TURNS:
        raise _together(who)
    if rounds.busy > MOST:
        raise endless(
            who,
            f"has run {MOST} iterations of its loops and has not ended: the simulator treats them "
            "as endless",
        )


def endless(who: Warpgroup, what: str) -> SimulationError:
    """Return the error for a loop that no other warpgroup can end."""
    return race_report.race(
        who,
        what,
        hazard="livelock",
        error=PipelineDeadlock,
        fix=(
            "change in the body what the loop's condition tests, or end it by a count; to wait for "
            "another warpgroup, use barrier_wait instead of a loop"
        ),
    )


def _together(who: Warpgroup) -> SimulationError:
    """Return the error for warpgroups that wait for each other and arrive, and do nothing else."""
    fix = (
        "end the loop by a count, or by a value that its body changes, in all warpgroups that "
        "wait for each other there"
    )
    hint = Hint(
        "livelock",
        f"hint: in {who.loops.idle} iterations of a loop of {who.name}, no warpgroup has accessed "
        "a tile or an array: the warpgroups only signal each other",
        fix,
    )
    found = deadlock_search.report_of(who.sm, "warpgroups loop without progress", [hint])
    now = race_report.party(who, "repeats its loop")
    return reported(PipelineDeadlock, dataclasses.replace(found, now=now, waiting=()))
