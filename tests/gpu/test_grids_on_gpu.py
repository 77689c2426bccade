"""Grids of more than three dimensions, several axes, scalars, returned pipelines and trees of allocations on the hardware."""

from __future__ import annotations

import numpy as np
import pytest

from tests.calls import test_scalar_places as scalars
from tests.language.grid import test_grids as grids
from tests.language.memory import test_scratch_trees as trees
from tests.language.pipeline import test_rest_and_returned as bodies


@pytest.mark.parametrize("grid", [grids.ROOM, lambda out: grids.ROOM, lambda out: (3, 2, 4, out.shape[0] // 48, 2)],
                         ids=["constant", "function", "others"])
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


@pytest.mark.parametrize("names, rest, size", [(("m", "n"), "wg", 6), (("wg", "n"), "m", 4), ((), ("m", "pair", "wg"), 1)], ids=str)
def test_the_index_over_several_axes_counts_each_place_once(names: object, rest: object, size: int) -> None:
    out = np.zeros((12 * 64, 8), np.float32)
    grids.numbered(names, rest)(out, target="gpu")
    assert (out == size).all()


def test_scalars_stand_behind_the_outputs() -> None:
    np.testing.assert_array_equal(scalars.behind(scalars.X, alpha=2.0, count=3, target="gpu"), 2 * scalars.X)


def test_a_function_returns_a_pipeline_to_loop_over() -> None:
    c = np.zeros((64, 256), np.float32)
    bodies.through_two(bodies.A, bodies.B, c, target="gpu")
    np.testing.assert_array_equal(c[:, :192], bodies.A)
    np.testing.assert_array_equal(c[:, 192:], bodies.B.astype(np.float32).reshape(64, 3, 64).sum(1))


@pytest.mark.parametrize("kernel", [trees.of_a_constant, trees.written_in_place, trees.scoped], ids=lambda kernel: kernel.name)
def test_references_have_the_shape_of_their_types(kernel: object) -> None:
    y = np.zeros((64, 64), np.float32)
    kernel(trees.X, y, target="gpu")
    np.testing.assert_array_equal(y, trees.X[:, :64].astype(np.float32) + trees.X[:, 64:])
