"""Kernels with ``check_nan=True`` that store a NaN: the error is the simulator's, and the process
survives."""

from __future__ import annotations

import re

import numpy as np
import pytest

import numpipe
from numpipe import SimulationError
from tests.kernels.nan_kernels import PLACES, STORES, given


@pytest.mark.parametrize("name", STORES)
def test_a_nan_is_reported_with_its_element_and_its_line(name: str) -> None:
    kernel, (target, place) = STORES[name], PLACES[name]
    for _ in range(2):
        kernel(*given(name, nan=False), target="gpu")
        numpipe.last_failure()
        with pytest.raises(
            SimulationError,
            match=rf"nan_kernels\.py:\d+: kernel {name}: '{target} = …' stores a NaN{place}, in "
            r"warpgroup 0 of CTA \(0, 0, 0\): look for",
        ) as caught:
            kernel(*given(name), target="gpu")
        assert caught.value.report is not None and caught.value.report.hazard == "nan-stored"
        numpipe.last_failure()


def test_of_many_the_first_is_named_and_the_others_are_counted() -> None:
    x, y = given("to_an_array")
    x[10:12] = -1
    with pytest.raises(SimulationError) as caught:
        STORES["to_an_array"](x, y, target="gpu")
    more = re.search(
        r"element \(10, 0\) of the tile, in warpgroup 0 of CTA \(0, 0, 0\), and (\d+) more",
        str(caught.value),
    )
    assert more and 1 <= int(more[1]) < 128  # a lane reports its first NaN
    x[:] = 1
    STORES["to_an_array"](x, y, target="gpu")
    np.testing.assert_array_equal(y, x)
