"""Environments: malformed values of each variable that numpipe reads, and missing folders.

A variable that is read when needed is set in this process; variables read at import, or that affect
a whole process, are tested in a child process.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe.compile import cache
from numpipe.compile.build import toolchain
from numpipe.diagnostics import log
from numpipe.errors import TargetError
from numpipe.launch import choose_target, controls, copy_threads, current_gpu, debug_reports, pinned
from tests.abuse.arguments import ROOT, doubled
from tests.abuse.rule import LIMIT, answered

X, Y = np.ones((64, 64), np.float32), np.zeros((64, 64), np.float32)


def simulated() -> None:
    doubled.simulate(X, Y)
    assert Y[0, 0] == 2


def cached() -> None:
    """Use the cache in a folder that cannot exist: at most a warning is allowed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert cache.passed("a" * 64, lambda: None) is None


REFUSED: list[tuple[str, tuple[str, ...], Callable[[], Any]]] = [
    ("NUMPIPE_TARGET", ("cpu", "GPU", " ", "sim ", "1"), choose_target),
    ("NUMPIPE_TARGET", ("cuda",), lambda: doubled(X, Y)),
    ("NUMPIPE_JIT", ("yes", "ALLOW", "0"), lambda: numpipe.kernels.jit.check(doubled, None, None)),  # type: ignore[arg-type]
    ("NUMPIPE_LOG", ("loud", "compile,loud", "1"), lambda: log.on("compile")),
    (
        "NUMPIPE_DEBUG_TIMEOUT",
        ("", "soon", "0", "-1", "nan", "inf", "1e9", "2 s"),
        debug_reports.limit,
    ),
    ("NUMPIPE_PEER_TIMEOUT", ("", "soon", "0", "-1", "nan", "inf", "1e9"), controls.patience),
    ("NUMPIPE_PINNED_BYTES", ("1e9", "-1", "1 GiB", "nan", "9" * 5000), pinned.limit.__wrapped__),
    (
        "NUMPIPE_COPY_THREADS",
        ("0", "-1", "many", "1.5", "9" * 5000),
        copy_threads.count.__wrapped__,
    ),
]
"""variables whose words are checked where they are read"""
ALLOWED: list[tuple[str, tuple[str, ...], Callable[[], Any]]] = [
    ("NUMPIPE_COMPILE_CHECK", ("", "no", "2"), simulated),
    ("NUMPIPE_TRACEBACK", ("", "all", "FULL"), simulated),
    ("NUMPIPE_CACHE", ("", "no", "-1"), cached),
    ("NUMPIPE_CACHE_DIR", ("/dev/null", "/proc/nowhere", "~nobody/x", "\\", "n" * 300), cached),
]
"""variables in which each word has a meaning"""


@pytest.mark.parametrize(
    "variable, value, call",
    [
        pytest.param(variable, value, call, id=f"{variable}={value[:12]}")
        for variable, values, call in REFUSED
        for value in values
    ],
)
def test_a_malformed_variable_is_refused_by_its_name(
    variable: str, value: str, call: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    answered(call, variable.replace("TARGET", ""), value[:50])


@pytest.mark.parametrize(
    "variable, value, call",
    [
        pytest.param(variable, value, call, id=f"{variable}={value[:12]}")
        for variable, values, call in ALLOWED
        for value in values
    ],
)
def test_other_words_change_nothing(
    variable: str,
    value: str,
    call: Callable[[], Any],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NUMPIPE_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv(variable, value)
    call()


# ---- child processes
PROGRAM = textwrap.dedent("""
    import sys, warnings
    warnings.simplefilter("ignore")
    import numpy as np
    import numpipe

    @numpipe.kernel
    def doubled(x, y):
        y[numpipe.ds(0, 64), numpipe.ds(0, 64)] = x[numpipe.ds(0, 64), numpipe.ds(0, 64)] * 2.0

    x, y = np.ones((64, 64), np.float32), np.zeros((64, 64), np.float32)
    def tried(call):
        try:
            return call() or "done"
        except numpipe.NumpipeError as error:
            return f"{type(error).__name__}: {error}".splitlines()[0]
    told = [tried(lambda: doubled.simulate(x, y)), str(y[0, 0]), *(tried(call) for call in (
        lambda: doubled(x, y), lambda: numpipe.explain(doubled, x, y, compiled=False) and None))]
    if len(sys.argv) > 2:
        told.append(tried(lambda: doubled.inspect("sass", x, y) and None))
    out = open(sys.argv[1], "w", encoding="utf8")
    out.write("\\n".join(told))
""")


def as_given(**variables: str) -> dict[str, Any]:
    return {"env": variables}


def without(*names: str) -> dict[str, Any]:
    return {"env": dict.fromkeys(names)}


CHILDREN: dict[str, dict[str, Any]] = {
    "NUMBA_ENABLE_CUDASIM": as_given(NUMBA_ENABLE_CUDASIM="1"),
    "NUMBA_CUDA_DEBUGINFO": as_given(NUMBA_CUDA_DEBUGINFO="1"),
    "NUMBA_DISABLE_JIT": as_given(NUMBA_DISABLE_JIT="1"),
    "NUMBA_OPT": as_given(NUMBA_OPT="no number"),
    "NUMBA_DEBUG_CACHE": as_given(NUMBA_DEBUG_CACHE="x"),
    "NUMBA_CACHE_DIR": as_given(NUMBA_CACHE_DIR="/proc/nowhere"),
    "NUMBA_CUDA_DRIVER": as_given(NUMBA_CUDA_DRIVER="/nowhere/libcuda.so"),
    "NUMBA_FULL_TRACEBACKS": as_given(NUMBA_FULL_TRACEBACKS="1"),
    "CUDA_VISIBLE_DEVICES": as_given(CUDA_VISIBLE_DEVICES="-1,x"),
    "CUDA_HOME": as_given(CUDA_HOME="/nowhere"),
    "CUDA_PATH": as_given(CUDA_PATH=os.devnull),
    "LD_LIBRARY_PATH": as_given(LD_LIBRARY_PATH="/nowhere::[*"),
    "no home": {"env": {"HOME": "/nowhere", "XDG_CACHE_HOME": None, "NUMPIPE_CACHE_DIR": None}},
    "no variables": without(
        "HOME", "XDG_CACHE_HOME", "NUMPIPE_CACHE_DIR", "PATH", "LANG", "USER", "LOGNAME"
    ),
    "an ASCII locale": as_given(
        LC_ALL="C", PYTHONIOENCODING="ascii", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0"
    ),
    "no such locale": as_given(LC_ALL="xx_YY.UTF-9"),
    "no path of programs": as_given(PATH=""),
    "a deleted working directory": {"deleted": True},
    "no standard output": {"closed": 1},
    "no standard error": {"closed": 2},
    "no standard input": {"closed": 0},
    "optimised Python": {"flags": ["-O"]},
    "Python without docstrings": {"flags": ["-OO"]},
    "warnings are errors of numpipe": {"flags": ["-W", "error::DeprecationWarning"]},
    "no hash seed": as_given(PYTHONHASHSEED="0"),
    "no home of temporary files": as_given(TMPDIR="/nowhere"),
    "a cache that is a file": as_given(NUMPIPE_CACHE_DIR="/etc/passwd"),
    "a cache in a folder of nobody's": as_given(NUMPIPE_CACHE_DIR="/proc/1"),
}


def run(name: str, folder: Path) -> tuple[subprocess.CompletedProcess[str], str]:
    options, place, out = CHILDREN[name], folder / name.replace(" ", "_"), folder / f"{name}.txt"
    place.mkdir()
    script = place.with_suffix(".py")
    script.write_text(PROGRAM, encoding="utf8")
    paths = [str(ROOT), *filter(os.path.isabs, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "NUMPIPE_TARGET": "auto",
        "NUMPIPE_CACHE_DIR": str(folder / "cache"),
        "NUMPIPE_COMPILE_CHECK": "0",
        **options.get("env", {}),
    }
    command = [sys.executable, *options.get("flags", ()), str(script), str(out)]
    if name.startswith(("NUMBA", "CUDA_", "a deleted")) and "DEVICES" not in name:
        command.append("compile too")
    shell = " ".join(f"'{part}'" for part in command)
    if options.get("deleted"):
        script.write_text("import os\nos.rmdir(os.getcwd())\n" + PROGRAM, encoding="utf8")
    if "closed" in options:
        command = ["/bin/sh", "-c", f"exec {shell} {options['closed']}>&-"]
    ran = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        cwd=place,
        env={key: value for key, value in env.items() if value is not None},
    )
    return ran, out.read_text(encoding="utf8") if out.exists() else ""


@pytest.mark.variants(1, thorough=5)
@pytest.mark.parametrize("name", CHILDREN)
def test_a_process_simulates_and_answers_in_its_environment(name: str, tmp_path: Path) -> None:
    ran, told = run(name, tmp_path)
    assert ran.returncode == 0 and "Traceback" not in ran.stderr, ran.stderr
    lines = told.split("\n")
    assert lines[:2] == ["done", "2.0"], told
    ends = {line.partition(":")[0] for line in lines[2:]}
    assert ends <= {"done", "TargetError", "CompileError", "SpecError"} and all(
        line == "done" or ":" in line for line in lines[2:]
    ), told


def test_without_a_driver_a_gpu_is_refused_and_auto_simulates(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    state = current_gpu.gpu_state()
    if state.status == "ok":
        pytest.skip("there is a GPU")
    monkeypatch.setenv("NUMPIPE_TARGET", "gpu")
    with pytest.raises(TargetError, match="the GPU cannot be used"):
        doubled(X, Y)


@pytest.mark.skipif(toolchain() is not None or not shutil.which("env"), reason="no compiler")
def test_without_a_disassembler_sass_is_refused_with_what_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert LIMIT
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    try:
        assert "MOV" in doubled.inspect("sass", X, Y)
    except numpipe.NumpipeError as error:
        assert "nvdisasm" in str(error)
