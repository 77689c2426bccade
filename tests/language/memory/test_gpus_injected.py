"""Bugs injected into the source of numpipe's multi-GPU operations: each is reported in every
schedule."""

from __future__ import annotations

import re

import pytest

from numpipe.errors import PipelineDeadlock, PipelineRace, SimulationError
from numpipe.language.memory import peer_arrays, semaphores
from tests.kernels.covering import examples
from tests.kernels.gpu_kernels import CASES
from tests.language.pipeline.test_injected import Bug
from tests.sim.test_sim_gpus import computes

SYNC = "meet()"
STORES = "one_lane(complete_stores, np_)"
FENCE = "fence.proxy_async_global()"
POLL = "poll(np_, semaphore, value, place)"
TOO_EARLY = r"no semaphore orders two GPUs"
FOREVER = r"blocked on the semaphore ready\[\d\] of GPU \d"

BUGS = {
    "a signal does not wait for stores": Bug(
        semaphores.complete_and_add, STORES, "pass", PipelineRace, TOO_EARLY
    ),
    "a signal waits for what the stores read": Bug(
        where=semaphores.complete_stores,
        old="wait_group(0)",
        new="wait_group_read(0)",
        error=PipelineRace,
        message=TOO_EARLY,
    ),
    "a signal leaves a store in flight": Bug(
        semaphores.complete_stores, "wait_group(0)", "wait_group(1)", PipelineRace, TOO_EARLY
    ),
    "a signal ahead of other lanes' stores": Bug(
        semaphores.complete_and_add, SYNC, "pass", PipelineRace, TOO_EARLY
    ),
    "a signal before the warpgroup meets": Bug(
        where=semaphores.complete_and_add,
        old=f"{SYNC}\n    one_lane(add_to, np_, semaphore, rank, add)",
        new=f"one_lane(add_to, np_, semaphore, rank, add)\n    {SYNC}",
        error=PipelineRace,
        message=TOO_EARLY,
    ),
    "a signal to the own GPU": Bug(
        where=semaphores.add_to,
        old="semaphore.start[0], rank,",
        new="semaphore.start[0], current().gpu,",
        error=SimulationError,
        message=f"{TOO_EARLY}|{FOREVER}|has ended|may have ended|not been written",
    ),
    "a signal to the next semaphore": Bug(
        where=semaphores.add_to,
        old="semaphore.start[0], rank",
        new="semaphore.start[0] ^ 1, rank",
        error=SimulationError,
        message=f"{TOO_EARLY}|{FOREVER}|has ended|may have ended|not been written",
    ),
    "no signal at all": Bug(
        where=semaphores.complete_and_add,
        old="one_lane(add_to, np_, semaphore, rank, add)",
        new="pass",
        error=PipelineDeadlock,
        message=FOREVER,
    ),
    "a wait for one less": Bug(
        where=semaphores.poll,
        old="start[0], value,",
        new="start[0], value - 1,",
        error=SimulationError,
        message=f"{TOO_EARLY}|has ended|may have ended|not been written",
    ),
    "a wait of one lane for itself": Bug(
        semaphores.await_together, SYNC, "pass", PipelineRace, TOO_EARLY
    ),
    "no proxy fence after a wait": Bug(
        where=semaphores.await_value,
        old=FENCE,
        new="pass",
        error=PipelineRace,
        message="ordinary stores to an array are not visible to the async proxy",
    ),
    "the proxy fence ahead of the wait": Bug(
        where=semaphores.await_value,
        old=f"{POLL}\n    {FENCE}",
        new=f"{FENCE}\n    {POLL}",
        error=PipelineRace,
        message="ordinary stores to an array are not visible to the async proxy",
    ),
    "a peer's memory before its launch": Bug(
        where=peer_arrays.peer,
        old="await_launches(np_)",
        new="pass",
        error=PipelineRace,
        message=r"before the launch of GPU \d has begun",
    ),
    "a launch that does not begin": Bug(
        where=peer_arrays.begin_launch,
        old="current().gpu_begin()",
        new="pass",
        error=PipelineDeadlock,
        message=r"blocked on the launch of GPU 0, 1, which has not begun",
    ),
}


@pytest.mark.variants(6)
@pytest.mark.schedules
@pytest.mark.parametrize("name", BUGS)
def test_every_schedule_finds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bug = BUGS[name]
    bug.inject(monkeypatch)
    for seed in (None, *range(examples(20))):
        with pytest.raises(bug.error) as caught:
            computes(CASES["exchanged"], 2, seed, ctas=1)
        assert re.search(bug.message, str(caught.value), re.DOTALL), f"seed {seed}: {caught.value}"
