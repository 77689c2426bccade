"""Debugging kernels: printed lines, assertions, breakpoints.

tests/gpu/test_debug_on_gpu.py compares the GPU's output with this file's.
"""
# ruff: noqa: F841 (kernels that are wrong on purpose)

from __future__ import annotations

import ctypes
import io
import math
import pdb
import re
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import numpipe
from numpipe import BlockSpec, CompileError, CompilerParams, SimulationError, SpecError, ds
from numpipe.diagnostics.format import Field, kind_of, parse, render
from tests.kernels.refusals import EXECUTIONS, A, B, C, marked

HERE = Path(__file__).resolve()


@pytest.fixture(autouse=True)
def _each_execution_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "0")


# ---- formats -------------------------------------------------------------------------------------
def printed(format: str, *values: Any) -> str:
    given = iter(values)
    return "".join(
        render(part, next(given)) if isinstance(part, Field) else part for part in parse(format)
    )


@pytest.mark.parametrize(
    "format, value, expected",
    [
        ("{}", 3, "3"),
        ("{}", np.int32(-3), "-3"),
        ("{}", True, "True"),
        ("{}", np.bool_(False), "False"),
        ("{}", "f16", "f16"),
        ("{}", 0.5, "0.5"),
        ("{}", np.float32(0.1), "0.1"),
        ("{}", 1e20, "1e+20"),
        ("{}", float("-inf"), "-inf"),
        ("{}", ml_dtypes.bfloat16(1.5), "1.5"),
        ("{}", np.float16(2), "2"),
        ("{:5}", True, " True"),
        ("{:<6}|", True, "True  |"),
        ("{:5d}", 42, "   42"),
        ("{:<5d}|", 42, "42   |"),
        ("{:05d}", -42, "-0042"),
        ("{:+d}", 42, "+42"),
        ("{:d}", True, "1"),
        ("{:x}", 255, "ff"),
        ("{:08X}", np.int32(48879), "0000BEEF"),
        ("{:x}", np.int32(-1), "ffffffff"),
        ("{:x}", -1, "ffffffff"),
        ("{:x}", np.int64(-1), "ffffffffffffffff"),
        ("{:x}", np.int8(-1), "ffffffff"),
        ("{:.3f}", 0.5, "0.500"),
        ("{:8.2f}", np.float32(3.14159), "    3.14"),
        ("{:f}", 2, "2.000000"),
        ("{:e}", 12345.678, "1.234568e+04"),
        ("{:.3g}", 12345.678, "1.23e+04"),
        ("{:06.1f}", float("nan"), "   nan"),
        ("{{{}}} 100%", 3, "{3} 100%"),
    ],
)
def test_a_value_is_printed_as(format: str, value: Any, expected: str) -> None:
    assert printed(format, value) == expected


@pytest.mark.skipif(
    sys.platform == "win32", reason="the C library's snprintf is not exported by the process"
)
@given(
    st.sampled_from(["", "<", ">"]),
    st.sampled_from(["", "+", " "]),
    st.sampled_from(["", "0"]),
    st.sampled_from(["", "1", "7", "12"]),
    st.sampled_from(["", ".0", ".2", ".11"]),
    st.sampled_from(["", *"dxXfeEgG"]),
    st.one_of(st.integers(-(2**31), 2**31 - 1), st.floats(), st.floats(width=32)),
)
def test_a_number_is_printed_as_c_prints_it(
    align: str, sign: str, zero: str, width: str, precision: str, letter: str, value: Any
) -> None:
    """The GPU's printf is C's: a field must print the same text there and here."""
    try:
        (field,) = parse(f"{{:{align}{sign}{zero}{width}{precision}{letter}}}")
        assert isinstance(field, Field)
        conversion = field.conversion(kind_of(value) or "text")
    except SpecError:
        return
    value = math.nan if value != value else value  # the GPU does not print the sign of NaN
    libc, buffer = ctypes.CDLL(None), ctypes.create_string_buffer(512)
    if conversion[-1] in "dxX":
        bits = value & 0xFFFFFFFF if conversion[-1] != "d" else value
        libc.snprintf(
            buffer,
            ctypes.c_size_t(512),
            (conversion[:-1] + "ll" + conversion[-1]).encode(),
            ctypes.c_longlong(bits),
        )
    else:
        libc.snprintf(buffer, ctypes.c_size_t(512), conversion.encode(), ctypes.c_double(value))
    assert render(field, value) == buffer.value.decode()


# ---- debug_print ---------------------------------------------------------------------------------
@numpipe.kernel(num_compute_wgs=2, grid=(2, 1, 1), grid_names=("x", "y", "z"))
def speaking(a, b, c, count, scale, *, name: numpipe.Static = "loud"):
    wg = numpipe.axis_index("wg")
    x = numpipe.axis_index("x")

    def told(n):
        numpipe.debug_print("100% {{{}}} {:>4}|{:<4}|", name, n, wg)
        return n + 1

    numpipe.debug_print(
        "count={:03d} scale={:.3f} {} {} {}", told(count), scale, scale > 1.0, wg + 1, a.shape[0]
    )
    acc = numpipe.zeros((64, 64), np.float32)
    for (k,), (a_tile, b_tile) in numpipe.pipeline(
        grid=(2,),
        in_specs=(BlockSpec((64, 64), lambda k: (x, k)), BlockSpec((64, 64), lambda k: (0, k))),
    )(a, b):
        numpipe.debug_print("k={} {}", k, scale * k)
        acc = numpipe.wgmma(acc, a_tile, b_tile.T)
    numpipe.debug_print("done")
    c[ds(x * 64, 64), ds(wg * 64, 64)] = acc


SPOKEN = [
    line
    for x in (0, 1)
    for who, wg in (("memory", "-"), ("compute 0", "0"), ("compute 1", "1"))
    for line in (
        f"[speaking cta ({x}, 0, 0) {who}] 100% {{loud}}    7|{wg:<4}|",
        f"[speaking cta ({x}, 0, 0) {who}] count=008 scale=1.250 True "
        f"{'-' if wg == '-' else int(wg) + 1} 128",
        *[f"[speaking cta ({x}, 0, 0) {who}] k={k} {1.25 * k:g}" for k in range(2) if wg != "-"],
        f"[speaking cta ({x}, 0, 0) {who}] done",
    )
]
SPOKEN_ARGS = (A, B, C, 7, np.float32(1.25))


def test_every_warpgroup_prints_its_line_with_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    c = np.zeros((128, 128), np.float32)
    speaking.simulate(A, B, c, *SPOKEN_ARGS[3:])
    lines = capsys.readouterr().out.splitlines()
    assert sorted(lines) == sorted(SPOKEN)
    for who in {line.partition("]")[0] for line in SPOKEN}:
        assert [x for x in lines if x.startswith(who)] == [x for x in SPOKEN if x.startswith(who)]
    assert (c == 128).all()


def test_on_the_gpu_one_lane_calls_vprintf_with_the_same_texts() -> None:
    built = speaking.compiled(*SPOKEN_ARGS)
    ptx = built.ptx
    decoded = {
        bytes(map(int, text.split(","))).decode()
        for text in re.findall(r"\.b8 \S+\[\d+\] = \{([\d, ]+)\}", ptx)
    }
    decoded = {text.rstrip("\0").removesuffix("\n") for text in decoded}
    compute = "[speaking cta (%d, %d, %d) compute %d] "
    memory = "[speaking cta (%d, %d, %d) memory] "
    assert {
        memory + "100%% {loud} %4lld|-   |",
        compute + "100%% {loud} %4lld|%-4lld|",
        memory + "done",
        compute + "done",
        memory + "count=%03lld scale=%.3f %s - %lld",
        compute + "count=%03lld scale=%.3f %s %lld %lld",
        compute + "k=%lld %g",
    } <= decoded
    assert not any("memory" in text and "k=%" in text for text in decoded), (
        "the body of the pipeline is the compute role's"
    )
    assert ".extern .func  (.param .b32 func_retval0) vprintf" in ptx and "vprintf" in built.sass


def test_the_notes_of_the_gate_say_that_printing_serialises_the_products() -> None:
    assert any("C7510" in line for line in speaking.inspect("gate", *SPOKEN_ARGS))


@pytest.mark.variants(2)
@pytest.mark.parametrize(
    "value",
    [
        np.float16(0.5),
        np.float64(0.1),
        np.int8(-1),
        np.uint8(200),
        np.int64(1 << 40),
        np.uint64(1 << 63),
        np.bool_(True),
    ],
    ids=lambda v: v.dtype.name,
)
def test_scalars_of_every_type_are_printed(value: Any, capsys: pytest.CaptureFixture[str]) -> None:
    @numpipe.kernel
    def one(c, s):
        numpipe.debug_print("{}", s)

    one.simulate(C, value)
    assert (
        capsys.readouterr().out.count(
            f"] {value:g}\n" if isinstance(value, np.floating) else f"] {value}\n"
        )
        == 2
    )
    conversion = {"b": "%s", "f": "%g", "u": "%llu"}.get(value.dtype.kind, "%lld")
    assert f"] {conversion}\\0a\\00" in one.inspect("llvm", C, value)


# ---- device_assert and assert --------------------------------------------------------------------


@numpipe.kernel(num_compute_wgs=2)
def checked(a, c, limit):
    wg = numpipe.axis_index("wg")
    assert wg >= 0, "the memory role has no warpgroup index and checks nothing"
    assert 0 <= wg < 2 and limit > 0, "each part for itself"
    assert a.shape[0] < limit, "rows"
    numpipe.device_assert(wg < 2)


def test_conditions_that_hold_say_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    checked.simulate(A, C, 1000)
    assert capsys.readouterr() == ("", "")


def test_an_assert_fails_simulated_whatever_the_options_are() -> None:
    with pytest.raises(
        SimulationError, match=r"kernel checked: 'assert a.shape\[0\] < limit' failed in .*: rows"
    ):
        checked.simulate(A, C, 3)


def test_a_device_assert_is_compiled_in_with_its_place_and_an_assert_is_not() -> None:
    llvm = checked.inspect("llvm", A, C, 3)
    assert llvm.count('call void @"__assertfail"') == 1, (
        "in the compute role: the memory role has no condition"
    )
    assert (
        "numpipe.device_assert(wg < 2)\\00" in llvm
        and f"{HERE}\\00" in llvm
        and "kernel checked, compute role\\00" in llvm
    )


def test_of_conditions_that_hold_together_the_memory_role_checks_what_it_knows() -> None:
    with pytest.raises(
        SimulationError,
        match=r"'assert 0 <= wg < 2 and limit > 0' failed in the memory role of CTA \(0, 0, 0\)",
    ):
        checked.simulate(A, C, 0)


def with_asserts(a, c, limit):
    assert a.shape[0] < limit, "rows"


def without(a, c, limit):
    pass


@pytest.mark.thorough
def test_an_assert_costs_nothing_unless_enabled() -> None:
    def sass(function: Any, **params: Any) -> str:
        kernel = numpipe.kernel(compiler_params=CompilerParams(**params))(function)
        text = kernel.inspect("sass", A, C, 3)
        return "\n".join(re.findall(r"/\*[0-9a-f]{4}\*/ +(.*?);", text))

    plain = sass(without)
    assert sass(with_asserts) == plain
    assert "__assertfail" not in plain
    assert sass(with_asserts, asserts=True) != plain


def test_asserts_are_compiled_in_on_request() -> None:
    kernel = numpipe.kernel(compiler_params=CompilerParams(asserts=True))(with_asserts)
    llvm = kernel.inspect("llvm", A, C, 3)
    assert "assert a.shape[0] < limit: rows\\00" in llvm
    assert {"memory", "compute"} == set(re.findall(r"kernel with_asserts, (\w+) role", llvm))
    assert "__assertfail" in kernel.inspect("sass", A, C, 3)


def test_asserts_is_true_or_false() -> None:
    with pytest.raises(SpecError, match="CompilerParams: asserts must be True or False, got 1"):
        CompilerParams(asserts=1)  # type: ignore[arg-type]


@pytest.mark.parametrize("function", [numpipe.debug_print, numpipe.device_assert])
def test_outside_a_kernel_it_says_where_it_works(function: Any) -> None:
    with pytest.raises(
        RuntimeError, match=f"numpipe.{function.__name__} only works inside a kernel"
    ):
        function("x")


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_pythons_print_is_refused(execution: str) -> None:
    @numpipe.kernel
    def printer(a):
        print(a.shape[0])

    with pytest.raises(
        CompileError,
        match="'print' would be called by every lane of a warpgroup; fix: numpipe.debug_print",
    ):
        EXECUTIONS[execution](printer, A)


# ---- in helpers and bodies -----------------------------------------------------------------------
@numpipe.function
def told_by_a_helper(k, limit):
    numpipe.debug_print("helper {}", k)
    assert k < limit, "in a helper"
    return k + 1


@numpipe.kernel(compiler_params=CompilerParams(asserts=True))
def with_a_body(a, b, c, limit):
    def body(indices, a_tile, b_tile, acc):
        (k,) = indices
        numpipe.debug_print("body {}", told_by_a_helper(k, limit))
        return numpipe.wgmma(acc, a_tile, b_tile.T)

    def compute(pipeline):
        acc = pipeline(numpipe.zeros((64, 64), np.float32))
        numpipe.debug_print("stores")
        c[ds(0, 64), ds(0, 64)] = acc

    numpipe.emit_pipeline_warp_specialized(
        body,
        grid=(2,),
        in_specs=(BlockSpec((64, 64), lambda k: (0, k)), BlockSpec((64, 64), lambda k: (0, k))),
        max_concurrent_steps=2,
        compute_context=compute,
    )(a, b)


def test_helpers_and_bodies_print_and_assert_for_their_warpgroup(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with_a_body.simulate(A, B, C, 2)
    who = "[with_a_body cta (0, 0, 0) compute 0] "
    lines = [line.removeprefix(who) for line in capsys.readouterr().out.splitlines()]
    assert lines == ["helper 0", "body 1", "helper 1", "body 2", "stores"]
    with pytest.raises(
        SimulationError,
        match="'assert k < limit' failed in compute warpgroup 0 of CTA .*: in a helper",
    ):
        with_a_body.simulate(A, B, C, 1)
    llvm = with_a_body.inspect("llvm", A, B, C, 2)
    assert (
        "compute %d] helper %lld" in llvm
        and "compute %d] stores" in llvm
        and "assert k < limit: in a helper\\00" in llvm
    )


# ---- breakpoint ----------------------------------------------------------------------------------
@numpipe.kernel
def stopping(a, b, c):
    acc = numpipe.zeros((64, 64), np.float32)
    for (k,), (a_tile, b_tile) in numpipe.pipeline(
        grid=(2,),
        in_specs=(BlockSpec((64, 64), lambda k: (0, k)), BlockSpec((64, 64), lambda k: (0, k))),
    )(a, b):
        twice = k + k
        breakpoint()  # <-
        acc = numpipe.wgmma(acc, a_tile, b_tile.T)
    done = a.shape[0]
    c[ds(0, 64), ds(0, 64)] = acc


def scripted(monkeypatch: pytest.MonkeyPatch, commands: str) -> io.StringIO:
    """Return the output of pdb, which reads its commands from a string."""
    said = io.StringIO()
    debugger = pdb.Pdb(stdin=io.StringIO(commands), stdout=said, nosigint=True, readrc=False)
    debugger.prompt = ""
    monkeypatch.setattr(sys, "breakpointhook", lambda *_: debugger.set_trace(sys._getframe(1)))
    return said


def test_a_breakpoint_stops_in_the_kernel_with_its_names_and_lines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = scripted(
        monkeypatch,
        "p k, twice\nnext\nnext\np acc.shape\ncontinue\np int(twice)\nwhere\ncontinue\n",
    )
    before = sys.gettrace()
    c = np.zeros((64, 64), np.float32)
    stopping.simulate(A, B, c)
    sys.settrace(before)
    lines = said.getvalue().splitlines()
    file, line = marked(stopping).rsplit(":", 1)
    stops = [
        int(m[1])
        for m in re.finditer(
            rf"^> {re.escape(file)}\((\d+)\)stopping\(\)", said.getvalue(), re.MULTILINE
        )
    ]
    assert stops[0] in (int(line), int(line) + 1), (
        "at the breakpoint, or (before Python 3.13) at the next statement"
    )
    assert any("acc = numpipe.wgmma(acc, a_tile, b_tile.T)" in text for text in lines), (
        "the source is shown"
    )
    assert "(64, 64)" in lines
    assert "2" in lines, "the second step: twice is 2"
    assert (c == 128).all(), "and the kernel goes on"


def test_a_breakpoint_is_refused_when_compiled_and_nothing_else_is_checked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(CompileError) as caught:
        stopping.compiled(A, B, C)
    told = str(caught.value)
    assert told.startswith(
        f"{marked(stopping)}: kernel stopping: breakpoint() stops in the simulator only: run the "
        "kernel with kernel.simulate(…) or target='sim'"
    )
    monkeypatch.delenv("NUMPIPE_COMPILE_CHECK")
    seen: list[int] = []
    monkeypatch.setattr(sys, "breakpointhook", lambda *_: seen.append(1))
    stopping.simulate(A, B, np.zeros((64, 64), np.float32))
    assert len(seen) == 2


def test_a_breakpoint_in_a_branch_decided_at_compile_time_is_not_compiled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @numpipe.kernel
    def maybe(a, c, *, debug: numpipe.Static = False):
        if debug:
            breakpoint()
        x = a.shape[0]

    maybe.compiled(A, C)
    with pytest.raises(CompileError, match="breakpoint"):
        maybe.compiled(A, C, debug=True)


def test_quitting_the_debugger_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(monkeypatch, "quit\n")
    before = sys.gettrace()
    with pytest.raises(Exception) as caught:
        stopping.simulate(A, B, np.zeros((64, 64), np.float32))
    sys.settrace(before)
    assert "BdbQuit" in f"{caught.type.__name__} {caught.value}"
