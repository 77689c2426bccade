"""ops.swiglu, geglu, rotary and quantize, for arrays of any layout, in PyTorch and in JAX."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import numpipe
from numpipe import SpecError, ops
from numpipe.kernels import row_kernels
from numpipe.launch.array_info import ArrayInfo, dense_strides
from numpipe.ops.gated import gated_backward

ROTARY = importlib.import_module("numpipe.ops.rotary")
F32 = np.float32


@pytest.fixture(autouse=True)
def simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMPIPE_TARGET", "sim")
    monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "0")


def numbers(*shape: int, dtype: Any = F32, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "contiguous": lambda x: x,
    "a vector": lambda x: x[0, 0],
    "rows apart": lambda x: x[:, ::2, 1:],
    "columns apart": lambda x: x[..., ::2],
    "every other": lambda x: x[1, 1, ::2],
    "transposed": lambda x: x.T,
    "nothing": lambda x: x[:0],
}


# ---- gated units
def activated(name: str, x: Any) -> Any:
    if name == "swiglu":
        return x / (1 + np.exp(-x))
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


@pytest.mark.parametrize("name", ["swiglu", "geglu"])
def test_gated_units_of_any_layout(name: str) -> None:
    gate, up = numbers(2, 3, 4, 70)
    for layout in LAYOUTS.values():
        g, u = layout(gate), layout(up)
        np.testing.assert_allclose(
            getattr(ops, name)(g, u), activated(name, g.astype(float)) * u, rtol=1e-5, atol=1e-6
        )
    both, out = np.concatenate((gate, up), -1), np.empty((70, 4, 3), F32).T
    assert getattr(ops, name)(both, out=out) is out
    np.testing.assert_array_equal(out, getattr(ops, name)(gate, up))


@pytest.mark.parametrize("name", ["swiglu", "geglu"])
def test_gated_units_keep_the_sign_of_zero_and_map_infinities_as_torch_does(name: str) -> None:
    gate = np.array([0.0, -0.0, -200.0, np.inf, -np.inf], F32)
    made = getattr(ops, name)(gate, np.ones(5, F32))
    assert not made[:3].any() and list(np.signbit(made[:3])) == [False, True, True]
    assert made[3] == np.inf and np.isnan(made[4])


@pytest.mark.parametrize("activation, name", [("silu", "swiglu"), ("gelu", "geglu")])
@pytest.mark.parametrize("dtype, columns", [(F32, 9), (ml_dtypes.bfloat16, 2100)])
def test_gradients_of_gated_units(activation: str, name: str, dtype: Any, columns: int) -> None:
    grad, gate, up = numbers(3, 3, columns, dtype=dtype)
    d, g, u = (x.astype(np.float64) for x in (grad, gate, up))
    h = 1e-5
    slope = (activated(name, g + h) - activated(name, g - h)) / (2 * h)
    wanted = d * u * slope, d * activated(name, g)
    made = gated_backward(grad, gate, up, activation=activation)
    one = gated_backward(grad, np.concatenate((gate, up), -1), activation=activation)
    tolerance = 1e-5 if dtype is F32 else 1e-2
    for got, right in zip(made, wanted, strict=True):
        np.testing.assert_allclose(got.astype(float), right, rtol=tolerance, atol=tolerance)
    assert (one == np.concatenate(made, -1)).all()


# ---- rotary
def turned(x: Any, cos: Any, sin: Any, interleaved: bool) -> Any:
    first, second = np.s_[..., ::2], np.s_[..., 1::2]
    if not interleaved:
        half = x.shape[-1] // 2
        first, second = np.s_[..., :half], np.s_[..., half:]
    y, wide = np.empty(x.shape), x.astype(float)
    y[first] = wide[first] * cos - wide[second] * sin
    y[second] = wide[first] * sin + wide[second] * cos
    return y


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(
    "shape, angles",
    [
        ((2, 4, 5, 32), (5, 16)),
        ((2, 4, 5, 32), (4, 1, 16)),
        ((2, 4, 5, 6), (2, 1, 5, 3)),
        ((6,), (3,)),
        ((3, 700), (1, 350)),
        ((2, 2, 2, 3, 8), (2, 1, 2, 1, 4)),
    ],
)
def test_rotary_matches_float64_and_turns_back(shape: Any, angles: Any, interleaved: bool) -> None:
    x, (cos, sin) = numbers(*shape), numbers(2, *angles)
    y = ops.rotary(x, cos, sin, interleaved=interleaved)
    np.testing.assert_allclose(y, turned(x, cos, sin, interleaved), rtol=1e-5, atol=1e-5)
    back = ops.rotary(x, cos, sin, interleaved=interleaved, inverse=True)
    np.testing.assert_allclose(back, turned(x, cos, -sin, interleaved), rtol=1e-5, atol=1e-5)


def test_rotary_of_any_layout_and_in_place() -> None:
    x, angle = numbers(3, 4, 44), numbers(1)
    for name, layout in LAYOUTS.items():
        view = layout(x)
        view = view[..., :2] if name in ("rows apart", "transposed") else view
        cos, sin = np.cos(numbers(view.shape[-1] // 2)), np.sin(numbers(view.shape[-1] // 2))
        made = ops.rotary(view, cos, sin)
        np.testing.assert_allclose(made, turned(view, cos, sin, False), rtol=1e-5, atol=1e-5)
    cos, sin = np.cos(angle + numbers(22)), np.sin(angle + numbers(22))
    right = turned(x, cos, sin, True)
    assert ops.rotary(x, cos, sin, interleaved=True, out=x) is x
    np.testing.assert_allclose(x, right, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("inverse", [False, True])
def test_contiguous_rows_that_begin_anywhere_are_rotated(
    inverse: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks of 16 rows of 13 pairs; the second matrix begins 8 bytes past a multiple of 16."""
    monkeypatch.setattr(ROTARY, "LANES", 20)
    kernel = ROTARY.rotated_rows.__wrapped__(13, inverse, 2, 16)
    x, (cos, sin) = numbers(2, 30, 26, dtype=np.float16), numbers(2, 30, 13)
    y = np.full_like(x, np.nan)
    kernel.simulate(x.ravel(), cos.ravel(), sin.ravel(), y.reshape(-1))
    right = turned(x, cos, -sin if inverse else sin, False)
    np.testing.assert_allclose(y, right, rtol=2e-3, atol=2e-3)


def test_rows_that_tma_can_load_are_rotated_as_a_flat_array(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def on_gpu(*shape: int, address: int = 4096) -> ArrayInfo:
        dtype = np.dtype(np.float16)
        return ArrayInfo(
            "cuda", address, shape, dense_strides(shape, dtype.itemsize), dtype, 0, True, None
        )

    options: list[Any] = []

    def kernel_of(x: Any, angles: Any, interleaved: bool = False, y: Any = None) -> str:
        found, y = [], y or x._replace(ptr=x.ptr + (1 << 20))
        for name in ("rotated", "rotated_rows"):

            def make(*of: Any, name: str = name) -> Any:
                options[:] = of
                return lambda *given, **place: found.append(name)

            monkeypatch.setattr(ROTARY, name, make)
        ROTARY._launch(x, angles, angles, y, interleaved, False, {})
        return "".join(found)

    x, angles = on_gpu(2, 8, 300, 186), on_gpu(300, 93)
    assert kernel_of(x, angles) == "rotated_rows"
    assert kernel_of(on_gpu(300, 186), angles) == "rotated_rows"
    assert kernel_of(x, angles, interleaved=True) == "rotated"
    assert kernel_of(x, angles, y=x) == "rotated", "in place: blocks of TMA overlap"
    assert kernel_of(on_gpu(2, 8, 300, 186, address=4104), angles) == "rotated"
    assert kernel_of(x, on_gpu(2, 1, 300, 93)) == "rotated"
    assert kernel_of(on_gpu(2, 300, 8, 186), on_gpu(300, 1, 93)) == "rotated"
    assert kernel_of(on_gpu(2, 8, 30, 186), on_gpu(30, 93)) == "rotated", "few rows"
    assert kernel_of(on_gpu(2, 8, 300, 258), on_gpu(300, 129)) == "rotated", "long rows"
    assert kernel_of(on_gpu(4, 8, 300, 128), on_gpu(300, 64)) == "rotated", "aligned, many heads"
    assert kernel_of(on_gpu(2, 8, 300, 128), on_gpu(300, 64)) == "rotated_rows"
    for heads, rows, matrices in ((8, 40_000, 4), (6, 40_000, 2), (8, 4_000, 2), (7, 40_000, 1)):
        kernel_of(on_gpu(heads, rows, 108), on_gpu(rows, 54))
        assert options[2:] == [matrices, 16]


# ---- quantize
def spread(scales: Any, block: str, columns: int) -> Any:
    if block == "1x128":
        return np.repeat(scales, 128, -1)[..., :columns]
    return scales[..., None] if block == "row" else scales


@pytest.mark.parametrize("block", ["tensor", "row", "1x128"])
@pytest.mark.parametrize("dtype, top", [("float8_e4m3fn", 448), ("int8", 127)])
def test_quantized_numbers_are_the_nearest(dtype: str, top: int, block: str) -> None:
    matrix = numbers(4, 256)
    matrix[1] = 0
    for x in (matrix, matrix[:, 1:200], matrix[:3, :6].T, matrix[0], matrix[2, ::2]):
        values, scales = ops.quantize(x, dtype, block)
        assert values.shape == x.shape and scales.dtype == F32
        each = spread(scales, block, x.shape[-1])
        divided = np.divide(x, each)
        assert (abs(divided).max() <= top * 1.00001) and (each > 0).all()
        step = 0.5001 if dtype == "int8" else np.maximum(abs(divided) / 16, 2**-10) * 1.001
        assert (abs(values.astype(F32) - divided) <= step).all()
        largest = abs(x.astype(float)).max(None if block == "tensor" else -1)
        if block != "1x128":
            wanted = np.where(largest == 0, 1, largest / top)
            np.testing.assert_allclose(scales, wanted, rtol=1e-6)


@pytest.mark.parametrize(("block", "n"), [("row", 33000), ("1x128", 33000), ("1x128", 26887)])
@pytest.mark.parametrize("aligned", [True, False])
def test_long_rows_are_quantized_in_steps(
    block: str, n: int, aligned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small CTAs share rows of groups that are not aligned to 16 bytes."""
    monkeypatch.setattr(row_kernels, "loadable", lambda *arrays: (aligned, True))
    x = numbers(2, n, dtype=np.float16)
    values, scales = ops.quantize(x, "int8", block)
    groups = np.pad(abs(x), ((0, 0), (0, -n % 128)))
    groups = groups.reshape(2, -1, groups.shape[1] if block == "row" else 128)
    np.testing.assert_allclose(scales.reshape(2, -1), groups.max(2) / np.float32(127), rtol=1e-6)
    each = spread(scales, block, n)
    assert (abs(values * each - x) <= 0.51 * each).all()


def test_rows_without_columns_have_scale_one() -> None:
    for values, scales in (
        ops.quantize(numbers(3, 0), "int8", "row"),
        ops.swiglu(numbers(3, 0), numbers(3, 0), out_scales="row"),
    ):
        assert values.shape == (3, 0) and (scales == 1).all()


def test_results_are_found_in_the_first_call(monkeypatch: pytest.MonkeyPatch) -> None:
    for op in (ops.quantize, ops.swiglu):
        monkeypatch.setattr(op, "_written", False)
    x = numbers(2, 5)
    assert ops.quantize(x, "int8", "row")[1].shape == (2,)
    assert ops.swiglu(x, x, out_scales="row")[1].shape == (2,)


@pytest.mark.parametrize("block", ["row", "1x128"])
def test_gated_units_are_quantized(block: str) -> None:
    gate, up = numbers(2, 3, 300)
    for g, u in ((gate, up), (gate[:, :256].copy(), up[:, :256].copy())):
        values, scales = ops.swiglu(g, u, out_scales=block, out_dtype="int8")
        right, wanted = ops.quantize(ops.swiglu(g, u), "int8", block)
        np.testing.assert_allclose(scales, wanted, rtol=1e-5)
        assert (abs(values.astype(int) - right) <= 1).all()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: ops.swiglu(numbers(2, 3)), "swiglu: without 'up'.*got shape \\(2, 3\\); fix"),
        (
            lambda: ops.geglu(numbers(2, 3), numbers(2, 4)),
            r"geglu: n = 3 in 'gate' \(2, 3\), 4 in 'up'",
        ),
        (lambda: ops.swiglu(np.zeros((2, 4), int)), "'gate' is int64, expected float16"),
        (lambda: ops.rotary(numbers(2, 3), *numbers(2, 1)), "even number of elements, got"),
        (lambda: ops.rotary(numbers(2, 4), *numbers(2, 4)), r"'cos' must broadcast to \(2, 2\)"),
        (lambda: ops.quantize(numbers(2, 4), "int4"), "dtype must be 'float8_e4m3fn' or 'int8'"),
        (lambda: ops.quantize(numbers(2, 4), block="column"), "block must be 'tensor', 'row' or"),
        (lambda: ops.quantize(np.array(1, F32), block="row"), 'fix: block="tensor"'),
    ],
)
def test_what_does_not_fit_is_refused(call: Callable[[], Any], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        call()


# ---- frameworks
def test_compiled_calls_without_rows_return_every_result() -> None:
    torch = pytest.importorskip("torch")

    def several(x: Any) -> list:
        loss = numpipe.torch.cross_entropy(
            x, torch.zeros(0, dtype=torch.int32), reduction="none", with_gradient=True
        )
        return [
            *numpipe.torch.quantize(x, "int8", "row"),
            *numpipe.torch.rms_norm(x[:, 0], None, x[:, 1]),
            *loss,
            numpipe.torch.swiglu(x),
        ]

    made = torch.compile(several, fullgraph=True, backend="aot_eager")(torch.ones(0, 8))
    shapes = [tuple(each.shape) for each in made]
    assert shapes == [(0, 8), (0,), (0,), (0,), (0,), (0, 8), (0, 4)]


def test_in_pytorch_both_halves_in_one_tensor_have_gradients() -> None:
    torch = pytest.importorskip("torch")
    gate, up, grad = (torch.tensor(numbers(2, 3, 32, seed=k)) for k in range(3))
    both = torch.cat((gate, up), -1).requires_grad_()
    apart = [x.requires_grad_() for x in (gate, up)]
    numpipe.torch.swiglu(both).backward(grad)
    (torch.nn.functional.silu(gate) * up).backward(grad)
    torch.testing.assert_close(both.grad, torch.cat([x.grad for x in apart], -1))


def test_in_jax_vmap_shares_cos_and_sin_and_quantizes_each() -> None:
    jax = pytest.importorskip("jax")
    with jax.default_device(jax.devices("cpu")[0]):
        gate = jax.numpy.asarray(numbers(2, 3, 32))
        cos, sin = (jax.numpy.asarray(x) for x in numbers(2, 3, 16))

        def theirs(x: Any) -> Any:
            a, b = x[..., :16], x[..., 16:]
            return jax.numpy.concatenate((a * cos - b * sin, a * sin + b * cos), -1)

        turned = jax.vmap(lambda x: numpipe.jax.rotary(x, cos, sin))(gate)
        np.testing.assert_allclose(turned, theirs(gate), rtol=1e-5, atol=1e-5)
        x = numbers(3, 2, 130)
        for block in ("tensor", "row", "1x128"):
            call = functools.partial(numpipe.jax.quantize, dtype="int8", block=block)
            each = [ops.quantize(row, "int8", block) for row in x]
            for got, wanted in zip(jax.vmap(call)(x), zip(*each, strict=True), strict=True):
                np.testing.assert_array_equal(got, np.stack(wanted))
