"""Functions of register tiles and numbers whose result is an element, or rounded once, on the GPU."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from ...arch.dtypes import FLOAT32
from ...core import numba as nb
from ...core.op import cuda_meaning
from . import exact as source
from .elementwise_cuda import BY_PAIRS, Emit, Packed, evaluated, two_at_once
from .reduce_cuda import combination


def _rounding(direction: str) -> Emit:
    def emit(builder: Any, dtype: np.dtype, x: Any) -> Any:
        if dtype != FLOAT32:
            return x
        return builder.call(nb.pure_asm(nb.f32, [nb.f32], f"cvt.{direction}.f32.f32 $0, $1;", "=f,f"), [x])

    return emit


def _sign(builder: Any, dtype: np.dtype, x: Any) -> Any:
    floats = dtype == FLOAT32
    compare, zero = builder.fcmp_ordered if floats else builder.icmp_signed, x.type(0)
    other = builder.select(compare("==", x, zero), zero, x)  # NaN, if it is not 0 either
    return builder.select(compare(">", x, zero), x.type(1), builder.select(compare("<", x, zero), x.type(-1), other))


def _square(builder: Any, dtype: np.dtype, x: Any) -> Any:
    return builder.fmul(x, x) if dtype == FLOAT32 else builder.mul(x, x)


def _isnan(builder: Any, dtype: np.dtype, x: Any) -> Any:
    return builder.fcmp_unordered("uno", x, x) if dtype == FLOAT32 else nb.const(0, nb.i1)


def _function(name: str, emit: Emit, by_pairs: Packed | None = None) -> None:
    label = f"np.{name}"

    @cuda_meaning(source.FUNCTIONS[name])
    def typer(_context: Any, x: Any, *literals: Any) -> Any:
        return evaluated(label, (x,), emit, literals, takes="fhi", check=functools.partial(source.check_number, label),
                         compares=name == "isnan", by_pairs=by_pairs)


for _name, _emit, _by_pairs in (("floor", _rounding("rmi"), None), ("ceil", _rounding("rpi"), None), ("sign", _sign, None),
                                ("square", _square, lambda builder, dtype, x: BY_PAIRS["mul"](builder, dtype, x, x)),
                                ("isnan", _isnan, None)):
    _function(_name, _emit, _by_pairs)


@cuda_meaning(source.clip)
def _clip(_context: Any, a: Any, a_min: Any, a_max: Any, *literals: Any) -> Any:
    given = [isinstance(bound, nb.types.NoneType) for bound in (a_min, a_max)]
    source.bounds(*(not none for none in given))
    kept = [0, *(number for number, none in enumerate(given, 1) if not none)]
    extremes = [name for name, none in zip(("max", "min"), given, strict=True) if not none]
    every = (a, a_min, a_max)
    types = [every[number] for number in kept]
    bits = nb.literal(literals[0]) if literals else 0
    mask = sum(bool(bits & 1 << number) << place for place, number in enumerate(kept))

    def emit(builder: Any, dtype: np.dtype, x: Any, *limits: Any) -> Any:
        for name, limit in zip(extremes, limits, strict=True):
            x = combination(builder, name, dtype)(x, limit)
        return x

    def by_pairs(builder: Any, dtype: np.dtype, x: Any, *limits: Any) -> Any:
        for name, limit in zip(extremes, limits, strict=True):
            x = two_at_once(f"{name}.NaN")(builder, dtype, x, limit)
        return x

    sig, code = evaluated("np.clip", types, emit, [nb.types.literal(mask)] if mask else [], takes="fhi", by_pairs=by_pairs,
                          check=functools.partial(source.check_number, "np.clip"))
    places = dict(zip(kept, sig.args, strict=False))

    def codegen(context: Any, builder: Any, _sig: Any, args: Any) -> Any:
        return code(context, builder, sig, [*(args[number] for number in kept), *args[3:]][:len(sig.args)])

    return sig.return_type(*[places.get(number, every[number]) for number in range(3)], *literals), codegen
