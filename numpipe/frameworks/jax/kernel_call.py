"""`numpipe.jax.call`: a kernel as a function for JAX programs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter
from typing import Any, Literal

import jax

from ...diagnostics.argument_checks import NONE, as_tuple, require, word
from ...diagnostics.errors import SpecError
from ...diagnostics.frames import brief
from ...kernels.call_results import is_array
from ...kernels.kernel import Kernel
from ...ops.declaration import Op
from ...ops.kernel_op import KernelOp
from ...plan.specs import ArrayType
from .custom_calls import array_type
from .jax_ops import front

VmapMethod = Literal["sequential", "expand_dims", "broadcast_all"]


@brief
def call(
    kernel: Kernel | Op,
    *,
    out_type: ArrayType | Sequence[ArrayType] | None = None,
    vmap_method: VmapMethod | None = None,
    target: str | None = None,
) -> Callable:
    """Return a function that calls a kernel, for use inside and outside of ``jax.jit``, like
    ``jax.ffi.ffi_call``.

    The function takes the kernel's inputs as JAX or NumPy arrays, and its scalars and Statics as
    Python numbers, which are constants of the traced program. It returns the outputs, which XLA
    allocates: one array or a tuple.

    kernel       a `Kernel` from `numpipe.kernel` or `numpipe.load`; or a declared op
                 (`numpipe.op`), which takes none of the other arguments
    out_type     shapes and dtypes of the outputs, for a kernel without an ``out_type`` of its own
    vmap_method  how ``jax.vmap`` maps a call, named as for ``jax.pure_callback``: "sequential"
                 makes one call after another; "expand_dims" and "broadcast_all" make one call whose
                 arrays have an additional leading dimension, in which an input that is not mapped
                 has size 1 or is repeated, and which the kernel must support. None makes
                 ``jax.vmap`` an error
    target       where calls on CPU arrays run, as for ``target=`` of the kernel's own calls

    JAX can differentiate a call only if ``jax.custom_vjp`` defines how. Raises SpecError at the
    call if arguments do not match. If JAX's default device is a GPU, the kernel is compiled there
    at once, and compile errors are raised. Errors at run time are raised as
    ``jax.errors.JaxRuntimeError``, with numpipe's text.

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
    if isinstance(kernel, Op):
        if out_type is not None or vmap_method is not None or target is not None:
            raise SpecError(
                f"numpipe.jax.call: {kernel.name} is a declared op, which has its own results and "
                "rule for jax.vmap; fix: leave out out_type=, vmap_method= and target="
            )
        return front(kernel)
    if not isinstance(kernel, Kernel):
        raise SpecError(
            f"numpipe.jax.call: kernel must be a numpipe.Kernel, got {kernel!r}; fix: decorate the "
            "function with @numpipe.kernel(…)"
        )
    methods = word("sequential", "expand_dims", "broadcast_all")
    require("numpipe.jax.call", locals(), vmap_method=NONE | methods)
    types = None if out_type is None else tuple(map(array_type, as_tuple(out_type)))

    @brief
    def function(*args: Any, **named: Any) -> Any:
        for name in ("out", "stream"):
            if name in named:
                raise SpecError(
                    f"kernel {kernel.name}: a call in a JAX program has no {name}=: XLA "
                    f"allocates outputs and chooses streams; fix: leave out {name}="
                )
        names = kernel.definition.arguments.positional[: len(args)]
        given = {**dict(zip(names, args, strict=False)), **named}
        if len(given) < len(args) + len(named):
            kernel.definition.bind(args, named)  # raises an error that names the extra arguments
        arrays = tuple([x for x in given if x in kernel.parameters and is_array(given[x])])
        options = tuple([x for x in given if x not in arrays])
        op = _called(kernel, arrays, options, types, vmap_method)
        return front(op)(**given, target=target)

    # the signature is not copied, because callers do not pass the outputs
    function.__name__, function.__doc__ = kernel.name, kernel.__doc__
    return function


class _CalledKernel(KernelOp):
    """The op of a kernel called with given arguments, whose outputs XLA allocates."""

    def __init__(
        self,
        kernel: Kernel,
        operands: Sequence[str],
        options: Sequence[str],
        types: tuple[ArrayType, ...] | None,
        vmap_method: str | None,
    ) -> None:
        named = [Parameter(name, Parameter.KEYWORD_ONLY) for name in options]
        super().__init__(kernel, operands, named)
        self.out_types, self.vmap_method, self.batching = types, vmap_method, "leading"
        if not self.results:
            raise SpecError(
                f"kernel {self.name}: the call passes all of {', '.join(kernel.parameters)}, but "
                "JAX arrays are immutable; fix: leave the outputs out, and give their types by "
                "out_type= of the kernel or of numpipe.jax.call"
            )

    def result_types(
        self, operands: Mapping[str, Any], options: Mapping[str, Any]
    ) -> dict[str, ArrayType]:
        args, named = self.bound([*operands.values()], [*options.values()])
        call = self.kernel.described(tuple(args), named, self.out_types, whole=True)
        return {name: array_type(call.arrays[name]) for name in call.missing}

    def batched(
        self, xp: Any, size: Any, values: Mapping[str, Any], batched: Mapping[str, bool]
    ) -> Any:
        if self.vmap_method is None:
            raise SpecError(
                f"kernel {self.name}: jax.vmap has no rule for this kernel; fix: "
                'numpipe.jax.call(kernel, vmap_method="sequential"), which makes one call for '
                'each element, or "expand_dims" or "broadcast_all" if the kernel accepts arrays '
                "with one more dimension"
            )
        if self.vmap_method == "sequential":
            each = {name: values[name] for name in self.operands if batched[name]}
            return jax.lax.map(lambda one: xp(self, **{**values, **one}), each)
        if self.out_types is not None:
            raise SpecError(
                f"kernel {self.name}: jax.vmap with vmap_method={self.vmap_method!r} adds a "
                "dimension to the outputs, but out_type= of numpipe.jax.call gives fixed shapes; "
                "fix: give the kernel itself an out_type that is a function of its inputs"
            )
        repeats = size if self.vmap_method == "broadcast_all" else 1
        return super().batched(xp, repeats, values, batched)


_called = functools.cache(_CalledKernel)
