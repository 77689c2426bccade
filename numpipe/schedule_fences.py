"""`numpipe.schedule_fence`: a place in the machine code that no statement is moved across."""

from __future__ import annotations

from typing import NoReturn

from ._op import op
from .context import Context


def schedule_fence() -> NoReturn:
    """Keep the compiler from moving statements from one side of this one to the other.

    ptxas orders statements anew between two branches, and moves a wait for a product up, above arithmetic that does not need the
    product: so the arithmetic does not run beside the product any more, but behind it. Often that is what to do with the registers
    there are, and it interleaves what comes behind the wait with what stood before it; measure both::

        e = np.exp2(s)                       # while the product `acc` runs
        numpipe.schedule_fence()
        acc = numpipe.wgmma_wait(acc)

    In the compute role it is a branch back that is never taken, on a value that ptxas does not know: three to six instructions more
    (a comparison, a branch, a NOP), and what ptxas would have interleaved across it. It orders nothing that other threads see: no
    barrier, no wait. In the memory role, and on the simulated SM, it does nothing.
    """
    raise RuntimeError("numpipe.schedule_fence works inside a kernel only: call it from a @numpipe.kernel function")


@op
def fence_schedule(np_: Context) -> None:
    """`schedule_fence()` as the AST pass writes it: with the context."""
