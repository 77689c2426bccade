"""Tile-level wgmma: products of shared-memory tiles added to an accumulator that stays in flight until it is waited for."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from .._layout import Layout, Operand, operand
from .._machine import Mma, current
from .._op import op
from ..errors import SpecError
from ..intrinsics.wgmma import check_pending, descriptor
from ..refs import SmemTile
from .order import before_async
from .tile import BFLOAT16, FLOAT16, FLOAT32, Tile


def check(acc_shape: tuple[int, ...], acc_dtype: np.dtype, a: Layout, b: Layout, a_dtype: np.dtype, b_dtype: np.dtype) -> None:
    """Shapes and types a wgmma can take, or a SpecError naming the two that disagree."""
    if acc_dtype != FLOAT32:
        raise SpecError(f"wgmma: the accumulator must be float32, got {acc_dtype}")
    if a_dtype != b_dtype or a_dtype not in (FLOAT16, BFLOAT16):
        raise SpecError(f"wgmma: a and b must both be float16 or both bfloat16, got {a_dtype} and {b_dtype}")
    if a.shape[1] != b.shape[0]:
        raise SpecError(f"wgmma: a {a.shape} has K = {a.shape[1]}, b {b.shape} has K = {b.shape[0]}: b is (K, N), use b_tile.T "
                        "for a tile loaded as (N, K)")
    if acc_shape != (a.shape[0], b.shape[1]):
        raise SpecError(f"wgmma: the accumulator is {acc_shape}, but a {a.shape} x b {b.shape} gives "
                        f"{(a.shape[0], b.shape[1])}")
    if a.shape[1] % 16 or a.shape[0] % 64 or b.shape[1] % 8 or b.shape[1] > 256:
        raise SpecError(f"wgmma: a {a.shape} x b {b.shape}: M must be a multiple of 64, K of 16, N of 8 and at most 256")
    for name, layout in (("a", a), ("b", b)):
        if layout.inner == (0 if name == "a" else 1) and layout.shape[layout.inner] % layout.per_panel:
            raise SpecError(f"wgmma: {name} {layout.shape} does not fill its {layout.width}-byte panels")


def operands(*given: object) -> str:
    """Message for operands that are no tiles."""
    return ("wgmma(acc, a, b): acc is a register tile, a and b are shared-memory tiles of a pipeline, got "
            f"({', '.join(map(str, given))})")


@functools.lru_cache(maxsize=256)
def steps(a: Operand, b: Operand) -> tuple[tuple[tuple[int, int], ...], ...]:
    """Descriptors at address 0 of every instruction of the batch: [64-row block][k16 step] -> (a, b)."""
    ca, cb = (descriptor(0, op.leading, op.stride, op.swizzle) for op in (a, b))
    return tuple(tuple((ca + (x >> 4), cb + (y >> 4)) for x, y in zip(row, b.offsets[0], strict=True)) for row in a.offsets)


@op
def wgmma(acc: Tile, a: SmemTile, b: SmemTile) -> Tile:
    """``acc + a @ b`` on the tensor cores, asynchronously (PTX ISA, "wgmma.mma_async").

    acc     float32 tile (M, N), M a multiple of 64; in flight afterwards: reading it before `wgmma_wait` is an error.
            Accumulators carried out of a pipeline loop are waited for at its end.
    a       shared-memory tile (M, K), float16 or bfloat16, K a multiple of 16, either major order
    b       shared-memory tile (K, N): ``b_tile.T`` for a tile loaded as (N, K)

    Each call is one wgmma group. Raises SpecError for shapes or types that do not fit.
    """
    if not isinstance(acc, Tile) or not isinstance(a, SmemTile) or not isinstance(b, SmemTile):
        raise SpecError(operands(type(acc).__name__, type(a).__name__, type(b).__name__))
    check(acc.shape, acc.dtype, a.layout, b.layout, a.dtype, b.dtype)
    if acc.inert:
        return acc
    machine = current()
    left, right = operand(a.layout, 1), operand(b.layout, 0)
    da, db = a.address >> 4, b.address >> 4
    batch = Mma(acc.shape[1], a.dtype, left.major, right.major,
                tuple(tuple((x + da, y + db) for x, y in row) for row in steps(left, right)))
    before_async(a, b)
    machine.wgmma_fence()
    assert acc._value is not None
    result = machine.wgmma(acc._value, batch)
    machine.wgmma_commit()
    return Tile(result, acc.shape, FLOAT32)


@op
def wgmma_wait(acc: Any, pending: int) -> Any:
    """Wait until at most the newest `pending` wgmmas of this warpgroup are in flight (0…7); returns the accumulator.

    With ``pending=0`` the tile returned can be read (PTX ISA, "wgmma.wait_group"). `acc` may be a tuple with accumulators in
    it; anything that is neither is returned as it is.
    """
    check_pending(pending)
    if isinstance(acc, tuple):
        parts = [wgmma_wait(part, pending) for part in acc]
        return type(acc)(*parts) if hasattr(acc, "_fields") else tuple(parts)
    if not isinstance(acc, Tile) or acc.inert:
        return acc
    current().wgmma_wait(pending)
    return acc if pending or isinstance(acc._value, np.ndarray) else Tile(acc.value, acc.shape, acc.dtype)
