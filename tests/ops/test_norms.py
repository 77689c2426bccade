"""ops.layer_norm and ops.rms_norm, with residuals and gradients, in every schedule of rows."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import numpipe
from numpipe import ArrayType, SpecError, ops
from numpipe.kernels import row_kernels
from numpipe.kernels.kernel import Kernel
from numpipe.launch.arrays import describe
from numpipe.ops import norm_gradients
from numpipe.ops.norms import forward, norm_backward, norm_rows
from numpipe.ops.tiled import dense
from tests.kernels.compilers import compiles
from tests.kernels.random_words import words
from tests.kernels.rows_of_kernels import in_steps

NAMES = ["layer_norm", "rms_norm"]
EPS = 1e-5


@pytest.fixture(autouse=True)
def simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMPIPE_TARGET", "sim")
    monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "0")


def numbers(*shape: int, dtype: Any = np.float32) -> Any:
    return (1 + np.random.default_rng(sum(shape)).standard_normal(shape)).astype(dtype)


def normed(name: str, x: Any) -> tuple[Any, Any]:
    """Return (the rows of x normed, 1 / their scale), in float64."""
    x = np.asarray(x, np.float64)
    x = x - x.mean(-1, keepdims=True) if name == "layer_norm" else x
    inverse = 1 / np.sqrt((x * x).mean(-1, keepdims=True) + EPS)
    return x * inverse, inverse


def gradient(name: str, x: Any, grad: Any, weight: Any) -> tuple[Any, Any, Any]:
    """Return the gradients of x, weight and bias in float64."""
    y, inverse = normed(name, x)
    grad = np.asarray(grad, np.float64)
    own = grad * weight
    dx = own - y * (own * y).mean(-1, keepdims=True)
    dx = dx - own.mean(-1, keepdims=True) * (name == "layer_norm")
    outer = tuple(range(x.ndim - 1))
    return dx * inverse, (grad * y).sum(outer), grad.sum(outer)


def backward(name: str, x: Any, grad: Any, *more: Any, **options: Any) -> Any:
    """Call `norm_backward` with the statistics of x, and for layer_norm with `bias`."""
    _, statistics = norm_rows(x, centered=name == "layer_norm", eps=EPS)
    return norm_backward(x, grad, statistics, *more, bias=name == "layer_norm", **options)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("given", list(itertools.product([False, True], repeat=3)), ids=str)
def test_weight_bias_and_residual_are_optional(name: str, given: tuple[bool, ...]) -> None:
    x, other = numbers(2, 5, 40), numbers(2, 5, 40)[::-1]
    named = dict(
        zip(("weight", "bias", "residual"), (numbers(40), numbers(41)[:40], other), strict=True)
    )
    named = {key: array for (key, array), use in zip(named.items(), given, strict=True) if use}
    if name == "rms_norm":
        named.pop("bias", None)
    made = getattr(ops, name)(x, **named, eps=EPS)
    y, total = made if "residual" in named else (made, x)
    np.testing.assert_allclose(total, x + named.get("residual", 0), rtol=1e-6)
    wanted = normed(name, total)[0] * named.get("weight", 1.0) + named.get("bias", 0.0)
    np.testing.assert_allclose(y, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.variants(4)
@pytest.mark.parametrize("few", [1, 128])
@pytest.mark.parametrize("columns", [1, 33, 700, 1040, 3001, 4100, 9000])
@pytest.mark.parametrize("name", NAMES)
def test_the_gradient_kernels_agree_with_numpy(
    name: str, columns: int, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # one program computes all rows
    monkeypatch.setattr(norm_gradients, "SMS", 1)
    monkeypatch.setattr(norm_gradients, "FEW", few)
    # TMA loads short rows of device arrays, wherever they begin
    monkeypatch.setattr(norm_gradients, "loadable", lambda *of: (columns != 3001, columns < 1040))
    x, grad, weight = numbers(11, columns), numbers(11, columns)[::-1].copy(), numbers(columns)
    found = backward(name, x, grad, weight)
    for got, wanted in zip(found, gradient(name, x, grad, weight), strict=False):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("rows", [5, 140])
def test_the_gradient_of_a_bias_needs_no_weight(rows: int) -> None:
    x, grad = numbers(rows, 70), numbers(rows, 70)[::-1]
    _, dbias = backward("layer_norm", x, grad)
    np.testing.assert_allclose(dbias, grad.sum(0), rtol=1e-5, atol=2e-5)


def launched(
    monkeypatch: pytest.MonkeyPatch, rows: int, columns: int, dtype: Any, more: str = ""
) -> Any:
    """Return (the kernel of all gradients of contiguous rows on a GPU, its arrays), with the
    gradient of a `residual`, or that of "dropout"."""
    found: list[Any] = []
    monkeypatch.setattr(norm_gradients, "launch_over_rows", lambda *of, **options: found.append(of))
    monkeypatch.setattr(norm_gradients, "loadable", lambda *of: (False, True))
    x, grad = numbers(rows, columns, dtype=dtype), numbers(rows, columns, dtype=dtype)[::-1].copy()
    _, inverse = normed("layer_norm", x)
    statistics = np.stack((inverse[:, 0], np.asarray(x, np.float64).mean(1)), 1)
    given = x, grad, statistics.astype(np.float32), numbers(columns)
    given += (grad if more == "residual" else None,)
    outs = np.zeros_like(x), np.zeros_like(x) if more == "dropout" else None
    outs += (np.zeros(columns, np.float32), np.zeros(columns, np.float32))
    infos = [None if each is None else describe(each, "x") for each in (*given, *outs)]
    place = {"target": "sim", "stream": None}
    norm_gradients.launch_gradient(*infos, 0.0, 0, place)
    kernel, inputs, results, _ = found[0]
    return kernel, {name: info.array for name, (_, info) in {**inputs, **results}.items()}


SCALARS: dict[str, Any] = {"dropout": 0.0, "scale": 1.0, "seed": 0}


@compiles
@pytest.mark.variants(2, thorough=9)
@pytest.mark.parametrize(
    ("columns", "dtype", "height", "more"),
    [
        (1280, np.float16, 4, ""),
        (640, np.float16, 8, ""),
        (768, np.float16, 4, "residual"),
        (320, np.float16, 16, "dropout"),
        (70, np.float16, 64, ""),
        (157, np.float16, 32, ""),
        (430, np.float32, 8, ""),
        (1003, np.float16, 4, ""),
    ],
)
def test_the_gradient_of_short_rows_has_no_spills(
    columns: int, dtype: Any, height: int, more: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tiles have `height` rows, and shared memory has room for the blocks of two CTAs only, so that
    all SMs have as many."""
    kernel, arrays = launched(monkeypatch, 600, columns, dtype, more)
    assert kernel.definition.statics["row"].height == height
    resources = kernel.inspect("resources", **arrays, **SCALARS)
    assert resources.spill_bytes == 0
    assert 3 * resources.smem_bytes > norm_gradients.SHARED >= 2 * resources.smem_bytes


@pytest.mark.parametrize(
    ("columns", "dtype", "more"),
    [
        (18, np.float16, ""),
        (33, np.float32, "residual"),
        (683, np.float16, ""),
        (24, np.float16, "dropout"),
        (192, np.float32, "residual"),
    ],
)
def test_short_rows_are_loaded_by_tma(
    columns: int, dtype: Any, more: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(norm_gradients, "SMS", 1)
    # with 5000 rows, a CTA has two teams
    rows = 5000 if columns == 18 else 1700 if columns < 100 else 560
    kernel, arrays = launched(monkeypatch, rows, columns, dtype, more)
    kernel.simulate(**arrays, **SCALARS)
    wanted = gradient("layer_norm", arrays["x"], arrays["grad"], arrays["weight"])
    total = arrays["grad"] if more == "residual" else 0.0
    wanted = wanted[0] + total, *wanted[1:]
    found = arrays["dx"], arrays["dweight"].sum(0), arrays["dbias"].sum(0)
    for got, right in zip(found, wanted, strict=True):
        assert np.linalg.norm(got - right) < 1e-3 * np.linalg.norm(right)
    made = numpipe.verify(kernel, **arrays, **SCALARS, schedules=2)
    assert made.ok, str(made)


@pytest.mark.parametrize(("rows", "ring"), [(20, False), (24, True)])
def test_few_rows_are_loaded_ahead_if_they_are_long(
    rows: int, ring: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel, _ = launched(monkeypatch, rows, 48965, np.float32)
    assert isinstance(kernel, Kernel) == ring


def test_all_lanes_add_up_the_sums_of_many_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    heights: list[int] = []
    monkeypatch.setattr(norm_gradients, "of_parts", lambda n, height, *of: heights.append(height))
    launched(monkeypatch, 20_000, 64, np.float16)
    assert heights == [320]


def test_rows_that_memory_limits_are_shared_by_more_ctas() -> None:
    """66 clusters of two CTAs have five or six rows each, 30 of four CTAs have 11 or 12."""
    assert norm_gradients.shares(24_000, 2, 333, 2) == (4, 4)


def test_two_teams_of_short_rows_request_two_blocks_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(norm_gradients, "SMS", 1)
    options: list[tuple] = []
    short = norm_gradients.of_short_rows
    monkeypatch.setattr(
        norm_gradients, "of_short_rows", lambda *of: options.append(of) or short(*of)
    )
    launched(monkeypatch, 1100, 64, np.float16)
    ((_, _, slots, ahead, _, _, teams, *_),) = options
    assert (teams, slots, ahead) == (2, 6, 2)


@pytest.mark.parametrize("columns", [33, 701])
def test_gradients_are_stored_in_arrays_with_gaps(
    columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(norm_gradients, "FEW", 1)
    monkeypatch.setattr(norm_gradients, "loadable", lambda *of: (False, all(map(dense, of))))
    x, grad, weight = numbers(11, columns), numbers(11, columns)[::-1].copy(), numbers(columns)
    wide = np.zeros((11, columns + 7), np.float32)
    out = wide[:, :columns], np.zeros(columns, np.float32), np.zeros(columns, np.float32)
    backward("layer_norm", x, grad, weight, out=out)
    for got, wanted in zip(out, gradient("layer_norm", x, grad, weight), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=2e-5)
    assert not wide[:, columns:].any()


@pytest.mark.parametrize("columns", [8, 1040])
def test_gradients_of_no_rows_are_0(columns: int) -> None:
    x, weight = numbers(0, columns), numbers(columns)
    dx, dweight, dbias = backward("layer_norm", x, x, weight)
    assert dx.shape == x.shape
    assert not dweight.any()
    assert not dbias.any()


@pytest.mark.parametrize(
    ("flat", "ctas", "wgs", "rows", "columns"),
    [(False, 1, 2, 7, 1032), (False, 2, 1, 7, 1100), (True, 2, 2, 21, 2101)],
)
def test_warpgroups_wait_for_the_sums_of_rows(
    flat: bool, ctas: int, wgs: int, rows: int, columns: int
) -> None:
    kernel = norm_gradients.in_ring(True, columns, 4, flat, ctas, wgs, "dbias")
    x, grad, weight = numbers(rows, columns), numbers(rows, columns)[::-1].copy(), numbers(columns)
    exact = gradient("layer_norm", x, grad, weight)
    statistics = np.stack((normed("layer_norm", x)[1][:, 0], x.mean(-1)), 1).astype(np.float32)
    # row 4 may be loaded with row 3, but is not part of it
    x[4, 0] = grad[4, 0] = np.inf
    sums = np.zeros((2, 4, columns), np.float32)
    outs = {"dx": np.zeros_like(x), "dweight": sums[0], "dbias": sums[1]}
    named = {"statistics": statistics.ravel(), "weight": weight, **outs}
    kernel.simulate(x, grad, **named)
    found = np.delete(outs["dx"], 4, 0), *sums.sum(1)[:, 1:]
    wanted = np.delete(exact[0], 4, 0), exact[1][1:], exact[2][1:]
    for got, right in zip(found, wanted, strict=True):
        np.testing.assert_allclose(got, right, rtol=1e-4, atol=2e-5)
    made = numpipe.verify(kernel, x, grad, **named, schedules=3)
    assert made.ok, str(made)


@compiles
@pytest.mark.parametrize(("columns", "programs"), [(14614, 32), (48896, 16), (7797, 80)])
def test_every_sm_gets_as_many_ctas_that_add_up_sums(columns: int, programs: int) -> None:
    """All run at the same time, and no SM has room for more of them than others need."""
    kernel = norm_gradients.of_parts(columns, programs, "dweight", "dbias")
    parts, sums = np.zeros((2 * programs, columns), np.float32), np.zeros((1, columns), np.float32)
    nbytes = kernel.inspect("resources", parts=parts, dweight=sums, dbias=sums).smem_bytes
    width = 1 << (norm_gradients.TILE // programs).bit_length() - 1
    needed = math.ceil(2 * math.ceil(columns / width) / norm_gradients.SMS)
    # an SM keeps 1 KB for each CTA
    assert norm_gradients.SHARED // (nbytes + 1024) == needed


def test_a_cta_loads_the_columns_that_its_warpgroups_read() -> None:
    # 11 pieces: the last warpgroup of CTA 1 has 1 of them, in a tile of 2
    kernel = norm_gradients.in_ring(True, 5132, 4, False, 4, 2, "dbias")
    x, grad, weight = numbers(4, 5132), numbers(4, 5132)[::-1].copy(), numbers(5132)
    statistics = np.stack((normed("layer_norm", x)[1][:, 0], x.mean(-1)), 1).astype(np.float32)
    outs = np.zeros_like(x), np.zeros((1, 5132), np.float32), np.zeros((1, 5132), np.float32)
    kernel.simulate(x, grad, statistics.ravel(), weight, *outs)
    for got, wanted in zip(outs, gradient("layer_norm", x, grad, weight), strict=True):
        np.testing.assert_allclose(got.reshape(wanted.shape), wanted, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize(
    ("columns", "count", "split"), [(1247, 9999, (1, 1)), (4991, 999, (2, 2)), (4991, 9999, (1, 4))]
)
def test_shared_memory_has_room_for_a_row_ahead(
    columns: int, count: int, split: tuple[int, int]
) -> None:
    """The longest rows of four teams and of two, and as long ones of a team."""
    assert norm_gradients.shares(columns, 4, count, 2) == split
    kernel = norm_gradients.in_ring(True, columns, 4, True, *split, "dbias")
    x, grad, weight = numbers(18, columns), numbers(18, columns)[::-1].copy(), numbers(columns)
    statistics = np.stack((normed("layer_norm", x)[1][:, 0], x.mean(-1)), 1).astype(np.float32)
    sums = np.zeros((2, 2, columns), np.float32)
    dx = np.zeros_like(x)
    kernel.simulate(x, grad, statistics.ravel(), weight, dx, *sums)
    found = dx, *sums.sum(1)
    for got, wanted in zip(found, gradient("layer_norm", x, grad, weight), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=2e-5)


def test_a_gradient_of_the_total_is_added_and_16_bit_arrays_keep_their_type() -> None:
    x, grad = numbers(9, 64, dtype=ml_dtypes.bfloat16), numbers(9, 64, dtype=ml_dtypes.bfloat16)
    dx = backward("rms_norm", x, grad, None, grad)
    assert dx.dtype == x.dtype
    wanted = gradient("rms_norm", x, grad, 1.0)[0] + grad.astype(np.float64)
    assert np.linalg.norm(dx.astype(np.float64) - wanted) < 4e-3 * np.linalg.norm(wanted)


def test_the_gradients_of_vectors_have_the_same_bits_each_time() -> None:
    x, grad, weight = numbers(300, 40), numbers(300, 40), numbers(40)
    runs = [backward("layer_norm", x, grad, weight) for _ in range(2)]
    for a, b in zip(*runs, strict=True):
        assert (a == b).all()


def draw(seed: int, rows: int, columns: int) -> Any:
    """Return the words of philox 2x32 for seed and (column // 2, row) as numbers in [0, 1)."""
    made = words(seed, np.arange((columns + 1) // 2), np.arange(rows)[:, None])
    found = np.stack(made, 2).reshape(rows, -1)[:, :columns]
    return (found >> np.uint64(8)).astype(np.float64) * 2.0**-24


@pytest.mark.variants(3, thorough=6)
@pytest.mark.parametrize(("rows", "columns"), [(70, 33), (3, 700), (2, 4200)])
@pytest.mark.parametrize("name", NAMES)
def test_dropout_has_the_same_bits_in_every_schedule(
    name: str, rows: int, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # one program of the gradient kernel loops over all blocks of rows
    monkeypatch.setattr(norm_gradients, "SMS", 1)
    monkeypatch.setattr(norm_gradients, "FEW", 1)
    monkeypatch.setattr(norm_gradients, "loadable", lambda *of: (False, columns < 1000))
    x, residual, grad = (numbers(rows, columns)[::step].copy() for step in (1, -1, 1))
    weight = numbers(columns)
    options: dict[str, Any] = {"dropout": 0.25, "seed": -7, "eps": EPS}
    kept = np.where(draw(-7, rows, columns) < 0.25, 0.0, 1 / 0.75)
    y, total = getattr(ops, name)(x, weight, residual=residual, **options)
    np.testing.assert_allclose(total, x * kept + residual, rtol=1e-6, atol=1e-6)
    wanted = normed(name, x * kept + residual)[0] * weight
    np.testing.assert_allclose(y, wanted, rtol=1e-5, atol=1e-5)
    dx, *rest = backward(name, total, grad, weight, dropout=0.25, seed=-7)
    whole, *vectors = gradient(name, total, grad, weight)
    for got, wanted in zip([dx, *rest], [whole * kept, whole, *vectors], strict=False):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=5e-5)


@pytest.mark.parametrize("name", NAMES)
def test_later_passes_may_load_the_total(name: str) -> None:
    x, residual, weight = (numbers(*of, dtype=np.float16) for of in ((3, 5000), (3, 5000), (5000,)))
    arrays = {"x": x, "residual": residual, "weight": weight}
    arrays |= {"y": np.zeros_like(x), "total": np.zeros_like(x)}
    row = dataclasses.replace(in_steps(5000, 2, x.dtype, 2, cluster=2), rereads=True)
    kernel = forward(name == "layer_norm", None, *arrays).scheduled(row)
    kernel(**arrays, eps=EPS, **SCALARS)
    np.testing.assert_array_equal(arrays["total"], x + residual)
    # y has the rounding error of the total
    _, inverse = normed(name, x.astype(np.float32) + residual)
    mean = (x.astype(np.float64) + residual).mean(1, keepdims=True) * (name == "layer_norm")
    y = (arrays["total"] - mean) * inverse * weight
    np.testing.assert_allclose(arrays["y"], y, rtol=6e-4, atol=1e-5)
    assert numpipe.verify(kernel, **arrays, eps=EPS, **SCALARS, schedules=3).ok


def test_a_dropout_of_1_leaves_the_residual() -> None:
    x, residual = numbers(3, 8), numbers(4, 8)[:3]
    assert (ops.rms_norm(x, None, residual, dropout=1.0)[1] == residual).all()


@pytest.mark.parametrize(
    ("block", "n", "rtol"),
    [
        ("row", 300, 0),
        ("1x128", 301, 0),
        ("1x128", 2300, 0),
        # other lanes add up the same rows
        ("1x128", 128, 3e-7),
        ("1x128", 300, 3e-7),
    ],
)
def test_results_are_quantized(block: str, n: int, rtol: float) -> None:
    x, residual = numbers(5, n), numbers(6, n)[:5]
    x[:, -40:] = residual[:, -40:] = 1  # about the mean: a group of small numbers, which ends early
    options = {"out_scales": block, "out_dtype": "int8"}
    values, scales, total = ops.layer_norm(x, residual=residual, **options)
    y, wanted = ops.layer_norm(x, residual=residual)
    exact, factors = ops.quantize(y, "int8", block)
    np.testing.assert_array_equal(values, exact)
    np.testing.assert_allclose(scales, factors, rtol=rtol)
    np.testing.assert_array_equal(total, wanted)


def test_long_rows_are_quantized_in_registers() -> None:
    x, weight = numbers(1, 8192), numbers(8192)
    values, _ = ops.rms_norm(x, weight, out_scales="1x128", out_dtype="int8")
    exact, _ = ops.quantize(ops.rms_norm(x, weight), "int8", "1x128")
    assert abs(values.astype(int) - exact).max() <= 1


def test_the_last_group_of_a_long_row_is_quantized_without_what_follows() -> None:
    x = 1 + numbers(1, 33000)
    x[:, -104:] = 1  # about the mean, which columns outside the row are far from
    _, scales = ops.layer_norm(x, out_scales="1x128", out_dtype="int8")
    np.testing.assert_allclose(scales, ops.quantize(ops.layer_norm(x), "int8", "1x128")[1], 1e-4)


@pytest.mark.parametrize("columns", [70, 512, 9100])
def test_an_infinite_element_makes_the_others_0(columns: int) -> None:
    x = numbers(3, columns)
    x[1, 5] = np.inf
    y = ops.rms_norm(x)
    assert np.isnan(y[1, 5])
    assert not np.delete(y[1], 5).any()
    assert np.isfinite(y[::2]).all()


def test_rows_without_columns_have_scales_and_statistics() -> None:
    x, weight = numbers(3, 0), numbers(0)
    assert (ops.rms_norm(x, weight, out_scales="row")[1] == 1).all()
    torch = pytest.importorskip("torch")
    weight = torch.tensor(weight, requires_grad=True)
    numpipe.torch.rms_norm(torch.tensor(x), weight).sum().backward()
    assert weight.grad.shape == (0,)


@compiles
@pytest.mark.variants(1, thorough=8)
@pytest.mark.parametrize(
    ("columns", "adds", "dtype"),
    [
        (904, False, np.float16),
        (1280, False, np.float16),
        (704, True, np.float16),
        (9663, False, np.float16),
        (9663, False, np.float32),
        (8191, False, np.float32),
        (5655, False, np.float32),
        (20737, True, np.float16),
    ],
)
def test_weight_and_bias_do_not_spill(
    columns: int, adds: bool, dtype: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_kernels, "loadable", lambda *given: (False, True))
    x, vector = ArrayType((48456, columns), np.float16), ArrayType((columns,), dtype)
    arrays = {"x": x, "weight": vector, "bias": vector, "y": x}
    arrays |= {"residual": x, "total": x} if adds else {}
    kernel = forward(True, None, *arrays).kernel(**arrays, eps=EPS, **SCALARS)
    assert kernel.inspect("resources", **arrays, eps=EPS, **SCALARS).spill_bytes == 0


def test_rows_of_any_strides() -> None:
    x, weight = numbers(40, 6), numbers(40)
    y = ops.layer_norm(x.T, weight, eps=EPS)
    np.testing.assert_allclose(y, normed("layer_norm", x.T)[0] * weight, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda x: ops.layer_norm(x, np.zeros(7, np.float32)), "7 in 'weight'"),
        (lambda x: ops.rms_norm(x, eps=-1.0), "eps must be"),
        (lambda x: ops.rms_norm(x, dropout=1.5), "dropout must be"),
        (lambda x: ops.layer_norm(x, dropout=0.1, seed=2**31), "seed must be"),
        (lambda x: ops.layer_norm(x.astype(np.int32)), "'x' is int32, expected float16 or"),
        (lambda x: ops.rms_norm(x, None, x[:1]), "residual"),
        (lambda x: ops.rms_norm(x, out_scales="tensor"), "out_scales must be"),
        (lambda x: norm_backward(x, x, np.ones((3, 1), np.float32), dropout=2.0), "dropout must"),
    ],
)
def test_what_does_not_fit_is_refused(call: Callable[[Any], Any], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        call(numbers(3, 8))


# ---- PyTorch and JAX
@pytest.mark.parametrize("name", NAMES)
def test_in_pytorch_dropout_has_gradients(name: str) -> None:
    torch = pytest.importorskip("torch")
    x, residual = (torch.tensor(numbers(5, 37), requires_grad=True) for _ in range(2))
    kept = torch.tensor(np.where(draw(3, 5, 37) < 0.5, 0.0, 2.0))
    y, total = getattr(numpipe.torch, name)(x, residual=residual, dropout=0.5, seed=3, eps=EPS)
    own = torch.tensor(numbers(5, 37))
    ((y * own).sum() + total.square().sum()).backward()
    wide = [each.detach().double().requires_grad_() for each in (x, residual)]
    summed = wide[0] * kept + wide[1]
    y = getattr(torch.nn.functional, name)(summed, (37,), eps=EPS)
    ((y * own).sum() + summed.square().sum()).backward()
    for a, b in zip((x, residual), wide, strict=True):
        assert torch.allclose(a.grad.double(), b.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_in_jax_rows_of_a_batch_share_a_weight(name: str) -> None:
    jax = pytest.importorskip("jax")
    with jax.default_device(jax.devices("cpu")[0]):
        x, weight = jax.numpy.asarray(numbers(3, 4, 37)), jax.numpy.asarray(numbers(37))
        ours = getattr(numpipe.jax, name)

        def theirs(x: Any, weight: Any) -> Any:
            x = x - x.mean(-1, keepdims=True) if name == "layer_norm" else x
            return x / jax.numpy.sqrt((x * x).mean(-1, keepdims=True) + EPS) * weight

        mine = jax.jit(jax.vmap(lambda x: ours(x, weight, eps=EPS)))(x)
        np.testing.assert_allclose(mine, theirs(x, weight), rtol=1e-3, atol=1e-3)
