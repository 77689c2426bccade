"""`numpipe.torch.matmul`: `numpipe.ops.matmul` as the op ``numpipe::matmul``, with gradients,
autocast and vmap.

The gradients of a product are products, by the op itself: of a it is ``alpha * grad @ b.T``, of b
``alpha * a.T @ grad``, and where one matrix is multiplied with a batch, the sum over the batch is
part of the product. So they have gradients too.

Where a gradient is wanted, an activation is not fused: its derivative needs the sum before it,
which a fused product never stores. The product is stored, in the inputs' type, and PyTorch's own
activation follows. That is a pass over memory instead of one more product in the backward pass, and
the result has one more rounding than without gradients.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from ... import ops
from ...core.functions import Function
from ...diagnostics.errors import SpecError
from ...ops.activations import ACTIVATIONS
from .dispatch import (
    check_tensors,
    define,
    differentiated,
    direct,
    transformed,
    under_autocast,
    under_autograd,
    without_vmap,
)

__all__ = ["matmul"]

ARGUMENTS = (
    "Tensor a, Tensor b, Tensor? c=None, Tensor? bias=None, float alpha=1.0, float beta=1.0, str? "
    "activation=None, bool batch_invariant=False"
)
DIFFERENTIABLE: dict[str, Callable[[Any], Any]] = {
    "relu": functional.relu,
    "silu": functional.silu,
    "gelu": functools.partial(functional.gelu, approximate="tanh"),
}
"""PyTorch's functions for the activations that have a name"""
_LIBRARY = torch.library.Library("numpipe", "FRAGMENT")


def matmul(
    a: Any,
    b: Any,
    c: Any = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    bias: Any = None,
    activation: Any = None,
    out: Any = None,
    batch_invariant: bool = False,
) -> Any:
    """Return ``activation(alpha * a @ b + beta * c + bias)``, summed in float32, for tensors of
    float16 or of bfloat16.

    a, b        (…, M, K) and (…, K, N), or vectors (K,), as torch.matmul takes them; the leading
                dimensions broadcast
    c           of a shape that broadcasts to the result's, of their type or of float32; not read
                where beta is 0
    bias        (N,), added to each row, or (M, 1), to each column; of their type or of float32
    activation  "relu", "silu", "gelu" (with tanh), or a `numpipe.function` of a float32 tile,
                defined in a module
    out         a tensor for the result, where no gradients are recorded
    batch_invariant
                a row of the result has the same bits whatever M, and whatever the other rows, are

    Gradients are defined for all tensors, also those of gradients, but not through a
    `numpipe.function`. Under autocast a and b are converted to its type. It stands in one graph of
    `torch.compile` and `torch.export`, runs on the current stream, and may be captured into CUDA
    graphs. Under `torch.vmap` the dimension is a batch. Raises SpecError for shapes, types and
    devices that do not fit, and for out= where a tensor requires a gradient.

    >>> x, weight = (
    ...     torch.ones(3, 16, dtype=torch.float16),
    ...     torch.ones(8, 16, dtype=torch.float16),
    ... )
    >>> matmul(x, weight.T, activation="relu").shape
    torch.Size([3, 8])
    """
    if out is None and direct(a, b, c, bias) and a is not None is not b:
        if not differentiated(a, b, c, bias):
            try:
                return ops.matmul(
                    a,
                    b,
                    c,
                    alpha=alpha,
                    beta=beta,
                    bias=bias,
                    activation=activation,
                    batch_invariant=batch_invariant,
                )
            except Exception:
                check_tensors("matmul", a=a, b=b, c=c, bias=bias)  # what is wrong may be PyTorch's
                if a.is_meta:
                    return _fake(a, b, c, bias, alpha, beta)
                raise
        if activation is None or type(activation) is str:
            return _differentiated(a, b, c, bias, alpha, beta, activation, batch_invariant)
    check_tensors("matmul", a=a, b=b, c=c, bias=bias, out=out)
    if not isinstance(activation, str) and activation is not None:
        activation = _spelled(activation)
    if out is None:
        if (
            torch.is_grad_enabled()
            and transformed()
            and (activation is None or activation in DIFFERENTIABLE)
        ):
            return _differentiated(
                a, b, c, bias, alpha, beta, activation, batch_invariant, _Transformed
            )
        return torch.ops.numpipe.matmul.default(
            a, b, c, bias, alpha, beta, activation, batch_invariant
        )
    torch.ops.numpipe.matmul_out.default(
        a, b, c, bias, alpha, beta, activation, batch_invariant, out
    )
    return out


# ---- activations: a schema has strings
def _spelled(function: Function[..., Any]) -> str:
    """Return a function as the name by which a graph finds it again, "module:function"."""
    if not isinstance(function, Function):
        raise SpecError(
            f"matmul: activation is {', '.join(map(repr, ACTIVATIONS))} or a numpipe.function of "
            f"a float32 tile, got {function!r}"
        )
    module, name = function.__module__, function.__qualname__  # type: ignore[attr-defined]
    if "<locals>" in name:
        raise SpecError(
            f"matmul: the activation {name} is defined inside a function, where a graph does not "
            f"find it again: define it in the module {module}"
        )
    return f"{module}:{name}"


def _function(name: str) -> Any:
    """Return the function of such a name. Raises SpecError where its module is not imported, which
    a graph does not do."""
    module, _, inner = name.partition(":")
    try:
        return functools.reduce(getattr, inner.split("."), sys.modules[module])
    except (KeyError, AttributeError):
        raise SpecError(
            f"matmul: the activation {name!r} is no function of a module that is imported: import "
            f"{module} before the graph runs"
        ) from None


# ---- the op
def _run(
    a: Any,
    b: Any,
    c: Any = None,
    bias: Any = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    activation: str | None = None,
    batch_invariant: bool = False,
    out: Any = None,
) -> Any:
    if a.is_meta:
        return _fake(a, b, c, bias, alpha, beta)
    function = _function(activation) if activation is not None and ":" in activation else activation
    return ops.matmul(
        a,
        b,
        c,
        alpha=alpha,
        beta=beta,
        bias=bias,
        activation=function,
        batch_invariant=batch_invariant,
        out=out,
    )


def _fake(
    a: Any,
    b: Any,
    c: Any = None,
    bias: Any = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    activation: str | None = None,
    batch_invariant: bool = False,
) -> Any:
    """The result without its contents. Raises SpecError as the op does, also for sizes that are
    symbols."""
    check_tensors("matmul", a=a, b=b, c=c, bias=bias)
    for name, tensor in (("a", a), ("b", b)):
        if tensor.dtype not in (torch.float16, torch.bfloat16) or tensor.dtype != a.dtype:
            raise SpecError(
                f"matmul: '{name}' is {tensor.dtype}, 'a' {a.dtype}: both must be torch.float16 "
                f"or torch.bfloat16; convert it with {name}.to(torch.bfloat16), or run under "
                "torch.autocast"
            )
        if not tensor.ndim:
            raise SpecError(f"matmul: '{name}' is a number; multiply with *, or pass alpha=")
    for name, tensor in (("c", c), ("bias", bias)):
        if tensor is not None and tensor.dtype not in (a.dtype, torch.float32):
            raise SpecError(
                f"matmul: '{name}' is {tensor.dtype}, and must be {a.dtype} as 'a' is, or "
                f"torch.float32; convert it with {name}.to({a.dtype})"
            )
    depth = b.shape[-2 if b.ndim > 1 else -1]
    if a.shape[-1] != depth:
        raise SpecError(
            f"matmul: K = {a.shape[-1]} in 'a' {tuple(a.shape)}, {depth} in 'b' {tuple(b.shape)}"
        )
    try:
        shape = (
            *torch.broadcast_shapes(a.shape[:-2], b.shape[:-2]),
            *a.shape[-2:-1],
            *b.shape[-1:] * (b.ndim > 1),
        )
        if c is not None and beta != 0 and tuple(torch.broadcast_shapes(c.shape, shape)) != shape:
            raise SpecError(f"matmul: 'c' must broadcast to {shape}, got {tuple(c.shape)}")
    except RuntimeError as error:
        raise SpecError(
            f"matmul: the batches of 'a' {tuple(a.shape)} and 'b' {tuple(b.shape)} do not "
            f"broadcast, or 'c' does not ({error})"
        ) from error
    m, n = a.shape[-2] if a.ndim > 1 else 1, b.shape[-1] if b.ndim > 1 else 1
    if bias is not None and tuple(bias.shape) not in ((n,), (m, 1)):
        raise SpecError(f"matmul: 'bias' must be {(n,)} or {(m, 1)}, got {tuple(bias.shape)}")
    return a.new_empty(shape)


def _run_out(*args: Any) -> None:
    _run(*args)
    torch.autograd.graph.increment_version(args[-1])


def _fake_out(*args: Any) -> None:
    made, out = _fake(*args[:-1]), args[-1]
    if made.shape != out.shape or made.dtype != out.dtype:
        raise SpecError(
            f"matmul: 'out' must be {tuple(made.shape)} of {made.dtype}, got {tuple(out.shape)} "
            f"of {out.dtype}"
        )


_op = define(_LIBRARY, f"matmul({ARGUMENTS}) -> Tensor", _run, _fake)
_out = define(
    _LIBRARY,
    f"matmul_out({re.sub('=[^,]+', '', ARGUMENTS)}, Tensor(a!) out) -> ()",
    _run_out,
    _fake_out,
)


# ---- gradients
class _Transformed(torch.autograd.Function):  # type: ignore[misc]
    """The product without an activation, and its gradients, in the form that `torch.func`
    transforms."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        a: Any, b: Any, c: Any, bias: Any, alpha: float, beta: float, batch_invariant: bool
    ) -> Any:
        return (_run if direct(a, b, c, bias) else _op)(
            a, b, c, bias, alpha, beta, None, batch_invariant
        )

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        a, b, *added, ctx.alpha, ctx.beta, ctx.batch_invariant = inputs
        ctx.save_for_backward(a, b)
        ctx.added = [None if each is None else (each.shape, each.dtype) for each in added]

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        a, b = ctx.saved_tensors
        rows, columns = a if a.ndim > 1 else a[None], b if b.ndim > 1 else b[:, None]
        whole = grad if b.ndim > 1 else grad.unsqueeze(-1)
        whole = whole if a.ndim > 1 else whole.unsqueeze(-2)
        found: list[Any] = [None] * 7
        if ctx.needs_input_grad[0]:
            found[0] = _summed(whole, columns.mT, rows.shape, ctx).reshape(a.shape)
        if ctx.needs_input_grad[1]:
            found[1] = _summed(rows.mT, whole, columns.shape, ctx).reshape(b.shape)
        for i, scale in ((2, ctx.beta), (3, 1.0)):
            if ctx.needs_input_grad[i]:
                shape, dtype = ctx.added[i - 2]
                added = (grad if i == 2 else whole).sum_to_size(shape).to(dtype)
                found[i] = added if scale == 1 else added * scale
        return tuple(found)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        raise SpecError(
            "matmul: derivatives along the inputs (torch.func.jvp, jacfwd) are not defined; use "
            "torch.func.vjp, jacrev or grad"
        )


class _Product(_Transformed):
    """The same in the form that costs PyTorch a third of the time."""

    setup_context = staticmethod(torch.autograd.Function.setup_context)

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Any:
        result = _Transformed.forward(*inputs)
        _Transformed.setup_context(ctx, inputs, result)
        return result


def _summed(x: Any, y: Any, shape: Any, ctx: Any) -> Any:
    """Return ``alpha * x @ y``, summed over the batches that an array of this shape was broadcast
    to."""
    if len(shape) == 2 and x.ndim == y.ndim > 2:
        # the batches lie along K: they are summed in float32
        x, y = x.movedim(-2, 0).flatten(1), y.flatten(0, -2)
    product = _run if direct(x, y) and not differentiated(x, y) else _op
    return product(x, y, None, None, ctx.alpha, 1.0, None, ctx.batch_invariant).sum_to_size(shape)


def _differentiated(
    a: Any,
    b: Any,
    c: Any = None,
    bias: Any = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    activation: str | None = None,
    batch_invariant: bool = False,
    product: Any = _Product,
) -> Any:
    if activation is not None and activation not in DIFFERENTIABLE:
        raise SpecError(
            f"matmul: the activation {activation!r} has no derivative here, and an argument "
            f"requires a gradient: use {', '.join(map(repr, DIFFERENTIABLE))}, apply PyTorch's "
            "operations to the result without activation=, or call it under torch.no_grad()"
        )
    result = product.apply(a, b, c, bias, alpha, beta, batch_invariant)
    return result if activation is None else DIFFERENTIABLE[activation](result)


def _refused(*args: Any) -> None:
    raise SpecError(
        "matmul: out= is given and an argument requires a gradient, which a result written in "
        "place has not: leave out= out, call it under torch.no_grad(), or pass tensors.detach()"
    )


# ---- vmap
def _over_batch(
    info: Any,
    in_dims: Any,
    a: Any,
    b: Any,
    c: Any = None,
    bias: Any = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    activation: str | None = None,
    batch_invariant: bool = False,
) -> Any:
    """The op along one more dimension, the first batch of a product of matrices. Unless a and b
    alone have it, the rest follows."""
    dims = [*in_dims, *[None] * 8]
    vectors = [
        tensor.ndim - (dim is not None) == 1 for tensor, dim in zip((a, b), dims, strict=False)
    ]
    rank = max(
        2, *(tensor.ndim - (dim is not None) for tensor, dim in zip((a, b), dims, strict=False))
    )

    def front(tensor: Any, dim: int | None, *ones: int) -> Any:
        """A tensor with its dimension moved to the front, ones where it has no dimensions."""
        tensor = tensor if dim is None else tensor.movedim(dim, 0)
        for one in ones:
            tensor = tensor.unsqueeze(one)
        return (
            tensor
            if dim is None
            else tensor.reshape(tensor.shape[0], *[1] * (rank + 1 - tensor.ndim), *tensor.shape[1:])
        )

    x, y = front(a, dims[0], *[-2] * vectors[0]), front(b, dims[1], *[-1] * vectors[1])
    fused = dims[2] is dims[3] is None and not any(vectors)
    result = _op(
        x,
        y,
        *((c, bias) if fused else (None, None)),
        alpha,
        beta,
        activation if fused else None,
        batch_invariant,
    )
    if not fused:
        if c is not None and beta != 0:
            result = result + beta * front(c, dims[2], *[-1] * vectors[1], *[-2] * vectors[0])
        if bias is not None:
            result = result + front(bias, dims[3])
        if activation is not None:
            if activation not in DIFFERENTIABLE:
                raise SpecError(
                    f"matmul: under torch.vmap the activation {activation!r} cannot follow a c or "
                    "bias that has the dimension: apply PyTorch's operations to the result "
                    "without activation="
                )
            result = DIFFERENTIABLE[activation](result)
        result = result.to(a.dtype)
        result = result.squeeze(-1) if vectors[1] else result
        result = result.squeeze(-1 if vectors[1] else -2) if vectors[0] else result
    return result, 0


under_autograd(_LIBRARY, _op, _differentiated)
under_autograd(_LIBRARY, _out, _refused)
under_autocast(_LIBRARY, _op, wide=2)  # with out= the types are the caller's, as those of torch.mm
torch.library.register_vmap("numpipe::matmul", _over_batch, lib=_LIBRARY)
without_vmap(_LIBRARY, _out, "leave out= out")
