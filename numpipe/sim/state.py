"""The state of a CTA's SM and of its warpgroups, and the records of accesses and mbarriers.

The other files are typed against this one. It imports none of them, so the objects of theirs that
it holds are `Any` here.
"""

from __future__ import annotations

import contextvars
import functools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from greenlet import GreenletExit, getcurrent, greenlet

from ..core.machine import TensorMap
from ..diagnostics.reports import Party
from ..plan.roles import COMPUTE
from .clocks import Clocks, Need, Release, Warps
from .footprints import ARRIVE, AWAIT
from .sites import Note, Site, context, lines, place, user_site

if TYPE_CHECKING:
    from ..traces.trace import Trace
    from .boxes import Box
    from .progress import RunProgress
    from .schedule import Costs, InOrder, Ready, WorkCounter


class Access:
    """One access by one agent, with the counters (`clocks`) that a later access must know if the
    two are to be ordered.

    A generic access must know `needs`, a TMA copy or wgmma `async_needs`: these differ for generic
    stores, which have to be fenced.
    """

    __slots__ = (
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
        "site",
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
        """of a wgmma: the epoch of its warpgroup's last warp, for reports"""
        self.box: Box | None = None
        """the box that a TMA copy moves, which is at `where` in its array"""
        self.over: Access | None = None
        """of a TMA load: the access that had written the bytes before it"""
        self.where: tuple[int, ...] = ()

    def describe(self) -> str:
        return f"{self.kind} ({self.what})" if self.what else self.kind

    def tell(self) -> str:
        """Say who accessed what, where, on which barrier, in which step."""
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
        """number of the present phase; phases 0 … phase - 1 are complete"""
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
        self.arrivals: list[tuple[Warpgroup, int, Site]] = []
        self.arrivals_before: list[tuple[Warpgroup, int, Site]] = []
        """the arrivals of the phase before, for reports"""
        self.waiters: list[tuple[Warpgroup, int]] = []
        self.waits: list[tuple[Warpgroup, int, int, Site, tuple[Need, ...]]] = []
        """the waits for the newest phase: who, phase, step, line, and what to know for the wait to
        be over"""
        self.landed = sm.add_counter()  # before the vectors: it may widen them
        self.current = sm.clocks.vector()
        self.done = sm.clocks.vector()
        self.time = self.done_time = 0
        self.site = user_site()
        self.owner, self.warp, self.epoch = owner, owner.first_warp, epoch
        self.twins: Sequence[Mbarrier] = ()
        """mbarriers of other CTAs: whoever arrives here arrives there too"""
        self.used: dict[int, tuple[int, Warpgroup, Site]] = {}
        """by warp, the epoch of its newest operation here; empty for an mbarrier of the entry,
        which is never invalidated"""

    @property
    def title(self) -> str:
        return self.name if len(self.sm.group) == 1 else f"{self.name} of {self.sm.where}"

    @property
    def idle(self) -> bool:
        return self.pending == self.count and not self.tx and not self.waiters and not self.copies

    def blocks(self, phase: int) -> bool:
        """Whether a wait for a phase has to wait: it goes by parity."""
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
        return side(self.owner, f"initialises {self.name}", self.site, barrier=self.name)


def side(agent: Warpgroup | Party, did: str, site: Site = None, **where: Any) -> Party:
    """Return one side of a report; `where` holds further fields of `Party`."""
    return Party(
        did, agent.warpgroup, str(agent.role), agent.cta, lines(site), gpu=agent.gpu, **where
    )


class Reached:
    """The last thing that others did in a memory, by their counters.

    Whoever ends the use of that memory has to know that all of it is over.
    """

    def __init__(self) -> None:
        self._last: dict[int, tuple[int, Warpgroup, str, Site]] = {}

    def add(self, who: Warpgroup, what: str, needs: Iterable[Need], site: Site) -> None:
        for index, value in needs:
            # what a warp sent first may come last
            if index not in self._last or self._last[index][0] <= value:
                self._last[index] = value, who, what, site

    def unknown(self, warpgroups: Iterable[Warpgroup]) -> Iterator[tuple[Warpgroup, str, Site]]:
        """Yield who did what, and where, of what these warpgroups do not know to be over."""
        known = np.maximum.reduce([np.maximum.reduce(w.vectors) for w in warpgroups])
        for index, (value, who, what, site) in self._last.items():
            if known[index] < value:
                yield who, what, site


class WaitReason:
    """A reason why a warpgroup cannot go on; `kind` is the kind of the event in a trace."""

    def __init__(self, kind: str, text: str = "") -> None:
        self.kind = kind
        self._text = text
        self.waiters: list[Warpgroup] = []

    def text(self) -> str:
        return self._text

    def enqueue(self, who: Warpgroup, **details: Any) -> None:
        """Block `who` until somebody calls `open`."""
        self.waiters.append(who)
        who.block(self, **details)

    def open(self, time: int) -> None:
        """Wake all who wait here, at cycle `time`."""
        waiters, self.waiters = self.waiters, []
        for waiter in waiters:
            waiter.wake(time)


class MbarrierWait(WaitReason):
    """The wait of a warpgroup that is blocked in `mbar_wait`, or tests an mbarrier again and
    again."""

    def __init__(self, mbar: Mbarrier, phase: int, step: int = -1, kind: str = "wait") -> None:
        super().__init__(kind)
        self.mbar = mbar
        self.phase = phase
        self.step = step

    def text(self) -> str:
        return (
            f"{self.mbar.title} phase {self.phase}"
            + (f" step {self.step}" if self.step >= 0 else "")
            + (", which it tests again and again" if self.kind == "poll" else "")
        )


class Meeting(WaitReason):
    """One use of a barrier at which warpgroups meet: what they tell each other, and the cycle of
    the newest arrival."""

    def __init__(self, kind: str, sm: SM, thing: tuple[Any, ...], number: int) -> None:
        super().__init__(kind)
        self.sm = sm
        self.thing, self.number = thing, number
        """which barrier, and which use of it"""
        self.arrived: list[Warpgroup] = []
        self.vector = sm.clocks.vector()
        self.time = 0
        self.complete = False

    def arrive(self, who: Warpgroup, missing: int, delay: int = 0) -> None:
        """Count an arrival, one of those that are `missing`; others see it after `delay`."""
        self.sm.scheduler.touch(self.thing, ARRIVE, self.number, (1, 0), (missing, 0))
        self.vector = self.sm.clocks.widen(self.vector)
        who.release_into(self.vector)
        self.arrived.append(who)
        self.time = max(self.time, who.time + delay)

    def end(self) -> None:
        self.complete = True
        self.open(self.time)

    def meet(self, who: Warpgroup, **details: Any) -> None:
        """Wait until all have come; `who` knows then what they knew."""
        if self.sm.scheduler.explores:
            who.breathe(lambda: self.complete)
        self.sm.scheduler.touch(self.thing, AWAIT, self.number)
        if not self.complete:
            self.enqueue(who, **details)
        who.acquire(self.sm.clocks.widen(self.vector))
        who.time = max(who.time, self.time)


class Warpgroup(Warps):
    """A warpgroup's identity, its virtual clock, and what it waits for; its operations are in
    `port`, which runs ``body(self)``."""

    products: Any
    """`mma.Products`: its wgmmas"""
    bulk_groups: Any
    """`bulk.Groups`: its TMA stores"""
    loops: Any
    """`rounds.Rounds`: its loops"""

    def __init__(self, sm: SM, number: int, body: Callable[[Any], None]) -> None:
        super().__init__(sm.clocks, 4 * (number + sm.wide * sm.place))
        self.sm = sm
        self.warpgroup = number
        self.role = COMPUTE
        self.cta = sm.cta
        self.grid = sm.grid
        self.unit = sm.unit
        self.rank, self.place = sm.rank, sm.place
        self.gpu = sm.gpu
        self.deal = sm.deal
        self.over = False
        self.remote_arrivals: list[Any] = []
        """`cluster.RemoteArrival`: its arrivals on other CTAs' mbarriers that are under way"""
        self.cluster_meeting: Meeting | None = None
        """the use of the cluster's barrier that it has arrived at and not waited for"""
        self.time = 0
        self.blocked: WaitReason | None = None
        self.ready = False
        self.last_note: Note = "", {}
        self.last_wait: tuple[str, int, int] | None = None
        self.recent: dict[tuple[str, int], Access] = {}
        self.greenlet: greenlet = greenlet(functools.partial(body, self))

    # ---- identity, for reports
    @property
    def name(self) -> str:
        return f"warpgroup {self.warpgroup} ({self.role})"

    @functools.cached_property
    def identity(self) -> Party:
        """The warpgroup's number, role, CTA and GPU, which accesses to global memory remember when
        the CTA has ended."""
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
        """Let the warpgroup go on from cycle `time`."""
        if not self.ready:
            self.ready = True
            self.time = max(self.time, time)
            self.sm.scheduler.push(self.time, self.resume, self)

    def switch(self) -> None:
        """Give the SM to others, who wake it."""
        self.sm.hub.switch()
        if self.sm.closing:
            raise GreenletExit

    def block(self, reason: WaitReason, **details: Any) -> None:
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
                self.sm.trace.add(
                    self, start, max(now, start), reason.kind, **details, unfinished=True
                )
            raise
        if self.sm.trace is not None and self.time > start:
            self.sm.trace.add(self, start, self.time, reason.kind, **details)

    def breathe(self, ready: Ready | None = None) -> None:
        """Let the scheduler run others here, although this warpgroup could go on; unless `ready`,
        it would only wait."""
        if self.sm.closing:
            raise GreenletExit
        if (pause := self.sm.scheduler.pause(ready)) is not None:
            self.wake(self.time + pause)
            self.switch()

    def elapse(self, cycles: int) -> None:
        self.time += cycles


class SM:
    """One CTA on its SM. `gmem`, `plans` and `boxes` (derived geometry) outlive it.

    `peers` are the SMs of its cluster, by rank; `group` those that run at once, and share the
    scheduler and the clocks, by `place`: the cluster's, or those of all `gpus` (`gpus.Gpus`), of
    which `gpu` is its own (None: there is one).
    """

    poll_limit = 10_000
    """failed tests in a row that count as a deadlock, where nothing else happens"""
    memory: Any
    """`memory.SharedMemory`"""
    meeting: Any
    """`cluster.ClusterMeeting`, of the cluster's first CTA: the present use of its barrier"""
    registers: Any
    """`named.Registers`"""

    def __init__(
        self,
        *,
        cta: tuple[int, int, int],
        grid: tuple[int, int, int],
        warpgroups: int,
        unit: Any,
        scheduler: InOrder,
        clocks: Clocks,
        peers: list[SM],
        group: list[SM],
        costs: Costs,
        trace: Trace | None,
        context: contextvars.Context,
        boxes: dict[TensorMap, Box],
        plans: dict[Any, Any],
        gmem: Any,
        deal: WorkCounter,
        run_progress: RunProgress,
        gpus: Any = None,
        gpu: int | None = None,
    ) -> None:
        self.context = context
        self.cta, self.grid, self.unit = cta, grid, unit
        self.scheduler = scheduler
        self.costs = costs
        self.trace = trace
        self.boxes, self.plans = boxes, plans
        """`mma.Plan` of each kind of wgmma batch"""
        self.gmem = gmem
        """`gmem.GlobalMemory`"""
        self.deal, self.run_progress = deal, run_progress
        self.gpus, self.gpu = gpus, gpu
        self.hub = getcurrent()
        self.closing, self.touched = False, 0
        """counts accesses to tiles and arrays"""
        self.progress = 0
        """counts the events that can end somebody's wait"""
        self.polls, self.polled_at = 0, -1
        self.clocks = clocks
        self.wide = warpgroups
        self.rank, self.peers = len(peers), peers
        peers.append(self)
        self.place, self.group = len(group), group
        group.append(self)
        self.ended = False
        self.reached = Reached()
        """what other CTAs did in its memory (`cluster.reach`)"""
        self.sent = Reached()
        """its copies to other CTAs, by the counters of the mbarriers that they complete on"""
        self.agreed: dict[tuple[Any, ...], Any] = {}
        """`cluster.Agreement`, of the cluster's first CTA"""
        self.came: dict[tuple[Any, ...], int] = {}
        """how often this CTA has come to each agreement"""
        self.mbarriers: dict[int, Mbarrier] = {}
        self.retired: list[Mbarrier] = []
        self.named: dict[int, Any] = {}
        """`named.Generation`: the present use of each named barrier"""
        self.named_over: dict[int, Any] = {}
        """its newest use that is over"""
        self.acquired: dict[int, Release] = {}
        """releases that flags of other CTAs brought, by the counter that stands for having seen the
        flag"""
        self._free: dict[str, int] = {}
        """when its "copy port" and its "tensor core" are free"""
        self.warpgroups: list[Warpgroup] = []

    @property
    def where(self) -> str:
        """Which CTA it is, for reports: ``CTA (1, 0, 0) of GPU 1``."""
        return f"CTA {self.cta}" + ("" if self.gpu is None else f" of GPU {self.gpu}")

    def occupy(self, unit: str, time: int, cycles: int) -> tuple[int, int]:
        """Let a unit that all warpgroups share work for `cycles`, from `time` at the earliest;
        return its (start, end)."""
        self._free[unit] = (start := max(time, self._free.get(unit, 0))) + cycles
        return start, start + cycles

    # ---- vectors
    def add_counter(self) -> int:
        """Return a counter for a new mbarrier, or for a flag that has been seen; give every vector
        room for it."""
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
