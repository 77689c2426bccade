"""numpipe.to_device and numpipe.pinned_empty, with a fake GPU, without a GPU, and with a GPU that
is not wanted."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import numpipe
from numpipe import launch
from numpipe.errors import LaunchError, SpecError, TargetError
from numpipe.launch import copy_threads, driver, pinned, transfers
from tests.kernels.host_fakes import QueuedDriver
from tests.kernels.launch_fakes import CudaArray


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[QueuedDriver]:
    cuda = QueuedDriver()
    monkeypatch.setattr(driver, "_opened", cuda)
    monkeypatch.setattr(pinned, "POOL", pinned.Pool())
    monkeypatch.setattr(copy_threads, "count", lambda: 2)
    monkeypatch.setattr("numpipe.launch.current_gpu.cuda_wheels_major", lambda: 13)
    monkeypatch.delenv("NUMPIPE_TARGET", raising=False)
    launch.gpu_state.cache_clear()
    yield cuda
    launch.gpu_state.cache_clear()


def no_driver() -> Any:
    raise driver.DriverMissing("libcuda was not found")


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(driver, "_opened", None)
    monkeypatch.setattr(driver, "_open", no_driver)
    monkeypatch.delenv("NUMPIPE_TARGET", raising=False)
    launch.gpu_state.cache_clear()
    yield
    launch.gpu_state.cache_clear()


@pytest.mark.parametrize("staged", [False, True])
def test_an_array_goes_to_the_gpu_and_comes_back(
    cuda: QueuedDriver, monkeypatch: pytest.MonkeyPatch, staged: bool
) -> None:
    monkeypatch.setattr(transfers, "PLAIN", 1 if staged else 1 << 20)
    host = np.arange(15).reshape(3, 5).astype(ml_dtypes.bfloat16)
    there = numpipe.to_device(host, stream=types.SimpleNamespace(ptr=7))
    expected, host[...] = host.copy(), 0
    assert (there.shape, there.ndim, there.dtype, len(there)) == ((3, 5), 2, host.dtype, 3)
    assert repr(there) == "DeviceArray(shape=(3, 5), dtype=bfloat16, device=0)"
    np.testing.assert_array_equal(np.asarray(there), expected)
    assert np.asarray(there, dtype=np.float32).dtype == np.float32
    assert bool(cuda.locked) == staged and {call[-1] for call in cuda.named("copy_in")} == {7}
    with pytest.raises((SpecError, ValueError), match="leave copy out"):
        there.__array__(copy=False)


def test_an_array_on_a_gpu_stays_where_it_is(cuda: QueuedDriver) -> None:
    array = CudaArray(512, (3,), "<f4")
    assert numpipe.to_device(array) is array


def test_without_a_gpu_the_array_itself_is_returned(no_gpu: None) -> None:
    host = np.zeros((3, 5))
    assert numpipe.to_device(host) is host
    assert numpipe.pinned_empty(3, "float16").shape == (3,)
    for call in (
        lambda: numpipe.to_device(host, target="gpu"),
        lambda: numpipe.pinned_empty((3,), np.int8, target="gpu"),
    ):
        with pytest.raises(
            TargetError, match="target='gpu': the GPU cannot be used: libcuda was not found"
        ):
            call()


def test_simulated_kernels_do_not_use_a_driver(
    cuda: QueuedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMPIPE_TARGET", "sim")
    host = np.zeros((3, 5))
    assert numpipe.to_device(host) is host and numpipe.pinned_empty((2, 2), np.int8).shape == (2, 2)
    assert not cuda.calls


def test_pinned_arrays_are_page_locked_and_contiguous(cuda: QueuedDriver) -> None:
    assert numpipe.pinned_empty((0, 3), np.int8).shape == (0, 3) and not cuda.calls
    for shape in ((), 5, [3, 4], (2, 3, 4)):
        array = numpipe.pinned_empty(shape, ml_dtypes.bfloat16)
        assert (
            array.shape == np.empty(shape).shape
            and array.dtype == ml_dtypes.bfloat16
            and array.flags.c_contiguous
        )
        assert cuda.page_locked(array.ctypes.data, array.nbytes, 0)


@pytest.mark.parametrize(
    "shape, dtype, told",
    [
        ((2, -1), np.int8, "an int >= 0"),
        ("3", np.int8, "an int >= 0"),
        (2.5, np.int8, "an int >= 0"),
        (3, object, "Python objects"),
    ],
)
def test_invalid_memory_is_refused(cuda: QueuedDriver, shape: Any, dtype: Any, told: str) -> None:
    with pytest.raises(SpecError, match=f"pinned_empty: .*{told}"):
        numpipe.pinned_empty(shape, dtype)
    assert not cuda.calls


def test_errors_of_the_driver_say_what_was_asked_for(cuda: QueuedDriver) -> None:
    cuda.locks = False
    with pytest.raises(
        LaunchError,
        match="pinned_empty: locking 12 bytes of host memory: cuMemHostRegister.*use np.empty",
    ):
        numpipe.pinned_empty(3, np.float32)
    with pytest.raises(
        LaunchError,
        match="pinned_empty: locking 1152921504606846976 bytes .*the system cannot provide",
    ):
        numpipe.pinned_empty(1 << 60, np.int8)
    cuda.failure_at_sync = driver.DriverError(
        "cuStreamSynchronize", 700, "CUDA_ERROR_ILLEGAL_ADDRESS"
    )
    with pytest.raises(
        LaunchError, match=r"to_device: copying float32 \(3,\) to GPU 0: cuStreamSynchronize"
    ):
        numpipe.to_device(np.zeros(3, np.float32))


def test_lists_are_not_arrays(cuda: QueuedDriver) -> None:
    with pytest.raises(SpecError, match="argument 'array': a list is not an array.*np.asarray"):
        numpipe.to_device([1, 2])
