"""numpipe in PyTorch: ops for `torch.compile`, `torch.export` and autograd, and kernels of your own
as such ops.

    import numpipe.torch

    y = numpipe.torch.matmul(x, weight.T, bias=bias, activation="gelu")
    o = numpipe.torch.scaled_dot_product_attention(q, k, v, is_causal=True)
    y = numpipe.torch.all_gather_matmul(x, weight.T, mesh=numpipe.Mesh.torch())
    norm = numpipe.torch.register(rms_norm, backward=rms_norm_backward)

===========  =======================================================================================
`matmul`     ``numpipe::matmul``: `numpipe.ops.matmul` with gradients, autocast and vmap
`attention`  ``numpipe::attention``: `numpipe.ops.attention` with the signature of PyTorch's
`many_gpus`  ``numpipe::all_gather_matmul`` and others on the GPUs of a `numpipe.Mesh`, with
             gradients
`register`   a ``@numpipe.kernel`` as an op
`dispatch`   what these share: how an op is defined, and when a call may go past the dispatcher
===========  =======================================================================================

A tensor of a GPU is computed there on the current stream, a CPU tensor on a GPU where there is one,
else on the simulated SM.
"""

from ...diagnostics.errors import TargetError

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise TargetError(
        f"numpipe.torch needs PyTorch, which cannot be imported ({error}): pip install torch"
    ) from error

from .attention import scaled_dot_product_attention
from .many_gpus import all_gather, all_gather_matmul, matmul_reduce_scatter, reduce_scatter
from .matmul import matmul
from .register import register

__all__ = [
    "all_gather",
    "all_gather_matmul",
    "matmul",
    "matmul_reduce_scatter",
    "reduce_scatter",
    "register",
    "scaled_dot_product_attention",
]
