"""Two compute warpgroups that take turns on whole tiles: one ring, whose counters are handed over
with the turn."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from numpipe.core.machine import Machine, Mma
from numpipe.errors import PipelineDeadlock, PipelineRace, SimulationError
from tests.kernels.sim_pipelines import F16, Gemm, descriptor, each_warp, one


@dataclass
class PingPong(Gemm):
    """Warpgroup w computes tiles w, w + 2, … of 64 x 128; a turn orders its main loop after the
    other's.

    The number of steps differs between tiles. A turn is a named barrier (4 + w); the ring's step
    counter travels with it in a word of shared memory. Releases come one step late, after the
    newest wgmma group.
    """

    tiles: int = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        self.sums = np.zeros((self.tiles, 64, 128), np.float32)
        self.words = self.bars + 512

    def steps(self, tile: int) -> int:
        return (3, 1, 4, 0, 2)[tile % 5]

    def expected_sums(self) -> np.ndarray:
        a, b = self.a[:64].astype(np.float32), self.b.astype(np.float32)
        return np.stack(
            [a[:, : 64 * self.steps(t)] @ b[:, : 64 * self.steps(t)].T for t in range(self.tiles)]
        )

    def initialise(self, machine: Machine) -> None:
        for slot in range(self.slots):
            machine.mbar_init(self.ready(slot), 1, f"ready[{slot}]")
            machine.mbar_init(self.consumed(slot), 4, f"consumed[{slot}]")
        machine.fence_mbarrier_init()

    def produce(self, machine: Machine) -> None:
        step = 0
        for tile in range(self.tiles):
            for k in range(self.steps(tile)):
                slot, base = step % self.slots, step % self.slots * self.stage_bytes
                machine.mbar_wait(self.consumed(slot), step // self.slots - 1, step)
                machine.mbar_arrive_expect_tx(self.ready(slot), self.stage_bytes)
                machine.tma_load(base, self.a_map, (0, 64 * k), self.ready(slot))
                machine.tma_load(base + self.a_bytes, self.b_map, (0, 64 * k), self.ready(slot))
                step += 1

    def take_turn(self, machine: Machine, step: int) -> int:
        if self.bug != "turn not taken":
            machine.bar_sync(4 + machine.warpgroup, 256)
        if self.bug == "counters not handed over":
            return step
        return machine.load_word(self.words + 4 * machine.warpgroup)

    def pass_turn(self, machine: Machine, step: int) -> None:
        other = 1 - machine.warpgroup
        one(machine, machine.store_word, self.words + 4 * other, step)
        if self.bug != "turn never passed" or step == 0:
            machine.bar_arrive(4 + other, 256)

    def consume(self, machine: Machine) -> None:
        if machine.warpgroup == 1:
            self.pass_turn(machine, 0)
        step = 0
        for tile in range(machine.warpgroup, self.tiles, 2):
            step = self.take_turn(machine, step)
            acc: object = np.zeros((64, 128), np.float32)
            steps = self.steps(tile)
            for k in range(steps):
                machine.mbar_wait(self.ready(step % self.slots), step // self.slots, step)
                machine.wgmma_fence()
                base = step % self.slots * self.stage_bytes
                pairs = tuple(
                    (
                        descriptor(base + 32 * i, 16, 1024, 128),
                        descriptor(base + self.a_bytes + 32 * i, 16, 1024, 128),
                    )
                    for i in range(4)
                )
                acc = machine.wgmma(acc, Mma(128, F16, "k", "k", (pairs,)))
                machine.wgmma_commit()
                machine.wgmma_wait(1)
                if k:
                    each_warp(machine, machine.mbar_arrive, self.consumed((step - 1) % self.slots))
                step += 1
            self.pass_turn(machine, step)
            machine.wgmma_wait(0)
            if steps:
                each_warp(machine, machine.mbar_arrive, self.consumed((step - 1) % self.slots))
                machine.gmem_write(self.sums, (tile,), acc.read(), "store")


@pytest.mark.variants(1)
@pytest.mark.parametrize("slots", [2, 3, 4])
def test_turns_give_the_products_without_an_alarm(slots):
    for seed in (None, *range(40)):
        kernel = PingPong(slots=slots)
        kernel.run(seed)
        np.testing.assert_array_equal(kernel.sums, kernel.expected_sums())


@pytest.mark.parametrize(
    ("bug", "errors"),
    [
        ("turn not taken", PipelineRace),
        ("counters not handed over", SimulationError),
        ("turn never passed", PipelineDeadlock),
    ],
)
def test_every_schedule_finds_a_broken_turn(bug, errors):
    for seed in (None, *range(40)):
        with pytest.raises(errors):
            PingPong(bug=bug, slots=3).run(seed)


def test_one_slot_with_a_late_release_deadlocks():
    with pytest.raises(PipelineDeadlock, match=r"consumed\[0\]"):
        PingPong(slots=1).run()
