"""The state of a CTA's SM and of its warpgroups, and the records of accesses and mbarriers.

The other files are typed against this one. It imports none of them, so objects of their types are
`Any` here.
"""

from __future__ import annotations

import contextvars
import functools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from greenlet import GreenletExit, getcurrent, greenlet

from ..arch.dimensions import Dim3, Ints
from ..diagnostics.reports import Party
from ..plan.roles import COMPUTE
from .clocks import WAITED, Clocks, Need, Release, Warps
from .footprints import ARRIVE, AWAIT
from .sites import Note, Site, context, lines, place, statement, user_site

if TYPE_CHECKING:
    from ..traces.trace import Trace
    from .boxes import Box
    from .progress import RunProgress
    from .schedule import Costs, InOrder, Ready, WorkCounter


class Access:
    """One access by one agent, with the counters (`clocks`) that a later access must know for the
    two to be ordered.

    A generic access must know `needs`, a TMA copy or wgmma `async_needs`. These differ for generic
    stores, which must be fenced.
    """

    __slots__ = (
        "again",
        "agent",
        "async_needs",
        "box",
        "epoch",
        "kind",
        "last_note",
        "last_wait",
        "mbar",
        "needs",
        "over",
        "phase",
        "readers",
        "site",
        "waits",
        "what",
        "where",
    )

    def __init__(
        self,
        agent: Warpgroup,
        kind: str,
        what: str,
        needs: tuple[Need, ...],
        async_needs: tuple[Need, ...] | None = None,
        mbar: Mbarrier | None = None,
        phase: int = 0,
    ) -> None:
        self.agent = agent
        self.kind = kind
        self.what = what
        self.needs = needs
        self.async_needs = needs if async_needs is None else async_needs
        self.mbar = mbar
        self.phase = phase
        self.site = user_site()
        self.last_note = agent.last_note
        self.last_wait = agent.last_wait
        agent.sm.touched += 1
        self.epoch = 0
        """For a wgmma: the epoch of its warpgroup's last warp, for reports."""
        self.box: Box | None = None
        """The box that a TMA copy moves, at `where` in its array."""
        self.over: Access | None = None
        """For a TMA load: the access that had written the bytes before it."""
        self.where: Ints = ()
        self.readers: Sequence[Access] = ()
        """For what arrives on an mbarrier: the reads of the bytes that were there before."""
        self.waits = int(agent.counters[WAITED][0])
        self.again = False
        """Whether it reads what it has read before (`repeats`)."""

    def repeats(self, read: Access) -> bool:
        """Return whether its warp, at the same line, has made `read` before, and has released
        something since, but has not waited: it expects the next tile."""
        return (read.agent, read.site, read.waits) == (self.agent, self.site, self.waits) and (
            read.needs[0][1] < self.needs[0][1]
        )

    def describe(self) -> str:
        return f"{self.kind} ({self.what})" if self.what else self.kind

    def tell(self) -> str:
        """Describe who accessed what, where, on which barrier, in which step."""
        on = f", on {self.mbar.name} phase {self.phase}" if self.mbar is not None else ""
        return (
            f"{self.describe()} by {self.agent.title} at "
            f"{place(self.site)}{on}{context(self.last_note, self.last_wait)}"
        )


class Mbarrier:
    """One live mbarrier."""

    def __init__(self, owner: Warpgroup, address: int, count: int, name: str, epoch: int) -> None:
        sm = owner.sm
        self.sm = sm
        self.address = address
        self.name = name or f"mbarrier at {address}"
        self.count = count
        self.pending = count
        self.thing = "mbarrier", sm.place, address
        self.tx = 0
        self.phase = 0
        """Number of the present phase; phases 0 … phase - 1 are complete."""
        self.expected = 0
        """Bytes announced in this phase."""
        self.copies = 0
        """TMA loads in flight towards this phase."""
        self.last: Access | None = None
        """The newest copy issued."""
        self.waited = -1
        """The newest phase that was waited for."""
        self.observed = False
        """Whether a phase may complete only after the previous one was waited for."""
        self.arrivals: list[tuple[Warpgroup, int, Site]] = []
        self.arrivals_before: list[tuple[Warpgroup, int, Site]] = []
        """The arrivals of the previous phase, for reports."""
        self.waiters: list[tuple[Warpgroup, int]] = []
        self.waits: list[tuple[Warpgroup, int, int, Site, tuple[Need, ...]]] = []
        """The waits for the newest phase: who, phase, step, line, and what must be known for the
        wait to be over."""
        self.landed = sm.add_counter()  # before the vectors, because it may widen them
        self.current = sm.clocks.vector()
        self.done = sm.clocks.vector()
        self.time = self.done_time = 0
        self.site = user_site()
        self.owner, self.warp, self.epoch = owner, owner.first_warp, epoch
        self.twins: Sequence[Mbarrier] = ()
        """mbarriers of other CTAs: each arrival here is also an arrival there."""
        self.used: dict[int, tuple[int, Warpgroup, Site]] = {}
        """By warp, the epoch of its newest operation here; empty for an mbarrier of the entry,
        which is never invalidated."""

    @property
    def title(self) -> str:
        return self.name if len(self.sm.group) == 1 else f"{self.name} of {self.sm.where}"

    @property
    def idle(self) -> bool:
        return self.pending == self.count and not self.tx and not self.waiters and not self.copies

    def waits_of(self, phase: int) -> tuple:
        """Return the thing that a wait for a phase touches, and the end of the next phase, which
        fails if it does not know that the wait is over."""
        return "waits", self.sm.place, self.address, phase

    def blocks(self, phase: int) -> bool:
        """Return whether a wait for a phase blocks, which depends on the parity."""
        return self.phase <= phase and bool((self.phase - 1 ^ phase) & 1)

    def by_warpgroup(self, *, before: bool = False) -> tuple[tuple[str, int], ...]:
        """Return (warpgroup's name, arrivals) in the present phase, or in the one `before`."""
        counts = Counter[str]()
        for who, times, _ in self.arrivals_before if before else self.arrivals:
            counts[who.name if len(self.sm.group) == 1 else f"{who.name} of {who.sm.where}"] += (
                times
            )
        return tuple(counts.items())

    def party(self) -> Party:
        return side(self.owner, f"initializes {self.name}", self.site, barrier=self.name)


def side(agent: Warpgroup | Party, did: str, site: Site = None, **where: Any) -> Party:
    """Return one side of a report; `where` holds further fields of `Party`."""
    return Party(
        did, agent.warpgroup, str(agent.role), agent.cta, lines(site), gpu=agent.gpu, **where
    )


class Reached:
    """The last accesses of others to a memory, by their counters.

    An agent that ends the use of that memory must know that all of them are over.
    """

    def __init__(self) -> None:
        self._last: dict[int, tuple[int, Warpgroup, str, Site]] = {}

    def add(self, who: Warpgroup, what: str, needs: Iterable[Need], site: Site) -> None:
        for index, value in needs:
            # what a warp sent first may arrive last
            if index not in self._last or self._last[index][0] <= value:
                self._last[index] = value, who, what, site

    def unknown(self, warpgroups: Iterable[Warpgroup]) -> Iterator[tuple[Warpgroup, str, Site]]:
        """Yield who did what, and where, for each access that these warpgroups do not know to be
        over."""
        known = np.maximum.reduce([np.maximum.reduce(w.vectors) for w in warpgroups])
        for index, (value, who, what, site) in self._last.items():
            if known[index] < value:
                yield who, what, site


HELD, HELD_LAST = "held", "held last"
"""`WaitReason.kind` of a warpgroup that will report an error (`Warpgroup.hold`)."""


class WaitReason:
    """A reason why a warpgroup cannot continue; `kind` is the kind of the event in a trace."""

    def __init__(self, kind: str, text: str = "") -> None:
        self.kind = kind
        self._text = text
        self.waiters: list[Warpgroup] = []

    def text(self) -> str:
        return self._text

    def enqueue(self, who: Warpgroup, **details: Any) -> None:
        """Block `who` until `open` is called."""
        self.waiters.append(who)
        who.block(self, **details)

    def open(self, time: int) -> None:
        """Wake all warpgroups that wait here, at cycle `time`."""
        waiters, self.waiters = self.waiters, []
        for waiter in waiters:
            waiter.wake(time)


class MbarrierWait(WaitReason):
    """The wait of a warpgroup that is blocked in `mbar_wait`, or tests an mbarrier repeatedly."""

    def __init__(self, mbar: Mbarrier, phase: int, step: int = -1, kind: str = "wait") -> None:
        super().__init__(kind)
        self.mbar = mbar
        self.phase = phase
        self.step = step

    def text(self) -> str:
        return (
            f"{self.mbar.title} phase {self.phase}"
            + (f" step {self.step}" if self.step >= 0 else "")
            + (", which it polls" if self.kind == "poll" else "")
        )


class Meeting(WaitReason):
    """One use of a barrier at which warpgroups meet: the knowledge that they exchange, and the
    cycle of the newest arrival."""

    def __init__(self, kind: str, sm: SM, thing: tuple, number: int) -> None:
        super().__init__(kind)
        self.sm = sm
        self.thing, self.number = thing, number
        """The barrier, and the number of its use."""
        self.arrived: list[Warpgroup] = []
        self.vector = sm.clocks.vector()
        self.time = 0
        self.complete = False

    def arrive(self, who: Warpgroup, missing: int, delay: int = 0) -> None:
        """Count an arrival, one of the `missing` ones; others see it after `delay`."""
        self.sm.scheduler.touch(self.thing, ARRIVE, self.number, (1, 0), (missing, 0))
        self.vector = self.sm.clocks.widen(self.vector)
        who.release_into(self.vector)
        self.arrived.append(who)
        self.time = max(self.time, who.time + delay)

    def end(self) -> None:
        self.complete = True
        self.open(self.time)

    def meet(self, who: Warpgroup, **details: Any) -> None:
        """Wait until all have arrived; `who` then knows what they knew."""
        if self.sm.scheduler.explores:
            who.breathe(lambda: self.complete)
        self.sm.scheduler.touch(self.thing, AWAIT, self.number)
        if not self.complete:
            self.enqueue(who, **details)
        who.acquire(self.sm.clocks.widen(self.vector))
        who.time = max(who.time, self.time)


class Warpgroup(Warps):
    """A warpgroup's identity, its virtual clock, and what it waits for. Its operations are in
    `port`, which runs ``body(self)``."""

    products: Any
    """`wgmma_groups.Products`: its wgmmas."""
    bulk_groups: Any
    """`tma_copies.Groups`: its TMA stores."""
    loops: Any
    """`livelocks.Rounds`: its loops."""

    def __init__(self, sm: SM, number: int, body: Callable[[Any], None]) -> None:
        super().__init__(sm.clocks, 4 * (number + sm.wide * sm.place))
        self.sm = sm
        self.warpgroup = number
        self.role = COMPUTE
        self.cta = sm.cta
        self.grid = sm.grid
        self.unit = sm.unit
        self.rank, self.place = sm.rank, sm.place
        self.scheduler, self.costs, self.gmem = sm.scheduler, sm.costs, sm.gmem
        self.gpu = sm.gpu
        self.deal = sm.deal
        self.over = False
        self.remote_arrivals: list = []
        """`cluster_traffic.RemoteArrival`: its arrivals in flight on other CTAs' mbarriers."""
        self.cluster_meeting: Meeting | None = None
        """The use of the cluster barrier that it has arrived at and not waited for."""
        self.time = 0
        self.blocked: WaitReason | None = None
        self.ready = False
        self.last_note: Note = "", {}
        self.last_wait: tuple[str, int, int] | None = None
        self.recent: dict[tuple[str, int], Access] = {}
        self.stale: tuple[Access, Access] | None = None
        """Its newest read that repeats another one, and what wrote the bytes."""
        self.greenlet: greenlet = greenlet(functools.partial(body, self))

    # ---- identity, for reports
    @property
    def name(self) -> str:
        return f"warpgroup {self.warpgroup} ({self.role})"

    @functools.cached_property
    def identity(self) -> Party:
        """The warpgroup's number, role, CTA and GPU, which accesses to global memory still need
        when the CTA has ended."""
        return Party("", self.warpgroup, self.role.name, self.cta, gpu=self.gpu)

    @property
    def title(self) -> str:
        return (
            self.name
            if self.cta == (0, 0, 0) and len(self.sm.group) == 1
            else f"{self.name} of {self.sm.where}"
        )

    # ---- running
    def resume(self, time: int) -> None:
        """Run the warpgroup until it waits again: a task of the scheduler."""
        self.ready = False
        self.blocked = None
        self.time = max(self.time, time)
        self.greenlet.switch()

    def wake(self, time: int) -> None:
        """Let the warpgroup continue from cycle `time`."""
        if not self.ready:
            self.ready = True
            self.time = max(self.time, time)
            self.scheduler.push(self.time, self.resume, self)

    def switch(self) -> None:
        """Yield the SM to others, which wake this warpgroup."""
        self.sm.hub.switch()
        if self.sm.closing:
            raise GreenletExit

    def block(self, reason: WaitReason, **details: Any) -> None:
        """Yield the SM to others until `wake`."""
        if self.sm.closing:
            raise GreenletExit
        start = self.time
        self.blocked = reason
        try:
            self.switch()
        except GreenletExit:  # the run has failed
            # a cycle later: a wait of no cycles would not be shown in a timeline
            now = max(w.time for w in self.sm.warpgroups) + 1
            self.record(start, now, reason.kind, **details, unfinished=True)
            raise
        if self.time > start:
            self.record(start, self.time, reason.kind, **details)

    def record(self, start: int, end: int, kind: str, **details: Any) -> None:
        """Add an event to the trace, if there is one."""
        if self.sm.trace is not None:
            if site := user_site():
                details["statement"] = statement(site)
            self.sm.trace.add(self, start, end, kind, **details)

    def hold(self, kind: str = HELD) -> None:
        """Let all others run as far as they can: what they do explains an error that is certain.

        With `kind` HELD_LAST, errors that others hold are reported first.
        """
        if getcurrent() is self.greenlet:
            self.block(WaitReason(kind))

    def breathe(self, ready: Ready | None = None) -> None:
        """Let the scheduler run others here, although this warpgroup could continue; unless
        `ready`, it would only wait."""
        if self.sm.closing:
            raise GreenletExit
        if (pause := self.scheduler.pause(ready)) is not None:
            self.wake(self.time + pause)
            self.switch()

    def elapse(self, cycles: int) -> None:
        self.time += cycles

    def elapse_issue(self) -> None:
        self.time += self.costs.issue

    def elapse_wait(self) -> None:
        self.time += self.costs.wait

    def elapse_moving(self, nbytes: int) -> None:
        """Take the time of an ordinary shared-memory access."""
        self.time += -(-nbytes // self.costs.generic_bytes)


@dataclass(eq=False, repr=False, kw_only=True)
class SM:
    """One CTA on its SM, with `wide` warpgroups. `gmem` outlives it.

    `peers` are the SMs of its cluster, by rank. `group` are the SMs that run at the same time and
    share the scheduler and the clocks, by `place`: the cluster's SMs, or those of all `gpus`
    (`gpus.Gpus`). `gpu` is the number of its own GPU (None if there is only one).
    """

    poll_limit = 10_000
    """Failed tests in a row that count as a deadlock, if nothing else happens."""
    cta: Dim3
    grid: Dim3
    wide: int
    unit: Any
    scheduler: InOrder
    clocks: Clocks
    peers: list[SM]
    group: list[SM]
    costs: Costs
    trace: Trace | None
    context: contextvars.Context
    gmem: Any
    """`gmem.GlobalMemory`."""
    deal: WorkCounter
    run_progress: RunProgress
    gpus: Any
    gpu: int | None

    def __post_init__(self) -> None:
        self.memory: Any
        """`smem.SharedMemory`."""
        self.meeting: Any
        """`cluster_traffic.ClusterMeeting`, held by the cluster's first CTA: the present use of its
        barrier."""
        self.registers: Any
        """`named_barriers.Registers`."""
        self.hub = getcurrent()
        self.closing, self.touched = False, 0
        """Counts accesses to tiles and arrays."""
        self.progress = 0
        """Counts the events that can end a wait."""
        self.polls, self.polled_at = 0, -1
        self.rank, self.place = len(self.peers), len(self.group)
        self.peers.append(self)
        self.group.append(self)
        self.ended = False
        self.reached = Reached()
        """Accesses of other CTAs to its memory (`cluster_traffic.reach`)."""
        self.sent = Reached()
        """Its copies to other CTAs, by the counters of the mbarriers that they complete on."""
        self.agreed: dict[tuple, Any] = {}
        """`cluster_traffic.Agreement`, held by the cluster's first CTA."""
        self.came: dict[tuple, int] = {}
        """How often this CTA has come to each agreement."""
        self.mbarriers: dict[int, Mbarrier] = {}
        self.retired: list[Mbarrier] = []
        self.named: dict[int, Any] = {}
        """`named_barriers.Generation`: the present use of each named barrier."""
        self.named_over: dict[int, Any] = {}
        """Its newest use that is over."""
        self.acquired: dict[int, Release] = {}
        """Releases that flags of other CTAs carried, by the counter that represents having seen the
        flag."""
        self._free: dict[str, int] = {}
        """When its "copy port" and its "tensor core" are free."""
        self.warpgroups: list[Warpgroup] = []

    @property
    def where(self) -> str:
        """The CTA's name in reports: ``CTA (1, 0, 0) of GPU 1``."""
        return f"CTA {self.cta}" + ("" if self.gpu is None else f" of GPU {self.gpu}")

    def occupy(self, unit: str, time: int, cycles: int) -> tuple[int, int]:
        """Occupy a unit that all warpgroups share for `cycles`, from `time` at the earliest; return
        its (start, end)."""
        self._free[unit] = (start := max(time, self._free.get(unit, 0))) + cycles
        return start, start + cycles

    # ---- vectors
    def add_counter(self) -> int:
        """Return a counter for a new mbarrier, or for a flag that has been seen; make room for it
        in every vector."""
        clocks = self.clocks
        clocks.used += 1
        if clocks.used > clocks.width:
            clocks.width *= 2
            for sm in self.group:
                sm.widen()
        return clocks.used - 1

    def widen(self) -> None:
        for warpgroup in self.warpgroups:
            warpgroup.widen()
        for mbar in self.mbarriers.values():
            mbar.current, mbar.done = self.clocks.widen(mbar.current), self.clocks.widen(mbar.done)
