"""Run a kernel function on the simulated SM."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .. import sim
from ..arch.dimensions import Dim3
from ..core.lanes import one_lane
from ..core.machine import Machine
from ..intrinsics import cluster, griddep, setmaxnreg
from ..language.grid.cluster_exit import await_peers
from ..language.grid.compute_role import begin_compute, end_compute
from ..language.grid.tile_scheduler import end_scheduler
from ..language.memory.peer_arrays import begin_launch
from ..language.tiles.exchange import ROOM
from ..language.tiles.refs import GmemRef
from ..language.tiles.store_ring import drain_stores
from ..plan.context import Context
from ..plan.unit import Unit
from ..sim.chosen_schedules import Guide


def simulate(
    unit: Unit,
    function: Callable,
    arrays: Sequence[Sequence[np.ndarray]],
    scalars: Sequence[Sequence],
    grid: Dim3,
    *,
    seed: sim.Seed = None,
    trace: sim.Trace | None = None,
    fresh: int = 0,
    ended: Callable[[Any], None] | None = None,
    limit: float | None = None,
    at_once: bool = False,
) -> None:
    """Run the rewritten kernel function over the whole grid, role by role like the entry on the
    GPU.

    arrays, scalars  one sequence per GPU; a single one for a kernel without semaphores
    fresh            number of arrays of each GPU, before the kernel's own array, that were
                     allocated for this call
    seed             None: the order of the virtual-time model; an int: a random legal schedule
    ended, limit     as for `sim.simulate`
    at_once          whether all CTAs run at the same time (a cooperative launch)

    Raises PipelineRace, PipelineDeadlock or SimulationError, naming the user's lines.
    """

    def body(machine: Machine) -> None:
        run_role(machine, unit, function, arrays, scalars[machine.gpu or 0])

    own = any(array.workspace for array in unit.arrays)
    last = len(unit.arrays) - (unit.gpus > 0)  # semaphores are initialized to zero
    unwritten = [array for each in arrays for array in each[last - fresh - own : last]]
    try:
        most = unit.target.smem_bytes
        sim.simulate(
            body,
            grid=grid,
            warpgroups=unit.warpgroups,
            beside=len(unit.parts) - unit.warpgroups,
            smem_bytes=most,
            unit=unit,
            seed=seed,
            trace=trace,
            cluster=grid if at_once else unit.cluster,
            # in addition to shared memory: see Unit.plan_staging and tiles.exchange
            staging_bytes=most + ROOM * unit.compute_wgs,
            fresh=unwritten,
            programmatic=True,
            handover=own,
            ended=ended,
            arrays=[array for each in arrays for array in each],
            limit=limit,
            gpus=arrays if unit.gpus else (),
        )
    finally:
        if isinstance(seed, Guide):
            seed.layout = unit.layout
        if trace is not None:  # the kernel declares its rings as it runs
            trace.tell_rings(unit.traced())


def run_role(
    machine: Machine,
    unit: Unit,
    function: Callable,
    arrays: Sequence[Sequence[np.ndarray]],
    scalars: Sequence,
) -> None:
    """Run one warpgroup, `machine`, from the kernel's entry to its end, in its role.

    `arrays` are the arrays of each GPU, `scalars` the scalars of the warpgroup's own GPU."""
    # `Unit.role` returns the compute role for all warpgroups if there is no memory role
    machine.role = unit.role(machine.warpgroup)
    np_ = Context(unit, machine.role)
    griddep.wait()
    if (
        unit.gpus
        and machine.cta == (0, 0, 0)
        and machine.warpgroup == unit.memory_warpgroup % unit.warpgroups
    ):
        one_lane(begin_launch, np_)
    args = [
        GmemRef(of_all[machine.gpu or 0], index, np_, of_all if unit.gpus else ())
        for index, of_all in enumerate(zip(*arrays, strict=True))
    ]
    own = len(scalars) - len(unit.folded)
    scalars, unit.grid_sizes = scalars[:own], tuple(scalars[own:])
    if machine.role.computes:
        if unit.warp_specialized:
            setmaxnreg.inc(unit.compute_registers)
        begin_compute(np_)
        function(np_, *args, *scalars)
        end_compute(np_)
    else:
        if machine.role.loads:  # those that share its warpgroup have the same registers
            setmaxnreg.dec(unit.memory_registers)
        one_lane(function, np_, *args, *scalars)
        one_lane(await_peers, np_)
        end_scheduler(np_)
    meets = unit.meets_at_end
    if meets:
        cluster.arrive()
    if not machine.role.loads:
        one_lane(drain_stores, np_)
    if meets:
        cluster.wait()
