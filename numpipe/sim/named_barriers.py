"""Named barriers (``bar.sync``, ``bar.arrive``) and the pool of registers (``setmaxnreg``).

PTX ISA, "Parallel Synchronization and Communication Instructions: bar", "Miscellaneous
Instructions: setmaxnreg".
"""

from __future__ import annotations

from collections import Counter
from typing import Literal

from ..diagnostics.reports import Party
from ..language.pipeline.pingpong import turn_of
from ..traces.deadlocks import Hint
from . import race_report, sites
from .clocks import NAMED_BARRIERS
from .footprints import ARRIVE, TEST
from .state import SM, Meeting, WaitReason, Warpgroup, side


class Generation(Meeting):
    """One use of a named barrier, from its first arrival to its last."""

    def __init__(
        self, who: Warpgroup, barrier: int, threads: int, before: Generation | None
    ) -> None:
        super().__init__(
            "barrier",
            who.sm,
            ("named", who.place, barrier),
            1 if before is None else before.number + 1,
        )
        self.barrier = barrier
        self.threads = threads
        self.before = before
        self.turn = turn_of(who.unit, barrier)
        self.meaning = f" ({self.turn})" if self.turn else ""
        self.site = sites.user_site()
        # numpipe's own use at the kernel's end has no line: report the line of the previous turn
        if self.site is None and self.turn:
            which = self.turn.rpartition(" of ")[0]
            uses = (*who.sm.named.values(), *who.sm.named_over.values())
            self.site = next(
                (use.site for use in uses if use.site and use.turn.rpartition(" of ")[0] == which),
                None,
            )

    def party(self) -> Party:
        return side(
            self.arrived[0],
            f"uses named barrier {self.barrier} with {self.threads} threads",
            self.site,
        )

    def text(self) -> str:
        return (
            f"bar_sync {self.barrier}{self.meaning}: {self.count} have arrived "
            f"({', '.join(w.name for w in self.arrived)})"
        )

    @property
    def missing(self) -> int:
        return self.threads // 128 - len(self.arrived)

    @property
    def count(self) -> str:
        return f"{128 * len(self.arrived)} of {self.threads} threads"


def _join(who: Warpgroup, barrier: int, threads: int, operation: str) -> Generation:
    """Arrive at a named barrier. Return the use of it that this arrival counts for."""
    race_report.collective(who, operation)
    sm, barrier, threads = who.sm, int(barrier), int(threads)
    if not 0 <= barrier < NAMED_BARRIERS:
        raise race_report.illegal(
            who, f"{operation} {barrier}", fix=f"a CTA has named barriers 0 … {NAMED_BARRIERS - 1}"
        )
    if threads < 128 or threads % 128 or threads > 128 * len(sm.warpgroups):
        raise race_report.violation(
            who,
            f"{operation} {barrier} with {threads} threads; whole warpgroups take part, so it "
            f"must be a multiple of 128, at most the CTA's {128 * len(sm.warpgroups)}",
            hazard="named-barrier-mismatch",
        )
    generation = sm.named.get(barrier)
    if generation is None:
        generation = sm.named[barrier] = Generation(
            who, barrier, threads, sm.named_over.get(barrier)
        )
    over = generation.before
    sm.scheduler.touch(generation.thing, ARRIVE, generation.number, (1, 0), (generation.missing, 0))
    if over is not None and who.knows(sm.clocks.named(barrier, sm.place)) < over.number:
        users = ", ".join(
            name if times == 1 else f"{name} ({times} times)"
            for name, times in Counter(w.name for w in over.arrived).items()
        )
        raise race_report.race(
            who,
            f"{operation} {barrier} with {threads} threads, but nothing orders this after the use "
            f"of the barrier at {sites.place(over.site)} by {users}: its warps may be counted "
            "there; use another barrier, or wait for the end of that use",
            hazard="named-barrier-mismatch",
            before=over.party(),
        )
    if generation.threads != threads:
        raise race_report.violation(
            who,
            f"{operation} {barrier} with {threads} threads, but {sites.place(generation.site)} "
            f"uses it with {generation.threads} at the same time; every participant must give the "
            "same number",
            hazard="named-barrier-mismatch",
            before=generation.party(),
        )
    who.elapse_issue()
    generation.arrive(who, generation.missing)
    if not generation.missing:
        generation.vector[sm.clocks.named(barrier, sm.place)] = generation.number
        generation.before = None
        sm.progress += 1
        sm.named_over[barrier] = generation
        del sm.named[barrier]
        generation.end()
    return generation


def sync(who: Warpgroup, barrier: int, threads: int) -> None:
    who.breathe()
    _join(who, barrier, threads, "bar_sync").meet(who, barrier=int(barrier))
    who.elapse(who.costs.barrier)


def arrive(who: Warpgroup, barrier: int, threads: int) -> None:
    who.breathe()
    _join(who, barrier, threads, "bar_arrive")


class Registers:
    """The registers that the CTA holds, the registers of each warpgroup's lanes, and the warpgroups
    that wait for more.

    setmaxnreg moves registers between warpgroups; it cannot take any from the SM that the CTA did
    not hold at launch. (Three warpgroups start with 168 per lane, 504 in all: 32 + 240 + 240 hangs
    on an H200, although the SM has 512.)
    """

    def __init__(self, sm: SM, at_entry: int, warpgroups: int) -> None:
        self.sm = sm
        self.held = [at_entry] * warpgroups
        self.pool = 128 * sum(self.held)
        self.wanted = list(self.held)
        self.waiters: list[Warpgroup] = []

    @property
    def free(self) -> int:
        """The registers that no warpgroup holds."""
        return self.pool - 128 * sum(self.held)

    def set(self, who: Warpgroup, direction: Literal["inc", "dec"], registers: int) -> None:
        """Change the registers of every lane of `who`; block an ``inc`` until they are free."""
        race_report.collective(who, "setmaxnreg")
        who.elapse(self.sm.costs.registers)
        held = self.held[who.warpgroup]
        if registers % 8 or not 24 <= registers <= 256:
            raise race_report.illegal(
                who, f"setmaxnreg.{direction} {registers}", fix="a multiple of 8 in 24 … 256"
            )
        if (direction == "dec" and registers > held) or (direction == "inc" and registers < held):
            raise race_report.violation(
                who,
                f"setmaxnreg.{direction} {registers}, but each lane holds {held} registers; "
                f"use {'inc' if direction == 'dec' else 'dec'}",
                hazard="register-budget",
            )
        self.wanted[who.warpgroup] = registers
        wanted = 128 * (registers - held)
        if direction == "inc" and self.sm.scheduler.explores:
            who.breathe(lambda: wanted <= self.free)
        thing = "registers", who.place
        # two granted incs commute; an inc that waits, or a dec, commutes with neither
        self.sm.scheduler.touch(
            thing,
            TEST if direction == "inc" else ARRIVE,
            0,
            (wanted, 0) if wanted > 0 else None,
            (self.free, 0),
        )
        while wanted > self.free:
            self.sm.scheduler.touch(thing, ARRIVE, -1)
            self.waiters.append(who)
            who.block(
                WaitReason(
                    "registers",
                    f"setmaxnreg.inc to {registers} registers: {wanted} wanted, {self.free} free "
                    "in the SM's pool",
                ),
                registers=registers,
            )
        self.held[who.warpgroup] = registers
        if direction == "dec":
            self.sm.progress += 1
            while self.waiters:
                self.waiters.pop(0).wake(who.time)

    def hints(self) -> list[Hint]:
        """Return a hint why no registers become free, if a warpgroup waits for some."""
        if not self.waiters:
            return []
        total, most = 128 * sum(self.wanted), self.pool // 128
        never = total > self.pool
        why = (
            f"this can never be granted; the counts of the warpgroups must add up to at most {most}"
            if never
            else "a warpgroup that gives registers back never ran its dec"
        )
        fix = (
            f"counts that add up to at most {most}: another warpgroup gives registers back first"
            if never
            else (
                "setmaxnreg.dec by the warpgroup that gives registers back, before it waits for "
                "anything"
            )
        )
        return [
            Hint(
                "register-budget",
                f"registers: {' + '.join(map(str, self.wanted))} per lane = {sum(self.wanted)} x "
                f"128 = {total} wanted, the CTA holds {self.pool}: {why}",
                fix,
                never,
            )
        ]


def unfinished(sm: SM) -> None:
    """Raise PipelineRace at the CTA's end for a turn that was passed on but not taken."""
    for left in sm.named.values():
        if left.turn:
            raise race_report.race(
                sm.warpgroups[0],
                f"the CTA ends, but no warpgroup took {left.turn}, which {left.arrived[0].name} "
                f"passed at {sites.place(left.site)} (named barrier {left.barrier}: {left.count}); "
                f"{_fix(left)}",
                left.site,
                hazard="named-barrier-mismatch",
                before=left.party(),
            )


def hints(sm: SM) -> list[Hint]:
    """Return a hint for each named barrier at which a warpgroup waits."""
    elsewhere = [
        w for w in sm.warpgroups if not w.greenlet.dead and not isinstance(w.blocked, Generation)
    ]
    return [
        Hint(
            "named-barrier-mismatch",
            f"named barrier {g.barrier}{g.meaning}: {g.count} (at {sites.place(g.site)})"
            f"{_ended(sm, g)}",
            _fix(g),
            not elsewhere,
        )
        for g in sm.named.values()
        if g.waiters
    ]


def _fix(generation: Generation) -> str:
    if generation.turn.startswith("the turn '"):
        return (
            "every compute warpgroup must enter the blocks of a numpipe.turn equally often, and "
            "must not wait inside one for work that another warpgroup does after its own block"
        )
    if generation.turn:
        return (
            "a warpgroup must not wait for another one during its turn, because the others wait "
            "for theirs: synchronize before or after the tiles"
        )
    return (
        f"use the same number and the same count of threads in all warpgroups that meet at named "
        f"barrier {generation.barrier}, and let that many warpgroups reach it"
    )


def _ended(sm: SM, generation: Generation) -> str:
    """Describe which warpgroups have ended without arriving at a named barrier that needs them."""
    missing = [w for w in sm.warpgroups if w not in generation.arrived]
    if (
        128 * (len(generation.arrived) + sum(not w.greenlet.dead for w in missing))
        >= generation.threads
    ):
        return ""
    ended = [w.name for w in missing if w.greenlet.dead]
    return f"; {', '.join(ended)} ha{'ve' if len(ended) > 1 else 's'} ended without it"
