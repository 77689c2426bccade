"""Out-of-bounds indices of squeezed dimensions and of elements: a hazard, unless a mode defines
their meaning."""

from __future__ import annotations

import re
import struct
from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import BlockSpec, CompilerParams, SimulationError, SpecError, ds
from numpipe.launch.debug_reports import failure
from numpipe.plan import wait_records
from tests.kernels.bounded_kernels import (
    KERNELS,
    arrays,
    expected,
    indexed,
    indexed_wanted,
    indices,
    places,
)

MODES = None, "zero", "clip"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", KERNELS)
def test_a_mode_defines_an_out_of_bounds_place_simulated(name: str, mode: str | None) -> None:
    kernel, (a, c), table = KERNELS[name], arrays(name), places(mode, np.int64)
    table = table[:-1] if name == "put" else table
    wanted = expected(name, a, table, c, mode)
    kernel.simulate(a, table, c, mode=mode)
    np.testing.assert_array_equal(c, wanted)


@pytest.mark.variants(0, thorough=3)
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("mode", ["clip", "zero", None])
@pytest.mark.parametrize("name", KERNELS)
def test_kernels_with_modes_compile(name: str, mode: str | None, dtype: Any) -> None:
    (a, c), table = arrays(name), places(mode, dtype)
    assert KERNELS[name].inspect("gate", a, table, c, mode=mode) == ()


@pytest.mark.parametrize(
    "name, place, says",
    [
        (
            "taken",
            (3, 0),
            r"in_specs\[0\] for 'a': index_map returned element 3 for dimension 0, of which the "
            r"array has 3; ",
        ),
        (
            "taken",
            (-1, 0),
            "element -1 for dimension 0, of which the array has 3; return 0…2, or say what it "
            "means",
        ),
        (
            "taken",
            (0, 160),
            "element 160 for dimension 1, of which the array has 160: all 64 elements from there "
            "on lie outside",
        ),
        (
            "taken",
            (0, -64),
            "element -64 for dimension 1, of which the array has 160: all 64 elements from there "
            "on",
        ),
        ("put", (3, 0), r"out_specs\[0\] for 'c': index_map returned element 3 for dimension 0"),
        ("put", (0, 160), "element 160 for dimension 1"),
    ],
)
def test_without_a_mode_a_place_outside_is_a_hazard(
    name: str, place: tuple[int, int], says: str
) -> None:
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
    with pytest.raises(
        SpecError, match="BlockSpec: mode must be 'zero', 'clip' or None, got 'wrap'"
    ):
        BlockSpec((64, 64), lambda k: (k, 0), mode="wrap")  # type: ignore[arg-type]


def test_the_blocks_of_a_kernel_over_tiles_have_modes_too() -> None:
    @numpipe.kernel(
        grid=4,
        in_specs=BlockSpec((None, 64, 64), lambda i: (i - 1, 0, 0), mode="clip"),
        out_specs=BlockSpec((None, 64, 64), lambda i: (i, 0, 0)),
    )
    def over(x, y):
        y[...] = x[...]

    x = np.arange(3, dtype=np.float16)[:, None, None] + np.zeros((1, 64, 64), np.float16)
    y = np.zeros((4, 64, 64), np.float16)
    over.simulate(x, y)
    assert y[:, 0, 0].tolist() == [0, 0, 1, 2]


# ---- indices of loads and stores
@pytest.mark.variants(1, thorough=1)
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("mode", ["clip", "zero"])
def test_a_mode_defines_an_index_out_of_bounds(mode: str, dtype: Any) -> None:
    given = indices(mode, dtype)
    wanted = indexed_wanted(mode, *given)
    assert indexed.inspect("gate", *given, mode=mode) == ()
    indexed.simulate(*given, mode=mode)
    for found, right in zip(given[3:], wanted, strict=True):
        np.testing.assert_array_equal(found, right)


@numpipe.kernel
def gathered(x, v, y):
    y[ds(0, 64), ds(0, 64)] = x[v[ds(0, 64)], ds(0, 64)]


@pytest.mark.parametrize("index", [64, -1, -(2**31)])
def test_a_gathered_index_outside_is_a_hazard(index: int) -> None:
    x = np.ones((64, 64), np.float32)
    v = np.arange(64, dtype=np.int32)
    y = np.zeros((64, 64), np.float32)
    v[17] = index
    says = (
        rf"'x\[…\]': index {index} along dimension 0 is outside the array's 64; the GPU reads 0 "
        r"there: indices in 0…63, or"
    )
    with pytest.raises(SimulationError, match=says) as raised:
        gathered.simulate(x, v, y)
    assert raised.value.report is not None and raised.value.report.hazard == "out-of-bounds"


@pytest.mark.parametrize("run", ["simulate", "compiled"])
@pytest.mark.parametrize(
    "value, mode, says",
    [
        (0, "wrap", "index\\(i, mode\\): mode must be 'zero', 'clip' or None, got 'wrap'"),
        (0, None, "write i alone"),
        (0.5, "clip", "i must be an integer or a vector of int32, got "),
    ],
)
def test_a_bad_index_is_refused(run: str, value: Any, mode: Any, says: str) -> None:
    @numpipe.kernel
    def wrong(x, c):
        c[numpipe.index(value, mode)] = x[0]

    with pytest.raises(SpecError, match=says):
        getattr(wrong, run)(np.ones(4, np.float32), np.zeros(4, np.float32))


# ---- in kernels built with debug=True
def test_a_kernel_with_debug_names_whose_indices_it_reports() -> None:
    debugged = numpipe.kernel(compiler_params=CompilerParams(debug=True))
    (a, c), table = arrays("taken"), places(None, np.int32)
    image = debugged(KERNELS["taken"].function).compiled(a, table, c, mode=None).image
    assert [re.sub(r".* at [^:]*:\d+: | @ .*", "", place) for place in image.places] == [
        "the flag of another part",
        "'table[…]'",
        "in_specs[0] for 'a': index_map",
        "out_specs[0] for 'c': index_map",
    ]
    assert KERNELS["taken"].compiled(a, table, c, mode=None).image.places == ()
    record = wait_records.Record(
        0, (2, 0, 0), 4, image.places.index("'table[…]'"), -7, 6 | 1 << 32, wait_records.OUTSIDE
    )
    error = failure(image, [record, record], True)
    assert isinstance(error, SimulationError) and not isinstance(error, numpipe.PipelineDeadlock)
    assert error.report is not None and error.report.hazard == "out-of-bounds"
    assert str(error) == (
        "kernel taken, warpgroup 1 (memory) of CTA (2, 0, 0): 'table[…]': index -7 along "
        "dimension 1 is outside the array's 6, and "
        '1 more; the results of the kernel are wrong: use indices in 0…5, or mode="zero" or '
        'mode="clip" if this is intended '
        "(BlockSpec, numpipe.index)"
    )


def test_records_of_waits_and_of_indices_are_distinguished() -> None:
    memory = bytearray(3 * wait_records.RECORD_BYTES)
    struct.pack_into(
        "<II3IIIiQ", memory, 0, wait_records.OUTSIDE, 3, 1, 2, 0, 130, 5, -9, 7 | 2 << 32
    )
    struct.pack_into("<II3IIIiQ", memory, wait_records.RECORD_BYTES, 1, 3, 0, 0, 0, 0, 64, 1, 0)
    first, second = wait_records.records(bytes(memory))
    assert (first.kind, first.warpgroup, first.address, first.phase, first.state) == (
        wait_records.OUTSIDE,
        1,
        5,
        -9,
        7 | 2 << 32,
    )
    assert second.kind == 1
