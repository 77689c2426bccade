"""A warpgroup of the CTA: the `Machine` that operations act on.

Most operations are functions in the file of their concept, and methods here. `state` contains what
they share: the vectors of the four warps, the virtual clock, blocking, and the context that reports
name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import numpy as np

from ..core.machine import Lanes
from . import (
    banks,
    cluster_traffic,
    generic_proxy,
    gmem,
    gpus,
    lane_code_runs,
    livelocks,
    mbarriers,
    named_barriers,
    race_report,
    semaphore_counters,
    state,
    tma_copies,
    wgmma_groups,
)
from .clocks import COUNT, FENCED, GENERIC, INITIALISED
from .state import SM


class Warpgroup(state.Warpgroup):
    """The simulated `Machine`, whose docstrings describe the operations."""

    products: wgmma_groups.Products
    bulk_groups: tma_copies.Groups
    loops: livelocks.Rounds
    moves = True

    def __init__(self, sm: SM, number: int, body: Callable[[Any], None]) -> None:
        super().__init__(sm, number, body)
        self.products = wgmma_groups.Products(self)
        self.bulk_groups = tma_copies.Groups(self)
        self.loops = livelocks.Rounds()

    def steps(self, count: int, site: Any) -> Iterable[int]:
        return range(count + 1)

    def next_tile(self, tile: int, stride: int, end: int) -> int:
        return tile + stride

    # ---- who executes
    collective = race_report.collective

    def scoped(self, lanes: Lanes, function: Callable, args: Sequence) -> Any:
        outer = self.lanes
        if COUNT[lanes] > COUNT[outer]:
            raise race_report.violation(
                self,
                f"lanes={lanes!r} inside lanes={outer!r}; a scope can only get narrower",
                hazard="divergent-aligned",
            )
        self.lanes = lanes
        try:
            return function(*args)
        finally:
            self.lanes = outer

    # ---- mbarriers and clusters
    mbar_init = mbarriers.init
    mbar_init_at_entry = mbarriers.init_at_entry
    mbar_inval = mbarriers.invalidate
    mbar_arrive = mbarriers.arrive
    mbar_arrive_remote = cluster_traffic.arrive_remote
    mbar_arrive_expect_tx_remote = cluster_traffic.arrive_expect_tx_remote
    mbar_arrive_cluster = cluster_traffic.arrive_at
    mbar_arrive_expect_tx = mbarriers.arrive_expect_tx
    mbar_test = mbarriers.test
    mbar_wait = mbarriers.wait
    map_shared = cluster_traffic.window
    cluster_arrive = cluster_traffic.arrive
    cluster_wait = cluster_traffic.wait
    agree = cluster_traffic.agree

    # ---- fences, named barriers, registers
    bar_sync = named_barriers.sync
    bar_arrive = named_barriers.arrive

    def fence_mbarrier_init(self) -> None:
        self._fence(INITIALISED)

    def fence_proxy_async(self) -> None:
        self._fence(FENCED, INITIALISED)

    def fence_proxy_async_global(self) -> None:
        self.show()
        self._fence()

    def _fence(self, *kinds: int) -> None:
        """Set the counters of these kinds to the generic one: the fence covers all accesses so far,
        and no later ones."""
        self.elapse_issue()
        warps = len(self.warps())
        for kind in kinds:
            self.counters[kind][:warps] = self.counters[GENERIC][:warps]
        self.counters[GENERIC][:warps] += 1

    def grid_dependency_wait(self) -> None:
        self.elapse_wait()
        self.gmem.await_grid(self)

    def bar_red(self, barrier: int, threads: int, operation: str, values: np.ndarray) -> bool:
        named_barriers.sync(self, barrier, threads)
        return bool(getattr(values, operation)())

    def setmaxnreg(self, direction: Literal["inc", "dec"], registers: int) -> None:
        self.sm.registers.set(self, direction, int(registers))

    # ---- TMA
    tma_load = tma_copies.load
    bulk_load = tma_copies.load_bytes

    tma_store = tma_copies.store
    bulk_commit = tma_copies.commit
    bulk_wait = tma_copies.wait

    # ---- wgmma
    wgmma_fence = wgmma_groups.fence
    wgmma = wgmma_groups.issue
    wgmma_commit = wgmma_groups.commit
    wgmma_wait = wgmma_groups.wait
    product_cycles = wgmma_groups.synchronous

    # ---- generic proxy
    smem_write = generic_proxy.write_chunks
    smem_read = generic_proxy.read_chunks
    smem_send = cluster_traffic.send
    smem_load = generic_proxy.load
    smem_fetch = cluster_traffic.fetch
    smem_store = generic_proxy.store
    smem_update = generic_proxy.update
    store_word = generic_proxy.store_word
    load_word = generic_proxy.load_word
    gmem_write = generic_proxy.write_array
    gmem_scatter = generic_proxy.scatter_array
    gmem_read = generic_proxy.read_array
    gmem_signal = gmem.signal
    gmem_await = gmem.wait

    # ---- other GPUs
    gpu_begin = gpus.begin
    gpu_await_begin = gpus.await_begin
    gpu_of = gpus.check_rank
    semaphore_signal = semaphore_counters.signal
    semaphore_wait = semaphore_counters.wait

    each_lane = lane_code_runs.each

    # ---- observation
    round = livelocks.begin

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
        self.record(self.time, self.time, "note", event=event, **details)
