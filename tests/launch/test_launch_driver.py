"""The facade over cuda.bindings, tested with a fake of that module."""

from __future__ import annotations

import ctypes
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest

from numpipe.errors import LaunchError
from numpipe.launch import driver


class Result(int):
    """A CUresult."""

    name = "CUDA_ERROR_X"


OK = Result(0)


class Names:
    """An enumeration whose members are their names."""

    def __getattr__(self, name: str) -> str:
        return name


class Api:
    """A fake of cuda.bindings.driver: every function succeeds and returns a number, unless
    `answers` has another result."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.watcher: Callable[[str], None] = lambda call: None
        """called with the name of each driver call"""
        self.answers: dict[str, Any] = {"cuDeviceGetCount": (OK, 1)}
        self.CUmemorytype = types.SimpleNamespace(
            CU_MEMORYTYPE_HOST="host", CU_MEMORYTYPE_DEVICE="device"
        )
        self.CUDA_MEMCPY2D = types.SimpleNamespace
        self.CUstreamCaptureMode = types.SimpleNamespace(CU_STREAM_CAPTURE_MODE_RELAXED="relaxed")
        self.cuuint64_t: Any
        self.cuuint32_t: Any

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cu"):
            raise AttributeError(name)

        def call(*args: Any) -> Any:
            self.calls.append((name, *args))
            self.watcher(name)
            answer = self.answers.get(name, (OK, 7))
            return answer(*args) if callable(answer) else answer

        return call

    def named(self, name: str) -> list[tuple[Any, ...]]:
        return [call[1:] for call in self.calls if call[0] == name]


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Api:
    api = Api()
    monkeypatch.setitem(sys.modules, "cuda", types.ModuleType("cuda"))
    bindings = types.ModuleType("cuda.bindings")
    bindings.driver = api  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cuda.bindings", bindings)
    return api


def test_a_machine_without_the_binding_has_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    with pytest.raises(driver.DriverMissing, match="cuda-bindings is not installed"):
        driver.Driver()


def test_a_machine_without_libcuda_has_no_driver(api: Api) -> None:
    def not_found(*_: Any) -> Any:
        raise OSError("libcuda.so.1")

    api.answers["cuInit"] = not_found
    with pytest.raises(driver.DriverMissing, match="libcuda was not found"):
        driver.Driver()


def test_a_driver_that_does_not_initialise_is_an_error_with_its_code_and_a_fix(api: Api) -> None:
    api.answers["cuInit"] = (Result(802),)
    with pytest.raises(
        driver.DriverError, match=r"cuInit returned CUDA_ERROR_X \(802\): .*fabric manager"
    ) as caught:
        driver.Driver()
    assert isinstance(caught.value, LaunchError) and caught.value.code == 802


def test_a_failing_driver_is_asked_again_and_a_working_one_kept(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "_opened", None)
    api.answers["cuInit"] = (Result(999),)
    for _ in range(2):
        with pytest.raises(driver.DriverError):
            driver.get()
    api.answers["cuInit"] = (OK,)
    assert driver.get() is driver.get()
    assert len(api.named("cuInit")) == 3


def launched(cuda: driver.Driver, gpu: int) -> Any:
    """Return the answer to a launch, in the form that `Launch` requests."""
    code = cuda.launcher(gpu)("config", "kernel", 64, 0)[0]
    return code and cuda.relaunch(code, "config", "kernel", 64, 0, gpu)


def test_with_one_gpu_a_launch_is_one_call(api: Api) -> None:
    launch = driver.Driver().launcher(0)
    api.calls.clear()
    assert launch("config", "kernel", 64, 0)[0] == 0
    assert [call[0] for call in api.calls] == ["cuLaunchKernelEx"]


def test_a_thread_that_makes_a_launch_has_a_context_before_it(api: Api) -> None:
    api.answers["cuCtxGetCurrent"] = (OK, 0)
    assert launched(driver.Driver(), 0) == 0
    assert [call[0] for call in api.calls[2:]] == [
        "cuCtxGetCurrent",
        "cuDeviceGet",
        "cuDevicePrimaryCtxRetain",
        "cuCtxPushCurrent",
        "cuCtxPopCurrent",
        "cuCtxSetCurrent",
        "cuLaunchKernelEx",
    ]


def test_another_thread_without_a_context_gets_one_for_good_and_the_launch_is_repeated(
    api: Api,
) -> None:
    answers = iter([(Result(201),), (OK,)])
    # of the thread that creates the launch, and of the one that uses it
    contexts = iter([(OK, 7), (OK, 0)])
    api.answers |= {
        "cuLaunchKernelEx": lambda *_: next(answers),
        "cuCtxGetCurrent": lambda: next(contexts),
    }
    assert launched(driver.Driver(), 0) == 0
    assert len(api.named("cuLaunchKernelEx")) == 2 and len(api.named("cuCtxSetCurrent")) == 1
    assert [call[0] for call in api.calls][-3:] == [
        "cuCtxPushCurrent",
        "cuLaunchKernelEx",
        "cuCtxPopCurrent",
    ]


def test_with_several_gpus_the_context_is_always_the_arrays(api: Api) -> None:
    api.answers |= {
        "cuDeviceGetCount": (OK, 2),
        "cuDeviceGet": lambda ordinal: (OK, ordinal),
        "cuDevicePrimaryCtxRetain": lambda device: (OK, 100 + device),
        "cuCtxGetCurrent": (OK, 101),
    }
    cuda = driver.Driver()
    launches = [cuda.launcher(gpu) for gpu in (0, 1)]
    api.calls.clear()
    for gpu in (1, 0, 1):  # 1 is current
        assert launches[gpu]("config", "kernel", 64, 0)[0] == 0
    assert api.named("cuCtxPushCurrent") == [(100,)] and len(api.named("cuCtxPopCurrent")) == 1
    assert len(api.named("cuLaunchKernelEx")) == 3


def test_the_context_is_left_when_a_call_fails(api: Api) -> None:
    api.answers["cuStreamSynchronize"] = (Result(700),)
    with pytest.raises(driver.DriverError, match="an earlier kernel of this process failed"):
        driver.Driver().synchronize(0, 0)
    assert api.calls[-1][0] == "cuCtxPopCurrent"


def test_rows_beyond_the_largest_pitch_are_copied_one_by_one(api: Api) -> None:
    driver.Driver().copy_in(0, 2**31, 0, 2**31 - 8, 2**31 - 8, 2, 0, 0)
    assert api.named("cuMemcpyHtoDAsync") == [
        (0, 0, 2**31 - 8, 0),
        (2**31, 2**31 - 8, 2**31 - 8, 0),
    ]


def test_a_map_is_encoded_in_a_context_where_the_thread_has_none(api: Api) -> None:
    """The driver may return 201 here, though a map belongs to no context, and debugging tools
    report it."""
    storage = ctypes.create_string_buffer(bytes(range(128)), 128)
    map_ = types.SimpleNamespace(getPtr=lambda: ctypes.addressof(storage))
    api.answers |= {"cuTensorMapEncodeTiled": (OK, map_), "cuCtxGetCurrent": (OK, 0)}
    for names in (
        "CUtensorMapDataType",
        "CUtensorMapInterleave",
        "CUtensorMapSwizzle",
        "CUtensorMapL2promotion",
        "CUtensorMapFloatOOBfill",
    ):
        setattr(api, names, Names())
    api.cuuint64_t = api.cuuint32_t = int
    encoded = driver.Driver().encode_tiled("FLOAT16", 4096, [64, 5], (128,), (64, 4), 128, True)
    assert encoded == bytes(range(128))
    assert [call[0] for call in api.calls[-5:]] == [
        "cuDevicePrimaryCtxRetain",
        "cuCtxPushCurrent",
        "cuCtxPopCurrent",
        "cuCtxSetCurrent",
        "cuTensorMapEncodeTiled",
    ]
    assert api.calls[-1][1:] == (
        "CU_TENSOR_MAP_DATA_TYPE_FLOAT16",
        2,
        4096,
        [64, 5],
        [128],
        [64, 4],
        [1, 1],
        "CU_TENSOR_MAP_INTERLEAVE_NONE",
        "CU_TENSOR_MAP_SWIZZLE_128B",
        "CU_TENSOR_MAP_L2_PROMOTION_L2_128B",
        "CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA",
    )
    for address, pitch, promoted in ((4096, 256, 256), (4096, 384, 128), (4096 + 128, 256, 128)):
        driver.Driver().encode_tiled("FLOAT16", address, [64, 5], (pitch,), (64, 4), 128, True)
        assert api.calls[-1][-2] == f"CU_TENSOR_MAP_L2_PROMOTION_L2_{promoted}B"


# ---- host memory
def test_pages_are_locked_for_every_gpu_and_unlocked_in_their_context(api: Api) -> None:
    opened = driver.Driver()
    opened.lock_pages(4096, 8192, 1)
    opened.unlock_pages(4096, 1)
    names = [name for name, *_ in api.calls if name.startswith(("cuCtx", "cuMem"))]
    assert names == [
        "cuCtxPushCurrent",
        "cuMemHostRegister",
        "cuCtxPopCurrent",
        "cuCtxPushCurrent",
        "cuMemHostUnregister",
        "cuCtxPopCurrent",
    ]
    assert api.named("cuMemHostRegister") == [(4096, 8192, 1)]  # CU_MEMHOSTREGISTER_PORTABLE
    assert api.named("cuDeviceGet") == [(1,)]


@pytest.mark.parametrize(
    "kinds, locked",
    [({100: 1, 199: 1}, True), ({100: 1}, False), ({199: 1}, False), ({100: 2, 199: 2}, False)],
)
def test_memory_is_page_locked_when_both_its_ends_are(
    api: Api, kinds: dict[int, int], locked: bool
) -> None:
    """1 is CU_MEMORYTYPE_HOST; the driver has no information about pageable memory."""
    api.CUpointer_attribute = Names()  # type: ignore[attr-defined]
    api.answers["cuPointerGetAttribute"] = lambda name, at: (
        (OK, kinds[at]) if at in kinds else (Result(1), None)
    )
    assert driver.Driver().page_locked(100, 100, 0) is locked
    assert {name for name, _ in api.named("cuPointerGetAttribute")} == {
        "CU_POINTER_ATTRIBUTE_MEMORY_TYPE"
    }
