"""What a CTA's SM and its warpgroups hold, and what is remembered of accesses and mbarriers.

All concepts of the simulator are typed against this file, and it knows none of them: what they hold is `Any` here.
"""

from __future__ import annotations

import contextvars
import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from greenlet import GreenletExit, getcurrent, greenlet

from ..core.machine import Role, TensorMap
from ..diagnostics.reports import Party
from .clocks import Clocks, Need, Vector, Warps
from .sites import Site, context, line_of, place, user_site

if TYPE_CHECKING:
    from ..traces import Trace
    from .boxes import Box
    from .deal import Deal
    from .schedule import Costs, InOrder


class Access:
    """One access by one agent: what must be covered (`clocks`) before another access may conflict with it.

    `needs` is what a generic access must know, `async_needs` what a TMA or wgmma must: they differ for generic stores,
    which have to be fenced.
    """

    __slots__ = ("agent", "async_needs", "box", "epoch", "kind", "mbar", "needs", "note_", "over", "phase", "site", "wait_",
                 "what", "where")

    def __init__(self, agent: Warpgroup, kind: str, what: str, needs: tuple[Need, ...],
                 async_needs: tuple[Need, ...] | None = None, mbar: Mbarrier | None = None, phase: int = 0) -> None:
        self.agent = agent
        self.kind = kind
        self.what = what
        self.needs = needs
        self.async_needs = needs if async_needs is None else async_needs
        self.mbar = mbar
        self.phase = phase
        self.site = user_site()
        self.note_ = agent.note_
        self.wait_ = agent.wait_
        self.epoch = 0
        """of a wgmma: that of its warpgroup's last warp, for reports"""
        self.box: Box | None = None
        """what a TMA copy moves, and `where` in its array"""
        self.over: Access | None = None
        """of a TMA load: what had written the bytes before it"""
        self.where: tuple[int, ...] = ()

    def describe(self) -> str:
        return f"{self.kind} ({self.what})" if self.what else self.kind

    def tell(self) -> str:
        """Who, where, on which barrier, in which step."""
        on = f", on {self.mbar.name} phase {self.phase}" if self.mbar is not None else ""
        where = f"{self.describe()} by {self.agent.title} at {place(self.site)}{on}"
        return where + context(self.note_, self.wait_)


class Mbarrier:
    """One live mbarrier."""

    __slots__ = ("address", "arrivals", "copies", "count", "current", "done", "done_time", "epoch",
                 "expected", "landed", "last", "name", "observed", "owner", "pending", "phase", "site", "sm", "time",
                 "twins", "tx", "used", "waited", "waiters", "warp")

    def __init__(self, owner: Warpgroup, address: int, count: int, name: str, epoch: int) -> None:
        sm = owner.sm
        self.sm = sm
        self.address = address
        self.name = name or f"mbarrier at {address}"
        self.count = count
        self.pending = count
        self.tx = 0
        self.phase = 0
        """number of the phase that is going on; phases 0 … phase - 1 are complete"""
        self.expected = 0
        """bytes announced in this phase"""
        self.copies = 0
        """TMA loads in flight towards this phase"""
        self.last: Access | None = None
        """the newest copy issued"""
        self.waited = -1
        """the newest phase somebody waited for"""
        self.observed = False
        """whether a phase may complete only after somebody has waited for the one before"""
        self.arrivals: list[tuple[Warpgroup, int]] = []
        self.waiters: list[tuple[Warpgroup, int]] = []
        self.landed = sm.add_mbarrier_counter()  # before the vectors: it may widen them
        self.current = sm.clocks.vector()
        self.done = sm.clocks.vector()
        self.time = self.done_time = 0
        self.site = user_site()
        self.owner, self.warp, self.epoch = owner, owner.first_warp, epoch
        self.twins: Sequence[Mbarrier] = ()
        """in other CTAs, where whoever arrives here arrives there too"""
        self.used: dict[int, tuple[int, Warpgroup, Site]] = {}
        """by warp, the epoch of its newest operation on it; not of an mbarrier of the entry, which is never invalidated"""

    @property
    def idle(self) -> bool:
        return self.pending == self.count and not self.tx and not self.waiters and not self.copies

    def by_warpgroup(self) -> tuple[tuple[str, int], ...]:
        """(warpgroup's name, arrivals) in this phase."""
        found: dict[str, int] = {}
        for who, times in self.arrivals:
            name = who.name if len(self.sm.peers) == 1 else f"{who.name} of CTA {who.cta}"
            found[name] = found.get(name, 0) + times
        return tuple(found.items())

    def party(self) -> Party:
        """Who initialised it, for reports."""
        owner = self.owner
        return Party(f"initialises {self.name}", owner.warpgroup, owner.role, owner.cta,
                     () if self.site is None else (line_of(self.site),), barrier=self.name)

    def arrived(self) -> Party | None:
        """Who has arrived last in this phase, for reports; its line is not kept."""
        who = self.arrivals[-1][0] if self.arrivals else None
        return None if who is None else Party(f"arrived on {self.name}", who.warpgroup, who.role, who.cta, barrier=self.name,
                                              phase=self.phase)


class Agent(NamedTuple):
    """A warpgroup, when the CTA that it was of has ended."""

    name: str
    warpgroup: int
    role: str
    cta: tuple[int, int, int]


class Blocked:
    """Why a warpgroup cannot go on; `kind` is that of a trace's event."""

    def __init__(self, kind: str, text: str = "") -> None:
        self.kind = kind
        self._text = text
        self.waiters: list[Warpgroup] = []

    def text(self) -> str:
        """For reports of deadlocks."""
        return self._text

    def enqueue(self, who: Warpgroup, **details: Any) -> None:
        """Block until somebody calls `open`."""
        self.waiters.append(who)
        who.block(self, **details)

    def open(self, time: int) -> None:
        """Wake all who wait here, at cycle `time`."""
        waiters, self.waiters = self.waiters, []
        for waiter in waiters:
            waiter.wake(time)


class Meeting(Blocked):
    """One use of a barrier at which warpgroups meet: what they tell each other, and the cycle of the newest arrival."""

    def __init__(self, kind: str, clocks: Clocks) -> None:
        super().__init__(kind)
        self.arrived: list[Warpgroup] = []
        self.vector = clocks.vector()
        self.time = 0
        self.complete = False

    def arrive(self, who: Warpgroup) -> None:
        who.elapse(who.sm.costs.issue)
        who.release_into(self.vector)
        self.arrived.append(who)
        self.time = max(self.time, who.time)

    def end(self) -> None:
        """All are there."""
        self.complete = True
        self.open(self.time)

    def meet(self, who: Warpgroup, **details: Any) -> None:
        """Wait until all are there; what they knew, this one knows then."""
        if not self.complete:
            self.enqueue(who, **details)
        who.acquire(self.vector)
        who.time = max(who.time, self.time)


class Warpgroup(Warps):
    """Who it is, what its warps know, its virtual clock, and what it waits for; its operations are in `port`."""

    products: Any
    """its wgmmas (`mma.Products`)"""
    bulk: Any
    """its TMA stores (`bulk.Groups`)"""

    def __init__(self, sm: SM, number: int, body: Callable[[Any], None]) -> None:
        """`body`: what it runs, called with the warpgroup."""
        super().__init__(sm.clocks, 4 * (number + sm.wide * sm.rank))
        self.sm = sm
        self.warpgroup = number
        self.role: Role = "compute"
        self.cta = sm.cta
        self.grid = sm.grid
        self.unit = sm.unit
        self.rank = sm.rank
        self.deal = sm.deal
        self.over = False
        self.remote: list[Any] = []
        """arrivals on other CTAs' mbarriers that are under way (`cluster.Sent`)"""
        self.met: Meeting | None = None
        """the use of the cluster's barrier that it has arrived at, and not waited for"""
        self.time = 0
        self.blocked: Blocked | None = None
        self.ready = False
        self.note_: tuple[str, dict[str, Any]] | None = None
        self.wait_: tuple[str, int, int] | None = None
        self.recent: dict[tuple[str, int], Access] = {}
        self.greenlet: greenlet = greenlet(functools.partial(body, self))

    # ---- identity, for reports
    @property
    def name(self) -> str:
        return f"warpgroup {self.warpgroup} ({self.role})"

    @functools.cached_property
    def identity(self) -> Agent:
        """What accesses to global memory remember of it."""
        return Agent(self.name, self.warpgroup, self.role, self.cta)

    @property
    def title(self) -> str:
        return self.name if self.cta == (0, 0, 0) and len(self.sm.peers) == 1 else f"{self.name} of CTA {self.cta}"

    # ---- running
    def resume(self, time: int) -> None:
        """The scheduler's task: go on until the next block."""
        self.ready = False
        self.blocked = None
        self.greenlet.switch()

    def wake(self, time: int) -> None:
        """What this warpgroup was blocked on happened at cycle `time`."""
        if not self.ready:
            self.ready = True
            self.time = max(self.time, time)
            self.sm.scheduler.push(self.time, self.resume, self)

    def switch(self) -> None:
        """Give the SM to others, who wake it."""
        self.sm.hub.switch()
        if self.sm.closing:
            raise GreenletExit

    def block(self, reason: Blocked, **details: Any) -> None:
        """Give the SM to others until `wake`."""
        if self.sm.closing:
            raise GreenletExit
        start = self.time
        self.blocked = reason
        try:
            self.switch()
        except GreenletExit:  # the run has failed
            if self.sm.trace is not None:
                now = max(w.time for w in self.sm.warpgroups)
                self.sm.trace.add(self, start, max(now, start), reason.kind, **details, unfinished=True)
            raise
        if self.sm.trace is not None and self.time > start:
            self.sm.trace.add(self, start, self.time, reason.kind, **details)

    def breathe(self) -> None:
        """Let the scheduler run others here, although this warpgroup could go on."""
        if self.sm.closing:
            raise GreenletExit
        pause = self.sm.scheduler.pause()
        if pause is not None:
            self.wake(self.time + pause)
            self.switch()

    def elapse(self, cycles: int) -> None:
        self.time += cycles


class Handed(NamedTuple):
    """What a release took with it: the CTA's number in the order of the run, and what the lane knew."""

    number: int
    vector: Vector


class SM:
    """One CTA on its SM. Nothing outlives it but GMEM, what `gmem` knows of it, and `plans` and `boxes`, derived geometry.

    `peers` are the SMs of its cluster, by rank, itself among them; they have the scheduler and the clocks in common.
    """

    poll_limit = 10_000
    """failed tests in a row, with nothing else happening, that count as a deadlock"""
    memory: Any
    """`memory.SharedMemory`"""
    meeting: Any
    """of the cluster's first CTA: the use of its barrier that has not come to its end (`cluster.ClusterMeeting`)"""
    registers: Any
    """`named.Registers`"""

    def __init__(self, *, cta: tuple[int, int, int], grid: tuple[int, int, int], warpgroups: int, unit: Any, scheduler: InOrder,
                 clocks: Clocks, peers: list[SM], costs: Costs, trace: Trace | None, context: contextvars.Context,
                 boxes: dict[TensorMap, Box], plans: dict[Any, Any], gmem: Any, deal: Deal) -> None:
        self.context = context
        self.cta = cta
        self.grid = grid
        self.unit = unit
        self.scheduler = scheduler
        self.costs = costs
        self.trace = trace
        self.boxes = boxes
        self.plans = plans
        """of wgmmas (`mma.Plan`)"""
        self.gmem = gmem
        """`gmem.GlobalMemory`"""
        self.deal = deal
        self.hub = getcurrent()
        self.closing = False
        self.progress = 0
        """counts everything that can end somebody's wait"""
        self.polls = 0
        self.polled_at = -1
        self.clocks = clocks
        self.wide = warpgroups
        self.rank, self.peers = len(peers), peers
        peers.append(self)
        self.ended = False
        self.reached: dict[int, tuple[int, Warpgroup, str, Site]] = {}
        """what warps of other CTAs did last in its memory, by their counters (`cluster.reach`)"""
        self.agreed: dict[tuple[Any, ...], Any] = {}
        """of the cluster's first CTA (`cluster.Agreed`)"""
        self.mbarriers: dict[int, Mbarrier] = {}
        self.retired: list[Mbarrier] = []
        self.named: dict[int, Any] = {}
        """uses of named barriers that have begun (`named.Generation`)"""
        self.named_over: dict[int, Any] = {}
        """the newest use of each that is over"""
        self.acquired: dict[int, Handed] = {}
        """what flags of other CTAs said, by the counter that stands for having seen them"""
        self._copy_port_free = 0
        self._tensor_core_free = 0
        self.warpgroups: list[Warpgroup] = []

    # ---- shared units
    def copy_port(self, time: int, nbytes: int) -> tuple[int, int]:
        """(start, end) of a copy asked for at `time`."""
        start = max(time, self._copy_port_free)
        self._copy_port_free = start + -(-nbytes // self.costs.tma_bytes)
        return start, self._copy_port_free

    def tensor_core(self, time: int, cycles: int) -> tuple[int, int]:
        """(start, end) of a batch that may start at `time`."""
        start = max(time, self._tensor_core_free)
        self._tensor_core_free = start + cycles
        return start, self._tensor_core_free

    # ---- vectors
    def add_mbarrier_counter(self) -> int:
        """A counter for a new mbarrier, or for a flag that has been seen; every vector has room for it afterwards."""
        width = self.clocks.width
        index = self.clocks.add_landed()
        if self.clocks.width != width:
            for sm in self.peers:
                sm.widen()
        return index

    def widen(self) -> None:
        for warpgroup in self.warpgroups:
            warpgroup.widen()
        for mbar in self.mbarriers.values():
            mbar.current, mbar.done = self.clocks.widen(mbar.current), self.clocks.widen(mbar.done)
        of_warpgroups = (one for warpgroup in self.warpgroups for one in (warpgroup.met, warpgroup.blocked))
        for meeting in (self.meeting, *self.named.values(), *of_warpgroups):  # those that somebody still has to acquire
            if isinstance(meeting, Meeting) and len(meeting.vector) < self.clocks.width:
                meeting.vector = self.clocks.widen(meeting.vector)
