"""Functions that a kernel may request to be approximate (`CompilerParams.approx_math`), when helper
code is shared between kernels.

Code that calls such a function defines it once in its own module, as a choice by a symbol that each
kernel's entry module defines. When the modules are linked, the choice is a constant, and only one
of its branches remains.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from . import numba as nb

SYMBOL = "np_approximate"
Body = Callable
"""(builder, *values) -> value"""


def approximate(builder: Any, name: str, values: Sequence, exact: Body, approximation: Body) -> Any:
    """Compute ``exact(values)``, or ``approximation(values)`` in kernels that request it; all
    values are float32."""
    kind = nb.ir.FunctionType(nb.f32, [nb.f32] * len(values))
    function = nb.cgutils.get_or_insert_function(builder.module, kind, f"np_math_{name}")
    if not function.blocks:
        function.linkage = "linkonce_odr"
        function.attributes.add("alwaysinline")
        inner = nb.Builder(function.append_basic_block("entry"))
        with inner.if_else(inner.external(SYMBOL, nb.i1)) as (fast, slow):
            with fast:
                inner.ret(approximation(inner, *function.args))
            with slow:
                inner.ret(exact(inner, *function.args))
        inner.unreachable()
    return builder.call(function, list(values))


def divide(builder: Any, a: Any, b: Any) -> Any:
    """Divide float32 values, correctly rounded or approximately.

    The approximation ``div.approx.f32`` is a reciprocal and a product (PTX ISA, "div": at most 2
    ulp for divisors of 2^-126 to 2^126)."""
    return approximate(
        builder,
        "divide",
        (a, b),
        nb.Builder.fdiv,
        lambda inner, x, y: inner.external("llvm.nvvm.div.approx.f", nb.f32, (x, y)),
    )


def define_approximation(outer: Any, chosen: bool) -> None:
    """Define the symbol in a kernel's entry module; `chosen` is whether the kernel requests
    approximations."""
    with outer.define(SYMBOL, nb.i1) as (builder, _):
        builder.ret(nb.const(int(chosen), nb.i1))
