"""numpipe.autotune on a GPU: compiled by workers, measured and cached; and the product whose config
the model selects."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import gemm_tuned
import numpipe
from numpipe import bench
from numpipe.kernels.variants import Variant
from tests.kernels.tune_kernels import Config, product

QUICK = bench.Plan(load=0.05, rounds=5)


@pytest.fixture(autouse=True)
def own_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NUMPIPE_CACHE_DIR", str(tmp_path))


def integers(rows: int, columns: int) -> np.ndarray:
    return np.random.default_rng(rows).integers(-3, 4, (rows, columns)).astype(np.float16)


def test_the_winner_is_measured_once_and_its_kernel_computes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    a, b = integers(1000, 520), integers(776, 520)
    compiled, build = [], Variant._build
    monkeypatch.setattr(Variant, "_build", lambda *args: compiled.append(args) or build(*args))
    space = {"narrow": Config(64, 4), "wide": Config(128, 4), "huge": Config(128, 40)}
    tuned = numpipe.autotune(product, space, a, b, plan=QUICK)
    assert (
        set(tuned.seconds) == {"narrow", "wide"}
        and "shared memory" in tuned.skipped["huge"]
        and tuned.measured
    )
    assert all(1e-7 < seconds < 1e-2 for seconds in tuned.seconds.values())
    assert not compiled, "workers compile"
    c = np.asarray(tuned.kernel(numpipe.to_device(a), numpipe.to_device(b), target="gpu"))
    np.testing.assert_array_equal(
        c, (a.astype(np.float32) @ b.astype(np.float32).T).astype(np.float16)
    )
    assert not compiled, "code of the workers is launched"

    again = numpipe.autotune(product, space, a, b, plan=QUICK)
    assert not again.measured and again.seconds == tuned.seconds and again.skipped == tuned.skipped


def test_the_tuner_keeps_a_slow_candidate_from_winning() -> None:
    a, b = (numpipe.to_device(integers(2048, 1024)) for _ in range(2))
    tuned = numpipe.autotune(
        product, {"one slot": Config(64, 1), "four slots": Config(128, 4)}, a, b, plan=QUICK
    )
    assert (
        tuned.name == "four slots" and tuned.seconds["one slot"] > 1.2 * tuned.seconds["four slots"]
    )


@pytest.mark.parametrize("shape", [(1024, 4096, 1024), (300, 200, 136)])
def test_the_product_with_the_chosen_config_is_right(shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    a, b = integers(m, k), integers(n, k)
    c = gemm_tuned.matmul(a, b, target="gpu")
    np.testing.assert_array_equal(
        c, (a.astype(np.float32) @ b.astype(np.float32).T).astype(np.float16)
    )
