"""Errors for arrays that TMA cannot address: raised where a pipeline loads them, with the padded
copy as the fix."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import numpipe
from numpipe import BlockSpec, SpecError, ds
from tests.kernels.launch_fakes import CudaArray, choose_a_fake_gpu


@pytest.fixture(autouse=True)
def _each_execution_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "0")


@numpipe.kernel
def loads_a(a, c):
    for (k,), (x,) in numpipe.pipeline(
        grid=(1,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),)
    )(a):
        pass


def copies(view):
    """Return a kernel that copies `view(x)`, 8 rows of 64 elements, to its output."""

    @numpipe.kernel(out_type=lambda x: numpipe.ArrayType((8, 64), np.float16), num_compute_wgs=1)
    def copies_rows(x, y):
        tile = numpipe.scratch(numpipe.SMEM((8, 64), np.float16))
        landed = numpipe.scratch(numpipe.Barrier())
        numpipe.copy_gmem_to_smem(view(x), tile, landed)
        numpipe.barrier_wait(landed)
        y[:, :] = tile[:, :]

    return copies_rows


@numpipe.function
def of_six(x):
    return x.at[0, 0, 0, 0, ds(0, 8), ds(0, 64)]


@numpipe.function
def of_three(x):
    return x.at[0, ds(0, 8), ds(0, 64)]


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
    choose_a_fake_gpu(monkeypatch)
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


@pytest.mark.parametrize("call", [copies(of_six).simulate, copies(of_six).compiled])
def test_what_even_a_padded_copy_cannot_have_is_refused_in_both_executions(
    call: Callable[..., object],
) -> None:
    x = np.ones((2, 2, 2, 2, 16, 64), np.float16)
    with pytest.raises(SpecError, match=r"'x'.*6 dimensions and TMA addresses 1 to 5; reshape it"):
        call(x)


def test_the_reshaped_array_is_copied() -> None:
    assert copies(of_three)(np.ones((16, 16, 64), np.float16), target="sim").all()
