"""Several GPUs, several threads, forked children and reset contexts on Hopper GPUs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import LaunchError, launch
from numpipe.launch import driver
from tests.kernels.graph_kernels import step
from tests.kernels.launch_kernels import image
from tests.kernels.threads import in_threads


def counted(monkeypatch: pytest.MonkeyPatch, kernel: Any) -> list[Any]:
    """Count what `kernel` compiles from now on, without the disk cache."""
    from numpipe.compile import build as module

    monkeypatch.setenv("NUMPIPE_CACHE", "0")
    compiled: list[Any] = []
    build = module.build

    def counting(*arguments: Any) -> Any:
        compiled.append(arguments)
        return build(*arguments)

    monkeypatch.setattr(module, "build", counting)
    return compiled


# ---- several GPUs
def test_a_kernel_follows_its_arrays_from_gpu_to_gpu_and_is_compiled_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU")
    kernel = step(grid=numpipe.persistent(), out_type=lambda a: numpipe.ArrayType(a.shape, a.dtype))
    compiled = counted(monkeypatch, kernel)
    for _ in range(3):
        for gpu in range(torch.cuda.device_count()):
            rows = 64 * torch.cuda.get_device_properties(gpu).multi_processor_count
            x = torch.randn(rows, 96, device=f"cuda:{gpu}")
            y = kernel(x)
            assert y.device == x.device and torch.equal(y, x + 1)
    assert torch.cuda.current_device() == 0 and len(compiled) == 1


def test_threads_use_a_gpu_each_at_the_same_time() -> None:
    torch = pytest.importorskip("torch")
    gpus = torch.cuda.device_count()
    kernel = step()

    def work(number: int) -> None:
        x = torch.full((192, 96), float(number), device=f"cuda:{number % gpus}")
        y = torch.zeros_like(x)
        for _ in range(200):
            kernel(x, y)
            kernel(y, x)
        torch.cuda.synchronize(number % gpus)
        assert bool((x == number + 400).all())

    in_threads(8, work)


# ---- threads
def test_a_first_call_from_many_threads_compiles_once_and_is_right_in_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernel = step()
    compiled = counted(monkeypatch, kernel)
    there = [launch.DeviceArray.from_host(np.full((128, 32), n, np.float32)) for n in range(8)]
    results = [launch.DeviceArray((128, 32), np.float32) for _ in there]

    def work(number: int) -> None:
        for _ in range(50):
            kernel(there[number], results[number])

    in_threads(8, work)  # threads that have never used the GPU
    for number, result in enumerate(results):
        np.testing.assert_array_equal(result.copy_to_host(), number + 1)
    assert len(compiled) == 1


class Spy:
    """A wrapper of cuda.bindings.driver that records each failed call."""

    def __init__(self, api: Any) -> None:
        self._api = api
        self.failed: list[tuple[str, str]] = []

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._api, name)
        if not name.startswith("cu") or isinstance(found, type):
            return found

        def call(*arguments: Any) -> Any:
            answer = found(*arguments)
            if int(answer[0]):
                self.failed.append((name, answer[0].name))
            return answer

        return call


def test_a_first_call_in_a_thread_that_has_no_context_provokes_no_error_of_the_driver(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """compute-sanitizer reports each driver error."""
    cuda = driver.get()
    spy = Spy(cuda._api)
    monkeypatch.setattr(cuda, "_api", spy)
    monkeypatch.setattr(cuda, "_launch", spy.cuLaunchKernelEx)
    kernel = step()
    x, y = (launch.DeviceArray((128, 32), np.float32) for _ in range(2))
    in_threads(1, lambda _: [kernel(x, y) for _ in range(3)])
    host = np.ones((128, 32), np.float32)
    in_threads(1, lambda _: kernel(host, np.zeros_like(host)))
    assert spy.failed == []


# ---- fork, reset, images
def said(code: str) -> list[str]:
    """Return the lines that a child process prints."""
    run = subprocess.run(
        [sys.executable, "-c", HEAD + code, str(Path(__file__).parents[2])],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.splitlines()


HEAD = """
import os, sys
sys.path.insert(0, sys.argv[1])
import numpy as np
import numpipe
from tests.kernels.graph_kernels import step
from numpipe import launch
kernel = step()

def told(target=None):
    x, y = np.ones((64, 32), np.float32), np.zeros((64, 32), np.float32)
    try:
        kernel(x, y, target=target)
        return "right" if (y == 2).all() else "wrong"
    except numpipe.NumpipeError as error:
        return f"{type(error).__name__}: {error}"

def child(*targets):
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        for target in targets:
            print(told(target))
        sys.stdout.flush()
        os._exit(0)
    os.waitpid(pid, 0)
"""


def test_a_child_forked_before_any_use_of_the_gpu_uses_it_and_one_forked_after_is_refused() -> None:
    lines = said("""
child("gpu", None)
print(told("gpu"))
child("gpu", None, "sim")
print(told("gpu"))
""")
    assert lines[:3] == ["right"] * 3 and lines[5:] == ["right", "right"]
    for line in lines[3:5]:
        assert "Error: " in line and "fork" in line and "'spawn'" in line, line


def test_a_child_of_a_process_that_used_the_gpu_through_torch_is_refused() -> None:
    pytest.importorskip("torch")
    first, second = said("""
import torch
torch.zeros(1, device="cuda")
child("gpu", "sim")
""")
    assert "TargetError" in first and "'spawn'" in first and second == "right"


def test_a_context_that_was_reset_is_reported() -> None:
    lines = said("""
from cuda.bindings import driver as api
x, y = launch.DeviceArray((64, 32), np.float32), launch.DeviceArray((64, 32), np.float32)
kernel(x, y)
y.copy_to_host()
print(told("gpu"))
api.cuDevicePrimaryCtxReset(0)
print(told("gpu"))
try:
    kernel(x, y)
    print("launched")
except numpipe.NumpipeError as error:
    print(f"{type(error).__name__}: {error}")
""")
    assert lines[0] == "right" and len(lines) == 3
    for line in lines[1:]:
        assert line.startswith("LaunchError: kernel 'step'") and "reset" in line, line


def test_code_that_the_driver_rejects_is_reported_with_its_version() -> None:
    a, c = (
        launch.describe(array, "a") for array in (launch.DeviceArray((64, 64), np.float32),) * 2
    )
    prepared = launch.Prepared(image(cubin=b"no machine code" * 100), [a, c])
    major, minor = driver.get().version() // 1000, driver.get().version() % 1000 // 10
    with pytest.raises(
        LaunchError,
        match=rf"kernel 'doubled'.*the driver, for CUDA {major}\.{minor}, does not accept the 1500 "
        r"bytes",
    ):
        prepared((1, 1, 1), [a, c])
