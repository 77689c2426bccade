"""All that imports Numba and llvmlite, and all that changes what they do inside. Read `operations`
first, then `kernels`.

No other module imports them. But this folder hides no backend: the CUDA meanings of operations, in
the ``_cuda`` modules, are written in Numba's terms (types, typing contexts, signatures) and in
llvmlite's builders, which they import from here. Another version of Numba changes this folder,
unless that interface changes; another backend would change those modules too, most of what numpipe
knows of the GPU. What a kernel means does not belong here. The first compile imports the folder,
``import numpipe`` never.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..process_guards import uninterrupted


def _row_stack(arrays: Any) -> Any:
    """Stand in for NumPy's `row_stack` while numba-cuda 0.30, which looks it up, is imported: NumPy
    2.5 does not have it.

    It is a new function, so that what Numba registers for it is no second meaning of `vstack`.
    """
    return np.vstack(arrays)


with uninterrupted():
    # an older NumPy that gives it with a DeprecationWarning is not asked
    _missing = "row_stack" not in vars(np)
    if _missing:
        np.row_stack = _row_stack  # type: ignore[assignment, unused-ignore]
    try:
        from llvmlite import ir as ir
        from numba import cuda as cuda
        from numba.core.errors import NumbaError as NumbaError
        from numba.cuda import cgutils as cgutils
        from numba.cuda.core import ir as _numba_ir
        from numba.cuda.core.imputils import RefType as RefType
        from numba.cuda.core.imputils import iternext_impl as iternext_impl
        from numba.cuda.extending import lower_builtin as lower_builtin
        from numba.cuda.extending import lower_cast as lower_cast

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
