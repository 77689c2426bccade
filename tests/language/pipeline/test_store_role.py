"""Stores by a warp next to the loading one (`CompilerParams(store_role=True)`) in the simulator:
results, injected bugs, rejected kernels, and rows of a timeline."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import CompilerParams, PipelineDeadlock, PipelineRace, SpecError, ds
from numpipe.language.pipeline import pipeline_outputs
from numpipe.language.tiles import store_ring
from tests.kernels import output_kernels
from tests.kernels.output_kernels import Config, check_copy, copy
from tests.kernels.store_role_kernels import (
    added_up,
    by_store_role,
    gemm,
    operands,
    product,
    sums,
)
from tests.language.pipeline.test_injected import Bug
from tests.traces.legal import check_legal

SEEDS = (None, 0, 1)
STORES = CompilerParams(store_role=True)


@pytest.fixture(autouse=True)
def _simulated_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "0")


def simulated(kernel: Any, *args: Any, seed: int | None = None, **statics: Any) -> Any:
    trace = numpipe.Trace()
    result = by_store_role(kernel).simulate(*args, seed=seed, trace=trace, **statics)
    check_legal(trace)
    # only the store role issues stores and waits for them
    assert {event.role for event in trace.events if event.kind in ("store", "flush")} <= {"storing"}
    return result


# ---- results
REFUSED = {"alone, 1 slot", "alone, 3 slots", "without memory role"}
"""Checks of kernels in which each warpgroup has its own ring, or without a memory warpgroup."""


@pytest.mark.parametrize("name", output_kernels.CHECKS)
def test_outputs_are_those_that_compute_warpgroups_would_store(name: str) -> None:
    check = output_kernels.CHECKS[name]
    if name in REFUSED:
        with pytest.raises(SpecError, match=r"store_role=True\).*fix: "):
            check(simulated)
        return
    for seed in (None, 1):
        check(lambda kernel, *args, **statics: simulated(kernel, *args, seed=seed, **statics))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"store_slots": 1},
        {"store_slots": 3},
        {"wgs": 1},
        {"wgs": 3},
        {"persistent": True},
        {"cluster": 2, "persistent": True},
        {"schedule": "pingpong", "persistent": True},
        {"schedule": "pingpong", "persistent": True, "store_slots": 1},
    ],
    ids=str,
)
def test_tiles_of_a_product_are_stored(options: dict[str, Any], seed: int | None) -> None:
    a, b, c = operands(64 * options.get("wgs", 2) * 2)
    gemm(True, **options).simulate(a, b, c, seed=seed)
    np.testing.assert_array_equal(c, product(a, b))


@pytest.mark.parametrize("slots", [0, 1])
@pytest.mark.parametrize("seed", SEEDS)
def test_reductions_of_several_ctas_add_up(slots: int, seed: int | None) -> None:
    x = np.random.default_rng(0).integers(-3, 4, (384, 256)).astype(np.float16)
    dq = np.zeros((512, 64), np.float32)
    sums(True, slots).simulate(x, dq, seed=seed)
    np.testing.assert_array_equal(dq, added_up(x))


def test_a_limited_block_is_stored_by_the_lanes() -> None:
    """Whether the whole block lies inside is known only at run time."""

    @numpipe.kernel(compiler_params=STORES)
    def limited(y, *, rows: numpipe.Static = 40):
        tile = numpipe.zeros((64, 64), np.float32) + 1.0
        y[ds(0, 64, stop=rows), ds(0, 64)] = tile
        y[ds(64, 64), ds(0, 64)] = tile + 1.0

    y = np.zeros((128, 64), np.float32)
    limited.simulate(y)
    np.testing.assert_array_equal(y[:, 0], [1] * 40 + [0] * 24 + [2] * 64)


def test_the_store_role_has_rows_of_its_own_in_a_timeline() -> None:
    a, b, c = operands()
    trace = numpipe.Trace()
    gemm(True).simulate(a, b, c, trace=trace)
    text = trace.timeline()
    assert [line.split("|")[0].strip() for line in text.splitlines()[1:6]] == [
        "wg0 compute",
        "wg1 compute",
        "wg2 memory",
        "wg3 storing",
        "wg4 storing",
    ]
    rows = {line.split("|")[0].strip(): line for line in text.splitlines()}
    assert "S" in rows["wg3 storing"].split("|")[1]


def test_a_compute_warpgroup_ends_while_its_stores_run() -> None:
    ends = {}
    for stores in (False, True):
        a, b, c = operands()
        trace = numpipe.Trace()
        gemm(stores).simulate(a, b, c, trace=trace)
        ends[stores] = max(
            event.start for event in trace.events if (event.kind, event.role) == ("end", "compute")
        )
    assert ends[True] < ends[False]


# ---- bugs
NOT_READ = (
    r"write \((staging panel|tile\[…\] = value)\) writes SMEM.* while TMA store|this slot was "
    r"handed over twice|TMA store \(\w\) reads SMEM"
)
UNORDERED = r"TMA store \(\w\) reads SMEM"
TILES = {
    "the free slot is not waited for": Bug(
        store_ring.hand_over,
        "mbarrier.wait(free(ref, number), phase_of(ref, number) - 1, number)",
        "pass",
        PipelineRace,
        NOT_READ,
    ),
    "not shown to the async proxy": Bug(
        store_ring.hand_over, "show()", "pass", PipelineRace, "the writing warps did not fence"
    ),
    "shown after the arrival": Bug(
        store_ring.hand_over,
        "show()\n    each_warp(mbarrier.arrive, filled(ref, number))",
        "each_warp(mbarrier.arrive, filled(ref, number))\n    show()",
        PipelineRace,
        "the writing warps did not fence",
    ),
    "no arrival": Bug(
        store_ring.hand_over,
        "each_warp(mbarrier.arrive, filled(ref, number))",
        "pass",
        PipelineDeadlock,
        r"filled barrier\[0\] of warpgroup \d @ the store ring",
    ),
    "one lane arrives for all warps": Bug(
        store_ring.hand_over,
        "each_warp(mbarrier.arrive, filled(ref, number))",
        "one_lane(mbarrier.arrive_count, filled(ref, number), 4)",
        PipelineRace,
        UNORDERED,
    ),
    "stored before it is filled": Bug(
        store_ring.take_over,
        "mbarrier.wait(filled(ref, number), phase_of(ref, number), number)",
        "pass",
        PipelineRace,
        r"reads SMEM|no wait|while write|phase",
    ),
    "freed before it is read": Bug(
        store_ring.take_over, "cp_async_bulk.wait_group_read(0)", "pass", PipelineRace, NOT_READ
    ),
    "one group may be unread": Bug(
        store_ring.take_over,
        "cp_async_bulk.wait_group_read(0)",
        "cp_async_bulk.wait_group_read(1)",
        PipelineRace,
        NOT_READ,
    ),
    "not freed": Bug(
        store_ring.take_over,
        "mbarrier.arrive_count(free(ref, number), ARRIVALS_A_WARPGROUP)",
        "pass",
        PipelineDeadlock,
        r"free barrier\[0\] of warpgroup \d @ the store ring",
    ),
    "not drained": Bug(
        store_ring.drain_stores,
        "if np_.unit.stores:",
        "if False:",
        PipelineRace,
        r"the warpgroup ends with \d+ TMA store",
    ),
}
OUTPUTS = {
    "the free slot is not waited for": Bug(
        pipeline_outputs.await_free,
        "mbarrier.wait(free(ring, step), phase_of(ring, step) - 1, step)",
        "pass",
        PipelineRace,
        NOT_READ,
    ),
    "not shown to the async proxy": Bug(
        pipeline_outputs.hand_over,
        "show()",
        "pass",
        PipelineRace,
        "fence.proxy.async|did not fence",
    ),
    "no arrival": Bug(
        pipeline_outputs.hand_over,
        "each_warp(mbarrier.arrive, filled(ring, step))",
        "pass",
        PipelineDeadlock,
        r"filled barrier\[0\] @ o @ ",
    ),
    "stored before it is filled": Bug(
        pipeline_outputs.take_over,
        "mbarrier.wait(filled(ring, step), phase_of(ring, step), step)",
        "pass",
        PipelineRace,
        r"reads SMEM|while write",
    ),
    "freed before it is read": Bug(
        pipeline_outputs.take_over,
        "cp_async_bulk.wait_group_read(0)",
        "pass",
        PipelineRace,
        NOT_READ,
    ),
    "not freed": Bug(
        pipeline_outputs.take_over,
        "mbarrier.arrive_count(free(ring, step), ARRIVALS_A_WARPGROUP)",
        "pass",
        PipelineDeadlock,
        r"free barrier\[0\] @ o @ ",
    ),
    "the wrong slot": Bug(
        pipeline_outputs.take_over,
        "slot_of(ring, step))",
        "slot_of(ring, step + 1))",
        PipelineRace,
        UNORDERED,
    ),
}


def stored_tiles(seed: int | None) -> None:
    a, b, c = operands()
    gemm(True, persistent=True, store_slots=2).simulate(a, b, c, seed=seed)


def stored_outputs(seed: int | None) -> None:
    check_copy(
        lambda kernel, *args, **statics: by_store_role(kernel).simulate(
            *args, seed=seed, **statics
        ),
        copy(),
        np.dtype(np.float16),
        (128, 320),
        cfg=Config(outs=2),
    )


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", TILES)
def test_a_bug_in_the_store_ring_is_found_in_every_schedule(
    name: str, seed: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored_tiles(seed)
    TILES[name].inject(monkeypatch)
    with pytest.raises(TILES[name].error, match=TILES[name].message):
        stored_tiles(seed)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", OUTPUTS)
def test_a_bug_in_outputs_is_found_in_every_schedule(
    name: str, seed: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored_outputs(seed)
    OUTPUTS[name].inject(monkeypatch)
    with pytest.raises(OUTPUTS[name].error, match=OUTPUTS[name].message):
        stored_outputs(seed)
