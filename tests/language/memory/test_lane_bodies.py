"""lowering_semantics=Lane: per-lane bodies, simulated with 128 lanes and compiled."""

from __future__ import annotations

import linecache
import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import numpipe
from numpipe import SMEM, BlockSpec, PipelineRace, SimulationError, SpecError, ds
from numpipe.compile.check import gate
from numpipe.language.memory.per_lane import gather, scatter
from numpipe.plan.layout import block_layout, swizzled
from numpipe.sim import lane_code_runs
from tests.kernels.lane_kernels import (
    LANE,
    alone,
    arrays_handed_out,
    by_lane,
    check_column_sums,
    check_handed_out,
    check_looked_up,
    check_mirrored,
    check_scaled,
    check_shifted,
    check_slotted,
    check_warp_sums,
    column_sums,
    cuda,
    emit,
    handed_out,
    integers,
    looked_up,
    mirrored,
    slotted,
    warp_sums,
)

DTYPES = [np.float16, ml_dtypes.bfloat16, np.float32]


def each_lane(body: Any) -> Any:
    """Return a kernel whose lanes run a function once, on a block of x."""
    step = numpipe.function(body)

    @by_lane
    def lanes(x, y):
        emit(step, grid=(1,), in_specs=(BlockSpec((64, 64), lambda k: (0, 0)),))(x)

    return lanes


# ---- values
def test_every_lane_carries_a_number_of_its_own(target: str, again: range) -> None:
    for _ in again:
        check_column_sums(column_sums, target=target)


def test_a_single_stream_pipeline_has_such_bodies_too_and_returns_what_all_lanes_agree_on() -> None:
    x, y = integers((192, 64)), np.zeros((64, 64), np.float32)
    alone(x, y, target="sim")
    np.testing.assert_array_equal(y[0], x.astype(np.float32).sum(0))


def test_lanes_read_elements_of_arrays() -> None:
    check_looked_up(target="sim")
    with pytest.raises(
        SimulationError,
        match=r"'x\[…\]': index 64 along dimension 0 is outside the array's 64; the GPU reads 0",
    ):
        looked_up.simulate(
            integers((64, 64)), np.arange(1, 65, dtype=np.int32), np.zeros((64, 64), np.float16)
        )


@pytest.mark.variants(1, thorough=1)
@pytest.mark.parametrize("dtype", [*DTYPES, np.int32])
def test_lanes_write_elements_of_arrays_and_read_what_they_have_written(
    dtype: Any, target: str, again: range
) -> None:
    for _ in again:
        check_handed_out(dtype, target=target)


def test_shuffles_move_numbers_within_a_warp(target: str, again: range) -> None:
    for _ in again:
        check_warp_sums(target=target)


@pytest.mark.variants(0, thorough=2)
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_elements_are_read_and_written_through_the_swizzle(
    dtype: Any, order: str, target: str, again: range
) -> None:
    for _ in again:
        check_mirrored(dtype, order, target=target)


@pytest.mark.variants(0, thorough=1)
@pytest.mark.parametrize("dtype", DTYPES)
def test_captured_tiles_and_functions_are_a_lanes_in_every_warpgroup(
    dtype: Any, target: str, again: range
) -> None:
    for _ in again:
        check_scaled(dtype, target=target)


@pytest.mark.variants(0, thorough=1)
@pytest.mark.parametrize("dtype", [np.int32, np.float32])
def test_tiles_that_lanes_write_are_stored_by_the_pipeline(dtype: Any) -> None:
    check_shifted(dtype, (200, 64), target="sim")


@pytest.mark.thorough
def test_slots_of_a_scratch_tile_are_a_lanes_too() -> None:
    check_slotted(target="sim")


def test_lane_0_prints_and_every_lane_asserts(capsys: pytest.CaptureFixture[str]) -> None:
    def body(indices, tile):
        numpipe.debug_print("lane {}", numpipe.lane_index())
        assert numpipe.lane_index() < 77

    with pytest.raises(
        SimulationError,
        match=r"'assert numpipe.lane_index\(\) < 77' failed in lane 77 of compute warpgroup 0",
    ):
        simulate(each_lane(body))
    assert capsys.readouterr().out == "[lanes cta (0, 0, 0) compute 0] lane 0\n"


@pytest.mark.parametrize("dtype", [np.int8, np.float16, np.float32, np.float64])
@pytest.mark.parametrize("inner", [0, 1])
@pytest.mark.parametrize("shape", [(64, 64), (8, 128), (16, 48)])
def test_the_offset_of_an_element_is_the_layouts(
    shape: tuple[int, int], inner: int, dtype: Any
) -> None:
    layout = block_layout(shape if inner else shape[::-1], inner, np.dtype(dtype), "block")
    rows, columns = layout.shape
    offsets = {layout.offset(i, j) for i in range(rows) for j in range(columns)}
    assert offsets == {layout.offset(i, j) for i in range(rows) for j in range(columns)}
    assert len({int(swizzled(np.asarray(n), layout.width)) for n in offsets}) == rows * columns


def test_a_carry_is_one_value_where_all_lanes_have_the_same() -> None:
    same, own = gather([(np.int32(3), np.float32(lane)) for lane in range(128)])
    assert same == 3 and isinstance(same, np.int32)
    assert scatter((same, own), 5) == (3, 5.0)
    with pytest.raises(SpecError, match="the lanes carry different values here"):
        own + 1


# ---- reports of the simulator


def simulate(kernel: Any, shape: tuple[int, int] = (64, 64)) -> None:
    kernel.simulate(integers(shape, np.float32), np.zeros((64, 64), np.float32))


def test_a_lane_that_does_not_come_to_a_shuffle() -> None:
    def body(indices, tile):
        if numpipe.lane_index() != 37:
            cuda.shfl_sync(0xFFFFFFFF, 1, 0)

    with pytest.raises(
        SimulationError,
        match=r"warp 1: lane 0 waits in cuda\.shfl_sync at test_lane_bodies\.py:\d+ in body\S* "
        r"for the lanes of the mask 0xffffffff, but lane 5 has left the "
        r"body: all of",
    ) as caught:
        simulate(each_lane(body))
    assert "\n    cuda.shfl_sync(0xFFFFFFFF, 1, 0)\n" in str(caught.value), (
        "the line of the lane that waits"
    )
    assert caught.value.report is not None and caught.value.report.hazard == "divergent-aligned"


def test_lanes_that_come_to_different_shuffles() -> None:
    def body(indices, tile):
        if numpipe.lane_index() % 2 == 0:
            cuda.shfl_xor_sync(0xFFFFFFFF, 1, 2)
        else:
            cuda.shfl_xor_sync(0xFFFFFFFF, 1, 2)

    with pytest.raises(
        SimulationError,
        match=r"lane 0 waits in cuda\.shfl_xor_sync .* but lane 1 is at "
        r"cuda\.shfl_xor_sync",
    ) as caught:
        simulate(each_lane(body))
    assert caught.value.report is not None and caught.value.report.hazard == "divergent-aligned"


def test_a_lane_that_is_not_in_the_mask_it_gives() -> None:
    def body(indices, tile):
        cuda.syncwarp(0xFFFF)

    with pytest.raises(
        SimulationError,
        match=r"lane 16 executes cuda\.syncwarp at .* with the mask 0xffff, which it is not "
        "in",
    ) as caught:
        simulate(each_lane(body))
    assert caught.value.report is not None and caught.value.report.hazard == "divergent-aligned"


def test_a_lane_that_waits_for_a_store_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would never end, here or (as likely) on the GPU; polling loops that do end are not
    reported."""

    @by_lane
    def spins(x, y, times):
        tile = numpipe.scratch(SMEM((64, 64), np.float32))
        tile[...] = numpipe.zeros((64, 64), np.float32)
        numpipe.commit_smem()

        def body(indices, x_tile):
            warp, seen = numpipe.lane_index() // 32, 0
            if warp == 0:
                while tile[0, 0] == 0.0 and seen != times:
                    seen += 1
            elif numpipe.lane_index() == 32:
                tile[0, 1] = 1.0

        emit(body, grid=(1,), in_specs=(BlockSpec((64, 64), lambda k: (0, 0)),))(x)

    monkeypatch.setattr(lane_code_runs, "SPINS", 300)
    x, y = integers((64, 64), np.float32), np.zeros((64, 64), np.float32)
    for seed in (None, *range(3)):
        spins.simulate(x, y, 100, seed=seed)
        with pytest.raises(
            SimulationError,
            match=r"lane 0 of warp 0 has loaded tile\[i, j\] at SMEM\[\d+\] 300 times, and done "
            r"nothing else: it waits for a store that nothing orders",
        ) as caught:
            spins.simulate(x, y, -1, seed=seed)
        assert caught.value.report is not None and caught.value.report.hazard == "deadlock"


def test_parts_of_a_warp_may_meet_for_themselves() -> None:
    @by_lane
    def halves(x, y):
        out = numpipe.scratch(SMEM((64, 64), np.float32))
        out[...] = numpipe.zeros((64, 64), np.float32)
        numpipe.commit_smem()

        def body(indices, tile):
            lane = cuda.laneid
            if lane < 16:
                out[numpipe.lane_index() // 32, lane] = cuda.shfl_sync(
                    0xFFFF, lane * 1.0, 15 - lane
                )
            else:
                cuda.syncwarp(0xFFFF0000)

        emit(body, grid=(1,), in_specs=(BlockSpec((64, 64), lambda k: (0, 0)),))(x)
        y[ds(0, 64), ds(0, 64)] = out[...]

    y = np.zeros((64, 64), np.float32)
    halves.simulate(integers((64, 64), np.float32), y)
    np.testing.assert_array_equal(y[:4, :16], np.broadcast_to(np.arange(15, -1, -1), (4, 16)))


def test_shuffles_count_lanes_and_distances_modulo_32() -> None:
    """PTX ISA, "shfl.sync": only the low five bits of a lane or distance count."""

    @by_lane
    def far(x, y):
        out = numpipe.scratch(SMEM((64, 64), np.float32))
        out[...] = numpipe.zeros((64, 64), np.float32)
        numpipe.commit_smem()

        def body(indices, tile):
            warp, lane = numpipe.lane_index() // 32, cuda.laneid
            out[warp, lane] = cuda.shfl_up_sync(0xFFFFFFFF, lane, 33)
            out[4 + warp, lane] = cuda.shfl_down_sync(0xFFFFFFFF, lane, -31)
            out[8 + warp, lane] = cuda.shfl_xor_sync(0xFFFFFFFF, lane, 34)
            out[12 + warp, lane] = cuda.shfl_sync(0xFFFFFFFF, lane, -1)

        emit(body, grid=(1,), in_specs=(BlockSpec((64, 64), lambda k: (0, 0)),))(x)
        y[ds(0, 64), ds(0, 64)] = out[...]

    y, lane = np.zeros((64, 64), np.float32), np.arange(32)
    far.simulate(integers((64, 64), np.float32), y)
    for row, expected in enumerate(
        (np.maximum(lane - 1, 0), np.minimum(lane + 1, 31), lane ^ 2, np.full(32, 31))
    ):
        np.testing.assert_array_equal(
            y[4 * row : 4 * row + 4, :32], np.broadcast_to(expected, (4, 32))
        )


def test_lanes_of_a_warp_that_read_what_others_stored_without_a_syncwarp() -> None:
    @by_lane
    def unordered(x, y):
        tile = numpipe.scratch(SMEM((64, 64), np.float32))

        def body(indices, x_tile, total):
            row, lane = numpipe.lane_index() // 32, cuda.laneid
            tile[row, lane] = x_tile[row, lane]
            cuda.shfl_sync(0xFFFFFFFF, 0, 0)  # does not order memory
            return total + tile[row, 31 - lane]

        def compute(pipeline):
            pipeline(0.0)

        emit(
            body,
            grid=(1,),
            compute_context=compute,
            in_specs=(BlockSpec((64, 64), lambda k: (0, 0)),),
        )(x)

    with pytest.raises(
        PipelineRace,
        match=r"warp 0: tile\[i, j\] by lane 0 touches SMEM\[\d+:\d+\) that lane 31 has stored, "
        r"and nothing orders them: put cuda\.syncwarp\(\) between",
    ):
        simulate(unordered)


def test_warps_that_read_stores_of_other_warps_without_a_barrier() -> None:
    @by_lane
    def crossing(x, y):
        tile = numpipe.scratch(SMEM((64, 64), np.float32))

        def body(indices, x_tile, total):
            lane = numpipe.lane_index()
            tile[lane % 64, lane // 64] = x_tile[lane % 64, lane // 64]
            cuda.syncwarp()
            return total + tile[63 - lane % 64, lane // 64]

        def compute(pipeline):
            pipeline(0.0)

        emit(
            body,
            grid=(1,),
            compute_context=compute,
            in_specs=(BlockSpec((64, 64), lambda k: (0, 0)),),
        )(x)

    with pytest.raises(PipelineRace, match=r"read \(tile\[i, j\]\)"):
        simulate(crossing)


def test_an_element_outside_its_tile() -> None:
    @by_lane
    def outside(x, y):
        def body(indices, tile, total):
            return total + tile[numpipe.lane_index(), 0]

        def compute(pipeline):
            pipeline(0.0)

        emit(
            body,
            grid=(1,),
            compute_context=compute,
            in_specs=(BlockSpec((64, 64), lambda k: (0, 0)),),
        )(x)

    with pytest.raises(SimulationError, match=r"tile\[64, 0\] is outside the tile \(64, 64\)"):
        simulate(outside)


def test_a_value_that_differs_by_lane_steers_no_code_of_the_warpgroup() -> None:
    @by_lane
    def steered(x, y):
        def body(indices, tile, total):
            return total + tile[0, numpipe.lane_index() % 64]

        def compute(pipeline):
            total = pipeline(0.0)
            if total > 1.0:
                y[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32)

        emit(
            body,
            grid=(1,),
            compute_context=compute,
            in_specs=(BlockSpec((64, 64), lambda k: (0, 0)),),
        )(x)

    with pytest.raises(SpecError, match="the lanes carry different values here"):
        simulate(steered)


def storing(statements: str) -> Any:
    """Return a kernel whose lanes run this on y (3, 128) and z (5,) in two steps, `k`."""
    source = f"""def kernel(x, y, z):
    def body(indices, tile):
        k, = indices
        lane = numpipe.lane_index()
        {statements}

    emit(body, grid=(2,), in_specs=(BlockSpec((8, 64), lambda k: (0, 0)),))(x)
    y[2, ds(0, 128)] = numpipe.zeros((128,), np.float32)
    z[4] = 1
"""
    name = f"<{statements}>"
    linecache.cache[name] = len(source), None, source.splitlines(keepends=True), name
    given = {**globals(), "emit": emit}
    exec(compile(source, name, "exec"), given)
    return by_lane(given["kernel"])


def stored(statements: str) -> tuple[np.ndarray, np.ndarray]:
    y, z = np.zeros((3, 128), np.float32), np.zeros(5, np.int32)
    storing(statements).simulate(integers((8, 64), np.float32), y, z)
    return y, z


RACES = {
    "y[0, lane // 2] = 1.0": (
        r"warp 0: store to y by lane 1 touches element \[0, 0\] that lane 0 has stored, and "
        r"nothing orders them: put cuda\.syncwarp\(\) between"
    ),
    "y[0, lane % 64] = 1.0": (
        r"warp 2: store to y by lane 0 touches element \[0, 0\] that lane 0 of warp 0 has stored, "
        "and nothing orders them: give each lane its own element"
    ),
    "y[0, (lane + 32 * k) % 128] = 1.0": "warp 0: .* lane 0 of warp 1 has stored",
    "y[0, lane] = y[0, (lane + 1) % 128]": "store to y by lane 1 .* that lane 0 has loaded",
    "y[0, 127 - lane] = 1.0; x = y[0, lane]": (
        "store to y by lane 0 .* that lane 31 of warp 1 has loaded"
    ),
    "if lane < 64: y[0, lane] = 1.0\n        x = y[0, lane % 64]": (
        "load from y by lane 0 .* lane 0 of warp 0 has stored"
    ),
    "y[0, lane] = 1.0; numpipe.atomic_add(y.at[0, 127 - lane], 1.0)": (
        r"that lane \d+ of warp \d has updated"
    ),
}
OTHERS = {
    "y[lane, 0] = 1.0": (
        "index 3 along dimension 0 is outside the array's 3; the GPU writes nothing there"
    ),
    "z[lane % 4] = 1.5": r"'z' is int32, but the value is float; fix: convert it, int\(x\)",
    "y[0, ds(0, 64)] = numpipe.full(64, 1.0, np.float32)": (
        "is an operation of the whole warpgroup, but this body runs in each"
    ),
}
WRONG = {
    **{text: (PipelineRace, says) for text, says in RACES.items()},
    **{text: ((SimulationError, SpecError), says) for text, says in OTHERS.items()},
}


@pytest.mark.parametrize("statements", WRONG)
def test_stores_of_lanes_that_are_in_no_order_or_outside_are_reported(statements: str) -> None:
    error, words = WRONG[statements]
    with pytest.raises(error, match=words):
        stored(statements)


def test_lanes_may_come_back_to_an_element_and_to_another_ones_where_something_orders_them() -> (
    None
):
    y, z = stored(
        "y[k, lane] = 1.0; cuda.syncwarp(); y[k, lane ^ 1] = y[k, lane ^ 1] + 1.0; "
        "numpipe.atomic_add(z.at[lane % 4], 2)"
    )
    assert (y[:2] == 2).all() and z.tolist() == [128, 128, 128, 128, 1]


# ---- compiled
HALF, SINGLE = integers((192, 64)), integers((128, 64), np.float32)


@pytest.mark.variants(0, thorough=3)
@pytest.mark.parametrize(
    ("kernel", "x", "y"),
    [
        (column_sums, HALF, SINGLE),
        (alone, HALF, SINGLE),
        (slotted, HALF, HALF),
        (mirrored, HALF, HALF),
        (warp_sums, SINGLE, SINGLE),
    ],
    ids=["column_sums", "alone", "slotted", "mirrored", "warp_sums"],
)
def test_every_kernel_of_this_file_compiles_without_spills(
    kernel: Any, x: np.ndarray, y: np.ndarray
) -> None:
    assert kernel.compiled(x, y).image.resources.clean


def made_of(text: str, register: str) -> set[str]:
    """Return the lines of PTX that compute a register and its inputs."""
    lines, wanted = set(), {register}
    while wanted:
        name = wanted.pop()
        for line in re.findall(rf"^\s*[\w.]+\s+{re.escape(name)},.*$", text, re.MULTILINE):
            if line not in lines:
                lines.add(line)
                wanted |= set(re.findall(r"%\w+", line)) - {name}
    return lines


def test_each_lane_stores_for_itself_and_of_the_warpgroups_numbers_its_lane_0_does() -> None:
    @by_lane
    def both(x, y):
        def body(indices, tile):
            y[0, 5] = x[numpipe.lane_index(), 5]
            y.flat[5] = 3.0

        emit(body, grid=(1,), in_specs=(BlockSpec((64, 64), lambda k: (0, 0)),))(x)
        y[1, 5] = 4.0

    text = ptx(both, integers((64, 64), np.float32))
    chosen = re.findall(r"setp\.ne\.u32 own, (%r\d+), 0; @own st\.global\.f32", text)
    by_index = [
        any(line.endswith(", 127;") for line in made_of(text, register)) for register in chosen
    ]
    assert sorted(by_index) == [False, False, True]
    # a lane does not wait for an element in order to ignore it, and loads nothing outside the array
    assert "@own ld.global.b32" in text and "selp.f32" not in text


@by_lane
def words_moved(x, y, z, *, first, last):
    def body(indices, tile):
        lane = numpipe.lane_index()
        z.flat[lane] = x.words[numpipe.index(lane, "zero")]
        if first <= lane < last:
            y.words[lane] = x.words[lane]

    emit(body, grid=(1,), in_specs=(BlockSpec((8, 16), lambda k: (0, 0)),))(z)


@pytest.mark.parametrize("start", [0, 1])
@pytest.mark.parametrize("size", [14, 13])
def test_a_word_is_two_elements_of_16_bits_at_a_multiple_of_4_bytes(start: int, size: int) -> None:
    memory, copied = np.arange(1, 257).astype(np.uint16), np.zeros(256, np.uint16)
    inside = slice(start, start + size)
    x, y, z = memory[inside], copied[inside], np.zeros((8, 16), np.int32)
    first, last = (start + 1) // 2, (start + size) // 2
    words_moved.simulate(x, y, z, first=first, last=last)
    loaded, stored = slice(start // 2 * 2, (start + size + 1) // 2 * 2), slice(2 * first, 2 * last)
    for found, words in ((z.view(np.uint16).ravel(), loaded), (copied, stored)):
        expected = np.zeros_like(memory)
        expected[words] = memory[words]
        assert (found == expected).all()
    for outside in {0, (start + size - 1) // 2} - set(range(first, last)):
        with pytest.raises(SimulationError, match="half of the word is outside the array"):
            words_moved.simulate(x, y, z, first=outside, last=outside + 1)
    text = words_moved.inspect("ptx", x, y, z, first=first, last=last)
    assert "ld.global.b16" not in text and "st.global.b16" not in text


@by_lane
def words_by_number(x, z, *, ahead):
    def body(indices, tile):
        lane = numpipe.lane_index()
        if lane < x.words.shape[0]:
            z.flat[lane] = x.words[lane + ahead]

    emit(body, grid=(1,), in_specs=(BlockSpec((8, 16), lambda k: (0, 0)),))(z)


@by_lane
def words_and_halves(x):
    def body(indices, tile):
        lane = numpipe.lane_index()
        if lane == 0:
            x.words[0] = 1
        if lane == 64:
            x.flat[1] = 2

    emit(body, grid=(1,), in_specs=(BlockSpec((8, 16), lambda k: (0, 0)),))(x)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.uint16, np.int32])
def test_words_are_int32_of_every_type_and_are_checked_like_elements(dtype: Any) -> None:
    x, z = np.arange(1, 9).astype(dtype), np.zeros((8, 16), np.int32)
    words_by_number.simulate(x, z, ahead=0)
    words = x.view(np.int32)
    assert (z[0, : words.size] == words).all() and not z[0, words.size :].any()
    with pytest.raises(SimulationError, match=f"index {words.size} along dimension 0 is outside"):
        words_by_number.simulate(x, z, ahead=1)


def test_a_word_and_an_element_in_it_are_one_place_for_the_race_detector() -> None:
    with pytest.raises(PipelineRace, match="nothing orders them"):
        words_and_halves.simulate(np.zeros((8, 16), np.uint16))


@pytest.mark.thorough
def test_stores_of_lanes_pass_the_gate() -> None:
    built = handed_out.compiled(*arrays_handed_out().values())
    assert gate.findings(built) == ()
    assert {
        "st.global.f32",
        "red.relaxed.gpu.global.add.s32",
        "red.relaxed.gpu.global.max.s32",
    } <= set(built.ptx.split())


def ptx(kernel: Any, x: Any) -> str:
    text: str = kernel.inspect(
        "ptx", x, np.zeros((64, 64), x.dtype if kernel is mirrored else np.float32)
    )
    return text


def test_shuffles_are_instructions() -> None:
    text = ptx(warp_sums, integers((8, 64), np.float32))
    counts = {
        mode: len(re.findall(rf"shfl\.sync\.{mode}\.b32", text))
        for mode in ("bfly", "down", "idx", "up")
    }
    # one is for the warpgroup's number, at the entry
    assert counts == {"bfly": 5, "down": 5, "idx": 1 + 1, "up": 1}


@pytest.mark.variants(1)
@pytest.mark.parametrize("dtype, access", [(np.float16, "b16"), (np.float32, "b32")])
def test_elements_are_plain_loads_and_stores(dtype: Any, access: str) -> None:
    text = ptx(mirrored, integers((64, 64), dtype))
    assert f"ld.shared.{access}" in text and f"st.shared.{access}" in text


def test_the_lanes_of_a_warp_meet_before_one_of_them_releases_a_slot() -> None:
    text = ptx(column_sums, integers((192, 64)))
    last = [m.start() for m in re.finditer(r"ld\.shared\.b16", text)][-1]
    assert re.search(r"bar\.warp\.sync.*?mbarrier\.arrive", text[last:], re.DOTALL)


@pytest.mark.thorough
def test_the_option_changes_nothing_in_a_kernel_without_bodies() -> None:
    def copy(x, y):
        for (_,), (tile,) in numpipe.pipeline(
            grid=(1,), in_specs=(BlockSpec((64, 64), lambda k: (0, 0)),)
        )(x):
            y[ds(0, 64), ds(0, 64)] = tile[...]

    args = integers((64, 64)), integers((64, 64))
    texts = {
        re.sub(
            r"_ZN\w+",
            "f",
            numpipe.kernel(copy, compiler_params=params).inspect("ptx", *args),
        )
        for params in (None, LANE)
    }
    assert len(texts) == 1
