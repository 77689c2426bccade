"""`numpipe.torch.register`: your own kernels and declared ops as ops of PyTorch.

The op of a kernel is made from the kernel's own declarations. Its parameters without a default are
the tensors of the op's schema, `out_type` is the op's fake implementation, and a parameter that the
kernel stores to is an output, or a tensor that the op writes in place.
"""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter
from typing import Any

import numpy as np
import torch

from ...diagnostics.errors import SpecError
from ...kernels.arguments import MISSING
from ...kernels.kernel import Kernel
from ...ops.declaration import Op
from ...ops.kernel_op import KernelOp, gradients_by
from ...plan.specs import SYMBOLIC
from .torch_ops import NAMESPACE, torch_op

__all__ = ["register"]

_SCALARS: dict[Any, type] = {
    spelled: kind for kind in (bool, int, float) for spelled in (kind, kind.__name__)
}
"""Python's types that a parameter's annotation may name"""

SYMBOLIC.append(torch.SymInt)


def register(
    kernel: Kernel | Op[Any],
    name: str | None = None,
    *,
    backward: Kernel | Callable[..., Any] | None = None,
    mutates: Sequence[str] = (),
    statics: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Make an op of PyTorch from a kernel; returns the op, which is called on tensors.

    kernel    a ``@numpipe.kernel``, or one of `numpipe.load`; or a declared op (`numpipe.op`),
              whose function of tensors is returned
    name      "namespace::name", as ``torch.ops.namespace.name`` has it; by default the namespace is
              "numpipe_kernels" and the name the kernel's
    backward  a kernel or a function that computes gradients. It is given what it needs by the names
              of its parameters: inputs, scalars and outputs of the kernel, and ``grad_y``, the
              gradient of the output y, contiguous. A kernel returns the gradient of the input x as
              its output ``grad_x``; a function returns one for each input tensor, None where there
              is none, and may call registered ops
    mutates   parameters of a kernel with an out_type that it writes in place and that calls pass
    statics   values of the kernel's Statics; the others have their defaults

    With an out_type the op returns its outputs. Without one it writes them in place: calls pass
    them, and the op returns nothing. The op takes the tensors, in the kernel's order, and then its
    run-time scalars, by position or by name, of the type of their default or of their annotation
    (``alpha: float``). Under ``torch.compile(dynamic=True)`` out_type is asked with sizes that are
    symbols.

    Raises SpecError for a kernel that is no such op, and for a name that another kernel has; a
    kernel defined anew, as in a notebook, replaces the older one. A gradient without `backward` is
    a SpecError when it is asked for, and so is a call that writes in place where gradients are
    recorded. Source: PyTorch, `torch.library`.

    >>> block = numpipe.BlockSpec((64, 64), lambda i: (i, 0))
    >>> @numpipe.kernel(
    ...     grid=lambda x: (x.shape[0] // 64,),
    ...     in_specs=block,
    ...     out_specs=block,
    ...     out_type=lambda x: numpipe.ArrayType(x.shape, x.dtype),
    ... )
    ... def double(x, y):
    ...     y[...] = x[...] + x[...]
    >>> op = numpipe.torch.register(double, "mine::double", backward=lambda grad_y: 2 * grad_y)
    >>> x = torch.ones(64, 64, requires_grad=True)
    >>> op(x).sum().backward()
    >>> float(x.grad[0, 0])
    2.0
    """
    if not isinstance(kernel, (Kernel, Op)):
        raise SpecError(f"numpipe.torch.register: takes a @numpipe.kernel, got {kernel!r}")
    full = "" if name is None else _full(name)
    if isinstance(kernel, Op):
        if backward is not None or mutates or statics:
            raise SpecError(
                f"numpipe.torch.register: {kernel.name} is a declared op, whose declaration says "
                "its gradients: leave out backward=, mutates= and statics="
            )
        return torch_op(kernel, full).front
    full = full or f"{NAMESPACE}::{kernel.name}"
    op = _as_op(kernel, full, backward, tuple(mutates), dict(statics or {}))
    return torch_op(op, full).op  # type: ignore[no-any-return]


def _full(name: str) -> str:
    namespace, colons, op = name.rpartition("::")
    namespace = namespace if colons else NAMESPACE
    if not (namespace.isidentifier() and op.isidentifier()):
        raise SpecError(
            'numpipe.torch.register: name must be "name" or "namespace::name", of letters, '
            "digits and _, got "
            f"{name!r}"
        )
    return f"{namespace}::{op}"


def _as_op(
    kernel: Kernel, full: str, backward: Any, mutates: tuple[str, ...], statics: dict[str, Any]
) -> KernelOp:
    """Return a kernel as an op. Raises SpecError for one that is none."""
    definition, of = kernel.definition, f"numpipe.torch.register: kernel {kernel.name}"
    stored = definition.stores["all"]
    if unknown := [name for name in mutates if name not in stored]:
        raise SpecError(
            f"{of}: mutates names {', '.join(unknown)}, but the kernel stores to "
            f"{', '.join(stored)}"
        )
    if definition.options.out_type is None:
        mutates = tuple(stored)
    passed = itertools.takewhile(
        lambda name: name not in stored or name in mutates, kernel.parameters
    )
    kinds = {name: _kind(kernel, name) for name in passed}
    tensors = [name for name, kind in kinds.items() if kind is None]
    if not tensors:
        raise SpecError(f"{of}: has no input array, so nothing says where the op runs; give it one")
    scalars = dict.fromkeys([name for name in kinds if name not in tensors], MISSING)
    options = []
    for name, default in {**scalars, **definition.scalars}.items():
        kind = _kind(kernel, name) if default is MISSING else type(default)
        if kind is None:
            raise SpecError(
                f"{of}: the scalar '{name}' has neither a default nor a type, which the "
                f"op's schema must say: annotate it, e.g. {name}: float"
            )
        options.append(Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=kind))
    fixed = {**kernel.statics, **statics}
    if fixed.keys() != kernel.statics.keys() or any(each is MISSING for each in fixed.values()):
        raise SpecError(
            f"{of}: its Statics are {', '.join(kernel.statics) or 'none'}, statics= has "
            f"{', '.join(statics) or 'none'}: an op's Statics are fixed, so pass a value for each "
            f"that has no default, as in statics={{{next(iter(kernel.statics), 'name')!r}: …}}"
        )
    gradients: dict[str, Callable[..., Any]] = {}
    if backward is None:
        gradients[" ".join(tensors)] = functools.partial(_lack, kernel, full)
    elif mutates:
        raise SpecError(
            f"{full}: backward= is for kernels with an out_type: what is written in place has "
            "no gradient"
        )
    elif isinstance(backward, Kernel):
        given = {key: value for key, value in statics.items() if key in backward.statics}
        own = _as_op(backward, f"{full}_backward", None, (), given)
        targets = [f"grad_{each}" for each in tensors]
        if own.mutates or not set(own.results) <= set(targets):
            raise SpecError(
                f"{full}: the kernel {own.name} computes its gradients and must have an out_type "
                f"for outputs called {', '.join(targets)}, or some of these; it returns "
                f"{', '.join(own.results) or 'nothing'}"
            )
        torch_op(own, f"{full}_backward")
        gradients[" ".join(each.removeprefix("grad_") for each in own.results)] = gradients_by(own)
    else:
        gradients[" ".join(tensors)] = backward
    return KernelOp(
        kernel,
        tensors,
        sorted(options, key=lambda each: each.default is not MISSING),
        statics=statics,
        mutates=mutates,
        gradients=gradients,
    )


def _lack(kernel: Kernel, full: str) -> Any:
    raise SpecError(
        f"{full}: its gradient is asked for, but kernel {kernel.name} was registered without "
        f"one: pass numpipe.torch.register({kernel.name}, backward=…), or call the op under "
        "torch.no_grad()"
    )


def _kind(kernel: Kernel, name: str) -> type | None:
    """Return the type of a scalar that a parameter's annotation says; None for other parameters."""
    try:
        annotation = inspect.signature(kernel).parameters[name].annotation
    except (KeyError, ValueError, TypeError):  # a loaded kernel has none
        return None
    if isinstance(annotation, type) and issubclass(annotation, np.generic):
        return annotation
    return _SCALARS.get(annotation)
