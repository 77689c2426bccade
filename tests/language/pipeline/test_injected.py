"""Bugs injected into the ring's source, each reported in every schedule; the unmodified ring is
silent in every one.

A bug is an edit of `ring`, `steps` or `store_ring`: a line left out, a number changed. The edited
function keeps its file name, so that reports still name the user's line, which is the kernel's.
"""

from __future__ import annotations

import inspect
import re
import sys
import textwrap
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from numpipe.core import lanes
from numpipe.errors import PipelineDeadlock, PipelineRace, SimulationError
from numpipe.language.pipeline import ring, steps
from numpipe.language.tiles import fence_order, store_ring
from numpipe.plan import context
from tests.kernels.covering import examples
from tests.kernels.kernels_for_tests import SMALL, Config, gemm, nested_gemm, operands, product

SCHEDULES = (None, *range(examples(20)))  # None: the order of the virtual-time model
RING = r"kernels_for_tests\.py:\d+"


@dataclass(frozen=True)
class Bug:
    """An edit, from `old` to `new`, of the source of an operation or of a plain function of its
    module."""

    where: Any
    old: str
    new: str
    error: type[SimulationError]
    message: str
    delay: int = 0

    def inject(self, monkeypatch: pytest.MonkeyPatch) -> None:
        function = getattr(self.where, "function", self.where)
        lines, first = inspect.getsourcelines(function)
        source = textwrap.dedent("".join(lines))
        assert source.count(self.old) == 1, (
            f"the ring has changed: {self.old!r} is not in {function.__name__}"
        )
        body = source.replace(self.old, self.new)
        body = body[body.index("def ") :]  # without its decorator
        scope: dict[str, Any] = {}
        code = compile("\n" * first + body, inspect.getsourcefile(function) or "", "exec")
        exec(code, vars(sys.modules[function.__module__]) | BUGGY, scope)
        if self.where is function:  # a plain function
            monkeypatch.setattr(
                sys.modules[function.__module__], function.__name__, scope[function.__name__]
            )
        else:
            monkeypatch.setattr(self.where, "function", scope[function.__name__])


BUGGY = {"warpgroup": lambda: ring.current().warpgroup, "one_lane": lanes.one_lane}
DRAIN = "products_in_flight.drain(loop.pending)"
WAITS = 'only_if(loop, "drains", await_products)'
SYNC = "meet()"
FENCE = "fence.proxy_async()"
WAIT_READY = (
    'mbarrier.wait(barrier(ring, "ready", slot_of(ring, step), part), phase_of(ring, step), step)'
)
WAIT_FREE = 'mbarrier.wait(barrier(ring, "consumed", slot, part), phase_of(ring, step) - 1, step)'
FREE = f'if begins_consumed(ring, part):\n        {WAIT_FREE}\n    note(ring, "issue", step, part)'
BYTES = "stage_bytes(ring, part))\n    copy_in"
EXPECT = (
    "if announces(ring, part, False):\n        "
    'mbarrier.arrive_expect_tx(barrier(ring, "ready", slot, part), stage_bytes(ring, part))'
)
LOAD = "copy_in(ring, indices, slot, part)"
COUNTED = "ring.first + blocks_in(ring, steps)"
OWN = 'barrier(ring, "consumed", slot_of(ring, step), part)'
ARRIVE = f"products_in_flight.commit_to(ring, part, {OWN})"

NOT_DRAINED = (
    r"TMA load \(\w\) fills .* while wgmma .* of warpgroup \d \(compute\).*warps 0, 1, 2, 3 of "
    r"warpgroup \d \(compute\) did not signal that their wgmma had finished"
)
TWICE = (
    r"on (ready|consumed)\[\d\] .*(nothing orders this after the end of phase|only 0 of 1 pending)"
)
READ_EARLY = (
    r"wgmma .* reads SMEM.*(not been written|warpgroup \d \(compute\) does not wait until this "
    r"copy has landed)"
)
TOO_FEW = (
    r"4096 more than phase \d expects \(20480 announced\)|expect_tx announced 20480 bytes, fewer "
    r"than the copies bring"
)
OTHER_PHASE = r"waited for phase -?\d of (ready|consumed)\[\d\] of a, b @ .* for step \d"
# a slot used by two: any of its symptoms
SLOT_LOST = f"{NOT_DRAINED}|{TWICE}|{READ_EARLY}|{OTHER_PHASE}|while TMA load"

BUGS = {
    # ---- load ring, compute role
    "release before drain": Bug(steps.advance, WAITS, "pass", PipelineRace, NOT_DRAINED),
    "release before drain, delayed": Bug(
        steps.advance, WAITS, "pass", PipelineRace, NOT_DRAINED, delay=1
    ),
    "release before drain in one step of one warpgroup": Bug(
        where=steps.advance,
        old=WAITS,
        new=f"{WAITS} if k != 3 or warpgroup() else None",
        error=PipelineRace,
        message=NOT_DRAINED,
    ),
    "release before drain at the end of a loop": Bug(
        steps.end_loop, "products_in_flight.drain(0)", "pass", PipelineRace, NOT_DRAINED
    ),
    "wait(1) for wait(0)": Bug(
        steps.await_products, DRAIN, "products_in_flight.drain(1)", PipelineRace, NOT_DRAINED
    ),
    "wait(1) for wait(0) at the end of a loop": Bug(
        where=steps.end_loop,
        old="products_in_flight.drain(0)",
        new="products_in_flight.drain(1)",
        error=PipelineRace,
        message=NOT_DRAINED,
    ),
    "wait(2) for wait(1), delayed": Bug(
        steps.await_products,
        DRAIN,
        "products_in_flight.drain(2)",
        PipelineRace,
        NOT_DRAINED,
        delay=1,
    ),
    "released a step early, delayed": Bug(
        where=steps.release_due,
        old="release_used(ring, k, ring.delay)",
        new="release_used(ring, k, 0)",
        error=PipelineRace,
        message=NOT_DRAINED,
        delay=1,
    ),
    "last release forgotten, delayed": Bug(
        where=steps.release_rest,
        old="range(ring.unreleased, -1, -1)",
        new="range(ring.unreleased, 0, -1)",
        error=PipelineDeadlock,
        message=r"consumed\[\d\].* 8 of 8 arrivals",
        delay=1,
    ),
    "dropped arrive": Bug(
        where=ring.release,
        old=ARRIVE,
        new=f"if warpgroup() != 1 or step != 1: {ARRIVE}",
        error=PipelineDeadlock,
        message=r"hint: consumed\[1\] of .* is still missing 4 of 8 arrivals in phase 0",
    ),
    "dropped arrive in the second tile": Bug(
        where=ring.release,
        old=ARRIVE,
        new=f"if warpgroup() or step != 7: {ARRIVE}",
        error=PipelineDeadlock,
        message=r"hint: consumed\[1\] of .* is still missing 4 of 8 arrivals in phase 3",
    ),
    "no arrive at all": Bug(
        where=ring.release,
        old=ARRIVE,
        new="pass",
        error=PipelineDeadlock,
        message=r"warpgroup 2 \(memory\): blocked on consumed\[0\] of .* phase 0 step 2",
    ),
    "double arrive": Bug(ring.release, ARRIVE, f"{ARRIVE}; {ARRIVE}", PipelineRace, SLOT_LOST),
    "double arrive of one warpgroup": Bug(
        where=ring.release,
        old=ARRIVE,
        new=f"{ARRIVE}\n    if warpgroup() == 1: {ARRIVE}",
        error=PipelineRace,
        message=SLOT_LOST,
    ),
    "double arrive in the last step": Bug(
        where=ring.release,
        old=ARRIVE,
        new=f"{ARRIVE}\n    if warpgroup() == 1 and step == 9: {ARRIVE}",
        error=PipelineRace,
        message=TWICE,
    ),
    "arrive by one warp": Bug(
        where=ring.release,
        old=ARRIVE,
        new=f"one_lane(mbarrier.arrive, {OWN})",
        error=PipelineDeadlock,
        message=r"consumed\[0\] of .* is still missing 6 of 8 arrivals in phase 0",
    ),
    "arrive by one warp for all four": Bug(
        where=ring.release,
        old=ARRIVE,
        new=f"one_lane(lambda a: current().mbar_arrive(a, 4), {OWN})",
        error=PipelineRace,
        message=r"warps 1, 2, 3 of warpgroup \d \(compute\) did not signal that their wgmma had "
        r"finished",
    ),
    "release of the next slot": Bug(
        ring.release, "slot_of(ring, step)", "slot_of(ring, step + 1)", PipelineRace, SLOT_LOST
    ),
    "skipped ready wait": Bug(ring.await_ready, WAIT_READY, "pass", PipelineRace, READ_EARLY),
    "skipped ready wait in the last step of one warpgroup": Bug(
        where=ring.await_ready,
        old=WAIT_READY,
        new=f"if warpgroup() != 1 or step != 9: {WAIT_READY}",
        error=PipelineRace,
        message=SLOT_LOST,
    ),
    "ready wait by one lane": Bug(
        ring.await_ready, "mbarrier.wait(", "one_lane(mbarrier.wait, ", PipelineRace, READ_EARLY
    ),
    "stale parity: ready phase one ahead": Bug(
        where=ring.await_ready,
        old="phase_of(ring, step), step",
        new="phase_of(ring, step) + 1, step",
        error=SimulationError,
        message=r"waited for phase 1 of ready\[0\].*return(s|ed) on the stale state of an earlier "
        r"phase|\(compute\): blocked on ready\[0\] .*phase 1",
    ),
    "stale parity: ready phase one behind": Bug(
        where=ring.await_ready,
        old="phase_of(ring, step), step",
        new="phase_of(ring, step) - 1, step",
        error=PipelineRace,
        message=rf"{READ_EARLY}|waited for phase -1 of ready\[0\].*reached phase",
    ),
    "stale parity: ready phase two ahead": Bug(
        where=ring.await_ready,
        old="phase_of(ring, step), step",
        new="phase_of(ring, step) + 2, step",
        error=PipelineRace,
        message=r"waited for phase 2 of ready\[0\].*return(s|ed) on the stale state of an earlier",
    ),
    "stale parity: ready phase two behind": Bug(
        where=ring.await_ready,
        old="phase_of(ring, step), step",
        new="phase_of(ring, step) - 2, step",
        error=PipelineRace,
        message=r"waited for phase -2 of ready\[0\].*already reached phase -?\d",
    ),
    "stale parity: the phase never advances": Bug(
        where=ring.phase_of,
        old="step // ring.plan.slots",
        new="0",
        error=SimulationError,
        message=f"{TWICE}|{OTHER_PHASE}",
    ),
    "stale parity: the step's parity, not its slot's": Bug(
        where=ring.phase_of,
        old="step // ring.plan.slots",
        new="step",
        error=PipelineRace,
        message=r"waited for phase 1 of ready\[1\].*returned on the stale state of an earlier",
    ),
    # ---- load ring, memory role
    "skipped free wait": Bug(ring.fill, WAIT_FREE, "pass", SimulationError, TWICE),
    "skipped free wait in the last step": Bug(
        ring.fill, WAIT_FREE, f"if step != 9: {WAIT_FREE}", SimulationError, TWICE
    ),
    "stale parity: free phase one ahead": Bug(
        where=ring.fill,
        old="phase_of(ring, step) - 1",
        new="phase_of(ring, step)",
        error=PipelineDeadlock,
        message=r"warpgroup 2 \(memory\): blocked on consumed\[0\] of .* phase 0 step 0",
    ),
    "stale parity: free phase one behind": Bug(
        where=ring.fill,
        old="phase_of(ring, step) - 1",
        new="phase_of(ring, step) - 2",
        error=SimulationError,
        message=r"waited for phase -2 of consumed\[0\].* for step 0.*already reached phase -1",
    ),
    "stale parity: free phase two behind": Bug(
        where=ring.fill,
        old="phase_of(ring, step) - 1",
        new="phase_of(ring, step) - 3",
        error=PipelineRace,
        message=r"waited for phase -3 of consumed\[0\].* for step 0.*already reached phase -1",
    ),
    "wrong byte count: short": Bug(
        ring.stage_bytes,
        "plan.expected(part)",
        "plan.expected(part) - 4096",
        SimulationError,
        TOO_FEW,
    ),
    "wrong byte count: short in the last step": Bug(
        where=ring.fill,
        old=BYTES,
        new=BYTES.replace("part)", "part) - 4096 * (step == 9)"),
        error=SimulationError,
        message=TOO_FEW,
    ),
    "wrong byte count: long": Bug(
        where=ring.stage_bytes,
        old="plan.expected(part)",
        new="plan.expected(part) + 4096",
        error=PipelineDeadlock,
        message="is still missing 4096 bytes and no copy is in flight: expect_tx announced 28672 "
        "bytes, .* brought 24576",
    ),
    "wrong byte count: long in the last step": Bug(
        where=ring.fill,
        old=BYTES,
        new=BYTES.replace("part)", "part) + 16 * (step == 9)"),
        error=PipelineDeadlock,
        message=r"ready\[1\] of .* is still missing 16 bytes and no copy is in flight: expect_tx "
        r"announced 24592 bytes, .* brought 24576",
    ),
    "wrong byte count: one operand forgotten": Bug(
        where=ring.stage_bytes,
        old="plan.expected(part)",
        new="plan.layouts[0].nbytes",
        error=SimulationError,
        message=r"completes with \d of its copies still in flight|more than phase \d expects "
        rf"\(16384 announced\)|{READ_EARLY}",
    ),
    "loads before the free wait": Bug(
        where=ring.fill,
        old=f"{FREE}\n    {EXPECT}\n    {LOAD}",
        new=f"{LOAD}\n    {FREE}\n    {EXPECT}",
        error=PipelineRace,
        message=SLOT_LOST,
    ),
    "bytes announced before the free wait": Bug(
        where=ring.fill,
        old=f"{FREE}\n    {EXPECT}",
        new=f"{EXPECT}\n    {FREE}",
        error=SimulationError,
        message=f"{TWICE}|{OTHER_PHASE}",
    ),
    "loads into the next slot": Bug(
        ring.fill, LOAD, "copy_in(ring, indices, (slot + 1) % 2, part)", PipelineRace, SLOT_LOST
    ),
    "loads complete on the next barrier": Bug(
        where=ring.copy_in,
        old='"ready", slot, part)',
        new='"ready", (slot + 1) % 2, part)',
        error=PipelineRace,
        message=READ_EARLY,
    ),
    # ---- the counter
    "the counter restarts with every tile": Bug(
        context.counter, "np_.state[index]", "0", PipelineRace, OTHER_PHASE
    ),
    "the counter restarts in the compute role": Bug(
        where=ring.set_steps_done,
        old=COUNTED,
        new=f"({COUNTED}) * (not ring.np.computes)",
        error=PipelineRace,
        message=OTHER_PHASE,
    ),
    "the counter restarts in the memory role": Bug(
        where=ring.set_steps_done,
        old=COUNTED,
        new=f"({COUNTED}) * ring.np.computes",
        error=PipelineRace,
        message=OTHER_PHASE,
    ),
    # ---- store ring
    "no proxy fence": Bug(
        where=store_ring.put_alone,
        old="fence.proxy_async()",
        new="pass",
        error=PipelineRace,
        message=r"TMA store \(c\) reads .*the writing warps did not fence",
    ),
    "no proxy fence by one warpgroup": Bug(
        where=store_ring.put_alone,
        old="fence.proxy_async()",
        new="warpgroup() or fence.proxy_async()",
        error=PipelineRace,
        message=r"TMA store \(c\) reads .* warpgroup 1 \(compute\).*the writing warps did not "
        r"fence",
    ),
    "fence after the barrier": Bug(
        where=store_ring.put_alone,
        old=f"{FENCE}\n    {SYNC}",
        new=f"{SYNC}\n    {FENCE}",
        error=PipelineRace,
        message="the writing warps did not fence",
    ),
    "no barrier before the panels are written": Bug(
        where=store_ring.put_alone,
        old=f"{SYNC}\n    write_panels(",
        new="write_panels(",
        error=PipelineRace,
        message=r"write \(staging panel\) writes .* while TMA store \(c\).*bulk_wait",
    ),
    "no barrier before the store": Bug(
        where=store_ring.put_alone,
        old=f"{SYNC}\n    one_lane(copy_out",
        new="one_lane(copy_out",
        error=PipelineRace,
        message=r"no barrier orders warp 1 of warpgroup \d \(compute\) before",
    ),
    "one barrier number for all warpgroups": Bug(
        where=fence_order.meet,
        old="1 + special.warpgroup_index()",
        new="1",
        error=PipelineRace,
        message=r"bar_sync 1 .* nothing orders this after the use of the barrier",
    ),
    "one staging panel for all warpgroups": Bug(
        where=store_ring.staging,
        old="ref.np.part_of(ref.unit.staging)",
        new="ref.unit.staging.base",
        error=PipelineRace,
        message=r"write \(staging panel\) writes .* while (TMA store \(c\)|write)",
    ),
    "no await_staging": Bug(
        where=store_ring.put_alone,
        old="one_lane(await_staging, ref)",
        new="pass",
        error=PipelineRace,
        message=r"write \(staging panel\) writes .* while TMA store \(c\).*bulk_wait\(pending, "
        r"read=True\)",
    ),
    "no commit": Bug(
        store_ring.copy_out,
        "cp_async_bulk.commit_group()",
        "pass",
        PipelineRace,
        r"while TMA store \(c\)",
    ),
    "no drain at exit": Bug(
        where=store_ring.drain_stores,
        old="current().bulk_wait(0, read=False)",
        new="pass",
        error=PipelineRace,
        message=r"warpgroup \d \(compute\).*the warpgroup ends with 2 TMA stores not waited for",
    ),
    "drain of reads only at exit": Bug(
        where=store_ring.drain_stores,
        old="read=False",
        new="read=True",
        error=PipelineRace,
        message=r"the warpgroup ends with \d TMA stores? not waited for",
    ),
}

# 2 x 2 tiles, 5 steps each: an odd count, so that tiles start at either slot
A, B = operands(256, 128, 5 * 64)
C = product(A, B)


def run(seed: int | None, delay: int = 0) -> Any:
    """Run 2 CTAs with 2 tiles each, 2 compute warpgroups, 2 slots and one staging panel each.

    A delay adds one slot.
    """
    return gemm(2, store_slots=1, ctas=2).simulate(
        A, B, seed=seed, cfg=replace(SMALL, slots=2 + delay, delay=delay)
    )


def names_who_and_where(text: str) -> None:
    """Assert that a report has the user's line first, then a warpgroup, and the ring with slot or
    phase."""
    assert re.match(rf"\S*{RING}: ", text), text
    assert re.search(r"warpgroup \d \((memory|compute)\)", text), text
    assert re.search(
        rf"(ready|consumed)\[\d\] of (a, b|a|b) @ {RING} phase|of step \d \(slot \d\)", text
    ), text


@pytest.mark.variants(10)
@pytest.mark.schedules
@pytest.mark.parametrize("name", BUGS)
def test_every_schedule_finds(name, monkeypatch):
    bug = BUGS[name]
    bug.inject(monkeypatch)
    for seed in SCHEDULES:
        with pytest.raises(bug.error) as caught:
            run(seed, bug.delay)
        text = str(caught.value)
        assert re.search(bug.message, text, re.DOTALL), f"seed {seed}: {text}"
        names_who_and_where(text)


# ---- other kernels -------------------------------------------------------------------------------
def nested(seed: int | None, cfg: Config) -> tuple[np.ndarray, np.ndarray]:
    a, b = operands(256, 128, 3 * 128)
    return nested_gemm(ctas=2).simulate(a, b, seed=seed, cfg=cfg), product(a, b)


def flat(
    seed: int | None, cfg: Config, wgs: int = 2, ctas: int = 2, store_slots: int = 1
) -> tuple[np.ndarray, np.ndarray]:
    a, b = operands(256, max(128, cfg.tn), 5 * 64)
    return gemm(wgs, store_slots, ctas).simulate(a, b, seed=seed, cfg=cfg), product(a, b)


TWINS = {
    "cooperative": lambda seed: flat(seed, SMALL),
    "delay_release 1": lambda seed: flat(seed, replace(SMALL, slots=3, delay=1)),
    "delay_release 1 of 2 slots": lambda seed: flat(seed, replace(SMALL, delay=1)),
    "delay_release 2": lambda seed: flat(seed, replace(SMALL, slots=4, delay=2)),
    "one slot": lambda seed: flat(seed, replace(SMALL, slots=1)),
    "more slots than steps": lambda seed: flat(seed, replace(SMALL, tk=128, slots=4)),
    "four tiles of one CTA": lambda seed: flat(seed, SMALL, ctas=1),
    "more CTAs than tiles": lambda seed: flat(seed, SMALL, ctas=5),
    "one compute warpgroup": lambda seed: flat(seed, replace(SMALL, tm=64), wgs=1),
    "one compute warpgroup, two blocks of rows": lambda seed: flat(seed, SMALL, wgs=1),
    "three compute warpgroups": lambda seed: flat(seed, replace(SMALL, tm=192, slots=3), wgs=3),
    "all panels staged": lambda seed: flat(seed, replace(SMALL, tn=192), store_slots=0),
    "two of three panels staged": lambda seed: flat(seed, replace(SMALL, tn=192), store_slots=2),
    "nested": lambda seed: nested(seed, SMALL),
    "nested, delay_release 1": lambda seed: nested(seed, replace(SMALL, slots=3, delay=1)),
}


@pytest.mark.variants(5, thorough=6)
@pytest.mark.schedules
@pytest.mark.parametrize("twin", TWINS)
def test_the_ring_as_it_is_stays_silent_and_right(twin):
    for seed in SCHEDULES if twin in EVERY_SCHEDULE else FEW:
        c, expected = TWINS[twin](seed)
        assert np.array_equal(c, expected), f"seed {seed}"


EVERY_SCHEDULE = [
    "cooperative",
    "delay_release 1",
    "delay_release 1 of 2 slots",
    "four tiles of one CTA",
    "one slot",
    "nested",
    "nested, delay_release 1",
]
FEW = SCHEDULES[: 1 + examples(8)]
EVERYWHERE = [
    "release before drain",
    "no arrive at all",
    "double arrive",
    "arrive by one warp for all four",
    "skipped ready wait",
    "stale parity: ready phase one ahead",
    "stale parity: ready phase two behind",
    "skipped free wait",
    "stale parity: free phase one ahead",
    "wrong byte count: long",
    "wrong byte count: short",
    "no proxy fence",
    "no barrier before the store",
    "no drain at exit",
]
ELSEWHERE = [
    "delay_release 1",
    "delay_release 2",
    "one slot",
    "four tiles of one CTA",
    "one compute warpgroup",
    "three compute warpgroups",
    "nested",
]


@pytest.mark.variants(17, thorough=40)
@pytest.mark.schedules
@pytest.mark.parametrize("name", EVERYWHERE)
@pytest.mark.parametrize("twin", ELSEWHERE)
def test_other_kernels_find(name, twin, monkeypatch):
    BUGS[name].inject(monkeypatch)
    for seed in FEW:
        with pytest.raises(SimulationError) as caught:
            TWINS[twin](seed)
        names_who_and_where(str(caught.value))


def test_an_edit_that_the_ring_no_longer_has_is_an_error(monkeypatch):
    with pytest.raises(AssertionError, match="the ring has changed"):
        Bug(ring.fill, "a line that is not there", "pass", PipelineRace, "").inject(monkeypatch)


def test_an_edit_that_changes_nothing_stays_silent(monkeypatch):
    """Shows that the tests above do not detect the editing itself."""
    for operation in (
        steps.advance,
        ring.release,
        ring.await_ready,
        ring.fill,
        ring.phase_of,
        ring.stage_bytes,
        steps.await_products,
        steps.fill_begun,
        store_ring.put_alone,
        store_ring.drain_stores,
    ):
        name = operation.__name__
        line = f"def {name}("
        Bug(operation, line, line, PipelineRace, "").inject(monkeypatch)
    for seed in FEW:
        assert np.array_equal(run(seed), C)
