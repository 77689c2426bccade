"""Multi-GPU kernels on two Hopper GPUs: in one process, and with a process per GPU."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import PipelineDeadlock
from numpipe.launch import driver
from tests.kernels.mesh_kernels import forgetful, gather, inputs, shift
from tests.kernels.started_ranks import started

ALONE = True
WITH_TORCH = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="PyTorch is not installed"
)


@pytest.fixture(autouse=True)
def _two_gpus() -> None:
    if driver.get().count < 2:
        pytest.skip(f"{driver.get().count} GPU, and these tests need two that reach each other")


# ---- one process
def test_a_gpu_stores_to_and_loads_from_another_one() -> None:
    mesh, host = numpipe.Mesh.local([0, 1]), inputs(2, 1024)
    x = mesh.to_device(host)
    y = mesh.zeros((1024, 64), np.float32)
    whole = mesh.zeros((2048, 64), np.float32)
    for _ in range(20):
        shift(x, y, mesh=mesh)
        gather(x, whole, mesh=mesh)
    mesh.check()
    for gpu in range(2):
        np.testing.assert_array_equal(np.asarray(y[gpu]), host[1 - gpu] + 1)
        np.testing.assert_array_equal(np.asarray(whole[gpu]), np.concatenate(host))


def test_a_thousand_launches_meet_each_other() -> None:
    mesh, host = numpipe.Mesh.local([0, 1]), inputs(2, 1024)
    x, y = mesh.to_device(host), mesh.zeros((1024, 64), np.float32)
    shift(x, y, mesh=mesh)
    begun = time.perf_counter()
    for _ in range(100):
        shift(x, y, mesh=mesh)
    print(f"a call on two GPUs: {1e4 * (time.perf_counter() - begun):.1f} µs of host time")
    for _ in range(900):
        shift(x, y, mesh=mesh)
    mesh.check()
    np.testing.assert_array_equal(np.asarray(y[0]), host[1] + 1)


def test_one_gpu_alone_is_a_mesh_too() -> None:
    mesh, host = numpipe.Mesh.local([1]), inputs(1)
    x, y = mesh.to_device(host), mesh.zeros((256, 64), np.float32)
    shift(x, y, mesh=mesh)
    mesh.check()
    np.testing.assert_array_equal(np.asarray(y[0]), host[0] + 1)


def test_a_wait_for_a_signal_that_does_not_come_is_named_and_a_new_mesh_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NUMPIPE_PEER_TIMEOUT", "1")
    mesh, host = numpipe.Mesh.local([0, 1]), inputs(2, 64)
    x, y, kernel = mesh.to_device(host), mesh.zeros((64, 64), np.float32), forgetful()
    kernel(x, y, mesh=mesh)  # compiles
    begun = time.monotonic()
    kernel(x, y, mesh=mesh)
    for _ in range(2):
        with pytest.raises(
            PipelineDeadlock,
            match=r"GPU 0, .*waited 1 s for ready\[1\] to reach 2, but it is 1.*; GPU 1 did not",
        ):
            mesh.check()
    assert time.monotonic() - begun < 4, "what is queued behind a lost launch does not wait"
    other = numpipe.Mesh.local([0, 1])
    shift(x, y, mesh=other)
    other.check()
    np.testing.assert_array_equal(np.asarray(y[0]), host[1] + 1)


@WITH_TORCH
def test_graphs_of_both_gpus_are_replayed_together() -> None:
    import torch

    mesh, host = numpipe.Mesh.local([0, 1]), inputs(2, 256)
    x = [torch.from_numpy(array).to(f"cuda:{gpu}") for gpu, array in enumerate(host)]
    y = mesh.zeros((256, 64), torch.float32)
    streams = [torch.cuda.Stream(gpu) for gpu in range(2)]
    shift(x, y, mesh=mesh, stream=streams)
    mesh.check()
    graphs = [torch.cuda.CUDAGraph() for _ in range(2)]
    for gpu in range(2):
        with torch.cuda.device(gpu), torch.cuda.stream(streams[gpu]):
            graphs[gpu].capture_begin(capture_error_mode="relaxed")
    shift(x, y, mesh=mesh, stream=streams)
    shift(y, x, mesh=mesh, stream=streams)
    for gpu in range(2):
        with torch.cuda.device(gpu), torch.cuda.stream(streams[gpu]):
            graphs[gpu].capture_end()
    for _ in range(100):
        for gpu in range(2):
            with torch.cuda.device(gpu), torch.cuda.stream(streams[gpu]):
                graphs[gpu].replay()
    mesh.check()
    for gpu in range(2):
        np.testing.assert_array_equal(x[gpu].cpu().numpy(), host[gpu] + 200)


# ---- a process per GPU
def ranks(scenario: str, folder: Path, ends: tuple[int, ...] = (0, 0)) -> list[Any]:
    """Return the result of a scenario of `tests.kernels.mesh_gpu_ranks` on each rank.

    `ends` gives the exit codes. The result is None for a rank that prints nothing.
    """
    program = ["-m", "tests.kernels.mesh_gpu_ranks", scenario]
    found: list[Any] = []
    for out in started(
        [[*program, str(rank), "2", str(folder / "meeting")] for rank in range(2)], ends
    ):
        said = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
        found.append(said[0]["result"] if said else None)
    return found


@WITH_TORCH
def test_ranks_store_to_and_load_from_each_other(tmp_path: Path) -> None:
    assert ranks("results", tmp_path) == [True, True]


@WITH_TORCH
def test_ranks_launch_a_thousand_times(tmp_path: Path) -> None:
    found = ranks("thousand", tmp_path)
    print("µs of host time a call:", [host for _, host in found])
    assert [right for right, _ in found] == [True, True]


@WITH_TORCH
def test_ranks_replay_graphs(tmp_path: Path) -> None:
    assert ranks("graph", tmp_path) == [True, True]


@WITH_TORCH
def test_mistakes_are_named_on_each_rank(tmp_path: Path) -> None:
    for rank, (shapes, symmetric) in enumerate(ranks("wrong", tmp_path)):
        assert "(64, 64)" in shapes and "(128, 64)" in shapes and f"on rank {1 - rank}" in shapes
        assert "'y' of kernel 'shift': the kernel accesses it on other GPUs" in symmetric


@WITH_TORCH
def test_a_gpu_that_does_not_signal_is_named(tmp_path: Path) -> None:
    waits, _ = ranks("unsignalled", tmp_path)
    assert (
        "GPU 0" in waits
        and "ready[1] to reach 2, but it is 1" in waits
        and "GPU 1 added least (GPU 0 1, GPU 1 0)" in waits
    )


@WITH_TORCH
def test_a_rank_that_is_killed_is_named_within_ten_seconds(tmp_path: Path) -> None:
    (text, seconds), nothing = ranks("killed", tmp_path, (0, -9))
    assert (
        "for the launch on GPU 1 to begin; GPU 1 has not launched it" in text
        and seconds < 10
        and nothing is None
    )


# ---- profiles
def test_a_profile_has_the_waits_for_peers(tmp_path: Path) -> None:
    profiled = numpipe.CompilerParams(profile_space=100, profile_dir=str(tmp_path))
    options = dataclasses.replace(shift.options, compiler_params=profiled)
    mesh, host = numpipe.Mesh.local([0, 1]), inputs(2, 1024)
    x, y = mesh.to_device(host), mesh.zeros((1024, 64), np.float32)
    numpipe.Kernel(shift.function, options)(x, y, mesh=mesh)
    mesh.check()
    trace = numpipe.last_profile()
    assert trace is not None
    waits = trace.of("semaphore")
    assert {event.role for event in waits} == {"memory", "compute"} and all(
        event.start <= event.end for event in waits
    )
    assert {event.details["semaphore"] for event in waits} <= {f"ready[{i}]" for i in range(16)}
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "shift_gpu0_0.json",
        "shift_gpu1_0.json",
    ]
    print(trace.timeline())
