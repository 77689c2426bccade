"""The ring and the store ring on the simulated SM: right results, no false alarms, and every bug
detected."""

from __future__ import annotations

import re

import numpy as np
import pytest

from numpipe.errors import PipelineDeadlock, PipelineRace, SimulationError
from tests.kernels.covering import examples
from tests.kernels.sim_pipelines import BF16, F16, Gemm

SEEDS = range(40)


@pytest.mark.parametrize("dtype", [F16, BF16], ids=["f16", "bf16"])
@pytest.mark.parametrize("seed", [None, 0, 1])
def test_a_pipelined_gemm_gives_the_product(dtype, seed):
    gemm = Gemm(m=256, n=256, dtype=dtype)
    gemm.run(seed)
    np.testing.assert_array_equal(gemm.c, gemm.expected())


@pytest.mark.parametrize("slots", [1, 2, 3, 5])
def test_a_ring_of_any_depth_gives_the_product(slots):
    gemm = Gemm(k=64 * 7, slots=slots)
    gemm.run(seed=slots)
    np.testing.assert_array_equal(gemm.c, gemm.expected())


def test_edges_out_of_bounds_are_zeros_in_and_nothing_out():
    gemm = Gemm(m=130, n=200, k=320)
    gemm.run()
    np.testing.assert_array_equal(gemm.c, gemm.expected())


@pytest.mark.parametrize("seed", SEEDS)
def test_the_correct_kernel_is_silent(seed):
    gemm = Gemm(k=256)
    gemm.run(seed)
    np.testing.assert_array_equal(gemm.c, gemm.expected())


BUGS = {
    "release before drain": (
        PipelineRace,
        "TMA load .a. fills .* while wgmma .*warps 0, 1, 2, 3 of warpgroup . .compute. did not "
        "signal",
    ),
    "release dropped": (
        PipelineDeadlock,
        r"consumed\[1\].* 4 of 8 arrivals missing.*arrived: warpgroup 0 .* x 4",
    ),
    "release doubled": (
        PipelineRace,
        r"on consumed\[\d\] .* nothing orders this after the end of phase 0"
        "|while wgmma|the phase was missed|while TMA load",
    ),
    "bytes short": (SimulationError, "4096 more than phase 0 expects .28672 announced"),
    "one load forgotten in the bytes": (
        SimulationError,
        "announced 16384 bytes|16384 announced|does not wait until|not been written",
    ),
    "bytes long": (
        PipelineDeadlock,
        "4096 bytes and no copy is in flight: expect_tx announced 36864 bytes, .* brought 32768",
    ),
    "ready wait skipped": (PipelineRace, "wgmma .* reads SMEM|bytes have not been written"),
    "ready wait by one lane": (
        PipelineRace,
        "warpgroup . .compute. does not wait until this copy has landed",
    ),
    "free wait skipped": (SimulationError, r"on ready\[\d\].*was handed over twice|fills SMEM"),
    "one group too many pending": (PipelineRace, "while wgmma .batch 1.|read before wgmma_wait"),
    "stale phase": (PipelineRace, r"waited for phase -3 of consumed\[0\]"),
    # by parity, a wait for the next phase passes before this one is complete, and hangs after it
    "phase one too far": (
        SimulationError,
        r"waited for phase 1 of ready\[0\].*return(s|ed) on the stale state of an earlier phase"
        r"|compute.: blocked on ready\[0\] .*phase 1",
    ),
    "phase never advances": (
        PipelineRace,
        r"waited for phase 0 of ready\[\d\].* reached phase 1|orders this after"
        "|fills SMEM|writing",
    ),
    "stores not fenced": (PipelineRace, "TMA store .c. reads .*the writing warps did not fence"),
    "no barrier before the store": (PipelineRace, "no barrier orders warps? [123, ]+ of warpgroup"),
    "no barrier before the panel": (PipelineRace, "write .stmatrix. writes .* while TMA store .c."),
    "staging not awaited": (PipelineRace, "bulk_wait.pending, read=True."),
    "release by one warp": (
        PipelineRace,
        "warps 1, 2, 3 of warpgroup . .compute. did not signal that their wgmma had finished",
    ),
    "stores not drained": (PipelineRace, "ends with 2 TMA stores not waited for"),
    "stores drained of reads only": (PipelineRace, "ends with 2 TMA stores not waited for"),
    "mma not fenced": (PipelineRace, "without a wgmma_fence"),
    "barriers not fenced": (PipelineRace, "fence_mbarrier_init"),
    "barriers not synchronised": (
        PipelineRace,
        "mbarrier has been initialized yet|nothing orders this after its initialization",
    ),
}


@pytest.mark.schedules
@pytest.mark.parametrize("bug", BUGS)
def test_every_schedule_finds(bug):
    kind, message = BUGS[bug]
    for seed in (None, *SEEDS[: examples(40)]):
        gemm = Gemm(k=256, bug=bug)
        with pytest.raises(kind) as caught:
            gemm.run(seed)
        text = str(caught.value)
        assert re.search(message, text, re.DOTALL), f"seed {seed}: {text}"
        # the user's line first, as editors parse it, then the warpgroup
        assert re.match(r".*sim_pipelines\.py:\d+: ", text), text
        assert re.search(r"warpgroup \d \((memory|compute)\)|CTA", text), text


def test_a_race_names_ring_slot_phase_step_and_both_lines():
    with pytest.raises(PipelineRace) as caught:
        Gemm(k=256, bug="release before drain").run()
    now, before = [
        line for line in str(caught.value).splitlines() if re.match("  (now|before):", line)
    ]
    assert re.search(r"warpgroup 2 \(memory\) at sim_pipelines.py:\d+ in produce", now)
    assert "on ready[0] of a, b @ gemm.py:41 phase 1" in now
    assert "issue of step 2 (slot 0) of a, b" in now
    assert re.search(r"warpgroup 0 \(compute\) at sim_pipelines.py:\d+ in consume", before)
    assert "compute of step 0 (slot 0) of a, b" in before


def test_a_deadlock_names_what_each_warpgroup_waits_for_and_where():
    with pytest.raises(PipelineDeadlock) as caught:
        Gemm(k=256, bug="release dropped").run()
    text = str(caught.value)
    for number, role, barrier in (
        (0, "compute", "ready[1]"),
        (1, "compute", "ready[1]"),
        (2, "memory", "consumed[1]"),
    ):
        line = next(
            x
            for x in text.splitlines()
            if x.startswith(f"  warpgroup {number} ({role}): blocked on")
        )
        assert f"blocked on {barrier} of a, b @ gemm.py:41 phase" in line and "step 3" in line
        assert re.search(
            r"at sim_pipelines.py:\d+ in (consume|produce) <- sim_pipelines.py:\d+ in body", line
        )
    assert "hint: consumed[1] of a, b @ gemm.py:41 is still missing 4 of 8 arrivals" in text


def test_the_same_seed_is_the_same_run():
    def order(seed):
        gemm = Gemm(m=256, n=256)
        seen = []
        original = gemm.release

        def release(machine, slot, step):
            seen.append((machine.cta, machine.warpgroup, step))
            original(machine, slot, step)

        gemm.release = release
        gemm.run(seed)
        return seen

    assert order(3) == order(3)
    assert order(None) == order(None)
    assert len({tuple(order(seed)) for seed in range(8)}) > 1
