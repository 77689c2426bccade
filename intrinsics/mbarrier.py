"""mbarrier: a counter of arrivals and bytes in shared memory, the object TMA copies complete on.

A barrier is 8 bytes, aligned to 8. It counts *phases*: phase p ends when `count` arrivals have come
and every byte that was announced with `arrive_expect_tx` has landed; phase p + 1 begins at once. A
wait names only the parity of a phase, p & 1, so a waiter may lag at most one phase behind:

    phase          0          1          2          3
    parity         0          1          0          1
    wait(parity=0) ---passes--^                            also passes here, if the waiter came a
                   phase too late

PTX ISA, "Parallel Synchronization and Communication Instructions: mbarrier".
"""

from __future__ import annotations

from numpipe.core.machine import current
from numpipe.core.op import ptx


@ptx("mbarrier.init.shared::cta.b64 [$addr], $count;", addr="r", count="r")
def init(addr: int, count: int) -> None:
    """Make the 8 bytes at `addr` a barrier whose phases end after `count` arrivals (1 … 2²⁰ - 1).
    Scope: one lane.

    Other lanes and the async proxy see it only after `fence.mbarrier_init` and a CTA barrier::

        if elect.elect_sync():
            mbarrier.init(ready, 1)
            fence.mbarrier_init()
        barrier.sync(0, threads)

    PTX ISA: mbarrier.init.
    """
    current().mbar_init(addr, count)


@ptx("mbarrier.inval.shared::cta.b64 [$addr];", addr="r")
def inval(addr: int) -> None:
    """End the barrier's life, so that its bytes may be used for anything else. Scope: one lane.

    Nobody may wait on it or complete on it at that time. PTX ISA: mbarrier.inval.
    """
    current().mbar_inval(addr)


@ptx("$gate mbarrier.arrive.shared::cta.b64 _, [$addr];", addr="r")
def arrive(addr: int) -> None:
    """Arrive once, with release semantics for the CTA: those who wait see what this lane wrote
    before. Scope: a lane.

    Every executing lane arrives: 128 arrivals when a whole warpgroup executes it. A ring releases a
    slot by ``mbarrier.arrive(consumed)`` in lane 0 of each warp, and the barrier counts 4 for each
    warpgroup. PTX ISA: mbarrier.arrive.
    """
    current().mbar_arrive(addr)


@ptx("$gate mbarrier.arrive.shared::cluster.b64 _, [$addr];", addr="r")
def arrive_remote(addr: int) -> None:
    """Arrive once on a barrier of any CTA of the cluster, at an address of `cluster.map_shared`.
    Scope: a lane.

    ::

        mbarrier.arrive_remote(cluster.map_shared(consumed, peer))

    Written with .release.cluster the same instruction waits for a fence of the whole GPU, at half
    the speed of a loop; this one releases to those who wait for the barrier. PTX ISA:
    mbarrier.arrive, ".shared::cluster".
    """
    current().mbar_arrive_remote(addr)


@ptx("$gate mbarrier.arrive.release.cluster.shared::cluster.b64 _, [$addr];", addr="r")
def arrive_remote_release(addr: int) -> None:
    """`arrive_remote` with the cluster's scope: who waits by `wait_cluster` may load what this lane
    wrote to shared memory before.

    A fence of the whole GPU: for stores that other CTAs load, and no other. Scope: a lane. PTX ISA:
    mbarrier.arrive, ".release", ".cluster".
    """
    current().mbar_arrive_remote(addr, True)


@ptx("$gate mbarrier.arrive.shared::cta.b64 _, [$addr], $count;", addr="r", count="r")
def arrive_count(addr: int, count: int) -> None:
    """Arrive `count` times at once: one lane for several. Scope: a lane; otherwise `arrive`.
    PTX ISA: mbarrier.arrive."""
    current().mbar_arrive(addr, count)


@ptx("$gate mbarrier.arrive.expect_tx.shared::cta.b64 _, [$addr], $nbytes;", addr="r", nbytes="r")
def arrive_expect_tx(addr: int, nbytes: int) -> None:
    """Announce `nbytes` that asynchronous copies will complete in this phase, and arrive once.
    Scope: one lane.

    `nbytes` is the sum over all copies of the phase, bytes outside the array included (they land as
    zeros)::

        mbarrier.arrive_expect_tx(ready, 128 * 64 * 2)
        cp_async_bulk.load(slot, a_map, (m, k), ready)

    Too many bytes: the phase never ends. Too few: it ends before the data is there. PTX ISA:
    mbarrier.arrive, "expect-tx operation".
    """
    current().mbar_arrive_expect_tx(addr, nbytes)


@ptx(
    "$gate mbarrier.arrive.expect_tx.shared::cluster.b64 _, [$addr], $nbytes;", addr="r", nbytes="r"
)
def arrive_expect_tx_remote(addr: int, nbytes: int) -> None:
    """`arrive_expect_tx` on a barrier of any CTA of the cluster, at an address of
    `cluster.map_shared`. Scope: a lane.

    So the sender of ``st.async`` announces its bytes, and those who wait need not know who sends.
    Both may come in either order: a phase cannot end without the arrival. PTX ISA: mbarrier.arrive,
    ".shared::cluster".
    """
    current().mbar_arrive_expect_tx_remote(addr, nbytes)


@ptx(
    "{ .reg .pred done; mbarrier.try_wait.parity.shared::cta.b64 done, [$addr], $parity; "
    "selp.b32 $ret, 1, 0, done; }",
    returns="bool",
    addr="r",
    parity="r",
)
def try_wait(addr: int, parity: int) -> bool:
    """Return whether the phase of this parity (0 or 1) has ended. May suspend the warp for a
    system-dependent time. Scope: a lane.

    True acquires: everything that arrivers and copies of the phase wrote may be read. To block, use
    `wait`. PTX ISA: mbarrier.test_wait, mbarrier.try_wait.
    """
    return bool(current().mbar_test(addr, parity))


@ptx(
    "{ .reg .pred done; mbarrier.test_wait.parity.shared::cta.b64 done, [$addr], $parity; "
    "selp.b32 $ret, 1, 0, done; }",
    returns="bool",
    addr="r",
    parity="r",
)
def test_wait(addr: int, parity: int) -> bool:
    """`try_wait` that never suspends: for work that can do something else meanwhile. Scope: a lane.

    ::

        if not mbarrier.test_wait(ready, step // slots & 1):
            prefetch_next_tile()

    PTX ISA: mbarrier.test_wait, mbarrier.try_wait.
    """
    return bool(current().mbar_test(addr, parity))


@ptx(
    "{ .reg .pred done; .reg .b32 parity; and.b32 parity, $phase, 1; "
    "WAIT: mbarrier.try_wait.parity.shared::cta.b64 done, [$addr], parity; @!done bra WAIT; }",
    addr="r",
    phase="r",
    step="-",
)
def wait(addr: int, phase: int, step: int) -> None:
    """Block until phase number `phase` (0, 1, …) has ended. Scope: a lane; all lanes of a warp may
    execute it.

    Phase -1 has ended from the start: the first round through a ring waits for nobody. The GPU
    looks at ``phase & 1`` alone; the simulator also checks that the phase reached is the one meant,
    and names `step`, the ring's step counter (-1: not a ring), in its reports::

        mbarrier.wait(ready + 8 * (step % slots), step // slots, step)

    Raises PipelineRace on the simulator when another phase was reached. PTX ISA:
    mbarrier.test_wait, mbarrier.try_wait.
    """
    current().mbar_wait(addr, phase, step)


@ptx(
    "{ .reg .pred done; .reg .b32 parity; and.b32 parity, $phase, 1; WAIT: "
    "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [$addr], parity; @!done bra "
    "WAIT; }",
    addr="r",
    phase="r",
    step="-",
)
def wait_cluster(addr: int, phase: int, step: int) -> None:
    """`wait` with the cluster's scope, for what CTAs released by `arrive_remote_release`. Scope: a
    lane.

    PTX ISA: mbarrier.test_wait, mbarrier.try_wait, ".acquire", ".cluster".
    """
    current().mbar_wait(addr, phase, step)
