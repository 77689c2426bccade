"""Ready-made kernels, written in numpipe as functions of arrays, one per file.

==============  ====================================================================================
`matmul`        ``a @ b`` of matrices, vectors and batches, with a fused epilogue
`attention`     softmax(scale * Q K^T) V
`softmax`       exp(x) / sum(exp(x)) along the last dimension
`log_softmax`   its logarithm
`matvec`        ``a @ x`` of matrices and vectors, in batches; reads each matrix once
`cumsum`        running sums along the last dimension
`transpose`     the last two dimensions exchanged
`copy`          a contiguous copy of an array with any strides
==============  ====================================================================================

On the GPUs of a `numpipe.Mesh`, overlapping transfers with computation:

=========================  =========================================================================
`all_gather_matmul`        all GPUs' rows times each GPU's own matrix; the rows travel during the
                           product
`matmul_reduce_scatter`    each GPU's rows of the sum of all GPUs' products; partial sums travel
                           during the products
`all_gather`               the shards of all GPUs on each
`reduce_scatter`           each GPU's share of the sum of all GPUs' arrays
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
from .all_to_all import all_to_all
from .attention import attention
from .copy import copy
from .cumsum import cumsum
from .log_softmax import log_softmax
from .matmul import matmul
from .matmul_reduce_scatter import matmul_reduce_scatter
from .matvec import matvec
from .reduce_scatter import reduce_scatter
from .softmax import softmax
from .transpose import transpose

__all__ = [
    "all_gather",
    "all_gather_matmul",
    "all_to_all",
    "attention",
    "copy",
    "cumsum",
    "log_softmax",
    "matmul",
    "matmul_reduce_scatter",
    "matvec",
    "reduce_scatter",
    "softmax",
    "transpose",
]
