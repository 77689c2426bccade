"""Special registers, which identify a lane and its CTA, and the base of dynamic shared memory.

All are read by a lane. On the simulator, a value that differs by lane is an array over the
*executing* lanes: int32 of length 128 for the warpgroup, of length 4 for lane 0 of each warp, and a
scalar for one lane. PTX ISA, "Special Registers".
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from numpipe.core.machine import current, failure
from numpipe.core.op import op, ptx
from numpipe.diagnostics.errors import SimulationError

_INSTEAD = (
    "use one_lane(function, …) or each_warp(function, …) for work of a single lane, and a body "
    "with lowering_semantics=Lane for code that runs per lane"
)


class LaneValues(np.ndarray):
    """A value that differs by lane, on the simulated SM. Using it in a branch or a loop on which
    lanes diverge is an error."""

    def _one(self) -> Any:
        if self.size > 1:
            raise failure(
                SimulationError,
                "divergent-aligned",
                f"a value that differs between {self.size} lanes controls the code, so the lanes "
                "diverge, but the simulated SM runs them together, and on the GPU "
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
    """Return the index of the lane in its CTA, 0 … threads - 1 (%tid.x), as int32.

    It is read through LLVM instead of inline assembly, so that ``thread_index() >> 7`` and
    comparisons with it can be folded. Example: ``row = special.thread_index() % 128 // 4``. PTX
    ISA: %tid.
    """
    return _own_lanes() + np.int32(128 * current().warpgroup)


@op
def warpgroup_index() -> Any:
    """Return the index of the warpgroup in its CTA, ``%tid.x >> 7``, as int32; it is the same in
    all 128 lanes. PTX ISA: %tid."""
    return np.int32(current().warpgroup)


@op
def smem_base() -> Any:
    """Return the address of the CTA's dynamic shared memory, as int32; it is aligned to 1024 bytes.
    Simulator: 0.

    Example: ``slot = special.smem_base() + 16384 * (step % slots)``.
    """
    return np.int32(0)


@ptx("mov.u32 $ret, %laneid;", returns="r", memory=False)
def lane_index() -> Any:
    """Return the index of the lane in its warp, 0 … 31, as int32. PTX ISA: %laneid."""
    return _own_lanes() % np.int32(32)


@ptx("mov.u32 $ret, %ctaid.x;", returns="r", memory=False)
def cta_index_x() -> Any:
    """Return the index of the CTA along the grid's first dimension (blockIdx.x), as int32. PTX ISA:
    %ctaid."""
    return np.int32(current().cta[0])


@ptx("mov.u32 $ret, %ctaid.y;", returns="r", memory=False)
def cta_index_y() -> Any:
    """Return the index of the CTA along the grid's second dimension (blockIdx.y), as int32. PTX
    ISA: %ctaid."""
    return np.int32(current().cta[1])


@ptx("mov.u32 $ret, %ctaid.z;", returns="r", memory=False)
def cta_index_z() -> Any:
    """Return the index of the CTA along the grid's third dimension (blockIdx.z), as int32. PTX ISA:
    %ctaid."""
    return np.int32(current().cta[2])


@ptx("mov.u32 $ret, %nctaid.x;", returns="r", memory=False)
def grid_size_x() -> Any:
    """Return the number of CTAs along the grid's first dimension (gridDim.x), as int32. PTX ISA:
    %nctaid."""
    return np.int32(current().grid[0])


@ptx("mov.u32 $ret, %nctaid.y;", returns="r", memory=False)
def grid_size_y() -> Any:
    """Return the number of CTAs along the grid's second dimension (gridDim.y), as int32. PTX ISA:
    %nctaid."""
    return np.int32(current().grid[1])


@ptx("mov.u32 $ret, %nctaid.z;", returns="r", memory=False)
def grid_size_z() -> Any:
    """Return the number of CTAs along the grid's third dimension (gridDim.z), as int32. PTX ISA:
    %nctaid."""
    return np.int32(current().grid[2])


@ptx("mov.u32 $ret, %cluster_ctarank;", returns="r", memory=False)
def cluster_rank() -> Any:
    """Return the rank of the CTA in its cluster, as int32. Simulator: 0 in kernels that do not name
    the axes of their clusters, because their CTAs run one by one. PTX ISA: %cluster_ctarank."""
    return np.int32(current().rank)


@ptx("mov.u32 $ret, %smid;", returns="r", memory=False)
def sm_id() -> Any:
    """Return the number of the SM that the CTA runs on, as int32. Each simulated CTA has its own
    SM, numbered like the CTAs. PTX ISA: %smid."""
    x, y, z = current().cta
    width, height, _ = current().grid
    return np.int32(x + width * (y + height * z))


@ptx("mov.u64 $ret, %clock64;", returns="l")
def clock64() -> Any:
    """Return the cycle counter of this SM, as int64; only differences are meaningful.

    The simulator returns the host's time in nanoseconds, which says nothing about the GPU. PTX ISA:
    %clock64.
    """
    current()
    return np.int64(time.perf_counter_ns())


@ptx("mov.u64 $ret, %globaltimer;", returns="l")
def globaltimer() -> Any:
    """Return the nanoseconds since 1970 as int64, from one clock for all SMs with a resolution of
    up to about 1 µs. PTX ISA: %globaltimer.

    Simulator: the host's clock.
    """
    current()
    return np.int64(time.time_ns())
