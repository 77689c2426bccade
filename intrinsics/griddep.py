"""griddepcontrol: start a kernel while the previous one in the stream is finishing (programmatic
dependent launch).

Without the launch attribute both are no-ops. PTX ISA, "Parallel Synchronization and Communication
Instructions: griddepcontrol".
"""

from __future__ import annotations

from numpipe.core.machine import current
from numpipe.core.op import ptx


@ptx("griddepcontrol.wait;")
def wait() -> None:
    """Block until the preceding grids have finished and their memory operations are visible. Scope:
    a lane.

    Barriers and tensor maps can be set up before it, but nothing that a preceding kernel writes may
    be accessed. Each warpgroup that accesses arrays must wait, or synchronize at a barrier with one
    that has waited. The simulated SM reports earlier accesses in kernels that execute a wait.
    `numpipe.kernel` begins with one. PTX ISA: griddepcontrol.
    """
    current().grid_dependency_wait()


@ptx("griddepcontrol.launch_dependents;")
def launch_dependents() -> None:
    """Allow the next grid of the stream to start once every CTA has executed this or exited. Scope:
    a lane.

    Call it when the CTA no longer needs most of its resources, for example after the last load was
    issued. It publishes no data: the next grid sees this grid's results only after its own `wait`.
    PTX ISA: griddepcontrol.
    """
    current().note("griddepcontrol.launch_dependents")
