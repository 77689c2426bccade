"""`numpipe.rows`: one source for rows of any length, and the schedules that are chosen for it."""

from __future__ import annotations

import pickle

import ml_dtypes
import numpy as np
import pytest

import numpipe
from numpipe import ArrayType, SpecError
from numpipe.kernels.row_kernels import Rows, choose
from numpipe.launch import ArrayInfo
from tests.kernels.compilers import compiles
from tests.kernels.rows_of_kernels import KERNELS, in_steps, operands, softmax, wrong

LENGTHS = {
    "one element": (5, 1),
    "an odd short row": (9, 7),
    "rows that lanes share": (40, 33),
    "an odd row": (9, 1001),
    "a warpgroup": (2, 2500),
    "an odd row of a warpgroup": (2, 3001),
    "two warpgroups": (1, 9000),
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


STEPS = {
    "a row ends in a step": in_steps(2500, 3),
    "a row does not fit": in_steps(4500, 2),
    "a row is in no slot": in_steps(3100, 0),
    "rows begin anywhere": in_steps(2501, 3, ml_dtypes.bfloat16, flat=True),
    "CTAs share a row": in_steps(4500, 3, cluster=2),
}
"""schedules of longer rows"""


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
    "row", [33, 3001, 9000, STEPS["a row does not fit"], STEPS["CTAs share a row"]], ids=str
)
@pytest.mark.parametrize("name", KERNELS)
def test_no_schedule_of_warps_shows_a_hazard(name: str, row: int | Rows) -> None:
    columns = row if isinstance(row, int) else row.n
    x = np.random.default_rng(0).standard_normal((3, columns)).astype(np.float32)
    results = {} if name != "softmax" else {"lse": np.zeros(3, np.float32)}
    more, kernel = operands(name, x), KERNELS[name]
    one = kernel.kernel(x, *more) if isinstance(row, int) else kernel.scheduled(row)
    found = numpipe.verify(one, x, *more, y=np.zeros_like(x), schedules=5, **results)
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


def check_extremes(y: np.ndarray, lse: np.ndarray) -> None:
    np.testing.assert_allclose(y[0, 2400:], 0.01, rtol=1e-5)
    assert (y[0, :2400] == 0).all()
    np.testing.assert_allclose(y[1], 1 / 2500, rtol=1e-5)
    assert lse[1] == np.float32(3e38)


@compiles
@pytest.mark.variants(1, thorough=5)
@pytest.mark.parametrize("columns", [64, 4096, 16384, 65536, 50257])
@pytest.mark.parametrize("name", KERNELS)
def test_the_code_has_no_bounds_checks_and_no_spills(name: str, columns: int) -> None:
    x = ArrayType((4096, columns), ml_dtypes.bfloat16)
    more = [ArrayType(each.shape, each.dtype) for each in operands(name, np.zeros((4096, columns)))]
    kernel = KERNELS[name].kernel(x, *more)
    assert kernel.inspect("gate", x, *more) == ()
    assert kernel.inspect("resources", x, *more).spill_bytes == 0
    if columns <= 16384:
        assert "ld.global.u16" not in kernel.inspect("ptx", x, *more)


def test_schedules_are_chosen_by_length_and_by_matrices_that_are_loaded() -> None:
    bf16 = np.dtype(ml_dtypes.bfloat16)
    assert choose(1024).height == 8
    assert choose(1024, operands=2).ctas == 3
    assert choose(16384, operands=2).wgs == 4
    long = [choose(65536, dtype=bf16, operands=n) for n in (1, 2)]
    assert [(row.cluster, row.slots) for row in long] == [(2, 8), (4, 4)]
    longest = choose(1 << 20, dtype=bf16)
    assert (longest.cluster, longest.slots, longest.steps, longest.ctas) == (8, 16, 32, 1)


@pytest.mark.parametrize(
    ("address", "stride", "slots", "flat"),
    [
        (4096, 80002, 5, True),
        (4096, 80016, 5, False),
        (4096, 80006, 0, False),
        (4104, 80002, 0, False),
    ],
    ids=["contiguous", "padded", "gaps", "base"],
)
def test_rows_that_tma_can_load_are_in_shared_memory(
    address: int, stride: int, slots: int, flat: bool
) -> None:
    bf16 = np.dtype(ml_dtypes.bfloat16)
    x = ArrayInfo("cuda", address, (8, 40001), (stride, 2), bf16, 0, True, None)
    row = softmax.kernel(x).definition.statics["row"]
    assert (row.slots, row.flat) == (slots, flat)


def test_a_missing_schedule_is_named() -> None:
    with pytest.raises(SpecError, match=r"takes its schedule as a parameter 'row'.*fix: "):

        @numpipe.rows()
        def copied(x, y):  # type: ignore[no-untyped-def]
            y[...] = x[...]


def test_a_schedule_is_pickled_and_names_what_it_lacks() -> None:
    row = Rows(1024, 1, 512, wgs=2, whole=512)
    assert pickle.loads(pickle.dumps(row)) == row
    with pytest.raises(AttributeError, match="a schedule of rows has no function 'mean'"):
        row.mean  # noqa: B018


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
