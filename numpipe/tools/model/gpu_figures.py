"""Figures of a GPU on which the time of a pipelined kernel depends, with how each was measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ...arch.target import Target
from ...arch.targets import HOPPER
from ...diagnostics.argument_checks import Rule, finite, require, word

Clock = Literal["burst", "settled"]


@dataclass(frozen=True)
class DeviceModel:
    """A GPU as `numpipe.explain` models it. Clocks are in MHz; rates are per second, or per cycle
    of the SMs.

    A GPU lowers its clock while it multiplies matrices: within microseconds after an idle period
    (`tensor_clock`), and further when it reaches its power cap after about a second of load
    (`settled_clock`). Kernels that hardly use the tensor cores run at `clock`.
    """

    name: str
    sms: int
    clock: float
    """clock of the SMs while the tensor cores are idle: the boost clock"""
    tensor_clock: float
    """clock while they are busy, in the first milliseconds after a pause"""
    settled_clock: float
    """clock while they are busy, after seconds of load"""
    hbm: float
    """bytes per second, read and written together"""
    link: float
    """bytes per second to and from all other GPUs, in each direction"""
    relay: float
    """seconds from the load of a slot until a store to another GPU has read it"""
    meeting: float
    """seconds at the beginning and the end of a kernel on several GPUs in which the link is idle:
    GPUs wait for each other's launches, and for their last signals"""
    l2_bytes: int
    l2_rate: int
    """bytes per cycle for all SMs together"""
    copy_rate: int
    """bytes per cycle that one copy brings to an SM if nothing else is in flight"""
    latency: int
    """cycles from the release of a slot to its next tile, from L2: mbarrier, issue, copy,
    mbarrier"""
    hbm_latency: int
    """additional cycles if the tile comes from HBM"""
    work_rate: int
    """bytes per cycle of ordinary shared-memory accesses by all warpgroups, including the related
    arithmetic"""
    step_cycles: int
    """cycles of a pipeline step in which the tensor cores wait: barriers, switching from one
    product to the next"""
    tile_cycles: int
    """the same per tile: draining its last product and waiting for the first of the next tile"""
    exchange_cycles: int
    """cycles from sending a sum to another CTA of the cluster until the sum from there arrives,
    without the stores and loads themselves"""
    launch: float
    """seconds between the end of one kernel and the start of the next in a stream, with
    programmatic dependent launch"""
    smem_bytes: int = 233472
    """shared memory of an SM; a CTA takes 1 KiB more than it requests (CUDA C++ Programming Guide,
    "Compute Capabilities")"""
    registers: int = HOPPER.registers
    """32-bit registers of an SM"""
    target: Target = HOPPER
    """its architecture"""

    def tensor_busy_clock(self, clock: Clock | float) -> float:
        """Return the MHz while the tensor cores are busy. Raises SpecError for an invalid clock."""
        if finite(above=0).holds(clock):
            return float(clock)
        require(
            "explain",
            locals(),
            clock=word("burst", "settled")
            | Rule(("a positive number of MHz",), finite(above=0).holds),
        )
        return self.tensor_clock if clock == "burst" else self.settled_clock

    def resting_clock(self, clock: Clock | float) -> float:
        """Return the MHz while the tensor cores are idle."""
        return float(clock) if isinstance(clock, (int, float)) else self.clock


H200 = DeviceModel(
    name="H200 SXM",
    sms=132,
    # nvidia-smi during copies and after a pause: docs/results/bandwidth_h200*, gemm_h200* (burst)
    clock=1980,
    # clocks derived from the profiler's cycle counts for 4096^3, 8192^3 and 8192x8192x512 products
    # (285, 2196 and 172 thousand) and the measured TFLOPS of docs/results/gemm_h200*
    tensor_clock=1630,
    settled_clock=1357,
    hbm=4.23e12,  # the fastest copy measured, PyTorch's: docs/results/bandwidth_h200*
    # copies by 16 CTAs between two H200s over NVLink: 375 GB/s from a peer's memory, 371 to it (one
    # quick run)
    link=370e9,
    # 8 CTAs with 192 KB of slots sent 200 GB/s on four GPUs, while others multiplied
    relay=7.3e-6,
    # all_gather of 64 to 1024 MiB between two GPUs, 103 to 1472 us, less its bytes at this rate
    meeting=14e-6,
    l2_bytes=60 << 20,
    # NVIDIA's figure for the A100; 4775 were measured in a product limited by the tensor cores
    l2_rate=5120,
    copy_rate=64,  # NVIDIA's figure for a port of the L2
    # apportioned from what a drained ring costs per tile in docs/results/gemm_chain_h200* (1470
    # cycles)
    latency=1000,
    hbm_latency=500,
    # from the same three products: 30 cycles per step, about 1000 to 1770 per tile of 48 to 64 KiB
    work_rate=64,
    step_cycles=30,
    tile_cycles=500,
    # estimate: twice the way to another SM, about 200 cycles, and an mbarrier
    exchange_cycles=500,
    launch=2.0e-6,
)
"""An H200 SXM with a 700 W power cap."""
