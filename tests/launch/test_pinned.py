"""The pool of page-locked memory, outputs allocated in it, and the threads that share copies."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
import types
import warnings
from typing import Any

import numpy as np
import pytest

from numpipe import launch
from numpipe.errors import SpecError
from numpipe.launch import copy_threads, driver, pinned, transfers
from tests.kernels.host_fakes import QueuedDriver, install


# ---- outputs
def test_a_large_output_is_in_the_pool_until_its_last_view_is_gone(cuda: QueuedDriver) -> None:
    pinned.POOL.device = 0
    info = launch.describe(np.zeros(2, np.float16), "a")
    c = launch.empty_like_kind(info, (600, 7), np.float32)
    assert (
        c.flags.c_contiguous and c.flags.writeable and c.shape == (600, 7) and c.dtype == np.float32
    )
    assert cuda.page_locked(c.ctypes.data, c.nbytes, 0)
    address, row = c.ctypes.data, c.T[3]
    del c
    other = launch.empty_like_kind(info, (600, 7), np.float32)
    assert other.ctypes.data != address
    row[...] = 5
    assert (row == 5).all()
    del row, other
    again = [launch.empty_like_kind(info, (600, 7), np.float32) for _ in range(2)]
    assert address in [x.ctypes.data for x in again] and len(cuda.locked) == 2


def test_outputs_are_pageable_before_the_first_call_below_the_threshold_and_where_the_pool_is_full(
    cuda: QueuedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = launch.describe(np.zeros(2, np.float16), "a")

    def locked(shape: tuple[int, ...]) -> bool:
        outputs.append(launch.empty_like_kind(info, shape, np.int8))
        return bool(outputs[-1].nbytes) and cuda.page_locked(
            outputs[-1].ctypes.data, outputs[-1].nbytes, 0
        )

    outputs: list[Any] = []
    assert not locked((4000,))
    pinned.POOL.device = 0
    monkeypatch.setattr(transfers, "PINNED", 1000)
    monkeypatch.setattr(pinned, "limit", lambda: pinned.STAGING + 2 * pinned.PAGE)
    assert not locked((999,)) and not locked((0, 3))
    assert locked((1000,)) and locked((pinned.PAGE,)) and not locked((1000,))
    outputs.clear()
    assert locked((2 * pinned.PAGE,))  # idle blocks of other sizes make room
    assert cuda.most_locked <= 2 * pinned.PAGE and len(cuda.named("unlock_pages")) == 2


def test_the_pool_never_exceeds_its_limit_and_keeps_what_a_request_too_large_could_not_use(
    cuda: QueuedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool, page = pinned.POOL, pinned.PAGE
    monkeypatch.setattr(pinned, "limit", lambda: 4 * page)
    blocks = [pool.take(page, 0) for _ in range(5)]
    assert blocks[4] is None and pool.nbytes == 4 * page
    for block in blocks[:4]:
        pool.give(block)
    assert pool.take(5 * page, 0) is None and len(cuda.locked) == 4
    pool.take(3 * page, 0)
    assert pool.nbytes == cuda.most_locked == 4 * page and sorted(cuda.locked.values()) == [
        page,
        3 * page,
    ]


def test_arrays_of_the_user_take_nothing_of_the_pool_and_are_unlocked_at_once(
    cuda: QueuedDriver,
) -> None:
    array = pinned.empty((3, pinned.PAGE), np.dtype(np.int8), 0)
    assert list(cuda.locked.values()) == [3 * pinned.PAGE] and pinned.POOL.nbytes == 0
    view = array[1:]
    del array
    assert cuda.locked
    del view
    assert not cuda.locked and pinned.POOL.nbytes == 0


def test_memory_that_cannot_be_locked_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, QueuedDriver(locks=False))
    with pytest.raises(driver.DriverError, match="cuMemHostRegister"):
        pinned.empty((3,), np.dtype(np.int8), 0)
    pinned.POOL.device = 0
    assert pinned.empty_output((3,), np.dtype(np.int8), 1).shape == (3,)
    assert pinned.POOL.nbytes == 0

    def no_driver() -> Any:
        raise driver.DriverMissing("the process is forked")

    monkeypatch.setattr(driver, "get", no_driver)
    assert pinned.empty_output((3,), np.dtype(np.int8), 1).shape == (3,)


def test_memory_of_a_lost_context_is_dropped_all_the_same(
    cuda: QueuedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool, page = pinned.POOL, pinned.PAGE
    monkeypatch.setattr(pinned, "limit", lambda: 3 * page)
    pool.give(pool.take(page, 0))

    def lost(address: int, ordinal: int) -> None:
        raise driver.DriverError("cuMemHostUnregister", 700, "CUDA_ERROR_ILLEGAL_ADDRESS")

    monkeypatch.setattr(cuda, "unlock_pages", lost)
    assert pool.take(3 * page, 0) is not None and pool.nbytes == 3 * page


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_reads_outputs_and_has_a_pool_of_its_own(
    cuda: QueuedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    # the module registers this for its own pool
    os.register_at_fork(after_in_child=pinned.POOL.after_fork)
    array = pinned.empty((2, 3), np.dtype(np.float32), 0)
    pinned.POOL.device = 0
    output = pinned.empty_output((2, 3), np.dtype(np.float32), 1)
    array[...] = output[...] = 7
    copy_threads.share([0, 1], list, 2)  # starts a thread
    assert pinned.POOL._lock.acquire()  # as another thread might hold it
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        status = 1
        signal.alarm(20)
        try:
            assert (array == 7).all() and (output == 7).all()
            array[...] = output[...] = 8
            del array, output
            gc.collect()
            assert len(cuda.locked) == 2
            assert (
                pinned.POOL.nbytes == 0
                and not pinned.POOL._given_back
                and not copy_threads._executor.cache_info().currsize
            )
            monkeypatch.setattr(driver, "_opened", cuda)  # the real one is rejected there
            assert pinned.POOL.take(1, 0) is not None
            status = 0
        finally:
            os._exit(status)
    pinned.POOL._lock.release()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert (array == 7).all() and (output == 7).all()


@pytest.mark.parametrize(
    "release, advice",
    [
        ("5.4.0-150-generic", {"MADV_HUGEPAGE", "MADV_DONTFORK"}),
        ("5.14.0-427.el9", {"MADV_HUGEPAGE"}),
        ("6.18.44", {"MADV_HUGEPAGE"}),
    ],
)
def test_an_old_kernel_keeps_locked_pages_from_children(
    monkeypatch: pytest.MonkeyPatch, release: str, advice: set[str]
) -> None:
    monkeypatch.setattr(pinned.os, "uname", lambda: types.SimpleNamespace(release=release))
    for number, name in enumerate(("MADV_HUGEPAGE", "MADV_DONTFORK")):
        monkeypatch.setattr(pinned.mmap, name, number, raising=False)
    given: list[int] = []
    pinned._advise(types.SimpleNamespace(madvise=given.append))  # type: ignore[arg-type]
    assert {("MADV_HUGEPAGE", "MADV_DONTFORK")[number] for number in given} == advice


# ---- threads and the environment
def test_a_call_does_not_wait_for_threads_that_are_busy_elsewhere() -> None:
    go, busy, in_time = threading.Event(), threading.Barrier(3, timeout=20), []

    def hold(parts: copy_threads.Parts[int]) -> None:
        for _ in parts:
            busy.wait()
            in_time.append(go.wait(20))

    other = threading.Thread(target=lambda: copy_threads.share([0, 1], hold, 2))
    other.start()
    busy.wait()
    done: list[int] = []
    copy_threads.share(list(range(100)), lambda parts: done.extend(parts), 2)
    go.set()
    other.join()
    assert sorted(done) == list(range(100)) and in_time == [True, True]


def test_nobody_copies_any_more_when_a_failed_share_returns() -> None:
    """The memory is freed next."""
    main, started, ended = threading.get_ident(), threading.Event(), []

    def work(parts: copy_threads.Parts[int]) -> None:
        for _ in parts:
            if threading.get_ident() == main:
                assert started.wait(20)
                raise KeyboardInterrupt
            started.set()
            time.sleep(0.1)
            ended.append(True)

    with pytest.raises(KeyboardInterrupt):
        copy_threads.share(list(range(1000)), work, 2)
    assert len(ended) == 1


def test_an_error_of_any_thread_ends_all_of_them() -> None:
    together, taken = threading.Barrier(2, timeout=20), []

    def work(parts: copy_threads.Parts[int]) -> None:
        for part in parts:
            taken.append(part)
            together.wait()
            if part == 1:
                raise ValueError("the second part")

    with pytest.raises(ValueError, match="the second part"):
        copy_threads.share([0, 1, *range(2, 1000, 2)], work, 2)
    assert len(taken) <= 3


@pytest.mark.parametrize(
    "variable, read, bad",
    [
        ("NUMPIPE_COPY_THREADS", copy_threads.count, "0"),
        ("NUMPIPE_COPY_THREADS", copy_threads.count, "many"),
        ("NUMPIPE_PINNED_BYTES", pinned.limit, "-1"),
        ("NUMPIPE_PINNED_BYTES", pinned.limit, "1G"),
    ],
)
def test_the_environment_sets_threads_and_bytes(
    monkeypatch: pytest.MonkeyPatch, variable: str, read: Any, bad: str
) -> None:
    monkeypatch.setenv(variable, bad)
    with pytest.raises(SpecError, match=f"{variable} is '{bad}': set the number"):
        read.__wrapped__()
    monkeypatch.setenv(variable, "5")
    assert read.__wrapped__() == 5
    monkeypatch.delenv(variable)
    assert read.__wrapped__() > 0
