"""Meshes of torch.distributed: two processes without a GPU that exchange what they are about to
launch."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import numpipe

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="PyTorch is not installed"
)
Told = dict[tuple[str, int], dict[str, Any]]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    """Return the result of each scenario of `tests.kernels.mesh_ranks` on each rank."""
    meeting = tmp_path_factory.mktemp("ranks") / "meeting"
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.kernels.mesh_ranks", str(rank), "2", str(meeting)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    found: Told = {}
    try:
        for rank, process in enumerate(ranks):
            out, err = process.communicate(timeout=60)
            assert process.returncode == 0, err
            for line in out.splitlines():
                if line.startswith("{"):
                    result = json.loads(line)
                    found[result.pop("scenario"), rank] = result
    finally:
        for process in ranks:
            process.kill()
    return found


def text(told: Told, scenario: str, rank: int, error: str = "SpecError") -> str:
    assert told[scenario, rank]["error"] == error, told[scenario, rank]
    return str(told[scenario, rank]["text"])


def test_what_differs_between_ranks_is_named_on_each_of_them(told: Told) -> None:
    for rank in range(2):
        assert "'x' is float32 (64, 64) with strides (256, 4) on rank 0" in text(told, "shapes", 0)
        shapes = text(told, "shapes", rank)
        assert (
            "(64, 64)" in shapes
            and "(128, 64)" in shapes
            and "make the same call on all ranks" in shapes
        )
        assert f"numpipe is 0.{rank} on rank {rank} and 0.{1 - rank} on rank {1 - rank}" in text(
            told, "versions", rank
        )
        mine, its = ("shift", "other")[rank], ("other", "shift")[rank]
        assert (
            f"kernel {mine}: rank {rank} calls it, but rank {1 - rank} is at kernel {its}"
            in text(told, "kernels", rank)
        )


def test_ranks_that_agree_go_on(told: Told) -> None:
    for rank in range(2):
        assert f"'x' of kernel 'shift' of rank {rank} is on the host of this process" in text(
            told, "alike", rank
        )


def test_a_rank_that_does_not_come_is_named(told: Told) -> None:
    absent = text(told, "absent", 0, "LaunchError")
    assert (
        "kernel shift: calls it on rank 0, but rank 1 did not make the same call within 1 s"
        in absent
    )
    assert told["absent", 1] == {"rank": 1, "result": None}


def test_other_ranks_get_the_error_of_a_compile(told: Told) -> None:
    assert text(told, "compiles", 1, "CompileError") == "k.py:3: no such thing"
    assert (
        "the compile is done on rank 0 and CompileError: k.py:3: no such thing on rank 1"
        in text(told, "compiles", 0)
    )


def test_symmetric_memory_needs_a_gpu(told: Told) -> None:
    assert "PyTorch sees no GPU here" in text(told, "no_gpu", 0, "TargetError")


def test_a_process_that_gives_no_sign_is_named(told: Told) -> None:
    assert told["silent", 0]["result"] == [1]


def test_a_mesh_is_made_by_the_members_of_its_group(told: Told) -> None:
    assert told["no_member", 0]["result"] == 1
    assert "this process is not a member of the group" in text(told, "no_member", 1)


def test_memory_is_allocated_by_all_ranks_alike_and_a_part_of_it_is_reached(told: Told) -> None:
    for rank in range(2):
        differs, apart, total, gone, copied = told["allocates", rank]["result"]
        assert (
            f"Mesh.empty: shape is ({64 + rank},) on rank {rank} and ({65 - rank},) on rank "
            f"{1 - rank}" in differs
        )
        assert apart == [32 + ((other - rank) << 30) for other in range(2)] and total == 0
        assert (
            "the kernel accesses it on other GPUs, but on rank" in gone
            and "allocate it with mesh.empty" in gone
        )
        assert copied == [[1.5] * 3] * 2


def test_each_rank_launches_for_itself_until_its_memory_is_freed(told: Told) -> None:
    for rank in range(2):
        found, before, after, refused, captured = told["launches", rank]["result"]
        assert found == [[(other - rank) << 30 for other in range(2)]] * 2
        assert "make a call on this stream before the capture" in captured
        assert (before, after) == (
            False,
            True,
        ) and "it is not in this mesh's symmetric memory" in refused


def test_a_mesh_needs_a_process_group() -> None:
    with pytest.raises(
        numpipe.SpecError,
        match="torch.distributed is not initialized: start the processes with torchrun",
    ):
        numpipe.Mesh.torch()
