"""One warpgroup of the CTA: the `Machine` that operations act on.

Every method checks who executes, then hands over to the file of its concept. What is shared by all of them is here: the
vectors of the four warps, the virtual clock, blocking, and the context that reports name.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
from greenlet import GreenletExit, greenlet

from ..core.machine import InFlight, Lanes, Mma, Role, TensorMap
from . import barriers, bulk, cluster, generic, handover, lane, mma, named, remote, report
from .clocks import DRAINED, FENCED, GENERIC, INITIALISED, Vector
from .touches import Agent

if TYPE_CHECKING:
    from .deal import Deal
    from .memory import Access
    from .sm import SM

_WIDTH: dict[Lanes, int] = {"all": 2, "warps": 1, "one": 0}
_COUNT: dict[Lanes, int] = {"all": 128, "warps": 4, "one": 1}


class Blocked(Protocol):
    """Why a warpgroup cannot go on."""

    kind: str

    def text(self) -> str: ...


class Warpgroup:
    """The simulated `Machine` (see its docstrings for what the operations do)."""

    def __init__(self, sm: SM, number: int) -> None:
        self.sm = sm
        self.warpgroup = number
        self.role: Role = "compute"
        self.lanes: Lanes = "all"
        self.cta = sm.cta
        self.grid = sm.grid
        self.unit = sm.unit
        self.rank = sm.rank
        self.first_warp = 4 * (number + sm.wide * sm.rank)
        """counted over the CTAs of the cluster"""
        self.over = False
        self.remote: list[cluster.Sent] = []
        """arrivals on other CTAs' mbarriers that are under way"""
        self.met: cluster.Meeting | None = None
        """the use of the cluster's barrier that it has arrived at, and not waited for"""
        self.time = 0
        self.blocked: Blocked | None = None
        self.ready = False
        self.note_: tuple[str, dict[str, Any]] | None = None
        self.wait_: tuple[str, int, int] | None = None
        self.recent: dict[tuple[str, int], Access] = {}
        self.greenlet: greenlet = greenlet(self._start)
        self.products = mma.Products(self)
        self.bulk = bulk.Groups(self)
        self._bind(np.zeros((4, sm.clocks.width), np.int64))
        self._own[GENERIC] += 1

    # ---- identity, for reports
    @property
    def name(self) -> str:
        return f"warpgroup {self.warpgroup} ({self.role})"

    @property
    def deal(self) -> Deal:
        return self.sm.deal

    @functools.cached_property
    def identity(self) -> Agent:
        """What accesses to global memory remember of it."""
        return Agent(self.name, self.warpgroup, self.role, self.cta)

    @property
    def title(self) -> str:
        return self.name if self.cta == (0, 0, 0) and len(self.sm.peers) == 1 else f"{self.name} of CTA {self.cta}"

    # ---- vectors
    def _bind(self, vectors: Vector) -> None:
        """Adopt the (4, width) matrix, and views of the counters that the four warps own."""
        self.vectors = vectors
        width = vectors.shape[1]
        flat = vectors.reshape(-1)
        clocks = self.sm.clocks
        self._own = [flat[clocks.index(kind, self.first_warp)::width + 1][:4] for kind in range(5)]

    def widen(self) -> None:
        self._bind(self.sm.clocks.widen(self.vectors))

    def known(self) -> list[int]:
        """What *every* executing warp knows."""
        known: list[int] = (self.vectors[0] if self.lanes == "one" else np.minimum.reduce(self.vectors)).tolist()
        return known

    def knows(self, index: int) -> int:
        """The value of one counter that every executing warp knows."""
        return int(self.vectors[0, index] if self.lanes == "one" else self.vectors[:, index].min())

    def epoch(self, warp: int = 0) -> int:
        return int(self._own[GENERIC][warp])

    def acquire(self, vector: Vector) -> None:
        if self.lanes == "one":
            np.maximum(self.vectors[0], vector, out=self.vectors[0])
        else:
            np.maximum(self.vectors, vector, out=self.vectors)

    def release_into(self, vector: Vector) -> None:
        """Fold what any executing warp knows into `vector`; their later accesses are in a new epoch."""
        if self.lanes == "one":
            np.maximum(vector, self.vectors[0], out=vector)
            self._own[GENERIC][0] += 1
        else:
            np.maximum(vector, np.maximum.reduce(self.vectors), out=vector)
            self._own[GENERIC][:] += 1

    def learn(self, kind: int, value: int) -> None:
        """The executing warps' own counter of this kind reaches `value`."""
        self._own[kind][:1 if self.lanes == "one" else 4] = value

    # ---- running
    def _start(self) -> None:
        self.sm.run_body(self)

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

    def _switch(self) -> None:
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
            self._switch()
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
            self._switch()

    def poll(self, what: Blocked) -> None:
        """A test of `what` failed: everybody else goes first. Polling for ever with nobody else left is a deadlock."""
        sm, self.blocked = self.sm, what
        progress = sum(peer.progress for peer in sm.peers)
        if progress != sm.polled_at:
            sm.polled_at, sm.polls = progress, 0
        sm.polls += 1
        if sm.polls > sm.poll_limit:
            raise report.deadlock(sm, f"{sm.polls} tests in a row failed while nothing else happened")
        sm.scheduler.defer()
        self.wake(self.time)
        self._switch()

    def elapse(self, cycles: int) -> None:
        self.time += cycles

    # ---- who executes
    def lane_count(self) -> int:
        return _COUNT[self.lanes]

    def warps(self) -> range:
        return range(1 if self.lanes == "one" else 4)

    def one_lane(self, operation: str) -> None:
        if self.lanes != "one":
            raise report.violation(self, f"{operation} is executed by {_COUNT[self.lanes]} lanes "
                                         f"(lanes={self.lanes!r}) and would "
                                   f"happen {_COUNT[self.lanes]} times; call it under one_lane", hazard="divergent-aligned")

    def collective(self, operation: str) -> None:
        if self.lanes != "all":
            raise report.violation(self, f"{operation} needs all 128 lanes of the warpgroup, but lanes={self.lanes!r}; "
                                   "call it outside one_lane, each_warp and the memory role", hazard="divergent-aligned")

    def scoped(self, lanes: Lanes, function: Callable[..., Any], args: Sequence[Any]) -> Any:
        outer = self.lanes
        if _WIDTH[lanes] > _WIDTH[outer]:
            raise report.violation(self, f"lanes={lanes!r} inside lanes={outer!r}; a scope can only get narrower",
                                   hazard="divergent-aligned")
        self.lanes = lanes
        try:
            return function(*args)
        finally:
            self.lanes = outer

    # ---- mbarriers
    def mbar_init(self, address: int, count: int, name: str = "") -> None:
        barriers.init(self, int(address), int(count), name)

    def mbar_init_at_entry(self, address: int, count: int, name: str = "", *, observed: bool = False) -> None:
        barriers.init_at_entry(self, int(address), int(count), name, observed)

    def mbar_inval(self, address: int) -> None:
        barriers.invalidate(self, int(address))

    def mbar_arrive(self, address: int, count: int = 1) -> None:
        barriers.arrive(self, int(address), int(count))

    def mbar_arrive_remote(self, address: int) -> None:
        cluster.arrive_remote(self, int(address))

    def mbar_arrive_cluster(self, address: int, ranks: Sequence[int], alike: bool) -> None:
        cluster.arrive_at(self, int(address), ranks, alike)

    def mbar_arrive_expect_tx(self, address: int, nbytes: int) -> None:
        barriers.arrive_expect_tx(self, int(address), int(nbytes))

    def mbar_test(self, address: int, parity: int) -> bool:
        return barriers.test(self, int(address), int(parity))

    def mbar_wait(self, address: int, phase: int, step: int = -1) -> None:
        barriers.wait(self, int(address), int(phase), int(step))

    # ---- clusters
    def map_shared(self, address: int, rank: int) -> int:
        return cluster.window(self, int(address), int(rank))

    def cluster_arrive(self) -> None:
        cluster.arrive(self)

    def cluster_wait(self) -> None:
        cluster.wait(self)

    def agree(self, key: tuple[Any, ...], value: Any, parties: int, what: str) -> None:
        cluster.agree(self, key, value, parties, what)

    # ---- fences, named barriers, registers
    def fence_mbarrier_init(self) -> None:
        self.elapse(self.sm.costs.issue)
        self._fence(INITIALISED)

    def fence_proxy_async(self) -> None:
        self.elapse(self.sm.costs.issue)
        self._fence(FENCED)
        self._fence(INITIALISED)

    def _fence(self, kind: int) -> None:
        """Everything up to now is fenced; what follows is in a new epoch and is not."""
        warps = len(self.warps())
        self._own[kind][:warps] = self._own[GENERIC][:warps]
        self._own[GENERIC][:warps] += 1

    def grid_dependency_wait(self) -> None:
        self.elapse(self.sm.costs.wait)
        self.sm.gmem.await_grid(self)

    def bar_sync(self, barrier: int, threads: int) -> None:
        named.sync(self, int(barrier), int(threads))

    def bar_red(self, barrier: int, threads: int, operation: str, values: np.ndarray) -> bool:
        named.sync(self, int(barrier), int(threads))
        return bool(values.any() if operation == "any" else values.all())

    def bar_arrive(self, barrier: int, threads: int) -> None:
        named.arrive(self, int(barrier), int(threads))

    def setmaxnreg(self, direction: Literal["inc", "dec"], registers: int) -> None:
        self.collective("setmaxnreg")
        self.sm.registers.set(self, direction, int(registers))

    # ---- TMA
    def tma_load(self, dst: int, tensor: TensorMap, coords: tuple[int, ...], mbar: int) -> None:
        bulk.load(self, int(dst), tensor, coords, int(mbar))

    def tma_multicast(self, dst: int, tensor: TensorMap, coords: tuple[int, ...], mbar: int, ctas: int) -> None:
        bulk.load(self, int(dst), tensor, coords, int(mbar), int(ctas))

    def tma_store(self, tensor: TensorMap, coords: tuple[int, ...], src: int, reduction: str = "", once: bool = False) -> None:
        self.bulk.store(tensor, coords, int(src), reduction, once)

    def bulk_commit(self) -> None:
        self.bulk.commit()

    def bulk_wait(self, pending: int, *, read: bool) -> None:
        self.bulk.wait(int(pending), read)

    # ---- wgmma
    def wgmma_fence(self) -> None:
        self.collective("wgmma_fence")
        self.products.fence()

    def wgmma(self, accumulator: np.ndarray | InFlight, mma: Mma, a: np.ndarray | None = None) -> InFlight:
        self.collective("wgmma")
        return self.products.issue(accumulator, mma, a)

    def wgmma_commit(self) -> None:
        self.collective("wgmma_commit")
        self.products.commit()

    def wgmma_wait(self, pending: int) -> None:
        self.collective("wgmma_wait")
        self.products.wait(int(pending))
        self.learn(DRAINED, self.products.drained)

    # ---- generic proxy
    def smem_write(self, chunks: np.ndarray, values: np.ndarray, what: str) -> None:
        generic.write_chunks(self, chunks, values, what)

    def smem_read(self, chunks: np.ndarray, what: str) -> np.ndarray:
        return generic.read_chunks(self, chunks, what)

    def smem_send(self, chunks: np.ndarray, values: np.ndarray, rank: int, mbar: int, what: str) -> None:
        remote.send(self, chunks, values, int(rank), int(mbar), what)

    def store_word(self, address: int, value: int) -> None:
        generic.store_word(self, int(address), int(value))

    def load_word(self, address: int) -> int:
        return generic.load_word(self, int(address))

    def gmem_write(self, array: np.ndarray, index: tuple[Any, ...], values: np.ndarray, what: str, reduction: str = "") -> None:
        generic.write_array(self, array, index, values, what, reduction)

    def gmem_read(self, array: np.ndarray, index: tuple[slice, ...], what: str) -> np.ndarray:
        return generic.read_array(self, array, index, what)

    def gmem_signal(self, flags: np.ndarray, index: int, what: str) -> None:
        handover.signal(self, flags, int(index), what)

    def gmem_await(self, flags: np.ndarray, index: int, what: str) -> None:
        handover.wait(self, flags, int(index), what)

    def each_lane(self, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        return lane.each(self, function, arguments)

    # ---- observation
    def note(self, event: str, **details: Any) -> None:
        if not details.keys().isdisjoint(("ring", "slot", "step", "tile")):
            self.note_ = event, details
        if self.sm.trace is not None:
            self.sm.trace.add(self, self.time, self.time, "note", event=event, **details)
