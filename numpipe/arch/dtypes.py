"""Element types. Each type has a record that holds everything specific to it.

For 8-bit types and tf32, the code for conversions, TMA and the model reads only these records, and
the code for products reads the `Operand` of each (`products`), so adding another such type takes
one record of each kind.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

FLOAT16 = np.dtype(np.float16)
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
FLOAT32 = np.dtype(np.float32)
FLOAT64 = np.dtype(np.float64)
INT32 = np.dtype(np.int32)
INT64 = np.dtype(np.int64)
UINT32 = np.dtype(np.uint32)
BOOL = np.dtype(np.bool_)


@dataclass(frozen=True)
class Packing:
    """How elements lie in register tiles, and how they are converted for computing.

    per_register  elements in a 32-bit register, the one with the lower column in the low bits. For
                  8-bit types it is also two, because a lane has two adjacent elements
    computed      the operations that tiles support: "f" of float32, "h" of 16-bit floats, "i" of
                  integers, "b" of masks, "d" of float64 (whose arrays are not loaded as tiles);
                  "": tiles can only be converted, loaded and stored
    wide          the type through which conversions go, and in which integers are computed:
                  float32, int32 or uint32; it holds all values
    widen         PTX that converts the low and the high element of register $1 to the wide type, in
                  $0
    narrow        PTX that packs two elements of the wide type, the low one in $1, into register $0
    largest       larger floats are converted to this value, with their sign (``.satfinite``); None:
                  they become infinite
    """

    per_register: int
    computed: str
    wide: np.dtype = FLOAT32
    widen: tuple[str, str] = ("", "")
    narrow: str = ""
    largest: float | None = None


@dataclass(frozen=True)
class Element:
    """An element type of arrays. `tile` is None if it has no register tiles.

    name        its name in NumPy, ml_dtypes and PyTorch
    tma         type of its tensor maps (CUDA driver API, CUtensorMapDataType)
    reductions  operations of the TMA on elements in global memory (PTX ISA, "cp.reduce.async.bulk";
                and, or and xor of int64 are an illegal instruction on an H200)
    per_byte    elements in a byte of memory
    unpack      for a packed type, by the name of a 16-bit type: PTX that converts elements 2 t and
                2 t + 1 of register $1 to the low and the high half of register $0; $2 is 0x1111 t,
                by which ``prmt`` selects byte t
    """

    name: str
    tma: str
    reductions: str = ""
    tile: Packing | None = None
    per_byte: int = 1
    unpack: dict[str, str] = field(default_factory=dict)

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(getattr(ml_dtypes, self.name, self.name))

    @property
    def bits(self) -> int:
        """Return the bits of an element in memory."""
        return 8 * self.dtype.itemsize // self.per_byte

    def nbytes(self, count: int) -> int:
        """Return the bytes of `count` elements, which fill whole bytes.

        >>> ELEMENTS["float32"].nbytes(16)
        64
        """
        return count * self.bits // 8

    def count(self, nbytes: int) -> int:
        """Return how many elements fit in `nbytes` bytes."""
        return nbytes * 8 // self.bits

    @property
    def short(self) -> str:
        """The name of the type in the names of machine code: "f16", "bf16", "e4m3", "i32", "u8",
        "bool"."""
        return re.sub(
            r"float8_(e\dm\d)\w*|uint|int|float", lambda found: found[1] or found[0][0], self.name
        )

    @property
    def in_numpy(self) -> bool:
        """Whether NumPy has the type without ml_dtypes."""
        return not hasattr(ml_dtypes, self.name)

    @property
    def fills_nan(self) -> bool:
        """Whether TMA can fill elements outside an array with NaN."""
        return "FLOAT" in self.tma


def listed(names: Any, last: str = "and") -> str:
    """Join names for a message.

    >>> listed(["a", "b", "c"])
    'a, b and c'
    """
    *first, end = map(str, names)
    return f"{', '.join(first)} {last} {end}" if first else end


def _half(ptx: str, widen: tuple[str, str]) -> Packing:
    return Packing(2, "h", FLOAT32, widen, f"cvt.rn.{ptx}x2.f32 $0, $2, $1;")


def _integer(sign: str, name: str) -> Packing:
    widen = f"bfe.{sign}32 $0, $1, 0, 8;", f"bfe.{sign}32 $0, $1, 8, 8;"
    return Packing(2, "i", INT32, widen, f"cvt.pack.sat.{name}.s32.b32 $0, $2, $1, 0;")


def _float8(name: str, largest: float) -> Packing:
    both = (
        f"{{ .reg .b16 two, lo, hi; .reg .b32 wide; cvt.u16.u32 two, $1; cvt.rn.f16x2.{name}x2 "
        "wide, two; "
        "mov.b32 {lo, hi}, wide; cvt.f32.f16 $0, "
    )
    narrow = (
        f"{{ .reg .b16 two; cvt.rn.satfinite.{name}x2.f32 two, $2, $1; mov.b32 $0, {{two, 0}}; }}"
    )
    return Packing(2, "", FLOAT32, (f"{both}lo; }}", f"{both}hi; }}"), narrow, largest)


_F16 = _half(
    "f16",
    (
        "{ .reg .b16 lo, hi; mov.b32 {lo, hi}, $1; cvt.f32.f16 $0, lo; }",
        "{ .reg .b16 lo, hi; mov.b32 {lo, hi}, $1; cvt.f32.f16 $0, hi; }",
    ),
)
# the upper half of a float32
_BF16 = _half(
    "bf16",
    (
        "{ .reg .b32 bits; shl.b32 bits, $1, 16; mov.b32 $0, bits; }",
        "{ .reg .b32 bits; and.b32 bits, $1, 0xffff0000; mov.b32 $0, bits; }",
    ),
)
_BITS = "and or xor"


def _four_bits(flip: int) -> dict[str, str]:
    """Return the PTX that converts 4-bit integers to floats. `flip` is 8 for signed ones, because n
    ^ 8 is n + 8, else 0.

    The integer is placed in the low bits of a float's mantissa, with an exponent for which these
    bits count 1: 1024 in a float16, 64 if the integer lies 4 bits further up, 128 in a bfloat16.
    This power of two and the flip's 8 are then subtracted. A bfloat16's mantissa has only 7 bits,
    so the upper integer of a byte is shifted down first.
    """
    f16, bf16 = (
        f"lop3.b32 two, two, {mask:#010x}, {powers | flips:#x}, 0x6a; "
        f"mov.b32 base, {powers | flips | 0x80008000:#x}; add.rn.{name}x2 $0, two, base; }}"
        for name, mask, powers, flips in (
            ("f16", 0x00F0000F, 0x54006400, flip << 20 | flip),
            ("bf16", 0x000F000F, 0x43004300, flip << 16 | flip),
        )
    )
    return {
        "float16": f"{{ .reg .b32 two, base; prmt.b32 two, $1, $1, $2; {f16}",
        "bfloat16": "{ .reg .b32 two, select, base; shr.b32 two, $1, 4; "
        f"add.u32 select, $2, 0x4400; prmt.b32 two, $1, two, select; {bf16}",
    }


_RECORDS = (
    Element("bool", "UINT8", tile=Packing(1, "b", INT32)),
    Element("int8", "UINT8", "", _integer("s", "s8")),
    Element("int16", "UINT16"),
    Element("int32", "INT32", f"add min max {_BITS}", Packing(1, "i", INT32)),
    Element("int64", "INT64", "min max"),
    Element("uint8", "UINT8", "", _integer("u", "u8")),
    Element("uint16", "UINT16"),
    Element("uint32", "UINT32", f"add min max inc dec {_BITS}", Packing(1, "i", UINT32)),
    Element("uint64", "UINT64", f"add min max {_BITS}"),
    Element("float16", "FLOAT16", "add min max", _F16),
    Element("float32", "FLOAT32", "add", Packing(1, "f")),
    Element("float64", "FLOAT64", "add", Packing(1, "d", FLOAT64)),
    Element("bfloat16", "BFLOAT16", "add min max", _BF16),
    Element("float8_e4m3fn", "UINT8", "", _float8("e4m3", 448.0)),
    Element("float8_e5m2", "UINT8", "", _float8("e5m2", 57344.0)),
)

ELEMENTS = {record.name: record for record in _RECORDS}
"""Element types of arrays, by name."""
PACKED = {
    record.name: record
    for record in (
        Element("int4", "UINT8", per_byte=2, unpack=_four_bits(8)),
        Element("uint4", "UINT8", per_byte=2, unpack=_four_bits(0)),
    )
}
"""Element types smaller than a byte, by name. Their arrays are arrays of bytes, which `unpack`
reads."""
BY_DTYPE = {record.dtype: record for record in _RECORDS}
TILES = tuple(
    record.dtype for record in _RECORDS if record.tile and record.dtype not in (BOOL, FLOAT64)
)
"""Types of array elements that register tiles can have."""
INTEGERS = tuple(record.dtype for record in _RECORDS if record.tile and record.tile.computed == "i")
"""Integer types of register tiles."""
HALVES = tuple(record.dtype for record in _RECORDS if record.tile and record.tile.computed == "h")
REDUCTIONS = {
    name: tuple(record.name for record in _RECORDS if name in record.reductions.split())
    for name in ("add", "min", "max", "inc", "dec", "and", "or", "xor")
}
"""The types that the TMA's reductions in global memory support, by operation."""


def packing(dtype: np.dtype) -> Packing:
    """Return how a type lies in register tiles. The type must have them."""
    record = BY_DTYPE[dtype].tile
    assert record is not None
    return record


def packed_fix(dtype: np.dtype) -> str:
    """Return the fix that messages add when they reject a packed type; "" for other types."""
    record = PACKED.get(dtype.name)
    if record is None:
        return ""
    return (
        f"; fix: pack {record.per_byte} of {record.name} into each element of a uint8 array, and "
        f"load them by numpipe.unpack(tile, {record.name!r}, np.float16); they are not stored"
    )
