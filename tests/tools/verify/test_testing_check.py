"""numpipe.testing.check: comparison with a reference, verification of schedules and the GPU, in one
call."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import numpipe
from numpipe import SMEM, ArrayType, Barrier, SpecError, TargetError, ds, launch
from numpipe.testing import check, tolerance
from tests.kernels.ordered_kernels import BARE, SAFE, operand, result
from tests.kernels.tiled_kernels import operands, scaled

X = np.arange(64 * 64, dtype=np.float32).reshape(64, 64)


@pytest.fixture(autouse=True)
def _simulated_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "0")
    monkeypatch.setenv("NUMPIPE_TARGET", "sim")


@numpipe.kernel(out_type=lambda x, dtype: ArrayType((64, 64), dtype))
def scale(x, y, *, factor=2.0, dtype: numpipe.Static = np.float32):
    pipe = numpipe.pipeline(grid=(1,), in_specs=(numpipe.BlockSpec((64, 64), lambda k: (0, 0)),))
    for _, (tile,) in pipe(x):
        y[ds(0, 64), ds(0, 64)] = (tile[...] * factor).astype(y.dtype)


# ---- what passes
def test_a_correct_kernel_passes_and_its_errors_are_returned() -> None:
    checked = check(scale, X, reference=lambda x: 2 * x, schedules=4)
    assert checked.errors == {"sim": {"y": 0.0}} and checked.targets == ("sim",)
    assert checked.verification.schedules == 4


def test_a_reference_is_given_what_its_parameters_name_in_float64() -> None:
    seen: dict[str, Any] = {}

    def reference(factor: Any, x: np.ndarray, dtype: Any) -> np.ndarray:
        seen.update(factor=factor, x=x, dtype=dtype)
        return x * factor

    check(scale, X, factor=3.0, dtype=np.float16, reference=reference, schedules=1)
    assert seen["factor"] == 3.0 and seen["dtype"] is np.float16
    assert seen["x"].dtype == np.float64 and (seen["x"] == X).all()


def test_outputs_that_are_passed_or_several_are_compared() -> None:
    x = operand()
    y = np.full_like(x, 7)
    check(SAFE["turned"], x, y, reference=result("turned", x), schedules=2)
    check(SAFE["turned"], x, y=y, reference=result("turned", x), schedules=2)
    a = operands(128, 64, 72)[0]
    last = np.zeros((64, 64), np.float32)
    want = scaled(a, alpha=0.5, target="sim")
    check(scaled, a, alpha=0.5, reference=lambda a, alpha: (a * alpha, want[1]), schedules=2)
    with pytest.raises(
        AssertionError, match="kernel scaled, simulated: last differs from the reference"
    ):
        check(scaled, a, alpha=0.5, reference=lambda a, alpha: (a * alpha, last - 5), schedules=2)


# ---- what fails
def test_a_wrong_result_says_the_largest_error_and_where() -> None:
    want = 2 * X
    want[3, 17] += 5
    want[4, 5] -= 1
    with pytest.raises(
        AssertionError,
        match=r"kernel scale, simulated: y differs from the reference in 2 of 4096 elements, "
        r"most at \(3, 17\): got 418\.0, expected 423\.0, error 5; allowed rtol=2e-05",
    ):
        check(scale, X, reference=want, schedules=2)


def test_a_race_fails_with_its_report_before_the_wrong_result() -> None:
    x = operand()
    with pytest.raises(
        AssertionError,
        match=r"(?s)ordered_kernels\.py:\d+: .* while write .*found:  in 3 of 3 schedules",
    ):
        check(BARE["turned"], x, np.zeros_like(x), reference=result("turned", x), schedules=3)


def test_shapes_and_counts_of_the_reference_have_to_fit() -> None:
    with pytest.raises(AssertionError, match=r"has the shape \(64, 64\), the reference \(64, 32\)"):
        check(scale, X, reference=X[:, :32], schedules=1)
    with pytest.raises(SpecError, match="the reference gives 2 arrays, the kernel has 1 outputs"):
        check(scale, X, reference=(X, X), schedules=1)
    with pytest.raises(SpecError, match="reference takes q, but the call knows x, factor, dtype"):
        check(scale, X, reference=lambda q: q, schedules=1)
    with pytest.raises(SpecError, match="passed as reference, cannot be inspected"):
        check(scale, X, reference=max, schedules=1)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32])
def test_the_tolerance_depends_on_the_output(dtype: Any) -> None:
    x = 1 + X / 4096
    just = tolerance(dtype)
    check(scale, x, dtype=dtype, reference=lambda x: 2 * x, schedules=1)
    check(scale, x, dtype=dtype, reference=lambda x: 2 * x * (1 + just), schedules=1)
    with pytest.raises(AssertionError, match="differs"):
        check(scale, x, dtype=dtype, reference=lambda x: 2 * x * (1 + 3 * just), schedules=1)
    check(
        scale,
        x,
        dtype=dtype,
        reference=lambda x: 2 * x * (1 + 3 * just),
        schedules=1,
        rtol=4 * just,
    )
    check(scale, x, dtype=dtype, reference=lambda x: 2 * x + 0.5, schedules=1, atol=0.6)


def test_integers_are_equal_or_wrong() -> None:
    @numpipe.kernel
    def carried(x, y):
        tile, landed = numpipe.scratch((SMEM((64, 64), x.dtype), Barrier()))
        numpipe.copy_gmem_to_smem(x.at[ds(0, 64), ds(0, 64)], tile, landed)
        numpipe.barrier_wait(landed)
        numpipe.copy_smem_to_gmem(tile, y.at[ds(0, 64), ds(0, 64)])
        numpipe.wait_smem_to_gmem(0)

    x = np.full((64, 64), 2**31 - 2, np.int32)
    check(carried, x, np.zeros_like(x), reference=lambda x: x, schedules=1)
    with pytest.raises(
        AssertionError,
        match=r"4096 of 4096 elements, .* got 2147483646, expected 2147483647, error 1; "
        "allowed rtol=0, atol=0",
    ):
        check(carried, x, np.zeros_like(x), reference=lambda x: x + 1, schedules=1)


def test_infinities_and_nans_belong_where_they_are_expected() -> None:
    x = X.copy()
    x[0, :3] = np.nan, np.inf, -np.inf
    check(scale, x, reference=lambda x: 2 * x, schedules=1)
    for i in range(3):
        want = 2 * x
        want[0, i] = -want[0, i] if i else 1
        with pytest.raises(AssertionError, match=rf"1 of 4096 elements, most at \(0, {i}\)"):
            check(scale, x, reference=want, schedules=1)
    with pytest.raises(AssertionError, match=r"1 of 4096 elements, most at \(0, 4\)"):
        check(scale, x, reference=np.where(x == 4, np.inf, 2 * x), schedules=1)


# ---- the GPU
@pytest.mark.skipif(launch.gpu_state().status == "ok", reason="there is a GPU")
def test_a_requested_gpu_must_exist() -> None:
    with pytest.raises(TargetError, match="GPU cannot be used"):
        check(scale, X, reference=2 * X, schedules=1, gpu=True)


def test_what_the_gpu_computes_is_compared_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def on_gpu(self: Any, *args: Any, target: str, **named: Any) -> Any:
        assert target == "gpu"
        return self.simulate(*args, **named) + wrong

    monkeypatch.setattr(type(scale), "__call__", on_gpu)
    wrong = 0
    assert check(scale, X, reference=2 * X, schedules=1, gpu=True).targets == ("sim", "gpu")
    wrong = 1
    with pytest.raises(
        AssertionError,
        match=r"\Akernel scale, on the GPU: y differs from the reference in 4096 of 4096",
    ):
        check(scale, X, reference=2 * X, schedules=1, gpu=True)
    assert check(scale, X, reference=2 * X, schedules=1, gpu=False).targets == ("sim",)


def test_a_kernel_that_fails_simulated_is_not_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    launched = []
    monkeypatch.setattr(type(scale), "__call__", lambda *args, **named: launched.append(args))
    x = operand()
    for kernel, args in ((BARE["turned"], (x, np.zeros_like(x))), (scale, (X,))):
        with pytest.raises(AssertionError):
            check(
                kernel, *args, reference=x + 1 if kernel is not scale else X, schedules=1, gpu=True
            )
    assert not launched
