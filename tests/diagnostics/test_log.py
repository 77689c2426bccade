"""NUMPIPE_LOG and `inspect`: what is logged of compiles and launches, and that logging costs
nothing when it is off."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from numpipe import ArrayType, LaunchError, SpecError, TargetError, launch
from numpipe.compile import build
from numpipe.core import numba as nb
from numpipe.diagnostics import log
from numpipe.launch import current_gpu, driver
from tests.kernels.kernels_for_tests import SMALL, gemm
from tests.kernels.launch_fakes import FakeDriver
from tests.kernels.launch_kernels import SIZES, arrays, doubled, image

A = ArrayType((128, 64), np.float16)
TIME = r"\d+\.\d (ms|µs)"


@pytest.fixture(autouse=True)
def _no_disk_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMPIPE_CACHE", "0")  # compiles are counted, or faked


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDriver]:
    fake = FakeDriver()
    fake.sizes = SIZES
    monkeypatch.setattr(driver, "_opened", fake)
    monkeypatch.setattr(current_gpu, "cuda_wheels_major", lambda: 13)
    monkeypatch.delenv(log.VARIABLE, raising=False)
    launch.gpu_state.cache_clear()
    launch.encode.cache_clear()
    yield fake
    launch.gpu_state.cache_clear()
    launch.encode.cache_clear()


@pytest.fixture(scope="module")
def compiled() -> tuple[Any, str]:
    """Return a small GEMM, and the log of its compile."""
    with pytest.MonkeyPatch.context() as patch:
        said: list[str] = []
        patch.setenv(log.VARIABLE, "compile")
        patch.setenv("NUMPIPE_CACHE", "0")
        patch.setattr(log, "say", lambda word, text: said.append(f"numpipe {word}: {text}"))
        matmul = gemm(2, 2, 7)
        matmul.inspect("resources", A, A, cfg=SMALL)
    (line,) = said
    return matmul, line


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    out, err = capsys.readouterr()
    assert not out
    return err.splitlines()


# ---- the log
def test_a_compile_logs_its_phases_and_its_result(compiled: tuple[Any, str]) -> None:
    matmul, line = compiled
    found = re.fullmatch(
        r"numpipe compile: matmul \(a float16 2d row, b float16 2d row, c float16 2d row\): lift "
        rf"{TIME}, numba {TIME}, nvvm {TIME}, link {TIME}; (\d+) registers, 0 B spilled, (\d+) B "
        r"of shared memory, (\d+) B of machine code",
        line,
    )
    assert found is not None, line
    used = matmul.inspect("resources", A, A, cfg=SMALL)
    assert found.groups()[-3:] == (str(used.registers), str(used.smem_bytes), str(used.cubin_bytes))


MAP = launch.MapRequest(0, (64, 32), 128)


def test_loads_maps_plans_and_launches_have_a_line_each(
    fake: FakeDriver, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(log.VARIABLE, "launch")
    kernel = doubled(lambda *_: image(maps=(MAP,)), grid=(2, 3))
    kernel(*arrays(), stream=4096)
    plan, tensor_map, load, first = lines(capsys)
    shapes = r"a float32\[64, 64\], c float32\[64, 64\]"
    assert re.fullmatch(
        rf"numpipe launch: doubled: plan for {shapes} on GPU, grid \(2, 3, 1\): {TIME}", plan
    )
    assert re.fullmatch(
        r"numpipe launch: tensor map of a float32 array \(64, 64\) at 0x100000, box \(64, 32\), "
        r"swizzle 128: " + TIME,
        tensor_map,
    )
    assert re.fullmatch(
        rf"numpipe launch: doubled: 5 bytes of machine code loaded on GPU 0: {TIME}", load
    )
    launched = rf"numpipe launch: doubled: grid \(2, 3, 1\), stream 0x1000, GPU 0: {TIME}"
    assert re.fullmatch(launched, first)
    kernel(*arrays(), stream=4096)
    (again,) = lines(capsys)
    assert re.fullmatch(launched, again)


def test_a_launch_that_fails_has_its_line_too(
    fake: FakeDriver, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(log.VARIABLE, "all")
    fake.code = 700
    with pytest.raises(LaunchError):
        doubled()(*arrays())
    assert "grid (1, 1, 1), stream 0x0" in lines(capsys)[-1]


def test_compile_asks_for_no_lines_of_launches(
    fake: FakeDriver, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(log.VARIABLE, "compile")
    doubled()(*arrays())
    assert not lines(capsys)


def test_without_the_variable_nothing_is_said_and_a_launch_is_the_drivers_own_function(
    fake: FakeDriver, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def never(*_: Any) -> Any:
        raise AssertionError("the log was asked")

    def own(*arguments: Any) -> tuple[int]:
        return (0,)

    monkeypatch.setattr(fake, "launcher", lambda ordinal: own)
    kernel = doubled(lambda *_: image(maps=(MAP,)))
    kernel(*arrays())
    (variant,) = kernel._calls.variants.values()
    assert variant._prepared.launcher((1, 1, 1), 0, 0) is own
    # the environment is read only where something new is created
    for name in ("on", "say", "Timed", "launches"):
        monkeypatch.setattr(log, name, never)
    kernel(*arrays())
    assert not lines(capsys)


@pytest.mark.parametrize(
    "said, on",
    [
        ("", ()),
        ("compile", ("compile",)),
        ("compile,launch", ("compile", "launch")),
        (" Launch , ", ("launch",)),
        ("all", ("compile", "launch")),
    ],
)
def test_words(monkeypatch: pytest.MonkeyPatch, said: str, on: tuple[str, ...]) -> None:
    monkeypatch.setenv(log.VARIABLE, said)
    assert tuple(word for word in log.WORDS if log.on(word)) == on


def test_an_unknown_word_is_an_error_that_names_the_known(
    fake: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(log.VARIABLE, "launch,kernels")
    with pytest.raises(
        SpecError,
        match="NUMPIPE_LOG='launch,kernels': 'kernels' is not known; use one or more of compile, "
        "launch",
    ):
        doubled()(*arrays())
    assert not fake.named("launch")


# ---- inspect
def test_resources_say_what_shared_memory_is_for_and_all_else_that_is_used(
    compiled: tuple[Any, str],
) -> None:
    used = compiled[0].inspect("resources", A, A, cfg=SMALL)
    assert dict(used.smem) == {
        "barriers": 1024,
        f"in_specs[0] for 'a': 2 slots x 16384 B, pipeline at {place(used, 1)}": 2 * 128 * 64 * 2,
        f"in_specs[1] for 'b': 2 slots x 8192 B, pipeline at {place(used, 2)}": 2 * 64 * 64 * 2,
        "'array[…] = tile': 2 warpgroups x 2 store slots x 8192 B": 4 * 8192,
    }
    assert used.smem_bytes == sum(size for _, size in used.smem)
    assert (used.threads, used.memory_registers, used.compute_registers, used.barriers) == (
        384,
        40,
        232,
        4,
    )
    assert used.tensor_maps == 3 and used.clean and 0 < used.registers <= 168
    built = compiled[0].compiled(A, A, cfg=SMALL)
    assert used.cubin_bytes == len(built.image.cubin) > 1000
    assert [part for part, _ in used.seconds] == ["lift", "numba", "nvvm", "link"]
    assert all(seconds > 0 for _, seconds in used.seconds) and used.compile_seconds < 60


def place(used: Any, row: int) -> str:
    found = re.search(r"pipeline at (\S+)$", used.smem[row][0])
    assert found is not None
    return found[1]


def test_resources_are_a_table_when_printed(compiled: tuple[Any, str]) -> None:
    used = compiled[0].inspect("resources", A, A, cfg=SMALL)
    rows = str(used).splitlines()
    assert rows[0].split() == ["threads", "384", "a", "CTA"]
    assert f"{used.registers} a lane at entry, then 232 (compute) and 40 (memory)" in rows[1]
    assert [row.split()[0] for row in rows if "pipeline at" in row] == ["32768", "16384"]
    assert rows[-1].startswith("compiled in ") and "numba" in rows[-1]
    assert max(map(len, rows)) < 132


def test_every_word_of_inspect_answers(compiled: tuple[Any, str]) -> None:
    built = compiled[0].compiled(A, A, cfg=SMALL)
    assert ".entry" in built.ptx and ".target sm_90a" in built.ptx
    assert re.search(r"^define .*@", built.llvm, re.MULTILINE)
    assert "def matmul" in built.source


def test_an_unknown_word_is_refused_before_anything_is_compiled() -> None:
    def never(*_: Any) -> Any:
        raise AssertionError("compiled")

    with pytest.raises(
        SpecError,
        match=r"kernel doubled: inspect\('asm'\): one of 'ptx', 'sass', 'llvm', 'source', "
        r"'resources', "
        "'gate'",
    ):
        doubled(never).inspect("asm", *arrays())


def test_sass_without_nvdisasm_says_what_to_install(
    compiled: tuple[Any, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(cubin: bytes) -> str:
        raise RuntimeError("nvdisasm was not found")

    monkeypatch.setattr(nb, "disassemble", missing)
    with pytest.raises(
        TargetError,
        match=r"kernel matmul: inspect\('sass'\) and inspect\('gate'\) need nvdisasm.*"
        r"pip install nvidia-cuda-nvdisasm",
    ):
        compiled[0].inspect("sass", A, A, cfg=SMALL)
    assert build.toolchain() is None
