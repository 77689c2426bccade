"""numpipe.autotune without a GPU, with a fake timer."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import functools
import json
import threading
import warnings
from collections.abc import Iterator, Mapping
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import SpecError, TargetError
from numpipe.kernels.kernel import Kernel
from numpipe.kernels.variants import Variant
from numpipe.launch import current_gpu, driver
from numpipe.tools.tune import candidates, tuning, winners
from tests.kernels import tune_kernels
from tests.kernels.launch_fakes import CudaArray, FakeDriver
from tests.kernels.launch_kernels import image
from tests.kernels.tune_kernels import Config, Measured, product

A, B = np.ones((64, 64), np.float16), np.ones((128, 64), np.float16)
SPACE = {"narrow": Config(64), "wide": Config(128), "deep": Config(64, 4)}


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "0")
    monkeypatch.delenv("NUMPIPE_TARGET", raising=False)
    monkeypatch.setenv(winners.VARIABLE, str(tmp_path))
    monkeypatch.setattr(
        current_gpu,
        "gpu_state",
        lambda: current_gpu.GpuState("none", None, "no GPU is asked for here", "ask a test on one"),
    )


tune = functools.partial(numpipe.autotune, product, SPACE, A, B, progress=False)


def files(folder: Path) -> list[Path]:
    return sorted((folder / "tuning").iterdir())


# ---- the winner
def test_the_fastest_wins_and_its_kernel_computes() -> None:
    tuned = tune(measure=Measured(wide=1e-6))
    assert (tuned.name, tuned.config, tuned.measured) == ("wide", Config(128), True)
    assert tuned.kernel is product(Config(128)) and tuned.seconds == {
        "narrow": 3e-6,
        "wide": 1e-6,
        "deep": 3e-6,
    }
    np.testing.assert_array_equal(tuned.kernel(A, B, target="sim"), A @ B.T)


def test_the_measured_calls_are_of_the_candidates() -> None:
    results = {}

    def measure(calls: candidates.Competitors) -> Mapping[str, float]:
        for name, call in calls.items():
            with (
                pytest.warns(UserWarning, match="simulated SM")
                if not results
                else contextlib.nullcontext()
            ):
                results[name] = np.array(call(0), copy=True), call(1)
        return dict.fromkeys(calls, 1e-6)

    tuned = numpipe.autotune(
        product, {"narrow": Config(64), "wide": Config(128)}, A, B, measure=measure, progress=False
    )
    assert tuned.name == "narrow"  # the first of equals
    for first, second in results.values():
        np.testing.assert_array_equal(first, A @ B.T)
        np.testing.assert_array_equal(second, A @ B.T)
    assert results["narrow"][1] is results["wide"][1], "all write the same output"


def test_configs_without_names_are_called_by_their_repr() -> None:
    tuned = numpipe.autotune(
        product, [Config(64), Config(128)], A, B, measure=Measured(), progress=False
    )
    assert list(tuned.seconds) == ["Config(tn=64, slots=2)", "Config(tn=128, slots=2)"]


@pytest.mark.parametrize(
    "times",
    [
        {},
        {"narrow": 1.0, "wide": 1.0, "deep": 0.0},
        {"narrow": 1.0, "wide": float("nan"), "deep": 1.0},
    ],
)
def test_a_measure_that_omits_a_candidate_or_returns_no_time_is_refused(
    times: dict[str, float], tmp_path: Path
) -> None:
    with pytest.raises(
        SpecError, match="measure= returned .*, expected a positive number of seconds for each of"
    ):
        tune(measure=lambda calls: times)
    assert not (tmp_path / "tuning").exists()


# ---- what is cached
def test_a_winner_is_remembered_until_a_new_measurement_is_requested() -> None:
    measure = Measured(deep=1e-6)
    first = tune(measure=measure)
    second = tune(measure=measure)
    third = tune(measure=measure, again=True)
    assert len(measure.asked) == 2 and (first.measured, second.measured, third.measured) == (
        True,
        False,
        True,
    )
    assert (second.name, second.config, second.seconds, second.file) == (
        "deep",
        Config(64, 4),
        first.seconds,
        first.file,
    )
    assert "remembered" in str(second) and "remembered" not in str(first)


@pytest.mark.parametrize(
    "changed", ["shape", "dtype", "scalar", "order", "space", "source", "device", "version", "key"]
)
def test_another_question_is_measured_again(
    changed: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = winners.directory()
    asked = lambda *args, space_=SPACE, key=None, gpu=None, **named: winners.identity(
        product, space_, key, args or (A, B), named, None, gpu
    )
    before = winners.path(folder, asked())
    assert before == winners.path(folder, asked())
    if changed == "shape":
        after = asked(A, B[:64])
    elif changed == "dtype":
        after = asked(A, B.astype(np.float32))
    elif changed == "scalar":
        after = asked(alpha=2)
    elif changed == "order":
        after = asked(A, np.asfortranarray(B))
    elif changed == "space":
        after = asked(space_={**SPACE, "wide": Config(128, 3)})
    elif changed == "key":
        after = asked(key="mine")
    elif changed == "source":
        other = tmp_path / "tune_kernels.py"
        other.write_text(
            Path(tune_kernels.__file__).read_text(encoding="utf8") + "# edited\n", encoding="utf8"
        )
        monkeypatch.setattr(tune_kernels, "__file__", str(other))
        after = asked()
    elif changed == "device":
        after = asked(gpu=current_gpu.Device(0, "NVIDIA H200", (9, 0), 132, 13000, 232448))
    else:
        monkeypatch.setattr(winners, "versions", lambda: {"numpipe": "9.9", "numba-cuda": "0.30.4"})
        after = asked()
    assert winners.path(folder, after) != before


def test_calls_in_one_bucket_share_a_winner() -> None:
    measure = Measured()

    def bucket(a: np.ndarray, b: np.ndarray) -> tuple[Any, ...]:
        return a.shape[1], a.dtype.name

    tune(measure=measure, key=bucket)
    other = numpipe.autotune(
        product, SPACE, A[:8], B[:16], key=bucket, measure=measure, progress=False
    )
    assert not other.measured and len(measure.asked) == 1
    assert numpipe.autotune(
        product, SPACE, A[:, :32], B[:, :32], key=bucket, measure=measure, progress=False
    ).measured


def _winner_of_nothing(text: str) -> str:
    return json.dumps(json.loads(text) | {"winner": "gone"})


@pytest.mark.parametrize(
    "broken",
    [
        lambda text: text[: len(text) // 2],
        lambda text: "[1]",
        lambda text: "\0",
        lambda text: "[" * 200_000,
        _winner_of_nothing,
        lambda text: json.dumps(json.loads(text) | {"skipped": {"deep": 3}}),
        lambda text: json.dumps(json.loads(text) | {"seconds": {"narrow": 0}, "winner": "narrow"}),
        lambda text: json.dumps(json.loads(text) | {"schema": "other"}),
        lambda text: json.dumps(json.loads(text) | {"winner": []}),
        lambda text: json.dumps(
            json.loads(text) | {"seconds": {"narrow": "fast"}, "winner": "narrow"}
        ),
        lambda text: json.dumps(json.loads(text) | {"seconds": {"gone": 1e-9}, "winner": "gone"}),
        lambda text: json.dumps(json.loads(text) | {"identity": {}}),
    ],
)
def test_a_corrupt_file_is_warned_of_and_written_again(broken: Any, tmp_path: Path) -> None:
    measure = Measured(wide=1e-6)
    tune(measure=measure)
    [file] = files(tmp_path)
    whole = file.read_text(encoding="utf8")
    file.write_text(broken(whole), encoding="utf8")
    with pytest.warns(
        RuntimeWarning, match=rf"{file.name} is corrupt: .*; it is measured and written again"
    ):
        assert tune(measure=measure).measured
    assert file.read_text(encoding="utf8") == whole
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not tune(measure=measure).measured


def test_without_a_writable_folder_the_winner_is_reported_and_not_kept(tmp_path: Path) -> None:
    (tmp_path / "tuning").write_text("a file where the folder should be")
    with pytest.warns(RuntimeWarning) as told:
        tuned = tune(measure=Measured(wide=1e-6))
    assert any(
        "the winner cannot be kept" in str(w.message) and winners.VARIABLE in str(w.message)
        for w in told
    )
    assert tuned.name == "wide" and tuned.file is None


def test_writers_at_the_same_time_leave_one_whole_file(tmp_path: Path) -> None:
    question = winners.identity(product, SPACE, None, (A, B), {}, None, None)
    file = winners.path(tmp_path / "tuning", question)
    stop, torn = threading.Event(), list[str]()

    def write(number: int) -> None:
        for _ in range(20):
            seconds, skipped = {"wide": float(number)}, {"deep": "x" * 20000 * number}
            winners.save(file, winners.Answer("numpipe-tune/1", question, "wide", seconds, skipped))

    def look() -> None:
        while not stop.is_set():
            if file.exists():
                try:
                    torn.extend([] if winners.load(file, question) else ["nothing"])
                except RuntimeWarning as warning:
                    torn.append(str(warning))

    reader = threading.Thread(target=look)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        reader.start()
        threads = [threading.Thread(target=write, args=(number,)) for number in (1, 2, 3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        stop.set()
        reader.join()
    assert not torn and files(tmp_path) == [file]


def test_the_folder_is_the_users_cache_by_default(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv(winners.VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert winners.directory() == tmp_path / "cache" / "numpipe" / "tuning"


# ---- what is rejected
def test_invalid_candidates_are_skipped_and_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def compiled(
        factory: Any, found: list[candidates.Candidate], workers: int | None, told: Any
    ) -> Any:
        return {
            one.name: None if one.name != "deep" else "CompileError: no registers left\nand more"
            for one in found
        }

    monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "1")
    monkeypatch.setattr(tuning, "toolchain", lambda: None)
    monkeypatch.setattr(candidates, "compiled", compiled)
    measure = Measured(wide=1e-6)
    tuned = tune(measure=measure, progress=True)
    assert measure.asked == [["narrow", "wide"]] and tuned.skipped == {
        "deep": "CompileError: no registers left\nand more"
    }
    told = capsys.readouterr().err
    assert "wide is the fastest of 3 candidates (2 measured, 1 skipped)" in told
    assert "deep    skipped: CompileError: no registers" in told
    assert tune(measure=measure).skipped == tuned.skipped, "the file knows it too"


def test_where_none_can_run_all_are_named() -> None:
    with pytest.raises(
        SpecError,
        match=r"none of the candidates can run:\n    narrow: SpecError: .*\n    wide: SpecError",
    ):
        # K differs
        numpipe.autotune(product, SPACE, A, B[:, :32], measure=Measured(), progress=False)


def test_without_a_gpu_and_a_measure_it_says_so() -> None:
    with pytest.raises(
        TargetError,
        match="autotune measures on a Hopper GPU, .*: no GPU is asked for here.*numpipe.explain",
    ):
        tune()


@pytest.mark.parametrize(
    "broken, words",
    [
        (
            lambda: numpipe.autotune(lambda cfg: product(cfg), SPACE, A, B, measure=Measured()),
            "write it at module level",
        ),
        (lambda: numpipe.autotune(product, [], A, B, measure=Measured()), "no candidates"),
        (
            lambda: numpipe.autotune(product, [Config(), Config()], A, B, measure=Measured()),
            "twice",
        ),
        (
            lambda: numpipe.autotune(product, {1: Config()}, A, B, measure=Measured()),
            "names must be strings, got 1",
        ),
        (
            lambda: numpipe.autotune(product, [object()], A, B, measure=Measured()),
            "differs in each process",
        ),
        (lambda: tune(measure=Measured(), key=object()), "key is .*differs in each process"),
        (
            lambda: tune(measure=Measured(), workers=-1),
            "workers must be an int >= 0 or None, got -1",
        ),
        (
            lambda: numpipe.autotune(
                product, SPACE, numpipe.ArrayType((64, 64), "f2"), B, measure=Measured()
            ),
            "cannot be measured",
        ),
    ],
)
def test_what_cannot_be_tuned_is_refused_first(broken: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=words):
        broken()
    assert not (tmp_path / "tuning").exists()


def test_a_factory_of_something_else_is_a_mistake_and_not_a_candidate() -> None:
    with pytest.raises(TypeError, match="no_kernel.* returned a Config; fix: return a kernel"):
        numpipe.autotune(tune_kernels.no_kernel, SPACE, A, B, measure=Measured(), progress=False)


def test_a_factory_of_a_prompt_is_refused_where_workers_could_not_import_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(tune_kernels, "__file__")
    with pytest.raises(
        SpecError,
        match="is of tests.kernels.tune_kernels, which is not a file that worker processes can "
        "import",
    ):
        tune(measure=Measured())


# ---- compiling
@pytest.mark.soak  # and on a GPU: tests/gpu/test_tune_on_gpu.py
def test_workers_compile_what_this_process_would_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    """One candidate compiles, the other exceeds shared memory.

    Compiles run in worker processes; this process compiles nothing.
    """
    configs = {"narrow": Config(64), "huge": Config(64, 40)}
    monkeypatch.setattr(Variant, "_build", lambda *_: pytest.fail("compiled here"))
    found, none = candidates.describe(product, configs, (A, B), {})
    reports: list[None] = []
    codes = candidates.compiled(product, found, 1, lambda: reports.append(None))
    assert not none and len(reports) == 2 and sorted(codes) == ["huge", "narrow"]
    assert codes["huge"].startswith("SpecError: ") and "shared memory" in codes["huge"]
    code = codes["narrow"]
    assert (
        code.cubin.startswith(b"\x7fELF") and code.arrays == ("a", "b", "c") and len(code.maps) >= 2
    )

    [one] = [one for one in found if one.name == "narrow"]
    one.variant.adopt(code)
    assert one.variant.image is code and code.smem_bytes > 2 * 2 * 8192


def test_a_worker_that_dies_is_reported_with_a_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    class Dead(concurrent.futures.ThreadPoolExecutor):
        def __init__(self, *_: Any) -> None:
            super().__init__(1)

        def submit(self, *_: Any) -> Any:
            future: concurrent.futures.Future[Any] = concurrent.futures.Future()
            future.set_exception(BrokenProcessPool("gone"))
            return future

    monkeypatch.setattr(concurrent.futures, "ProcessPoolExecutor", Dead)
    found, _ = candidates.describe(product, SPACE, (A, B), {})
    with pytest.raises(
        numpipe.CompileError,
        match="autotune: a worker process died: .*tune_kernels.*__main__.*workers=0",
    ):
        candidates.compiled(product, found, None, print)


# ---- on a fake GPU
class Pretended(FakeDriver):
    """A driver that rejects the machine code named by `broken` at launch; `launched` lists the
    others."""

    broken = b""

    def launch(self, config: Any, kernel: Any, params: int, ordinal: int) -> int:
        self.code = 700 if self.broken and kernel == f"kernel {self.broken.decode()}" else 0
        self.calls.append(("launched", kernel))
        return super().launch(config, kernel, params, ordinal)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pretended]:
    """Install a fake GPU and a compiler whose code is the candidate's name.

    Kernels are created anew, without plans of other tests.
    """
    found = current_gpu.Device(0, "NVIDIA H200", (9, 0), 132, 13000, 232448)
    state = current_gpu.GpuState("ok", found, "", gpus=(found,))
    monkeypatch.setattr(current_gpu, "gpu_state", lambda: state)
    fake = Pretended()
    fake.sizes = [128, *[8] * 15]
    monkeypatch.setattr(driver, "_opened", fake)
    monkeypatch.setattr(
        candidates,
        "compiled",
        lambda factory, found, workers, told: {
            one.name: image(
                (), ("a", "b", "c"), name="multiply", cubin=one.name.encode(), entry=one.name
            )
            for one in found
        },
    )
    product.cache_clear()
    yield fake
    product.cache_clear()


def test_candidates_are_launched_from_the_workers_code_on_copies(
    gpu: Pretended, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(candidates, "MOST_SETS", 3)
    monkeypatch.setattr(Variant, "_build", lambda *_: pytest.fail("compiled here"))
    x = numpipe.to_device(A)

    def measure(calls: candidates.Competitors) -> Mapping[str, float]:
        del gpu.calls[:]
        outputs = [[call(number) for number in range(4)] for call in calls.values()]
        assert [name for (name,) in gpu.named("launched")] == [
            f"kernel {name}" for name in calls for _ in range(4)
        ]
        for of_it in outputs:
            assert of_it[0] is of_it[3] is outputs[0][0] and len({id(out) for out in of_it}) == 3
        return dict.fromkeys(calls, 1e-6)

    tuned = numpipe.autotune(product, SPACE, x, B, measure=measure, progress=False)
    assert list(tuned.seconds) == list(SPACE)


def test_inputs_are_copied_as_often_as_l2_asks_for(
    gpu: Pretended, monkeypatch: pytest.MonkeyPatch
) -> None:
    y = numpipe.to_device(B)
    given = candidates.buffers((A, 2.0), {"b": y}, on_gpu=True)
    assert len(given.sets) == candidates.MOST_SETS
    pointers = {array.info().ptr for args, named in given.sets for array in (args[0], named["b"])}
    assert len(pointers - {y.info().ptr}) == 2 * candidates.MOST_SETS and all(
        args[1] == 2.0 for args, _ in given.sets
    )
    np.testing.assert_array_equal(np.asarray(given.sets[5][1]["b"]), B)
    monkeypatch.setattr(
        candidates, "H200", dataclasses.replace(candidates.H200, l2_bytes=len(B) * 128)
    )
    assert len(candidates.buffers((B,), {}, on_gpu=True).sets) == 3, (
        "two L2 of as many bytes between two uses of one"
    )


def test_a_gpu_array_that_cannot_be_copied_is_refused(gpu: Pretended) -> None:
    with pytest.raises(SpecError, match="a CudaArray on the GPU has neither"):
        candidates.buffers((CudaArray(4096, (8, 8), "<f2"),), {}, on_gpu=True)


def test_where_simulated_calls_are_asked_for_a_gpu_is_left_alone(
    gpu: Pretended, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMPIPE_TARGET", "sim")
    with pytest.raises(TargetError, match="simulated here: NUMPIPE_TARGET='sim' was requested"):
        tune()
    tuned = tune(measure=lambda calls: {name: float(call(0)[0, 0]) for name, call in calls.items()})
    assert set(tuned.seconds.values()) == {64.0} and not gpu.calls


def test_a_launch_that_fails_ends_it(gpu: Pretended, tmp_path: Path) -> None:
    gpu.broken = b"wide"
    with pytest.raises(numpipe.LaunchError, match="multiply"):
        tune(measure=Measured())
    assert not (tmp_path / "tuning").exists()


def test_a_candidate_that_refuses_the_call_is_skipped(
    gpu: Pretended, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = candidates.Buffers.call

    def refusing(self: candidates.Buffers, kernel: Kernel, number: int) -> Any:
        if kernel is product(SPACE["wide"]):
            raise SpecError("not this grid")
        return call(self, kernel, number)

    monkeypatch.setattr(candidates.Buffers, "call", refusing)
    measure = Measured()
    assert tune(measure=measure).skipped == {
        "wide": "SpecError: not this grid"
    } and measure.asked == [["narrow", "deep"]]
