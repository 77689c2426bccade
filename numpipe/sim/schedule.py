"""Which warpgroup runs next, and which asynchronous operation finishes.

Both schedulers hold *tasks*: a callable and the cycle from which it may run. A warpgroup is a task while it can run, an
asynchronous operation while it is in flight.

`InOrder` takes the task with the smallest virtual time: a discrete-event simulation, deterministic, the order that the
text timeline shows. `Shuffled` takes any task: a TMA lands, a wgmma reads its operands and a store reaches GMEM at any
moment the hardware allows, as often as a seed is tried.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

Task = Callable[[int], None]
"""Called with the cycle at which it runs."""


@dataclass(frozen=True)
class Costs:
    """The cycles of the virtual-time model: a Hopper SM at the level of detail a pipeline's shape depends on.

    Every warpgroup has a clock that its operations advance. The SM has one copy port, which TMA loads and stores share
    in the order of issue, and one tensor core, which the batches of all warpgroups share. What is left out: GMEM
    bandwidth shared between SMs, L2 misses, bank conflicts, power.
    """

    issue: int = 10
    """any instruction that only issues: arrive, expect_tx, fence, commit, wgmma"""
    wait: int = 20
    """a wait that succeeds at once, and what waking up adds to one that blocked"""
    barrier: int = 30
    """bar.sync once everyone is there"""
    tma_issue: int = 20
    tma_latency: int = 700
    """from the start of the copy to its first byte (a load from L2), or from its last read to GMEM (a store)"""
    tma_bytes: int = 64
    """bytes a cycle through the copy port (L2 to one SM)"""
    fma: int = 2048
    """multiply-adds a cycle of the SM's four tensor cores together in float16: m64nNk16 takes N/2 cycles"""
    generic_bytes: int = 128
    """bytes a cycle of ordinary shared-memory accesses; half of it to GMEM"""
    registers: int = 40


class Scheduler(Protocol):
    def push(self, time: int, task: Task) -> None:
        """`task` may run from cycle `time` on."""

    def pop(self) -> tuple[int, Task] | None:
        """The next task, or None if nothing can happen any more."""

    def preempts(self) -> bool:
        """Shall a warpgroup that could go on give way now?"""

    def __len__(self) -> int: ...


class InOrder:
    """Smallest time first; ties in the order of arrival. Warpgroups run on until they wait."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Task]] = []
        self._serial = 0

    def push(self, time: int, task: Task) -> None:
        self._serial += 1
        heapq.heappush(self._heap, (time, self._serial, task))

    def pop(self) -> tuple[int, Task] | None:
        if not self._heap:
            return None
        time, _, task = heapq.heappop(self._heap)
        return time, task

    def preempts(self) -> bool:
        return False

    def __len__(self) -> int:
        return len(self._heap)


class Shuffled:
    """Any task next, drawn from a seeded generator; warpgroups give way in a third of their operations."""

    def __init__(self, rng: random.Random) -> None:
        self._random = rng.random
        self._tasks: list[tuple[int, Task]] = []

    def push(self, time: int, task: Task) -> None:
        self._tasks.append((time, task))

    def pop(self) -> tuple[int, Task] | None:
        tasks = self._tasks
        if not tasks:
            return None
        i = int(self._random() * len(tasks))
        tasks[i], tasks[-1] = tasks[-1], tasks[i]
        return tasks.pop()

    def preempts(self) -> bool:
        return self._random() < 0.3

    def __len__(self) -> int:
        return len(self._tasks)
