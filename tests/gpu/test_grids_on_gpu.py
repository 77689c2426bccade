"""Grids of more than three dimensions, several axes, scalars, returned pipelines and nested
allocations on the GPU."""

from __future__ import annotations

import numpy as np
import pytest

from tests.calls import test_scalar_places as scalars
from tests.language.grid import test_grids as grids
from tests.language.grid.test_grids import (  # noqa: F401
    test_the_index_over_several_axes_counts_each_place_once,
)
from tests.language.memory.test_scratch_trees import (  # noqa: F401
    test_references_have_the_shape_of_their_types,
)
from tests.language.pipeline.test_rest_and_returned import (  # noqa: F401
    test_a_function_returns_a_pipeline_to_loop_over,
)


@pytest.mark.parametrize(
    "grid",
    [grids.ROOM, lambda out: grids.ROOM, lambda out: (3, 2, 4, out.shape[0] // 48, 2)],
    ids=["constant", "function", "others"],
)
def test_each_cta_has_its_place_along_every_axis(grid: object) -> None:
    out = np.zeros((96, 64, 8), np.float32)
    grids.visited(grid)(out, target="gpu")
    assert len(set(out.flat)) == 1 and out[0, 0, 0] > 0


def test_one_compile_serves_grids_of_other_sizes() -> None:
    kernel = grids.visited(lambda out: (2, 3, 2, 4, out.shape[0] // 48))
    for last in (2, 1, 3):
        out = np.zeros((48 * last, 64, 8), np.float32)
        kernel(out, target="gpu")
        assert (out == 23240 + last).all()


def test_scalars_come_after_the_outputs() -> None:
    np.testing.assert_array_equal(
        scalars.scaled(scalars.X, alpha=2.0, count=3, target="gpu"), 2 * scalars.X
    )
