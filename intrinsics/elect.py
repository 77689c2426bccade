"""elect.sync: choose one lane of a warp. PTX ISA, "Parallel Synchronization and Communication
Instructions: elect.sync"."""

from __future__ import annotations

from numpipe.core.machine import current, failure
from numpipe.core.op import ptx
from numpipe.diagnostics.errors import SimulationError


@ptx(
    "{ .reg .pred chosen; elect.sync _|chosen, 0xffffffff; selp.b32 $ret, 1, 0, chosen; }",
    returns="bool",
    memory=False,
)
def elect_sync() -> bool:
    """Return True in exactly one lane of each warp. Scope: a converged warp.

    ptxas knows that only one lane is active in the branch, and issues TMA copies without a loop
    over the lanes. It does not know this for ``thread_index() % 128 == 0``::

        if special.thread_index() < 32 and elect.elect_sync():
            cp_async_bulk.load(slot, a_map, (m, k), ready)

    A simulated warpgroup is one thread of control and cannot branch by lane. There this returns
    True if only one lane executes already, and raises SimulationError otherwise. PTX ISA:
    elect.sync.
    """
    machine = current()
    if machine.lanes != "one":
        raise failure(
            SimulationError,
            "divergent-aligned",
            f"elect_sync() with lanes={machine.lanes!r}: a branch that only one lane takes "
            "diverges within the warpgroup, which the simulated SM does not support: use "
            "numpipe's one_lane(function, ...) for the branch",
            "one_lane(function, …)",
            "elects a lane",
        )
    return True
