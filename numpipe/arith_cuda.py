"""int32 arithmetic as single instructions."""

from __future__ import annotations

from typing import Any

from . import _numba as nb
from . import arith
from ._op import cuda_meaning
from .inert_cuda import InertType

I32 = nb.types.int32


def _binary(function: Any) -> Any:
    def typer(_context: Any, a: Any, b: Any) -> Any:
        inert = next((t for t in (a, b) if isinstance(t, InertType)), None)
        if inert is not None:
            return inert(a, b), lambda context, builder, sig, args: nb.nothing(context)
        if not (isinstance(a, nb.types.Integer) and isinstance(b, nb.types.Integer)):
            return None
        return I32(I32, I32), lambda context, builder, sig, args: function(builder, *args)

    return typer


def _cdiv(builder: Any, a: Any, b: Any) -> Any:
    return builder.udiv(builder.add(a, builder.sub(b, nb.const(1))), b)


@cuda_meaning(arith.successor)
def _successor(_context: Any, k: Any) -> Any:
    def codegen(context: Any, builder: Any, _sig: Any, args: Any) -> Any:
        return nb.emit_asm(builder, nb.i32, args, "add.s32 $0, $1, 1;", "=r,r")

    return I32(I32), codegen


@cuda_meaning(arith.divisor)
def _divisor(_context: Any, d: Any) -> Any:
    pair = nb.types.UniTuple(I32, 2)

    def codegen(context: Any, builder: Any, _sig: Any, args: Any) -> Any:
        safe = builder.select(builder.icmp_signed("<", args[0], nb.const(1)), nb.const(1), args[0])
        return context.make_tuple(builder, pair, [safe, builder.udiv(nb.const(0xFFFFFFFF), safe)])

    return pair(I32), codegen


@cuda_meaning(arith.divide)
def _divide(_context: Any, a: Any, by: Any) -> Any:
    """The high half of a * magic is the quotient or one less: a * (2^32 / d - magic) < 2^32 for a < 2^31."""

    def codegen(context: Any, builder: Any, _sig: Any, args: Any) -> Any:
        d, magic = (builder.extract_value(args[1], i) for i in (0, 1))
        product = builder.mul(builder.zext(args[0], nb.i64), builder.zext(magic, nb.i64))
        low = builder.trunc(builder.lshr(product, nb.const(32, nb.i64)), nb.i32)
        rest = builder.sub(args[0], builder.mul(low, d))
        return builder.add(low, builder.zext(builder.icmp_unsigned(">=", rest, d), nb.i32))

    return I32(I32, by), codegen


cuda_meaning(arith.add)(_binary(lambda builder, a, b: builder.add(a, b)))
cuda_meaning(arith.quotient)(_binary(lambda builder, a, b: builder.udiv(a, b)))
cuda_meaning(arith.remainder)(_binary(lambda builder, a, b: builder.urem(a, b)))
cuda_meaning(arith.cdiv)(_binary(_cdiv))
