"""Streams of every library, CUDA graphs, and launch attributes on a Hopper GPU."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from numpipe import LaunchError, SpecError
from tests.kernels.graph_kernels import ranks, step
from tests.kernels.kernels_for_tests import SMALL, gemm

try:
    import torch
except ImportError:
    torch = None

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(torch is None, reason="PyTorch is not installed")]
REPLAYS = 1000


def matrices(*shape: int) -> tuple[Any, Any]:
    return torch.zeros(shape or (192, 96), device="cuda"), torch.zeros(
        shape or (192, 96), device="cuda"
    )


def replayed(graph: Any, x: Any, each: int = 2) -> None:
    """Check 1,000 replays that each add `each`: all of them ran, one after the other."""
    x.zero_()
    for _ in range(REPLAYS):
        graph.replay()
    torch.cuda.synchronize()
    assert bool((x == each * REPLAYS).all())


# ---- graphs
@pytest.mark.parametrize("warm", [True, False], ids=["called before", "the first call"])
def test_launches_captured_with_torch_run_in_order_at_each_replay(warm: bool) -> None:
    x, y = matrices()
    kernel = step()
    if warm:
        kernel(x, y)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):  # in the strictest mode, "global"
        kernel(x, y)
        kernel(y, x)
    assert not bool(x.any())  # captured, not run
    replayed(graph, x)


def test_first_calls_of_arrays_without_elements_may_be_captured() -> None:
    """Their tensor maps point to 16 bytes that are allocated when first needed."""
    a, b = (torch.zeros(rows, 0, dtype=torch.float16, device="cuda") for rows in (128, 64))
    c = torch.ones(128, 64, dtype=torch.float16, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        gemm(2, 0, 3)(a, b, out=c, cfg=SMALL)
    graph.replay()
    torch.cuda.synchronize()
    assert not bool(c.any())


def test_outputs_that_torch_allocates_in_the_graph_are_right_at_each_replay() -> None:
    a, b = (torch.randn(rows, 192, device="cuda").half() for rows in (256, 128))
    matmul = gemm(2, 0, 5)
    matmul(a, b, cfg=SMALL)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        c = matmul(a, b, cfg=SMALL)
    for _ in range(20):
        a.copy_(torch.randn(256, 192, device="cuda"))
        c.fill_(float("nan"))
        graph.replay()
        torch.testing.assert_close(c.float(), a.float() @ b.float().T, rtol=5e-3, atol=5e-2)


@pytest.mark.parametrize("non_blocking", [True, False])
@pytest.mark.parametrize("warm", [True, False], ids=["called before", "the first call"])
def test_launches_captured_with_cupy_run_in_order_at_each_replay(
    non_blocking: bool, warm: bool
) -> None:
    cupy = pytest.importorskip("cupy")
    x, y = cupy.zeros((192, 96), np.float32), cupy.zeros((192, 96), np.float32)
    kernel = step()
    if warm:
        kernel(x, y)
    cupy.cuda.Device().synchronize()
    stream = cupy.cuda.Stream(non_blocking=non_blocking)
    with stream:
        stream.begin_capture()
        kernel(x, y)
        kernel(y, x)
        graph = stream.end_capture()
        x.fill(0)
        for _ in range(REPLAYS):
            graph.launch(stream)
    stream.synchronize()
    assert bool((x == 2 * REPLAYS).all())


@pytest.mark.parametrize(
    "attributes", [{"programmatic": False}, {"cluster": 3}, {"cooperative": True}], ids=str
)
def test_launch_attributes_are_captured_too(attributes: dict[str, Any]) -> None:
    x, y = matrices()
    kernel = step(**attributes)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernel(x, y)
        kernel(y, x)
    replayed(graph, x)


CAPTURE = """
import sys
sys.path.insert(0, sys.argv[1])
import numpy as np
import torch
from cuda.bindings import driver as api
from tests.kernels.graph_kernels import step
import numpipe
from numpipe import launch

x, y = torch.zeros(192, 96, device="cuda"), torch.zeros(192, 96, device="cuda")
there = launch.DeviceArray((64, 32), np.float32)
host = np.zeros((64, 32), np.float32)
kernel, watched = step(), step(compiler_params=numpipe.CompilerParams(debug=True))
made = step(out_type=lambda a: numpipe.ArrayType(a.shape, np.float32))
large = np.zeros((1024, 1024), np.float32)
kernel(host, host.copy())
kernel(large, large.copy())
kept = made(large)  # in locked memory, which another output cannot have
watched(x, y)
made(there)
torch.cuda.synchronize()
garbage = {
    "an array": launch.DeviceArray((64, 32), np.float32),
    "locked memory": numpipe.pinned_empty((64, 32), np.float32),
}
graph, said = torch.cuda.CUDAGraph(), []


def tell(what, call):
    try:
        call()
        answer = "fine"
    except numpipe.NumpipeError as error:
        answer = f"{type(error).__name__}: {error}"
    _, status, *_ = api.cuStreamIsCapturing(stream.cuda_stream)
    said.append(f"{what}: {status.name.rpartition('_')[2]}: {answer}")


try:
    with torch.cuda.graph(graph):  # in mode "global"
        stream = torch.cuda.current_stream()
        tell("launch", lambda: kernel(x, y))
        tell("host arrays", lambda: kernel(host, host.copy()))
        tell("on the stream", lambda: kernel(host, host.copy(), stream=stream))
        tell("new output", lambda: made(large))
        tell("watched", lambda: watched(x, y))
        tell("of the graph", lambda: made(there, stream=stream))
        for name in list(garbage):  # garbage is collected at any moment
            tell(f"freed {name}", lambda: garbage.pop(name) is None)
        tell("allocated", lambda: launch.DeviceArray((64, 32), np.float32))
        tell("again", lambda: kernel(y, x))
    for _ in range(1000):
        graph.replay()
    torch.cuda.synchronize()
    numpipe.last_failure()
    said.append(f"replays: {bool((x == 2000).all())}")
finally:
    print("\\n".join(said))
"""
REFUSED = {
    "host arrays": "PyTorch's current stream .* is being captured",
    "on the stream": "its stream .* is being captured",
    "new output": "PyTorch's current stream .* is being captured",
    "watched": r"CompilerParams\(debug=True\)",
    "of the graph": "pass it as out=",
}


def test_what_cannot_be_captured_is_refused_and_the_capture_goes_on() -> None:
    """In its own process: a capture that fails leaves PyTorch in a state that would affect other
    tests."""
    run = subprocess.run(
        [sys.executable, "-c", CAPTURE, str(Path(__file__).parents[2])],
        capture_output=True,
        text=True,
        timeout=120,
    )
    said = dict(line.split(": ", 1) for line in run.stdout.splitlines())
    assert run.returncode == 0, run.stdout + run.stderr
    assert said.pop("replays") == "True"
    assert list(said) == [
        "launch",
        *REFUSED,
        "freed an array",
        "freed locked memory",
        "allocated",
        "again",
    ]
    for what, answer in said.items():
        assert answer.startswith("ACTIVE: "), (what, said)
        assert re.match(
            f"ACTIVE: SpecError: .*{REFUSED[what]}" if what in REFUSED else "ACTIVE: fine", answer
        ), (what, answer)


# ---- streams
def slow_ones(stream: Any) -> Any:
    """Return a tensor that a stream fills with ones after a delay."""
    with torch.cuda.stream(stream):
        x = torch.zeros(192, 96, device="cuda")
        torch.cuda._sleep(50_000_000)
        x += 1
    return x


def test_streams_of_all_libraries_order_a_call() -> None:
    side = torch.cuda.Stream()
    handle = side.cuda_stream
    spellings: list[Any] = [side, handle]
    try:
        import cupy

        spellings.append(cupy.cuda.ExternalStream(handle))
    except ImportError:
        pass
    from cuda.bindings import driver as api
    from cuda.core import Stream
    from numba import cuda

    spellings += [api.CUstream(handle), Stream.from_handle(handle), cuda.external_stream(handle)]
    kernel = step()
    for stream in spellings:
        torch.cuda.synchronize()
        x = slow_ones(side)
        y = torch.zeros_like(x)
        torch.cuda.current_stream().synchronize()
        kernel(x, y, stream=stream)
        side.synchronize()
        assert bool((y == 2).all()), type(stream)


def test_a_stream_that_cuda_core_made_is_used() -> None:
    from cuda.core import Device

    device = Device(0)
    device.set_current()
    stream = device.create_stream()
    x, y = matrices()
    torch.cuda.synchronize()
    step()(x, y, stream=stream)
    stream.sync()
    assert bool((y == 1).all())
    stream.close()
    with pytest.raises(SpecError, match="cannot be used"):
        step()(x, y, stream=stream)


def test_a_stream_of_another_gpu_is_refused() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU")
    x, y = matrices()
    kernel = step()
    with pytest.raises(
        SpecError, match="belongs to GPU 1, but the arrays are on GPU 0: pass a stream of GPU 0"
    ):
        kernel(x, y, stream=torch.cuda.Stream(1))
    kernel(x, y, stream=torch.cuda.Stream(0))
    torch.cuda.synchronize()
    assert bool((y == 1).all())


# ---- attributes
@pytest.mark.parametrize("cluster", [1, 2, 4, 8, 16])
def test_ctas_of_a_cluster_know_their_rank(cluster: int) -> None:
    c = torch.full((64 * 32, 32), -1.0, device="cuda")
    ranks(cluster=cluster)(c)
    expected = torch.arange(32, device="cuda").repeat_interleave(64) % cluster
    assert torch.equal(c, expected[:, None].expand(-1, 32).float())


def test_clusters_of_two_dimensions_compute_what_other_kernels_do() -> None:
    x = torch.randn(192 * 2, 96, device="cuda")
    y = torch.zeros_like(x)
    step(grid=(6, 2), grid_names=("cta", "other"), cluster=(3, 2))(x, y)
    assert torch.equal(y, x + 1)


def test_a_cooperative_launch_runs_or_is_refused_with_the_numbers() -> None:
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    for options in ({}, {"programmatic": True}, {"cluster": 2}):
        x = torch.randn(64 * sms, 32, device="cuda")
        y = torch.zeros_like(x)
        kernel = step(cooperative=True, **options)
        kernel(x, y)
        assert torch.equal(y, x + 1)
        many = torch.zeros(64 * 100 * sms, 32, device="cuda")
        with pytest.raises(
            LaunchError,
            match=rf"needs all CTAs to run at once, and the grid \({100 * sms}, 1, 1\) has "
            rf"{100 * sms}; GPU 0 holds \d+ of 256 threads",
        ):
            kernel(many, many.clone())
        kernel(x, y)
    torch.cuda.synchronize()


def test_without_programmatic_launch_results_are_the_same() -> None:
    x, y = matrices()
    kernel = step(programmatic=False)
    for _ in range(100):
        kernel(x, y)
        kernel(y, x)
    torch.cuda.synchronize()
    assert bool((x == 200).all())
