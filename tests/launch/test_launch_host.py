"""Host arrays copied to the GPU and back, and outputs, on a driver whose device memory is host
memory."""

from __future__ import annotations

import threading
import types
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from numpipe import launch
from numpipe.errors import SpecError
from numpipe.launch import driver, transfers
from tests.kernels.launch_fakes import CudaArray, FakeDriver, TorchTensor, view


def odd_arrays() -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    base = rng.integers(0, 1000, (7, 10, 6)).astype(np.float16)
    return [
        base[0],
        base[0].T,
        base[:, :, 0],
        base[::2, ::-1, 1],
        base[3, 4],
        base[3, 4, ::2],
        base,
        base.T,
        base[:, ::3],
        base[:0, 0],
        base[0, :, :0],
        base[1:2, 0],
        base[0, :, 3:4],
        np.asfortranarray(base),
        base[2, 1, 0:1].reshape(()),
        rng.integers(0, 9, (3, 5)).astype(ml_dtypes.bfloat16),
        base[0].astype(np.float64),
        np.broadcast_to(base[0, 0], (4, 6)),
    ]


def uploaded(array: Any, stream: int) -> launch.DeviceArray:
    """Return a copy of a host array that is queued on a stream."""
    info = launch.describe(array, "a")
    copy = launch.DeviceArray.like(info, stream, 0)
    with transfers.Transfers(stream, 0) as queue:
        queue.upload([(info, copy)])
    return copy


def downloaded(buffer: launch.DeviceArray, out: Any, stream: int) -> None:
    with transfers.Transfers(stream, 0) as queue:
        queue.download([(launch.describe(out, "out"), buffer)])


@pytest.mark.parametrize(
    "array", odd_arrays(), ids=lambda a: f"{a.dtype}{list(a.shape)}/{list(a.strides)}"
)
def test_a_copy_holds_the_same_elements_for_tma_and_comes_back(
    fake: FakeDriver, array: Any
) -> None:
    info = launch.describe(array, "a")
    buffer = uploaded(array, 5)
    there = buffer.info()
    assert there.shape == array.shape and there.dtype == array.dtype
    assert launch.major_order(there) == launch.major_order(info)
    if array.ndim:
        assert launch.tma_addressable(there) is None
    if array.size:
        assert there.ptr % 256 == 0
        np.testing.assert_array_equal(
            view(there.ptr, there.shape, there.strides, array.dtype), array
        )
    out = np.zeros_like(array, subok=False)
    strided = np.zeros((*array.shape, 2), array.dtype)[..., 0]
    for target in (out, strided):
        if launch.major_order(launch.describe(target, "c")) == launch.major_order(there):
            downloaded(buffer, target, 5)
            np.testing.assert_array_equal(target, array)
    assert {
        call[-1] for call in fake.calls if call[0] in ("copy_in", "copy_out", "synchronize")
    } <= {5}


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=4),
    st.permutations(range(4)),
    st.integers(1, 3),
)
def test_any_layout_survives_the_round_trip(shape: list[int], order: list[int], step: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver, "_opened", FakeDriver())
        axes = [axis for axis in order if axis < len(shape)]
        array = np.arange(np.prod(shape) * step, dtype=np.int16).reshape(
            *shape[:-1], shape[-1] * step
        )[..., ::step]
        array = array.transpose(axes)
        out = np.zeros_like(array)
        buffer = uploaded(array, 0)
        with_order = launch.describe(out, "out")
        if launch.major_order(with_order) != launch.major_order(buffer.info()):
            out = np.zeros(array.shape, array.dtype)
            buffer = uploaded(np.ascontiguousarray(array), 0)
        downloaded(buffer, out, 0)
        np.testing.assert_array_equal(out, array)


def test_dense_rows_that_tma_can_address_are_not_padded(fake: FakeDriver) -> None:
    uploaded(np.zeros((3, 8), np.float16), 0)
    assert fake.named("allocate") == [(48, 0, 0)]


def test_rows_are_padded_to_sixteen_bytes(fake: FakeDriver) -> None:
    buffer = uploaded(np.zeros((3, 5), np.float16), 0)
    assert buffer.strides == (16, 2) and fake.named("copy_in") == [(16, 10, 10, 3, 0)]


def test_rows_of_a_slice_are_copied_from_where_they_are(fake: FakeDriver) -> None:
    uploaded(np.zeros((3, 8), np.float32)[:, :5], 0)
    assert fake.named("copy_in") == [(32, 32, 20, 3, 0)]
    assert not fake.named("synchronize")


def test_a_temporary_copy_is_read_before_it_goes(fake: FakeDriver) -> None:
    uploaded(np.zeros((3, 8), np.float32)[:, ::2], 9)
    assert [call[0] for call in fake.calls] == ["allocate", "copy_in", "synchronize", "free"]


def test_a_buffer_is_freed_once_on_its_stream(fake: FakeDriver) -> None:
    buffer = uploaded(np.zeros(4), 9)
    buffer.free()
    del buffer
    assert fake.named("free") == [(9, 0)] and not fake.live


def test_a_forgotten_buffer_is_freed_with_the_object(fake: FakeDriver) -> None:
    uploaded(np.zeros(4), 9)
    assert not fake.live


def test_an_array_passed_twice_is_one_buffer(fake: FakeDriver) -> None:
    array = np.arange(6.0)
    with launch.Staging(0, 0) as staging:
        first = staging.upload([launch.describe(array, "a")])
        assert staging.upload([launch.describe(array, "c")], fresh=1) == first
        assert staging.upload([launch.describe(array[:3], "b")]) != first
    assert not fake.live


# ---- outputs
def test_numpy_gives_numpy() -> None:
    out = launch.empty_like_kind(launch.describe(np.zeros(2), "a"), (3, 4), ml_dtypes.bfloat16)
    assert type(out) is np.ndarray and out.shape == (3, 4) and out.dtype == ml_dtypes.bfloat16


def test_other_device_arrays_give_a_device_array(fake: FakeDriver) -> None:
    like = launch.describe(CudaArray(64, (4,), "<f4", stream=7), "a")
    out = launch.empty_like_kind(like, (3, 5), np.float32)
    interface = out.__cuda_array_interface__
    assert (interface["shape"], interface["typestr"], interface["stream"]) == ((3, 5), "<f4", 7)
    info = launch.describe(out, "c")
    assert info.ptr % 16 == 0 and info.strides == (20, 4) and info.writable
    view(info.ptr, info.shape, info.strides, np.float32)[:] = np.arange(15).reshape(3, 5)
    np.testing.assert_array_equal(out.copy_to_host(), np.arange(15).reshape(3, 5))
    assert fake.named("synchronize") == [(7,)]
    del out, info
    assert not fake.live


@pytest.mark.parametrize(
    "dtype",
    [np.float16, np.bool_, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2],
)
def test_a_device_array_keeps_its_type_and_others_can_read_what_it_says(
    fake: FakeDriver, dtype: Any
) -> None:
    out = launch.DeviceArray((4, 6), dtype, 7, 1)
    fake.count = 2
    info = launch.describe(out, "c")
    size = np.dtype(dtype).itemsize
    assert (
        info[:7] == ("cuda", out.ptr, (4, 6), (6 * size, size), np.dtype(dtype), 1, True)
        and info.owner is out
    )
    assert not fake.named("pointer_device")  # the array has its GPU
    read = np.dtype(out.__cuda_array_interface__["typestr"])
    assert read.itemsize == size and (
        read == dtype if np.dtype(dtype).isbuiltin == 1 else read.kind == "V"
    )


def test_a_device_array_of_a_type_that_no_kernel_takes_is_refused(fake: FakeDriver) -> None:
    with pytest.raises(SpecError, match="argument 'a' of kernel 'k': element type complex64"):
        launch.describe(launch.DeviceArray((4,), np.complex64), "a", "k")


def test_a_device_array_on_the_default_stream_says_so_as_the_interface_wants_it(
    fake: FakeDriver,
) -> None:
    assert launch.DeviceArray((4,), np.float32).__cuda_array_interface__["stream"] == 1


@pytest.mark.parametrize("order", ["C", "F"])
def test_a_host_array_becomes_a_device_array_with_padded_rows_and_comes_back(
    fake: FakeDriver, order: str
) -> None:
    host = np.asarray(
        np.arange(15, dtype=np.float32).reshape(3, 5).astype(ml_dtypes.bfloat16), order=order
    )
    there = launch.DeviceArray.from_host(host, stream=7)
    info = launch.describe(there, "a")
    assert info.strides == ((16, 2) if order == "C" else (2, 16)) and info.dtype == host.dtype
    assert launch.tma_addressable(info) is None and fake.named("synchronize")
    back = there.copy_to_host()
    np.testing.assert_array_equal(back, host)
    assert back.flags.c_contiguous == host.flags.c_contiguous


@pytest.mark.parametrize("shape", [(3, 5), (1, 5), (5, 1), (2, 3, 5)])
def test_the_transpose_of_a_device_array_is_the_same_memory(
    fake: FakeDriver, shape: tuple[int, ...]
) -> None:
    host = np.arange(np.prod(shape), dtype=np.float16).reshape(shape)
    array = launch.DeviceArray.from_host(host)
    turned = array.T
    assert turned.info().ptr == array.info().ptr and turned.shape == shape[::-1]
    assert turned.info().strides == array.info().strides[::-1]
    assert turned.T is array
    del array  # the view keeps the memory alive
    np.testing.assert_array_equal(turned.copy_to_host(), host.T)
    assert fake.live
    del turned
    assert not fake.live


def test_a_device_array_may_be_empty(fake: FakeDriver) -> None:
    out = launch.DeviceArray((0, 4), np.float32)
    assert out.copy_to_host().shape == (0, 4) and not fake.calls


def test_a_type_the_library_lacks_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torch", types.SimpleNamespace())
    info = launch.describe(TorchTensor(512, (8,), "float16", (1,)), "a")
    with pytest.raises(SpecError, match="PyTorch has no element type float16.*pass out="):
        launch.empty_like_kind(info, (2,), np.float16)


def test_a_buffer_that_dies_while_the_driver_is_opened_waits_for_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The garbage collector may run at any moment, also while the lock of opening is held."""
    monkeypatch.setattr(driver, "_opened", FakeDriver())
    buffers = [launch.DeviceArray((64, 64), np.float32)]
    monkeypatch.setattr(driver, "_opened", None)

    def opening() -> FakeDriver:
        buffers.clear()
        return FakeDriver()

    monkeypatch.setattr(driver, "_open", opening)
    thread = threading.Thread(target=driver.get, daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive() and not buffers
