"""TMA copies on the GPU: a statement a box."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from ...core import numba as nb
from ...core.formula_cuda import Value
from ...intrinsics import cp_async_bulk
from ...plan.cluster_ranks import Sharing, mask_of
from ...plan.context_cuda import cluster_place
from ...plan.copy_plans import CopyPlan
from ...plan.unit import Unit
from .cluster_arrivals_cuda import rank
from .refs_cuda import I32


class Copy:
    """`tma.Copy` while code is generated; `table` is the address of the kernel's tensor maps."""

    def __init__(
        self,
        context: Any,
        builder: Any,
        unit: Unit,
        plan: CopyPlan,
        table: Any,
        start: Sequence[Any],
        address: Any,
        arrival: Any = None,
    ) -> None:
        self.context = context
        self.builder = builder
        self.plan = plan
        self.start = list(start)
        self.arrival = arrival
        self.address, self.offset, self.ctas = address, nb.const(0), None
        self.tensor = builder.add(table, nb.const(128 * unit.map_slot(plan.request), nb.i64))

    def share(self, by: Sharing) -> None:
        builder, place, share = self.builder, cluster_place(self.builder, by.dims), nb.const(0)
        for axis in reversed(by.along):
            share = builder.add(builder.mul(share, nb.const(by.dims[axis])), place[axis])
        rows = builder.mul(share, nb.const(by.rows))
        others = [nb.const(0) if axis in by.along else at for axis, at in enumerate(place)]
        self.ctas = builder.shl(
            nb.const(mask_of((0, 0, 0), by.dims, by.along)), rank(builder, others, by.dims)
        )
        self.offset = builder.mul(rows, nb.const(by.width))
        self.start[by.across] = builder.add(self.start[by.across], rows)

    def load(self) -> None:
        self._issue(cp_async_bulk.load if self.ctas is None else cp_async_bulk.multicast)

    def store(self) -> None:
        self._issue(cp_async_bulk.reduce if self.plan.reduction else cp_async_bulk.store)

    def prefetch(self) -> None:
        self._issue(cp_async_bulk.prefetch)

    def _issue(self, operation: Any) -> None:
        """Issue the operation for each box, with those of the operands below that it takes."""
        *start, address, offset = (
            Value(self.builder, value) for value in (*self.start, self.address, self.offset)
        )
        nothing, place = nb.nothing(self.context), nb.types.UniTuple(I32, len(start))
        policy = nb.types.none if self.plan.policy is None else nb.types.literal(self.plan.policy)
        for at, there in self.plan.boxes(start, address, offset):
            coords = self.context.make_tuple(self.builder, place, [part.value for part in at])
            operands = {
                "dst": (I32, there.value),
                "src": (I32, there.value),
                "tensor_map": (nb.types.int64, self.tensor),
                "coords": (place, coords),
                "mbar": (I32, self.arrival),
                "ctas": (I32, self.ctas),
                "eviction_policy": (policy, nothing),
                "operation": (nb.types.literal(self.plan.reduction), nothing),
            }
            kinds, values = zip(
                *(operands[name] for name in inspect.signature(operation).parameters), strict=True
            )
            nb.call(self.context, self.builder, operation, kinds, values)
