"""JAX functions made from declared ops, as `numpipe.jax` offers them, with derivatives and rules
for ``jax.vmap``.

XLA's operands are contiguous, and many derivatives take transposed operands. The untransposed array
is passed to the op, which reads it through a transposed view, so XLA copies nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ... import ops
from ...diagnostics.argument_checks import as_tuple
from ...diagnostics.errors import SpecError
from ...diagnostics.frames import brief
from ...kernels.call_records import Statics
from ...launch.windows import transposed
from ...ops.declaration import Op, by_name
from ...plan.specs import ArrayType
from .custom_calls import array_type, custom_call


@functools.cache
def front(op: Op) -> Callable:
    """Return the function of JAX arrays for a declared op."""
    names = [name for name in op.signature.parameters if name not in ("out", "stream")]
    arguments = op.arguments_of(names)

    @brief
    def call(*args: Any, **named: Any) -> Any:
        arrays, options, _, target, _ = arguments(*args, **named)
        values = Statics(zip(op.options, options, strict=True))
        for name, value in values:
            if isinstance(value, jax.core.Tracer):
                raise SpecError(
                    f"numpipe.jax: {op.name}: '{name}' is traced, but a launch needs its value "
                    f"when it is traced; fix: pass a Python value, or "
                    f"jax.jit(…, static_argnames={name!r})"
                )
        given = {
            name: array if isinstance(array, _Swapped) else _array(f"{op.name}: '{name}'", array)
            for name, array in op.given(arrays).items()
        }
        for name in op.underived.intersection(given):
            given[name] = _underived(f"{op.name}: '{name}'", given[name])
        swapped = tuple(isinstance(array, _Swapped) for array in given.values())
        form = _Form(op, values, target, tuple(given), swapped)
        form.results(given.values())
        made = _differentiable(form)(*[getattr(array, "inner", array) for array in given.values()])
        return made[0] if len(made) == 1 else made

    functools.update_wrapper(call, op)
    call.__doc__ = op.documentation(
        f"""`{op.name}` in JAX programs: the declared op's own docstring describes the parameters.
    Arrays are JAX's or NumPy's; options are constants of the traced program. Raises SpecError as
    the declared op does, when it is traced."""
    )
    call.__signature__ = op.signature.replace(  # type: ignore[attr-defined]
        parameters=[op.signature.parameters[name] for name in names]
    )
    return call


class _Swapped:
    """The transpose of an array, without a copy: ops read the `inner` array through a transposed
    view."""

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

    def __call__(self, op: Op | str, *arrays: Any, **options: Any) -> Any:
        declared = getattr(ops, op) if isinstance(op, str) else op
        return front(declared)(*arrays, **options, target=self._target)

    def __getattr__(self, name: str) -> Any:
        return getattr(jnp, name)

    def transposed(self, x: Any) -> Any:
        return _Swapped(x)

    def cast(self, x: Any, dtype: Any) -> Any:
        return x.astype(dtype)

    def summed(self, x: Any, shape: Sequence[int]) -> Any:
        rank = len(shape)
        axes = [i for i in range(-x.ndim, 0) if i < -rank or shape[i] == 1 < x.shape[i]]
        wide = jnp.promote_types(x.dtype, np.float32)
        return (jnp.sum(x, tuple(axes), dtype=wide) if axes else x).reshape(shape)

    def scattered(self, like: Any, indices: Any, values: Any) -> Any:
        zeros = jnp.zeros(like.shape, values.dtype)
        return jnp.put_along_axis(zeros, indices, values, axis=-1, inplace=False)

    def contiguous(self, x: Any) -> Any:
        return x

    def activation(self, name: str, x: Any) -> Any:
        return getattr(jax.nn, name)(x.astype(np.float32)).astype(x.dtype)


@dataclass(frozen=True)
class _Form:
    """A call without its arrays. `names` are the operands that are given, in order; `swapped` says
    which of them are passed transposed."""

    op: Op
    options: Statics
    target: str | None
    names: tuple[str, ...]
    swapped: tuple[bool, ...]

    def values(self, arrays: Sequence) -> dict[str, Any]:
        """Return operands and options by name."""
        named = zip(self.names, arrays, strict=True)
        return {**dict.fromkeys(self.op.operands), **dict(self.options), **dict(named)}

    def seen(self, arrays: Sequence, window: Callable[[Any], Any]) -> list:
        """Return the arrays, with `window` applied to those that are passed transposed."""
        return [
            window(array) if swapped else array
            for array, swapped in zip(arrays, self.swapped, strict=True)
        ]

    def results(self, arrays: Iterable) -> list[ArrayType]:
        """Return the result types for operands of these types. Raises SpecError if the operands do
        not match."""
        operands = dict(zip(self.names, map(array_type, arrays), strict=True))
        self.op.check_types(operands)
        values = self.op.checked(dict(self.options).values())
        return list(self.op.result_types(operands, values).values())


def _array(what: str, value: Any) -> Any:
    """Return an operand as a JAX array. Raises SpecError for other values."""
    try:
        array = jnp.asarray(value)
        np.dtype(array.dtype)
    except (TypeError, ValueError) as error:
        raise SpecError(
            f"{what} is not an array of numbers: {error}; fix: pass a JAX or NumPy array"
        ) from None
    return array


# ---- derivatives
@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _underived(what: str, array: Any) -> Any:
    """Return an operand, and raise SpecError where it is differentiated."""
    return array


def _refuse(what: str, _: Any) -> Any:
    raise SpecError(
        f"numpipe.jax.{what} is differentiated, which this op does not compute; fix: pass "
        "jax.lax.stop_gradient(array)"
    )


_underived.defvjp(_refuse, _refuse)


@functools.cache
def _differentiable(form: _Form) -> Callable[..., tuple]:
    """Return a differentiable call as a function of its arrays."""
    op, xp = form.op, _Arrays(form.target)
    replacement = op.replacement(dict(form.options).values())

    @jax.custom_vjp
    def computed(*arrays: Any) -> Any:
        return _mapped(form)(*arrays)

    def forward(*arrays: Any) -> Any:
        if replacement is not None:

            def composed(*arrays: Any) -> tuple:
                if isinstance(replacement, tuple):
                    options = Statics(zip(op.options, replacement, strict=True))
                    return _differentiable(replace(form, options=options))(*arrays)[:1]
                values = form.values(form.seen(arrays, _swap))
                return as_tuple(by_name(replacement, {**values, "xp": xp}))

            return jax.vjp(composed, *arrays)
        if not op.gradients:
            raise SpecError(
                f"numpipe.jax.{op.name}: jax.grad of it: the op has no derivative; fix: define one "
                "with jax.custom_vjp, or pass operands that need no gradient through "
                "jax.lax.stop_gradient"
            )
        made = computed(*arrays)  # not inlined, so that it can be differentiated again
        seen = form.seen(arrays, _swap)
        values = form.values(seen) | dict(zip(op.results, made, strict=False))
        kept = {name: values[name] for name in op.saved if values.get(name) is not None}
        types = dict(zip(form.names, map(array_type, seen), strict=True))

        def pull(kept: dict[str, Any], grads: Any) -> tuple:
            values = form.values([None] * len(form.names)) | kept
            values |= {f"grad_{name}": x for name, x in zip(op.results, grads, strict=False)}
            found = op.gradients_of(xp, values, form.names, types)
            return tuple(form.seen([found.get(name) for name in form.names], _swap))

        return made, jax.tree_util.Partial(pull, kept)

    computed.defvjp(forward, lambda pull, grads: pull(grads))
    return computed  # type: ignore[no-any-return]


def _swap(x: Any) -> Any:
    return x.swapaxes(-1, -2)


# ---- the call
@functools.cache
def _mapped(form: _Form) -> Callable[..., tuple]:
    """Return a call as a function of its arrays, with a rule for ``jax.vmap``."""
    op = form.op

    def run(ins: list, outs: list, **where: Any) -> None:
        values = form.values(form.seen(ins, transposed if where else _swap))
        operands, options = (tuple(map(values.get, each)) for each in (op.operands, op.options))
        out = outs[0] if len(outs) == 1 else tuple(outs)
        op.call(operands, options, out=out, **(where or {"target": form.target}))

    def bound(*arrays: Any) -> tuple:
        outs = form.results(form.seen(arrays, _Swapped))
        check_types(outs, f"op {op.name}")
        return custom_call(op.name, run, form, outs, arrays)

    def rule(size: int, batched: Sequence[bool], *arrays: Any) -> Any:
        flags = dict.fromkeys(op.operands, False) | dict(zip(form.names, batched, strict=True))
        window = _Swapped if callable(op.batching) else _swap
        values = form.values(form.seen(arrays, window))
        made = as_tuple(op.batched(_Arrays(form.target), size, values, flags))
        return made, (True,) * len(made)

    bound.__name__ = op.name
    batching = jax.custom_batching.custom_vmap(bound)
    batching.def_vmap(rule)
    return jax.jit(batching)  # type: ignore[no-any-return]


def check_types(types: Sequence[ArrayType], what: str) -> None:
    """Raise SpecError for an output with 8-byte elements if JAX does not have these enabled."""
    for t in types:
        if t.dtype.itemsize == 8 and not jax.config.jax_enable_x64:
            raise SpecError(
                f"{what}: an output of shape {t.shape} is {t.dtype.name}, which JAX does not make "
                "while jax_enable_x64 is off; fix: jax.config.update('jax_enable_x64', True), or "
                "another type in out_type"
            )
