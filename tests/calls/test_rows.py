"""`numpipe.rows`: one source for rows of any length, and the schedules that are chosen for it."""

from __future__ import annotations

import dataclasses
import pickle
import re
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import numpipe
from numpipe import SpecError
from numpipe.kernels.row_kernels import Rows
from numpipe.kernels.row_schedules import Needs
from numpipe.launch.array_info import ArrayInfo, dense_strides
from numpipe.ops.norms import forward
from tests.kernels.compilers import compiles
from tests.kernels.rows_of_kernels import (
    KERNELS,
    in_steps,
    layer_norm,
    operands,
    schedule_for,
    softmax,
    wrong,
)

LENGTHS = {
    "one element": (5, 1),
    "an odd short row": (9, 7),
    "rows that lanes share": (40, 33),
    "an odd row": (9, 1001),
    "a warpgroup": (2, 2500),
    "an odd row of a warpgroup": (2, 3001),
    "two warpgroups": (1, 9000),
    "few rows of CTAs that share them": (2, 30000),
}
"""(rows, columns) for each kind of schedule"""


@pytest.mark.variants(10)
@pytest.mark.parametrize("shape", LENGTHS.values(), ids=list(LENGTHS))
@pytest.mark.parametrize("name", KERNELS)
def test_every_schedule_agrees_with_numpy(
    name: str, shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "0")
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    assert wrong(name, x, "sim") == []
    assert wrong(name, x.astype(ml_dtypes.bfloat16), "sim") == []


def anywhere(n: int, wgs: int = 1, dtype: Any = np.float32) -> Rows:
    """Return a schedule for rows of n columns that begin anywhere, in registers of `wgs`
    warpgroups."""
    width = -(-(n + 63) // (512 * wgs)) * 512
    whole = (n - (wgs - 1) * width) // 512 * 512
    return Rows(n, 1, width, wgs, whole, dtype=np.dtype(dtype), flat=True)


STEPS = {
    "a row ends in a step": in_steps(2500, 3),
    "a row does not fit": in_steps(4500, 2),
    "CTAs share a row that is in no slot": in_steps(3100, 0, cluster=2),
    "rows begin anywhere": in_steps(2501, 3, ml_dtypes.bfloat16, flat=True),
    "CTAs share a row": in_steps(4500, 3, cluster=2),
    "a row of one step begins anywhere": in_steps(1021, 1, flat=True),
    "a row that begins anywhere does not fit": in_steps(4501, 2, flat=True, cluster=2),
    "warpgroups have parts of a row that begins anywhere": anywhere(2501, 2, ml_dtypes.bfloat16),
    "a warpgroup has a row that begins anywhere": anywhere(1021),
}
"""schedules of longer rows, and of those that begin anywhere"""


@pytest.mark.variants(3)
@pytest.mark.parametrize("row", STEPS.values(), ids=list(STEPS))
@pytest.mark.parametrize("name", KERNELS)
def test_longer_rows_in_steps(name: str, row: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "0")
    # with a mean of 30, an element that is counted twice or not at all is seen in bfloat16, too
    mean = 30.0 if row.dtype == ml_dtypes.bfloat16 else 0.0
    x = (np.random.default_rng(0).standard_normal((5, row.n)) + mean).astype(row.dtype)
    assert wrong(name, x, "sim", row) == []


@pytest.mark.variants(3, thorough=6)
@pytest.mark.parametrize(
    "row",
    [
        *(33, 3001, 9000, *(STEPS[of] for of in list(STEPS)[2:6:3])),
        *(in_steps(2501, 3, flat=True), anywhere(1801, 2)),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", KERNELS)
def test_no_schedule_of_warps_shows_a_hazard(name: str, row: int | Rows) -> None:
    columns = row if isinstance(row, int) else row.n
    x = np.random.default_rng(0).standard_normal((3, columns)).astype(np.float32)
    results = {"lse": np.zeros(3, np.float32)} if name == "softmax" else {}
    results["y"] = np.zeros(3, np.int32) if name == "argmax" else np.zeros_like(x)
    more, kernel = operands(name, x), KERNELS[name]
    one = kernel.kernel(x, *more) if isinstance(row, int) else kernel.scheduled(row)
    found = numpipe.verify(one, x, *more, schedules=5, **results)
    assert found.ok, str(found)


@pytest.mark.variants(3)
@pytest.mark.parametrize("name", KERNELS)
def test_parts_may_end_anywhere(name: str) -> None:
    x = np.random.default_rng(1).standard_normal((2, 1801)).astype(np.float32)
    assert wrong(name, x, "sim", Rows(1801, 1, 1024, 2, 512)) == []


def test_a_row_of_equal_or_infinite_elements() -> None:
    x = np.full((3, 2500), -np.inf, np.float32)
    x[0, 2400:], x[1] = 0.0, 3e38
    for kernel in (softmax.kernel(x), softmax.scheduled(in_steps(2500, 3))):
        check_extremes(*kernel(x, target="sim"))


def test_rows_whose_variance_overflows_become_zeros() -> None:
    x = np.random.default_rng(0).standard_normal((2, 2500)).astype(np.float32) * 1e30
    arrays = x, np.ones(2500, np.float32), np.zeros(2500, np.float32)
    for kernel in (layer_norm.kernel(*arrays), layer_norm.scheduled(in_steps(2500, 3))):
        assert (kernel(*arrays, target="sim") == 0).all()


@pytest.mark.parametrize("row", [Rows(2500, 1, 2560, 1, 2048), in_steps(2500, 3)], ids=str)
def test_the_first_nan_is_the_maximum_whatever_its_sign(row: Rows) -> None:
    x = np.zeros((4, 2500), np.float32)
    for line, (positive, negative) in zip(x, [(3, 900), (900, 3), (3, 515), (515, 3)], strict=True):
        line[positive], line[negative] = np.nan, -np.nan
    assert KERNELS["argmax"].scheduled(row)(x, target="sim").tolist() == [4, 4, 4, 4]


def check_extremes(y: np.ndarray, lse: np.ndarray) -> None:
    np.testing.assert_allclose(y[0, 2400:], 0.01, rtol=1e-5)
    assert (y[0, :2400] == 0).all()
    np.testing.assert_allclose(y[1], 1 / 2500, rtol=1e-5)
    assert lse[1] == np.float32(3e38)


def on_gpu(
    *shape: int, dtype: Any = ml_dtypes.bfloat16, address: int = 4096, stride: int = 0
) -> ArrayInfo:
    """Describe an array on a GPU, whose rows are `stride` bytes apart if they have gaps."""
    strides = dense_strides(shape, np.dtype(dtype).itemsize)
    strides = (stride, *strides[1:]) if stride else strides
    return ArrayInfo("cuda", address, shape, strides, np.dtype(dtype), 0, True, None)


@compiles
@pytest.mark.variants(1, thorough=5)
@pytest.mark.parametrize(
    ("rows", "columns"), [*((4096, n) for n in (64, 4096, 16384, 65536, 50257)), (40, 65536)]
)
@pytest.mark.parametrize("name", KERNELS)
def test_the_code_has_no_bounds_checks_and_no_spills(name: str, rows: int, columns: int) -> None:
    x = on_gpu(rows, columns)
    more = [on_gpu(*of.shape, dtype=of.dtype) for of in operands(name, np.zeros((rows, columns)))]
    sums, columns_of_maxima = (on_gpu(rows, dtype=dtype) for dtype in (np.float32, np.int32))
    results = {"softmax": [x, sums], "argmax": [columns_of_maxima]}.get(name, [x])
    kernel = KERNELS[name].kernel(x, *more, *results)
    assert kernel.inspect("gate", x, *more, *results) == ()
    assert kernel.inspect("resources", x, *more, *results).spill_bytes == 0
    if columns <= 16384:
        assert "ld.global.u16" not in kernel.inspect("ptx", x, *more, *results)


def test_schedules_are_chosen_by_length_and_by_matrices_that_are_loaded() -> None:
    bf16 = np.dtype(ml_dtypes.bfloat16)
    assert schedule_for(1024).height == 8
    assert schedule_for(1024, Needs(2)).ctas == 3
    of_many = partial(schedule_for, needs=Needs(once=True), count=1 << 20)
    assert [of_many(n).height for n in (192, 384, 385)] == [32, 16, 8]
    assert schedule_for(128, Needs(once=True), count=17544).height == 16  # more CTAs of few rows
    assert (schedule_for(8192, Needs(2)).wgs, schedule_for(8194, Needs(2)).steps) == (2, 3)
    assert schedule_for(16384, Needs(2), aligned=False).wgs == 4
    long = [schedule_for(65536, Needs(n), bf16) for n in (1, 2)]
    assert [(row.cluster, row.slots) for row in long] == [(4, 4), (4, 2)]
    # many rows have larger parts
    many = schedule_for(65536, dtype=bf16, count=8192)
    assert (many.cluster, many.wgs, many.ctas) == (2, 4, 2)
    longest = schedule_for(1 << 20, dtype=bf16)
    assert (longest.cluster, longest.slots, longest.steps, longest.ctas) == (8, 6, 8, 1)


def test_rows_with_much_work_for_each_have_more_columns_of_a_lane() -> None:
    half, of_loss = np.dtype(np.float16), partial(Needs, once=True, by_row=True)
    losses = [schedule_for(n, of_loss(), half, n % 2 == 0, True, 20000) for n in (4096, 4095, 4098)]
    assert [(row.height, row.flat) for row in losses] == [(8, False), (8, False), (1, False)]
    assert schedule_for(4096, Needs(once=True), half, count=20000).height == 1
    gradients = [
        schedule_for(192, Needs(held=1, by_row=own), count=1 << 20) for own in (True, False)
    ]
    assert [row.height for row in gradients] == [32, 16]
    # few rows have a warpgroup each; few short ones are in more CTAs
    assert [schedule_for(3200, of_loss(), half, count=n).height for n in (2475, 4300)] == [1, 8]
    assert [schedule_for(64, of_loss(), half, count=n).height for n in (80353, 501307)] == [32, 96]
    # blocks of the same rows are larger, and there are fewer at once
    blocks = [
        schedule_for(28, Needs(held=1, by_row=own), half, False, True) for own in (True, False)
    ]
    assert [(row.height, row.ctas) for row in blocks] == [(128, 4), (64, 8)]


@pytest.mark.parametrize("columns", [97, 203, 1201, 20001])
def test_contiguous_odd_rows_may_have_elements_of_one_byte(columns: int) -> None:
    @numpipe.rows
    def doubled(x, y, *, row: numpipe.Static):
        for k in row.blocks(x):
            value, block = row.load(k, x)
            row.store(block, y, lambda j: (value(j) * 2.0).astype(y.dtype))

    x = np.random.default_rng(0).integers(-9, 9, (21, columns)).astype(np.int8)
    row, y = schedule_for(columns, Needs(), x.dtype, False, True, 21), np.zeros_like(x)
    doubled.scheduled(row)(x, y, target="sim")
    assert (y == 2 * x).all()


@pytest.mark.parametrize(
    ("columns", "lanes"), [(31, "rows 4 4"), (33, "rows 4 10"), (47, "rows 4")]
)
def test_lanes_have_columns_that_leave_contiguous_rows_in_different_banks(
    columns: int, lanes: str
) -> None:
    @numpipe.rows(held=1)
    def softmax(x, y, *, row: numpipe.Static):
        for k in row.blocks(x):
            value, block = row.load(k, x)
            p, _ = row.softmax(value)
            row.store(block, y, lambda j: p(j))

    row = schedule_for(columns, Needs(held=1), np.dtype(np.float16), False, True, 400000)
    assert row.loops and row.lanes == lanes
    x = np.random.default_rng(0).standard_normal((row.height + 8, columns)).astype(np.float16)
    y, exact = np.zeros_like(x), np.exp(x.astype(np.float64))
    softmax.scheduled(row)(x, y, target="sim")
    np.testing.assert_allclose(y, exact / exact.sum(1, keepdims=True), rtol=2e-3)


def test_ctas_that_reduce_short_rows_have_enough_bytes() -> None:
    half, reduces = np.dtype(np.float16), Needs(once=True)
    # an H200 starts 800 CTAs in a microsecond
    many = [schedule_for(n, reduces, half, count=1 << 20) for n in (16, 32)]
    assert [(row.height, row.lanes) for row in many] == [(256, "rows 2 8"), (128, "rows 4 8")]
    assert schedule_for(16, reduces, half, count=20000).height == 32
    # no lane has columns of padding
    work = Needs(held=1, by_row=True)
    assert [schedule_for(n, work, half, count=100000).width for n in (50, 64)] == [50, 64]


def test_small_ctas_have_the_groups_of_long_rows_that_begin_anywhere() -> None:
    def parts(count: int, columns: int, dtype: type, *needs: Any) -> list[int]:
        needs = needs or (1, 0, True, 128)
        row = schedule_for(columns, Needs(*needs), np.dtype(dtype), False, True, count)
        return [row.steps, row.cluster, row.wgs, row.ctas]

    assert parts(28918, 3615, np.float16) == [2, 1, 1, 12]
    assert parts(276, 26887, np.float16) == [2, 4, 2, 6]
    assert parts(97, 29426, np.float32) == [1, 8, 2, 6]
    assert parts(276, 26887, np.float16, 2, 0, True, 128)[3] == 3
    # lanes load pairs, or elements of 4 bytes, quickly
    for row in (parts(990, 6884, np.float16), parts(1500, 5001, np.float32)):
        assert row[:3] == [0, 1, 1]
    # a norm has several passes
    assert parts(276, 26887, np.float16, 1, 0, False, 128)[:3] == [0, 1, 4]


def test_as_many_ctas_as_run_at_once_have_registers() -> None:
    half, needs = np.dtype(np.float16), Needs(once=True)
    assert [schedule_for(8435, needs, half, True, False, n).ctas for n in (528, 644, 661)] == [
        4,
        5,
        4,
    ]
    # fewer CTAs have more registers each
    sums = Needs(once=True, by_row=True)
    assert [schedule_for(642, sums, half, count=n).ctas for n in (3000, 7558, 50000)] == [4, 8, 11]
    for n, ctas in ((8192, [4, 4, 6]), (16384, [2, 2, 3])):
        norms = [
            schedule_for(n, Needs(), half, count=count, vectors=2) for count in (16, 264, 5000)
        ]
        assert [row.ctas for row in norms] == ctas
    # one more would spill
    assert [schedule_for(n, Needs(), half, count=4550, vectors=2).ctas for n in (960, 1200)] == [
        5,
        4,
    ]
    # odd rows that run at once in shared memory only are there
    odd = [schedule_for(13361, needs, half, False, True, n) for n in (528, 735, 1057)]
    assert [(row.steps, row.wgs, row.ctas) for row in odd] == [(0, 2, 4), (4, 1, 6), (0, 2, 4)]


def test_odd_rows_of_up_to_9664_columns_of_16_bits_stay_in_registers() -> None:
    def whole(n: int, needs: Needs, dtype: type = np.float16, count: int = 998) -> bool:
        return not schedule_for(n, needs, np.dtype(dtype), False, True, count).steps

    for needs in (Needs(), Needs(held=1)):
        assert [whole(n, needs) for n in (5655, 8191, 9663, 9665)] == [True, True, True, False]
        # several CTAs share a longer one if rows are few
        assert [whole(n, needs, count=300) for n in (8191, 8193)] == [True, False]
        assert [whole(n, needs, np.float32) for n in (8191, 8193)] == [True, False]
    # two matrices, or numbers of dropout, leave no registers for more
    for needs in (Needs(2), Needs(held=2)):
        assert [whole(n, needs) for n in (8191, 8193)] == [True, False]
    assert schedule_for(20800, Needs(held=1), count=550).wgs == 2


def test_ctas_share_rows_so_that_the_busiest_sm_has_the_least_to_do() -> None:
    bf16, short = np.dtype(ml_dtypes.bfloat16), Needs(once=True)
    counts = (1, 16, 30, 39, 60, 132, 190, 264, 1000)
    # a short pass has a CTA for each SM, of four warpgroups, if all rows fit in shared memory
    shared = [schedule_for(100000, short, bf16, count=count) for count in counts]
    assert [row.cluster for row in shared] == [6, 6, 4, 3, 2, 1, 2, 2, 1]
    assert [row.wgs for row in shared] == [4] * 6 + [2] * 3
    assert [row.ctas for row in shared[:6]] == [1] * 6
    # CTAs of exponentials have half as many warps, which exchange numbers
    exponentials = Needs(once=True, by_row=True)
    for n, count, ctas in ((83008, 76, (3, 2, 2)), (31616, 141, (3, 1, 4)), (66560, 90, (4, 1, 3))):
        row = schedule_for(n, exponentials, bf16, count=count)
        assert (row.cluster, row.wgs, row.ctas) == ctas
        assert (row.width, schedule_for(n, short, bf16, count=count).wgs) == (2048, 2 * row.wgs)
    # the busiest SM would have three rows, and others two
    assert [schedule_for(44160, short, count=count).cluster for count in (277, 396)] == [2, 1]
    # others have smaller parts
    for needs, vectors, clusters in (
        (Needs(), 0, [6, 4, 4]),
        (Needs(), 1, [6, 4, 4]),
        (Needs(held=1), 0, [6, 4, 4]),
        (Needs(once=True, unit=128), 0, [6, 4, 2]),
    ):
        shared = [
            schedule_for(125568, needs, bf16, count=count, vectors=vectors)
            for count in counts[:5:2]
        ]
        assert [row.cluster for row in shared] == clusters, needs
    # with a CTA for each of 190 rows, some SMs would have two rows and others one
    for needs, clusters in ((Needs(held=1), [3, 2, 2]), (short, [2, 1, 2])):
        shared = [schedule_for(20000, needs, bf16, count=count) for count in (1, 132, 190)]
        assert [row.cluster for row in shared] == clusters, needs
    # an SM has four CTAs of small parts of two matrices, or one if rows are few
    parts = [schedule_for(20736, Needs(2, held=1), bf16, count=count) for count in (60, 899)]
    assert [(row.cluster, row.wgs, row.ctas) for row in parts] == [(2, 4, 1), (2, 2, 4)]
    many = [schedule_for(125568, Needs(once=once), bf16, count=1000) for once in (False, True)]
    assert [(row.cluster, row.slots > 0) for row in many] == [(4, True), (1, False)]


@pytest.mark.parametrize("columns", [32768, 57344, 131072])
def test_a_cta_of_an_sm_computes_many_rows_of_two_vectors_or_of_groups(columns: int) -> None:
    half, groups, one = np.dtype(np.float16), Needs(unit=128), Needs()
    for needs, vectors, slots in ((one, 2, 1), (groups, 0, 2), (groups, 1, 2), (groups, 2, 1)):
        few, many = (
            schedule_for(columns, needs, half, count=n, vectors=vectors) for n in (250, 5000)
        )
        assert many.loops and not few.loops
        assert (many.steps, many.slots, many.wgs) == (0, slots, 4)
    for needs, vectors in ((one, 1), (Needs(2), 2), (Needs(once=True, unit=128), 2)):
        assert not schedule_for(columns, needs, half, count=5000, vectors=vectors).loops
    # rows that begin anywhere, vectors that would not fit, columns that would need masks
    assert not schedule_for(columns, one, half, False, True, 5000, 2).loops
    assert not schedule_for(columns, one, half, count=5000, vectors=2, wide=True).loops
    assert not schedule_for(columns - 1024, one, half, count=5000, vectors=2).loops


def many_rows(n: int, wgs: int, dtype: Any, slots: int, cluster: int) -> Rows:
    """Return the schedule for rows in registers whose successors are in shared memory."""
    across, of = cluster * wgs, (0, slots, np.dtype(dtype))
    whole = max(0, n - (across - 1) * 1024) // 1024 * 1024
    return Rows(n, 1, 1024, wgs, whole, 1, *of, loops=True, cluster=cluster)


@pytest.mark.variants(4)
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("slots", [1, 2])
@pytest.mark.parametrize(("columns", "cluster"), [(2048, 1), (4096, 2), (3992, 2)])
@pytest.mark.parametrize("name", ["layer_norm", "softmax", "scaled", "argmax"])
def test_a_cta_loads_next_rows_while_it_computes_one(
    name: str, columns: int, cluster: int, slots: int, dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "0")
    row = many_rows(columns, 2, dtype, slots, cluster)
    x = np.random.default_rng(0).standard_normal((7, columns)).astype(dtype)
    for count in (1, 2, 7):  # rows of two programs
        assert wrong(name, x[:count], "sim", row) == []


@pytest.mark.parametrize("slots", [1, 2])
def test_many_rows_of_groups_are_quantized_in_all_schedules(slots: int) -> None:
    """Two programs have rows, three of one and two of the other."""
    x, weight = np.random.default_rng(0).standard_normal((2, 5, 4096)).astype(np.float32)
    weight, scales, made = weight[0], np.zeros((5, 32), np.float32), np.zeros((5, 4096), np.int8)
    row = dataclasses.replace(many_rows(4096, 2, np.float32, slots, 2), needs=Needs(unit=128))
    kernel = forward(False, ("int8", "1x128"), "x", "weight", "y", "scales").scheduled(row)
    arrays = {"x": x, "weight": weight, "y": made, "scales": scales}
    arrays |= {"eps": 1e-6, "dropout": 0.0, "scale": 1.0, "seed": 0}
    kernel.simulate(**arrays)
    y = x / np.sqrt((x * x).mean(1, keepdims=True) + 1e-6) * weight
    tops = abs(y).reshape(5, 32, 128).max(2)
    np.testing.assert_allclose(scales, tops / 127, 1e-5)
    assert abs(made * np.repeat(scales, 128, 1) - y).max() < 0.51 * scales.max()
    found = numpipe.verify(kernel, **arrays, schedules=12)
    assert found.ok, str(found)


ROOMS = {1: 132, 2: 132, 4: 122}
"""CTAs in such clusters that an H200 runs at once, if an SM has room for one"""


def test_few_rows_that_are_stored_run_at_once_if_they_fit_in_shared_memory() -> None:
    half, of_softmax = np.dtype(np.float16), Needs(held=1)
    for needs, columns, count, ctas in (
        (of_softmax, 23946, 365, (2, 6)),
        (of_softmax, 10511, 481, (1, 4)),
        (Needs(), 34048, 310, (2, 5)),
        # with clusters of 8, which fill 120 SMs, one of 46 would run after the others
        (of_softmax, 104704, 46, (4, 2)),
    ):
        row = schedule_for(columns, needs, half, columns % 8 == 0, True, count)
        assert (row.cluster, row.ctas) == ctas
        assert count * row.cluster <= row.ctas * ROOMS[row.cluster]
        # they leave no CTA of the next launch room
        nbytes = row.slots * row.wgs * row.width * row.dtype.itemsize
        assert row.slots >= row.steps and (row.ctas + 1) * nbytes > 212_992
    # clusters that have no place at once would take twice as long
    for cluster, count in ((3, 39), (6, 17), (3, 79)):
        found = [
            schedule_for(90000, of_softmax, half, count=rows).cluster for rows in (count, count + 1)
        ]
        assert found[0] == cluster != found[1]
    # vectors along the columns of odd rows are loaded by elements, in many warps
    norms = [schedule_for(n, Needs(), np.dtype("f4"), False, True, 317) for n in (40747, 40746)]
    assert [(row.wgs, row.ctas) for row in norms] == [(4, 3), (2, 3)]


def test_an_sm_has_a_part_of_a_row_of_two_matrices_if_all_fit_at_once() -> None:
    single, two = np.dtype(np.float32), Needs(2, held=1)
    shapes = (82869, 38), (50001, 60)
    rows = [schedule_for(n, two, single, False, True, count, 1) for n, count in shapes]
    assert [(row.cluster, row.wgs, row.ctas) for row in rows] == [(3, 4, 1), (2, 4, 1)]
    # no chunk is loaded twice
    assert [row.slots >= row.steps for row in rows] == [True, True]
    # 40 clusters of three would not run at once
    assert schedule_for(70000, two, single, count=40, vectors=1).cluster == 8


def test_rows_of_two_matrices_that_nearly_fit_at_once_run_at_once() -> None:
    two, half, single = Needs(2, held=1), np.dtype(np.float16), np.dtype(np.float32)
    shapes = (84123, half, 80), (91520, single, 38), (82869, single, 59)
    of = [schedule_for(n, two, dtype, n % 8 == 0, True, count, 1) for n, dtype, count in shapes]
    assert [(row.cluster, row.ctas, row.rereads) for row in of] == [
        (4, 3, True),
        (3, 1, True),
        (4, 2, True),
    ]
    assert all(row.slots < row.steps for row in of)
    # L2 has no room for more
    assert not schedule_for(82869, two, single, False, True, 80, 1).rereads


def test_a_warp_has_a_row_of_pairs() -> None:
    of = partial(schedule_for, dtype=np.dtype(np.float16), vectors=2)
    assert [of(n, count=4224).height for n in (1582, 1792, 1794)] == [4, 4, 1]
    assert [of(1582, Needs(), count=4223).height, of(1583, count=4224).height] == [1, 1]


def test_five_ctas_of_an_sm_have_one_warpgroup_each() -> None:
    half = np.dtype(np.float16)
    for columns, count, vectors, wgs in (
        (59285, 145, 1, 1),
        (34048, 310, 0, 1),
        (59285, 145, 2, 2),
    ):
        row = schedule_for(columns, Needs(), half, columns % 8 == 0, True, count, vectors)
        assert (row.wgs, row.width, row.ctas) == (wgs, 2048, 5)


def test_few_long_rows_of_a_product_are_in_shared_memory_at_once() -> None:
    half, product = np.dtype(np.float16), Needs(held=1, once=True)

    def loaded(count: int, n: int) -> list[int]:
        """Return the CTAs of a row, and tiles of each warpgroup in shared memory."""
        row = schedule_for(n, product, half, n % 8 == 0, True, count, 1)
        return [row.cluster, row.slots]

    assert [loaded(count, 51712) for count in (135, 3000)] == [[4, 5], [1, 0]]
    # lanes load pairs of other rows, if there are enough CTAs for many loads in flight
    assert [loaded(count, 51714) for count in (51, 190)] == [[2, 6], [2, 0]]


def test_an_sm_has_room_for_what_the_warpgroups_of_large_clusters_exchange() -> None:
    """Five CTAs of two warpgroups, each with 43,008 bytes of a row that eight CTAs share, would
    need 2 KB more shared memory than an SM has; CTAs of one warpgroup exchange fewer numbers."""
    half = np.dtype(np.float16)
    rows = [schedule_for(172032, Needs(), half, True, True, 75, vectors) for vectors in (1, 2)]
    assert [(row.cluster, row.ctas) for row in rows] == [(8, 5), (8, 3)]


def test_tma_loads_odd_rows_of_one_pass() -> None:
    for dtype in (np.float16, np.float32):
        of = partial(schedule_for, 45001, Needs(once=True), np.dtype(dtype), False, True)
        rows = [of(count) for count in (132, 190, 400)]
        assert [row.cluster for row in rows] == [1, 2, 2]
        assert rows[2].slots == rows[2].steps
        # the first two have all rows, and all of the memory of an SM
        assert all(row.slots >= row.steps for row in rows[:2])


@pytest.mark.parametrize(
    ("x", "slots", "flat"),
    [
        (on_gpu(8, 40001), True, True),
        (on_gpu(8, 40001, stride=80016), True, False),
        (on_gpu(8, 40001, stride=80006), False, False),
        (on_gpu(8, 40001, address=4104), False, False),
        (on_gpu(60000, 40001), False, False),
        (on_gpu(8, 8193), True, True),
        (on_gpu(8, 8194), False, False),
    ],
    ids=["contiguous", "aligned", "gaps", "base", "int32", "odd", "even"],
)
def test_rows_that_tma_can_load_are_in_shared_memory(x: ArrayInfo, slots: bool, flat: bool) -> None:
    row = softmax.kernel(x).definition.statics["row"]
    assert (row.slots > 0, row.flat) == (slots, flat)


def test_a_missing_schedule_is_named() -> None:
    with pytest.raises(SpecError, match=r"takes its schedule as a parameter 'row'.*fix: "):

        @numpipe.rows()
        def copied(x, y):  # type: ignore[no-untyped-def]
            y[...] = x[...]


def test_other_than_a_matrix_is_refused_with_a_fix() -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 40)).astype(np.float32)
    fix = r"'x' must be a matrix.* got shape {}; fix: pass x.reshape\(-1, x.shape\[-1\]\)"
    for array in (x, x[0, 0]):
        with pytest.raises(SpecError, match=fix.format(re.escape(str(array.shape)))):
            softmax(array, target="sim")
    softmax(x.reshape(-1, x.shape[-1]), target="sim")
    with pytest.raises(SpecError, match="argument 'x' of kernel 'softmax': a NoneType is not"):
        softmax(target="sim")


def test_the_matrix_is_found_by_name() -> None:
    @numpipe.rows(out_type=lambda x, v: numpipe.ArrayType(x.shape, x.dtype))
    def scaled(x, v, y, *, row: numpipe.Static):
        for k in row.blocks(x):
            value, block = row.load(k, x)
            row.store(block, y, lambda j: value(j) * row.vector(v)(j))

    x, v = np.ones((3, 40), np.float32), np.arange(40, dtype=np.float32)
    assert (scaled(v=v, x=x, target="sim") == v).all()


def test_what_a_schedule_cannot_take_is_an_error_at_the_kernels_line() -> None:
    @numpipe.rows(out_type=lambda x: numpipe.ArrayType(x.shape, x.dtype))
    def sums(x, y, *, row: numpipe.Static):
        for k in row.blocks(x):
            value, block = row.load(k, x)
            row.store(block, y, row.sum(value))

    for columns in (40, 33000):
        with pytest.raises(numpipe.CompileError, match=r"^\S*test_rows.py:.*\n +row.store\(block"):
            sums(np.ones((3, columns), np.float32), target="sim")


@pytest.mark.parametrize("columns", [40, 33000])
@pytest.mark.parametrize("operands", [1, 2])
def test_loads_of_other_than_the_declared_matrices_are_refused(operands: int, columns: int) -> None:
    @numpipe.rows(operands=operands)
    def added(x, y, *, row: numpipe.Static):
        for k in row.blocks(x):
            if operands == 1:
                value, _, block = row.load(k, x, y)
            else:
                value, block = row.load(k, x)
            row.store(block, y, value)

    x = numpipe.ArrayType((3, columns), np.float32)
    fix = rf"^\S*test_rows.py:.*; fix: pass operands={3 - operands} to numpipe.rows\n.*row.load"
    with pytest.raises(numpipe.CompileError, match=fix):
        added.kernel(x, x).inspect("ptx", x, x)


@pytest.mark.parametrize("columns", [40, 33000])
def test_arrays_that_have_other_rows_are_refused(columns: int) -> None:
    @numpipe.rows(operands=2)
    def scaled(x, other, v, y, *, row: numpipe.Static):
        weight = row.vector(v)
        for k in row.blocks(x):
            value, more, block = row.load(k, x, other)
            row.store(block, y, lambda j: (value(j) + more(j)) * weight(j))

    x, text = (
        np.ones((3, columns), np.float32),
        "of an array of {} columns in a kernel over rows of",
    )
    less, v = np.ones((3, columns - 4), np.float32), np.ones(columns, np.float32)
    for name, bad in (
        ("load", (x, less, v, x.copy())),
        ("vector", (x, x, v[:1], x.copy())),
        ("store", (x, x, v, less)),
    ):
        told = (
            f"row.{name} {text.format(bad[{'load': 1, 'vector': 2, 'store': 3}[name]].shape[-1])}"
        )
        with pytest.raises(numpipe.CompileError, match=rf"test_rows.py:.*{told} {columns}\n"):
            scaled(*bad, target="sim")
    with pytest.raises(
        numpipe.SimulationError, match="row.load loads matrices of equally many rows"
    ):
        scaled(x, x[:1], v, x.copy(), target="sim")


@pytest.mark.parametrize("columns", [40, 3001, 40001])
def test_groups_of_tiles_that_begin_anywhere_are_refused(columns: int) -> None:
    def doubled(x, tops, y, *, row: numpipe.Static):
        def change(groups):
            return groups * 2.0, np.abs(groups).max(axis=1)[:, None]

        for k in row.blocks(x):
            value, block = row.load(k, x)
            row.store(block, y, row.each_group(k, tops, value, change))

    x = np.random.default_rng(0).standard_normal((3, columns)).astype(np.float32)
    y, tops = np.zeros_like(x), np.zeros((3, -(-columns // 128)), np.float32)
    # as of contiguous rows on the GPU
    unit, groups = (
        numpipe.rows(unit=unit)(doubled).scheduled(
            schedule_for(columns, Needs(unit=unit), aligned=False, flat=True, count=3)
        )
        for unit in (1, 128)
    )
    fix = "test_rows.py:.*fix: pass unit=128 to numpipe.rows\n"
    with pytest.raises(numpipe.CompileError, match=fix):
        unit(x, tops, y, target="sim")
    groups(x, tops, y, target="sim")
    assert (y == 2 * x).all()
    assert (tops == np.maximum.reduceat(np.abs(x), range(0, columns, 128), axis=1)).all()


def test_a_second_load_or_store_of_a_block_is_refused() -> None:
    @numpipe.rows()
    def loaded(x, y, *, row: numpipe.Static):
        for k in row.blocks(x):
            value, block = row.load(k, x)
            other, block = row.load(k, y)
            row.store(block, y, lambda j: value(j) + other(j))

    @numpipe.rows()
    def stored(x, y, *, row: numpipe.Static):
        for k in row.blocks(x):
            value, block = row.load(k, x)
            row.store(block, x, value)
            row.store(block, y, value)

    x = np.ones((3, 40), np.float32)
    for kernel, name in ((loaded, "load"), (stored, "store")):
        line = kernel.body.__code__.co_firstlineno + 3 + (name == "store")
        text = rf":{line + 1}: .*a second row.{name} .*fix: pass it both matrices at once\n"
        with pytest.raises(numpipe.CompileError, match=text):
            kernel(x, x.copy(), target="sim")


@pytest.mark.parametrize("simulated", [True, False])
def test_values_that_are_not_called_or_unpacked_have_a_fix(simulated: bool) -> None:
    @numpipe.rows()
    def uncalled(x, y, *, row: numpipe.Static):
        for k in row.blocks(x):
            value, block = row.load(k, x)
            row.store(block, y, value * 2.0)

    @numpipe.rows()
    def packed(x, y, *, row: numpipe.Static):
        for k in row.blocks(x):
            value, block = row.load(k, x)
            p = row.softmax(value)
            row.store(block, y, lambda j: p(j))

    x = np.ones((3, 40), np.float32)
    for kernel, fix in ((uncalled, r"value\(j\)"), (packed, r"p, total = row.softmax")):
        one = kernel.kernel(x, x)
        with pytest.raises(numpipe.CompileError, match=f"; fix: .*{fix}"):
            one.simulate(x, x.copy()) if simulated else one.inspect("ptx", x, x.copy())


def test_a_schedule_is_pickled_and_names_what_it_lacks() -> None:
    row = Rows(1024, 1, 512, wgs=2, whole=512)
    assert pickle.loads(pickle.dumps(row)) == row
    with pytest.raises(AttributeError, match="a schedule of rows has no function 'median'"):
        row.median  # noqa: B018


def test_a_kernel_over_rows_needs_no_options_and_says_where_its_kernels_are() -> None:
    @numpipe.rows
    def doubled(x, y, *, row: numpipe.Static):
        for k in row.blocks(x):
            value, block = row.load(k, x)
            row.store(block, y, lambda j: value(j) * 2.0)

    x = np.ones((3, 40), np.float32)
    with pytest.raises(AttributeError, match=r"no attribute 'simulate'; fix: \.kernel\(x, …\)"):
        doubled.simulate(x, x.copy())
    y = x.copy()
    doubled.kernel(x, y).simulate(x, y)
    assert (y == 2).all()
    for options, words in (
        ({"operands": 3}, "operands must be an int of 1…2, got 3"),
        ({"held": -1}, "held must be an int >= 0, got -1"),
        ({"unit": 0}, "unit must be an int of 1…128, got 0"),
    ):
        with pytest.raises(SpecError, match=f"rows: {words}"):
            numpipe.rows(**options)


def test_a_result_that_only_put_stores_is_an_output() -> None:
    @numpipe.rows(once=True)
    def total(x, sums, *, row: numpipe.Static):
        for k in row.blocks(x):
            value, _ = row.load(k, x)
            row.put(k, sums, row.sum(value))

    for columns in (300, 33000):
        x, sums = np.ones((5, columns), np.float32), np.zeros(5, np.float32)
        total(x, sums, target="sim")
        assert (sums == columns).all()
