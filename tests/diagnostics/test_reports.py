"""The data of a report, next to its text: the hazard's name, both parties with lines, ring, slot
and step, the cause and the fix."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import (
    SMEM,
    Barrier,
    BlockSpec,
    PipelineDeadlock,
    PipelineRace,
    SimulationError,
    ds,
    reports,
)
from numpipe.hazards import HAZARDS
from numpipe.language.pipeline import ring
from numpipe.sim import simulate
from numpipe.traces import deadlocks
from tests.kernels.lane_kernels import by_lane
from tests.kernels.sim_pipelines import Gemm, one

SEEDS = (None, *range(10))
SIM = Path(numpipe.__file__).parent / "sim"
SOURCE = Path(__file__).read_text(encoding="utf8").splitlines()


@pytest.fixture(autouse=True)
def _simulated_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "0")


def line(marked: str) -> int:
    """Return the line of this file that ends with a comment."""
    (number,) = (i for i, text in enumerate(SOURCE, 1) if text.endswith("# " + marked))
    return number


def broken(run: Callable[[], Any]) -> reports.Report:
    """Return the report of a run, after checking that it survives JSON and matches the error's
    text."""
    with pytest.raises(SimulationError) as caught:
        run()
    report = caught.value.report
    assert report is not None and report.text == str(caught.value)
    assert json.loads(report.json()) == report.as_dict()
    assert report.hazard in HAZARDS and report.cause
    return report


# ---- every place that detects a hazard names it ----------------------------------------------
def calls(tree: ast.AST) -> list[tuple[str, ast.Call]]:
    return [
        (
            node.func.attr
            if isinstance(node.func, ast.Attribute)
            else getattr(node.func, "id", ""),
            node,
        )
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
    ]


def text(node: ast.expr | None) -> str:
    return str(node.value) if isinstance(node, ast.Constant) else ""


def choices(node: ast.expr) -> list[ast.expr]:
    """Return the values that a conditional expression chooses from."""
    if isinstance(node, ast.IfExp):
        return choices(node.body) + choices(node.orelse)
    return [node]


def hazards_of(source: str) -> tuple[set[str], list[int]]:
    """Return the hazards that a simulator module names, and the lines that raise without one or
    without a fix."""
    tree, named, without = ast.parse(source), set(), []
    for name, call in calls(tree):
        if name in ("race", "violation", "illegal"):
            hazard = next(
                (keyword.value for keyword in call.keywords if keyword.arg == "hazard"), None
            )
            hazard = ast.Constant("illegal-instruction") if name == "illegal" else hazard
            named |= {text(hazard)}
            fixed = any(keyword.arg == "fix" for keyword in call.keywords) or "; " in ast.unparse(
                call.args[1]
            )
            without += [call.lineno] * (
                not text(hazard) or not (fixed or isinstance(call.args[1], ast.Call))
            )
        elif name in ("Finding", "Hint"):
            named |= set(map(text, choices(call.args[0])))
        elif name == "Report" and text(call.args[0]):
            named |= {text(call.args[0])}
        # of `touches`: the cause and the fix are arguments
        elif name == "failure" and len(call.args) > 6:
            named |= {text(call.args[3])}
        elif name in ("PipelineRace", "SimulationError"):
            without.append(call.lineno)  # `reported` makes these, from a report
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Tuple)
            and "hazard, " in ast.unparse(node.targets[0])
        ):
            named |= {text(node.value.elts[0])}  # in place of one that a function was given
    return named, without


def test_every_error_of_the_simulator_names_its_hazard_and_a_fix() -> None:
    named: set[str] = set()
    for file in (*SIM.glob("*.py"), SIM.parent / "traces/deadlocks.py"):
        found, without = hazards_of(file.read_text(encoding="utf8"))
        named |= found
        assert not without, f"{file.name}: errors without a hazard's name at lines {without}"
    # `language.tiles.nan_checks` raises it, above the simulator
    assert named | {"nan-stored"} == HAZARDS.keys()


@pytest.mark.parametrize(
    "source",
    [
        "report.race(who, 'what; fix')",
        "report.violation(who, 'what; fix', hazard=name)",
        "report.race(who, 'what', hazard='deadlock')",
        "report.illegal(who, 'what')",
        "PipelineRace('text')",
    ],
)
def test_an_error_without_a_name_or_a_fix_would_be_found(source: str) -> None:
    assert hazards_of(source)[1] == [1]


# ---- races of pipelines --------------------------------------------------------------------------
def summed(
    body: Any, *, slots: int = 2, delay: int = 0, ready: bool = False, consumed: bool = False
) -> Any:
    """Compute c += a_k @ b_k.T over the steps k by `body`."""

    @numpipe.kernel
    def products(a, b, c):
        def compute(pipeline):
            c[ds(0, 64), ds(0, 64)] = pipeline(numpipe.zeros((64, 64), np.float32))

        numpipe.emit_pipeline_warp_specialized(  # pipeline
            body,
            grid=(5,),
            max_concurrent_steps=slots,
            delay_release=delay,
            manual_produced_barriers=ready,
            manual_consumed_barriers=consumed,
            compute_context=compute,
            in_specs=(BlockSpec((64, 64), lambda k: (0, k)), BlockSpec((64, 64), lambda k: (0, k))),
        )(a, b)

    return products


def run(kernel: Any, seed: int | None = None) -> Any:
    a = np.ones((64, 5 * 64), np.float16)
    return kernel.simulate(a, a, np.zeros((64, 64), np.float32), seed=seed)


@numpipe.function
def in_flight(indices, a, b, a_consumed, b_consumed, acc):
    acc = numpipe.wgmma_wait(numpipe.wgmma(acc, a, b.T), 1)  # in flight
    numpipe.barrier_arrive(a_consumed)
    numpipe.barrier_arrive(b_consumed)
    return acc


RING = f"a, b @ test_reports.py:{line('pipeline')}"


@pytest.mark.parametrize("seed", SEEDS)
def test_a_product_left_in_flight_asks_for_delay_release(seed: int | None) -> None:
    report = broken(lambda: run(summed(in_flight, consumed=True, slots=3), seed))
    assert report.hazard == "refilled-while-read" and report.kernel == "products"
    now, before = report.now, report.before
    assert now is not None and before is not None
    operand, number = ("a", 0) if "(a)" in now.did else ("b", 1)
    assert (now.did, now.name, now.ring, now.slot, now.step) == (
        f"TMA load ({operand})",
        "warpgroup 1 (memory)",
        RING,
        0,
        3,
    )
    assert (now.barrier, now.phase) == (f"ready[0] of {RING}", 1)
    assert (before.did, before.name, before.ring, before.slot, before.step) == (
        "wgmma (batch 1)",
        "warpgroup 0 (compute)",
        RING,
        0,
        0,
    )
    assert [(at.line, at.function) for at in before.lines] == [(line("in flight"), "in_flight")]
    assert before.lines[0].filename == __file__
    assert (
        (now.lo, now.hi)
        == (before.lo, before.hi)
        == (1024 + 8192 * number, 1024 + 8192 * (number + 1))
    )
    assert (
        "warps 0, 1, 2, 3 of warpgroup 0 (compute) did not signal that their wgmma had finished"
        in report.cause
    )
    assert report.fix == (
        f"delay_release=1 is needed: wgmma_wait(1) leaves one group reading slot 0 of {RING}; or "
        "wgmma_wait(0) before barrier_arrive"
    )
    assert f"  fix:    {report.fix}" in report.text.splitlines()


def test_the_fix_is_right() -> None:
    """Also if it needs more slots."""
    run(summed(in_flight, consumed=True, slots=3, delay=1))
    report = broken(lambda: run(summed(in_flight, consumed=True, slots=1)))
    assert "delay_release=1 and max_concurrent_steps of 2 or more is needed" in report.fix
    run(summed(in_flight, consumed=True, slots=2, delay=1))


@numpipe.function
def early(indices, a, b, a_ready, b_ready, acc):
    numpipe.barrier_wait(a_ready)
    return numpipe.wgmma_wait(numpipe.wgmma(acc, a, b.T), 0)  # early


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("slots", [1, 2])
def test_a_tile_that_is_not_waited_for(slots: int, seed: int | None) -> None:
    report = broken(lambda: run(summed(early, ready=True, slots=slots), seed))
    assert report.hazard == "read-before-ready"
    assert report.now is not None and report.before is not None
    parties = {report.now.role: report.now, report.before.role: report.before}
    assert parties["compute"].lines[0].line == line("early")
    assert parties["memory"].did in ("TMA load (b)", "TMA load that has not been issued yet")
    assert (
        parties["compute"].step == parties["memory"].step
        and parties["compute"].slot == parties["memory"].slot
    )
    slot = parties["compute"].slot
    assert f"wait for ready[{slot}] for in_specs[1] 'b' of {RING}, phase" in report.fix
    assert "(barrier_wait in the body), before step" in report.fix


@numpipe.function
def after(indices, a, b, a_consumed, b_consumed, acc):
    acc = numpipe.wgmma_wait(numpipe.wgmma(acc, a, b.T), 0)
    numpipe.barrier_arrive(a_consumed)
    numpipe.barrier_arrive(b_consumed)
    return acc + a[...].astype(np.float32)  # after


@pytest.mark.parametrize("seed", SEEDS)
def test_a_tile_that_is_read_when_it_has_been_released(seed: int | None) -> None:
    """The copy of a later step may come before the read or after it."""
    report = broken(lambda: run(summed(after, consumed=True), seed))
    assert report.hazard == "read-after-release"
    assert report.now is not None and report.before is not None
    read, load = sorted((report.now, report.before), key=lambda party: party.role)
    assert (read.did, read.lines[0].line, load.did) == (
        "read (tile[…])",
        line("after"),
        "TMA load (a)",
    )
    assert read.slot == load.slot and read.step is not None and load.step == read.step + 2
    assert report.fix.startswith(f"read the tile of step {read.step} before barrier_arrive")


@numpipe.kernel
def kept(a, b, c):
    acc, previous = numpipe.zeros((64, 64), np.float32), None
    for (k,), (a_tile, b_tile) in numpipe.pipeline(
        grid=(5,),
        max_concurrent_steps=2,
        in_specs=(BlockSpec((64, 64), lambda k: (0, k)), BlockSpec((64, 64), lambda k: (0, k))),
    )(a, b):
        if k == 0:
            previous = a_tile
        acc = numpipe.wgmma(acc, previous, b_tile.T)  # kept
        previous = a_tile
    c[ds(0, 64), ds(0, 64)] = acc


@pytest.mark.parametrize("seed", SEEDS)
def test_a_tile_that_is_kept_for_the_next_step(seed: int | None) -> None:
    report = broken(lambda: run(kept, seed))
    assert report.hazard == "read-after-release" and report.kernel == "kept"
    assert report.now is not None and report.before is not None
    product, load = sorted((report.now, report.before), key=lambda party: party.role)
    assert (product.step, product.slot, product.lines[0].line) == (1, 0, line("kept"))
    assert (load.step, load.slot) == (2, 0)
    assert report.fix.startswith(
        "read the tile of step 0 in step 0 at the latest, or keep it with delay_release=1: slot 0"
    )


@numpipe.kernel
def unfinished(a, c, *, left: numpipe.Static = 0):
    """Issue two products, wait until `left` (0: two) are in flight, and read the first."""
    tile = numpipe.scratch(SMEM((64, 64), np.float16))
    tile[...] = numpipe.zeros((64, 64), np.float32).astype(a.dtype)
    numpipe.commit_smem()
    first = numpipe.wgmma(numpipe.zeros((64, 64), np.float32), tile, tile)  # first
    second = numpipe.wgmma(numpipe.zeros((64, 64), np.float32), tile, tile)
    if left == 0:
        second = numpipe.wgmma_wait(second, 2)
    c[ds(0, 64), ds(0, 64)] = numpipe.wgmma_wait(first, left) if left else first  # read
    c[ds(0, 64), ds(64, 64)] = numpipe.wgmma_wait(second, 0)


@pytest.mark.parametrize(
    "left, fix",
    [
        (0, ", 1 at most: wgmma_wait(2) leaves it in flight"),
        (2, ", 1 at most: wgmma_wait(2) leaves it in flight"),
        (1, ""),
    ],
)
def test_an_accumulator_in_flight_asks_for_a_wait_that_covers_it(left: int, fix: str) -> None:
    a = np.zeros((64, 64), np.float16)
    if not fix:
        unfinished.simulate(a, np.zeros((64, 128), np.float32), left=left)
        return
    report = broken(lambda: unfinished.simulate(a, np.zeros((64, 128), np.float32), left=left))
    assert (
        report.hazard == "accumulator-in-flight"
        and report.now is not None
        and report.before is not None
    )
    assert (report.before.did, report.before.lines[0].line) == ("wgmma (batch 1)", line("first"))
    assert report.now.lines[0].line == line("read")
    assert report.fix == f"commit, then wgmma_wait with few enough groups pending{fix}"


# ---- copies issued by the kernel itself -----------------------------------------------------
def copies(machine: Any, late: bool) -> None:
    """Load a slot twice from warpgroup 0 and read it from warpgroup 1, with explicit barriers."""
    landed, free = 4096, 4104
    for at, count, name in ((landed, 1, "landed"), (free, 4, "free")):
        machine.mbar_init_at_entry(at, count, name)
    if machine.warpgroup == 0:

        def load(phase: int) -> None:
            machine.mbar_wait(free, phase - 1)
            machine.mbar_arrive_expect_tx(landed, 2048)
            machine.tma_load(0, BOX, (0, 0), landed)

        one(machine, load, 0)
        one(machine, load, 1)
        one(machine, machine.mbar_wait, landed, 1)  # the other warps have not waited for phase 0
    else:
        machine.mbar_wait(landed, 0)
        chunks = np.arange(0, 2048, 16).reshape(4, 32)
        machine.smem_read(chunks, "tile")
        machine.scoped("warps", machine.mbar_arrive, (free,))
        if late:
            machine.smem_read(chunks, "tile")


BOX = numpipe.core.machine.TensorMap(np.zeros((16, 64), np.float16), (16, 64), 0, "x")


@pytest.mark.parametrize("late", [True, False])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_read_after_the_arrival_that_frees_the_bytes(late: bool, seed: int | None) -> None:
    def go() -> None:
        simulate(
            lambda machine: copies(machine, late),
            grid=(1, 1, 1),
            warpgroups=2,
            smem_bytes=8192,
            seed=seed,
        )

    if not late:
        go()
        return
    report = broken(go)
    # whether the second copy comes before the read or after it
    assert report.hazard == "read-after-release"
    assert report.fix == "read before the arrival on free, which allows the bytes to be overwritten"


# ---- deadlocks -----------------------------------------------------------------------------------
@numpipe.function
def holds(indices, a, b, a_consumed, b_consumed, acc):
    acc = numpipe.wgmma_wait(numpipe.wgmma(acc, a, b.T), 0)
    numpipe.barrier_arrive(a_consumed)
    if indices[0] != 1:
        numpipe.barrier_arrive(b_consumed)
    return acc


def test_a_slot_that_is_not_released_is_found_before_anybody_waits() -> None:
    report = broken(lambda: run(summed(holds, consumed=True)))
    assert (
        report.hazard == "too-few-arrivals"
        and report.now is not None
        and report.kernel == "products"
    )
    assert (report.now.ring, report.now.slot, report.now.step, report.now.phase) == (RING, 1, 1, 0)
    assert report.now.barrier == f"consumed[1] for in_specs[1] 'b' of {RING}"
    assert "arrives once on each consumed barrier of a step" in report.fix


@pytest.mark.parametrize("seed", SEEDS)
def test_a_deadlock_of_a_ring_names_who_holds_which_slot(
    seed: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ring.check_released, "function", lambda *_: None)  # as on a GPU
    report = broken(lambda: run(summed(holds, consumed=True), seed))
    assert report.hazard == "too-few-arrivals" and report.kernel == "products"
    compute, memory = report.waiting
    assert (compute.barrier, compute.phase, compute.step, compute.slot) == (
        f"ready[1] of {RING}",
        1,
        3,
        1,
    )
    assert (memory.barrier, memory.phase, memory.step, memory.slot) == (
        f"consumed[1] for in_specs[1] 'b' of {RING}",
        0,
        3,
        1,
    )
    assert memory.ring == compute.ring == RING and memory.lines and compute.lines
    state = next(barrier for barrier in report.barriers if barrier.name == memory.barrier)
    assert (state.kind, state.ring, state.slot, state.step) == ("consumed", RING, 1, 1)
    assert (state.phase, state.pending, state.count, state.missing_bytes, state.waiters) == (
        0,
        4,
        4,
        0,
        (1,),
    )
    assert report.fix.startswith(
        f"warpgroup 0 (compute) releases slot 1 of {RING} after step 1, on every path"
    )
    assert f"  fix:    {report.fix}" in report.text.splitlines()
    assert "has not released" in report.cause and report.text.count("hint:") == 1


def waits_alone(machine: Any) -> None:
    machine.bar_sync(1 + machine.warpgroup, 256)


def too_many_registers(machine: Any) -> None:
    machine.setmaxnreg("inc", 256)


def one_arrival_of_two(machine: Any) -> None:
    machine.mbar_init_at_entry(0, 8, "both", observed=True)
    if machine.warpgroup == 0:
        machine.scoped("warps", machine.mbar_arrive, (0,))
    machine.mbar_wait(0, 0)


def for_each_other(machine: Any) -> None:
    for at in (0, 8):
        machine.mbar_init_at_entry(at, 4, f"bar{at // 8}", observed=True)
    machine.mbar_wait(8 * machine.warpgroup, 0)
    machine.scoped("warps", machine.mbar_arrive, (8 - 8 * machine.warpgroup,))


@pytest.mark.parametrize(
    "body, hazard, fix",
    [
        (
            waits_alone,
            "named-barrier-mismatch",
            "use the same number and the same count of threads",
        ),
        (too_many_registers, "register-budget", "counts that add up to at most 510"),
        (
            one_arrival_of_two,
            "too-few-arrivals",
            "one arrival (barrier_arrive, or a copy) more in phase 0 of both by warpgroup 1 "
            "(compute) before the wait for it, or a Barrier with num_arrivals=1",
        ),
        (
            for_each_other,
            "deadlock",
            "one arrival (barrier_arrive, or a copy) in phase 0 of bar0, by a warpgroup that does "
            "not",
        ),
    ],
)
def test_a_deadlock_is_called_by_its_cause_if_that_is_known(
    body: Any, hazard: str, fix: str
) -> None:
    report = broken(lambda: simulate(body, grid=(1, 1, 1), warpgroups=2, smem_bytes=1024))
    assert report.hazard == hazard and report.fix.startswith(fix), report
    assert len(report.waiting) == 2


def test_a_deadlock_is_reported_from_plain_data() -> None:
    """The data of a kernel that hung on a GPU has no record of arrivals."""
    name = "a @ k.py:3"
    ready, consumed = f"ready[0] of {name}", f"consumed[0] of {name}"
    at: dict[str, Any] = {"ring": name, "slot": 0, "step": 2}
    waiting = [
        reports.Party(
            deadlocks.blocked_on(ready, 1, 2), 0, "compute", barrier=ready, phase=1, **at
        ),
        reports.Party(
            deadlocks.blocked_on(consumed, 0, 2), 1, "memory", barrier=consumed, phase=0, **at
        ),
    ]
    barriers = [
        reports.Barrier(ready, 1, 1, 1, 0, waiters=(0,), kind="ready", ring=name, slot=0, step=2),
        reports.Barrier(
            consumed, 0, 4, 4, 0, waiters=(1,), kind="consumed", ring=name, slot=0, step=0
        ),
    ]
    report = deadlocks.deadlock("CTA (0, 0, 0): " + deadlocks.WAITS, waiting, barriers, kernel="k")
    assert report.text.splitlines() == [
        "CTA (0, 0, 0): every warpgroup waits and nothing is in flight",
        "  warpgroup 0 (compute): blocked on ready[0] of a @ k.py:3 phase 1 step 2",
        "  warpgroup 1 (memory): blocked on consumed[0] of a @ k.py:3 phase 0 step 2",
        "  ready[0] of a @ k.py:3: phase 1, 1 of 1 arrivals missing, 0 bytes missing",
        "  consumed[0] of a @ k.py:3: phase 0, 4 of 4 arrivals missing, 0 bytes missing",
        "  hint: consumed[0] of a @ k.py:3 is still missing 4 of 4 arrivals in phase 0: a slot was "
        "never released, or the count is higher than the number of arrivals: warpgroup 0 (compute) "
        "has not released slot 0 of a @ k.py:3 after step 0",
        "  fix:    warpgroup 0 (compute) releases slot 0 of a @ k.py:3 after step 0, on every "
        "path through the body: one barrier_arrive per step on its consumed barrier, by all four "
        "warps",
    ]
    assert (
        report.hazard == "too-few-arrivals"
        and report.waiting == tuple(waiting)
        and report.barriers == tuple(barriers)
    )
    over = deadlocks.deadlock(
        "CTA", [waiting[0], reports.Party(deadlocks.FINISHED, 1, "memory")], barriers[:1]
    )
    assert (
        over.fix.startswith("load as many steps as are computed")
        and "warpgroup 1 (memory) has finished" in over.cause
    )


# ---- other reports --------------------------------------------------------------------------
def test_a_broken_rule_of_a_lane_body_names_kernel_and_line() -> None:
    @by_lane
    def outside(x, y):
        def body(indices, tile, total):
            return total + tile[numpipe.lane_index(), 0]  # outside

        def compute(pipeline):
            pipeline(0.0)

        numpipe.emit_pipeline_warp_specialized(
            body,
            grid=(1,),
            compute_context=compute,
            in_specs=(BlockSpec((64, 64), lambda k: (0, 0)),),
        )(x)

    report = broken(
        lambda: outside.simulate(np.zeros((64, 64), np.float32), np.zeros((64, 64), np.float32))
    )
    assert (report.hazard, report.kernel) == ("out-of-bounds", "outside") and report.now is not None
    assert [at.line for at in report.now.lines] == [line("outside")]
    assert report.fix == "row in 0…63, column in 0…63"


def test_an_error_of_the_kernels_own_arithmetic_has_no_report() -> None:
    @numpipe.kernel
    def overflows(c):
        c[ds(np.int32(2147483647) + numpipe.program_id(0) + 1, 64), ds(0, 64)] = numpipe.zeros(
            (64, 64), np.float32
        )

    with pytest.raises(SimulationError) as caught:
        overflows.simulate(np.zeros((64, 64), np.float32))
    assert caught.value.report is None


@pytest.mark.parametrize(
    "bug, kind, hazard",
    [
        ("release dropped", PipelineDeadlock, "too-few-arrivals"),
        ("release doubled", PipelineRace, "too-many-arrivals"),
        ("bytes short", SimulationError, "wrong-expect-tx"),
        ("bytes long", PipelineDeadlock, "wrong-expect-tx"),
        ("stale phase", PipelineRace, "wrong-phase"),
        ("stores not fenced", PipelineRace, "unfenced-writes"),
        ("no barrier before the store", PipelineRace, "unordered-accesses"),
        ("staging not awaited", PipelineRace, "store-source-reused"),
        ("stores not drained", PipelineRace, "exit-in-flight"),
        ("mma not fenced", PipelineRace, "missing-wgmma-fence"),
        ("barriers not fenced", PipelineRace, "missing-init-fence"),
    ],
)
def test_kernels_by_hand_are_reported_without_a_unit(
    bug: str, kind: type[SimulationError], hazard: str
) -> None:
    """Without a kernel's name and a ring's plan, the report uses the notes and the barriers'
    names."""
    with pytest.raises(kind) as caught:
        Gemm(k=256, bug=bug).run()
    report = caught.value.report
    assert report is not None and (report.hazard, report.kernel) == (hazard, "")
    assert report.fix, report.text


@numpipe.kernel(num_compute_wgs=2, warp_specialized=False)
def one_for_both(y, *, fixed: numpipe.Static):
    wg = numpipe.axis_index("wg")
    done = numpipe.scratch(Barrier(num_arrivals=2))
    for _ in range(3):
        if fixed or wg == 0:
            numpipe.barrier_arrive(done)
        if not fixed and wg == 0:
            numpipe.barrier_arrive(done)
        numpipe.barrier_wait(done)


def test_a_warpgroup_that_arrives_in_place_of_another_is_named() -> None:
    """Only in some schedules, because the barrier does not know who arrives.

    The fix is what the fixed twin does.
    """
    fixes = []
    for seed in range(12):
        one_for_both.simulate(np.zeros((64, 64), np.float32), seed=seed, fixed=True)
        try:
            one_for_both.simulate(np.zeros((64, 64), np.float32), seed=seed, fixed=False)
        except SimulationError as error:
            assert error.report is not None
            fixes.append((error.report.hazard, error.report.fix))
    assert fixes
    for hazard, fix in fixes:
        assert hazard == "wrong-phase" and re.fullmatch(
            r"one barrier_arrive on barrier @ test_reports.py:\d+ by warpgroup 1 \(compute\) and "
            r"one by each of the others: phase \d counts 2 of warpgroup 0 \(compute\), and none "
            r"of warpgroup 1 \(compute\)",
            fix,
        )
