"""What register tiles reach in global memory beside whole tiles: vectors stored, reductions, elements gathered."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from access_kernels import CASES, arrays_of_casts, arrays_of_gathered, arrays_of_sums, casts, differing, gathered, sums

import numpipe
from numpipe import PipelineRace, SimulationError, ds
from numpipe.compile.build import toolchain

compiled = pytest.mark.skipif(toolchain() is not None, reason="no compiler")


@pytest.fixture(autouse=True)
def _simulated_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "0")


@pytest.mark.parametrize("name", CASES)
def test_arrays_hold_what_numpy_makes_of_them(name: str) -> None:
    assert differing(name, "sim") == []


@pytest.mark.parametrize("seed", range(3))
def test_reductions_meet_in_any_order(seed: int) -> None:
    arrays = arrays_of_sums()
    wanted = CASES["sums"][2](arrays)
    sums.simulate(*arrays.values(), seed=seed)
    assert all((arrays[name] == wanted[name]).all() for name in arrays)


# ---- what is reported ------------------------------------------------------------------------------------------------
def meeting(other: str) -> Any:
    @numpipe.kernel(num_compute_wgs=1, grid=2)
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


@pytest.mark.parametrize("other, message", [
    ("store", r"store \(total\) writes total\[0:64\], which CTA \(0, 0, 0\) writes too"),
    ("load", r"load \(total\) .* total\[0:64\], which"),
    ("max", r"reduction 'add' \(total\) writes .* which CTA \(0, 0, 0\) writes too")])
def test_only_reductions_of_one_kind_meet(other: str, message: str) -> None:
    x, total, again = np.ones(64, np.int32), np.zeros(64, np.int32), np.zeros(128, np.int32)
    meeting("").simulate(x, total, again)
    assert (total == 2).all()
    with pytest.raises(PipelineRace, match=f"(?s){message}"):
        meeting(other).simulate(x, total, again)


def test_a_reduction_needs_something_to_start_from() -> None:
    @numpipe.kernel(num_compute_wgs=1, out_type=lambda x: numpipe.ArrayType((64,), np.float32))
    def added(x, out):
        numpipe.atomic_add(out.at[ds(0, 64)], x[ds(0, 64)])

    x, out = np.ones(64, np.float32), np.ones(64, np.float32)
    added.simulate(x, out=out)
    assert (out == 2).all()
    with pytest.raises(SimulationError, match=r"(?s)reduction 'add' \(out\) changes out\[0:64\], which nobody has written"):
        added.simulate(x)


# ---- the machine code ------------------------------------------------------------------------------------------------
@compiled
def test_tiles_are_reduced_by_tma_and_the_rest_by_the_lanes() -> None:
    arrays = list(arrays_of_sums().values())
    ptx, sass = sums.inspect("ptx", *arrays), sums.inspect("sass", *arrays)
    assert ptx.count("cp.reduce.async.bulk.tensor.2d.global.shared::cta.add") == 2 + 2  # 64 x 128 bytes each: panels, counts
    assert ptx.count("cp.reduce.async.bulk.tensor.3d.global.shared::cta.max") == 1
    assert ptx.count("red.relaxed.gpu.global.add.f32") == 32 + 16  # shifted; line: 16 elements of each of 4 lanes
    assert ptx.count("red.relaxed.gpu.global.or.b32") == 2  # a lane has two rows
    assert len(re.findall(r"RED.*\.ADD\.F32", sass)) == 48 and "LDL" not in sass
    assert "MEMBAR" not in sass.replace("MEMBAR.ALL.CTA", "")


@compiled
def test_casts_that_move_data_are_listed_and_the_others_are_free() -> None:
    arrays = list(arrays_of_casts().values())
    found = casts.inspect("resources", *arrays)
    lines = casts.function.__code__.co_firstlineno
    assert [(int(site.split(":")[1]) - lines, what, nbytes) for site, what, nbytes in found.layout_casts] == [
        (5, "float32 (64,) (column layout) to row layout", 256), (5, "float32 (64,) (row layout) to column layout", 256),
        (7, "float32 (64,) (row layout) to column layout", 256), (7, "float32 (64,) (column layout) to row layout", 256),
        (8, "float16 (64,) (column layout) to row layout", 256), (9, "bool (64,) (row layout) to column layout", 256)]
    assert "column layout, through 256 B of shared memory" in str(found)


@compiled
def test_gathered_rows_are_loaded_by_pairs_and_each_index_once() -> None:
    arrays = list(arrays_of_gathered().values())
    ptx = gathered.inspect("ptx", *arrays)
    assert ptx.count("ld.global.v2.f32") == 16  # of the 32 elements of a lane, from an even column on
