"""Consecutive pipelines that share the same shared memory, and the types of a pipeline's parts.

::

    pipe = numpipe.emit_pipeline_warp_specialized(body, …)
    shared = pipe.get_allocations(a, b)
    pipe(a, b, allocations=shared)
    # the same slots, barriers and counters
    numpipe.emit_pipeline_warp_specialized(other_body, …)(d, e, allocations=shared)

Loops over pipelines work the same way: ``for … in other(d, e, allocations=shared):``.

A ring is not drained (`ring`), so the second pipeline's loads begin as soon as a slot is free,
while the first one still computes. In Pallas a pipeline needs a START, STEADY or STOP state for
that; here the state is accepted and has no effect.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import Any, Protocol

import numpy as np

from ...core.arith import is_integer
from ...core.inert import NoValue
from ...core.op import is_none
from ...diagnostics.argument_checks import is_int
from ...diagnostics.errors import SpecError
from ...plan.plans import RingPlan

__all__ = ["ComputeContext", "PipelineState", "WarpSpecializedPipeline"]


class PipelineState(IntEnum):
    """The position of a pipeline in a chain of pipelines: the pipeline_state of
    `emit_pipeline_warp_specialized`.

    >>> int(PipelineState.STOP)
    2
    """

    START = 0
    STEADY = 1
    STOP = 2


class Allocations:
    """The rings of a pipeline, for other pipelines to use (`get_allocations`)."""

    def __init__(self, plans: tuple[RingPlan, ...]) -> None:
        self.plans = plans


class WarpSpecializedPipeline(Protocol):
    """The callable that `emit_pipeline_warp_specialized` returns inside a kernel."""

    def __call__(self, *arrays: Any, allocations: Any = None) -> None:
        """Run the pipeline over the arrays; with `allocations`, on another pipeline's shared
        memory."""

    def get_allocations(self, *arrays: Any) -> Any:
        """Return the shared memory that the pipeline uses for these arrays: slots, barriers and
        counters."""


class ComputeContext(Protocol):
    """The compute_context of a pipeline, which runs the pipeline once, with the initial carry."""

    def __call__(self, pipeline: Any) -> None:
        """``final = pipeline(initial)``."""


def check_state(where: str, given: Any) -> None:
    """Raise SpecError unless pipeline_state, or its Numba type, is None, a PipelineState or an
    integer 0…2.

    The simulator also checks run-time integers. A compiler knows only their type, and the memory
    role knows nothing about a value that only the compute role has (`NoValue`).
    """
    value = getattr(given, "literal_value", given)
    if (
        is_none(given)
        or isinstance(given, NoValue)
        or (value in list(PipelineState) if is_int(value) else is_integer(given))
    ):
        return
    shown = int(value) if isinstance(value, np.integer) else repr(value)
    raise SpecError(
        f"{where}: pipeline_state must be None, numpipe.PipelineState.START, STEADY or STOP, or "
        f"an integer 0…2, got {shown}"
    )


def check_shared(where: str, single: bool) -> None:
    """Raise SpecError for allocations that come from, or are passed to, a single-stream
    pipeline."""
    if single:
        raise SpecError(
            f"{where}: allocations belong to emit_pipeline_warp_specialized, whose slots all "
            "warpgroups share, but a single-stream pipeline has slots and barriers for each "
            "warpgroup; fix: leave out allocations="
        )


@contextmanager
def running(held: dict[int, str], kernel: str, plans: Iterable[RingPlan]) -> Iterator[None]:
    """Hold the rings of a pipeline while it runs, or while its body is compiled. Raises SpecError
    if another pipeline already holds one.

    Counters are not updated until a pipeline ends, so no pipeline can run inside another on the
    same rings. `held`: the names of the rings in use, by counter.
    """
    rings = {plan.index: plan.name for plan in plans}
    for index, name in rings.items():
        if index in held:
            inner, outer = (ring.rpartition(" @ ")[2] for ring in (name, held[index]))
            raise SpecError(
                f"kernel {kernel}, pipeline at {inner}: it runs inside the pipeline at {outer}, "
                "on the same slots, which are in use until that one ends; fix: leave out "
                "allocations= for the inner pipeline"
            )
    held.update(rings)
    try:
        yield
    finally:
        for index in rings:
            del held[index]


def check_count(where: str, shared: tuple[RingPlan, ...], rings: int, outs: int) -> None:
    """Raise SpecError for allocations of a pipeline with a different number of rings or output
    rings."""
    outputs = sum(plan.written for plan in shared)
    names = ", ".join(plan.name for plan in shared) or "no operand"
    if len(shared) != rings + outs:
        raise SpecError(
            f"{where}: the allocations of {names} have {len(shared)} rings, but this pipeline has "
            f"{rings + outs}. Pipelines that share allocations must have the same number of "
            "rings; operands that change together and have the same number of slots share a ring"
        )
    if outputs != outs:
        raise SpecError(
            f"{where}: the allocations of {names} have {outputs} output rings, but this pipeline "
            f"has {outs}: pipelines that share allocations must have the same number"
        )
