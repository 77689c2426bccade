"""tiles(dynamic=True), where CTAs take tiles from a counter: right in any schedule and with any
assignment of tiles; broken variants are detected."""

from __future__ import annotations

import ctypes
import itertools
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import gemm_tuned
import numpipe
from numpipe import ArrayType, ds, launch
from numpipe.compile.check import gate
from numpipe.errors import CompileError, PipelineDeadlock, PipelineRace, SimulationError, SpecError
from numpipe.language.grid import tile_scheduler
from numpipe.language.pipeline import number_ring
from numpipe.launch import driver
from numpipe.launch.debug_reports import report_of
from numpipe.plan.unit import Unit
from numpipe.plan.wait_records import Record
from numpipe.sim.schedule import WorkCounter
from tests.kernels.compilers import compiles
from tests.kernels.dynamic_kernels import STEP_A_TILE, cases, gemm, made
from tests.kernels.kernels_for_tests import operands, product
from tests.kernels.launch_fakes import CudaArray, FakeDriver
from tests.kernels.launch_kernels import image
from tests.kernels.profile_buffers import image_of
from tests.kernels.turn_kernels import CFG
from tests.language.pipeline.test_injected import Bug
from tests.traces.legal import check_legal

SEEDS = (None, 1)


# ---- right in any schedule
@pytest.mark.variants(6)
@pytest.mark.parametrize("name", cases())
def test_every_form_computes_the_same_without_a_report(name: str) -> None:
    case = cases()[name]
    for seed in (list(cases()).index(name) % 3, None)[: 1 + ("loops" in name)]:  # some of each kind
        case.check(case.kernel.simulate, seed=seed)


@pytest.mark.parametrize("schedule", ["cooperative", "pingpong"])
def test_the_tuned_product_may_take_its_tiles_so(schedule: str) -> None:
    a, b = operands(520, 300, 128)
    cfg = gemm_tuned.Config(128, 64, slots=3, schedule=schedule, group=2, dynamic=True)
    np.testing.assert_array_equal(gemm_tuned.kernel(cfg).simulate(a, b), product(a, b))


@pytest.mark.soak
@pytest.mark.parametrize("name", cases())
def test_no_form_has_a_report_in_40_schedules(name: str) -> None:
    case = cases()[name]
    result = numpipe.verify(case.kernel, *case.inputs, case.output(), cfg=case.cfg, schedules=40)
    assert result, str(result)


A, B = operands(640, 64, 64)


def tiles_of(seed: int | None, ctas: int = 4) -> dict[Any, list[int]]:
    """Return which of 10 tiles each CTA computes."""
    trace, c = numpipe.Trace(), np.zeros((640, 64), np.float16)
    made(gemm, warpgroups=1, ctas=ctas).simulate(A, B, c, cfg=STEP_A_TILE, seed=seed, trace=trace)
    found: dict[Any, list[int]] = {}
    for event in trace.events:
        if event.note == "tile begin" and event.role == "compute":
            found.setdefault(event.cta[0], []).append(event.details["number"])
    check_legal(trace)
    return found


def test_each_tile_is_taken_once_and_by_whom_differs() -> None:
    deals = [tiles_of(seed) for seed in range(6)]
    assert all(
        sorted(itertools.chain.from_iterable(deal.values())) == list(range(10)) for deal in deals
    )
    assert all(deal[cta][0] == cta for deal in deals for cta in range(4))
    assert len({tuple(sorted(map(len, deal.values()))) for deal in deals}) > 2, (
        "some take more than others"
    )
    assert tiles_of(None) == {cta: list(range(cta, 10, 4)) for cta in range(4)}


def test_with_more_ctas_than_tiles_each_has_one_or_none() -> None:
    for seed in (None, 0):
        assert tiles_of(seed, ctas=13) == {cta: [cta] for cta in range(10)}


# ---- broken variants
WAIT_FREE = 'mbarrier.wait(barrier(ring, "consumed", slot, 0), phase_of(ring, step) - 1, step)'
TOLD = 'mbarrier.arrive(barrier(ring, "ready", slot, 0))'
WAIT_TOLD = 'mbarrier.wait(barrier(ring, "ready", slot, 0), phase_of(ring, step), step)'
READ = "number = uniform(memory.load_word(stage_of(ring, slot)))"
FREE = 'each_warp(mbarrier.arrive, barrier(ring, "consumed", slot, 0))'
STORE = "store_number(stage_of(ring, slot), number)"
BUGS = {
    "told before it is free": Bug(
        number_ring.put_number, WAIT_FREE, "pass", SimulationError, "store_word|nothing orders this"
    ),
    "never told": Bug(
        number_ring.put_number,
        TOLD,
        "pass",
        PipelineDeadlock,
        r"ready\[0\] of tile numbers @ kernels_for_",
    ),
    "told, then stored": Bug(
        number_ring.put_number,
        f"{STORE}\n    {TOLD}",
        f"{TOLD}\n    {STORE}",
        PipelineRace,
        "store_word",
    ),
    "stored in the next slot": Bug(
        where=number_ring.put_number,
        old=STORE,
        new=STORE.replace("slot", "slot + 1"),
        error=SimulationError,
        message="load_word|store_word",
    ),
    "told twice": Bug(
        number_ring.put_number,
        TOLD,
        f"{TOLD}; {TOLD}",
        SimulationError,
        r"ready\[0\] of tile numbers",
    ),
    "read before it is told": Bug(
        number_ring.take_number, WAIT_TOLD, "pass", PipelineRace, "load_word"
    ),
    "one lane waits": Bug(
        number_ring.take_number,
        "mbarrier.wait(",
        "one_lane(mbarrier.wait, ",
        PipelineRace,
        "load_word",
    ),
    "never freed": Bug(
        number_ring.take_number, FREE, "pass", PipelineDeadlock, r"consumed\[0\] of tile numbers"
    ),
    "freed by one warp": Bug(
        where=number_ring.take_number,
        old="each_warp(",
        new="one_lane(",
        error=PipelineDeadlock,
        message=r"consumed\[0\] of tile numbers",
    ),
    "freed, then read": Bug(
        number_ring.take_number,
        f"{READ}\n    {FREE}",
        f"{FREE}\n    {READ}",
        PipelineRace,
        "load_word",
    ),
    "a work index left out": Bug(
        where=tile_scheduler.send,
        old="counter(np_, SENT), 1",
        new="counter(np_, SENT), 2",
        error=SimulationError,
        message="tile numbers",
    ),
    "not waited for a later phase": Bug(
        where=number_ring.take_number,
        old="phase_of(ring, step), step",
        new="phase_of(ring, step) - 2, step",
        error=PipelineRace,
        message="waited for phase -2 of ready",
    ),
}
IN_TURNS = {
    "tiles of others": Bug(
        tile_scheduler.pass_over, "counter(np_, AWAY) > 0", "False", SimulationError, ""
    ),
    "nobody's tile": Bug(
        tile_scheduler.take,
        "pass_owner(np_)",
        "pass_owner(np_); pass_owner(np_)",
        SimulationError,
        "",
    ),
    "the next loop's turn": Bug(
        tile_scheduler.close, "if in_turns:", "if False:", SimulationError, ""
    ),
}


@pytest.mark.variants(6)
@pytest.mark.parametrize("name", BUGS)
def test_every_schedule_finds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bug = BUGS[name]
    bug.inject(monkeypatch)
    for seed in SEEDS:
        with pytest.raises(bug.error) as caught:
            made(gemm, warpgroups=1, ctas=1).simulate(
                A, B, np.zeros((640, 64), np.float16), cfg=STEP_A_TILE, seed=seed
            )
        text = str(caught.value)
        assert re.search(bug.message, text) and "kernels_for_tests.py:" in text, (
            f"seed {seed}: {text}"
        )


@pytest.mark.parametrize("name", IN_TURNS)
def test_every_schedule_finds_in_turns(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bug, case = IN_TURNS[name], cases()["turns, loops"]
    bug.inject(monkeypatch)
    for seed in SEEDS:
        with pytest.raises(bug.error):
            case.kernel.simulate(*case.inputs, case.output(), cfg=case.cfg, seed=seed)


# ---- what is rejected
def refused(
    function: Any, message: str, *arrays: Any, error: Any = CompileError, **options: Any
) -> None:
    with pytest.raises(error, match=message):
        made(function, **{"warpgroups": 1, "ctas": 2, **options}).simulate(
            *(arrays or (A, B, np.zeros((640, 64), np.float16)))
        )


def test_a_loop_runs_to_its_end() -> None:
    def breaks(a, b, c):
        for (m,) in numpipe.tiles(a.shape[0], dynamic=True):
            if m == 3:
                break
            c[ds(m * 64, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32).astype(c.dtype)

    def returns(a, b, c):
        for (m,) in numpipe.tiles(a.shape[0], dynamic=True):
            for i in range(3):
                if m == i:
                    return

    refused(
        breaks,
        r"test_dynamic.py:\d+.*'break' leaves the loop over tiles at line \d+, which takes them "
        r"from a counter",
    )
    refused(returns, r"'return' leaves the loop over tiles")


def test_a_loop_is_in_no_other_one() -> None:
    def inside(a, b, c):
        for (m,) in numpipe.tiles(10):
            for (n,) in numpipe.tiles(10, dynamic=True):
                pass

    @numpipe.function
    def inner(n):
        for (i,) in numpipe.tiles(n, dynamic=True):
            pass

    def called(a, b, c):
        for (m,) in numpipe.tiles(10, dynamic=True):
            inner(m)

    refused(
        inside,
        r"dynamic=True inside another loop over tiles.*give numpipe.tiles the counts of both",
    )
    refused(
        called,
        r"tiles\(dynamic=True\) at test_dynamic.py:\d+: it runs inside the loop of "
        r"test_dynamic.py:\d+",
        error=SpecError,
    )


@pytest.mark.parametrize("value", ["a.shape[0] > 3", "1", "'yes'"])
def test_dynamic_is_a_constant(value: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "of_value.py").write_text(
        "import numpipe\n\ndef kernel(a, b, c):\n"
        f"    for (m,) in numpipe.tiles(10, dynamic={value}):\n        pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(__import__("sys").modules, "of_value", raising=False)
    refused(
        __import__("of_value").kernel, r"dynamic= must be True or False, known at compile time.*got"
    )


def test_all_ctas_run_the_same_loops() -> None:
    def other_counts(a, b, c):
        for (m,) in numpipe.tiles(4 + numpipe.axis_index("x"), dynamic=True):
            pass

    def fewer_loops(a, b, c):
        for (m,) in numpipe.tiles(4, dynamic=True):
            pass
        if numpipe.axis_index("x") == 0:
            for (m,) in numpipe.tiles(4, dynamic=True):
                pass

    refused(
        other_counts,
        r"CTA \(1, 0, 0\) has 5 tiles in the loop of test_dynamic.py:\d+ where another one has 4 "
        r"tiles",
        error=SpecError,
        grid_names="x",
    )
    refused(
        fewer_loops,
        r"CTA \(1, 0, 0\) has ended where another one has 4 tiles in the loop of",
        error=SpecError,
        grid_names="x",
    )


def without_loads(a, b, c, *, cfg: numpipe.Static = CFG):
    """Place the loop where only the compute role runs."""

    def body(indices, a_tile):
        for (n,) in numpipe.tiles(10, dynamic=True):
            pass

    numpipe.emit_pipeline_warp_specialized(
        body, grid=(2,), in_specs=(numpipe.BlockSpec((64, 64), lambda k: (k, 0)),)
    )(a)


def test_a_loop_that_only_compute_warpgroups_reach_is_refused() -> None:
    refused(
        without_loads,
        r"tiles\(dynamic=True\) at test_dynamic.py:\d+: only compute warpgroups come here",
    )


@compiles
@pytest.mark.soak
def test_the_compiler_says_so_too() -> None:
    half = ArrayType((640, 64), np.dtype(np.float16))
    with pytest.raises(
        CompileError,
        match=r"tiles\(dynamic=True\) at test_dynamic.py:\d+: only compute warpgroups come here",
    ):
        made(without_loads, warpgroups=1).compiled(half, half, half)


def test_the_ring_of_tickets_needs_room() -> None:
    unit = Unit("many", (), (), "wg", 1, 40)
    for line, count in enumerate((32, 32, 32, 23)):
        unit.plan_scratch(f"x.py:{line}", numpipe.Barrier(num_barriers=count), True)
    with pytest.raises(
        SpecError,
        match=r"kernel many, tiles\(dynamic=True\) at x.py:1: the barriers of all rings exceed "
        r"the 1024 bytes",
    ):
        unit.plan_work_ring("x.py:1")


def test_a_kernel_that_gives_up_says_that_it_waits_for_a_ticket() -> None:
    unit = Unit("tuned", (), (), "wg", 2, 40)
    plan = unit.plan_work_ring("gemm.py:7")
    report = report_of(
        image_of(unit), [Record(0, (3, 0, 0), warp, plan.barriers + 8, 2, 0) for warp in (0, 4)]
    )
    assert [party.barrier for party in report.waiting[:2]] == 2 * [
        "ready[1] of tile numbers @ gemm.py:7"
    ]
    assert report.waiting[0].lines[0].line == 7 and (
        report.waiting[0].slot,
        report.waiting[0].step,
    ) == (1, plan.step_at(1, 2))


# ---- machine code
@pytest.mark.thorough
@compiles
@pytest.mark.parametrize(
    "name",
    ["turns", *[pytest.param(name, marks=pytest.mark.soak) for name in cases() if name != "turns"]],
)
def test_the_machine_code_is_clean(name: str) -> None:
    case = cases()[name]
    built = case.kernel.compiled(*case.inputs, case.output(), cfg=case.cfg)
    assert gate.findings(built) == () and built.image.dynamic and built.unit.work_ring is not None
    ptx = built.ptx
    touched = re.search(r"atom\.|cp\.async\.bulk\.tensor|(ld|st)\.global", ptx)
    assert (
        touched
        and ptx.index("launch_dependents") < ptx.index("griddepcontrol.wait") < touched.start()
    )
    fetched = Counter(re.findall(r"(atom\.\S+|red\.\S+)", ptx))
    assert (
        fetched["atom.relaxed.gpu.global.add.u32"]
        and fetched["atom.acq_rel.gpu.global.inc.u32"] == 1
    )


def test_explain_counts_its_tiles() -> None:
    case = cases()["turns"]
    found = numpipe.explain(case.kernel, *case.inputs, case.output(), cfg=case.cfg, compiled=False)
    static = numpipe.explain(
        case.kernel,
        *case.inputs,
        case.output(),
        cfg=replace(case.cfg, dynamic=False),
        compiled=False,
    )
    assert (found.tiles, found.flop, found.copied_bytes) == (
        static.tiles,
        static.flop,
        static.copied_bytes,
    )
    assert found.tiles == 15 and found.slots == static.slots and found.smem == static.smem


# ---- assignments of tiles
def test_a_deal_gives_each_ticket_to_one_cta() -> None:
    for seed in (None, *range(8)):
        deal = WorkCounter(5, seed)
        drawn = [deal.draw(cta) for cta in (3, 0, 4, 2, 1) for _ in range(40)]
        assert len(set(drawn)) == len(drawn) and min(drawn) >= 5
        assert all(
            a < b
            for n in range(5)
            for a, b in zip(
                drawn[40 * n : 40 * n + 39], drawn[40 * n + 1 : 40 * n + 40], strict=True
            )
        )
    assert [WorkCounter(5).draw(2), WorkCounter(5).draw(0)] == [7, 5]


# ---- the launch's counter
@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDriver]:
    fake = FakeDriver()
    monkeypatch.setattr(driver, "get", lambda: fake)
    yield fake
    launch.encode.cache_clear()


def test_launches_that_may_run_at_the_same_time_have_counters_of_their_own(
    fake: FakeDriver,
) -> None:
    def array(ptr: int) -> launch.ArrayInfo:
        return launch.describe(CudaArray(ptr, (64,), "<f2"), "a")

    seen: list[int] = []
    fake.sizes = [256] + [8] * 6
    fake.kernel = lambda p: seen.append(ctypes.c_uint64.from_address(p[0] + 128).value)
    prepared = launch.Prepared(image(dynamic=True), [array(4096), array(8192)], outputs=1)
    for ptr, out, stream in (
        (4096, 8192, 0),
        (4096, 8192, 0),
        (4096, 8192, 7),
        (4096, 16384, 0),
        (12288, 8192, 0),
    ):
        prepared((1, 1, 1), [array(ptr), array(out)], stream=stream)
    first, again, other_stream, other_output, other_input = seen
    assert first == again == other_input and len({first, other_stream, other_output}) == 3 == len(
        fake.named("counter")
    )
    assert all(ctypes.c_uint64.from_address(counter).value == 0 for counter in seen)


def test_a_kernel_without_such_loops_has_no_counter(fake: FakeDriver) -> None:
    fake.sizes = [128] + [8] * 6
    arrays = [launch.describe(CudaArray(ptr, (64,), "<f2"), "a") for ptr in (4096, 8192)]
    launch.Prepared(image(), arrays, outputs=1)((1, 1, 1), arrays)
    assert not fake.named("counter") and fake.named("launch")
