"""ops.cross_entropy and its gradient against float64, for each of its kernels, in PyTorch and in
JAX."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import numpipe
from numpipe import ArrayType, SpecError, ops
from numpipe.errors import SimulationError
from numpipe.kernels import row_kernels
from numpipe.kernels.row_schedules import Request, choose
from numpipe.ops.cross_entropy import cross_entropy_backward, cross_entropy_rows
from numpipe.ops.cross_entropy_kernels import cross_entropy_gradient, forward, reduced
from tests.kernels.compilers import compiles
from tests.kernels.rows_of_kernels import in_steps, schedule_for

BF16 = np.dtype(ml_dtypes.bfloat16)


@pytest.fixture(autouse=True)
def simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMPIPE_TARGET", "sim")
    monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "0")


@pytest.fixture
def blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take rows of more than 4000 elements in steps, and small ones."""
    monkeypatch.setattr(
        row_kernels,
        "choose",
        lambda request: (
            schedule_for(request.n)
            if request.n <= 4000
            else in_steps(
                request.n, 3 * (request.aligned and not request.needs.once), request.dtype
            )
        ),
    )


def numbers(*shape: int, dtype: Any = np.float32) -> Any:
    return (3 * np.random.default_rng(sum(shape)).standard_normal(shape)).astype(dtype)


def labels_of(x: Any, dtype: Any = np.int64) -> Any:
    """Return labels, the second of which is ignored."""
    found = np.random.default_rng(1).integers(0, x.shape[-1], x.shape[:-1]).astype(dtype)
    found.reshape(-1)[1:2] = -100
    return found


def expected(
    x: Any, labels: Any, smoothing: float = 0.0, reduction: str = "mean"
) -> tuple[Any, Any]:
    """Return the loss and the gradient of x, in float64."""
    wide = x.astype(np.float64).reshape(-1, x.shape[-1])
    wide = wide - wide.max(1, keepdims=True)
    log = wide - np.log(np.exp(wide).sum(1, keepdims=True))
    flat = labels.reshape(-1)
    counted, n = flat != -100, x.shape[-1]
    targets = np.full(log.shape, smoothing / n)
    targets[np.arange(len(flat)), np.where(counted, flat, 0)] += 1 - smoothing
    loss = np.where(counted, -(targets * log).sum(1), 0)
    grad = np.where(counted[:, None], np.exp(log) - targets, 0).reshape(x.shape)
    if reduction == "none":
        return loss.reshape(labels.shape), grad
    count = counted.sum() if reduction == "mean" else 1
    return loss.sum() / count, grad / count


def near(found: Any, right: Any, bound: float) -> bool:
    apart = np.linalg.norm(np.asarray(found, np.float64) - right)
    return bool(apart <= bound * np.linalg.norm(right))


@pytest.mark.parametrize(
    ("shape", "dtype", "smoothing", "reduction"),
    [
        ((2, 3, 7), np.float32, 0.0, "mean"),
        ((5, 33), BF16, 0.1, "none"),
        ((37, 100), np.float16, 0.0, "none"),
        ((3, 3001), BF16, 0.0, "sum"),
        ((2, 5001), np.float32, 0.1, "mean"),
        ((2, 17001), BF16, 0.1, "sum"),
    ],
    ids=str,
)
def test_loss_and_gradients_match_float64(
    shape: tuple[int, ...], dtype: Any, smoothing: float, reduction: str
) -> None:
    x = numbers(*shape, dtype=dtype)
    labels = labels_of(x, np.int32 if dtype == BF16 else np.int64)
    options: dict[str, Any] = {"label_smoothing": smoothing, "reduction": reduction}
    loss, grad = expected(x, labels, smoothing, reduction)
    assert near(ops.cross_entropy(x, labels, **options), loss, 1e-6)

    bound = 1e-6 if dtype == np.float32 else 4e-3
    found, place = np.zeros(loss.shape, np.float32), x.copy()
    ops.cross_entropy(place, labels, with_gradient=True, out=(found, place), **options)
    assert near(found, loss, 1e-6) and near(place, grad, bound)

    options.pop("reduction")
    _, lse = cross_entropy_rows(x, labels, **options)
    each = np.arange(1, labels.size + 1, dtype=np.float32).reshape(labels.shape)
    _, grad = expected(x, labels, smoothing, "none")
    back = cross_entropy_backward(x, labels, lse, each, **options)
    assert near(back, grad * each[..., None], bound)


@pytest.mark.parametrize("steps", [0, 3], ids=["registers", "steps"])
def test_labels_may_be_at_the_ends_of_the_parts_of_a_row(
    steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends, columns = [0, 511, 512, 1023, 1024, 2047, 2048, 4095, 4096, 4607, 4608, 5000], 5001
    # two warpgroups; the last of their steps is smaller
    width, whole = (1024, 0) if steps else (3072, 1536)
    row = replace(in_steps(columns, steps), width=width, whole=whole, steps=steps)
    monkeypatch.setattr(row_kernels, "choose", lambda request: row)
    x, labels = numbers(len(ends), columns), np.array(ends)
    _, dx = ops.cross_entropy(x, labels, with_gradient=True, reduction="sum")
    assert near(dx, expected(x, labels, reduction="sum")[1], 1e-6)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_many_short_rows_are_loaded_as_a_flat_array(
    dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_kernels, "MANY", 0)
    monkeypatch.setattr(row_kernels, "loadable", lambda *given: (False, True))
    assert schedule_for(19, forward((), True).needs, np.dtype(dtype), False, True).flat
    x = numbers(900, 19, dtype=dtype)
    labels = labels_of(x)
    for reduction in ("none", "mean"):
        loss, grad = expected(x, labels, 0.1, reduction)
        found, place = np.zeros(loss.shape, np.float32), x.copy()
        options: dict[str, Any] = {"label_smoothing": 0.1, "reduction": reduction}
        ops.cross_entropy(place, labels, with_gradient=True, out=(found, place), **options)
        assert near(found, loss, 1e-6)
        assert near(place, grad, 4e-3 if dtype == np.float16 else 1e-6)


def test_each_warp_has_one_of_many_rows_of_middle_length(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduled: list[Any] = []

    def of_many(request: Request) -> Any:
        scheduled.append(choose(replace(request, aligned=False, flat=True, count=9_000)))
        return scheduled[-1]

    monkeypatch.setattr(row_kernels, "choose", of_many)
    x = numbers(6, 1_958, dtype=np.float16)
    labels = labels_of(x)
    loss, grad = expected(x, labels, 0.1)
    options = {"label_smoothing": 0.1, "with_gradient": True}
    found, dx = ops.cross_entropy(x, labels, **options)
    assert scheduled[-1].height == 4
    assert near(found, loss, 1e-6) and near(dx, grad, 4e-3)


def test_lanes_load_short_rows_of_words() -> None:
    needs = forward(("grad", "lse", "dx"), False).needs
    words, halves = (
        schedule_for(66, needs, np.dtype(t), False, True, 200_000) for t in ("f4", "f2")
    )
    assert halves.flat and not words.flat


def test_losses_of_many_rows_are_added_by_several_ctas() -> None:
    losses = abs(numbers(1, 4_501))
    labels = labels_of(numbers(1, 4_501, 9), np.int32)
    for mean, count in ((False, 1), (True, 4_500)):
        total, options = np.zeros(1, np.float32), {"ignored": -100, "mean": mean}
        add = reduced()
        arrays = {"losses": losses, "labels": labels, "total": total}
        assert numpipe.verify(add, **arrays, **options, schedules=3).ok
        add(**arrays, **options)
        assert near(total, losses.sum(dtype=np.float64) / count, 1e-6)
        reduced("losses")(labels=labels, total=total, **options)
        assert near(total, 1 / count, 1e-6)


def test_arrays_of_any_layout() -> None:
    x = numbers(4, 6, 10).transpose(2, 1, 0)
    labels = np.repeat(labels_of(x), 2, axis=1)[:, ::2]
    out = np.zeros((4, 6, 10), np.float32).transpose(2, 1, 0)
    loss = np.zeros((), np.float32)
    ops.cross_entropy(x, labels, with_gradient=True, out=(loss, out))
    right, grad = expected(x, labels)
    assert near(loss, right, 1e-6) and near(out, grad, 1e-6)
    assert near(
        ops.cross_entropy(x[0, 0], labels[0, 0, ...]), expected(x[0, :1], labels[0, :1])[0], 2e-5
    )


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("columns", [40, 3000, 4500])
def test_a_small_loss_of_large_logits_keeps_its_digits(columns: int) -> None:
    x = numbers(2, columns)
    x += 1000
    x[:, 5] = x.max() + 3
    labels = np.array([5, 5])
    assert near(ops.cross_entropy(x, labels), expected(x, labels)[0], 1e-5)


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("columns", [40, 3000, 4500])
def test_infinities_and_rows_without_a_loss_are_as_in_torch(columns: int) -> None:
    x = numbers(5, columns)
    x[0, 5:] = -np.inf
    x[1, 7] = np.inf
    x[2] = -np.inf
    x[3, 3] = np.nan
    x[4] = np.nan
    labels = np.array([1, 7, 0, 0, -100])
    loss, grad = ops.cross_entropy(x, labels, with_gradient=True, reduction="none")
    right, _ = expected(x[:1, :5], labels[:1], reduction="none")
    assert near(loss[:1], right, 1e-6) and np.isnan(loss[1:4]).all() and loss[4] == 0
    assert (grad[0, 5:] == 0).all() and np.isnan(grad[1:4]).any(1).all() and not grad[4].any()
    assert ops.cross_entropy(x[:1], np.array([9]), reduction="sum") == np.inf
    assert np.isnan(ops.cross_entropy(x[4:], labels[4:]))
    assert np.isnan(ops.cross_entropy(x[:0], labels[:0]))


@pytest.mark.parametrize("wrong", [-1, 40, 1 << 32])
def test_a_label_outside_the_vocabulary_is_a_hazard(wrong: int) -> None:
    x, labels = numbers(4, 40).reshape(2, 2, 40), np.array([[0, 39], [2, wrong]])
    w, flat = numbers(40, 64).astype(np.float16), labels.reshape(-1)
    for call in (
        lambda: ops.cross_entropy(x, labels),
        lambda: cross_entropy_backward(x, labels, x[..., 0], x[..., 0]),
        lambda: ops.fused_linear_cross_entropy(w[:4].reshape(2, 2, 64), w, labels),
    ):
        with pytest.raises(
            SimulationError, match=rf"labels\[1, 1\] is {wrong}, .* 40 .*fix: "
        ) as e:
            call()
        assert e.value.report is not None and e.value.report.hazard == "out-of-bounds"
    if wrong < 1 << 31:
        ops.cross_entropy(x.reshape(4, 40), flat, ignore_index=wrong)


@pytest.mark.parametrize("columns", [40, 3000, 4500])
@pytest.mark.usefixtures("blocks")
def test_the_kernel_reads_no_logit_outside_the_row(columns: int) -> None:
    x, labels = numbers(3, columns), np.array([0, columns, 2], np.int32)
    kernel = forward(("grad", "lse", "dx"), False).kernel(x)
    with pytest.raises(SimulationError, match=f"index {columns} along dimension 1 is outside"):
        kernel(x, labels, loss=np.zeros(3, np.float32), smoothing=0.0, ignored=-100)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"label_smoothing": 1.5}, "label_smoothing must be a number of 0…1, got 1.5"),
        ({"ignore_index": 1 << 31}, "ignore_index must be an int of -2147483648…2147483647"),
        ({"reduction": "max"}, "reduction must be 'mean', 'sum' or 'none', got 'max'"),
        ({"labels": np.zeros(3, np.float32)}, "'labels' is float32, expected int32 or int64"),
        ({"labels": np.zeros(4, np.int32)}, r"= 3 in 'logits' \(3, 8\), 4 in 'labels' \(4,\)"),
        ({"logits": np.zeros((3, 0), np.float32)}, "logits have no columns.*fix: "),
    ],
)
def test_what_does_not_fit_is_refused(given: dict[str, Any], words: str) -> None:
    arrays = {"logits": np.zeros((3, 8), np.float32), "labels": np.zeros(3, np.int32)}
    with pytest.raises(SpecError, match=words):
        ops.cross_entropy(**arrays | given)


@pytest.mark.parametrize(("columns", "blocks"), [(33, False), (9000, False), (3001, True)])
def test_no_schedule_of_warps_shows_a_hazard(columns: int, blocks: bool) -> None:
    x, rows = numbers(2, columns), np.ones((3, 2), np.float32)
    labels, options = np.array([1, 4], np.int32), {"smoothing": 0.1, "ignored": 1}
    kernels = forward(("lse",), True), cross_entropy_gradient
    slots = 3, 0  # the gradient reads a row once
    make = [
        one.scheduled(in_steps(columns, held)) if blocks else one.kernel(x)
        for one, held in zip(kernels, slots, strict=True)
    ]
    arrays = {"labels": labels, "grad": rows[0], "dx": x.copy(), **options}
    found = numpipe.verify(make[0], x, loss=rows[1].copy(), schedules=5, **arrays)
    assert found.ok, str(found)
    found = numpipe.verify(make[1], x, lse=rows[2], schedules=5, **arrays)
    assert found.ok, str(found)


@compiles
def test_a_label_is_used_as_it_was_loaded() -> None:
    # a lane that replaced labels of rows past the end by 0 would wait for them
    x, labels = ArrayType((9000, 64), np.float16), ArrayType((9000,), np.int32)
    kernel, each = forward(("grad", "lse", "dx"), False).kernel(x), ArrayType((9000,), np.float32)
    text = kernel.inspect("ptx", x, labels, loss=each, smoothing=0.0, ignored=-100)
    loaded = re.findall(r"ld\.global\.u?b?32\s+(%r\d+)", text)
    ignored = [r for r in loaded if re.search(rf"setp\.ne\.s32\s+%p\d+, {r}, %r\d+;", text)]
    assert len(ignored) == 2


def test_gradients_in_place_of_many_rows_show_no_hazard() -> None:
    x, rows = numbers(40, 33), np.ones((2, 40), np.float32)
    arrays = {"labels": np.ones(40, np.int32), "grad": rows[0], "loss": rows[1], "dx": x}
    options = {"smoothing": 0.0, "ignored": -100, "schedules": 3}
    found = numpipe.verify(forward(("lse",), False).kernel(x), x, **arrays, **options)
    assert found.ok, str(found)


@compiles
@pytest.mark.variants(1, thorough=3)
@pytest.mark.parametrize("columns", [4096, 50257, 128256])
@pytest.mark.parametrize("kind", ["loss", "both", "gradient"])
def test_the_code_has_no_spills(kind: str, columns: int) -> None:
    x, labels = ArrayType((4096, columns), BF16), ArrayType((4096,), np.int32)
    each = ArrayType((4096,), np.float32)
    lacking, arrays = {
        "loss": (("grad", "lse", "dx"), {"loss": each}),
        "both": (("lse",), {"loss": each, "grad": each, "dx": x}),
        "gradient": ((), {"lse": each, "grad": each, "dx": x}),
    }[kind]
    kernel = (forward(lacking, False) if lacking else cross_entropy_gradient).kernel(x)
    given = {"labels": labels, **arrays, "smoothing": 0.0, "ignored": -100}
    assert kernel.inspect("gate", x, **given) == ()
    report = kernel.inspect("resources", x, **given)
    assert report.spill_bytes == 0


@compiles
@pytest.mark.parametrize("columns, stores", [(3072, False), (9216, True)])
def test_label_smoothing_of_rows_in_registers_does_not_spill(columns: int, stores: bool) -> None:
    x, labels = ArrayType((9000, columns), np.float16), ArrayType((9000,), np.int32)
    each = ArrayType((9000,), np.float32)
    arrays = {"labels": labels, "loss": each} | ({"dx": x} if stores else {})
    lacking = ("grad", "lse") if stores else ("grad", "lse", "dx")
    given = {**arrays, "smoothing": 0.1, "ignored": -100}
    kernel = forward(lacking, True).kernel(x)
    assert kernel.inspect("resources", x, **given).spill_bytes == 0


# ---- PyTorch
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_in_pytorch_it_has_gradients(reduction: str) -> None:
    torch = pytest.importorskip("torch")
    x = torch.tensor(numbers(5, 37), requires_grad=True)
    labels = torch.tensor(labels_of(numbers(5, 37)))
    wide = x.detach().double().requires_grad_()
    ours, theirs = numpipe.torch.cross_entropy, torch.nn.functional.cross_entropy
    weight = torch.tensor(numbers(5)) if reduction == "none" else torch.tensor(2.0)
    options: dict[str, Any] = {"label_smoothing": 0.1, "reduction": reduction}
    for function, of in ((ours, x), (theirs, wide)):
        y = function(of, labels, **options)
        of.found = (y, *torch.autograd.grad(y, of, weight.to(of.dtype)))
    for got, wanted in zip(x.found, wide.found, strict=True):
        assert torch.allclose(got.double(), wanted, rtol=1e-4, atol=1e-5)
    held = x.detach().requires_grad_()
    loss, _ = numpipe.torch.cross_entropy(held, labels, with_gradient=True, **options)
    loss.backward(weight)
    assert torch.allclose(held.grad.double(), wide.found[1].detach(), rtol=1e-4, atol=1e-5)


def test_pytorch_finds_nothing_wrong_with_the_ops_of_the_gradient() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(SpecError, match=r"fix: convert it with labels.to\(torch.int64\)$"):
        numpipe.torch.cross_entropy(torch.ones(4, 24), torch.ones(4))
    x = torch.tensor(numbers(4, 24), requires_grad=True)
    labels, rows = torch.tensor(labels_of(numbers(4, 24))), torch.ones(4)
    ops_of = torch.ops.numpipe
    numpipe.torch.cross_entropy(x, labels).backward()  # registers the ops that it calls
    torch.library.opcheck(ops_of.cross_entropy_rows.default, (x.detach(), labels))
    torch.library.opcheck(ops_of.cross_entropy_backward.default, (x.detach(), labels, rows, rows))


# ---- JAX
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_in_jax_it_is_differentiated_and_mapped(reduction: str) -> None:
    jax = pytest.importorskip("jax")
    jnp = jax.numpy
    with jax.default_device(jax.devices("cpu")[0]):
        x, labels = (
            jnp.asarray(numbers(3, 5, 37)),
            jnp.asarray(labels_of(numbers(3, 5, 37), np.int32)),
        )

        def ours(x: Any, labels: Any) -> Any:
            return numpipe.jax.cross_entropy(x, labels, reduction=reduction)

        def theirs(x: Any, labels: Any) -> Any:
            counted = labels != -100
            picked = jnp.take_along_axis(
                jax.nn.log_softmax(x), jnp.where(counted, labels, 0)[..., None], -1
            )[..., 0]
            loss = -jnp.where(counted, picked, 0)
            if reduction == "none":
                return loss
            return loss.sum() / (counted.sum() if reduction == "mean" else 1)

        for mapped in (lambda f: f, jax.vmap):
            for of in (ours, theirs):
                grad = jax.grad(lambda x, labels, of=of: (of(x, labels) ** 2).sum())
                of.found = (jax.jit(mapped(of))(x, labels), jax.jit(mapped(grad))(x, labels))
            for got, wanted in zip(ours.found, theirs.found, strict=True):
                np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)
