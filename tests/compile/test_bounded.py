"""The bounded waits of kernels with debug=True (`compile.bounded_cuda`), run in CPython on a fake
clock and a fake control block."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("numba.cuda")
from numpipe.compile import bounded_cuda as bounded
from numpipe.plan.wait_records import ASKED, FLAG, GRACE, LIMIT, MBARRIER, PASSED, SETTLING, STOPPED

BASE, WORDS, CONTROL, LIMIT_NS = 0x01000400, 2000, 1 << 20, 2_000_000_000


class Trap(Exception):
    """The kernel trapped."""


class Lane:
    """One lane of a kernel, and what it can access."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.time, self.passes_at, self.stopped_at = 10**15, 0, 0
        self.memory = {
            CONTROL + LIMIT: LIMIT_NS,
            CONTROL + STOPPED: 0,
            CONTROL + PASSED: self.time,
            WORDS: 0,
        }
        self.records: list[tuple[int, ...]] = []
        self.asked: list[tuple[int, ...]] = []
        self.tests = 0
        statements: dict[str, Any] = {
            "now": self.now,
            "load": self.memory.__getitem__,
            "store": self.memory.__setitem__,
            "store_word": self.memory.__setitem__,
            "try_wait": self.test,
            "try_wait_cluster": self.test,
            "test_wait": self.test,
            "state_of": self.state_of,
            "is_first": lambda: True,
            "sleep": self.sleep,
            "trap": self.trap,
            "words": lambda: WORDS,
            "base": lambda: BASE,
            "control": lambda: CONTROL,
            "record": self.record,
        }
        for name, statement in statements.items():
            monkeypatch.setattr(bounded, name, statement)
        monkeypatch.setattr(bounded.memory, "load_word", self.memory.__getitem__)

    def now(self) -> int:
        self.time += 20_000
        if self.stopped_at and self.time > self.stopped_at and not self.memory[CONTROL + STOPPED]:
            self.memory[CONTROL + STOPPED] = self.stopped_at  # by another CTA
        return self.time

    def sleep(self) -> None:
        self.time += 100_000

    def test(self, addr: int, parity: int) -> bool:
        assert parity in (0, 1)
        self.tests += 1
        return 0 < self.passes_at < self.now()

    def state_of(self, addr: int, number: int, asked: int, chosen: bool) -> int:
        assert asked == WORDS + ASKED
        self.asked += [(addr, number)] * chosen
        return 77 * chosen

    def record(self, kind: int, chosen: bool, *fields: int) -> None:
        self.records += [(kind, *fields)] * chosen

    def trap(self) -> None:
        raise Trap

    @property
    def omits(self) -> bool:
        """Return whether its CTA omits arrivals and copies."""
        return bool(self.memory[WORDS])


@pytest.fixture
def lane(monkeypatch: pytest.MonkeyPatch) -> Lane:
    return Lane(monkeypatch)


WAITS = [bounded.wait, bounded.wait_cluster]


@pytest.mark.parametrize("wait", WAITS)
def test_a_phase_that_ends_in_time_is_waited_for_and_noted(lane: Lane, wait: Any) -> None:
    begin, lane.passes_at = lane.time, lane.time + LIMIT_NS // 2
    wait(BASE + 8, 3, 3)
    assert lane.time > lane.passes_at and lane.memory[CONTROL + PASSED] > lane.passes_at > begin
    assert not lane.records and not lane.omits and not lane.memory[CONTROL + STOPPED]


@pytest.mark.parametrize("wait", WAITS)
def test_a_phase_that_does_not_end_stops_the_kernel_and_is_recorded(lane: Lane, wait: Any) -> None:
    begin = lane.time
    wait(BASE + 40, -1, 0)
    assert LIMIT_NS < lane.memory[CONTROL + STOPPED] - begin < LIMIT_NS + 10**6
    assert lane.time > lane.memory[CONTROL + STOPPED] + SETTLING and lane.omits
    assert lane.records == [(MBARRIER, 40, -1, 77)] and lane.asked == [(BASE + 40, 5)]


def test_the_address_in_a_record_is_without_the_rank_of_the_cta(lane: Lane) -> None:
    bounded.wait(BASE + 16 + (3 << 24), 0, 0)
    assert lane.records[0][1] == 16


@pytest.mark.parametrize("part, asks", [(0.3, False), (0.7, True)])
def test_a_wait_asks_for_the_state_only_if_it_began_long_before_the_stop(
    lane: Lane, part: float, asks: bool
) -> None:
    """Otherwise bytes might be announced there that are never copied, and the arrival would
    trap."""
    lane.stopped_at = lane.time + int(part * LIMIT_NS)
    bounded.wait(BASE + 8, 2, 0)
    assert lane.records == [(MBARRIER, 8, 2, 77 * asks)] and bool(lane.asked) == asks


def test_a_wait_that_is_cut_short_by_another_one_is_recorded_too(lane: Lane) -> None:
    lane.stopped_at = lane.time + LIMIT_NS // 3
    bounded.wait(BASE + 8, 0, 0)
    assert lane.time < lane.stopped_at + 2 * SETTLING and len(lane.records) == 1 and lane.omits
    assert lane.memory[CONTROL + STOPPED] == lane.stopped_at  # the first to time out sets it


def test_a_wait_that_begins_after_the_stop_returns_without_a_record(lane: Lane) -> None:
    """Its CTA may have done nothing wrong."""
    lane.memory[CONTROL + STOPPED] = lane.time
    bounded.wait(BASE + 8, 0, 0)
    assert not lane.records and lane.omits
    tests = lane.tests
    bounded.wait(BASE + 8, 1, 0)
    assert lane.tests == tests  # the second one returns without a test


def test_a_kernel_that_the_stop_does_not_end_traps(lane: Lane) -> None:
    bounded.wait(BASE + 8, 0, 0)
    bounded.wait(BASE + 8, 1, 0)
    lane.time += GRACE
    for wait in (lambda: bounded.wait(BASE + 8, 2, 0), lambda: bounded.poll(BASE + 8, 0)):
        with pytest.raises(Trap):
            wait()


def test_a_poll_times_out_when_nothing_has_passed_for_so_long(lane: Lane) -> None:
    assert not bounded.poll(BASE + 8, 1) and not lane.records
    lane.memory[CONTROL + PASSED] = lane.time  # another wait has passed
    lane.time += LIMIT_NS - 10**6
    assert not bounded.poll(BASE + 8, 1)
    lane.time += 10**6
    assert bounded.poll(BASE + 8, 1) and lane.records == [(MBARRIER, 8, 1, 77)]
    assert bounded.poll(BASE + 8, 1) and len(lane.records) == 1


def test_flags_are_waited_for_and_cleared_and_one_that_does_not_come_is_recorded(
    lane: Lane, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = {4096: 1, 4096 + 8 * 128: 1, 4096 + 8 * 256: 0}

    def load(at: int) -> int:
        lane.now()
        return flags[at]

    monkeypatch.setattr(bounded.memory, "ld_acquire_gpu_b32", load)
    monkeypatch.setattr(bounded.memory, "store_global_b32", flags.__setitem__)
    bounded.await_each(4096, 8, 0, 256)
    assert flags == {4096: 0, 4096 + 8 * 128: 0, 4096 + 8 * 256: 0} and not lane.records
    bounded.await_each(4096, 8, 256, 384)
    assert lane.records == [(FLAG, 0, 256, 0)] and not lane.asked


@pytest.mark.parametrize("asked", [0, -1])
@pytest.mark.parametrize("stopped", [False, True])
def test_a_cta_that_begins_after_the_stop_omits_everything(
    lane: Lane, stopped: bool, asked: int
) -> None:
    lane.memory[CONTROL + STOPPED] = lane.time * stopped
    lane.memory[WORDS] = 12345  # what was there before
    bounded.begin(asked)
    assert lane.omits == stopped and lane.memory[CONTROL + PASSED] == lane.time
    assert [lane.memory[WORDS + ASKED + 4 * word] for word in range(4)] == [asked] * 4
