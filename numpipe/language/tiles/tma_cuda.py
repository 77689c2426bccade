"""TMA copies on the GPU: one statement per box."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from ...core import numba as nb
from ...core.formula_cuda import Value
from ...core.numba import I32, I64
from ...intrinsics import cp_async_bulk
from ...plan.cluster_ranks import Sharing, first_of, mask_of, share_of
from ...plan.context_cuda import cluster_place
from ...plan.copy_plans import CopyPlan
from ...plan.unit import Unit


class Copy:
    """The counterpart of `tma.Copy` in code generation; `table` is the address of the kernel's
    tensor maps."""

    def __init__(
        self,
        builder: Any,
        unit: Unit,
        plan: CopyPlan,
        table: Any,
        start: Sequence,
        address: Any,
        arrival: Any = None,
    ) -> None:
        self.builder = builder
        self.plan = plan
        self.start = list(start)
        self.arrival = arrival
        self.address, self.offset, self.ctas = address, nb.const(0), None
        self.tensor = builder.add(table, 128 * unit.map_slot(plan.request))

    def share(self, by: Sharing) -> None:
        here = cluster_place(self.builder, by.dims)
        rows, group = share_of(here, by.dims, by.along) * by.rows, first_of(here, by.dims, by.along)
        self.ctas = self.builder.shl(mask_of(by.dims, by.along), group.value)
        self.offset = (rows * by.width).value
        self.start[by.across] = self.builder.add(self.start[by.across], rows.value)

    def load(self) -> None:
        self._issue(cp_async_bulk.load if self.ctas is None else cp_async_bulk.multicast)

    def store(self) -> None:
        self._issue(cp_async_bulk.reduce if self.plan.reduction else cp_async_bulk.store)

    def prefetch(self) -> None:
        self._issue(cp_async_bulk.prefetch)

    def _issue(self, operation: Any) -> None:
        """Issue the operation for each box, with the operands that it takes from those listed
        below."""
        *start, address, offset = (
            Value(self.builder, value) for value in (*self.start, self.address, self.offset)
        )
        nothing, place = nb.nothing, nb.UniTuple(I32, len(start))
        policy = nb.none if self.plan.policy is None else nb.types.literal(self.plan.policy)
        for at, there in self.plan.boxes(start, address, offset):
            coords = self.builder.make_tuple(place, [part.value for part in at])
            operands = {
                "dst": (I32, there.value),
                "src": (I32, there.value),
                "tensor_map": (I64, self.tensor),
                "coords": (place, coords),
                "mbar": (I32, self.arrival),
                "ctas": (I32, self.ctas),
                "eviction_policy": (policy, nothing),
                "operation": (nb.types.literal(self.plan.reduction), nothing),
            }
            kinds, values = zip(
                *(operands[name] for name in inspect.signature(operation).parameters), strict=True
            )
            self.builder.apply(operation, kinds, values)
