"""Schedulers: they decide which warpgroup runs next, and which asynchronous operation finishes.

All schedulers hold *tasks*: a callable, the cycle from which it may run, and its owner. A warpgroup
is a task while it can run, an asynchronous operation while it is in flight. Every order in which a
scheduler takes tasks is one that the hardware allows.

=============  ================  ===================================================================
seed           scheduler         next task
=============  ================  ===================================================================
None           `InOrder`         the smallest virtual time: a discrete-event simulation, the order
                                 of the text timeline
3 n            `Shuffled`        any task, with equal probability
3 n + 1        `Prioritised`     the task of the highest priority, which changes at a few random
                                 moments (PCT)
3 n + 2        `Jittered`        the smallest virtual time, where copies, products and instructions
                                 take random times
=============  ================  ===================================================================

With uniform choices one warpgroup rarely runs far ahead of another; with priorities it does. Jitter
stays close to what a GPU would do. With a seed, the CTAs after the first one also run in a random
order, and draw different work from a counter (`WorkCounter`).
"""

from __future__ import annotations

import heapq
import itertools
import math
import operator
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ..arch.dimensions import Dim3
from ..arch.products import WGMMA
from .footprints import WRITE

Place = Dim3
Task = Callable[[int], None]
"""Called with the cycle at which it runs."""
Ready = Callable[[], bool]
"""Whether a warpgroup could continue, rather than only wait."""


@dataclass(frozen=True)
class Costs:
    """The cycles of the virtual-time model: a Hopper SM at the level of detail that determines a
    pipeline's shape.

    Every warpgroup has a clock that its operations advance. The SM has one copy port, which TMA
    loads and stores share in the order of issue, and one tensor core, which the batches of all
    warpgroups share. Each GPU has one port to all others and one from them (`gpus.Gpus.cross`). Not
    modeled: GMEM bandwidth shared between SMs, L2 misses, bank conflicts, power.
    """

    issue: int = 10
    """Any instruction that only issues: arrive, expect_tx, fence, commit, wgmma."""
    wait: int = 20
    """A wait that succeeds at once, and the additional cost of waking up after one that blocked."""
    barrier: int = 30
    """bar.sync after all threads have arrived."""
    tma_issue: int = 20
    tma_latency: int = 700
    """From the start of the copy to its first byte (a load from L2), or from its last read to GMEM
    (a store)."""
    tma_bytes: int = 64
    """Bytes per cycle through the copy port (L2 to one SM)."""
    fma: int = WGMMA.multiply_adds
    """Multiply-adds per cycle of the SM's four tensor cores together in float16: m64nN takes N/2
    cycles, with any type."""
    generic_bytes: int = 128
    """Bytes per cycle of ordinary shared-memory accesses; half of it to GMEM."""
    registers: int = 40
    remote: int = 200
    """From one SM of a cluster to another: a remote arrival, the cluster barrier."""
    link: int = 2000
    """From one GPU to another: a signal, and the additional latency of a copy of a peer's
    memory."""
    link_bytes: int = 200
    """Bytes per cycle of a GPU's outgoing port, and of its incoming port: 370 GB/s at 1.85 GHz."""


class InOrder:
    """The scheduler of a cluster, or of one CTA: smallest time first, ties in order of arrival.
    Warpgroups run until they wait."""

    explores = False
    """Whether warpgroups must yield before they wait for something
    (`chosen_schedules.Directed`)."""

    def __init__(self, rng: random.Random | None = None) -> None:
        self._tasks: list = []
        self._serial = 0
        self._running: object = None
        """The owner of the running task."""
        self._random = (rng or random).random

    def push(self, time: int, task: Task, owner: object) -> None:
        """Let `task` run from cycle `time` on. `owner` is its warpgroup or, for an asynchronous
        operation, the unit that runs it: "load", "read" or "write" (a TMA store's two halves),
        "wgmma", "arrive" (a remote arrival)."""
        self._serial += 1
        entry = self._rank(time, owner), self._serial, time, task, owner
        heapq.heappush(self._tasks, entry)

    def _rank(self, time: int, owner: object) -> float:
        """Return the place of a new task among the others; the smallest comes first."""
        return time

    def pop(self) -> tuple[int, Task] | None:
        """Return the next task and its cycle, or None if nothing can happen any more."""
        if not self._tasks:
            return None
        _, _, time, task, self._running = heapq.heappop(self._tasks)
        return time, task

    def pause(self, ready: Ready | None = None) -> int | None:
        """Return the cycles for which the running warpgroup, which could continue, yields now; None
        if it continues.

        Unless `ready`, it would wait for something.
        """
        return None

    def defer(self, thing: tuple, ready: Ready) -> None:
        """Let all others run before the running warpgroup, which unsuccessfully tests `thing`: the
        answer changes when `ready` is true. (In this order a test takes time anyway.)"""

    def touch(
        self,
        thing: tuple,
        how: int,
        epoch: int = 0,
        amount: tuple[int, int] | None = None,
        room: tuple[int, int] = (0, 0),
    ) -> None:
        """Record that the running task touches a thing, in one of the ways of `footprints`."""

    def touch_bytes(self, rank: int, lo: int, hi: int, how: str) -> None:
        """Record that it touches SMEM[lo:hi) of the CTA of a rank."""

    def touch_array(self, array: np.ndarray, index: Sequence[slice], how: str) -> None:
        """Record that it touches elements of an array."""

    def arrays(self, arrays: Sequence[np.ndarray]) -> None:
        """Record the arrays that the kernel was given: their places are the same in each run,
        unlike their addresses."""

    def takes(self, cycles: int) -> int:
        """Return the cycles that an asynchronous operation takes, given the `cycles` of the
        model."""
        return cycles


class Jittered(InOrder):
    """The virtual-time order of an SM whose copies and products are faster or slower than the
    model's by a random factor, and whose warpgroups stall now and then. The range of the factors is
    drawn once: up to 2, 4 … 64."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self._spread = float(2 << rng.randrange(6))

    def pause(self, ready: Ready | None = None) -> int | None:
        return int(30 * self._spread * self._random()) if self._random() < 0.3 else None

    def takes(self, cycles: int) -> int:
        return max(1, int(cycles * self._spread ** (2 * self._random() - 1)))


class Shuffled(InOrder):
    """Takes any task next, drawn from a seeded generator; warpgroups yield in a third of their
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

    Every warpgroup and every asynchronous operation has a random priority. The task with the
    highest priority that can run does so at once, until it waits. At d - 1 moments, for a random d
    = 1 … 4, the running warpgroup falls below all others. A bug that needs d events in one order is
    found with at least a known probability: 1/n that the first thread comes last of n, times the
    probability of each moment. The paper draws moments uniformly from the k steps of a run, and so
    must know k. Here step s is drawn with a probability of about 1 / (s ln MOST): for any run of
    fewer than MOST steps, this is within a factor ln MOST of the paper's. In every other schedule
    the operations of a unit share one priority, so that, for example, all loads or all stores are
    late.
    """

    MOST = 1 << 14

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self._shared = rng.random() < 0.5
        changes = (
            int(math.exp(math.log(self.MOST) * rng.random())) for _ in range(rng.randrange(4))
        )
        self._changes = sorted(changes, reverse=True)
        """The moments, in reverse order."""
        self._priorities: dict[object, float] = {}
        self._lowest = 0.0
        self._steps = 0

    def _rank(self, time: int, owner: object) -> float:
        if isinstance(owner, str) and not self._shared:
            return -self._random()
        if owner not in self._priorities:
            self._priorities[owner] = self._random()
        return -self._priorities[owner]

    def pause(self, ready: Ready | None = None) -> int | None:
        self._steps += 1
        if self._changes and self._steps >= self._changes[-1]:
            self._changes.pop()
            self._fall()
        return 0 if self._tasks and -self._tasks[0][0] > self._priorities[self._running] else None

    def defer(self, thing: tuple, ready: Ready) -> None:
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
    """Return the name of the kind of schedule that a seed selects.

    >>> [kind(seed) for seed in (None, 0, 1, 2, 3)]
    ['in order', 'shuffled', 'priorities', 'jitter', 'shuffled']
    """
    return "in order" if seed is None else _KINDS[seed % len(_KINDS)][0]


class Schedule:
    """The order of a grid's CTAs, and a scheduler for each of their clusters, by seed."""

    def __init__(self, seed: int | None) -> None:
        self._random = None if seed is None else random.Random(operator.index(seed))
        self._make = _KINDS[(seed or 0) % len(_KINDS)][1]

    def clusters(self, grid: Place, cluster: Place) -> list[list[Place]]:
        """Return all CTAs, by cluster, x fastest. With a seed, the clusters after the first come in
        a random order; the first stays, and reports a hazard that all clusters have."""
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
    at the same time; here they run one after the other, so the owner of each index is decided
    beforehand. Without a seed, CTAs get indices in turn, as if equally fast. With a seed, CTAs are
    faster or slower by random factors, up to a CTA that takes nearly all indices.
    """

    def __init__(self, ctas: int, seed: int | None = None, deal: Sequence[int] = ()) -> None:
        """Create a counter. `deal` lists the CTAs that get the first work indices; the rest are
        dealt in turn."""
        self._ctas = ctas
        self._deal = deal
        self.drawn = 0
        """One more than the last work index that was drawn."""
        self._random = None if seed is None else random.Random(f"deal {seed}")
        spread = 0.0 if self._random is None else self._random.choice((0.5, 2.0, 8.0))
        self._speeds = [
            1.0 if self._random is None else 2 ** self._random.uniform(-spread, spread)
            for _ in range(ctas)
        ]
        self._owners: list[int] = []
        """The CTAs that get work indices `ctas`, `ctas` + 1, …"""
        self._newest: dict[int, int] = {}
        """The newest work index of each CTA that drew one."""
        self._loops: list[str] = []
        """The loops that the first CTA ended, in order."""
        self._ended: dict[int, int] = {}
        """The number of loops that each CTA ended."""

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
        """Record that a CTA has ended a loop, or, with "", itself. Return how that differs from
        what another CTA did at this point."""
        number = self._ended.get(cta, 0)
        if number == len(self._loops) and "" not in self._loops:
            self._loops.append(what)
        self._ended[cta] = number + 1
        first = self._loops[number] if number < len(self._loops) else ""
        return (
            None if first == what else f"{what or 'ended'} where another one has {first or 'ended'}"
        )


class LiveCounter(WorkCounter):
    """The counter of one of several GPUs, whose CTAs run at the same time: whichever CTA asks gets
    the next work index."""

    def __init__(self, ctas: int, gpu: int, scheduler: InOrder) -> None:
        super().__init__(ctas)
        self._thing, self._scheduler = ("deal", gpu), scheduler

    def draw(self, cta: int) -> int:
        self._scheduler.touch(self._thing, WRITE)
        self.drawn = max(self.drawn, self._ctas) + 1
        return self.drawn - 1
