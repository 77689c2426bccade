"""Printed lines and assertions on a Hopper GPU, each in its own process.

printf writes to C's stdout, and a failed assertion takes the CUDA context with it.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import numpipe
from numpipe import CompilerParams
from tests.kernels.refusals import marked
from tests.plan.test_debug import SPOKEN

pytestmark = pytest.mark.gpu

CHILD = """
import sys
sys.path[:0] = sys.argv[1:]
import numpy as np
from tests.kernels.refusals import A, B, C
from numpipe import LaunchError
from tests.plan.test_debug import SPOKEN_ARGS, speaking
from tests.gpu.test_debug_on_gpu import failing, lenient, strict
"""
FAILS = """
for attempt in range(2):
    try:
        {kernel}(A, C, 3, target="gpu")
        print("it ran")
    except LaunchError as error:
        print(error)
"""


def in_a_process_of_its_own(code: str) -> tuple[list[str], str]:
    """Return (lines on stdout, stderr) of a process."""
    command = [sys.executable, "-c", CHILD + code, str(Path(__file__).parents[2])]
    said = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert said.returncode == 0, said.stderr
    return said.stdout.splitlines(), said.stderr


@numpipe.kernel(num_compute_wgs=2)
def failing(a, c, limit):
    numpipe.device_assert(a.shape[0] < limit, "too many rows")  # <-


def with_an_assert(a, c, limit):
    assert a.shape[0] < limit, "too many rows"  # <-


lenient = numpipe.kernel(num_compute_wgs=2)(with_an_assert)
strict = numpipe.kernel(num_compute_wgs=2, compiler_params=CompilerParams(asserts=True))(
    with_an_assert
)


def test_the_lines_match_the_simulators() -> None:
    code = """
c = np.zeros((128, 128), np.float32)
speaking(A, B, c, *SPOKEN_ARGS[3:], target="gpu")
assert (c == 128).all()
"""
    lines, _ = in_a_process_of_its_own(code)
    assert sorted(lines) == sorted(SPOKEN)
    for who in {line.partition("]")[0] for line in SPOKEN}:
        assert [x for x in lines if x.startswith(who)] == [
            x for x in SPOKEN if x.startswith(who)
        ], "in the order of the program"


VALUES = (
    True,
    False,
    0,
    -1,
    2**31 - 1,
    np.int8(-5),
    np.uint16(40000),
    np.int64(-(2**40)),
    np.uint64(2**64 - 1),
    0.1,
    1e30,
    -0.0,
    float("inf"),
    float("nan"),
    np.float16(0.1),
    np.float64(1) / 3,
)


@numpipe.kernel
def printing(c, s, n, x):
    numpipe.debug_print("{}|{:>9}|{:<9}|", s, s, s)
    numpipe.debug_print("{:d}|{:+5d}|{:<6d}|{:06d}|{:x}|{:08X}", n, n, n, n, n, n)
    numpipe.debug_print(
        "{:f}|{:.2f}|{:+9.3f}|{:09.3f}|{:e}|{:.3g}|{:<12g}|{: G}", x, x, x, x, x, x, x, x
    )


def test_every_scalar_is_printed_as_the_simulator_prints_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "0")
    for number, value in enumerate(VALUES):
        printing.simulate(
            np.zeros((64, 64), np.float32), value, np.int32(-3 * number), np.float32(value)
        )
    expected = capsys.readouterr().out.splitlines()
    code = """
from tests.gpu.test_debug_on_gpu import VALUES, printing
for number, value in enumerate(VALUES):
    integer, real = np.int32(-3 * number), np.float32(value)
    printing(np.zeros((64, 64), np.float32), value, integer, real, target="gpu")
"""
    lines, _ = in_a_process_of_its_own(code)
    assert sorted(lines) == sorted(expected)


@pytest.mark.parametrize(
    "name, kernel, statement",
    [
        ("failing", failing, "numpipe.device_assert(a.shape[0] < limit, 'too many rows')"),
        ("strict", strict, "assert a.shape[0] < limit"),
    ],
    ids=["device_assert", "assert with asserts=True"],
)
def test_a_false_condition_fails_the_launch(
    name: str, kernel: numpipe.Kernel, statement: str
) -> None:
    lines, stderr = in_a_process_of_its_own(FAILS.format(kernel=name))
    assert len(lines) == 2 and all(
        f"kernel {kernel.name!r}" in line and "CUDA_ERROR_ASSERT" in line for line in lines
    ), lines
    assert (
        "a device_assert or an assert of a kernel failed" in lines[0]
        and "GPU context is lost" in lines[0]
    )
    place, role = marked(kernel), rf"kernel {kernel.name}, "
    told = [line for line in stderr.splitlines() if line.startswith(f"{place}: {role}")]
    assert told, stderr
    assert all(f"Assertion `{statement}: too many rows` failed" in line for line in told), told


def test_an_assert_is_not_compiled_in_by_default() -> None:
    lines, stderr = in_a_process_of_its_own(FAILS.format(kernel="lenient"))
    assert lines == ["it ran", "it ran"] and "Assertion" not in stderr
