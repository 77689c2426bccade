"""Tiles cut along K within clusters, on the hardware: right at every edge, the same bits each time, nothing hangs."""

from __future__ import annotations

import dataclasses

import ml_dtypes
import numpy as np
import pytest
from kernels_for_tests import operands
from split_kernels import InCluster, exchanged

import gemm_tuned
import numpipe
from numpipe import CompilerParams
from numpipe.launch import DeviceArray

pytestmark = pytest.mark.gpu
pytest.importorskip("cuda.bindings", reason="the CUDA wheels are not installed")
REPEATS = 20
F16, BF16 = np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)
CONFIGS = {
    "two": InCluster(2, 128, 128, 64, 5, wgs=2), "three": InCluster(3, 64, 48, 64, 4), "four": InCluster(4, 128, 64, 64, 4, wgs=2),
    "eight": InCluster(8, 128, 128, 64, 3, wgs=2), "wide": InCluster(2, 128, 256, 64, 2, wgs=2),
    "in turns": InCluster(2, 64, 128, 64, 4, "pingpong", 2), "four in turns": InCluster(4, 64, 64, 64, 4, "pingpong", 3),
}
SHAPES = ((128, 1024, 8192), (1000, 776, 200), (1, 8, 8), (257, 4096, 64), (3000, 3000, 704), (17, 2000, 0), (512, 512, 4096))


@pytest.mark.parametrize("dtype", [F16, BF16], ids=["f16", "bf16"])
@pytest.mark.parametrize("name", CONFIGS)
def test_products_are_exact_at_every_edge(name: str, dtype: np.dtype) -> None:
    for m, n, k in SHAPES:  # many tiles a cluster, fewer steps than CTAs, none at all
        a, b = operands(m, n, k, dtype)
        exact = (a.astype(np.float32) @ b.astype(np.float32).T).astype(dtype)  # sums of small integers
        found = exchanged(CONFIGS[name])(a, b, target="gpu")
        np.testing.assert_array_equal(found.astype(np.float32), exact.astype(np.float32), err_msg=str((m, n, k)))


@pytest.mark.parametrize("name", CONFIGS)
def test_sums_have_the_same_bits_every_time(name: str) -> None:
    rng = np.random.default_rng(0)
    for m, n, k in ((512, 4096, 4096), (640, 3000, 1000)):
        a, b = (rng.standard_normal((rows, k), np.float32).astype(BF16) for rows in (m, n))
        x, y = DeviceArray.from_host(a), DeviceArray.from_host(b)
        kernel = exchanged(CONFIGS[name])
        first = kernel(x, y, out=DeviceArray.from_host(np.full((m, n), np.nan, BF16))).copy_to_host()
        rows = slice(0, m, 16)
        exact = a[rows].astype(np.float64) @ b.astype(np.float64).T
        assert np.linalg.norm(first[rows].astype(np.float64) - exact) < 2.5e-3 * np.linalg.norm(exact)
        for _ in range(REPEATS - 1):
            c = DeviceArray.from_host(np.full((m, n), np.nan, BF16))
            np.testing.assert_array_equal(kernel(x, y, out=c).copy_to_host().view(np.uint16), first.view(np.uint16))


def test_a_thousand_launches_follow_each_other_at_once() -> None:
    """A CTA of the next kernel starts where one of the last has just left: its buffer and barriers are its own."""
    a, b = operands(300, 700, 1000, F16)
    exact = (a.astype(np.float32) @ b.astype(np.float32).T).astype(F16)
    x, y = DeviceArray.from_host(a), DeviceArray.from_host(b)
    outputs = [DeviceArray((300, 700), F16) for _ in range(4)]
    for name in ("two", "in turns"):
        for i in range(1000):
            exchanged(CONFIGS[name])(x, y, out=outputs[i % 4])
        for c in outputs:
            np.testing.assert_array_equal(c.copy_to_host(), exact)


@pytest.mark.parametrize("jitter", [1, 2, 3])
@pytest.mark.parametrize("name", ["two", "four", "in turns"])
def test_late_warpgroups_change_nothing(name: str, jitter: int) -> None:
    a, b = operands(1000, 776, 520, F16)
    kernel = exchanged(CONFIGS[name])
    made = numpipe.Kernel(kernel.function, dataclasses.replace(
        kernel.options, compiler_params=CompilerParams(debug=True, jitter=jitter)))
    for _ in range(3):
        np.testing.assert_array_equal(made(a, b, target="gpu"), (a.astype(np.float32) @ b.astype(np.float32).T).astype(F16))


TUNED = {name: cfg for name, cfg in gemm_tuned.CONFIGS.items() if cfg.split == "cluster"} | {
    "skinny": gemm_tuned.Config(128, 64, slots=7, panels=1, split="cluster", cluster=2, skinny=True),
    "four": gemm_tuned.Config(128, 128, slots=4, panels=1, split="cluster", cluster=4),
    "in turns": gemm_tuned.Config(64, 128, slots=4, panels=1, schedule="pingpong", split="cluster", cluster=2)}


@pytest.mark.parametrize("name", TUNED)
def test_the_tuned_product_cut_along_k_in_clusters(name: str) -> None:
    """With its epilogue, batches and layouts, of which each CTA has its share of the columns."""
    cfg = TUNED[name]
    for m, n, k in ((300, 520, 1032), (40, 1000, 3000)):
        a, b = operands(m, n, k, BF16)
        c, bias = operands(m, n, n, BF16)[0], np.arange(n).astype(BF16)
        found = gemm_tuned.matmul(a, b, c, alpha=0.5, beta=2.0, bias=bias, activation="relu", cfg=cfg, target="gpu")
        x, y, z, v = (array.astype(np.float64) for array in (a, b, c, bias))
        np.testing.assert_allclose(found.astype(np.float64), np.maximum(0.5 * (x @ y.T) + 2 * z + v, 0), rtol=2**-8)
        batch = gemm_tuned.matmul(np.stack([a, a[::-1]]), b, cfg=cfg, target="gpu")
        for plane, rows in zip(batch, (a, a[::-1]), strict=True):
            np.testing.assert_array_equal(plane, (rows.astype(np.float32) @ b.astype(np.float32).T).astype(BF16))
        np.testing.assert_array_equal(gemm_tuned.matmul(a, np.asfortranarray(b), cfg=cfg, target="gpu"),
                                      (a.astype(np.float32) @ b.astype(np.float32).T).astype(BF16))
