"""mbarrier: a counter of arrivals and bytes in shared memory, on which TMA copies complete.

A barrier has 8 bytes and is aligned to 8. It counts *phases*: phase p ends after `count` arrivals
and after every byte announced with `arrive_expect_tx` has landed; phase p + 1 then begins at once.
A wait specifies only the parity of a phase, p & 1, so a waiter may be at most one phase behind:

    phase          0          1          2          3
    parity         0          1          0          1
    wait(parity=0) ---passes--^                            also passes here, if the waiter is a
                                                           phase too late

PTX ISA, "Parallel Synchronization and Communication Instructions: mbarrier".
"""

from __future__ import annotations

from numpipe.core.machine import current
from numpipe.core.op import ptx


@ptx("mbarrier.init.shared::cta.b64 [$addr], $count;", addr="r", count="r")
def init(addr: int, count: int) -> None:
    """Turn the 8 bytes at `addr` into a barrier whose phases end after `count` arrivals (1 … 2²⁰ -
    1). Scope: one lane.

    Other lanes and the async proxy can use it only after `fence.mbarrier_init` and a CTA barrier::

        if elect.elect_sync():
            mbarrier.init(ready, 1)
            fence.mbarrier_init()
        barrier.sync(0, threads)

    PTX ISA: mbarrier.init.
    """
    current().mbar_init(addr, count)


@ptx("mbarrier.inval.shared::cta.b64 [$addr];", addr="r")
def inval(addr: int) -> None:
    """Invalidate the barrier, so that its bytes can be used for something else. Scope: one lane.

    No wait or copy may be using it at that time. PTX ISA: mbarrier.inval.
    """
    current().mbar_inval(addr)


@ptx("$gate mbarrier.arrive.shared::cta.b64 _, [$addr];", addr="r")
def arrive(addr: int) -> None:
    """Arrive once, with release semantics for the CTA: waiters see what this lane wrote before.
    Scope: a lane.

    Every executing lane arrives, so a whole warpgroup makes 128 arrivals. A ring releases a slot
    with ``mbarrier.arrive(consumed)`` in lane 0 of each warp, and the barrier counts 4 arrivals per
    warpgroup. PTX ISA: mbarrier.arrive.
    """
    current().mbar_arrive(addr)


@ptx("$gate mbarrier.arrive.shared::cluster.b64 _, [$addr];", addr="r")
def arrive_remote(addr: int) -> None:
    """Arrive once on a barrier of any CTA of the cluster, at an address from `cluster.map_shared`.
    Scope: a lane.

    ::

        mbarrier.arrive_remote(cluster.map_shared(consumed, peer))

    With .release.cluster, the same instruction would wait for a fence of the whole GPU, which makes
    a loop twice as slow. This one releases to the waiters of the barrier. PTX ISA: mbarrier.arrive,
    ".shared::cluster".
    """
    current().mbar_arrive_remote(addr)


@ptx("$gate mbarrier.arrive.release.cluster.shared::cluster.b64 _, [$addr];", addr="r")
def arrive_remote_release(addr: int) -> None:
    """Do what `arrive_remote` does, with cluster scope: waiters that use `wait_cluster` can load
    what this lane wrote to shared memory before.

    It is a fence for the whole GPU, so use it only for stores that other CTAs load. Scope: a lane.
    PTX ISA: mbarrier.arrive, ".release", ".cluster".
    """
    current().mbar_arrive_remote(addr, True)


@ptx("$gate mbarrier.arrive.shared::cta.b64 _, [$addr], $count;", addr="r", count="r")
def arrive_count(addr: int, count: int) -> None:
    """Arrive `count` times at once, as one lane for several; otherwise like `arrive`. Scope: a
    lane. PTX ISA: mbarrier.arrive."""
    current().mbar_arrive(addr, count)


@ptx("$gate mbarrier.arrive.expect_tx.shared::cta.b64 _, [$addr], $nbytes;", addr="r", nbytes="r")
def arrive_expect_tx(addr: int, nbytes: int) -> None:
    """Announce `nbytes` that asynchronous copies will complete in this phase, and arrive once.
    Scope: one lane.

    `nbytes` is the sum over all copies of the phase. It includes bytes outside the array, which are
    filled with zeros::

        mbarrier.arrive_expect_tx(ready, 128 * 64 * 2)
        cp_async_bulk.load(slot, a_map, (m, k), ready)

    If too many bytes are announced, the phase never ends; if too few, it ends before the data has
    landed. PTX ISA: mbarrier.arrive, "expect-tx operation".
    """
    current().mbar_arrive_expect_tx(addr, nbytes)


@ptx(
    "$gate mbarrier.arrive.expect_tx.shared::cluster.b64 _, [$addr], $nbytes;", addr="r", nbytes="r"
)
def arrive_expect_tx_remote(addr: int, nbytes: int) -> None:
    """Do what `arrive_expect_tx` does, on a barrier of any CTA of the cluster, at an address from
    `cluster.map_shared`. Scope: a lane.

    The sender of ``st.async`` uses it to announce its bytes, so that waiters need not know who
    sends. The announcement and the bytes may come in either order, because a phase cannot end
    without the arrival. PTX ISA: mbarrier.arrive, ".shared::cluster".
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
    """Return whether the phase with this parity (0 or 1) has ended. May suspend the warp for a
    system-dependent time. Scope: a lane.

    True has acquire semantics: everything that arrivers and copies of the phase wrote may be read.
    To block, use `wait`. PTX ISA: mbarrier.test_wait, mbarrier.try_wait.
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
    """Do what `try_wait` does without ever suspending, for code that has other work to do. Scope: a
    lane.

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

    Phase -1 has ended from the start, so the first round through a ring does not wait. The GPU uses
    only ``phase & 1``. The simulator also checks that the intended phase was reached, and reports
    `step`, the ring's step counter (-1 without a ring)::

        mbarrier.wait(ready + 8 * (step % slots), step // slots, step)

    Raises PipelineRace on the simulator if another phase was reached. PTX ISA: mbarrier.test_wait,
    mbarrier.try_wait.
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
    """Do what `wait` does, with cluster scope, for data released by `arrive_remote_release` in
    other CTAs. Scope: a lane.

    PTX ISA: mbarrier.test_wait, mbarrier.try_wait, ".acquire", ".cluster".
    """
    current().mbar_wait(addr, phase, step)
