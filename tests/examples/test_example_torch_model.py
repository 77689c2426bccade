"""examples/torch_model.py with both sets of functions."""

from __future__ import annotations

import argparse

import pytest

pytest.importorskip("torch")
torch_model = pytest.importorskip("torch_model")

SIZES = {"layers": 2, "width": 64, "depth": 32, "vocabulary": 128, "batch": 2, "tokens": 24}


def test_losses_of_both_fall_alike(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_model, "DEVICE", "cuda" if target == "gpu" else "cpu")
    monkeypatch.setenv("NUMPIPE_TARGET", target)
    monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "0")
    options = argparse.Namespace(**SIZES, steps=4, compile=False)
    theirs, *_ = torch_model.train(torch_model.PyTorch, options)
    ours, *_ = torch_model.train(torch_model.Numpipe, options)
    assert ours[-1] < ours[0] - 0.1
    assert ours == pytest.approx(theirs, abs=1.2e-3)
