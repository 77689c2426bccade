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
            "bytes are touched although nothing says that the copy which fills them has landed",
            "mbarrier: Phase of the mbarrier object; cp.async.bulk.tensor",
        ),
        Hazard(
            "read-after-release",
            "bytes are read after their slot was released to whoever refills it",
            "Memory Consistency Model: Causality order",
        ),
        Hazard(
            "unfenced-writes",
            "ordinary stores are handed to the TMA or to wgmma without fence.proxy.async by the "
            "warps that wrote",
            "Memory Consistency Model: Proxies; membar/fence: fence.proxy.async",
        ),
        Hazard(
            "unordered-accesses",
            "no barrier orders one warp's ordinary access before another's, or before the copy or "
            "product that takes over",
            "Memory Consistency Model: Causality order",
        ),
        Hazard(
            "store-source-reused",
            "the source of a TMA store is written again, by ordinary stores, before the store has "
            "read it",
            "cp.async.bulk.wait_group",
        ),
        Hazard(
            "uninitialised-read",
            "bytes are read that nobody has written",
            "State Spaces: .shared, .global",
        ),
        Hazard(
            "out-of-bounds",
            "an access reaches beyond what the CTA or the array has",
            "State Spaces: .shared, .global",
        ),
        Hazard(
            "nan-stored",
            "a NaN is stored by a kernel that is asked to store none",
            "Floating Point Instructions: NaN",
        ),
        # ---- wgmma
        Hazard(
            "accumulator-in-flight",
            "registers of an accumulator are touched while a wgmma may still be writing them",
            "wgmma.mma_async; wgmma.wait_group",
        ),
        Hazard(
            "operand-in-flight",
            "registers of a wgmma's operand are overwritten while it may still be reading them",
            "wgmma.mma_async; wgmma.wait_group",
        ),
        Hazard(
            "missing-wgmma-fence",
            "a wgmma meets registers that were touched since the last wgmma.fence",
            "wgmma.fence",
        ),
        # ---- global memory
        Hazard(
            "array-in-transfer",
            "one CTA touches the same elements twice, writing, and the first copy may not be "
            "over, or visible",
            "cp.async.bulk: completion; Memory Consistency Model: Proxies",
        ),
        Hazard(
            "cta-conflict",
            "two CTAs touch the same elements of an array, one of them writes, and nothing orders "
            "them",
            "Memory Consistency Model: Data-races",
        ),
        Hazard(
            "gpu-conflict",
            "two GPUs touch the same elements of an array, one of them writes, and no semaphore "
            "orders them",
            "Memory Consistency Model: Scope; Release and Acquire Patterns; Data-races",
        ),
        Hazard(
            "steering-data-written",
            "an array whose elements steer what is loaded is written during the launch",
            "Memory Consistency Model: Data-races",
        ),
        Hazard(
            "unwritten-output",
            "elements of an output that nobody has written when the launch has ended",
            "State Spaces: .global",
        ),
        Hazard(
            "read-before-grid-dependency",
            "global memory is touched before griddepcontrol.wait",
            "griddepcontrol",
        ),
        # ---- barriers
        Hazard(
            "missing-init-fence",
            "an mbarrier is used where its initialisation may not be visible yet",
            "mbarrier.init; membar/fence: fence.mbarrier_init",
        ),
        Hazard(
            "barrier-reinitialised",
            "an mbarrier is initialised, invalidated or overwritten while it is in use",
            "mbarrier.init; mbarrier.inval",
        ),
        Hazard(
            "wrong-phase",
            "a wait meets another phase of its mbarrier than the one that was meant",
            "mbarrier: Phase of the mbarrier object; mbarrier.test_wait",
        ),
        Hazard(
            "phase-unobserved",
            "a phase completes, and the next one too, before anybody has waited for it",
            "mbarrier: Phase of the mbarrier object",
        ),
        Hazard(
            "wrong-expect-tx",
            "the bytes announced for a phase are not those that its copies bring",
            "mbarrier: Tracking asynchronous operations; mbarrier.expect_tx",
        ),
        Hazard(
            "too-many-arrivals",
            "more arrive in a phase than the mbarrier counts, or for a phase that may not have "
            "begun",
            "mbarrier.arrive",
        ),
        Hazard(
            "too-few-arrivals",
            "a phase never completes, or is not complete at the end: somebody does not arrive",
            "mbarrier.arrive",
        ),
        Hazard(
            "named-barrier-mismatch",
            "a named barrier is used with other threads or another number than its other users "
            "think",
            "bar{.cta}, barrier{.cta}",
        ),
        # ---- clusters
        Hazard(
            "multicast-mismatch",
            "CTAs of a cluster load shares of different blocks into one tile, or not all of them "
            "load theirs",
            "cp.async.bulk.tensor: .multicast::cluster",
        ),
        # ---- whole warpgroups, whole CTAs
        Hazard(
            "divergent-aligned",
            "an instruction for all lanes of a warp or warpgroup is executed by some of them, or "
            "one for a single lane by all",
            "wgmma.mma_async: .aligned; bar: .aligned; setmaxnreg",
        ),
        Hazard(
            "exit-in-flight",
            "a warpgroup, a CTA or a GPU's launch ends while copies, products, arrivals or a "
            "peer's accesses are outstanding",
            "cp.async.bulk.wait_group; wgmma.wait_group",
        ),
        Hazard("register-budget", "setmaxnreg asks for what the CTA can never have", "setmaxnreg"),
        Hazard(
            "deadlock",
            "every warpgroup waits and nothing is in flight, and no other hazard explains it",
            "mbarrier.try_wait; bar",
        ),
        Hazard(
            "livelock",
            "a loop goes round for ever, and nobody of those in it gets anywhere",
            "mbarrier.try_wait; bra",
        ),
        Hazard(
            "illegal-instruction",
            "an operand is one that the hardware does not take",
            "the instruction's own section",
        ),
    )
}
"""hazards by name"""
