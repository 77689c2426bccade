"""Conversions between two float32 values and one 32-bit register with two bf16 or f16 values, as
stmatrix stores and wgmma takes.

The element with the lower address or column is the low half. PTX ISA, "Data Movement and Conversion
Instructions: cvt".
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from numpipe.core.op import ptx

_CANONICAL_NAN = np.uint32(0x7FFF)


def _pack(lo: Any, hi: Any, dtype: Any) -> Any:
    def bits(value: Any) -> Any:
        value = np.asarray(value, np.float32)
        with np.errstate(over="ignore"):
            rounded = value.astype(dtype)
        return np.where(np.isnan(value), _CANONICAL_NAN, rounded.view(np.uint16).astype(np.uint32))

    return np.uint32(bits(lo)) | np.uint32(bits(hi)) << np.uint32(16)


def _half(word: Any, shift: int, dtype: Any) -> Any:
    word = np.asarray(word)
    word = word.astype(np.uint32) if word.dtype != np.int32 else word.view(np.uint32)
    return (word >> np.uint32(shift)).astype(np.uint16).view(dtype).astype(np.float32)[()]


@ptx("cvt.rn.bf16x2.f32 $ret, $hi, $lo;", returns="r", memory=False, lo="f", hi="f")
def pack_bf16x2(lo: float, hi: float) -> int:
    """Round two float32 values to bf16, to nearest even, with `lo` in bits 0–15. NaN becomes
    0x7fff. Scope: a lane.

    The simulator takes scalars or arrays over lanes and returns uint32 of the same shape; the GPU
    returns an int32.

    >>> hex(pack_bf16x2(1.0, -2.0))
    '0xc0003f80'

    PTX ISA: cvt.
    """
    return _pack(lo, hi, ml_dtypes.bfloat16)  # type: ignore[no-any-return]


@ptx("cvt.rn.f16x2.f32 $ret, $hi, $lo;", returns="r", memory=False, lo="f", hi="f")
def pack_f16x2(lo: float, hi: float) -> int:
    """Round two float32 values to f16, to nearest even, with `lo` in bits 0–15. Values that are too
    large become infinite. Scope: a lane.

    >>> hex(pack_f16x2(1.0, 65536.0))
    '0x7c003c00'

    PTX ISA: cvt.
    """
    return _pack(lo, hi, np.float16)  # type: ignore[no-any-return]


@ptx(
    "{ .reg .b32 bits; shl.b32 bits, $word, 16; mov.b32 $ret, bits; }",
    returns="f",
    memory=False,
    word="r",
)
def unpack_bf16_lo(word: int) -> float:
    """Return the low bf16 of `word` as float32, exactly. Scope: a lane. PTX ISA: a bf16 is the
    upper half of a float32.

    >>> float(unpack_bf16_lo(0xC0003F80))
    1.0
    """
    return _half(word, 0, ml_dtypes.bfloat16)  # type: ignore[no-any-return]


@ptx(
    "{ .reg .b32 bits; and.b32 bits, $word, 0xffff0000; mov.b32 $ret, bits; }",
    returns="f",
    memory=False,
    word="r",
)
def unpack_bf16_hi(word: int) -> float:
    """Return the high bf16 of `word` as float32, exactly. Scope: a lane. PTX ISA: a bf16 is the
    upper half of a float32.

    >>> float(unpack_bf16_hi(0xC0003F80))
    -2.0
    """
    return _half(word, 16, ml_dtypes.bfloat16)  # type: ignore[no-any-return]


@ptx(
    "{ .reg .b16 lo, hi; mov.b32 {lo, hi}, $word; cvt.f32.f16 $ret, lo; }",
    returns="f",
    memory=False,
    word="r",
)
def unpack_f16_lo(word: int) -> float:
    """Return the low f16 of `word` as float32, exactly. Scope: a lane. PTX ISA: cvt.

    >>> float(unpack_f16_lo(0xC0003C00))
    1.0
    """
    return _half(word, 0, np.float16)  # type: ignore[no-any-return]


@ptx(
    "{ .reg .b16 lo, hi; mov.b32 {lo, hi}, $word; cvt.f32.f16 $ret, hi; }",
    returns="f",
    memory=False,
    word="r",
)
def unpack_f16_hi(word: int) -> float:
    """Return the high f16 of `word` as float32, exactly. Scope: a lane. PTX ISA: cvt.

    >>> float(unpack_f16_hi(0xC0003C00))
    -2.0
    """
    return _half(word, 16, np.float16)  # type: ignore[no-any-return]
