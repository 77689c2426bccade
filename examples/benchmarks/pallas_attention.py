"""Attention by Pallas' Hopper kernel (jax.experimental.pallas.ops.gpu.attention_mgpu), and JAX's
timer of kernels.

That timer (jax.experimental.mosaic.gpu.profiler) gets the durations of the kernels themselves from
CUPTI, whoever launched them, so that the time between two kernels, or between two calls of a JAX
program, does not count. Here it times all competitors. This module imports jax.
"""

from __future__ import annotations

import itertools
import os
import statistics
from collections.abc import Sequence
from typing import Any

# leave GPU memory for the other competitors
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax
import torch
from jax.experimental.mosaic.gpu import profiler
from jax.experimental.pallas.ops.gpu import attention_mgpu
from pallas_sweeps import remembered

from numpipe import bench
from numpipe.bench.timer import Competitor

SPACE = tuple(itertools.product((64, 128, 256), (2, 3, 4)))
"""rows of K and V in a step, steps at once; the kernel has two compute warpgroups, of 64 rows of Q
each"""


class Kernels:
    """Calls of a competitor, each followed by a synchronization: a kernel that is launched before
    the previous one has ended, as programmatic dependent launch does, would include that wait in
    its duration. The class looks like a function compiled by JAX, so that JAX's timer calls it
    unchanged."""

    def __init__(self, competitor: Competitor, first: int, calls: int) -> None:
        self.competitor, self.first, self.calls = competitor, first, calls

    def __call__(self) -> None:
        for call in range(self.first, self.first + self.calls):
            self.competitor(call)
            if hasattr(self.competitor, "wait"):
                self.competitor.wait()
            torch.cuda.synchronize()

    def trace(self) -> None:
        raise NotImplementedError

    lower = trace


class KernelTimer(bench.EventTimer):
    """JAX's timer in place of CUDA events. It makes the calls twice, and times the second run."""

    def measure(self, competitor: Competitor, calls: int, first: int) -> float:
        _, kernels = profiler.measure(Kernels(competitor, first, calls), aggregate=False)()
        if not kernels or len(kernels) % calls:
            raise RuntimeError(
                f"JAX's timer saw {len(kernels or ())} kernels in {calls} calls of {competitor}: "
                f"{kernels}"
            )
        return 1e-3 * sum(milliseconds for _, milliseconds in kernels) / calls

    def seconds(self, handle: float) -> float:
        return handle

    def megahertz(self, handle: float) -> None:
        """Return None: the clock is not known."""


class Pallas:
    """The kernel with the best configuration of a sweep, called in turn on sets of PyTorch tensors
    (q, k, v), each of shape (B, H, S, D).

    The kernel expects (B, S, H, D) and does not scale the scores, so the inputs are copied and q is
    scaled beforehand. Raises ValueError, with each one's error, if no configuration runs.
    """

    def __init__(self, sets: Sequence[Sequence[Any]], causal: bool) -> None:
        self.causal = causal
        self.sets = [
            [
                jax.dlpack.from_dlpack(x.transpose(1, 2).contiguous())
                for x in (q * q.shape[3] ** -0.5, k, v)
            ]
            for q, k, v in sets
        ]
        self.results: list[Any] = [None] * len(sets)
        self.config = self._best()
        self.function = compiled(self.config)

    def __call__(self, i: int) -> None:
        i %= len(self.sets)
        self.results[i] = self.function(*self.sets[i])

    def wait(self) -> None:
        jax.block_until_ready([result for result in self.results if result is not None])

    @property
    def outs(self) -> list[Any]:
        """The latest result of each set as (B, H, S, D), or None for a set that was not called."""
        self.wait()
        return [
            None if result is None else torch.from_dlpack(result).transpose(1, 2)
            for result in self.results
        ]

    def poison(self) -> None:
        """Forget the results: each call allocates new arrays."""
        self.results = [None] * len(self.sets)

    def _best(self) -> attention_mgpu.TuningConfig:
        first = self.sets[0]
        what = (
            f"attention {[x.shape for x in first]} {first[0].dtype} "
            f"{'causal' if self.causal else 'full'}"
        )
        return tuning(*remembered(what, self._fastest), self.causal)

    def _fastest(self) -> tuple[int, int]:
        """Return the fastest configuration of `SPACE`."""
        times, refused = {}, []
        for keys, steps in SPACE:
            try:
                function = compiled(tuning(keys, steps, self.causal))
                measured = profiler.measure(function, iterations=5)(*self.sets[0])[1]
                times[keys, steps] = statistics.median(measured or [])
            # the sizes are not divisible, or shared memory does not suffice
            except Exception as error:
                refused.append(
                    f"{keys} keys, {steps} steps: {type(error).__name__}: {str(error)[:200]}"
                )
        print(f"Pallas: ms of (keys, steps) {times}", *refused, sep="\n  ", flush=True)
        if not times:
            raise ValueError("no configuration of Pallas' attention runs: " + "; ".join(refused))
        return min(times, key=times.__getitem__)


def tuning(keys: int, steps: int, causal: bool) -> attention_mgpu.TuningConfig:
    return attention_mgpu.TuningConfig(
        block_q=64, block_kv=keys, max_concurrent_steps=steps, causal=causal
    )


def compiled(config: attention_mgpu.TuningConfig) -> Any:
    """Return the kernel as a function of q, k and v, which is compiled on the first call."""
    return jax.jit(lambda q, k, v: attention_mgpu.attention(q, k, v, config))
