"""examples/benchmarks/attention.py --peers pallas, with stand-ins for PyTorch, JAX and its timer: neither is needed, nor a GPU."""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import pytest

from numpipe import bench

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "benchmarks"


@runtime_checkable
class Wrapped(Protocol):
    """What JAX's timer calls as it is; it compiles everything else, which fails for a function that launches kernels itself."""

    def __call__(self) -> Any: ...

    def trace(self) -> Any: ...

    def lower(self) -> Any: ...


class FakeTensor:
    """(B, H, S, D), as far as its shape goes."""

    def __init__(self, *shape: int, scale: float = 1.0) -> None:
        self.shape, self.dtype, self.scale = shape, "float16", scale

    def __mul__(self, factor: float) -> FakeTensor:
        return FakeTensor(*self.shape, scale=factor)

    def transpose(self, one: int, other: int) -> FakeTensor:
        shape = list(self.shape)
        shape[one], shape[other] = shape[other], shape[one]
        return FakeTensor(*shape, scale=self.scale)

    def contiguous(self) -> FakeTensor:
        return self


class FakeJax:
    """A GPU on which Pallas' kernels take `milliseconds` by (keys, steps); configurations that are not there are refused."""

    def __init__(self) -> None:
        self.log: list[Any] = []
        self.running: list[tuple[str, float]] = []
        self.milliseconds: dict[tuple[int, int], float] = {}

    def kernel(self, milliseconds: float) -> Callable[[int], None]:
        def call(i: int) -> None:
            self.log.append(i)
            self.running.append(("k", milliseconds))

        return call

    def attention(self, q: FakeTensor, k: FakeTensor, v: FakeTensor, config: Any) -> FakeTensor:
        if (config.block_kv, config.max_concurrent_steps) not in self.milliseconds:
            raise ValueError(f"{config.block_kv} keys exceed the available shared memory")
        self.running.append(("pallas", self.milliseconds[config.block_kv, config.max_concurrent_steps]))
        return q

    def measure(self, function: Any, *, aggregate: bool = True, iterations: int = 1) -> Callable[..., Any]:
        assert isinstance(function, Wrapped), "would be compiled by JAX"

        def run(*arrays: Any) -> Any:
            function(*arrays)
            self.running.clear()  # what came before is not timed
            for _ in range(iterations):
                result = function(*arrays)
            seen = list(self.running)
            if not seen:
                return result, None
            if not aggregate:
                return result, seen
            return result, [milliseconds for _, milliseconds in seen]

        return run

    def jit(self, function: Callable[..., Any]) -> Any:
        return type("Compiled", (), {"__call__": lambda _, *arrays: function(*arrays), "trace": 0, "lower": 0})()

    def modules(self) -> dict[str, types.ModuleType]:
        """What is imported, in place of the packages."""
        def module(name: str, **names: Any) -> types.ModuleType:
            made = types.ModuleType(name)
            vars(made).update(names)
            return made

        profiler = module("profiler", measure=self.measure)
        kernels = module("attention_mgpu", attention=self.attention, TuningConfig=types.SimpleNamespace)
        jax = module("jax", jit=self.jit, block_until_ready=self.log.append, dlpack=types.SimpleNamespace(from_dlpack=lambda x: x))
        torch = module("torch", from_dlpack=lambda x: x,
                       cuda=types.SimpleNamespace(synchronize=lambda: self.log.append("synchronized")))
        return {"jax": jax, "torch": torch, "jax.experimental.mosaic.gpu": module("gpu", profiler=profiler),
                "jax.experimental.pallas.ops.gpu": module("gpu", attention_mgpu=kernels)}


@pytest.fixture
def gpu() -> FakeJax:
    return FakeJax()


@pytest.fixture
def peer(gpu: FakeJax, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """examples/benchmarks/pallas_attention.py"""
    for name, module in gpu.modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    monkeypatch.delitem(sys.modules, "pallas_attention", raising=False)
    module = importlib.import_module("pallas_attention")
    monkeypatch.setattr(sys.modules["pallas_sweeps"], "FOLDER", tmp_path / "sweeps")
    yield module
    del sys.modules["pallas_attention"], sys.modules["pallas_sweeps"]


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(sys, "path", [str(FOLDER), str(FOLDER.parent), *sys.path])
    spec = importlib.util.spec_from_file_location("benchmark_attention_peers", FOLDER / "attention.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# ---- the timer
def test_jaxs_timer_gives_the_durations_of_anybodys_kernels_of_the_second_time(peer: Any, gpu: FakeJax) -> None:
    timer = peer.KernelTimer.__new__(peer.KernelTimer)
    handle = timer.measure(gpu.kernel(0.5), 4, 10)
    assert timer.seconds(handle) == pytest.approx(0.5e-3) and timer.megahertz(handle) is None
    assert gpu.log == [each for call in (10, 11, 12, 13) for each in (call, "synchronized")] * 2  # none beside another


@pytest.mark.parametrize("kernels", [0, 1])
def test_a_timer_that_sees_too_few_kernels_says_so(peer: Any, gpu: FakeJax, kernels: int) -> None:
    once = iter(range(2 + kernels))
    short = lambda i: gpu.running.append(("k", 1.0)) if next(once, 9) == 2 else None
    with pytest.raises(RuntimeError, match=f"saw {kernels} kernels in 2 calls"):
        peer.KernelTimer.__new__(peer.KernelTimer).measure(short, 2, 0)


def test_pallas_is_waited_for_by_jax_since_it_may_launch_later(peer: Any, gpu: FakeJax) -> None:
    gpu.milliseconds = {(128, 2): 1.0}
    found = peer.Pallas([[FakeTensor(1, 2, 256, 64)] * 3], causal=False)
    gpu.log.clear()
    peer.KernelTimer.__new__(peer.KernelTimer).measure(found, 1, 0)
    waited, synchronized = gpu.log[:2]
    assert waited == [found.results[0]] and synchronized == "synchronized"


# ---- the kernel
def test_the_fastest_configuration_that_runs_is_taken_and_kept(peer: Any, gpu: FakeJax, capsys: pytest.CaptureFixture[str]) -> None:
    gpu.milliseconds = {(64, 2): 3.0, (128, 2): 1.0, (128, 3): 2.0}
    sets = [[FakeTensor(1, 2, 256, 64)] * 3]
    found = peer.Pallas(sets, causal=True)
    assert (found.config.block_kv, found.config.max_concurrent_steps, found.config.causal) == (128, 2, True)
    assert "256 keys, 4 steps: ValueError: 256 keys exceed" in capsys.readouterr().out
    assert [x.scale for x in found.sets[0]] == [0.125, 1.0, 1.0]  # it scales no scores
    found(5)
    assert [out.shape for out in found.outs] == [(1, 2, 256, 64)]  # again as it was given
    found.poison()
    assert found.outs == [None]
    gpu.milliseconds = {}
    assert peer.Pallas(sets, causal=True).config == found.config  # nothing is measured again


def test_a_sweep_is_of_one_mask_and_of_one_size(peer: Any, gpu: FakeJax) -> None:
    gpu.milliseconds = {(64, 2): 3.0, (128, 2): 1.0}
    small, large = ([[FakeTensor(1, 2, size, 64)] * 3] for size in (256, 512))
    assert peer.Pallas(small, causal=True).config.block_kv == 128
    gpu.milliseconds[128, 2] = 4.0
    again = (small, True), (small, False), (large, True)
    assert [peer.Pallas(sets, causal).config.block_kv for sets, causal in again] == [128, 64, 64]


def test_where_no_configuration_runs_the_error_has_what_was_said_of_each(peer: Any, gpu: FakeJax, tmp_path: Path) -> None:
    sets = [[FakeTensor(1, 2, 256, 64)] * 3]
    with pytest.raises(ValueError, match=r"attention runs: 64 keys, 2 steps: ValueError: 64 keys exceed.*256 keys, 4 steps"):
        peer.Pallas(sets, causal=False)
    gpu.milliseconds = {(64, 2): 3.0}
    assert peer.Pallas(sets, causal=False).config.block_kv == 64  # a failure is not remembered
    assert [path.suffix for path in (tmp_path / "sweeps").iterdir()] == [".json"]


# ---- what is measured, and said of it
def test_pallas_gets_the_shapes_that_it_takes_in_float16(program: Any, monkeypatch: pytest.MonkeyPatch,
                                                         capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(program.importlib.util, "find_spec", lambda name: name)
    options = program.parse(["--peers", "pallas"])
    cases = program.cases(options)
    assert options.plan.work > bench.Plan.work  # several calls each time, of attention too
    assert len(cases) == 8 and not any("4001" in case["shape"] for case in cases)
    assert cases[0] == {"shape": "4,16,4096,128", "mask": "full", "dtype": "f16", "against": "Pallas"}
    with pytest.raises(SystemExit):
        program.parse(["--peers", "pallas", "--shapes", "1,1,100,64"])
    assert "a multiple of 128" in capsys.readouterr().err
    monkeypatch.setattr(program.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit):
        program.parse(["--peers", "pallas"])
    assert "JAX is not installed: pip install" in capsys.readouterr().err


def test_the_verdict_names_whom_a_row_is_against(program: Any) -> None:
    def row(name: str, ratio: float) -> bench.Row:
        case = {"shape": "4,16,4096,128", "mask": "full", "dtype": "f16", "against": "Pallas"}
        return bench.Row(case, "interleaved", name, "Pallas", 600.0, 600.0 / ratio, bench.figure([ratio, ratio]),
                         bench.figure([1.0, 1.01]), {})

    for ratio, said in ((1.06, "met"), (1.03, "missed")):
        lines = program.verdict([row("numpipe", ratio), row("numpipe lazy", 1.2), row("cuDNN", 0.99)]).splitlines()
        assert len(lines) == 2 and lines[1].split()[2:5] == ["f16", "interleaved", "Pallas"]
        assert f" 1.05  {said} " in lines[1] and " 1.200" in lines[1]


def test_errors_are_held_against_cudnns(program: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    errors = {"numpipe": 1.04, "numpipe lazy": 1.29, "Pallas": 1.9, "cuDNN": 1.0}
    calls = {name: program.Ours.__new__(program.Ours) if "numpipe" in name else types.SimpleNamespace() for name in errors}
    for name, each in calls.items():
        each.outs, each.lazy = [name], "lazy" in name
    case = {"shape": "1,1,128,64", "mask": "full", "dtype": "f16"}
    monkeypatch.setattr(program, "relative_error", lambda inputs, o: errors[o])
    assert program.accurate(None, calls, case) == errors
    for name in ("numpipe", "numpipe lazy", "Pallas"):
        errors[name] += 0.2
        with pytest.raises(AssertionError, match=f"^{name}: the relative error is"):
            program.accurate(None, calls, case)
        errors[name] -= 0.2
