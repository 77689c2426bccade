"""The benchmark of gradients without a GPU: both sides compute the same, and bad rows are
rejected."""

from __future__ import annotations

import importlib
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from numpipe import bench

torch = pytest.importorskip("torch")
FOLDER = Path(__file__).resolve().parents[2] / "examples" / "benchmarks"


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])
    monkeypatch.setenv("NUMPIPE_TARGET", "sim")
    monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "0")
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda _: types.SimpleNamespace(L2_cache_size=1 << 12)
    )
    return importlib.import_module("torch_gradients")


def measured(program: Any, monkeypatch: pytest.MonkeyPatch, of: str) -> tuple[Any, dict[str, Any]]:
    """Return the entry of a row whose competitors run once, and what each of them computed."""
    done: dict[str, Any] = {}
    monkeypatch.setattr(
        bench,
        "compare",
        lambda calls, **_: done.update({name: call(1) for name, call in calls.items()}) or [],
    )
    options = program.parse(["--shapes", "40,72,24", "--of", of, "--dtype", "bf16"])
    return program.measure(
        0, {"shape": "40,72,24", "of": of, "dtype": "bf16"}, options, device="cpu"
    ), done


@pytest.mark.parametrize("of", ["product", "layer"])
def test_both_sides_of_a_row_compute_the_same(
    program: Any, monkeypatch: pytest.MonkeyPatch, of: str
) -> None:
    entry, done = measured(program, monkeypatch, of)
    assert entry["work"] == 6e-12 * 40 * 72 * 24 and bool(entry["errors"]) == (of == "product")
    for ours, theirs in zip(done[program.OURS], done[program.REFERENCE], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=2e-2, atol=2e-2)


def test_a_wrong_gradient_gives_no_row(program: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    real = program.steps
    monkeypatch.setattr(
        program, "steps", lambda of: real(of) | {program.OURS: lambda x, w, bias: x @ (w.T * 1.01)}
    )
    with pytest.raises(AssertionError, match="numpipe: errors"):
        measured(program, monkeypatch, "product")


def test_only_known_cases_can_be_measured(program: Any) -> None:
    assert program.parse([]).of == ["product", "layer"]
    with pytest.raises(SystemExit):
        program.parse(["--of", "sum"])
