"""Tiles split along K within clusters, on the GPU: right at every edge, with reproducible bits and
no hangs."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import gemm_tuned
import numpipe
from numpipe import CompilerParams
from numpipe.launch import DeviceArray
from tests.kernels.split_cases import BF16, F16, check_bits_on_gpu, check_tuned_on_gpu, integers
from tests.kernels.split_kernels import InCluster, exchanged

CONFIGS = {
    "two": InCluster(2, 128, 128, 64, 5, wgs=2),
    "three": InCluster(3, 64, 48, 64, 4),
    "four": InCluster(4, 128, 64, 64, 4, wgs=2),
    "eight": InCluster(8, 128, 128, 64, 3, wgs=2),
    "wide": InCluster(2, 128, 256, 64, 2, wgs=2),
    "in turns": InCluster(2, 64, 128, 64, 4, "pingpong", 2),
    "four in turns": InCluster(4, 64, 64, 64, 4, "pingpong", 3),
}
SHAPES = (
    (128, 1024, 8192),
    (1000, 776, 200),
    (1, 8, 8),
    (257, 4096, 64),
    (3000, 3000, 704),
    (17, 2000, 0),
    (512, 512, 4096),
)


@pytest.mark.parametrize("dtype", [F16, BF16], ids=["f16", "bf16"])
@pytest.mark.parametrize("name", CONFIGS)
def test_products_are_exact_at_every_edge(name: str, dtype: np.dtype) -> None:
    for m, n, k in SHAPES:  # many tiles per cluster, fewer steps than CTAs, no steps
        a, b, exact = integers(m, n, k, dtype)
        found = exchanged(CONFIGS[name])(a, b, target="gpu")
        np.testing.assert_array_equal(
            found.astype(np.float32), exact.astype(np.float32), err_msg=str((m, n, k))
        )


@pytest.mark.parametrize("name", CONFIGS)
def test_sums_have_the_same_bits_every_time(name: str) -> None:
    check_bits_on_gpu(exchanged(CONFIGS[name]))


def test_a_thousand_launches_follow_each_other_at_once() -> None:
    """A CTA of the next kernel starts where one of the last has just exited, with its own buffer
    and barriers."""
    a, b, exact = integers(300, 700, 1000)
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
    a, b, exact = integers(1000, 776, 520)
    kernel = exchanged(CONFIGS[name])
    made = numpipe.Kernel(
        kernel.function,
        dataclasses.replace(
            kernel.options, compiler_params=CompilerParams(debug=True, jitter=jitter)
        ),
    )
    for _ in range(3):
        np.testing.assert_array_equal(made(a, b, target="gpu"), exact)


TUNED = {name: cfg for name, cfg in gemm_tuned.CONFIGS.items() if cfg.split == "cluster"} | {
    "skinny": gemm_tuned.Config(
        128, 64, slots=7, panels=1, split="cluster", cluster=2, turned=True
    ),
    "four": gemm_tuned.Config(128, 128, slots=4, panels=1, split="cluster", cluster=4),
    "in turns": gemm_tuned.Config(
        64, 128, slots=4, panels=1, schedule="pingpong", split="cluster", cluster=2
    ),
}


@pytest.mark.parametrize("name", TUNED)
def test_the_tuned_product_cut_along_k_in_clusters(name: str) -> None:
    """Each CTA runs the epilogue on its share of the columns."""
    check_tuned_on_gpu(TUNED[name])
