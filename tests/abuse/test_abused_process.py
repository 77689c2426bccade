"""Abuse of the process and its files: the command line, the cache's folder, output in ASCII, a
machine without a driver."""

from __future__ import annotations

import io
import os
import stat
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from numpipe import ops
from numpipe.__main__ import main
from numpipe.compile import cache
from numpipe.compile.check import gate
from numpipe.errors import SpecError, TargetError
from numpipe.kernels.exporting import signature
from numpipe.launch import driver
from tests.abuse.test_hostile_calls import Interface

H = np.ones((64, 64), np.float16)


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').mkdir('made')",
        "x.__class__",
        "run('made')",
        "(0,) * 10**9",
        "[i for i in x]",
        "f'{x}'",
        "float16[run('made')]",
        "**x",
    ],
)
def test_a_signature_is_parsed_and_not_evaluated(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SpecError, match="signature"):
        signature(text, {"x": 3, "run": os.mkdir})
    assert not os.listdir(tmp_path)


def test_a_shape_that_is_too_large_to_mutate_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    name = "tests.abuse.arguments:doubled"
    assert main(["mutate", name, "float32[1048576, 1048576], float32[64, 64]"]) == 1
    assert "is too large to simulate" in capsys.readouterr().err


@pytest.mark.skipif(os.name != "posix", reason="needs permissions of POSIX")
def test_the_cache_is_its_users_alone_and_a_shared_one_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "cache"
    monkeypatch.setenv(cache.VARIABLE, str(folder))
    before = os.umask(0)
    try:
        images = cache.created("images")
    finally:
        os.umask(before)
    assert [stat.S_IMODE(each.stat().st_mode) for each in (folder, images)] == [0o700, 0o700]
    folder.chmod(0o777)
    with pytest.raises(PermissionError, match="others may write to it"):
        cache.created("images")
    folder.chmod(0o1777)
    assert cache.created("images") == images


def test_an_error_is_printed_in_ascii(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), "ascii"))
    print(SpecError("tile.at[…] × 2"))
    sys.stdout.flush()
    assert sys.stdout.buffer.getvalue() == b"tile.at[...] \\xd7 2\n"


@pytest.mark.parametrize("target", [None, "sim", "gpu"])
def test_gpu_arrays_without_a_driver_are_refused_by_ops(
    target: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if driver.opened() is not None:
        pytest.skip("there is a driver")
    with pytest.raises(TargetError, match="matmul: target='(sim|gpu)'"):
        ops.matmul(Interface(), Interface(), target=target)
    assert "fix: install NVIDIA's driver" in str(driver.DriverMissing("libcuda was not found"))


def test_an_offset_of_no_mask_is_refused() -> None:
    q = H[None, None]
    with pytest.raises(SpecError, match="attention: diagonal=3 moves the causal mask") as caught:
        ops.attention(q, q, q, diagonal=3, target="sim")
    assert "fix: pass causal=True" in str(caught.value)
    ops.attention(q, q, q, diagonal=3, causal=True, target="sim")


def test_the_gate_lists_ten_accesses_to_local_memory_and_their_number() -> None:
    found = [*gate.local_memory(SimpleNamespace(find=lambda _: list(range(50))))]  # type: ignore[arg-type]
    assert len(found) == 11 and found[-1] == "local memory: 40 more instructions, 50 in total"
