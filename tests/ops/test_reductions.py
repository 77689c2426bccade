"""ops.sum, mean, max and argmax along any axis of arrays of any layout, in PyTorch and in JAX."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import numpipe
from numpipe import SpecError, ops
from numpipe.compile.build import toolchain
from numpipe.kernels.noted_calls import imagined, noting
from numpipe.kernels.row_schedules import LEAST, Needs
from numpipe.ops import reduce_axis
from tests.kernels.rows_of_kernels import schedule_for

NAMES = ["sum", "mean", "max", "argmax"]
PLACE = "target", "stream"
SM_BYTES, RESERVED = 228 << 10, 1 << 10
"""shared memory of an H200's SM, and what each CTA has in addition to its own"""


@pytest.fixture(autouse=True)
def simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMPIPE_TARGET", "sim")
    monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "0")


def numbers(*shape: int, dtype: Any = np.float32) -> Any:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(dtype)


def check(name: str, x: Any, axis: int | None, tolerance: float = 1e-5) -> None:
    made = getattr(ops, name)(x, axis)
    wanted = getattr(np, name)(x.astype(np.float64), axis=axis)
    assert made.shape == wanted.shape and made.dtype == (np.int32 if name == "argmax" else x.dtype)
    scale = max(1.0, float(abs(wanted).max(initial=0)))
    np.testing.assert_allclose(made.astype(np.float64), wanted, rtol=tolerance, atol=1e-5 * scale)


@pytest.mark.variants(2, thorough=4)
@pytest.mark.parametrize("name", NAMES)
def test_any_axis_of_any_layout(name: str) -> None:
    x = numbers(3, 5, 40)
    for view in (x, x.T, x[::2], x[..., ::2], x[:, 1:4, 3:], x[0, 0]):
        for axis in (*range(view.ndim), None):
            check(name, view, axis)
    assert getattr(ops, name)(x, 1, keepdims=True).shape == (3, 1, 40)
    out = np.zeros((40, 3), np.int32 if name == "argmax" else np.float32).T
    assert getattr(ops, name)(x, 1, out=out) is out
    np.testing.assert_array_equal(out, getattr(ops, name)(x, 1))


@pytest.mark.variants(6, thorough=12)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "shape, axis",
    [
        ((2, 4000), 1),
        ((11, 301), 1),
        ((67, 47), 1),
        ((1101, 21), 0),
        ((333, 77), 0),
        ((77, 301), 0),
        ((33, 130), None),
    ],
)
def test_an_axis_is_shared_by_several_ctas(
    name: str, shape: Any, axis: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule, ring = reduce_axis.schedule, reduce_axis._ring

    def shared(sizes: Any, down: bool, size: int, kind: str, again: bool) -> Any:
        step, across, *others = schedule(sizes, down, size, kind, again)
        return (step, across, *others) if again else (step, across, step, 1 + down, 3)

    def shared_ring(*args: Any) -> Any:
        across, length, wgs, ctas, slots, _ = ring(*args)
        narrow = args[2] > 1 and not args[3]
        return across, length if narrow else 12, wgs, ctas, slots, 3

    # as on the GPU, where rows are not padded
    loadable = reduce_axis.loadable
    monkeypatch.setattr(reduce_axis, "loadable", lambda x: (loadable(x)[0],) * 2)
    monkeypatch.setattr(reduce_axis, "schedule", shared)
    monkeypatch.setattr(reduce_axis, "_ring", shared_ring)
    monkeypatch.setattr(reduce_axis, "LARGE", 0)
    monkeypatch.setattr(reduce_axis, "LONG", 0)
    x = numbers(*shape, dtype=ml_dtypes.bfloat16)
    check(name, x, axis, 1e-2)
    x[1:3], x[-1, 0] = 8, 9  # in rows of two pairs, and in one without another
    check(name, x, axis, 1e-2)
    x[:] = -np.inf if "max" in name else 1
    check(name, x, axis, 1e-2)


def test_one_cta_reduces_each_of_many_narrow_matrices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reduce_axis, "LARGE", 0)
    monkeypatch.setattr(reduce_axis, "SMS", 1)  # as if there were 300 matrices
    check("argmax", numbers(3, 200, 20, dtype=ml_dtypes.bfloat16), 1)


@pytest.mark.variants(4)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", [(300, 24), (130, 49), (65, 101), (64, 1)])
def test_rows_of_large_matrices(name: str, shape: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reduce_axis, "reducer", None)
    for dtype in (np.float32, ml_dtypes.bfloat16):
        x = numbers(*shape, dtype=dtype)
        check(name, x, 1, 1e-2 if x.itemsize == 2 else 1e-5)
        x[3, -1], x[4], x[5, 3:6] = np.nan, -np.inf, np.inf
        check(name, x, 1, 1e-2)


def test_products_and_short_rows_have_the_kernel_of_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reduce_axis, "reducer", None)
    for columns in (130, 512, 4096):
        x = imagined(((1 << 26) // columns, columns), np.float16)
        with noting() as notes:
            ops.matvec(x, imagined((columns,), np.float16))
            ops.argmax(x, 1)
        assert len(notes.calls) == 2


@pytest.mark.parametrize("columns", [64, 200, 2100])
def test_a_cta_has_many_bytes_if_there_are_many_rows(columns: int) -> None:
    row = schedule_for(columns, Needs(once=True), np.dtype(np.float16), count=1 << 20)
    assert row.height > 1 and row.height * columns * 2 >= LEAST
    x = numbers(150, columns, dtype=np.float16)
    x[:, columns // 2 :] = x[:, columns // 2 - 1 :: -1]  # each number twice
    for kind, wanted in (("argmax", np.argmax(x, 1)), ("sum", x.astype(np.float64).sum(1))):
        found = np.empty(150, np.int32 if kind == "argmax" else np.float32)
        reduce_axis.row_reducer(kind, None).scheduled(row)(x, y=found, scale=1.0)
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("rows, columns, sharing", [(126, 40320, 1), (201, 64321, 3)])
def test_few_long_rows_are_loaded_at_once(rows: int, columns: int, sharing: int) -> None:
    row = schedule_for(
        columns, Needs(once=True), np.dtype(np.float16), columns % 8 == 0, True, rows
    )
    assert row.cluster == sharing and row.slots >= row.steps
    x = numbers(2, columns, dtype=np.float16)
    x[:, columns // 2 :] = x[:, (columns - 1) // 2 :: -1]  # each number twice
    for kind, wanted in (("argmax", np.argmax(x, 1)), ("sum", x.astype(np.float64).sum(1))):
        found = np.empty(2, np.int32 if kind == "argmax" else np.float32)
        kernel = reduce_axis.row_reducer(kind, None).scheduled(row)
        kernel(x, y=found, scale=1.0)
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-3)
    if toolchain() is None:
        report = kernel.inspect("resources", x, y=found, scale=1.0)
        assert SM_BYTES // (report.smem_bytes + RESERVED) == row.ctas and not report.spill_bytes


def test_lanes_add_up_long_rows_chunk_by_chunk() -> None:
    x, found = np.full((2, 64448), 0.1, np.float32), np.empty(2, np.float32)
    row = schedule_for(64448, Needs(once=True), count=574)
    reduce_axis.row_reducer("sum", None).scheduled(row)(x, y=found, scale=1.0)
    # 6e-7 if a lane adds one element after the other
    np.testing.assert_allclose(found, x.astype(np.float64).sum(1), rtol=2e-7)


@pytest.mark.skipif(toolchain() is not None, reason=f"no compiler: {toolchain()}")
def test_pieces_of_a_tile_stay_in_the_lanes_that_loaded_it() -> None:
    with noting() as notes:
        ops.argmax(imagined((40, 300000), np.float16), 1)  # pieces of 512 columns
        ops.argmax(imagined((300000, 12), np.float16), 0)  # and parts, with their indices
    for down, call in zip((False, True, True, True), notes.calls, strict=True):
        arrays = {name: value for name, value in call.named.items() if name not in PLACE}
        report = call.kernel.inspect("resources", *call.args, **arrays)
        assert not report.layout_casts and not report.spill_bytes
        # divisions by the number of CTAs, two for each tile, took longer than the comparisons
        assert not down or "div.s32" not in call.kernel.inspect("ptx", *call.args, **arrays)


@pytest.mark.skipif(toolchain() is not None, reason=f"no compiler: {toolchain()}")
@pytest.mark.parametrize("shape", [(158, 35135), (131069, 34)])
def test_lanes_that_share_rows_of_columns_exchange_nothing(shape: Any) -> None:
    with noting() as notes:
        ops.argmax(imagined(shape, np.float16), 0)
    call, *seconds = notes.calls
    assert len(seconds) == (shape[0] > shape[1])  # a second launch for a tall matrix only
    arrays = {name: value for name, value in call.named.items() if name not in PLACE}
    report = call.kernel.inspect("resources", *call.args, **arrays)
    if shape[0] < shape[1]:
        assert not report.layout_casts and "reductions of register tiles" not in str(report)
    # TMA loads the last rows, too: lanes would wait for them before the first tile
    assert "rest" in call.named
    assert "ld.global" not in call.kernel.inspect("ptx", *call.args, **arrays)


@pytest.mark.skipif(toolchain() is not None, reason=f"no compiler: {toolchain()}")
@pytest.mark.parametrize("shape", [(16384, 1024), (28214, 589), (219128, 39), (1195127, 13)])
def test_argmax_of_columns_compares_a_tile_with_the_maxima_once(shape: Any) -> None:
    with noting() as notes:
        ops.argmax(imagined(shape, np.float16), 0)
    call = notes.calls[0]
    arrays = {name: value for name, value in call.named.items() if name not in PLACE}
    report = call.kernel.inspect("resources", *call.args, **arrays)
    assert not report.layout_casts and not report.spill_bytes
    between = call.kernel.inspect("ptx", *call.args, **arrays).split("max.NaN.f16x2")[1:-1]
    assert len(between) > 4 and not any("setp" in text for text in between)


def test_a_tile_may_have_more_rows_than_the_matrix() -> None:
    with noting() as notes:
        ops.max(imagined((78, 112983), np.float16), 0)  # nine rows of eight, two tiles of five
    call = notes.calls[0]
    arrays = {name: value for name, value in call.named.items() if name not in PLACE}
    assert call.kernel.inspect("ptx", *call.args, **arrays)


def test_one_warpgroup_combines_the_parts_of_a_cta_for_each_sm() -> None:
    # the GPU would start more warpgroups later than one has combined the parts
    for columns in (39, 354, 576, 1865):
        assert reduce_axis.schedule((1, 132, columns), True, 4, again=True)[3] == 1


def test_small_matrices_and_wide_ones_are_reduced_in_one_launch() -> None:
    shapes = [((12, 512), 1), ((1, 131072), 1), ((140, 2750), 0), ((430, 33792), 0)]
    for shape, axis in shapes:
        with noting() as notes:
            ops.argmax(imagined(shape, np.float16), axis)
        assert len(notes.calls) == 1, shape


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_tiles_of_columns_fit_in_shared_memory_and_fill_the_gpu(dtype: Any) -> None:
    size = np.dtype(dtype).itemsize
    draw = random.Random(size)
    for _ in range(100):
        columns = round(2 ** draw.uniform(1, 17))
        rows = round(2 ** draw.uniform(23, 28)) // (columns * size)
        with noting() as notes:
            ops.max(imagined((rows, columns), dtype), 0)
        call = notes.calls[0]
        shape = call.args[0].shape
        fold, shift = reduce_axis._folded(imagined((1, rows, columns), dtype), "max")
        across, length, wgs, ctas, slots, parts = reduce_axis._ring(shape, size, fold, shift, False)
        apart = fold if shift else 1
        # tiles, results and the last rows
        last = math.ceil(across / 256) * 256 * size
        deep = length if fold > apart else math.ceil(length / 8) * 8  # rows of a slot
        slot = math.ceil(deep * across * size / 128) * 128
        nbytes = wgs * (slot * slots + 8 * (across + shift) + last)
        assert wgs % apart == 0 and shape[2] == fold * columns
        assert slots > 1
        if fold > apart:  # all lanes share a row, and few have no columns
            assert across == shape[2] and nbytes <= 225_000
            assert across >= 256 and parts > 60
            # CTAs have nearly equal shares
            tile = wgs * length
            assert math.ceil(shape[1] / tile / parts) * tile < 1.3 * shape[1] / 132
            assert call.args[0].strides == (shape[1] * across * size, across * size, size)
            continue
        assert across > shift if shift else across >= min(shape[2], 64)
        all_ctas = math.ceil(shape[2] / apart / (across - shift)) * parts
        assert ctas <= min(math.ceil(all_ctas / 132), 16 // wgs) and nbytes <= 225_000 // ctas
        # none for one more, which would be on an SM while another has none
        assert nbytes * (ctas + 1) > 225_000
        assert all_ctas * wgs > 150, (rows, columns)


def test_nan_and_ties_are_as_in_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    x = numbers(3, 300)
    x[0, 7] = x[0, 90] = np.nan
    x[1, 5] = x[1, 200] = 9
    x[2] = -np.inf
    np.testing.assert_array_equal(ops.argmax(x), [7, 5, 0])
    np.testing.assert_array_equal(ops.max(x), [np.nan, 9, -np.inf])
    np.testing.assert_array_equal(ops.argmax(x, 0), np.argmax(x, 0))
    out = np.ones((300, 2), np.int32)
    assert not ops.argmax(x[:1], 0, out=out[:, 0]).any() and out[:, 1].all()
    assert np.isnan(ops.max(x, None)) and ops.argmax(x, None) == 7
    tall = numbers(90, 300)
    tall[7, 0] = tall[89, 0] = np.nan
    tall[5, 1] = tall[70, 1] = 9
    tall[:, 2] = -np.inf
    tall[:, 3], tall[0, 3] = 0.0, -0.0
    # columns that lanes load, and TMA
    for large, dtype in ((reduce_axis.LARGE, np.float32), (0, ml_dtypes.bfloat16)):
        monkeypatch.setattr(reduce_axis, "LARGE", large)
        x = tall.astype(dtype)
        wide = x.astype(np.float32)
        np.testing.assert_array_equal(ops.argmax(x, 0), np.argmax(wide, 0))
        np.testing.assert_array_equal(ops.max(x, 0).astype(np.float32), np.max(wide, 0))
    assert ops.argmax(np.array([-0.0, *[0.0] * 3000], np.float32)) == 0
    # ops call this kernel for matrices that are too large to simulate here
    by_rows = reduce_axis.row_reducer("argmax", None)
    for columns, dtype in ((33, np.float32), (33, ml_dtypes.bfloat16), (40001, np.float16)):
        x, found = numbers(4, columns).astype(dtype), np.empty(4, np.int32)
        x[0, columns // 3] = x[0, columns - 1] = np.nan
        x[1], x[2], x[3, [columns // 2, columns - 2]] = 0.0, -np.inf, 9
        x[1, 0] = -0.0
        by_rows(x, y=found, scale=1.0)
        np.testing.assert_array_equal(found, np.argmax(x.astype(np.float32), 1))


def test_axes_without_elements() -> None:
    x = np.zeros((0, 3), np.float32)
    np.testing.assert_array_equal(ops.sum(x, 0), np.zeros(3))
    np.testing.assert_array_equal(ops.sum(np.zeros((100, 0), np.float32)), np.zeros(100))
    assert np.isnan(ops.mean(x, 0)).all() and ops.max(x, 1).shape == (0,)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: ops.sum(numbers(2, 3), 2), r"sum: axis must be an int of -2…1 or None for shape"),
        (lambda: ops.sum(np.array(1, np.float32)), "axis must be.*fix: pass axis=None"),
        (lambda: ops.max(np.zeros((0, 3), np.float32), 0), "max: an axis without elements has no"),
        (lambda: ops.argmax(np.zeros((0,), np.float32)), "argmax: an axis without elements"),
        (lambda: ops.mean(numbers(2, 3), 0.5), "mean: axis must be None or an int"),
    ],
)
def test_what_does_not_fit_is_refused(call: Callable[[], Any], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        call()
    assert ops.sum(np.array(3, np.float32), None) == 3


def test_in_pytorch() -> None:
    torch = pytest.importorskip("torch")
    x = torch.tensor(numbers(3, 4, 24))
    for name, theirs in (("sum", torch.sum), ("mean", torch.mean), ("max", torch.amax)):
        ours = getattr(numpipe.torch, name)
        for axis in (0, -1, None):
            where = {} if axis is None and name == "max" else {"dim": axis}
            a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
            made, wanted = ours(a, axis), theirs(b, **where)
            torch.testing.assert_close(made, wanted)
            made.square().sum().backward()
            wanted.square().sum().backward()
            torch.testing.assert_close(a.grad, b.grad)
    assert torch.equal(numpipe.torch.argmax(x, 1).long(), torch.argmax(x, 1))


def test_in_jax() -> None:
    jax = pytest.importorskip("jax")
    with jax.default_device(jax.devices("cpu")[0]):
        x = jax.numpy.asarray(numbers(3, 4, 24))
        for name in ("sum", "mean", "max"):
            ours, theirs = getattr(numpipe.jax, name), getattr(jax.numpy, name)
            for axis in (0, -1, None):
                first = jax.jit(jax.grad(lambda v, f=ours, k=axis: (f(v, k) ** 2).sum()))
                right = jax.grad(lambda v, f=theirs, k=axis: (f(v, k) ** 2).sum())
                np.testing.assert_allclose(first(x), right(x), rtol=1e-5, atol=1e-6)
