"""Special registers, which say who and where a lane is, and the base of dynamic shared memory. All
are read by a lane.

On the simulator a value that differs by lane is an array over the *executing* lanes: int32 of 128
for the warpgroup, of 4 for lane 0 of each warp, a scalar for one lane. PTX ISA, "Special
Registers".
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from numpipe.core.machine import current, failure
from numpipe.core.op import op, ptx
from numpipe.diagnostics.errors import SimulationError

_INSTEAD = (
    "use one_lane(function, …) or each_warp(function, …) for what one lane does, and a body with "
    "lowering_semantics=Lane for code of each lane"
)


class LaneValues(np.ndarray):
    """A value that differs by lane, on the simulated SM: a branch or a loop that lanes leave apart
    is refused."""

    def _one(self) -> Any:
        if self.size > 1:
            raise failure(
                SimulationError,
                "divergent-aligned",
                f"a value that each of {self.size} lanes has its own of steers the code: they go "
                "different ways, but the simulated SM runs them together, and on the GPU "
                ".aligned instructions (wgmma, bar.sync, setmaxnreg, stmatrix) hang or are "
                f"undefined: {_INSTEAD}",
                _INSTEAD,
                "branches by lane",
            )
        return self.reshape(-1)[0]

    def __bool__(self) -> bool:
        return bool(self._one())

    def __int__(self) -> int:
        return int(self._one())

    __index__ = __int__


def _own_lanes() -> Any:
    lanes = current().lanes
    if lanes == "one":
        return np.int32(0)
    return np.arange(0, 128, 32 if lanes == "warps" else 1, dtype=np.int32).view(LaneValues)


@op
def thread_index() -> Any:
    """Index of the lane in its CTA, 0 … threads - 1 (%tid.x), int32.

    Read through LLVM, not inline assembly, so that ``thread_index() >> 7`` and comparisons of it
    fold. Example: ``row = special.thread_index() % 128 // 4``. PTX ISA: %tid.
    """
    return _own_lanes() + np.int32(128 * current().warpgroup)


@op
def warpgroup_index() -> Any:
    """Index of the warpgroup in its CTA, int32: ``%tid.x >> 7``, the same in all 128 lanes.
    PTX ISA: %tid."""
    return np.int32(current().warpgroup)


@op
def smem_base() -> Any:
    """Address of the CTA's dynamic shared memory, int32; declared with an alignment of 1024 bytes.
    Simulator: 0.

    Example: ``slot = special.smem_base() + 16384 * (step % slots)``.
    """
    return np.int32(0)


@ptx("mov.u32 $ret, %laneid;", returns="r", memory=False)
def lane_index() -> Any:
    """Index of the lane in its warp, 0 … 31, int32. PTX ISA: %laneid."""
    return _own_lanes() % np.int32(32)


@ptx("mov.u32 $ret, %ctaid.x;", returns="r", memory=False)
def cta_index_x() -> Any:
    """Index of the CTA in the grid, first dimension (blockIdx.x), int32. PTX ISA: %ctaid."""
    return np.int32(current().cta[0])


@ptx("mov.u32 $ret, %ctaid.y;", returns="r", memory=False)
def cta_index_y() -> Any:
    """Index of the CTA in the grid, second dimension (blockIdx.y), int32. PTX ISA: %ctaid."""
    return np.int32(current().cta[1])


@ptx("mov.u32 $ret, %ctaid.z;", returns="r", memory=False)
def cta_index_z() -> Any:
    """Index of the CTA in the grid, third dimension (blockIdx.z), int32. PTX ISA: %ctaid."""
    return np.int32(current().cta[2])


@ptx("mov.u32 $ret, %nctaid.x;", returns="r", memory=False)
def grid_size_x() -> Any:
    """CTAs of the grid along the first dimension (gridDim.x), int32. PTX ISA: %nctaid."""
    return np.int32(current().grid[0])


@ptx("mov.u32 $ret, %nctaid.y;", returns="r", memory=False)
def grid_size_y() -> Any:
    """CTAs of the grid along the second dimension (gridDim.y), int32. PTX ISA: %nctaid."""
    return np.int32(current().grid[1])


@ptx("mov.u32 $ret, %nctaid.z;", returns="r", memory=False)
def grid_size_z() -> Any:
    """CTAs of the grid along the third dimension (gridDim.z), int32. PTX ISA: %nctaid."""
    return np.int32(current().grid[2])


@ptx("mov.u32 $ret, %cluster_ctarank;", returns="r", memory=False)
def cluster_rank() -> Any:
    """Rank of the CTA in its cluster, int32. Simulator: 0 in kernels that do not name the axes of
    their clusters, whose CTAs it runs one by one. PTX ISA: %cluster_ctarank."""
    return np.int32(current().rank)


@ptx("mov.u32 $ret, %smid;", returns="r", memory=False)
def sm_id() -> Any:
    """Number of the SM the CTA runs on, int32. Each simulated CTA has an SM of its own, numbered as
    the CTAs are. PTX ISA: %smid."""
    x, y, z = current().cta
    width, height, _ = current().grid
    return np.int32(x + width * (y + height * z))


@ptx("mov.u64 $ret, %clock64;", returns="l")
def clock64() -> Any:
    """Cycles of this SM, int64; only differences mean anything.

    The simulator returns nanoseconds of the host: they grow, and say nothing about the GPU.
    PTX ISA: %clock64.
    """
    current()
    return np.int64(time.perf_counter_ns())


@ptx("mov.u64 $ret, %globaltimer;", returns="l")
def globaltimer() -> Any:
    """Nanoseconds since 1970, one clock for all SMs, int64; its step is up to about 1 µs. PTX ISA:
    %globaltimer.

    Simulator: the host's clock.
    """
    current()
    return np.int64(time.time_ns())
