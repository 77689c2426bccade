"""TMA copies of tiles: the loads of a ring, the stores of its outputs and of register tiles, and
copies that a kernel issues itself.

`plan.copy_plans.cut` divides a copy into boxes, for the simulator and the GPU. The simulator
implements three facts that the PTX documentation does not state, and that were measured on an H200:

- the innermost coordinate of a copy must be a multiple of 16 bytes, or the SM traps;
- a store writes whole chunks of 16 bytes: past the end of a row that ends inside one, it overwrites
  what follows;
- a load is exact to the element.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...arch.dimensions import Ints
from ...core.machine import current
from ...intrinsics import cp_async_bulk
from ...plan.cluster_ranks import Sharing, first_of, mask_of, place_of, share_of
from ...plan.copy_plans import CopyPlan
from .refs import GmemRef, tensor_map


class Copy:
    """A copy between an array and shared memory that one lane can issue.

    start    where the tile starts along each dimension of the array
    address  of the tile in shared memory
    arrival  address of the mbarrier on which a load completes
    """

    def __init__(
        self, plan: CopyPlan, ref: GmemRef, start: Sequence, address: int, arrival: int = 0
    ) -> None:
        self.plan = plan
        self.ref = ref
        self.address = address
        self.arrival = arrival
        self.offset = 0
        self.ctas = 0
        self.start = [int(place) for place in start]
        self.tensor = tensor_map(ref, plan.request)

    def share(self, by: Sharing, key: tuple, what: str) -> None:
        """Load only this CTA's share of the tile, for all CTAs that share it: move the start along
        a dimension of the array and in shared memory. `key` identifies the tile, and `what` names
        its start in reports."""
        here = place_of(current().cta, by.dims)
        group = first_of(here, by.dims, by.along)
        # CTAs must load shares of the same tile; the GPU does not check that, and would combine
        # parts of different ones
        current().agree((*key, group), f"{tuple(self.start)} of '{self.ref.name}'", by.shares, what)
        rows = share_of(here, by.dims, by.along) * by.rows
        self.start[by.across] += rows
        self.offset, self.ctas = rows * by.width, mask_of(by.dims, by.along) << group

    @property
    def boxes(self) -> Iterator[tuple[Ints, int]]:
        return self.plan.boxes(self.start, self.address, self.offset)

    def load(self) -> None:
        for at, address in self.boxes:
            current().tma_load(address, self.tensor, at, self.arrival, self.ctas)

    def store(self, once: bool = False) -> None:
        """Issue the stores of all boxes. `once`: the tile is not stored again (see
        `Machine.tma_store`)."""
        for at, address in self.boxes:
            current().tma_store(self.tensor, at, address, self.plan.reduction, once)

    def prefetch(self) -> None:
        for at, _ in self.boxes:
            cp_async_bulk.prefetch(self.tensor, at)
