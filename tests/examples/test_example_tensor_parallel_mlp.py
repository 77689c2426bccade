"""examples/tensor_parallel_mlp.py on simulated GPUs.

On real GPUs it runs in tests/gpu/test_many_gpu_ops_on_gpu.py.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import tensor_parallel_mlp as example

import numpipe

EXAMPLE = Path(example.__file__)


@pytest.fixture(autouse=True)
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "0")


def test_it_runs_on_simulated_gpus(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE)])
    example.main()
    assert capsys.readouterr().out.startswith("2 simulated GPUs: errors against float64: y 0.00")


def test_parts_that_are_not_added_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def alone(a: list, b: list, mesh: numpipe.Mesh) -> list:
        return [
            example.shards(x @ y, mesh.size, 0)[gpu]
            for gpu, (x, y) in enumerate(zip(a, b, strict=True))
        ]

    monkeypatch.setattr(numpipe.ops, "matmul_reduce_scatter", alone)
    assert example.simulated() > 0.3
