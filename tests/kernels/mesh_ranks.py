"""A torch.distributed rank without a GPU, which runs the scenarios below and prints their results
as JSON.

``python -m tests.kernels.mesh_ranks RANK RANKS FILE``; the ranks rendezvous through the file.
"""

from __future__ import annotations

import gc
import json
import sys
import types
from collections.abc import Callable
from typing import Any

import numpy as np

import numpipe
from numpipe import ds
from numpipe.kernels import calls
from numpipe.launch import driver, torch_gpus
from numpipe.launch.array_info import ArrayInfo
from numpipe.launch.mesh import compiling
from numpipe.launch.peer_access import Together
from tests.kernels.launch_fakes import FakeDriver
from tests.kernels.launch_kernels import compiled_as, image

SCENARIOS: dict[str, Callable[[Any, numpipe.Mesh], Any]] = {}


def scenario(function: Callable[[Any, numpipe.Mesh], Any]) -> Callable[[Any, numpipe.Mesh], Any]:
    SCENARIOS[function.__name__] = function
    return function


@numpipe.kernel(grid=numpipe.persistent(), semaphores=lambda x: x.shape[0] // 64)
def shift(x, y, ready):
    y[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32)


@numpipe.kernel(grid=numpipe.persistent(), semaphores=1)
def other(x, y, ready):
    y[ds(0, 64), ds(0, 64)] = numpipe.zeros((64, 64), np.float32)


def tensors(torch: Any, rows: int = 64) -> list[Any]:
    return [torch.zeros((rows, 64), dtype=torch.float32) for _ in range(2)]


@scenario
def alike(torch: Any, mesh: numpipe.Mesh) -> Any:
    """Agree with the other ranks; then each rank reports that its tensors are on the host."""
    shift(*tensors(torch), mesh=mesh)


@scenario
def shapes(torch: Any, mesh: numpipe.Mesh) -> Any:
    shift(*tensors(torch, 64 if mesh.rank == 0 else 128), mesh=mesh)


@scenario
def versions(torch: Any, mesh: numpipe.Mesh) -> Any:
    calls.version = lambda _: f"0.{mesh.rank}"
    shift(*tensors(torch), mesh=mesh)


@scenario
def kernels(torch: Any, mesh: numpipe.Mesh) -> Any:
    (shift if mesh.rank == 0 else other)(*tensors(torch), mesh=mesh)


@scenario
def absent(torch: Any, mesh: numpipe.Mesh) -> Any:
    torch_gpus.AGREEMENT = 1.0
    if mesh.rank == 0:
        shift(*tensors(torch), mesh=mesh)


@scenario
def compiles(torch: Any, mesh: numpipe.Mesh) -> Any:
    """Fail to compile another variant on one rank; the others must be notified."""
    for rows in ("64", "128"):
        with compiling(mesh, "kernel shift", {"rows": rows}):
            if rows == "128" and mesh.rank == 1:
                raise numpipe.CompileError("k.py:3: no such thing")


@scenario
def no_gpu(torch: Any, mesh: numpipe.Mesh) -> Any:
    mesh.empty((4,), np.float32)


@scenario
def silent(torch: Any, mesh: numpipe.Mesh) -> Any:
    return mesh.gpus.silent() if mesh.rank == 0 else None  # type: ignore[union-attr]


@scenario
def no_member(torch: Any, mesh: numpipe.Mesh) -> Any:
    group = torch.distributed.new_group([0])
    return numpipe.Mesh.torch(group).size


# ---- with host-side fakes of symmetric memory and the driver
class Symmetric:
    """A host-side fake of `torch.distributed._symmetric_memory`; another rank's memory is one GiB
    higher."""

    APART = 1 << 30

    def __init__(self, torch: Any, rank: int, ranks: int) -> None:
        self.torch, self.rank, self.ranks = torch, rank, ranks

    def empty(self, *shape: int, dtype: Any, device: Any) -> Any:
        return self.torch.full(shape, 7, dtype=dtype)

    def rendezvous(self, tensor: Any, group: Any) -> Any:
        return types.SimpleNamespace(
            buffer_ptrs=[
                tensor.data_ptr() + self.APART * (r - self.rank) for r in range(self.ranks)
            ]
        )


def with_gpus(torch: Any, mesh: numpipe.Mesh) -> None:
    from torch.distributed import _symmetric_memory as symmetric

    fake = Symmetric(torch, mesh.rank or 0, mesh.size)
    symmetric.empty, symmetric.rendezvous = fake.empty, fake.rendezvous
    torch.cuda.is_available, torch.cuda.current_device = lambda: True, lambda: 0
    torch.cuda.current_stream = lambda *_: types.SimpleNamespace(
        synchronize=lambda: None, cuda_stream=5
    )


def on_gpu(tensor: Any) -> ArrayInfo:
    return ArrayInfo(
        "cuda",
        tensor.data_ptr(),
        tuple(tensor.shape),
        tuple(4 * n for n in tensor.stride()),
        np.dtype(np.float32),
        0,
        True,
        None,
    )


@scenario
def allocates(torch: Any, mesh: numpipe.Mesh) -> Any:
    """Request another shape on one rank, then use symmetric memory and parts of it until it is
    freed."""
    with_gpus(torch, mesh)
    gpus: Any = mesh.gpus
    try:
        mesh.empty((64 + (mesh.rank or 0),), np.float32)
    except numpipe.SpecError as error:
        told = str(error)
    whole = mesh.zeros((4, 8), np.float32)
    there = gpus.addresses([on_gpu(whole[1:])], "y", "shift")
    apart = [address - whole.data_ptr() for address in there]
    info, total = on_gpu(whole), float(whole.sum())
    del whole
    gc.collect()
    try:
        gpus.addresses([info], "y", "shift")
        gone = ""
    except numpipe.SpecError as error:
        gone = str(error)
    copied = mesh.to_device(np.full((2, 3), 1.5, np.float16)).tolist()
    return told, apart, total, gone, copied


@scenario
def launches(torch: Any, mesh: numpipe.Mesh) -> Any:
    """Launch in each rank with its peers' addresses; a launch on freed memory is not repeated."""
    with_gpus(torch, mesh)
    fake = FakeDriver(count=2, gpus=(("NVIDIA H200", (9, 0)),) * 2)
    fake.sizes = [128 + 128 + 2 * 128, *[8] * 13]
    driver._opened = fake  # type: ignore[assignment]
    from numpipe.launch import current_gpu

    current_gpu.cuda_wheels_major = lambda: 13
    current_gpu.gpu_state.cache_clear()
    seen: list[list[int]] = []

    def run(parameters: list[int]) -> None:
        import ctypes

        table = ctypes.string_at(parameters[0], 512)
        seen.append([int.from_bytes(table[at : at + 8], "little") for at in (256 + 8, 384 + 8)])

    fake.kernel = run
    kernel = compiled_as(
        shift, lambda *_: image((), ("x", "y", "ready"), name="shift", gpus=2, peered=(1,))
    )
    x, y = torch.zeros((64, 64)), mesh.zeros((64, 64), np.float32)
    at = y.data_ptr()
    fake.captured = {1, 0, 5}
    try:
        kernel(on_gpu(x), on_gpu(y), mesh=mesh)
        captured = ""
    except numpipe.SpecError as error:
        captured = str(error)
    fake.captured = set()
    for _ in range(2):
        kernel(on_gpu(x), on_gpu(y), mesh=mesh)
    found = [[address - at for address in pair] for pair in seen]
    held = [each for each in kernel._table.values() if isinstance(each, Together)]
    info = on_gpu(y)
    before = held[0].stale
    del y
    gc.collect()
    try:
        kernel(on_gpu(x), info, mesh=mesh)
        refused = ""
    except numpipe.SpecError as error:
        refused = str(error)
    return found, before, held[0].stale, refused, captured


def main(rank: int, ranks: int, file: str) -> None:
    import torch
    import torch.distributed as distributed

    distributed.init_process_group(
        "gloo", init_method=f"file://{file}", rank=rank, world_size=ranks
    )
    kept = {
        name: getattr(torch.cuda, name)
        for name in ("is_available", "current_device", "current_stream")
    }
    kept_version = calls.version
    for name, run in SCENARIOS.items():
        mesh, torch_gpus.AGREEMENT = numpipe.Mesh.torch(), 10.0
        try:
            result = {"result": run(torch, mesh)}
        except numpipe.NumpipeError as error:
            result = {"error": type(error).__name__, "text": str(error)}
        finally:
            calls.version = kept_version
            for each, value in kept.items():
                setattr(torch.cuda, each, value)
        print(json.dumps({"scenario": name, "rank": rank, **result}), flush=True)
        distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
