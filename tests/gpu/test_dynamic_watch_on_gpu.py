"""Kernels built with debug=True whose compute warpgroups hang while the memory role could go on:
the process survives.

Like other tests that may lose the CUDA context, they run in a process of their own.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import BlockSpec, CompilerParams, PipelineDeadlock, ds
from tests.kernels.cluster_kernels import Config, product

DEBUG = CompilerParams(debug=True)


def stops(dynamic: bool, steps: int, **options: Any) -> Any:
    """Copy a to c in tiles of 64 rows per warpgroup, each loaded `steps` times.

    With `hang`, one warpgroup waits for an arrival that does not come.
    """

    def kernel(a: Any, c: Any, hang: Any) -> None:
        wg, rows = numpipe.axis_index("wg"), 64 * numpipe.axis_size("wg")
        never = numpipe.scratch(numpipe.Barrier())
        for (m,) in numpipe.tiles(numpipe.cdiv(a.shape[0], rows), dynamic=dynamic):
            pipe = numpipe.pipeline(
                grid=(steps,), in_specs=(BlockSpec((rows, 64), lambda k: (m, 0)),)
            )
            for (k,), (tile,) in pipe(a):
                if k == steps - 1:
                    c[ds(m * rows + wg * 64, 64), ds(0, 64)] = tile[ds(wg * 64, 64), :]
            if hang == 1 and m == 5:
                numpipe.barrier_wait(never)

    return numpipe.kernel(kernel, grid=numpipe.persistent(8), compiler_params=DEBUG, **options)


KERNELS = {
    "static": (False, 1, {"num_compute_wgs": 1}),
    "dynamic": (True, 1, {"num_compute_wgs": 1}),
    "two warpgroups": (False, 3, {"num_compute_wgs": 2}),
    "ping-pong": (False, 3, {"num_compute_wgs": 2, "schedule": "pingpong"}),
    "dynamic ping-pong": (True, 2, {"num_compute_wgs": 2, "schedule": "pingpong"}),
}


@pytest.mark.parametrize("name", KERNELS)
def test_after_a_launch_that_gave_up_the_next_ones_compute(name: str) -> None:
    dynamic, steps, options = KERNELS[name]
    kernel = stops(dynamic, steps, **options)
    a = np.random.default_rng(0).standard_normal((64 * 40, 64)).astype(np.float32)
    for _ in range(2):
        with pytest.raises(
            PipelineDeadlock, match="timed out; the results of the kernel are wrong\n"
        ):
            kernel(a, np.zeros_like(a), hang=np.int32(1), target="gpu")
        for _ in range(3):
            c = np.full_like(a, np.nan)
            kernel(a, c, hang=np.int32(0), target="gpu")
            np.testing.assert_array_equal(c, a)


@numpipe.kernel(grid=2, grid_names="cta", cluster=2, cluster_names="pair", compiler_params=DEBUG)
def one_of_a_cluster_hangs(a, c):
    """Let CTA 1 wait for an arrival that does not come, and CTA 0 for CTA 1's share of the next
    blocks."""
    cta = numpipe.axis_index("cta")
    never = numpipe.scratch(numpipe.Barrier())
    pipe = numpipe.pipeline(
        grid=(8,),
        max_concurrent_steps=2,
        in_specs=(BlockSpec((64, 64), lambda k: (0, k), collective_axes="pair"),),
    )
    for (k,), (tile,) in pipe(a):
        if cta == 1 and k == 2:
            numpipe.barrier_wait(never)
        c[ds(cta * 64, 64), ds(k * 64, 64)] = tile[...]


def test_a_cluster_with_one_hanging_cta_ends_too() -> None:
    """While a CTA writes its records, others may still arrive and copy, so it must not query the
    state of an mbarrier."""
    rng = np.random.default_rng(0)
    x = rng.integers(-2, 3, (64, 512)).astype(np.float16)
    a, b = (rng.integers(-2, 3, (256, 128)).astype(np.float16) for _ in range(2))
    exact = (a.astype(np.float32) @ b.astype(np.float32).T).astype(np.float16)
    for _ in range(3):
        with pytest.raises(
            PipelineDeadlock,
            match="(?s)kernel one_of_a_cluster_hangs,.*its missing arrivals and bytes are not "
            "known",
        ) as caught:
            one_of_a_cluster_hangs(x, np.zeros((128, 512), np.float16), target="gpu")
        assert caught.value.report is not None and not any(
            barrier.known for barrier in caught.value.report.barriers
        )
        np.testing.assert_array_equal(
            product(Config(along_m=2, tm=64, tn=64, tk=64, slots=2))(a, b, target="gpu"), exact
        )
