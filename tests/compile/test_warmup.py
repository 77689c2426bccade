"""numpipe.warmup: what is compiled ahead of time, where, and how failures are reported."""

from __future__ import annotations

import concurrent.futures
import copy
import multiprocessing
import os
import pickle
import subprocess
import sys
import textwrap
import types
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import numpipe
from numpipe import ArrayType, CompileError, SpecError
from numpipe.kernels import warmup
from numpipe.kernels.variants import Variant
from tests.kernels import jit_kernels
from tests.kernels.compilers import compiles as needs_compiler
from tests.kernels.jit_kernels import Config, make, misspelt, times
from tests.kernels.launch_kernels import image

X, H = ArrayType((64, 64), np.float32), ArrayType((64, 64), np.float16)


class Workers(concurrent.futures.ThreadPoolExecutor):
    """Threads in place of processes: arguments and results are what would be sent to processes."""

    made: ClassVar[list[int]] = []

    def __init__(self, count: int, *_: Any) -> None:
        super().__init__(count)
        self.made.append(count)


@pytest.fixture(autouse=True)
def compiles(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[str, str]]:
    """Return a list of compiled (kernel, array types).

    A kernel of float64 does not compile; the images of others are fakes.
    """
    seen: list[tuple[str, str]] = []

    def build(self: Variant) -> Any:
        types_ = " ".join(array.dtype.name for array in self.arrays)
        if "float64" in types_:
            raise CompileError(f"k.py:1: no {types_}")
        seen.append((self.definition.name, types_))
        return types.SimpleNamespace(image=image((), ("x", "y"), name=self.definition.name))

    monkeypatch.setattr(Variant, "_build", build)
    monkeypatch.setattr(concurrent.futures, "ProcessPoolExecutor", Workers)
    monkeypatch.setattr(Workers, "made", [])
    monkeypatch.setenv("NUMPIPE_CACHE_DIR", str(tmp_path))
    for kernel in (times, misspelt):  # as if this process had not called them
        monkeypatch.setattr(kernel._calls, "variants", {})
    return seen


def test_each_is_compiled_once_in_workers_and_kept_in_memory_and_on_disk(
    compiles: list[Any], monkeypatch: Any
) -> None:
    calls: list[Any] = [
        (times, (X,)),
        (times, [H]),
        (times, (X,), {"cfg": Config(128)}),
        (times, (X,), {"cfg": Config()}),
    ]
    used = numpipe.warmup(calls, workers=2)
    assert [one.registers for one in used] == [168] * 4 and Workers.made == [2]
    assert sorted(compiles) == [("times", "float16 float16"), *[("times", "float32 float32")] * 2]
    numpipe.warmup(calls)
    monkeypatch.setattr(times._calls, "variants", {})  # another process
    numpipe.warmup(calls)
    assert len(compiles) == 3 and Workers.made == [2]
    assert times.variant((H,), {}).find() is not None


def test_arrays_of_any_kind_determine_what_to_compile(compiles: list[Any]) -> None:
    numpipe.warmup(
        [
            (times, (np.ones((3, 5), np.float16),)),
            (times, (X,), {"out": np.ones((64, 64), np.float32)}),
        ],
        workers=0,
    )
    assert (
        sorted(compiles) == [("times", "float16 float16"), ("times", "float32 float32")]
        and not Workers.made
    )


def test_a_single_kernel_starts_a_process_only_on_request(compiles: list[Any]) -> None:
    numpipe.warmup([(times, (X,))])
    assert not Workers.made
    numpipe.warmup([(times, (H,))], workers=3)
    assert Workers.made == [1] and len(compiles) == 2


def test_nothing_is_nothing() -> None:
    assert numpipe.warmup([]) == []


def test_what_no_other_process_can_import_is_compiled_here(compiles: list[Any]) -> None:
    numpipe.warmup([(make(3), (X,)), (times, (X,)), (make(4), (X,))])
    assert Workers.made == [1] and sorted(name for name, _ in compiles) == [
        "local",
        "local",
        "times",
    ]


def test_what_a_worker_cannot_import_is_compiled_here(
    compiles: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(data: bytes) -> Any:
        raise AttributeError("a prompt has no module")

    monkeypatch.setattr(warmup.pickle, "loads", gone)
    numpipe.warmup([(times, (X,)), (times, (H,))])
    assert len(compiles) == 2 and len(Workers.made) == 1


def test_what_a_worker_reads_otherwise_is_compiled_here(
    compiles: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A global has another value here, so the worker's machine code belongs to another kernel."""
    monkeypatch.setattr(jit_kernels, "FACTOR", 5.0)
    wanted = times.variant((X,), {}).digest, times.variant((H,), {}).digest
    compiled = warmup._compile

    def imported_anew(data: bytes) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(jit_kernels, "FACTOR", 2.0)
            return compiled(data)

    # this process has the module too: nothing else may read it meanwhile
    def at_once(self: Any, function: Any, data: bytes) -> Any:
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        future.set_result(function(data))
        return future

    monkeypatch.setattr(warmup, "_compile", imported_anew)
    monkeypatch.setattr(Workers, "submit", at_once)
    numpipe.warmup([(times, (X,)), (times, (H,))], workers=1)
    assert (
        len(compiles) == 4
        and (times.variant((X,), {}).digest, times.variant((H,), {}).digest) == wanted
    )
    monkeypatch.setattr(times._calls, "variants", {})
    assert times.variant((X,), {}).find() is not None, "the right one is on disk"


@pytest.mark.parametrize("workers", [0, 2])
def test_all_kernels_that_fail_to_compile_are_named_after_the_others_are_done(
    workers: int, compiles: list[Any]
) -> None:
    bad = ArrayType((64, 64), np.float64)
    with pytest.raises(CompileError) as raised:
        numpipe.warmup(
            [(times, (bad,)), (misspelt, (bad,)), (times, (X,)), (times, (H,))], workers=workers
        )
    message = str(raised.value)
    assert message.startswith("warmup: 2 of 4 kernels cannot be compiled:\n")
    assert (
        "\nkernel times: CompileError: k.py:1: no float64" in message
        and "\nkernel misspelt: CompileError: " in message
    )
    assert len(compiles) == 2 and times.variant((X,), {}).find() is not None


def test_a_worker_that_dies_is_reported_with_a_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    def submit(*_: Any) -> Any:
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        future.set_exception(BrokenProcessPool("gone"))
        return future

    monkeypatch.setattr(Workers, "submit", submit)
    with pytest.raises(
        CompileError,
        match=r"warmup: a worker process died: can tests\.kernels\.jit_kernels be "
        r".*__main__",
    ):
        numpipe.warmup([(times, (X,)), (times, (H,))])


@pytest.mark.parametrize(
    "calls, words",
    [
        ((times, (X,)), "entry 0 of the list must be .*got Kernel"),
        ([(times, X)], r"\(x,\) for a single one.*got \(Kernel, ArrayType\)"),
        ([(times, (X,)), (times,)], r"entry 1 .*got \(Kernel\)"),
        ([(times.function, (X,))], r"got \(function, tuple\)"),
        ([(times, (X,), [3])], r"got \(Kernel, tuple, list\)"),
        ([(times, (X,), {"nothing": 1})], "unexpected argument 'nothing'"),
    ],
)
def test_a_bad_call_is_refused_before_anything_is_compiled(
    calls: Any, words: str, compiles: list[Any]
) -> None:
    with pytest.raises(SpecError, match=words):
        numpipe.warmup(calls)
    assert not compiles


@pytest.mark.parametrize("workers", [-1, True, 1.5])
def test_workers_are_counted(workers: Any) -> None:
    with pytest.raises(SpecError, match="warmup: workers must be an int >= 0 or None"):
        numpipe.warmup([(times, (X,))], workers=workers)


def test_progress_is_shown_where_it_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tqdm")
    calls = [(times, (X,)), (times, (H,))]
    numpipe.warmup(calls, progress=False)
    assert capsys.readouterr().err == ""
    numpipe.warmup(calls, progress=True)
    assert "warmup: compile" in capsys.readouterr().err


def test_a_kernel_is_pickled_by_its_name_as_functions_are() -> None:
    assert pickle.loads(pickle.dumps(times)) is times and copy.deepcopy(times) is times
    with pytest.raises((pickle.PicklingError, AttributeError), match="local"):
        pickle.dumps(make(3))


# ---- in processes
SCRIPT = """
    import numpipe
    from numpipe.kernels.variants import Variant
    from tests.kernels.jit_kernels import Config, times

    @numpipe.kernel(out_type=lambda x: numpipe.ArrayType(x.shape, x.dtype))
    def of_the_script(x, y):
        y[numpipe.ds(0, 64), numpipe.ds(0, 64)] = x[numpipe.ds(0, 64), numpipe.ds(0, 64)] + 1

    {guard}
        Variant._build = lambda self: print("compiled here")
        X = numpipe.ArrayType((64, 64), "float32")
        used = numpipe.warmup([(times, (X,)), (of_the_script, (X,))], workers=1)
        assert all(one.cubin_bytes > 1000 for one in used)
        for kernel in (times, of_the_script):
            assert kernel.variant((X,), {{}}).image.cubin[:4] == bytes([127]) + b"ELF"
        print("done")
"""


@pytest.mark.thorough
@needs_compiler
@pytest.mark.parametrize("guard", ['if __name__ == "__main__":', "if True:"])
def test_processes_compile_kernels_that_this_one_has_not(guard: str, tmp_path: Path) -> None:
    """Without the main guard a worker runs the script again, which multiprocessing rejects."""
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT).format(guard=guard), encoding="utf8")
    root = str(Path(__file__).parents[2])
    run = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env=os.environ | {"NUMPIPE_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": root},
    )
    if "main" in guard:
        assert (run.stdout, run.returncode) == ("done\n", 0), run.stderr
    else:
        assert (
            run.returncode
            and "a worker process died: can __main__, tests.kernels.jit_kernels be imported"
            in run.stderr
        )


@pytest.mark.thorough
@needs_compiler
def test_a_module_that_warms_up_when_it_is_imported_starts_no_workers_of_workers(
    tmp_path: Path,
) -> None:
    body = (
        textwrap.dedent(SCRIPT)
        .format(guard="if True:")
        .replace("workers=1", "workers=2")
        .replace(
            'Variant._build = lambda self: print("compiled here")', 'print("begun", flush=True)'
        )
        .replace("kernel.variant((X,), {}).image.cubin[:4]", 'bytes([127]) + b"ELF"')
    )
    (tmp_path / "at_import.py").write_text(body, encoding="utf8")
    root = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2])])
    run = subprocess.run(
        [sys.executable, "-c", "import at_import"],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env=os.environ | {"NUMPIPE_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": root},
    )
    assert not run.returncode, run.stderr
    assert run.stdout.count("begun") in (2, 3) and run.stdout.count("done") == run.stdout.count(
        "begun"
    )


def test_a_worker_starts_no_workers(compiles: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warmup, "_in_worker", True)
    numpipe.warmup([(times, (X,)), (times, (H,))], workers=2)
    assert len(compiles) == 2 and not Workers.made


def test_workers_start_with_nothing_of_this_process() -> None:
    """A forked worker would have locks of threads that it lacks, and an unusable CUDA context."""
    seen = []
    original = multiprocessing.get_context
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            multiprocessing, "get_context", lambda method: seen.append(method) or original(method)
        )
        numpipe.warmup([(times, (X,)), (times, (H,))])
    assert seen == ["spawn"]
