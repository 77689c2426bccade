"""Records of matrix products: an instruction of the tensor cores, with its shapes, types and rates,
and what the build gate expects in its machine code.

A target lists its products (`Target.products`). Code that issues, simulates, checks or times a
product reads its record.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

import numpy as np

from .dimensions import Ints, Names
from .dtypes import BY_DTYPE, ELEMENTS, FLOAT32, FLOAT64, INT32, Element, listed
from .register_layouts import FRAGMENTS, RegisterLayout

EIGHTS = tuple(range(8, 257, 8))
INTEGER_WIDTHS = (8, 16, 24, *range(32, 257, 16))


@dataclass(frozen=True)
class Operand:
    """An element type as an operand of a product.

    element  name of its `Element`
    name     name of the type in the instruction
    family   operands of the same family may be multiplied with each other
    opcode   opcode of the product in machine code
    sums     type of the accumulator
    majors   orders that a tile in shared memory may have: "k", its rows along K are contiguous, or
             "mn"
    widths   every N that the instruction has
    ignored  how many low bits of an element the tensor core ignores
    made_k   K of the instruction in machine code, if ptxas changes it
    """

    element: str
    name: str
    family: str
    opcode: str = "HGMMA"
    sums: np.dtype = FLOAT32
    majors: Names = ("k",)
    widths: Ints = EIGHTS
    ignored: int = 0
    made_k: int = 0

    @property
    def unit(self) -> str:
        """The number that N must be a multiple of, for messages."""
        return "8" if self.widths == EIGHTS else "16, or 8 or 24,"

    @property
    def from_registers(self) -> bool:
        """Whether A may be a register tile instead of a tile in shared memory: only for 16-bit
        types."""
        return "mn" in self.majors


@dataclass(frozen=True)
class Groups:
    """How to recognize the waits of an asynchronous product in PTX and in machine code.

    wait    regular expression for a wait in PTX; captures the number of groups left in flight
    waited  SASS opcode of a wait; `left` is the regular expression for its number
    fence   the PTX statement that begins a group
    begun   SASS opcode of this statement
    """

    wait: str
    waited: str
    left: str
    fence: str
    begun: str


@dataclass(frozen=True)
class Product:
    """An instruction that multiplies matrices.

    name           of its family in PTX
    statement      its name in PTX, up to the shape
    written        pattern of a statement in PTX: M, N, K, and the name of A's type
    made           the shape in its opcodes in machine code, in terms of M, N and K
    rows           M of one instruction
    k_bytes        bytes of K that one instruction multiplies
    accumulator    the register layout of its sums
    operands       the types that it supports
    multiply_adds  16-bit multiply-adds that all tensor cores of an SM do in a cycle
    smem_rate      bytes per cycle that the tensor cores read from shared memory
    tile           M and N of an instruction of one warp; None: the instruction belongs to a
                   warpgroup, with `rows` x any N
    loads          the instructions by which a warp loads its operands ("ldmatrix",
                   "ld.shared.v2"); "": the tensor cores read shared memory themselves
    order          the orders of A and B in PTX, after the shape
    groups         how to wait for products; None: a product is complete when the next instruction
                   begins
    """

    name: str
    statement: str
    written: str
    made: str
    rows: int
    k_bytes: int
    accumulator: RegisterLayout
    operands: tuple[Operand, ...]
    multiply_adds: int
    smem_rate: int
    groups: Groups | None = None
    tile: tuple[int, int] | None = None
    loads: str = ""
    order: str = ""

    @functools.cached_property
    def by_dtype(self) -> dict[np.dtype, Operand]:
        return {ELEMENTS[operand.element].dtype: operand for operand in self.operands}

    @functools.cached_property
    def by_name(self) -> dict[str, Operand]:
        """Its operand types by their names in PTX."""
        return {operand.name: operand for operand in self.operands}

    def operand(self, dtype: np.dtype) -> Operand | None:
        """Return the record of a type as an operand, or None if the product does not support the
        type."""
        return self.by_dtype.get(dtype)

    @property
    def kinds(self) -> Names:
        """The types that may be multiplied with each other, as messages list them."""
        families = dict.fromkeys(operand.family for operand in self.operands)
        return tuple(
            listed([each.element for each in self.operands if each.family == family], "or")
            + " (as tf32)" * (family == "tf32")
            for family in families
        )

    @property
    def widest(self) -> int:
        """The largest N of any type."""
        return max(operand.widths[-1] for operand in self.operands)

    @property
    def opcodes(self) -> str:
        """A regular expression that matches its opcodes in machine code: ``HGMMA|IGMMA|…``."""
        return "|".join(sorted({operand.opcode for operand in self.operands}))

    def computed(self, value: np.ndarray) -> np.ndarray:
        """Return elements with the values that the product uses, in a type that holds them:
        float32, or float64 for integers and float64."""
        operand = self.by_dtype[value.dtype]
        if operand.ignored:
            bits = value.view(np.uint32) & np.uint32(-1 << operand.ignored & 0xFFFFFFFF)
            value = bits.view(value.dtype)
        return value.astype(FLOAT32 if operand.sums == FLOAT32 else np.float64, copy=False)

    def expected(self, m: str, n: str, k: str, name: str) -> str:
        """Return the opcode and shape in machine code of a PTX statement, given M, N, K and A's
        type.

        >>> WGMMA.expected("64", "128", "16", "bf16"), MMA_SYNC.expected("16", "8", "32", "e4m3")
        ('HGMMA 64x128x16', 'HMMA 16816')
        """
        operand = self.by_name[name]
        return f"{operand.opcode} {self.made.format(m, n, operand.made_k or k)}"

    def k(self, dtype: np.dtype) -> int:
        """Return how many elements of K one instruction multiplies.

        >>> WGMMA.k(np.dtype(np.float16))
        16
        """
        return BY_DTYPE[dtype].count(self.k_bytes)

    def rate(self, element: Element) -> int:
        """Return how many multiply-adds on elements of a type an SM does in a cycle. An instruction
        takes the same time for any type.

        >>> [WGMMA.rate(ELEMENTS[name]) for name in ("int8", "float16", "float32")]
        [4096, 2048, 1024]
        """
        return self.multiply_adds * 16 // element.bits

    def cycles(self, n: int) -> float:
        """Return the cycles of an instruction with both operands in shared memory: the time to
        multiply, or the time to read the operands if that is longer."""
        return max(
            self.rows * n * self.k_bytes / 2 / self.multiply_adds,
            (self.rows + n) * self.k_bytes / self.smem_rate,
        )


_BOTH = "k", "mn"

WGMMA = Product(
    "wgmma",
    "wgmma.mma_async.sync.aligned",
    written=r"wgmma\.mma_async\.sync\.aligned\.m(\d+)n(\d+)k(\d+)\.\w+\.(\w+)",
    made="{}x{}x{}",
    rows=64,
    k_bytes=32,
    accumulator=FRAGMENTS,
    operands=(
        Operand("int8", "s8", "8-bit integers", "IGMMA", INT32, widths=INTEGER_WIDTHS),
        Operand("uint8", "u8", "8-bit integers", "IGMMA", INT32, widths=INTEGER_WIDTHS),
        Operand("float16", "f16", "float16", majors=_BOTH),
        Operand("float32", "tf32", "tf32", ignored=13),
        Operand("bfloat16", "bf16", "bfloat16", majors=_BOTH),
        Operand("float8_e4m3fn", "e4m3", "float8", "QGMMA"),
        Operand("float8_e5m2", "e5m2", "float8", "QGMMA"),
    ),
    multiply_adds=2048,
    smem_rate=128,
    groups=Groups(
        r"wgmma\.wait_group\.sync\.aligned\s+(\d+)",
        r"WARPGROUP\.DEPBAR",
        r"gsb0, (0x[0-9a-f]+)",
        "wgmma.fence.sync.aligned",
        r"WARPGROUP\.ARRIVE",
    ),
)
"""The product of a Hopper warpgroup (PTX ISA, "Asynchronous Warpgroup Level Matrix
Multiply-Accumulate")."""


MMA_SYNC = Product(
    "mma.sync",
    "mma.sync.aligned",
    written=r"mma\.sync\.aligned\.m(\d+)n(\d+)k(\d+)\.row\.col\.\w+\.(\w+)",
    made="{}{}{}",
    rows=64,
    k_bytes=32,
    accumulator=FRAGMENTS,
    operands=(
        Operand("int8", "s8", "8-bit integers", "IMMA", INT32),
        Operand("uint8", "u8", "8-bit integers", "IMMA", INT32),
        Operand("float16", "f16", "float16", "HMMA", majors=_BOTH),
        Operand("float32", "tf32", "tf32", "HMMA", ignored=13),
        Operand("bfloat16", "bf16", "bfloat16", "HMMA", majors=_BOTH),
        # Hopper converts the elements to float16, and multiplies with two instructions
        Operand("float8_e4m3fn", "e4m3", "float8", "HMMA", made_k=16),
        Operand("float8_e5m2", "e5m2", "float8", "HMMA", made_k=16),
    ),
    multiply_adds=1024,
    smem_rate=128,
    tile=(16, 8),
    loads="ldmatrix",
    order=".row.col",
)
"""The product of a warp, whose operands are registers that ldmatrix fills (PTX ISA, "Matrix
Fragments for mma.m16n8k16")."""

MMA_SYNC_F64 = replace(
    MMA_SYNC,
    made="{}x{}x{}",
    k_bytes=128,
    operands=(Operand("float64", "f64", "float64", "DMMA", FLOAT64),),
    multiply_adds=512,
    loads="ld.shared.v2",
)
"""The product of float64: m16n8k16, with 16 elements along K (PTX ISA, "Matrix Fragments for
mma.m16n8k16 with floating point type")."""
