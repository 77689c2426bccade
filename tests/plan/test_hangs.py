"""Each hang of `hang_kernels`: the simulated SM reports it, and what is compiled with debug=True has no wait without a bound."""

from __future__ import annotations

import ctypes
import dataclasses
import re
import struct
import time

import pytest

import numpipe
from numpipe import CompilerParams, PipelineDeadlock
from numpipe.launch import driver
from numpipe.launch.watch import Watch, Watched, failure
from numpipe.plan.watch import CAPACITY, FLAG, NAMED, RECORD_BYTES, Record
from tests.kernels.hang_kernels import HANGS, MORE, TWELVE, given

ALL = {**HANGS, **MORE}
NAMED_HANG = "a_turn_that_one_warpgroup_leaves_out"


def test_the_hangs_are_of_six_kinds_in_both_roles() -> None:
    assert len(TWELVE) == 12 and len({kind for kind, _, _ in TWELVE.values()}) == 6
    assert {role for _, role, _ in TWELVE.values()} == {"memory", "compute"}


@pytest.mark.parametrize("name", [*TWELVE, NAMED_HANG])
def test_simulated_each_is_a_deadlock_with_a_line(name: str) -> None:
    with pytest.raises(PipelineDeadlock) as caught:
        ALL[name].simulate(*given(name))
    assert re.match(r".*hang_kernels\.py:\d+: ", str(caught.value))
    if name in TWELVE:
        assert re.search(TWELVE[name][2], str(caught.value))


def waits(ptx: str) -> tuple[int, int, int]:
    """(waits without a bound, bounded waits for mbarriers, others): the barriers of a warpgroup's own warps are neither."""
    lines = ptx.splitlines()
    free = [line for line in lines if re.search(r"bra WAIT;|^\s*bar\.(sync|arrive) +%(?!\w+, 128;)", line)]
    bounded = [line for line in lines if "AGAIN:" in line or "COUNT:" in line or "GIVEN:" in line]
    mbarriers = [line for line in bounded if "mbarrier." in line.partition("TELL:")[0]]
    return len(free), len(mbarriers), len(bounded) - len(mbarriers)


@pytest.mark.variants(1)
@pytest.mark.parametrize("name", ["a_part_that_nobody_hands_over", NAMED_HANG, *(n for n in TWELVE if "hands_over" not in n)])
def test_with_debug_each_wait_has_a_bound_and_without_it_none(name: str) -> None:
    kernel = ALL[name]
    free, mbarriers, others = waits(kernel.compiled(*given(name)).ptx)
    assert free == 0
    assert mbarriers or name in ("a_part_that_nobody_hands_over", NAMED_HANG)
    assert others or name not in ("a_part_that_nobody_hands_over", NAMED_HANG)
    plain = numpipe.Kernel(kernel.function, dataclasses.replace(kernel.options, compiler_params=CompilerParams()))
    free, mbarriers, others = waits(plain.compiled(*given(name)).ptx)
    assert free and not mbarriers + others


@pytest.mark.parametrize("jitter", [None, 1])
def test_the_lanes_of_a_warp_meet_before_one_counts_it(jitter: int | None) -> None:
    """A lane that sleeps, or waits for a flag, may be behind the others, which would be counted without it."""
    for name in (NAMED_HANG, "a_part_that_nobody_hands_over"):
        kernel = ALL[name]
        params = dataclasses.replace(kernel.options.compiler_params, jitter=jitter)
        changed = numpipe.Kernel(kernel.function, dataclasses.replace(kernel.options, compiler_params=params))
        ptx = changed.compiled(*given(name)).ptx
        counts = [line for line in ptx.splitlines() if "COUNT:" in line]
        assert counts and "activemask" not in "".join(line.partition("COUNT:")[0] for line in counts)
        for line in counts:
            before, _, behind = line.partition("mov.b32 first, 0xffffffff; bar.warp.sync first; ")
            assert "shared" not in before and behind.index("%lanemask_lt") < behind.index("COUNT:")
            assert ("nanosleep" in before) == (jitter is not None and "bar.arrive" not in line)  # the sleep is in front
            assert "vote.sync.any.pred late, late, first;" in behind


def test_the_address_of_a_barrier_is_told_without_the_rank_of_its_cta() -> None:
    """In a cluster it has the rank in bits 24 and up, and so has the address that it is told from."""
    name = "a_cta_that_does_not_tell_its_peer"
    ptx = ALL[name].compiled(*given(name)).ptx
    told = re.findall(r"sub.u32 word, %r\w+, word;(.{0,60}?)st.volatile.global.u32 \[at\+24\]", ptx)
    assert told and all("and.b32 word, word, 0xffffff;" in line for line in told)


def test_the_count_of_a_named_barrier_closes_before_anybody_goes_by() -> None:
    """Whoever gives up sets bit 31 of the count, in one step with reading it; nobody counts himself behind that."""
    ptx = ALL[NAMED_HANG].compiled(*given(NAMED_HANG)).ptx
    meets = [line for line in ptx.splitlines() if "COUNT:" in line]
    syncs = [line for line in meets if "bar.sync" in line]
    assert syncs and any("bar.arrive" in line for line in meets)
    for line in syncs:
        given_up = line.split("TELL: ")[1]
        assert given_up.startswith("atom.shared.or.b32 number") and "@done bra PASSED;" in given_up.split("st.volatile.shared")[0]
    for line in meets:
        assert line.index("@late bra GIVEN;") < line.index("atom.shared.cas")
        assert line.rstrip(" }").split("; ")[-1].startswith("@!late bar.")


def test_records_of_flags_and_named_barriers_name_them_and_their_lines() -> None:
    image = ALL["a_part_that_nobody_hands_over"].compiled(*given("a_part_that_nobody_hands_over")).image
    place = next(number for number, name in enumerate(image.places) if "flag" in name)
    text = str(failure(image, [Record(0, (1, 0, 0), warp, place, 0, 0, FLAG) for warp in range(4)], True))
    assert re.match(r"hang_kernels\.py:\d+: kernel a_part_that_nobody_hands_over, CTA \(1, 0, 0\): waits took more than 2", text)
    assert re.search(r"blocked on the flag of another part of 'work' @ hang_kernels\.py:\d+ at .*\n.*not in a wait", text)
    assert "mend:   hand every part over with numpipe.combine" in text
    image = ALL[NAMED_HANG].compiled(*given(NAMED_HANG)).image
    place = next(number for number, name in enumerate(image.places) if "named barrier 3 " in name)
    error = failure(image, [Record(0, (0, 0, 0), warp, place, 256, 4, NAMED) for warp in range(4)], True)
    assert isinstance(error, PipelineDeadlock) and error.report is not None
    assert re.search(r"blocked on named barrier 3 \(the turn 'store' of compute warpgroup 0\) @ hang_kernels\.py:\d+: 128 of 256 "
                     r"threads have come at hang_kernels\.py:\d+", str(error))
    assert "through the blocks of a turn equally often" in error.report.text


def test_what_a_warpgroup_waits_for_is_an_mbarrier_before_it_is_its_own_other_warps() -> None:
    built = ALL["a_slot_is_not_released"].compiled(*given("a_slot_is_not_released"))
    [plan] = built.unit.rings.values()
    place = next(number for number, name in enumerate(built.image.places) if "named barrier 1 " in name)
    found = [Record(0, (0, 0, 0), 0, place, 128, 1, NAMED), Record(0, (0, 0, 0), 1, plan.barrier_offset("ready", 0) + 8, 1)]
    assert re.search(r"warpgroup 0 \(compute\): blocked on ready\[1\] of x", str(failure(built.image, found, True)))


# ---- what no wait can give up: the host tells
class Stuck:
    """A driver in which a kernel never ends; `ticks`: how often its control block says that a wait has passed."""

    def __init__(self, ticks: int) -> None:
        self.ticks, self.asked = ticks, 0

    def reached(self, event: object, device: int) -> bool:
        return event == "ended"

    def peek(self, address: int, nbytes: int, device: int) -> bytes:
        self.asked += 1
        return min(self.asked, self.ticks).to_bytes(8, "little")


@numpipe.kernel(num_compute_wgs=3, warp_specialized=False, compiler_params=CompilerParams(debug=True))  # 168 registers a lane
def more_registers_than_there_are(x, y):
    numpipe.set_max_registers(256, "increase")


def test_waits_that_were_given_up_are_told_also_where_the_kernel_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """As soon as their records are there: not behind the time after which the host gives a silent kernel up."""
    image = ALL["a_part_that_nobody_hands_over"].compiled(*given("a_part_that_nobody_hands_over")).image
    place = next(number for number, name in enumerate(image.places) if "flag" in name)
    record = struct.pack("<II3IIIiQ24x", FLAG, 0, 1, 0, 0, 0, place, 0, 0)
    guard = Watch()
    guard.kernels = [Watched(image, 0, {0: 4096}, {0: "running"})]
    guard.memory = ctypes.create_string_buffer(record, CAPACITY * RECORD_BYTES)
    monkeypatch.setattr(driver, "_opened", Stuck(ticks=1000))
    monkeypatch.setattr("numpipe.launch.watch._PATIENCE", 0.1)
    begin = time.monotonic()
    with pytest.raises(PipelineDeadlock, match="blocked on the flag of another part of 'work'") as caught:
        guard.await_end(image, 0)
    assert time.monotonic() - begin < 5 and "it has not ended since: restart the process" in str(caught.value)


def test_a_wait_for_registers_is_told_by_the_host_with_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    image = more_registers_than_there_are.compiled(*given("nobody_arrives")).image
    guard = Watch()
    guard.kernels = [Watched(image, 0, {0: 4096}, {0: "running"})]
    fake = Stuck(ticks=3)
    monkeypatch.setattr(driver, "_opened", fake)
    monkeypatch.setenv("NUMPIPE_DEBUG_TIMEOUT", "0.05")
    with pytest.raises(PipelineDeadlock, match=r"test_hangs\.py:\d+: kernel more_registers_than_there_are: it has not ended, and "
                       r"for \d+ s .* it waits for registers \(setmaxnreg.inc\) @ test_hangs\.py:\d+, or is in a loop"):
        guard.await_end(image, 0)
    assert fake.asked >= 3
    guard.kernels[0].events[0] = "ended"
    guard.await_end(image, 0)
