"""numpipe in JAX programs: ops and kernels inside of jax.jit, jax.grad and jax.vmap, by XLA's
foreign function interface.

===========  =======================================================================================
`call`       makes a function for JAX programs of a kernel
`matmul`     `numpipe.ops.matmul`, with derivatives and ``jax.vmap``
`attention`  `numpipe.ops.attention`, with ``jax.vmap``
===========  =======================================================================================

On a GPU a call is a launch on XLA's own stream, also inside of a command buffer (a CUDA graph that
XLA records); XLA allocates outputs and workspaces. On a CPU it runs as a call on NumPy arrays does:
on the simulated SM where there is no GPU. Needs JAX 0.5 or newer.
"""

from __future__ import annotations

from ...diagnostics.errors import TargetError

try:
    import jax as _jax  # noqa: F401
except ImportError as error:
    raise TargetError(
        f"numpipe.jax needs JAX, which cannot be imported ({error}): pip install jax, or "
        "jax[cuda13] for GPUs"
    ) from error

from .attention import attention
from .kernel_call import call
from .matmul import matmul

__all__ = ["attention", "call", "matmul"]
