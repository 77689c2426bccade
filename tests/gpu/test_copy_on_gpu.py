"""numpipe.ops.copy on the GPU: random views to the bit, each way at sizes that fill the GPU, array
libraries, streams, graphs."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from numpipe import launch
from numpipe.ops import copy
from tests.ops.test_copy import VIEWS

pytestmark = pytest.mark.gpu
pytest.importorskip("cuda.bindings", reason="the CUDA wheels are not installed")
PROCESSES = 2


def bits(x: Any) -> Any:
    """Return a tensor's elements as integers, so that NaN equals itself."""
    import torch

    return x.view(
        {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()]
    )


def numbers(*shape: int, dtype: Any) -> Any:
    """Return random bits."""
    import torch

    count = int(np.prod(shape)) * dtype.itemsize
    return torch.randint(0, 256, (count,), dtype=torch.uint8, device="cuda").view(dtype).view(shape)


def check(view: Any, out: Any = None) -> None:
    import torch

    made = copy(view) if out is None else copy(view, out=out)
    assert out is not None or (made.is_contiguous() and made.dtype == view.dtype)
    assert torch.equal(bits(made), bits(view)), (view.shape, view.stride(), view.dtype)


@pytest.mark.parametrize("seed", range(10))
def test_random_views_are_copied_to_the_bit(seed: int) -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(seed)
    rng = random.Random(seed)
    for _ in range(60):
        dtype = rng.choice(
            [
                torch.float16,
                torch.bfloat16,
                torch.float32,
                torch.int32,
                torch.uint8,
                torch.int64,
                torch.float8_e4m3fn,
            ]
        )
        rank = rng.randint(1, 5)
        shape = [
            rng.choice([1, 2, 3, 7, 8, 16, 33, 64, 100, 257])
            if rank > 3
            else rng.randint(1, (0, 1 << 18, 900, 90)[rank])
            for _ in range(rank)
        ]
        while int(np.prod(shape)) > 1 << 21:
            shape[rng.randrange(rank)] = 2
        x = numbers(*shape, dtype=dtype)
        for axis in range(rank):
            x = x[
                (slice(None),) * axis
                + (slice(rng.randrange(min(x.shape[axis], 3)), None, rng.choice([1, 1, 1, 2, 3])),)
            ]
        x = x.permute(rng.sample(range(rank), rank))
        if rng.random() < 0.2 and rank < 5:
            x = x.unsqueeze(0).expand(3, *[-1] * rank)
        check(x)


@pytest.mark.parametrize("name", ["float16", "float32", "uint8"])
def test_every_way_at_sizes_that_fill_the_gpu(name: str) -> None:
    torch = pytest.importorskip("torch")
    x = numbers(4099, 4104, dtype=getattr(torch, name))
    for view in (
        x,
        x[:, :-8],
        x[:, :-1],
        x[:, 1:],
        x.T,
        x[:-3, :-1].T,
        x[:, ::2],
        x[::3],
        x[:1].expand(3000, -1),
        x[:, :1].expand(-1, 777),
        x.flatten()[1:],
        x.flatten()[: 12 * 1367 * 1025].view(12, 1367, 1025)[:, :-1, :-2],
        x.flatten()[: 16 * 1024 * 1024].view(16, 1024, 1024).transpose(1, 2),
    ):
        check(view)


def test_a_copy_writes_views_and_leaves_memory_between_them() -> None:
    torch = pytest.importorskip("torch")
    a = numbers(600, 500, dtype=torch.float16)
    for begin, step in ((0, 1), (1, 1), (3, 2)):
        memory = torch.zeros(700, 1200, dtype=torch.float16, device="cuda")
        out = memory[5:605, begin : begin + 500 * step : step]
        check(a, out)
        out.zero_()
        assert not memory.any()


def test_arrays_of_numpipe_and_of_the_host() -> None:
    for name in ("transposed", "odd rows from aligned ones", "three columns"):
        view, _ = VIEWS[name]
        assert copy(view, target="gpu").tobytes() == np.ascontiguousarray(view).tobytes()
    made = copy(launch.DeviceArray.from_host(VIEWS["contiguous"][0]).T)
    assert isinstance(made, launch.DeviceArray) and made.copy_to_host().tobytes() == VIEWS[
        "contiguous"
    ][0].T.tobytes("C")


def test_streams_and_graphs() -> None:
    torch = pytest.importorskip("torch")
    a = numbers(1000, 1003, dtype=torch.float16)[:, 1:]
    copy(a)  # compiles
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        made = copy(a)
    stream.synchronize()
    assert torch.equal(bits(made), bits(a))
    graph, source = torch.cuda.CUDAGraph(), a.T
    copy(source)
    with torch.cuda.graph(graph):
        captured = copy(source)
    a.copy_(numbers(1000, 1003, dtype=torch.float16)[:, 1:])
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(bits(captured), bits(source))
