"""wgmma on the simulated SM: descriptors of every swizzle and major order, accumulators in flight,
groups."""

from __future__ import annotations

import numpy as np
import pytest

from numpipe.core.machine import Mma, TensorMap
from numpipe.errors import PipelineRace, SimulationError
from numpipe.sim import Trace, simulate
from tests.kernels.sim_pipelines import BF16, F16, descriptor, one

BAR = 200 * 1024


def load(machine, copies):
    """Initialize one mbarrier and wait for all copies (address, map, coords)."""

    def issue():
        machine.mbar_init(BAR, 1, "ready")
        machine.fence_mbarrier_init()
        machine.mbar_arrive_expect_tx(BAR, sum(tensor.nbytes for _, tensor, _ in copies))
        for address, tensor, coords in copies:
            machine.tma_load(address, tensor, coords, BAR)

    one(machine, issue)
    machine.bar_sync(0, 128)
    machine.mbar_wait(BAR, 0)


def run(body, seed=None, **kwargs):
    simulate(body, grid=(1, 1, 1), warpgroups=1, smem_bytes=BAR + 1024, seed=seed, **kwargs)


def operand(base, matrix, major, swizzle, name):
    """Return TMA copies that lay out `matrix` (rows, K) at `base`, and a function for its
    descriptors.

    The function is ``fields(block, step)``.
    """
    rows, k = matrix.shape
    across, along = (rows, k) if major == "k" else (k, rows)  # `along` is contiguous
    array = matrix if major == "k" else np.ascontiguousarray(matrix.T)
    # elements of one panel: a swizzle row, or a 16-byte column of core matrices
    width = swizzle // 2 if swizzle else 8
    panel = across * width * 2
    tensor = TensorMap(array, (across, width), swizzle, name)
    copies = [(base + p * panel, tensor, (0, p * width)) for p in range(along // width)]
    row = 2 * width

    def start(block, step):
        if major == "k":
            per = max(width // 16, 1)
            inside = step // per * panel + step % per * 32 if swizzle else 2 * step * panel
            return base + inside + 64 * block * row
        return base + 64 * block // width * panel + 16 * step * row

    def fields(block, step):
        if major == "k":
            return descriptor(start(block, step), 16 if swizzle else panel, 8 * row, swizzle)
        lbo, sbo = (panel, 8 * row) if swizzle else (8 * row, panel)
        return descriptor(start(block, step), lbo, sbo, swizzle)

    return copies, fields


@pytest.mark.parametrize("dtype", [F16, BF16], ids=["f16", "bf16"])
@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
@pytest.mark.parametrize("b_major", ["k", "mn"])
@pytest.mark.parametrize("a_major", ["k", "mn"])
def test_every_layout_gives_the_product(a_major, b_major, swizzle, dtype):
    rng = np.random.default_rng(1)
    m, n, k = 128, 192, 64
    a = rng.integers(-4, 5, (m, k)).astype(dtype)
    b = rng.integers(-4, 5, (n, k)).astype(dtype)
    loads_a, desc_a = operand(0, a, a_major, swizzle, "a")
    loads_b, desc_b = operand(64 * 1024, b, b_major, swizzle, "b")
    got = []

    def body(machine):
        load(machine, loads_a + loads_b)
        steps = tuple(
            tuple((desc_a(i, s), desc_b(0, s)) for s in range(k // 16)) for i in range(m // 64)
        )
        machine.wgmma_fence()
        acc = machine.wgmma(np.ones((m, n), np.float32), Mma(n, dtype, a_major, b_major, steps))
        machine.wgmma_commit()
        machine.wgmma_wait(0)
        got.append(acc.read())

    run(body)
    np.testing.assert_array_equal(got[0], 1 + a.astype(np.float32) @ b.astype(np.float32).T)


def test_a_negative_int64_descriptor_is_the_same_64_bits():
    a = np.arange(64 * 16, dtype=np.float32).reshape(64, 16).astype(F16)
    copies, fields = operand(0, a, "k", 32, "a")
    assert fields(0, 0) >= 1 << 63
    got = []

    def body(machine):
        load(machine, copies)
        machine.wgmma_fence()
        signed = fields(0, 0) - (1 << 64)
        acc = machine.wgmma(
            np.zeros((64, 64), np.float32), Mma(64, F16, "k", "k", (((signed, signed),),))
        )
        machine.wgmma_commit()
        machine.wgmma_wait(0)
        got.append(acc.read())

    run(body)
    np.testing.assert_array_equal(got[0], a.astype(np.float32) @ a.astype(np.float32).T)


# ---- accumulators and groups ---------------------------------------------------------------------
ONES = np.ones((64, 64), F16)
LOADS, FIELDS = operand(0, ONES, "k", 128, "ones")
STEP = Mma(64, F16, "k", "k", (((FIELDS(0, 0), FIELDS(0, 0)),),))  # adds 16 everywhere


def kernel(body, seed=None, **kwargs):
    def whole(machine):
        load(machine, LOADS)
        body(machine)

    run(whole, seed, **kwargs)


def zeros():
    return np.zeros((64, 64), np.float32)


@pytest.mark.parametrize("seed", [None, *range(10)])
def test_groups_run_in_order_and_chain_through_the_accumulator(seed):
    def body(machine):
        machine.wgmma_fence()
        acc = zeros()
        for _ in range(5):
            acc = machine.wgmma(acc, STEP)
            machine.wgmma_commit()
            machine.wgmma_wait(1)
        with pytest.raises(PipelineRace, match="read before wgmma_wait"):
            acc.read()
        machine.wgmma_wait(0)
        assert (acc.read() == 80).all()

    kernel(body, seed)


def test_a_wait_for_an_older_group_ends_with_that_group_and_not_with_the_next_one():
    trace = Trace()

    def body(machine):
        machine.wgmma_fence()
        acc = zeros()
        for _ in range(2):
            acc = machine.wgmma(acc, STEP)
            machine.wgmma_commit()
        machine.wgmma_wait(1)
        machine.wgmma_wait(0)

    kernel(body, trace=trace)
    first, second = trace.of("mma")
    assert [wait.end for wait in trace.of("drain")] == [
        first.end,
        second.end,
    ] and first.end < second.end


def test_a_batch_that_was_not_committed_is_not_covered_by_a_wait():
    def body(machine):
        machine.wgmma_fence()
        acc = machine.wgmma(zeros(), STEP)
        machine.wgmma_wait(0)
        acc.read()

    with pytest.raises(PipelineRace, match="batch 1, drained up to 0"):
        kernel(body)


def test_an_empty_group_counts_as_a_group():
    def body(machine):
        machine.wgmma_fence()
        acc = machine.wgmma(zeros(), STEP)
        machine.wgmma_commit()
        machine.wgmma_commit()
        machine.wgmma_wait(1)
        assert (acc.read() == 16).all()

    kernel(body)


def test_two_accumulators_may_share_a_fence_in_one_group():
    def body(machine):
        machine.wgmma_fence()
        first, second = machine.wgmma(zeros(), STEP), machine.wgmma(zeros(), STEP)
        machine.wgmma_commit()
        machine.wgmma_wait(0)
        assert (first.read() == second.read()).all()

    kernel(body)


def test_an_operand_over_the_memory_of_a_barrier_is_refused():
    def body(machine):
        outside = descriptor(BAR - 1024, 16, 1024, 128)
        machine.wgmma_fence()
        machine.wgmma(zeros(), Mma(64, F16, "k", "k", (((outside, FIELDS(0, 0)),),)))

    with pytest.raises(SimulationError, match="touches SMEM"):
        kernel(body)


def test_wgmma_reading_bytes_nobody_wrote_is_a_race():
    def body(machine):
        machine.wgmma_fence()
        at = descriptor(32 * 1024, 16, 1024, 128)
        machine.wgmma(zeros(), Mma(64, F16, "k", "k", (((at, at),),)))

    with pytest.raises(PipelineRace, match="bytes have not been written"):
        kernel(body)


def test_a_stale_operand_reaches_the_numbers_when_nothing_stops_the_read():
    """With the check turned off, the scheduler shows both the old and the new bytes of a racy
    kernel."""
    results = set()
    for seed in range(20):
        values = np.full((64, 64), 1, F16)
        copies, _ = operand(0, values, "k", 128, "ones")
        twos = TensorMap(np.full((64, 64), 2, F16), (64, 64), 128, "twos")

        def body(machine, copies=copies, twos=twos):
            machine.sm.memory.write = lambda *args: None
            machine.sm.memory.read = lambda *args: None
            load(machine, copies)
            machine.wgmma_fence()
            acc = machine.wgmma(zeros(), STEP)
            machine.wgmma_commit()

            def refill():
                machine.mbar_arrive_expect_tx(BAR, twos.nbytes)
                machine.tma_load(0, twos, (0, 0), BAR)

            machine.bar_sync(0, 128)
            one(machine, refill)
            machine.mbar_wait(BAR, 1)
            machine.wgmma_wait(0)
            results.add(float(acc.read()[0, 0]))

        run(body, seed)
    assert results == {16.0, 64.0}
