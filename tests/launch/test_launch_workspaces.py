"""Workspaces of launches: one per stream, allocated once, with cleared flags, never freed."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from numpipe import LaunchError, launch
from numpipe.launch import buffers, driver
from numpipe.plan.specs import FLAGS
from tests.kernels.launch_fakes import CudaArray, FakeDriver
from tests.launch.test_launch_launcher import Kernel

GRID, WORDS = (3, 1, 1), 64 + FLAGS
SIZES = [128, *[8] * 13]
"""bytes of the parameters: tensor maps, a (2-D), c (1-D), work (2-D)"""


@pytest.fixture
def fake(fake: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDriver]:
    monkeypatch.setattr(buffers, "_workspaces", {})
    yield fake
    gc.collect()  # frees what the test left while this driver is installed


def infos(where: int = 4096) -> list[launch.ArrayInfo]:
    return [
        launch.describe(CudaArray(where, (3, 8), "<f2"), "a"),
        launch.describe(CudaArray(1 << 20, (8,), "<f2"), "c"),
    ]


def prepared(slots: int = 3, words: int = WORDS) -> launch.Prepared:
    return launch.Prepared(
        Kernel(arrays=("a", "c", "work"), majors=("row",) * 3),
        infos(),
        outputs=1,
        workspace=lambda grid, arrays: (slots, words),
    )


def passed(fake: FakeDriver, kernel: launch.Prepared, stream: int = 0, **options: Any) -> list[int]:
    """Return the words that a launch passes for the workspace: address, shape, strides."""
    seen: list[list[int]] = []
    fake.kernel = lambda parameters: seen.append(
        [ctypes.c_int64.from_address(p).value for p in parameters[-5:]]
    )
    kernel(GRID, infos(**options), stream=stream)
    return seen[0]


def flags(address: int, slots: int = 3) -> np.ndarray:
    words = np.frombuffer(
        (ctypes.c_uint32 * (slots * WORDS)).from_address(address), np.uint32
    ).reshape(slots, WORDS)
    return words[:, WORDS - FLAGS :]


def test_it_is_the_last_array_and_its_flags_are_0(fake: FakeDriver) -> None:
    kernel = prepared()
    address, *shape = passed(fake, kernel)
    assert shape == [3, WORDS, WORDS, 1]
    assert not flags(address).any()
    assert (
        flags(address).base is not None
        and (np.frombuffer((ctypes.c_uint8 * 256).from_address(address), np.uint8) == 0xAB).all()
    )


def test_launches_of_a_stream_share_one_and_allocate_nothing_again(fake: FakeDriver) -> None:
    first, second = prepared(), prepared()
    same = {
        passed(fake, kernel, 7, where=where)[0]
        for kernel in (first, second)
        for where in (4096, 8192, 4096)
    }
    assert len(same) == 1 and fake.named("allocate") == [(4 * 3 * WORDS, 99, 0)]


def test_a_call_on_host_arrays_has_one_too(fake: FakeDriver) -> None:
    """The workspace is not one of the call's arrays: it is neither copied nor checked for being on
    the host."""
    seen: list[int] = []
    fake.kernel = lambda parameters: seen.append(ctypes.c_int64.from_address(parameters[-5]).value)
    arrays = [np.ones((3, 8), np.float16), np.zeros(8, np.float16)]
    launch.run(prepared(), GRID, [launch.describe(array, "array") for array in arrays], outputs=1)
    assert len(seen) == 1 and not flags(seen[0]).any()


def test_other_streams_and_tiles_have_others(fake: FakeDriver) -> None:
    found = {
        passed(fake, prepared(words=words), stream)[0]
        for words in (WORDS, WORDS + 64)
        for stream in (7, 8)
    }
    assert len(found) == 4


def test_one_that_is_too_small_is_kept_and_the_next_has_twice_the_slots(fake: FakeDriver) -> None:
    small = prepared(4)
    first = passed(fake, small, 7)[:2]
    assert passed(fake, prepared(3), 7)[:2] == first and first[1] == 4
    assert [passed(fake, prepared(slots), 7)[1] for slots in (5, 8, 100, 90)] == [8, 8, 100, 100]
    assert passed(fake, small, 7)[:2] == first and first[0] in fake.live


def test_it_stays_for_graphs_that_hold_it_and_is_no_part_of_one(fake: FakeDriver) -> None:
    fake.captured = {7}
    kernel = prepared()
    address = passed(fake, kernel, 7)[0]
    # on a stream that is not captured
    assert not flags(address).any() and fake.named("allocate") == [(4 * 3 * WORDS, 99, 0)]
    assert fake.calls.index(("synchronize", 99)) < fake.calls.index(("launch", GRID, 7, 0))
    del kernel
    gc.collect()
    assert address in fake.live and passed(fake, prepared(), 7)[0] == address


def test_a_copy_onto_the_gpu_that_fails_names_the_kernel(fake: FakeDriver) -> None:
    fake.failure_at_sync = driver.DriverError("cuStreamSynchronize", 2, "CUDA_ERROR_OUT_OF_MEMORY")
    with pytest.raises(LaunchError, match="scale"):
        prepared()(GRID, infos())
