"""numpipe.testing.check on a machine with a GPU: it runs the kernel there too and compares the
results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gemm
from numpipe.testing import check
from tests.kernels.ordered_kernels import SAFE, operand, result
from tests.kernels.tiled_kernels import operands, product


def test_a_kernel_is_compared_in_both_executions() -> None:
    a, b = gemm.inputs((200, 136, 72), np.dtype(np.float16))
    checked = check(
        gemm.matmul, a, b, reference=lambda a, b: a @ b.T, cfg=gemm.Config(tn=128), schedules=4
    )
    assert checked.targets == ("sim", "gpu")
    kernel = product(True, ("parallel", "sequential", "sequential"), 2)
    assert check(
        kernel, *operands(128, 72, 136), reference=lambda a, b: a @ b.T, schedules=4
    ).targets == ("sim", "gpu")


def test_outputs_that_are_passed_stay_as_they_are() -> None:
    x, y = operand(), np.full_like(operand(), 7)
    assert check(SAFE["turned"], x, y, reference=result("turned", x), schedules=4, gpu=True).errors[
        "gpu"
    ] == {"y": 0.0}
    assert (y == 7).all()


def test_a_wrong_result_on_the_gpu_only_is_reported_as_such(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    a, b = gemm.inputs((128, 128, 64), np.dtype(np.float16))
    call = type(gemm.matmul).__call__

    def broken(self: Any, *args: Any, **named: Any) -> Any:
        return call(self, *args, **named) + 1

    monkeypatch.setattr(type(gemm.matmul), "__call__", broken)
    with pytest.raises(
        AssertionError,
        match="kernel matmul, on the GPU: c differs from the reference in 16384 of 16384",
    ):
        check(
            gemm.matmul, a, b, reference=lambda a, b: a @ b.T, cfg=gemm.Config(tn=128), schedules=2
        )
