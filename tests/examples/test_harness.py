"""examples/benchmarks/harness without a GPU: processes, budgets, resumed files, calls in
workers."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
from benchmarks import harness  # type: ignore[import-not-found]
from benchmarks.harness import workers  # type: ignore[import-not-found]

from numpipe import SpecError, TargetError, bench
from numpipe.launch.current_gpu import GpuState
from numpipe.tools.bench import timer

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
H200 = {
    "name": "NVIDIA H200",
    "compute_capability": "9.0",
    "sms": 132,
    "l2_bytes": 60 << 20,
    "memory_bytes": 141 << 30,
    "power_limit_watts": 700.0,
    "uuid": "GPU-1",
}


# ---- processes
SCRIPT = """
    import os, sys, time
    sys.path.insert(0, sys.argv[2])
    from benchmarks.harness import main
    from numpipe.bench import run_entry, Sample

    def measure(process, case):
        if case["n"] == int(sys.argv[1]) and process == 1:
            raise RuntimeError("an illegal address")
        times = {"ref": [1.0], "x": [1.0 - process / 100], "ref again": [1.0]}
        print("progress of", process, os.getpid())
        time.sleep(float(os.environ.get("SLOW", "0")) * (process == 0))
        return run_entry(process, case, 1.0, [Sample("burst", "ref", 1, times)], pid=os.getpid(),
                         saw=os.environ.get("CUDA_VISIBLE_DEVICES"), at=time.monotonic())

    sys.exit(main("t", [{"n": 1}, {"n": 2}], measure))
"""


def collected(tmp_path: Path, fails_at: int, **more: Any) -> tuple[int, bench.Result]:
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    out = tmp_path / "r.json"
    command = [sys.executable, str(script), str(fails_at), str(EXAMPLES)]
    status = workers.collect(bench.Result("t", {}, {}, []), 3, out, command=command, **more)
    return status, bench.read(out)


def test_each_process_measures_every_case_and_the_file_has_all(tmp_path: Path, capfd: Any) -> None:
    status, result = collected(tmp_path, fails_at=0)
    assert status == 0
    runs = [(r["process"], r["case"]["n"]) for r in result.runs]
    assert runs == [(0, 1), (0, 2), (1, 1), (1, 2), (2, 2), (2, 1)]  # the last one starts elsewhere
    assert len({r["pid"] for r in result.runs}) == 3
    assert result.rows[0].ratio.median == pytest.approx(1 / 0.99)
    shown = capfd.readouterr().out
    assert "progress of 2" in shown and "process 3/3  2  burst 1.020" in shown


def test_a_failed_process_is_recorded_and_the_others_go_on(tmp_path: Path, capfd: Any) -> None:
    status, result = collected(tmp_path, fails_at=1)
    assert status == 1
    failures = [r for r in result.runs if "failed" in r]
    assert [(f["process"], f["failed"]) for f in failures] == [
        (1, "RuntimeError: an illegal address")
    ]
    assert [row.ratio.count for row in result.rows] == [2, 2]
    assert "FAILED: RuntimeError: an illegal address" in capfd.readouterr().out


@pytest.fixture(scope="module")
def of_two_gpus(tmp_path_factory: pytest.TempPathFactory) -> bench.Result:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("SLOW", "1.5")  # the first process finishes last
        folder, cases = tmp_path_factory.mktemp("gpus"), [{"n": 1}, {"n": 2}]
        status, result = collected(folder, fails_at=0, cases=cases, cards=["GPU-a", "GPU-b"])
    assert status == 0
    return result


def test_the_file_has_the_runs_in_the_order_of_the_cases_and_processes(
    of_two_gpus: bench.Result,
) -> None:
    assert [(run["process"], run["case"]["n"]) for run in of_two_gpus.runs] == [
        (p, n) for n in (1, 2) for p in range(3)
    ]


def test_gpus_share_the_processes_out_and_have_one_at_a_time(of_two_gpus: bench.Result) -> None:
    result = of_two_gpus
    assert all(run["gpu"] == run["saw"] for run in result.runs)
    # the one that is free
    assert {run["process"]: run["gpu"] for run in result.runs} == {
        0: "GPU-a",
        1: "GPU-b",
        2: "GPU-b",
    }
    for card in ("GPU-a", "GPU-b"):  # the runs of a process are adjacent
        turns = [
            run["process"]
            for run in sorted(result.runs, key=lambda run: run["at"])
            if run["gpu"] == card
        ]
        assert turns == sorted(turns)


@pytest.mark.parametrize("value", ["", "x", "-1"])
def test_a_process_without_a_number_is_refused(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(harness.PROCESS, value)
    with pytest.raises(SpecError, match=f"{harness.PROCESS} is '{value}'"):
        harness.main("t", [], lambda process, case: {})


def test_no_more_gpus_than_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "require_gpu", lambda: None)
    monkeypatch.setattr(workers, "cards", lambda: ["GPU-a"])
    for gpus in (0, 2):
        with pytest.raises(SpecError, match=f"gpus={gpus}: this process sees 1; ask for 1 to 1"):
            workers.main("t", [], lambda process, case: {}, gpus=gpus)


@pytest.mark.parametrize("gpus", [1, 2])
def test_a_result_of_several_gpus_is_of_no_one_card(
    gpus: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []
    monkeypatch.setattr(workers, "require_gpu", lambda: None)
    monkeypatch.setattr(workers, "cards", lambda: ["GPU-a", "GPU-b", "GPU-c"])
    monkeypatch.setattr(workers, "describe", lambda: {"device": {"name": "H200", "uuid": "GPU-a"}})
    monkeypatch.setattr(
        workers,
        "collect",
        lambda result, *args, cards, **more: made.append((result.machine, cards)) or 0,
    )
    assert workers.main("t", [], lambda process, case: {}, gpus=gpus) == 0
    [(machine, cards)] = made
    assert cards == ["GPU-a", "GPU-b"][:gpus] and machine["device"].get("uuid") == (
        "GPU-a" if gpus == 1 else None
    )


@pytest.mark.thorough
def test_the_file_is_there_while_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[int] = []
    write = bench.Result.write

    def watched(self: bench.Result, path: Path) -> None:
        write(self, path)
        counts.append(len(bench.read(path).runs))

    monkeypatch.setattr(bench.Result, "write", watched)
    collected(tmp_path, fails_at=0)
    assert counts == [0, 1, 2, 3, 4, 5, 6, 6]


def test_measuring_without_a_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    found = GpuState("none", None, "the CUDA driver sees no GPU", "check CUDA_VISIBLE_DEVICES")
    monkeypatch.setattr(timer, "gpu_state", lambda: found)
    with pytest.raises(TargetError, match="measures on a Hopper GPU"):
        harness.main("t", [], lambda process, case: {})


# ---- budgets, and resumed files
def entry(process: int, case: dict[str, Any]) -> dict[str, Any]:
    return bench.run_entry(
        process,
        case,
        1.0,
        [bench.Sample("sweep", "ref", 1, {"ref": [1.0], "x": [1.0], "ref again": [1.0]})],
    )


def worked(
    capsys: pytest.CaptureFixture[str], measure: Any, case_count: int = 4
) -> tuple[int, list[dict[str, Any]], str]:
    """Return the status of a worker, its records, and its other output."""
    status = workers._worker(0, [{"n": n} for n in range(case_count)], measure)
    lines = capsys.readouterr().out.strip("\n").split("\n")
    records = [json.loads(line[1:]) for line in lines if line.startswith("\x1e")]
    return (
        status,
        [record for record in records if "begins" not in record],
        "\n".join(x for x in lines if not x.startswith("\x1e")),
    )


def test_a_worker_continues_after_a_row_with_an_error_but_not_after_an_exception(
    capsys: Any,
) -> None:
    def measure(process: int, case: Any) -> dict[str, Any]:
        if case["n"] == 3:
            raise RuntimeError("lost")
        return (
            {"process": process, "case": case, "failed": "wrong"}
            if case["n"] == 1
            else entry(process, case)
        )

    status, records, _ = worked(capsys, measure, 6)
    assert status == 1 and [record.get("failed") for record in records] == [
        None,
        "wrong",
        None,
        "RuntimeError: lost",
    ]


def test_no_row_begins_when_the_time_is_over(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [100.0]
    monkeypatch.setattr(workers.time, "time", lambda: now[0])
    monkeypatch.setenv(workers.UNTIL, "102.5")

    def measure(process: int, case: Any) -> dict[str, Any]:
        now[0] += 1.0
        return entry(process, case)

    status, records, text = worked(capsys, measure, 5)
    assert (
        status == 0
        and len(records) == 3
        and text == "its share of the time is over: 2 of 5 cases are left"
    )


SHARES = """
import json, os, time
case = {"left": float(os.environ["NUMPIPE_BENCH_UNTIL"]) - time.time()}
process = int(os.environ["NUMPIPE_BENCH_PROCESS"])
print("\x1e" + json.dumps({"process": process, "case": case, "failed": "it is only to tell"}))
"""


def test_the_remaining_time_is_shared_by_the_remaining_processes(
    tmp_path: Path,
) -> None:
    out = tmp_path / "r.json"
    known = bench.Result("t", {}, {}, [entry(4, {"n": 1})])
    workers.collect(known, 3, out, command=[sys.executable, "-c", SHARES], until=time.time() + 600)
    _, *shares = bench.read(out).runs
    # earlier runs of the file keep their numbers
    assert [run["process"] for run in shares] == [5, 6, 7]
    for run, share in zip(shares, (200, 300, 600), strict=True):
        assert share - 15 < run["case"]["left"] <= share


HANGS = """
import json, os, sys, time
process = int(os.environ["NUMPIPE_BENCH_PROCESS"])
def tell(**record):
    print("\x1e" + json.dumps({"process": process, **record}), flush=True)
tell(case={"n": 1}, begins=True)
tell(case={"n": 1}, failed="it is only to tell")
tell(case={"n": 2}, begins=True)
if sys.argv[1] == "dies": os._exit(9)
time.sleep(60)
"""


@pytest.mark.parametrize(
    "how, failed", [("dies", "the process ended with status 9"), ("hangs", "not done after 0.5 s")]
)
def test_a_row_with_which_a_process_dies_or_hangs_is_noted_and_the_others_go_on(
    how: str, failed: str, tmp_path: Path
) -> None:
    out = tmp_path / "r.json"
    command = [sys.executable, "-c", HANGS, how]
    assert (
        workers.collect(bench.Result("t", {}, {}, []), 2, out, command=command, patience=0.5) == 1
    )
    assert [
        (run["process"], run["case"]["n"], run["failed"])
        for run in bench.read(out).runs
        if run["case"]["n"] == 2
    ] == [(0, 2, failed), (1, 2, failed)]


def test_a_run_that_goes_on_keeps_what_was_measured_and_begins_with_the_rest(
    tmp_path: Path, monkeypatch: Any
) -> None:
    cases, out = [{"n": n} for n in range(4)], tmp_path / "r.json"
    known = [
        entry(0, {"n": 0}),
        entry(0, {"n": 3}),
        {"process": 0, "case": {"n": 1}, "failed": "lost"},
    ]
    assert workers.fewest_first(cases, known) == [{"n": 2}, {"n": 0}, {"n": 3}, {"n": 1}]
    bench.Result("t", {"device": H200}, {"seed": 7}, known).write(out)
    made: list[Any] = []
    monkeypatch.setattr(workers, "require_gpu", lambda: None)
    monkeypatch.setattr(workers, "cards", lambda: ["GPU-1"])
    monkeypatch.setattr(workers, "describe", lambda: {"device": H200})
    monkeypatch.setattr(workers, "collect", lambda result, *_, **__: made.append(result) or 0)
    for resume in (True, False):
        assert workers.main("t", cases, entry, out=out, resume=resume) == 0
    assert len(made[0].runs) == 3 and made[0].method == {"seed": 7} and made[1].runs == []
    monkeypatch.setenv(workers.PROCESS, "1")
    monkeypatch.setattr(
        workers, "_worker", lambda process, order, measure: made.append((process, order)) or 0
    )
    workers.main("t", cases, entry, out=out, processes=2)
    assert made[2] == (1, [{"n": 2}, {"n": 3}, {"n": 0}, {"n": 1}])  # it starts in the middle


# ---- calls distributed over processes
@pytest.mark.thorough
def test_calls_are_spread_over_processes_and_failures_and_hangs_are_reported(
    tmp_path: Path,
) -> None:
    script = tmp_path / "ahead.py"
    script.write_text(
        textwrap.dedent(f"""
        import os, sys, time
        sys.path.insert(0, {str(EXAMPLES)!r})
        from benchmarks import harness

        def call(case):
            if case["n"] == 2:
                raise ValueError("no kernel")
            if case["n"] == 7:
                time.sleep(60)
            open(os.path.join({str(tmp_path)!r}, f"n{{case['n']}}"), "w").write(str(os.getpid()))

        if __name__ == "__main__":
            cases = harness.distinct(lambda case: case["n"] % 3, [{{"n": n}} for n in range(6)])
            print(harness.spread(call, cases, workers=2))
            print(os.getpid())
            print(harness.spread(call, [{{"n": 7}}], workers=1, patience=4))
    """),
        encoding="utf8",
    )
    begun = time.monotonic()
    out = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert out[0] == str([({"n": 2}, "ValueError: no kernel")])
    assert (tmp_path / "n0").read_text(encoding="utf8") != out[1] and not (tmp_path / "n3").exists()
    assert (
        out[2] == str([({"n": 7}, "TimeoutError: no answer for 4 s")])
        and time.monotonic() - begun < 40
    )
    assert harness.spread(print, []) == []
