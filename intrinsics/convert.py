"""Conversions between two float32 values and one 32-bit register with two bf16 or f16 values, as
stmatrix stores and wgmma takes, and bytes of two registers.

The element with the lower address or column is the low half. PTX ISA, "Data Movement and Conversion
Instructions: cvt, prmt".
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


@ptx(
    "prmt.b32 $ret, $low, $high, $selector;",
    returns="r",
    memory=False,
    low="r",
    high="r",
    selector="r",
)
def permute_bytes(low: int, high: int, selector: int) -> int:
    """Return four of the eight bytes of two registers. Byte i of the result is the one with the
    number ``selector >> 4 * i & 15``, 0 to 7: `low` has the bytes 0 to 3, `high` 4 to 7. Larger
    numbers, for which the GPU repeats a byte's sign, are not simulated. Scope: a lane.

    >>> hex(permute_bytes(0x33221100, 0x77665544, 0x7610))
    '0x77661100'

    PTX ISA: prmt.
    """
    pool = (int(low) & 0xFFFFFFFF) | (int(high) & 0xFFFFFFFF) << 32
    found = [pool >> 8 * (int(selector) >> 4 * i & 7) & 0xFF for i in range(4)]
    return np.uint32(int.from_bytes(found, "little")).view(np.int32)  # type: ignore[return-value]


@ptx("cvt.rn.f16x2.f32 $ret, $hi, $lo;", returns="r", memory=False, lo="f", hi="f")
def pack_f16x2(lo: float, hi: float) -> int:
    """Round two float32 values to f16, to nearest even, with `lo` in bits 0–15. Values that are too
    large become infinite. Scope: a lane.

    >>> hex(pack_f16x2(1.0, 65536.0))
    '0x7c003c00'

    PTX ISA: cvt.
    """
    return _pack(lo, hi, np.float16)  # type: ignore[no-any-return]
