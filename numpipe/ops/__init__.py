"""Ready-made kernels, written in numpipe as functions of arrays, one per file.

================  ==================================================================================
`matmul`          ``a @ b`` of matrices, vectors and batches, with a fused epilogue
`attention`       softmax(scale * Q K^T) V, with functions of scores and masks, whose blocks
                  `attention_blocks` computes once
`softmax`         exp(x) / sum(exp(x)) along the last dimension
`log_softmax`     its logarithm
`cross_entropy`   of logits and labels; `fused_linear_cross_entropy` takes the last layer's input
                  and weight
`layer_norm`      rows with mean 0 and variance 1, with weight, bias and residual
`rms_norm`        rows whose squares have the mean 1, with weight and residual
`matvec`          ``a @ x`` of matrices and vectors, in batches; reads each matrix once
`cumsum`          running sums along the last dimension
`topk`            the k largest elements along the last dimension, and their indices
`transpose`       the last two dimensions exchanged
`copy`            a contiguous copy of an array with any strides
`swiglu`          silu(gate) * up
`geglu`           gelu(gate) * up
`rotary`          rotary position embeddings
`sum`             sums, means, maxima and their indices along an axis: also `mean`, `max`, `argmax`
`quantize`        float8 or int8 numbers with a scale for each block
================  ==================================================================================

On the GPUs of a `numpipe.Mesh`, overlapping transfers with computation:

=========================  =========================================================================
`all_gather_matmul`        all GPUs' rows times each GPU's own matrix; the rows travel during the
                           product
`matmul_reduce_scatter`    each GPU's rows of the sum of all GPUs' products; partial sums travel
                           during the products
`matmul_all_reduce`        the sum of all GPUs' products on each GPU
`all_gather`               the shards of all GPUs on each
`reduce_scatter`           each GPU's share of the sum of all GPUs' arrays
`all_reduce`               the sum of all GPUs' arrays on each GPU
`all_to_all`               rows sent to other GPUs, as many as counts in GPU memory say
=========================  =========================================================================

All take arrays of NumPy, PyTorch, CuPy and JAX, or any object with ``__cuda_array_interface__`` or
``__dlpack__``, with any strides. The result is an array of the first operand's library, allocated
by that library. Kernels run on the current stream or on ``stream=``; ``target="sim"`` runs them on
the simulated SM, which is also the default for host arrays without a GPU. An array that TMA cannot
address is copied once, to memory with aligned rows; NUMPIPE_LOG=launch and `numpipe.explain` report
the copy.

Each file has the same structure: a frozen Config describes how the work is tiled, a kernel does it,
a function chooses a Config from the sizes, and a declaration (`declaration`) states the op's
operands, results, gradients and batching. The PyTorch and JAX ops are generated from the
declaration.
"""

from .all_gather import all_gather
from .all_gather_matmul import all_gather_matmul
from .all_reduce import all_reduce
from .all_to_all import all_to_all
from .attention import attention, attention_blocks
from .attention_varlen import attention_varlen
from .copy import copy
from .cross_entropy import cross_entropy
from .cumsum import cumsum
from .fused_linear_cross_entropy import fused_linear_cross_entropy
from .gated import geglu, swiglu
from .matmul import matmul
from .matmul_all_reduce import matmul_all_reduce
from .matmul_reduce_scatter import matmul_reduce_scatter
from .matvec import matvec
from .norms import layer_norm, rms_norm
from .quantize import quantize
from .reduce_ops import argmax, max, mean, sum
from .reduce_scatter import reduce_scatter
from .rotary import rotary
from .softmax import log_softmax, softmax
from .topk import topk
from .transpose import transpose

__all__ = [
    "all_gather",
    "all_gather_matmul",
    "all_reduce",
    "all_to_all",
    "argmax",
    "attention",
    "attention_blocks",
    "attention_varlen",
    "copy",
    "cross_entropy",
    "cumsum",
    "fused_linear_cross_entropy",
    "geglu",
    "layer_norm",
    "log_softmax",
    "matmul",
    "matmul_all_reduce",
    "matmul_reduce_scatter",
    "matvec",
    "max",
    "mean",
    "quantize",
    "reduce_scatter",
    "rms_norm",
    "rotary",
    "softmax",
    "sum",
    "swiglu",
    "topk",
    "transpose",
]
