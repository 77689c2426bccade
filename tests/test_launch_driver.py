"""The facade over cuda.bindings, on a module that stands in for it."""

from __future__ import annotations

import ctypes
import sys
import types
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
    """cuda.bindings.driver: every function succeeds and returns a number, unless `answers` says otherwise."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.answers: dict[str, Any] = {"cuDeviceGetCount": (OK, 1)}
        self.CUmemorytype = types.SimpleNamespace(CU_MEMORYTYPE_HOST="host", CU_MEMORYTYPE_DEVICE="device")
        self.CUDA_MEMCPY2D = types.SimpleNamespace
        self.cuuint64_t: Any
        self.cuuint32_t: Any

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cu"):
            raise AttributeError(name)

        def call(*args: Any) -> Any:
            self.calls.append((name, *args))
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


def test_a_driver_that_does_not_initialise_is_an_error_with_its_code_and_a_mend(api: Api) -> None:
    api.answers["cuInit"] = (Result(802),)
    with pytest.raises(driver.DriverError, match=r"cuInit returned CUDA_ERROR_X \(802\): .*fabric manager") as caught:
        driver.Driver()
    assert isinstance(caught.value, LaunchError) and caught.value.code == 802


def test_a_failing_driver_is_asked_again_and_a_working_one_kept(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "_opened", None)
    api.answers["cuInit"] = (Result(999),)
    for _ in range(2):
        with pytest.raises(driver.DriverError):
            driver.get()
    api.answers["cuInit"] = (OK,)
    assert driver.get() is driver.get()
    assert len(api.named("cuInit")) == 3


def launched(cuda: driver.Driver, gpu: int) -> Any:
    """The answer to a launch, as `Launch` asks for it."""
    code = cuda.launcher(gpu)("config", "kernel", 64, 0)[0]
    return code and cuda.relaunch(code, "config", "kernel", 64, 0, gpu)


def test_with_one_gpu_a_launch_is_one_call(api: Api) -> None:
    assert launched(driver.Driver(), 0) == 0
    assert [call[0] for call in api.calls[2:]] == ["cuLaunchKernelEx"]


def test_a_thread_without_a_context_gets_one_and_the_launch_is_repeated(api: Api) -> None:
    answers = iter([(Result(201),), (OK,)])
    api.answers["cuLaunchKernelEx"] = lambda *_: next(answers)
    assert launched(driver.Driver(), 0) == 0
    assert [call[0] for call in api.calls[2:]] == ["cuLaunchKernelEx", "cuDeviceGet", "cuDevicePrimaryCtxRetain",
                                                   "cuCtxPushCurrent", "cuLaunchKernelEx", "cuCtxPopCurrent"]


def test_with_several_gpus_the_context_is_always_that_of_the_arrays(api: Api) -> None:
    api.answers |= {"cuDeviceGetCount": (OK, 2), "cuDeviceGet": lambda ordinal: (OK, ordinal),
                    "cuDevicePrimaryCtxRetain": lambda device: (OK, f"context {device}")}
    cuda = driver.Driver()
    for gpu in (1, 0, 1):
        assert launched(cuda, gpu) == 0
    assert api.named("cuCtxPushCurrent") == [("context 1",), ("context 0",), ("context 1",)]
    assert len(api.named("cuCtxPopCurrent")) == 3 and len(api.named("cuDevicePrimaryCtxRetain")) == 2


def test_the_context_is_left_when_a_call_fails(api: Api) -> None:
    api.answers["cuStreamSynchronize"] = (Result(700),)
    with pytest.raises(driver.DriverError, match="an earlier kernel of this process failed"):
        driver.Driver().synchronize(0, 0)
    assert api.calls[-1][0] == "cuCtxPopCurrent"


def test_dense_copies_are_linear(api: Api) -> None:
    cuda = driver.Driver()
    cuda.copy_in(100, 32, 500, 32, 32, 3, 9, 0)
    cuda.copy_out(100, 30, 500, 32, 30, 1, 9, 0)
    assert api.named("cuMemcpyHtoDAsync") == [(100, 500, 96, 9)]
    assert api.named("cuMemcpyDtoHAsync") == [(100, 500, 30, 9)]
    cuda.copy_on(100, 32, 500, 32, 32, 3, 9, 0)
    assert api.named("cuMemcpyDtoDAsync") == [(100, 500, 96, 9)]


def test_pitched_copies_are_two_dimensional(api: Api) -> None:
    cuda = driver.Driver()
    cuda.copy_in(100, 32, 500, 30, 30, 3, 9, 0)
    cuda.copy_out(700, 30, 100, 32, 30, 3, 9, 0)
    cuda.copy_on(700, 16, 100, 10, 10, 3, 9, 0)
    (into, stream), (out, _), (on, _) = api.named("cuMemcpy2DAsync")
    assert vars(on) == {"WidthInBytes": 10, "Height": 3, "srcMemoryType": "device", "srcDevice": 100, "srcPitch": 10,
                        "dstMemoryType": "device", "dstDevice": 700, "dstPitch": 16}
    assert vars(into) == {"WidthInBytes": 30, "Height": 3, "srcMemoryType": "host", "srcHost": 500, "srcPitch": 30,
                          "dstMemoryType": "device", "dstDevice": 100, "dstPitch": 32} and stream == 9
    assert vars(out) == {"WidthInBytes": 30, "Height": 3, "srcMemoryType": "device", "srcDevice": 100, "srcPitch": 32,
                         "dstMemoryType": "host", "dstHost": 700, "dstPitch": 30}


def test_rows_beyond_the_largest_pitch_are_copied_one_by_one(api: Api) -> None:
    driver.Driver().copy_in(0, 2**31, 0, 2**31 - 8, 2**31 - 8, 2, 0, 0)
    assert api.named("cuMemcpyHtoDAsync") == [(0, 0, 2**31 - 8, 0), (2**31, 2**31 - 8, 2**31 - 8, 0)]


def test_parameter_sizes_end_where_the_driver_says(api: Api) -> None:
    sizes = [256, 8, 4]
    api.answers["cuKernelGetParamInfo"] = lambda _, i: (OK, 0, sizes[i]) if i < 3 else (Result(1), 0, 0)
    assert driver.Driver().parameter_sizes("kernel") == sizes
    api.answers["cuKernelGetParamInfo"] = (Result(201), 0, 0)
    with pytest.raises(driver.DriverError, match="cuKernelGetParamInfo"):
        driver.Driver().parameter_sizes("kernel")


def test_a_map_is_encoded_in_a_context_where_the_thread_has_none(api: Api) -> None:
    """The driver was seen to refuse (201), though a map belongs to no context."""
    storage = ctypes.create_string_buffer(bytes(range(128)), 128)
    answers = iter([(Result(201), None), (OK, types.SimpleNamespace(getPtr=lambda: ctypes.addressof(storage)))])
    api.answers["cuTensorMapEncodeTiled"] = lambda *_: next(answers)
    for names in ("CUtensorMapDataType", "CUtensorMapInterleave", "CUtensorMapSwizzle", "CUtensorMapL2promotion",
                  "CUtensorMapFloatOOBfill"):
        setattr(api, names, Names())
    api.cuuint64_t = api.cuuint32_t = int
    encoded = driver.Driver().encode_tiled("FLOAT16", 4096, [64, 5], (128,), (64, 4), 128, True)
    assert encoded == bytes(range(128))
    assert [call[0] for call in api.calls[-4:]] == ["cuDevicePrimaryCtxRetain", "cuCtxPushCurrent",
                                                    "cuTensorMapEncodeTiled", "cuCtxPopCurrent"]
    assert api.calls[-2][1:] == (
        "CU_TENSOR_MAP_DATA_TYPE_FLOAT16", 2, 4096, [64, 5], [128], [64, 4], [1, 1],
        "CU_TENSOR_MAP_INTERLEAVE_NONE", "CU_TENSOR_MAP_SWIZZLE_128B", "CU_TENSOR_MAP_L2_PROMOTION_L2_256B",
        "CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA")
