"""The multi-GPU ops on two Hopper GPUs: with a process per GPU, in one process, and their example.

The ranks run all scenarios of `tests.kernels.many_gpu_ops_ranks` in one start, and each test checks
one scenario: starting processes and compiling kernels takes most of the time.
"""

from __future__ import annotations

import concurrent.futures
import importlib
import json
import os
import re
import signal
import subprocess
import sys
from typing import Any

import pytest

import numpipe
from numpipe.launch import driver
from tests.kernels.started_ranks import LIMIT, ROOT, started

torch = pytest.importorskip("torch")
in_torch: Any = pytest.importorskip("tests.kernels.many_gpus_in_torch")

all_reduce = importlib.import_module("numpipe.ops.all_reduce")

ALONE = True
COMPILING = 2 * LIMIT
"""seconds for ranks that compile all two dozen kernels of this file"""
SCENARIOS = ("products", "collectives", "repeats", "thousand", "graphs", "gradients")


@pytest.fixture(autouse=True, scope="module")
def _two_gpus() -> None:
    if driver.get().count < 2:
        pytest.skip(f"{driver.get().count} GPU, and these tests need two that reach each other")


# ---- a process per GPU
@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, list[str]]]:
    """Return the failures on each rank, by scenario."""
    meeting = tmp_path_factory.mktemp("ranks") / "meeting"
    said = started(
        [
            ["-m", "tests.kernels.many_gpu_ops_ranks", str(rank), "2", str(meeting)]
            for rank in range(2)
        ],
        limit=COMPILING,
    )
    return [json.loads(line) for out in said for line in out.splitlines() if line.startswith("{")]


@pytest.mark.parametrize("name", SCENARIOS)
def test_ranks_go_through(name: str, found: list[dict[str, list[str]]]) -> None:
    wrong = [failures.get(name, [f"not reached, after {list(failures)[-1]}"]) for failures in found]
    print(*wrong, sep="\n")  # in full: the assertion shows only a part
    assert wrong == [[], []]


LINES = {
    "tensor_parallel_mlp": [
        r"rank {}: errors .*: y 0\.00\d+, gradient of x .*, gradient of up .*, gradient of down"
    ],
    "tensor_parallel_block": [
        r"rank {} of 2\), tokens split: y 0\.00\d+, gradient of x 0\.0",
        r"rank {} of 2\), all tokens on all GPUs: y 0\.00\d+, gradient of x 0\.0",
    ],
}


TORCHRUN = "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"


@pytest.mark.parametrize("example", LINES)
def test_the_example_runs_under_torchrun(example: str) -> None:
    """Run a tensor-parallel MLP or transformer block, forward and backward, against float64."""
    out = run(*TORCHRUN, f"examples/{example}.py")
    for rank in range(2):
        for line in LINES[example]:
            assert re.search(line.format(rank), out), out


def test_a_block_runs_in_one_process() -> None:
    out = run("examples/tensor_parallel_block.py", "--local")
    found = re.findall(r"Mesh.local.*(split|on all GPUs): y 0\.00\d+, gradient of x 0\.0", out)
    assert found == ["split", "on all GPUs"], out


def run(*program: str) -> str:
    """Run Python and return its output. torchrun and its ranks form one process group."""
    running = subprocess.Popen(
        [sys.executable, *program],
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        out, _ = running.communicate(timeout=COMPILING)
    finally:
        if running.poll() is None:
            os.killpg(running.pid, signal.SIGKILL)
    assert running.returncode == 0, out
    return out


# ---- one process
DTYPES = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)


def on_gpus(tensors: list[Any]) -> list[Any]:
    return [tensor.to(f"cuda:{gpu}") for gpu, tensor in enumerate(tensors)]


def check(name: str, got: list[Any], wanted: list[Any], tolerance: float) -> None:
    assert [str(each.device) for each in got] == ["cuda:0", "cuda:1"]
    assert [
        in_torch.differs(one.cpu(), other, tolerance)
        for one, other in zip(got, wanted, strict=True)
    ] == ["", ""], name


@DTYPES
def test_a_process_with_both_gpus_gathers(dtype: Any) -> None:
    mesh = numpipe.Mesh.local([0, 1])
    (x,) = in_torch.shards((37, 24), dtype=dtype)
    for _ in range(20):
        got = numpipe.ops.all_gather(on_gpus(x), mesh=mesh)
        mesh.check()
        check("all_gather", got, [torch.cat(x)] * 2, 0)


@DTYPES
@pytest.mark.parametrize("by_columns", [False, True])
def test_a_process_with_both_gpus_multiplies(dtype: Any, by_columns: bool) -> None:
    mesh = numpipe.Mesh.local([0, 1])
    a, b = in_torch.shards((131, 72), (100, 72) if by_columns else (72, 100), dtype=dtype)
    wanted = in_torch.EXPECTED["all_gather_matmul"](
        [each.double() for each in a], [(each.mT if by_columns else each).double() for each in b]
    )
    left, right = on_gpus(a), [each.mT if by_columns else each for each in on_gpus(b)]
    got = [numpipe.ops.all_gather_matmul(left, right, mesh=mesh) for _ in range(20)]
    got.append([torch.full_like(each, torch.nan) for each in got[0]])
    numpipe.ops.all_gather_matmul(left, right, mesh=mesh, out=got[-1])
    mesh.check()
    check("all_gather_matmul", got[0], wanted, 5e-3)
    assert all(
        torch.equal(one, other) for each in got for one, other in zip(each, got[0], strict=True)
    )


@pytest.mark.parametrize("rows", [64, 300])
@pytest.mark.parametrize("parts", ["float32", "input"])
def test_a_process_with_both_gpus_adds_products(rows: int, parts: str) -> None:
    """Rows that do not fill a tile take two kernels, more rows take one. Repeated calls launch the
    kernels in the same order."""
    mesh = numpipe.Mesh.local([0, 1])
    a, b = in_torch.shards((rows, 264), (264, 520), dtype=torch.bfloat16)
    wanted = in_torch.EXPECTED["matmul_all_reduce"](
        [each.double() for each in a], [each.double() for each in b]
    )
    left, right = on_gpus(a), on_gpus(b)
    for _ in range(20):
        got = numpipe.ops.matmul_all_reduce(left, right, mesh=mesh, parts=parts)
        mesh.check()
        check("matmul_all_reduce", got, wanted, 5e-3)
        assert torch.equal(got[0].cpu(), got[1].cpu())


@pytest.mark.parametrize("launch_bytes", [-1, 0])
def test_a_process_with_both_gpus_sums(launch_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With -1 there are two launches, as on more GPUs."""
    monkeypatch.setattr(all_reduce, "LAUNCH", launch_bytes)
    mesh = numpipe.Mesh.local([0, 1])
    (x,) = in_torch.shards((37, 24), dtype=torch.bfloat16)
    wanted = in_torch.EXPECTED["all_reduce"]([each.double() for each in x])
    for _ in range(20):
        got = numpipe.ops.all_reduce(on_gpus(x), mesh=mesh)
        mesh.check()
        check("all_reduce", got, wanted, 5e-3)


@pytest.mark.parametrize("parts", ["float32", "input"])
def test_a_process_with_both_gpus_scatters_products(parts: str) -> None:
    mesh = numpipe.Mesh.local([0, 1])
    a, b = in_torch.shards((300, 264), (264, 520), dtype=torch.bfloat16)
    wanted = in_torch.EXPECTED["matmul_reduce_scatter"](
        [each.double() for each in a], [each.double() for each in b]
    )
    got = numpipe.ops.matmul_reduce_scatter(on_gpus(a), on_gpus(b), mesh=mesh, parts=parts)
    mesh.check()
    check("matmul_reduce_scatter", got, wanted, 5e-3)


def test_threads_share_a_mesh() -> None:
    """If GPUs got the calls of two threads in different orders, they would wait forever."""
    mesh = numpipe.Mesh.local([0, 1])
    inputs = [in_torch.shards((rows, 24), dtype=torch.bfloat16, seed=rows)[0] for rows in (37, 64)]
    on_mesh = [on_gpus(x) for x in inputs]
    first = [numpipe.ops.all_reduce(x, mesh=mesh) for x in on_mesh]

    def repeat(i: int) -> int:
        got = [numpipe.ops.all_reduce(on_mesh[i], mesh=mesh) for _ in range(500)]
        return sum(
            not torch.equal(one, first[i][gpu]) for each in got for gpu, one in enumerate(each)
        )

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        assert list(pool.map(repeat, range(2))) == [0, 0]
    mesh.check()


def test_a_process_with_both_gpus_runs_backward() -> None:
    """The gradients of both GPUs are one autograd node, whose gradients come from two devices."""
    mesh = numpipe.Mesh.local([0, 1])
    a, b = in_torch.shards((131, 72), (72, 100), dtype=torch.bfloat16)
    mine = [[each.requires_grad_() for each in on_gpus(tensors)] for tensors in (a, b)]
    wide = [in_torch.in_full(x) for x in (a, b)]
    wanted = in_torch.EXPECTED["all_gather_matmul"](*wide)
    grads = [
        torch.randn(each.shape, generator=torch.Generator().manual_seed(gpu)).bfloat16()
        for gpu, each in enumerate(wanted)
    ]
    torch.autograd.backward(numpipe.torch.all_gather_matmul(*mine, mesh=mesh), on_gpus(grads))
    torch.autograd.backward(wanted, [grad.double() for grad in grads])
    mesh.check()
    for name, tensors, others in zip("ab", mine, wide, strict=True):
        check(
            f"gradient of {name}",
            [each.grad for each in tensors],
            [each.grad for each in others],
            5e-3,
        )
