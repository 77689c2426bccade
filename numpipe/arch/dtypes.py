"""Element types: a record each, which says all that depends on the type. Whoever needs to know asks the record.

Of 8-bit types and tf32 the code for products, conversions, TMA and the model reads nothing but these records, so that another type
of their kind is a record more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

FLOAT16 = np.dtype(np.float16)
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
FLOAT32 = np.dtype(np.float32)
INT32 = np.dtype(np.int32)
BOOL = np.dtype(np.bool_)

K_BYTES = 32
"""of K that one wgmma multiplies, whatever the type (PTX ISA, "Asynchronous Warpgroup Level Matrix Multiply-Accumulate": shapes)"""
EIGHTS = tuple(range(8, 257, 8))
INTEGER_WIDTHS = (8, 16, 24, *range(32, 257, 16))


@dataclass(frozen=True)
class Operand:
    """A type as an operand of ``wgmma.mma_async`` (PTX ISA, "wgmma.mma_async").

    name     in the instruction
    family   operands of one family may meet
    opcode   of the machine code
    sums     type of the accumulator
    majors   orders that a tile in shared memory may have: "k", its rows along K are contiguous, or "mn"
    widths   the N of m64nN
    ignored  low bits of an element that the tensor core does not look at
    """

    name: str
    family: str
    opcode: str = "HGMMA"
    sums: np.dtype[Any] = FLOAT32
    majors: tuple[str, ...] = ("k",)
    widths: tuple[int, ...] = EIGHTS
    ignored: int = 0

    @property
    def unit(self) -> str:
        """What N is a multiple of, for messages."""
        return "8" if self.widths == EIGHTS else "16, or 8 or 24,"

    @property
    def from_registers(self) -> bool:
        """Whether a register tile is an A operand as it is: packed, it has the 16-bit elements of a k16 step."""
        return "mn" in self.majors


@dataclass(frozen=True)
class Packing:
    """How elements become register tiles, and numbers that are computed with.

    per_register  elements in a 32-bit register, the one with the lower column in the low bits. Of 8-bit types two as well, which is
                  what a lane has side by side
    computed      operations that a tile has: "f" those of float32, "h" of 16-bit floats, "i" of int32, "b" of masks, "" none: such
                  a tile is converted, loaded and stored only
    wide          type that holds all its values, float32 or int32: conversions go through it
    widen         PTX of the low and the high element of register $1 in the wide type, $0
    narrow        PTX of a register, $0, of two elements in the wide type, $1 the low one
    largest       floats beyond it become it, with their sign (``.satfinite``); None: they become infinite
    """

    per_register: int
    computed: str
    wide: np.dtype[Any] = FLOAT32
    widen: tuple[str, str] = ("", "")
    narrow: str = ""
    largest: float | None = None


@dataclass(frozen=True)
class Element:
    """An element type of arrays. None: there are no register tiles of it, or no products.

    name        that NumPy, ml_dtypes and PyTorch share
    tma         type of its tensor maps (CUDA driver API, CUtensorMapDataType)
    reductions  what the TMA can do with an element in global memory (PTX ISA, "cp.reduce.async.bulk"; and, or and xor of int64 are
                an illegal instruction on an H200)
    """

    name: str
    tma: str
    reductions: str = ""
    tile: Packing | None = None
    operand: Operand | None = None

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(getattr(ml_dtypes, self.name, self.name))

    @property
    def in_numpy(self) -> bool:
        """Whether NumPy has it without ml_dtypes."""
        return not hasattr(ml_dtypes, self.name)

    @property
    def fills_nan(self) -> bool:
        """Whether TMA can fill what lies outside of an array with NaN."""
        return "FLOAT" in self.tma

    @property
    def k(self) -> int:
        """Elements of K that one wgmma multiplies."""
        return K_BYTES // self.dtype.itemsize


def listed(names: Any, last: str = "and") -> str:
    """Names as a message says them.

    >>> listed(["a", "b", "c"])
    'a, b and c'
    """
    *first, end = map(str, names)
    return f"{', '.join(first)} {last} {end}" if first else end


def _half(ptx: str, widen: tuple[str, str]) -> Packing:
    return Packing(2, "h", FLOAT32, widen, f"cvt.rn.{ptx}x2.f32 $0, $2, $1;")


def _integer(sign: str, name: str) -> tuple[Packing, Operand]:
    widen = f"bfe.{sign}32 $0, $1, 0, 8;", f"bfe.{sign}32 $0, $1, 8, 8;"
    return (Packing(2, "", INT32, widen, f"cvt.pack.sat.{name}.s32.b32 $0, $2, $1, 0;"),
            Operand(name, "8-bit integers", "IGMMA", INT32, widths=INTEGER_WIDTHS))


def _float8(name: str, largest: float) -> tuple[Packing, Operand]:
    both = (f"{{ .reg .b16 two, lo, hi; .reg .b32 wide; cvt.u16.u32 two, $1; cvt.rn.f16x2.{name}x2 wide, two; "
            "mov.b32 {lo, hi}, wide; cvt.f32.f16 $0, ")
    narrow = f"{{ .reg .b16 two; cvt.rn.satfinite.{name}x2.f32 two, $2, $1; cvt.u32.u16 $0, two; }}"
    return Packing(2, "", FLOAT32, (f"{both}lo; }}", f"{both}hi; }}"), narrow, largest), Operand(name, "float8", "QGMMA")


_F16 = _half("f16", ("{ .reg .b16 lo, hi; mov.b32 {lo, hi}, $1; cvt.f32.f16 $0, lo; }",
                     "{ .reg .b16 lo, hi; mov.b32 {lo, hi}, $1; cvt.f32.f16 $0, hi; }"))
_BF16 = _half("bf16", ("{ .reg .b32 bits; shl.b32 bits, $1, 16; mov.b32 $0, bits; }",  # the upper half of a float32
                       "{ .reg .b32 bits; and.b32 bits, $1, 0xffff0000; mov.b32 $0, bits; }"))
_BOTH = "k", "mn"
_BITS = "and or xor"

_RECORDS = (
    Element("bool", "UINT8", tile=Packing(1, "b", INT32)),
    Element("int8", "UINT8", "", *_integer("s", "s8")),
    Element("int16", "UINT16"),
    Element("int32", "INT32", f"add min max {_BITS}", Packing(1, "i", INT32)),
    Element("int64", "INT64", "min max"),
    Element("uint8", "UINT8", "", *_integer("u", "u8")),
    Element("uint16", "UINT16"),
    Element("uint32", "UINT32", f"add min max inc dec {_BITS}"),
    Element("uint64", "UINT64", f"add min max {_BITS}"),
    Element("float16", "FLOAT16", "add min max", _F16, Operand("f16", "float16", majors=_BOTH)),
    Element("float32", "FLOAT32", "add", Packing(1, "f"), Operand("tf32", "tf32", ignored=13)),
    Element("float64", "FLOAT64", "add"),
    Element("bfloat16", "BFLOAT16", "add min max", _BF16, Operand("bf16", "bfloat16", majors=_BOTH)),
    Element("float8_e4m3fn", "UINT8", "", *_float8("e4m3", 448.0)),
    Element("float8_e5m2", "UINT8", "", *_float8("e5m2", 57344.0)),
)

ELEMENTS = {record.name: record for record in _RECORDS}
"""Element types of arrays, by name."""
BY_DTYPE = {record.dtype: record for record in _RECORDS}
OPERANDS = {record.operand.name: (record, record.operand) for record in _RECORDS if record.operand}
"""Operand types of wgmma, by their names in PTX, with what their records say of operands."""
TILES = tuple(record.dtype for record in _RECORDS if record.tile and record.dtype != BOOL)
"""Types of register tiles of an array's elements."""
HALVES = tuple(record.dtype for record in _RECORDS if record.tile and record.tile.computed == "h")
REDUCTIONS = {name: tuple(record.name for record in _RECORDS if name in record.reductions.split())
              for name in ("add", "min", "max", "inc", "dec", "and", "or", "xor")}
"""What the TMA can do with an element in global memory, and for which types."""


def _kind(family: str) -> str:
    """The types that may meet in a product, for messages."""
    alike = listed([record.name for record, kind in OPERANDS.values() if kind.family == family], "or")
    return alike + " (as tf32)" * (family == "tf32")


def operand(dtype: np.dtype[Any]) -> Operand | None:
    """A type as an operand of wgmma; None: it is none."""
    record = BY_DTYPE.get(dtype)
    return record.operand if record else None


def packing(dtype: np.dtype[Any]) -> Packing:
    """How a type lies in register tiles, of which there are some."""
    found = BY_DTYPE[dtype].tile
    assert found is not None
    return found


KINDS = tuple(map(_kind, dict.fromkeys(kind.family for _, kind in OPERANDS.values())))
"""Types whose products there are, by those that may meet."""
