"""Register tiles and global memory other than by whole tiles: stored vectors, reductions,
gathers."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import PipelineRace, SimulationError, ds
from numpipe.language.tiles.addresses import swizzled
from numpipe.language.tiles.layout_pictures import holders
from numpipe.language.tiles.layouts import (
    Form,
    coalesced,
    coalesced_form,
    lanes_across,
    panel_width,
    places,
    run_offset,
)
from numpipe.plan.layout import Layout
from tests.kernels.access_kernels import (
    CASES,
    arrays_of_casts,
    arrays_of_gathered,
    arrays_of_sums,
    casts,
    differing,
    gathered,
    sums,
)
from tests.kernels.compilers import compiles
from tests.language.tiles.test_smem_tiles import element_offset, ways


@pytest.mark.parametrize("name", CASES)
def test_arrays_hold_what_numpy_makes_of_them(name: str) -> None:
    assert differing(name, "sim") == []


@pytest.mark.parametrize("seed", range(3))
def test_reductions_meet_in_any_order(seed: int) -> None:
    arrays = arrays_of_sums()
    wanted = CASES["sums"][2](arrays)
    sums.simulate(*arrays.values(), seed=seed)
    assert all((arrays[name] == wanted[name]).all() for name in arrays)


# ---- reports ---------------------------------------------------------------------------------
def meeting(other: str) -> Any:
    @numpipe.kernel(grid=2)
    def adds(x, total, again):
        if other == "store" and numpipe.program_id(0) == 1:
            total[ds(0, 64)] = x[ds(0, 64)]
        else:
            numpipe.atomic_add(total.at[ds(0, 64)], x[ds(0, 64)])
        if other == "load":
            again[ds(numpipe.program_id(0) * 64, 64)] = total[ds(0, 64)]
        if other == "max":
            numpipe.atomic_max(total.at[ds(0, 64)], x[ds(0, 64)])

    return adds


@pytest.mark.parametrize(
    "other, message",
    [
        ("store", r"store \(total\) writes total\[0:64\], which CTA \(0, 0, 0\) writes too"),
        ("load", r"load \(total\) .* total\[0:64\], which"),
        ("max", r"reduction 'add' \(total\) writes .* which CTA \(0, 0, 0\) writes too"),
    ],
)
def test_only_reductions_of_one_kind_meet(other: str, message: str) -> None:
    x, total, again = np.ones(64, np.int32), np.zeros(64, np.int32), np.zeros(128, np.int32)
    meeting("").simulate(x, total, again)
    assert (total == 2).all()
    with pytest.raises(PipelineRace, match=f"(?s){message}"):
        meeting(other).simulate(x, total, again)


def test_a_reduction_needs_something_to_start_from() -> None:
    @numpipe.kernel(out_type=lambda x: numpipe.ArrayType((64,), np.float32))
    def added(x, out):
        numpipe.atomic_add(out.at[ds(0, 64)], x[ds(0, 64)])

    x, out = np.ones(64, np.float32), np.ones(64, np.float32)
    added.simulate(x, out=out)
    assert (out == 2).all()
    with pytest.raises(
        SimulationError,
        match=r"(?s)reduction 'add' \(out\) changes out\[0:64\], which has not been written",
    ):
        added.simulate(x)


# ---- the machine code ----------------------------------------------------------------------------
@pytest.mark.thorough
@compiles
def test_tiles_are_reduced_by_tma_and_the_rest_by_the_lanes() -> None:
    arrays = list(arrays_of_sums().values())
    ptx = sums.inspect("ptx", *arrays)
    # 64 x 128 bytes each: panels, counts
    assert ptx.count("cp.reduce.async.bulk.tensor.2d.global.shared::cta.add") == 2 + 2
    assert ptx.count("cp.reduce.async.bulk.tensor.3d.global.shared::cta.max") == 1
    # shifted; line: 16 elements of each of 4 lanes
    assert ptx.count("red.relaxed.gpu.global.add.f32") == 32 + 16
    assert ptx.count("red.relaxed.gpu.global.or.b32") == 2  # a lane has two rows
    assert "membar" not in ptx and ".local" not in ptx


@compiles
def test_casts_that_move_data_are_listed_and_the_others_are_free() -> None:
    arrays = list(arrays_of_casts().values())
    found = casts.inspect("resources", *arrays)
    lines = casts.function.__code__.co_firstlineno
    assert [
        (int(site.split(":")[1]) - lines, what, nbytes) for site, what, nbytes in found.layout_casts
    ] == [
        (6, "float32 (64,) (column layout) to row layout", 256),
        (7, "float32 (64,) (row layout) to column layout", 256),
        (10, "float32 (64,) (row layout) to column layout", 256),
        (9, "float32 (64,) (column layout) to row layout", 256),
        (12, "float16 (64,) (column layout) to row layout", 128),
        (13, "bool (64,) (row layout) to column layout", 64),
    ]
    assert "column layout, through 256 B of shared memory" in str(found)


def test_the_lanes_of_a_coalesced_tile_have_lines_of_it_and_each_element_once() -> None:
    for dtype, columns in (
        (np.float32, 8),
        (np.float32, 64),
        (np.float16, 64),
        (np.float16, 16),
        (np.float16, 128),
    ):
        form = coalesced_form(Form((128, columns), np.dtype(dtype)), "test")
        found = {place: lanes for warp in range(4) for place, lanes in holders(form, warp).items()}
        assert len(found) == 128 * columns and all(len(lanes) == 1 for lanes in found.values())
        vector = form.name.vector
        # per instruction: 16 bytes per lane, whole sectors per row
        for first in range(0, len(places(form.shape, form.layout)), vector):
            rows: dict[int, list[int]] = {}
            for (row, column), [(lane, register)] in holders(form, 2).items():
                if register == (first // 2 if dtype is np.float16 else first):
                    rows.setdefault(row, []).append(column)
            starts = [min(of) for of in rows.values()]
            assert (
                all(np.ptp(of) * np.dtype(dtype).itemsize < 128 for of in rows.values())
                and len(rows) * max(map(len, rows.values()))
                == 32 * (2 if dtype is np.float16 else 1)
                and len(set(starts)) == 1
            )


@pytest.mark.parametrize(
    "dtype, columns, vector",
    [
        (np.float32, 32, 4),
        (np.float16, 64, 8),
        (np.float32, 8, 4),
        (np.float16, 32, 4),
        (np.float16, 16, 8),
        (np.int32, 16, 4),
    ],
)
def test_a_cast_finds_each_element_where_the_panel_has_it_without_bank_conflicts(
    dtype: Any, columns: int, vector: int
) -> None:
    form, threads = Form((64, columns), np.dtype(dtype), coalesced(vector)), np.arange(128)
    size = form.dtype.itemsize
    layout = Layout((64, columns), size, 1, columns * size, 64 * columns * size)
    across = lanes_across(columns, vector)
    row, column = threads // 32 * 16 + threads % 32 // across, threads % across * vector
    for down in {place[0] for place in places(form.shape, form.layout)}:
        at = swizzled(run_offset(form, threads, down), layout.width)
        assert (
            panel_width(form) == layout.width
            and (at == element_offset(layout, row + down, column)).all()
        )
        lanes = 128 // (vector * size)  # that are served together
        assert {ways(part, vector * size) for part in at.reshape(-1, lanes)} == {1}


@compiles
def test_coalesced_tiles_are_moved_by_16_bytes_and_through_panels() -> None:
    @numpipe.kernel
    def moved(x, h, y, z):
        # two panels
        a = numpipe.layout_cast(numpipe.load_tile(x.at[ds(0, 64), ds(0, 64)]), "accumulator")
        b = numpipe.layout_cast(numpipe.load_tile(h.at[ds(0, 64), ds(0, 64)]), "accumulator")  # one
        y[ds(0, 64), ds(0, 64)] = numpipe.layout_cast(a * 2.0, "coalesced")
        z[ds(0, 64), ds(0, 64)] = numpipe.layout_cast(b * 2.0, "coalesced")

    x, h = np.ones((64, 64), np.float32), np.ones((64, 64), np.float16)
    ptx = moved.inspect("ptx", x, h, x.copy(), h.copy())
    assert len(re.findall(r"ld\.global\.v4", ptx)) == ptx.count("st.global.v4.b32") == 8 + 4
    assert ptx.count("ld.shared.v4.b32") == ptx.count("st.shared.v4.b32") == 8 + 4
    assert ptx.count("bar.warp.sync") == 2 * 2 * (2 + 1) and ".local" not in ptx


@numpipe.kernel(grid=1, num_compute_wgs=1, static_dims=(-1, -2))
def clipped(x, v, y, *, layout: numpipe.Static):
    rows = numpipe.layout_cast(numpipe.load_tile(v.at[0:16, 0:59]), "rows 32")
    columns = numpipe.index(numpipe.layout_cast(rows, layout), "clip")
    y[0:16, 0:59] = x[numpipe.index(rows, "clip"), columns]


@compiles
def test_clipped_indices_are_checked_unless_every_register_of_a_lane_is_clipped() -> None:
    """Registers outside the tile have any bits of shared memory after a cast."""
    x = np.arange(10000, dtype=np.float32).reshape(100, 100)
    v = np.arange(16 * 59, dtype=np.int32).reshape(16, 59) % 130 - 10
    y, found = np.zeros((16, 59), np.float32), []
    for layout in ("rows 32", "rows 16"):
        clipped(x, v, y, layout=layout, target="sim")
        assert (y == x[v.clip(0, 99), v.clip(0, 99)]).all()
        found.append(clipped.inspect("ptx", x, v, y, layout=layout).count("setp.lt.u32"))
    assert found[1] >= found[0] + 8  # one for each element of a lane


@compiles
def test_gathered_rows_are_loaded_by_pairs_and_each_index_once() -> None:
    arrays = list(arrays_of_gathered().values())
    ptx = gathered.inspect("ptx", *arrays)
    # of the 32 elements of a lane, from an even column on
    assert ptx.count("ld.global.v2.f32") == 16
