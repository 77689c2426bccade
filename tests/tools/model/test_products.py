"""numpipe.explain of matrix products: how their time depends on sizes and configs."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import gemm_tuned
import numpipe
from numpipe import ArrayType
from numpipe.model import H200, Explanation
from tests.kernels import split_kernels

BF16 = np.dtype(ml_dtypes.bfloat16)
BEST = gemm_tuned.CONFIGS["cooperative 128x256"]
explain = functools.partial(numpipe.explain, compiled=False)


def product(shape: tuple[int, ...], cfg: gemm_tuned.Config = BEST, **options: Any) -> Explanation:
    """Explain a product of float16, of (M, N, K) or of a batch of them (M, N, K, B)."""
    m, n, k, *batches = shape
    a, b = ArrayType((*batches, m, k), np.float16), ArrayType((*batches, n, k), np.float16)
    form = gemm_tuned.Form("bmk", "bnk") if batches else gemm_tuned.Form()
    return explain(gemm_tuned.kernel(cfg, form), a, b, **options)


def test_more_work_takes_longer() -> None:
    def seconds(*shape: int, **change: Any) -> float:
        return product(shape, dataclasses.replace(BEST, **change)).predicted_seconds

    best = seconds(4096, 4096, 4096)
    assert seconds(4096, 4096, 4096, slots=1) > 1.3 * best  # tiles arrive late
    assert seconds(4096, 4096, 4096, tn=64) > 1.2 * best  # L2
    assert seconds(4096, 4096, 8192) > 1.9 * best
    # waves
    assert seconds(17 * 128, 8 * 256, 4096) > 1.7 * seconds(16 * 128, 8 * 256, 4096)
    large = 8192, 8192, 16384
    row_by_row = product(large, dataclasses.replace(BEST, group=1))
    assert row_by_row.hbm_bytes > 1.5 * product(large).hbm_bytes


def test_a_warpgroup_whose_tile_is_the_only_one_stores_it_with_half_of_the_lanes() -> None:
    cfg = gemm_tuned.CONFIGS["ping-pong 64x256"]

    def storing(tiles: int) -> float:
        """Return the cycles of the longest SM that are spent on stores."""
        found = [
            product(
                (64 * tiles, 256, 640),
                cfg,
                clock=1000.0,
                device=dataclasses.replace(H200, sms=1, work_rate=rate, latency=0, hbm_latency=0),
            ).limits["longest SM"]
            for rate in (64, 64_000_000)
        ]
        return 1e9 * (found[0] - found[1])

    # twice what a warpgroup takes next to another one
    assert storing(1) == pytest.approx(2 * 64 * 256 * 2 / 64, rel=1e-3)
    assert storing(2) < storing(1)


def test_batches_are_as_many_products_in_one_launch() -> None:
    one, many = product((1024, 1024, 1024)), product((1024, 1024, 1024, 64))
    assert many.hbm_bytes == pytest.approx(64 * one.hbm_bytes, rel=0.05)
    assert many.limits["tensor cores"] > 60 * one.limits["tensor cores"]
    # 32 tiles leave most SMs idle, 2048 leave few
    assert many.predicted_seconds < 64 * one.predicted_seconds * 32 / 132 * 1.1


def test_few_tiles_are_quicker_when_they_are_cut() -> None:
    a, b = ArrayType((128, 16384), np.float16), ArrayType((512, 16384), np.float16)
    seconds = {
        split: explain(
            split_kernels.split_product(split_kernels.Config(split=split), 132), a, b
        ).predicted_seconds
        for split in (1, 4, "stream")
    }
    assert seconds["stream"] < 0.5 * seconds[1] and seconds[4] < 0.5 * seconds[1]


@pytest.mark.parametrize(
    "shape, microseconds",
    [((2, 96, 96), 1.55), ((5, 192, 240), 1.97), ((97, 64, 928), 2.75), ((3024, 1008, 72), 4.95)],
)
def test_a_product_of_microseconds_takes_as_long_as_measured(
    shape: tuple[int, int, int], microseconds: float
) -> None:
    """docs/results/products_h200_2026-11-27.json.gz and products_random_bf16_h200_2026-11-28*,
    back to back: launches overlap on SMs without work."""
    m, n, k = shape
    b = np.zeros((n, k), BF16).T
    told = numpipe.explain(numpipe.ops.matmul, ArrayType((m, k), BF16), b, compiled=False)
    assert 1e6 * told.predicted_seconds == pytest.approx(microseconds, rel=0.3)
