"""Division of float32 on the GPU: rounded correctly, or approximately where the kernel asks for it (`CompilerParams.approx_math`).

Which of the two is a property of the kernel, and helpers are compiled once for many kernels: so code that divides calls a symbol
that each kernel's entry module defines.
"""

from __future__ import annotations

from typing import Any

from . import numba as nb

SYMBOL = "np_divide"


def divide(builder: Any, a: Any, b: Any) -> Any:
    """``a / b`` of float32 values."""
    return nb.external(builder, SYMBOL, nb.f32, (a, b))


def define_division(module: Any, approximate: bool) -> None:
    """The symbol's definition for this kernel, in its entry module.

    ``div.approx.f32`` is a reciprocal and a product (PTX ISA, "div": at most 2 ulp for divisors of 2^-126 to 2^126).
    """
    with nb.define(module, SYMBOL, nb.f32, (nb.f32, nb.f32)) as (builder, (a, b)):
        builder.ret(nb.external(builder, "llvm.nvvm.div.approx.f", nb.f32, (a, b)) if approximate else builder.fdiv(a, b))
