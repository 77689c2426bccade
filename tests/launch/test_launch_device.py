"""Which GPU is found, which target a call uses, and the output of `python -m numpipe info`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from numpipe import __main__ as command
from numpipe import launch
from numpipe.errors import SpecError, TargetError
from numpipe.launch import current_gpu, driver
from tests.kernels.launch_fakes import FakeDriver, pretended, raising

MACHINES: dict[str, Callable[[], Any]] = {
    "ok": lambda: FakeDriver(2, gpus=(("NVIDIA A100", (8, 0)), ("NVIDIA H200", (9, 0)))),
    "no binding": raising(
        driver.DriverMissing("the package cuda-bindings is not installed (no module)")
    ),
    "no driver": raising(driver.DriverMissing("libcuda was not found (DynamicLibNotFoundError)")),
    "no gpu": raising(driver.DriverError("cuInit", 100, "CUDA_ERROR_NO_DEVICE")),
    "hidden": lambda: FakeDriver(0),
    "stub": raising(driver.DriverError("cuInit", 34, "CUDA_ERROR_STUB_LIBRARY")),
    "a100": lambda: FakeDriver(1, gpus=(("NVIDIA A100", (8, 0)),)),
    "blackwell": lambda: FakeDriver(1, gpus=(("NVIDIA B200", (10, 0)),)),
    "broken": raising(driver.DriverError("cuInit", 999, "CUDA_ERROR_UNKNOWN")),
    "mismatch": raising(driver.DriverError("cuInit", 803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH")),
    "cuda 12": lambda: FakeDriver(1, version=12080),
}


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    with pretended(monkeypatch, MACHINES) as become:
        yield become


def test_the_first_hopper_gpu_is_found_among_others(machine: Callable[[str], None]) -> None:
    machine("ok")
    assert launch.gpu_state().device == launch.Device(1, "NVIDIA H200", (9, 0), 132, 13000, 232448)


@pytest.mark.parametrize(
    "name, status, reason, fix",
    [
        ("no binding", "none", "cuda-bindings is not installed", 'pip install "numba-cuda[cu13]"'),
        ("no driver", "none", "libcuda was not found", "install NVIDIA's driver"),
        ("no gpu", "none", "CUDA_ERROR_NO_DEVICE", "CUDA_VISIBLE_DEVICES"),
        ("hidden", "none", "sees no GPU", "CUDA_VISIBLE_DEVICES"),
        ("stub", "none", "the toolkit's stub", ""),
        ("a100", "unsupported", "NVIDIA A100 (sm_80)", "Hopper"),
        ("blackwell", "unsupported", "NVIDIA B200 (sm_100)", "Hopper"),
        ("broken", "broken", "CUDA_ERROR_UNKNOWN (999)", "nvidia-smi"),
        (
            "mismatch",
            "broken",
            "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (803): the kernel module and libcuda",
            "nvidia-smi",
        ),
        (
            "cuda 12",
            "old_driver",
            "supports CUDA 12.8 and the installed CUDA wheels are for CUDA 13",
            "13.0 or newer (R580), or change the wheels: pip uninstall -y nvidia-nvvm",
        ),
    ],
)
def test_states(
    machine: Callable[[str], None], name: str, status: str, reason: str, fix: str
) -> None:
    machine(name)
    state = launch.gpu_state()
    assert (state.status, state.device) == (status, None)
    assert reason in state.reason and fix in state.fix


def test_a_cuda_12_driver_is_fine_with_cuda_12_wheels(
    machine: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine("cuda 12")
    monkeypatch.setattr(current_gpu, "cuda_wheels_major", lambda: 12)
    assert launch.gpu_state().status == "ok"


WITHOUT = ["no binding", "no driver", "no gpu", "hidden", "stub", "a100", "blackwell"]
BROKEN = ["broken", "mismatch", "cuda 12"]


def test_auto_takes_the_gpu(machine: Callable[[str], None]) -> None:
    machine("ok")
    choice = launch.choose_target()
    assert (choice.target, choice.fallback) == ("gpu", False) and choice.device is not None


@pytest.mark.parametrize("name", WITHOUT)
def test_auto_simulates_without_a_gpu_and_says_it_is_a_fallback(
    machine: Callable[[str], None], name: str
) -> None:
    machine(name)
    choice = launch.choose_target("auto")
    assert (choice.target, choice.fallback, choice.device) == ("sim", True, None)
    assert launch.gpu_state().reason in choice.why


@pytest.mark.parametrize("asked", ["auto", "gpu", None])
@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_driver_never_falls_back(
    machine: Callable[[str], None], name: str, asked: str | None
) -> None:
    machine(name)
    with pytest.raises(TargetError) as caught:
        launch.choose_target(asked)
    assert launch.gpu_state().fix in str(caught.value)


@pytest.mark.parametrize("name", WITHOUT)
def test_asking_for_a_gpu_that_is_missing_is_an_error(
    machine: Callable[[str], None], name: str
) -> None:
    machine(name)
    with pytest.raises(TargetError, match="target='gpu': the GPU cannot be used"):
        launch.choose_target("gpu")


@pytest.mark.parametrize("name", ["ok", *WITHOUT, *BROKEN])
def test_asking_for_the_simulator_asks_no_driver(machine: Callable[[str], None], name: str) -> None:
    machine(name)
    choice = launch.choose_target("sim")
    assert (choice.target, choice.fallback) == ("sim", False)
    assert launch.gpu_state.cache_info().misses == 0


def test_the_environment_decides_where_the_call_does_not(
    machine: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine("ok")
    monkeypatch.setenv("NUMPIPE_TARGET", "sim")
    assert launch.choose_target().target == "sim"
    assert launch.choose_target("gpu").target == "gpu"
    monkeypatch.setenv("NUMPIPE_TARGET", "")
    assert launch.choose_target().target == "gpu"


def test_another_word_is_refused_with_where_it_came_from(
    machine: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SpecError, match="target is 'cuda'; use one of 'auto', 'gpu', 'sim'"):
        launch.choose_target("cuda")
    monkeypatch.setenv("NUMPIPE_TARGET", "cpu")
    with pytest.raises(SpecError, match="NUMPIPE_TARGET is 'cpu'"):
        launch.choose_target()


# ---- python -m numpipe
def lines(capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    assert command.main(["info"]) == 0
    return dict(line.split("  ", 1) for line in capsys.readouterr().out.splitlines())


def test_info_on_a_hopper_machine(
    machine: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    machine("ok")
    said = {what: value.strip() for what, value in lines(capsys).items()}
    assert (
        said["GPU"] == "NVIDIA H200 (device 1)"
        and said["compute capability"] == "9.0"
        and said["SMs"] == "132"
    )
    assert said["driver"] == "CUDA 13.0" and said["target"] == "gpu (NVIDIA H200, sm_90a, 132 SMs)"
    assert {
        "python",
        "numpy",
        "numba",
        "numba-cuda",
        "cuda-core",
        "cuda-bindings",
        "ml_dtypes",
        "greenlet",
        "nvidia-nvvm",
        "nvidia-nvjitlink",
        "numpipe",
    } <= set(said)


def test_info_on_a_broken_machine_says_what_fixes_it(
    machine: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    machine("cuda 12")
    said = lines(capsys)
    assert (
        "CUDA 12.8" in said["GPU"]
        and "R580" in said["to use one"]
        and "TargetError" not in said["target"]
    )
    assert said["target"].strip().startswith("none: target='auto': the GPU cannot be used")


def test_info_with_nothing_installed(
    machine: Callable[[str], None],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def absent(name: str) -> str:
        raise command.importlib.metadata.PackageNotFoundError(name)

    machine("no binding")
    monkeypatch.setattr(command.importlib.metadata, "version", absent)
    said = lines(capsys)
    assert said["numba-cuda"].strip() == said["numpipe"].strip() == "not installed"
    assert said["target"].strip().startswith("sim (no usable GPU")


def test_the_command_runs_and_explains_itself() -> None:
    def run(*arguments: str) -> str:
        return subprocess.run(
            [sys.executable, "-m", "numpipe", *arguments],
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    assert "info" in run("--help")
    assert "target" in run("info")
