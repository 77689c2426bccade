"""examples/tensor_parallel_block.py on simulated GPUs."""

from __future__ import annotations

import pytest

import numpipe

pytest.importorskip("torch")
example = pytest.importorskip("tensor_parallel_block")


@pytest.fixture(autouse=True)
def simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "0")
    monkeypatch.setenv("NUMPIPE_TARGET", "sim")


def errors(gpus: int, split: bool) -> float:
    found = example.errors(numpipe.Mesh.simulated(gpus), split, (8 * gpus, gpus, 16 * gpus))
    assert len(found) == 6, "the result and the gradients of x and four weights"
    return max(found.values())


@pytest.mark.variants(1, thorough=3)
@pytest.mark.timeout(600)
@pytest.mark.parametrize("gpus", [2, 4])
@pytest.mark.parametrize("split", [False, True], ids=["all tokens", "tokens split"])
def test_results_and_gradients_match_float64(split: bool, gpus: int) -> None:
    assert errors(gpus, split) < 0.02


@pytest.mark.thorough
def test_parts_that_are_not_added_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        numpipe.torch,
        "matmul_all_reduce",
        lambda x, weight, mesh: [a @ b for a, b in zip(x, weight, strict=True)],
    )
    assert errors(2, False) > 0.3
