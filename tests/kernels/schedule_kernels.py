"""Kernels without a race whose outcome depends on the schedule: what an unlucky one does is said by `then`."""

from __future__ import annotations

from typing import Any

import numpy as np

import numpipe
from numpipe import SMEM, Barrier


@numpipe.function
def steps(barrier, count):
    """So many phases of a barrier of the warpgroup's own: moments at which another may run."""
    for _ in range(count):
        numpipe.barrier_arrive(barrier)
        numpipe.barrier_wait(barrier)


def unlucky(then: str) -> Any:
    """What a warpgroup does that finds the schedule it did not expect."""
    @numpipe.function
    def writes(y, never):
        y[:64, :64] = numpipe.zeros((64, 64), np.float32) + 1

    @numpipe.function
    def asserts(y, never):
        numpipe.device_assert(y.shape[0] == 0, "the other warpgroup is late")

    @numpipe.function
    def hangs(y, never):
        numpipe.barrier_wait(never)

    @numpipe.function
    def prints(y, never):
        numpipe.debug_print("late")

    return {"writes": writes, "asserts": asserts, "hangs": hangs, "prints": prints}[then]


def overtaken(then: str, head: int = 20) -> Any:
    """Bug of depth 1: warpgroup 1 believes that 0 has arrived by the time it has taken `head` steps itself."""
    fail = unlucky(then)

    @numpipe.kernel(grid=1, num_compute_wgs=2, warp_specialized=False)
    def kernel(y):
        own, first, never = numpipe.scratch((Barrier(1), Barrier(1), Barrier(1)))
        if numpipe.axis_index("wg") == 1:
            steps(own, head)
            if not numpipe.barrier_test(first):
                fail(y, never)
            numpipe.barrier_wait(first)
        else:
            numpipe.barrier_arrive(first)

    return kernel


def inverted(then: str, head: int = 25, window: int = 30, work: int = 20) -> Any:
    """Bug of depth 2: warpgroup 0 is through `head` before 1 begins, then 1 through its work before 0 is through `window`."""
    fail = unlucky(then)

    @numpipe.kernel(grid=1, num_compute_wgs=2, warp_specialized=False)
    def kernel(y):
        own = numpipe.scratch(Barrier(num_arrivals=1, num_barriers=2))
        begun, done, over, never = numpipe.scratch((Barrier(1), Barrier(1), Barrier(1), Barrier(1)))
        if numpipe.axis_index("wg") == 0:
            steps(own.at[0], head)
            numpipe.barrier_arrive(begun)
            steps(own.at[0], window)
            overtaken = numpipe.barrier_test(done)
            numpipe.barrier_arrive(over)
            if overtaken:
                fail(y, never)
            numpipe.barrier_wait(done)
        else:
            early = numpipe.barrier_test(begun)
            if not early:
                numpipe.barrier_wait(over)
            steps(own.at[1], work)
            numpipe.barrier_arrive(done)
            numpipe.barrier_wait(begun)
            if early:
                numpipe.barrier_wait(over)

    return kernel


@numpipe.kernel(grid=4, num_compute_wgs=1)
def sums(x, y):
    """y += x[i] of each CTA i, by TMA: right in every order, and rounded differently in each."""
    i = numpipe.program_id(0)
    tile, landed = numpipe.scratch((SMEM((64, 32), x.dtype), Barrier()))
    numpipe.copy_gmem_to_smem(x.at[i, :64, :32], tile, landed)
    numpipe.barrier_wait(landed)
    numpipe.copy_smem_to_gmem(tile, y.at[:64, :32], reduction_op="add")
    numpipe.wait_smem_to_gmem(0)
