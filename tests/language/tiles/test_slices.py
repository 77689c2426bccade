"""Slices of shared tiles from any start, known at compile time or at run time."""

from __future__ import annotations

import re

import numpy as np
import pytest

import numpipe
from numpipe import CompilerParams, SimulationError
from numpipe.plan.wait_records import FLAG_PLACE
from tests.kernels.slice_kernels import (
    ELSEWHERE,
    INSIDE,
    KERNELS,
    OUTSIDE,
    STARTS,
    anywhere,
    arrays,
    counted,
    stored_anywhere,
    stored_by_two_warps,
    viewed,
    viewed_wanted,
)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int8])
@pytest.mark.variants(2)
def test_parts_start_anywhere(dtype: type) -> None:
    x = (np.random.default_rng(0).random((128, 128)) * 100).astype(dtype)
    for row, column in STARTS:
        y = np.zeros((128, 64), dtype)
        anywhere(x, y, row, column, target="sim")
        assert (y[:64] == x[row : row + 64, column : column + 64]).all()
        assert (y[64:] == x.T[column : column + 64, row : row + 64]).all()


def test_parts_are_stored_anywhere() -> None:
    x, y = np.random.default_rng(0).random((64, 64), np.float32), np.zeros((128, 128), np.float32)
    stored_anywhere(x, y, 13, 29, target="sim")
    assert (y[13:77, 29:93] == x).all() and y.sum() == pytest.approx(x.sum(), rel=1e-5)


def test_a_view_of_a_tile_a_slot_and_a_transposed_tile_is_what_numpy_says() -> None:
    x, y = arrays("viewed")
    viewed(x, y, *INSIDE["viewed"], target="sim")
    np.testing.assert_array_equal(y[:, :64], viewed_wanted(x, *INSIDE["viewed"]))


@pytest.mark.variants(1, thorough=1)
@pytest.mark.parametrize(
    "name, places",
    [
        ("anywhere", {"tile[…]: ds(start, 64) of a tile (128, 128)"}),
        ("stored_anywhere", {"tile[…]: ds(start, 64) of a tile (128, 128)"}),
        (
            "viewed",
            {
                "tile.at[…]: ds(start, 64) of a tile (128, 128)",
                "tile[…]: ds(start, 64) of a tile (64, 128)",
                "tile.at[…]: ds(start, 64) of a tile (128, 64)",
                "….at[…]: index",
            },
        ),
        ("counted", {"atomic_add: a tile (128,) in shared memory: index", "….at[…]: index"}),
    ],
)
def test_a_debugged_kernel_looks_at_the_starts_of_its_parts_and_no_other_does(
    name: str, places: set[str]
) -> None:
    debugged = numpipe.kernel(compiler_params=CompilerParams(debug=True))(KERNELS[name].function)
    assert KERNELS[name].compiled(*arrays(name), *INSIDE[name]).image.places == ()
    found = debugged.compiled(*arrays(name), *INSIDE[name]).image.places
    assert found[FLAG_PLACE] == "the flag of another part"
    assert {place.removesuffix(" in shared memory: start") for place in found[1:]} == places


@pytest.mark.parametrize("name, starts, part, found", OUTSIDE)
def test_what_a_debugged_kernel_reports_of_a_part_is_a_hazard_on_the_simulated_sm(
    name: str, starts: tuple[int, ...], part: str, found: str
) -> None:
    _, start, _, _, axis = found.split()
    says = re.escape(
        f"{part}: elements {start} … {int(start) + 63} along axis {axis} are not in a tile (128, "
    )
    with pytest.raises(SimulationError, match=says) as caught:
        KERNELS[name](*arrays(name), *starts, target="sim")
    assert caught.value.report.hazard == "out-of-bounds"


@pytest.mark.parametrize("given, says, _debugged", ELSEWHERE)
def test_an_index_of_an_element_a_slot_or_a_barrier_outside_is_a_hazard(
    given: tuple[int, ...], says: str, _debugged: str
) -> None:
    with pytest.raises(SimulationError, match=re.escape(says)) as caught:
        counted(*arrays("counted"), *given, target="sim")
    assert caught.value.report.hazard == "out-of-bounds"
    (x, y) = arrays("counted")
    counted(x, y, *INSIDE["counted"], target="sim")
    assert (y[:8] == (np.arange(128) >= 50) * (np.arange(128) < 114)).all()


def test_two_warps_store_a_tile_that_four_have_twice(target: str, again: range) -> None:
    for _ in again:
        y, z = np.zeros((72, 96), np.int32), np.zeros(128, np.int32)
        stored_by_two_warps(y, z, target=target)
        assert (
            (y == np.arange(72)[:, None] + np.arange(96)).all()
            and (z[:96] == 72).all()
            and not z[96:].any()
        )
