"""Scatter stores: results against NumPy, hazards of repeated and out-of-bounds indices, and code
that passes the build gate."""

from __future__ import annotations

import numpy as np
import pytest

import numpipe
from numpipe import ds
from numpipe.compile.check import gate
from tests.kernels.compilers import compiles
from tests.kernels.scatter_kernels import (
    TYPES,
    arrays_of_permuted,
    expert_rows,
    expert_rows_wrong,
    permuted,
    permuted_wrong,
    scattered,
)


@pytest.mark.variants(2)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_rows_columns_and_vectors_go_where_indices_say(dtype: np.dtype, target: str) -> None:
    assert permuted_wrong(dtype, target) == []


def test_blocks_of_three_dimensions_and_tiles_of_one_row_or_column_are_scattered(
    target: str,
) -> None:
    assert not expert_rows_wrong(target)


@pytest.mark.parametrize(
    ("index", "hazard", "message"),
    [
        (
            64,
            "out-of-bounds",
            "index 64 along dimension 0 is outside the array's 64; the GPU does not write there",
        ),
        (-1, "out-of-bounds", "index -1 along dimension 0 is outside the array's 64"),
        (
            9,
            "unordered-accesses",
            "index 9 along dimension 0 occurs more than once, and which of its elements is stored "
            "last is undefined",
        ),
    ],
)
def test_an_index_outside_or_twice_is_a_hazard(index: int, hazard: str, message: str) -> None:
    rows, x = np.arange(64, dtype=np.int32), np.ones((64, 64), np.float32)
    scattered.simulate(x, rows, y := np.zeros_like(x))
    assert (y == 1).all()
    rows[7] = index
    with pytest.raises(numpipe.SimulationError, match=message) as caught:
        scattered.simulate(x, rows, np.zeros_like(x))
    assert caught.value.report.hazard == hazard


def test_a_colon_that_the_tile_does_not_fill_is_an_error_simulated() -> None:
    @numpipe.kernel
    def rows(x, y):
        y[ds(0, 64), :] = x[ds(0, 64), ds(0, 64)]

    x = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    y = np.zeros((64, 64), np.float32)
    rows.simulate(x, y)
    assert (x == y).all()
    with pytest.raises(
        numpipe.SimulationError,
        match="':' selects all 72 elements of 'y' along dimension 1, but the tile has 64; fix: "
        "write ",
    ):
        rows.simulate(x, np.zeros((64, 72), np.float32))


@compiles
@pytest.mark.variants(0, thorough=3)
@pytest.mark.parametrize("case", [*map(str, TYPES), "experts"])
def test_scatter_stores_compile_and_the_gate_finds_nothing(case: str) -> None:
    if case == "experts":
        x = np.zeros((128, 64), np.float32)
        built = expert_rows.compiled(x, np.zeros(128, np.int32), np.zeros((3, 128, 64), np.float32))
    else:
        built = permuted.compiled(
            *arrays_of_permuted(next(dtype for dtype in TYPES if str(dtype) == case)).values()
        )
    assert gate.findings(built) == () and "cp.async.bulk.tensor" not in built.ptx
