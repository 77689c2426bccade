"""The arithmetic of kernels on the GPU. Types follow `arith.common`, as in the simulator."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..arch.dtypes import FLOAT16, FLOAT32
from . import arith
from . import numba as nb
from .approximate_cuda import divide
from .inert import first_inert
from .inert_cuda import InertType
from .numba import BOOLEAN, F16, F32, F64, I32
from .op import Op, called, cuda_meaning, immediate, known


# ---- types and values ----------------------------------------------------------------------------
@arith.kind_of_type.register(nb.Type)
def kind_of(ty: Any) -> arith.Kind | None:
    """Return the `arith.kind` of values of a Numba type. Values with a literal type are literals in
    the source."""
    if isinstance(ty, nb.Boolean):
        return bool
    if isinstance(ty, nb.IntegerLiteral):
        return int
    return np.dtype(str(ty)) if isinstance(ty, (nb.Integer, nb.Float)) else None


def kinds_of(operands: Sequence, literals: Any = 0) -> list[arith.Kind | None]:
    """Return the kinds of operands; bit i of `literals` means that operand i is a float literal."""
    mask = literals if isinstance(literals, int) else nb.literal(literals)
    return [float if mask >> i & 1 else kind_of(ty) for i, ty in enumerate(operands)]


called.register(nb.Type)(lambda ty: str(nb.unliteral(ty)))
known.register(nb.Type)(lambda ty, operation, parameter: immediate(operation, parameter, ty))


def type_of(dtype: np.dtype) -> Any:
    return BOOLEAN if dtype.kind == "b" else getattr(nb.types, dtype.name)


def parameter_types(operands: Sequence, dtype: np.dtype) -> list:
    """Return the types of an operation's parameters. Numba converts arguments to them, except that
    float16 is converted by `convert`.

    They must distinguish everything that `dtype` depends on, because code is cached by them. Raises
    SpecError for an int literal that does not fit.
    """
    for ty in operands:
        if (
            dtype.kind != "f"
            and isinstance(ty, nb.IntegerLiteral)
            and not arith.holds(dtype, ty.literal_value)
        ):
            raise arith.misfit(ty.literal_value, dtype)
    return (
        list(operands)
        if FLOAT16 in (dtype, *kinds_of(operands))
        else [type_of(dtype)] * len(operands)
    )


def convert(builder: Any, value: Any, of: Any, to: Any) -> Any:
    """Convert a number to another type. A float16 is held in a 16-bit integer register and
    converted by one instruction."""
    if of == to:
        return value
    if of == F16:
        wide = builder.pure_asm(nb.f32, [value], "cvt.f32.f16 $0, $1;")
        return convert(builder, wide, F32, to)
    if to == F16:
        if isinstance(value, nb.ir.Constant) and isinstance(value.constant, (int, float)):
            return nb.const(int(np.float16(value.constant).view(np.uint16)), nb.i16)
        if of not in (F32, F64):
            # exact, except for overflows
            value, of = builder.cast(value, of, F64), F64
        single = of == F32
        statement = f"cvt.rn.f16.{'f32' if single else 'f64'} $0, $1;"
        return builder.pure_asm(nb.i16, [value], statement)
    return builder.cast(value, of, to)


def not_defined(symbol: str, operands: Sequence) -> Any:
    return nb.TypingError(
        f"'{symbol}' is not defined for {' and '.join(str(ty) for ty in operands)}"
    )


def otherwise(symbol: str, python: Any, operands: tuple) -> Any:
    """Return (signature, codegen) of Numba's own operator, with bools as ints. The result for inert
    values and numbers is inert."""
    inert = first_inert(operands)
    if inert is not None and all(
        isinstance(ty, InertType) or kind_of(ty) is not None for ty in operands
    ):
        return inert(*operands), lambda builder, args: nb.nothing
    function = nb.python_function(python)
    try:
        chosen = nb.signature_of(function, [I32 if kind_of(ty) is bool else ty for ty in operands])
    except nb.TypingError:
        chosen = None
    if chosen is None:
        raise not_defined(symbol, operands)
    return chosen.return_type(*chosen.args), lambda builder, args: builder.apply_signature(
        function, chosen, args[: len(operands)]
    )


def operand(builder: Any, value: Any, of: Any, dtype: np.dtype) -> Any:
    """Convert a number to the type it is computed in. float16 is computed in float32, and the
    result is rounded."""
    if isinstance(of, nb.IntegerLiteral):
        return builder.context.get_constant(math_type(dtype), dtype.type(of.literal_value).item())
    return convert(
        builder,
        convert(builder, value, of, type_of(dtype)),
        type_of(dtype),
        math_type(dtype),
    )


def math_type(dtype: np.dtype) -> Any:
    """Return the Numba type in which numbers of a type are computed."""
    return F32 if dtype == FLOAT16 else type_of(dtype)


# ---- operators -----------------------------------------------------------------------------------
Emit = Callable
"""(builder, dtype, *operands) -> value; the operands have type `dtype`, or float32 for float16"""


def _meaning(operation: Op, emit: Emit, *, literal: bool = False) -> None:
    """Implement an operator; `literal` means that the code can use the value of an int literal on
    the right."""
    info = arith.OPERATORS[operation]

    @cuda_meaning(operation)
    def typer(*arguments: Any) -> Any:
        operands, literals = arguments[:2], arguments[2:]
        kinds = kinds_of(operands, *literals)
        if any(k is None for k in kinds):
            sig, elsewhere = otherwise(info.symbol, info.python, operands)
            return sig.return_type(*sig.args, *literals), elsewhere
        dtype = info.rule(*kinds)
        parameters = parameter_types(operands, dtype)
        if literal and dtype.kind != "f" and isinstance(operands[1], nb.IntegerLiteral):
            parameters[1] = operands[1]

        def codegen(builder: Any, args: Any) -> Any:
            numbers = [
                operand(builder, v, t, dtype) for v, t in zip(args, parameters, strict=False)
            ]
            value = emit(builder, dtype, *numbers)
            return (
                value
                if info.compares
                else convert(builder, value, math_type(dtype), type_of(dtype))
            )

        return (BOOLEAN if info.compares else type_of(dtype))(*parameters, *literals), codegen


def _instruction(signed: str, unsigned: str, floats: str) -> Emit:
    return lambda builder, dtype, a, b: getattr(
        builder, {"f": floats, "u": unsigned}.get(dtype.kind, signed)
    )(a, b)


def _power_of_2(value: Any) -> int | None:
    """Return log2 of a constant that is a positive power of 2, otherwise None."""
    n = getattr(value, "constant", None)
    return n.bit_length() - 1 if isinstance(n, int) and n > 0 and n & (n - 1) == 0 else None


def floored(builder: Any, dtype: np.dtype, a: Any, b: Any) -> tuple[Any, Any]:
    """Return (a // b, a % b). The hardware's division truncates, and one division serves for
    both."""
    if dtype.kind == "f":
        return _floored_floats(builder, a, b)
    if dtype.kind == "u":
        quotient = builder.udiv(a, b)
        return quotient, builder.sub(a, builder.mul(quotient, b))
    bits = _power_of_2(b)
    if bits is not None:
        return builder.ashr(a, bits), builder.and_(a, (1 << bits) - 1)
    quotient = builder.sdiv(a, b)
    rest = builder.sub(a, builder.mul(quotient, b))
    low = builder.and_(
        builder.icmp_signed("!=", rest, 0), builder.icmp_signed("<", builder.xor(rest, b), 0)
    )
    return builder.sub(quotient, builder.zext(low, a.type)), builder.add(
        rest, builder.select(low, b, 0)
    )


def libdevice(builder: Any, name: str, *args: Any) -> Any:
    """Call a function of libdevice, in the variant for the arguments' type."""
    return builder.external(
        f"__nv_{name}{'f' if args[0].type == nb.f32 else ''}", args[0].type, args
    )


def _floored_floats(builder: Any, a: Any, b: Any) -> tuple[Any, Any]:
    """Divide floats as NumPy does: first the exact remainder (fmod), then the resulting quotient,
    corrected to an integer."""

    def const(value: float) -> Any:
        return nb.ir.Constant(a.type, value)

    rest = exact = libdevice(builder, "fmod", a, b)
    quotient = builder.fdiv(builder.fsub(a, rest), b)
    some = builder.fcmp_unordered("!=", rest, 0.0)
    low = builder.and_(
        some,
        builder.xor(builder.fcmp_ordered("<", b, 0.0), builder.fcmp_ordered("<", rest, 0.0)),
    )
    quotient = builder.select(low, builder.fsub(quotient, 1.0), quotient)
    rest = builder.select(low, builder.fadd(rest, b), rest)
    rest = builder.select(some, rest, libdevice(builder, "copysign", const(0.0), b))
    floor = libdevice(builder, "floor", quotient)
    up = builder.fcmp_ordered(">", builder.fsub(quotient, floor), 0.5)
    floor = builder.select(up, builder.fadd(floor, 1.0), floor)
    true = builder.fdiv(a, b)
    floor = builder.select(
        builder.fcmp_unordered("!=", quotient, 0.0),
        floor,
        libdevice(builder, "copysign", const(0.0), true),
    )
    by_zero = builder.fcmp_ordered("==", b, 0.0)
    return builder.select(by_zero, true, floor), builder.select(by_zero, exact, rest)


def compare(symbol: str) -> Emit:
    def emit(builder: Any, dtype: np.dtype, a: Any, b: Any) -> Any:
        if dtype.kind == "f":
            return (builder.fcmp_unordered if symbol == "!=" else builder.fcmp_ordered)(
                symbol, a, b
            )
        return (builder.icmp_unsigned if dtype.kind == "u" else builder.icmp_signed)(symbol, a, b)

    return emit


def chosen(symbol: str, chained: bool = True) -> Emit:
    """Return a function that emits the first of two numbers if it is less ("<") or greater (">")
    than the second, otherwise the second.

    chained  whether it may be one of several, as in a reduction. NVVM turns a select into max.s32
             or min.s32, and in a chain of these ptxas of CUDA 13.0 and 13.1 drops the sign of a
             negated operand (VIMNMX3). The comparison is therefore PTX that gives 0 or 1, which
             neither of them turns into a maximum or minimum, followed by a select.
    """
    better = compare(symbol)

    def emit(builder: Any, dtype: np.dtype, a: Any, b: Any) -> Any:
        if (
            not chained
            or a.type != nb.i32
            or dtype.kind != "i"
            or any(isinstance(value, nb.ir.Constant) for value in (a, b))
        ):
            return builder.select(better(builder, dtype, a, b), a, b)
        text = (
            f"{{ .reg .pred better; setp.{'gt' if symbol == '>' else 'lt'}.s32 better, $1, $2; "
            f"selp.b32 $0, 1, 0, better; }}"
        )
        first = builder.pure_asm(nb.i32, [a, b], text)
        return builder.select(builder.icmp_signed("!=", first, 0), a, b)

    return emit


EMIT: dict[str, Emit] = {
    "add": _instruction("add", "add", "fadd"),
    "sub": _instruction("sub", "sub", "fsub"),
    "mul": _instruction("mul", "mul", "fmul"),
    "truediv": lambda builder, dtype, x, y: (
        divide(builder, x, y) if dtype == FLOAT32 else builder.fdiv(x, y)
    ),
    "floordiv": lambda *args: floored(*args)[0],
    "mod": lambda *args: floored(*args)[1],
    "and_": _instruction("and_", "and_", ""),
    "or_": _instruction("or_", "or_", ""),
    "xor": _instruction("xor", "xor", ""),
    "lshift": _instruction("shl", "shl", ""),
    "rshift": _instruction("ashr", "lshr", ""),
}
"""What emits a binary operator on two numbers, by its name in `operator`."""
for _name, _emit in EMIT.items():
    _meaning(getattr(arith, _name), _emit, literal=_name in ("floordiv", "mod"))
for _operation, _operator in arith.OPERATORS.items():
    if _operator.compares:
        _meaning(_operation, compare(_operator.symbol))


@cuda_meaning(arith.quotient_remainder)
def _quotient_remainder(a: Any, b: Any, *literals: Any) -> Any:
    result = nb.Tuple([nb.returns(f, (a, b, *literals)) for f in (arith.floordiv, arith.mod)])
    builder, args = yield result
    values = [builder.apply(f, (a, b, *literals), args) for f in (arith.floordiv, arith.mod)]
    return builder.make_tuple(result, values)


@cuda_meaning(arith.power)
def _power(a: Any, n: Any, *literals: Any) -> Any:
    (of,) = kinds_of((a,), *literals)
    count = 0 if isinstance(a, InertType) else arith.exponent(getattr(n, "literal_value", None))
    if of is None:
        sig, codegen = otherwise("**", operator.pow, (a, n))
        builder, args = yield sig.return_type(*sig.args, *literals)
        return codegen(builder, args)
    dtype = arith.common(of, int)
    ty = type_of(dtype)
    builder, args = yield ty

    def product(x: Any, y: Any) -> Any:
        return builder.apply(arith.mul, (ty, ty), (x, y))

    if not count:
        return convert(builder, nb.const(1), I32, ty)
    return arith.raised(convert(builder, args[0], nb.types.unliteral(a), ty), count, product)


def negative(builder: Any, dtype: np.dtype, a: Any) -> Any:
    return builder.fsub(-0.0, a) if dtype.kind == "f" else builder.sub(0, a)


def absolute(builder: Any, dtype: np.dtype, a: Any) -> Any:
    if dtype.kind == "f":
        return libdevice(builder, "fabs", a)
    return (
        a
        if dtype.kind == "u"
        else builder.select(builder.icmp_signed("<", a, 0), builder.sub(0, a), a)
    )


_meaning(arith.negative, negative)
_meaning(arith.positive, lambda builder, dtype, a: a)
_meaning(arith.absolute, absolute)
_meaning(arith.invert, lambda builder, dtype, a: builder.xor(a, -1))


# ---- int32 values that are not negative ----------------------------------------------------------
def _unsigned(operation: Op, emit: Callable[[Any, Any, Any], Any]) -> None:
    @cuda_meaning(operation)
    def typer(a: Any, b: Any) -> Any:
        inert = first_inert((a, b))
        if inert is not None:
            yield inert
        elif isinstance(a, nb.Integer) and isinstance(b, nb.Integer):
            builder, args = yield I32(I32, I32)
            return emit(builder, *args)
        return None


@cuda_meaning(arith.successor)
def _successor(k: Any) -> Any:
    builder, args = yield I32(I32)
    return builder.emit_asm(nb.i32, args, "add.s32 $0, $1, 1;", memory=False)


@cuda_meaning(arith.divisor)
def _divisor(d: Any) -> Any:
    pair = nb.UniTuple(I32, 2)
    builder, args = yield pair(I32)
    safe = builder.select(builder.icmp_signed("<", args[0], 1), 1, args[0])
    return builder.make_tuple(pair, [safe, builder.udiv(0xFFFFFFFF, safe)])


@cuda_meaning(arith.divide)
def _divide(a: Any, by: Any) -> Any:
    """Use the high half of a * magic, which is the quotient or one less, because a * (2^32 / d -
    magic) < 2^32 for a < 2^31."""
    builder, args = yield I32(I32, by)
    d, magic = (builder.extract_value(args[1], i) for i in (0, 1))
    product = builder.mul(builder.zext(args[0], nb.i64), builder.zext(magic, nb.i64))
    low = builder.high_word(product)
    rest = builder.sub(args[0], builder.mul(low, d))
    return builder.add(low, builder.zext(builder.icmp_unsigned(">=", rest, d)))


_unsigned(arith.quotient, nb.Builder.udiv)
_unsigned(arith.remainder, nb.Builder.urem)
_unsigned(arith.cdiv, lambda builder, a, b: builder.udiv(builder.add(a, builder.sub(b, 1)), b))
