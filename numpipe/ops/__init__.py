"""Kernels to import: functions of arrays, written in numpipe, each on a page of its own.

==============  ==========================================================================================
`matmul`        ``a @ b`` of matrices, vectors and batches, with what follows it fused
`attention`     softmax(scale * Q K^T) V
`copy`          a contiguous copy, of any strides
==============  ==========================================================================================

All take arrays of NumPy, PyTorch, CuPy and JAX, and whatever has ``__cuda_array_interface__`` or ``__dlpack__``, of any strides,
and return an array of the first one's library, from that library's own allocator. They run on the current stream, or on
``stream=``; ``target="sim"`` runs them on the simulated SM, as arrays on the host are where there is no GPU. An array that TMA
cannot address is copied once, to memory whose rows are aligned; NUMPIPE_LOG=launch and `numpipe.explain` say so.

Each page is meant to be read: a frozen Config says how the work is cut, a kernel does it, a function chooses a Config by the sizes.
"""

from .attention import attention
from .copy import copy
from .matmul import matmul

__all__ = ["attention", "copy", "matmul"]
