"""numpipe in JAX programs: ops and kernels inside jax.jit, jax.grad and jax.vmap, through XLA's
foreign function interface.

=========  =========================================================================================
`call`     makes a function for JAX programs from a kernel or from your own declared op
`jax_ops`  each op of `numpipe.ops` for one GPU, with derivatives and ``jax.vmap``
=========  =========================================================================================

On a GPU, a call is a launch on XLA's own stream, also inside a command buffer (a CUDA graph that
XLA records); XLA allocates outputs and workspaces. On a CPU, a call runs like one on NumPy arrays:
on the simulated SM if there is no GPU. JAX 0.5 or newer is required.
"""

from ...diagnostics.errors import TargetError

try:
    import jax as _jax  # noqa: F401
except ImportError as error:
    raise TargetError(
        f"numpipe.jax needs JAX, which cannot be imported ({error}): pip install jax, or "
        "jax[cuda13] for GPUs"
    ) from error

from ... import ops as _ops
from .jax_ops import front as _front
from .kernel_call import call

__all__ = ["call"]

for _name in _ops.__all__:
    _op = getattr(_ops, _name)
    if not _op.sharded:
        globals()[_name] = _front(_op)
        __all__ += [_name]
