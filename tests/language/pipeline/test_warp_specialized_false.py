"""Kernels without a memory role: all warpgroups compute, with the registers of the launch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numba import cuda

import numpipe
from numpipe import ArrayType, SpecError, ds
from numpipe.plan.unit import Unit

COMPILE_CHECK = True
ROWS = ArrayType((8, 8), np.float32)
FALSE: dict[str, Any] = {"warp_specialized": False}


def unit(warpgroups: int) -> Unit:
    return Unit("k", (), (), "wg", warpgroups, 0, warp_specialized=False)


@numpipe.kernel(num_compute_wgs=5, grid=(2,), grid_names="m", **FALSE)
def counts(c):
    """Store w to the row block of warpgroup w, but 70 for the second.

    The warpgroup axis steers a loop and a branch.
    """
    wg = numpipe.axis_index("wg")
    x = 0
    for _ in range(wg):
        x = x + 1
    if wg == 1:
        x = 70
    c[ds((numpipe.axis_index("m") * 5 + wg) * 64, 64), ds(0, 64)] = (
        numpipe.zeros((64, 64), np.float32) + x
    )


def test_every_warpgroup_runs_the_kernel_and_has_a_number(target: str, again: range) -> None:
    for _ in again:
        c = np.full((640, 64), np.nan, np.float32)
        counts(c, target=target)
        assert (c == np.repeat([0, 70, 2, 3, 4] * 2, 64)[:, None]).all()


def test_the_warpgroup_axis_steers_what_the_memory_role_would_have_to_follow() -> None:
    with pytest.raises(numpipe.CompileError, match="the warpgroup axis steers control flow"):
        numpipe.kernel(counts.function, num_compute_wgs=5, grid=(2,), grid_names="m")(
            np.zeros((640, 64), np.float32), target="sim"
        )


def test_threads_and_registers_follow_the_launch() -> None:
    registers = {1: 255, 2: 255, 3: 168, 4: 128, 5: 96, 6: 80, 7: 72, 8: 64}
    for warpgroups, expected in registers.items():
        assert (unit(warpgroups).threads, unit(warpgroups).compute_registers) == (
            128 * warpgroups,
            expected,
        )
    built = counts.compiled(ROWS)
    used = built.image.resources
    assert used.threads == 640 and used.compute_registers == 96 and used.memory_registers == 0
    assert ".maxntid 640" in built.ptx


def test_one_warpgroup_by_default() -> None:
    @numpipe.kernel(**FALSE)
    def alone(c):
        c[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32) + numpipe.axis_size("wg")

    c = np.zeros((64, 64), np.float32)
    alone(c, target="sim")
    assert (c == 1).all() and alone.compiled(ROWS).image.threads == 128


@pytest.mark.thorough
def test_the_code_moves_no_registers_and_has_one_role() -> None:
    assert counts.inspect("gate", ROWS) == ()
    assert "setmaxnreg" not in counts.inspect("ptx", ROWS)
    roles = numpipe.kernel(plain_function(), num_compute_wgs=5, grid=(2,), grid_names="m")
    assert "setmaxnreg" in roles.inspect("ptx", ROWS)


def plain_function() -> Any:
    """A kernel function that both kinds of kernels can run."""

    def plain(c):
        c[ds(numpipe.axis_index("m") * 64, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32)

    return plain


def test_the_gate_sees_setmaxnreg_where_there_is_no_memory_role(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from numpipe.compile.check import gate

    built = numpipe.kernel(plain_function(), grid=(2,), grid_names="m").compiled(ROWS)
    monkeypatch.setattr(built.unit, "warp_specialized", False)
    assert any("setmaxnreg without a memory role" in line for line in gate.findings(built))


def test_barriers_of_numba_are_not_checked() -> None:
    @numpipe.kernel(num_compute_wgs=2, **FALSE)
    def synced(c):
        cuda.syncthreads()
        c[ds(numpipe.axis_index("wg") * 64, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32)

    assert "bar.sync" in synced.inspect("ptx", ROWS)


@pytest.mark.parametrize(
    "options, text",
    [
        (
            {"memory_registers": 40},
            "memory_registers=40 is an option of the memory role, which warp_specialized=False "
            "leaves out: leave memory_registers out too",
        ),
        (
            {"num_compute_wgs": 9},
            r"num_compute_wgs must be 1…8 \(a CTA has at most 1024 threads\), got 9",
        ),
        ({"warp_specialized": None}, "warp_specialized must be True or False, got None"),
        (
            {"warp_specialized": True, "compiler_params": numpipe.CompilerParams(ctas_per_sm=2)},
            "ctas_per_sm=2, but the roles of a CTA divide all registers of an SM; fix: pass warp",
        ),
    ],
    ids=["memory_registers", "nine", "none", "ctas_per_sm"],
)
def test_options_that_no_call_could_have(options: dict[str, Any], text: str) -> None:
    with pytest.raises(SpecError, match=text):
        numpipe.kernel(counts.function, **{**FALSE, **options})
