"""`numpipe.jax.call`: a kernel as a function for JAX programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import numpy as np

from ...diagnostics.errors import SpecError
from ...diagnostics.frames import brief
from ...kernels.arguments import SCALAR, Statics
from ...kernels.kernel import Kernel
from ...plan.specs import ArrayType
from .custom_calls import array_type, custom_call

__all__ = ["call"]

Filled = Callable[[Sequence[Any]], tuple[tuple[Any, ...], dict[str, Any]]]
VmapMethod = Literal["sequential", "expand_dims", "broadcast_all"]
_METHODS = ("sequential", "expand_dims", "broadcast_all")


@brief
def call(
    kernel: Kernel,
    *,
    out_type: ArrayType | Sequence[ArrayType] | None = None,
    vmap_method: VmapMethod | None = None,
    target: str | None = None,
) -> Callable[..., Any]:
    """Return a function that calls a kernel, for use inside and outside of ``jax.jit``, as
    ``jax.ffi.ffi_call`` returns one.

    The function takes the kernel's inputs as JAX or NumPy arrays, and its scalars and Statics as
    Python's numbers: these are constants of the traced program. It returns the outputs, which XLA
    allocates, one array or a tuple.

    kernel       a `Kernel`, of `numpipe.kernel` or `numpipe.load`
    out_type     shapes and dtypes of the outputs, for a kernel that has no ``out_type`` of its own
    vmap_method  what ``jax.vmap`` makes of a call, by the names of ``jax.pure_callback``:
                 "sequential", one call after another; "expand_dims" or "broadcast_all", one call
                 whose arrays have a dimension more in front, of size 1 where an input is the same
                 for all, or repeated. The kernel must know such arrays then. None: ``jax.vmap`` is
                 an error
    target       where calls on a CPU's arrays run, as ``target=`` of the kernel's own calls

    JAX differentiates a call where ``jax.custom_vjp`` says how. Raises SpecError for arguments that
    do not fit, at the call; where JAX runs on a GPU the kernel is compiled there and then, and
    errors of that are raised. Errors of a run come as ``jax.errors.JaxRuntimeError``, with
    numpipe's text.

    >>> block = numpipe.BlockSpec((64, 64), lambda i: (i, 0))
    >>> @numpipe.kernel(
    ...     grid=lambda x: (x.shape[0] // 64,),
    ...     in_specs=block,
    ...     out_specs=block,
    ...     out_type=lambda x: numpipe.ArrayType(x.shape, x.dtype),
    ... )
    ... def double(x, y):
    ...     y[...] = x[...] + x[...]
    >>> doubled = numpipe.jax.call(double, target="sim")
    >>> jax.jit(lambda x: doubled(x) + 1)(jnp.ones((128, 64), jnp.float32))[0, 0]
    Array(3., dtype=float32)
    """
    if not isinstance(kernel, Kernel):
        raise SpecError(
            f"numpipe.jax.call: kernel must be a numpipe.Kernel, got {kernel!r}: decorate the "
            "function with @numpipe.kernel(…)"
        )
    if vmap_method is not None and vmap_method not in _METHODS:
        raise SpecError(
            f"numpipe.jax.call: vmap_method must be None or one of {', '.join(_METHODS)}, got "
            f"{vmap_method!r}"
        )
    if out_type is None or isinstance(out_type, (tuple, list)):
        types = None if out_type is None else tuple(array_type(t) for t in out_type)
    else:
        types = (array_type(out_type),)
    caller = _KernelCall(kernel, types, vmap_method, target)

    @brief
    def function(*args: Any, **named: Any) -> Any:
        return caller(args, named)

    # not its signature: the outputs are left out
    function.__name__, function.__doc__ = kernel.name, kernel.__doc__
    return function


class _KernelCall:
    """What `call` makes of a kernel."""

    def __init__(
        self,
        kernel: Kernel,
        types: tuple[ArrayType, ...] | None,
        vmap_method: str | None,
        target: str | None,
    ) -> None:
        self.kernel, self.types, self.vmap_method, self.target = kernel, types, vmap_method, target
        self._functions: dict[Any, Callable[..., tuple[Any, ...]]] = {}

    def __call__(self, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        for name in ("out", "stream"):
            if name in named:
                raise SpecError(
                    f"kernel {self.kernel.name}: a call in a JAX program has no {name}=: XLA "
                    "allocates outputs and chooses streams; leave it out"
                )
        scalars = self.kernel.definition.arguments.scalars
        for name in scalars.keys() & named.keys():
            if _is_array(named[name]):
                raise SpecError(
                    f"kernel {self.kernel.name}: '{name}' is a run-time scalar, and a launch in a "
                    "JAX program has the value that it was traced with: pass a Python number "
                    "(static_argnames of jax.jit make arguments such), or have the kernel take "
                    "an array"
                )
        places = [i for i, value in enumerate(args) if _is_array(value)]
        names = [name for name, value in named.items() if _is_array(value)]
        arrays = [*(args[i] for i in places), *(named[name] for name in names)]

        # kept, and arrays must not be
        frame = [None if i in places else value for i, value in enumerate(args)]
        others = {name: None if name in names else value for name, value in named.items()}

        def filled(values: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
            """Return the call's arguments, with these as its arrays."""
            positional = list(frame)
            for i, value in zip(places, values, strict=False):
                positional[i] = value
            return tuple(positional), {
                **others,
                **dict(zip(names, values[len(places) :], strict=True)),
            }

        constants: list[tuple[Any, Any]] = [
            (i, value) for i, value in enumerate(args) if i not in places
        ]
        constants += [(name, value) for name, value in named.items() if name not in names]
        key = self.kernel, self.types, self.target, tuple(places), tuple(names), Statics(constants)
        results = self._bind(filled, key, tuple(arrays))
        return results[0] if len(results) == 1 else results

    def _bind(self, filled: Filled, key: Any, arrays: Sequence[Any]) -> tuple[Any, ...]:
        """Bind the call on these arrays, which ``jax.vmap`` may make more of."""
        try:
            function = self._functions.get(key)
        except TypeError:  # a Static has no hash, for which the kernel has an error
            self.kernel.described(*filled([array_type(array) for array in arrays]), self.types)
            raise
        if function is None:
            function = self._functions[key] = self._function(filled, key)
        return function(*arrays)

    def _function(self, filled: Filled, key: Any) -> Callable[..., tuple[Any, ...]]:
        """Return the call as a function of its arrays."""
        kernel, name = self.kernel, f"kernel {self.kernel.name}"

        def traced(*arrays: Any) -> tuple[Any, ...]:
            args, named = filled([array_type(array) for array in arrays])
            call = kernel.described(args, named, self.types, whole=True)
            outs = [ArrayType(info.shape, info.dtype) for info in call.infos[len(arrays) :]]
            if not outs:
                raise SpecError(
                    f"{name}: the call passes all of {', '.join(kernel.parameters)}, and arrays "
                    "of JAX are immutable: leave the outputs out, and say what they are by "
                    "out_type= of the kernel or of numpipe.jax.call"
                )
            _check_types(outs, name)

            def run(ins: list[Any], results: list[Any], **where: Any) -> Any:
                args, named = filled(ins)
                if where:
                    return kernel(*args, out=tuple(results), **named, **where)
                if self.types is None and ins:
                    return kernel(*args, target=self.target, **named)
                return tuple(
                    kernel(
                        *args,
                        out=tuple(np.empty(t.shape, t.dtype) for t in outs),
                        target=self.target,
                        **named,
                    )
                )

            return custom_call(kernel.name, run, key, outs, arrays)

        def rule(size: int, batched: Sequence[bool], *values: Any) -> Any:
            if self.vmap_method is None:
                raise SpecError(
                    f"{name}: jax.vmap of it: a kernel does not know what one more dimension "
                    "means; say "
                    'numpipe.jax.call(kernel, vmap_method="sequential"), which calls it once for '
                    "each, or "
                    '"expand_dims" or "broadcast_all" for a kernel that takes such arrays'
                )
            if self.vmap_method == "sequential":
                return one_by_one(lambda *some: self._bind(filled, key, some), batched, values)
            if self.types is not None:
                raise SpecError(
                    f"{name}: jax.vmap of it with vmap_method={self.vmap_method!r}: the outputs "
                    "get a dimension more, and out_type= of numpipe.jax.call says which they "
                    "have: give the kernel itself an out_type that is a function of its inputs"
                )
            repeats = size if self.vmap_method == "broadcast_all" else 1
            results = self._bind(
                filled,
                key,
                [
                    value if b else jax.numpy.broadcast_to(value, (repeats, *value.shape))
                    for b, value in zip(batched, values, strict=True)
                ],
            )
            return results, (True,) * len(results)

        return mapped(kernel.name, traced, rule)


def mapped(
    name: str, function: Callable[..., tuple[Any, ...]], rule: Callable[..., Any]
) -> Callable[..., tuple[Any, ...]]:
    """Return a function of arrays with a rule for ``jax.vmap``; calls outside of ``jax.jit`` are
    traced once."""
    function.__name__ = name
    batching = jax.custom_batching.custom_vmap(function)
    batching.def_vmap(rule)
    return jax.jit(batching)  # type: ignore[no-any-return]


def one_by_one(
    function: Callable[..., tuple[Any, ...]], batched: Sequence[bool], values: Sequence[Any]
) -> Any:
    """Return what a rule of ``custom_vmap`` does, with a call for each element of the batch, one
    after another."""

    def one(some: Sequence[Any]) -> tuple[Any, ...]:
        left = iter(some)
        return function(
            *[next(left) if b else value for b, value in zip(batched, values, strict=True)]
        )

    results = jax.lax.map(one, [value for b, value in zip(batched, values, strict=True) if b])
    return results, (True,) * len(results)


def _check_types(types: Sequence[ArrayType], what: str) -> None:
    """Raise SpecError for an output of 8 bytes an element while JAX has no such types."""
    for t in types:
        if t.dtype.itemsize == 8 and not jax.config.jax_enable_x64:
            raise SpecError(
                f"{what}: JAX makes no {t.dtype.name} while jax_enable_x64 is off, for an output "
                f"of shape {t.shape}; jax.config.update('jax_enable_x64', True), or choose "
                "another type in out_type"
            )


def _is_array(value: Any) -> bool:
    return (
        hasattr(value, "shape")
        and hasattr(value, "dtype")
        and not isinstance(value, (*SCALAR, type))
    )
