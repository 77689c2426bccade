"""Fences that make stores visible across proxies.

A lane's loads and stores use the *generic* proxy, while TMA and wgmma use the *async* proxy. A
barrier alone does not make writes through one proxy visible to the other. PTX ISA, "Parallel
Synchronization and Communication Instructions: membar / fence".
"""

from __future__ import annotations

from numpipe.core.machine import current
from numpipe.core.op import ptx


@ptx("fence.proxy.async.shared::cta;")
def proxy_async() -> None:
    """Make this lane's earlier shared-memory stores visible to the async proxy. Scope: every lane
    that has stored.

    The writers execute the fence and then a barrier, and then one lane issues the copy. A fence by
    the issuing lane alone does not cover the writes of other lanes::

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
    """Make ordinary stores to global memory that this lane has seen visible to the async proxy.
    Scope: a lane.

    Use it before TMA copies of data that lanes of another CTA or GPU have stored. The lane that has
    seen their flag or semaphore executes the fence, and then issues the copies, or synchronizes at
    a barrier with the lane that issues them. PTX ISA: membar / fence, fence.proxy; "Memory
    Consistency Model: Proxies".
    """
    current().fence_proxy_async_global()


@ptx("fence.mbarrier_init.release.cluster;")
def mbarrier_init() -> None:
    """Make this lane's earlier mbarrier.init visible to the async proxy and to the cluster. Scope:
    the lane that initialized the barrier.

    Without it a first TMA copy may complete on a barrier that does not exist yet for the async
    proxy. A barrier for the lanes of the CTA (``barrier.sync(0, threads)``) must follow. PTX ISA:
    membar / fence, fence.mbarrier_init.
    """
    current().fence_mbarrier_init()
