"""Kernels and ops in JAX programs on a CPU: traced, compiled by XLA and run on the simulated SM;
derivatives, and batches by vmap."""

from __future__ import annotations

import doctest
import gc
import itertools
import os
import subprocess
import sys
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import ArrayType, SpecError, ds

jax = pytest.importorskip("jax")
targets = pytest.importorskip("numpipe.frameworks.jax.custom_calls")
jnp = jax.numpy

BLOCK = numpipe.BlockSpec((64, 64), lambda i: (i, 0))


@pytest.fixture(autouse=True)
def _simulated(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("NUMPIPE_TARGET", "sim")
    monkeypatch.setenv("NUMPIPE_COMPILE_CHECK", "0")
    with jax.default_device(jax.devices("cpu")[0]):
        yield


@numpipe.kernel(
    grid=lambda x: (x.shape[0] // 64,),
    in_specs=BLOCK,
    out_specs=BLOCK,
    out_type=lambda x: ArrayType(x.shape, x.dtype),
)
def scaled(x, y, *, by=2.0):
    y[...] = x[...] * by


@numpipe.kernel(grid=(1,), warp_specialized=False)
def ones(y):
    y[ds(0, 64), ds(0, 64)] = numpipe.full((64, 64), 1.0, np.float32)


def numbers(*shape: int, dtype: Any = np.float32, seed: int = 0) -> Any:
    """Return small integers: sums of their products are exact."""
    return jnp.asarray(np.random.default_rng(seed).integers(-3, 4, shape), dtype)


def same(got: Any, wanted: Any, tolerance: float = 0.0) -> None:
    got, wanted = np.asarray(got, np.float64), np.asarray(wanted, np.float64)
    assert got.shape == wanted.shape
    assert not got.size or np.abs(got - wanted).max() <= tolerance * max(1.0, np.abs(wanted).max())


def wide(x: Any) -> Any:
    return x.astype(np.float32)


def test_the_example_of_a_docstring_runs() -> None:
    function = numpipe.jax.call
    runner = doctest.DocTestRunner()
    runner.run(
        doctest.DocTestFinder().find(
            function, "call", globs={"numpipe": numpipe, "jax": jax, "jnp": jnp}
        )[0]
    )
    assert runner.summarize() == (0, runner.tries) and runner.tries


# ---- kernels
def test_a_kernel_is_a_part_of_a_jitted_program() -> None:
    x = numbers(128, 64)
    function = numpipe.jax.call(scaled)
    same(jax.jit(lambda x: function(x + 1) - x)(x), x + 2)
    same(function(x, by=3.0), 3 * x)
    same(function(np.asarray(x)), 2 * x)
    same(function(x=x), 2 * x)
    assert function.__name__ == "scaled"


@numpipe.kernel(
    grid=(1,),
    in_specs=BLOCK,
    out_specs=(BLOCK, BLOCK),
    out_type=lambda x: (ArrayType(x.shape, x.dtype), ArrayType(x.shape, np.float16)),
)
def both(x, y, z):
    y[...] = x[...] + 1.0
    z[...] = (x[...] * 2.0).astype(np.float16)


def test_several_outputs_are_a_tuple() -> None:
    x = numbers(64, 64)
    y, z = jax.jit(numpipe.jax.call(both))(x)
    same(y, x + 1)
    same(z, 2 * x)
    assert z.dtype == np.float16


def test_calls_that_are_alike_share_a_target_and_others_do_not() -> None:
    x, before = numbers(64, 64), len(targets._targets)
    function = numpipe.jax.call(scaled)
    traced = [jax.make_jaxpr(lambda x, by=by: function(x, by=by))(x) for by in (5.0, 5.0, 5, 6.0)]
    assert len(targets._targets) == before + 3, "5.0 and 5 are numbers of different types"
    assert "numpipe.scaled." in str(traced[0])


def test_a_call_keeps_none_of_its_arrays() -> None:
    function, x = numpipe.jax.call(scaled), numbers(64, 64)
    function(x).block_until_ready()
    alive = weakref.ref(x)
    del x
    gc.collect()
    assert alive() is None
    with jax.checking_leaks():
        jax.jit(lambda x: function(x, by=7.0))(numbers(64, 64))


@numpipe.kernel(
    grid=(1,), in_specs=BLOCK, out_specs=BLOCK, out_type=lambda x: ArrayType(x.shape, x.dtype)
)
def times(x, y, *, factor: numpipe.Static):
    y[...] = x[...] * float(factor)


def test_statics_are_constants_and_have_a_hash() -> None:
    x, function = numbers(64, 64), numpipe.jax.call(times)
    same(jax.jit(lambda x: function(x, factor=3))(x), 3 * x)
    with pytest.raises(SpecError, match="the Static 'factor' must be hashable"):
        function(x, factor=[3])


def test_out_type_of_the_call_is_for_kernels_that_have_none() -> None:
    same(
        numpipe.jax.call(ones, out_type=jax.ShapeDtypeStruct((64, 64), np.float32))(),
        np.ones((64, 64)),
    )


def test_vmap_of_a_kernel_calls_it_for_each_on_request() -> None:
    x = numbers(3, 64, 64)
    function = numpipe.jax.call(scaled, vmap_method="sequential")
    same(jax.jit(jax.vmap(function))(x), 2 * x)
    with pytest.raises(
        SpecError, match=r"kernel scaled: jax.vmap has no rule.*vmap_method=\"sequential\""
    ):
        jax.vmap(numpipe.jax.call(scaled))(x)


@numpipe.kernel(
    grid=(1,), warp_specialized=False, out_type=lambda x, y: ArrayType(x.shape, x.dtype)
)
def added(x, y, z):
    """Compute z = x + y for matrices or batches of them; y may have a batch of one."""
    tile = ds(0, 64)
    for i in range(z.shape[0] if z.ndim == 3 else 1):
        j = i if y.shape[0] == z.shape[0] else 0
        z[(i, tile, tile)[3 - z.ndim :]] = (
            x[(i, tile, tile)[3 - z.ndim :]] + y[(j, tile, tile)[3 - z.ndim :]]
        )


@pytest.mark.parametrize("method, batches", [("broadcast_all", 3), ("expand_dims", 1)])
def test_vmap_can_give_a_kernel_arrays_of_one_dimension_more(method: Any, batches: int) -> None:
    x, y = numbers(3, 64, 64), numbers(64, 64, seed=1)
    function = jax.vmap(numpipe.jax.call(added, vmap_method=method), (0, None))
    same(function(x, y), x + y)
    assert (
        f"f32[{batches},64,64]" in str(jax.make_jaxpr(function)(x, y)).partition("jvp_jaxpr_fun")[0]
    )


def test_the_derivative_of_a_kernel_is_what_custom_vjp_says() -> None:
    function = numpipe.jax.call(scaled)
    doubled = jax.custom_vjp(function)
    doubled.defvjp(lambda x: (function(x), None), lambda _, g: (function(g),))
    same(jax.grad(lambda x: doubled(x).sum())(numbers(64, 64)), np.full((64, 64), 2.0))
    with pytest.raises(SpecError, match="scaled: .* has no derivative; fix: .* jax.custom_vjp"):
        jax.grad(lambda x: function(x).sum())(numbers(64, 64))


@pytest.mark.parametrize(
    "call, message",
    [
        (
            lambda f, x: f(x, x),
            "the call passes all of x, y, but JAX arrays are immutable; fix: leave the outputs out",
        ),
        (lambda f, x: f(x, out=x), "a call in a JAX program has no out=: XLA allocates"),
        (
            lambda f, x: f(x, by=x[0, 0]),
            r"'by' is traced, but a launch needs its value .*; fix: .*static_argnames='by'",
        ),
        (lambda f, x: f(x, factor=2.0), "unexpected argument 'factor'"),
        (
            lambda f, x: scaled(x),
            "a DynamicJaxprTracer of JAX has no memory of its own; .*numpipe.jax.call",
        ),
        (
            lambda f, x: numpipe.ops.matmul(x, x),
            "argument 'a' of kernel 'matmul': .*numpipe.jax.matmul",
        ),
    ],
)
def test_calls_that_do_not_fit_are_refused_when_they_are_traced(call: Any, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        jax.jit(lambda x: call(numpipe.jax.call(scaled), x))(numbers(64, 64))


def test_neither_a_kernel_nor_a_method_is_refused() -> None:
    with pytest.raises(SpecError, match="kernel must be a numpipe.Kernel"):
        numpipe.jax.call(lambda x: x)  # type: ignore[arg-type]
    with pytest.raises(SpecError, match="vmap_method must be None, .sequential., .expand_dims. or"):
        numpipe.jax.call(scaled, vmap_method="all")  # type: ignore[arg-type]


def test_types_that_jax_has_not_are_refused() -> None:
    with pytest.raises(
        SpecError, match="is float64, which JAX does not make while jax_enable_x64 is off"
    ):
        numpipe.jax.call(ones, out_type=ArrayType((64, 64), np.float64))()


def test_sizes_that_are_not_known_are_refused() -> None:
    shape = jax.export.symbolic_shape("m, 64")
    for function, dtype in (
        (numpipe.jax.call(scaled), np.float32),
        (lambda x: numpipe.jax.matmul(x, x), np.float16),
    ):
        with pytest.raises(SpecError, match="^numpipe.jax: an array .*a launch needs sizes"):
            jax.export.export(jax.jit(function))(jax.ShapeDtypeStruct(shape, dtype))


def test_an_error_of_the_simulated_sm_reaches_the_user() -> None:
    """It arrives as JAX's error, because it crosses C, with the name and text of numpipe's
    error."""
    with pytest.raises(
        jax.errors.JaxRuntimeError,
        match=r"numpipe.errors.SpecError: .*block_shape \(64, 64\) has 2 dimensions",
    ):
        jax.block_until_ready(jax.jit(numpipe.jax.call(scaled))(numbers(64)))


@pytest.mark.thorough
def test_shards_are_computed_where_they_lie_and_a_process_can_end_meanwhile() -> None:
    """Programs on several devices run in parallel to Python and call it, so the process waits for
    them before Python shuts down."""
    code = (
        "import jax, jax.numpy as jnp, numpy as np, numpipe.jax\nmesh, over = "
        "jax.sharding.Mesh(jax.devices(), 'x'), jax.sharding.PartitionSpec('x')\na, b = "
        "jnp.ones((8, 16), jnp.float16), jnp.ones((16, 8), jnp.float16)\nwhole = "
        "jax.sharding.PartitionSpec()\nf = jax.jit(jax.shard_map(numpipe.jax.matmul, mesh=mesh, "
        "in_specs=(over, whole), out_specs=over))\nassert (f(a, b) == 16).all() and len(f(a, "
        "b).sharding.device_set) == 2"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=100,
        env=os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"},
    )
    assert done.returncode == 0, done.stderr


def test_without_jax_the_import_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['jax'] = None\nimport numpipe\ntry: numpipe.jax\n"
        "except numpipe.TargetError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "numpipe.jax needs JAX, which cannot be imported" in done.stdout, done.stderr


# ---- products
SHAPES = [
    ((5, 13), (13, 7)),
    ((2, 1, 5, 8), (3, 8, 8)),
    ((5, 16), (16, 8)),
    ((3,), (3,)),
    ((3,), (2, 3, 5)),
    ((2, 4, 3), (3,)),
    ((2, 5, 8), (8, 16)),
    ((5, 8), (2, 8, 16)),
    ((2, 3, 0), (2, 0, 8)),
    ((0, 3, 8), (0, 8, 8)),
]


@pytest.mark.variants(2)
@pytest.mark.parametrize("a, b", SHAPES, ids=str)
def test_a_product_and_its_derivatives(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    left, right = numbers(*a, dtype=np.float16), numbers(*b, dtype=np.float16, seed=1)
    same(
        jax.jit(numpipe.jax.matmul)(left, right),
        np.matmul(np.asarray(left, np.float64), np.asarray(right, np.float64)),
    )

    def squares(product: Any) -> Any:
        return jax.jit(jax.grad(lambda a, b: (wide(product(a, b)) ** 2).sum(), (0, 1)))(left, right)

    for got, wanted in zip(
        squares(numpipe.jax.matmul), squares(lambda a, b: wide(a) @ wide(b)), strict=True
    ):
        same(got, wanted, 2e-3)


@pytest.mark.variants(2)
@pytest.mark.parametrize("activation", ["silu", "relu", "gelu", None])
def test_derivatives_of_all_that_follows_a_product(activation: Any) -> None:
    arrays = [
        numbers(*shape, dtype=np.float16, seed=seed)
        for seed, shape in enumerate([(2, 5, 16), (16, 8), (5, 8), (8,)])
    ]
    arrays[3] = wide(arrays[3])
    function = getattr(jax.nn, activation) if activation else lambda x: x

    def ours(a: Any, b: Any, c: Any, bias: Any) -> Any:
        return wide(
            numpipe.jax.matmul(a, b, c, alpha=0.1, beta=0.5, bias=bias, activation=activation)
        )

    def reference(a: Any, b: Any, c: Any, bias: Any) -> Any:
        return function(0.1 * (wide(a) @ wide(b)) + 0.5 * wide(c) + wide(bias))

    for wanted, got in [
        (reference(*arrays), ours(*arrays)),
        *zip(
            *(jax.grad(lambda *a, f=f: f(*a).sum(), range(4))(*arrays) for f in (reference, ours)),
            strict=True,
        ),
    ]:
        same(got, wanted, 2e-3)


def test_a_product_is_computed_once_where_its_activation_is_differentiated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Outside of jax.jit nothing removes a duplicate product."""
    a, b = numbers(8, 16, dtype=np.float16), numbers(16, 8, dtype=np.float16)
    runs, call = [], numpipe.ops.matmul.call
    monkeypatch.setattr(numpipe.ops.matmul, "call", lambda *x, **y: (runs.append(1), call(*x, **y)))
    gradient = jax.grad(lambda a: wide(numpipe.jax.matmul(a, b, activation="silu")).sum())
    jax.block_until_ready(gradient(a))
    assert len(runs) == 3, "the product and two gradients"


def test_a_sum_over_a_batch_keeps_float64() -> None:
    xp = pytest.importorskip("numpipe.frameworks.jax.jax_ops")._Arrays(None)
    with jax.enable_x64():
        x = jnp.asarray([[1.0], [1e-12]], np.float64)
        assert xp.summed(x, (1, 1)).dtype == np.float64 and xp.summed(x, (1, 1))[0, 0] > 1


@pytest.mark.parametrize("axes", [(0, None), (None, 0)], ids=["rows", "bias"])
def test_vmap_does_not_read_an_unused_c(axes: Any) -> None:
    a, b = numbers(*[2][: axes[0] == 0], 5, 16, dtype=np.float16), numbers(16, 8, dtype=np.float16)
    bias = numbers(*[2][: axes[1] == 0], 8, dtype=np.float16)
    unread = jnp.full((2, 5, 8), np.nan, np.float16)
    got = jax.vmap(
        lambda a, c, bias: numpipe.jax.matmul(a, b, c, beta=0.0, bias=bias), (axes[0], 0, axes[1])
    )(a, unread, bias)
    same(got, wide(a) @ wide(b) + wide(bias)[..., None, :] * jnp.ones((2, 1, 1)))


def test_the_derivative_of_a_derivative() -> None:
    a, b = numbers(5, 8, dtype=np.float16), numbers(8, 8, dtype=np.float16, seed=1)

    def second(product: Any) -> Any:
        first = jax.grad(lambda a, b: (wide(product(a, b)) ** 2).sum(), 1)
        return jax.grad(lambda a: wide(first(a, b)).sum())(a)

    same(second(numpipe.jax.matmul), second(lambda a, b: wide(a) @ wide(b)), 2e-3)


def test_derivatives_copy_no_operand() -> None:
    """XLA transposes nothing: the transpose is a view of the operand."""
    a, b = numbers(16, 8, dtype=np.float16), numbers(8, 24, dtype=np.float16)
    text = (
        jax.jit(jax.grad(lambda a, b: wide(numpipe.jax.matmul(a, b)).sum(), (0, 1)))
        .lower(a, b)
        .as_text()
    )
    assert text.count("custom_call @numpipe.matmul.") >= 2 and "stablehlo.transpose" not in text


BATCHES = [
    *itertools.product(
        [((5, 16), None), ((3, 5, 16), 0), ((3, 2, 5, 16), 0)],
        [((16, 8), None), ((3, 16, 8), 0), ((3, 2, 16, 8), 0)],
    )
][1:]


@pytest.mark.variants(2)
@pytest.mark.parametrize("a, b", [BATCHES[4], *BATCHES], ids=str)
def test_vmap_of_a_product_and_of_its_derivatives(a: Any, b: Any) -> None:
    arrays = [
        numbers(*shape, dtype=np.float16, seed=seed) for seed, (shape, _) in enumerate((a, b))
    ]
    axes = a[1], b[1]
    same(
        jax.vmap(numpipe.jax.matmul, axes)(*arrays),
        jax.vmap(lambda a, b: wide(a) @ wide(b), axes)(*arrays),
    )

    def sums(product: Any) -> Any:
        return jax.vmap(jax.grad(lambda a, b: wide(product(a, b)).sum(), (0, 1)), axes)(*arrays)

    for got, wanted in zip(
        sums(numpipe.jax.matmul), sums(lambda a, b: wide(a) @ wide(b)), strict=True
    ):
        same(got, wanted)


@pytest.mark.variants(2)
@pytest.mark.parametrize(
    "axes",
    [
        (0, None, 0, 0),
        (None, None, 0, None),
        (0, None, None, None),
        (None, None, None, 0),
        (None, 0, 0, None),
    ],
    ids=str,
)
def test_vmap_of_epilogues(axes: tuple[Any, ...]) -> None:
    shapes = [(5, 16), (16, 8), (5, 8), (8,)]
    arrays = [
        numbers(*([] if axis is None else [3]), *shape, dtype=np.float16)
        for axis, shape in zip(axes, shapes, strict=True)
    ]
    got = jax.vmap(lambda a, b, c, bias: numpipe.jax.matmul(a, b, c, bias=bias), axes)(*arrays)
    same(got, jax.vmap(lambda a, b, c, bias: wide(a) @ wide(b) + c + bias, axes)(*arrays))


def test_vmap_of_rows_by_one_matrix_is_one_product_of_more_rows() -> None:
    a, b = numbers(3, 5, 16, dtype=np.float16), numbers(16, 8, dtype=np.float16)
    program = jax.jit(jax.vmap(numpipe.jax.matmul, (0, None)))
    assert program.lower(a, b).as_text().count("custom_call @numpipe.matmul.") == 1
    same(program(a, b), wide(a) @ wide(b))


@pytest.mark.parametrize(
    "arguments, options, message",
    [
        (((5, 16), (8, 16)), {}, r"K = 16 in 'a' \(5, 16\), 8 in 'b' \(8, 16\); fix: pass b.T"),
        (((2, 5, 16), (3, 16, 8)), {}, "do not broadcast"),
        (
            ((5, 16), (16, 8)),
            {"activation": "tanh"},
            "activation must be None, 'relu', 'silu', 'gelu'",
        ),
        (((5, 16), (16, 8)), {"bias": jnp.zeros(5, np.float16)}, "'bias' must be"),
        (((5, 16), (16, 8)), {"bias": "zeros"}, "'bias' is not an array of numbers: .*fix: pass"),
        (((5, 16), (16, 8)), {"bias": jax.random.key(0)}, "'bias' is not an array of numbers: "),
        (
            ((5, 16), (16, 8)),
            {"bias": jnp.zeros(8, np.int32)},
            "'bias' is int32, expected float16 or bfloat16 or float32",
        ),
    ],
)
def test_products_that_do_not_fit_are_refused_when_they_are_traced(
    arguments: Any, options: Any, message: str
) -> None:
    with pytest.raises(SpecError, match=f"matmul: .*{message}"):
        jax.jit(lambda a, b: numpipe.jax.matmul(a, b, **options))(
            *[numbers(*shape, dtype=np.float16) for shape in arguments]
        )


@numpipe.function
def twice(x):
    return x + x


def test_a_traced_alpha_and_an_unknown_derivative_are_refused() -> None:
    a = numbers(8, 8, dtype=np.float16)
    with pytest.raises(SpecError, match="'alpha' is traced"):
        jax.jit(lambda a, alpha: numpipe.jax.matmul(a, a, alpha=alpha))(a, 2.0)
    same(numpipe.jax.matmul(a, a, activation=twice), 2 * (wide(a) @ wide(a)))
    with pytest.raises(SpecError, match="the activation twice has no derivative here"):
        jax.grad(lambda a: wide(numpipe.jax.matmul(a, a, activation=twice)).sum())(a)


# ---- attention
def attended(q: Any, k: Any, v: Any, *, causal: bool = False) -> Any:
    """Return the reference in float32, and the logarithms of the sums."""
    k, v = (jnp.repeat(wide(x), q.shape[-3] // x.shape[-3], -3) for x in (k, v))
    scores = wide(q) @ jnp.swapaxes(k, -1, -2) * q.shape[-1] ** -0.5
    scores = (
        jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -jnp.inf)
        if causal
        else scores
    )
    return jax.nn.softmax(scores) @ v, jax.nn.logsumexp(scores, -1)


def heads(*shape: int, seed: int = 0) -> Any:
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), np.float16)


@pytest.mark.variants(1)
@pytest.mark.parametrize(
    "depth, causal, layout", [(20, True, "bhsd"), (64, False, "bshd"), (128, False, "bhsd")]
)
def test_attention_of_any_depth(depth: int, causal: bool, layout: Any) -> None:
    q, k, v = heads(1, 4, 16, depth), heads(1, 2, 24, depth, seed=1), heads(1, 2, 24, depth, seed=2)
    turn = (lambda x: jnp.swapaxes(x, 1, 2)) if layout == "bshd" else lambda x: x
    made, sums = jax.jit(
        lambda *x: numpipe.jax.attention(*x, causal=causal, layout=layout, return_lse=True)
    )(*map(turn, (q, k, v)))
    wanted, of = attended(q, k, v, causal=causal)
    same(turn(made), wanted, 2e-3)
    same(sums, of, 1e-5)


def test_vmap_of_attention_is_more_batches() -> None:
    q, k, v = heads(2, 1, 2, 16, 64), heads(1, 2, 24, 64), heads(2, 1, 2, 24, 64, seed=2)
    same(
        jax.vmap(numpipe.jax.attention, (0, None, 0))(q, k, v),
        attended(q, jnp.stack([k, k]), v)[0],
        2e-3,
    )


@numpipe.function
def biased(score: Any, batch: Any, head: Any, query: Any, key: Any, bias: Any) -> Any:
    return score + bias[head]


def test_a_gradient_of_a_functions_array_is_refused_and_a_seed_can_be_traced() -> None:
    q, bias, seeds = heads(1, 2, 16, 64), jnp.ones(2), jnp.arange(2, dtype=np.int32)[:, None]

    def loss(q: Any, bias: Any, seed: Any) -> Any:
        named = {"score": (biased, bias), "dropout": 0.5, "seed": seed}
        return wide(numpipe.jax.attention(q, q, q, **named)).sum()

    first, second = (jax.jit(jax.grad(loss))(q, bias, seed) for seed in seeds)
    assert (first == jax.grad(jax.checkpoint(loss))(q, bias, seeds[0])).all()
    assert (first != second).any()
    for call in (jax.grad(loss, 1), jax.grad(jax.jit(loss), (0, 1))):
        with pytest.raises(SpecError, match="attention: 'score_0' is differentiated, .*; fix:"):
            call(q, bias, seeds[0])


def test_attentions_that_do_not_fit_are_refused_when_they_are_traced() -> None:
    q = heads(1, 2, 16, 64)
    gradient = jax.grad(lambda q: wide(numpipe.jax.attention(q, q, q)).sum())
    for call, message in [
        (lambda q: jax.grad(lambda q: wide(gradient(q)).sum())(q), "has no derivative"),
        (lambda q: numpipe.jax.attention(q, q[:, :1], q), "k = 1 in 'k' .*, 2 in 'v'"),
        (lambda q: numpipe.jax.attention(q, q, q, scale=q[0, 0, 0, 0]), "'scale' is traced"),
        (
            lambda q: numpipe.jax.attention(wide(q), wide(q), wide(q)),
            "'q' is float32, expected float16",
        ),
    ]:
        with pytest.raises(SpecError, match=message):
            jax.jit(call)(q)
