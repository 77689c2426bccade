"""The benchmark of ops over rows on random shapes, without a GPU."""

from __future__ import annotations

import importlib
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "benchmarks"


@pytest.fixture(scope="module")
def program() -> Any:
    before = list(sys.path)
    sys.path.insert(0, str(FOLDER))
    yield importlib.import_module("random_rows")
    sys.path[:] = before


@pytest.mark.parametrize("part", ["large", "small"])
def test_cases_follow_the_seed_the_sizes_and_take_every_op_in_turn(program: Any, part: str) -> None:
    names, types = list(program.CONTESTS), list(program.DTYPES)
    cases = program.random_cases(part, 20 * len(names), 7, names, types)
    assert cases[:9] == program.random_cases(part, 9, 7, names, types)
    assert cases != program.random_cases(part, len(cases), 8, names, types)
    counts = Counter(case["op"] for case in cases)
    assert min(counts.values()) >= 20 and max(counts.values()) <= 22
    assert part == "small" or not program.ALONE & set(counts)
    for case in cases:
        height, columns = map(int, case["shape"].split(","))
        size = height * columns * (4 if case["type"] == "f32" else 2)
        assert size >= 8 << 20 if part == "large" else size <= 1 << 20
        assert case["op"] != "rotary" or not (height % program.HEADS or columns % 2)


def test_ours_and_pytorchs_ops_agree_with_float64(
    program: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setenv("NUMPIPE_TARGET", "sim")
    monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "0")
    monkeypatch.setattr(program.rows, "DEVICE", "cpu")
    for name, contest in program.CONTESTS.items():
        inputs, outs = program.rows.buffers(contest, 16, 66, torch.float32)
        contest.ours(*inputs, *outs)()
        exact = program.exact_of(contest, inputs)
        tolerance = 0.04 if "quantize" in name else program.ERRORS["f32"]
        results = [outs]
        if "norm_backward" not in name:  # PyTorch's needs a GPU
            results.append(contest.theirs(*inputs)())
        for each in results:
            assert program.relative_error(program.squares(name, each, exact)) < tolerance, name
