"""Sine, cosine and tangent of float32 on the GPU, for every float32. They replace libdevice's
functions, which use local memory for large arguments.

An argument x is reduced to r = x - q pi/2, with magnitude at most pi/4, and q is kept modulo 4:

==================  ================================================================================
``|x| <= 2^16``     Cody and Waite: q is x 2/pi, rounded; pi/2 is subtracted q times in three
                    parts, with fused multiply-adds
larger              Payne and Hanek: only those 96 bits of 2/pi are multiplied that contribute to
                    the result modulo 4, given the exponent of x
infinite, NaN       NaN, by the first method
==================  ================================================================================

Polynomials of r give the sine, the cosine and the tangent within pi/4. There is no table and no
loop, so all values stay in registers. The code is LLVM IR only: tests run it on the CPU, over the
whole range.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from ...core import numba as nb

TWO_OVER_PI = 0x28BE60DB, 0x9391054A, 0x7F09D5F4, 0x7D4D3770, 0x36D8A566, 0x4F10E410, 0x7F9458EA
"""The first 224 bits of 2/pi."""
PARTS = 1.57079601, 3.13916473e-07, 5.39030253e-15
"""pi/2 in three parts; the products of the first part with q are exact."""
LARGE = 65536.0
# 1.5 2^23: adding it to a float32 rounds the sum to an integer, which the low bits hold.
SHIFT = 12582912.0

# Minimax polynomials of r^2, highest power first; for sine and tangent without the first term, r.
SINE = 2.86567956e-6, -1.98559923e-4, 8.33338592e-3, -1.66666672e-1
COSINE = 2.44677067e-5, -1.38877297e-3, 4.16666567e-2, -0.5, 1.0
TANGENT = (
    4.38117981e-3,
    8.94600598e-5,
    1.08341556e-2,
    2.12811474e-2,
    5.40602170e-2,
    1.33326918e-1,
    3.33333433e-1,
)


def _f(value: float) -> Any:
    return nb.ir.Constant(nb.f32, float(np.float32(value)))


def _fma(builder: Any, x: Any, y: Any, z: Any) -> Any:
    return builder.external("llvm.fma.f32", nb.f32, (x, y, z))


def _polynomial(builder: Any, x: Any, coefficients: tuple[float, ...]) -> Any:
    value = _f(coefficients[0])
    for coefficient in coefficients[1:]:
        value = _fma(builder, value, x, _f(coefficient))
    return value


def reduced(builder: Any, x: Any) -> tuple[Any, Any]:
    """Return (r, q): x minus q pi/2, and q, of which only the low two bits matter."""
    shifted = _fma(builder, x, _f(2 / np.pi), _f(SHIFT))
    times = builder.fsub(shifted, SHIFT)
    near = x
    for part in PARTS:
        near = _fma(builder, times, _f(-part), near)
    bits = builder.bitcast(x, nb.i32)
    magnitude = builder.and_(bits, 0x7FFFFFFF)
    large = builder.icmp_unsigned(">", magnitude, int(np.float32(LARGE).view(np.int32)))
    large = builder.and_(large, builder.icmp_unsigned("<", magnitude, 0x7F800000))
    quarter = builder.bitcast(shifted, nb.i32)
    r, q = builder.one_of(large, lambda: _far(builder, bits), lambda: [near, quarter])
    return r, q


def _far(builder: Any, bits: Any) -> list:
    """Return [r, q] of a finite number with magnitude at least 2^16, given its bits."""

    def wide(value: Any) -> Any:
        return builder.zext(value, nb.i64)

    negative = builder.icmp_signed("<", bits, 0)
    mantissa = wide(builder.or_(builder.shl(bits, 8), -0x80000000))
    # 17 … 128
    exponent = builder.sub(builder.and_(builder.lshr(bits, 23), 255), 126)
    word, shift = builder.lshr(exponent, 5), wide(builder.and_(exponent, 31))
    words = []
    for first in range(-1, 3):  # the words of 2/pi that remain after a shift by the exponent
        chosen = nb.const(_word(first))
        for number in range(1, 5):
            chosen = builder.select(
                builder.icmp_unsigned("==", word, number),
                _word(first + number),
                chosen,
            )
        words.append(wide(chosen))
    high, middle, low = (
        builder.lshr(builder.shl(builder.or_(builder.shl(one, 32), other), shift), 32)
        for one, other in itertools.pairwise(words)
    )
    product = builder.lshr(builder.mul(mantissa, low), 32)
    product = builder.add(builder.mul(mantissa, middle), product)
    # x 2/pi, modulo 4, as 2.62 bits
    product = builder.add(builder.shl(builder.mul(mantissa, high), 32), product)
    quarter = builder.add(product, 1 << 61)
    # from -1/2 to 1/2, as 62 bits
    rest = builder.sub(product, builder.and_(quarter, -1 << 62))
    double = nb.ir.DoubleType()
    r = builder.fptrunc(
        builder.fmul(builder.sitofp(rest, double), np.pi / 2 * 2.0**-62),
        nb.f32,
    )
    q = builder.trunc(builder.lshr(quarter, 62))
    return [
        builder.select(negative, builder.fsub(-0.0, r), r),
        builder.select(negative, builder.sub(0, q), q),
    ]


def _word(number: int) -> int:
    """Return a word of 2/pi as a signed integer; 0 before the first."""
    return int(np.uint32(TWO_OVER_PI[number] if number >= 0 else 0).view(np.int32))


def sine(builder: Any, x: Any, quarters: int = 0) -> Any:
    """Return the sine of a float32, or the cosine for an odd number of `quarters`."""
    r, q = reduced(builder, x)
    q = builder.add(q, quarters) if quarters else q
    square = builder.fmul(r, r)
    cube = _fma(builder, r, square, _f(0.0))
    along = _fma(builder, _polynomial(builder, square, SINE), cube, r)
    value = builder.select(_bit(builder, q, 1), _polynomial(builder, square, COSINE), along)
    return builder.select(_bit(builder, q, 2), builder.fsub(-0.0, value), value)


def cosine(builder: Any, x: Any) -> Any:
    return sine(builder, x, 1)


def tangent(builder: Any, x: Any) -> Any:
    r, q = reduced(builder, x)
    square = builder.fmul(r, r)
    value = _fma(builder, _polynomial(builder, square, TANGENT), builder.fmul(r, square), r)
    return builder.select(_bit(builder, q, 1), builder.fdiv(-1.0, value), value)


def _bit(builder: Any, value: Any, bit: int) -> Any:
    return builder.icmp_unsigned("!=", builder.and_(value, bit), 0)
