"""The simulated SM: runs kernels in CPython, and finds races and deadlocks in them.

`simulate` runs a body once for each warpgroup of every CTA, each in a greenlet: a register tile is
a NumPy array, shared memory an array of bytes, swizzle included. TMA copies, wgmma batches and TMA
stores take effect on their own, at some time between their issue and the wait that covers them. Two
questions decide what is found. The first is which warpgroup runs next (`schedule`: an order of
virtual time, which models a pipeline's shape but not a kernel's speed, or with a seed any legal
order). The second is whether an access is ordered (`clocks`), which does not depend on the order
that was run. (`exploration` runs all orders, up to equivalence.) If every warpgroup waits and
nothing is in flight, that is a deadlock.

CTAs run one after the other, and the CTAs of a cluster at the same time. Accesses of any two CTAs
to an element of an array are compared (`gmem`). In a kernel with semaphores the CTAs of all GPUs
run at the same time (`gpus`, `semaphore_counters`), and clocks order their accesses to arrays
(`peer_memory`). All lanes execute instructions that are ``.aligned``; narrower scopes, and lanes of
a warp that miss a shuffle, are reported. Not modeled: loads from other CTAs' shared memory, atomics
of the lanes, waits of a CTA for one with a larger index, and the individual lanes of a warp. (An
elected lane represents its warp, so two ordinary stores of one warpgroup to an array count as
ordered; but see `lane_code_runs`.)

This room implements `core.machine.Machine`. What operations mean belongs to `language` and
`intrinsics`, so that a simulated kernel and a compiled one share the ring, the tile orders, the
layouts and the matrix descriptors. Start with `warpgroup`, which has a method for each operation,
then read `clocks`. All files are typed against `state`. `smem`, `gmem` and `mbarriers` record what
happens, `banks` counts bank conflicts for traces, and `progress` shows and limits the time of a
run. `race_report`, `conflicts`, `footprints`, `unwritten_outputs`, `livelocks` and
`deadlock_search` say what went wrong: an error names the hazard, both sides, and the fix.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from greenlet import GreenletExit

from ..arch.dimensions import Dim3
from ..arch.target import Target
from ..arch.targets import DEFAULT
from ..core import machine
from ..diagnostics.argument_checks import NONE, STRING, a, require, whole
from ..diagnostics.errors import NumpipeError, SpecError
from ..traces.events import Event
from ..traces.trace import Trace
from . import deadlock_search, mbarriers, named_barriers
from .chosen_schedules import Guide, Name, named_guide
from .clocks import Clocks
from .cluster_traffic import ClusterMeeting, leave
from .gmem import GlobalMemory, left_set
from .gpus import Gpus
from .peer_memory import SharedArrays
from .progress import RunProgress
from .schedule import Costs, LiveCounter, Schedule, WorkCounter
from .smem import SharedMemory
from .state import HELD, HELD_LAST, SM
from .warpgroup import Warpgroup

__all__ = ["Costs", "Event", "Trace", "default_registers", "simulate"]

MAX_WARPGROUPS = 8
Seed: TypeAlias = "int | str | Guide | None"


def default_registers(warpgroups: int, target: Target = DEFAULT) -> int:
    """Return the 32-bit registers that a lane has at kernel entry if the register file is divided
    evenly.

    >>> default_registers(3)
    168
    """
    require("default_registers", locals(), warpgroups=whole(1, MAX_WARPGROUPS), target=a(Target))
    return min(target.lane_registers, target.registers_of(warpgroups))


def simulate(
    body: Callable[[machine.Machine], None],
    *,
    grid: Dim3,
    warpgroups: int,
    smem_bytes: int,
    beside: int = 0,
    unit: Any = None,
    seed: Seed = None,
    trace: Trace | None = None,
    registers: int | None = None,
    costs: Costs | None = None,
    staging_bytes: int = 0,
    fresh: Sequence[np.ndarray] = (),
    programmatic: bool = False,
    cluster: Dim3 = (1, 1, 1),
    handover: bool = False,
    ended: Callable[[GlobalMemory], None] | None = None,
    arrays: Sequence[np.ndarray] = (),
    limit: float | None = None,
    gpus: Sequence[Sequence[np.ndarray]] = (),
) -> None:
    """Run ``body(machine)`` for every warpgroup of every CTA of `grid` (x, y, z), CTA by CTA, x
    fastest unless there is a seed.

    warpgroups     warpgroups of 128 threads, 1 … 8; `body` sets ``machine.role`` itself
    beside         warps of one of these warpgroups that run the body independently too; their
                   numbers follow the numbers of the warpgroups
    smem_bytes     dynamic shared memory of a CTA; starts as 0xFF bytes (NaN in float16 and
                   bfloat16)
    staging_bytes  additional shared memory after it, for a kernel whose rings are planned as it
                   runs and cannot be packed in advance
    unit           becomes ``machine.unit``
    seed           None: the deterministic order of the virtual-time model. An int: a random legal
                   order of CTAs, warpgroups and asynchronous operations, the same for the same seed
                   (see `schedule` for the kinds of order). A string: the schedule of that name
                   (`chosen_schedules`)
    trace          collects events for `Trace.timeline`
    registers      32-bit registers a lane has at entry (`default_registers`), for setmaxnreg
    costs          cycles of the virtual-time model
    fresh          arrays whose elements are undefined until the kernel writes them
    programmatic   the launch is a programmatic dependent launch: every access to an array must come
                   after a griddepcontrol.wait. Otherwise only kernels that execute one are checked
                   for that.
    cluster        CTAs along x, y, z that run at the same time; `grid` is a multiple
    handover       CTAs wait for others with a smaller index (`gmem`): they run in the order of
                   their indices, also with a seed. So do kernels whose first CTA uses a flag
    ended          called when all CTAs have ended, with the record of their accesses to global
                   memory
    arrays         the arrays passed to the kernel, which an exploration identifies by their
                   position in this sequence
    limit          maximum duration in seconds (None: an hour); SpecError if the run takes longer,
                   or is going to (`progress`)
    gpus           the arrays of each GPU, for a kernel with semaphores: each GPU has a grid of
                   CTAs, and all of them run at once

    Raises PipelineRace, PipelineDeadlock or SimulationError for a broken kernel, and any exception
    that `body` raises.

    >>> simulate(
    ...     lambda machine: print(machine.cta, machine.warpgroup),
    ...     grid=(2, 1, 1),
    ...     warpgroups=1,
    ...     smem_bytes=1024,
    ... )
    (0, 0, 0) 0
    (1, 0, 0) 0
    """
    if not 1 <= warpgroups <= MAX_WARPGROUPS:
        raise SpecError(
            f"warpgroups={warpgroups}; a CTA has 1 … {MAX_WARPGROUPS} warpgroups of 128 threads"
        )
    target: Target = getattr(unit, "target", DEFAULT)
    if not 0 <= smem_bytes <= target.smem_bytes:
        raise SpecError(
            f"smem_bytes={smem_bytes}; a CTA has at most {target.smem_bytes} bytes of dynamic "
            "shared memory"
        )
    guide = (
        named_guide(Name.of(seed))
        if isinstance(seed, str)
        else seed
        if isinstance(seed, Guide)
        else None
    )
    name = getattr(unit, "kernel", "")
    require(
        f"kernel {name}" if name else "simulate",
        locals(),
        seed=whole() | STRING | NONE | a(Guide, text="a Guide"),
    )
    random: Any = seed if guide is None else None
    ctas_in_all = math.prod(grid)
    progress = RunProgress(
        name,
        1 if gpus else ctas_in_all // math.prod(cluster),
        max(1, len(gpus)) * ctas_in_all,
        limit,
    )
    schedule = Schedule(random)
    deal = WorkCounter(ctas_in_all, random, () if guide is None else guide.deal)
    launch = Gpus(gpus) if gpus else None
    gmem = (
        GlobalMemory(fresh, programmatic)
        if launch is None
        else SharedArrays(launch, fresh, programmatic)
    )
    context = contextvars.copy_context()
    # the tensor core and TMA produce infinities without an error
    with contextlib.closing(progress), np.errstate(all="ignore"):
        clusters = schedule.clusters(grid, cluster)
        at_once: list[list[tuple[int | None, list[Dim3]]]] = [[(None, ctas)] for ctas in clusters]
        if gpus:
            at_once = [[(gpu, ctas) for gpu in range(len(gpus)) for ctas in clusters]]
        for number, parts in enumerate(at_once):
            gmem.begin()
            scheduler = schedule.scheduler() if guide is None else guide.scheduler()
            scheduler.arrays(arrays)
            count = sum(len(ctas) for _, ctas in parts)
            clocks = Clocks(4 * (warpgroups + beside) * count, count, max(1, len(gpus)))
            group: list[SM] = []
            live = [LiveCounter(ctas_in_all, gpu, scheduler) for gpu in range(len(gpus))]
            for gpu, ctas in parts:
                peers: list[SM] = []
                for cta in ctas:
                    sm = SM(
                        cta=cta,
                        grid=grid,
                        wide=warpgroups + beside,
                        unit=unit,
                        scheduler=scheduler,
                        clocks=clocks,
                        peers=peers,
                        group=group,
                        costs=costs or Costs(),
                        trace=trace,
                        context=context,
                        gmem=gmem,
                        deal=deal if gpu is None else live[gpu],
                        run_progress=progress,
                        gpus=launch,
                        gpu=gpu,
                    )
                    sm.meeting = ClusterMeeting("cluster", sm, ("cluster", peers[0].place), 1)
                    sm.memory = SharedMemory(sm, max(smem_bytes + staging_bytes, 1))
                    sm.warpgroups += [
                        Warpgroup(sm, i, functools.partial(_run_body, body))
                        for i in range(warpgroups + beside)
                    ]
                    sm.registers = named_barriers.Registers(
                        sm,
                        default_registers(warpgroups, target) if registers is None else registers,
                        warpgroups,
                    )
            _run(group)
            progress.end()
            # whether the first cluster, which comes first in any order, used a flag decides the
            # order of the others
            if number == 0 and (handover or gmem.flags):
                at_once.sort(key=lambda parts: parts[0][1][0][::-1])
        left_set(gmem.flags.values())
    if guide is not None:
        guide.drawn = deal.drawn
    if ended is not None:
        ended(gmem)


def _run_body(body: Callable[[machine.Machine], None], warpgroup: Warpgroup) -> None:
    """Run a warpgroup to its end, in its greenlet."""
    sm = warpgroup.sm
    machine.enter(warpgroup)
    try:
        # the GPU wraps NumPy integers silently; here an overflow is an error
        with np.errstate(over="raise"):
            body(warpgroup)
        warpgroup.products.at_exit()
        warpgroup.bulk_groups.at_exit()
    except NumpipeError:
        raise
    except Exception as error:
        if hasattr(error, "add_note"):  # Python 3.11
            error.add_note(f"raised in {warpgroup.title} of a simulated kernel")
        raise
    sm.progress += 1
    warpgroup.record(warpgroup.time, warpgroup.time, "end")
    warpgroup.over = True
    if len(sm.peers) > 1:
        leave(warpgroup)
    if sm.gpus is not None:
        sm.gpus.leave(warpgroup)


def _release(peers: list[SM]) -> bool:
    """Let the first warpgroup that has an error to report continue; return whether there is one."""
    for kind in (HELD, HELD_LAST):
        for sm in peers:
            for warpgroup in sm.warpgroups:
                if warpgroup.blocked is not None and warpgroup.blocked.kind == kind:
                    warpgroup.wake(warpgroup.time)
                    return True
    return False


def _run(peers: list[SM]) -> None:
    """Run the CTAs of a cluster, or of all GPUs, to their ends. Raises what a warpgroup raises, or
    a deadlock or another SimulationError."""
    scheduler = peers[0].scheduler
    try:
        for sm in peers:
            for warpgroup in sm.warpgroups:
                warpgroup.greenlet.gr_context = sm.context.copy()
                warpgroup.wake(0)
        while (task := scheduler.pop()) is not None or _release(peers):
            if task is not None:
                task[1](task[0])
        if not all(w.over for sm in peers for w in sm.warpgroups):
            raise deadlock_search.deadlock(peers[0])
        for sm in peers:
            mbarriers.unfinished(sm)
            named_barriers.unfinished(sm)
    # end the remaining warpgroups: their ``finally`` clauses run, but can no longer wait
    finally:
        for sm in peers:
            sm.closing = True
            for warpgroup in sm.warpgroups:
                if not warpgroup.greenlet.dead:
                    with contextlib.suppress(Exception):  # only the first error is reported
                        warpgroup.greenlet.throw(GreenletExit)
