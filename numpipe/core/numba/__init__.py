"""All imports of Numba and llvmlite, and all changes to their internals. Read `operations` first,
then `kernel_compiler`.

No other module imports them. This package does not hide the backend, however. The CUDA
implementations of operations, in the ``_cuda`` modules, use Numba's concepts (types, signatures)
and llvmlite's builder (`llvm_ir.Builder`), which they import from here. A new version of Numba
affects only this package, unless that interface changes. Another backend would also change those
modules, which are most of what numpipe knows about the GPU. The meaning of kernels does not belong
here. The package is imported by the first compile, and never by ``import numpipe``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..process_guards import uninterrupted


def _row_stack(arrays: Any) -> Any:
    """Stand in for `np.row_stack`, which NumPy 2.5 removed, while numba-cuda 0.30 is imported.

    It is a separate function, so that what Numba registers for it does not affect `vstack`.
    """
    return np.vstack(arrays)


with uninterrupted():
    # vars() avoids the DeprecationWarning of older NumPy versions, which have it
    _missing = "row_stack" not in vars(np)
    if _missing:
        np.row_stack = _row_stack  # type: ignore[assignment, unused-ignore]
    try:
        from llvmlite import ir as ir
        from numba import cuda as cuda
        from numba.core.errors import NumbaError as NumbaError
        from numba.cuda import cgutils as cgutils
        from numba.cuda.core import ir as _numba_ir

        from .kernel_compiler import *
        from .lines import *
        from .llvm_ir import *
        from .machine_code import *
        from .numba_contexts import *
        from .operations import *
        from .reasons import *
    finally:
        if _missing:
            del np.row_stack

    numba_ir = _numba_ir
