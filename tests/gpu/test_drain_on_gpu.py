"""CompilerParams(drain=True) on the GPU: nothing hangs, and results equal those of chained
products."""

from __future__ import annotations

import numpy as np
import pytest

from tests.language.pipeline.test_drain import CHAINED, DRAINED, KERNELS, inputs, made, run

REPEATS = 10


@pytest.mark.parametrize("name", KERNELS)
def test_drained_pipelines_compute_the_same(name: str) -> None:
    kernel = made(name, DRAINED)
    for n, m in ((5, 4), (1, 2), (0, 4), (5, 0), (0, 0)):
        expected, _ = run(name, CHAINED, n, m)
        for _ in range(REPEATS):
            *operands, c = inputs()
            kernel(*operands, c, n, m, target="gpu")
            np.testing.assert_array_equal(c, expected)
