"""Schedulers: they decide which warpgroup runs next, and which asynchronous operation finishes.

All schedulers hold *tasks*: a callable, the cycle from which it may run, and whose it is. A
warpgroup is a task while it can run, an asynchronous operation while it is in flight. Every order
in which they take tasks is one that the hardware allows.

=============  ================  ===================================================================
seed           scheduler         next is
=============  ================  ===================================================================
None           `InOrder`         the smallest virtual time: a discrete-event simulation, the order
                                 of the text timeline
3 n            `Shuffled`        any task, each as likely as the other
3 n + 1        `Prioritised`     the task of the highest priority, which few random moments change
                                 (PCT)
3 n + 2        `Jittered`        the smallest virtual time, where copies, products and instructions
                                 take random times
=============  ================  ===================================================================

Uniform choices seldom let one warpgroup run far ahead of another, priorities do; jitter stays near
what a GPU would do. With a seed the CTAs behind the first one run in a random order too, and draw
other work from a counter (`WorkCounter`).
"""

from __future__ import annotations

import heapq
import itertools
import math
import operator
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from ..arch.products import WGMMA
from .footprints import WRITE

Place = tuple[int, int, int]
Task = Callable[[int], None]
"""Called with the cycle at which it runs."""
Ready = Callable[[], bool]
"""Whether a warpgroup could go on, and not only wait."""


@dataclass(frozen=True)
class Costs:
    """The cycles of the virtual-time model: a Hopper SM at the level of detail a pipeline's shape
    depends on.

    Every warpgroup has a clock that its operations advance. The SM has one copy port, which TMA
    loads and stores share in the order of issue, and one tensor core, which the batches of all
    warpgroups share. What is left out: GMEM bandwidth shared between SMs, L2 misses, bank
    conflicts, power.
    """

    issue: int = 10
    """any instruction that only issues: arrive, expect_tx, fence, commit, wgmma"""
    wait: int = 20
    """a wait that succeeds at once, and what waking up adds to one that blocked"""
    barrier: int = 30
    """bar.sync once everyone is there"""
    tma_issue: int = 20
    tma_latency: int = 700
    """from the start of the copy to its first byte (a load from L2), or from its last read to GMEM
    (a store)"""
    tma_bytes: int = 64
    """bytes a cycle through the copy port (L2 to one SM)"""
    fma: int = WGMMA.multiply_adds
    """multiply-adds a cycle of the SM's four tensor cores together in float16: m64nN takes N/2
    cycles, of any type"""
    generic_bytes: int = 128
    """bytes a cycle of ordinary shared-memory accesses; half of it to GMEM"""
    registers: int = 40
    remote: int = 200
    """from one SM of a cluster to another: a remote arrival, the cluster's barrier"""
    link: int = 2000
    """from one GPU to another: a signal, and what a copy of a peer's memory takes more than one of
    the own memory"""


class InOrder:
    """The scheduler of a cluster, or of one CTA: smallest time first, ties as they arrived.
    Warpgroups run until they wait."""

    explores = False
    """whether warpgroups have to give way before they wait for something (`directed`)"""

    def __init__(self, rng: random.Random | None = None) -> None:
        self._tasks: list[Any] = []
        self._serial = 0
        self._random = (rng or random).random

    def push(self, time: int, task: Task, owner: object) -> None:
        """Let `task` run from cycle `time` on. `owner` is its warpgroup, or of an asynchronous
        operation the unit that runs it: "load", "read" or "write" (a TMA store's two halves),
        "wgmma", "arrive" (a remote arrival)."""
        self._serial += 1
        heapq.heappush(self._tasks, (time, self._serial, task))

    def pop(self) -> tuple[int, Task] | None:
        """Return the next task and its cycle, or None if nothing can happen any more."""
        if not self._tasks:
            return None
        time, _, task = heapq.heappop(self._tasks)
        return time, task

    def pause(self, ready: Ready | None = None) -> int | None:
        """Return the cycles for which the running warpgroup, which could go on, gives way now;
        None: it goes on.

        Unless `ready`, it would wait for something.
        """
        return None

    def defer(self, thing: tuple[Any, ...], ready: Ready) -> None:
        """Let everybody else go before the running warpgroup, which tests in vain for `thing`: the
        answer will be another one when that is `ready`. (In this order a test takes time
        anyway.)"""

    def touch(
        self,
        thing: tuple[Any, ...],
        how: int,
        epoch: int = 0,
        amount: tuple[int, int] | None = None,
        room: tuple[int, int] = (0, 0),
    ) -> None:
        """Note that the running task touches a thing, in one of the ways of `footprints`."""

    def touch_bytes(self, rank: int, lo: int, hi: int, how: str) -> None:
        """Note that it touches SMEM[lo:hi) of the CTA of a rank."""

    def touch_array(self, array: npt.NDArray[Any], index: Sequence[slice], how: str) -> None:
        """Note that it touches elements of an array."""

    def arrays(self, arrays: Sequence[npt.NDArray[Any]]) -> None:
        """Note which arrays the kernel was given: their places are the same in each run, though
        their addresses are not."""

    def takes(self, cycles: int) -> int:
        """Return the cycles that an asynchronous operation takes to which the model gives
        `cycles`."""
        return cycles


class Jittered(InOrder):
    """The virtual-time order of an SM whose copies and products are faster or slower than the
    model's by a random factor, and whose warpgroups stall now and then. How large the factors are
    is drawn once: up to 2, 4 … 64."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self._spread = float(2 << rng.randrange(6))

    def pause(self, ready: Ready | None = None) -> int | None:
        return int(30 * self._spread * self._random()) if self._random() < 0.3 else None

    def takes(self, cycles: int) -> int:
        return max(1, int(cycles * self._spread ** (2 * self._random() - 1)))


class Shuffled(InOrder):
    """Any task next, drawn from a seeded generator; warpgroups give way in a third of their
    operations."""

    def push(self, time: int, task: Task, owner: object) -> None:
        self._tasks.append((time, task))

    def pop(self) -> tuple[int, Task] | None:
        tasks = self._tasks
        if not tasks:
            return None
        i = int(self._random() * len(tasks))
        tasks[i], tasks[-1] = tasks[-1], tasks[i]
        time, task = tasks.pop()
        return time, task

    def pause(self, ready: Ready | None = None) -> int | None:
        return 0 if self._random() < 0.3 else None


class Prioritised(InOrder):
    """Probabilistic concurrency testing (Burckhardt, Kothari, Musuvathi, Nagarakatte, ASPLOS 2010).

    Every warpgroup and every asynchronous operation has a random priority, and the highest that can
    run runs: at once, and until it waits. At d - 1 moments, for a random d = 1 … 4, the running
    warpgroup falls below all others. A bug that needs d events in one order is met with at least a
    known probability: 1/n that the first thread comes last of n, times that of each moment. The
    paper draws moments uniformly from the k steps of a run, and so must know k. Here step s is
    drawn with a probability of about 1 / (s ln MOST): for any run of fewer than MOST steps within a
    factor ln MOST of the paper's. In every other schedule the operations of a unit share one
    priority: all loads late, say, or all stores.
    """

    MOST = 1 << 14

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self._shared = rng.random() < 0.5
        changes = (
            int(math.exp(math.log(self.MOST) * rng.random())) for _ in range(rng.randrange(4))
        )
        self._changes = sorted(changes, reverse=True)
        """the moments, the next one last"""
        self._priorities: dict[object, float] = {}
        self._lowest = 0.0
        self._steps = 0
        self._running: object = None

    def push(self, time: int, task: Task, owner: object) -> None:
        if isinstance(owner, str) and not self._shared:
            priority = self._random()
        else:
            known = self._priorities.get(owner)
            priority = self._priorities[owner] = self._random() if known is None else known
        self._serial += 1
        heapq.heappush(self._tasks, (-priority, self._serial, time, task, owner))

    def pop(self) -> tuple[int, Task] | None:
        if not self._tasks:
            return None
        _, _, time, task, self._running = heapq.heappop(self._tasks)
        return time, task

    def pause(self, ready: Ready | None = None) -> int | None:
        self._steps += 1
        if self._changes and self._steps >= self._changes[-1]:
            self._changes.pop()
            self._fall()
        return 0 if self._tasks and -self._tasks[0][0] > self._priorities[self._running] else None

    def defer(self, thing: tuple[Any, ...], ready: Ready) -> None:
        self._fall()

    def _fall(self) -> None:
        self._lowest -= 1.0
        self._priorities[self._running] = self._lowest


_KINDS: tuple[tuple[str, Callable[[random.Random], InOrder]], ...] = (
    ("shuffled", Shuffled),
    ("priorities", Prioritised),
    ("jitter", Jittered),
)


def kind(seed: int | None) -> str:
    """Return the name of a seed's kind of schedule.

    >>> [kind(seed) for seed in (None, 0, 1, 2, 3)]
    ['in order', 'shuffled', 'priorities', 'jitter', 'shuffled']
    """
    return "in order" if seed is None else _KINDS[seed % len(_KINDS)][0]


class Schedule:
    """The order of a grid's CTAs, and a scheduler for each cluster of them, by seed."""

    def __init__(self, seed: int | None) -> None:
        self._random = None if seed is None else random.Random(operator.index(seed))
        self._make = _KINDS[(seed or 0) % len(_KINDS)][1]

    def clusters(self, grid: Place, cluster: Place) -> list[list[Place]]:
        """Return all CTAs, by cluster, x fastest. With a seed, clusters behind the first come in a
        random order; the first stays, and reports a hazard that all have."""
        firsts = itertools.product(
            *(range(0, n, of) for n, of in zip(reversed(grid), reversed(cluster), strict=True))
        )
        within = [place[::-1] for place in itertools.product(*map(range, reversed(cluster)))]
        clusters = [[(x + i, y + j, z + k) for i, j, k in within] for z, y, x in firsts]
        others = clusters[1:]
        if self._random is not None:
            self._random.shuffle(others)
        return clusters[:1] + others

    def scheduler(self) -> InOrder:
        return InOrder() if self._random is None else self._make(self._random)


class WorkCounter:
    """The counter from which the CTAs of a launch draw their work
    (`numpipe.language.grid.tile_scheduler`).

    CTA i begins with work index i, and draws further ones. On a GPU all CTAs draw from one counter
    at once; here they run one after the other, so who gets an index is decided before: without a
    seed CTAs get them in turn, as if equally fast; with a seed CTAs are faster or slower by random
    factors, up to one that takes nearly all.
    """

    def __init__(self, ctas: int, seed: int | None = None, deal: Sequence[int] = ()) -> None:
        """`deal` says who gets the first work indices; then they come in turn."""
        self._ctas = ctas
        self._deal = deal
        self.drawn = 0
        """the last work index that was drawn, and one"""
        self._random = None if seed is None else random.Random(f"deal {seed}")
        spread = 0.0 if self._random is None else self._random.choice((0.5, 2.0, 8.0))
        self._speeds = [
            1.0 if self._random is None else 2 ** self._random.uniform(-spread, spread)
            for _ in range(ctas)
        ]
        self._owners: list[int] = []
        """the CTAs that get work indices `ctas`, `ctas` + 1, …"""
        self._newest: dict[int, int] = {}
        """the newest work index of each CTA that drew one"""
        self._loops: list[str] = []
        """the loops that the first CTA ended, in order"""
        self._ended: dict[int, int] = {}
        """how many loops each CTA ended"""

    def draw(self, cta: int) -> int:
        """Return the next work index of a CTA."""
        ticket = self._newest.get(cta, self._ctas - 1) + 1
        while self._owner(ticket) != cta:
            ticket += 1
        self._newest[cta] = ticket
        self.drawn = max(self.drawn, ticket + 1)
        return ticket

    def _owner(self, ticket: int) -> int:
        number = ticket - self._ctas
        if number < len(self._deal):
            return self._deal[number]
        if self._random is None:
            return number % self._ctas
        while number >= len(self._owners):
            self._owners += self._random.choices(range(self._ctas), self._speeds, k=3 * self._ctas)
            # each CTA has an end
            self._owners += self._random.sample(range(self._ctas), self._ctas)
        return self._owners[number]

    def ended(self, cta: int, what: str) -> str | None:
        """Note that a CTA has ended a loop, or, with "", itself; return how that differs from what
        another CTA did there."""
        number = self._ended.get(cta, 0)
        if number == len(self._loops) and "" not in self._loops:
            self._loops.append(what)
        self._ended[cta] = number + 1
        first = self._loops[number] if number < len(self._loops) else ""
        return (
            None if first == what else f"{what or 'ended'} where another one has {first or 'ended'}"
        )


class LiveCounter(WorkCounter):
    """The counter of one GPU of several, whose CTAs run at the same time: who asks gets the next
    work index."""

    def __init__(self, ctas: int, gpu: int, scheduler: InOrder) -> None:
        super().__init__(ctas)
        self._thing, self._scheduler = ("deal", gpu), scheduler

    def draw(self, cta: int) -> int:
        self._scheduler.touch(self._thing, WRITE)
        self.drawn = max(self.drawn, self._ctas) + 1
        return self.drawn - 1
