"""numpipe.ops.matmul: every config, shape and stride, and the examples that use it."""

from __future__ import annotations

import importlib
import re
import sys
import types
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import epilogues
import gemm_tuned
import numpipe
from gemm import inputs
from numpipe import launch, ops
from numpipe.diagnostics import log
from numpipe.language.tiles import store
from numpipe.launch.windows import transposed
from numpipe.ops import operands as laid_operands
from numpipe.ops.choice.gpu import gpu_of
from tests.kernels.compilers import compiles
from tests.kernels.covering import examples
from tests.kernels.kernels_for_tests import operands, product
from tests.kernels.launch_fakes import CudaArray, TorchTensor, choose_a_fake_gpu
from tests.kernels.product_configs import fuses
from tests.kernels.tuned_cases import EPILOGUES, FORMS, RANKS, layouts

# the package's attribute of this name is the function
OP = importlib.import_module("numpipe.ops.matmul")
CONFIGS = gemm_tuned.CONFIGS


@pytest.mark.thorough
def test_it_prints_the_error_of_every_config(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["gemm_tuned.py", "--target", "sim", "--shape", "200,264,136"])
    gemm_tuned.main()
    rows = re.findall(
        r"^ *200,264,136  (\S+(?: \d+x\d+)?(?: cluster \d| split \d in a cluster)?) +(\S+)(?:  <- "
        r"chosen)?$",
        capsys.readouterr().out,
        re.MULTILINE,
    )
    assert [name for name, _ in rows] == list(CONFIGS) and all(
        1e-3 < float(error) < 3e-3 for _, error in rows
    )


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_has_as_many_slots_as_fit(name: str) -> None:
    cfg = CONFIGS[name]
    assert replace(cfg, slots=None, panels=cfg.panels or 4).depth == cfg.depth == cfg.slots
    assert replace(cfg, slots=None, panels=None).depth >= cfg.depth


def test_an_impossible_config_is_refused_with_the_numbers() -> None:
    a, b = operands(64, 64, 64)
    with pytest.raises(numpipe.SpecError, match="shared memory: .* B, but a CTA has 232448 B"):
        gemm_tuned.matmul(a, b, cfg=replace(CONFIGS["ping-pong 128x192"], slots=6), target="sim")
    with pytest.raises(numpipe.NumpipeError, match="a slot needs 393216 B"):
        gemm_tuned.matmul(a, b, cfg=gemm_tuned.Config(64, 128, 1024, slots=None), target="sim")


def test_both_schedules_of_one_config_compute_the_same() -> None:
    a, b = operands(256, 200, 328)
    cfg = gemm_tuned.Config(128, 64, slots=None, panels=2)
    for schedule in ("cooperative", "pingpong"):
        c = gemm_tuned.matmul(a, b, cfg=replace(cfg, schedule=schedule), target="sim")
        np.testing.assert_array_equal(c.astype(np.float64), product(a, b).astype(np.float64))


# ---- layouts, batches, skinny shapes
@pytest.mark.variants(2)
@pytest.mark.parametrize("ranks", RANKS, ids=str)
def test_matrices_and_batches_of_either_major_order(ranks: tuple[int, int]) -> None:
    for number, (a, b, out, expected) in enumerate(layouts(70, 136, 72, np.float16, ranks)):
        cfg = CONFIGS[("ping-pong 128x128", "64x64")[number % 2]]
        assert gemm_tuned.matmul(a, b, out=out, cfg=cfg, target="sim") is out
        np.testing.assert_array_equal(out, expected)


def test_of_column_major_operands_tma_is_shown_the_transposes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked, kernel = [], OP.kernel
    monkeypatch.setattr(
        OP,
        "kernel",
        lambda config, form: (
            lambda *infos, **named: (
                asked.append((form.a, form.b)),
                [x.array.flags.c_contiguous for x in infos],
                kernel(config, form)(*infos, **named),
            )[1]
        ),
    )
    for ranks, batch in (((2, 2), "b"), ((0, 0), "")):
        asked.clear()
        for a, b, _, _ in layouts(8, 16, 24, np.float16, ranks):
            gemm_tuned.matmul(a, b, target="sim", cfg=CONFIGS["ping-pong 128x128"])
        assert asked == [
            (batch + x, batch + y) for x in ("mk", "km") for y in ("nk", "kn") for _ in "CF"
        ]


@pytest.mark.parametrize("ranks", RANKS[:2], ids=str)
def test_a_column_major_output_is_the_transposed_product_through_the_store_ring(
    ranks: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    stored, put = [], store.put
    monkeypatch.setattr(
        store,
        "put",
        lambda ref, batch, start: (stored.append(batch.axes), put(ref, batch, start))[1],
    )
    *_, (a, b, out, expected) = layouts(70, 136, 72, np.float16, ranks)
    gemm_tuned.matmul(a, b, out=out, cfg=CONFIGS["ping-pong 128x128"], target="sim")
    np.testing.assert_array_equal(out, expected)
    assert stored


def test_arrays_of_any_kind_are_transposed_and_outputs_are_of_the_first_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    passed: list[Any] = []
    choose_a_fake_gpu(monkeypatch)
    monkeypatch.setattr(ops.matmul, "_written", True)  # the fake kernel stores nothing
    monkeypatch.setattr(
        OP, "kernel", lambda config, form: lambda *infos, **named: passed.append(infos)
    )
    cfg = replace(CONFIGS["64x16"], turned=True)
    a, b, out = (
        CudaArray(4096 * i, shape, "<f2")
        for i, shape in enumerate(((16, 64), (256, 64), (16, 256)), 1)
    )
    gemm_tuned.matmul(a, b, out=out, cfg=cfg)
    assert [(info.ptr, info.shape, info.strides) for info in passed.pop()] == [
        (8192, (256, 64), (128, 2)),
        (4096, (16, 64), (128, 2)),
        (12288, (256, 16), (2, 512)),
    ]

    made = []
    monkeypatch.setattr(
        OP.launch,
        "empty_like_kind",
        lambda info, *args: made.append(args) or np.zeros(args[0], args[1]),
    )
    x = TorchTensor(4096, (16, 64), "float16", (64, 1))
    y = TorchTensor(8192, (256, 64), "float16", (64, 1))
    gemm_tuned.matmul(x, y, cfg=cfg, stream=7)
    assert made == [((16, 256), np.dtype(np.float16), 7)]
    assert [info.shape for info in passed[0]] == [(256, 64), (16, 64), (256, 16)]


@pytest.mark.parametrize("turned", [False, True])
def test_the_rows_of_a_transposed_products_tiles_are_along_n(
    turned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, kernel, cfg, (m, n) = [], OP.kernel, replace(CONFIGS["64x16"], turned=turned), (5, 200)
    monkeypatch.setattr(
        OP,
        "kernel",
        lambda *args: (
            lambda a, b, out, **named: (
                made.append((a.shape[0], b.shape[0])),
                kernel(*args)(a, b, out, **named),
            )[1]
        ),
    )
    a, b = operands(m, n, 136)
    c = gemm_tuned.matmul(a, b, cfg=cfg, target="sim")
    np.testing.assert_array_equal(c.astype(np.float64), product(a, b).astype(np.float64))
    assert made == [(n, m) if turned else (m, n)] and c.flags.c_contiguous


# ---- NumPy's shapes
SHAPES = (
    ((70, 72), (72, 136)),
    ((72,), (72, 40)),
    ((40, 72), (72,)),
    ((72,), (72,)),
    ((3, 20, 72), (72, 40)),
    ((2, 3, 20, 72), (3, 72, 40)),
    ((2, 1, 20, 72), (1, 3, 72, 40)),
    ((1, 20, 72), (72, 40)),
    ((20, 72), (3, 72, 40)),
    ((5, 0, 8), (8, 3)),
    ((2, 3, 1), (1, 5)),
    ((4, 0), (0, 5)),
    ((0, 4, 8), (0, 8, 4)),
    ((3, 8), (2, 1, 8, 0)),
    ((3, 20, 72), (1, 72, 40)),
    ((2, 3, 4, 8), (1, 1, 8, 5)),
)


def integers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(np.float16)


@pytest.mark.parametrize(("left", "right"), SHAPES, ids=str)
def test_it_multiplies_every_shape_that_numpy_does(
    left: tuple[int, ...], right: tuple[int, ...]
) -> None:
    a, b = integers(*left), integers(*right, seed=1)
    found, wanted = ops.matmul(a, b, target="sim"), a.astype(np.float64) @ b.astype(np.float64)
    assert found.shape == wanted.shape and found.dtype == a.dtype
    np.testing.assert_array_equal(found.astype(np.float64), wanted)


@pytest.mark.parametrize(
    ("left", "right", "added"),
    [
        ((70, 72), (72, 40), (40,)),
        ((70, 72), (72, 40), (70, 1)),
        ((3, 20, 72), (72, 40), (3, 1, 40)),
        ((3, 20, 72), (3, 72, 40), (20, 40)),
        ((72,), (72, 40), (40,)),
        ((20, 72), (72,), (20,)),
        ((5, 72), (72, 200), (1, 1)),
    ],
    ids=str,
)
def test_c_broadcasts_as_numpy_adds_it(
    left: tuple[int, ...], right: tuple[int, ...], added: tuple[int, ...]
) -> None:
    a, b, c = integers(*left), integers(*right, seed=1), integers(*added, seed=2)
    found = ops.matmul(a, b, c, beta=0.5, target="sim")
    wanted = a.astype(np.float64) @ b.astype(np.float64) + 0.5 * c
    assert found.shape == wanted.shape
    np.testing.assert_array_equal(found, wanted.astype(np.float16))
    assert (found != a.astype(np.float64) @ b.astype(np.float64)).any(), (
        "it is seen where c is left out"
    )


@st.composite
def windows(draw: Any, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Draw an array of this shape that is a view of another one.

    Its dimensions may be permuted, reversed, spaced or repeated.
    """
    steps = [draw(st.sampled_from([1, 1, 1, 2, -1, 0] if size > 1 else [1])) for size in shape]
    order = (
        draw(st.permutations(range(len(shape)))) if draw(st.booleans()) else list(range(len(shape)))
    )
    sizes = [1 if step == 0 else size * abs(step) for size, step in zip(shape, steps, strict=True)]
    whole = integers(*[sizes[axis] for axis in order], seed=seed).transpose(np.argsort(order))
    cut = whole[tuple(slice(None, None, step or None) for step in steps)]
    return np.broadcast_to(cut, shape)


@settings(max_examples=examples(30))
@given(
    st.data(),
    st.integers(1, 20),
    st.integers(1, 20),
    st.integers(1, 20),
    st.sampled_from([((), ()), ((2,), ()), ((2,), (2,)), ((2, 1), (3,))]),
)
def test_any_window_is_an_operand_and_an_output(
    data: Any, m: int, n: int, k: int, batches: tuple[Any, Any]
) -> None:
    a, b = data.draw(windows((*batches[0], m, k), 0)), data.draw(windows((*batches[1], k, n), 1))
    wanted = a.astype(np.float64) @ b.astype(np.float64)
    whole = np.full([2 * size for size in wanted.shape], np.nan, np.float16)
    out = whole[
        tuple(
            slice(data.draw(st.integers(0, 1)), None, 2)
            if data.draw(st.booleans())
            else slice(0, size)
            for size in wanted.shape
        )
    ]
    assert ops.matmul(a, b, out=out, target="sim") is out
    np.testing.assert_array_equal(out.astype(np.float64), wanted)
    out[...] = np.nan
    assert np.isnan(whole).all(), "nothing else was written"


def test_what_tma_cannot_address_is_copied_once_to_rows_that_begin_at_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    passed, moved = [], []
    choose_a_fake_gpu(monkeypatch)
    monkeypatch.setattr(ops.matmul, "_written", True)  # the fake kernel stores nothing
    monkeypatch.setattr(
        OP, "kernel", lambda config, form: lambda *infos, **named: passed.append(infos)
    )
    monkeypatch.setattr(laid_operands, "copy_all", lambda pairs, place, padded: moved.extend(pairs))
    monkeypatch.setattr(
        OP.launch, "empty_like_kind", lambda info, shape, dtype, handle: np.zeros(shape, dtype)
    )
    monkeypatch.setattr(log, "on", lambda topic: topic == "launch")
    a, b = CudaArray(4098, (16, 64), "<f2"), CudaArray(8192, (65, 64), "<f2")
    out = CudaArray(12288, (16, 65), "<f2")
    ops.matmul(
        a, transposed(launch.describe(b, "b")), out=out, config=CONFIGS["cooperative 128x128"]
    )
    [(source, _)] = moved
    assert (source.ptr, source.shape, source.strides) == (4098, (16, 64), (128, 2))
    assert (passed[0][0].shape, passed[0][0].strides) == ((16, 64), (128, 2)) and passed[0][
        0
    ].ptr != 4098
    assert (
        "matmul: 'a', float16 (16, 64), strides (128, 2) bytes, is copied: its data starts"
        in capsys.readouterr().err
    )


def test_a_row_has_the_same_bits_whatever_the_number_of_rows_is() -> None:
    rng = np.random.default_rng(0)
    a, b = (
        rng.standard_normal(shape, np.float32).astype(np.float16)
        for shape in ((300, 520), (520, 72))
    )
    whole = ops.matmul(a, b, batch_invariant=True, target="sim")
    for rows in (1, 40, 200):
        np.testing.assert_array_equal(
            ops.matmul(a[:rows], b, batch_invariant=True, target="sim"), whole[:rows]
        )
    assert {OP.choose(OP.NOMINAL, 4096, k, fixed=True).split for k in (64, 4096, 16384)} == {None}


@pytest.mark.parametrize(
    "shapes, words",
    [
        (((4, 8), (16, 4), None), r"K = 8 in 'a' \(4, 8\), 16 in 'b' \(16, 4\)"),
        (
            ((4, 8), (16, 8), None),
            r"K = 8 in 'a' \(4, 8\), 16 in 'b' \(16, 8\); fix: pass b.T for a b \(N, K\)",
        ),
        (
            ((2, 4, 8), (3, 8, 4), None),
            r"the batches of 'a' \(2, 4, 8\) and 'b' \(3, 8, 4\) do not broadcast: \(2,\) and "
            r"\(3,\)",
        ),
        (((2, 4, 8), (8, 4), (4, 4)), r"'out' must be float16 \(2, 4, 4\), got float16 \(4, 4\)"),
        (((), (8, 4), None), "'a' is a number; fix: multiply with \\*, or pass alpha="),
    ],
)
def test_shapes_that_do_not_fit_are_refused_by_name(shapes: tuple[Any, ...], words: str) -> None:
    a, b, out = (None if shape is None else np.zeros(shape, np.float16) for shape in shapes)
    with pytest.raises(numpipe.SpecError, match=f"matmul: .*{words}"):
        ops.matmul(a, b, out=out, target="sim")


@pytest.mark.parametrize(
    "named, words",
    [
        ({"bias": (9,)}, r"'bias' must be \(8,\) or \(4, 1\), got \(9,\)"),
        ({"c": (4, 9)}, r"'c' must broadcast to \(4, 8\), got \(4, 9\)"),
        ({"b": np.float32}, "'b' is float32, expected float16 or bfloat16; fix: convert it"),
        ({"b": ml_dtypes.bfloat16}, "'b' is bfloat16 and 'a' is float16; fix: give both one type"),
        ({"a": np.int32}, "'a' is int32, expected float16 or bfloat16"),
        ({"a": np.complex64}, "element type complex64.* is not supported"),
    ],
    ids=str,
)
def test_other_arguments_that_do_not_fit_are_refused_by_name(
    named: dict[str, Any], words: str
) -> None:
    arrays = {"a": np.zeros((4, 8), np.float16), "b": np.zeros((8, 8), np.float16)}
    for name, what in named.items():
        arrays[name] = (
            np.zeros(what, np.float16) if isinstance(what, tuple) else arrays[name].astype(what)
        )
    with pytest.raises(numpipe.SpecError, match=words):
        ops.matmul(**arrays, target="sim")


def test_a_tensor_that_requires_a_gradient_is_refused_where_pytorch_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recording = [True]
    monkeypatch.setitem(
        sys.modules, "torch", types.SimpleNamespace(is_grad_enabled=lambda: recording[0])
    )
    a, b = (TorchTensor(4096, (64, 64), "float16", (64, 1)) for _ in range(2))
    b.requires_grad = True  # type: ignore[attr-defined]
    with pytest.raises(
        numpipe.SpecError,
        match="matmul: 'b' requires a gradient.* call numpipe.torch.matmul, or pass b",
    ):
        ops.matmul.described({"a": a, "b": b})
    recording[0] = False
    assert list(ops.matmul.described({"a": a, "b": b})) == ["a", "b"]


# ---- epilogues
@pytest.mark.parametrize("name", EPILOGUES)
def test_a_product_ends_with(name: str) -> None:
    for number, batches in enumerate((0, 2)):
        cfg = CONFIGS[("cooperative 128x128", "64x64")[number]]
        assert EPILOGUES[name].run(70, 136, 72, batches=batches, cfg=cfg, target="sim") < 3e-4


@pytest.mark.parametrize("order", "CF")
def test_the_output_may_be_the_source(order: str) -> None:
    assert (
        EPILOGUES["all"].run(
            200, 136, 72, order=order, inplace=True, cfg=CONFIGS["ping-pong 128x128"], target="sim"
        )
        < 3e-4
    )


def test_a_source_times_nothing_is_not_read() -> None:
    a, b = operands(64, 40, 72)
    c = gemm_tuned.matmul(a, b, np.full((64, 40), np.nan, np.float16), beta=0, target="sim")
    np.testing.assert_array_equal(c.astype(np.float64), product(a, b).astype(np.float64))


def test_an_unnamed_activation_and_one_that_is_not_a_kernel_function_are_refused() -> None:
    a, b = operands(64, 64, 64)
    with pytest.raises(
        numpipe.SpecError,
        match="activation must be None, 'relu', 'silu', 'gelu' or a numpipe.function of a float32 "
        "tile, got 'swish'",
    ):
        gemm_tuned.matmul(a, b, activation="swish", target="sim")
    with pytest.raises(numpipe.CompileError, match="is a plain Python function.*@numpipe.function"):
        gemm_tuned.matmul(a, b, activation=inputs, target="sim")


@pytest.mark.thorough
def test_epilogues_prints_the_error_of_each(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["epilogues.py", "--target", "sim"])
    epilogues.main()
    rows = re.findall(r"^ *(\w+)  (\S+)$", capsys.readouterr().out, re.MULTILINE)
    assert [name for name, _ in rows] == ["none", "relu", "silu", "gelu", "clipped"]
    assert all(1e-5 < float(error) < 3e-4 for _, error in rows)


# ---- the machine code
def gate(cfg: gemm_tuned.Config, form: gemm_tuned.Form, dtype: Any) -> tuple[str, ...]:
    sizes = {"b": 4, "m": 8192, "n": 8192, "k": 8192}

    def array(dims: str) -> numpipe.ArrayType:
        return numpipe.ArrayType(tuple(sizes[dim] for dim in dims), np.dtype(dtype))

    given = [
        array(dims)
        for dims in (form.a, form.b, *[form.c] * form.source, *[form.bias] * bool(form.bias))
    ]
    scalars = {name: 0.5 for name in ("alpha", "beta") if name not in form.without}
    found: tuple[str, ...] = gemm_tuned.kernel(cfg, form).inspect("gate", *given, **scalars)
    return found


@pytest.mark.thorough
@compiles
def test_the_largest_epilogue_passes_the_build_gate() -> None:
    assert gate(CONFIGS["cooperative 128x256"], FORMS["all"], np.float16) == ()


@pytest.mark.soak
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", CONFIGS)
def test_every_config_and_form_passes_the_build_gate(name: str, form: str, dtype: Any) -> None:
    if fuses(CONFIGS[name]) or "all" not in form:
        assert gate(CONFIGS[name], FORMS[form], dtype) == ()


@pytest.mark.soak
def test_without_strips_an_epilogue_spills(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OP.Config, "strip", property(lambda config: config.tn))
    made = OP.kernel.__wrapped__(CONFIGS["cooperative 128x256"], FORMS["all"])
    monkeypatch.setattr(gemm_tuned, "kernel", lambda cfg, form: made)
    assert any(
        "spills" in finding
        for finding in gate(CONFIGS["cooperative 128x256"], FORMS["all"], np.float16)
    )


@pytest.mark.parametrize(
    "changes, words",
    [
        (
            {"split": 2, "dynamic": True},
            "dynamic=True takes whole tiles from a counter, but split= cuts them",
        ),
        (
            {"dynamic": True, "cluster": 2},
            "each CTA fetches its own tiles, but the CTAs of a cluster with named axes",
        ),
    ],
    ids=str,
)
def test_options_that_mean_nothing_together_are_refused_in_both_executions(
    changes: dict[str, Any], words: str
) -> None:
    kernel = gemm_tuned.kernel(replace(CONFIGS["cooperative 128x128"], **changes))
    a = np.zeros((8, 8), np.float16)
    for run in (lambda: kernel(a, a, target="sim"), lambda: kernel.inspect("ptx", a, a)):
        with pytest.raises(numpipe.NumpipeError, match=re.escape(words)):
            run()


# ---- choice of the config
def test_without_a_config_the_product_has_the_chosen_one(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, found = [], gemm_tuned.choose
    monkeypatch.setattr(OP, "choose", lambda *sizes: asked.append(sizes) or found(*sizes))
    a, b = operands(64, 40, 72)
    c = gemm_tuned.matmul(a, b, target="sim")
    np.testing.assert_array_equal(c.astype(np.float64), product(a, b).astype(np.float64))
    assert asked == [(64, 40, 72, gpu_of(), 1, False, 16, False, (False, False))]
