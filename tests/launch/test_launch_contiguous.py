"""`numpipe.ascontiguous`: copies that TMA can address of each library's arrays, and no copy if TMA
can address the original."""

from __future__ import annotations

import ctypes
import sys
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import numpipe
from numpipe import launch
from numpipe.errors import SpecError
from tests.kernels.array_fakes import (
    ON_CPU,
    CupyArray,
    Exporter,
    JaxArray,
    NumbaArray,
    cupy_module,
    numba_module,
    numbers,
)
from tests.kernels.launch_fakes import CudaArray, FakeDriver, view

# numpipe.ascontiguous reads exports of DLPack
pytest.importorskip("cuda.core", reason="the CUDA wheels are not installed")


@pytest.fixture(autouse=True)
def _numba(fake: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numba", numba_module())


def contents(array: Any) -> np.ndarray[Any, Any]:
    info = launch.describe(array, "a")
    return view(info.ptr, info.shape, info.strides, np.uint16)


@pytest.mark.parametrize(
    "shape, turn, cut",
    [
        ((3, 5), (0, 1), 1),  # rows of 10 bytes
        ((3, 5), (1, 0), 1),  # the same, column-major
        ((3, 15), (0, 1), 3),  # elements are spaced
        ((4, 8), (0, 1), -1),  # reversed
        ((7,), (0,), -2),
        ((2, 3, 5), (0, 1, 2), 1),
        ((2, 3, 5), (2, 1, 0), 1),
        ((2, 3, 4), (1, 0, 2), 1),  # neither order is contiguous
        ((2, 2, 2, 3, 3), (0, 1, 2, 3, 4), 1),
    ],
)
def test_a_copy_has_the_elements_and_the_order_and_rows_that_tma_can_address(
    fake: FakeDriver, shape: tuple[int, ...], turn: tuple[int, ...], cut: int
) -> None:
    memory = numbers(*shape)[..., ::cut].transpose(turn)
    there = memory.__array_interface__["data"][0]
    elements = tuple(stride // 2 for stride in memory.strides)
    for x in (
        CudaArray(there, memory.shape, "<f2", memory.strides),
        Exporter(there, memory.shape, elements),
    ):
        made = numpipe.ascontiguous(x)
        info = launch.describe(made, "a")
        assert type(made) is launch.DeviceArray and info.dtype == np.float16
        assert launch.tma_addressable(info) is None
        assert launch.major_order(info) == launch.major_order(launch.describe(x, "x"))
        np.testing.assert_array_equal(contents(made), memory.view(np.uint16))
        # after it, only the previous copy is freed
        assert "synchronize" in [call[0] for call in fake.calls[-2:]]
        # read, ordered, and read once more just above
        assert type(x) is CudaArray or x.streams == [-1, 1, -1]


def test_rows_in_one_piece_are_one_copy(fake: FakeDriver) -> None:
    memory = numbers(100, 5)
    numpipe.ascontiguous(CudaArray(memory.ctypes.data, (100, 5), "<f2", stream=7))
    assert fake.named("copy_on") == [(16, 10, 10, 100, 7)]


def test_numba_arrays_stay_numbas(fake: FakeDriver) -> None:
    made = numpipe.ascontiguous(NumbaArray((3, 5), (10, 2), ml_dtypes.bfloat16))
    info = launch.describe(made, "a")
    assert type(made) is NumbaArray and info.strides == (16, 2) and info.dtype == ml_dtypes.bfloat16
    assert fake.named("copy_on") == [(16, 10, 10, 3, 0)]


def test_a_jax_array_with_short_rows_becomes_a_device_array() -> None:
    x = JaxArray(numbers(3, 5, dtype=ml_dtypes.bfloat16))
    made = numpipe.ascontiguous(x)
    assert type(made) is launch.DeviceArray and made.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(contents(made), x.memory.view(np.uint16))


def test_cupy_copies_its_own(monkeypatch: pytest.MonkeyPatch, fake: FakeDriver) -> None:
    monkeypatch.setitem(sys.modules, "cupy", cupy_module())
    memory = numbers(3, 5)
    for x in (memory, memory.T):
        made = numpipe.ascontiguous(CupyArray(x))
        assert type(made) is CupyArray and made.strides == ((16, 2) if x is memory else (2, 16))
        np.testing.assert_array_equal(made.memory, x)
    assert not fake.calls


@pytest.mark.parametrize(
    "x",
    [
        CudaArray(4096, (3, 8), "<f2"),
        JaxArray(numbers(3, 8)),
        numbers(3, 5)[:, ::2],
        JaxArray(numbers(3, 5), ON_CPU),
        CudaArray(4096, (0, 5), "<f2"),
        Exporter(4096, (4, 8)),
    ],
    ids=lambda x: type(x).__name__,
)
def test_what_tma_can_address_is_returned_as_it_is(fake: FakeDriver, x: Any) -> None:
    assert numpipe.ascontiguous(x) is x
    assert not fake.calls


@pytest.mark.parametrize(
    "x",
    [CudaArray(4096, (1,) * 6, "<f2"), CudaArray(4096, (), "<f2"), np.zeros((1,) * 6)],
    ids=lambda x: type(x).__name__,
)
def test_what_no_copy_helps_is_refused(x: Any) -> None:
    with pytest.raises(
        SpecError,
        match="numpipe.ascontiguous: TMA cannot address .* at any address: it has [06] dimensions",
    ):
        numpipe.ascontiguous(x)


def test_an_argument_that_is_not_an_array_is_refused() -> None:
    with pytest.raises(SpecError, match="a list is not an array"):
        numpipe.ascontiguous([1, 2])


def test_the_copy_is_not_the_array(fake: FakeDriver) -> None:
    memory = numbers(3, 5)
    made = numpipe.ascontiguous(CudaArray(memory.ctypes.data, (3, 5), "<f2"))
    ctypes.memset(memory.ctypes.data, 0, memory.nbytes)
    assert contents(made)[1:].all()
