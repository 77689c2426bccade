"""numpipe in JAX programs: ops and kernels inside of jax.jit, jax.grad and jax.vmap, by XLA's
foreign function interface.

=========  =========================================================================================
`call`     makes a function for JAX programs of a kernel, or of an op of your own
`jax_ops`  each op of `numpipe.ops` for one GPU, with derivatives and ``jax.vmap``
=========  =========================================================================================

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

from ... import ops as _ops
from .jax_ops import front as _front
from .kernel_call import call

__all__ = ["call"]

for _name in _ops.__all__:
    _op = getattr(_ops, _name)
    if not _op.sharded:
        globals()[_name] = _front(_op)
        __all__ += [_name]
