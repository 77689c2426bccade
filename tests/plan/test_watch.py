"""CompilerParams(debug=True) and (jitter=seed) without a GPU: what is compiled in, and how records
are decoded."""

from __future__ import annotations

import functools
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import ArrayType, CompilerParams, SpecError
from numpipe.launch.debug_reports import failure, limit, report_of
from numpipe.plan.wait_records import OUTSIDE, RECORD_BYTES, SHARED, Record, control, records
from tests.code_digests import plain
from tests.kernels.hang_kernels import HANGS, MORE, arrays
from tests.plan.test_hangs import ALL, TEST, unbounded

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))


def example(name: str) -> tuple[Any, tuple[ArrayType, ...]]:
    """Return a shipped kernel and its arguments."""
    from importlib import import_module

    a = ArrayType((1024, 1024), np.dtype(np.float16))
    return {
        "gemm": (import_module("gemm").matmul, (a, a)),
        "gemm_single": (import_module("gemm_single").matmul, (a, a)),
        "copy_pipeline": (import_module("copy_pipeline").copy, (a,)),
    }[name]


@functools.cache
def built(name: str, **params: Any) -> Any:
    """Return an example compiled with these parameters."""
    kernel, args = example(name)
    return numpipe.Kernel(
        kernel.function, replace(kernel.options, compiler_params=CompilerParams(**params))
    ).compiled(*args)


# ---- what is compiled in -------------------------------------------------------------------------
@pytest.mark.variants(1)
@pytest.mark.parametrize("name", ["gemm", "gemm_single", "copy_pipeline"])
def test_default_builds_hold_nothing_of_either(name: str) -> None:
    kernel, args = example(name)
    assert not re.search(
        "np_watch|nanosleep|globaltimer|trap;|activemask", kernel.inspect("ptx", *args)
    )


@pytest.mark.variants(1)
@pytest.mark.parametrize("name", ["gemm_single", "copy_pipeline"])
def test_debug_bounds_every_wait_and_jitter_precedes_every_transition(name: str) -> None:
    debug, jitter, without = built(name, debug=True), built(name, jitter=3), built(name)
    assert debug.image.resources.clean and jitter.image.resources.clean
    ptx = debug.ptx
    assert ptx.count("np_watch[") == 1 and "WAIT:" not in ptx and "WAIT:" in without.ptx
    assert TEST.search(ptx) and not unbounded(ptx) and unbounded(without.ptx)
    ptx = jitter.ptx
    statements = [
        line
        for line in ptx.splitlines()
        if re.search(
            r"mbarrier\.(try_wait|arrive)|cp\.async\.bulk\.(tensor|commit|wait)|bar\.sync", line
        )
    ]
    assert statements and all("nanosleep" in line for line in statements) and "np_watch" not in ptx
    if name == "copy_pipeline":
        other = built(name, jitter=4).ptx
        assert plain(ptx) != plain(other) and plain(re.sub(r"drawn, \d+;", "", ptx)) == plain(
            re.sub(r"drawn, \d+;", "", other)
        )


@pytest.mark.thorough
def test_a_build_is_the_same_after_others_with_debug_or_jitter() -> None:
    """Helpers that Numba has compiled are reused by later kernels, but not by those with other
    options."""
    first = plain(built("copy_pipeline").ptx)
    built("copy_pipeline", debug=True), built("copy_pipeline", jitter=5)
    kernel, args = example("copy_pipeline")
    again = numpipe.Kernel(
        kernel.function, replace(kernel.options, compiler_params=CompilerParams())
    )
    assert plain(again.compiled(*args).ptx) == first


COUNTED = re.compile(r"mbarrier\.arrive|cp(\.reduce)?\.async\.bulk\.tensor|st\.async")
"""what mbarriers count, and outgoing copies"""


def statements(ptx: str) -> list[str]:
    return [line.strip() for line in ptx.splitlines() if not line.strip().startswith("//")]


@pytest.mark.parametrize("name", ["gemm_single", "copy_pipeline"])
def test_after_a_wait_that_timed_out_nothing_is_done_that_an_mbarrier_counts(name: str) -> None:
    """On hardware an arrival that a phase does not expect is a trap, and the context is lost."""
    lines = statements(built(name, debug=True).ptx)
    counted = [(number, line) for number, line in enumerate(lines) if COUNTED.search(line)]
    asked = [line for _, line in counted if "@own mbarrier.arrive.shared::cta.b64 %rd" in line]
    gated = [(number, line) for number, line in counted if line not in asked]
    assert len(asked) == sum("activemask" in line for line in lines) and len(gated) >= 3
    for number, line in gated:
        gate, does = line.split("@goes_on ")
        assert COUNTED.match(does) and len(COUNTED.findall(line)) == 1
        where = re.search(r"setp\.eq\.u32 goes_on, (%r\d+), 0;", gate)
        assert where and f"ld.volatile.shared.u32 {where[1]}, [" in "\n".join(
            lines[max(0, number - 12) : number]
        )
    assert any(
        "setp.eq.u32 chosen, " in line and "and.pred goes_on, goes_on, chosen;" in line
        for _, line in gated
    )
    for line in asked:  # once for each mbarrier
        assert line.index("@np_bounded atom.shared.or.b32") < line.index(
            "setp.eq.and.u32 own, word, 0, np_bounded;"
        )


def test_no_mbarrier_of_a_cluster_is_asked_for_its_state() -> None:
    """Other CTAs of the cluster may be about to arrive, or to copy."""

    def asked(name: str) -> set[str]:
        """Return what is written to the bits of the mbarriers that have been queried."""
        ptx = ALL[name].compiled(*arrays()).ptx
        [value] = {
            found
            for found in re.findall(
                r"np_bounded; st\.volatile\.shared\.u32 \[%r\d+\], (%r\d+); }", ptx
            )
            if re.search(rf"mov\.u32\s+{found}, (0|-1);", ptx)
        }
        return set(re.findall(rf"mov\.u32\s+{value}, (\S+);", ptx))

    assert asked("a_cta_that_does_not_tell_its_peer") == {"-1"} and asked("nobody_arrives") == {"0"}


@pytest.mark.parametrize(
    "statement", ["bar.sync", "cp.async.bulk.commit_group", "cp.async.bulk.wait_group"]
)
def test_all_lanes_do_what_others_wait_for(statement: str) -> None:
    """All lanes do it, so that the kernel ends."""
    lines = [
        line for line in statements(built("copy_pipeline", debug=True).ptx) if statement in line
    ]
    assert lines and not any("@" in line for line in lines)


@pytest.mark.thorough
def test_a_work_index_is_stored_unless_a_wait_has_timed_out() -> None:
    kernel = MORE["a_tile_of_a_counter_that_is_not_left"]
    stores = [
        line
        for line in statements(kernel.compiled(*arrays()).ptx)
        if "np_scheduler; " in line and "st." in line
    ]
    assert stores and all("@goes_on st.volatile.shared.b32" in line for line in stores)


@pytest.mark.variants(1)
@pytest.mark.parametrize("name", ["polling_for_ever", "a_warpgroup_that_stops_early"])
def test_a_test_is_bounded_too(name: str) -> None:
    ptx = HANGS[name].compiled(*arrays()).ptx
    assert ("mbarrier.test_wait" in ptx) == (name == "polling_for_ever") and not unbounded(ptx)


@pytest.mark.parametrize(
    "params, legal",
    [
        ({"debug": 1}, "debug must be True or False, got 1"),
        ({"jitter": 0.5}, "jitter must be None or an int, a seed, got 0.5"),
        ({"jitter": True}, "jitter must be None or an int, a seed, got True"),
    ],
)
def test_options_are_checked(params: dict[str, Any], legal: str) -> None:
    with pytest.raises(SpecError, match=re.escape(legal)):
        CompilerParams(**params)


# ---- decoding of records --------------------------------------------------------------------
def test_a_control_block_and_records_have_the_kernels_layout() -> None:
    block = np.frombuffer(control(0x7F00_0000_1000, 2_000_000_000, 5), np.uint32)
    assert (
        block.tolist()[:4] == [0x1000, 0x7F00, 2_000_000_000, 0]
        and block[9] == 5
        and block.nbytes == 64
    )
    memory = np.zeros((3, RECORD_BYTES // 4), np.uint32)
    memory[1, :10] = 1, 5, 7, 8, 9, 128 + 64, 40, 3, 0x00000001, 0x7FFFEBFE
    memory[2, 1:6] = 5, 7, 8, 9, 0  # begun, not complete
    [record] = records(memory.tobytes())
    assert record == Record(5, (7, 8, 9), 6, 40, 3, 0x7FFFEBFE00000001) and record.warpgroup == 1


@pytest.mark.parametrize(
    "state, parity, pending, missing",
    [
        (0x7FFFF80000000001, 0, 1, 0),
        (0x7FFFD80000000001, 0, 5, 0),
        (0x7FFFE80000000001, 0, 3, 0),
        (0xFFFFF80000000001, 1, 1, 0),
        (0x7FFFEBFE00000001, 0, 3, 4096),
        (0x7FFE0BF800000001, 0, 63, 16384),
        (0x7FFFFBFF00000001, 0, 1, 2048),
        (0x7FFFFBF200000001, 0, 1, 28672),
        (0xFFFFE80000000001, 1, 3, 0),
    ],
)
def test_states_that_an_h200_returned(state: int, parity: int, pending: int, missing: int) -> None:
    """Of mbarriers with different arrivals and bytes pending, 64 and 3072 of 4096 bytes among
    them."""
    record = Record(0, (0, 0, 0), 0, 0, 0, state)
    assert (record.parity, record.pending, record.missing_bytes) == (parity, pending, missing)


def state(parity: int, pending: int) -> int:
    return parity << 63 | (-pending & 0xFFFFF) << 43 | 1


def test_records_become_the_report_of_the_simulator() -> None:
    kernel = HANGS["a_slot_is_not_released"]
    built = kernel.compiled(*arrays())
    [plan] = built.unit.rings.values()
    ready, consumed = plan.barrier_offset("ready", 0) + 8, plan.barrier_offset("consumed", 0) + 8
    found = [Record(0, (1, 0, 0), warp, ready, 1, state(1, 1)) for warp in (3, 1, 0, 2)]
    found += [
        Record(0, (1, 0, 0), 4, consumed, 0, state(0, 4)),
        Record(0, (0, 0, 0), 2, ready, 1, state(1, 1)),
    ]
    report = report_of(built.image, found)
    assert [(p.warpgroup, p.role, p.ring, p.slot, p.step, p.phase) for p in report.waiting] == [
        (0, "compute", plan.name, 1, 3, 1),
        (1, "memory", plan.name, 1, 3, 0),
    ]
    assert [(b.kind, b.phase, b.pending, b.count) for b in report.barriers] == [
        ("ready", 1, 1, 1),
        ("consumed", 0, 4, 4),
    ]
    assert report.hazard == "too-few-arrivals" and report.kernel == kernel.name
    raised = failure(built.image, found, True)
    error = str(raised)
    assert raised.report is not None and raised.report.text == error
    assert re.match(
        r"hang_kernels\.py:\d+: kernel a_slot_is_not_released, CTA \(1, 0, 0\) and 1 more: waits "
        r"took more than 2 s \(NUMPIPE_DEBUG_TIMEOUT\) and timed out",
        error,
    )
    assert "has not released slot 1" in error and "restart the process" not in error
    assert "restart the process" in str(failure(built.image, found, False))


def test_indices_and_parts_outside_are_reported_with_their_values() -> None:
    places = "'x[…]'", "tile[…]: ds(start, 64) of a tile (128, 128) in shared memory: start"
    image = replace(HANGS["a_slot_is_not_released"].compiled(*arrays()).image, places=places)
    index = Record(0, (1, 0, 0), 2, 0, 7, 1 << 32 | 5, OUTSIDE)
    part = Record(0, (0, 2, 0), 2, 1, -1, 1 << 32 | 64, SHARED)
    for found, says in (
        (
            [index, index, part],
            "CTA (1, 0, 0): 'x[…]': index 7 along dimension 1 is outside the array's 5, and 1 "
            "more; the results of the kernel are wrong: use indices in 0…4, or mode=",
        ),
        (
            [part, index],
            f"CTA (0, 2, 0): {places[1]} -1 along dimension 1 is outside 0…64; the results of the "
            "kernel are wrong: use one in 0…64",
        ),
    ):
        error = failure(image, found, True)
        assert (
            says in str(error)
            and error.report is not None
            and error.report.hazard == "out-of-bounds"
        )


def test_a_barrier_that_was_not_queried_is_reported_as_unknown() -> None:
    """In a cluster, where others may still arrive."""
    built = HANGS["a_slot_is_not_released"].compiled(*arrays())
    [plan] = built.unit.rings.values()
    record = Record(0, (1, 0, 0), 0, plan.barrier_offset("ready", 0) + 8, 1)
    report = report_of(built.image, [record])
    assert not report.barriers[0].known
    assert "phase 1, its missing arrivals and bytes are not known" in report.text
    assert report_of(built.image, [replace(record, state=state(1, 1))]).barriers[0].known


def test_the_first_of_several_arrivals_recorded_what_the_phase_lacked() -> None:
    built = HANGS["one_of_two_arrives"].compiled(*arrays())
    [(address, count, name)] = built.unit.scratch_barriers()
    # the fourth arrival completed the phase
    seen = [(0, 2), (0, 4), (1, 8), (0, 1), (0, 3), (1, 7), (1, 6), (1, 5)]
    found = [Record(0, (0, 0, 0), warp, address, 0, state(*was)) for warp, was in enumerate(seen)]
    [barrier] = report_of(built.image, found).barriers
    assert (barrier.name, barrier.pending, barrier.count, barrier.waiters) == (
        name,
        4,
        count,
        (0, 1),
    )


@pytest.mark.parametrize("given", ["0", "-1", "soon", "nan"])
def test_the_timeout_is_a_number_of_seconds(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMPIPE_DEBUG_TIMEOUT", given)
    with pytest.raises(SpecError, match=r"NUMPIPE_DEBUG_TIMEOUT=.* expected a number of seconds"):
        limit()


def test_without_a_failure_nothing_happens() -> None:
    numpipe.last_failure()
