"""schedule="pingpong": compute warpgroups take turns on whole tiles, right in any schedule; broken
turns are reported."""

from __future__ import annotations

import functools
import inspect
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gemm_tuned
import numpipe
from numpipe import ArrayType, BlockSpec, CompilerParams, SpecError, fit_slots
from numpipe.arch.targets import HOPPER
from numpipe.compile.check import gate
from numpipe.compile.lift import turn_placement as lifted_turns
from numpipe.errors import CompileError, PipelineDeadlock, SimulationError
from numpipe.kernels.variants import Variant
from numpipe.language.pipeline import pingpong as turns
from numpipe.language.pipeline import steps
from numpipe.plan.kernel_shape import SCHEDULES
from numpipe.plan.plans import ArrayArg, BarrierPlace
from numpipe.plan.roles import COMPUTE
from numpipe.plan.shared_memory import SharedMemory
from numpipe.plan.unit import Unit
from numpipe.sim.warpgroup import Warpgroup
from numpipe.tools.model import explaining, limits
from tests.kernels.compilers import compiles
from tests.kernels.kernels_for_tests import gemm, operands, product
from tests.kernels.turn_kernels import CFG, Case, cases, in_bands, pingpong, with_skips
from tests.language.pipeline.test_injected import Bug
from tests.traces.legal import check_legal

F16, BF16 = np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)
T16, TB = (ArrayType((256, 256), dtype) for dtype in (F16, BF16))
PING_PONG = {name: cfg for name, cfg in gemm_tuned.CONFIGS.items() if cfg.schedule == "pingpong"}


def run(case: Case, kernel: Any = None, seed: int | None = None, **options: Any) -> np.ndarray:
    c = case.output()
    (kernel or case.kernel).simulate(*case.inputs, c, cfg=case.cfg, seed=seed, **options)
    return c


# ---- right in any schedule
@pytest.mark.variants(3, thorough=8)
@pytest.mark.parametrize("name", cases())
def test_every_form_computes_the_same_without_a_report(name: str) -> None:
    case = cases()[name]
    for seed in (None, 0, 1):
        np.testing.assert_array_equal(
            run(case, seed=seed).astype(np.float64), case.expected.astype(np.float64)
        )


@pytest.mark.variants(0)
@pytest.mark.parametrize(
    "name", ["trip counts", *[pytest.param(name, marks=pytest.mark.soak) for name in cases()]]
)
def test_no_form_has_a_report_in_40_schedules(name: str) -> None:
    case = cases()[name]
    result = numpipe.verify(case.kernel, *case.inputs, case.output(), cfg=case.cfg, schedules=40)
    assert result, str(result)


@pytest.mark.variants(3)
@pytest.mark.parametrize(
    "m, n, k",
    [
        (192, 64, 192),
        (64, 64, 320),
        (1, 8, 8),
        (130, 200, 72),
        (128, 128, 0),
        (320, 64, 64),
        (65, 72, 136),
    ],
    ids=str,
)
def test_tiles_that_do_not_come_out_even(m: int, n: int, k: int) -> None:
    """Odd counts of tiles, fewer than warpgroups or CTAs; steps that are not a multiple of the
    slots, or zero."""
    a, b = operands(m, n, k)
    for ctas in (1, 2, 5):
        c = pingpong(gemm().function, ctas=ctas, out_type=gemm().options.out_type).simulate(
            a, b, cfg=CFG
        )
        np.testing.assert_array_equal(c.astype(np.float64), product(a, b).astype(np.float64))


@functools.cache
def free_form(warpgroups: int, ctas: int) -> Any:
    return pingpong(cases()["trip counts"].kernel.function, warpgroups, ctas)


@settings(max_examples=8, deadline=None, derandomize=True)
@given(
    counts=st.lists(st.integers(0, 6), min_size=1, max_size=7),
    warpgroups=st.integers(2, 4),
    ctas=st.integers(1, 3),
    slots=st.integers(2, 4),
    delay=st.integers(0, 1),
    seed=st.none() | st.integers(0, 99),
)
def test_any_number_of_steps_a_tile(
    counts: list[int], warpgroups: int, ctas: int, slots: int, delay: int, seed: int | None
) -> None:
    a, b = operands(64 * len(counts), 64, 6 * 64)
    table = np.array([(m, 0, count) for m, count in enumerate(counts)], np.int32)
    c = np.zeros((len(a), 64), np.float32)
    free_form(warpgroups, ctas).simulate(
        a, b, table, c, cfg=replace(CFG, slots=slots, delay=delay), seed=seed
    )
    for m, _, k in 64 * table:
        np.testing.assert_array_equal(c[m : m + 64], product(a[m : m + 64, :k], b[:, :k], c.dtype))


# ---- order of turns
def test_warpgroups_have_every_second_tile_and_the_axis_has_size_1() -> None:
    case, trace = cases()["gemm"], numpipe.Trace()
    run(case, trace=trace)
    check_legal(trace)
    shares = {
        number: [
            event.details["number"]
            for event in trace.events
            if event.note == "tile begin" and event.cta == (0, 0, 0) and event.warpgroup == number
        ]
        for number in range(3)
    }
    # of 6 tiles, of which the CTA has every second one
    assert shares[0] == [0, 4] and shares[1] == [2] and shares[2] == [0, 2, 4]


@pytest.mark.parametrize("name", ["gemm", "body form"])
def test_the_turn_is_passed_while_the_last_products_run(name: str) -> None:
    trace = numpipe.Trace()
    run(cases()[name], trace=trace)
    first, second = sorted({event.warpgroup for event in trace.events if event.role == "compute"})
    drained = min(
        event.end for event in trace.events if event.kind == "drain" and event.warpgroup == first
    )
    taken = min(
        event.end for event in trace.events if event.kind == "barrier" and event.warpgroup == second
    )
    stored = min(
        event.start for event in trace.events if event.kind == "store" and event.warpgroup == first
    )
    assert taken < drained < stored


def test_a_step_of_two_warpgroups_is_not_a_legal_trace() -> None:
    trace = numpipe.Trace()
    run(cases()["gemm"], trace=trace)
    other = next(
        event for event in trace.events if event.note == "compute" and event.warpgroup == 1
    )
    trace.events[:] = [
        replace(
            event,
            details=event.details | {"step": other.details["step"], "slot": other.details["slot"]},
        )
        if event.note == "compute" and event.warpgroup == 0 and event.details["step"] == 4
        else event
        for event in trace.events
    ]
    with pytest.raises(
        SimulationError, match="a step must be read by only one of the warpgroups that take turns"
    ):
        check_legal(trace)


def test_a_slot_is_kept_a_step_longer_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    def first(a, b, c, *, cfg: numpipe.Static = CFG):
        for m, n in numpipe.tiles(1, 1):
            pipe = numpipe.pipeline(
                grid=(1 + a.shape[1] // 128,),
                max_concurrent_steps=cfg.slots,
                in_specs=(
                    BlockSpec((64, 64), lambda k: (m, k)),
                    BlockSpec((64, 64), lambda k: (n, 0)),
                ),
            )
            for (k,), (a_tile, b_tile) in pipe(a, b):
                pass

    a, b = operands(64, 64, 256)
    units: list[Unit] = []
    make = Variant.unit
    for params, slots, delay in (
        (CompilerParams(), 3, 1),
        (CompilerParams(), 1, 0),
        (CompilerParams(delay_release=0), 3, 0),
    ):
        kernel = pingpong(first, compiler_params=params)
        units.clear()
        monkeypatch.setattr(
            Variant, "unit", lambda *args, **named: units.append(make(*args, **named)) or units[-1]
        )
        kernel.simulate(a, b, np.zeros((64, 64), F16), cfg=replace(CFG, slots=slots))
        assert [
            plan.delay for unit in units for plan in unit.rings.values() if plan.dims is None
        ] == [delay]
        assert all(
            unit.turns == 2 and unit.readers(plan) == 1
            for unit in units
            for plan in unit.load_rings
        )


def test_barriers_of_the_kernels_own_lie_before_the_words_of_turns() -> None:
    params = (ArrayArg("x", F16, 2),), ("i",), "wg"
    for schedule, end in (("cooperative", 1024), ("pingpong", 1024 - 2 * 64)):
        unit = Unit("k", *params, 2, 40, schedule=schedule)
        unit.plan_scratch("k.py:1", numpipe.Barrier(num_barriers=3), True)
        found = [address for address, _, _ in unit.scratch_barriers()]
        assert found == [end - 24, end - 16, end - 8] and all(
            unit.barrier_at(address) == BarrierPlace("own") for address in found
        )
        assert unit.barrier_at(end) is None and unit.barrier_at(end - 32) is None
    assert {unit.turn_word(w, i) for w in range(2) for i in range(16)} == set(range(end, 1024, 4))


def test_the_model_counts_all_tiles_once() -> None:
    case = cases()["gemm, 3 warpgroups"]
    assert numpipe.explain(case.kernel, *case.inputs, case.output(), cfg=case.cfg).tiles == 15


def test_the_model_lets_one_warpgroup_store_while_another_multiplies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernel = gemm_tuned.kernel(PING_PONG["ping-pong 128x192"])
    # as many tiles for each of the two warpgroups
    a, b = ArrayType((8192, 512), BF16), ArrayType((8448, 512), BF16)
    seconds = numpipe.explain(kernel, a, b, compiled=False).predicted_seconds
    # as if they shared each tile
    monkeypatch.setattr(explaining, "Facts", lambda *args: limits.Facts(*args[:5], turns=False))
    assert 1.05 * seconds < numpipe.explain(kernel, a, b, compiled=False).predicted_seconds


def test_who_passes_a_turn_meets_who_takes_it_also_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    met: Counter[tuple[str, int]] = Counter()
    for name in ("bar_sync", "bar_arrive"):
        own = getattr(Warpgroup, name)
        monkeypatch.setattr(
            Warpgroup,
            name,
            lambda who, barrier, threads, name=name, own=own: (
                met.update([(name, int(barrier))]),
                own(who, barrier, threads),
            )[1],
        )
    run(cases()["gemm, 3 warpgroups"])
    passed, taken = (
        {
            barrier: n
            for (kind, barrier), n in met.items()
            if kind == asked and barrier >= turns.FIRST_BARRIER
        }
        for asked in ("bar_arrive", "bar_sync")
    )
    assert passed == taken and sum(taken.values()) == 15 + 2  # of each tile, and of each CTA's end


# ---- broken turns
TAKE, GIVE = turns.await_turn, turns.give_turn
FINISHED = (
    "over(loop.rings, set_steps_done, loop.total)\n    over(loop.outs, set_steps_done, loop.total)"
)
BUGS = {
    "steps of others are not skipped": Bug(TAKE, "get_counters(np_)", "pass", SimulationError, "."),
    "the turn is not waited for": Bug(
        TAKE, "barrier.sync(own_barrier(np_), THREADS)", "pass", SimulationError, "."
    ),
    "the turn is never passed": Bug(
        where=GIVE,
        old="barrier.arrive(next_barrier(np_), THREADS)",
        new="pass",
        error=PipelineDeadlock,
        message=r"named barrier \d+ \(the turn of compute warpgroup \d\): 128 of 256 threads",
    ),
    "counters are not written": Bug(GIVE, "put_counters(np_)", "pass", SimulationError, "."),
    "the turn is passed before the counters are written": Bug(
        where=GIVE,
        old="put_counters(np_)\n    barrier.arrive(next_barrier(np_), THREADS)",
        new="barrier.arrive(next_barrier(np_), THREADS)\n    put_counters(np_)",
        error=SimulationError,
        message=".",
    ),
    "the turn is passed before the steps are counted": Bug(
        where=steps.end_loop,
        old=f'{FINISHED}\n    only_if(loop, "passes_early", pass_turn_of)',
        new=f'only_if(loop, "passes_early", pass_turn_of)\n    {FINISHED}',
        error=SimulationError,
        message=".",
    ),
    "the turn is passed to oneself": Bug(
        turns.following, "(np_.number + 1) % np_.unit.turns", "np_.number", SimulationError, "."
    ),
    "one barrier for all": Bug(turns.own_barrier, "np_.number", "0", SimulationError, "."),
    "every warpgroup has all tiles": Bug(
        turns.own_stride, "np_.unit.turns", "1", SimulationError, "."
    ),
    "all begin with the same tile": Bug(
        turns.before_own, "np_.number - np_.turn", "0", SimulationError, "."
    ),
}


@pytest.mark.parametrize("name", BUGS)
def test_a_broken_turn_is_found_in_every_schedule(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bug, case = BUGS[name], cases()["gemm"]
    bug.inject(monkeypatch)
    for seed in (None, *range(3)):
        with pytest.raises(bug.error, match=bug.message):
            run(case, seed=seed)


def test_arrivals_of_all_warpgroups_would_be_waited_for_in_vain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Unit, "readers", lambda unit, plan: unit.compute_wgs)
    for seed in (None, *range(3)):
        with pytest.raises(PipelineDeadlock, match=r"consumed\[0\]"):
            run(cases()["gemm"], seed=seed)


def test_one_word_for_all_warpgroups_is_written_while_it_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = SharedMemory.turn_word
    monkeypatch.setattr(
        SharedMemory, "turn_word", lambda unit, warpgroup, index: own(unit, 0, index)
    )
    for seed in (None, *range(3)):
        with pytest.raises(SimulationError, match="load_word"):
            # without products, nothing else orders the warps of a warpgroup
            run(cases()["trip counts"], seed=seed)


def test_a_skipped_tile_keeps_the_turn_unless_it_is_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifted_turns, "with_skips", lambda body, before: body)
    kernel, case = pingpong(with_skips), cases()["skips"]
    for seed in (None, *range(3)):
        with pytest.raises(PipelineDeadlock, match="named barrier"):
            run(case, kernel, seed)


def test_a_loop_that_begins_anew_waits_for_another_ones_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bug = Bug(turns.end_turns, "np_.turn = turn", "_ = turn", PipelineDeadlock, ".")
    bug.inject(monkeypatch)
    for seed in (None, *range(3)):
        with pytest.raises(SimulationError):
            run(cases()["loops"], pingpong(in_bands, ctas=1), seed)


def test_the_error_for_warpgroups_that_meet_in_a_tile_suggests_the_turn() -> None:
    @numpipe.kernel(schedule="pingpong", num_compute_wgs=2)
    def meets(a):
        both = numpipe.scratch(numpipe.Barrier(num_arrivals=2))
        for (m,) in numpipe.tiles(2):
            pipe = numpipe.pipeline(grid=(1,), in_specs=(BlockSpec((64, 64), lambda k: (m, k)),))
            for (k,), (tile,) in pipe(a):
                numpipe.barrier_arrive(both)
                numpipe.barrier_wait(both)

    with pytest.raises(PipelineDeadlock) as caught:
        meets.simulate(np.zeros((128, 64), F16))
    assert "bar_sync 10 (the turn of compute warpgroup 1): 128 of 256 threads" in str(caught.value)
    assert (
        "a warpgroup must not wait for another one during its turn, because the others wait for "
        "theirs" in str(caught.value)
    )


# ---- what is rejected (in a kernel's source: misuse/turns.py)
def without_tiles(a, b, c):
    acc = numpipe.zeros((64, 64), np.float32)  # noqa: F841


def over_blocks(x, y): ...


@pytest.mark.parametrize(
    "function, options, message",
    [
        (
            without_tiles,
            {"schedule": "ping-pong"},
            "schedule must be 'cooperative' or 'pingpong', got 'ping-pong'",
        ),
        (
            without_tiles,
            {"warp_specialized": False},
            "schedule='pingpong' with warp_specialized=False: it alternates compute warpgroups "
            "on what the memory role loads; leave warp_specialized out",
        ),
        (
            without_tiles,
            {"num_compute_wgs": 1},
            "schedule='pingpong' alternates compute warpgroups and needs 2 or more, got "
            "num_compute_wgs=1: give num_compute_wgs=2",
        ),
        (
            over_blocks,
            {
                "in_specs": (BlockSpec((64, 64), lambda i: (i, 0)),),
                "out_specs": (BlockSpec((64, 64), lambda i: (i, 0)),),
            },
            "schedule='pingpong' with in_specs or out_specs of the kernel: their blocks are "
            "steps of one pipeline, not tiles to alternate on; use a loop over numpipe.tiles "
            "with a pipeline in it",
        ),
    ],
)
def test_options_that_do_not_go_with_turns(
    function: Callable[..., Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(SpecError) as caught:
        numpipe.kernel(function, **{"schedule": "pingpong", **options})
    assert str(caught.value).splitlines()[0] == f"kernel {function.__name__}: {message}"


def test_a_kernel_without_tiles_is_refused() -> None:
    a, b = operands(64, 64, 64)
    with pytest.raises(
        CompileError,
        match=r"without_tiles: with schedule='pingpong' compute warpgroups take turns on tiles, "
        r"but the kernel has no loop over tiles; fix: write `for m, n in numpipe.tiles\(…\):`",
    ):
        numpipe.kernel(without_tiles, schedule="pingpong").simulate(a, b, np.zeros((64, 64), F16))


def test_a_pipeline_that_asks_for_one_warpgroup_is_refused() -> None:
    @numpipe.kernel(schedule="pingpong")
    def asks(a):
        def body(indices, tile):
            pass

        for (m,) in numpipe.tiles(1):
            numpipe.emit_pipeline_warp_specialized(
                body,
                grid=(1,),
                num_compute_wgs=1,
                in_specs=(BlockSpec((64, 64), lambda k: (m, k)),),
            )(a)

    with pytest.raises(
        SpecError, match="needs at least 2 compute warpgroups, .* got num_compute_wgs=1"
    ):
        asks.simulate(np.zeros((64, 64), F16))


def test_the_schedules_are_two() -> None:
    assert SCHEDULES == ("cooperative", "pingpong")
    assert inspect.signature(numpipe.kernel).parameters["schedule"].default == "cooperative"


# ---- shared memory
def test_slots_and_staging_share_the_available_memory() -> None:
    def of(tm: int, tn: int, panels: int) -> int:
        return fit_slots(((tm, 64), F16), ((tn, 64), BF16), store_slots=panels)

    assert (of(64, 256, 1), of(128, 192, 4), of(128, 128, 2), of(128, 256, 4)) == (5, 4, 6, 3)
    assert fit_slots(((128, 64), F16), num_compute_wgs=1, other_bytes=100_000) == 7
    # a block takes at least 1024 bytes
    assert fit_slots(((1, 8), np.float32), store_slots=0) == (232448 - 1024) // 1024
    with pytest.raises(
        SpecError,
        match=r"a slot needs 131072 B, but only 100352 B of 232448 B are left after 1024 B of "
        r"barriers, 131072 B of store_slots \(2 warpgroups x 8 x 8192 B\) and 0 B of other_bytes",
    ):
        fit_slots(((512, 128), F16), store_slots=8)
    with pytest.raises(SpecError, match="which have no bytes"):
        fit_slots()


# ---- the machine code
def code(cfg: gemm_tuned.Config, array: ArrayType) -> Any:
    return gemm_tuned.kernel(cfg).compiled(array, array)


def check_code(built: Any, cfg: gemm_tuned.Config) -> None:
    """Check that the code passes the gate and has the planned products and the barriers of the
    order."""
    assert gate.findings(built) == ()
    assert built.unit.store_slots == cfg.panels and [
        plan.slots for plan in built.unit.rings.values()
    ] == [cfg.depth]
    assert all(plan.delay == 1 for plan in built.unit.rings.values())
    compute = gate.role_code(gate.Sass(built.sass, HOPPER), COMPUTE)
    order = [i for i in compute if i.opcode.startswith("BAR.") and i.text.endswith("0x100")]
    # at entry; take and pass; at the end
    assert [i.opcode.split(".")[1] for i in order] == ["ARV", "SYNC", "ARV", "SYNC"]
    products = [i for i in compute if i.opcode.startswith("HGMMA")]
    waits = [i for i in compute if i.opcode.startswith("WARPGROUP.DEPBAR")]
    drained = next(i for i in waits if i.text.endswith("gsb0, 0x0"))
    # passed before the products are waited for
    assert order[1].address < products[0].address < order[2].address < drained.address
    # products stay in flight while the previous slot is released
    assert any(i.text.endswith("gsb0, 0x1") for i in waits)
    loop = gate.Sass(built.sass, HOPPER).innermost(products[0])
    # counters in uniform registers
    assert not [i for i in loop if i.opcode.startswith(("SHFL", "R2UR", "WARPSYNC"))]


@pytest.mark.thorough
@compiles
def test_the_machine_code_of_the_largest_tile_is_clean() -> None:
    cfg = PING_PONG["ping-pong 128x192"]
    check_code(code(cfg, TB), cfg)


@compiles
@pytest.mark.soak
@pytest.mark.parametrize("array", [T16, TB], ids=["f16", "bf16"])
@pytest.mark.parametrize("name", PING_PONG)
def test_the_machine_code_of_every_tile_is_clean(name: str, array: ArrayType) -> None:
    check_code(code(PING_PONG[name], array), PING_PONG[name])


@compiles
@pytest.mark.soak
@pytest.mark.parametrize("name", cases())
def test_the_machine_code_of_every_form_is_clean(name: str) -> None:
    case = cases()[name]
    assert gate.findings(case.kernel.compiled(*case.inputs, case.output(), cfg=case.cfg)) == ()
