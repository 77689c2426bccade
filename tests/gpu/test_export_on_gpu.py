"""Kernels loaded from files on the GPU, in processes that cannot import Numba: results, other
shapes, streams, graphs, bound calls."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import ArrayType
from tests.kernels.export_kernels import scaled

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))
from gemm import CONFIGS, matmul

try:
    import torch
except ImportError:
    torch: Any = None  # type: ignore[no-redef]
pytestmark = pytest.mark.gpu

ROOT = Path(__file__).resolve().parents[2]

BEGIN = textwrap.dedent("""
    import sys, time

    class Blocked:
        def find_spec(self, name, path=None, target=None):
            blocked = ("numba", "llvmlite", "numba_cuda", "gemm", "tests")
            if name.partition(".")[0] in blocked or "nvjitlink" in name:
                raise ImportError(name)

    sys.meta_path.insert(0, Blocked())
    import numpy as np
    import numpipe

    def operands(m, n, k, dtype=np.float16):
        normal = np.random.default_rng(m + n + k).standard_normal
        return normal((m, k)).astype(dtype), normal((n, k)).astype(dtype)

    def check(c, a, b):
        expected = a.astype(np.float64) @ b.astype(np.float64).T
        atol = 2e-3 * a.shape[1] ** 0.5
        np.testing.assert_allclose(c.astype(np.float64), expected, rtol=2e-3, atol=atol)

    matmul, scaled = numpipe.load("matmul.numpipe"), numpipe.load("scaled.numpipe")
""")
NUMPY = textwrap.dedent("""
    a, b = operands(256, 256, 128)
    begin = time.perf_counter()
    c = matmul(a, b)
    print(f"the first call, on NumPy arrays: {1e3 * (time.perf_counter() - begin):.1f} ms")
    check(c, a, b)
    for shape in ((300, 200, 136), (128, 384, 512), (1, 8, 8)):
        a, b = operands(*shape)
        check(matmul(a, b), a, b)
        out = np.empty((shape[0], shape[1]), np.float16)
        assert matmul(a, b, out=out) is out
        check(out, a, b)
        check(matmul.bind(a, b)(), a, b)
    x = np.arange(192 * 128, dtype=np.float32).reshape(192, 128)
    np.testing.assert_array_equal(scaled(x), 2 * x)
    np.testing.assert_array_equal(scaled(x, scale=0.5), 0.5 * x)
    for call in (lambda: scaled(x.astype(np.int32)), lambda: scaled(x, scale=7.0)):
        try:
            call()
        except numpipe.ImageError:
            continue
        raise AssertionError("the file has no such code")
""")
TORCH = textwrap.dedent("""
    import torch

    def on_gpu(*arrays):
        return [torch.from_numpy(array).cuda() for array in arrays]

    torch.zeros(1, device="cuda")
    a, b = operands(512, 768, 256)
    x, y = on_gpu(a, b)
    torch.cuda.synchronize()
    begin = time.perf_counter()
    c = matmul(x, y)
    torch.cuda.synchronize()
    print(f"the first call, on tensors: {1e3 * (time.perf_counter() - begin):.1f} ms")
    check(c.cpu().numpy(), a, b)
    for shape in ((300, 200, 136), (2048, 1024, 64)):
        a, b = operands(*shape)
        check(matmul(*on_gpu(a, b)).cpu().numpy(), a, b)

    a, b = operands(384, 256, 192)
    x, y = on_gpu(a, b)
    out = torch.empty((384, 256), dtype=torch.float16, device="cuda")
    bound = matmul.bind(x, y, out=out)
    assert bound() is out
    check(out.cpu().numpy(), a, b)
    other, _ = operands(384, 256, 192 + 8)
    other = np.ascontiguousarray(other[:, :192])
    bound.update(a=on_gpu(other)[0])
    check(bound().cpu().numpy(), other, b)

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        c = matmul(x, y)
    stream.synchronize()
    check(c.cpu().numpy(), a, b)
    out.zero_()
    torch.cuda.synchronize()
    matmul(x, y, out=out, stream=stream)
    stream.synchronize()
    check(out.cpu().numpy(), a, b)

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        matmul(x, y, out=out)
    for _ in range(3):
        out.zero_()
        x.copy_(torch.from_numpy(other))
        graph.replay()
        torch.cuda.synchronize()
        check(out.cpu().numpy(), other, b)
        x.copy_(torch.from_numpy(a))
    with numpipe.jit("error"):
        matmul(x, y)
""")
END = textwrap.dedent("""
    blocked = ("numba", "llvmlite", "gemm", "tests")
    print(*[name for name in sys.modules if name.partition(".")[0] in blocked])
""")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    small, large = (ArrayType((rows, 64), "float16") for rows in (64, 1024))
    matmul.export(
        folder / "matmul.numpipe",
        (small, small),
        (large, large),
        choose=lambda a, b: {
            "cfg": CONFIGS[0] if a.shape[0] * b.shape[0] >= 1 << 18 else CONFIGS[1]
        },
    )
    x = ArrayType((64, 64), "float32")
    scaled.export(folder / "scaled.numpipe", (x,), ((x,), {"scale": 0.5}))
    return folder


@pytest.mark.parametrize(
    "code",
    [NUMPY, pytest.param(TORCH, marks=pytest.mark.skipif(torch is None, reason="no PyTorch"))],
    ids=["numpy", "torch"],
)
def test_a_process_without_a_compiler_computes_the_same(files: Path, code: str) -> None:
    run = subprocess.run(
        [sys.executable, "-c", BEGIN + code + END],
        capture_output=True,
        text=True,
        cwd=files,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), "NUMPIPE_CACHE": "0"},
    )
    assert run.returncode == 0, run.stderr
    print(run.stdout)
    assert run.stdout.endswith(" ms\n\n")  # and no forbidden module


def test_loaded_and_exported_compute_the_same_bits(files: Path) -> None:
    made = np.random.default_rng(0)
    a, b = (made.standard_normal((256, 128)).astype(np.float16) for _ in range(2))
    np.testing.assert_array_equal(
        numpipe.load(files / "matmul.numpipe")(a, b), matmul(a, b, cfg=CONFIGS[1])
    )
