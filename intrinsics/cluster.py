"""Clusters: CTAs that run at the same time and access each other's shared memory through one
address window.

::

    mbarrier.init(free, 4)             both CTAs: each warp of the other CTA releases once
    fence.mbarrier_init()
    cluster.arrive()
    cluster.wait()                     no remote arrival before the barrier is initialized
    mbarrier.arrive_remote(cluster.map_shared(free, other))
    cluster.arrive()
    cluster.wait()                     no CTA exits while others still arrive

PTX ISA, "Cluster of Cooperative Thread Arrays"; mapa; barrier.cluster.
"""

from __future__ import annotations

from numpipe.core.machine import current
from numpipe.core.op import ptx


@ptx("mapa.shared::cluster.u32 $ret, $addr, $rank;", returns="r", memory=False, addr="r", rank="r")
def map_shared(addr: int, rank: int) -> int:
    """Return the address in the cluster's window of the byte at shared address `addr` in the CTA
    with this rank. Scope: a lane.

    Used for the addresses that `mbarrier.arrive_remote` takes. PTX ISA: mapa, ".shared::cluster".
    """
    return current().map_shared(addr, rank)


@ptx("barrier.cluster.arrive.release;")
def arrive() -> None:
    """Arrive at the cluster's barrier. Waiters see everything done before, including remote
    arrivals. Scope: all lanes.

    Every thread of the cluster must arrive and then wait, in this order; threads that have exited
    count as arrived. It is a fence for the whole GPU, so use it only at the beginning and end of a
    kernel. PTX ISA: barrier.cluster.arrive, ".release".
    """
    current().cluster_arrive()


@ptx("barrier.cluster.wait.acquire;")
def wait() -> None:
    """Block until all threads of the cluster have arrived. Scope: all lanes. PTX ISA:
    barrier.cluster.wait, ".acquire"."""
    current().cluster_wait()
