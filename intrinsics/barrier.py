"""Named barriers: sixteen hardware barriers per CTA, numbered 0 … 15, for a given number of
threads.

Barrier 0 is the one that ``cuda.syncthreads()`` uses. A barrier can be reused as soon as it
completes, but must not be used with two thread counts at the same time. PTX ISA, "Parallel
Synchronization and Communication Instructions: bar".
"""

from __future__ import annotations

from numpipe.core.machine import current
from numpipe.core.op import ptx


@ptx("bar.sync $id, $threads;", id="r", threads="r")
def sync(id: int, threads: int) -> None:
    """Arrive at barrier `id` (0 … 15) and block until `threads` (a multiple of 32) threads have
    arrived. Scope: warps.

    Every executing warp counts as 32 threads, however many of its lanes are active. Orders the
    participants' shared-memory accesses::

        barrier.sync(1, 128)  # the four warps of one warpgroup
        barrier.sync(0, 384)  # a CTA of three warpgroups

    PTX ISA: bar, barrier.
    """
    current().bar_sync(id, threads)


@ptx("bar.arrive $id, $threads;", id="r", threads="r")
def arrive(id: int, threads: int) -> None:
    """Arrive at barrier `id` without blocking; `threads` is the number of threads that arrive or
    wait. Scope: warps.

    It lets two compute warpgroups alternate::

        barrier.sync(1 + wg, 256)  # my turn?
        issue_the_mainloop()
        barrier.arrive(2 - wg, 256)  # yours

    PTX ISA: bar, barrier.
    """
    current().bar_arrive(id, threads)


@ptx("bar.warp.sync 0xffffffff;")
def warp_sync() -> None:
    """Synchronize the lanes of a warp, so that each sees what the others wrote to shared memory
    before. Scope: whole warps.

    Use it before one lane acts for its warp, such as ``mbarrier.arrive(consumed)`` by lane 0, which
    releases only what that lane has seen. On the simulator it does nothing, because lanes of a warp
    always run together. PTX ISA: bar.warp.sync.
    """
    current()
