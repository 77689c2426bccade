"""examples/benchmarks/random_attention.py: which shapes it draws. It measures on a GPU."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "benchmarks"))

import random_attention

from flash_attention import shape_of


def test_a_seed_gives_the_same_shapes_however_many() -> None:
    few, many = (random_attention.parse(["--seed", "7", "--count", count]).cases for count in ("5", "60"))
    assert many[:5] == few and len({case["shape"] for case in many}) > 50
    assert random_attention.parse(["--seed", "8", "--count", "5"]).cases != few


def test_the_shapes_are_of_the_lengths_and_depths_asked_for_and_fit_a_gpu() -> None:
    cases = random_attention.parse(["--seed", "1", "--count", "200", "--lengths", "32,600", "--depths", "64,256"]).cases
    shapes = [shape_of(case["shape"]) for case in cases]
    assert {shape[4] for shape in shapes} == {64, 256} and {case["mask"] for case in cases} == {"full", "causal"}
    assert all(32 <= s <= 600 and h % shared == 0 for _, h, shared, s, _ in shapes)
    assert all(2 * b * h * s * d <= random_attention.LARGEST for b, h, _, s, d in shapes)
    assert any(shared < h for _, h, shared, _, _ in shapes)


@pytest.mark.parametrize("options, words", [
    (["--lengths", "600,32"], "the least and the most"), (["--depths", "96"], "choose from"),
    (["--lengths", "x,y"], "invalid literal")])
def test_what_cannot_be_is_refused(options: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        random_attention.parse(options)
    assert words in capsys.readouterr().err
