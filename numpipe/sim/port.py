"""One warpgroup of the CTA: the `Machine` that operations act on.

Every method checks who executes, then hands over to the file of its concept. What is shared by all of them is in `state`: the
vectors of the four warps, the virtual clock, blocking, and the context that reports name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from ..core.machine import InFlight, Lanes, Mma, TensorMap
from . import barriers, bulk, cluster, generic, handover, lane, mma, named, remote, report, state
from .clocks import DRAINED, FENCED, GENERIC, INITIALISED
from .state import SM

_WIDTH: dict[Lanes, int] = {"all": 2, "warps": 1, "one": 0}


class Warpgroup(state.Warpgroup):
    """The simulated `Machine` (see its docstrings for what the operations do)."""

    products: mma.Products
    bulk: bulk.Groups

    def __init__(self, sm: SM, number: int, body: Callable[[Any], None]) -> None:
        super().__init__(sm, number, body)
        self.products = mma.Products(self)
        self.bulk = bulk.Groups(self)

    # ---- who executes
    def collective(self, operation: str) -> None:
        report.collective(self, operation)

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
        self.own[kind][:warps] = self.own[GENERIC][:warps]
        self.own[GENERIC][:warps] += 1

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
