"""All that touches the internals of Numba and llvmlite.

Everything else reaches the compiler through the names below, so that a change of backend changes one folder. It is imported by the
first compile, never by ``import numpipe``.

===============  ====================================================================
``emit``         LLVM IR: constants, inline assembly, symbols, kernels' parameters
``operations``   meanings of functions, operators, attributes, methods
``hopper``       Numba's compiler down to LLVM IR for sm_90a, without a GPU
``quicker``      what it does for Python that kernels do not have, done in less time
``code``         LTO-IR, PTX, cubin, SASS
``reasons``      why Numba refused a kernel
``values``       structures and machine values
===============  ====================================================================
"""

from __future__ import annotations

from llvmlite import ir
from numba import cuda
from numba.core.errors import NumbaError
from numba.cuda import cgutils, types
from numba.cuda.core import ir as numba_ir
from numba.cuda.core.errors import TypingError
from numba.cuda.core.imputils import RefType, iternext_impl
from numba.cuda.cudaimpl import registry as lowering_registry
from numba.cuda.datamodel import models
from numba.cuda.extending import lower_builtin, lower_cast, register_model
from numba.cuda.typing import signature

from .code import calls, disassemble, link, rewrite_ir, to_ltoir, to_ptx, undefined_symbols
from .emit import (
    assert_fail,
    block_index,
    block_number,
    c_string,
    cluster_dims,
    const,
    define,
    emit_asm,
    external,
    f32,
    global_pointer,
    grid_constant,
    grid_size,
    i1,
    i8,
    i16,
    i32,
    i64,
    join,
    nothing,
    pure_asm,
    shared_base,
    special,
    thread_index,
    void,
    vprintf,
)
from .hopper import SM_90A, Typed, compile_kernel, compiling_for_hopper, front_end
from .operations import (
    Typer,
    attribute,
    binary,
    call,
    call_value,
    constant_attribute,
    constant_attributes,
    entry_operation,
    field_attributes,
    helper_type,
    immediate,
    literal,
    method,
    no_code,
    operation_type,
    overload,
    returns,
    tuple_of,
    unliteral,
)
from .reasons import explain
from .values import fields, machine_model, struct, struct_model

__all__ = [
    "SM_90A", "NumbaError", "RefType", "Typed", "Typer", "TypingError", "assert_fail", "attribute", "binary", "block_index",
    "block_number", "c_string", "call", "call_value", "calls", "cgutils", "cluster_dims", "compile_kernel", "compiling_for_hopper",
    "const", "constant_attribute", "constant_attributes", "cuda", "define", "disassemble", "emit_asm", "entry_operation",
    "explain", "external", "f32", "field_attributes", "fields", "front_end", "global_pointer", "grid_constant", "grid_size",
    "helper_type", "i1", "i8", "i16", "i32", "i64", "immediate", "ir", "iternext_impl", "join", "link", "literal", "lower_builtin",
    "lower_cast", "lowering_registry", "machine_model", "method", "models", "no_code", "nothing", "numba_ir", "operation_type",
    "overload", "pure_asm", "register_model", "returns", "rewrite_ir", "shared_base", "signature", "special", "struct",
    "struct_model", "thread_index", "to_ltoir", "to_ptx", "tuple_of", "types", "undefined_symbols", "unliteral", "void", "vprintf",
]
