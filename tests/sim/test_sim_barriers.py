"""mbarriers, named barriers and the register pool on the simulated SM."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from greenlet import greenlet

from numpipe.errors import PipelineDeadlock, PipelineRace, SimulationError, SpecError
from numpipe.intrinsics import ldmatrix, stmatrix
from numpipe.plan.roles import MEMORY
from numpipe.sim import Trace, default_registers, simulate
from tests.kernels.sim_pipelines import each_warp, one

SEEDS = [None, *range(20)]


def run(*bodies, seed=None, **kwargs):
    """Run one body per warpgroup."""
    simulate(
        lambda machine: bodies[machine.warpgroup](machine),
        grid=(1, 1, 1),
        warpgroups=len(bodies),
        smem_bytes=4096,
        seed=seed,
        **kwargs,
    )


def initialised(machine, *counts):
    """Initialize mbarriers at 0, 8, … by warpgroup 0, visible to all warpgroups."""
    if machine.warpgroup == 0:
        for i, count in enumerate(counts):
            one(machine, machine.mbar_init, 8 * i, count, f"bar{i}")
        one(machine, machine.fence_mbarrier_init)
    machine.bar_sync(0, 128 * len(machine.sm.warpgroups))


def nothing(machine):
    pass


PER_LANE = np.zeros(128, np.int32)


# ---- mbarriers -----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("arrive", "count"),
    [
        (lambda m: m.mbar_arrive(0), 128),
        (lambda m: m.mbar_arrive(0, 2), 256),
        (lambda m: each_warp(m, m.mbar_arrive, 0), 4),
        (lambda m: one(m, m.mbar_arrive, 0), 1),
        (lambda m: one(m, m.mbar_arrive, 0, 3), 3),
    ],
)
def test_every_executing_lane_arrives(arrive, count):
    def body(machine):
        initialised(machine, count)
        for phase in range(3):
            assert not machine.mbar_test(0, phase & 1)
            arrive(machine)
            assert machine.mbar_test(0, phase & 1)
            machine.mbar_wait(0, phase)
            # the lane that arrives for the next phase knows that all warps have waited
            machine.bar_sync(0, 128)

    run(body)


def test_phase_minus_one_is_complete_from_the_start():
    def body(machine):
        initialised(machine, 1)
        machine.mbar_wait(0, -1)
        assert machine.mbar_test(0, 1)

    run(body)


def test_too_many_arrivals_name_both_counts_and_who_arrived():
    def body(machine):
        initialised(machine, 3)
        one(machine, machine.mbar_arrive, 0, 2)
        one(machine, machine.mbar_arrive, 0, 2)

    with pytest.raises(
        SimulationError, match=r"2 arrivals on bar0, but phase 0 has only 1 of 3 pending \(arrived"
    ):
        run(body)


@pytest.mark.parametrize(
    ("nbytes", "message"), [(-16, "expect_tx of -16 bytes"), (1 << 20, "0 … 1048575")]
)
def test_a_transaction_count_has_a_range(nbytes, message):
    def body(machine):
        initialised(machine, 1)
        one(machine, machine.mbar_arrive_expect_tx, 0, nbytes)

    with pytest.raises(SimulationError, match=message):
        run(body)


@pytest.mark.parametrize(
    ("address", "count", "message"),
    [
        (4, 1, "multiple of 8"),
        (4096, 1, "4096 bytes of shared memory"),
        (64, 0, "1 … 1048575"),
        (0, 1, "live since"),
    ],
)
def test_a_wrong_initialisation_is_refused(address, count, message):
    def body(machine):
        initialised(machine, 1)
        one(machine, machine.mbar_init, address, count)

    with pytest.raises(SimulationError, match=message):
        run(body)


def test_an_invalidated_mbarrier_can_be_made_again():
    def body(machine):
        initialised(machine, 1)
        one(machine, machine.mbar_inval, 0)
        one(machine, machine.mbar_init, 0, 2, "again")
        machine.bar_sync(0, 128)
        one(machine, machine.mbar_arrive, 0, 2)
        machine.mbar_wait(0, 0)

    run(body)


def test_the_initialising_lane_alone_has_seen_it_without_a_barrier():
    def body(machine):
        one(machine, machine.mbar_init, 0, 1, "bar0")
        one(machine, machine.mbar_arrive, 0)
        machine.mbar_wait(0, 0)

    with pytest.raises(
        PipelineRace, match="mbar_wait on bar0, but nothing orders this after its initialization"
    ):
        run(body)


def test_barriers_of_the_kernels_entry_are_declared_by_everybody():
    def body(machine):
        machine.mbar_init_at_entry(0, 2, "bar0")
        one(machine, machine.mbar_arrive, 0)
        machine.mbar_wait(0, 0)

    run(body, body)
    with pytest.raises(
        SimulationError, match="with count 3 at SMEM.0., where bar0 with count 2 is live"
    ):
        run(body, lambda machine: machine.mbar_init_at_entry(0, 3, "bar0"))


def test_more_mbarriers_than_the_vectors_had_room_for():
    def body(machine):
        for i in range(200):
            machine.mbar_init_at_entry(8 * i, 2, f"bar{i}")
            machine.bar_sync(1, 256)
        for i in range(200):
            one(machine, machine.mbar_arrive, 8 * i)
            machine.mbar_wait(8 * i, 0)

    run(body, body, seed=1)


def test_polling_makes_progress_and_polling_for_ever_is_a_deadlock():
    def waits(machine):
        initialised(machine, 1)
        while not machine.mbar_test(0, 0):
            pass

    def arrives(machine):
        initialised(machine, 1)
        one(machine, machine.mbar_arrive, 0)

    for seed in SEEDS:
        run(waits, arrives, seed=seed)
    told = (
        r"(?s)tests in a row failed.*blocked on bar0 phase 0, which it polls at "
        r"test_sim_barriers.py:\d+ in waits.*bar0 is still missing 1 of 1 arrivals in phase 0"
    )
    with pytest.raises(PipelineDeadlock, match=told):
        run(waits, lambda machine: initialised(machine, 1))


# ---- who executes --------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "operation",
    [
        lambda m: m.bar_sync(0, 128),
        lambda m: m.bar_arrive(0, 128),
        lambda m: m.wgmma_fence(),
        lambda m: m.wgmma_commit(),
        lambda m: m.wgmma_wait(0),
        lambda m: m.setmaxnreg("dec", 40),
        lambda m: ldmatrix.load_x1(PER_LANE),
        lambda m: stmatrix.store_x1(PER_LANE, PER_LANE),
    ],
)
@pytest.mark.parametrize("lanes", ["one", "warps"])
def test_a_collective_operation_by_fewer_lanes_is_refused(operation, lanes):
    with pytest.raises(
        SimulationError, match=f"needs all 128 lanes of the warpgroup, but lanes='{lanes}'"
    ) as caught:
        run(lambda machine: machine.scoped(lanes, operation, (machine,)))
    assert caught.value.report is not None and caught.value.report.hazard == "divergent-aligned"


def test_mbar_init_by_all_lanes_is_refused():
    with pytest.raises(SimulationError, match="mbar_init is executed by 128 lanes"):
        run(lambda machine: machine.mbar_init(0, 1))


def test_scopes_only_get_narrower_and_end():
    def body(machine):
        machine.scoped("warps", lambda: one(machine, nothing, machine), ())
        assert machine.lanes == "all"
        one(machine, lambda: each_warp(machine, nothing, machine))

    with pytest.raises(SimulationError, match="lanes='warps' inside lanes='one'"):
        run(body)


# ---- named barriers ------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("barrier", "threads", "message"),
    [
        (16, 128, "0 … 15"),
        (0, 100, "multiple of 128"),
        (0, 64, "multiple of 128"),
        (0, 384, "CTA's 256"),
    ],
)
def test_a_named_barrier_takes_whole_warpgroups(barrier, threads, message):
    with pytest.raises(SimulationError, match=message):
        run(lambda machine: machine.bar_sync(barrier, threads), nothing)


@pytest.mark.parametrize("seed", SEEDS)
def test_turns_pass_through_bar_arrive_and_bar_sync(seed):
    order = []

    def first(machine):
        for turn in range(3):
            order.append((turn, 0))
            machine.bar_arrive(2, 256)
            machine.bar_sync(1, 256)

    def second(machine):
        for turn in range(3):
            machine.bar_sync(2, 256)
            order.append((turn, 1))
            machine.bar_arrive(1, 256)

    run(first, second, seed=seed)
    assert order == sorted(order)


def test_a_barrier_that_somebody_never_reaches_is_a_deadlock_that_counts_threads():
    with pytest.raises(
        PipelineDeadlock, match="bar_sync 3: 128 of 256 threads have arrived .warpgroup 0 .compute"
    ) as caught:
        run(lambda machine: machine.bar_sync(3, 256), nothing)
    assert (
        caught.value.report is not None and caught.value.report.hazard == "named-barrier-mismatch"
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_a_deadlock_names_who_has_ended_without_a_barrier(seed):
    def body(machine, leaves):
        machine.bar_sync(1, 384)
        if machine.warpgroup not in leaves:
            machine.bar_sync(2, 384)

    run(*[lambda machine: body(machine, ())] * 3, seed=seed)
    for leaves, told in (
        ((2,), r"warpgroup 2 \(compute\) has ended without it"),
        ((0, 2), r"warpgroup 0 \(compute\), warpgroup 2 \(compute\) have ended without it"),
    ):
        with pytest.raises(
            PipelineDeadlock,
            match=rf"named barrier 2: \d+ of 384 threads \(at test_sim_barriers.py:\d+ in body\); "
            rf"{told}",
        ):
            run(*[lambda machine, leaves=leaves: body(machine, leaves)] * 3, seed=seed)
    with pytest.raises(PipelineDeadlock) as caught:  # one that is only late is not blamed
        run(lambda m: m.bar_sync(1, 256), lambda m: m.bar_sync(2, 256), seed=seed)
    assert "ended without" not in str(caught.value)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_barrier_number_may_pass_from_one_warpgroup_to_another(seed):
    def first(machine):
        machine.bar_sync(1, 128)
        machine.bar_arrive(2, 256)

    def second(machine):
        machine.bar_sync(2, 256)
        machine.bar_sync(1, 128)

    run(first, second, seed=seed)


# ---- registers -----------------------------------------------------------------------------------
def budget(memory, compute, seed):
    def producer(machine):
        machine.role = MEMORY
        machine.setmaxnreg("dec", memory)

    def consumer(machine):
        machine.setmaxnreg("inc", compute)

    run(consumer, consumer, producer, seed=seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_released_registers_are_granted_and_a_sum_above_the_ctas_hangs(seed):
    budget(40, 232, seed)
    budget(24, 240, seed)
    with pytest.raises(
        PipelineDeadlock,
        match=r"240 \+ 240 \+ 40 per lane = 520 x 128 = 66560 wanted, the CTA holds 64512",
    ):
        budget(40, 240, seed)


@pytest.mark.parametrize(
    ("direction", "registers", "message"),
    [
        ("inc", 20, "24 … 256"),
        ("dec", 42, "multiple of 8"),
        ("dec", 240, "use inc"),
        ("inc", 40, "use dec"),
    ],
)
def test_a_wrong_register_count_is_refused(direction, registers, message):
    with pytest.raises(SimulationError, match=message):
        run(lambda machine: machine.setmaxnreg(direction, registers), nothing, nothing)


def test_the_register_file_is_shared_out_evenly_at_entry():
    assert [default_registers(n) for n in (1, 2, 3, 4)] == [255, 255, 168, 128]
    with pytest.raises(SimulationError, match="each lane holds 128 registers"):
        run(lambda machine: machine.setmaxnreg("dec", 168), registers=128)


# ---- running and ending --------------------------------------------------------------------------
def test_a_users_exception_surfaces_with_its_line_and_ends_the_others():
    ended = []

    def waits(machine):
        initialised(machine, 1)
        try:
            machine.mbar_wait(0, 0)
        finally:
            ended.append(machine.warpgroup)
            machine.bar_sync(0, 256)  # cannot wait any more, must not hang

    def fails(machine):
        initialised(machine, 1)
        raise ZeroDivisionError("mine")

    for seed in SEEDS:
        ended.clear()
        with pytest.raises(ZeroDivisionError, match="mine") as caught:
            run(waits, fails, seed=seed)
        assert caught.traceback[-1].name == "fails"
        assert ended in ([0], [])  # [] if it had not reached its wait
    gc.collect()
    assert not [
        g
        for g in gc.get_objects()
        if isinstance(g, greenlet) and g and not g.dead and g.parent is not None
    ]


def test_a_keyboard_interrupt_comes_through():
    def body(machine):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(body, lambda machine: machine.bar_sync(0, 256))


def test_numpy_integers_raise_on_overflow_inside_and_only_inside():
    def body(machine):
        np.int32(2**31 - 1) + np.int32(1)

    with pytest.raises(FloatingPointError, match="overflow"):
        run(body)
    with np.errstate(over="ignore"):
        assert np.int32(2**31 - 1) + np.int32(1) < 0


def test_ctas_run_one_after_the_other_with_fresh_memory():
    seen = []

    def body(machine):
        seen.append((machine.cta, machine.grid, machine.unit))
        one(machine, machine.store_word, 0, 1)
        with pytest.raises(PipelineRace, match="bytes have not been written"):
            one(machine, machine.load_word, 4)

    simulate(body, grid=(2, 2, 1), warpgroups=1, smem_bytes=1024, unit="unit")
    assert seen == [((x, y, 0), (2, 2, 1), "unit") for y in range(2) for x in range(2)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"warpgroups": 0}, "1 … 8"),
        ({"warpgroups": 9}, "1 … 8"),
        ({"smem_bytes": 2 << 20}, "at most 232448"),
    ],
)
def test_a_cta_the_hardware_cannot_hold_is_refused(options, message):
    with pytest.raises(SpecError, match=message):
        simulate(nothing, **({"grid": (1, 1, 1), "warpgroups": 1, "smem_bytes": 0} | options))


def test_notes_cost_nothing_without_a_trace_and_become_events_with_one():
    trace = Trace()
    run(lambda machine: machine.note("tile", tile=(1, 2)), trace=trace)
    note, end = trace.events
    assert (note.kind, end.kind, end.details) == ("note", "end", {})
    assert (note.details["event"], note.details["tile"]) == ("tile", (1, 2))
