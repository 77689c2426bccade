"""Register tiles loaded from shared memory on the GPU, in every type and order, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.smem_kernels import ARRAYS, array, copied, scaled
from tests.language.tiles.test_smem_tiles import (  # noqa: F401
    test_views_of_a_tile,
)

REPEATS = 10


@pytest.mark.parametrize("shape", [(300, 200), (1, 8), (2048, 1024)], ids=str)
@pytest.mark.parametrize("name", ARRAYS)
def test_a_copy_through_registers(name: str, shape: tuple[int, int]) -> None:
    a = array(name, shape)
    for _ in range(REPEATS):
        c = np.zeros(a.shape, a.dtype)
        copied(a, c, target="gpu")
        assert (c == a).all()


@pytest.mark.parametrize("name", ARRAYS)
def test_arithmetic_gives_the_simulators_bits(name: str) -> None:
    a = array(name, (640, 512))
    expected, c = np.zeros(a.shape, a.dtype), np.zeros(a.shape, a.dtype)
    scaled(a, expected, target="sim")
    for _ in range(REPEATS):
        scaled(a, c, target="gpu")
        assert (c == expected).all()
