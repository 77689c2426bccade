"""numpipe.verify: its result for correct kernels, for races, and for bugs that only some schedules
show."""

from __future__ import annotations

import doctest
import importlib
import io
import json
import re
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import batched_gemm
import copy_pipeline
import gemm_single
import numpy as np
import pytest

import gemm
import gemm_body
import numpipe
from numpipe import (
    SMEM,
    Barrier,
    CompileError,
    PipelineDeadlock,
    PipelineRace,
    SimulationError,
    SpecError,
    Trace,
    ds,
)
from numpipe.core.process_guards import COMPILES
from numpipe.hazards import HAZARDS
from numpipe.sim.schedule import Costs, kind
from numpipe.tools.verify.argument_copies import duplicates
from tests.kernels.compilers import compiles
from tests.kernels.ordered_kernels import BARE, SAFE, operand
from tests.kernels.sim_pipelines import Gemm
from tests.kernels.tiled_kernels import operands, product

ROOT = Path(__file__).parents[3]


# ---- kernels
@numpipe.function
def steps(barrier, count):
    """Pass this many phases of the warpgroup's own barrier, at each of which another warpgroup may
    run."""
    for _ in range(count):
        numpipe.barrier_arrive(barrier)
        numpipe.barrier_wait(barrier)


def unlucky(then: str) -> Any:
    """Run when a warpgroup finds the schedule that it did not expect."""

    @numpipe.function
    def writes(y, never):
        y[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32) + 1

    @numpipe.function
    def asserts(y, never):
        numpipe.device_assert(y.shape[0] == 0, "the other warpgroup is late")

    @numpipe.function
    def hangs(y, never):
        numpipe.barrier_wait(never)

    @numpipe.function
    def prints(y, never):
        numpipe.debug_print("late")

    return {"writes": writes, "asserts": asserts, "hangs": hangs, "prints": prints}[then]


def overtaken(then: str, head: int = 20) -> Any:
    """A bug of depth 1: warpgroup 1 assumes that 0 has arrived once it has taken `head` steps
    itself."""
    fail = unlucky(then)

    @numpipe.kernel(grid=1, num_compute_wgs=2, warp_specialized=False)
    def kernel(y):
        own, first, never = numpipe.scratch((Barrier(1), Barrier(1), Barrier(1)))
        if numpipe.axis_index("wg") == 1:
            steps(own, head)
            if not numpipe.barrier_test(first):
                fail(y, never)
            numpipe.barrier_wait(first)
        else:
            numpipe.barrier_arrive(first)

    return kernel


def inverted(then: str, head: int = 25, window: int = 30, work: int = 20) -> Any:
    """A bug of depth 2, an inversion of the order of two warpgroups.

    Warpgroup 0 passes `head` before 1 begins, then 1 finishes its work before 0 passes `window`.
    """
    fail = unlucky(then)

    @numpipe.kernel(grid=1, num_compute_wgs=2, warp_specialized=False)
    def kernel(y):
        own = numpipe.scratch(Barrier(num_arrivals=1, num_barriers=2))
        begun, done, over, never = numpipe.scratch((Barrier(1), Barrier(1), Barrier(1), Barrier(1)))
        if numpipe.axis_index("wg") == 0:
            steps(own.at[0], head)
            numpipe.barrier_arrive(begun)
            steps(own.at[0], window)
            overtaken = numpipe.barrier_test(done)
            numpipe.barrier_arrive(over)
            if overtaken:
                fail(y, never)
            numpipe.barrier_wait(done)
        else:
            early = numpipe.barrier_test(begun)
            if not early:
                numpipe.barrier_wait(over)
            steps(own.at[1], work)
            numpipe.barrier_arrive(done)
            numpipe.barrier_wait(begun)
            if early:
                numpipe.barrier_wait(over)

    return kernel


@numpipe.kernel(grid=4)
def sums(x, y):
    """Compute y += x[i] of each CTA i by TMA: right in every order, and rounded differently in
    each."""
    i = numpipe.program_id(0)
    tile, landed = numpipe.scratch((SMEM((64, 32), x.dtype), Barrier()))
    numpipe.copy_gmem_to_smem(x.at[i, ds(0, 64), ds(0, 32)], tile, landed)
    numpipe.barrier_wait(landed)
    numpipe.copy_smem_to_gmem(tile, y.at[ds(0, 64), ds(0, 32)], reduction_op="add")
    numpipe.wait_smem_to_gmem(0)


@numpipe.kernel(grid=4)
def sums_by_lanes(x, y):
    """Compute y += x[i] of each CTA i by atomics."""
    part = x[numpipe.program_id(0), ds(0, 64), ds(0, 32)]
    numpipe.atomic_add(y.at[ds(0, 64), ds(0, 32)], part)


SQUARE = np.zeros((64, 64), np.float32)


def halves(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float16)


# ---- correct kernels
EXAMPLES: dict[str, Callable[[int], Any]] = {
    "gemm": lambda n: numpipe.verify(
        gemm.matmul,
        halves(136, 136),
        halves(120, 136),
        cfg=gemm.Config(128, 64, 64, 3),
        schedules=n,
    ),
    "gemm_body": lambda n: numpipe.verify(
        gemm_body.matmul,
        halves(136, 136),
        halves(120, 136),
        cfg=gemm.Config(128, 64, 64, 2),
        schedules=n,
    ),
    "gemm_single": lambda n: numpipe.verify(
        gemm_single.matmul,
        halves(64, 200),
        halves(136, 200),
        schedules=n,
        cfg=gemm_single.Config(64, 64, 64, 3),
    ),
    "batched_gemm": lambda n: numpipe.verify(
        batched_gemm.batched_matmul,
        halves(3, 128, 72),
        halves(3, 64, 72),
        schedules=n,
        cfg=batched_gemm.Config(128, 64, 64, 2),
    ),
    "copy_pipeline": lambda n: numpipe.verify(copy_pipeline.copy, halves(200, 600), schedules=n),
    "a kernel over tiles": lambda n: numpipe.verify(
        product(True, ("parallel", "sequential", "sequential"), 2),
        *operands(128, 72, 136),
        schedules=n,
    ),
}


@pytest.mark.variants(1)
@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_pass(example: str) -> None:
    result = EXAMPLES[example](10)
    assert result and result.schedules == 10 and not result.differences, str(result)
    assert str(result).endswith("no hazard, outputs equal bit for bit")
    result.raise_if_failed()


def test_the_arguments_stay_as_they_are() -> None:
    x, y = operand(), np.full_like(operand(), 7)
    before = x.copy(), y.copy()
    assert numpipe.verify(SAFE["turned"], x, y, schedules=4)
    assert (x == before[0]).all() and (y == before[1]).all()
    a, b, c = halves(64, 64), halves(64, 64), np.full((64, 64), 7, np.float16)
    config = gemm_single.Config(64, 64, 64, 2)
    assert numpipe.verify(gemm_single.matmul, a, b=b, out=c, cfg=config, schedules=3)
    assert numpipe.verify(gemm_single.matmul, a, b=b, c=c, cfg=config, schedules=3)
    assert (c == 7).all()


# ---- hazards
def test_a_race_is_one_failure_however_many_schedules_show_it() -> None:
    x = operand()
    result = numpipe.verify(BARE["turned"], x, np.zeros_like(x), schedules=7)
    assert not result and not result.ok
    [failure] = result.failures
    assert (failure.schedules, failure.seed, result.seeds) == (7, None, (None, 0, 1, 2, 3, 4, 5))
    assert isinstance(failure.error, PipelineRace) and failure.hazard in {*HAZARDS, "PipelineRace"}
    assert [Path(line.filename).name for line in failure.lines][:1] == ["ordered_kernels.py"]
    with pytest.raises(PipelineRace) as replayed:
        BARE["turned"].simulate(x, np.zeros_like(x))
    assert failure.text == str(replayed.value)


def test_the_table_names_hazard_schedules_seed_and_lines() -> None:
    x = operand()
    result = numpipe.verify(BARE["turned"], x, np.zeros_like(x), schedules=4)
    head, columns, row, blank, replay, *report = str(result).splitlines()
    assert re.fullmatch(
        r"kernel turned: 4 schedules \(1 in order, 1 shuffled, 1 priorities, 1 jitter\) in [\d.]+ "
        r"s: failed",
        head,
    )
    assert columns.split() == ["hazard", "schedules", "seed", "where"] and not blank
    assert re.search(r" 4 of 4 +-  ordered_kernels\.py:\d+", row)
    assert replay.endswith("turned.simulate(…):") and "\n".join(report) == result.failures[0].text


@compiles
def test_the_time_of_a_result_leaves_the_first_compile_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "1")

    @numpipe.kernel
    def doubled(x):
        x[ds(0, 64), ds(0, 64)] = x[ds(0, 64), ds(0, 64)] * 2.0

    begun, compiled = time.perf_counter(), COMPILES.seconds
    result = numpipe.verify(doubled, np.ones((64, 64), np.float32), schedules=1)
    compiled = COMPILES.seconds - compiled
    assert compiled > 0 and result.seconds <= time.perf_counter() - begun - compiled


def test_a_result_is_machine_readable() -> None:
    x = operand()
    result = numpipe.verify(BARE["turned"], x, np.zeros_like(x), schedules=2)
    said = json.loads(json.dumps(result.as_dict()))
    assert (said["kernel"], said["ok"], said["seeds"], said["differences"]) == (
        "turned",
        False,
        [None, 0],
        [],
    )
    [failure] = said["failures"]
    assert (
        failure["error"] == "PipelineRace"
        and failure["schedules"] == 2
        and failure["text"] == result.failures[0].text
    )
    differing = numpipe.verify(overtaken("writes"), SQUARE, schedules=20).as_dict()
    assert json.loads(json.dumps(differing)) == differing and differing["differences"][0][
        "index"
    ] == [0, 0]


def test_raise_if_failed_raises_the_report_and_says_how_to_replay_it() -> None:
    result = numpipe.verify(overtaken("hangs"), SQUARE, schedules=20)
    [failure] = result.failures
    with pytest.raises(PipelineDeadlock) as raised:
        result.raise_if_failed()
    text = str(raised.value)
    assert text.startswith(failure.text) and raised.value.report is failure.report
    assert (
        f"in {failure.schedules} of 20 schedules; kernel.simulate(…, seed={failure.seed}) shows "
        "it again" in text
    )


@pytest.mark.parametrize(
    ("then", "error"), [("asserts", SimulationError), ("hangs", PipelineDeadlock)]
)
def test_a_failing_seed_fails_again_with_the_same_words(
    then: str, error: type[SimulationError]
) -> None:
    kernel = overtaken(then)
    [failure] = numpipe.verify(kernel, SQUARE, schedules=20).failures
    assert 0 < failure.schedules < 20 and failure.seed is not None
    for _ in range(2):
        with pytest.raises(error) as raised:
            kernel.simulate(SQUARE.copy(), seed=failure.seed)
        assert str(raised.value) == failure.text


def test_failures_at_different_lines_are_distinguished() -> None:
    result = numpipe.verify(two_guesses, SQUARE, schedules=40)
    lines = {failure.lines[0].line for failure in result.failures}
    assert (
        len(lines) == len(result.failures) == 2 and sum(f.schedules for f in result.failures) < 40
    )


@numpipe.kernel(grid=1, num_compute_wgs=2, warp_specialized=False)
def two_guesses(y):
    first = numpipe.scratch(numpipe.Barrier(num_arrivals=2))
    seen = numpipe.barrier_test(first)
    numpipe.barrier_arrive(first)
    if numpipe.axis_index("wg") == 0:
        numpipe.device_assert(not seen, "never: it has to arrive itself")
        numpipe.device_assert(numpipe.barrier_test(first), "the other one has not arrived")
    else:
        numpipe.device_assert(numpipe.barrier_test(first), "the first one has not arrived")
    numpipe.barrier_wait(first)


# ---- outputs that depend on the schedule
def test_outputs_that_depend_on_the_schedule_fail_without_a_race() -> None:
    result = numpipe.verify(overtaken("writes"), SQUARE, schedules=20)
    [difference] = result.differences
    assert not result.ok and not result.failures
    assert (difference.array, difference.elements, difference.largest, difference.summed) == (
        "y",
        4096,
        1.0,
        False,
    )
    assert 0 < difference.schedules < 20 and "outputs differ" in str(result)
    with pytest.raises(
        SimulationError,
        match=r"outputs depend on the schedule .* y: 4096 of 4096 elements .* seed=\d+",
    ):
        result.raise_if_failed()


@pytest.mark.parametrize("kernel", [sums, sums_by_lanes])
def test_sums_of_floats_may_differ(kernel: numpipe.Kernel) -> None:
    x = np.random.default_rng(0).standard_normal((4, 64, 32)).astype(np.float32)
    result = numpipe.verify(kernel, x, SQUARE[:, :32].copy(), schedules=10)
    [difference] = result.differences
    assert result.ok and difference.summed and difference.array == "y" and difference.largest < 1e-5
    assert "sums of floats in different orders" in str(result)
    result.raise_if_failed()
    assert not numpipe.verify(
        kernel, (100 * x).astype(np.int32), np.zeros((64, 32), np.int32), schedules=10
    ).differences


# ---- schedules
def test_priorities_find_bugs_that_need_one_warpgroup_far_ahead() -> None:
    """Depth 1: one of two warpgroups takes 20 steps before the other takes one.

    Uniform choices never get there.
    """
    kernel = overtaken("writes")
    found = {
        name: sum(differs(kernel, seed) for seed in range(120) if kind(seed) == name)
        for name in ("shuffled", "priorities")
    }
    assert found["shuffled"] == 0 and found["priorities"] >= 5


@pytest.mark.thorough
def test_priorities_find_bugs_that_need_an_inversion() -> None:
    """Depth 2: one warpgroup leads, and in the right one of its steps the other takes over."""
    kernel = inverted("writes")
    assert not any(differs(kernel, seed) for seed in range(0, 450, 3))
    assert any(differs(kernel, seed) for seed in range(1, 450, 3))


def differs(kernel: Any, seed: int | None) -> bool:
    y = SQUARE.copy()
    kernel.simulate(y, seed=seed)
    return bool(y.any())


@pytest.mark.parametrize("seed", [None, 0, 1, 2, -4, np.int64(7), 2**70])
def test_a_seed_is_one_schedule(seed: int | None) -> None:
    def events() -> list[Any]:
        trace = Trace()
        Gemm(k=256).run(seed, trace)
        return trace.events

    assert events() == events()
    if seed is not None:
        other = Trace()
        Gemm(k=256).run(int(seed) + 3, other)
        assert other.events != events()


def test_jitter_changes_how_long_copies_and_products_take() -> None:
    latency = Costs().tma_latency
    taken: dict[str, set[int]] = {"load": set(), "store": set(), "mma": set()}
    for seed in (2, 5, 8):
        trace = Trace()
        Gemm(k=256).run(seed, trace)
        for name, times in taken.items():
            times |= {
                event.end - event.details.get("port_until", event.start) for event in trace.of(name)
            }
    for times in (taken["load"], taken["store"]):
        assert min(times) < latency / 2 < 2 * latency < max(times)
    assert len(taken["mma"]) > 3


def test_ctas_after_the_first_run_in_another_order_with_a_seed() -> None:
    def order(seed: int | None) -> list[Any]:
        trace = Trace()
        Gemm(m=256, n=256, k=64).run(seed, trace)
        return list(dict.fromkeys(event.cta for event in trace.events))

    assert order(None) == [(0, 0, 0), (1, 0, 0), (0, 1, 0), (1, 1, 0)]
    assert any(order(seed) != order(None) for seed in range(3))
    assert all(
        order(seed)[0] == (0, 0, 0) and sorted(order(seed)) == sorted(order(None))
        for seed in range(3)
    )


# ---- errors that are not hazards
def test_other_errors_are_raised_and_say_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError("no space left on device")

    kernel = overtaken("prints")
    monkeypatch.setattr(sys, "stdout", Full())
    with pytest.raises(CompileError, match="OSError: no space") as raised:
        numpipe.verify(kernel, SQUARE, schedules=20)
    if hasattr(raised.value, "__notes__"):  # Python 3.11
        told = re.search(r"kernel\.simulate\(…, seed=(\d+)\)", raised.value.__notes__[-1])
        assert told is not None
        with pytest.raises(CompileError, match="OSError: no space"):
            kernel.simulate(SQUARE.copy(), seed=int(told[1]))


def test_arguments_that_do_not_fit_are_refused() -> None:
    for schedules in (0, 1.5, "20"):
        with pytest.raises(
            SpecError, match=f"schedules must be an int of 1…1000000 or 'all', got {schedules!r}"
        ):
            numpipe.verify(sums, SQUARE, SQUARE, schedules=schedules)
    with pytest.raises(SpecError, match="leaves 1 parameters for it"):
        numpipe.verify(gemm.matmul, halves(64, 64), halves(64, 64), out=(SQUARE, SQUARE))

    @numpipe.kernel
    def taken(x, *, schedules: numpipe.Static = 1):
        x[numpipe.ds(0, 64), numpipe.ds(0, 64)] = numpipe.zeros((64, 64), np.float32)

    with pytest.raises(SpecError, match="its parameter 'schedules' has the name of an option"):
        numpipe.verify(taken, SQUARE)


def test_copies_have_the_memory_order_of_their_arrays() -> None:
    base = np.arange(60, dtype=np.int32).reshape(6, 10)
    views = [
        base,
        base[1:4, 2:8],
        base.T,
        base[::-1, ::2],
        base[2:2],
        np.array(5.0),
        np.asfortranarray(base),
    ]
    views[1].flags.writeable = False
    copies = duplicates(views)
    for view, copy in zip(views, copies, strict=True):
        assert (copy.shape, copy.strides, copy.dtype, copy.flags.writeable) == (
            view.shape,
            view.strides,
            view.dtype,
            view.flags.writeable,
        )
        assert np.array_equal(view, copy) and not np.shares_memory(view, copy)
        assert copy.size == 0 or (copy.ctypes.data - view.ctypes.data) % 1024 == 0
    copies[0][2, 4] = -1
    assert copies[1][1, 2] == copies[2][4, 2] == copies[3][3, 2] == -1
    assert copies[6][2, 4] == base[2, 4] == 24


# ---- memory use
def resident() -> int:
    """Return the bytes of memory that this process has touched."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.thorough
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux's /proc")
def test_a_view_across_more_than_2_gib_is_verified_and_only_its_elements_are_copied() -> None:
    @numpipe.kernel(out_type=lambda a: numpipe.ArrayType(a.shape, np.float32))
    def doubled(a, c):
        for (i,), (tile,) in numpipe.pipeline(
            grid=(1,), in_specs=(numpipe.BlockSpec((64, 64), lambda i: (0, 0)),)
        )(a):
            c[numpipe.ds(0, 64), numpipe.ds(0, 64)] = tile[...].astype(np.float32) * np.float32(2)

    # bytes between rows: 63 of them are more than 2 GiB, of which 64 pages are touched
    step = (1 << 25) + (1 << 20)
    view = np.zeros((64, step // 2), np.float16)[:, :64]
    view[...] = np.arange(64)
    before = resident()
    (copy,) = duplicates([view])
    assert copy.strides == view.strides == (step, 2) and (copy == view).all()
    assert resident() - before < 1 << 28  # a row touches a page, which may have 2 MiB
    found = numpipe.verify(doubled, view, schedules=2)
    assert found.ok, found


def test_repeated_elements_are_copied_once_and_all_keep_their_place() -> None:
    row = np.arange(4, dtype=np.int32)
    many = np.broadcast_to(row, (3, 4))
    windows = np.lib.stride_tricks.sliding_window_view(row, 2)
    none = np.zeros((0, 4), np.int32)
    copies = duplicates([many, windows, none, row[::-1]])
    for copy, array in zip(copies, (many, windows, none, row[::-1]), strict=True):
        assert copy.shape == array.shape and copy.strides == array.strides and (copy == array).all()
    copies[3][0] = 9
    assert copies[0][2, 3] == copies[1][2, 1] == 9


@pytest.mark.parametrize(
    "name", ["tools.verify.verification", "testing", "tools.verify.argument_copies", "sim.schedule"]
)
def test_examples_of_docstrings_run(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMPIPE_TARGET", "sim")
    failed, ran = doctest.testmod(importlib.import_module(f"numpipe.{name}"))
    assert ran and not failed
