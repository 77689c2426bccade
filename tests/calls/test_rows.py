"""`numpipe.rows`: one source for rows of any length, and the schedules that are chosen for it."""

from __future__ import annotations

import pickle

import ml_dtypes
import numpy as np
import pytest

import numpipe
from numpipe import ArrayType, SpecError
from numpipe.kernels.row_kernels import Rows, choose
from tests.kernels.compilers import compiles
from tests.kernels.rows_of_kernels import KERNELS, operands, softmax, wrong

LENGTHS = {
    "one element": (5, 1),
    "an odd short row": (9, 7),
    "rows that lanes share": (40, 33),
    "an odd row": (9, 1001),
    "a warpgroup": (2, 2500),
    "an odd row of a warpgroup": (2, 3001),
    "two warpgroups": (1, 9000),
    "two CTAs of two warpgroups": (1, 16500),
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


@pytest.mark.variants(3, thorough=6)
@pytest.mark.parametrize("columns", [33, 3001, 9000, 16500])
@pytest.mark.parametrize("name", KERNELS)
def test_no_schedule_of_warps_shows_a_hazard(name: str, columns: int) -> None:
    x = np.random.default_rng(0).standard_normal((2, columns)).astype(np.float32)
    results = {} if name != "softmax" else {"lse": np.zeros(2, np.float32)}
    kernel = KERNELS[name].kernel(x)
    found = numpipe.verify(
        kernel, x, *operands(name, x), y=np.zeros_like(x), schedules=5, **results
    )
    assert found.ok, str(found)


@pytest.mark.variants(3)
@pytest.mark.parametrize(
    ("row", "columns"),
    [
        (Rows(1, 1024, 2, 1, 512), 1801),
        (Rows(1, 512, 2, 2, 0), 1601),
        (Rows(1, 512, 1, 4, 256), 1900),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", KERNELS)
def test_parts_may_end_anywhere(name: str, row: Rows, columns: int) -> None:
    x = np.random.default_rng(1).standard_normal((2, columns)).astype(np.float32)
    more = operands(name, x)
    got = KERNELS[name].scheduled(row)(x, *more, target="sim")
    one = KERNELS[name](x, *more, target="sim")
    for a, b in zip(got, one, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-6, atol=2e-6)


def test_a_row_of_equal_or_infinite_elements() -> None:
    x = np.full((3, 2500), -np.inf, np.float32)
    x[0, 2400:], x[1] = 0.0, 3e38
    y, lse = softmax(x, target="sim")
    np.testing.assert_allclose(y[0, 2400:], 0.01, rtol=1e-5)
    assert (y[0, :2400] == 0).all()
    np.testing.assert_allclose(y[1], 1 / 2500, rtol=1e-5)
    assert lse[1] == np.float32(3e38)


@compiles
@pytest.mark.variants(1, thorough=4)
@pytest.mark.parametrize("columns", [64, 4096, 16384])
@pytest.mark.parametrize("name", KERNELS)
def test_the_code_has_no_bounds_checks_and_no_spills(name: str, columns: int) -> None:
    x = ArrayType((4096, columns), ml_dtypes.bfloat16)
    more = [ArrayType(each.shape, each.dtype) for each in operands(name, np.zeros((4096, columns)))]
    kernel = KERNELS[name].kernel(x)
    assert kernel.inspect("gate", x, *more) == ()
    assert kernel.inspect("resources", x, *more).spill_bytes == 0
    assert "ld.global.u16" not in kernel.inspect("ptx", x, *more)


def test_schedules_are_chosen_by_length_and_by_matrices_in_registers() -> None:
    assert choose(1024).height == 8
    assert choose(1024, operands=2) == Rows(8, 1024, whole=1024, ctas=3)
    assert choose(16384, operands=2).wgs * choose(16384, operands=2).cluster == 4


def test_rows_that_are_too_long_and_a_missing_schedule_are_named() -> None:
    with pytest.raises(SpecError, match=r"at most 262144 elements.*got 262145"):
        softmax(np.zeros((1, 262145), np.float16), target="sim")
    with pytest.raises(SpecError, match=r"takes its schedule as a parameter 'row'.*fix: "):

        @numpipe.rows()
        def copied(x, y):  # type: ignore[no-untyped-def]
            y[...] = x[...]


def test_a_schedule_is_pickled_and_names_what_it_lacks() -> None:
    row = Rows(1, 512, wgs=2, whole=512)
    assert pickle.loads(pickle.dumps(row)) == row
    with pytest.raises(AttributeError, match="a schedule of rows has no function 'mean'"):
        row.mean  # noqa: B018


def test_a_result_that_only_put_stores_is_an_output() -> None:
    @numpipe.rows()
    def total(x, sums, *, row: numpipe.Static):
        i, j = row.block()
        row.put(sums, row.sum(x[i, j], x.shape[1]))

    x, sums = np.ones((5, 300), np.float32), np.zeros(5, np.float32)
    total(x, sums, target="sim")
    assert (sums == 300).all()
