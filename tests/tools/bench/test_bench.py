"""numpipe.bench without a GPU: the statistics, the protocols on a timer with a known answer, the
result file."""

from __future__ import annotations

import gzip
import json
import math
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from numpipe import bench
from numpipe.bench.protocols import AGAIN
from numpipe.errors import SpecError, TargetError
from numpipe.launch.current_gpu import GpuState
from numpipe.tools.bench import timer


class FakeGpu:
    """A timer whose competitors take a given time, at a clock that load lowers and idleness
    restores."""

    def __init__(self) -> None:
        self.time = 0.0
        self.hot = 0.0
        self.log: list[tuple[str, int]] = []

    def competitor(self, name: str, seconds: float, settled: float = 1.0) -> Callable[[int], None]:
        def call(i: int) -> None:
            self.log.append((name, i))
            took = seconds * (settled if self.hot > 0.5 else 1.0)
            self.time += took
            self.hot += took

        return call

    def measure(self, competitor: Callable[[int], object], calls: int, first: int) -> float:
        start = self.time
        for i in range(first, first + calls):
            competitor(i)
        return (self.time - start) / calls

    def seconds(self, handle: float) -> float:
        return handle

    def megahertz(self, handle: float) -> float | None:
        return None

    def synchronize(self) -> None: ...

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds
        self.hot = 0.0


def samples_of(
    ours: float, theirs: float, **kwargs: Any
) -> tuple[FakeGpu, dict[str, bench.Sample]]:
    gpu = FakeGpu()
    found = bench.compare(
        {
            "ours": gpu.competitor("ours", ours, settled=1.1),
            "theirs": gpu.competitor("theirs", theirs, settled=1.3),
        },
        reference="theirs",
        timer=gpu,
        **kwargs,
    )
    return gpu, {s.protocol: s for s in found}


# ---- statistics
def test_interval_of_three_processes_is_students_t_on_logarithms() -> None:
    figure = bench.figure([1.00, 1.02, 1.06])
    logs = [math.log(v) for v in (1.00, 1.02, 1.06)]
    mean = sum(logs) / 3
    half = 4.3027 * math.sqrt(sum((v - mean) ** 2 for v in logs) / 2) / math.sqrt(3)
    assert figure.median == 1.02
    assert figure.low == pytest.approx(math.exp(mean - half)) and figure.high == pytest.approx(
        math.exp(mean + half)
    )


@pytest.mark.parametrize("count", [3, 5, 6, 8, 11, 20])
def test_interval_covers_the_true_median_in_95_of_100_experiments(count: int) -> None:
    draw = random.Random(count)
    hits = 0
    for _ in range(1500):
        figure = bench.figure([math.exp(draw.gauss(0.03, 0.02)) for _ in range(count)])
        assert figure.low is not None and figure.high is not None
        hits += figure.low <= math.exp(0.03) <= figure.high
    assert hits / 1500 >= 0.935  # exactly 0.95 for Student's t, a little more for order statistics


def test_interval_holds_the_median_it_belongs_to() -> None:
    draw = random.Random(1)
    for count in (2, 3, 4, 5, 6, 9):
        figure = bench.figure([draw.uniform(0.5, 2) for _ in range(count)])
        assert figure.low is not None and figure.high is not None
        assert figure.low <= figure.median <= figure.high


def test_a_target_is_reached_by_the_upper_end() -> None:
    figure = bench.figure([0.97, 0.99, 1.00])
    assert figure.median < 1.0 <= figure.high  # type: ignore[operator]
    assert figure.reaches(1.0) and not figure.reaches(1.2)
    assert bench.figure([0.99]).reaches(0.99) and not bench.figure([0.99]).reaches(1.0)


def test_ratios_must_be_positive_and_present() -> None:
    with pytest.raises(ValueError, match="at least one"):
        bench.figure([])
    with pytest.raises(ValueError, match="finite number > 0"):
        bench.figure([1.0, 0.0])


# ---- protocols
def test_burst_sees_the_boost_clock_and_load_the_settled_one() -> None:
    _, samples = samples_of(0.8e-3, 1e-3)
    assert samples["burst"].ratio("ours") == pytest.approx(1.25)
    assert samples["interleaved"].ratio("ours") == pytest.approx(1.25 * 1.3 / 1.1)
    assert samples["alone"].ratio("ours") == pytest.approx(1.25 * 1.3 / 1.1)
    assert all(s.noise == pytest.approx(1) for s in samples.values())


def test_burst_launches_eight_after_idling() -> None:
    gpu = FakeGpu()
    found = bench.compare(
        {"a": gpu.competitor("a", 1e-3), "b": gpu.competitor("b", 1e-3)},
        reference="b",
        timer=gpu,
        protocols=("burst",),
        plan=bench.Plan(idle=3.0),
    )
    assert [len(t) for t in found[0].times.values()] == [8, 8, 8]
    assert gpu.time >= 9.0


def test_interleaved_takes_all_competitors_in_each_round_in_another_order() -> None:
    gpu, samples = samples_of(
        1e-3, 1e-3, protocols=("interleaved",), plan=bench.Plan(load=0, rounds=8)
    )
    assert samples["interleaved"].calls == 1
    called = [name for name, _ in gpu.log[-24:]]
    rounds = [tuple(called[i : i + 3]) for i in range(0, 24, 3)]
    assert (
        all(sorted(each) == ["ours", "theirs", "theirs"] for each in rounds)
        and len(set(rounds)) == 3
    )


def test_in_interleaved_rounds_no_competitor_always_follows_one_that_lets_the_card_cool() -> None:
    gpu, before = FakeGpu(), [""]

    def competitor(name: str) -> Callable[[int], None]:
        def call(i: int) -> None:
            gpu.time += 1e-3 if before[0] == "light" else 1.05e-3
            before[0] = name

        return call

    calls = {name: competitor(name) for name in ("light", "ours", "theirs")}
    (found,) = bench.compare(
        calls, reference="theirs", timer=gpu, protocols=("interleaved",), plan=bench.Plan(load=0)
    )
    assert found.ratio("ours") == pytest.approx(1) and found.noise == pytest.approx(1)


def test_alone_runs_the_reference_before_and_after_under_its_own_load() -> None:
    gpu, samples = samples_of(
        1e-3, 1e-3, protocols=("alone",), plan=bench.Plan(alone_load=0.1, alone_count=5)
    )
    order = [name for i, (name, _) in enumerate(gpu.log) if i == 0 or gpu.log[i - 1][0] != name]
    assert order[-3:] == ["theirs", "ours", "theirs"]
    assert list(samples["alone"].times) == ["theirs", "ours", "theirs" + AGAIN]


def test_short_kernels_are_launched_several_times_between_events() -> None:
    _, samples = samples_of(20e-6, 20e-6, protocols=("burst",))
    assert samples["burst"].calls == 20
    assert samples["burst"].seconds("ours") == pytest.approx(20e-6)


def test_a_program_of_many_calls_is_made_before_any_load() -> None:
    sizes: list[int] = []

    class Programs:
        def __call__(self, i: int) -> None:
            raise AssertionError("one by one")

        def many(self, first: int, calls: int) -> None:
            sizes.append(calls)

    class Gpu(FakeGpu):
        begun: int | None = None

        def measure(self, competitor: Callable[[int], object], calls: int, first: int) -> float:
            timer.launch(competitor, first, calls)
            return 20e-6

        def now(self) -> float:
            self.begun = len(sizes) if self.begun is None else self.begun
            self.time += 0.1
            return self.time

    gpu = Gpu()
    bench.compare({"ours": Programs(), "theirs": Programs()}, reference="theirs", timer=gpu)
    assert gpu.begun is not None and {20, 80} <= set(sizes[gpu.begun :]) <= set(sizes[: gpu.begun])


def test_calls_count_up_so_that_buffers_rotate() -> None:
    gpu, _ = samples_of(20e-6, 20e-6, protocols=("burst",))
    assert [i for _, i in gpu.log] == list(range(len(gpu.log)))


def test_noise_is_the_reference_against_itself() -> None:
    sample = bench.Sample(
        "burst", "ref", 1, {"ref": [1.0, 1.0], "x": [2.0, 2.0], "ref again": [1.1, 1.1]}
    )
    assert sample.noise == pytest.approx(1 / 1.1)
    assert sample.ratio("x") == pytest.approx(1.05 / 2)


def test_outputs_are_poisoned_before_and_checked_after_each_protocol() -> None:
    events: list[str] = []
    gpu = FakeGpu()
    bench.compare(
        {"a": gpu.competitor("a", 1e-3), "b": gpu.competitor("b", 1e-3)},
        reference="b",
        timer=gpu,
        poison=lambda: events.append("poison"),
        check=events.append,
    )
    assert events == ["poison", "burst", "poison", "interleaved", "poison", "alone"]


def test_sensors_are_read_under_each_load() -> None:
    _, samples = samples_of(1e-3, 1e-3, sensors=lambda: {"sm_mhz": 1500.0})
    assert samples["alone"].sensors == {
        n: {"sm_mhz": 1500.0} for n in ("theirs", "ours", "theirs again")
    }


@pytest.mark.parametrize(
    ("bytes_per_call", "sets"), [(240, 1), (120, 1), (119, 3), (60, 3), (10, 13)]
)
def test_other_data_of_twice_the_l2_is_used_between_uses_of_a_buffer(
    bytes_per_call: int, sets: int
) -> None:
    assert bench.rotation_sets(bytes_per_call, l2_bytes=60) == sets


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(SpecError, match=r"reference='cuBLAS' is not among the competitors \['a'\]"):
        bench.compare({"a": lambda i: None}, reference="cuBLAS")
    with pytest.raises(SpecError, match=r"\['brust'\] unknown"):
        bench.compare({"a": lambda i: None}, reference="a", protocols=("brust",))  # type: ignore[arg-type]
    with pytest.raises(SpecError, match=r"Plan: rounds must be an int >= 1, got 0"):
        bench.Plan(rounds=0)
    with pytest.raises(SpecError, match=r"Plan: load must be a finite number >= 0, got -1"):
        bench.Plan(load=-1)


# ---- results
def entry(process: int, ours: float, case: dict[str, Any] | None = None) -> dict[str, Any]:
    _, samples = samples_of(
        ours, 1e-3, sensors=lambda: {"sm_mhz": 1500.0 + process, "watts": 680.0}
    )
    return bench.run_entry(
        process,
        case or {"shape": "1,2,3", "dtype": "bf16"},
        0.5,
        samples.values(),
        errors={"ours": 1e-3},
    )


def test_a_row_is_the_median_over_processes_of_the_ratio_within_each() -> None:
    rows = bench.summarise([entry(0, 1.00e-3), entry(1, 0.80e-3), entry(2, 0.90e-3)])
    assert [(r.protocol, r.name) for r in rows] == [
        ("burst", "ours"),
        ("interleaved", "ours"),
        ("alone", "ours"),
    ]
    burst = rows[0]
    assert burst.ratio.median == pytest.approx(1 / 0.9) and burst.ratio.count == 3
    assert burst.rate == pytest.approx(0.5 / 0.9e-3) and burst.reference_rate == pytest.approx(500)
    assert burst.sensors == {"sm_mhz": 1501, "watts": 680}


def test_result_file_keeps_every_raw_run_and_reads_back(tmp_path: Path) -> None:
    failed = {
        "process": 2,
        "case": {"shape": "1,2,3", "dtype": "bf16"},
        "failed": "RuntimeError: lost",
    }
    result = bench.Result(
        "gemm",
        {"device": {"name": "H200"}},
        {"idle": 1.5},
        [entry(0, 1e-3), entry(1, 1e-3), failed],
    )
    result.write(tmp_path / "new" / "r.json")
    data = json.loads((tmp_path / "new" / "r.json").read_text())
    assert data.keys() == {"schema", "benchmark", "device", "method", "rows", "runs"}
    assert data["runs"][0]["samples"][0].keys() == {
        "protocol",
        "reference",
        "calls",
        "times",
        "sensors",
    }
    assert data["runs"][2]["failed"] == "RuntimeError: lost"
    assert data["rows"][0]["ratio"].keys() == {"median", "low", "high", "count"}
    assert data["rows"][0]["ratio"]["count"] == 2
    back = bench.read(tmp_path / "new" / "r.json")
    assert back.runs == result.runs and back.rows == result.rows and back.machine == result.machine
    assert not list(tmp_path.rglob("*.part"))


def test_another_schema_is_refused(tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text('{"schema": "other/3"}')
    with pytest.raises(ValueError, match=r"other/3.*numpipe-bench/1"):
        bench.read(tmp_path / "r.json")


@pytest.mark.parametrize(
    "change",
    [
        {"runs": [3]},
        {"runs": [{"process": 0, "case": {}, "work": 1.0, "samples": [{"protocol": "burst"}]}]},
        {"runs": None},
        {
            "runs": [
                {
                    "process": 0,
                    "case": {},
                    "work": "much",
                    "samples": [
                        {
                            "protocol": "burst",
                            "reference": "a",
                            "calls": 1,
                            "times": {"a": [1.0], "a again": [1.0], "b": [0.0]},
                        }
                    ],
                }
            ]
        },
    ],
)
def test_a_file_whose_runs_have_another_form_is_refused(
    change: dict[str, Any], tmp_path: Path
) -> None:
    bench.Result("gemm", {}, {}, [entry(0, 1e-3)]).write(tmp_path / "r.json")
    data = json.loads((tmp_path / "r.json").read_text(encoding="utf8"))
    (tmp_path / "bad.json").write_text(json.dumps(data | change), encoding="utf8")
    (tmp_path / "deep.json").write_text("[" * 200_000, encoding="utf8")
    for name in ("bad.json", "deep.json"):
        with pytest.raises(ValueError, match=f"{name} is not a result file of numpipe.bench"):
            bench.read(tmp_path / name)
    (tmp_path / "r.json.gz").write_bytes(gzip.compress((tmp_path / "r.json").read_bytes()))
    assert (
        bench.read(tmp_path / "r.json").rows == bench.read(str(tmp_path / "r.json.gz")).rows != []
    )


def test_table_is_aligned_and_names_noise_and_sensors() -> None:
    text = bench.table(bench.summarise([entry(p, 0.8e-3) for p in range(3)]))
    head, *lines = text.splitlines()
    assert "theirs TFLOPS" in head and "theirs / itself" in head and len(lines) == 3
    assert all(
        line.startswith("1,2,3 bf16") and "1.250 [1.250, 1.250]" in line for line in lines[:1]
    )
    assert "1501" in lines[0] and "680" in lines[0]
    assert bench.table([]) == "nothing was measured"


# ---- machines without a GPU
def test_measuring_without_a_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    found = GpuState("none", None, "the CUDA driver sees no GPU", "check CUDA_VISIBLE_DEVICES")
    monkeypatch.setattr(timer, "gpu_state", lambda: found)
    with pytest.raises(
        TargetError, match="sees no GPU; check CUDA_VISIBLE_DEVICES.*simulated here, but not timed"
    ):
        bench.compare({"a": lambda i: None}, reference="a")


def test_importing_bench_imports_no_cuda() -> None:
    code = (
        "import sys, numpipe.bench; print({'cuda.bindings', 'numba', 'torch', 'pynvml'} & "
        "sys.modules.keys())"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert found.strip() == "set()"


def test_a_call_of_a_kernel_loads_no_tool(tmp_path: Path) -> None:
    script = tmp_path / "call.py"
    script.write_text("""
import sys, numpy as np, numpipe
@numpipe.kernel
def halves(x):
    x[numpipe.ds(0, 64), numpipe.ds(0, 64)] = numpipe.zeros((64, 64), np.float32) + 0.5
x = np.zeros((64, 64), np.float32)
halves(x, target="sim")
tools = ("numpipe.tools", "numpipe.bench")
print(x[0, 0], [name for name in sys.modules if name.startswith(tools)])
""")
    found = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, check=True
    ).stdout
    assert found.strip() == "0.5 []"
