"""Slices and reshapes of register tiles: the same elements as NumPy, no instructions of their own,
and code that passes the build gate."""

from __future__ import annotations

import numpy as np
import pytest

import numpipe
from numpipe import ds
from numpipe.compile.check import gate
from numpipe.language.tiles.layouts import Form, coalesced, places
from numpipe.language.tiles.refs import ALL, Ds
from numpipe.language.tiles.tile_slices import elements_of, part_form
from tests.kernels.compilers import compiles
from tests.kernels.part_kernels import (
    TYPES,
    coalesced_parts,
    coalesced_wrong,
    columns_of_tiles,
    columns_wrong,
    halves_of_a_product,
    halves_wrong,
    parts_of_vectors,
    vectors_wrong,
)

F32 = np.dtype(np.float32)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_parts_of_tiles_are_numpys(dtype: np.dtype, target: str) -> None:
    assert not columns_wrong(dtype, target)


def test_parts_and_shapes_of_vectors_are_numpys() -> None:
    assert not vectors_wrong("sim")


def test_parts_of_coalesced_tiles_and_of_accumulators_are_numpys() -> None:
    assert not coalesced_wrong("sim") and not halves_wrong("sim")


@pytest.mark.parametrize("layout", ["accumulator", coalesced(4), coalesced(8), "rows 32"])
def test_a_part_has_the_places_of_its_own_layout(layout: str) -> None:
    form = Form((128, 128), F32, layout)
    result, slices = part_form(form, (Ds(64, 64), Ds(64, 64)))
    where = places(form.shape, layout)
    assert [where[i] for i in elements_of(form, result, slices)] == [
        (row + 64, column + 64) for row, column in places(result.shape, layout)
    ]  # type: ignore[operator]
    assert part_form(form, (ALL, ALL))[0] == form


@pytest.mark.parametrize("columns", [200, 512])
def test_a_row_of_a_tile_whose_rows_all_lanes_share_is_a_vector(columns: int) -> None:
    form = Form((16, columns), F32, "rows 128")
    result, slices = part_form(form, (Ds(3, 1), ALL))
    assert result.layout == "row 128"
    assert [form.places[i] for i in elements_of(form, result, slices)] == [
        (3, column) for _, column in result.places
    ]
    # a reduction combines lanes of one warp, or the same columns of all warps
    assert form.uncoalesced().layout == "rows 32"


def test_the_fix_for_a_part_is_within_the_tile() -> None:
    with pytest.raises(numpipe.SpecError, match="write 0:200, or load a part"):
        part_form(Form((8, 200), F32, "rows 32"), (ALL, Ds(0, 196)))


def test_a_part_whose_lanes_have_other_rows_is_refused() -> None:
    form = Form((32, 64), F32, "rows 16")  # a lane has every 8th row, of 8 rows every 4th
    assert part_form(form, (Ds(16, 16), ALL))[0].shape == (16, 64)
    with pytest.raises(numpipe.SpecError, match="must be multiples of 32"):
        part_form(form, (Ds(8, 8), ALL))


def test_the_last_part_of_a_tile_may_have_any_size_but_one_column() -> None:
    form = Form((16, 187), F32, "rows 16")
    result, slices = part_form(form, (ALL, Ds(128, 59)))
    assert [form.places[i] for i in elements_of(form, result, slices)] == [
        (row, column + 128) for row, column in result.places
    ]  # type: ignore[operator]
    for size, part in ((187, Ds(128, 50)), (129, Ds(128, 1))):
        with pytest.raises(numpipe.SpecError, match="must be multiples of 32"):
            part_form(Form((16, size), F32, "rows 16"), (ALL, part))


@compiles
@pytest.mark.variants(0, thorough=3)
@pytest.mark.parametrize("case", ["vectors", "product", "coalesced", *map(str, TYPES)])
def test_parts_compile_and_the_gate_finds_nothing(case: str) -> None:
    half, x = np.zeros((64, 128), np.float16), np.zeros((192, 192), np.float32)
    if case == "vectors":
        built = parts_of_vectors.compiled(
            x, np.zeros((7, 64), np.float32), np.zeros((128, 64), np.float32)
        )
    elif case == "product":
        built = halves_of_a_product.compiled(half, half, np.zeros((64, 32), np.float32))
    elif case == "coalesced":
        built = coalesced_parts.compiled(
            np.zeros((128, 128), np.float16), np.zeros((128, 192), np.float16)
        )
    else:
        dtype = next(dtype for dtype in TYPES if str(dtype) == case)
        built = columns_of_tiles.compiled(np.zeros((128, 64), dtype), np.zeros((128, 176), dtype))
    assert gate.findings(built) == ()


@compiles
def test_a_part_reads_the_registers_where_they_are() -> None:
    @numpipe.kernel
    def part(x, y):
        y[ds(0, 64), ds(0, 8)] = x[ds(0, 64), ds(0, 64)][:, 8:16]

    @numpipe.kernel
    def whole(x, y):
        y[ds(0, 64), ds(0, 8)] = x[ds(0, 64), ds(8, 8)]

    arrays = np.zeros((64, 64), np.float32), np.zeros((64, 8), np.float32)
    loads = [
        sum("ld.global" in line for line in kernel.compiled(*arrays).ptx.splitlines())
        for kernel in (part, whole)
    ]
    assert loads[0] == loads[1] > 0
