"""`numpipe.torch.register`: make PyTorch ops from your own kernels and declared ops.

The op is derived from the kernel's declaration. Parameters without a default become the tensors of
the op's schema, `out_type` becomes its fake implementation, and each parameter that the kernel
stores to is either an output or a tensor that the op writes in place.
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
from ...ops.kernel_op import KernelOp
from ...plan.specs import SYMBOLIC
from .torch_ops import NAMESPACE, torch_op

_SCALARS: dict[Any, type] = {
    spelled: kind for kind in (bool, int, float) for spelled in (kind, kind.__name__)
}
"""Python types that a parameter's annotation may name"""

SYMBOLIC.append(torch.SymInt)


def register(
    kernel: Kernel | Op,
    name: str | None = None,
    *,
    backward: Kernel | Callable | None = None,
    mutates: Sequence[str] = (),
    statics: Mapping[str, Any] | None = None,
) -> Callable:
    """Make a PyTorch op from a kernel, and return the op, which is called on tensors.

    kernel    a ``@numpipe.kernel``, or a kernel from `numpipe.load`; or a declared op
              (`numpipe.op`), whose function of tensors is returned
    name      "namespace::name", found as ``torch.ops.namespace.name``; by default the kernel's name
              in the namespace "numpipe_kernels"
    backward  a kernel or a function that computes gradients. The names of its parameters select its
              arguments: inputs, scalars and outputs of the kernel, and ``grad_y``, the contiguous
              gradient of the output y. A kernel returns the gradient of the input x as its output
              ``grad_x``. A function returns a gradient for each input tensor, or None, and may call
              registered ops
    mutates   for a kernel with an out_type: parameters that callers pass and that it writes in
              place
    statics   values of the kernel's Statics; the others have their defaults

    With an out_type, the op returns its outputs. Without one, callers pass the outputs, the op
    writes them in place and returns nothing. The op takes the tensors, in the kernel's order, then
    its run-time scalars, by position or by name, with the type of their default or of their
    annotation (``alpha: float``). Under ``torch.compile(dynamic=True)``, out_type is called with
    symbolic sizes.

    Raises SpecError for a kernel that cannot be made an op, and for a name that another kernel has;
    redefining a kernel, as in a notebook, replaces the older op. Later, SpecError is raised if a
    gradient is needed and there is no `backward`, and for a call that writes in place while
    gradients are recorded. Source: PyTorch, `torch.library`.

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
        raise SpecError(f"numpipe.torch.register: expected a @numpipe.kernel, got {kernel!r}")
    full = "" if name is None else _full(name)
    if isinstance(kernel, Op):
        if backward is not None or mutates or statics:
            raise SpecError(
                f"numpipe.torch.register: {kernel.name} is a declared op, whose declaration has "
                "its gradients; fix: leave out backward=, mutates= and statics="
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
    """Return a kernel as an op. Raises SpecError if it cannot be one."""
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
        raise SpecError(f"{of}: has no input array to say where the op runs; fix: give it one")
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
    gradients: dict[str, Callable] = {}
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
                f"{full}: the kernel {own.name}, which computes the gradients, must return outputs "
                f"called {', '.join(targets)}, or some of these, but it returns "
                f"{', '.join(own.results) or 'nothing'}; fix: give it an out_type with these names"
            )
        torch_op(own, f"{full}_backward")
        gradients[" ".join(each.removeprefix("grad_") for each in own.results)] = own
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
        f"{full}: a gradient is needed, but kernel {kernel.name} was registered without "
        f"one; fix: numpipe.torch.register({kernel.name}, backward=…), or call the op under "
        "torch.no_grad()"
    )


def _kind(kernel: Kernel, name: str) -> type | None:
    """Return the type of a scalar from its parameter's annotation; None for other parameters."""
    try:
        annotation = inspect.signature(kernel).parameters[name].annotation
    except (KeyError, ValueError, TypeError):  # a loaded kernel has no annotations
        return None
    if isinstance(annotation, type) and issubclass(annotation, np.generic):
        return annotation
    return _SCALARS.get(annotation)
