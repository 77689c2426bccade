"""Out-of-bounds indices on the GPU: what each mode does, and what a kernel built with debug=True
reports."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import SMEM, Barrier, CompilerParams, SimulationError, ds
from tests.kernels import slice_kernels
from tests.kernels.bounded_kernels import (
    KERNELS,
    arrays,
    expected,
    indexed,
    indexed_wanted,
    indices,
    places,
)

PROCESSES = 4
DEBUG: dict[str, Any] = {"compiler_params": CompilerParams(debug=True)}
debugged = {name: numpipe.kernel(**DEBUG)(kernel.function) for name, kernel in KERNELS.items()}


@pytest.mark.parametrize("debug", [False, True])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("mode", [None, "zero", "clip"])
@pytest.mark.parametrize("name", KERNELS)
def test_a_mode_defines_an_out_of_bounds_place(
    name: str, mode: str | None, dtype: Any, debug: bool
) -> None:
    (a, c), table = arrays(name), places(mode, dtype)
    table = table[:-1] if name == "put" else table
    wanted = expected(name, a, table, c, mode)
    (debugged if debug else KERNELS)[name](a, table, c, mode=mode, target="gpu")
    np.testing.assert_array_equal(c, wanted)
    numpipe.last_failure()


def test_a_block_that_is_stored_before_the_array_is_left_out_where_that_is_meant() -> None:
    (a, c), table = arrays("put"), places("zero", np.int32)
    table[1:3] = (-1, 0), (0, -64)
    wanted = expected("put", a, table, c, "zero")
    KERNELS["put"](a, table, c, mode="zero", target="gpu")
    np.testing.assert_array_equal(c, wanted)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("mode", ["zero", "clip"])
def test_a_mode_defines_an_index_out_of_bounds(mode: str, dtype: Any) -> None:
    given = indices(mode, dtype)
    wanted = indexed_wanted(mode, *given)
    for kernel in (indexed, numpipe.kernel(**DEBUG)(indexed.function)):
        made = [array.copy() for array in given]
        kernel(*made, mode=mode, target="gpu")
        for found, right in zip(made[3:], wanted, strict=True):
            np.testing.assert_array_equal(found, right)


@pytest.mark.parametrize(
    "name, place, says",
    [
        (
            "taken",
            (3, 0),
            r"in_specs\[0\] for 'a': index_map: index 3 along dimension 0 is outside the array's 3",
        ),
        (
            "taken",
            (-1, 0),
            r"in_specs\[0\] for 'a': index_map: index -1 along dimension 0 is outside the array's "
            r"3",
        ),
        (
            "taken",
            (1, 160),
            r"in_specs\[0\] for 'a': index_map: index 160 along dimension 1 is outside the "
            r"array's 160",
        ),
        (
            "put",
            (3, 0),
            r"out_specs\[0\] for 'c': index_map: index 3 along dimension 0 is outside the array's "
            r"3",
        ),
        (
            "put",
            (-2, 0),
            r"out_specs\[0\] for 'c': index_map: index -2 along dimension 0 is outside the "
            r"array's 3",
        ),
        (
            "put",
            (0, 160),
            r"out_specs\[0\] for 'c': index_map: index 160 along dimension 1 is outside the "
            r"array's 160",
        ),
    ],
)
def test_a_debugged_kernel_reports_a_block_outside_and_the_process_goes_on(
    name: str, place: tuple[int, int], says: str
) -> None:
    (a, c), table = arrays(name), places(None, np.int32)
    table[4] = place
    with pytest.raises(SimulationError, match=says) as raised:
        debugged[name](a, table, c, mode=None, target="gpu")
    assert raised.value.report is not None and raised.value.report.hazard == "out-of-bounds"
    (a, c), table = arrays(name), places(None, np.int32)
    debugged[name](a, table, c, mode=None, target="gpu")
    np.testing.assert_array_equal(c, expected(name, a, table, arrays(name)[1], None))
    numpipe.last_failure()


@pytest.mark.parametrize(
    "name, starts, says",
    [
        *(
            (
                name,
                starts,
                re.escape(f"{part}: ds(start, 64) of a tile (128, ")
                + f".*: {found} is outside 0…64",
            )
            for name, starts, part, found in slice_kernels.OUTSIDE
        ),
        *(
            ("counted", given, re.escape(debugged))
            for given, _, debugged in slice_kernels.ELSEWHERE
        ),
    ],
)
def test_a_debugged_kernel_reports_a_place_outside_shared_memory_and_the_process_goes_on(
    name: str, starts: tuple[int, ...], says: str
) -> None:
    kernel = numpipe.kernel(**DEBUG)(slice_kernels.KERNELS[name].function)
    inside = slice_kernels.INSIDE[name]
    with pytest.raises(SimulationError, match=says) as raised:
        kernel(*slice_kernels.arrays(name), *starts, target="gpu")
    assert raised.value.report is not None and raised.value.report.hazard == "out-of-bounds"
    (x, y), (_, wanted) = slice_kernels.arrays(name), slice_kernels.arrays(name)
    kernel(x, y, *inside, target="gpu")
    slice_kernels.KERNELS[name](x, wanted, *inside, target="sim")
    np.testing.assert_array_equal(y, wanted)
    numpipe.last_failure()


@numpipe.kernel(**DEBUG)
def touching(x, v, i, y, s, total):
    tile, landed = numpipe.scratch((SMEM((64, 64), np.float32), Barrier()))
    numpipe.copy_gmem_to_smem(x.at[i[3], ds(0, 64), ds(0, 64)], tile, landed)
    numpipe.barrier_wait(landed)
    numpipe.atomic_add(total.at[i[4]], tile[...].sum())
    y[ds(0, 64), ds(0, 64)] = x[0, v[ds(0, 64)], ds(0, 64)]
    y[ds(64, 64), ds(0, 64)] = x[i[0], ds(0, 64), ds(0, 64)]
    s[i[1]] = i[i[2] + 2]


@pytest.mark.parametrize(
    "where, value, says",
    [
        ("v", 64, r"'x\[…\]': index 64 along dimension 1 is outside the array's 64"),
        ("v", -7, r"'x\[…\]': index -7 along dimension 1 is outside the array's 64"),
        (0, 3, r"'x\[…\]': index 3 along dimension 0 is outside the array's 3"),
        (1, 8, r"'s\[…\]': index 8 along dimension 0 is outside the array's 8"),
        (2, -3, r"'i\[…\]': index -1 along dimension 0 is outside the array's 6"),
        (3, -1, r"x.at\[…\]: index -1 along dimension 0 is outside the array's 3"),
        (4, 2, r"total.at\[…\]: index 2 along dimension 0 is outside the array's 2"),
    ],
)
def test_a_debugged_kernel_reports_an_index_outside(where: Any, value: int, says: str) -> None:
    x = np.ones((3, 64, 64), np.float32)
    v = np.arange(64, dtype=np.int32)
    i = np.array([2, 7, 3, 1, 0, 11], np.int32)
    y, s, total = np.zeros((128, 64), np.float32), np.zeros(8, np.int32), np.zeros(2, np.float32)
    touching(x, v, i, y, s, total, target="gpu")
    assert (y == 1).all() and s[7] == 11 and total.tolist() == [64 * 64, 0]
    (v if where == "v" else i)[17 if where == "v" else where] = value
    with pytest.raises(SimulationError, match=says):
        touching(x, v, i, y, s, total, target="gpu")
    with pytest.raises(SimulationError, match="outside the array's"):
        touching.simulate(x, v, i, np.zeros_like(y), np.zeros_like(s), np.zeros_like(total))
