"""wgmma: the tensor core of a warpgroup multiplies tiles that lie in shared memory, asynchronously.

One instruction adds A (64 × K) times B (K × N), K being 32 bytes of them, to an accumulator D (64 ×
N) held by the 128 lanes, N/2 registers each. A and B are named by *descriptors* of shared memory.
Instructions are issued in groups and waited for in order::

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
`Accumulating` while a wgmma may still write it.

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
"""the most bytes that a descriptor field, 14 bits of 16-byte units, can hold"""


@dataclass(frozen=True)
class Accumulating:
    """A simulated m64nN accumulator with wgmma in flight."""

    n: int
    value: InFlight

    def read(self) -> np.ndarray:
        """float32 (64, n); raises PipelineRace until a wait has covered the group."""
        return self.value.read()


# ---- what is legal, in both executions -----------------------------------------------------------
def element(dtype: str) -> tuple[Element, Operand]:
    """Return the record of an element type by its name in PTX, and its `Operand`; SpecError for
    other names."""
    if dtype not in WGMMA.by_name:
        raise SpecError(
            f"wgmma: element type {dtype!r}; the instructions take "
            f"{listed(map(repr, WGMMA.by_name), 'or')}"
        )
    operand = WGMMA.by_name[dtype]
    return ELEMENTS[operand.element], operand


def legal_n(dtype: str) -> tuple[int, ...]:
    """Return every N of m64nN for an element type by its name in PTX, "f16", "e4m3" …: multiples of
    8 in 8 … 256; of "s8" and "u8" 8, 24 and multiples of 16.
    """
    return element(dtype)[1].widths


def check_n(n: int, dtype: str = "bf16") -> None:
    """Raise SpecError unless m64nN exists for the type."""
    kind = element(dtype)[1]
    if n not in kind.widths:
        raise SpecError(
            f"wgmma: n={n} for {dtype}; the instruction needs a multiple of {kind.unit} in 8 … 256"
        )


def check_major(operand: str, major: str, dtype: str = "bf16") -> None:
    """Raise SpecError unless `major` names the dimension that is contiguous, "k" or "mn", and the
    type may lie so."""
    if major not in _MAJORS:
        raise SpecError(
            f"wgmma: {operand}_major={major!r}; it is 'k' (rows along K are contiguous) or 'mn'"
        )
    if major not in element(dtype)[1].majors:
        raise SpecError(
            f"wgmma: {operand}_major={major!r} for {dtype}; operands of 8 bits and tf32 are 'k': "
            "rows along K are contiguous"
        )


def check_operands(n: int, dtype: str, a_major: str, b_major: str) -> None:
    """Raise SpecError unless wgmma has this N, type and major orders, with a float32
    accumulator."""
    check_n(n, dtype)
    check_major("a", a_major, dtype)
    check_major("b", b_major, dtype)
    if element(dtype)[1].sums != FLOAT32:
        raise SpecError(
            f"wgmma: sums of {dtype} are int32, which `accumulators` has not: use numpipe.wgmma"
        )


def check_pending(n: int) -> None:
    """Raise SpecError unless `n` groups can stay in flight."""
    if not whole(0, 7).holds(n):
        raise SpecError(
            f"wgmma.wait_group: n={told(n)}; the number of groups that may stay in flight is 0 … 7"
        )


def check_field(name: str, value: int) -> None:
    """Raise SpecError unless `value` bytes fit a descriptor field."""
    if value % 16 or not 0 <= value <= _FIELD:
        raise SpecError(
            f"wgmma.descriptor: {name}={value}; it needs a multiple of 16 bytes in 0 … "
            f"{_FIELD & ~15}"
        )


def swizzle_mode(swizzle: int) -> int:
    """Return bits 62–63 of a descriptor for a swizzle of 0, 32, 64 or 128 bytes."""
    if swizzle not in _SWIZZLE_MODES:
        raise SpecError(
            f"wgmma.descriptor: swizzle={swizzle}; the hardware has 0 (none), 32, 64 and 128 bytes"
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
    """Return the text of one ``wgmma.mma_async`` m64nNk16 statement; for code generators.

    `dtype` is that of A and B by its name in PTX, or both, "e4m3.e5m2". `registers` names the n/2
    accumulator registers, `a` and `b` the descriptors. `a` may also be a vector of four 32-bit
    registers, ``"{a0, a1, a2, a3}"``: A then comes from registers, is K-major and of 16 bits, and
    the statement has no transpose flag for it. `scale_d` is ``"1"``, ``"0"`` (D = A B, what D held
    is ignored) or the name of a predicate.

    >>> statement(8, "bf16", "k", "mn", ["d0", "d1", "d2", "d3"], "da", "db")
    'wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {d0, d1, d2, d3}, da, db, 1, 1, 1, 0, 1;'
    >>> statement(8, "s8.u8", "k", "k", ["d0", "d1", "d2", "d3"], "da", "db")
    'wgmma.mma_async.sync.aligned.m64n8k32.s32.s8.u8 {d0, d1, d2, d3}, da, db, 1;'

    PTX ISA: wgmma.mma_async.
    """
    of_a, _, of_b = dtype.partition(".")
    of_b = of_b or of_a
    (record, left), (_, right) = element(of_a), element(of_b)
    if left.family != right.family:
        raise SpecError(f"wgmma: {of_a} and {of_b} have no product")
    check_n(n, of_a)
    check_major("a", a_major, of_a)
    check_major("b", b_major, of_b)
    if len(registers) != n // 2:
        raise SpecError(
            f"wgmma: {len(registers)} accumulator registers for n={n}; m64n{n} needs {n // 2}"
        )
    from_registers = a.lstrip().startswith("{")
    if from_registers and (a_major != "k" or not left.from_registers):
        raise SpecError(
            f"wgmma: a_major={a_major!r} of {of_a} with A in registers; there A is of 16 bits, "
            "and only A in shared memory can be transposed"
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
    """Order earlier register accesses to accumulators before the wgmma that follow. Scope: the
    warpgroup.

    Needed before the first wgmma of a batch, and whenever the accumulator's registers were written
    since; no tool reports that it is missing. The compiler may still move what writes a register
    (the zeros of `accumulators`) behind it; ptxas then serialises every wgmma (note C7515).
    `fence_accumulators` rules that out. PTX ISA: wgmma.fence.
    """
    current().wgmma_fence()


@ptx("wgmma.commit_group.sync.aligned;")
def commit_group() -> None:
    """Close the open group: the wgmma since the last commit. Scope: the warpgroup. PTX ISA:
    wgmma.commit_group."""
    current().wgmma_commit()


@ptx("wgmma.wait_group.sync.aligned $n;", check=check_pending, n="n")
def wait_group(n: int) -> None:
    """Block until at most the newest `n` groups (an immediate, 0 … 7) are in flight. Scope: the
    warpgroup.

    To read an accumulator use `wait`, which also keeps the compiler from moving the reads ahead.
    PTX ISA: wgmma.wait_group.
    """
    current().wgmma_wait(n)


@op
def accumulators(n: int) -> Any:
    """Return a zeroed accumulator of m64nN. Scope: the warpgroup.

    `n` is an immediate. GPU: a tuple of n/2 float32; simulator: a float32 array (64, n).

    >>> accumulators(16).shape
    (64, 16)

    PTX ISA: wgmma.mma_async, "Register Fragments".
    """
    check_n(n)
    return np.zeros((WGMMA.rows, n), np.float32)


@op
def fence_accumulators(acc: Any) -> Any:
    """`fence`, after everything that writes the registers of `acc`; returns `acc`. Scope: the
    warpgroup.

    On the GPU the registers pass through the statement. PTX ISA: wgmma.fence.
    """
    current().wgmma_fence()
    return acc


@op
def mma_async(acc: Any, a_desc: int, b_desc: int, dtype: str, a_major: str, b_major: str) -> Any:
    """Issue D = A B + D, one instruction, and return D. Scope: the warpgroup, converged.

    `acc` comes from `accumulators`, `mma_async` or `wait`, and says what N is. `a_desc` and
    `b_desc` are descriptors; the immediates are `dtype` ("f16", "bf16", "tf32", "e4m3" or "e5m2",
    whose sums are float32) and the majors: "k" where K is contiguous in shared memory, "mn" where M
    (of A) or N (of B) is, of 16-bit types. D must not be read, and A and B not be overwritten,
    before a `wait`::

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
    """Block until at most the newest `n` groups (an immediate, 0 … 7) are in flight; return `acc`.

    Scope: the warpgroup. What is returned may be read if the group that writes it is covered; on
    the GPU its registers pass through the statement, so no read moves ahead of it. The simulator
    returns the array after ``wait(acc, 0)``; with n > 0 it is still an `Accumulating`, whose
    ``read()`` checks. PTX ISA: wgmma.wait_group.
    """
    check_pending(n)
    current().wgmma_wait(n)
    return acc.read() if n == 0 and isinstance(acc, Accumulating) else acc


@op
def descriptor(addr: int, leading_bytes: int, stride_bytes: int, swizzle: int) -> int:
    """Return the 64-bit matrix descriptor of a tile in shared memory, as an int64. Scope: a lane;
    uniform in the warpgroup.

    ===========  ===================================================================================
    bits         field
    ===========  ===================================================================================
    0 – 13       `addr` / 16: where the tile starts
    16 – 29      `leading_bytes` / 16: from one swizzle atom (or 8 × 16-byte core matrix, without
                 swizzle) to the next along the contiguous dimension; ignored for K-major tiles with
                 a swizzle
    32 – 45      `stride_bytes` / 16: from one group of 8 rows to the next
    62 – 63      swizzle: 1 = 128, 2 = 64, 3 = 32 bytes, 0 = none (an immediate)
    ===========  ===================================================================================

    `addr` may point inside the first row of an atom (that is how steps along K are taken: + 32
    bytes), the atoms themselves are aligned to 8 × `swizzle` bytes. A K-major tile with rows of 128
    bytes has a stride of 8 × 128:

    >>> hex(descriptor(0x8400, 16, 1024, 128))
    '0x4000004000010840'

    Swizzle 64 and 32 set bit 63: those int64 are negative, in both executions. PTX ISA: "Matrix
    Descriptor Format".
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
