"""`numpipe.torch` on the GPUs of a `numpipe.Mesh`: products and collectives of `numpipe.ops`, with
gradients.

The gradient of an op of several GPUs is again such an op, so that rows travel during the products
backward too:

=======================  ========================================  =================================
op                       gradient of a, of x                       gradient of b
=======================  ========================================  =================================
`all_gather_matmul`      ``matmul_reduce_scatter(grad, b.mT)``     ``matmul(all_gather(a).mT,
                                                                   grad)``
`matmul_reduce_scatter`  ``all_gather_matmul(grad, b.mT)``         ``matmul(a.mT,
                                                                   all_gather(grad))``
`all_gather`             ``reduce_scatter(grad)``
`reduce_scatter`         ``all_gather(grad)``
=======================  ========================================  =================================

Rows of others are gathered once more for the gradient of b: none but the own ones are kept from the
forward pass.

A schema has no type for a mesh. The ops of the dispatcher, ``numpipe::all_gather_matmul`` and the
others, take the mesh's name, and lists of one tensor for each GPU of this process. Products of a
tile, sends and waits are one launch, which is one node of a graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from ... import ops
from ...diagnostics.errors import SpecError
from ...launch.mesh import Mesh, mesh_of
from ...ops.sharded_calls import Shards, check_matrices
from .dispatch import (
    check_tensors,
    define,
    differentiated,
    direct,
    under_autocast,
    under_autograd,
    without_vmap,
)
from .matmul import matmul

__all__ = ["all_gather", "all_gather_matmul", "matmul_reduce_scatter", "reduce_scatter"]

_LIBRARY = torch.library.Library("numpipe", "FRAGMENT")
Tensors = list[Any]
"""one tensor for each GPU of this process"""


def all_gather_matmul(a: Any, b: Any, *, mesh: Mesh, out: Any = None) -> Any:
    """Return the rows of all GPUs, one behind the other, multiplied by each GPU's own matrix:
    ``concatenate(all a) @ b``.

    a     (M, K) on each GPU, of float16 or of bfloat16
    b     (K, N) on each GPU, of the same type
    mesh  the `numpipe.Mesh`; under `simulated` and `local` a, b and the result are lists of a
          tensor for each GPU
    out   (GPUs * M, N) on each GPU, where the result goes, where no gradients are recorded

    All ranks make the same calls and run backward through them in the same order, and on all of
    them the same tensors require gradients. Gradients have gradients. Under autocast a and b are
    converted to its type. It stands in one graph of `torch.compile`, which all ranks compile.
    Raises SpecError for what `numpipe.ops.all_gather_matmul` does not take, and for out= where a
    tensor requires a gradient.

    >>> a = [torch.full((4, 8), gpu, dtype=torch.float16) for gpu in range(2)]
    >>> b = [torch.ones(8, 16, dtype=torch.float16, requires_grad=True) for _ in range(2)]
    >>> y = all_gather_matmul(a, b, mesh=numpipe.Mesh.simulated(2))
    >>> sum(map(torch.sum, y)).backward()
    >>> y[0].shape, b[0].grad[0, 0]
    (torch.Size([8, 16]), tensor(4., dtype=torch.float16))
    """
    return _asked("all_gather_matmul", mesh, out, a=a, b=b)


def matmul_reduce_scatter(a: Any, b: Any, *, mesh: Mesh, out: Any = None) -> Any:
    """Return each GPU's share of the rows of the sum over all GPUs of their products ``a @ b``.

    a     (M, K) on each GPU, of float16 or of bfloat16; M is a multiple of the number of GPUs
    b     (K, N) on each GPU, of the same type
    mesh  the `numpipe.Mesh`; under `simulated` and `local` a, b and the result are lists of a
          tensor for each GPU
    out   (M / GPUs, N) on each GPU, where the result goes, where no gradients are recorded

    Gradients, ranks, autocast, graphs and errors are as those of `all_gather_matmul`.
    """
    return _asked("matmul_reduce_scatter", mesh, out, a=a, b=b)


def all_gather(x: Any, *, mesh: Mesh, out: Any = None) -> Any:
    """Return the shards of all GPUs, one behind the other along the first dimension.

    x     the shard of each GPU: contiguous, 16 bytes or a multiple of it in all; of any type, and
          with gradients if `reduce_scatter` takes it
    mesh  the `numpipe.Mesh`; under `simulated` and `local` x and the result are lists of a tensor
          for each GPU
    out   (GPUs * rows, …) on each GPU, where the result goes, where no gradients are recorded

    Gradients, ranks, graphs and errors are as those of `all_gather_matmul`.
    """
    return _asked("all_gather", mesh, out, x=x)


def reduce_scatter(x: Any, *, mesh: Mesh, out: Any = None) -> Any:
    """Return each GPU's share, along the first dimension, of the sum of all GPUs' tensors.

    x     (rows, …) on each GPU, of float16, bfloat16 or float32; contiguous, and rows a multiple of
          the number of GPUs
    mesh  the `numpipe.Mesh`; under `simulated` and `local` x and the result are lists of a tensor
          for each GPU
    out   (rows / GPUs, …) on each GPU, where the result goes, where no gradients are recorded

    Gradients, ranks, graphs and errors are as those of `all_gather_matmul`.
    """
    return _asked("reduce_scatter", mesh, out, x=x)


def _asked(name: str, mesh: Any, out: Any, **arrays: Any) -> Any:
    """Make a caller's call. Raises SpecError for what is no mesh, or no tensor for each of its
    GPUs."""
    shards = Shards(name, mesh)
    lists = [list(shards.parts(array, value)) for array, value in arrays.items()]
    results = [] if out is None else list(shards.parts("out", out))
    for gpu, each in enumerate(zip(*lists, strict=True)):
        given = dict(zip(arrays, each, strict=True))
        for array, tensor in given.items():
            if tensor is None:
                raise SpecError(f"{name}: '{array}' must be a torch.Tensor, got None")
        check_tensors(name, **given, out=results[gpu] if results else None)
    if out is not None:
        _OUTS[name](*lists, mesh.name, results)
        return out
    found = _made(name, mesh, *lists)
    return found if mesh.rank is None else found[0]


# ---- the ops
def _made(name: str, mesh: Mesh, *lists: Tensors) -> Tensors:
    """Return what an op makes of these tensors, recorded where a gradient is wanted."""
    tensors = [tensor for each in lists for tensor in each]
    if differentiated(*tensors) and direct(*tensors):
        return list(_Recorded.apply(name, mesh, *tensors))
    return _unrecorded(name, mesh, tensors, lists)


def _unrecorded(name: str, mesh: Mesh, tensors: Sequence[Any], lists: Sequence[Tensors]) -> Tensors:
    """Launch an op, past the dispatcher where that would do nothing."""
    if direct(*tensors) and not tensors[0].is_meta:
        return _run(name, mesh, *lists)
    return _OPS[name](*lists, mesh.name)  # type: ignore[no-any-return]


def _run(name: str, mesh: Mesh, *lists: Tensors, **out: Tensors) -> Tensors:
    """Launch an op."""
    if mesh.rank is None:
        return getattr(ops, name)(*lists, mesh=mesh, **out)  # type: ignore[no-any-return]
    return [
        getattr(ops, name)(
            *[each[0] for each in lists], mesh=mesh, **{key: each[0] for key, each in out.items()}
        )
    ]


class _Recorded(torch.autograd.Function):  # type: ignore[misc]
    """An op of several GPUs, and its gradients."""

    @staticmethod
    def forward(ctx: Any, name: str, mesh: Mesh, *tensors: Any) -> tuple[Any, ...]:
        ctx.of, ctx.mesh = _KNOWN[name], mesh
        if len(ctx.of.arrays) > 1:  # gradients of collectives need none of their tensors
            ctx.save_for_backward(*tensors)
        return tuple(_unrecorded(name, mesh, tensors, _lists(tensors, len(ctx.of.arrays))))

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        gpus = len(grads)
        wanted = [any(each) for each in _lists(ctx.needs_input_grad[2:], len(ctx.of.arrays))]
        found = ctx.of.gradients(
            ctx.mesh, wanted, [*grads], *_lists(ctx.saved_tensors, len(ctx.of.arrays))
        )
        return (None, None, *[tensor for each in found for tensor in each or [None] * gpus])


def _lists(tensors: Sequence[Any], count: int) -> list[Any]:
    """Return tensors in a row as the lists that they were."""
    gpus = len(tensors) // count
    return [[*tensors[i * gpus : (i + 1) * gpus]] for i in range(count)]


# ---- gradients: a list of tensors for each array, or None where none of its tensors wants one
def _of_all_gather_matmul(
    mesh: Mesh, wanted: list[bool], grads: Tensors, a: Tensors, b: Tensors
) -> list[Tensors | None]:
    return [
        _made("matmul_reduce_scatter", mesh, grads, _turned(b)) if wanted[0] else None,
        [*map(matmul, _turned(_gathered(mesh, a)), grads)] if wanted[1] else None,
    ]


def _of_matmul_reduce_scatter(
    mesh: Mesh, wanted: list[bool], grads: Tensors, a: Tensors, b: Tensors
) -> list[Tensors | None]:
    return [
        _made("all_gather_matmul", mesh, grads, _turned(b)) if wanted[0] else None,
        [*map(matmul, _turned(a), _gathered(mesh, grads))] if wanted[1] else None,
    ]


def _of_all_gather(
    mesh: Mesh, wanted: list[bool], grads: Tensors, x: Tensors
) -> list[Tensors | None]:
    return [_made("reduce_scatter", mesh, _dense(grads))]


def _of_reduce_scatter(
    mesh: Mesh, wanted: list[bool], grads: Tensors, x: Tensors
) -> list[Tensors | None]:
    return [_made("all_gather", mesh, _dense(grads))]


def _turned(tensors: Tensors) -> Tensors:
    return [tensor.mT for tensor in tensors]


def _dense(tensors: Tensors) -> Tensors:
    """Return tensors as `all_gather` and `reduce_scatter` take them: contiguous, from a multiple of
    16 bytes."""
    found = [tensor.contiguous() for tensor in tensors]
    return [
        tensor.clone() if tensor.storage_offset() * tensor.element_size() % 16 else tensor
        for tensor in found
    ]


def _gathered(mesh: Mesh, tensors: Tensors) -> Tensors:
    """Return the rows of all GPUs, whatever bytes they have and however they lie."""
    rows, columns = tensors[0].shape
    size = rows * columns
    added = -size % (16 // tensors[0].element_size())
    if not added:
        return _made("all_gather", mesh, _dense(tensors))
    found = _made(
        "all_gather", mesh, [functional.pad(tensor.reshape(-1), (0, added)) for tensor in tensors]
    )
    return [each.view(-1, size + added)[:, :size].reshape(-1, columns) for each in found]


# ---- what PyTorch's dispatcher knows of them
def _gathered_product(a: Any, b: Any, gpus: int) -> tuple[Any, ...]:
    (rows, _), columns = check_matrices("all_gather_matmul", a.shape, b.shape)
    return gpus * rows, columns


def _scattered_product(a: Any, b: Any, gpus: int) -> tuple[Any, ...]:
    (rows, _), columns = check_matrices("matmul_reduce_scatter", a.shape, b.shape)
    return rows // gpus, columns


class Known(NamedTuple):
    """What the dispatcher has to know of an op."""

    arrays: tuple[str, ...]
    shape: Callable[..., tuple[Any, ...]]
    """the result's, on a GPU, of the tensors there and the number of GPUs"""
    gradients: Callable[..., list[Tensors | None]]


_KNOWN = {
    "all_gather_matmul": Known(("a", "b"), _gathered_product, _of_all_gather_matmul),
    "matmul_reduce_scatter": Known(("a", "b"), _scattered_product, _of_matmul_reduce_scatter),
    "all_gather": Known(("x",), lambda x, gpus: (gpus * x.shape[0], *x.shape[1:]), _of_all_gather),
    "reduce_scatter": Known(
        ("x",), lambda x, gpus: (x.shape[0] // gpus, *x.shape[1:]), _of_reduce_scatter
    ),
}
_OPS: dict[str, Any] = {}
_OUTS: dict[str, Any] = {}
"""the ops that write out="""


def _define(name: str, known: Known) -> None:
    """Define an op, and the one that writes out=."""
    arguments = ", ".join(f"Tensor[] {array}" for array in known.arrays) + ", str mesh"

    def run(*args: Any) -> Tensors:
        *lists, mesh = args
        return _run(name, mesh_of(mesh, name), *lists)

    def fake(*args: Any) -> Tensors:
        *lists, mesh = args
        gpus = mesh_of(mesh, name).size
        return [each[0].new_empty(known.shape(*each, gpus)) for each in zip(*lists, strict=True)]

    def record(*args: Any) -> Tensors:
        *lists, mesh = args
        return list(
            _Recorded.apply(
                name, mesh_of(mesh, name), *[tensor for each in lists for tensor in each]
            )
        )

    def write(*args: Any) -> None:
        *lists, mesh, out = args
        _run(name, mesh_of(mesh, name), *lists, out=out)
        for tensor in out:
            torch.autograd.graph.increment_version(tensor)

    def refuse(*args: Any) -> None:
        raise SpecError(
            f"{name}: out= is given and an argument requires a gradient, which a result written "
            "in place has not: leave out= out, call it under torch.no_grad(), or pass "
            "tensors.detach()"
        )

    op = _OPS[name] = define(_LIBRARY, f"{name}({arguments}) -> Tensor[]", run, fake)
    out = _OUTS[name] = define(
        _LIBRARY, f"{name}_out({arguments}, Tensor(a!)[] out) -> ()", write, lambda *args: None
    )
    under_autograd(_LIBRARY, op, record)
    under_autograd(_LIBRARY, out, refuse)
    if len(known.arrays) > 1:
        under_autocast(_LIBRARY, op)
    for each in (op, out):
        without_vmap(
            _LIBRARY, each, "reshape the dimension into the rows, or call it for each of them"
        )


for _name, _known in _KNOWN.items():
    _define(_name, _known)
