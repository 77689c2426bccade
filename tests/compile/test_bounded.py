"""The waits of kernels with debug=True (`compile.bounded_cuda`), run in CPython on a fake clock and a fake control block."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("numba.cuda")
from numpipe.compile import bounded_cuda as bounded
from numpipe.plan.watch import ASKED, FLAG, GRACE, LIMIT, MBARRIER, PASSED, SETTLING, STOPPED

BASE, WORDS, WARP, CONTROL, LIMIT_NS = 0x01000400, 2000, 3000, 1 << 20, 2_000_000_000


class Trap(Exception):
    """The kernel trapped."""


class Lane:
    """One lane of a kernel, and what it sees."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.time, self.passes_at, self.stopped_at = 10**15, 0, 0
        self.memory = {
            CONTROL + LIMIT: LIMIT_NS,
            CONTROL + STOPPED: 0,
            CONTROL + PASSED: self.time,
            WORDS: 0,
        }
        self.records: list[tuple[int, ...]] = []
        self.arrivals: list[int] = []
        self.tests = 0
        statements: dict[str, Any] = {
            "now": self.now,
            "load": self.memory.__getitem__,
            "store": self.memory.__setitem__,
            "store_word": self.memory.__setitem__,
            "store_byte": self.memory.__setitem__,
            "set_bits": self.set_bits,
            "try_wait": self.test,
            "try_wait_cluster": self.test,
            "test_wait": self.test,
            "arrive": self.arrive,
            "lanes": lambda: 1,
            "is_first": bool,
            "meet": lambda lanes: None,
            "sleep": self.sleep,
            "trap": self.trap,
            "words": lambda: WORDS,
            "asks": lambda: 1,
            "base": lambda: BASE,
            "warp": lambda: WARP,
            "omitting": lambda: self.memory[WORDS],
            "control": lambda: CONTROL,
            "record": lambda *fields: self.records.append(fields),
        }
        for name, statement in statements.items():
            monkeypatch.setattr(bounded, name, statement)

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

    def set_bits(self, address: int, bits: int) -> int:
        before = self.memory.get(address, 0)
        self.memory[address] = before | bits
        return before

    def arrive(self, addr: int) -> int:
        self.arrivals.append(addr)
        return 77

    def trap(self) -> None:
        raise Trap

    @property
    def omits(self) -> tuple[int, int]:
        """(whether its CTA omits arrivals, whether its warp omits copies)"""
        return self.memory[WORDS], self.memory.get(WARP, 0)


@pytest.fixture
def lane(monkeypatch: pytest.MonkeyPatch) -> Lane:
    return Lane(monkeypatch)


WAITS = [bounded.wait, bounded.wait_cluster]


@pytest.mark.parametrize("wait", WAITS)
def test_a_phase_that_ends_in_time_is_waited_for_and_noted(lane: Lane, wait: Any) -> None:
    begin, lane.passes_at = lane.time, lane.time + LIMIT_NS // 2
    wait(BASE + 8, 3, 3)
    assert lane.time > lane.passes_at and lane.memory[CONTROL + PASSED] > lane.passes_at > begin
    assert not lane.records and lane.omits == (0, 0) and not lane.memory[CONTROL + STOPPED]


@pytest.mark.parametrize("wait", WAITS)
def test_a_phase_that_does_not_end_stops_the_kernel_and_is_recorded(lane: Lane, wait: Any) -> None:
    begin = lane.time
    wait(BASE + 40, -1, 0)
    assert LIMIT_NS < lane.memory[CONTROL + STOPPED] - begin < LIMIT_NS + 10**6
    assert lane.time > lane.memory[CONTROL + STOPPED] + SETTLING and lane.omits == (1, 1)
    assert lane.records == [(MBARRIER, 40, -1, 77)] and lane.arrivals == [BASE + 40]


def test_the_address_in_a_record_is_without_the_rank_of_the_cta(lane: Lane) -> None:
    bounded.wait(BASE + 16 + (3 << 24), 0, 0)
    assert lane.records[0][1] == 16


def test_of_the_records_of_an_mbarrier_one_has_its_state(lane: Lane) -> None:
    for _ in range(2):
        bounded.report(MBARRIER, BASE + 8 * 37, 0)
    bounded.report(MBARRIER, BASE + 8 * 5, 0)
    assert [fields[3] for fields in lane.records] == [77, 0, 77]
    assert lane.memory[WORDS + ASKED] == lane.memory[WORDS + ASKED + 4] == 1 << 5  # 37 = 32 + 5


def test_in_a_cluster_no_mbarrier_is_asked(lane: Lane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded, "asks", lambda: 0)
    bounded.wait(BASE + 8, 0, 0)
    assert lane.records == [(MBARRIER, 8, 0, 0)] and not lane.arrivals


def test_a_wait_that_is_cut_short_by_another_one_is_recorded_too(lane: Lane) -> None:
    lane.stopped_at = lane.time + LIMIT_NS // 3
    bounded.wait(BASE + 8, 0, 0)
    assert (
        lane.time < lane.stopped_at + 2 * SETTLING
        and len(lane.records) == 1
        and lane.omits == (1, 1)
    )
    assert lane.memory[CONTROL + STOPPED] == lane.stopped_at  # the first to time out sets it


def test_a_wait_that_begins_after_the_stop_returns_without_a_record(lane: Lane) -> None:
    """It may be of a CTA that has done nothing wrong."""
    lane.memory[CONTROL + STOPPED] = lane.time
    bounded.wait(BASE + 8, 0, 0)
    assert not lane.records and lane.omits == (1, 1)
    tests = lane.tests
    bounded.wait(BASE + 8, 1, 0)
    assert lane.tests == tests  # the second one does not even look


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
    assert lane.records == [(FLAG, 0, 256, 0)] and not lane.arrivals


@pytest.mark.parametrize("stopped", [False, True])
def test_a_cta_that_begins_after_the_stop_omits_everything(lane: Lane, stopped: bool) -> None:
    lane.memory[CONTROL + STOPPED] = lane.time * stopped
    lane.memory[WORDS] = 12345  # what was there before
    bounded.begin()
    assert lane.memory[WORDS] == int(stopped) and lane.memory[WORDS + ASKED] == 0
    assert lane.memory[CONTROL + PASSED] == lane.time
