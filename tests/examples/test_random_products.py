"""The benchmarks of random products and layouts without a GPU: their rows, the checks of a row, and
the verdict on the goals."""

from __future__ import annotations

import importlib
import json
import math
import random
import sys
import types
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from numpipe import bench

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "benchmarks"


@pytest.fixture(scope="module")
def folder() -> Any:
    """Put the benchmarks' folder on the path, as when they run."""
    before = list(sys.path)
    sys.path.insert(0, str(FOLDER))
    yield FOLDER
    sys.path[:] = before


@pytest.fixture(scope="module")
def program(folder: Path) -> Any:
    return importlib.import_module("random_products")


@pytest.fixture(scope="module")
def rows(folder: Path) -> Any:
    return importlib.import_module("product_rows")


@pytest.fixture(scope="module")
def layouts(folder: Path) -> Any:
    return importlib.import_module("random_layouts")


# ---- rows
@pytest.mark.parametrize("distribution", ["log", "uniform"])
def test_random_products_follow_the_seed_the_grid_and_the_distribution(
    rows: Any, distribution: str
) -> None:
    found = rows.random_rows(2000, 7, distribution)
    assert found[:50] == rows.random_rows(50, 7, distribution) and found != rows.random_rows(
        2000, 8, distribution
    )
    assert all(
        1 <= m <= 11_000 and n % 8 == k % 8 == 0 and max(n, k) <= 16_384 for m, n, k in found
    )
    assert np.median([m for m, _, _ in found]) == pytest.approx(math.sqrt(11_000), rel=0.2)
    middle = math.sqrt(64 * 16_384) if distribution == "log" else 8192
    assert np.median([side for _, n, k in found for side in (n, k)]) == pytest.approx(
        middle, rel=0.15
    )


def test_products_off_the_grid_have_rows_that_do_not_begin_at_16_bytes(rows: Any) -> None:
    assert all(n % 8 or k % 8 for _, n, k in rows.off_grid_rows(300, 7))


def test_layers_of_three_models_are_there_at_all_sizes_and_once_each(rows: Any) -> None:
    found = rows.layer_rows()
    assert (
        len({row for row in found}) == len(found)
        and len({name.split()[0] for name in found.values()}) == 3
    )
    assert (
        found[64, 6144, 4096] == "Llama-3.1-8B qkv"
        and found[1, 37_888, 3584] == "Qwen2.5-7B gate+up"
    )
    assert {m for m, _, _ in found} == set(rows.ROWS_OF_LAYERS)


def test_column_major_rows_have_odd_sides_from_2048_on(rows: Any) -> None:
    cases = rows.cases(["columns"], ["f16"], count=1, seed=7)
    assert len(cases) == 16 and all(case["stored"] == "km,kn" for case in cases)
    assert all(side % 2 and 2048 < side < 8192 for case in cases for side in rows.dimensions(case))


def test_rows_are_chosen_by_kind_type_and_shape(
    program: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    options = program.parse(
        [
            "--rows",
            "random,squares",
            "--count",
            "5",
            "--seed",
            "7",
            "--dtype",
            "bf16,f16",
            "--stored",
            "mk,kn",
        ]
    )
    assert len(options.cases) == 2 * (5 + len(program.product_rows.SQUARES))
    assert options.cases[-1] == {
        "shape": "2048,2048,2048",
        "dtype": "f16",
        "of": "squares",
        "stored": "mk,kn",
    }
    assert program.parse(["--shapes", "1,2,3"]).cases == [
        {"shape": "1,2,3", "dtype": "bf16", "of": "asked for"}
    ]
    assert len(program.parse(["--count", "3", "--rows", "random", "--shapes", "1,2,3"]).cases) == 4
    assert len(program.parse([]).cases) >= 199 and program.parse([]).seed != program.parse([]).seed
    for arguments, said in (
        (["--rows", "spiral"], "unknown rows ['spiral']"),
        (["--shapes", "1,2"], "not enough values"),
        (["--shapes", "1,2,0"], "'1,2,0' is not M,N,K"),
        (["--dtype", "f8"], "--dtype ['f8']"),
    ):
        with pytest.raises(SystemExit):
            program.parse(arguments)
        assert said in capsys.readouterr().err


def test_the_seed_that_is_drawn_is_handed_to_the_processes_that_measure(
    program: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["random_products.py", "--count", "2"])
    drawn = program.parse().seed
    assert sys.argv[-2:] == ["--seed", str(drawn)] and program.parse().seed == drawn


# ---- verdict
def row(
    shape: str, ratio: float, of: str = "random", name: str = "numpipe", error: float = 1.0
) -> bench.Row:
    figure = bench.Figure(ratio, ratio - 0.01, ratio + 0.01, 3)
    return bench.Row(
        {"shape": shape, "dtype": "bf16", "of": of},
        "sweep",
        name,
        "cuBLAS",
        100 * ratio,
        100.0,
        figure,
        bench.figure([1.0]),
        {},
        work=1e-3,
        error=1.7e-3 * error,
        reference_error=1.7e-3,
    )


def told(text: str, kind: str, what: str) -> str:
    """Return the line of the verdict on a kind of product."""
    lines = text.splitlines()
    begin = next(i for i, line in enumerate(lines) if line.startswith(kind))
    return (
        " ".join(next(line for line in lines[begin:] if what in line).split())
        .partition(what)[2]
        .strip()
    )


def test_a_goal_is_met_by_the_mean_the_share_and_the_least_row(rows: Any) -> None:
    many = [row(f"{i},8,8", 1.02) for i in range(24)]
    text = rows.verdict([*many, row("99,8,8", 0.85)], "numpipe")
    assert told(text, "random bf16 (25)", "geometric mean") == "1.00 met 1.05 not reached 1.013"
    assert told(text, "random bf16", "share below 0.90") == "4 % met 4.0 %"
    assert told(text, "random bf16", "least") == "0.70 met 0.90 not reached 0.850"
    assert told(text, "random bf16", "largest error / reference's") == "1.05 met 1.000"
    text = rows.verdict(
        [row("1,8,8", 0.6), row("2,8,8", 0.8, error=1.2), row("3,8,8", 0.92, "squares")], "numpipe"
    )
    assert told(text, "random", "geometric mean") == "1.00 missed 1.05 not reached 0.693"
    assert told(text, "random", "share below 0.90") == "4 % missed 100.0 %"
    assert told(text, "random", "least") == "0.70 missed 0.90 not reached 0.600"
    assert told(text, "random", "largest error / reference's") == "1.05 missed 1.200"
    assert told(text, "squares", "least") == "0.93 met 0.920"  # by the upper end of its interval
    assert (
        rows.verdict([row("1,8,8", 1.0, name="skinny")], "numpipe")
        == "no row of numpipe was measured"
    )


def test_a_file_of_all_configs_has_a_line_for_each_to_fit_a_model_by(
    program: Any, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    measured = [row("1,8,16", 0.5), row("1,8,16", 0.8, name="Config(tm=64)")]
    machine = {"device": {"name": "a GPU", "sms": 7, "bandwidth": 2e12}}
    text = program.fit_lines(types.SimpleNamespace(machine=machine, rows=measured))
    gpu, *lines = [json.loads(line) for line in text.splitlines()]
    assert gpu == {"gpu": "a GPU", "sms": 7, "bandwidth": 2e12}
    assert [(line["config"], line["shape"]) for line in lines] == [
        ("numpipe", [1, 8, 16]),
        ("cuBLAS", [1, 8, 16]),
        ("Config(tm=64)", [1, 8, 16]),
    ]
    assert lines[0]["chosen"] == program.spell(program.op_configs.choose(1, 8, 16))
    assert {line["protocol"] for line in lines} == {"sweep"}
    assert lines[0]["seconds"] == pytest.approx(2e-5) and lines[2]["seconds"] == pytest.approx(
        1.25e-5
    )
    times = {"numpipe": [2e-5], "cuBLAS": [1e-5], "cuBLAS again": [1e-5], "Config(tm=64)": [1e-5]}
    runs = [
        bench.run_entry(0, row("1,8,16", 1).case, 1e-3, [bench.Sample("sweep", "cuBLAS", 1, times)])
    ]
    bench.Result("random_products", machine, {}, runs).write(tmp_path / "r.json")
    monkeypatch.setattr(
        sys, "argv", ["x", "--read", str(tmp_path / "r.json"), "--fit", str(tmp_path / "fit.jsonl")]
    )
    assert program.main() == 0
    assert (
        "the choice over the best config: geometric mean 0.500, least 0.500"
        in capsys.readouterr().out
    )
    assert len((tmp_path / "fit.jsonl").read_text(encoding="utf8").splitlines()) == 4


# ---- checks of a row, on the CPU
@pytest.fixture
def on_cpu(program: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(program, "DEVICE", "cpu")
    monkeypatch.setenv("NUMPIPE_TARGET", "sim")
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 0)
    card = types.SimpleNamespace(
        total_memory=1 << 36, L2_cache_size=20_000, multi_processor_count=4
    )
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: card)
    return program


@pytest.mark.parametrize("stored", ["mk,nk", "km,kn"])
def test_a_row_is_verified_on_poisoned_outputs_of_all_sets(on_cpu: Any, stored: str) -> None:
    contest = on_cpu.contest(0, {"shape": "9,40,72", "dtype": "bf16", "stored": stored})
    assert contest.sets == 7 and contest.place == {
        "M": 9,
        "N x K": 2880,
        "flops a byte": pytest.approx(20 / 3),
    }
    contest.poison()
    for call in contest.competitors.values():
        call(0)
        call(9)  # set 1
    errors = contest.verify()["errors"]
    assert 0 < errors["numpipe"] < 4e-3 and 0 < errors["cuBLAS"] < 4e-3
    contest.check()


def test_wrong_missing_changed_and_stray_elements_fail_a_row(
    on_cpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    wrong = {"at": None}

    def matmul(a: Any, b: Any, out: Any) -> None:
        torch.mm(a, b, out=out)
        if wrong["at"] == "element":
            out[8, 39] += 3
        if wrong["at"] == "missing":
            out[8, 39] = math.nan
        if wrong["at"] == "beside":
            out.as_strided((1,), (1,), out.storage_offset() + out.numel())[0] = 0
        if wrong["at"] == "bits":
            out[0, 0] *= -1

    monkeypatch.setattr(on_cpu.OP, "matmul", matmul)
    contest = on_cpu.contest(0, {"shape": "9,40,72", "dtype": "bf16"})

    def run(at: str | None) -> None:
        wrong["at"] = at
        contest.poison()
        for call in contest.competitors.values():
            call(0)

    run(None)
    contest.verify()
    contest.check()
    for at, said in (
        ("missing", "left elements of"),
        ("beside", "wrote outside its output"),
        ("bits", "gave other bits"),
    ):
        run(at)
        with pytest.raises(AssertionError, match=said):
            contest.check()
    for at in ("element", "missing", "bits"):
        run(at)
        with pytest.raises(AssertionError, match="differs from cuBLAS'"):
            contest.verify()
    contest.poison()
    with pytest.raises(AssertionError, match="left elements"):
        contest.check()


def test_a_sweep_holds_the_buffers_of_one_row_at_a_time(
    on_cpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    made: list[Any] = []

    class Remembered(on_cpu.Buffers):  # type: ignore[misc, name-defined]
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            made.append(weakref.ref(self.flat))

    alive: list[int] = []

    def make(process: int, case: Any) -> Any:
        alive.append(sum(each() is not None for each in made))
        return on_cpu.contest(process, case)

    monkeypatch.setattr(on_cpu, "Buffers", Remembered)
    monkeypatch.setattr(on_cpu.OP, "matmul", lambda a, b, out: torch.mm(a, b, out=out))
    monkeypatch.setattr(bench.EventTimer, "__init__", lambda self: None)
    for name, short in (
        ("measure", lambda self, call, calls, first: call(first)),
        ("seconds", lambda self, handle: 1e-5),
        ("megahertz", lambda self, handle: None),
        ("synchronize", lambda self: None),
    ):
        monkeypatch.setattr(bench.EventTimer, name, short)
    sweeps = sys.modules[on_cpu.harness.Contest.__module__]
    sweep = sweeps.Sweep(
        make,
        reference="cuBLAS",
        plan=sweeps.SweepPlan(load=0, reload=0, rounds=3),
        timer=bench.EventTimer(),
        capture=lambda first, work: work,
        load={"shape": "8,8,8", "dtype": "bf16"},
    )
    for shape in ("9,40,72", "16,16,16", "1,8,8"):
        entry = sweep(0, {"shape": shape, "dtype": "bf16"})
        assert "failed" not in entry and entry["graph"] >= 40 and entry["rotation_sets"] > 1, entry
    monkeypatch.setattr(on_cpu, "ERROR", 0)
    assert "relative error" in sweep(0, {"shape": "9,40,72", "dtype": "bf16"})["failed"]
    sweep(0, {"shape": "1,8,8", "dtype": "bf16"})
    assert alive == [0] * 6 and len(made) == 24


def test_configs_that_fit_the_row_are_next_to_the_chosen_one(
    on_cpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from numpipe.errors import SpecError

    refused = on_cpu.op_configs.choose(9, 40, 72)

    def matmul(a: Any, b: Any, out: Any = None, config: Any = None) -> None:
        if config == refused:
            raise SpecError("too large")

    monkeypatch.setattr(on_cpu.OP, "matmul", matmul)
    names = list(on_cpu.configs(9, 40, 72, 6))
    found = list(on_cpu.contest(0, {"shape": "9,40,72", "dtype": "f16"}, space=6).competitors)
    assert len(names) == 6 and found == ["numpipe", *names[1:], "cuBLAS"]


def test_configs_of_the_space_have_names_that_python_reads(program: Any) -> None:
    found = program.configs(377, 13712, 8152, space=4)
    assert len(found) == 4 and all(
        eval(name, vars(program.op_configs)) == config for name, config in found.items()
    )
    assert program.configs(377, 13712, 8152, space=0) == {}
    keys = {
        program.kernels_of(
            {"shape": "8,8,8", "dtype": "bf16", "config": program.dataclasses.asdict(config)}
        )
        for config in found.values()
    }
    assert len(keys) == len(found)


# ---- layouts
def test_layouts_are_windows_of_all_kinds_and_each_number_has_its_own(layouts: Any) -> None:
    found = [layouts.product(7, number, "numpy", 60) for number in range(300)]
    assert found[12] == layouts.product(7, 12, "numpy", 60) and found[12] != layouts.product(
        8, 12, "numpy", 60
    )
    arrays = [spec for one in found for spec in one.layouts.values()]
    assert {step for spec in arrays for step in spec.steps} == {-3, -2, -1, 0, 1, 2, 3}
    assert {spec.offset for spec in arrays} == {0, 1, 2, 3, 7, 8, 16}
    assert any(spec.order != tuple(sorted(spec.order)) for spec in arrays)
    assert {name for one in found for name in one.layouts} == {"a", "b", "c", "bias", "out"}
    assert all(0 not in one.layouts["out"].steps for one in found if "out" in one.layouts)
    assert all(
        min(spec.steps) >= 0
        for n in range(100)
        for spec in layouts.product(7, n, "torch", 60).layouts.values()
    )
    assert {layouts.product(7, number, "both", 60).library for number in range(20)} == {
        "torch",
        "cupy",
    }


def test_a_window_has_the_elements_of_its_layout(layouts: Any) -> None:
    draw = random.Random(0)
    for _ in range(200):
        shape = tuple(draw.choice([1, 2, 5]) for _ in range(draw.choice([1, 2, 3])))
        spec = layouts.layout(draw, shape)
        memory = np.arange(spec.memory)
        window = spec.window(memory)
        assert window.shape == shape and np.shares_memory(window, memory)
        assert len(np.unique(window)) == math.prod(
            size for size, step in zip(shape, spec.steps, strict=True) if step
        )


def test_a_wrong_result_and_one_written_elsewhere_are_reported(
    layouts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = {"seed": 3, "library": "numpy", "most": 30}
    number = next(
        n
        for n in range(99)
        if (one := layouts.product(3, n, "numpy", 30)).layouts.keys() == {"a", "b", "out"}
        and one.layouts["out"].memory > math.prod(one.layouts["out"].shape) + 20
        and len(one.layouts["out"].shape) > 1
    )
    broken: dict[str, Any] = {"by": None}

    def matmul(a: Any, b: Any, c: Any = None, *, out: Any, **_: Any) -> Any:
        out[...] = np.matmul(a.astype(np.float64), b.astype(np.float64))
        if broken["by"] == "element":
            out.flat[0] *= 1.1
        if broken["by"] == "beside":
            out.base[np.isnan(out.base.astype(np.float32))] = 0 if out.base.ndim == 1 else 1
        return out

    monkeypatch.setattr(layouts.ops, "matmul", matmul)
    layouts.check(case | {"number": number})
    for by, said in (
        ("element", "elements are off, first"),
        ("beside", "elements outside the output were written"),
    ):
        broken["by"] = by
        with pytest.raises(AssertionError, match=said):
            layouts.check(case | {"number": number})


@pytest.mark.variants(0, thorough=5)
@pytest.mark.parametrize("number", range(20))
def test_layouts_are_right_on_the_simulated_sm(layouts: Any, number: int) -> None:
    layouts.check({"seed": 5, "number": number, "library": "numpy", "most": 40})


# ---- attention
@pytest.fixture(scope="module")
def attention(folder: Path) -> Any:
    return importlib.import_module("random_attention")


def test_random_attention_has_lengths_depths_masks_and_shared_heads_of_the_seed(
    attention: Any,
) -> None:
    cases = attention.random_cases(300, 7, ["bf16"])
    assert cases[:20] == attention.random_cases(20, 7, ["bf16"]) and len(cases) == 300
    shapes = [attention.shape_of(case["shape"]) for case in cases]
    assert all(
        attention.spell(shape) == case["shape"] for shape, case in zip(shapes, cases, strict=True)
    )
    assert {shape[5] for shape in shapes} == {64, 128, 256} and {
        case["mask"] for case in cases
    } == {"full", "causal"}
    assert all(32 <= length <= 11_000 for shape in shapes for length in shape[3:5])
    assert (
        sum(shape[1] != shape[2] for shape in shapes) > 60
        and sum(shape[3] != shape[4] for shape in shapes) > 20
    )
    assert all(
        shape[3] == shape[4]
        for shape, case in zip(shapes, cases, strict=True)
        if case["mask"] == "causal"
    )
    assert max(attention.nbytes(shape) for shape in shapes) < 4 << 30
    assert (
        attention.flops((1, 1, 1, 3, 2, 64), True) == 4 * 64 * 5
        and attention.flops((1, 2, 1, 3, 2, 64), False) == 4 * 64 * 12
    )


def test_shapes_of_attention_are_asked_for_and_others_refused(
    attention: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    options = attention.parse(
        ["--shapes", "2,28/4,1777,128", "1,8/8,7:9,64", "--masks", "causal", "--dtype", "f16"]
    )
    assert [case["shape"] for case in options.cases] == ["2,28/4,1777,128", "1,8,7:9,64"]
    for arguments, said in (
        (["--shapes", "1,8/3,9,64"], "heads that are a multiple"),
        (["--masks", "window"], "--masks ['window']"),
    ):
        with pytest.raises(SystemExit):
            attention.parse(arguments)
        assert said in capsys.readouterr().err


@pytest.mark.parametrize("causal", [True, False])
def test_wrong_attention_fails_its_row(
    attention: Any, on_cpu: Any, causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    wrong = [1.0]

    def ours(q: Any, k: Any, v: Any, causal: bool, out: Any) -> None:
        out.copy_(
            torch.nn.functional.scaled_dot_product_attention(
                q, k, v, is_causal=causal, enable_gqa=True
            )
        )
        out[1, 5, 8, 3] *= wrong[0]
        out[1, 5, 8, 3] += wrong[0] - 1

    class Theirs(attention.Cudnn):  # type: ignore[misc, name-defined]
        def __call__(self, i: int) -> None:
            i %= len(self.sets)
            attend = torch.nn.functional.scaled_dot_product_attention
            self.outs[i] = attend(*self.sets[i], is_causal=self.causal, enable_gqa=True)

    monkeypatch.setitem(sys.modules, "numpipe.ops.attention", types.SimpleNamespace(attention=ours))
    case = {"shape": "2,6/3,9,64", "mask": "causal" if causal else "full", "dtype": "bf16"}
    contest = attention.contest(0, case, Theirs)

    def run(value: float) -> None:
        wrong[0] = value
        contest.poison()
        for call in contest.competitors.values():
            call(0)

    run(1.0)
    assert 0 < contest.verify()["errors"]["numpipe"] < 5e-3
    contest.check()
    for value in (1.5, math.nan):
        run(value)
        with pytest.raises(AssertionError, match="differs from cuDNN's"):
            contest.verify()
        with pytest.raises(AssertionError, match="gave other bits|left elements"):
            contest.check()
