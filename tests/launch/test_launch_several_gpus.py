"""Driver calls for GPUs that can access each other, with a fake of cuda.bindings."""

from __future__ import annotations

import types
from typing import Any

import pytest

from numpipe.launch import driver
from tests.launch.test_launch_driver import OK, Api, Names, Result, api

__all__ = ["api"]


@pytest.fixture
def cuda(api: Api) -> driver.Driver:
    """Return a fake of two GPUs, whose contexts are 100 and 101; 100 is current."""
    api.answers |= {
        "cuDeviceGetCount": (OK, 2),
        "cuDeviceGet": lambda ordinal: (OK, ordinal),
        "cuCtxGetCurrent": (OK, 100),
        "cuDevicePrimaryCtxRetain": lambda device: (OK, 100 + device),
        "cuCtxPushCurrent": (OK,),
        "cuCtxPopCurrent": (OK, 0),
        "cuMemsetD32Async": (OK,),
        "cuLaunchKernelEx": (OK,),
        "cuMemPoolSetAccess": (OK,),
        "cuCtxEnablePeerAccess": (OK,),
        "cuCtxSynchronize": (OK,),
    }
    made: Any = api
    made.CUdeviceptr, made.CUstream, made.CUmemoryPool = (
        lambda n, kind=kind: (kind, n) for kind in ("ptr", "stream", "pool")
    )
    made.CUmemAccessDesc = lambda: types.SimpleNamespace(location=types.SimpleNamespace())
    made.CUmemLocationType = made.CUmemAccess_flags = made.CUpointer_attribute = Names()
    return driver.Driver()


def test_words_are_cleared_in_front_of_each_launch_in_the_gpus_own_context(
    api: Api, cuda: driver.Driver
) -> None:
    for ordinal, switches in ((0, 0), (1, 2)):
        launch = cuda.launcher(ordinal, (4096, 70, 9))
        api.calls.clear()
        for _ in range(2):
            assert launch("config", "kernel", 64, 0) == (OK,)
        assert [
            call[0] for call in api.calls if call[0] in ("cuMemsetD32Async", "cuLaunchKernelEx")
        ] == ["cuMemsetD32Async", "cuLaunchKernelEx"] * 2
        assert api.named("cuMemsetD32Async")[0] == (("ptr", 4096), 0, 70, ("stream", 9))
        assert len(api.named("cuCtxPushCurrent")) == switches


def test_a_launch_whose_words_could_not_be_cleared_is_not_made(
    api: Api, cuda: driver.Driver
) -> None:
    api.answers["cuMemsetD32Async"] = (Result(400),)
    assert cuda.launcher(0, (4096, 70, 9))("config", "kernel", 64, 0) == (Result(400),)
    assert not api.named("cuLaunchKernelEx")


def test_with_one_gpu_words_are_cleared_too(api: Api, cuda: driver.Driver) -> None:
    cuda.count = 1
    cuda.launcher(0, (4096, 70, 9))("config", "kernel", 64, 0)
    assert len(api.named("cuMemsetD32Async")) == 1
    assert cuda.launcher(0) == cuda._launch


def test_contexts_reach_each_other_and_may_have_done_so_already(
    api: Api, cuda: driver.Driver
) -> None:
    cuda.enable_peer(0, 1)
    assert api.named("cuCtxEnablePeerAccess") == [(101, 0)] and api.named("cuCtxPushCurrent")[
        -1
    ] == (100,)
    api.answers["cuCtxEnablePeerAccess"] = (Result(704),)
    cuda.enable_peer(0, 1)
    api.answers["cuCtxEnablePeerAccess"] = (Result(217),)
    with pytest.raises(driver.DriverError, match="cuCtxEnablePeerAccess returned"):
        cuda.enable_peer(0, 1)


def test_the_memory_of_a_pool_is_shared_once_with_all_others(api: Api, cuda: driver.Driver) -> None:
    api.answers["cuPointerGetAttribute"] = (OK, 55)
    for address in (4096, 8192):
        cuda.share_memory(address, 0, (0, 1, 2))
    ((pool, described, count),) = api.named("cuMemPoolSetAccess")
    assert (
        pool == ("pool", 55) and count == 2 and [each.location.id for each in described] == [1, 2]
    )
    assert all(each.flags == "CU_MEM_ACCESS_FLAGS_PROT_READWRITE" for each in described)


@pytest.mark.parametrize("answer", [(OK, 0), (Result(1), None)])
def test_memory_of_no_pool_is_reached_through_the_contexts(
    api: Api, cuda: driver.Driver, answer: Any
) -> None:
    api.answers["cuPointerGetAttribute"] = answer
    cuda.share_memory(4096, 0, (0, 1))
    assert not api.named("cuMemPoolSetAccess")
