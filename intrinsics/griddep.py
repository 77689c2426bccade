"""griddepcontrol: a kernel starts while the one before it in the stream ends (programmatic
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

    Barriers and tensor maps can be set up before it; nothing a preceding kernel writes may be
    touched before it. Each warpgroup that touches arrays waits, or meets one that has waited at a
    barrier. The simulated SM reports an access that comes before (of a kernel that executes a wait
    at all). `numpipe.kernel` begins with one. PTX ISA: griddepcontrol.
    """
    current().grid_dependency_wait()


@ptx("griddepcontrol.launch_dependents;")
def launch_dependents() -> None:
    """Allow the next grid of the stream to start once every CTA has executed this or has exited.
    Scope: a lane.

    Call it when the CTA will need no more SMs than it holds, e.g. after the last load was issued.
    It publishes no data: the next grid sees it behind its own `wait`. PTX ISA: griddepcontrol.
    """
    current().note("griddepcontrol.launch_dependents")
