"""Tiles split along K on the GPU: right at every edge, with reproducible bits, in graphs and on two
streams at once."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gemm_tuned
import numpipe
from numpipe import LaunchError, Workspace
from numpipe.launch import DeviceArray
from tests.kernels.split_cases import BF16, F16, check_bits_on_gpu, check_tuned_on_gpu, integers
from tests.kernels.split_kernels import Config, split_product

try:
    import torch
except ImportError:
    torch = None

COOPERATIVE = Config(128, 256, 64, 3, "stream", "cooperative", 2)
PING_PONG = Config(128, 128, 64, 4, "stream", "pingpong", 2)
CONFIGS = {
    **{
        f"cooperative, {split}": Config(128, 256, 64, 3, split, "cooperative", 2)
        for split in (1, 2, 3, 4, 8, "stream")
    },
    **{
        f"ping-pong, {split}": Config(128, 128, 64, 4, split, "pingpong", 2)
        for split in (1, 2, 5, 8, "stream")
    },
    **{
        f"one warpgroup, {split}": Config(64, 64, 64, 4, split, "cooperative", 1)
        for split in (2, 7, "stream")
    },
}
SHAPES = (
    (512, 4096, 4096),
    (128, 1024, 8192),
    (1000, 776, 200),
    (1, 8, 8),
    (257, 4096, 64),
    (3000, 3000, 704),
    (17, 2000, 0),
    (2048, 2304, 1024),
)
with_torch = pytest.mark.skipif(torch is None, reason="PyTorch is not installed")


@pytest.mark.parametrize("dtype", [F16, BF16], ids=["f16", "bf16"])
@pytest.mark.parametrize("name", CONFIGS)
def test_products_are_exact_at_every_edge(name: str, dtype: np.dtype) -> None:
    for m, n, k in SHAPES:
        a, b, exact = integers(m, n, k, dtype)
        np.testing.assert_array_equal(
            split_product(CONFIGS[name])(a, b, target="gpu").astype(np.float32),
            exact.astype(np.float32),
        )


@pytest.mark.parametrize("name", CONFIGS)
def test_sums_have_the_same_bits_every_time(name: str) -> None:
    check_bits_on_gpu(split_product(CONFIGS[name]))


def test_a_thousand_consecutive_launches_share_a_workspace() -> None:
    """Each launch starts while the previous one ends, and must not use its flags before
    griddepcontrol.wait."""
    a, b, exact = integers(300, 700, 1000)
    x, y = DeviceArray.from_host(a), DeviceArray.from_host(b)
    outputs = [DeviceArray((300, 700), F16) for _ in range(4)]
    for cfg in (COOPERATIVE, PING_PONG):
        for i in range(1000):
            split_product(cfg)(x, y, out=outputs[i % 4])
        for c in outputs:
            np.testing.assert_array_equal(c.copy_to_host(), exact)


@pytest.mark.parametrize("cfg", [COOPERATIVE, PING_PONG, CONFIGS["cooperative, 4"]], ids=str)
def test_other_grids_than_one_cta_a_sm(cfg: Config) -> None:
    a, b, exact = integers(500, 1000, 1500)
    # more CTAs than are resident: those with smaller indices start first
    for ctas in (1, 2, 7, 100, 133, 400):
        np.testing.assert_array_equal(split_product(cfg, ctas)(a, b, target="gpu"), exact)


@with_torch
@pytest.mark.parametrize("cfg", [COOPERATIVE, PING_PONG, CONFIGS["cooperative, 4"]], ids=str)
@pytest.mark.parametrize("warm", [True, False], ids=["called before", "the first call"])
def test_graphs(cfg: Config, warm: bool) -> None:
    kernel = split_product(cfg, 131 if warm else 129)
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
    """Each stream has a workspace; if both have CTAs on the GPU, the CTAs that are waited for have
    started."""
    kernel, streams = split_product(cfg), [torch.cuda.Stream() for _ in range(2)]
    inputs: list[Any] = [
        [torch.randint(-2, 3, (rows, 2048), device="cuda").half() for rows in (200, 520)]
        for _ in streams
    ]
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
@pytest.mark.parametrize(
    "name",
    [
        name
        for name, cfg in gemm_tuned.CONFIGS.items()
        if cfg.cluster == 1 and name != "ping-pong 128x192"
    ],
)
def test_the_tuned_product_cut_along_k(name: str, split: int | str) -> None:
    """The CTA that owns a tile runs the epilogue. (Clusters cannot split, and 128x192 has no
    registers left.)"""
    check_tuned_on_gpu(dataclasses.replace(gemm_tuned.CONFIGS[name], split=split))


def test_bound_calls_and_host_arrays() -> None:
    a, b, exact = integers(200, 520, 2048)
    x, y, c = DeviceArray.from_host(a), DeviceArray.from_host(b), DeviceArray((200, 520), F16)
    bound = split_product(COOPERATIVE).bind(x, y, out=c)
    for _ in range(3):
        bound()
    np.testing.assert_array_equal(c.copy_to_host(), exact)
    for _ in range(3):
        np.testing.assert_array_equal(split_product(COOPERATIVE)(a, b, target="gpu"), exact)


def test_a_workspace_that_is_too_small_ends_the_kernel() -> None:
    """In its own process, because the GPU's context is lost."""
    folders = [
        Path(__file__).parents[2],
        Path(gemm_tuned.__file__).parent,
        os.environ.get("PYTHONPATH"),
    ]
    path = os.pathsep.join(str(folder) for folder in folders if folder)
    done = subprocess.run(
        [sys.executable, __file__],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | {"PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stderr


def too_small() -> None:
    def split(a, b, c, work):
        for m, n, part in numpipe.split_tiles(1, 1, steps=8, split=4):
            acc = numpipe.combine(numpipe.zeros((64, 64), np.float32), part, work)
            if part.begin == 0:
                c[numpipe.ds(0, 64), numpipe.ds(0, 64)] = acc

    kernel = numpipe.kernel(
        split, grid=numpipe.persistent(), workspace=Workspace((64, 64), slots=1)
    )
    arrays = [DeviceArray.from_host(np.zeros((64, 64), np.float32)) for _ in range(3)]
    with pytest.raises(LaunchError):
        kernel(*arrays)
        arrays[2].copy_to_host()


if __name__ == "__main__":
    too_small()
