"""A torch.distributed rank with a GPU, which runs one scenario and prints the result as JSON.

``python -m tests.kernels.mesh_gpu_ranks SCENARIO RANK RANKS FILE``; the ranks rendezvous through
the file. Nothing here waits longer for a rank than numpipe does, except PyTorch's own rendezvous;
the caller kills the process after a minute.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as distributed

import numpipe
from tests.kernels.mesh_kernels import forgetful, gather, inputs, shift

SCENARIOS: dict[str, Callable[[numpipe.Mesh], Any]] = {}
ROWS = 1024


def scenario(function: Callable[[numpipe.Mesh], Any]) -> Callable[[numpipe.Mesh], Any]:
    SCENARIOS[function.__name__] = function
    return function


def arrays(mesh: numpipe.Mesh) -> tuple[Any, Any]:
    """Return x of this rank and an empty y, in symmetric memory."""
    return mesh.to_device(inputs(mesh.size, ROWS)[mesh.rank or 0]), mesh.zeros(
        (ROWS, 64), np.float32
    )


def before(mesh: numpipe.Mesh) -> Any:
    """Return the x of the previous rank."""
    return torch.from_numpy(inputs(mesh.size, ROWS)[((mesh.rank or 0) - 1) % mesh.size]).cuda()


@scenario
def results(mesh: numpipe.Mesh) -> Any:
    """Store to and load from the other rank; 20 calls of each must give the same bits."""
    x, y = arrays(mesh)
    wanted, found = before(mesh) + 1, []
    everything = torch.cat([torch.from_numpy(each).cuda() for each in inputs(mesh.size, ROWS)])
    whole = mesh.zeros((ROWS * mesh.size, 64), np.float32)
    for _ in range(20):
        y.zero_()
        whole.zero_()
        torch.cuda.synchronize()
        distributed.barrier()  # a peer may write it from now on
        shift(x, y, mesh=mesh)
        gather(x, whole, mesh=mesh)
        torch.cuda.synchronize()
        found.append(bool((y == wanted).all()) and bool((whole == everything).all()))
        distributed.barrier()
    return all(found)


@scenario
def thousand(mesh: numpipe.Mesh) -> Any:
    """Launch 1,000 times without waiting on the host, and report the time of a call."""
    x, y = arrays(mesh)
    shift(x, y, mesh=mesh)
    mesh.check()
    begun = time.perf_counter()
    for _ in range(100):
        shift(x, y, mesh=mesh)
    host = (time.perf_counter() - begun) / 100
    for _ in range(900):
        shift(x, y, mesh=mesh)
    mesh.check()
    return bool((y == before(mesh) + 1).all()), round(1e6 * host, 2)


@scenario
def graph(mesh: numpipe.Mesh) -> Any:
    """Replay a graph of two launches 200 times."""
    x, y = arrays(mesh)
    shift(x, y, mesh=mesh)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        shift(x, y, mesh=mesh)  # allocates the stream's control block before the capture
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured, stream=stream, capture_error_mode="thread_local"):
        shift(x, y, mesh=mesh)
        shift(y, x, mesh=mesh)
    distributed.barrier()
    for _ in range(200):
        captured.replay()
    mesh.check()
    return bool(
        (
            x
            == torch.from_numpy(inputs(mesh.size, ROWS)[mesh.rank or 0]).cuda()
            + (400 if mesh.size == 2 else 0)
        ).all()
    )


@scenario
def wrong(mesh: numpipe.Mesh) -> Any:
    """Call with shapes that differ, and with an array that is not symmetric; each rank must name
    them."""
    x, y = arrays(mesh)
    told = []
    for call in (
        lambda: shift(
            x[: 64 * (1 + (mesh.rank or 0))], y[: 64 * (1 + (mesh.rank or 0))], mesh=mesh
        ),
        lambda: shift(x, torch.zeros_like(y), mesh=mesh),
    ):
        try:
            call()
            told.append("")
        except numpipe.SpecError as error:
            told.append(str(error))
    shift(x, y, mesh=mesh)
    mesh.check()
    return told


@scenario
def unsignalled(mesh: numpipe.Mesh) -> Any:
    """Run a kernel whose GPU 1 does not signal; with debug=True the report names GPU 1."""
    x, y = arrays(mesh)
    os.environ["NUMPIPE_DEBUG_TIMEOUT"] = "4"
    kernel = forgetful(compiler_params=numpipe.CompilerParams(debug=True))
    kernel(x, y, mesh=mesh)
    try:
        mesh.check()
    except numpipe.PipelineDeadlock as error:
        return str(error)
    return ""


@scenario
def killed(mesh: numpipe.Mesh) -> Any:
    """Kill rank 1 after some launches; rank 0 continues, and must raise within 10 s."""
    x, y = arrays(mesh)
    for _ in range(10):
        shift(x, y, mesh=mesh)
    mesh.check()
    distributed.barrier()
    if mesh.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.5)
    begun = time.perf_counter()
    try:
        for _ in range(5):  # queued one after another: none of them waits for itself
            shift(x, y, mesh=mesh)
        mesh.check()
    except numpipe.PipelineDeadlock as error:
        return str(error), time.perf_counter() - begun
    return "", time.perf_counter() - begun


def main(name: str, rank: int, ranks: int, file: str) -> None:
    torch.cuda.set_device(rank)
    distributed.init_process_group(
        "gloo", init_method=f"file://{file}", rank=rank, world_size=ranks
    )
    result = SCENARIOS[name](numpipe.Mesh.torch())
    print(json.dumps({"rank": rank, "result": result}), flush=True)
    if name == "killed":
        os._exit(0)  # torch.distributed does not shut down cleanly without the killed rank
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
