"""One warpgroup of the CTA: the `Machine` that operations act on.

Most operations are functions in the file of their concept, and methods here. `state` holds what all of them share: the vectors of
the four warps, the virtual clock, blocking, and the context that reports name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from ..core.machine import Lanes
from . import banks, barriers, bulk, cluster, generic, gmem, gpus, lane, mma, named, report, rounds, semaphores, state
from .clocks import COUNT, FENCED, GENERIC, INITIALISED
from .state import SM


class Warpgroup(state.Warpgroup):
    """The simulated `Machine` (see its docstrings for what the operations do)."""

    products: mma.Products
    bulk_groups: bulk.Groups
    loops: rounds.Rounds
    moves = True

    def __init__(self, sm: SM, number: int, body: Callable[[Any], None]) -> None:
        super().__init__(sm, number, body)
        self.products = mma.Products(self)
        self.bulk_groups = bulk.Groups(self)
        self.loops = rounds.Rounds()

    # ---- who executes
    collective = report.collective

    def scoped(self, lanes: Lanes, function: Callable[..., Any], args: Sequence[Any]) -> Any:
        outer = self.lanes
        if COUNT[lanes] > COUNT[outer]:
            raise report.violation(self, f"lanes={lanes!r} inside lanes={outer!r}; a scope can only get narrower",
                                   hazard="divergent-aligned")
        self.lanes = lanes
        try:
            return function(*args)
        finally:
            self.lanes = outer

    # ---- mbarriers and clusters
    mbar_init = barriers.init
    mbar_init_at_entry = barriers.init_at_entry
    mbar_inval = barriers.invalidate
    mbar_arrive = barriers.arrive
    mbar_arrive_remote = cluster.arrive_remote
    mbar_arrive_expect_tx_remote = cluster.arrive_expect_tx_remote
    mbar_arrive_cluster = cluster.arrive_at
    mbar_arrive_expect_tx = barriers.arrive_expect_tx
    mbar_test = barriers.test
    mbar_wait = barriers.wait
    map_shared = cluster.window
    cluster_arrive = cluster.arrive
    cluster_wait = cluster.wait
    agree = cluster.agree

    # ---- fences, named barriers, registers
    bar_sync = named.sync
    bar_arrive = named.arrive

    def fence_mbarrier_init(self) -> None:
        self._fence(INITIALISED)

    def fence_proxy_async(self) -> None:
        self._fence(FENCED, INITIALISED)

    def fence_proxy_async_global(self) -> None:
        self.elapse(self.sm.costs.issue)
        self.show()
        self.counters[GENERIC][:len(self.warps())] += 1

    def _fence(self, *kinds: int) -> None:
        """Set the counters of these kinds to the generic one: the fence covers all accesses so far, and no later one."""
        self.elapse(self.sm.costs.issue)
        warps = len(self.warps())
        for kind in kinds:
            self.counters[kind][:warps] = self.counters[GENERIC][:warps]
        self.counters[GENERIC][:warps] += 1

    def grid_dependency_wait(self) -> None:
        self.elapse(self.sm.costs.wait)
        self.sm.gmem.await_grid(self)

    def bar_red(self, barrier: int, threads: int, operation: str, values: np.ndarray) -> bool:
        named.sync(self, int(barrier), int(threads))
        return bool(values.any() if operation == "any" else values.all())

    def setmaxnreg(self, direction: Literal["inc", "dec"], registers: int) -> None:
        self.sm.registers.set(self, direction, int(registers))

    # ---- TMA
    tma_load = bulk.load
    bulk_load = bulk.load_bytes

    tma_store = bulk.store
    bulk_commit = bulk.commit
    bulk_wait = bulk.wait

    # ---- wgmma
    wgmma_fence = mma.fence
    wgmma = mma.issue
    wgmma_commit = mma.commit
    wgmma_wait = mma.wait

    # ---- generic proxy
    smem_write = generic.write_chunks
    smem_read = generic.read_chunks
    smem_send = cluster.send
    smem_load = generic.load
    smem_fetch = cluster.fetch
    smem_store = generic.store
    smem_update = generic.update
    store_word = generic.store_word
    load_word = generic.load_word
    gmem_write = generic.write_array
    gmem_scatter = generic.scatter_array
    gmem_read = generic.read_array
    gmem_signal = gmem.signal
    gmem_await = gmem.wait

    # ---- other GPUs
    gpu_begin = gpus.begin
    gpu_await_begin = gpus.await_begin
    gpu_of = gpus.check_rank
    semaphore_signal = semaphores.signal
    semaphore_wait = semaphores.wait

    each_lane = lane.each

    # ---- observation
    round = rounds.begin

    def note(self, event: str, **details: Any) -> None:
        if event == "tiles":
            self.sm.run_progress.tiles(**details)
            return
        if event == "accesses":
            if self.sm.trace is not None:
                banks.count(self, details.pop("lanes")(), **details)
            return
        self.sm.run_progress.noted(event, details)
        if not details.keys().isdisjoint(("ring", "slot", "step", "tile")):
            self.last_note = event, details
        if self.sm.trace is not None:
            self.sm.trace.add(self, self.time, self.time, "note", event=event, **details)
