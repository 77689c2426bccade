"""Traces: reading them from files, where time was spent, and whether a GPU's run was a legal
schedule."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gemm_single
import numpy as np
import pytest
from copy_pipeline import Config as CopyConfig
from copy_pipeline import copy

import gemm
import gemm_body
import numpipe
from numpipe import BlockSpec, PipelineRace, SimulationError, SpecError, Trace, ds
from numpipe.hazards import HAZARDS
from numpipe.traces.chrome import trace_events
from numpipe.traces.events import Event
from numpipe.traces.spans import MEANS, spans
from tests.kernels import output_kernels
from tests.kernels.kernels_for_tests import Config, operands
from tests.kernels.kernels_for_tests import gemm as tiled
from tests.kernels.output_kernels import integers
from tests.kernels.profile_buffers import as_recorded, traced
from tests.traces.legal import check_legal
from tests.traces.test_trace_files import check_rules

Edit = Callable[[Event], "Event | None"]
A, B = operands(256, 128, 256)
SMALL = Config(tm=128, tn=64, tk=64, slots=2)


@pytest.fixture(autouse=True, scope="module")
def simulated_only() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NUMPIPE_COMPILE_CHECK", "0")
        yield


@numpipe.kernel(grid=numpipe.persistent(2), num_compute_wgs=2, wg_axis="wg")
def regions(a, b, c):
    """Compute a product with regions around and inside of its tiles.

    b has a ring of its own, whose block never changes.
    """
    wg = numpipe.axis_index("wg")
    with numpipe.region("all"):
        for m, n in numpipe.tiles(a.shape[0] // 128, 2):
            with numpipe.region("products"):
                acc = numpipe.zeros((64, 64), np.float32)
                pipe = numpipe.pipeline(
                    grid=(a.shape[1] // 64,),
                    max_concurrent_steps=2,
                    in_specs=(
                        BlockSpec((128, 64), lambda k: (m, k)),
                        BlockSpec((64, 64), lambda k: (n, 0)),
                    ),
                )
                for (k,), (a_tile, b_tile) in pipe(a, b):
                    with numpipe.region("product"):
                        acc = numpipe.wgmma(acc, a_tile.at[ds(wg * 64, 64), :], b_tile.T)
            c[ds(m * 128 + wg * 64, 64), ds(n * 64, 64)] = acc.astype(c.dtype)


def run(name: str, seed: int | None = None) -> tuple[Trace, Any]:
    """Return (trace, Unit) of a kernel."""
    small, ints = operands(256, 128, 128), integers((256, 128))
    match name:
        case "gemm":
            return traced(tiled(ctas=2), A, B, cfg=SMALL, seed=seed)
        case "delay":
            return traced(tiled(ctas=2), A, B, cfg=dataclasses.replace(SMALL, delay=1), seed=seed)
        case "regions":
            return traced(regions, A, B, np.zeros((256, 128), np.float16), seed=seed)
        case "body":
            return traced(gemm_body.matmul, *small, cfg=gemm.Config(tn=128, slots=2), seed=seed)
        case "single":
            return traced(
                gemm_single.matmul, *small, cfg=gemm_single.Config(tm=64, tn=64, slots=2), seed=seed
            )
        case "copy":
            return traced(copy, np.ones((256, 256), np.float16), cfg=CopyConfig(), seed=seed)
        case "outputs":
            return traced(output_kernels.copy(), ints, np.zeros_like(ints), seed=seed)
        case "sums":
            out = np.zeros((256, 64), np.float16)
            return traced(
                output_kernels.sums,
                ints,
                integers((256, 64)),
                np.zeros((128, 64), np.float16),
                out,
                seed=seed,
            )
        case "shared slots":
            return traced(
                output_kernels.chained,
                integers((128, 128)),
                integers((128, 256)),
                np.zeros((128, 128), np.float16),
                np.zeros((128, 256), np.float16),
                seed=seed,
            )
    raise AssertionError(name)


KERNELS = ["gemm", "delay", "regions", "body", "single", "copy", "outputs", "shared slots"]
once = functools.cache(run)


# ---- legal schedules
@pytest.mark.variants(4)
@pytest.mark.parametrize("name", KERNELS)
def test_what_the_simulated_sm_did_is_legal(name: str) -> None:
    trace, _ = once(name)
    check_legal(trace, trace)
    other, _ = run(name, seed=3)
    check_legal(other, trace)


@pytest.mark.parametrize("name", KERNELS)
def test_what_a_gpu_recorded_of_it_is_legal_and_the_same(name: str) -> None:
    trace, unit = once(name)
    recorded = as_recorded(trace, unit, (len(trace.ctas), 1, 1))
    assert recorded.clock == "ns" and recorded.ctas == trace.ctas and recorded.lost == 0
    check_legal(recorded, trace)


def test_events_that_were_lost_are_not_missed() -> None:
    trace, unit = once("gemm")
    for room in (3, 17, 25):
        recorded = as_recorded(trace, unit, (len(trace.ctas), 1, 1), room)
        assert recorded.lost > 0
        check_legal(recorded, trace)
    recorded.events = [
        dataclasses.replace(e, details={}) if e.kind == "end" else e for e in recorded.events
    ]
    with pytest.raises(SimulationError):
        check_legal(recorded, trace)


def test_the_warpgroups_of_a_cta_share_a_clock() -> None:
    """The global timer could not show it: it stands still for a microsecond at a time."""
    trace, unit = once("gemm")
    recorded = as_recorded(trace, unit, (2, 1, 1), tick=1000)
    times = {
        (e.cta, e.warpgroup, e.note, e.details["step"]): e.start
        for e in trace.events
        if e.note == "release"
    }
    scale = [
        (e.start, times[e.cta, e.warpgroup, e.note, e.details["step"]])
        for e in recorded.events
        if e.note == "release" and e.cta == (0, 0, 0)
    ]
    (early, first), (late, last) = min(scale), max(scale)
    for ours, theirs in scale:
        assert ours == pytest.approx(
            early + (theirs - first) * (late - early) / (last - first), abs=1.5
        )


# ---- illegal schedules
def edited(trace: Trace, edit: Edit) -> Trace:
    """Return a copy with some events changed, or left out (None)."""
    made = Trace(trace.clock)
    made.rings = list(trace.rings)
    made.events = [changed for event in trace.events if (changed := edit(event)) is not None]
    return made


def of(event: Event, note: str, step: int, warpgroup: int = 0) -> bool:
    return (event.cta, event.note, event.details.get("step"), event.warpgroup) == (
        (0, 0, 0),
        note,
        step,
        warpgroup,
    )


def at(time: int, which: Callable[[Event], bool]) -> Edit:
    return lambda event: dataclasses.replace(event, start=time, end=time) if which(event) else event


def without(which: Callable[[Event], bool]) -> Edit:
    return lambda event: None if which(event) else event


def said(which: Callable[[Event], bool], **details: Any) -> Edit:
    return lambda event: (
        dataclasses.replace(event, details={**event.details, **details}) if which(event) else event
    )


def time_of(trace: Trace, note: str, step: int, warpgroup: int = 0) -> int:
    return next(e.start for e in trace.events if of(e, note, step, warpgroup))


def too_early_issue(trace: Trace) -> Trace:
    """Issue step 4 too early, into the slot of step 2.

    Earlier events of the memory role move too, so that its own order is kept.
    """
    late = time_of(trace, "fill", 5, 2)
    early = time_of(trace, "release", 1, 0) + 10
    return edited(
        trace,
        lambda e: (
            dataclasses.replace(e, start=min(e.start, early), end=min(e.end, early))
            if e.cta == (0, 0, 0)
            and e.warpgroup == 2
            and e.kind in ("note", "wait", "issue")
            and e.end <= late
            else e
        ),
    )


def swapped(trace: Trace) -> Trace:
    """Compute step 3 before step 2."""
    return edited(
        trace,
        lambda e: (
            dataclasses.replace(
                e,
                details={
                    **e.details,
                    "step": 5 - e.details["step"],
                    "slot": (5 - e.details["step"]) % 2,
                },
            )
            if of(e, "compute", 2) or of(e, "compute", 3)
            else e
        ),
    )


def early_compute(trace: Trace) -> Trace:
    """Compute the first step before its copies were issued."""
    before = time_of(trace, "fill", 0, 2) - 1
    return edited(
        trace,
        lambda e: (
            dataclasses.replace(e, start=before, end=before)
            if e.cta == (0, 0, 0)
            and e.warpgroup == 0
            and e.end <= time_of(trace, "compute", 0)
            and e.kind in ("note", "wait", "registers")
            else e
        ),
    )


def released_first(trace: Trace) -> Trace:
    """Swap the release of step 1 and its compute."""
    made = edited(trace, lambda e: e)
    events = made.events
    first, second = (
        next(n for n, e in enumerate(events) if of(e, note, 1)) for note in ("compute", "release")
    )
    time = events[first].start
    events.insert(first, dataclasses.replace(events.pop(second), start=time, end=time))
    return made


def released_twice(trace: Trace) -> Trace:
    made = edited(trace, lambda e: e)
    where = next(n for n, e in enumerate(made.events) if of(e, "release", 1))
    made.events.insert(where, made.events[where])
    return made


BROKEN: dict[str, tuple[Callable[[Trace], Trace], type[SimulationError], str, str]] = {
    "a slot filled too early": (
        too_early_issue,
        PipelineRace,
        "refilled-while-read",
        r"warpgroup 2 \(memory\) of CTA \(0, 0, 0\): issue of step \d at \d+ cycles, but "
        r"warpgroup \d \(compute\): release of step \d \(slot \d\) of a, b @ .*:\d+ at \d+ "
        r"cycles: a slot may be filled again only after all its readers",
    ),
    "a warpgroup that does not release": (
        lambda t: edited(t, without(lambda e: e.note == "release" and e.warpgroup == 1)),
        PipelineRace,
        "refilled-while-read",
        r"issue of step 2 at \d+ cycles, but warpgroup 1 .compute.: compute of step 0 .*: the "
        r"slot was not released by ",
    ),
    "a release that is missing": (
        lambda t: edited(t, without(lambda e: of(e, "release", 2, 1))),
        SimulationError,
        "too-few-arrivals",
        "release of step 3 .*, but warpgroup 1 .compute.: release of step 1 .*: steps must be "
        "consecutive; the next step is 2",
    ),
    "the last release missing": (
        lambda t: edited(t, without(lambda e: of(e, "release", 7))),
        SimulationError,
        "too-few-arrivals",
        "compute of step 7 .* the warpgroup ends without releasing this step",
    ),
    "steps swapped": (
        swapped,
        SimulationError,
        "wrong-phase",
        "compute of step 3 .*, but warpgroup 0 .compute.: compute of step 1 .*: steps must be "
        "consecutive; the next step is 2",
    ),
    "tiles used before their copies": (
        early_compute,
        PipelineRace,
        "read-before-ready",
        r"compute of step 0 .* at \d+ cycles, but warpgroup 2 .memory.: issue .* at \d+ cycles: a "
        r"wait for the tiles must not end before",
    ),
    "a slot released before it is used": (
        released_first,
        PipelineRace,
        "read-after-release",
        "compute of step 1 .*, but warpgroup 0 .compute.: release of step 1 .*: a slot must not be "
        "used after its release",
    ),
    "a slot released twice": (
        released_twice,
        SimulationError,
        "too-many-arrivals",
        "release of step 1 .*, but warpgroup 0 .compute.: release of step 1 .*: steps must be "
        "consecutive; the next step is 2",
    ),
    "a step in a wrong slot": (
        lambda t: edited(t, said(lambda e: of(e, "wait", 3) or of(e, "compute", 3), slot=0)),
        SimulationError,
        "wrong-phase",
        r"compute of step 3 \(slot 0\) .*: step 3 of a ring of 2 slots must be in slot 1",
    ),
    "a slot released unused": (
        lambda t: edited(t, without(lambda e: of(e, "compute", 7))),
        PipelineRace,
        "read-after-release",
        "release of step 7 .*: a slot may be released only after its tiles have been waited for "
        "and used",
    ),
    "copies that nobody issued": (
        lambda t: edited(t, without(lambda e: e.cta == (0, 0, 0) and e.kind == "issue")),
        PipelineRace,
        "read-before-ready",
        "compute of step 0 .*: no warpgroup issues the copies of step 0",
    ),
    "copies that nobody waits for": (
        lambda t: edited(t, without(lambda e: of(e, "compute", 7) or of(e, "release", 7))),
        SimulationError,
        "exit-in-flight",
        "issue of step 7 .*: warpgroup 0 ends without waiting for step 7",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
@pytest.mark.parametrize("clock", ["simulated", "gpu"])
def test_a_broken_schedule_is_reported_with_both_events(case: str, clock: str) -> None:
    broken, error, hazard, message = BROKEN[case]
    trace, unit = once("gemm")
    made = broken(trace) if clock == "simulated" else as_recorded(broken(trace), unit, (2, 1, 1))
    if clock == "gpu":
        message = message.replace("cycles", "ns")
        # slots are computed, and a copy that is not issued is not recorded
        if case in ("a step in a wrong slot", "copies that nobody issued"):
            return
        message = re.sub(r"issue of step (\S+) at", r"issue of step \1 .*at", message)
    with pytest.raises(error, match=message) as caught:
        check_legal(made)
    report = caught.value.report
    assert report.hazard == hazard and hazard in HAZARDS and report.text == str(caught.value)
    assert report.now.cta == (0, 0, 0) and (report.before is None) == (
        ", but warpgroup" not in report.text
    )


def test_events_of_a_warpgroup_that_go_back_in_time_are_reported() -> None:
    trace, _ = once("gemm")
    with pytest.raises(
        SimulationError,
        match=r"compute of step 3 .* ends at 5 cycles, before wait .*, which precedes it",
    ):
        check_legal(edited(trace, at(5, lambda e: of(e, "compute", 3))))


def test_an_output_that_is_stored_before_all_have_written_it_is_reported() -> None:
    trace, _ = once("outputs")
    stored = time_of(trace, "store", 0)
    early = time_of(trace, "compute", 0, 1) - 5

    def edit(event: Event) -> Event:
        """Move warpgroup 0's store of the first block before warpgroup 1 begins to compute it.

        Earlier events of warpgroup 0 move too.
        """
        if event.warpgroup or event.end > stored or event.kind == "store":
            return event
        return dataclasses.replace(event, start=min(event.start, early), end=min(event.end, early))

    made = edited(trace, edit)
    with pytest.raises(
        PipelineRace,
        match=r"store of step 0 .*, but warpgroup 1 .compute.: compute of step 0 .* stored only "
        r"after all",
    ):
        check_legal(made)


# ---- comparison with the same kernel, simulated
def test_a_run_that_does_something_else_is_reported() -> None:
    trace, _ = once("gemm")
    longer, _ = traced(tiled(ctas=2), *operands(256, 128, 320), cfg=SMALL)
    with pytest.raises(
        SimulationError,
        match=r"warpgroup 0 of CTA \(0, 0, 0\): its event \d+ is tile begin 2 at \d+, but wait of "
        r"step 4 \(slot 0\) of a, b @ .* at \d+ in the simulated run: both runs must record",
    ):
        check_legal(trace, longer)
    skipped = edited(trace, without(lambda e: of(e, "wait", 7, 1)))
    check_legal(skipped)
    with pytest.raises(
        SimulationError,
        match=r"warpgroup 1 of CTA \(0, 0, 0\): its event \d+ is compute of step 7 .*, but "
        r"wait of step 7",
    ):
        check_legal(skipped, trace)
    elsewhere = edited(
        trace, lambda e: dataclasses.replace(e, cta=(9, *e.cta[1:])) if e.cta[0] else None
    )
    with pytest.raises(
        SimulationError,
        match=r"no CTA in common: \[\(9, 0, 0\)\], but the simulated run has \[\(0, 0, 0\), \(1, "
        r"0, 0\)\]",
    ):
        check_legal(elsewhere, trace)


# ---- files
@pytest.mark.parametrize("name", ["gemm", "regions", "single"])
@pytest.mark.parametrize("gpu", [False, True])
def test_a_saved_trace_is_read_again_without_loss_and_keeps_the_rules_of_the_format(
    name: str, gpu: bool, tmp_path: Path
) -> None:
    trace, unit = once(name)
    if gpu:
        trace = as_recorded(trace, unit, (len(trace.ctas), 1, 1), room=20)
        assert trace.lost
    trace.save(tmp_path / "run.json")
    check_rules(json.loads((tmp_path / "run.json").read_text(encoding="utf8")))
    again = Trace.load(tmp_path / "run.json")
    assert vars(again) == vars(trace)
    again.save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "run.json").read_bytes()


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    cases = {
        "old.json": '{"traceEvents": []}',
        "list.json": "[]",
        "broken.json": "{",
        "run.txt": "CTA",
        "run.html": "CTA",
    }
    for name, text in cases.items():
        (tmp_path / name).write_text(text, encoding="utf8")
    for name, message in (
        ("old.json", "has no member 'numpipe'"),
        ("list.json", "has no member"),
        ("broken.json", "is not JSON"),
        ("run.txt", "is a timeline"),
        ("run.html", "is a timeline"),
        ("none.json", "cannot be read: No such"),
    ):
        with pytest.raises(SpecError, match=f"{name}' {message}"):
            Trace.load(tmp_path / name)
    with pytest.raises(SpecError, match="ends in none of"):
        Trace.load(tmp_path / "run.csv")


# ---- where time was spent
def test_loads_by_lanes_are_spans_of_their_own_outside_of_computing() -> None:
    def event(start: int, end: int, kind: str, **details: Any) -> Event:
        return Event((0, 0, 0), 0, "compute", start, end, kind, details)

    trace = Trace()
    trace.events = [
        event(0, 40, "read", what="load from x"),
        event(40, 40, "note", event="compute", ring="r", slot=0, step=0),
        event(50, 60, "read", what="load from y"),
        event(80, 80, "note", event="release", ring="r", slot=0, step=0),
        event(80, 81, "read", what="load from z"),
        event(81, 100, "write", what="store to y"),
        event(100, 100, "end"),
    ]
    found = [(span.kind, span.start, span.end) for span in spans(trace.events)]
    assert found == [("load", 0, 40), ("compute", 40, 80), ("load", 80, 81), ("store", 81, 100)]
    assert "|LLLL####SS\n" in trace.timeline(10)
    assert "loading         41.0 %" in str(trace.summary())
    named = [each["name"] for each in trace_events(trace)["traceEvents"]]
    assert "read load from z" in named


def test_accesses_to_arrays_last_as_long_as_they_take() -> None:
    @numpipe.kernel(grid=1, warp_specialized=False)
    def copied(x, y):
        y[ds(0, 32), ds(0, 128)] = x[ds(0, 32), ds(0, 128)]

    trace = Trace()
    copied.simulate(np.ones((32, 128), np.float32), np.zeros((32, 128), np.float32), trace=trace)
    row = trace.summary()[0]
    assert row.spent["load"] == row.spent["store"] == row.total / 2


def test_spans_are_consecutive_and_add_up() -> None:
    trace, _ = once("regions")
    summary = trace.summary()
    assert [row.role for row in summary.rows] == ["compute", "compute", "memory"]
    for row in summary.rows:
        assert sum(row.spent.values()) == pytest.approx(row.total) and min(row.spent.values()) >= 0
        assert sum(row.fraction(kind) for kind in MEANS) == pytest.approx(1)
    own = [
        e
        for e in trace.events
        if e.cta == (0, 0, 0) and e.warpgroup == 0 and e.kind not in ("load", "store", "mma")
    ]
    found = spans(own)
    assert all(a.end == b.start for a, b in itertools.pairwise(found))


def test_a_summary_says_what_the_events_say() -> None:
    trace, _ = once("gemm")
    memory, compute = trace.summary(0)[2], trace.summary(0)[0]

    def blocked(warpgroup: int, kind: str, barrier: str = "") -> int:
        return sum(
            e.end - e.start
            for e in trace.of(kind, (0, 0, 0))
            if e.warpgroup == warpgroup and barrier in str(e.details)
        )

    assert (
        memory.spent["slot"] == blocked(2, "wait", "consumed") > 0
        and memory.spent["data"] == memory.spent["compute"] == 0
    )
    assert memory.spent["issue"] == blocked(2, "issue") > 0
    assert (
        compute.spent["data"] == blocked(0, "wait", "ready") > 0
        and compute.spent["slot"] == compute.spent["issue"] == 0
    )
    assert compute.spent["compute"] >= blocked(0, "drain") > 0
    assert compute.spent["store"] == blocked(0, "flush") + blocked(0, "write") > 0
    busy = sum(e.end - e.start for e in trace.of("mma", (0, 0, 0)))
    assert trace.summary(0).tensor_core_idle == pytest.approx(1 - busy / trace.summary(0).total)


def test_bubbles_lie_between_the_products_of_two_tiles() -> None:
    trace, _ = once("gemm")
    for row in trace.summary(1).rows[:2]:
        own = [e for e in trace.events if e.cta == (1, 0, 0) and e.warpgroup == row.warpgroup]
        last, first = (
            next(e.start for e in own if e.note == note and e.details["step"] == step)
            for note, step in (("release", 3), ("compute", 4))
        )
        assert (
            row.bubbles.count == 1
            and row.bubbles.longest == row.bubbles.time == row.bubbles.mean == first - last
        )
        assert (
            sum(row.bubbles.parts.values()) == row.bubbles.time and row.bubbles.parts["store"] > 0
        )
    assert trace.summary(1)[2].bubbles.count == 0, "the memory role computes nothing"


def test_a_summary_of_a_gpu_has_the_same_times_as_far_as_it_knows() -> None:
    trace, unit = once("regions")
    ours, theirs = as_recorded(trace, unit, (2, 1, 1), tick=1).summary(), trace.summary()
    assert ours.tensor_core_idle is None and ours.clock == "ns"
    for mine, simulated in zip(ours.rows, theirs.rows, strict=True):
        assert (
            mine.regions.keys()
            == simulated.regions.keys()
            == {"all", "products", *(["product"] * (mine.role == "compute"))}
        )
        for kind in ("data", "slot", "issue"):
            assert mine.spent[kind] == pytest.approx(simulated.spent[kind], rel=0.1, abs=20), kind


def test_a_summary_prints_as_a_table_and_is_a_dict() -> None:
    trace, unit = once("regions")
    summary = trace.summary(0)
    head, names, *_ = str(summary).splitlines()
    assert re.fullmatch(r"CTA \(0, 0, 0\): \d+ cycles", head)
    assert names.split() == ["wg0", "compute", "wg1", "compute", "wg2", "memory"]
    for text in (
        "waiting for data",
        "waiting for free slots",
        "in region product ",
        "bubble between tiles",
        "tensor core idle: ",
    ):
        assert text in str(summary), text
    assert str(trace.summary()).startswith("mean of 2 CTAs: ")
    lost = as_recorded(trace, unit, (2, 1, 1), room=20).summary()
    assert str(lost).endswith(f"{lost.lost} events were lost: raise profile_space")
    data = json.loads(json.dumps(summary.as_dict()))
    assert data["clock"] == "cycles" and data["ctas"] == [[0, 0, 0]]
    row = data["rows"][0]
    assert (
        sum(row["fractions"].values()) == pytest.approx(1)
        and row["bubbles"]["mean"] == summary[0].bubbles.mean
    )
    assert str(Trace().summary()) == "no events" and Trace().summary().as_dict()["rows"] == []
    with pytest.raises(KeyError):
        summary[7]


def test_a_run_that_failed_is_summed_up_and_checked_as_far_as_it_came(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        numpipe.language.pipeline.ring.release, "function", lambda ring, part, step: None
    )
    trace = Trace()
    with pytest.raises(numpipe.PipelineDeadlock):
        tiled(ctas=2).simulate(A, B, cfg=SMALL, trace=trace)
    assert trace.summary()[2].spent["slot"] > 0
    check_legal(trace)
