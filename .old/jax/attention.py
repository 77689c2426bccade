"""`numpipe.jax.attention`: the op `numpipe.ops.attention` in JAX programs, with its rule for
``jax.vmap``.

As with products, XLA pads what TMA cannot address: heads whose depth is no multiple of 8.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ... import ops
from ...arch.dtypes import BFLOAT16, FLOAT16
from ...diagnostics.errors import SpecError
from ...diagnostics.frames import brief
from ...ops.attention import _asked
from ...ops.attention_configs import Config
from ...ops.operands import described
from ...plan.specs import ArrayType
from .custom_calls import array_info, custom_call
from .kernel_call import mapped
from .matmul import ROW

__all__ = ["attention"]


@brief
def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    causal: bool = False,
    diagonal: int = 0,
    scale: float | None = None,
    layout: str = "bhsd",
    exact: bool = True,
    return_lse: bool = False,
    config: Config | None = None,
    target: str | None = None,
) -> Any:
    """Return ``softmax(scale * q @ k.T) @ v`` of each head, as `numpipe.ops.attention` does, in a
    JAX program.

    q, k, v, causal, diagonal, layout, exact, return_lse, config
             as `numpipe.ops.attention` has them; arrays of JAX or NumPy, of float16 or bfloat16
    scale    a Python number: a constant of the traced program
    target   where it runs for a CPU's arrays, as of any kernel

    ``jax.vmap`` makes more batches. ``jax.grad`` raises SpecError: the op has no derivative yet.
    Raises SpecError as `numpipe.ops.attention` does, when it is traced.

    >>> q = jnp.ones((1, 2, 16, 64), jnp.bfloat16)
    >>> jax.jit(lambda q: numpipe.jax.attention(q, q, q, target="sim"))(q).shape
    (1, 2, 16, 64)
    """
    for name, value in (("scale", scale), ("diagonal", diagonal)):
        if isinstance(value, jax.core.Tracer):
            raise SpecError(
                f"numpipe.jax.attention: '{name}' is traced, and a launch has the number that it "
                "was traced with: pass a Python number"
            )
    arrays = {name: jnp.asarray(array) for name, array in (("q", q), ("k", k), ("v", v))}
    described(
        "attention",
        {name: array_info(array) for name, array in arrays.items()},
        (FLOAT16, BFLOAT16),
    )
    shapes = [array.shape for array in arrays.values()]
    _asked(*shapes, causal, layout, return_lse, scale)
    # of the depth before it is padded
    scale = shapes[0][3] ** -0.5 if scale is None else float(scale)
    form = _Form(causal, int(diagonal), scale, layout, exact, return_lse, config, target)
    made = _without_derivative(form)(*arrays.values())
    return made if return_lse else made[0]


@dataclass(frozen=True)
class _Form:
    """What an attention is, beside its arrays."""

    causal: bool
    diagonal: int
    scale: float
    layout: str
    exact: bool
    return_lse: bool
    config: Config | None
    target: str | None


@functools.cache
def _without_derivative(form: _Form) -> Callable[..., tuple[Any, ...]]:
    """Return the attention of a form as a function of q, k and v; to differentiate it raises
    SpecError."""

    @jax.custom_vjp
    def attended(q: Any, k: Any, v: Any) -> tuple[Any, ...]:
        return _mapped(form)(q, k, v)

    def forward(q: Any, k: Any, v: Any) -> Any:
        raise SpecError(
            "numpipe.jax.attention: jax.grad of it: the op has no derivative yet; differentiate "
            "jax.nn.dot_product_attention instead, or pass what needs no gradient through "
            "jax.lax.stop_gradient"
        )

    attended.defvjp(forward, lambda residuals, g: residuals)
    return attended  # type: ignore[no-any-return]


@functools.cache
def _mapped(form: _Form) -> Callable[..., tuple[Any, ...]]:
    """Return the attention as a function of q, k and v, with its rule for ``jax.vmap``."""

    def run(ins: list[Any], outs: list[Any], **where: Any) -> Any:
        where = (
            {**where, "out": tuple(outs) if form.return_lse else outs[0]}
            if where
            else {"target": form.target}
        )
        return ops.attention(
            *ins,
            causal=form.causal,
            diagonal=form.diagonal,
            scale=form.scale,
            layout=form.layout,
            exact=form.exact,
            return_lse=form.return_lse,
            config=form.config,
            **where,
        )

    def bound(q: Any, k: Any, v: Any) -> tuple[Any, ...]:
        batches, second, third, depth = q.shape
        heads, positions = (second, third) if form.layout == "bhsd" else (third, second)
        arrays = [
            jnp.pad(x, [(0, 0)] * 3 + [(0, -depth % ROW)]) if depth % ROW else x for x in (q, k, v)
        ]
        outs = [ArrayType(arrays[0].shape, np.dtype(q.dtype))]
        if form.return_lse:
            outs.append(ArrayType((batches, heads, positions), np.float32))
        made, *sums = custom_call("attention", run, ("attention", form), outs, arrays)
        return (made[..., :depth], *sums)

    def rule(size: int, batched: Sequence[bool], *arrays: Any) -> Any:
        whole = [
            x if there else jnp.broadcast_to(x, (size, *x.shape))
            for x, there in zip(arrays, batched, strict=True)
        ]
        count = whole[0].shape[1]
        made = _mapped(form)(*[x.reshape(size * count, *x.shape[2:]) for x in whole])
        return tuple(x.reshape(size, count, *x.shape[1:]) for x in made), (True,) * len(made)

    return mapped("attention", bound, rule)
