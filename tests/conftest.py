"""Pytest configuration of the whole suite: GPU test files, Hypothesis profiles, shared fixtures.

A kernel that fails or hangs takes the CUDA context of its process with it. Every file of
``tests/gpu`` is therefore a single test item here, which runs pytest on that file in a child
process with a time limit (``NUMPIPE_GPU_TEST_TIMEOUT`` seconds, 300 by default). A GPU test named
on the command line (``pytest tests/gpu/test_x.py::test_y``) runs in this process, for a debugger.

GPU tests spend nearly all of their time compiling, so with ``-n 8`` eight files run at once. A file
may set:

    ALONE = True     no other file runs at the same time: it needs most of the GPU's memory, or
                     all cores
    PROCESSES = 4    its tests are independent kernels, distributed over this many processes
                     (pytest-xdist)

Without a Hopper GPU, each of these files is one skipped test and is not imported; the last lines of
the output say how many files were skipped, and why. ``tests/test_gpu_files.py`` imports them all in
the second stage of .ci/run.
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

# Set before NumPy is imported: the simulator's products are small, and on a busy machine BLAS
# threads that spin while they wait for each other cost twenty times what they save.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# Share compiled kernels between files and runs. Tests of code generation request compiler output
# that is never cached.
os.environ.setdefault(
    "NUMPIPE_CACHE_DIR", str(Path(__file__).parents[1] / ".pytest_cache" / "numpipe")
)

# Profiles set the percentage of a test's examples and schedules to try
# (`kernels.covering.examples`). There is no deadline, so that a busy machine does not fail tests;
# CI draws the same examples each time.
DRAWING: Any = {"deadline": None, "derandomize": "CI" in os.environ}
settings.register_profile("quick", max_examples=20, **DRAWING)
settings.register_profile("thorough", max_examples=50, **DRAWING)
settings.register_profile("all", max_examples=100, **DRAWING)
settings.load_profile("quick")

GPU_TESTS = Path(__file__).parent / "gpu"
SIMULATED = {
    *("language", "hazards", "ops", "misuse", "verify", "sim"),
    *("calls", "examples"),
    *("model", "traces", "frameworks", "docs", "plan"),
}
CHILD = "NUMPIPE_GPU_TEST_CHILD"
TIME_LIMIT = "NUMPIPE_GPU_TEST_TIMEOUT"

# CUresult codes of a machine without a GPU, as opposed to a broken driver
_STUB_LIBRARY, _NO_DEVICE = 34, 100
_MAJOR = 75  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR

# report property that carries the last line of a child's output to the summary
OUTCOME = "numpipe GPU file"


@functools.cache
def why_no_gpu() -> str:
    """Return why GPU tests cannot run on this machine; empty if they can.

    A driver that is installed but broken counts as a GPU: the tests then fail instead of being
    skipped.
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
    """A GPU test file failed; the message is the output of its process."""


class GpuFile(pytest.File):
    """A file of tests/gpu, as collected by the process that does not touch the GPU."""

    def collect(self) -> Iterator[pytest.Item]:
        yield GpuFileItem.from_parent(self, name=self.path.stem)


def said(file: Path, name: str, otherwise: Any) -> Any:
    """Return the value of a module-level constant of a file, without importing the file."""
    for line in ast.parse(file.read_text(encoding="utf8")).body:
        if isinstance(line, ast.Assign) and [ast.unparse(target) for target in line.targets] == [
            name
        ]:
            return ast.literal_eval(line.value)
    return otherwise


@contextlib.contextmanager
def turn(alone: bool, folder: str | None = None) -> Iterator[None]:
    """Hold the GPU for one file (`alone`), or share it with all other files that do not need it
    alone.

    The lock covers all processes of this user.
    """
    import fcntl

    with open(
        Path(folder or tempfile.gettempdir()) / f"numpipe-gpu-tests-{os.getuid()}.lock", "w"
    ) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield


class GpuFileItem(pytest.Item):
    """A test item that runs its file in a child process."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_marker(pytest.mark.gpu)
        self.add_marker(pytest.mark.timeout(0))  # only the child's limit applies

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
    """A file of tests/gpu in the process that runs its tests, or that reports why it cannot."""

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
    """Return how often a shared test runs its kernels: ``REPEATS`` of the collecting file, or
    once."""
    return range(getattr(request.module, "REPEATS", 1))


@pytest.fixture
def runs(request: pytest.FixtureRequest, target: str, again: range) -> list[Callable[..., Any]]:
    """Return functions that run a kernel: ``REPEATS`` runs on the GPU, or a simulation per seed in
    ``SEEDS``.

    Both are constants of the file that collects the test. Without them the test runs once, in the
    model's order.
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
    """Keep simulated calls in the folders of `SIMULATED` from compiling their kernel as well.

    A file that needs the compile sets ``COMPILE_CHECK = True``.
    """
    folders = request.path.relative_to(GPU_TESTS.parent).parts
    if SIMULATED.intersection(folders) and not getattr(request.module, "COMPILE_CHECK", False):
        monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "0")


@pytest.hookimpl(tryfirst=True)  # before -m selects
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

    Its passes over all modules and their syntax trees took a third of the collection time.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def set_apart() -> None:
    """Free the cycles that a file left, and exempt all remaining objects from collection."""
    gc.collect()
    gc.freeze()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Make the garbage collector run rarely while tests run.

    A process of this suite holds millions of objects of Numba and of the test modules, nearly all
    of them until it ends; scanning them repeatedly took a tenth of the run. What exists when a file
    ends is therefore treated as permanent, and the oldest generation is collected by size, not by
    share. The garbage of a test itself is collected as usual.
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
