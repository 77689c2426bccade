"""Fences that make stores visible across proxies.

A lane's ld / st go through the *generic* proxy, TMA and wgmma read through the *async* proxy, and
neither sees the other's writes by a barrier alone. PTX ISA, "Parallel Synchronization and
Communication Instructions: membar / fence".
"""

from __future__ import annotations

from numpipe.core.machine import current
from numpipe.core.op import ptx


@ptx("fence.proxy.async.shared::cta;")
def proxy_async() -> None:
    """Make this lane's earlier shared-memory stores visible to the async proxy. Scope: every lane
    that has stored.

    The writers fence, then a barrier, then one lane issues the copy; a fence by the issuing lane
    alone does not cover what others wrote::

        stmatrix.store_x4(addr, r0, r1, r2, r3)
        fence.proxy_async()
        barrier.sync(1, 128)
        if elected:
            cp_async_bulk.store(c_map, (m, n), panel)

    PTX ISA: membar / fence, fence.proxy.
    """
    current().fence_proxy_async()


@ptx("fence.proxy.async.global;")
def proxy_async_global() -> None:
    """Make ordinary stores to global memory, of which this lane knows, visible to the async proxy.
    Scope: a lane.

    For TMA copies of what another CTA, or another GPU, has stored by its lanes: who has seen its
    flag or semaphore fences, and issues the copies, or meets those who issue them at a barrier.
    PTX ISA: membar / fence, fence.proxy; "Memory Consistency Model: Proxies".
    """
    current().fence_proxy_async_global()


@ptx("fence.mbarrier_init.release.cluster;")
def mbarrier_init() -> None:
    """Make earlier mbarrier.init of this lane visible to the async proxy and to the cluster. Scope:
    the lane that initialised.

    Without it a first TMA may complete on a barrier that, to the async proxy, does not exist yet. A
    barrier among the lanes of the CTA (``barrier.sync(0, threads)``) still has to follow. PTX ISA:
    membar / fence, fence.mbarrier_init.
    """
    current().fence_mbarrier_init()
