"""Named barriers: sixteen hardware barriers of a CTA, 0 … 15, among a stated number of threads.

Barrier 0 is what ``cuda.syncthreads()`` uses. A barrier is reusable as soon as it completes, and
one barrier must not be used with two thread counts at a time. PTX ISA, "Parallel Synchronization
and Communication Instructions: bar".
"""

from __future__ import annotations

from numpipe.core.machine import current
from numpipe.core.op import ptx


@ptx("bar.sync $id, $threads;", id="r", threads="r")
def sync(id: int, threads: int) -> None:
    """Arrive at barrier `id` (0 … 15) and block until `threads` (a multiple of 32) threads have
    arrived. Scope: warps.

    Every executing warp counts as 32 threads, whatever lanes of it are active. Orders shared-memory
    accesses of the participants::

        barrier.sync(1, 128)  # the four warps of one warpgroup
        barrier.sync(0, 384)  # a CTA of three warpgroups

    PTX ISA: bar, barrier.
    """
    current().bar_sync(id, threads)


@ptx("bar.arrive $id, $threads;", id="r", threads="r")
def arrive(id: int, threads: int) -> None:
    """Arrive at barrier `id` without blocking; `threads` counts arrivers and waiters together.
    Scope: warps.

    Two compute warpgroups that take turns hand the turn over with it::

        barrier.sync(1 + wg, 256)  # my turn?
        issue_the_mainloop()
        barrier.arrive(2 - wg, 256)  # yours

    PTX ISA: bar, barrier.
    """
    current().bar_arrive(id, threads)


@ptx("bar.warp.sync 0xffffffff;")
def warp_sync() -> None:
    """The lanes of a warp meet, and see what the others wrote to shared memory before. Scope: whole
    warps.

    Before one lane speaks for its warp, as with ``mbarrier.arrive(consumed)`` by lane 0: its
    arrival releases what it has seen. The simulator's warps are never apart: it does nothing there.
    PTX ISA: bar.warp.sync.
    """
    current()
