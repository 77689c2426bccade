"""The gallery's benchmark without a GPU: its kernel of two GPUs is checked on a simulated mesh."""

from __future__ import annotations

import importlib
import sys
import types
from pathlib import Path
from typing import Any

import make_gallery
import pytest

import numpipe
from examples.gallery import all_gather_matmul
from numpipe import bench

torch = pytest.importorskip("torch")
FOLDER = Path(__file__).resolve().parents[2] / "examples" / "benchmarks"


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])
    monkeypatch.setenv("NUMPIPE_TARGET", "sim")
    monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "0")
    return importlib.import_module("gallery")


@pytest.fixture
def measured(program: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that measures one call of each competitor on two simulated GPUs, and
    returns the entry and the waits of one GPU's stream for the other's."""
    waits = []

    class Stream:
        def __init__(self, gpu: int) -> None:
            self.gpu = gpu

        def wait_stream(self, other: Stream) -> None:
            waits.append((self.gpu, other.gpu))

    def compare(calls: Any, *, poison: Any, check: Any, **_: Any) -> list[bench.Sample]:
        poison()
        waits.clear()
        for call in calls.values():
            call(0)
        check("interleaved")
        return []

    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda _: types.SimpleNamespace(L2_cache_size=1 << 20)
    )
    monkeypatch.setattr(numpipe.Mesh, "local", lambda _: numpipe.Mesh.simulated(2))
    monkeypatch.setattr(program, "DEVICES", ("cpu", "cpu"))
    monkeypatch.setattr(bench, "compare", compare)
    monkeypatch.setitem(program.CASES, program.PAIR, lambda: program.all_gather_matmul(256))
    options = types.SimpleNamespace(protocols=["interleaved"], plan=None)
    return lambda: (program.measure(0, program.PAIR, options), waits)


def test_both_sides_of_the_product_on_two_gpus_are_right(measured: Any) -> None:
    entry, waits = measured()
    assert entry["case"]["gpus"] == 2 and entry["work"] == 2e-12 * 256**3
    assert entry["rotation_sets"] > 1 and set(entry["errors"]) == {"gallery", "op"}
    # each call begins on GPU 0 and ends when both GPUs have ended
    assert waits == [(1, 0), (0, 1)] * 2


@pytest.mark.parametrize(("lost", "value"), [(0, 0.0), (1, float("nan"))])
def test_rows_that_do_not_arrive_are_noticed(
    measured: Any, monkeypatch: pytest.MonkeyPatch, lost: int, value: float
) -> None:
    real = all_gather_matmul.multiply

    def multiply(rows: Any, b: Any, c: Any, *, mesh: Any) -> None:
        real(rows, b, c, mesh=mesh)
        (rows[0][1], rows[1][0])[lost].fill_(value)

    monkeypatch.setattr(all_gather_matmul, "multiply", multiply)
    with pytest.raises(AssertionError, match="all_gather_matmul, gallery: errors of outputs"):
        measured()


@pytest.mark.parametrize("gpus", [1, 2])
def test_the_product_on_two_gpus_is_left_out_on_one(
    program: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any, gpus: int
) -> None:
    kernels: list[str] = []

    def main(benchmark: str, cases: list[dict[str, str]], *_: Any, **__: Any) -> int:
        kernels.extend(case["kernel"] for case in cases)
        return 0

    monkeypatch.setattr(sys, "argv", ["gallery.py", "--of", f"softmax,{program.PAIR}"])
    monkeypatch.setattr(bench, "require_gpu", lambda: None)
    monkeypatch.setattr(program.harness, "cards", lambda: ["GPU"] * gpus)
    monkeypatch.setattr(program.harness, "main", main)
    assert program.main() == 0
    assert kernels == ["softmax", program.PAIR][:gpus]
    assert (f"{program.PAIR} is left out" in capsys.readouterr().out) == (gpus == 1)


def test_the_figure_of_two_gpus_replaces_the_one_before() -> None:
    file, case = "gallery_h200_2026-11-29_1.json.gz", {"what": "matrices", "unit": "TFLOPS"}
    row = {"reference": "op", "work": 1.0, "rate": 800.0, "ratio": {"median": 0.99}, "case": case}
    one = make_gallery.figure(file, row)
    two = make_gallery.figure(file, row | {"case": {**case, "gpus": 2}})
    assert one.startswith("On an H200: 1,250 µs") and two == one.replace("an H200", "two H200s")
    for text in one, two:
        page = f"## On a GPU\n\n{text}\nMore.\n"
        assert make_gallery._FIGURE.sub("", page) == "## On a GPU\n\n\nMore.\n"
