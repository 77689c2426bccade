"""Several GPUs, several threads, forked children, and drivers that fail; without a GPU."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
import time
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import LaunchError, TargetError, launch
from numpipe.launch import current_gpu, driver
from tests.kernels.launch_fakes import FakeDriver
from tests.kernels.launch_kernels import arrays, doubled, image
from tests.kernels.threads import in_threads
from tests.launch.test_launch_driver import OK, Api, Names, Result, api

A100, H100, H200 = ("NVIDIA A100", (8, 0)), ("NVIDIA H100", (9, 0)), ("NVIDIA H200", (9, 0))
__all__ = ["api"]


@pytest.fixture(autouse=True)
def _no_disk_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMPIPE_CACHE", "0")  # compiles are counted, or faked


# ---- devices
def test_the_device_of_the_arrays_is_used_with_its_own_number_of_sms(
    fake: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.count, fake.gpus = 2, (H200, H100)
    monkeypatch.setattr(fake, "properties", lambda i: (*fake.gpus[i], (132, 114)[i], 232448, 0.0))
    monkeypatch.setattr(fake, "pointer_device", lambda address: address & 16 and 1)
    kernel = doubled(grid=numpipe.persistent())
    for place in (0, 16, 0):
        kernel(*arrays(place))
    assert fake.named("launch") == [((132, 1, 1), 0, 0), ((114, 1, 1), 0, 1), ((132, 1, 1), 0, 0)]
    assert fake.named("load") == [(b"cubin", "doubled_entry")]
    assert [gpu for *_, gpu in fake.named("allow_shared")] == [0, 1]


def test_arrays_on_a_gpu_that_is_not_a_hopper_are_refused_and_hoppers_named(
    fake: FakeDriver,
) -> None:
    fake.count, fake.gpus = 2, (H200, A100)  # arrays are on GPU 1
    with pytest.raises(
        TargetError,
        match=r"kernel doubled: the arrays are on GPU 1, NVIDIA A100 \(sm_80\), but numpipe's "
        r"kernels need Hopper .*: move them to GPU 0 \(NVIDIA H200\)",
    ):
        doubled()(*arrays())
    assert not fake.named("load")


def test_host_arrays_go_to_the_first_hopper_gpu(fake: FakeDriver) -> None:
    fake.count, fake.gpus = 3, (A100, H100, H200)
    doubled()(np.ones((64, 64), np.float32), np.zeros((64, 64), np.float32))
    assert [gpu for *_, gpu in fake.named("launch")] == [1]


def test_simulating_asks_nothing_of_the_gpus(
    fake: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "0")
    fake.count, fake.gpus = 1, (A100,)
    c = np.ones((64, 64), np.float32)
    doubled()(np.ones((64, 64), np.float32), c, target="sim")
    assert not c.any() and not fake.calls


# ---- threads
def test_a_first_call_from_many_threads_compiles_and_loads_once(fake: FakeDriver) -> None:
    compiles: list[int] = []

    def compile_slowly(*_: Any) -> launch.Image:
        compiles.append(threading.get_ident())
        time.sleep(0.05)  # until all threads have got here
        return image()

    kernel = doubled(compile_slowly)
    in_threads(8, lambda number: [kernel(*arrays(64 * number)) for _ in range(5)])
    assert len(compiles) == len(fake.named("load")) == len(fake.named("allow_shared")) == 1
    assert len(fake.named("launch")) == 40


# ---- images that the driver rejects
@pytest.mark.parametrize(
    "code, name",
    [
        (200, "CUDA_ERROR_INVALID_IMAGE"),
        (222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION"),
        (209, "CUDA_ERROR_NO_BINARY_FOR_GPU"),
    ],
)
@pytest.mark.parametrize("version", [12080, 13010])
def test_code_that_the_driver_does_not_take_is_an_error_with_its_version(
    fake: FakeDriver, monkeypatch: pytest.MonkeyPatch, code: int, name: str, version: int
) -> None:
    def load(cubin: bytes, entry: str) -> Any:
        raise driver.DriverError("cuLibraryLoadData", code, name)

    fake.cuda = version
    monkeypatch.setattr(current_gpu, "cuda_wheels_major", lambda: version // 1000)
    monkeypatch.setattr(fake, "load", load)
    with pytest.raises(LaunchError, match="run it on an H100 or H200") as caught:
        doubled()(*arrays())
    told, runs = str(caught.value), f"{version // 1000}.{version % 1000 // 10}"
    kernel = "kernel 'doubled' (384 threads, 200000 bytes of shared memory)"
    assert f"{kernel}: cuLibraryLoadData returned {name} ({code})" in told
    assert f"the driver, for CUDA {runs}, does not accept" in told
    assert f'pip install "nvidia-nvjitlink=={runs}.*"' in told


def test_other_failures_of_loading_keep_their_own_advice(
    fake: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(cubin: bytes, entry: str) -> Any:
        raise driver.DriverError("cuLibraryLoadData", 2, "CUDA_ERROR_OUT_OF_MEMORY")

    monkeypatch.setattr(fake, "load", load)
    with pytest.raises(LaunchError, match="out of memory: free arrays") as caught:
        doubled()(*arrays())
    assert "does not take" not in str(caught.value)


def test_a_context_that_was_reset_is_reported(fake: FakeDriver) -> None:
    fake.code = 709
    with pytest.raises(
        LaunchError,
        match=r"kernel 'doubled'.*\(709\): the GPU's primary context was reset while numpipe "
        r"used it",
    ):
        doubled()(*arrays())


# ---- driver calls while another stream may be captured
class Captured:
    """A driver with a stream captured in mode "global".

    Most calls of a thread that is not in relaxed mode end such a capture.
    """

    ALLOWED = ("cuInit", "cuDevice", "cuCtx", "cuThreadExchange", "cuStreamIsCapturing")

    def __init__(self, api: Api) -> None:
        self.mode = "global"
        self.ended_by: list[str] = []
        api.answers["cuThreadExchangeStreamCaptureMode"] = self.exchange
        api.watcher = self.watch

    def exchange(self, mode: str) -> tuple[Any, str]:
        before, self.mode = self.mode, mode
        return OK, before

    def watch(self, call: str) -> None:
        if self.mode != "relaxed" and not call.startswith(self.ALLOWED):
            self.ended_by.append(call)


def with_pools(api: Api) -> None:
    for name in ("CUmemAllocationType", "CUmemLocationType", "CUmemPool_attribute"):
        setattr(api, name, Names())
    api.cuuint64_t = int
    api.CUmemPoolProps = lambda: types.SimpleNamespace(location=types.SimpleNamespace())  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "call",
    [
        lambda cuda: cuda.allocate(64, 7, 0),
        lambda cuda: cuda.free(4096, 7, 0),
        lambda cuda: cuda.lock_pages(4096, 4096, 0),
        lambda cuda: cuda.unlock_pages(4096, 0),
        lambda cuda: cuda.unmark("event", 0),
        lambda cuda: cuda.blank(0, True),
        lambda cuda: cuda.counter(0),
        lambda cuda: cuda.poke(64, b"abc", 0),
        lambda cuda: cuda.reached("event", 0),
    ],
    ids=[
        "allocate",
        "free",
        "lock pages",
        "unlock pages",
        "destroy an event",
        "blank",
        "counter",
        "poke",
        "reached",
    ],
)
def test_asynchronous_driver_calls_do_not_end_another_streams_capture(api: Api, call: Any) -> None:
    captured = Captured(api)
    api.answers |= {"cuEventQuery": (OK,), "cuStreamIsCapturing": (OK, 0)}
    with_pools(api)
    cuda = driver.Driver()
    api.calls.clear()
    call(cuda)
    assert captured.ended_by == [] and captured.mode == "global"
    assert len(api.calls) > 3


def test_counters_are_8_bytes_of_zeros_each_of_memory_that_is_allocated_now_and_then(
    api: Api,
) -> None:
    asked: list[int] = []

    def allocate(nbytes: int, *_: Any) -> Any:
        asked.append(nbytes)
        return OK, 1 << 20 << len(asked)

    def copied(dst: int, src: int, nbytes: int, *_: Any) -> Any:
        assert nbytes == asked[-1] and not any(ctypes.string_at(src, nbytes))
        return (OK,)

    api.answers |= {
        "cuDeviceGetCount": (OK, 2),
        "cuMemAllocFromPoolAsync": allocate,
        "cuMemcpyHtoDAsync": copied,
    }
    with_pools(api)
    cuda = driver.Driver()
    found = [cuda.counter(0) for _ in range(5000)]
    assert (
        len(asked) == 2 == len(api.named("cuMemcpyHtoDAsync"))
        and len({address // 8 for address in found}) == 5000
    )
    assert all(address % 8 == 0 and 1 << 21 <= address < (1 << 22) + asked[1] for address in found)
    assert cuda.counter(1) >= 1 << 23 and len(asked) == 3, "a GPU has its own"


def test_a_call_in_the_strict_mode_would(api: Api) -> None:
    captured = Captured(api)
    driver.Driver().synchronize(7, 0)
    assert captured.ended_by == ["cuStreamSynchronize"]


def test_first_uses_are_made_in_relaxed_capture_mode_and_on_a_stream_of_their_own(api: Api) -> None:
    captured = Captured(api)
    api.answers |= {
        "cuStreamCreate": (OK, 99),
        "cuMemAllocFromPoolAsync": (OK, 4096),
        "cuEventQuery": (OK,),
    }
    with_pools(api)
    cuda = driver.Driver()
    cuda.blank(0, False)
    cuda.poke(64, b"abc", 0)
    cuda.reached("event", 0)
    modes = api.named("cuThreadExchangeStreamCaptureMode")
    assert modes.count(("global",)) == 3 and captured.mode == "global"
    assert api.named("cuStreamCreate") == [(1,)]  # CU_STREAM_NON_BLOCKING
    assert [
        call[-1] for call in api.named("cuMemAllocFromPoolAsync") + api.named("cuMemcpyHtoDAsync")
    ] == [99] * 3
    assert api.named("cuStreamSynchronize") == [(99,)] * 2
    assert not api.named("cuMemcpyHtoD")


def test_memory_is_given_back_when_its_stream_is_no_longer_captured(api: Api) -> None:
    status = {5: 1, 6: 0}
    api.answers["cuStreamIsCapturing"] = lambda stream: (OK, status[stream])
    cuda = driver.Driver()
    cuda.free(64, 5, 0)
    cuda.free(128, 6, 0)
    assert api.named("cuMemFreeAsync") == [(128, 6)]
    status[5] = 0
    cuda.free(256, 6, 0)
    assert api.named("cuMemFreeAsync") == [(128, 6), (64, 5), (256, 6)]
    cuda.free(512, 6, 0)
    assert len(api.named("cuMemFreeAsync")) == 4


def test_the_mode_is_put_back_when_a_call_fails(api: Api) -> None:
    api.answers |= {
        "cuThreadExchangeStreamCaptureMode": (OK, "global"),
        "cuEventQuery": (Result(700),),
    }
    with pytest.raises(driver.DriverError):
        driver.Driver().reached("event", 0)
    assert api.named("cuThreadExchangeStreamCaptureMode")[-1] == ("global",)


@pytest.mark.parametrize(
    "answer, captured",
    [((OK, 0), False), ((OK, 1), True), ((OK, 2), True), ((Result(906), 0), True)],
)
def test_whether_a_stream_is_captured(api: Api, answer: Any, captured: bool) -> None:
    """906: it is the legacy default stream, and a stream that waits for it is captured."""
    api.answers["cuStreamIsCapturing"] = answer
    assert driver.Driver().capturing(0, 0) is captured
    api.answers["cuStreamIsCapturing"] = (Result(400), 0)
    with pytest.raises(driver.DriverError, match=r"cuStreamIsCapturing returned \w+ \(400\)"):
        driver.Driver().capturing(5, 0)


def test_the_gpu_of_a_stream_is_its_contexts(api: Api) -> None:
    api.answers |= {"cuStreamGetCtx": (OK, 55), "cuCtxGetDevice": (OK, 4)}
    assert driver.Driver().stream_device(9) == 4
    asked = ["cuStreamGetCtx", "cuCtxPushCurrent", "cuCtxGetDevice", "cuCtxPopCurrent"]
    assert [call[0] for call in api.calls[-4:]] == asked
    api.answers["cuStreamGetCtx"] = (Result(400), 0)
    with pytest.raises(driver.DriverError, match="cuStreamGetCtx"):
        driver.Driver().stream_device(9)


# ---- driver errors name the kernel
def failing(fake: FakeDriver, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    """Make this method of the driver raise from now on."""

    def fail(*_: Any, **__: Any) -> Any:
        raise driver.DriverError("cuSomething", 709, "CUDA_ERROR_CONTEXT_IS_DESTROYED")

    monkeypatch.setattr(fake, call, fail)


def named(call: Any) -> None:
    with pytest.raises(
        LaunchError, match="^kernel 'doubled': cuSomething returned CUDA_ERROR_CONTEXT_IS_DESTROYED"
    ) as caught:
        call()
    assert type(caught.value) is LaunchError and isinstance(
        caught.value.__cause__, driver.DriverError
    )


def test_what_the_driver_says_of_a_call_names_its_kernel(
    fake: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = doubled(out_type=lambda a: numpipe.ArrayType(a.shape, a.dtype))
    x = launch.DeviceArray((64, 64), np.float32)
    host = np.ones((64, 64), np.float32)
    bound = kernel.bind(host)
    prepared = launch.Prepared(image(), [launch.describe(host, "a")] * 2)
    infos = [launch.describe(host, "a")] * 2
    failing(fake, monkeypatch, "capturing")
    for call in (
        lambda: kernel(host),
        bound,
        lambda: launch.run(prepared, (1, 1, 1), infos, outputs=1),
    ):
        named(call)
    failing(fake, monkeypatch, "allocate")
    for call in (lambda: kernel(x), lambda: kernel.bind(x)):
        named(call)


def test_driver_errors_of_repeated_and_bound_calls_name_the_kernel_too(
    fake: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With several GPUs, a launch first makes a context current."""

    def launcher(ordinal: int) -> Any:
        # looked up at each call
        return lambda config, code, parameters, _: (fake.launch(config, code, parameters, ordinal),)

    monkeypatch.setattr(fake, "launcher", launcher)
    kernel, (x, y) = doubled(), [launch.DeviceArray((64, 64), np.float32) for _ in range(2)]
    bound = kernel.bind(x, y)
    kernel(x, y)
    failing(fake, monkeypatch, "launch")
    for call in (lambda: kernel(x, y), bound, lambda: bound(stream=4096)):
        named(call)
    failing(fake, monkeypatch, "encode_tiled")
    failing(fake, monkeypatch, "config")
    named(lambda: bound(stream=8192))


def test_an_update_of_a_bound_launch_names_its_kernel_too(
    fake: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel, (x, y, z) = doubled(), [launch.DeviceArray((64, 64), np.float32) for _ in range(3)]
    bound = kernel.bind(x, y)
    failing(fake, monkeypatch, "launcher")
    named(lambda: bound.update(a=z))


# ---- fork
CHILD = """
import os, sys
sys.path.insert(0, sys.argv[1])
import numpy as np
from tests.kernels.launch_fakes import FakeDriver
from tests.kernels.launch_kernels import SIZES, arrays, doubled
import numpipe
from numpipe import launch
from numpipe.launch import current_gpu, debug_reports, driver

fake = FakeDriver()
fake.sizes = SIZES
driver._open = lambda: fake
current_gpu.cuda_wheels_major = lambda: 13
kernel = doubled()
host = np.ones((64, 64), np.float32), np.ones((64, 64), np.float32)

def told(call):
    try:
        call()
        return "fine"
    except numpipe.NumpipeError as error:
        return f"{type(error).__name__}: {error}"

def in_a_child(*calls):
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        for call in calls:
            print(told(call))
        sys.stdout.flush()
        os._exit(0)
    os.waitpid(child, 0)

in_a_child(lambda: kernel(*host, target="gpu"))  # nothing has used the GPU
kernel(*arrays())
kernel(*host)
bound = kernel.bind(*arrays())
launches = len(fake.named("launch"))
in_a_child(lambda: kernel(*host, target="sim"),
           lambda: kernel(*arrays()), lambda: kernel(*arrays(64)), lambda: kernel(*host),
           bound, lambda: bound(stream=8),
           lambda: kernel.bind(*arrays()), lambda: kernel(*host, target="gpu"),
           lambda: doubled()(*host), lambda: doubled()(*arrays()),
           numpipe.last_failure, numpipe.last_profile,
           lambda: kernel(*host, target="sim"))
kernel(*arrays())  # the parent goes on
print(len(fake.named("launch")) - launches)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork() here")
def test_a_forked_child_is_refused_the_gpu_that_its_parent_used_and_may_simulate() -> None:
    run = subprocess.run(
        [sys.executable, "-c", CHILD, str(Path(__file__).parents[2])],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "NUMPIPE_COMPILE_CHECK": "0", "NUMPIPE_TARGET": ""},
    )
    assert run.returncode == 0, run.stderr
    before, simulated, *rest, failure, profile, again, parent = run.stdout.splitlines()
    assert (before, simulated, failure, profile, again, parent) == (
        "fine",
        "fine",
        "fine",
        "fine",
        "fine",
        "1",
    )
    for line in rest[:6]:  # kernels that were launched before
        assert line.startswith("LaunchError: kernel 'doubled'"), line
        assert (
            "CUDA_ERROR_NOT_INITIALIZED (3): CUDA does not survive fork()" in line
            and "'spawn'" in line
        )
    for line in rest[6:]:
        assert (
            line.startswith("TargetError: kernel doubled: target=")
            and "forked from one that had used CUDA" in line
        )
        assert "'spawn'" in line and "target='sim'" in line
    assert len(rest) == 9


def test_a_process_whose_parent_used_cuda_through_another_library_gets_the_same_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail() -> Any:
        raise driver.DriverError("cuInit", 3, "CUDA_ERROR_NOT_INITIALIZED")

    monkeypatch.setattr(driver, "_opened", None)
    monkeypatch.setattr(driver, "_open", fail)
    launch.gpu_state.cache_clear()
    try:
        for asked in ("gpu", "auto"):
            with pytest.raises(TargetError, match="forked from one that had used CUDA.*'spawn'"):
                launch.choose_target(asked)
    finally:
        launch.gpu_state.cache_clear()


def test_what_a_parent_opened_fails_in_python_in_a_child(api: Api) -> None:
    cuda = driver.Driver()
    launcher = cuda.launcher
    cuda.abandon()
    api.calls.clear()
    for call in (
        lambda: launcher(0),
        lambda: cuda.synchronize(0, 0),
        lambda: cuda.free(64, 0, 0),
        lambda: cuda.load(b"", "k"),
        lambda: cuda.allocate(64, 0, 0),
        lambda: cuda.lock_pages(0, 64, 0),
        lambda: cuda.capturing(0, 0),
        lambda: cuda.relaunch(201, "config", "kernel", 0, 0, 0),
    ):
        with pytest.raises(driver.DriverError, match="does not survive fork"):
            call()  # type: ignore[no-untyped-call]
    assert not api.calls


def test_a_launcher_for_one_of_several_gpus_fails_in_a_child_too(api: Api) -> None:
    api.answers |= {
        "cuDeviceGetCount": (OK, 2),
        "cuDevicePrimaryCtxRetain": (OK, 100),
        "cuCtxGetCurrent": (OK, 100),
    }
    cuda = driver.Driver()
    launcher = cuda.launcher(0)
    cuda.abandon()
    with pytest.raises(driver.DriverError, match="does not survive fork"):
        launcher("config", "kernel", 64, 0)
    assert not api.named("cuLaunchKernelEx")
