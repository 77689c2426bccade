"""Functions of tiles and numbers on the GPU: PTX instructions, libdevice functions, or approximate
instructions if the kernel selects them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from ...arch.dtypes import FLOAT32, HALVES
from ...core import numba as nb
from ...core.approximate_cuda import approximate
from ...core.arith_cuda import chosen, libdevice
from ...core.inert import first_inert
from ...core.op import Op, cuda_meaning
from . import mathematics as source
from .elementwise_cuda import BY_PAIRS, Emit, Packed, emitted, signature, two_at_once, typed
from .tile import TileLike
from .trigonometry_cuda import cosine, sine, tangent

LOG2_E, LN_2 = float(np.float32(np.log2(np.e))), float(np.float32(np.log(2)))


def _meaning(operation: Op, emit: Emit, by_pairs: Packed | None = None) -> None:
    function, count = source.FUNCTIONS[operation], len(operation.__signature__.parameters) - 1

    @cuda_meaning(operation)
    def typer(*arguments: Any) -> Any:
        types, literals = arguments[:count], arguments[count:]
        return typed(
            function.plan(types, *map(nb.literal, literals)), types, emit, by_pairs, literals
        )


def _instruction(text: str) -> Callable:
    """Return a function that emits a PTX instruction on one float32."""
    return lambda builder, x: builder.pure_asm(nb.f32, [x], f"{text} $0, $1;")


def _library(name: str) -> Callable:
    return lambda builder, x: libdevice(builder, name, x)


# ---- exact
def extreme(name: str) -> Emit:
    """Return a function that emits the maximum ("max") or the minimum ("min") of two elements: NaN
    if either is, as in NumPy."""

    def emit(builder: Any, dtype: np.dtype, a: Any, b: Any) -> Any:
        if dtype == FLOAT32:
            return builder.pure_asm(nb.f32, [a, b], f"{name}.NaN.f32 $0, $1, $2;")
        return chosen(">" if name == "max" else "<")(builder, dtype, a, b)

    return emit


def _rounding(direction: str) -> Emit:
    return lambda builder, dtype, x: (
        _instruction(f"cvt.{direction}.f32.f32")(builder, x) if dtype == FLOAT32 else x
    )


def _sign(builder: Any, dtype: np.dtype, x: Any) -> Any:
    floats = dtype == FLOAT32
    zero = x.type(0)
    if dtype.kind == "u":
        return builder.zext(builder.icmp_unsigned("!=", x, zero))
    compare = builder.fcmp_ordered if floats else builder.icmp_signed
    other = builder.select(compare("==", x, zero), zero, x)  # NaN, unless it is 0
    return builder.select(
        compare(">", x, zero), x.type(1), builder.select(compare("<", x, zero), x.type(-1), other)
    )


_meaning(source.maximum, extreme("max"), two_at_once("max.NaN"))
_meaning(source.minimum, extreme("min"), two_at_once("min.NaN"))
_meaning(source.floor, _rounding("rmi"))
_meaning(source.ceil, _rounding("rpi"))
_meaning(source.trunc, _rounding("rzi"))
_meaning(source.nearest, _rounding("rni"))
_meaning(source.sign, _sign)
_meaning(
    source.square,
    lambda builder, dtype, x: builder.fmul(x, x) if dtype == FLOAT32 else builder.mul(x, x),
    lambda builder, dtype, x: BY_PAIRS["mul"](builder, dtype, x, x),
)


def _product(builder: Any, dtype: np.dtype, a: Any, b: Any) -> Any:
    """Return a product of 64 bits: one instruction for both words, if a kernel needs both."""
    text = f"mul.wide.{'u' if dtype.kind == 'u' else 's'}32 $0, $1, $2;"
    return builder.pure_asm(nb.i64, [a, b], text, ("readnone",))


_meaning(source.mulhi, lambda builder, *of: builder.high_word(_product(builder, *of)))
_meaning(source.mullo, lambda builder, *of: builder.trunc(_product(builder, *of)))
_meaning(
    source.isnan,
    lambda builder, dtype, x: (
        builder.fcmp_unordered("uno", x, x) if dtype == FLOAT32 else nb.const(0, nb.i1)
    ),
)


def _of_builtin(builtin: Any, operation: Op, emit: Emit, by_pairs: Packed | None = None) -> None:
    """Let a builtin on tiles (and numbers) mean an operation."""

    def typer(*types: Any) -> Any:
        if not any(isinstance(ty, TileLike) for ty in types):
            return None
        return typed(source.FUNCTIONS[operation].plan(types), types, emit, by_pairs)

    nb.overload(builtin, typer, literals=True)


def _in_turn(two: Packed) -> Packed:
    """Combine any number of operands, from left to right."""
    return lambda builder, dtype, *operands: functools.reduce(
        lambda a, b: two(builder, dtype, a, b), operands
    )


_of_builtin(max, source.maximum, _in_turn(extreme("max")), _in_turn(two_at_once("max.NaN")))
_of_builtin(min, source.minimum, _in_turn(extreme("min")), _in_turn(two_at_once("min.NaN")))
_of_builtin(round, source.nearest, _rounding("rni"))


def differing(builder: Any, dtype: np.dtype, one: Any, other: Any) -> list:
    """Return whether the bits of two registers differ, for each of their elements."""
    if dtype not in HALVES:
        words = [builder.bitcast(word, nb.i32) for word in (one, other)]
        return [builder.icmp_unsigned("!=", *words)]
    # ptxas keeps the predicate, without a register of 0 or 1
    text = (
        "{{ .reg .pred p; .reg .b32 bits; lop3.b32 bits, $1, $2, {}, 0x28; setp.ne.b32 p, bits, 0; "
        "selp.u32 $0, 1, 0, p; }}"
    )
    return [
        builder.icmp_unsigned("!=", builder.pure_asm(nb.i32, [one, other], text.format(half)), 0)
        for half in (0xFFFF, 0xFFFF0000)
    ]


_meaning(source.differ, lambda *of: differing(*of)[0], differing)


def _finite(other: str, integers: bool) -> Emit:
    """Return a function that emits a comparison of a float's magnitude with infinity."""

    def emit(builder: Any, dtype: np.dtype, x: Any) -> Any:
        if dtype != FLOAT32:
            return nb.const(int(integers), nb.i1)
        return builder.fcmp_ordered(other, libdevice(builder, "fabs", x), float("inf"))

    return emit


_meaning(source.isinf, _finite("==", False))
_meaning(source.isfinite, _finite("<", True))


@cuda_meaning(source.clip)
def _clip(a: Any, a_min: Any, a_max: Any, *literals: Any) -> Any:
    every = [None if isinstance(ty, nb.NoneType) else ty for ty in (a, a_min, a_max)]
    present = source.clipped_by(every)
    types, bits = [every[number] for number in present], nb.literal(literals[0]) if literals else 0
    plan = source.CLIP.plan(
        types, sum((bits >> number & 1) << place for place, number in enumerate(present))
    )
    if plan is None:
        yield first_inert(types)
        return None

    def clipped(maximum: Packed, minimum: Packed) -> Packed:
        def emit(builder: Any, dtype: np.dtype, x: Any, *limits: Any) -> Any:
            for number, limit in zip(present[1:], limits, strict=True):
                x = (maximum if number == 1 else minimum)(builder, dtype, x, limit)
            return x

        return emit

    result, parameters = signature(plan, types)
    by_number = dict(zip(present, parameters, strict=True))
    builder, args = yield result(
        *[by_number.get(number, ty) for number, ty in enumerate((a, a_min, a_max))], *literals
    )
    return emitted(
        builder,
        plan,
        parameters,
        [args[number] for number in present],
        clipped(extreme("max"), extreme("min")),
        clipped(two_at_once("max.NaN"), two_at_once("min.NaN")),
    )


# ---- rounded
_EX2, _LG2, _SIN, _COS = (
    _instruction(f"{name}.approx.ftz.f32") for name in ("ex2", "lg2", "sin", "cos")
)
_TANH = _instruction("tanh.approx.f32")


def _sigmoid(builder: Any, x: Any) -> Any:
    """Emit the computation of `mathematics._sigmoid`."""
    size = libdevice(builder, "fabs", x)
    power = libdevice(builder, "exp", builder.fsub(-0.0, size))
    above = builder.select(builder.fcmp_ordered("<", x, 0.0), power, 1.0)
    return builder.fdiv(above, builder.fadd(1.0, power))


def _fast_sigmoid(builder: Any, x: Any) -> Any:
    half = builder.fmul(_TANH(builder, builder.fmul(x, 0.5)), 0.5)
    return builder.fadd(half, 0.5)


def _rounded(operation: Op, exact: Callable, approximation: Callable) -> None:
    name = operation.__name__  # type: ignore[attr-defined]
    _meaning(
        operation, lambda builder, _dtype, x: approximate(builder, name, [x], exact, approximation)
    )


_rounded(source.exp, _library("exp"), lambda builder, x: _EX2(builder, builder.fmul(x, LOG2_E)))
_rounded(source.exp2, _library("exp2"), _EX2)
_rounded(source.log, _library("log"), lambda builder, x: builder.fmul(_LG2(builder, x), LN_2))
_rounded(source.log2, _library("log2"), _LG2)
_rounded(source.sqrt, _instruction("sqrt.rn.f32"), _instruction("sqrt.approx.ftz.f32"))
_rounded(source.tanh, _library("tanh"), _TANH)
_rounded(source.sin, sine, _SIN)
_rounded(source.cos, cosine, _COS)
_rounded(
    source.tan,
    tangent,
    lambda builder, x: builder.external(
        "llvm.nvvm.div.approx.f", nb.f32, (_SIN(builder, x), _COS(builder, x))
    ),
)
_rounded(source.rsqrt, _instruction("rsqrt.approx.f32"), _instruction("rsqrt.approx.ftz.f32"))
_rounded(source.sigmoid, _sigmoid, _fast_sigmoid)
_meaning(
    source.fma,
    lambda builder, _dtype, x, y, z: builder.external("llvm.fma.f32", nb.f32, (x, y, z)),
)
