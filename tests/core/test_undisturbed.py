"""Ctrl-C and forks during numpipe's first compile: later calls work."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from numpipe.compile.build import toolchain
from numpipe.core.process_guards import Compiles, uninterrupted
from numpipe.errors import TargetError

compiler = pytest.mark.skipif(toolchain() is not None, reason=f"no compiler: {toolchain()}")
forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")

KERNEL = """
import os, signal, sys, threading
import numpy as np
import numpipe
from numpipe import ArrayType, ds

# a shell ignores the signal in what it starts with a &
signal.signal(signal.SIGINT, signal.default_int_handler)

@numpipe.kernel
def zeros(a, c):
    c[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32)

A, C = ArrayType((64, 128), np.float16), ArrayType((64, 64), np.float32)

class OnImport:
    '''Calls a function when a module is looked for the first time.'''
    def __init__(self, module, then):
        self.module, self.then = module, then
        sys.meta_path.insert(0, self)
    def find_spec(self, name, path=None, target=None):
        if name == self.module:
            sys.meta_path.remove(self)
            self.then()
"""


def run(program: str, tmp_path: Any) -> str:
    """Return the output lines of a program that begin with `KERNEL`."""
    file = tmp_path / "program.py"
    file.write_text(KERNEL + program)
    ran = subprocess.run([sys.executable, file], capture_output=True, text=True, timeout=100)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


# ---- signals -------------------------------------------------------------------------------------
@pytest.fixture(autouse=True)
def _ctrl_c() -> Iterator[None]:
    """Handle Ctrl-C as at a prompt: a shell ignores the signal in commands started with ``&``."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.variants(0, thorough=2)
@compiler
@pytest.mark.parametrize(
    "module",
    [
        "numba.core.targetconfig",
        "numba.cuda.np.arrayobj",
        "numpipe.core.numba.kernel_compiler",
        "numpipe.language.tiles.elementwise_cuda",
    ],
)
def test_ctrl_c_during_the_first_import_of_the_compiler_leaves_it_whole(
    module: str, tmp_path: Any
) -> None:
    assert (
        run(
            f"""
OnImport({module!r}, lambda: signal.raise_signal(signal.SIGINT))
try:
    zeros.compiled(A, C)
except KeyboardInterrupt:
    print("interrupted")
print(zeros.compiled(A, C).image.name)
""",
            tmp_path,
        )
        == "interrupted\nzeros\n"
    )


def test_a_signal_waits_for_the_end_and_is_handled_once() -> None:
    done: list[str] = []
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), uninterrupted(), uninterrupted():
        signal.raise_signal(signal.SIGINT)
        done.append("all")
    assert done == ["all"] and signal.getsignal(signal.SIGINT) is before


def test_an_error_inside_comes_out_and_signals_are_handled_as_before() -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(ImportError), uninterrupted():
        raise ImportError
    assert signal.getsignal(signal.SIGINT) is before


# ---- forks ---------------------------------------------------------------------------------------
FORK = """
def child_compiles(kernel):
    '''Whether a child that is forked now compiles within half a minute.'''
    child = os.fork()
    if not child:
        signal.alarm(30)
        kernel.compiled(A, C)
        os._exit(0)
    return os.waitpid(child, 0)[1] == 0
"""


@compiler
@forks
def test_a_child_has_the_locks_of_kernels_that_threads_of_its_parent_were_in(tmp_path: Any) -> None:
    assert (
        run(
            FORK
            + """
inside, leave = threading.Event(), threading.Event()
def calls():
    with zeros.variant((A, C), {})._lock:
        inside.set()
        leave.wait()
thread = threading.Thread(target=calls)
thread.start()
inside.wait()
print(child_compiles(zeros))
leave.set()
""",
            tmp_path,
        )
        == "True\n"
    )


def in_a_compile_of_another_thread(compiles: Compiles) -> tuple[threading.Thread, threading.Event]:
    begun, end = threading.Event(), threading.Event()

    def compile_() -> None:
        with compiles.one("kernel k"):
            begun.set()
            end.wait()

    thread = threading.Thread(target=compile_)
    thread.start()
    begun.wait()
    return thread, end


def test_a_child_that_was_forked_by_a_compile_may_compile() -> None:
    compiles = Compiles()
    with compiles.one("kernel k"):
        compiles.in_child()
    with compiles.one("kernel k"):
        pass


def test_a_child_of_a_fork_during_another_threads_compile_says_that_it_cannot_compile() -> None:
    compiles = Compiles()
    thread, end = in_a_compile_of_another_thread(compiles)
    compiles.in_child()
    with (
        pytest.raises(
            TargetError,
            match="kernel k: this process was forked during another thread's compile",
        ),
        compiles.one("kernel k"),
    ):
        pass
    end.set()
    thread.join()
