"""numpipe.bench's sweeps without a GPU: rows in turn, graphs of short kernels, budgets, files that go on, summaries, pictures."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from numpipe import SpecError, bench
from numpipe.bench.__main__ import main
from numpipe.tools.bench import graphs, timer, workers
from tests.tools.bench.test_bench import FakeGpu
from tests.tools.bench.test_bench_results import H200

CASES = [{"shape": f"{n},8,8"} for n in (10, 20, 30, 40)]


class Gpu(FakeGpu):
    """Captures too: what is launched in a capture is not run but kept; a replay runs it."""

    def __init__(self) -> None:
        super().__init__()
        self.capturing: list[Callable[[], object]] | None = None
        self.captures: list[int] = []
        self.lost = False

    def competitor(self, name: str, seconds: float, settled: float = 1.0) -> Callable[[int], None]:
        run = super().competitor(name, seconds, settled)

        def call(i: int) -> None:
            if self.capturing is None:
                run(i)
            else:
                self.capturing.append(lambda: run(i))

        return call

    def measure(self, competitor: Any, calls: int, first: int) -> float:
        start = self.time
        timer.launch(competitor, first, calls)
        return (self.time - start) / calls

    def capture(self, first: Callable[[], object], work: Callable[[], object]) -> Callable[[], object]:
        first()
        self.capturing = nodes = []
        work()
        self.capturing = None
        self.captures.append(len(nodes))
        return lambda: [node() for node in nodes]

    def synchronize(self) -> None:
        if self.lost:
            raise RuntimeError("the context is lost")


def swept(gpu: Gpu, ours: float = 1e-3, theirs: float = 1e-3, *, sets: int = 1, plan: bench.SweepPlan | None = None,
          events: list[str] | None = None, **more: Any) -> bench.Sweep:
    events = [] if events is None else events

    def make(process: int, case: Any) -> bench.Contest:
        events.append(case["shape"])
        return bench.Contest(
            {"ours": gpu.competitor("ours", ours), "theirs": gpu.competitor("theirs", theirs)}, sets, 0.5,
            lambda: events.append("poison"), lambda: events.append("verify") or {"errors": {"ours": 2e-3, "theirs": 1e-3}},
            lambda: events.append("check"), {"M": float(case["shape"].split(",")[0]), "N": 8.0})

    return bench.Sweep(more.pop("make", make), reference="theirs", plan=plan, timer=gpu, capture=gpu.capture, **more)


def row_of(entry: dict[str, Any]) -> bench.Row:
    [row] = bench.summarise([entry])
    return row


# ---- a row
def test_a_row_is_measured_in_rounds_of_all_under_its_own_name_of_protocol() -> None:
    row = row_of(swept(Gpu(), 0.8e-3)(0, CASES[0]))
    assert (row.protocol, row.name, row.ratio.median) == ("sweep", "ours", pytest.approx(1.25))
    assert row.seconds == pytest.approx(0.8e-3) and row.reference_seconds == pytest.approx(1e-3)
    assert (row.error, row.reference_error, row.place) == (2e-3, 1e-3, {"M": 10.0, "N": 8.0})


def test_with_a_pause_each_competitor_is_measured_alone_behind_it() -> None:
    """The fake's clock falls under load: behind the pause both run at the boost clock, by rounds at that of a loaded card."""
    gpu = Gpu()

    def make(_process: int, _case: Any) -> bench.Contest:
        competitors = {"ours": gpu.competitor("ours", 1e-3), "theirs": gpu.competitor("theirs", 1e-3, settled=2.0)}
        return bench.Contest(competitors, 1, 0.5, lambda: None, lambda: {"errors": dict.fromkeys(competitors, 1e-3)}, lambda: None)

    def measured(idle: float) -> tuple[str, float, float]:
        before = gpu.time
        row = row_of(swept(gpu, make=make, plan=bench.SweepPlan(load=2.0, rounds=4, idle=idle))(0, CASES[0]))
        return row.protocol, row.ratio.median, gpu.time - before

    assert [measured(0.0)[:2], measured(2.0)[:2]] == [("sweep", pytest.approx(2.0)), ("burst", pytest.approx(1.0))]
    assert measured(2.0)[2] - measured(0.0)[2] > 2 * 2.0


def test_the_card_is_loaded_once_on_the_case_that_is_asked_for() -> None:
    gpu, events = Gpu(), []
    sweep = swept(gpu, events=events, load={"shape": "8192,8,8"}, plan=bench.SweepPlan(load=2.0, reload=0))
    sweep(0, CASES[0])
    assert gpu.time >= 2.0 and events[0] == "8192,8,8"
    after = gpu.time
    sweep(0, CASES[1])
    assert gpu.time < after + 0.2 and events.count("8192,8,8") == 1


def test_outputs_are_poisoned_before_they_are_verified_and_before_the_rounds_and_checked_after() -> None:
    events: list[str] = []
    swept(Gpu(), events=events, plan=bench.SweepPlan(load=0))(0, CASES[0])
    assert events == ["10,8,8", "10,8,8", "poison", "verify", "poison", "check"]  # the first one loads


@pytest.mark.parametrize("ours, theirs, captured", [(10e-6, 30e-6, True), (30e-6, 10e-6, True), (21e-6, 21e-6, False)])
def test_where_one_kernel_is_short_all_are_captured_and_go_through_all_sets_of_buffers(ours: float, theirs: float, captured: bool
                                                                                      ) -> None:
    gpu = Gpu()
    entry = swept(gpu, ours, theirs, sets=7, plan=bench.SweepPlan(load=0, work=400e-6))(0, CASES[0])
    assert row_of(entry).ratio.median == pytest.approx(theirs / ours)
    assert ("graph" in entry, bool(gpu.captures)) == (captured, captured)
    if captured:
        launches = entry["graph"]
        assert gpu.captures == [launches, launches] and launches % 7 == 0 and launches * (ours + 2 * theirs) / 3 >= 400e-6
        assert entry["samples"][0]["calls"] == launches
        assert [i % 7 for _, i in gpu.log[-launches:]] == [i % 7 for i in range(launches)]


def test_work_that_cannot_be_captured_is_measured_as_it_is_and_the_entry_says_why() -> None:
    gpu = Gpu()

    def refuses(first: Any, work: Any) -> Any:
        raise SpecError("out= is missing")

    gpu.capture = refuses  # type: ignore[method-assign]
    entry = swept(gpu, 10e-6, 10e-6)(0, CASES[0])
    assert entry["not_captured"] == "SpecError: out= is missing" and row_of(entry).ratio.median == pytest.approx(1)


def test_a_wrong_row_is_noted_and_a_lost_context_ends_the_process(capfd: Any) -> None:
    gpu = Gpu()

    def make(process: int, case: Any) -> bench.Contest:
        if case == CASES[1]:
            raise AssertionError("a wrong result")
        return bench.Contest({name: gpu.competitor(name, 1e-3) for name in ("ours", "theirs")}, 1, 0.5, lambda: None, dict,
                             lambda: None)

    sweep = swept(gpu, make=make, plan=bench.SweepPlan(load=0))
    assert "failed" not in sweep(0, CASES[0])
    assert sweep(0, CASES[1]) == {"process": 0, "case": CASES[1], "failed": "AssertionError: a wrong result"}
    assert "failed" not in sweep(0, CASES[2])
    gpu.lost = True
    with pytest.raises(RuntimeError, match="the context is lost"):
        sweep(0, CASES[1])
    assert "a wrong result" in capfd.readouterr().err


def test_plans_and_references_that_make_no_sense_are_refused() -> None:
    with pytest.raises(SpecError, match=r"SweepPlan: rounds must be an int >= 1, got 0"):
        bench.SweepPlan(rounds=0)
    with pytest.raises(SpecError, match=r"SweepPlan: work must be a finite number >= 0, got -1"):
        bench.SweepPlan(work=-1)
    empty = lambda process, case: bench.Contest({}, 1, 1.0, lambda: None, dict, lambda: None)
    with pytest.raises(SpecError, match="reference='theirs' is not among the competitors"):
        swept(Gpu(), make=empty)(0, CASES[0])


# ---- a capture by torch
def test_torch_captures_on_a_stream_of_its_own_after_a_run_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []

    class Graph:
        def capture_begin(self, capture_error_mode: str) -> None:
            log.append("begin")

        def capture_end(self) -> None:
            log.append("end")

        def replay(self) -> None:
            log.append("replay")

    class Stream:
        def __enter__(self) -> None:
            log.append("stream")

        def __exit__(self, *_: Any) -> None:
            log.append("left")

        def synchronize(self) -> None: ...

    cuda = types.SimpleNamespace(Stream=Stream, CUDAGraph=Graph, stream=lambda stream: stream, synchronize=lambda: None)
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=cuda))
    capture = graphs.TorchCapture()
    captured = graphs.Captured(lambda i: log.append(f"call {i}"), 2, capture)
    assert log == ["stream", "call 0", "begin", "call 0", "call 1", "end", "left"]
    del log[:]
    captured.many(0, 6)
    assert log == ["replay"] * 3
    del log[:]
    with pytest.raises(ZeroDivisionError):
        capture(lambda: log.append("first"), lambda: 1 / 0)
    assert log == ["stream", "first", "begin", "end", "left"]  # a stream that stays in a capture would refuse all later work


# ---- budgets, and files that go on
def entry(process: int, case: dict[str, Any]) -> dict[str, Any]:
    return bench.run_entry(process, case, 1.0, [bench.Sample("sweep", "ref", 1, {"ref": [1.0], "x": [1.0], "ref again": [1.0]})])


def worked(capsys: pytest.CaptureFixture[str], measure: Any, case_count: int = 4) -> tuple[int, list[dict[str, Any]], str]:
    """The status of a worker, its records, and what else it printed."""
    status = workers._worker(0, [{"n": n} for n in range(case_count)], measure)
    lines = capsys.readouterr().out.strip("\n").split("\n")
    records = [json.loads(line[1:]) for line in lines if line.startswith("\x1e")]
    return status, [record for record in records if "begins" not in record], "\n".join(x for x in lines if not x.startswith("\x1e"))


def test_a_worker_goes_on_after_a_row_that_says_why_it_failed_but_not_after_an_exception(capsys: Any) -> None:
    def measure(process: int, case: Any) -> dict[str, Any]:
        if case["n"] == 3:
            raise RuntimeError("lost")
        return {"process": process, "case": case, "failed": "wrong"} if case["n"] == 1 else entry(process, case)

    status, records, _ = worked(capsys, measure, 6)
    assert status == 1 and [record.get("failed") for record in records] == [None, "wrong", None, "RuntimeError: lost"]


def test_no_row_begins_when_the_time_is_over(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    now = [100.0]
    monkeypatch.setattr(workers.time, "time", lambda: now[0])
    monkeypatch.setenv(workers.UNTIL, "102.5")

    def measure(process: int, case: Any) -> dict[str, Any]:
        now[0] += 1.0
        return entry(process, case)

    status, records, text = worked(capsys, measure, 5)
    assert status == 0 and len(records) == 3 and text == "its share of the time is over: 2 of 5 cases are left"


SHARES = """
import json, os, time
case = {"left": float(os.environ["NUMPIPE_BENCH_UNTIL"]) - time.time()}
print("\x1e" + json.dumps({"process": int(os.environ["NUMPIPE_BENCH_PROCESS"]), "case": case, "failed": "it is only to tell"}))
"""


def test_what_is_left_of_the_time_is_shared_by_the_processes_that_are_to_come(tmp_path: Path) -> None:
    out = tmp_path / "r.json"
    known = bench.Result("t", {}, {}, [entry(4, {"n": 1})])
    bench.collect(known, 3, out, command=[sys.executable, "-c", SHARES], until=time.time() + 600)
    _, *shares = bench.read(out).runs
    assert [run["process"] for run in shares] == [5, 6, 7]  # earlier runs of the file keep their numbers
    for run, share in zip(shares, (200, 300, 600), strict=True):
        assert share - 15 < run["case"]["left"] <= share


HANGS = """
import json, os, sys, time
def tell(**record): print("\x1e" + json.dumps({"process": int(os.environ["NUMPIPE_BENCH_PROCESS"]), **record}), flush=True)
tell(case={"n": 1}, begins=True)
tell(case={"n": 1}, failed="it is only to tell")
tell(case={"n": 2}, begins=True)
if sys.argv[1] == "dies": os._exit(9)
time.sleep(60)
"""


@pytest.mark.parametrize("how, failed", [("dies", "the process ended with status 9"), ("hangs", "not done after 0.5 s")])
def test_a_row_with_which_a_process_dies_or_hangs_is_noted_and_the_others_go_on(how: str, failed: str, tmp_path: Path) -> None:
    out = tmp_path / "r.json"
    command = [sys.executable, "-c", HANGS, how]
    assert bench.collect(bench.Result("t", {}, {}, []), 2, out, command=command, patience=0.5) == 1
    assert [(run["process"], run["case"]["n"], run["failed"]) for run in bench.read(out).runs if run["case"]["n"] == 2] == [
        (0, 2, failed), (1, 2, failed)]


def test_the_file_is_written_before_anything_is_measured(tmp_path: Path) -> None:
    out = tmp_path / "r.json"
    seen = [sys.executable, "-c", f"import shutil; shutil.copy({str(out)!r}, {str(tmp_path / 'seen.json')!r})"]
    bench.collect(bench.Result("t", {}, {"seed": 7}, []), 1, out, command=seen)
    assert bench.read(tmp_path / "seen.json").method == {"seed": 7}


def test_a_file_that_takes_long_to_write_is_not_written_after_each_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []
    monkeypatch.setattr(workers, "QUICK", 0.01)
    monkeypatch.setattr(bench.Result, "write", lambda self, path: time.sleep(0.02) or counts.append(len(self.runs)))
    tells = "\n".join(f"print('\\x1e' + json.dumps({{'process': 0, 'case': {{'n': {n}}}, 'failed': 'it is only to tell'}}))"
                      for n in range(30))
    bench.collect(bench.Result("t", {}, {}, []), 1, tmp_path / "r.json", command=[sys.executable, "-c", f"import json\n{tells}"])
    assert counts[0] == 0 and counts[-1] == 30 and len(counts) <= 5


def test_a_run_that_goes_on_keeps_what_was_measured_and_begins_with_the_rest(tmp_path: Path, monkeypatch: Any) -> None:
    cases, out = [{"n": n} for n in range(4)], tmp_path / "r.json"
    known = [entry(0, {"n": 0}), entry(0, {"n": 3}), {"process": 0, "case": {"n": 1}, "failed": "lost"}]
    assert workers.fewest_first(cases, known) == [{"n": 2}, {"n": 0}, {"n": 3}, {"n": 1}]
    bench.Result("t", {"device": H200}, {"seed": 7}, known).write(out)
    made: list[Any] = []
    monkeypatch.setattr(workers, "require_gpu", lambda: None)
    monkeypatch.setattr(workers.device, "cards", lambda: ["GPU-1"])
    monkeypatch.setattr(workers.device, "describe", lambda: {"device": H200})
    monkeypatch.setattr(workers, "collect", lambda result, *_, **__: made.append(result) or 0)
    for resume in (True, False):
        assert workers.main("t", cases, entry, out=out, resume=resume) == 0
    assert len(made[0].runs) == 3 and made[0].method == {"seed": 7} and made[1].runs == []
    monkeypatch.setenv(workers.PROCESS, "1")
    monkeypatch.setattr(workers, "_worker", lambda process, order, measure: made.append((process, order)) or 0)
    workers.main("t", cases, entry, out=out, processes=2)
    assert made[2] == (1, [{"n": 2}, {"n": 3}, {"n": 0}, {"n": 1}])  # it begins in the middle


def result(ratios: dict[str, float], uuid: str = "GPU-1", benchmark: str = "products", processes: int = 1) -> bench.Result:
    runs = []
    for process in range(processes):
        for case, ratio in ratios.items():
            m, n, k = map(float, case.split(","))
            times = {"cuBLAS": [1e-3], "numpipe": [1e-3 / ratio], "cuBLAS again": [1e-3]}
            runs.append(bench.run_entry(process, {"shape": case, "dtype": "bf16"}, 2e-12 * m * n * k,
                                        [bench.Sample("sweep", "cuBLAS", 1, times)], errors={"numpipe": 1.7e-3, "cuBLAS": 1.6e-3},
                                        place={"M": m, "N x K": n * k, "flops a byte": m * n * k / (m * k + n * k + m * n)}))
    return bench.Result(benchmark, {"device": {**H200, "uuid": uuid}}, {"seed": 7}, runs)


RATIOS = {"1,96,11344": 0.31, "377,13712,8152": 0.88, "4096,4096,4096": 1.02, "9000,400,6368": 1.25}


def test_merged_files_have_the_runs_of_all_processes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = result(RATIOS, processes=2), result({case: 1.0 for case in RATIOS})
    merged = bench.merge([("a", first), ("b", second)])
    assert [run["process"] for run in merged.runs] == [0, 1, 2] * 4 and merged.machine == first.machine
    assert merged.rows[0].ratio.count == 3 and merged.rows[0].ratio.median == pytest.approx(0.31)
    other = bench.merge([("a", first), ("b", result(RATIOS, uuid="GPU-2"))])
    assert "uuid" not in other.machine["device"] and first.machine["device"]["uuid"] == "GPU-1"
    assert [run["gpu"] for run in other.runs[:3]] == ["GPU-1", "GPU-1", "GPU-2"]
    with pytest.raises(SpecError, match="a is of the benchmark 'products' and b of another"):
        bench.merge([("a", first), ("b", result(RATIOS, benchmark="attention"))])
    first.write(tmp_path / "a.json")
    second.write(tmp_path / "b.json")
    assert main(["merge", str(tmp_path / "a.json"), str(tmp_path / "b.json"), "--out", str(tmp_path / "c.json")]) == 0
    assert bench.read(tmp_path / "c.json").rows[0].ratio.count == 3 and "written to" in capsys.readouterr().out


# ---- what rows come to
def test_a_summary_tells_the_mean_the_shares_below_limits_and_the_slowest() -> None:
    rows = result(RATIOS).rows
    [group] = bench.groups(rows)
    assert group.mean == pytest.approx(float(np.exp(np.mean(np.log(list(RATIOS.values()))))))
    assert group.below(0.9) == 0.5 and group.below(0.7) == 0.25 and group.error == pytest.approx(1.7 / 1.6)
    assert [row.case["shape"] for row in group.least] == list(RATIOS)
    text = bench.summary(rows, limits=(0.7, 0.9), least=2).splitlines()
    assert "below 0.70  below 0.90" in text[0] and "25.0 %" in text[1] and "0.310" in text[1] and "1.062" in text[1]
    assert text[4].startswith("1,96,11344 bf16") and "3225.8" in text[4] and len(text) == 6
    by_size = bench.groups(rows, lambda row: "small" if row.place["M"] < 1000 else "large")
    assert [(each.name, len(each.rows)) for each in by_size] == [("small", 2), ("large", 2)]
    assert bench.summary([]) == "nothing was measured"


@pytest.mark.thorough
def test_a_picture_places_each_row_and_names_the_slowest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    found = result(RATIOS)
    figure = bench.ratio_map([("a.json", found)], tmp_path / "a.svg")
    left, right = figure.axes[:2]
    assert (left.get_xlabel(), left.get_ylabel(), right.get_xlabel()) == ("M", "N x K", "flops a byte")
    marks = {(round(x), round(y, 2)) for axes in (left,) for x, y in axes.collections[0].get_offsets().tolist()}
    assert marks == {(1, 96.0 * 11344), (377, 13712.0 * 8152), (4096, 4096.0 * 4096), (9000, 400.0 * 6368)}
    assert sorted(y for _, y in right.collections[0].get_offsets().tolist()) == pytest.approx(sorted(RATIOS.values()))
    text = (tmp_path / "a.svg").read_text(encoding="utf8")
    assert "1: 1,96,11344 bf16, 0.31" in text and "2 below 0.9" in text
    found.write(tmp_path / "r.json")
    assert main(["map", str(tmp_path / "r.json"), "--x", "N x K", "--y", "M"]) == 0 and (tmp_path / "r.svg").exists()
    capsys.readouterr()
    for arguments, said in ((["--x", "K"], "'K' is no positive number of 1,96,11344 bf16"),
                            (["--of", "Triton"], "no row of a sweep of Triton; there are rows of: numpipe")):
        assert main(["map", str(tmp_path / "r.json"), *arguments]) == 2 and said in capsys.readouterr().err
    assert main(["show", str(tmp_path / "r.json")]) == 0
    assert "the slowest of numpipe / cuBLAS, sweep" in capsys.readouterr().out


# ---- calls spread over processes
@pytest.mark.thorough
def test_calls_are_spread_over_processes_and_those_that_fail_or_hang_are_told(tmp_path: Path) -> None:
    script = tmp_path / "ahead.py"
    script.write_text(textwrap.dedent(f"""
        import os, sys, time
        from numpipe import bench

        def call(case):
            if case["n"] == 2:
                raise ValueError("no kernel")
            if case["n"] == 7:
                time.sleep(60)
            open(os.path.join({str(tmp_path)!r}, f"n{{case['n']}}"), "w").write(str(os.getpid()))

        if __name__ == "__main__":
            cases = bench.distinct(lambda case: case["n"] % 3, [{{"n": n}} for n in range(6)])
            print(bench.spread(call, cases, workers=2))
            print(os.getpid())
            print(bench.spread(call, [{{"n": 7}}], workers=1, patience=4))
    """), encoding="utf8")
    begun = time.monotonic()
    out = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True).stdout.splitlines()
    assert out[0] == str([({"n": 2}, "ValueError: no kernel")])
    assert (tmp_path / "n0").read_text(encoding="utf8") != out[1] and not (tmp_path / "n3").exists()
    assert out[2] == str([({"n": 7}, "TimeoutError: no answer for 4 s")]) and time.monotonic() - begun < 40
    assert bench.spread(print, []) == []
