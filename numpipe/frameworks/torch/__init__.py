"""numpipe in PyTorch: ops for `torch.compile`, `torch.export` and autograd, including ops made from
your own kernels.

    import numpipe.torch

    y = numpipe.torch.matmul(x, weight.T, bias=bias, activation="gelu")
    o = numpipe.torch.scaled_dot_product_attention(q, k, v, is_causal=True)
    y = numpipe.torch.all_gather_matmul(x, weight.T, mesh=numpipe.Mesh.torch())
    norm = numpipe.torch.register(rms_norm, backward=rms_norm_backward)

===========  =======================================================================================
`torch_ops`  each op of `numpipe.ops` as ``numpipe::NAME``, with gradients, autocast and vmap
`register`   makes a PyTorch op from a ``@numpipe.kernel`` or from your own declared op
`dispatch`   common code: defines ops, and decides when a call may bypass the dispatcher
===========  =======================================================================================

Tensors on a GPU are computed there, on the current stream. CPU tensors are computed on a GPU if
there is one, else on the simulated SM.
"""

from ...diagnostics.errors import TargetError

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise TargetError(
        f"numpipe.torch needs PyTorch, which cannot be imported ({error}): pip install torch"
    ) from error

from ... import ops as _ops
from ...kernels.noted_calls import OPS as _OPS
from .register import register
from .torch_ops import own_front as _own_front
from .torch_ops import torch_op as _torch_op

__all__ = ["register"]

for _op in _OPS:
    # skip ops that write an operand, which autograd does not see; users' ops are defined on first
    # use
    if "out" in _op.operands or not _op.__module__.startswith("numpipe."):
        continue
    _own = [_own_front(_op, each) for each in _op.torch_fronts]
    _functions = [_torch_op(_op).front, *_own]
    if _op is getattr(_ops, _op.name, None):
        globals().update({each.__name__: each for each in _functions})
        __all__ += [each.__name__ for each in _functions]
