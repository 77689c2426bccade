"""The figures of a GPU that the time of a pipelined kernel depends on, each with how it was
measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ...arch.target import Target
from ...arch.targets import HOPPER
from ...diagnostics.argument_checks import Rule, finite, require, word

Clock = Literal["burst", "settled"]


@dataclass(frozen=True)
class DeviceModel:
    """A GPU, as `numpipe.explain` predicts with it. Clocks are MHz, rates are per second or per
    cycle of the SMs.

    A card that multiplies matrices lowers its clock: within microseconds where it was idle before
    (`tensor_clock`), further when it reaches its power cap after a second of load
    (`settled_clock`). Kernels that hardly use the tensor cores keep `clock`.
    """

    name: str
    sms: int
    clock: float
    """the SMs' clock while the tensor cores rest: the boost clock"""
    tensor_clock: float
    """the clock while they are busy, in the first milliseconds after a pause"""
    settled_clock: float
    """the clock while they are busy, after seconds of load"""
    hbm: float
    """bytes a second, read and written together"""
    link: float
    """bytes a second to and from all other GPUs, each way"""
    l2_bytes: int
    l2_rate: int
    """bytes a cycle, of all SMs together"""
    unaligned_rows: float
    """rows of 128 bytes a second that L2 gives if they begin anywhere but at a multiple of 128"""
    copy_rate: int
    """bytes a cycle that one copy brings to an SM while nothing else is under way"""
    latency: int
    """cycles from the release of a slot to its next tile, from L2: mbarrier, issue, copy,
    mbarrier"""
    hbm_latency: int
    """cycles more if the tile comes from HBM"""
    work_rate: int
    """bytes a cycle of ordinary shared-memory accesses by all warpgroups, with the arithmetic that
    goes with them"""
    step_cycles: int
    """cycles of a pipeline step in which the tensor cores wait: barriers, the turn from one product
    to the next"""
    tile_cycles: int
    """the same of a tile: its last product drains, the first of the next tile is waited for"""
    meeting_cycles: int
    """cycles of a pipeline step in which CTAs of a cluster wait for each other's shares"""
    exchange_cycles: int
    """cycles from a sum that is sent to another CTA of the cluster to the sum from there, beside
    the stores and loads themselves"""
    launch: float
    """seconds between the end of one kernel and the start of the next in a stream, with
    programmatic serialisation"""
    smem_bytes: int = 233472
    """shared memory of an SM; a CTA takes 1 KiB more than it asks for (CUDA C++ Programming Guide,
    "Compute Capabilities")"""
    registers: int = HOPPER.registers
    """32-bit registers of an SM"""
    target: Target = HOPPER
    """its architecture"""

    def tensor_busy_clock(self, clock: Clock | float) -> float:
        """Return the MHz while the tensor cores are busy. Raises SpecError for what is no clock."""
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
        """Return the MHz while they are not."""
        return float(clock) if isinstance(clock, (int, float)) else self.clock


H200 = DeviceModel(
    name="H200 SXM",
    sms=132,
    # nvidia-smi under a copy's load and after a pause: docs/results/bandwidth_h200*, gemm_h200*
    # (burst)
    clock=1980,
    # cycles of a 4096^3, 8192^3 and 8192x8192x512 product were counted by the profiler (285, 2196
    # and 172 thousand); with the measured TFLOPS of docs/results/gemm_h200* they say which clock
    # the card really had
    tensor_clock=1630,
    settled_clock=1357,
    hbm=4.23e12,  # the best copy seen, PyTorch's: docs/results/bandwidth_h200*
    # copies of 16 CTAs between two H200s by NVLink: 375 GB/s from a peer's memory, 371 to it (one
    # quick run)
    link=370e9,
    l2_bytes=60 << 20,
    # NVIDIA's figure for the A100; 4775 were seen in a product that was limited by the tensor cores
    l2_rate=5120,
    # 8192,8200,8184 took 220 million requests, 2.1 a row (Nsight Compute); five configurations
    # without clusters needed 1.84 to 3.4 ms for 104 to 173 million rows: 51 to 56 a nanosecond (one
    # quick run of one process)
    unaligned_rows=53e9,
    copy_rate=64,  # NVIDIA's figure for a port of the L2
    # what a drained ring costs a tile in docs/results/gemm_chain_h200* (1470 cycles), shared out
    latency=1000,
    hbm_latency=500,
    # of the same three products: 30 cycles a step, about 1000 to 1770 a tile of 48 to 64 KiB
    work_rate=64,
    step_cycles=30,
    tile_cycles=500,
    # cooperative 128x256 at 8192^3: 1.8 % slower with a cluster of 2, of 1056 cycles a step (the
    # same run)
    meeting_cycles=20,
    # an estimate: twice the way to another SM, some 200 cycles, and an mbarrier
    exchange_cycles=500,
    launch=2.0e-6,
)
"""An H200 SXM with a 700 W cap."""
