"""Tile-level wgmma: products of shared-memory tiles added to an accumulator that stays in flight until it is waited for."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from ...arch.dtypes import BY_DTYPE, KINDS
from ...arch.dtypes import operand as element_operand
from ...core.machine import Mma, current
from ...core.op import op
from ...diagnostics.errors import SpecError
from ...intrinsics.wgmma import check_pending, descriptor
from ...plan.layout import Layout, Operand, operand
from .layouts import ACCUMULATOR, COLUMN, Form, only_accumulator
from .order import before_async
from .refs import SmemTile
from .tile import Tile

__all__ = ["wgmma", "wgmma_wait"]


def check(acc: Form | None, a: Layout | Form, b: Layout, a_dtype: np.dtype, b_dtype: np.dtype) -> Form:
    """Shapes and types a wgmma can take, or a SpecError naming the two that disagree; the form of its accumulator."""
    if isinstance(a, Form):
        _check_registers(a)
    one, other = element_operand(a_dtype), element_operand(b_dtype)
    if one is None or other is None or one.family != other.family:
        raise SpecError(f"wgmma: a and b must be of one kind: {'; '.join(KINDS)}; got {a_dtype} and {b_dtype}")
    if acc is not None and acc.dtype != one.sums:
        raise SpecError(f"wgmma: the accumulator must be {one.sums}, got {acc.dtype}")
    if a.shape[1] != b.shape[0]:
        raise SpecError(f"wgmma: a {a.shape} has K = {a.shape[1]}, b {b.shape} has K = {b.shape[0]}: b is (K, N), use b_tile.T "
                        "for a tile loaded as (N, K)")
    if acc is not None:
        only_accumulator(acc, "wgmma")
    if acc is not None and acc.shape != (a.shape[0], b.shape[1]):
        raise SpecError(f"wgmma: the accumulator is {acc.shape}, but a {a.shape} x b {b.shape} gives "
                        f"{(a.shape[0], b.shape[1])}")
    k = BY_DTYPE[a_dtype].k
    if a.shape[1] % k or a.shape[0] % 64 or b.shape[1] not in one.widths:
        raise SpecError(f"wgmma: a {a.shape} x b {b.shape}: M must be a multiple of 64, K of {k}, N of {one.unit} and at most 256")
    for name, layout, axis, kind in (("a", a, 0, one), ("b", b, 1, other)):
        if not isinstance(layout, Layout) or layout.inner != axis:
            continue
        if "mn" not in kind.majors:
            mend = ("np.ascontiguousarray(b.T), of shape (N, K), and multiply by b_tile.T" if name == "b" else
                    "np.ascontiguousarray(a), of shape (M, K), and multiply by a_tile")
            raise SpecError(f"wgmma: {name} {layout.shape} of {(a_dtype, b_dtype)[axis]} must be K-major, its elements along K "
                            f"contiguous, as 8-bit and tf32 operands are: pass {mend}")
        if layout.shape[layout.inner] % layout.per_panel:
            raise SpecError(f"wgmma: {name} {layout.shape} does not fill its {layout.width}-byte panels")
    return Form((a.shape[0], b.shape[1]), one.sums)


def _check_registers(a: Form) -> None:
    """SpecError unless a register tile is an A operand: of two dimensions, in the accumulator's layout, packed to 16 bits."""
    only_accumulator(a, "wgmma")
    if a.layout != ACCUMULATOR:
        lies = "rows (column" if a.layout == COLUMN else "columns (row"
        raise SpecError(f"wgmma: a {a.shape} lies along {lies} layout), the A operand is a tile (M, K) in the accumulator's "
                        "layout, packed: combine it with a tile first")
    kind = element_operand(a.dtype)
    if kind is None or not kind.from_registers:
        raise SpecError(f"wgmma: a is a {a.dtype} register tile in the accumulator's layout, and the A operand of registers is "
                        "that packed to 16 bits: write a.astype(b.dtype), which moves nothing between lanes, with b of float16 or "
                        "bfloat16")


def operands(*given: object) -> str:
    """Message for operands that are no tiles."""
    return ("wgmma(acc, a, b): acc is a register tile or None, a a shared-memory tile of a pipeline or a register tile, b a "
            f"shared-memory tile, got ({', '.join(map(str, given))})")


@functools.lru_cache(maxsize=256)
def steps(a: Operand, b: Operand) -> tuple[tuple[tuple[int, int], ...], ...]:
    """Descriptors at address 0 of every instruction of the batch: [64-row block][step of 32 bytes along K] -> (a, b)."""
    ca, cb = (descriptor(0, op.leading, op.stride, op.swizzle) for op in (a, b))
    return tuple(tuple((ca + (x >> 4), cb + (y >> 4)) for x, y in zip(row, b.offsets[0], strict=True)) for row in a.offsets)


@functools.lru_cache(maxsize=256)
def register_steps(rows: int, b: Operand) -> tuple[tuple[tuple[int, int], ...], ...]:
    """`steps` where A is in registers: its descriptors are 0."""
    cb = descriptor(0, b.leading, b.stride, b.swizzle)
    return tuple(tuple((0, cb + (y >> 4)) for y in b.offsets[0]) for _ in range(rows // 64))


@op(products="issues")
def wgmma(acc: Tile | None, a: SmemTile | Tile, b: SmemTile) -> Tile:
    """``acc + a @ b`` on the tensor cores, asynchronously (PTX ISA, "wgmma.mma_async").

    acc     float32 tile (M, N), of integers int32, M a multiple of 64; in flight afterwards: reading it before `wgmma_wait` is an
            error. Accumulators carried out of a pipeline loop are waited for at its end. None: the product alone, for which no
            register is set to zero.
    a       shared-memory tile (M, K), K a multiple of 32 bytes: float16 or bfloat16, in either major order; or K-major: float32,
            whose low 13 bits are ignored (tf32), a float8 type, int8 or uint8. Or a register tile of 16 bits: a float32 tile
            becomes one by `astype`, in the same lanes. Values are never overwritten: what a kernel calls by the same name while
            the product is in flight is another value, in other registers.
    b       shared-memory tile (K, N), ``b_tile.T`` for a tile loaded as (N, K): of a's type, of the other float8 type, or of the
            other sign

    Sums are float32 in the simulation; a tensor core keeps fewer bits of those of float8 products, some 14 of the largest. Those
    of integers are exact, and wrap.

    Each call is one wgmma group. Raises SpecError for shapes, types and layouts that do not fit.
    """
    if not (acc is None or isinstance(acc, Tile)) or not isinstance(a, (SmemTile, Tile)) or not isinstance(b, SmemTile):
        raise SpecError(operands(*(type(given).__name__ for given in (acc, a, b))))
    form = check(None if acc is None else acc.form, a.form if isinstance(a, Tile) else a.layout, b.layout, a.dtype, b.dtype)
    if b.memory or (acc is not None and acc.inert):
        return Tile(None, form.shape, form.dtype) if acc is None else acc
    machine = current()
    right, db = operand(b.layout, 0), b.address >> 4
    if isinstance(a, Tile):
        batch = Mma(form.shape[1], a.dtype, "k", right.major,
                    tuple(tuple((0, y + db) for _, y in row) for row in register_steps(form.shape[0], right)), b.dtype)
        rows: np.ndarray | None = a.value
        before_async(b)
    else:
        left, da = operand(a.layout, 1), a.address >> 4
        batch = Mma(form.shape[1], a.dtype, left.major, right.major,
                    tuple(tuple((x + da, y + db) for x, y in row) for row in steps(left, right)), b.dtype)
        rows = None
        before_async(a, b)
    machine.wgmma_fence()
    value = np.zeros(form.shape, form.dtype) if acc is None else acc._value
    assert value is not None
    result = machine.wgmma(value, batch) if rows is None else machine.wgmma(value, batch, rows)
    machine.wgmma_commit()
    return Tile(result, form.shape, form.dtype)


@op(products="waits")
def wgmma_wait(acc: Any, pending: int = 0) -> Any:
    """Wait until at most the newest `pending` wgmmas of this warpgroup are in flight (0…7); returns the accumulator.

    With ``pending=0`` the tile returned can be read (PTX ISA, "wgmma.wait_group"). Without `pending` a kernel waits for this
    accumulator: as many groups stay in flight as its source is sure to have issued behind it, on every way from the wgmma to here
    (`compile.waits`), and the tile can be read. `acc` may be a tuple with accumulators in it; anything that is neither is returned
    as it is.
    """
    check_pending(pending)
    if isinstance(acc, tuple):
        parts = [wgmma_wait(part, pending) for part in acc]
        return type(acc)(*parts) if hasattr(acc, "_fields") else tuple(parts)
    if not isinstance(acc, Tile) or acc.inert:
        return acc
    current().wgmma_wait(pending)
    return acc if pending or isinstance(acc._value, np.ndarray) else Tile(acc.value, acc.shape, acc.dtype)


@op(products="waits")
def wait_for(acc: Any, pending: int) -> Any:
    """``wgmma_wait(acc)``: of a tile that `pending` groups have been issued behind."""
    if not isinstance(acc, Tile) or acc.inert:
        return wgmma_wait(acc, 0)
    current().wgmma_wait(pending)
    return Tile(acc.value, acc.shape, acc.dtype, acc.layout)
