"""examples/train_transformer.py with both kinds of attention."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
train_transformer = pytest.importorskip("train_transformer")


def test_losses_of_both_fall_alike(
    target: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(train_transformer, "DEVICE", "cuda" if target == "gpu" else "cpu")
    monkeypatch.setenv("NUMPIPE_TARGET", target)
    monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "0")
    sizes = {
        "layers": 1,
        "width": 64,
        "depth": 32,
        "batch": 4,
        "tokens": 40,
        "steps": 3,
        "seeds": 1,
    }
    given = [part for name, size in sizes.items() for part in (f"--{name}", str(size))]
    curves = train_transformer.compare(train_transformer.parsed(*given))
    ours, theirs = (curves[name][0] for name in ("Ours", "SDPA"))
    assert ours[-1] < ours[0] - 0.1 and ours == pytest.approx(theirs, abs=2e-3)
    assert "x the speed" in capsys.readouterr().out


def test_a_text_repeats_the_values_of_its_variables() -> None:
    (text,) = train_transformer.documents(1, 5 * 400, torch.Generator().manual_seed(0))
    pairs = [pair.split("=") for pair in bytes(text.tolist()).decode().split()]
    assert len(pairs) == 400 and len(set(map(tuple, pairs))) == len(dict(pairs)) <= 52
