"""Kernels to import: functions of arrays, written in numpipe, each on a page of its own.

==============  ====================================================================================
`matmul`        ``a @ b`` of matrices, vectors and batches, with what follows it fused
`attention`     softmax(scale * Q K^T) V
`softmax`       exp(x) / sum(exp(x)) along the last dimension
`log_softmax`   its logarithm
`copy`          a contiguous copy, of any strides
==============  ====================================================================================

On the GPUs of a `numpipe.Mesh`, whose links they keep busy:

=========================  =========================================================================
`all_gather_matmul`        the rows of all GPUs times each one's matrix; the rows travel during the
                           product
`matmul_reduce_scatter`    each GPU's rows of the sum of all GPUs' products; parts travel during the
                           products
`all_gather`               the shards of all GPUs on each
`reduce_scatter`           each GPU's share of the sum of all GPUs' arrays
`all_to_all`               rows to other GPUs, as many as counts in GPU memory say
=========================  =========================================================================

All take arrays of NumPy, PyTorch, CuPy and JAX, and whatever has ``__cuda_array_interface__`` or
``__dlpack__``, of any strides, and return an array of the first one's library, from that library's
own allocator. They run on the current stream, or on ``stream=``; ``target="sim"`` runs them on the
simulated SM, as arrays on the host are where there is no GPU. An array that TMA cannot address is
copied once, to memory whose rows are aligned; NUMPIPE_LOG=launch and `numpipe.explain` say so.

Each file is meant to be read: a frozen Config says how the work is cut, a kernel does it, a
function chooses a Config by the sizes, and the declaration (`declaration`) says what the op takes
and returns, its gradients and its batches. PyTorch and JAX ops are made from it.
"""

from .all_gather import all_gather
from .all_gather_matmul import all_gather_matmul
from .all_to_all import all_to_all
from .attention import attention
from .copy import copy
from .log_softmax import log_softmax
from .matmul import matmul
from .matmul_reduce_scatter import matmul_reduce_scatter
from .reduce_scatter import reduce_scatter
from .softmax import softmax

__all__ = [
    "all_gather",
    "all_gather_matmul",
    "all_to_all",
    "attention",
    "copy",
    "log_softmax",
    "matmul",
    "matmul_reduce_scatter",
    "reduce_scatter",
    "softmax",
]
