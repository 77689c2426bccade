"""Functions that a kernel may ask to be approximate (`CompilerParams.approx_math`), where helpers
are compiled for many kernels.

Code that calls such a function defines it in its own module, once, as a choice by a symbol that
each kernel's entry module defines: when the modules are linked the choice is a constant, and one of
its arms is left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from . import numba as nb

SYMBOL = "np_approximate"
Body = Callable[..., Any]
"""(builder, *values) -> value"""


def approximate(
    builder: Any, name: str, values: Sequence[Any], exact: Body, approximation: Body
) -> Any:
    """Compute ``exact(values)``, or ``approximation(values)`` in kernels that ask for it; all
    values are float32."""
    kind = nb.ir.FunctionType(nb.f32, [nb.f32] * len(values))
    function = nb.cgutils.get_or_insert_function(builder.module, kind, f"np_math_{name}")
    if not function.blocks:
        function.linkage = "linkonce_odr"
        function.attributes.add("alwaysinline")
        inner = nb.ir.IRBuilder(function.append_basic_block("entry"))
        with inner.if_else(nb.external(inner, SYMBOL, nb.i1)) as (fast, slow):
            with fast:
                inner.ret(approximation(inner, *function.args))
            with slow:
                inner.ret(exact(inner, *function.args))
        inner.unreachable()
    return builder.call(function, list(values))


def divide(builder: Any, a: Any, b: Any) -> Any:
    """Divide float32 values: rounded correctly, or approximately.

    ``div.approx.f32`` is a reciprocal and a product (PTX ISA, "div": at most 2 ulp for divisors of
    2^-126 to 2^126).
    """
    return approximate(
        builder,
        "divide",
        (a, b),
        lambda inner, x, y: inner.fdiv(x, y),
        lambda inner, x, y: nb.external(inner, "llvm.nvvm.div.approx.f", nb.f32, (x, y)),
    )


def define_approximation(module: Any, chosen: bool) -> None:
    """Define the symbol in a kernel's entry module: whether the kernel asks for approximations."""
    with nb.define(module, SYMBOL, nb.i1) as (builder, _):
        builder.ret(nb.const(int(chosen), nb.i1))
