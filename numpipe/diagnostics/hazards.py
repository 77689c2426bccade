"""The names of the hazards of a Hopper pipeline, used by reports, `numpipe.verify` and the catalog.

The names are public: they appear as a report's `hazard`, in tables, and in machine-readable output.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Hazard:
    """A kind of mistake: its `name`, what it `means`, and the PTX ISA section that defines the rule
    (`source`)."""

    name: str
    means: str
    source: str


HAZARDS: dict[str, Hazard] = {
    hazard.name: hazard
    for hazard in (
        # ---- shared memory
        Hazard(
            "refilled-while-read",
            "bytes are overwritten while a load, a TMA store or a wgmma may still be reading them",
            "Memory Consistency Model: Causality order; wgmma.mma_async; cp.async.bulk",
        ),
        Hazard(
            "read-before-ready",
            "bytes are accessed before the copy that fills them is known to have landed",
            "mbarrier: Phase of the mbarrier object; cp.async.bulk.tensor",
        ),
        Hazard(
            "read-after-release",
            "bytes are read after their slot was released to be refilled",
            "Memory Consistency Model: Causality order",
        ),
        Hazard(
            "unfenced-writes",
            "ordinary stores are passed to TMA or wgmma without a fence.proxy.async by the warps "
            "that wrote them",
            "Memory Consistency Model: Proxies; membar/fence: fence.proxy.async",
        ),
        Hazard(
            "unordered-accesses",
            "no barrier orders a warp's ordinary access before another warp's, or before the "
            "copy or product that follows",
            "Memory Consistency Model: Causality order",
        ),
        Hazard(
            "store-source-reused",
            "the source of a TMA store is overwritten by ordinary stores before the store has "
            "read it",
            "cp.async.bulk.wait_group",
        ),
        Hazard(
            "uninitialised-read",
            "bytes are read that were never written",
            "State Spaces: .shared, .global",
        ),
        Hazard(
            "out-of-bounds",
            "an access is outside the CTA's memory or the array, or data (a table of pages) "
            "chooses a block that lies outside its array",
            "State Spaces: .shared, .global",
        ),
        Hazard(
            "nan-stored",
            "a NaN is stored by a kernel that was built to store none",
            "Floating Point Instructions: NaN",
        ),
        # ---- wgmma
        Hazard(
            "accumulator-in-flight",
            "registers of an accumulator are accessed while a wgmma may still be writing them",
            "wgmma.mma_async; wgmma.wait_group",
        ),
        Hazard(
            "operand-in-flight",
            "registers of a wgmma's operand are overwritten while it may still be reading them",
            "wgmma.mma_async; wgmma.wait_group",
        ),
        Hazard(
            "missing-wgmma-fence",
            "a wgmma uses registers that were accessed since the last wgmma.fence",
            "wgmma.fence",
        ),
        # ---- global memory
        Hazard(
            "array-in-transfer",
            "one CTA accesses the same elements twice, at least once to write, and the first "
            "copy may not be finished or visible",
            "cp.async.bulk: completion; Memory Consistency Model: Proxies",
        ),
        Hazard(
            "cta-conflict",
            "two CTAs access the same elements of an array, at least one of them writes, and "
            "nothing orders them",
            "Memory Consistency Model: Data-races",
        ),
        Hazard(
            "gpu-conflict",
            "two GPUs access the same elements of an array, at least one of them writes, and no "
            "semaphore orders them",
            "Memory Consistency Model: Scope; Release and Acquire Patterns; Data-races",
        ),
        Hazard(
            "steering-data-written",
            "an array whose elements determine what is loaded is written during the launch",
            "Memory Consistency Model: Data-races",
        ),
        Hazard(
            "unwritten-output",
            "elements of an output have not been written when the launch ends",
            "State Spaces: .global",
        ),
        Hazard(
            "read-before-grid-dependency",
            "global memory is accessed before griddepcontrol.wait",
            "griddepcontrol",
        ),
        # ---- barriers
        Hazard(
            "missing-init-fence",
            "an mbarrier is used where its initialization may not be visible yet",
            "mbarrier.init; membar/fence: fence.mbarrier_init",
        ),
        Hazard(
            "barrier-reinitialised",
            "an mbarrier is initialized, invalidated or overwritten while it is in use",
            "mbarrier.init; mbarrier.inval",
        ),
        Hazard(
            "wrong-phase",
            "a wait finds a different phase of its mbarrier than the intended one",
            "mbarrier: Phase of the mbarrier object; mbarrier.test_wait",
        ),
        Hazard(
            "phase-unobserved",
            "a phase completes, and the next one too, before anybody has waited for it",
            "mbarrier: Phase of the mbarrier object",
        ),
        Hazard(
            "wrong-expect-tx",
            "the bytes announced for a phase differ from the bytes that its copies deliver",
            "mbarrier: Tracking asynchronous operations; mbarrier.expect_tx",
        ),
        Hazard(
            "too-many-arrivals",
            "a phase gets more arrivals than the mbarrier counts, or arrivals when it may not "
            "have begun",
            "mbarrier.arrive",
        ),
        Hazard(
            "too-few-arrivals",
            "a phase never completes, or is incomplete at the end, because arrivals are missing",
            "mbarrier.arrive",
        ),
        Hazard(
            "named-barrier-mismatch",
            "a named barrier is used with other threads, or another number of threads, than its "
            "other users expect",
            "bar{.cta}, barrier{.cta}",
        ),
        # ---- clusters
        Hazard(
            "multicast-mismatch",
            "CTAs of a cluster load shares of different blocks into one tile, or some do not "
            "load their share",
            "cp.async.bulk.tensor: .multicast::cluster",
        ),
        # ---- whole warpgroups, whole CTAs
        Hazard(
            "divergent-aligned",
            "an instruction for all lanes of a warp or warpgroup is executed by only some of "
            "them, or one for a single lane by all",
            "wgmma.mma_async: .aligned; bar: .aligned; setmaxnreg",
        ),
        Hazard(
            "exit-in-flight",
            "a warpgroup, a CTA or a GPU's launch ends while copies, products, arrivals or a "
            "peer's accesses are outstanding",
            "cp.async.bulk.wait_group; wgmma.wait_group",
        ),
        Hazard(
            "register-budget",
            "setmaxnreg requests registers that the CTA can never have",
            "setmaxnreg",
        ),
        Hazard(
            "deadlock",
            "every warpgroup waits and nothing is in flight, and no other hazard explains it",
            "mbarrier.try_wait; bar",
        ),
        Hazard(
            "livelock",
            "a loop never ends, and no warpgroup in it makes progress",
            "mbarrier.try_wait; bra",
        ),
        Hazard(
            "illegal-instruction",
            "the hardware does not support an operand",
            "the instruction's own section",
        ),
    )
}
"""hazards by name"""
