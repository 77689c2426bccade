"""Each hang of `hang_kernels`: the simulator reports it, and a kernel compiled with debug=True has
no unbounded wait."""

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
from numpipe.launch.debug_reports import Watch, Watched, failure
from numpipe.plan.wait_records import CAPACITY, FLAG, FLAG_PLACE, RECORD_BYTES, Record
from tests.kernels.hang_kernels import HANGS, MORE, TWELVE, given

ALL = {**HANGS, **MORE}
OF_EACH_KIND = {kind: name for name, (kind, _, _) in reversed(TWELVE.items())}.values()
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


TEST = re.compile(r"mbarrier\.(try|test)_wait|ld\.acquire\.gpu\.global\.b32")


def unbounded(ptx: str) -> list[str]:
    """Return the tests of mbarriers and flags that a statement repeats without a bound.

    `tests.compile.test_bounded` tests the bounded repetitions of debug=True.
    """
    return [
        line
        for line in ptx.splitlines()
        if TEST.search(line) and re.search(r"bra (WAIT|NEXT);", line)
    ]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name",
    [
        name if name in OF_EACH_KIND else pytest.param(name, marks=pytest.mark.soak)
        for name in TWELVE
    ],
)
def test_with_debug_each_wait_has_a_bound_and_without_it_none(name: str) -> None:
    kernel = ALL[name]
    bounded = kernel.compiled(*given(name)).ptx
    assert TEST.search(bounded) and "activemask" in bounded and not unbounded(bounded)
    plain = numpipe.Kernel(
        kernel.function, dataclasses.replace(kernel.options, compiler_params=CompilerParams())
    )
    free = plain.compiled(*given(name)).ptx
    assert len(unbounded(free)) == len(TEST.findall(free)) > 0 and "%globaltimer" not in free


def test_records_of_flags_name_them_and_their_lines() -> None:
    image = (
        ALL["a_part_that_nobody_hands_over"].compiled(*given("a_part_that_nobody_hands_over")).image
    )
    place = FLAG_PLACE
    assert "flag" in image.places[place]
    text = str(
        failure(image, [Record(0, (1, 0, 0), warp, place, 0, 0, FLAG) for warp in range(4)], True)
    )
    assert re.match(
        r"hang_kernels\.py:\d+: kernel a_part_that_nobody_hands_over, CTA \(1, 0, 0\): waits took "
        r"more than 2",
        text,
    )
    assert re.search(
        r"blocked on the flag of another part of 'work' @ hang_kernels\.py:\d+ at .*\n.*not in a "
        r"wait",
        text,
    )
    assert "fix:    hand every part over with numpipe.combine" in text


# ---- a wait that no kernel can give up: the host reports it
class Stuck:
    """A driver in which a kernel never ends.

    `ticks` is how often its control block reports that a wait has passed.
    """

    def __init__(self, ticks: int) -> None:
        self.ticks, self.asked = ticks, 0

    def reached(self, event: object, device: int) -> bool:
        return event == "ended"

    def peek(self, address: int, nbytes: int, device: int) -> bytes:
        self.asked += 1
        return min(self.asked, self.ticks).to_bytes(8, "little")


# 168 registers per lane
@numpipe.kernel(
    num_compute_wgs=3, warp_specialized=False, compiler_params=CompilerParams(debug=True)
)
def more_registers_than_there_are(x, y):
    numpipe.set_max_registers(256, "increase")


def test_abandoned_waits_are_reported_even_if_the_kernel_does_not_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As soon as their records exist, before the time after which the host gives up a silent
    kernel."""
    image = (
        ALL["a_part_that_nobody_hands_over"].compiled(*given("a_part_that_nobody_hands_over")).image
    )
    place = next(number for number, name in enumerate(image.places) if "flag" in name)
    record = struct.pack("<II3IIIiQ24x", FLAG, 0, 1, 0, 0, 0, place, 0, 0)
    guard = Watch()
    guard.kernels = [Watched(image, 0, 0, 4096, "running")]
    guard.memory = ctypes.create_string_buffer(record, CAPACITY * RECORD_BYTES)
    monkeypatch.setattr(driver, "_opened", Stuck(ticks=1000))
    monkeypatch.setattr("numpipe.launch.debug_reports._PATIENCE", 0.1)
    begin = time.monotonic()
    with pytest.raises(
        PipelineDeadlock, match="blocked on the flag of another part of 'work'"
    ) as caught:
        guard.await_end(image, 0)
    assert (
        time.monotonic() - begin < 5
        and "the kernel still has not ended: restart the process" in str(caught.value)
    )


UNBOUNDED = {
    "registers": (
        more_registers_than_there_are,
        r"registers \(setmaxnreg.inc\) @ test_hangs\.py:\d+",
        "register-budget",
    ),
    "named barriers": (
        ALL[NAMED_HANG],
        r"others at a named barrier @ hang_kernels\.py:\d+",
        "named-barrier-mismatch",
    ),
    "neither": (HANGS["one_of_two_arrives"], "other warpgroups at a named barrier", "livelock"),
}


@pytest.mark.parametrize("what", UNBOUNDED)
def test_the_host_reports_an_unbounded_wait_with_its_line(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel, name, hazard = UNBOUNDED[what]
    image = kernel.compiled(*given("nobody_arrives")).image
    guard = Watch()
    guard.kernels = [Watched(image, 0, 0, 4096, "running")]
    fake = Stuck(ticks=3)
    monkeypatch.setattr(driver, "_opened", fake)
    monkeypatch.setenv("NUMPIPE_DEBUG_TIMEOUT", "0.05")
    with pytest.raises(
        PipelineDeadlock,
        match=rf"kernel {kernel.name}: it has not ended, and for \d+ s .* it waits for {name}, "
        r"or is in a loop",
    ) as caught:
        guard.await_end(image, 0)
    assert caught.value.report is not None and caught.value.report.hazard == hazard
    if "@" in name:
        assert re.match(rf"{name.split('@ ')[1]}: kernel", str(caught.value))
    assert fake.asked >= 3
    guard.kernels[0].event = "ended"
    guard.await_end(image, 0)
