"""Trace files: the rules of the Trace Event Format, the contents of events, and files of runs that
fail."""

from __future__ import annotations

import json
import os
import re
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import BlockSpec, PipelineDeadlock, PipelineRace, SimulationError, SpecError, Trace, ds
from numpipe import __main__ as command
from numpipe.language.pipeline import ring
from tests.kernels.kernels_for_tests import SMALL, gemm, operands

A, B = operands(256, 128, 256)
RING = re.compile(r"a, b @ kernels_for_tests\.py:\d+")


def run(folder: Path, **options: Any) -> dict[str, Any]:
    """Return the trace file of a GEMM of 4 tiles with 4 steps each, by 2 CTAs and 2 slots."""
    file = folder / "run.json"
    gemm(ctas=2).simulate(A, B, cfg=SMALL, trace=file, **options)
    return json.loads(file.read_text(encoding="utf8"))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run(tmp_path_factory.mktemp("trace"))


def threads(trace: dict[str, Any]) -> dict[tuple[int, str], list[dict[str, Any]]]:
    """Return the complete events of each thread, by process and thread name."""
    names = {
        (e["pid"], e["tid"]): e["args"]["name"]
        for e in trace["traceEvents"]
        if e["name"] == "thread_name"
    }
    found: dict[tuple[int, str], list[dict[str, Any]]] = defaultdict(list)
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            found[event["pid"], names[event["pid"], event["tid"]]].append(event)
    return found


def check_rules(trace: dict[str, Any]) -> None:
    """Check the format's rules: fields and their types, names of processes and threads, nested
    events."""
    assert isinstance(trace["traceEvents"], list) and trace["displayTimeUnit"] in ("ms", "ns")
    named: dict[str, set[Any]] = {"process": set(), "thread": set()}

    def time(value: float) -> int:
        """Return whole cycles, or whole nanoseconds from the format's microseconds."""
        assert type(value) in (int, float)
        scaled = value * (1000 if trace["displayTimeUnit"] == "ns" else 1)
        assert abs(scaled - round(scaled)) < 1e-5
        return round(scaled)

    for event in trace["traceEvents"]:
        assert (
            isinstance(event["name"], str)
            and event["name"]
            and isinstance(event.get("args", {}), dict)
        )
        assert type(event["pid"]) is int and type(event["tid"]) is int
        match event["ph"]:
            case "M":
                what, _, key = event["name"].partition("_")
                assert key in ("name", "sort_index") and type(event["args"][key]) in (str, int)
                if key == "name":
                    named[what].add(
                        event["pid"] if what == "process" else (event["pid"], event["tid"])
                    )
            case "X":
                assert (
                    isinstance(event["cat"], str)
                    and time(event["ts"]) >= 0
                    and time(event["dur"]) >= 0
                )
            case "i":
                assert event["s"] in ("g", "p", "t") and time(event["ts"]) >= 0
            case other:
                raise AssertionError(f"an event of type {other!r}")
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            assert (
                event["pid"] in named["process"] and (event["pid"], event["tid"]) in named["thread"]
            )
    for (_, thread), events in threads(trace).items():
        open_until: list[int] = []
        for event in events:
            start = time(event["ts"])
            end = start + time(event["dur"])
            while open_until and open_until[-1] <= start:
                open_until.pop()
            assert not open_until or end <= open_until[-1], (
                f"{event} of {thread} ends after what encloses it"
            )
            open_until.append(end)
        assert [e["ts"] for e in events] == sorted(e["ts"] for e in events)


def test_the_file_keeps_the_rules_of_the_format(saved: dict[str, Any]) -> None:
    check_rules(saved)


@pytest.mark.parametrize("seed", range(6))
def test_a_random_schedule_keeps_them_too(seed: int, tmp_path: Path) -> None:
    check_rules(run(tmp_path, seed=seed))


def test_a_process_is_a_cta_and_its_threads_are_warpgroups_and_units(saved: dict[str, Any]) -> None:
    processes = {
        e["pid"]: e["args"]["name"] for e in saved["traceEvents"] if e["name"] == "process_name"
    }
    assert processes == {0: "CTA (0, 0, 0)", 1: "CTA (1, 0, 0)"}
    units = {"wg0 compute", "wg1 compute", "wg2 memory", "copy in", "copy out", "tensor core"}
    units |= {f"wg{number} regions" for number in range(3)}
    assert set(threads(saved)) == {(pid, name) for pid in (0, 1) for name in units}


def test_every_step_is_filled_computed_and_released_in_its_slot(saved: dict[str, Any]) -> None:
    found = threads(saved)
    for pid in (0, 1):
        for thread, name in (
            ("wg2 memory", "fill"),
            ("wg0 compute", "compute"),
            ("wg1 compute", "compute"),
            ("wg0 compute", "release"),
            ("wg1 compute", "release"),
        ):
            events = [e["args"] for e in found[pid, thread] if e["name"] == name]
            assert [(e["step"], e["slot"]) for e in events] == [
                (step, step % 2) for step in range(8)
            ], (thread, name)
            assert all(RING.fullmatch(e["ring"]) for e in events)
        copies = [
            (e["args"]["tensor"], e["args"]["step"], e["args"]["slot"])
            for e in found[pid, "copy in"]
        ]
        assert copies == [(name, step, step % 2) for step in range(8) for name in ("a", "b")]
        products = [(e["args"]["warpgroup"], e["args"]["step"]) for e in found[pid, "tensor core"]]
        assert sorted(products) == [(wg, step) for wg in (0, 1) for step in range(8)]


def test_what_belongs_together_is_in_order(saved: dict[str, Any]) -> None:
    found = threads(saved)
    landed = {e["args"]["step"]: e["args"]["landed"] for e in found[0, "copy in"]}
    for event in found[0, "wg0 compute"]:
        if event["name"] == "compute":
            assert event["ts"] >= landed[event["args"]["step"]]
    released = {
        e["args"]["step"]: e["ts"]
        for wg in (0, 1)
        for e in found[0, f"wg{wg} compute"]
        if e["name"] == "release"
    }
    for event in found[0, "copy in"]:
        if event["args"]["step"] >= 2:
            assert event["ts"] >= released[event["args"]["step"] - 2], (
                "a slot is filled again after its release"
            )


def test_waits_name_their_barrier_and_stores_their_place(saved: dict[str, Any]) -> None:
    found = threads(saved)
    waits = [e for e in found[0, "wg0 compute"] if e["cat"] == "wait"]
    assert waits and waits[0]["name"] == "wait for ready[0]" and waits[0]["dur"] > 0
    assert {"slot": 0, "step": 0, "phase": 0}.items() <= waits[0][
        "args"
    ].items() and RING.fullmatch(waits[0]["args"]["ring"])
    stores = [e["args"] for e in found[0, "copy out"]]
    assert [(s["tensor"], s["coords"]) for s in stores if s["warpgroup"] == 0] == [
        ("c", [0, 0]),
        ("c", [0, 64]),
    ]
    assert {e["name"] for e in found[0, "wg0 compute"]} >= {
        "write staging panel",
        "wait for stores",
    }


# ---- files ---------------------------------------------------------------------------------------
def test_a_text_file_holds_the_timeline_of_every_cta(tmp_path: Path) -> None:
    file, trace = tmp_path / "run.txt", Trace()
    gemm(ctas=2).simulate(A, B, cfg=SMALL, trace=str(file))
    gemm(ctas=2).simulate(A, B, cfg=SMALL, trace=trace)
    assert (
        file.read_text(encoding="utf8")
        == f"{trace.timeline()}\n\n{trace.timeline(cta=(1, 0, 0))}\n"
    )
    trace.save(tmp_path / "again.txt")
    assert (tmp_path / "again.txt").read_text(encoding="utf8") == file.read_text(encoding="utf8")


@pytest.mark.parametrize(
    "name, message",
    [
        (
            "run.csv",
            r"trace: '.*run.csv' ends in none of .html \(a page\), .json \(for "
            r"ui.perfetto.dev\) and .txt \(timelines\)",
        ),
        ("run", "ends in none of"),
    ],
)
def test_another_ending_is_refused_before_the_run(name: str, message: str, tmp_path: Path) -> None:
    out = np.full((256, 128), np.nan, np.float16)
    with pytest.raises(SpecError, match=message):
        gemm(ctas=2).simulate(A, B, out=out, cfg=SMALL, trace=tmp_path / name)
    assert np.isnan(out).all()
    with pytest.raises(SpecError, match=message):
        Trace().save(tmp_path / name)


def test_a_bad_path_is_refused() -> None:
    with pytest.raises(SpecError, match=r"trace: a numpipe.Trace or a file name, got 3"):
        gemm(ctas=2).simulate(A, B, cfg=SMALL, trace=3)


def test_a_trace_without_events_is_a_file_too(tmp_path: Path) -> None:
    Trace().save(tmp_path / "empty.json")
    assert json.loads((tmp_path / "empty.json").read_text(encoding="utf8"))["traceEvents"] == []
    Trace().save(tmp_path / "empty.txt")
    assert (tmp_path / "empty.txt").read_text(encoding="utf8") == "no events\n"


# ---- runs that fail ------------------------------------------------------------------------------
@numpipe.kernel
def late(a, b, c):
    acc = numpipe.zeros((64, 64), np.float32)
    pipe = numpipe.pipeline(
        grid=(a.shape[1] // 64,),
        max_concurrent_steps=2,
        in_specs=(BlockSpec((64, 64), lambda k: (0, k)), BlockSpec((64, 64), lambda k: (0, k))),
    )
    for (k,), (a_tile, b_tile) in pipe(a, b):
        if k > 0:
            acc = numpipe.wgmma(acc, previous, b_tile.T)  # noqa: F821
        previous = a_tile  # noqa: F841
    c[ds(0, 64), ds(0, 64)] = acc


@numpipe.kernel
def asserting(a, c):
    for (k,), (tile,) in numpipe.pipeline(
        grid=(4,), in_specs=(BlockSpec((64, 64), lambda k: (0, k)),)
    )(a):
        assert k < 2, "two steps"


def failed(
    folder: Path, error: type[Exception], kernel: Any, *args: Any
) -> tuple[dict[str, Any], Exception]:
    file = folder / "failed.json"
    with pytest.raises(error) as caught:
        kernel.simulate(*args, trace=file)
    trace = json.loads(file.read_text(encoding="utf8"))
    check_rules(trace)
    return trace, caught.value


def failure(trace: dict[str, Any]) -> dict[str, Any]:
    (event,) = (e for e in trace["traceEvents"] if e["ph"] == "i")
    return event


C = np.zeros((64, 64), np.float32)


def test_a_race_leaves_a_file_that_ends_with_it(tmp_path: Path) -> None:
    trace, error = failed(tmp_path, PipelineRace, late, A, B, C)
    event = failure(trace)
    assert (
        event["args"]["message"] == f"PipelineRace: {error}"
        and event["name"] == event["args"]["message"].split("\n")[0]
    )
    assert event["ts"] == max(e["ts"] + e["dur"] for e in trace["traceEvents"] if e["ph"] == "X")
    assert [
        e["args"]["step"] for e in threads(trace)[0, "wg0 compute"] if e["name"] == "compute"
    ] == [0, 1]


def test_a_deadlock_leaves_a_file_with_the_waits_that_never_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ring.release, "function", lambda ring_, part, step: None)
    trace, _ = failed(tmp_path, PipelineDeadlock, asserting, A, C)
    assert failure(trace)["name"].startswith("PipelineDeadlock: ")
    waits = [
        e
        for thread in ("wg0 compute", "wg1 memory")
        for e in threads(trace)[0, thread]
        if e["args"].get("unfinished")
    ]
    assert {(e["name"], e["args"].get("step")) for e in waits if e["cat"] == "wait"} == {
        ("wait for ready[0]", 2),
        ("wait for consumed[0]", 2),
    }
    assert len({e["ts"] + e["dur"] for e in waits}) == 1, "they end with the run"


def test_a_failing_assert_leaves_a_file(tmp_path: Path) -> None:
    trace, error = failed(tmp_path, SimulationError, asserting, A, C)
    assert "'assert k < 2' failed" in failure(trace)["name"] and "two steps" in str(error)


def test_a_text_file_ends_with_the_error(tmp_path: Path) -> None:
    with pytest.raises(SimulationError) as caught:
        asserting.simulate(A, C, trace=tmp_path / "failed.txt")
    text = (tmp_path / "failed.txt").read_text(encoding="utf8")
    assert text.startswith("CTA (0, 0, 0)") and text.endswith(
        f"\n\nSimulationError: {caught.value}\n"
    )


def test_a_trace_object_gets_the_error() -> None:
    trace = Trace()
    with pytest.raises(SimulationError):
        asserting.simulate(A, C, trace=trace)
    assert trace.events and "'assert k < 2' failed" in str(trace.failure)


@pytest.mark.skipif(
    sys.version_info < (3, 11),
    reason="exceptions have notes since Python 3.11: before, it is a warning",
)
def test_a_file_that_cannot_be_written_does_not_hide_the_report(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    file.mkdir()
    with pytest.raises(PipelineRace, match="release") as caught:
        late.simulate(A, B, C, trace=file)
    [note] = caught.value.__notes__
    assert note.startswith("the trace of this run was not written: ") and str(file) in note
    with pytest.raises(IsADirectoryError, match=r"run\.json"):
        gemm(ctas=2).simulate(A, B, cfg=SMALL, trace=file)


def test_a_folder_that_does_not_exist_is_refused_before_the_run(tmp_path: Path) -> None:
    file = tmp_path / "nowhere" / "run.json"
    with pytest.raises(SpecError, match="there is no folder") as caught:
        late.simulate(A, B, C, trace=file)
    exec(str(caught.value).partition("fix: ")[2], {"os": os})
    gemm(ctas=2).simulate(A, B, cfg=SMALL, trace=file)
    assert Trace.load(file).events


# ---- files that are not trace files of numpipe -----------------------------------------------
def damaged(saved: dict[str, Any], place: str, value: Any) -> str:
    """Return the text of a trace file with another value at a place of numpipe's member.

    DELETED removes the value.
    """
    changed = json.loads(json.dumps(saved))
    *path, last = [int(part) if part.isdigit() else part for part in place.split("/")]
    at = changed["numpipe"]
    for part in path:
        at = at[part]
    if value is DELETED:
        del at[last]
    else:
        at[last] = value
    return json.dumps(changed)


DELETED = object()
DAMAGED: list[tuple[str, Any, str]] = [
    ("clock", 3, r"clock is 3, not .*cycles"),
    ("clock", "hours", r"clock is 'hours', not .*Literal.*'cycles', 'ns'"),
    ("failure", [], r"failure is an array, not str"),
    ("lost", None, r"lost is None, not int"),
    ("lost", True, r"lost is True, not int"),
    ("sms", {}, r"sms is an object, not tuple"),
    ("rings", DELETED, r"the field 'rings' is missing"),
    ("rings/0/slots", "2", r"rings\[0\].slots is '2', not int"),
    ("rings/0/name", DELETED, r"rings\[0\]: the field 'name' is missing"),
    ("who/1/0", [0, 0], r"who\[1\]\[0\] is an array, not tuple\[int, int, int\]"),
    ("who/1", 7, r"who\[1\] is 7, not tuple"),
    ("events", "", r"events is '', not tuple"),
    ("events/5", [0, 1], r"events\[5\] is an array, not tuple"),
    ("events/5/0", 99, r"events\[5\] is of warpgroup 99 of \d+, from \d+ to \d+"),
    ("events/5/0", -1, r"events\[5\]\[0\] is -1, not int"),
    ("events/5/1", 1.5, r"events\[5\]\[1\] is 1.5, not int"),
    ("events/5/2", 10**40, r"events\[5\] is of warpgroup .* to 10000"),
    ("events/5/3", None, r"events\[5\]\[3\] is None, not str"),
    ("events/5/4", [], r"events\[5\]\[4\] is an array, not dict"),
    ("events/5", [0, 1, 1, "note", {}], r"events\[5\]\[4\].event is None, not str"),
    (
        "events/5",
        [0, 1, 1, "note", {"event": "release", "ring": "a", "slot": 0}],
        r"events\[5\]\[4\].step is None, not int",
    ),
    (
        "events/5",
        [0, 1, 1, "note", {"event": "tile begin"}],
        r"events\[5\]\[4\].number is None, not int",
    ),
    ("events/5", [0, 1, 1, "wait", {"mbar": 4}], r"events\[5\]\[4\].mbar is 4, not str"),
    (
        "events/5",
        [0, 1, 1, "load", {"port_until": "x"}],
        r"events\[5\]\[4\].port_until is 'x', not int",
    ),
    ("events/5", [0, 1, 1, "write", {}], r"events\[5\]\[4\].what is None, not str"),
    ("events/5/4/statement", 1, r"events\[5\]\[4\].statement is 1, not str"),
]


@pytest.mark.parametrize("place, value, message", DAMAGED, ids=lambda value: str(value)[:20])
def test_a_damaged_file_is_refused_with_the_place(
    place: str,
    value: Any,
    message: str,
    saved: dict[str, Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "run.json"
    file.write_text(damaged(saved, place, value), encoding="utf8")
    with pytest.raises(
        SpecError, match=rf"run.json' is damaged: .*{message}.*; save the trace again"
    ):
        Trace.load(file)
    assert command.main(["timeline", str(file)]) == 1 and "is damaged" in capsys.readouterr().err


def test_a_file_that_nests_too_deeply_is_refused_and_one_that_is_saved_again_is_read(
    saved: dict[str, Any], tmp_path: Path
) -> None:
    file = tmp_path / "deep.json"
    text = damaged(saved, "events/5/4", {"coords": "deep"})
    file.write_text(text.replace('"deep"', "[" * 200_000), encoding="utf8")
    with pytest.raises(SpecError, match="deep.json' is (not JSON|damaged)"):
        Trace.load(file)
    gemm(ctas=2).simulate(A, B, cfg=SMALL, trace=file)
    assert Trace.load(file).events
