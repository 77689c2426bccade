"""Errors for arrays that TMA cannot address: raised where a pipeline loads them, with the padded
copy as the fix."""

from __future__ import annotations

import numpy as np
import pytest

import numpipe
from numpipe import BlockSpec, SpecError, launch
from tests.kernels.launch_fakes import CudaArray


@pytest.fixture(autouse=True)
def _each_execution_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "0")


@numpipe.kernel
def loads_a(a, c):
    for (k,), (x,) in numpipe.pipeline(
        grid=(1,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),)
    )(a):
        pass


@pytest.mark.parametrize(
    "ptr, strides, reason",
    [
        (4096 + 8, None, "its data starts at an address that is 8 bytes past a multiple of 16"),
        (4096, (130, 2), "its rows are 130 bytes apart and TMA needs a positive multiple of 16"),
        (4096, (512, 4), "the inner stride is 4 bytes and an element has 2"),
    ],
)
def test_an_input_that_tma_cannot_address_is_refused_with_the_padded_copy(
    monkeypatch: pytest.MonkeyPatch, ptr: int, strides: tuple[int, ...] | None, reason: str
) -> None:
    monkeypatch.setattr(
        launch,
        "choose_target",
        lambda *_: launch.Choice(
            "gpu", "a fake", launch.Device(0, "NVIDIA H200", (9, 0), 132, 13000, 232448)
        ),
    )
    a, c = CudaArray(ptr, (64, 64), "<f2", strides), CudaArray(8192, (64, 64), "<f4")
    for execution in (loads_a, loads_a.compiled):
        with pytest.raises(SpecError) as caught:
            execution(a, c)
        told = str(caught.value)
        assert "in_specs[0] for 'a'" in told and "argument 'a' of kernel 'loads_a'" in told
        assert (
            reason in told
            and "pass numpipe.ascontiguous(a)" in told
            and f"strides {strides or (128, 2)}" in told
        )


def test_strided_arrays_on_the_host_are_no_error() -> None:
    loads_a.simulate(np.zeros((128, 65), np.float16)[::2], np.zeros((64, 64), np.float32))
