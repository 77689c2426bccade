"""Allocations as a Numba value: all of it is known when the kernel is compiled."""

from __future__ import annotations

from ...core import numba as nb
from ...plan.plans import RingPlan


class AllocationsType(nb.types.Type):  # type: ignore[misc]
    def __init__(self, plans: tuple[RingPlan, ...]) -> None:
        self.plans = plans
        super().__init__(name=f"allocations({plans})")


nb.register_model(AllocationsType)(nb.models.OpaqueModel)
