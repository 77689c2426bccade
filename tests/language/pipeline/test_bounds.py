"""Indices outside their arrays, of squeezed dimensions and of elements: a hazard, unless a mode says what they mean."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import BlockSpec, SimulationError, SpecError
from tests.kernels.bounded_kernels import KERNELS, arrays, expected, places

MODES = None, "zero", "clip"


@pytest.mark.variants(4)
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", KERNELS)
def test_a_mode_says_what_a_place_outside_means(name: str, mode: str | None, dtype: Any) -> None:
    kernel, (a, c), table = KERNELS[name], arrays(name), places(mode, dtype)
    table = table[:-1] if name == "put" else table
    wanted = expected(name, a, table, c, mode)
    assert kernel.inspect("gate", a, table, c, mode=mode) == ()
    kernel.simulate(a, table, c, mode=mode)
    np.testing.assert_array_equal(c, wanted)


@pytest.mark.parametrize("name, place, says", [
    ("taken", (3, 0), r"in_specs\[0\] for 'a': index_map returned element 3 for dimension 0, of which the array has 3; return 0…2"),
    ("taken", (-1, 0), "element -1 for dimension 0, of which the array has 3; return 0…2, or say what it means"),
    ("taken", (0, 160), "element 160 for dimension 1, of which the array has 160: all 64 elements from there on lie outside; return"),
    ("taken", (0, -64), "element -64 for dimension 1, of which the array has 160: all 64 elements from there on"),
    ("put", (3, 0), r"out_specs\[0\] for 'c': index_map returned element 3 for dimension 0"),
    ("put", (0, 160), "element 160 for dimension 1")])
def test_without_a_mode_a_place_outside_is_a_hazard(name: str, place: tuple[int, int], says: str) -> None:
    (a, c), table = arrays(name), places(None, np.int32)
    table[4] = place
    with pytest.raises(SimulationError, match=says) as raised:
        KERNELS[name].simulate(a, table, c, mode=None)
    assert raised.value.report is not None and raised.value.report.hazard == "out-of-bounds"


def test_a_block_that_is_partly_outside_needs_no_mode() -> None:
    (a, c), table = arrays("taken"), np.array([(0, -63), (2, 99), (1, -8)], np.int32)
    KERNELS["taken"].simulate(a, table, c, mode=None)
    np.testing.assert_array_equal(c, expected("taken", a, table, np.full_like(c, -1), None))


def test_another_mode_is_refused() -> None:
    with pytest.raises(SpecError, match="BlockSpec: mode must be \"zero\", \"clip\" or None, got 'wrap'"):
        BlockSpec((64, 64), lambda k: (k, 0), mode="wrap")  # type: ignore[arg-type]


def test_the_blocks_of_a_kernel_over_tiles_have_modes_too() -> None:
    @numpipe.kernel(grid=4, in_specs=BlockSpec((None, 64, 64), lambda i: (i - 1, 0, 0), mode="clip"), num_compute_wgs=1,
                    out_specs=BlockSpec((None, 64, 64), lambda i: (i, 0, 0)))
    def over(x, y):
        y[...] = x[...]

    x, y = np.arange(3, dtype=np.float16)[:, None, None] + np.zeros((1, 64, 64), np.float16), np.zeros((4, 64, 64), np.float16)
    over.simulate(x, y)
    assert y[:, 0, 0].tolist() == [0, 0, 1, 2]
