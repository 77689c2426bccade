"""NumPy arrays of all sizes and orders through kernels on a Hopper GPU: staged, in place, plain;
outputs in page-locked memory."""

from __future__ import annotations

import gc
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import numpipe
from gemm import matmul
from numpipe import launch
from numpipe.errors import LaunchError
from numpipe.launch import driver, pinned, transfers
from tests.kernels.threads import in_threads

ALONE = True  # it measures memory, and copies with all cores

MIB = 1 << 20


def numbers(shape: tuple[int, ...], dtype: Any = np.float16) -> np.ndarray[Any, Any]:
    mixed = np.arange(int(np.prod(shape)), dtype=np.uint32) * np.uint32(2654435761) >> np.uint32(22)
    return mixed.astype(np.int16).reshape(shape).astype(dtype)


def is_locked(array: np.ndarray[Any, Any]) -> bool:
    return bool(driver.get().page_locked(array.ctypes.data, array.nbytes, 0))


# ---- copies
SHAPES = [
    (0,),
    (0, 7),
    (1,),
    (7, 5),
    (1 << 19,),
    (MIB, 3),
    (3, MIB),
    (8192, 4096),
    (4096, 4099),
    (300, 500, 70),
    (2, 3, 5, 70_001),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("order", ["C", "F", "sliced"])
@pytest.mark.parametrize("memory", ["pageable", "pinned"])
def test_an_array_goes_to_the_gpu_and_comes_back(
    shape: tuple[int, ...], order: str, memory: str
) -> None:
    values = numbers(shape)
    held = (
        (*reversed(shape),)
        if order == "F"
        else (*shape[:-1], 2 * shape[-1])
        if order == "sliced"
        else shape
    )
    storage = (
        numpipe.pinned_empty(held, values.dtype)
        if memory == "pinned"
        else np.empty(held, values.dtype)
    )
    a = storage.T if order == "F" else storage[..., ::2] if order == "sliced" else storage
    a[...] = values
    there = numpipe.to_device(a)
    a[...] = 0
    assert launch.tma_addressable(launch.describe(there, "a")) is None
    np.testing.assert_array_equal(np.asarray(there), values)
    buffer = launch.DeviceArray.from_host(values if order != "F" else np.asfortranarray(values))
    if launch.major_order(buffer.info()) == launch.major_order(launch.describe(a, "a")):
        with transfers.Transfers(0, 0) as queue:
            queue.download([(launch.describe(a, "a"), buffer)])
        np.testing.assert_array_equal(a, values)


@pytest.mark.parametrize(
    "dtype",
    [np.int8, ml_dtypes.float8_e4m3fn, ml_dtypes.bfloat16, np.float32, np.float64],
    ids=lambda d: d.__name__,
)
def test_every_element_size_is_staged(dtype: Any) -> None:
    values = (numbers((3000, 1001), np.int16) % 8).astype(dtype)
    np.testing.assert_array_equal(np.asarray(numpipe.to_device(values)), values)


# ---- calls
def operands(n: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return a and b of small integers, and the exact product."""
    a, b = (numbers((n, 64)) % 3 for _ in "ab")
    return a, b, a.astype(np.float32) @ b.astype(np.float32).T


@pytest.mark.parametrize("n", [0, 1, 100, 700, 1500, 2048, 5000])
def test_a_product_of_host_arrays_is_exact(n: int) -> None:
    a, b, expected = operands(n)
    for _ in range(3):
        np.testing.assert_array_equal(matmul(a, b, target="gpu"), expected)
    given = np.full((n, n), np.nan, np.float16)
    assert matmul(a, b, out=given, target="gpu") is given
    np.testing.assert_array_equal(given, expected)


def test_large_outputs_lie_in_page_locked_memory_from_the_second_call_on() -> None:
    a, b, expected = operands(2048)
    matmul(a, b, target="gpu")
    first = matmul(a, b, target="gpu")
    second = matmul(a, b, target="gpu")
    assert is_locked(first) and is_locked(second) and first.ctypes.data != second.ctypes.data
    np.testing.assert_array_equal(first, expected)
    address, column = first.ctypes.data, first[:, 5]
    del first
    gc.collect()
    third = matmul(a, b, target="gpu")
    assert third.ctypes.data != address
    np.testing.assert_array_equal(column, expected[:, 5])
    del column
    gc.collect()
    assert address in [matmul(a, b, target="gpu").ctypes.data for _ in range(2)]


def test_pinned_arrays_are_used_in_place() -> None:
    a, b, expected = operands(3000)
    here = [numpipe.pinned_empty(array.shape, array.dtype) for array in (a, b)]
    out = numpipe.pinned_empty(expected.shape, np.float16)
    for to, array in zip(here, (a, b), strict=True):
        to[...] = array
    assert all(map(is_locked, (*here, out))) and not is_locked(a)
    matmul(*here, out=out, target="gpu")
    np.testing.assert_array_equal(out, expected)


def test_pinned_tensors_of_torch_are_used_in_place() -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.arange(3 * MIB, dtype=torch.int32).reshape(3, MIB).pin_memory()
    info = launch.describe(tensor, "a")
    assert info.array is not None and is_locked(info.array)
    np.testing.assert_array_equal(np.asarray(numpipe.to_device(tensor)), tensor.numpy())


@pytest.mark.parametrize("way", ["no pool", "one thread", "small chunks"])
def test_the_result_does_not_depend_on_how_it_is_copied(
    monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    a, b, expected = operands(2000)
    if way == "no pool":
        monkeypatch.setattr(pinned, "limit", lambda: 0)
    elif way == "one thread":
        monkeypatch.setattr("numpipe.launch.copy_threads.count", lambda: 1)
    else:
        monkeypatch.setattr(transfers, "PLAIN", 1)
        monkeypatch.setattr(transfers, "CHUNK", 1 << 14)
    for _ in range(3):
        np.testing.assert_array_equal(matmul(a, b, target="gpu"), expected)


def test_calls_on_other_streams_and_from_several_threads() -> None:
    torch = pytest.importorskip("torch")
    a, b, expected = operands(1800)
    matmul(a, b, target="gpu")

    def work(number: int) -> None:
        stream = torch.cuda.Stream()
        mine = a + np.float16(number % 2)
        exact = expected if number % 2 == 0 else mine.astype(np.float32) @ b.astype(np.float32).T
        for _ in range(5):
            np.testing.assert_array_equal(matmul(mine, b, target="gpu", stream=stream), exact)

    in_threads(6, work)


def resident() -> int:
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * 4096


def test_two_hundred_calls_grow_neither_host_nor_device_memory() -> None:
    torch = pytest.importorskip("torch")
    a, b, expected = operands(2048)
    out = np.zeros_like(expected, np.float16)

    def calls(count: int) -> None:
        for _ in range(count):
            c = matmul(a, b, target="gpu")
            matmul(a, b, out=out, target="gpu")
            there = numpipe.to_device(a)
        np.testing.assert_array_equal(c, expected)
        del there
        gc.collect()
        torch.cuda.synchronize()

    calls(20)
    host, locked = resident(), pinned.POOL.nbytes
    shrunk: list[int] = []
    # other processes may use the GPU meanwhile
    while len(shrunk) < 5 and min(shrunk, default=1 << 40) >= 16 * MIB:
        free = torch.cuda.mem_get_info()[0]
        calls(200)
        shrunk.append(free - torch.cuda.mem_get_info()[0])
    assert min(shrunk) < 16 * MIB and resident() - host < 16 * MIB
    assert pinned.POOL.nbytes == locked <= pinned.limit()


# ---- failures
def test_memory_that_no_machine_has_cannot_be_locked() -> None:
    with pytest.raises(LaunchError, match="pinned_empty: locking 140737488355328 bytes"):
        numpipe.pinned_empty(1 << 47, np.int8)
    np.testing.assert_array_equal(np.asarray(numpipe.to_device(np.arange(9.0))), np.arange(9.0))
