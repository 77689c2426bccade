"""Python's builtins on the numbers of kernels, on the GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..arch.dtypes import INT32
from . import arith, numbers
from . import numba as nb
from .arith_cuda import (
    chosen,
    convert,
    kinds_of,
    libdevice,
    math_type,
    not_defined,
    operand,
    otherwise,
    parameter_types,
    type_of,
)
from .inert_cuda import STEERLESS, InertType, steers
from .numba import BOOLEAN, F16, F32, I32
from .op import Op, cuda_meaning


def _extreme(operation: Op, symbol: str, builtin: Any) -> None:
    @cuda_meaning(operation)
    def typer(literals: Any, *values: Any) -> Any:
        of_tuple = len(values) == 1 and isinstance(values[0], nb.BaseTuple)
        parts = tuple(values[0]) if of_tuple else values
        kinds = kinds_of(parts, literals)
        if any(k is None for k in kinds) or not kinds:
            if not any(isinstance(ty, tuple(STEERLESS)) for ty in parts):
                raise not_defined(builtin.__name__, parts)
            sig, elsewhere = otherwise(builtin.__name__, builtin, parts)
            builder, args = yield sig.return_type(literals, *(values if of_tuple else sig.args))
            given = (
                zip(builder.unpack_tuple(args[1]), parts, sig.args, strict=True) if of_tuple else ()
            )
            return elsewhere(builder, [builder.cast(*each) for each in given] or args[1:])
        dtype = arith.common(*kinds)
        types: Sequence = parameter_types(parts, dtype)
        result, better = type_of(dtype), chosen(symbol, len(parts) > 2)
        builder, args = yield result(literals, *(values if of_tuple else types))
        numbers, types = (builder.unpack_tuple(args[1]), parts) if of_tuple else (args[1:], types)
        best, *rest = (operand(builder, v, t, dtype) for v, t in zip(numbers, types, strict=True))
        for value in rest:
            best = better(builder, dtype, value, best)
        return convert(builder, best, math_type(dtype), result)


_extreme(numbers.least, "<", min)
_extreme(numbers.greatest, ">", max)


def _kinds(what: str, *values: Any) -> list:
    kinds = kinds_of(values)
    if any(k is None for k in kinds):
        steers(*values)
        raise numbers.not_a_number(what, " and ".join(str(ty) for ty in values))
    return kinds


@cuda_meaning(numbers.cast)
def _cast(value: Any, dtype: Any) -> Any:
    if isinstance(value, InertType):
        yield value
        return None
    to = np.dtype(nb.literal(dtype))
    numbers.check_number(to.name, value)
    (of,) = _kinds(to.name, value)
    if of is int and to.kind in "iu" and not arith.holds(to, value.literal_value):
        raise arith.misfit(value.literal_value, to)
    result, have = type_of(to), nb.types.unliteral(value)
    builder, (number, _) = yield result(have, dtype)
    if have == F16 and result != have:
        have, number = F32, convert(builder, number, have, F32)
    if to.kind != "b" or have == BOOLEAN:
        return convert(builder, number, have, result)
    if isinstance(have, nb.Float):
        return builder.fcmp_unordered("!=", number, 0.0)
    return builder.icmp_signed("!=", number, 0)


@cuda_meaning(numbers.rounded)
def _rounded(value: Any) -> Any:
    if isinstance(value, tuple(STEERLESS)) and not isinstance(value, InertType):  # a tile
        return otherwise("round", round, (value,))
    dtype, plain = arith.common(*_kinds("round", value)), nb.types.unliteral(value)
    builder, args = yield I32(plain)
    number = operand(builder, args[0], plain, dtype)
    if dtype.kind == "f":
        number = libdevice(builder, "rint", number)
    return builder.cast(number, math_type(dtype), I32)


@cuda_meaning(numbers.counting)
def _counting(*bounds: Any) -> Any:
    dtype = numbers.range_type(*_kinds("range", *bounds))
    function = nb.python_function(range)
    types = parameter_types(bounds, dtype)
    builder, args = yield nb.returns(function, types)(*types)
    return builder.apply(function, types, args)


@cuda_meaning(numbers.length)
def _length(value: Any) -> Any:
    if isinstance(value, nb.BaseTuple):
        yield I32
        return nb.const(len(value))
    sig, codegen = otherwise("len", len, (value,))
    builder, args = yield I32(*sig.args)
    return builder.cast(codegen(builder, args), sig.return_type, I32)


@cuda_meaning(numbers.number)
def _number(value: Any, *literals: Any) -> Any:
    result = _run_time_type(value, *literals)
    builder, args = yield result
    return _run_time_value(builder, args[0], value, result)


def _run_time_type(ty: Any, literals: Any = 0) -> Any:
    """Return the type that a constant has at run time; other values keep their type."""
    if isinstance(ty, (nb.Tuple, nb.UniTuple)):
        parts = [_run_time_type(t) for t in ty]
        return ty if parts == list(ty) else nb.Tuple(parts)
    (of,) = kinds_of((ty,), literals)
    if of is int:
        return parameter_types((ty,), INT32)[0]
    return F32 if of is float else BOOLEAN if of is bool else ty


def _run_time_value(builder: Any, value: Any, of: Any, to: Any) -> Any:
    if of == to:
        return value
    if isinstance(to, nb.BaseTuple):
        parts = zip(builder.unpack_tuple(value), of, to, strict=True)
        return builder.make_tuple(to, [_run_time_value(builder, *part) for part in parts])
    return builder.cast(value, of, to)
