"""examples/gemm.py, the first file that a user runs: its output without a GPU, and its errors for
wrong arguments."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from cublas import Cublas  # type: ignore[import-not-found]
from numpipe.launch import driver
from numpipe.tools.bench import protocols
from tests.conftest import why_no_gpu
from tests.examples.test_cublas import FakeLibrary
from tests.kernels.launch_fakes import FakeDriver
from tests.tools.bench.test_bench import FakeGpu

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "gemm.py"


def example(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(EXAMPLE), *arguments],
        capture_output=True,
        text=True,
        timeout=100,
        env=os.environ | {"NUMPIPE_COMPILE_CHECK": "0"} | environment,
    )


def errors_by_shape(output: str) -> dict[str, float]:
    return {
        m[1]: float(m[2])
        for m in re.finditer(r"^ *(\d+,\d+,\d+) .*?(\d\.\de-\d+).*$", output, re.MULTILINE)
    }


def test_simulated_it_prints_target_errors_and_a_timeline() -> None:
    done = example("--target", "sim")
    assert done.returncode == 0, done.stderr
    assert not done.stderr, "nothing but the report"
    first = done.stdout.splitlines()[0]
    assert first == (
        "target: sim (target='sim' was requested); choose with --target sim|gpu, --shape "
        "M,N,K and --dtype f16|bf16"
    )
    found = errors_by_shape(done.stdout)
    assert len(found) >= 3 and all(0 < error < 3e-4 for error in found.values()), found
    for row in (
        "wg0 compute |",
        "wg1 compute |",
        "wg2 memory  |",
        "copy in     |",
        "copy out    |",
        "tensor core |",
    ):
        assert row in done.stdout
    loads, computes = (
        re.search(rf"^{name} *\|(.*)$", done.stdout, re.MULTILINE)
        for name in ("wg2 memory", "wg0 compute")
    )
    assert (
        "on a simulated SM" in done.stdout
        and "docs/quickstart.md goes on from there." in done.stdout.splitlines()[-1]
    )
    assert (
        loads
        and computes
        and "L" in loads[1]
        and "#" in computes[1]
        and "S" in computes[1]
        and "." in computes[1]
    )


@pytest.mark.thorough
def test_shapes_and_dtype_are_chosen_on_the_command_line() -> None:
    done = example("--target", "sim", "--shape", "70,90,33", "--shape", "1,1,1", "--dtype", "bf16")
    assert done.returncode == 0, done.stderr
    found = errors_by_shape(done.stdout)
    assert list(found) == ["70,90,33", "1,1,1"]
    assert 1e-3 < found["70,90,33"] < 3e-3, "bfloat16 rounds to 8 bits"


@pytest.mark.skipif(not why_no_gpu(), reason="there is a GPU")
def test_without_a_gpu_it_simulates_and_says_why() -> None:
    done = example("--shape", "64,64,64", NUMPIPE_TARGET="auto")
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    assert re.match(r"target: sim \(no usable GPU: \S.*\); choose with", done.stdout)


@pytest.mark.skipif(not why_no_gpu(), reason="there is a GPU")
def test_a_requested_but_missing_gpu_is_an_error_with_its_fix() -> None:
    done = example("--target", "gpu")
    assert done.returncode == 1 and not done.stdout
    assert re.fullmatch(
        r"error: target='gpu': the GPU cannot be used: .*; .*target='sim'\n", done.stderr
    )


@pytest.mark.skipif(not why_no_gpu(), reason="there is a GPU")
def test_work_too_large_to_simulate_unasked_is_refused() -> None:
    done = example("--shape", "4096,2048,64", NUMPIPE_TARGET="auto")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "too many to simulate by default" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--dtype", "f32"), "argument --dtype: invalid choice: 'f32'"),
        (("--target", "cpu"), "argument --target: invalid choice: 'cpu'"),
        (("--shape", "512,512"), "argument --shape: '512,512' is not M,N,K"),
        (("--shape", "512,x,512"), "argument --shape: '512,x,512' is not M,N,K"),
        (("--shape", "0,1,1"), "argument --shape: '0,1,1' is not M,N,K"),
    ],
)
def test_a_wrong_argument_is_named(
    arguments: tuple[str, ...],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    import gemm

    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), *arguments])
    with pytest.raises(SystemExit) as stopped:
        gemm.main()
    assert stopped.value.code == 2 and message in capsys.readouterr().err


def test_benchmarks_find_the_kernel() -> None:
    code = (
        "import sys, runpy; sys.argv = ['gemm.py', '--help']\n"
        f"runpy.run_path({str(ROOT / 'examples' / 'benchmarks' / 'gemm.py')!r})\n"
        "from gemm import Config, matmul\n"
        "assert 'matmul' in repr(matmul) and Config().tm == 128\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


class OnFakeGpu:
    """The example's GPU half on host memory: NumPy's products, and given times."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, cublas: bool) -> None:
        import gemm  # type: ignore[import-not-found]

        driver_, timer = FakeDriver(), FakeGpu()
        monkeypatch.setattr(driver, "get", lambda: driver_)
        monkeypatch.setattr(protocols, "EventTimer", lambda: timer)
        library = Cublas(FakeLibrary()) if cublas else None
        monkeypatch.setattr("cublas.load_cublas", lambda: library and self.counted(library))
        monkeypatch.setattr(gemm, "matmul", self.matmul)
        self.chosen: list[Any] = []
        self.gemm, self.timer, self.calls = gemm, timer, 0

    def matmul(self, a: Any, b: Any, cfg: Any, out: Any = None, target: str | None = None) -> Any:
        self.chosen.append(cfg)
        if out is not None:
            self.timer.time += 1e-3
            return out
        return (a.astype(np.float32) @ b.astype(np.float32).T).astype(a.dtype)

    def counted(self, library: Any) -> Any:
        def call(a: Any, b: Any, c: Any) -> None:
            self.timer.time += 2e-3
            if not self.calls:
                library(a, b, c)
            self.calls += 1

        return call


@pytest.mark.parametrize("cublas", [True, False])
def test_on_a_gpu_it_prints_speed_ratio_time_and_error(
    cublas: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gpu = OnFakeGpu(monkeypatch, cublas)
    gpu.gemm.on_gpu([(1200, 1000, 900)], np.dtype(ml_dtypes.bfloat16))
    *head, row = capsys.readouterr().out.splitlines()
    assert ("cuBLAS: not installed" in head[1]) is not cublas
    assert set(gpu.chosen) == {gpu.gemm.choose(1200, 1000, 900)}
    speeds = r"2 TFLOPS +1 TFLOPS +2\.00" if cublas else "2 TFLOPS +- +-"
    assert re.fullmatch(rf" +1200,1000,900 +{speeds} +\d+\.\d\d ms +\d\.\de-03  128x128", row), row


def test_the_config_suits_the_size() -> None:
    """Small products are cut into enough tiles for the SMs, large ones into tiles that read
    little."""
    from gemm import choose

    for m, n, k in ((512, 512, 512), (1024, 1024, 1024), (1024, 1024, 8192)):
        assert choose(m, n, k).tn == 64
    for m, n, k in ((2048, 2048, 2048), (4096, 4096, 512), (8192, 8192, 8192)):
        assert choose(m, n, k).tn == 256


def test_the_suggested_change_is_a_race(tmp_path: Path) -> None:
    source, advice = EXAMPLE.read_text(encoding="utf8"), " + wg * rows"
    assert f"`{advice}`" in source and source.count(f"{advice}, rows)") == 1
    broken = tmp_path / "gemm.py"
    broken.write_text(source.replace(f"{advice}, rows)", ", rows)"), encoding="utf8")
    done = subprocess.run(
        [sys.executable, str(broken), "--target", "sim"],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert (
        done.returncode == 1
        and "while TMA store (c) by warpgroup 0 (compute) may still be writing it" in done.stderr
    )
