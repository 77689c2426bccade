"""The simulated SM: kernels run in CPython, and races and deadlocks are found on the way.

`simulate` runs a body once per warpgroup of every CTA, each in a greenlet, against the protocol in `numpipe.core.machine`.
TMA copies, wgmma batches and TMA stores are agents of their own that act some time between their issue and the wait
that covers them; a scheduler, seeded or in the order of a virtual-time model, decides when.

=============  ==================================================================================================
file           concept
=============  ==================================================================================================
``state``      what a CTA's SM and its warpgroups hold, accesses and mbarriers: what all others are typed against
``sm``         a CTA that runs a body, and the loop
``port``       one warpgroup: the Machine that operations act on
``schedule``   who is next, and the cycles of the virtual-time model
``clocks``     happens-before: vectors of counters, per warp and proxy; what the warps of a warpgroup know
``memory``     shared memory: bytes, and who wrote and read each of them
``cluster``    remote arrivals, the barrier of a cluster
``mbarrier``   phases of an mbarrier; ``barriers``: what is done with them; ``named``: named barriers and the register pool
``boxes``      what a TMA copy moves, and swizzles; ``tma``: what the TMA can address; ``bulk``: copies in flight
``mma``        matrix descriptors, accumulators, groups
``generic``    ordinary loads and stores; ``lane``: code that each lane runs for itself
``gmem``       global memory: who wrote and read which elements, by CTA; ``touches``: an access to it, and what is told of two;
               ``regions``: views of one allocation
``remote``     stores to the shared memory of another CTA of the cluster
``handover``   flags in global memory, by which a CTA tells another one that its stores are there
``deal``       the counter from which CTAs take their tiles
``report``     the errors, their text and their `numpipe.reports.Report`; ``sites``: lines of the user's; ``conflicts``: which
               hazard two accesses are; ``deadlock``: nobody can run
=============  ==================================================================================================

CTAs run one after the other, and what any two of them do to an element of an array is compared (`gmem`), so that a conflict is
found although it cannot happen here. An array that the call allocates holds nothing until it is written, direct stores stay inside
their array, and arrays are touched behind a griddepcontrol.wait. (A kernel's entry waits, as on the GPU; bodies that are passed to
`simulate` and never wait are not checked.) What is ``.aligned`` is executed by all lanes: narrower scopes, branches by lane, and
lanes of a warp that do not come to a shuffle are reported.

CTAs of a cluster run at the same time, and what orders them is in the vectors as within a CTA.

What is not modelled: loads from other CTAs' shared memory, atomics of the lanes, bank conflicts, waits of one CTA for one
of a larger index, the lanes of a warp one by one (an elected lane stands for its warp; but see ``lane``), so which lane of a
warpgroup stored an element: two ordinary stores of one warpgroup to an array count as ordered.
"""

from __future__ import annotations

import contextvars
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..arch.target import Target
from ..arch.targets import DEFAULT
from ..core.machine import TensorMap
from ..diagnostics.errors import SpecError
from ..traces import Event, Trace
from .boxes import Box
from .clocks import Clocks
from .deal import Deal
from .gmem import GlobalMemory
from .handover import left_set
from .mma import Plan
from .schedule import Costs, Schedule
from .sm import SM, Body, run
from .state import SM as State

__all__ = ["Costs", "Event", "Trace", "default_registers", "simulate"]

MAX_WARPGROUPS = 8


def default_registers(warpgroups: int, target: Target = DEFAULT) -> int:
    """32-bit registers a lane holds at kernel entry if the register file is shared out evenly.

    >>> default_registers(3)
    168
    """
    return min(target.lane_registers, target.registers_of(warpgroups))


def simulate(body: Body, *, grid: tuple[int, int, int], warpgroups: int, smem_bytes: int, unit: Any = None,
             seed: int | None = None, trace: Trace | None = None, registers: int | None = None,
             costs: Costs | None = None, staging_bytes: int = 0, fresh: Sequence[np.ndarray] = (),
             programmatic: bool = False, cluster: tuple[int, int, int] = (1, 1, 1), handover: bool = False) -> None:
    """Run ``body(machine)`` for every warpgroup of every CTA of `grid` (x, y, z; x fastest without a seed), CTA by CTA.

    warpgroups   of 128 threads, 1 … 8; `body` sets ``machine.role`` itself
    smem_bytes   dynamic shared memory of a CTA; starts as 0xFF bytes (NaN in float16 and bfloat16)
    staging_bytes  more shared memory behind it, for a kernel that meets its rings as it runs and cannot pack them before
    unit         what ``machine.unit`` is
    seed         None: the deterministic order of the virtual-time model. An int: a random legal order of CTAs, warpgroups and
                 asynchronous operations, the same for the same seed (see `schedule` for the kinds of order)
    trace        collects events for `Trace.timeline`
    registers    32-bit registers a lane holds at entry (`default_registers`), for setmaxnreg
    costs        cycles of the virtual-time model
    fresh        arrays that hold nothing before the kernel writes them
    programmatic  the launch is a programmatic dependent one: every access to an array comes after a griddepcontrol.wait. Else
                 that is asked of kernels that execute one.
    cluster      CTAs along x, y, z that run at the same time; `grid` is a multiple

    handover     CTAs wait for others of a smaller index (`handover`): they run in the order of their indices, also with a seed

    Raises PipelineRace, PipelineDeadlock or SimulationError for a broken kernel, what `body` raises otherwise.

    >>> simulate(lambda machine: print(machine.cta, machine.warpgroup), grid=(2, 1, 1), warpgroups=1, smem_bytes=1024)
    (0, 0, 0) 0
    (1, 0, 0) 0
    """
    if not 1 <= warpgroups <= MAX_WARPGROUPS:
        raise SpecError(f"warpgroups={warpgroups}; a CTA has 1 … {MAX_WARPGROUPS} warpgroups of 128 threads")
    target: Target = getattr(unit, "target", DEFAULT)
    if not 0 <= smem_bytes <= target.smem_bytes:
        raise SpecError(f"smem_bytes={smem_bytes}; a CTA has at most {target.smem_bytes} bytes of dynamic shared memory")
    schedule = Schedule(seed)
    boxes: dict[TensorMap, Box] = {}
    plans: dict[Any, Plan] = {}
    gmem, deal = GlobalMemory(fresh, programmatic), Deal(grid[0] * grid[1] * grid[2], seed)
    context = contextvars.copy_context()
    with np.errstate(all="ignore"):  # the tensor core and TMA make infinities without a word
        groups = schedule.clusters(grid, cluster)
        for ctas in sorted(groups, key=lambda ctas: ctas[0][::-1]) if handover else groups:
            gmem.begin()
            scheduler, clocks = schedule.scheduler(), Clocks(4 * warpgroups * len(ctas), len(ctas))
            peers: list[State] = []
            for cta in ctas:
                SM(body, cta=cta, grid=grid, warpgroups=warpgroups, smem_bytes=max(smem_bytes + staging_bytes, 1), unit=unit,
                   registers=default_registers(warpgroups, target) if registers is None else registers, scheduler=scheduler,
                   clocks=clocks, peers=peers, costs=costs or Costs(), trace=trace, context=context, boxes=boxes, plans=plans,
                   gmem=gmem, deal=deal)
            run(peers)
        left_set(gmem.flags.values())
