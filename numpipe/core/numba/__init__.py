"""All that imports Numba and llvmlite, and all that changes what they do inside.

No other module imports them. But this folder hides no backend: the CUDA meanings of operations, in the ``_cuda`` modules, are
written in Numba's terms, its types, typing contexts and signatures, and in llvmlite's builders, which they have from here. Another
version of Numba changes this folder, unless that interface changes; another backend would change those modules too, most of what
numpipe knows of the GPU. It is imported by the first compile, never by ``import numpipe``.

===============  ====================================================================
``emit``         LLVM IR: constants, inline assembly, symbols, kernels' parameters
``operations``   meanings of functions, operators, attributes, methods
``hopper``       Numba's compiler down to LLVM IR for sm_90a, without a GPU
``quicker``      what it does for Python that kernels do not have, done in less time
``propagation``  its type inference, which looks again at what has changed only
``exhausted``    bodies of loops that a role never runs, which are typed and left out
``code``         LTO-IR, PTX, cubin, SASS
``reasons``      why Numba refused a kernel
===============  ====================================================================
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..undisturbed import uninterrupted


@contextlib.contextmanager
def _row_stack() -> Iterator[None]:
    """Inside, NumPy has the name `row_stack`, which numba-cuda 0.30 looks up while it is imported.

    NumPy 2.5 has no such name; where an older one gives it with a DeprecationWarning, it is not asked. The function that stands
    in is one of its own: what Numba registers for it is no second meaning of `vstack`.
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
    from llvmlite import ir
    from numba import cuda
    from numba.core.errors import NumbaError
    from numba.cuda import cgutils, types
    from numba.cuda.core import ir as numba_ir
    from numba.cuda.core.errors import TypingError
    from numba.cuda.core.imputils import RefType, iternext_impl
    from numba.cuda.cudadecl import registry as typing_registry
    from numba.cuda.cudaimpl import registry as lowering_registry
    from numba.cuda.datamodel import models
    from numba.cuda.descriptor import cuda_target
    from numba.cuda.extending import lower_builtin, lower_cast, register_model
    from numba.cuda.typing import signature
    from numba.cuda.typing.templates import AbstractTemplate

    from .code import calls, disassemble, link, rewrite_ir, to_ltoir, to_ptx, undefined_symbols
    from .emit import (
        assert_fail,
        block_index,
        c_string,
        cluster_dims,
        const,
        define,
        emit_asm,
        external,
        f32,
        global_pointer,
        grid_constant,
        i1,
        i8,
        i16,
        i32,
        i64,
        join,
        nothing,
        pure_asm,
        shared_base,
        smem,
        thread_index,
        void,
        vprintf,
    )
    from .hopper import Typed, compile_kernel, compiling_for_hopper, front_end
    from .operations import (
        Typer,
        attribute,
        binary,
        call,
        call_value,
        constant_attribute,
        helper_type,
        immediate,
        literal,
        method,
        operation_type,
        returns,
        tuple_of,
        unliteral,
    )
    from .reasons import explain

    cuda_target.target_context.refresh()  # Numba imports the rest of itself, its meanings of Python, when it first compiles

__all__ = [
    "AbstractTemplate", "NumbaError", "RefType", "Typed", "Typer", "TypingError", "assert_fail", "attribute",
    "binary", "block_index", "c_string", "call", "call_value", "calls", "cgutils", "cluster_dims", "compile_kernel",
    "compiling_for_hopper", "const", "constant_attribute", "cuda", "define", "disassemble", "emit_asm", "explain", "external",
    "f32", "front_end", "global_pointer", "grid_constant", "helper_type", "i1", "i8", "i16", "i32", "i64", "immediate", "ir",
    "iternext_impl", "join", "link", "literal", "lower_builtin", "lower_cast", "lowering_registry", "method", "models",
    "nothing", "numba_ir", "operation_type", "pure_asm", "register_model", "returns", "rewrite_ir", "shared_base", "signature",
    "smem", "thread_index", "to_ltoir", "to_ptx", "tuple_of", "types", "typing_registry", "undefined_symbols", "unliteral", "void",
    "vprintf",
]
