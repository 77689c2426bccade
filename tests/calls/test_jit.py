"""numpipe.jit: which calls are rejected, and that following the error's advice works.

Driver and compiler are fakes.
"""

from __future__ import annotations

import itertools
import re
import sys
import threading
import types
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import ArrayType, BlockSpec, JitRefused, SpecError, ds, launch
from numpipe.kernels import jit
from numpipe.kernels.variants import Variant
from tests.kernels.jit_kernels import Config
from tests.kernels.launch_fakes import CudaArray, FakeDriver, opened
from tests.kernels.launch_kernels import image


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeDriver]:
    fake = FakeDriver()
    fake.stream = 0  # type: ignore[attr-defined]
    with opened(monkeypatch, fake):
        monkeypatch.delenv("NUMPIPE_CACHE")
        monkeypatch.setenv("NUMPIPE_CACHE_DIR", str(tmp_path))
        monkeypatch.delenv("NUMPIPE_JIT", raising=False)
        yield fake


@pytest.fixture(autouse=True)
def compiles(monkeypatch: pytest.MonkeyPatch, fake: FakeDriver) -> list[str]:
    """Return a list of the names of compiled kernels; the images are fakes."""
    seen: list[str] = []

    def build(self: Variant) -> Any:
        seen.append(self.definition.name)
        fake.sizes = [size for array in self.arrays for size in [8] * (1 + 2 * array.ndim)]
        fake.sizes = [128, *fake.sizes, *[kind.itemsize for kind in self.scalars]]
        found = image(
            (),
            tuple(array.name for array in self.arrays),
            tuple(array.order for array in self.arrays),
            name=self.definition.name,
        )
        return types.SimpleNamespace(image=found)

    monkeypatch.setattr(Variant, "_build", build)
    return seen


def device(
    shape: tuple[int, ...] = (64, 64), typestr: str = "<f4", strides: tuple[int, ...] | None = None
) -> CudaArray:
    """Return an array on the GPU at an address of its own; nothing reads it."""
    return CudaArray(next(_addresses), shape, typestr, strides)


_addresses = itertools.count(1 << 20, 1 << 20)


def copying(**options: Any) -> numpipe.Kernel:
    @numpipe.kernel(**options)
    def copy(x, y):
        y[ds(0, 64), ds(0, 64)] = x[ds(0, 64), ds(0, 64)]

    return copy


X, Y = device(), device()


# ---- which calls are rejected
def test_a_call_and_a_bind_that_would_compile_are_refused(compiles: list[str]) -> None:
    copy = copying()
    with numpipe.jit("error"):
        for call in (copy, copy.bind):
            with pytest.raises(
                JitRefused,
                match=r"^kernel copy: this call would compile it for x float32 2d, y float32 2d, "
                r"which numpipe\.jit\(.error.\) refuses",
            ):
                call(X, Y)
    assert not compiles
    copy(X, Y)
    assert compiles == ["copy"]


def test_kernels_in_memory_or_on_disk_can_be_called(compiles: list[str], fake: FakeDriver) -> None:
    copying()(X, Y)
    fresh = copying()
    with numpipe.jit("error"):
        fresh(X, Y)  # another process would find it as well
        fresh.bind(X, Y)()
        with pytest.raises(JitRefused, match="x float16 2d"):
            fresh(device(typestr="<f2"), device(typestr="<f2"))
    assert compiles == ["copy"] and len(fake.named("launch")) == 3


def test_without_a_cache_only_memory_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMPIPE_CACHE", "0")
    copy = copying()
    copy(X, Y)
    with numpipe.jit("error"):
        copy(X, Y)
        copy(device((128, 64)), device((128, 64)))  # the same machine code
        with pytest.raises(JitRefused):
            copying()(X, Y)


def test_explicit_compiles_are_not_refused(compiles: list[str]) -> None:
    with numpipe.jit("error"):
        copying().compiled(X, Y)
        copying().inspect("resources", X, device(typestr="<f2"))
        copy = copying(out_type=lambda x: ArrayType(x.shape, x.dtype))
        copy.simulate(np.ones((64, 64), np.float32))
        [used] = numpipe.warmup([(copy, (ArrayType((64, 64), "float32"),))])
    assert compiles == ["copy"] * 3 and used.registers == 168


def test_warn_warns_once_a_variant_at_the_line_of_the_call(compiles: list[str]) -> None:
    copy = copying()
    with numpipe.jit("warn"), warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(2):
            copy(X, Y)
            copy.bind(X, Y)()
        copy(device(typestr="<f2"), Y)
    assert [(one.category, one.filename) for one in seen] == [(RuntimeWarning, __file__)] * 2
    assert (
        "kernel copy: this call compiles it for x float32 2d, y float32 2d (numpipe.jit('warn')); "
        "numpipe.warmup([(copy, "
        '(numpipe.ArrayType((64, 64), "float32"), numpipe.ArrayType((64, 64), "float32"))'
        in str(seen[0].message)
    )
    assert compiles == ["copy"] * 2


def test_repeated_calls_ask_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(jit, "check", lambda *args: asked.append(args))
    copy = copying()
    bound = copy.bind(X, Y)
    for _ in range(5):
        copy(X, Y)
        bound()
    assert len(asked) == 1


# ---- scopes of the setting
def test_the_innermost_holds() -> None:
    strict, loose = numpipe.jit("error"), numpipe.jit("allow")
    with strict:
        with loose:
            with strict, pytest.raises(JitRefused):
                copying()(X, Y)
            copying()(X, device(typestr="<f2"))
        with pytest.raises(JitRefused):
            copying()(X, Y)
    copying()(X, Y)


def test_an_error_inside_ends_it() -> None:
    with pytest.raises(ZeroDivisionError), numpipe.jit("error"):
        raise ZeroDivisionError
    copying()(X, Y)


def test_around_a_function_it_holds_in_each_call_also_of_itself() -> None:
    @numpipe.jit("error")
    def serve(depth: int = 2) -> None:
        if depth:
            serve(depth - 1)
        with pytest.raises(JitRefused):
            copying()(X, Y)

    serve()
    copying()(X, Y)


def test_other_threads_have_their_own_and_the_environment_holds_for_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    results: list[str] = []

    def call() -> None:
        try:
            copying()(X, Y)
            results.append("ran")
        except JitRefused as error:
            results.append(str(error))

    def in_thread() -> None:
        thread = threading.Thread(target=call)
        thread.start()
        thread.join()

    monkeypatch.setenv("NUMPIPE_JIT", "error")
    in_thread()
    assert "which NUMPIPE_JIT=error refuses" in results.pop()
    with numpipe.jit("allow"):
        in_thread()
        assert "NUMPIPE_JIT" in results.pop() or getattr(sys.flags, "thread_inherit_context", False)
        call()
        assert results.pop() == "ran"
    monkeypatch.setenv("NUMPIPE_JIT", "")
    in_thread()
    assert results == ["ran"]


@pytest.mark.parametrize(
    "policy, words",
    [
        ("never", "expected one of 'error', 'warn', 'allow', got 'never'"),
        (None, "got None"),
        (["error"], "got"),
        (lambda x: x, "to define a kernel, use @numpipe.kernel"),
    ],
)
def test_an_unknown_word_is_refused_at_its_position(policy: Any, words: str) -> None:
    with pytest.raises(SpecError, match=rf"numpipe\.jit: .*{words}"):
        numpipe.jit(policy)


def test_another_word_in_the_environment_is_refused(
    monkeypatch: pytest.MonkeyPatch, compiles: list[str]
) -> None:
    monkeypatch.setenv("NUMPIPE_JIT", "1")
    with pytest.raises(
        SpecError, match="NUMPIPE_JIT is '1': expected one of 'error', 'warn', 'allow'"
    ):
        copying()(X, Y)
    assert not compiles


# ---- the error's advice
def test_it_says_which_types_nobody_compiled() -> None:
    kernel = numpipe.kernel(with_scalars)
    words = (
        "for x float16 2d, y float32 2d, n int64, alpha float32, beta bool, cfg=Config(tm=64), "
        "kind=np.float32, which"
    )
    with numpipe.jit("error"), pytest.raises(JitRefused, match=re.escape(words)):
        kernel(device(typestr="<f2"), np.int64(1), Y, beta=True)


CONFIG = Config()


def with_scalars(
    x, n, y, alpha=1.0, *, beta, cfg: numpipe.Static = CONFIG, kind: numpipe.Static = np.float32
):
    y[...] = x[...] * alpha * beta * n


def static_text(x, y, *, mode: numpipe.Static = "it's"):
    y[...] = x[...]


def same(x: Any) -> ArrayType:
    return ArrayType(x.shape, x.dtype)


def plain(x, y):
    y[...] = x[...]


BLOCK = BlockSpec((64, 64), lambda i, k: (i, k))
CALLS: dict[str, tuple[Any, dict[str, Any], tuple[Any, ...], dict[str, Any]]] = {
    "outputs passed": (plain, {}, (X, Y), {}),
    "outputs by out=": (plain, {}, (X,), {"out": Y}),
    "outputs by out= and out_type": (plain, {"out_type": same}, (X,), {"out": Y}),
    "by name": (plain, {}, (), {"x": X, "y": Y}),
    "half": (plain, {}, (device(typestr="<f2"), Y), {}),
    "another rank": (plain, {}, (device((4, 64, 64)), device((64,))), {}),
    "scalars and Statics": (with_scalars, {}, (X, 3, Y), {"beta": 0.5}),
    "NumPy scalars": (
        with_scalars,
        {},
        (X, np.int64(3), Y, np.float64(2)),
        {"beta": True, "cfg": Config(128), "kind": np.float16},
    ),
    "a string": (static_text, {}, (X, Y), {"mode": 'say "it\'s"'}),
    "tiles": (
        plain,
        {
            "grid": lambda x: (x.shape[0] // 64, 1),
            "in_specs": BLOCK,
            "out_specs": BLOCK,
            "compiler_params": numpipe.CompilerParams(
                dimension_semantics=("parallel", "sequential")
            ),
        },
        (X, Y),
        {},
    ),
    "columns contiguous": (plain, {}, (device(strides=(4, 256)), Y), {}),
    "out= with columns contiguous": (
        plain,
        {"out_type": same},
        (X,),
        {"out": device(strides=(4, 256))},
    ),
    "rows that TMA cannot address": (plain, {}, (device((64, 33)), Y), {}),
}


@pytest.mark.parametrize("case", CALLS)
@pytest.mark.parametrize("way", ["warmup", "export"])
def test_following_the_errors_advice_makes_the_call_work(
    case: str, way: str, compiles: list[str]
) -> None:
    function, options, args, named = CALLS[case]
    kernel = numpipe.kernel(**options)(function)
    with pytest.raises(JitRefused) as refused, numpipe.jit("error"):
        kernel(*args, **named)
    assert not compiles
    written = {"numpipe": numpipe, "np": np, "Config": Config, function.__name__: kernel}
    by_name = "with the arrays of this call" in str(refused.value)
    assert by_name == ("contiguous" in case or "cannot address" in case)
    if by_name:
        arrays = [*args, *[value for name, value in named.items() if name == "out"]]
        written |= dict(zip(("x", "y"), arrays, strict=True))
    [line] = re.findall(rf"^    (.*\.{way}\(.*)$", str(refused.value), re.MULTILINE)

    def export(path: str, *signatures: Any) -> None:
        assert path == f"{function.__name__}.numpipe"
        for signature in signatures:
            pair = len(signature) == 2 and isinstance(signature[1], dict)
            inner, more = signature if pair else (signature, {})
            kernel.inspect("resources", *inner, **more)

    kernel.export = export  # type: ignore[attr-defined]
    exec(line, written)
    assert compiles == [function.__name__]
    with numpipe.jit("error"):
        kernel(*args, **named)
    assert compiles == [function.__name__]


def test_an_allocated_output_is_compiled_for_its_place_in_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rows of a host array are padded, rows of an array on the GPU are not.

    The output of a call with GPU arrays is allocated on the GPU, too.
    """
    kernel = copying(out_type=same)
    variant = kernel.variant((device((64, 33)),), {})
    assert [array.tma for array in variant.arrays] == [False, False]
    assert [array.tma for array in kernel.variant((np.ones((64, 33), np.float32),), {}).arrays] == [
        True,
        True,
    ]


@pytest.mark.parametrize(
    "value, text",
    [
        (np.dtype("float16"), 'np.dtype("float16")'),
        (np.float32(2), "np.float32(2.0)"),
        (np.float16, "np.float16"),
        (Config, "Config"),
        (Config(3), "Config(tm=3)"),
        (launch.choose_target, "choose_target"),
        (True, "True"),
        (float("inf"), 'float("inf")'),
        (numpipe.LoweringSemantics.Lane, "LoweringSemantics.Lane"),
        (ArrayType((3,), "bfloat16"), 'numpipe.ArrayType((3,), "bfloat16")'),
    ],
)
def test_values_are_spelled_as_source(value: Any, text: str) -> None:
    assert jit.spelled(value) == text
