"""Accumulators in register order: the same elements on all targets, in vectors of four float32."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.compilers import compiles
from tests.kernels.register_order_kernels import CASES, kernels, wrong


@pytest.mark.parametrize("name", CASES)
def test_tiles_go_through_arrays_in_register_order(name: str) -> None:
    assert wrong(name, "sim") == ""


@compiles
def test_lanes_add_four_adjacent_elements_of_an_accumulator() -> None:
    x, y = np.zeros((64, 64), np.float32), np.zeros((512, 32), np.float32)
    written, _ = kernels("float32")
    ptx = written.inspect("ptx", x, y)
    # for each addition: of whole tiles without predicates, and of tiles at the end of the array
    assert ptx.count("red.relaxed.gpu.global.add.v4.f32") == 2 * (8 + 8)
    assert ptx.count("; @own red.relaxed.gpu.global.add.v4.f32") == 2 * 8
