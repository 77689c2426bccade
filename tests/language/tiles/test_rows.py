"""Tiles by rows: any multiple of 8 rows and columns, wide tiles, reductions along rows, casts
between layouts."""

from __future__ import annotations

import itertools
import re
from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import ds, show_layout
from numpipe.core import numba as nb
from numpipe.errors import SpecError
from numpipe.language.tiles import conversions, scattered_shared_cuda
from numpipe.language.tiles.layouts import Form, by_rows, combined, places
from numpipe.language.tiles.scattered_shared import held
from numpipe.language.tiles.tile_cuda import TileType
from numpipe.plan.layout import Layout, swizzled
from tests.kernels.lane_builder import LaneBuilder, LaneInts
from tests.kernels.odd_outputs import Odd
from tests.kernels.row_kernels import (
    BF16,
    DTYPES,
    SHAPES,
    adjacent_rows,
    array,
    cast,
    expected,
    names,
    normalised,
    reduced,
    scanned_in_runs,
    softmax,
    through_registers,
    through_shared,
)

F32, I32 = np.dtype(np.float32), np.dtype(np.int32)
LANES = np.arange(128)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_element_is_held_and_each_lane_has_equally_many(shape: tuple[int, int]) -> None:
    for lanes in (1, 2, 4, 8, 16, 32):
        if shape[1] % (2 * lanes):
            continue
        form = by_rows(Form(shape, F32), f"rows {lanes}", "test")
        row, column = form.record.own(LANES)
        where = places(form.shape, form.layout)
        found = np.zeros(shape, int)
        for down, right in where:
            np.add.at(found, (row + (down or 0), column + (right or 0)), 1)
        assert (found == 128 * len(where) // (shape[0] * shape[1])).all() and len(where) % 2 == 0
        assert np.unique(held(form)[0] * shape[1] + held(form)[1]).size == shape[0] * shape[1]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.variants(3)
def test_blocks_go_through_registers_and_are_clipped(shape: tuple[int, int]) -> None:
    (m, n), dtype = shape, DTYPES[SHAPES.index(shape) % len(DTYPES)]
    for size in ((m + 3, n + 2), (m + 5, n + 9), (m - 1, n - 3)):
        x = array(size, dtype)
        y, right = np.zeros_like(x), np.zeros_like(x)
        through_registers(x, y, m=m, n=n, target="sim")
        right[3 : 3 + m, 2 : 2 + n] = (x + x)[3 : 3 + m, 2 : 2 + n]
        assert (y == right).all()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.variants(3)
def test_blocks_go_through_shared_memory(shape: tuple[int, int]) -> None:
    for dtype in DTYPES:
        if shape[1] * dtype.itemsize % 16 == 0:
            x = array((2 * shape[0], shape[1] + 16), dtype)
            y = np.zeros_like(x)
            through_shared(x, y, m=shape[0], n=shape[1], target="sim")
            assert (x == y).all(), dtype


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.variants(3)
def test_reductions_are_numpys(shape: tuple[int, int]) -> None:
    (m, n), dtype = shape, (F32, I32)[SHAPES.index(shape) % 2]
    x = array(shape, dtype)
    results = (np.zeros((m, 4), dtype), np.zeros((3, n), dtype), np.zeros(4, dtype))
    reduced(x, *results, m=m, n=n, target="sim")
    for found, right in zip(results, expected(x), strict=True):
        assert (found == right).all()


@pytest.mark.parametrize(
    "shape, lanes, word",
    [
        ((64, 128), 32, F32),
        ((24, 16), 4, I32),
        ((192, 64), 8, F32),
        ((120, 128), 16, I32),
        ((128, 256), 32, F32),
    ],
    ids=str,
)
@pytest.mark.variants(2)
def test_casts_move_tiles_and_vectors(
    shape: tuple[int, int], lanes: int, word: np.dtype, target: str
) -> None:
    for dtype in (word, BF16):
        x, v = array(shape, dtype), array((max(shape),), dtype, 1)
        y = np.zeros_like(x)
        cast(x, y, v, m=shape[0], n=shape[1], to=names(lanes, shape), target=target)
        assert (y == x * v[: shape[1]] + v[: shape[0], None]).all()


@pytest.mark.parametrize("n", [3, 24, 33, 70])
def test_rows_of_any_length_are_loaded_from_a_vector(n: int, target: str) -> None:
    for dtype, layout in ((F32, "rows 4"), (BF16, "rows 8"), (BF16, "accumulator")):
        if layout == "accumulator" and n % 8:
            continue
        x = array((150, n), dtype)
        y = np.zeros_like(x)
        adjacent_rows(x.reshape(-1), y, m=64, n=n, layout=layout, columns=n, target=target)
        assert (y == x).all()


def test_lanes_may_have_runs_of_a_row(target: str) -> None:
    for dtype, columns in itertools.product((BF16, F32), (256, 259, 220)):
        x = np.random.default_rng(0).integers(-3, 3, (8, 256)).astype(dtype)
        y, sums = np.zeros((8, columns), F32), np.zeros(256, F32)
        scanned_in_runs(x, y, sums, target=target)
        x = x.astype(F32)
        assert (sums == x.sum(0)).all()
        wanted = np.cumsum(x * x.max(0) + x.min(1)[:, None], axis=1)
        assert (y[:, :256] == wanted[:, :columns]).all() and not y[:, 256:].any()


def test_columns_of_a_vector_divide_its_size() -> None:
    x = array((64, 24), F32)
    for columns in (0, 25):
        with pytest.raises(SpecError, match=rf"columns must divide .* got {columns} .*\(1536,\)"):
            adjacent_rows(
                x.reshape(-1), x.copy(), m=64, n=24, layout="rows 4", columns=columns, target="sim"
            )


def test_a_softmax_by_a_warp_a_row() -> None:
    x = np.random.default_rng(0).standard_normal((20, 1024)).astype(BF16)
    e = np.exp(x.astype(F32) - x.astype(F32).max(1, keepdims=True))
    np.testing.assert_allclose(
        softmax(x, target="sim").astype(F32), e / e.sum(1, keepdims=True), rtol=0.01
    )


@pytest.mark.parametrize(
    "shape, layout",
    [((24, 16), "rows 8"), ((8, 64), "rows 32"), ((64, 64), "accumulator"), ((32, 48), "rows 4")],
)
@pytest.mark.parametrize("inner", [0, 1])
def test_addresses_in_shared_memory_match_the_elements(
    shape: tuple[int, int], layout: str, inner: int
) -> None:
    builder = LaneBuilder()
    builder.lane_index = lambda: LANES.view(LaneInts)  # type: ignore[attr-defined]
    for dtype in (F32, np.dtype(np.float16), np.dtype(np.int8)):
        width = min(128, 128 * dtype.itemsize)
        whole = Layout((128, 128), dtype.itemsize, inner, width, 128 * width)
        tile = TileType(Form(shape, dtype, layout))
        row, column = tile.form.record.own(LANES)
        for start in ((0, 0), (13, 29), (64, 64)):
            address = scattered_shared_cuda.addresses(
                builder, whole, nb.const(4096), tile, tuple(map(nb.const, start))
            )
            for number, (down, right) in enumerate(places(shape, layout)):
                right_place = whole.offset(row + down + start[0], column + right + start[1])
                assert (address(number) == swizzled(4096 + right_place, width)).all(), (
                    start,
                    number,
                )


@pytest.mark.parametrize(
    ("shape", "one", "other"),
    [
        ((8, 256), "rows 32 4", "rows 32"),
        ((8, 1000), "rows 32 8", "rows 16"),
        ((64, 248), "rows 32 4", "accumulator"),
        ((256, 16), "rows 1", "rows 4"),
        ((24, 100), "rows 8", "rows 32 4"),
    ],
)
def test_lanes_find_their_elements_in_the_panel_of_a_cast(
    shape: tuple[int, int], one: str, other: str
) -> None:
    builder, origin = LaneBuilder(), tuple(map(nb.const, (0, 0)))
    builder.lane_index = lambda: LANES.view(LaneInts)  # type: ignore[attr-defined]
    forms = [Form(shape, np.dtype(np.float16), layout) for layout in (one, other)]
    panel = conversions.panel(*forms)
    stored, loaded = (scattered_shared_cuda.panels(TileType(f), panel.shape) for f in forms)
    for at in stored:
        memory = dict[int, tuple[int, int]]()
        for form, numbers in zip(forms, (stored[at], loaded[at]), strict=True):
            known = set(memory)
            address = scattered_shared_cuda.addresses(
                builder, panel, nb.const(0), TileType(form), origin, at
            )
            row, column = form.record.own(LANES)
            for number in numbers:
                down, right = form.places[number]
                for lane, place in enumerate(np.broadcast_to(address(number), 128).tolist()):
                    element = row[lane] + down, column[lane] + right
                    if all(np.array(element) < shape):
                        assert place < panel.nbytes <= conversions.moved_bytes(*forms)
                        assert element == memory.setdefault(place, element)
                        assert form is forms[0] or place in known


def test_a_cast_without_room_for_a_panel_names_one_that_has_it() -> None:
    def of(more: str) -> Any:
        form = Form((64, 256), F32, "rows 32 4")
        return conversions.moved_bytes(form, Form(form.shape, F32, more))

    with pytest.raises(
        SpecError, match='accumulator layout .*32768 bytes.*cast it to "rows" first'
    ):
        of("accumulator")
    assert of("rows 32") == conversions.ROOM


def test_a_tile_of_a_row_that_all_lanes_share_and_a_column_stays_in_these_lanes() -> None:
    row, column = Form((1, 256), np.dtype(F32), "row 128"), Form((10, 1), np.dtype(F32), "either")
    assert combined("+", [row, column]) == ((10, 256), "rows 128")


def test_show_layout_draws_rows() -> None:
    assert "T31:3" in str(show_layout((8, 64), layout="rows 32")) and "T7:1" in str(
        show_layout((8, 64), layout="rows 8")
    )
    assert "T11:3" in (picture := str(show_layout((8, 24), layout="rows 32")))
    assert "T12" not in picture
    with pytest.raises(SpecError, match=r"except in a column\) share a row, got 'rows 5'"):
        show_layout((8, 24), layout="rows 5")


def test_vectors_parts_masks_and_atomics_of_tiles_by_rows(target: str) -> None:
    rng = np.random.default_rng(0)
    x, gamma = rng.standard_normal((64, 512)).astype(F32), rng.standard_normal(64).astype(F32)
    y, sums = np.zeros((72, 64), F32), np.zeros((9, 9), F32)
    normalised(x, gamma, y, sums, target=target)
    tile = x[:, :64]
    right = np.abs(tile / np.sqrt((tile * tile).mean(axis=1, keepdims=True)) * gamma)
    np.testing.assert_allclose(y[:64], right, rtol=1e-5)
    np.testing.assert_allclose(y[64:], x[:8, 448:] + np.arange(64, dtype=F32), rtol=1e-6)
    assert (sums[:8, :8] == 1).all() and (sums[8, :8] == 16).all() and (sums[:8, 8] == 24).all()


def test_a_row_inside_an_array_needs_one_address() -> None:
    @numpipe.kernel(grid=(4,), warp_specialized=False)
    def copied(x, y):
        i, j = ds(0, 1), ds(numpipe.program_id(0) * 1024, 1024)
        y[i, j] = x[i, j]

    sass = copied.inspect("sass", *[numpipe.ArrayType((1, 4000), np.float16)] * 2)
    for access in (r"LDG\.E R\d+,", r"STG\.E"):
        assert len(re.findall(access + r" desc\[\w+\]\[R\d+\.64\+0x(80|400|480)\]", sass)) == 3


def test_pairs_of_elements_are_moved_at_once_if_all_rows_start_at_even_places() -> None:
    @numpipe.kernel(warp_specialized=False, static_dims=(-1,))
    def copied(x, y):
        i, j = ds(0, 8), ds(0, 66)
        y[i, j] = x[i, j]

    sass = copied.inspect("sass", *[Odd((8, 66), np.dtype(np.float16))] * 2)
    assert re.search(r"LDG\.E R", sass) and re.search(r"STG\.E desc", sass)


def test_a_pair_that_the_array_has_half_of_is_stored_by_elements() -> None:
    """Columns 64 and 65 of an array that has 65; the other pairs are inside."""

    @numpipe.kernel(warp_specialized=False, static_dims=(-1,))
    def copied(x, y):
        i, j = ds(0, 8), ds(0, 66)
        y[i, j] = numpipe.load_tile(x.at[i, j], "rows 32")

    ptx = copied.inspect("ptx", *[numpipe.ArrayType((8, 65), F32)] * 2)
    assert (ptx.count("st.global.v2"), ptx.count("st.global.f32")) == (2, 4)


def test_a_run_of_bytes_is_loaded_at_once_and_fills_registers_of_two_elements() -> None:
    @numpipe.kernel(warp_specialized=False)
    def copied(x, y):
        i, j = ds(0, 8), ds(0, 512)
        y[i, j] = numpipe.load_tile(x.at[i, j], "runs")

    ptx = copied.inspect("ptx", *[numpipe.ArrayType((8, 512), np.int8)] * 2)
    # two runs of a lane, of a block inside the array and of one at its edge
    assert (ptx.count("ld.global.v4"), ptx.count("st.global.v4")) == (4, 2)
    assert len(re.findall(r"shr\.u32 \s*%r\d+, %r\d+, 16;", ptx)) == 16


@pytest.mark.parametrize("dims", [(0, -1), 1, {"x": (2,)}, {"x": 2}])
def test_constant_sizes_are_counted_from_the_last_dimension(dims: Any) -> None:
    with pytest.raises(SpecError, match=r"static_dims must be negative ints, .* fix: static_dims="):
        numpipe.kernel(unless_apart.function, static_dims=dims)


def test_static_dims_of_an_array_that_the_kernel_does_not_have_are_refused() -> None:
    numpipe.kernel(unless_apart.function, static_dims={"x": (-1,)})
    with pytest.raises(SpecError, match=r"unless_apart: static_dims: .* 'typo'; fix: name some of"):
        numpipe.kernel(unless_apart.function, static_dims={"x": (-1,), "typo": (-1,)})


@numpipe.kernel(num_compute_wgs=1, warp_specialized=False)
def unless_apart(x, y):
    """Copy x to y if the 65 elements of a row of x are contiguous."""
    if x.shape[1] == 65 and x.strides[1] == np.dtype(x.dtype).itemsize:
        y[ds(0, 8), ds(0, 64)] = x[ds(0, 8), ds(0, 64)]


def test_strides_are_in_bytes_and_known_strides_eliminate_code() -> None:
    x = np.arange(8 * 130, dtype=F32).reshape(8, 130) + 1
    for part, copied in ((x[:, :65], True), (x[:, ::2], False)):
        y = np.zeros((8, 65), F32)
        unless_apart(part, y, target="sim")
        assert (y[:, :64] == part[:, :64]).all() == copied
    odd = [Odd((8, 65), F32), Odd((8, 65), F32)]
    # at constant distances from one address per row
    assert re.search(
        r"LDG\.E R\d+, desc\[UR\d+\]\[R\d+\.64\+0x4\]", unless_apart.inspect("sass", *odd)
    )
