"""examples/benchmarks/harness without a GPU: interleaved sweeps, graphs of short kernels,
summaries, pictures, other files."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from benchmarks import harness  # type: ignore[import-not-found]
from benchmarks.harness import sweeps  # type: ignore[import-not-found]
from benchmarks.harness.pictures import ratio_map  # type: ignore[import-not-found]

from numpipe import SpecError, bench
from numpipe.tools.bench import timer
from tests.examples.test_harness import H200
from tests.tools.bench.test_bench import FakeGpu

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "benchmarks"
CASES = [{"shape": f"{n},8,8"} for n in (10, 20, 30, 40)]


class Gpu(FakeGpu):
    """A fake GPU that captures: launches in a capture are kept, and a replay runs them."""

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

    def capture(
        self, first: Callable[[], object], work: Callable[[], object]
    ) -> Callable[[], object]:
        first()
        self.capturing = nodes = []
        work()
        self.capturing = None
        self.captures.append(len(nodes))
        return lambda: [node() for node in nodes]

    def synchronize(self) -> None:
        if self.lost:
            raise RuntimeError("the context is lost")


def swept(
    gpu: Gpu,
    ours: float = 1e-3,
    theirs: float = 1e-3,
    *,
    sets: int = 1,
    plan: harness.SweepPlan | None = None,
    events: list[str] | None = None,
    **more: Any,
) -> sweeps.Sweep:
    events = [] if events is None else events

    def make(process: int, case: Any) -> harness.Contest:
        events.append(case["shape"])
        return harness.Contest(
            {"ours": gpu.competitor("ours", ours), "theirs": gpu.competitor("theirs", theirs)},
            sets,
            0.5,
            lambda: events.append("poison"),
            lambda: events.append("verify") or {"errors": {"ours": 2e-3, "theirs": 1e-3}},
            lambda: events.append("check"),
            {"M": float(case["shape"].split(",")[0]), "N": 8.0},
        )

    plan = plan or harness.SweepPlan()
    return sweeps.Sweep(
        more.pop("make", make),
        reference="theirs",
        plan=plan,
        timer=gpu,
        capture=gpu.capture,
        **more,
    )


def row_of(entry: dict[str, Any]) -> bench.Row:
    [row] = bench.summarise([entry])
    return row


# ---- a row
def test_a_row_is_measured_in_rounds_of_all_under_its_own_name_of_protocol() -> None:
    row = row_of(swept(Gpu(), 0.8e-3)(0, CASES[0]))
    assert (row.protocol, row.name, row.ratio.median) == ("sweep", "ours", pytest.approx(1.25))
    assert row.seconds == pytest.approx(0.8e-3) and row.reference_seconds == pytest.approx(1e-3)
    assert (row.error, row.reference_error) == (2e-3, 1e-3)


def test_with_a_pause_each_competitor_is_measured_alone_after_it() -> None:
    """The fake's clock falls under load.

    After the pause both competitors run at the boost clock; in rounds they run at that of a loaded
    card.
    """
    gpu = Gpu()

    def make(_process: int, _case: Any) -> harness.Contest:
        competitors = {
            "ours": gpu.competitor("ours", 1e-3),
            "theirs": gpu.competitor("theirs", 1e-3, settled=2.0),
        }
        errors = {"errors": dict.fromkeys(competitors, 1e-3)}
        return harness.Contest(competitors, 1, 0.5, lambda: None, lambda: errors, lambda: None)

    def measured(idle: float) -> tuple[str, float, float]:
        before = gpu.time
        row = row_of(
            swept(gpu, make=make, plan=harness.SweepPlan(load=2.0, rounds=4, idle=idle))(
                0, CASES[0]
            )
        )
        return row.protocol, row.ratio.median, gpu.time - before

    assert [measured(0.0)[:2], measured(2.0)[:2]] == [
        ("sweep", pytest.approx(2.0)),
        ("burst", pytest.approx(1.0)),
    ]
    assert measured(2.0)[2] - measured(0.0)[2] > 2 * 2.0


def test_the_card_is_loaded_once_on_the_case_that_is_asked_for() -> None:
    gpu, events = Gpu(), []
    sweep = swept(
        gpu, events=events, load={"shape": "8192,8,8"}, plan=harness.SweepPlan(load=2.0, reload=0)
    )
    sweep(0, CASES[0])
    assert gpu.time >= 2.0 and events[0] == "8192,8,8"
    after = gpu.time
    sweep(0, CASES[1])
    assert gpu.time < after + 0.2 and events.count("8192,8,8") == 1


def test_outputs_are_poisoned_before_verification_and_before_rounds_and_checked_after() -> None:
    events: list[str] = []
    swept(Gpu(), events=events, plan=harness.SweepPlan(load=0))(0, CASES[0])
    # the first one loads
    assert events == ["10,8,8", "10,8,8", "poison", "verify", "poison", "check"]


@pytest.mark.parametrize(
    "ours, theirs, captured", [(10e-6, 30e-6, True), (30e-6, 10e-6, True), (21e-6, 21e-6, False)]
)
def test_where_one_kernel_is_short_all_are_captured_and_go_through_all_sets_of_buffers(
    ours: float, theirs: float, captured: bool
) -> None:
    gpu = Gpu()
    entry = swept(gpu, ours, theirs, sets=7, plan=harness.SweepPlan(load=0, work=400e-6))(
        0, CASES[0]
    )
    assert row_of(entry).ratio.median == pytest.approx(theirs / ours)
    assert ("graph" in entry, bool(gpu.captures)) == (captured, captured)
    if captured:
        launches = entry["graph"]
        assert (
            gpu.captures == [launches, launches]
            and launches % 7 == 0
            and launches * (ours + 2 * theirs) / 3 >= 400e-6
        )
        assert entry["samples"][0]["calls"] == launches
        assert [i % 7 for _, i in gpu.log[-launches:]] == [i % 7 for i in range(launches)]


def test_work_that_cannot_be_captured_is_measured_as_it_is_and_the_entry_says_why() -> None:
    gpu = Gpu()

    def refuses(first: Any, work: Any) -> Any:
        raise SpecError("out= is missing")

    gpu.capture = refuses  # type: ignore[method-assign]
    entry = swept(gpu, 10e-6, 10e-6)(0, CASES[0])
    assert entry["not_captured"] == "SpecError: out= is missing" and row_of(
        entry
    ).ratio.median == pytest.approx(1)


def test_a_wrong_row_is_noted_and_a_lost_context_ends_the_process(capfd: Any) -> None:
    gpu = Gpu()

    def make(process: int, case: Any) -> harness.Contest:
        if case == CASES[1]:
            raise AssertionError("a wrong result")
        return harness.Contest(
            {name: gpu.competitor(name, 1e-3) for name in ("ours", "theirs")},
            1,
            0.5,
            lambda: None,
            dict,
            lambda: None,
        )

    sweep = swept(gpu, make=make, plan=harness.SweepPlan(load=0))
    assert "failed" not in sweep(0, CASES[0])
    assert sweep(0, CASES[1]) == {
        "process": 0,
        "case": CASES[1],
        "failed": "AssertionError: a wrong result",
    }
    assert "failed" not in sweep(0, CASES[2])
    gpu.lost = True
    with pytest.raises(RuntimeError, match="the context is lost"):
        sweep(0, CASES[1])
    assert "a wrong result" in capfd.readouterr().err


def result(
    ratios: dict[str, float],
    uuid: str | None = "GPU-1",
    benchmark: str = "products",
    processes: int = 1,
    reference: str = "cuBLAS",
) -> bench.Result:
    runs = []
    for process in range(processes):
        for case, ratio in ratios.items():
            m, n, k = map(float, case.split(","))
            times = {reference: [1e-3], "numpipe": [1e-3 / ratio], f"{reference} again": [1e-3]}
            runs.append(
                bench.run_entry(
                    process,
                    {"shape": case, "dtype": "bf16"},
                    2e-12 * m * n * k,
                    [bench.Sample("sweep", reference, 1, times)],
                    errors={"numpipe": 1.7e-3, "cuBLAS": 1.6e-3},
                    place={
                        "M": m,
                        "N x K": n * k,
                        "flops a byte": m * n * k / (m * k + n * k + m * n),
                    },
                )
            )
    return bench.Result(benchmark, {"device": {**H200, "uuid": uuid}}, {"seed": 7}, runs)


RATIOS = {"1,96,11344": 0.31, "377,13712,8152": 0.88, "4096,4096,4096": 1.02, "9000,400,6368": 1.25}


def test_merged_files_have_the_runs_of_all_processes() -> None:
    first, second = result(RATIOS, processes=2), result({case: 1.0 for case in RATIOS})
    merged = harness.merge([("a", first), ("b", second)])
    assert [run["process"] for run in merged.runs] == [
        0,
        1,
        2,
    ] * 4 and merged.machine == first.machine
    assert merged.rows[0].ratio.count == 3 and merged.rows[0].ratio.median == pytest.approx(0.31)
    other = harness.merge([("a", first), ("b", result(RATIOS, uuid="GPU-2"))])
    assert "uuid" not in other.machine["device"] and first.machine["device"]["uuid"] == "GPU-1"
    assert [run["gpu"] for run in other.runs[:3]] == ["GPU-1", "GPU-1", "GPU-2"]
    with pytest.raises(SpecError, match="a is of the benchmark 'products' and b of another"):
        harness.merge([("a", first), ("b", result(RATIOS, benchmark="attention"))])


# ---- summaries of rows
def test_a_summary_has_the_mean_the_shares_below_limits_and_the_slowest() -> None:
    rows = result(RATIOS).rows
    [group] = harness.groups(rows)
    assert group.mean == pytest.approx(float(np.exp(np.mean(np.log(list(RATIOS.values()))))))
    assert (
        group.below(0.9) == 0.5
        and group.below(0.7) == 0.25
        and group.error == pytest.approx(1.7 / 1.6)
    )
    assert [row.case["shape"] for row in group.least] == list(RATIOS)
    text = harness.summary(rows, limits=(0.7, 0.9), least=2).splitlines()
    assert (
        "below 0.70  below 0.90" in text[0]
        and "25.0 %" in text[1]
        and "0.310" in text[1]
        and "1.062" in text[1]
    )
    assert text[4].startswith("1,96,11344 bf16") and "3225.8" in text[4] and len(text) == 6
    by_size = harness.groups(rows, lambda row: "small" if len(row.case["shape"]) < 14 else "large")
    assert [(each.name, len(each.rows)) for each in by_size] == [("small", 2), ("large", 2)]
    assert harness.summary([]) == "nothing was measured"


@pytest.mark.thorough
def test_a_picture_places_each_row_and_names_the_slowest(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    found = [("a.json", result(RATIOS))]
    figure = ratio_map(found, tmp_path / "a.svg")
    left, right = figure.axes[:2]
    assert (left.get_xlabel(), left.get_ylabel(), right.get_xlabel()) == (
        "M",
        "N x K",
        "flops a byte",
    )
    marks = {(round(x), round(y, 2)) for x, y in left.collections[0].get_offsets().tolist()}
    assert marks == {
        (1, 96.0 * 11344),
        (377, 13712.0 * 8152),
        (4096, 4096.0 * 4096),
        (9000, 400.0 * 6368),
    }
    ratios = [y for _, y in right.collections[0].get_offsets().tolist()]
    assert sorted(ratios) == pytest.approx(sorted(RATIOS.values()))
    text = (tmp_path / "a.svg").read_text(encoding="utf8")
    assert "1: 1,96,11344 bf16, 0.31" in text and "50.0 % below 0.9" in text
    with pytest.raises(SpecError, match="no row of a sweep of Triton; there are rows of: numpipe"):
        ratio_map(found, tmp_path / "b.svg", "Triton")


# ---- files
def test_changes_are_of_what_both_files_have_and_marked_where_the_intervals_do_not_meet() -> None:
    slow, fast = {"1,2,3": 1.25, "4,5,6": 1.0}, {"1,2,3": 1.43, "7,8,9": 1.0}
    before, after = (("a", result(slow, processes=3)), ("b", result(fast, processes=3)))
    _, *lines = harness.changes([before, after]).splitlines()
    assert [line.split()[:4] for line in lines] == [["1,2,3", "bf16", "sweep", "numpipe"]]
    assert lines[0].split()[-2:] == ["*", "1.144"]
    assert "*" not in harness.changes([before, before])
    # one process has no spread
    assert "*" not in harness.changes([("a", result(slow)), ("b", result(fast))])


def test_two_cards_of_a_model_are_compared_by_ratios_only() -> None:
    for cards in (("GPU-1", "GPU-2"), (None, None)):
        files = [(str(card), result(RATIOS, uuid=card)) for card in cards]
        assert harness.changes(files).splitlines()[1].endswith("another card")


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("name", "NVIDIA H100", "name 'NVIDIA H200' and 'NVIDIA H100'"),
        ("sms", 114, "sms 132 and 114"),
        ("power_limit_watts", 600.0, "power_limit_watts 700.0 and 600.0"),
    ],
)
def test_files_of_different_devices_are_not_compared_or_merged(
    key: str, value: Any, said: str
) -> None:
    other = result(RATIOS)
    other.machine["device"][key] = value
    for function in (harness.changes, harness.merge):
        with pytest.raises(
            SpecError,
            match=f"a and b are of different devices, whose results cannot be compared: {said}",
        ):
            function([("a", result(RATIOS)), ("b", other)])


def test_files_with_other_references_or_cases_are_not_compared() -> None:
    first, other = result({"1,2,3": 1.0}), result({"1,2,3": 1.0}, reference="cuDNN")
    with pytest.raises(SpecError, match="a compares numpipe with cuBLAS, b with cuDNN"):
        harness.changes([("a", first), ("b", other)])
    with pytest.raises(SpecError, match="no case, protocol and competitor in common"):
        harness.changes([("a", first), ("b", result({"4,5,6": 1.0}))])


def test_the_command_summarizes_compares_and_merges(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    main = runpy.run_path(str(FOLDER / "results.py"))["main"]
    one, two, both = (str(tmp_path / name) for name in ("a.json", "b.json", "c.json"))
    result(RATIOS, processes=2).write(Path(one))
    result(dict.fromkeys(RATIOS, 1.0)).write(Path(two))
    assert (
        main(["summary", one]) == 0
        and "the slowest of numpipe / cuBLAS, sweep" in capsys.readouterr().out
    )
    assert main(["compare", one, two]) == 0 and "3.226" in capsys.readouterr().out
    assert (
        main(["merge", one, two, "--out", both]) == 0 and bench.read(both).rows[0].ratio.count == 3
    )
    assert (
        main(["summary", str(tmp_path / "none.json")]) == 2
        and "none.json" in capsys.readouterr().err
    )


# ---- checks of outputs
class Tensor(np.ndarray):
    """The parts of a tensor that the checks use."""

    def clone(self) -> Any:
        return self.copy()

    def fill_(self, value: float) -> None:
        self.fill(value)


@pytest.mark.parametrize("change", [0.0, 1.0, np.nan])
def test_a_result_that_changes_or_is_missing_in_a_protocol_is_refused(
    change: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = SimpleNamespace(isnan=np.isnan, equal=np.array_equal)
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr("benchmarks.harness.checks.compare_options", lambda options: options)
    gpu, verified = FakeGpu(), []

    def store(i: int, out: Any) -> None:
        gpu.time += 1e-3
        out.fill(7.0 + i % 2 + (change if verified else 0.0))

    calls = {
        name: harness.InPlace([np.zeros(3).view(Tensor) for _ in range(2)], store)
        for name in ("ours", "theirs")
    }
    harness.run_all(calls, 2)
    verified.append(True)
    options = {"protocols": ("burst", "interleaved"), "timer": gpu}
    if change == 0.0:
        assert len(harness.compare_checked(calls, "theirs", options, "a case")) == 2
        harness.check_repeats(calls["ours"], 3, "ours")
    else:
        with pytest.raises(AssertionError, match="another result, or none, by ours under burst"):
            harness.compare_checked(calls, "theirs", options, "a case")
