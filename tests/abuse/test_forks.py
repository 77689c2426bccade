"""Children forked at many moments of another thread's first compile: they simulate, and they
compile or say what to do instead."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from numpipe.compile.build import toolchain

pytestmark = [
    pytest.mark.skipif(toolchain() is not None, reason=f"no compiler: {toolchain()}"),
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork"),
]
CALLS = 540_000
"""function calls of the first compile, with the imports of the compiler"""
MOMENTS = 50
PROGRAM = """
import _imp, os, signal, sys, threading, time
import numpy as np
import numpipe
from numpipe import ArrayType, ds

@numpipe.kernel
def compiled(a, c):
    c[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32)

@numpipe.kernel
def other(a, c):
    c[ds(0, 64), ds(0, 64)] = numpipe.full((64, 64), 1, np.float32)

a, c = np.ones((64, 128), np.float16), np.full((64, 64), 5, np.float32)
number, calls = int(sys.argv[1]), 0
reached, forked = threading.Event(), threading.Event()

def profile(frame, event, arg):
    global calls
    if event == "call":
        calls += 1
        # a fork waits for the lock that imports hold for moments
        if calls >= number and not _imp.lock_held():
            sys.setprofile(None)
            reached.set()
            forked.wait()

def compiles():
    compiled.inspect("ptx", a, c)
    reached.set()

def simulates(kernel, value):
    kernel.simulate(a, c)
    assert (c == value).all()

def child(call):
    '''Return what a forked child answers, and the seconds that it takes.'''
    reader, writer = os.pipe()
    if not os.fork():
        begun = time.monotonic()
        signal.alarm(90)
        try:
            call()
            answer = "done"
        except Exception as error:
            answer = f"{type(error).__name__}: {error}"
        os.write(writer, f"{time.monotonic() - begun:.1f} {answer}".encode())
        os._exit(0)
    os.close(writer)
    return reader

threading.setprofile(profile)
thread = threading.Thread(target=compiles)
thread.start()
reached.wait()
for call in (
    lambda: simulates(compiled, 0),
    lambda: simulates(other, 1),
    lambda: compiled.inspect("ptx", a, c),
):
    print(os.read(child(call), 1000).decode() or "it died, or hung")
    os.wait()
forked.set()
thread.join()
print(calls)
"""


@pytest.mark.variants(1, thorough=3)
@pytest.mark.parametrize("moment", range(MOMENTS))
def test_a_child_forked_during_a_first_compile_answers(moment: int, tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM, encoding="utf8")
    ran = subprocess.run(
        [sys.executable, script, str(1 + moment * CALLS // MOMENTS)],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "NUMPIPE_CACHE": "0"},
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    *simulated, compiled, _ = ran.stdout.splitlines()
    assert [each.partition(" ")[2] for each in simulated] == ["done", "done"], ran.stdout
    seconds, _, answer = compiled.partition(" ")
    if answer != "done":
        assert answer.startswith("TargetError: ") and "get_context('spawn')" in answer, ran.stdout
        assert float(seconds) < 5
