"""A kernel with tiles(dynamic=True) that gives up its waits. In a process of its own: where it fails, the context is lost.

On an H200 it does fail: cuda-gdb names an illegal instruction where the memory role arrives for its next copy, after the waits were
given up, and so with tiles that are not dynamic.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from dynamic_kernels import made

import numpipe
from numpipe import BlockSpec, CompilerParams, PipelineDeadlock, ds

pytestmark = pytest.mark.gpu
pytest.importorskip("cuda.bindings", reason="the CUDA wheels are not installed")


def stops(a: Any, c: Any, hang: Any) -> None:
    """c = a in tiles of 64 x 64; with `hang` a tile waits for an arrival that does not come."""
    never = numpipe.scratch(numpipe.Barrier())
    for (m,) in numpipe.tiles(numpipe.cdiv(a.shape[0], 64), dynamic=True):
        pipe = numpipe.pipeline(grid=(1,), in_specs=(BlockSpec((64, 64), lambda k: (m, 0)),))
        for (k,), (tile,) in pipe(a):
            c[ds(m * 64, 64), ds(0, 64)] = tile[...]
        if hang == 1 and m == 5:
            numpipe.barrier_wait(never)


def test_a_launch_that_gave_up_leaves_a_counter_that_the_next_one_can_use() -> None:
    kernel = made(stops, warpgroups=1, ctas=8, compiler_params=CompilerParams(debug=True))
    a = np.random.default_rng(0).standard_normal((64 * 40, 64)).astype(np.float32)
    for _ in range(2):
        with pytest.raises(PipelineDeadlock):
            kernel(a, np.zeros_like(a), hang=np.int32(1), target="gpu")
        for _ in range(3):
            c = np.full_like(a, np.nan)
            kernel(a, c, hang=np.int32(0), target="gpu")
            np.testing.assert_array_equal(c, a)
