"""Kernels and ops inside of jax.jit on a Hopper GPU: results, derivatives, batches, command
buffers."""

from __future__ import annotations

import os

# read when JAX is imported: other libraries need memory too
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

from typing import Any

import numpy as np
import pytest

import numpipe
from numpipe import ArrayType, SpecError
from numpipe.ops.configs import Config
from tests.kernels.product_configs import KINDS

jax = pytest.importorskip("jax")
targets = pytest.importorskip("numpipe.frameworks.jax.custom_calls")
jnp = jax.numpy
ALONE = True  # it waits for command buffers, and counts XLA's calls
BLOCK = numpipe.BlockSpec((64, 64), lambda i: (i, 0))


@pytest.fixture(autouse=True)
def _gpu() -> None:
    if jax.default_backend() != "gpu":
        pytest.skip("JAX has no GPU here")


@numpipe.kernel(
    grid=lambda x: (x.shape[0] // 64,),
    in_specs=BLOCK,
    out_specs=BLOCK,
    out_type=lambda x: ArrayType(x.shape, x.dtype),
)
def more(x, y, *, by=1.0):
    y[...] = x[...] + by


def numbers(*shape: int, dtype: Any = jnp.bfloat16, seed: int = 0) -> Any:
    """Return small integers: sums of their products are exact."""
    return jnp.asarray(np.random.default_rng(seed).integers(-3, 4, shape), dtype)


def wide(x: Any) -> Any:
    return x.astype(np.float32)


def product(a: Any, b: Any) -> Any:
    return jnp.matmul(wide(a), wide(b), precision="highest")


def same(got: Any, wanted: Any, tolerance: float = 0.0) -> None:
    got, wanted = np.asarray(got, np.float64), np.asarray(wanted, np.float64)
    assert got.shape == wanted.shape
    assert np.abs(got - wanted).max() <= tolerance * max(1.0, np.abs(wanted).max())


# ---- results
def test_a_kernel_is_a_part_of_a_jitted_program() -> None:
    x = numbers(512, 64, dtype=np.float32)
    function = numpipe.jax.call(more)
    made = jax.jit(lambda x: function(2 * x, by=3.0) - x)(x)
    assert made.device.platform == "gpu"
    same(made, x + 3)
    same(function(x), x + 1)


def test_vmap_of_a_kernel_is_a_loop_of_xla() -> None:
    x = numbers(5, 128, 64, dtype=np.float32)
    same(jax.jit(jax.vmap(numpipe.jax.call(more, vmap_method="sequential")))(x), x + 1)


@pytest.mark.parametrize(
    "a, b",
    [
        ((256, 512), (512, 384)),
        ((100, 260), (260, 75)),
        ((1, 4096), (4096, 1000)),
        ((3, 5, 64), (64, 7)),
        ((3, 100, 72), (3, 72, 40)),
        ((2, 1, 33, 64), (3, 64, 65)),
        ((4096,), (4096, 17)),
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", [np.float16, jnp.bfloat16], ids=["f16", "bf16"])
def test_products_and_their_derivatives(a: tuple[int, ...], b: tuple[int, ...], dtype: Any) -> None:
    left, right = numbers(*a, dtype=dtype), numbers(*b, dtype=dtype, seed=1)
    same(jax.jit(numpipe.jax.matmul)(left, right), product(left, right), 8e-3)

    def sums(f: Any) -> Any:
        return jax.jit(jax.grad(lambda a, b: wide(f(a, b)).sum(), (0, 1)))(left, right)

    for got, wanted in zip(sums(numpipe.jax.matmul), sums(product), strict=True):
        same(got, wanted, 8e-3)


@pytest.mark.parametrize("activation", [None, "relu", "silu", "gelu"])
def test_epilogues_of_a_product(activation: Any) -> None:
    a = numbers(300, 256)
    b = numbers(256, 200)
    c = numbers(300, 200, seed=2)
    bias = numbers(200, seed=3)
    function = getattr(jax.nn, activation) if activation else lambda x: x
    fused = jax.jit(
        lambda a, b, c, bias: numpipe.jax.matmul(
            a, b, c, alpha=0.1, beta=0.5, bias=bias, activation=activation
        )
    )
    same(fused(a, b, c, bias), function(0.1 * product(a, b) + 0.5 * wide(c) + wide(bias)), 8e-3)


def test_vmap_of_products() -> None:
    a, b = numbers(3, 2, 100, 64), numbers(3, 64, 72)
    same(jax.jit(jax.vmap(numpipe.jax.matmul))(a, b), jax.vmap(product)(a, b))


@pytest.mark.parametrize("config", KINDS, ids=str)
def test_every_config_and_the_same_bits_each_time(config: Any) -> None:
    """Configs that split tiles along K use a workspace from XLA, whose flags are cleared at each
    launch."""
    rng = np.random.default_rng(0)
    a, b = (
        jnp.asarray(rng.standard_normal(shape), jnp.bfloat16)
        for shape in ((300, 2048), (2048, 264))
    )
    function = jax.jit(lambda a, b: numpipe.jax.matmul(a, b, config=config))
    made = [np.asarray(function(a, b)) for _ in range(5)]
    same(made[0], product(a, b), 1e-2)
    assert all((other == made[0]).all() for other in made)


def test_products_side_by_side_do_not_share_a_workspace() -> None:
    """XLA may run them concurrently: it knows of the memory, because it allocated it."""
    split = Config(64, 64, split="stream", slots=4, wgs=1)
    a, bs = numbers(64, 8192), [numbers(8192, 64, seed=seed) for seed in range(8)]
    function = jax.jit(lambda a, *bs: [numpipe.jax.matmul(a, b, config=split) for b in bs])
    for _ in range(20):
        for got, b in zip(function(a, *bs), bs, strict=True):
            same(got, product(a, b), 8e-3)


@pytest.mark.parametrize("depth", [64, 80, 20])
@pytest.mark.parametrize("causal", [False, True])
def test_attention(depth: int, causal: bool) -> None:
    rng = np.random.default_rng(0)
    q, k, v = (
        jnp.asarray(rng.standard_normal((2, heads, 300, depth)), np.float16) for heads in (8, 2, 2)
    )
    made, sums = jax.jit(lambda *x: numpipe.jax.attention(*x, causal=causal, return_lse=True))(
        q, k, v
    )
    scores = product(q, jnp.swapaxes(jnp.repeat(k, 4, 1), 2, 3)) * depth**-0.5
    scores = jnp.where(jnp.tril(jnp.ones((300, 300), bool)), scores, -jnp.inf) if causal else scores
    same(made, product(jax.nn.softmax(scores), jnp.repeat(v, 4, 1)), 5e-3)
    same(sums, jax.nn.logsumexp(scores, -1), 1e-3)


# ---- how XLA runs programs
def test_a_program_that_is_run_again_is_a_command_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    """XLA records the calls into CUDA graphs; later runs launch a graph and call no handler."""
    calls: list[int] = []
    on_gpu = targets.Target._on_gpu
    monkeypatch.setattr(
        targets.Target,
        "_on_gpu",
        lambda self, *args: (calls.append(args[0]), on_gpu(self, *args))[1],
    )
    function = numpipe.jax.call(more)

    def chain(x: Any) -> Any:
        for number in range(20):
            x = function(x, by=float(number))
        return x

    x, jitted = numbers(512, 64, dtype=np.float32), jax.jit(chain)
    for _ in range(30):
        same(jitted(x), x + 190)
    before = len(calls)
    for _ in range(20):
        same(jitted(x), x + 190)
    assert len(calls) == before, (
        f"{len(calls) - before} of 400 calls were made anew; streams {sorted(set(calls))}"
    )


def test_other_arrays_are_other_launches() -> None:
    """Addresses differ between calls: nothing recorded or cached for other arrays is used."""
    function = jax.jit(lambda x: numpipe.jax.call(more)(x))
    xs = [numbers(512, 64, dtype=np.float32, seed=seed) for seed in range(50)]
    for x, got in zip(xs, [function(x) for x in xs], strict=True):
        same(got, x + 1)


def test_a_loop_and_a_scan_of_xla() -> None:
    function = numpipe.jax.call(more)
    x = numbers(512, 64, dtype=np.float32)
    same(jax.jit(lambda x: jax.lax.fori_loop(0, 100, lambda _, y: function(y), x))(x), x + 100)


def test_errors_of_a_compile_are_raised_where_it_is_traced() -> None:
    with pytest.raises((SpecError, numpipe.CompileError)):
        jax.jit(numpipe.jax.call(more)).lower(numbers(64, dtype=np.float32))


def test_products_on_the_cpu_of_a_machine_with_a_gpu() -> None:
    with jax.default_device(jax.devices("cpu")[0]):
        a, b = numbers(64, 64), numbers(64, 64)
        same(jax.jit(lambda a, b: numpipe.jax.matmul(a, b, target="sim"))(a, b), product(a, b))
