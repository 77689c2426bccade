"""wgmma: asynchronous multiplication of tiles in shared memory by the tensor core of a warpgroup.

One instruction adds the product of A (64 × K) and B (K × N), where K is 32 bytes of elements, to an
accumulator D (64 × N) held by the 128 lanes in N/2 registers each. A and B are given by
shared-memory *descriptors*. Instructions are issued in groups, which are waited for in order::

    acc = wgmma.fence_accumulators(
        wgmma.accumulators(128)
    )  # before the first one that touches acc
    for k in range(4):
        acc = wgmma.mma_async(
            acc, a_desc + 2 * k, b_desc + 2 * k, "bf16", "k", "k"
        )  # 16 elements are 32 B: + 2
    wgmma.commit_group()
    acc = wgmma.wait(acc, 0)  # only now may acc be read, and A, B overwritten

Accumulator register i of lane t of warp w is row 16 w + t // 4 + 8 (i // 2 % 2), column 8 (i // 4)
+ 2 (t % 4) + i % 2. On the simulator an accumulator is a float32 array (64, N), or an
`Accumulating` while a wgmma may still be writing it.

PTX ISA, "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from numpipe.arch.dtypes import ELEMENTS, FLOAT32, Element, listed
from numpipe.arch.products import WGMMA, Operand
from numpipe.core.machine import InFlight, Mma, current
from numpipe.core.op import op, ptx
from numpipe.diagnostics.argument_checks import told, whole
from numpipe.diagnostics.errors import SpecError

_MAJORS = ("k", "mn")
_SWIZZLE_MODES = {0: 0, 128: 1, 64: 2, 32: 3}
_FIELD = 0x3FFFF
"""largest number of bytes in a descriptor field, which has 14 bits in units of 16 bytes"""


@dataclass(frozen=True)
class Accumulating:
    """A simulated m64nN accumulator with a wgmma in flight."""

    n: int
    value: InFlight

    def read(self) -> np.ndarray:
        """Return the float32 array (64, n). Raises PipelineRace until a wait has covered the
        group."""
        return self.value.read()


# ---- checks for the GPU and the simulation -------------------------------------------------------
def element(dtype: str) -> tuple[Element, Operand]:
    """Return the record and the `Operand` of an element type, given its PTX name. Raises SpecError
    for other names."""
    if dtype not in WGMMA.by_name:
        raise SpecError(
            f"wgmma: element type must be {listed(map(repr, WGMMA.by_name), 'or')}, got {dtype!r}"
        )
    operand = WGMMA.by_name[dtype]
    return ELEMENTS[operand.element], operand


def legal_n(dtype: str) -> tuple[int, ...]:
    """Return all valid N of m64nN for an element type, given its PTX name ("f16", "e4m3", …). They
    are the multiples of 8 in 8 … 256; for "s8" and "u8" only 8, 24 and the multiples of 16.
    """
    return element(dtype)[1].widths


def check_n(n: int, dtype: str = "bf16") -> None:
    """Raise SpecError unless m64nN exists for the type."""
    kind = element(dtype)[1]
    if n not in kind.widths:
        raise SpecError(
            f"wgmma: n must be a multiple of {kind.unit} in 8 … 256 for {dtype}, got {n}"
        )


def check_major(operand: str, major: str, dtype: str = "bf16") -> None:
    """Raise SpecError unless `major` names the contiguous dimension, "k" or "mn", and the element
    type supports it."""
    if major not in _MAJORS:
        raise SpecError(
            f"wgmma: {operand}_major must be 'k' (rows along K are contiguous) or 'mn', got "
            f"{major!r}"
        )
    if major not in element(dtype)[1].majors:
        raise SpecError(
            f"wgmma: {operand}_major={major!r} for {dtype}: 8-bit and tf32 operands must be 'k' "
            "(rows along K are contiguous)"
        )


def check_operands(n: int, dtype: str, a_major: str, b_major: str) -> None:
    """Raise SpecError unless wgmma supports this N, element type and major orders with a float32
    accumulator."""
    check_n(n, dtype)
    check_major("a", a_major, dtype)
    check_major("b", b_major, dtype)
    if element(dtype)[1].sums != FLOAT32:
        raise SpecError(
            f"wgmma: sums of {dtype} are int32, which `accumulators` does not support: use "
            "numpipe.wgmma"
        )


def check_pending(n: int) -> None:
    """Raise SpecError unless `n` is a valid number of groups in flight."""
    if not whole(0, 7).holds(n):
        raise SpecError(
            "wgmma.wait_group: n must be in 0 … 7, the number of groups that may stay in flight, "
            f"got {told(n)}"
        )


def check_field(name: str, value: int) -> None:
    """Raise SpecError unless `value` bytes fit a descriptor field."""
    if value % 16 or not 0 <= value <= _FIELD:
        raise SpecError(
            f"wgmma.descriptor: {name} must be a multiple of 16 bytes in 0 … {_FIELD & ~15}, "
            f"got {value}"
        )


def swizzle_mode(swizzle: int) -> int:
    """Return bits 62–63 of a descriptor for a swizzle of 0, 32, 64 or 128 bytes."""
    if swizzle not in _SWIZZLE_MODES:
        raise SpecError(
            f"wgmma.descriptor: swizzle must be 0 (none), 32, 64 or 128 bytes, got {swizzle}"
        )
    return _SWIZZLE_MODES[swizzle]


def statement(
    n: int,
    dtype: str,
    a_major: str,
    b_major: str,
    registers: Sequence[str],
    a: str,
    b: str,
    scale_d: str = "1",
) -> str:
    """Return the text of one ``wgmma.mma_async`` m64nNk16 statement, for code generators.

    `dtype` is the PTX name of the element type of A and B, or both names, "e4m3.e5m2". `registers`
    names the n/2 accumulator registers, `a` and `b` the descriptors. `a` may also be a vector of
    four 32-bit registers, ``"{a0, a1, a2, a3}"``. A then comes from registers, must be K-major with
    16-bit elements, and the statement has no transpose flag for it. `scale_d` is ``"1"``, ``"0"``
    (D = A B, ignoring the previous D) or the name of a predicate.

    >>> print(statement(8, "bf16", "k", "mn", ["d0", "d1", "d2", "d3"], "da", "db"))
    wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {d0, d1, d2, d3}, da, db, 1, 1, 1, 0, 1;
    >>> statement(8, "s8.u8", "k", "k", ["d0", "d1", "d2", "d3"], "da", "db")
    'wgmma.mma_async.sync.aligned.m64n8k32.s32.s8.u8 {d0, d1, d2, d3}, da, db, 1;'

    PTX ISA: wgmma.mma_async.
    """
    of_a, _, of_b = dtype.partition(".")
    of_b = of_b or of_a
    (record, left), (_, right) = element(of_a), element(of_b)
    if left.family != right.family:
        raise SpecError(f"wgmma: {of_a} and {of_b} cannot be multiplied: use types of one family")
    check_n(n, of_a)
    check_major("a", a_major, of_a)
    check_major("b", b_major, of_b)
    if len(registers) != n // 2:
        raise SpecError(
            f"wgmma: m64n{n} needs {n // 2} accumulator registers, got {len(registers)}"
        )
    from_registers = a.lstrip().startswith("{")
    if from_registers and (a_major != "k" or not left.from_registers):
        raise SpecError(
            f"wgmma: a_major={a_major!r} of {of_a} with A in registers: there A must have 16-bit "
            "elements, and only A in shared memory can be transposed"
        )
    transposed = (() if from_registers else (a_major,)) + (b_major,) if "mn" in left.majors else ()
    flags = [
        scale_d,
        *["1", "1"] * (left.sums == FLOAT32),
        *(str(int(major == "mn")) for major in transposed),
    ]
    sums = "f32" if left.sums == FLOAT32 else "s32"
    return (
        f"{WGMMA.statement}.m{WGMMA.rows}n{n}k{WGMMA.k(record.dtype)}.{sums}.{of_a}.{of_b} "
        f"{{{', '.join(registers)}}}, {a}, {b}, {', '.join(flags)};"
    )


# ---- operations ----------------------------------------------------------------------------------
@ptx("wgmma.fence.sync.aligned;")
def fence() -> None:
    """Order earlier register accesses to accumulators before the following wgmma. Scope: the
    warpgroup.

    It is needed before the first wgmma of a batch, and whenever the accumulator's registers have
    been written since; no tool reports that it is missing. The compiler may still move a write to a
    register (such as the zeros of `accumulators`) after it, in which case ptxas serializes every
    wgmma (note C7515). `fence_accumulators` prevents that. PTX ISA: wgmma.fence.
    """
    current().wgmma_fence()


@ptx("wgmma.commit_group.sync.aligned;")
def commit_group() -> None:
    """Close the open group, which contains the wgmma since the last commit. Scope: the warpgroup.
    PTX ISA: wgmma.commit_group."""
    current().wgmma_commit()


@ptx("wgmma.wait_group.sync.aligned $n;", check=check_pending, n="n")
def wait_group(n: int) -> None:
    """Block until all but the newest `n` groups (an immediate, 0 … 7) are finished. Scope: the
    warpgroup.

    To read an accumulator, use `wait`, which also keeps the compiler from moving reads before the
    wait. PTX ISA: wgmma.wait_group.
    """
    current().wgmma_wait(n)


@op
def accumulators(n: int) -> Any:
    """Return a zeroed accumulator of m64nN. Scope: the warpgroup.

    `n` is an immediate. On the GPU it is a tuple of n/2 float32, on the simulator a float32 array
    (64, n).

    >>> accumulators(16).shape
    (64, 16)

    PTX ISA: wgmma.mma_async, "Register Fragments".
    """
    check_n(n)
    return np.zeros((WGMMA.rows, n), np.float32)


@op
def fence_accumulators(acc: Any) -> Any:
    """Execute a `fence` after all writes to the registers of `acc`, and return `acc`. Scope: the
    warpgroup.

    On the GPU the registers are operands of the statement. PTX ISA: wgmma.fence.
    """
    current().wgmma_fence()
    return acc


@op
def mma_async(acc: Any, a_desc: int, b_desc: int, dtype: str, a_major: str, b_major: str) -> Any:
    """Issue D = A B + D as one instruction, and return D. Scope: the warpgroup, converged.

    `acc` is the result of `accumulators`, `mma_async` or `wait`, and determines N. `a_desc` and
    `b_desc` are descriptors. The immediates are `dtype` ("f16", "bf16", "tf32", "e4m3" or "e5m2",
    whose sums are float32) and the majors: "k" if K is contiguous in shared memory, or for 16-bit
    types "mn" if M (of A) or N (of B) is. Before a `wait`, D must not be read, and A and B must not
    be overwritten::

        acc = wgmma.mma_async(acc, a_desc, b_desc, "f16", "k", "mn")

    PTX ISA: wgmma.mma_async.
    """
    n = acc.n if isinstance(acc, Accumulating) else acc.shape[1]
    check_operands(n, dtype, a_major, b_major)
    mma = Mma(
        n,
        element(dtype)[0].dtype,
        cast(Any, a_major),
        cast(Any, b_major),
        (((int(a_desc), int(b_desc)),),),
    )
    return Accumulating(
        n, current().wgmma(acc.value if isinstance(acc, Accumulating) else acc, mma)
    )


@op
def wait(acc: Any, n: int) -> Any:
    """Block until all but the newest `n` groups (an immediate, 0 … 7) are finished, and return
    `acc`.

    Scope: the warpgroup. The result may be read if the wait covers the group that writes it; on the
    GPU its registers are operands of the statement, so no read can move before it. The simulator
    returns the array after ``wait(acc, 0)``; for n > 0 it returns an `Accumulating`, whose
    ``read()`` checks. PTX ISA: wgmma.wait_group.
    """
    check_pending(n)
    current().wgmma_wait(n)
    return acc.read() if n == 0 and isinstance(acc, Accumulating) else acc


@op
def descriptor(addr: int, leading_bytes: int, stride_bytes: int, swizzle: int) -> int:
    """Return the 64-bit matrix descriptor of a tile in shared memory, as an int64. Scope: a lane;
    must be the same for the whole warpgroup.

    ===========  ===================================================================================
    bits         field
    ===========  ===================================================================================
    0 – 13       `addr` / 16, the start of the tile
    16 – 29      `leading_bytes` / 16: from one swizzle atom (or 8 × 16-byte core matrix, without
                 swizzle) to the next along the contiguous dimension; ignored for K-major tiles with
                 a swizzle
    32 – 45      `stride_bytes` / 16: from one group of 8 rows to the next
    62 – 63      swizzle: 1 = 128, 2 = 64, 3 = 32 bytes, 0 = none (an immediate)
    ===========  ===================================================================================

    `addr` may point inside the first row of an atom (steps along K add 32 bytes); the atoms
    themselves are aligned to 8 × `swizzle` bytes. A K-major tile with rows of 128 bytes has a
    stride of 8 × 128:

    >>> hex(descriptor(0x8400, 16, 1024, 128))
    '0x4000004000010840'

    Swizzles 64 and 32 set bit 63, so those int64 values are negative, on the GPU and on the
    simulator. PTX ISA: "Matrix Descriptor Format".
    """
    for name, value in (
        ("leading_bytes", leading_bytes),
        ("stride_bytes", stride_bytes),
        ("addr", addr),
    ):
        check_field(name, int(value))
    mode = swizzle_mode(swizzle)
    signed = mode - 4 if mode >= 2 else mode
    return (
        int(addr) >> 4
        | (int(leading_bytes) >> 4) << 16
        | (int(stride_bytes) >> 4) << 32
        | signed << 62
    )
