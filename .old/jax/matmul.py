"""`numpipe.jax.matmul`: the op `numpipe.ops.matmul` in JAX programs, with its derivatives and its
rule for ``jax.vmap``.

XLA's operands are contiguous, and it allocates all memory. What the op would copy, XLA does
therefore, as part of the program: rows that TMA cannot address are padded with zeros, and batches
are repeated where an operand has some of them only. So `_Product` knows matrices, and batches of
one dimension. It takes either operand transposed, as a window on the same memory: the derivatives
of a product are products with transposed operands, and none is copied for them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ... import ops
from ...arch.dtypes import BFLOAT16, FLOAT16
from ...diagnostics.errors import SpecError
from ...diagnostics.frames import brief
from ...launch.windows import transposed
from ...ops.activations import activation_of
from ...ops.configs import Config
from ...ops.matmul import product_sizes
from ...ops.operands import described
from ...plan.specs import ArrayType
from .custom_calls import array_info, custom_call
from .kernel_call import mapped, one_by_one

__all__ = ["matmul"]

ROW = 8
"""elements in 16 bytes, of which TMA wants rows to have a multiple"""
_SMOOTH: dict[Any, Callable[[Any], Any]] = {
    "silu": jax.nn.silu,
    "gelu": functools.partial(jax.nn.gelu, approximate=True),
}
"""activations whose derivatives need the sum that they were computed of"""


@brief
def matmul(
    a: Any,
    b: Any,
    c: Any = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    bias: Any = None,
    activation: Any = None,
    batch_invariant: bool = False,
    config: Config | None = None,
    target: str | None = None,
) -> Any:
    """Return ``activation(alpha * a @ b + beta * c + bias)``, summed in float32, as
    `numpipe.ops.matmul` does, in a JAX program.

    a, b, c, bias, activation, batch_invariant, config
              as `numpipe.ops.matmul` has them; arrays of JAX or NumPy
    alpha, beta
              Python numbers: constants of the traced program
    target    where products of a CPU's arrays run, as of any kernel

    ``jax.grad`` has the derivatives of a, b, c and bias: products too, with transposed operands
    that are not copied. Where it differentiates, "silu" and "gelu" are computed by XLA, of the sum
    rounded to the operands' type, which the derivative needs; a `numpipe.function` is a SpecError
    there. ``jax.vmap`` makes a batch of products, or more rows where b is the same for all; over a
    bias it makes one product after another.

    Raises SpecError as `numpipe.ops.matmul` does, when it is traced.

    >>> x, w = jnp.ones((4, 16), jnp.bfloat16), jnp.ones((16, 8), jnp.bfloat16)
    >>> layer = jax.jit(lambda x, w: numpipe.jax.matmul(x, w, activation="relu", target="sim"))
    >>> layer(x, w)[0, 0], jax.grad(lambda w: layer(x, w).sum())(w)[0, 0]
    (Array(16, dtype=bfloat16), Array(4, dtype=bfloat16))
    """
    for name, number in (("alpha", alpha), ("beta", beta)):
        if isinstance(number, jax.core.Tracer):
            raise SpecError(
                f"numpipe.jax.matmul: '{name}' is traced, and a launch has the number that it was "
                "traced with: pass a Python number, or multiply by it in JAX"
            )
    arrays = {"a": a, "b": b, "c": c if beta != 0 else None, "bias": bias}
    arrays = {name: jnp.asarray(array) for name, array in arrays.items() if array is not None}
    described(
        "matmul",
        {name: array_info(array) for name, array in arrays.items()},
        (FLOAT16, BFLOAT16),
        ("c", "bias"),
    )
    a, b, c, bias = (arrays.get(name) for name in ("a", "b", "c", "bias"))
    _shapes(a, b, c, bias)
    activation_of(activation, "matmul")
    form = _Form(
        alpha=float(alpha),
        beta=float(beta),
        activation=activation,
        batch_invariant=batch_invariant,
        config=config,
        target=target,
    )
    return _of_matrices(form)(a, b, c, bias)


def _shapes(*arrays: Any) -> tuple[tuple[int, ...], int, int, int, tuple[int, ...]]:
    """Return (batches, M, N, K, the result's shape) of a, b, c and bias. Raises SpecError where
    they do not fit."""
    return product_sizes(*(None if array is None else array.shape for array in arrays), None)


@functools.cache
def _of_matrices(form: _Form) -> Callable[..., Any]:
    """Return the product of vectors, matrices and batches as one of matrices, or of batches of one
    dimension."""

    def matmul(a: Any, b: Any, c: Any, bias: Any) -> Any:
        batch, m, n, k, shape = _shapes(a, b, c, bias)
        a, b = a.reshape(*a.shape[:-2], m, k), b if b.ndim > 1 else b.reshape(k, n)
        c = None if c is None else jnp.broadcast_to(c, shape).reshape(*batch, m, n)
        # all rows by one matrix
        if math.prod(b.shape[:-2]) == 1 and (bias is None or bias.ndim == 1):
            rows = math.prod(batch) * m
            a, b = jnp.broadcast_to(a, (*batch, m, k)).reshape(rows, k), b.reshape(k, n)
            c = None if c is None else c.reshape(rows, n)
        else:
            a, b = (_one_batch(x, batch) for x in (a, b))
            c = c if c is None or not batch else c.reshape(math.prod(batch), m, n)
        return _differentiable(form)(a, b, c, bias).reshape(shape)

    return jax.jit(matmul)  # type: ignore[no-any-return]


def _one_batch(x: Any, batch: tuple[int, ...]) -> Any:
    """Return an operand whose batches are one dimension, or none where one matrix is all of
    them."""
    matrix = x.shape[-2:]
    if math.prod(x.shape[:-2]) == 1:
        return x.reshape(matrix)
    return jnp.broadcast_to(x, (*batch, *matrix)).reshape(math.prod(batch), *matrix)


@dataclass(frozen=True)
class _Form:
    """What a product is, beside its arrays; `a_turned` and `b_turned`: what is passed is the
    operand's transpose."""

    a_turned: bool = False
    b_turned: bool = False
    alpha: float = 1.0
    beta: float = 1.0
    activation: Any = None
    batch_invariant: bool = False
    config: Config | None = None
    target: str | None = None

    def sizes(self, a: Any, b: Any) -> tuple[int, int, int]:
        """Return M, N, K."""
        m, k = a.shape[-2:][::-1] if self.a_turned else a.shape[-2:]
        return m, b.shape[-2 if self.b_turned else -1], k

    def gradient(self, a_turned: bool, b_turned: bool) -> _Form:
        """Return the form of a derivative's product."""
        return _Form(
            a_turned, b_turned, self.alpha, batch_invariant=self.batch_invariant, target=self.target
        )


# ---- derivatives
@functools.cache
def _differentiable(form: _Form) -> Callable[..., Any]:
    """Return the product of a form as a function of a, b, c and bias, the last two perhaps None,
    with its derivatives."""

    @jax.custom_vjp
    def product(a: Any, b: Any, c: Any, bias: Any) -> Any:
        return _product(form, a, b, c, bias)

    def forward(a: Any, b: Any, c: Any, bias: Any) -> tuple[Any, Any]:
        made, kept = None, None
        if form.activation in _SMOOTH:
            kept = _differentiable(replace(form, activation=None))(a, b, c, bias)
            made = _SMOOTH[form.activation](kept.astype(np.float32)).astype(kept.dtype)
        elif form.activation in (None, "relu"):
            # not `_product`: it may be differentiated again
            made = _differentiable(form)(a, b, c, bias)
            kept = made if form.activation else None
        else:
            raise SpecError(
                "numpipe.jax.matmul: jax.grad of it with a numpipe.function as activation, whose "
                "derivative nobody "
                'knows: call that on the product in JAX, or pass "relu", "silu" or "gelu"'
            )
        like = [None if x is None else jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (c, bias)]
        return made, (a, b, kept, _Likes(*like))

    def backward(residuals: Any, g: Any) -> tuple[Any, ...]:
        a, b, kept, likes = residuals
        if form.activation == "relu":
            g = jnp.where(kept > 0, g, jnp.zeros_like(g))
        elif form.activation in _SMOOTH:
            _, pull = jax.vjp(_SMOOTH[form.activation], kept.astype(np.float32))
            g = pull(g.astype(np.float32))[0].astype(g.dtype)
        at, bt = form.a_turned, form.b_turned
        da = (
            _differentiable(form.gradient(bt, True))(b, g, None, None)
            if at
            else _differentiable(form.gradient(False, not bt))(g, b, None, None)
        )
        db = (
            _differentiable(form.gradient(True, at))(g, a, None, None)
            if bt
            else _differentiable(form.gradient(not at, False))(a, g, None, None)
        )
        dc = None if likes.c is None else _summed(form.beta * g.astype(np.float32), likes.c)
        dbias = None if likes.bias is None else _summed(g, likes.bias)
        return _summed(da, a), _summed(db, b), dc, dbias

    product.defvjp(forward, backward)
    return product  # type: ignore[no-any-return]


@jax.tree_util.register_static
@dataclass(frozen=True)
class _Likes:
    """Shapes and types of what a product added, which derivatives have; None for what was not
    there."""

    c: jax.ShapeDtypeStruct | None
    bias: jax.ShapeDtypeStruct | None


def _summed(x: Any, like: Any) -> Any:
    """Return a derivative summed along the dimensions that its array was repeated along, in
    float32."""
    added = x.ndim - len(like.shape)
    axes = (
        *range(added),
        *[added + i for i, size in enumerate(like.shape) if size == 1 < x.shape[added + i]],
    )
    return (
        (jnp.sum(x, axes, dtype=np.float32) if axes else x).reshape(like.shape).astype(like.dtype)
    )


# ---- the call
def _product(form: _Form, a: Any, b: Any, c: Any, bias: Any) -> Any:
    arrays = [x for x in (a, b, c, bias) if x is not None]
    return _mapped(form, c is not None, bias is not None)(*arrays)[0]


@functools.cache
def _mapped(form: _Form, has_c: bool, has_bias: bool) -> Callable[..., tuple[Any, ...]]:
    """Return the product as a function of its arrays, with its rule for ``jax.vmap``."""

    def named(arrays: Sequence[Any]) -> list[Any]:
        left = iter(arrays)
        return [
            next(left),
            next(left),
            next(left) if has_c else None,
            next(left) if has_bias else None,
        ]

    def rule(size: int, batched: Sequence[bool], *arrays: Any) -> Any:
        if has_bias and batched[-1]:
            return one_by_one(_mapped(form, has_c, True), batched, arrays)
        (a, b, c, bias), (in_a, in_b, in_c, _) = named(arrays), named(batched)
        m, n, k = form.sizes(a, b)
        inner = [
            x.shape[there:-2] for x, there in ((a, in_a), (b, in_b), (c, in_c)) if x is not None
        ]
        batch: tuple[int, ...] = next(filter(None, inner), ())
        if (
            not in_b
            and b.ndim == 2
            and not batch
            and not form.a_turned
            and (bias is None or bias.ndim == 1)
        ):
            a = _repeated(a, in_a, (size,)).reshape(size * m, k)
            c = None if c is None else _repeated(c, in_c, (size,)).reshape(size * m, n)
        else:
            a, b = (
                _repeated(x, there, (size, *batch)) if there or x.ndim == 3 else x
                for x, there in ((a, in_a), (b, in_b))
            )
            c = None if c is None else _repeated(c, in_c, (size, *batch))
            # c alone has batches: it is added to the same product each time
            if c is not None and a.ndim == b.ndim == 2:
                a = jnp.broadcast_to(a, (c.shape[0], *a.shape))
        (made,) = _mapped(form, has_c, has_bias)(*[x for x in (a, b, c, bias) if x is not None])
        return (made.reshape(size, *batch, m, n),), (True,)

    return mapped("matmul", lambda *arrays: (_bound(form, *named(arrays)),), rule)


def _repeated(x: Any, batched: bool, batch: tuple[int, ...]) -> Any:
    """Return an array with all of these batches, as one dimension; it has the first of them if it
    is `batched`, or none."""
    x = x if batched else x[None]
    if len(batch) == 2 and x.ndim == 3:
        x = x[:, None]
    matrix = x.shape[-2:]
    return jnp.broadcast_to(x, (*batch, *matrix)).reshape(math.prod(batch), *matrix)


def _bound(form: _Form, a: Any, b: Any, c: Any, bias: Any) -> Any:
    """Bind the custom call, on operands that are padded where TMA could not address them."""
    m, n, k = form.sizes(a, b)
    more_m = -m % ROW if form.a_turned else 0
    more_n = 0 if form.b_turned else -n % ROW
    more_k = 0 if form.a_turned and not form.b_turned else -k % ROW
    a = _padded(a, *((more_k, more_m) if form.a_turned else (more_m, more_k)))
    b = _padded(b, *((more_n, more_k) if form.b_turned else (more_k, more_n)))
    c = None if c is None else _padded(c, more_m, more_n)
    if bias is not None:
        bias = jnp.pad(bias, (0, more_n)) if bias.ndim == 1 else _padded(bias, more_m, 0)
    has_c, has_bias = c is not None, bias is not None

    def run(ins: list[Any], outs: list[Any], **where: Any) -> Any:
        left, right, *rest = ins
        turn = transposed if where else lambda x: np.swapaxes(x, -1, -2)
        where = {**where, "out": outs[0]} if where else {"target": form.target}
        return ops.matmul(
            turn(left) if form.a_turned else left,
            turn(right) if form.b_turned else right,
            rest[0] if has_c else None,
            bias=rest[-1] if has_bias else None,
            alpha=form.alpha,
            beta=form.beta,
            activation=form.activation,
            batch_invariant=form.batch_invariant,
            config=form.config,
            **where,
        )

    batch = max((x.shape[:-2] for x in (a, b)), key=len)
    out = ArrayType((*batch, m + more_m, n + more_n), np.dtype(a.dtype))
    arrays = [x for x in (a, b, c, bias) if x is not None]
    (made,) = custom_call("matmul", run, ("matmul", form, has_c, has_bias), [out], arrays)
    return made[..., :m, :n] if more_m or more_n else made


def _padded(x: Any, rows: int, columns: int) -> Any:
    """Return matrices with zeros added below and on the right."""
    return jnp.pad(x, [(0, 0)] * (x.ndim - 2) + [(0, rows), (0, columns)]) if rows or columns else x
