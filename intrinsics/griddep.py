"""griddepcontrol: a kernel starts while the one before it in the stream ends (programmatic dependent launch).

Without the launch attribute both are no-ops. PTX ISA, "Parallel Synchronization and Communication Instructions:
griddepcontrol".
"""

from __future__ import annotations

from numpipe._machine import current
from numpipe._op import ptx


@ptx("griddepcontrol.wait;")
def wait() -> None:
    """Block until the preceding grids have finished and their memory operations are visible. Scope: a lane.

    Barriers and tensor maps can be set up before it; nothing a preceding kernel writes may be touched before it.
    Simulated kernels run one after the other, so there it only leaves a line in the trace. PTX ISA: griddepcontrol.
    """
    current().note("griddepcontrol.wait")


@ptx("griddepcontrol.launch_dependents;")
def launch_dependents() -> None:
    """Allow the next grid of the stream to start once every CTA has executed this or has exited. Scope: a lane.

    Call it when the CTA will need no more SMs than it holds, e.g. after the last load was issued. It publishes no
    data: the dependent's `wait` does. PTX ISA: griddepcontrol.
    """
    current().note("griddepcontrol.launch_dependents")
