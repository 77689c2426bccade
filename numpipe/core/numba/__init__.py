"""All that imports Numba and llvmlite, and all that changes what they do inside. Read `operations` first, then `kernels`.

No other module imports them. But this folder hides no backend: the CUDA meanings of operations, in the ``_cuda`` modules, are
written in Numba's terms (types, typing contexts, signatures) and in llvmlite's builders, which they import from here. Another
version of Numba changes this folder, unless that interface changes; another backend would change those modules too, most of what
numpipe knows of the GPU. What a kernel means does not belong here. The first compile imports the folder, ``import numpipe`` never.

===============  ======================================================================================
``operations``   meanings of functions, operators, attributes, methods; how values lie in LLVM
``emit``         LLVM IR: constants, inline assembly, symbols, kernels' parameters
``kernels``      Numba's compiler down to LLVM IR without a GPU
``quicker``      replacements of Numba's code for Python that kernels do not have, which take less time
``code``         LTO-IR, PTX, cubin, SASS
``reasons``      why Numba refused a kernel
===============  ======================================================================================
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..undisturbed import uninterrupted


@contextlib.contextmanager
def _row_stack() -> Iterator[None]:
    """Give NumPy the name `row_stack`, which numba-cuda 0.30 looks up while it is imported, and NumPy 2.5 does not have.

    An older NumPy that would give it with a DeprecationWarning is not asked. The function is a new one, so that what Numba
    registers for it is no second meaning of `vstack`.
    """
    if "row_stack" in vars(np):
        yield
        return

    def row_stack(arrays: Any) -> Any:
        return np.vstack(arrays)

    np.row_stack = row_stack  # type: ignore[assignment, unused-ignore]
    try:
        yield
    finally:
        del np.row_stack


with uninterrupted(), _row_stack():
    from llvmlite import ir as ir
    from numba import cuda as cuda
    from numba.core.errors import NumbaError as NumbaError
    from numba.cuda import cgutils as cgutils
    from numba.cuda import types as types
    from numba.cuda.core import ir as _numba_ir
    from numba.cuda.core.errors import TypingError as TypingError
    from numba.cuda.core.imputils import RefType as RefType
    from numba.cuda.core.imputils import iternext_impl as iternext_impl
    from numba.cuda.cudaimpl import registry as _registry
    from numba.cuda.datamodel import models as models
    from numba.cuda.descriptor import cuda_target
    from numba.cuda.extending import lower_builtin as lower_builtin
    from numba.cuda.extending import lower_cast as lower_cast
    from numba.cuda.extending import register_model as register_model
    from numba.cuda.typing import signature as signature

    from .code import *
    from .emit import *
    from .kernels import *
    from .operations import *
    from .reasons import *

    numba_ir, lowering_registry = _numba_ir, _registry
    cuda_target.target_context.refresh()  # imports Numba's meanings of Python, as its first compile would
