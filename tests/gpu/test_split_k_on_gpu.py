"""Tiles cut along K on the hardware: right at every edge, the same bits each time, in graphs and on two streams at once."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from kernels_for_tests import operands
from split_kernels import Config, product

import gemm_tuned
import numpipe
from numpipe import LaunchError, Workspace
from numpipe.launch import DeviceArray

try:
    import torch
except ImportError:
    torch = None

pytestmark = pytest.mark.gpu
pytest.importorskip("cuda.bindings", reason="the CUDA wheels are not installed")
REPEATS = 20
F16, BF16 = np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)
COOPERATIVE = Config(128, 256, 64, 3, "stream", "cooperative", 2)
PING_PONG = Config(128, 128, 64, 4, "stream", "pingpong", 2)
CONFIGS = {
    **{f"cooperative, {split}": Config(128, 256, 64, 3, split, "cooperative", 2) for split in (1, 2, 3, 4, 8, "stream")},
    **{f"ping-pong, {split}": Config(128, 128, 64, 4, split, "pingpong", 2) for split in (1, 2, 5, 8, "stream")},
    **{f"one warpgroup, {split}": Config(64, 64, 64, 4, split, "cooperative", 1) for split in (2, 7, "stream")},
}
SHAPES = ((512, 4096, 4096), (128, 1024, 8192), (1000, 776, 200), (1, 8, 8), (257, 4096, 64), (3000, 3000, 704), (17, 2000, 0),
          (2048, 2304, 1024))
with_torch = pytest.mark.skipif(torch is None, reason="PyTorch is not installed")


@pytest.mark.parametrize("dtype", [F16, BF16], ids=["f16", "bf16"])
@pytest.mark.parametrize("name", CONFIGS)
def test_products_are_exact_at_every_edge(name: str, dtype: np.dtype) -> None:
    for m, n, k in SHAPES:
        a, b = operands(m, n, k, dtype)
        exact = (a.astype(np.float32) @ b.astype(np.float32).T).astype(dtype)  # sums of small integers
        np.testing.assert_array_equal(product(CONFIGS[name])(a, b, target="gpu").astype(np.float32), exact.astype(np.float32))


@pytest.mark.parametrize("name", CONFIGS)
def test_sums_have_the_same_bits_every_time(name: str) -> None:
    rng = np.random.default_rng(0)
    for m, n, k in ((512, 4096, 4096), (640, 3000, 1000)):
        a, b = (rng.standard_normal((rows, k), np.float32).astype(BF16) for rows in (m, n))
        x, y, c = DeviceArray.from_host(a), DeviceArray.from_host(b), DeviceArray((m, n), BF16)
        kernel = product(CONFIGS[name])
        first = kernel(x, y, out=c).copy_to_host()
        rows = slice(0, m, 16)
        exact = a[rows].astype(np.float64) @ b.astype(np.float64).T
        assert np.linalg.norm(first[rows].astype(np.float64) - exact) < 2.5e-3 * np.linalg.norm(exact)
        for _ in range(REPEATS - 1):
            c = DeviceArray.from_host(np.full((m, n), np.nan, BF16))
            np.testing.assert_array_equal(kernel(x, y, out=c).copy_to_host().view(np.uint16), first.view(np.uint16))


def test_a_thousand_launches_behind_each_other_share_a_workspace() -> None:
    """Each starts while the one before ends: its flags are still those of that one until griddepcontrol.wait."""
    a, b = operands(300, 700, 1000, F16)
    exact = (a.astype(np.float32) @ b.astype(np.float32).T).astype(F16)
    x, y = DeviceArray.from_host(a), DeviceArray.from_host(b)
    outputs = [DeviceArray((300, 700), F16) for _ in range(4)]
    for cfg in (COOPERATIVE, PING_PONG):
        for i in range(1000):
            product(cfg)(x, y, out=outputs[i % 4])
        for c in outputs:
            np.testing.assert_array_equal(c.copy_to_host(), exact)


@pytest.mark.parametrize("cfg", [COOPERATIVE, PING_PONG, CONFIGS["cooperative, 4"]], ids=str)
def test_other_grids_than_one_cta_a_sm(cfg: Config) -> None:
    a, b = operands(500, 1000, 1500, F16)
    exact = (a.astype(np.float32) @ b.astype(np.float32).T).astype(F16)
    for ctas in (1, 2, 7, 100, 133, 400):  # more than are resident: those with a smaller index start first
        np.testing.assert_array_equal(product(cfg, ctas)(a, b, target="gpu"), exact)


@with_torch
@pytest.mark.parametrize("cfg", [COOPERATIVE, PING_PONG, CONFIGS["cooperative, 4"]], ids=str)
@pytest.mark.parametrize("warm", [True, False], ids=["called before", "the first call"])
def test_graphs(cfg: Config, warm: bool) -> None:
    kernel = product(cfg, 131 if warm else 129)
    a, b = (torch.randint(-2, 3, (rows, 2048), device="cuda").half() for rows in (200, 520))
    c = torch.zeros(200, 520, device="cuda").half()
    if warm:
        kernel(a, b, out=c)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernel(a, b, out=c)
        kernel(a, b, out=c)
    for _ in range(50):
        a.copy_(torch.randint(-2, 3, (200, 2048), device="cuda"))
        c.fill_(float("nan"))
        graph.replay()
        assert torch.equal(c, (a.float() @ b.float().T).half())
    kernel(a, b, out=c)
    assert torch.equal(c, (a.float() @ b.float().T).half())


@with_torch
@pytest.mark.parametrize("cfg", [COOPERATIVE, PING_PONG, CONFIGS["cooperative, 4"]], ids=str)
def test_two_streams_at_once(cfg: Config) -> None:
    """Each has a workspace; where both have CTAs on the GPU, those that are waited for have started."""
    kernel, streams = product(cfg), [torch.cuda.Stream() for _ in range(2)]
    inputs: list[Any] = [[torch.randint(-2, 3, (rows, 2048), device="cuda").half() for rows in (200, 520)] for _ in streams]
    outputs = [torch.zeros(200, 520, device="cuda").half() for _ in streams]
    torch.cuda.synchronize()
    for _ in range(300):
        for stream, (a, b), c in zip(streams, inputs, outputs, strict=True):
            with torch.cuda.stream(stream):
                kernel(a, b, out=c)
    torch.cuda.synchronize()
    for (a, b), c in zip(inputs, outputs, strict=True):
        assert torch.equal(c, (a.float() @ b.float().T).half())


@pytest.mark.parametrize("split", [2, 3, "stream"])
@pytest.mark.parametrize("name", [name for name, cfg in gemm_tuned.CONFIGS.items()
                                  if cfg.cluster == 1 and name != "ping-pong 128x192"])
def test_the_tuned_product_cut_along_k(name: str, split: int | str) -> None:
    """With its epilogue, batches and layouts: those are the owner's. (Clusters have no parts, 128x192 no registers left.)"""
    cfg = dataclasses.replace(gemm_tuned.CONFIGS[name], split=split)
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


def test_bound_calls_and_host_arrays() -> None:
    a, b = operands(200, 520, 2048, F16)
    exact = (a.astype(np.float32) @ b.astype(np.float32).T).astype(F16)
    x, y, c = DeviceArray.from_host(a), DeviceArray.from_host(b), DeviceArray((200, 520), F16)
    bound = product(COOPERATIVE).bind(x, y, out=c)
    for _ in range(3):
        bound()
    np.testing.assert_array_equal(c.copy_to_host(), exact)
    for _ in range(3):
        np.testing.assert_array_equal(product(COOPERATIVE)(a, b, target="gpu"), exact)


def test_a_workspace_that_is_too_small_ends_the_kernel() -> None:
    """In a process of its own: the GPU's context is lost by it."""
    folders = [Path(__file__).parents[1], Path(gemm_tuned.__file__).parent, os.environ.get("PYTHONPATH")]
    path = os.pathsep.join(str(folder) for folder in folders if folder)
    done = subprocess.run([sys.executable, __file__], capture_output=True, text=True, timeout=60,
                          env=os.environ | {"PYTHONPATH": path})
    assert done.returncode == 0, done.stderr


def too_small() -> None:
    def split(a, b, c, work):
        for m, n, part in numpipe.split_tiles(1, 1, steps=8, split=4):
            acc = numpipe.combine(numpipe.zeros((64, 64), np.float32), part, work)
            if part.begin == 0:
                c[numpipe.ds(0, 64), numpipe.ds(0, 64)] = acc

    kernel = numpipe.kernel(split, grid=numpipe.persistent(), num_compute_wgs=1, workspace=Workspace((64, 64), slots=1))
    arrays = [DeviceArray.from_host(np.zeros((64, 64), np.float32)) for _ in range(3)]
    with pytest.raises(LaunchError):
        kernel(*arrays)
        arrays[2].copy_to_host()


if __name__ == "__main__":
    too_small()
