"""Functions of float32 tiles and numbers on the GPU: libdevice's, or the approximate instruction where a kernel asks for it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from ...core import numba as nb
from ...core.approximate_cuda import approximate
from ...core.arith_cuda import libdevice
from ...core.op import cuda_meaning
from . import mathematics as source
from .elementwise_cuda import evaluated

LOG2_E, LN_2 = float(np.float32(np.log2(np.e))), float(np.float32(np.log(2)))


def _constant(value: float) -> Any:
    return nb.ir.Constant(nb.f32, value)


def _instruction(text: str) -> Callable[..., Any]:
    """A PTX instruction of one float32."""
    return lambda builder, x: builder.call(nb.pure_asm(nb.f32, [nb.f32], f"{text} $0, $1;", "=f,f"), [x])


def _library(name: str) -> Callable[..., Any]:
    return lambda builder, x: libdevice(builder, name, x)


_EX2, _LG2, _TANH = (_instruction(text) for text in ("ex2.approx.ftz.f32", "lg2.approx.ftz.f32", "tanh.approx.f32"))


def _sigmoid(builder: Any, x: Any) -> Any:
    """Of an exponential that is 1 at most, as `mathematics._sigmoid`."""
    size = libdevice(builder, "fabs", x)
    power = libdevice(builder, "exp", builder.fsub(_constant(-0.0), size))
    above = builder.select(builder.fcmp_ordered("<", x, _constant(0.0)), power, _constant(1.0))
    return builder.fdiv(above, builder.fadd(_constant(1.0), power))


def _fast_sigmoid(builder: Any, x: Any) -> Any:
    half = builder.fmul(_TANH(builder, builder.fmul(x, _constant(0.5))), _constant(0.5))
    return builder.fadd(half, _constant(0.5))


_MEANINGS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {  # exact, approximate
    "exp": (_library("exp"), lambda builder, x: _EX2(builder, builder.fmul(x, _constant(LOG2_E)))),
    "exp2": (_library("exp2"), _EX2),
    "log": (_library("log"), lambda builder, x: builder.fmul(_LG2(builder, x), _constant(LN_2))),
    "log2": (_library("log2"), _LG2),
    "sqrt": (_instruction("sqrt.rn.f32"), _instruction("sqrt.approx.ftz.f32")),
    "tanh": (_library("tanh"), _TANH),
    "rsqrt": (_instruction("rsqrt.approx.f32"), _instruction("rsqrt.approx.ftz.f32")),
    "sigmoid": (_sigmoid, _fast_sigmoid),
}


def _function(name: str, exact: Callable[..., Any], approximation: Callable[..., Any]) -> None:
    operation = source.FUNCTIONS[name]
    label = name if name in ("rsqrt", "sigmoid") else f"np.{name}"

    def emit(builder: Any, _dtype: np.dtype, x: Any) -> Any:
        return approximate(builder, name, [x], exact, approximation)

    @cuda_meaning(operation)
    def typer(_context: Any, x: Any, *literals: Any) -> Any:
        return evaluated(label, (x,), emit, literals, takes="fh", check=functools.partial(source.check_number, label))


for _name, _meaning in _MEANINGS.items():
    _function(_name, *_meaning)


def _fma(builder: Any, _dtype: np.dtype, x: Any, y: Any, z: Any) -> Any:
    return nb.external(builder, "llvm.fma.f32", nb.f32, (x, y, z))


@cuda_meaning(source.fma)
def _fused(_context: Any, x: Any, y: Any, z: Any, *literals: Any) -> Any:
    return evaluated("fma", (x, y, z), _fma, literals, takes="f", check=functools.partial(source.check_number, "fma"))
