"""tiles(dynamic=True) on the GPU: repeatable results in every form, graphs, streams."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import numpipe
from numpipe import BlockSpec, CompilerParams, ds
from tests.kernels.dynamic_kernels import cases, gemm, made
from tests.kernels.kernels_for_tests import Config, operands, product
from tests.traces.legal import check_legal

try:
    import torch
except ImportError:
    torch = None

with_torch = pytest.mark.skipif(torch is None, reason="PyTorch is not installed")
REPEATS, REPLAYS = 20, 500
SHAPES = (
    (4096, 3840, 512),
    (1000, 777, 200),
    (64, 64, 64),
    (1, 8, 8),
    (257, 4097, 0),
    (8192, 8064, 64),
)
LARGE = {
    "cooperative": Config(128, 256, 64, 3, dynamic=True),
    "pingpong": Config(128, 128, 64, 5, 1, dynamic=True),
}


@pytest.mark.parametrize("name", cases())
def test_every_form_computes_the_same_again_and_again(name: str) -> None:
    case = cases()[name]
    for _ in range(REPEATS):
        case.check(case.kernel, target="gpu")


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("schedule", LARGE)
def test_large_products_have_the_bits_of_static_tiles_every_time(
    schedule: str, shape: tuple[int, int, int]
) -> None:
    """Numbers are normally distributed. The order of sums depends on the tile, not on the CTA that
    computes it."""
    rng = np.random.default_rng(0)
    m, n, k = shape
    a, b = (
        rng.standard_normal((rows, k), np.float32).astype(ml_dtypes.bfloat16) for rows in (m, n)
    )
    kernel = made(gemm, schedule, ctas=None)
    cfg, outputs = LARGE[schedule], []
    for dynamic in (False, *[True] * REPEATS):
        c = np.full((m, n), np.nan, ml_dtypes.bfloat16)
        kernel(a, b, c, cfg=dataclasses.replace(cfg, dynamic=dynamic), target="gpu")
        outputs.append(c.view(np.uint16))
    for c in outputs[1:]:
        np.testing.assert_array_equal(c, outputs[0])


# ---- the counter
def on_device(m: int, n: int, k: int) -> tuple[Any, Any, Any]:
    """Return a, b and the expected product, as tensors."""
    a, b = operands(m, n, k)
    return (*(torch.from_numpy(x).cuda() for x in (a, b)), torch.from_numpy(product(a, b)).cuda())


@with_torch
def test_launches_follow_each_other_without_a_gap_and_with_other_sizes() -> None:
    """Launches are programmatic: the next one begins while the last CTAs of this one reset the
    counter."""
    kernel, cfg = made(gemm, ctas=None), LARGE["cooperative"]
    calls = [
        (*on_device(m, n, 64), torch.empty(m, n, dtype=torch.float16, device="cuda"))
        for m, n in ((4096, 4096), (128, 256), (640, 768))
    ]
    for _ in range(REPLAYS):
        for a, b, _, c in calls:
            kernel(a, b, c, cfg=cfg)
    torch.cuda.synchronize()
    for _ in range(REPEATS):
        for a, b, _, c in calls:
            c.fill_(float("nan"))
            kernel(a, b, c, cfg=cfg)
        assert all(torch.equal(expected, c) for _, _, expected, c in calls)


@with_torch
def test_two_streams_take_tiles_at_the_same_time() -> None:
    """Run one kernel on two streams, each with a grid of half of the SMs."""
    kernel, cfg = made(gemm, "pingpong", ctas=64), LARGE["pingpong"]
    a, b, expected = on_device(2048, 2048, 128)
    streams = [torch.cuda.Stream() for _ in range(2)]
    outputs = [torch.empty_like(expected) for _ in streams]
    torch.cuda.synchronize()
    for _ in range(REPEATS):
        for stream, c in zip(streams, outputs, strict=True):
            with torch.cuda.stream(stream):
                c.fill_(float("nan"))
                for _ in range(10):
                    kernel(a, b, c, cfg=cfg)
        torch.cuda.synchronize()
        assert all(torch.equal(expected, c) for c in outputs)


@with_torch
@pytest.mark.parametrize("warm", [True, False], ids=["called before", "the first call"])
def test_replays_of_graphs_are_right_alone_and_at_the_same_time(warm: bool) -> None:
    kernel, cfg = made(gemm, ctas=60), LARGE["cooperative"]
    a, b, expected = on_device(1536, 1024, 128)
    outputs = [torch.empty_like(expected) for _ in range(2)]
    graphs = []
    for c in outputs:
        if warm:
            kernel(a, b, c, cfg=cfg)
            torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            c.fill_(float("nan"))
            kernel(a, b, c, cfg=cfg)
        graphs.append(graph)
    streams = [torch.cuda.Stream() for _ in graphs]
    for _ in range(REPLAYS):
        for stream, graph in zip(streams, graphs, strict=True):
            with torch.cuda.stream(stream):
                graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(expected, c) for c in outputs)


# ---- which CTA takes which tile
def who(steps: Any, a: Any, c: Any) -> None:
    """Store the number of the CTA that took tile m to its row of c, after steps[m, 0] steps of
    loads."""
    cta = numpipe.axis_index("cta")
    for m, count in numpipe.tiles(steps.shape[0], order=steps, dynamic=True):
        acc = numpipe.zeros((64, 64), np.float32)
        pipe = numpipe.pipeline(
            grid=(count,),
            in_specs=(BlockSpec((64, 64), lambda k: (0, k)), BlockSpec((64, 64), lambda k: (k, 0))),
        )
        for (k,), (x, y) in pipe(a, a):
            acc = numpipe.wgmma(acc, x, y.T)
        c[ds(m * 64, 64), ds(0, 64)] = acc + cta


def taken(kernel: Any, steps: list[int], **options: Any) -> np.ndarray:
    """Return the CTA of each tile."""
    table = np.array(list(enumerate(steps)), np.int32)
    c = np.full((64 * len(steps), 64), np.nan, np.float32)
    kernel(table, np.zeros((64, 64), np.float16), c, target="gpu", **options)
    tiles = c.reshape(len(steps), -1)
    assert (tiles == tiles[:, :1]).all()
    return tiles[:, 0].astype(int)


def test_a_cta_with_a_long_tile_takes_fewer() -> None:
    kernel = made(who, warpgroups=1, ctas=100, grid_names="cta")
    ctas = taken(kernel, [20_000, *[20] * 1999])
    shares = np.bincount(ctas, minlength=100)
    assert shares.sum() == 2000 and ctas[0] == 0 and shares[0] <= 3, (
        "its own, and what it had fetched ahead"
    )
    assert shares[1:].min() >= 5


def test_a_profile_is_legal_and_shows_which_cta_took_which_tile(tmp_path: Path) -> None:
    params = CompilerParams(profile_space=4000, profile_dir=str(tmp_path))
    kernel = made(who, warpgroups=1, ctas=4, grid_names="cta", compiler_params=params)
    ctas = taken(kernel, [40, *[3] * 60])
    trace = numpipe.last_profile()
    assert trace is not None and trace.lost == 0
    check_legal(trace)
    begun = [
        (event.cta[0], event.details["number"])
        for event in trace.events
        if event.note == "tile begin" and event.role == "compute"
    ]
    assert sorted(begun, key=lambda tile: tile[1]) == [
        (cta, number) for number, cta in enumerate(ctas)
    ]


@pytest.mark.parametrize(
    "params", [{"debug": True}, {"jitter": 1}, {"debug": True, "jitter": 2}], ids=str
)
@pytest.mark.parametrize("name", ["shared tiles", "turns, loops", "no memory role"])
def test_jitter_and_bounded_waits_change_nothing(name: str, params: dict[str, Any]) -> None:
    case = cases()[name]
    options = dataclasses.replace(case.kernel.options, compiler_params=CompilerParams(**params))
    kernel = numpipe.Kernel(case.kernel.function, options)
    for _ in range(REPEATS):
        case.check(kernel, target="gpu")


@pytest.mark.parametrize(
    "options", [{"programmatic": False}, {"cooperative": True}, {"cluster": 2}], ids=str
)
def test_launch_attributes(options: dict[str, Any]) -> None:
    call: Callable[..., Any] = made(gemm, ctas=8, **options)
    a, b = operands(1000, 700, 128)
    for _ in range(REPEATS):
        c = np.zeros((1000, 700), np.float16)
        call(a, b, c, cfg=Config(128, 64, 64, 3, order="row", dynamic=True), target="gpu")
        np.testing.assert_array_equal(c, product(a, b))
