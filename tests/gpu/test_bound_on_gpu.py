"""Repeated and bound calls on the GPU: right results wherever the arrays are, and no growth of
memory."""

from __future__ import annotations

import contextlib
import gc
import resource
import sys
from pathlib import Path
from typing import Any

import pytest

from numpipe import LaunchError, SpecError
from numpipe.kernels.calls import Calls
from numpipe.launch import DeviceArray, driver
from tests.kernels import tiled_kernels
from tests.kernels.threads import in_threads

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))
from copy_pipeline import copy

from gemm import Config, matmul

try:
    import torch
except ImportError:
    torch: Any = None  # type: ignore[no-redef]
ALONE = True  # it measures the GPU's free memory
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(torch is None, reason="PyTorch is not installed")]


def operands(
    rows: int = 256, columns: int = 192, depth: int = 128, seed: int = 0
) -> tuple[Any, Any]:
    made = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(n, depth, generator=made).half().cuda() for n in (rows, columns))  # type: ignore[return-value]


def right(c: Any, a: Any, b: Any) -> bool:
    return bool(torch.allclose(c.float(), a.float() @ b.float().T, atol=0.1))


def test_a_call_in_a_loop_follows_its_arrays() -> None:
    seen = []
    for seed in range(40):
        a, b = operands(128 * (1 + seed % 3), 192, 64 + 64 * (seed % 2), seed)
        c = matmul(a, b)
        out = torch.full_like(c, float("nan"))
        assert matmul(a, b, out=out) is out and torch.equal(out, c) and right(c, a, b)
        assert torch.equal(matmul(a, b, cfg=Config(tn=128, slots=4)), c)
        seen.append(c)
    assert len({c.data_ptr() for c in seen}) == len(seen)


def test_views_of_one_allocation_are_distinguished() -> None:
    base = torch.randn(512, 512).half().cuda()
    for view in (base, base[:256], base[:, :256], base[:256, :256], base[::2], base[128:, 64:]):
        out = torch.full(tuple(view.shape), float("nan"), dtype=view.dtype, device="cuda")
        for _ in range(2):
            copy(view, out)
            assert torch.equal(out, view)


@pytest.mark.parametrize("kind", ["torch", "cupy", "DeviceArray"])
def test_bound_launches(kind: str) -> None:
    a, b = operands()
    a2, _ = operands(seed=1)
    c = torch.full((256, 192), float("nan"), dtype=torch.float16, device="cuda")

    def as_kind(tensor: Any) -> Any:
        if kind == "torch":
            return tensor
        if kind == "cupy":
            return pytest.importorskip("cupy").asarray(tensor)
        return DeviceArray.from_host(tensor.cpu().numpy())

    def as_tensor(array: Any) -> Any:
        return (
            array
            if kind == "torch"
            else torch.from_numpy(array.copy_to_host()).cuda()
            if kind == "DeviceArray"
            else torch.as_tensor(array, device="cuda")
        )

    x, y, z, x2 = as_kind(a), as_kind(b), as_kind(c), as_kind(a2)
    bound = matmul.bind(x, y, out=z)
    assert bound() is z
    torch.cuda.synchronize()
    assert right(as_tensor(z), a, b)
    bound.update(a=x2)
    bound()
    torch.cuda.synchronize()
    assert right(as_tensor(z), a2, b)
    made = matmul.bind(x, y)
    result = made()
    torch.cuda.synchronize()
    assert type(result) is type(z) and made() is result and right(as_tensor(result), a, b)


def test_a_bound_launch_follows_the_stream_of_the_moment() -> None:
    a, b = operands(2048, 2048, 2048)
    bound = matmul.bind(a, b)
    c = bound().clone()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    for by in ("context", "argument"):
        bound().zero_()
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            # in cycles; a launch queued after it waits for it
            torch.cuda._sleep(20_000_000)
            result = bound() if by == "context" else None
        if by == "argument":
            result = bound(stream=stream)
        assert not torch.cuda.current_stream().query() or not stream.query()
        stream.synchronize()
        assert torch.equal(result, c)


def test_tensors_that_moved_or_were_freed_are_reported() -> None:
    a, b = operands()
    bound = matmul.bind(a, b)
    bound()
    a.data = a.data.clone()
    with pytest.raises(LaunchError, match="the data of argument 'a' of this bound call moved"):
        bound()
    bound.update(a=a)
    assert right(bound(), a, b)
    b.untyped_storage().resize_(0)
    with pytest.raises(LaunchError, match="the data of argument 'b' of this bound call was freed"):
        bound()
    with pytest.raises(SpecError, match=r"update of 'a': expected shape \(256, 128\)"):
        bound.update(a=operands(128)[0])


def test_a_hundred_thousand_launches_grow_neither_host_nor_device_memory() -> None:
    a, b = operands()
    c = torch.empty(256, 192, dtype=torch.float16, device="cuda")
    bound = matmul.bind(a, b, out=c)

    def many(count: int) -> None:
        for _ in range(count // 4):
            bound()
            matmul(a, b, out=c)
            matmul(a, b, out=c, stream=0)
            matmul(a, b)
        torch.cuda.synchronize()

    many(4000)
    gc.collect()
    host = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    reserved = torch.cuda.memory_reserved()
    shrunk = []
    # in bytes; other processes may use the GPU meanwhile
    while len(shrunk) < 5 and min(shrunk, default=1 << 40) > 4 << 20:
        free = torch.cuda.mem_get_info()[0]
        many(100_000)
        shrunk.append(free - torch.cuda.mem_get_info()[0])
    assert min(shrunk) <= 4 << 20 and torch.cuda.memory_reserved() == reserved
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss <= host + 4096  # KiB
    assert right(c, a, b)


def test_new_arrays_at_each_call_grow_no_memory() -> None:
    _, b = operands()
    gc.collect()
    for count in range(3000):
        a = torch.empty(256 + count % 700, 128, dtype=torch.float16, device="cuda")
        matmul(a, b)
        if count == 1000:
            host = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    torch.cuda.synchronize()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss <= host + 16384


def test_nothing_is_allocated_or_awaited_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = operands()
    c = torch.empty(256, 192, dtype=torch.float16, device="cuda")
    bound = matmul.bind(a, b, out=c)
    matmul(a, b, out=c)
    called: list[str] = []
    cuda = driver.get()
    for name in ("allocate", "free", "synchronize", "copy_in", "copy_out", "mark", "blank"):
        monkeypatch.setattr(cuda, name, lambda *_, name=name: called.append(name))
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    for _ in range(10):
        bound()
        matmul(a, b, out=c)
    assert not called and torch.cuda.memory_stats()["allocation.all.allocated"] == before


def test_threads_call_one_kernel_at_once() -> None:
    def work(seed: int) -> None:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            a, b = operands(128 + 64 * seed, 192, 128, seed)
            stream.synchronize()
            bound = matmul.bind(a, b)
            for _ in range(200):
                c, d = matmul(a, b), bound()
            stream.synchronize()
            assert right(c, a, b) and torch.equal(c, d)

    in_threads(8, work)


def test_kernels_over_tiles_are_repeated_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their numbers of steps are scalars that follow from the shapes."""
    kernel = tiled_kernels.product(True, ("parallel", "parallel", "sequential"), 2)
    for depth in (64, 200, 640, 200, 64):
        a, b = operands(300, 132, depth, depth)
        c = kernel(a, b)
        assert right(c, a, b)
        monkeypatch.setattr(Calls, "resolve", None)
        out = torch.full_like(c, float("nan"))
        with contextlib.suppress(TypeError):  # the first call with an out= is new
            kernel(a, b, out=out)
        monkeypatch.undo()
        assert kernel(a, b, out=out) is out and torch.equal(out, c)
        monkeypatch.setattr(Calls, "resolve", None)
        assert kernel(a, b, out=out.fill_(0)) is out and torch.equal(out, c)
        monkeypatch.undo()
