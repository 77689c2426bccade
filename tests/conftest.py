"""How the suite runs.

A kernel that fails or hangs takes the CUDA context of its process with it, so every file of
``tests/gpu`` is one test item here: a pytest of its own in a child process, under a time limit
(``NUMPIPE_GPU_TEST_TIMEOUT`` seconds, 300). Asked for by name (``pytest
tests/gpu/test_x.py::test_y``) a GPU test runs in this process, for a debugger.

Nearly all of their time is compiling. So with ``-n 8`` eight files run at once, and a file may say
of itself:

    ALONE = True     no other file runs beside it: it takes most of the GPU's memory, or all cores
    PROCESSES = 4    its tests are independent kernels, shared out to so many processes
                     (pytest-xdist)

Without a Hopper GPU each of these files is one skipped test, and is not imported; the last lines
say how many files were skipped, and why. ``tests/test_gpu_files.py`` imports them all in the second
stage of .ci/run.
"""

from __future__ import annotations

import ast
import contextlib
import ctypes
import functools
import gc
import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests.kernels.variants import left

# before NumPy is imported: the simulator's products are small, and BLAS threads that spin for each
# other on a busy machine cost twenty times what they save
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# files and runs share what they compile; tests of code generation ask for what a compile leaves,
# which is never kept
os.environ.setdefault(
    "NUMPIPE_CACHE_DIR", str(Path(__file__).parents[1] / ".pytest_cache" / "numpipe")
)

# the percentage of a test's examples and schedules that are tried (`kernels.covering.examples`)
# A busy machine is no failure; CI draws the same examples each time, everybody else new ones
DRAWING: Any = {"deadline": None, "derandomize": "CI" in os.environ}
settings.register_profile("quick", max_examples=20, **DRAWING)
settings.register_profile("thorough", max_examples=50, **DRAWING)
settings.register_profile("all", max_examples=100, **DRAWING)
settings.load_profile("quick")

GPU_TESTS = Path(__file__).parent / "gpu"
SIMULATED = {
    *("language", "hazards", "ops", "misuse", "verify"),
    *("model", "traces", "frameworks", "docs", "plan"),
}
CHILD = "NUMPIPE_GPU_TEST_CHILD"
TIME_LIMIT = "NUMPIPE_GPU_TEST_TIMEOUT"

# CUresult of a machine that has no GPU, as opposed to a broken driver
_STUB_LIBRARY, _NO_DEVICE = 34, 100
_MAJOR = 75  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR

# the property of a report that carries a child's last line to the summary
OUTCOME = "numpipe GPU file"


@functools.cache
def why_no_gpu() -> str:
    """Why GPU tests cannot run on this machine; empty if they can.

    A driver that is there but broken counts as a GPU: the tests then fail instead of vanishing.
    """
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "no NVIDIA driver on this machine (libcuda.so.1 not found)"
    status = driver.cuInit(0)
    if status in (_STUB_LIBRARY, _NO_DEVICE):
        return f"no GPU on this machine (cuInit returned {status})"
    count, major = ctypes.c_int(), ctypes.c_int()
    if status == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value == 0:
        return "no GPU on this machine"
    if (
        status == 0
        and driver.cuDeviceGetAttribute(ctypes.byref(major), _MAJOR, 0) == 0
        and major.value != 9
    ):
        return f"GPU 0 is of compute capability {major.value}.x, numpipe compiles for 9.0a (Hopper)"
    return ""


class GpuTestsFailed(Exception):
    """A GPU test file failed; the message is what its process printed."""


class GpuFile(pytest.File):
    """A file of tests/gpu, seen from the process that does not touch the GPU."""

    def collect(self) -> Iterator[pytest.Item]:
        yield GpuFileItem.from_parent(self, name=self.path.stem)


def said(file: Path, name: str, otherwise: Any) -> Any:
    """The value of a constant of a file, which is not imported: that is for its own process."""
    for line in ast.parse(file.read_text(encoding="utf8")).body:
        if isinstance(line, ast.Assign) and [ast.unparse(target) for target in line.targets] == [
            name
        ]:
            return ast.literal_eval(line.value)
    return otherwise


@contextlib.contextmanager
def turn(alone: bool, folder: str | None = None) -> Iterator[None]:
    """The GPU belongs to one file, or to all that share it, whichever processes of this user run
    them."""
    import fcntl

    with open(
        Path(folder or tempfile.gettempdir()) / f"numpipe-gpu-tests-{os.getuid()}.lock", "w"
    ) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield


class GpuFileItem(pytest.Item):
    """Runs its file in a process of its own."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_marker(pytest.mark.gpu)
        self.add_marker(pytest.mark.timeout(0))  # the child's limit is the one that counts

    def runtest(self) -> None:
        limit = float(os.environ.get(TIME_LIMIT, "300"))
        command = [
            sys.executable,
            "-m",
            "pytest",
            str(self.path),
            "-v",
            "--color=no",
            "-p",
            "no:cacheprovider",
        ]
        if importlib.util.find_spec("xdist"):
            processes = min(said(self.path, "PROCESSES", 1), os.cpu_count() or 1)
            command += [f"-n{processes if processes > 1 else 0}", "--dist=load"]
        if importlib.util.find_spec("pytest_timeout"):
            # a signal does not interrupt a wait inside the driver
            command.append("--timeout-method=thread")
        with (
            turn(said(self.path, "ALONE", False)),
            tempfile.TemporaryFile("w+", errors="replace") as log,
        ):
            child = subprocess.Popen(
                command,
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                cwd=self.config.rootpath,
                env=os.environ | {CHILD: "1"},
                start_new_session=True,
            )
            try:
                status, how = child.wait(limit), "failed"
            except subprocess.TimeoutExpired:
                status = -1
                how = (
                    f"still ran after {limit:.0f} s ({TIME_LIMIT}): a hung kernel, or too short a "
                    "limit"
                )
            finally:
                if child.poll() is None:
                    os.killpg(child.pid, signal.SIGKILL)
                    child.wait()
            log.seek(0)
            output = log.read()
        last = output.strip().splitlines()[-1].strip("= ") if output.strip() else "no output"
        self.user_properties.append(
            (OUTCOME, f"{self.path.name}: {last if status == 0 else 'FAILED'}")
        )
        if status == pytest.ExitCode.NO_TESTS_COLLECTED:
            raise GpuTestsFailed(f"{self.path.name} holds no test")
        if status != 0:
            raise GpuTestsFailed(f"{self.path.name} {how}\n\n{output}")

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        if isinstance(excinfo.value, GpuTestsFailed):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, 0, f"[GPU] {self.path.name}"


class GpuModule(pytest.Module):
    """A file of tests/gpu in the process that runs its tests, or that says why it cannot."""

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        pytest.importorskip("cuda.bindings", reason="the CUDA wheels are not installed")
        return super().collect()


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> Any:
    if not module_path.is_relative_to(GPU_TESTS):
        return None
    asked = [arg.split("::")[0] for arg in parent.config.args if "::" in arg]
    here = os.environ.get(CHILD) or module_path.name in {Path(arg).name for arg in asked}
    return (GpuModule if here else GpuFile).from_parent(parent, path=module_path)


@pytest.fixture
def target(request: pytest.FixtureRequest) -> str:
    """Return where a test shared with tests/gpu runs its kernels: "gpu" there, else "sim"."""
    return "gpu" if request.path.is_relative_to(GPU_TESTS) else "sim"


@pytest.fixture
def again(request: pytest.FixtureRequest) -> range:
    """How often such a test runs them: ``REPEATS`` of the file that collects it, or once."""
    return range(getattr(request.module, "REPEATS", 1))


@pytest.fixture
def runs(request: pytest.FixtureRequest, target: str, again: range) -> list[Callable[..., Any]]:
    """Functions that run a kernel: on the GPU ``REPEATS`` of them, else a simulation for each of
    ``SEEDS``.

    Both are constants of the file that collects the test; without them it runs once, in the model's
    order.
    """

    def on_gpu(kernel: Any, *args: Any, **statics: Any) -> Any:
        return kernel(*args, target="gpu", **statics)

    def simulated(seed: int | None) -> Callable[..., Any]:
        return lambda kernel, *args, **statics: kernel.simulate(*args, seed=seed, **statics)

    if target == "gpu":
        return [on_gpu for _ in again]
    return [simulated(seed) for seed in getattr(request.module, "SEEDS", (None,))]


@pytest.fixture(autouse=True)
def _simulations_do_not_compile(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keep simulated calls from compiling their kernel as well, in the folders of `SIMULATED`.

    A file that needs the compile sets ``COMPILE_CHECK = True``.
    """
    folders = request.path.relative_to(GPU_TESTS.parent).parts
    if SIMULATED.intersection(folders) and not getattr(request.module, "COMPILE_CHECK", False):
        monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "0")


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item, mark in left(item for item in items if not item.path.is_relative_to(GPU_TESTS)):
        item.add_marker(mark)
    reason = why_no_gpu()
    for item in items:
        if item.path.is_relative_to(GPU_TESTS):
            item.add_marker(pytest.mark.gpu)
        if reason and item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Turn the garbage collector off while tests are collected.

    It would go through all modules and the syntax trees of their files again and again, which was a
    third of the time.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def set_apart() -> None:
    """Free what a file left in cycles, and take what lives on out of the collector's sight."""
    gc.collect()
    gc.freeze()


def pytest_collection_finish(session: pytest.Session) -> None:
    """A process of this suite holds millions of objects, nearly all of them until it ends, of Numba
    and of the tests' modules.

    Going through them again and again was a tenth of the run, so what there is when a file ends
    counts as permanent, and the oldest generation is collected by size, not by share. A test's own
    garbage is collected as ever.
    """
    gc.set_threshold(20_000, 10, 10)
    set_apart()


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    if nextitem is not None and nextitem.path != item.path:
        set_apart()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    reports = [
        report
        for status in ("passed", "failed")
        for report in terminalreporter.stats.get(status, [])
    ]
    for report in reports:
        for name, line in report.user_properties:
            if name == OUTCOME and report.when == "call":
                terminalreporter.write_line(f"GPU {line}")
    if count := sum(
        "gpu" in getattr(report, "keywords", ())
        for report in terminalreporter.stats.get("skipped", [])
    ):
        terminalreporter.write_line(f"GPU tests: {count} files skipped: {why_no_gpu()}")
