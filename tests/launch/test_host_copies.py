"""Host arrays of calls, copied in chunks through page-locked memory by several threads, on a driver
that copies as late as it may."""

from __future__ import annotations

import threading
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from numpipe import launch
from numpipe.errors import LaunchError
from numpipe.launch import driver, pinned, transfers
from tests.kernels.covering import examples
from tests.kernels.host_fakes import QueuedDriver, doubling, install
from tests.kernels.launch_fakes import view
from tests.kernels.threads import in_threads


@st.composite
def strided(draw: st.DrawFn) -> np.ndarray[Any, Any]:
    shape = draw(st.lists(st.integers(0, 9), min_size=1, max_size=4))
    steps = draw(
        st.lists(st.sampled_from([1, 1, 2, -1, -3]), min_size=len(shape), max_size=len(shape))
    )
    dtype = np.dtype(
        draw(st.sampled_from([np.int8, np.float16, ml_dtypes.bfloat16, np.int32, np.float64]))
    )
    base = (
        np.arange(np.prod([n * abs(s) for n, s in zip(shape, steps, strict=True)]))
        .astype(np.int8)
        .astype(dtype)
    )
    base = base.reshape([n * abs(s) for n, s in zip(shape, steps, strict=True)])
    return base[tuple(slice(None, None, s) for s in steps)].transpose(
        draw(st.permutations(range(len(shape))))
    )


@settings(max_examples=examples(60), deadline=None)
@given(
    strided(),
    st.sampled_from([64, 80, 256]),
    st.integers(2, 4),
    st.sampled_from([1 << 30, 1 << 22]),
)
def test_any_layout_goes_through_staging_memory_and_back(
    array: np.ndarray[Any, Any], chunk: int, threads: int, limit: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        cuda = install(patch, QueuedDriver(), threads=threads, limit=limit, chunk=chunk)
        info = launch.describe(array, "a")
        with launch.Staging(5, 0) as staging:
            (buffer,) = staging.upload([info])
            cuda.synchronize(5, 0)
            there = buffer.info()
            assert launch.tma_addressable(there) is None and launch.major_order(
                there
            ) == launch.major_order(info)
            if array.size:
                np.testing.assert_array_equal(
                    view(there.ptr, there.shape, there.strides, array.dtype), array
                )
            expected = array.copy()
            array[...] = 0  # a view of one of the test's arrays
            staging.download([info])
            np.testing.assert_array_equal(array, expected)
        copies = cuda.named("copy_in") + cuda.named("copy_out")
        assert all(
            width <= chunk and pitch == width and height == 1 and stream == 5
            for pitch, _, width, height, stream in copies
        )
        assert bool(copies) == bool(array.size)
        assert (
            sum(cuda.locked.values())
            == pinned.POOL.nbytes
            == len(cuda.locked) * 2 * pinned.PAGE * bool(array.size) // 2
        )


def test_parts_are_as_large_as_they_may_be_and_none_is_larger() -> None:
    def sizes(shape: tuple[int, ...], pitch: int, most: int) -> list[int]:
        array = np.zeros(shape, np.uint16)
        parts = list(transfers.cut(array, 1000, pitch, most))
        assert sum(part.host.size for part in parts) == array.size
        assert all(np.may_share_memory(part.host, array) for part in parts)
        return [part.nbytes for part in parts]

    assert sizes((100,), 0, 64) == [64, 64, 64, 8]
    assert sizes((6, 5), 16, 32) == [26, 26, 26]  # whole rows, without the last one's padding
    assert sizes((2, 40), 80, 32) == [32, 32, 16] * 2  # within rows
    assert sizes((2, 3, 4), 16, 100) == [88]
    assert sizes((2, 3, 4), 16, 40) == [24, 8, 24, 8]


# ---- calls
def test_a_call_on_large_arrays_returns_with_the_result_and_gives_all_memory_back(
    cuda: QueuedDriver,
) -> None:
    a = np.arange(35 * 11, dtype=np.float16).reshape(35, 11) / 4
    c = np.zeros_like(a)
    prepared, infos = doubling(cuda, a, c)
    for _ in range(5):
        a += 1
        launch.run(prepared, (1, 1, 1), infos, stream=3, outputs=1, fresh=1)
        np.testing.assert_array_equal(c, 2 * a)
    assert len(cuda.named("copy_in")) > 5 * 4 and len(cuda.named("lock_pages")) == 3
    assert sum(block.nbytes for block in pinned.POOL._given_back) == pinned.POOL.nbytes
    cuda.synchronize(3, 0)
    assert not cuda.live
    assert 0 < len(cuda.events) <= 3 * 4
    assert pinned.POOL.device == 0  # outputs are in the pool from here on
    pinned.POOL.take(1 << 30, 0)  # all that the pool may lock
    assert not cuda.events and list(cuda.locked.values()) == [1 << 30]


def test_one_lane_fills_a_half_while_the_other_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = install(monkeypatch, QueuedDriver(), limit=2 * pinned.PAGE // 2)  # room for one lane
    monkeypatch.setattr(transfers, "SLOTS", 4)
    info = launch.describe(np.arange(512, dtype=np.int16), "a")  # 16 chunks
    with launch.Staging(0, 0) as staging:
        staging.upload([info])
        calls = [call for call, *_ in cuda.calls if call in ("copy_in", "await_mark")]
        assert calls == ["copy_in"] * 4 + ["await_mark", "copy_in", "copy_in"] * 6
        cuda.calls.clear()
        staging.download([info])
        calls = [
            call for call, *_ in cuda.calls if call in ("synchronize", "copy_out", "await_mark")
        ]
        assert calls == ["synchronize", "copy_out"] + ["copy_out", "await_mark"] * 15 + [
            "await_mark"
        ]


def test_a_lane_that_fills_again_waits_for_what_it_had_not_filled_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    install(monkeypatch, QueuedDriver(), limit=pinned.PAGE)  # room for one lane
    arrays = [np.full(24, value, np.int16) for value in (1, 2)]  # three chunks each, of eight slots
    with launch.Staging(0, 0) as staging:
        infos = [launch.describe(array, "a") for array in arrays]
        for info in infos:
            staging.upload([info])
        for array in arrays:
            array[...] = 0
        staging.download(infos)
    assert [set(array) for array in arrays] == [{1}, {2}]


def test_several_threads_share_a_copy(cuda: QueuedDriver) -> None:
    """All three threads work at once: each waits for the others before its first copy."""
    together, seen = threading.Barrier(3, timeout=20), set()

    def before(_call: str) -> None:
        if threading.get_ident() not in seen:
            seen.add(threading.get_ident())
            together.wait()

    cuda.before = before
    array = np.arange(640, dtype=np.int16)
    buffer = launch.DeviceArray.from_host(array)
    np.testing.assert_array_equal(view(buffer.ptr, array.shape, array.strides, array.dtype), array)
    assert len(seen) == 3


def test_calls_of_several_threads_do_not_share_what_they_copy_through(cuda: QueuedDriver) -> None:
    def work(number: int) -> None:
        a = np.full((40, 11), number, np.float16)
        for _ in range(10):
            c = launch.empty_like_kind(launch.describe(a, "a"), a.shape, a.dtype)
            prepared, infos = doubling(cuda, a, c)
            launch.run(prepared, (1, 1, 1), infos, stream=number + 1, outputs=1, fresh=1)
            np.testing.assert_array_equal(c, 2 * a)
            a += 1

    in_threads(5, work)
    assert pinned.POOL.nbytes == sum(cuda.locked.values())
    for number in range(5):
        cuda.synchronize(number + 1, 0)
    assert not cuda.live


def test_small_arrays_are_left_to_the_driver(
    cuda: QueuedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfers, "PLAIN", 1000)
    a, c = np.ones((20, 20), np.float16), np.zeros((20, 20), np.float16)
    prepared, infos = doubling(cuda, a, c)
    launch.run(prepared, (1, 1, 1), infos, outputs=1, fresh=1)
    assert (c == 2).all() and not cuda.locked
    assert len(cuda.named("copy_in")) == len(cuda.named("copy_out")) == 1


@pytest.mark.parametrize("why", ["one thread", "no memory allowed", "the driver cannot lock pages"])
def test_without_staging_memory_the_driver_copies_it_all(
    monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    cuda = install(
        monkeypatch,
        QueuedDriver(locks=not why.startswith("the driver")),
        threads=1 if why == "one thread" else 3,
        limit=0 if why.startswith("no") else 1 << 30,
    )
    wide = np.arange(20 * 50, dtype=np.float16).reshape(20, 50)
    a, c = wide[::2, ::3], np.zeros((20, 50), np.float16)[::2, ::3]
    prepared, infos = doubling(cuda, a, c)
    launch.run(prepared, (1, 1, 1), infos, outputs=1)
    np.testing.assert_array_equal(c, 2 * a)
    assert not cuda.locked and pinned.POOL.nbytes == 0


def test_page_locked_arrays_are_copied_in_place(cuda: QueuedDriver) -> None:
    a, c = (pinned.empty((40, 600), np.dtype(np.float16), 0) for _ in "ac")
    a[...] = np.arange(600)
    prepared, infos = doubling(cuda, a, c)
    launch.run(prepared, (1, 1, 1), infos, outputs=1, fresh=1)
    np.testing.assert_array_equal(c, 2 * a)
    assert len(cuda.named("copy_in")) == len(cuda.named("copy_out")) == 1 and len(cuda.locked) == 2


def test_narrow_padded_rows_are_staged_even_from_page_locked_memory(cuda: QueuedDriver) -> None:
    a = pinned.empty((40, 3), np.dtype(np.float16), 0)
    a[...] = [1, 2, 3]
    launch.DeviceArray.from_host(a)
    assert len(cuda.named("copy_in")) > 1 and {
        height for *_, height, _ in cuda.named("copy_in")
    } == {1}


def test_an_array_passed_twice_is_copied_once(cuda: QueuedDriver) -> None:
    array = np.arange(32, dtype=np.int16)
    info = launch.describe(array, "a")
    with launch.Staging(0, 0) as staging:
        first, second, third = staging.upload([info, info, launch.describe(array[:16], "b")])
        assert first is second and first is not third
        assert staging.upload([info]) == [first]
        assert sum(width for *_, width, _, _ in cuda.named("copy_in")) == 64 + 32
        array[...] = -1
        staging.download([info, info])
        assert sum(width for *_, width, _, _ in cuda.named("copy_out")) == 64
    np.testing.assert_array_equal(array, np.arange(32))


# ---- failures
def test_what_fails_in_a_thread_is_raised_by_the_call_and_the_next_call_works(
    cuda: QueuedDriver,
) -> None:
    a, c = np.ones((64, 8), np.float32), np.zeros((64, 8), np.float32)
    prepared, infos = doubling(cuda, a, c)
    main, helped = threading.get_ident(), threading.Event()

    def before(call: str) -> None:
        if threading.get_ident() != main:
            helped.set()
            raise driver.DriverError("cuMemcpyHtoDAsync", 1, "CUDA_ERROR_INVALID_VALUE")
        assert helped.wait(20)

    cuda.before = before
    with pytest.raises(
        LaunchError, match="kernel 'scale': cuMemcpyHtoDAsync returned CUDA_ERROR_INVALID_VALUE"
    ):
        launch.run(prepared, (1, 1, 1), infos, outputs=1, fresh=1)
    assert not cuda.named("launch")
    cuda.before = lambda call: None
    launch.run(prepared, (1, 1, 1), infos, outputs=1, fresh=1)
    np.testing.assert_array_equal(c, 2 * a)
    assert len(cuda.named("lock_pages")) == 3


@pytest.mark.parametrize("where", ["copy_in", "copy_out"])
def test_an_interrupted_call_leaves_nothing_behind(cuda: QueuedDriver, where: str) -> None:
    a, c = np.ones((64, 8), np.float32), np.zeros((64, 8), np.float32)
    prepared, infos = doubling(cuda, a, c)
    main, interrupted = threading.get_ident(), threading.Event()

    def before(call: str) -> None:
        if call == where and threading.get_ident() == main:
            interrupted.set()
            raise KeyboardInterrupt
        if call == where:
            interrupted.wait(20)  # leaves a copy to the main thread

    cuda.before = before
    with pytest.raises(KeyboardInterrupt):
        launch.run(prepared, (1, 1, 1), infos, outputs=1, fresh=1)
    assert sum(block.nbytes for block in pinned.POOL._given_back) == pinned.POOL.nbytes
    cuda.before = lambda call: None
    launch.run(prepared, (1, 1, 1), infos, outputs=1, fresh=1)
    np.testing.assert_array_equal(c, 2 * a)
    cuda.synchronize(0, 0)
    assert not cuda.live


def test_a_failed_kernel_keeps_its_error_and_memory_it_may_still_read_is_not_used_again(
    cuda: QueuedDriver,
) -> None:
    a, c = np.ones((64, 8), np.float32), np.zeros((64, 8), np.float32)
    prepared, infos = doubling(cuda, a, c)
    errors = iter(
        [
            driver.DriverError("cuStreamSynchronize", 719, "CUDA_ERROR_LAUNCH_FAILED"),
            driver.DriverError("cuStreamSynchronize", 700, "CUDA_ERROR_ILLEGAL_ADDRESS"),
        ]
    )

    def synchronize(stream: int, ordinal: int) -> None:
        raise next(errors)

    cuda.synchronize = synchronize  # type: ignore[method-assign]
    with pytest.raises(
        LaunchError, match="kernel 'scale': cuStreamSynchronize returned CUDA_ERROR_LAUNCH_FAILED"
    ):
        launch.run(prepared, (1, 1, 1), infos, outputs=1, fresh=1)
    assert pinned.POOL.nbytes == 0 and not pinned.POOL._given_back and not pinned.POOL._idle
