"""Declared ops in JAX programs: what `numpipe.jax` has of each op, made from its declaration, with
its derivatives and its rule for ``jax.vmap``.

XLA's operands are contiguous. The derivatives of many ops take transposed operands: these are
passed as they are and seen through a window, so XLA transposes nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ...diagnostics.errors import SpecError
from ...diagnostics.frames import brief
from ...launch.windows import transposed
from ...ops.declaration import DECLARED, Op, by_name
from ...plan.specs import ArrayType
from .custom_calls import array_info, array_type, custom_call
from .kernel_call import check_types, mapped

__all__ = ["front"]

_ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,
    "gelu": functools.partial(jax.nn.gelu, approximate=True),
}


@functools.cache
def front(op: Op[Any]) -> Callable[..., Any]:
    """Return the function of JAX's arrays for a declared op."""
    arguments = op.arguments_of(["out", "stream"])

    @brief
    def call(*args: Any, **named: Any) -> Any:
        arrays, options, _, target, _ = arguments(*args, **named)
        for name, value in zip(op.options, options, strict=True):
            if isinstance(value, jax.core.Tracer):
                raise SpecError(
                    f"numpipe.jax.{op.name}: '{name}' is traced, and a launch has the value that "
                    "it was traced with: pass a Python value"
                )
        given = {
            name: array if isinstance(array, _Swapped) else jnp.asarray(array)
            for name, array in zip(op.operands, op.read(arrays, options), strict=True)
            if array is not None or name not in op.optional
        }
        op.described({name: array_info(array) for name, array in given.items()})
        swapped = tuple(isinstance(array, _Swapped) for array in given.values())
        form = _Form(op, options, target, tuple(given), swapped)
        form.results([array_type(array) for array in given.values()])
        made = _differentiable(form)(*[getattr(array, "inner", array) for array in given.values()])
        return made[0] if len(made) == 1 else made

    functools.update_wrapper(call, op)
    first, _, _ = (op.__doc__ or "").partition("\n\n")
    derivatives = ", ".join(name for names in op.gradients for name in names)
    call.__doc__ = f"""{first}

    `numpipe.ops.{op.name}` in JAX programs: its parameters are described there. Arrays are JAX's or
    NumPy's; options are constants of the traced program.
    {f"There are derivatives of {derivatives}." if derivatives else "It has no derivative."}

    Raises SpecError as `numpipe.ops.{op.name}` does, when it is traced.
    """
    parameters = op.signature.parameters.values()
    call.__signature__ = op.signature.replace(  # type: ignore[attr-defined]
        parameters=[each for each in parameters if each.name not in ("out", "stream")]
    )
    return call


class _Swapped:
    """The transpose of matrices, which an op sees through a window."""

    def __init__(self, inner: Any) -> None:
        *batch, rows, columns = inner.shape
        self.inner, self.dtype = inner, inner.dtype
        self.shape, self.ndim = (*batch, columns, rows), inner.ndim

    def reshape(self, *shape: int) -> _Swapped:
        """Change the dimensions before the last two."""
        *batch, rows, columns = shape
        return _Swapped(self.inner.reshape(*batch, columns, rows))


class _Arrays:
    """JAX as the ``xp`` of a declaration's functions."""

    def __init__(self, target: str | None) -> None:
        self._target = target

    def __call__(self, op: Op[Any] | str, *arrays: Any, **options: Any) -> Any:
        declared = DECLARED[op] if isinstance(op, str) else op
        return front(declared)(*arrays, **options, target=self._target)

    def __getattr__(self, name: str) -> Any:
        return getattr(jnp, name)

    def transposed(self, x: Any) -> Any:
        return _Swapped(x)

    def cast(self, x: Any, dtype: Any) -> Any:
        return x.astype(dtype)

    def summed(self, x: Any, shape: Sequence[int]) -> Any:
        added = x.ndim - len(shape)
        ones = [added + i for i, size in enumerate(shape) if size == 1 < x.shape[added + i]]
        axes = (*range(added), *ones)
        return (jnp.sum(x, axes, dtype=np.float32) if axes else x).reshape(shape)

    def activation(self, name: str, x: Any) -> Any:
        return _ACTIVATIONS[name](x.astype(np.float32)).astype(x.dtype)


@dataclass(frozen=True)
class _Form:
    """What a call is, beside its arrays: those of `names`, in this order. Of those that are
    `swapped` the transposes are passed."""

    op: Op[Any]
    options: tuple[Any, ...]
    target: str | None
    names: tuple[str, ...]
    swapped: tuple[bool, ...]

    def values(self, arrays: Sequence[Any]) -> dict[str, Any]:
        """Return operands and options by name."""
        named = zip(self.names, arrays, strict=True)
        return {
            **dict.fromkeys(self.op.operands),
            **named_options(self.op, self.options),
            **dict(named),
        }

    def seen(self, arrays: Sequence[Any], window: Callable[[Any], Any]) -> list[Any]:
        """Return arrays with a `window` in place of those that are swapped."""
        return [
            window(array) if swapped else array
            for array, swapped in zip(arrays, self.swapped, strict=True)
        ]

    def results(self, types: Sequence[ArrayType]) -> list[ArrayType]:
        """Return the types of the results for operands of these types. Raises SpecError for those
        that do not fit."""
        values = self.op.checked(self.options)
        operands = dict(zip(self.names, types, strict=True))
        return list(self.op.result_types(operands, values).values())

    def call(self, arrays: Sequence[Any], **where: Any) -> Any:
        named = dict.fromkeys(self.op.operands) | dict(zip(self.names, arrays, strict=True))
        return self.op.call(tuple(named.values()), self.options, **where)


def named_options(op: Op[Any], options: Sequence[Any]) -> dict[str, Any]:
    return dict(zip(op.options, options, strict=True))


# ---- derivatives
@functools.cache
def _differentiable(form: _Form) -> Callable[..., tuple[Any, ...]]:
    """Return a call as a function of its arrays, with its derivatives."""
    op, xp = form.op, _Arrays(form.target)

    def composed(*arrays: Any) -> Any:
        """Return what replaces the op where it is differentiated, as a tuple; or
        NotImplemented."""
        if op.composite is None:
            return NotImplemented
        values = form.values(form.seen(arrays, _swap))
        made = by_name(op.composite, {**values, "xp": xp})
        return made if made is NotImplemented or isinstance(made, tuple) else (made,)

    @jax.custom_vjp
    def computed(*arrays: Any) -> Any:
        return _mapped(form)(*arrays)

    def forward(*arrays: Any) -> Any:
        if composed(*arrays) is not NotImplemented:
            made, pull = jax.vjp(composed, *arrays)
            return made, (pull, None, None)
        if not op.gradients:
            raise SpecError(
                f"numpipe.jax.{op.name}: jax.grad of it: the op has no derivative yet; "
                "differentiate JAX's own function instead, or pass what needs no gradient through "
                "jax.lax.stop_gradient"
            )
        made = computed(*arrays)  # which may be differentiated again
        seen = form.seen(arrays, _swap)
        values = form.values(seen) | dict(zip(op.results, made, strict=False))
        kept = {name: values[name] for name in op.saved if values.get(name) is not None}
        return made, (None, kept, _Likes(tuple(map(array_type, seen))))

    def backward(residuals: Any, grads: Any) -> tuple[Any, ...]:
        pull, kept, likes = residuals
        if pull is not None:
            return pull(grads)  # type: ignore[no-any-return]
        values = form.values([None] * len(form.names)) | kept
        values |= {f"grad_{name}": x for name, x in zip(op.results, grads, strict=False)}
        wanted = {name: name in form.names for name in op.operands}
        types = dict(zip(form.names, likes.types, strict=True))
        found = op.gradients_of(xp, values, wanted, types)
        return tuple(form.seen([found.get(name) for name in form.names], _swap))

    computed.defvjp(forward, backward)
    return computed  # type: ignore[no-any-return]


def _swap(x: Any) -> Any:
    return jnp.swapaxes(x, -1, -2)


@jax.tree_util.register_static
@dataclass(frozen=True)
class _Likes:
    """Shapes and types of operands, which their derivatives have."""

    types: tuple[ArrayType, ...]


# ---- the call
@functools.cache
def _mapped(form: _Form) -> Callable[..., tuple[Any, ...]]:
    """Return a call as a function of its arrays, with its rule for ``jax.vmap``."""
    op = form.op

    def run(ins: list[Any], outs: list[Any], **where: Any) -> Any:
        if where:
            out = outs[0] if len(outs) == 1 else tuple(outs)
            return form.call(form.seen(ins, transposed), out=out, **where)
        return form.call(form.seen(ins, lambda x: np.swapaxes(x, -1, -2)), target=form.target)

    def bound(*arrays: Any) -> tuple[Any, ...]:
        outs = form.results([array_type(x) for x in form.seen(arrays, _Swapped)])
        check_types(outs, f"op {op.name}")
        return custom_call(op.name, run, form, outs, arrays)

    def rule(size: int, batched: Sequence[bool], *arrays: Any) -> Any:
        flags = dict.fromkeys(op.operands, False) | dict(zip(form.names, batched, strict=True))
        values = form.values(form.seen(arrays, _Swapped))
        made = op.batched(_Arrays(form.target), size, values, flags)
        made = made if isinstance(made, tuple) else (made,)
        return made, (True,) * len(made)

    return mapped(op.name, bound, rule)
