"""Register tiles: arithmetic that broadcasts like NumPy's, functions within their error bounds,
blocks of arrays, layouts."""

from __future__ import annotations

import re
from typing import Any

import make_figures
import numpy as np
import pytest

import numpipe
from numpipe import ds
from numpipe.language.tiles import layouts
from numpipe.language.tiles.layout_names import COLUMN, EITHER, ROW
from numpipe.language.tiles.layout_pictures import holders
from numpipe.language.tiles.layouts import ACCUMULATOR, Form
from tests.kernels.compilers import compiles
from tests.kernels.launch_fakes import CudaArray
from tests.kernels.register_kernels import (
    ERRORS,
    PRODUCTS,
    arrays_of_attention,
    arrays_of_epilogue,
    arrays_of_reductions,
    attention,
    conversions,
    epilogue,
    errors_of,
    operands_of_steps_are_right,
    ranges,
    reduced,
    register_product_is_right,
    voted,
    wanted_of_attention,
    wanted_of_epilogue,
    wanted_of_reductions,
    wanted_of_votes,
    whole_numbers_are_right,
)

SEEDS = None, 3


# ---- elements of a lane ----------------------------------------------------------------------
@pytest.mark.parametrize(
    "shape, layout, held",
    [
        ((128, 24), ACCUMULATOR, 1),
        ((24,), ROW, 32),
        ((1, 24), ROW, 32),
        ((128,), COLUMN, 4),
        ((128, 1), COLUMN, 4),
    ],
)
def test_the_lanes_of_a_layout_hold_every_element_so_many_times(
    shape: tuple[int, ...], layout: str, held: int
) -> None:
    rows, columns = (1 if layout == ROW else shape[0]), (1 if layout == COLUMN else shape[-1])
    count = np.zeros((rows, columns), int)
    for thread in range(128):
        row, column = thread // 32 * 16 + thread % 32 // 4, 2 * (thread % 4)
        for r, c in layouts.places(shape, layout):
            count[0 if r is None else row + r, 0 if c is None else column + c] += 1
    assert (count == held).all()


@pytest.mark.parametrize(
    "shape, layout, have, of",
    [
        ((64, 24), ACCUMULATOR, (24,), ROW),
        ((64, 64), ACCUMULATOR, (64,), EITHER),
        ((128, 8), ACCUMULATOR, (128, 1), COLUMN),
        ((64,), ROW, (64,), EITHER),
        ((64,), COLUMN, (64,), EITHER),
        ((64, 1), COLUMN, (64, 1), COLUMN),
    ],
)
def test_an_operand_is_read_where_its_element_is_the_results(
    shape: Any, layout: str, have: Any, of: str
) -> None:
    wanted, given_ = layouts.places(shape, layout), layouts.places(have, of)
    for place, source in zip(wanted, layouts.sources(shape, layout, have, of), strict=True):
        row, column = given_[source]
        assert row in (None, place[0]) and column in (None, place[1])
        assert (row, column) != (None, None)
        if layout == ACCUMULATOR and len(have) == 1:
            assert row is None  # a vector along the columns


def test_a_vector_is_moved_to_the_layout_of_the_first_one() -> None:
    row, column = (Form((64,), np.dtype(np.float32), of) for of in (ROW, COLUMN))
    assert layouts.combined("+", [row, Form((64,), row.dtype, EITHER)]) == ((64,), ROW)
    assert layouts.combined("+", [row, column]) == ((64,), ROW)
    assert layouts.laid(column, (64,), ROW) == row


def test_a_row_and_a_column_make_a_tile_in_the_layout_of_the_row() -> None:
    shapes = {(1, 96): "row 8 4", (32, 1): "column 8"}
    forms = [Form(shape, np.dtype(np.float32), of) for shape, of in shapes.items()]
    assert layouts.combined("+", forms) == ((32, 96), "rows 8 4")
    assert all(layouts.laid(form, (32, 96), "rows 8 4") == form for form in forms)


def test_a_picture_shows_who_holds_each_element(tmp_path: Any) -> None:
    picture = numpipe.show_layout((128, 16))
    found = holders(Form((128, 16), np.dtype(np.float32)), 1)
    # of a later block; of the second 8 columns
    assert found[16 + 64, 9] == [(0, 8 + 5)] and found[31, 14] == [(31, 6)]
    assert all(len(lanes) == 1 for lanes in found.values()) and len(found) == 32 * 16
    assert str(picture).count("<rect") == 32 * 16 and picture._repr_svg_().startswith("<svg")
    half = holders(Form((64, 16), np.dtype(np.float16)), 0)
    # an A operand: registers 0 … 3 of a k16 step
    assert half[0, 0] == half[0, 1] == [(0, 0)] and half[8, 8] == [(0, 3)]
    assert {lane for lane, _ in holders(Form((64,), np.dtype(np.float32), COLUMN), 0)[3, -1]} == {
        12,
        13,
        14,
        15,
    }
    picture.save(tmp_path / "tile.svg")
    assert "T31:3" in (tmp_path / "tile.svg").read_text()
    with pytest.raises(numpipe.SpecError, match=r"saved as \.svg, got '.*tile\.png'"):
        picture.save(tmp_path / "tile.png")


@pytest.mark.parametrize("name", make_figures.LAYOUTS)
def test_the_pictures_of_the_page_are_current(name: str) -> None:
    shape, options = make_figures.LAYOUTS[name]
    assert (make_figures.FIGURES / f"{name}.svg").read_text(
        encoding="utf8"
    ) == f"{numpipe.show_layout(shape, **options)}\n"


# ---- arithmetic ----------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ERRORS)
def test_functions_are_within_their_errors_throughout_their_range(name: str) -> None:
    worst = errors_of(name, ranges(name, 2), "sim")
    assert worst <= 0.5 + 1e-6 or name == "fma"
    assert worst <= ERRORS[name]


def test_conversions_round_as_numpy_does_and_saturate_as_the_gpu_does(target: str) -> None:
    assert conversions(target) == []


def test_whole_numbers_go_through_shared_memory_and_to_arrays(target: str, again: range) -> None:
    assert all(whole_numbers_are_right(target) for _ in again)


# ---- blocks of arrays ----------------------------------------------------------------------------
@pytest.mark.parametrize("shape", [(128, 128), (200, 328), (70, 136)], ids=str)
def test_an_epilogue_reads_bias_residual_and_scale(shape: tuple[int, int]) -> None:
    arrays = arrays_of_epilogue(shape)
    epilogue.simulate(*arrays.values())
    np.testing.assert_allclose(
        arrays["c"].astype(np.float32), wanted_of_epilogue(arrays), rtol=2e-3, atol=2e-3
    )


@pytest.mark.thorough
@compiles
def test_it_loads_pairs_where_it_can_and_no_vector_twice() -> None:
    arrays = list(arrays_of_epilogue((128, 128)).values())
    ptx = epilogue.inspect("ptx", *arrays)
    # the bias: 32 columns of each lane; none of it by rows
    assert ptx.count("ld.global.v2.u32") == 16
    assert ptx.count("ld.global.u16") == 64  # the residual, where its pairs are not aligned
    assert "ld.global.nc" not in ptx and ".local" not in ptx
    assert epilogue.inspect("resources", *arrays).spill_bytes == 0
    assert not epilogue.inspect("gate", *arrays)


@pytest.mark.variants(1)
@compiles
@pytest.mark.parametrize("address, pairs", [(1 << 20, 16), ((1 << 20) + 4, 0)])
def test_a_vector_that_starts_anywhere_is_loaded_element_by_element(
    address: int, pairs: int
) -> None:
    @numpipe.kernel(grid=1)
    def spread(x, y):
        y[ds(0, 64), ds(0, 128)] = numpipe.full((64, 128), 0.0, np.float32) + x[ds(0, 128)]

    ptx = spread.inspect(
        "ptx", CudaArray(address, (200,), "<f4"), CudaArray(1 << 21, (64, 128), "<f4")
    )
    assert ptx.count("ld.global.v2.u32") == pairs and ptx.count("ld.global.u32") == 32


@pytest.mark.variants(1)
@compiles
@pytest.mark.parametrize("size, least, pairs", [(1001, 0, 3), (1001, -63, 2), (1024, -64, 3)])
def test_only_pairs_in_which_an_array_begins_or_ends_are_moved_by_elements(
    size: int, least: int, pairs: int
) -> None:
    @numpipe.kernel(grid=1, static_dims=(-1,))
    def copied(x, y, *, least: numpipe.Static):
        row, j = ds(0, 1), ds(-numpipe.program_id(0), 1024, most=0, least=least)
        y[row, j] = x[row, j]

    rows = CudaArray(1 << 20, (1, size), "<f2"), CudaArray(1 << 21, (1, size), "<f2")
    ptx = copied.inspect("ptx", *rows, least=least)
    # each lane has four pairs, whose elements are moved one by one if the column is odd, too
    for word, element in (("ld.global.u32", "ld.global.u16"), ("st.global.b32", "st.global.b16")):
        assert ptx.count(word) == pairs and ptx.count(element) > 8


# ---- reductions and votes ------------------------------------------------------------------------
def test_reductions_are_numpys_along_each_axis(target: str, again: range) -> None:
    arrays = arrays_of_reductions()
    for _ in again:
        arrays["floats"][...], arrays["ints"][...] = 7, 7
        reduced(*arrays.values(), target=target)
        for found, wanted in zip(
            (arrays["floats"], arrays["ints"]), wanted_of_reductions(arrays), strict=True
        ):
            np.testing.assert_array_equal(found, wanted)


def test_what_the_warps_exchange_is_part_of_the_budget() -> None:
    @numpipe.kernel
    def full_up(x, y, *, rows: numpipe.Static = 904):
        tile = numpipe.scratch(numpipe.SMEM((rows, 64), np.float32))
        tile[ds(0, 64), :] = x[ds(0, 64), ds(0, 64)]
        y[ds(0, 64), ds(0, 64)] = (
            x[ds(0, 64), ds(0, 64)] + x[ds(0, 64), ds(0, 256)].sum(axis=0).sum()
        )

    x, y = np.ones((64, 256), np.float32), np.zeros((64, 64), np.float32)
    full_up.simulate(x, y, rows=64)
    assert (y == 64 * 256 + 1).all()
    with pytest.raises(
        numpipe.SpecError, match=r"(?s)shared memory: .* 4096 B  reductions of register tiles"
    ):
        full_up.simulate(x, y)


def test_a_vote_decides_for_the_warpgroup_and_not_for_the_memory_role(runs: Any) -> None:
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (256, 64)).astype(np.float32)
    limits = np.repeat(np.float32([0.9, 0.4, 0.1, 2.0]), 64)
    x[:64] *= np.float32(0.5)
    x[17, 33] = 0.95  # one element decides for all four warps
    x[192:] = -np.abs(x[192:]) - 0.1
    for run in runs:
        y = np.zeros_like(x)
        run(voted, x, limits, y)
        np.testing.assert_array_equal(y, wanted_of_votes(x, limits))


# ---- products with A from registers --------------------------------------------------------------
@pytest.mark.parametrize("case", PRODUCTS, ids=str)
def test_a_product_of_registers_of_each_shape(case: Any, target: str, again: range) -> None:
    assert all(register_product_is_right(case, target) for _ in again)


@pytest.mark.parametrize("keys", [64, 200])
@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_attention_of_one_head(dtype: str, lazy: bool, keys: int) -> None:
    arrays = arrays_of_attention(keys, dtype)
    for seed in (None, 1):
        attention(dtype, lazy).simulate(*arrays.values(), seed=seed)
        assert np.abs(arrays["o"] - wanted_of_attention(arrays)).max() < (
            2e-3 if dtype == "float16" else 2e-2
        )


@pytest.mark.thorough
@compiles
def test_products_of_registers_stay_in_flight_and_nothing_is_zeroed_for_them() -> None:
    arrays = list(arrays_of_attention(128).values())
    kernel = attention()
    sass = kernel.inspect("sass", *arrays)
    # Q K^T: A from shared memory
    assert len(re.findall(r"HGMMA\.64x64x16\.F32 R\d+, gdesc", sass)) == 4
    # P V: A from registers
    assert len(re.findall(r"HGMMA\.64x64x16\.F32 R\d+, R\d+, gdesc", sass)) == 4
    assert len(re.findall(r"gdesc\[UR\d+\], RZ, !UPT", sass)) == 1  # the first of a new product
    assert "LDL" not in sass and "STL" not in sass
    assert not kernel.inspect("gate", *arrays)


def test_operands_that_each_step_loads_into_registers_give_numpys_product(target: str) -> None:
    assert operands_of_steps_are_right(target)
