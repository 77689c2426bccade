"""wgmma and mma on the GPU. All instructions of a wgmma product are one block of inline PTX, whose
inputs and outputs are the accumulator's registers."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from ...arch.products import WGMMA
from ...arch.register_layouts import LANES
from ...core import numba as nb
from ...core.op import cuda_meaning
from ...intrinsics.wgmma import check_pending, statement
from ...intrinsics.wgmma import descriptor as fields
from ...plan import nested_tuples_cuda as trees
from ...plan.context_cuda import uniform
from ...plan.layout import Operand, operand
from . import mma as source
from .fence_order import before_access, before_async
from .fragments_cuda import multiplied
from .layouts import Form
from .refs_cuda import SmemType
from .tile_cuda import InFlightType, TileType, assembled, registers, undefined


def through(builder: Any, tile: TileType, value: Any, text: str, extra: Sequence = ()) -> Any:
    """Emit `text` on an accumulator whose registers are outputs and, tied to them, inputs. If
    `value` is None, they are outputs only."""
    parts = [] if value is None else registers(builder, tile, value)
    found = builder.emit_asm(
        [tile.machine.element] * tile.registers,
        [*parts, *extra],
        text,
        tied=None if value is None else 0,
    )
    return assembled(builder, tile, found)


def _batch(form: Form, a: SmemType | TileType, b: SmemType, fresh: bool) -> str:
    """Return the instructions of one product and their commit. Operands are the accumulator's
    registers, the same registers as inputs unless it is `fresh`, A's descriptor or registers, and
    B's descriptor."""
    right = operand(b.layout, 0)
    rows, columns = form.shape
    blocks, sums = rows // WGMMA.rows, TileType(form).registers
    block, first = sums // blocks, sums * (1 if fresh else 2)
    counts = a.registers if isinstance(a, TileType) else 1
    step_registers = WGMMA.rows * WGMMA.k_bytes // 4 // LANES
    left = operand(a.layout, 1) if isinstance(a, SmemType) else None
    types = ".".join(kind.name for kind in map(WGMMA.operand, (a.dtype, b.dtype)) if kind)
    text = ["wgmma.fence.sync.aligned;"]
    for j in range(len(right.offsets[0])):
        for i in range(blocks):
            at = first + i * counts // blocks + step_registers * j
            given = ", ".join(f"${at + n}" for n in range(step_registers))
            step = statement(
                columns,
                types,
                left.major if left else "k",
                right.major,
                [f"${i * block + r}" for r in range(block)],
                "da" if left else f"{{{given}}}",
                "db",
                "0" if fresh and j == 0 else "1",
            )
            names = (_named("da", first, left, left.offsets[i][j]) if left else "") + _named(
                "db", first + counts, right, right.offsets[0][j]
            )
            text.append(f"{{ .reg .b32 low; .reg .b64 da, db; {names}{step} }}")
    # The commit is in the same block as the products: before a commit in a block of its own, ptxas
    # inserts a dummy HGMMA (64x8x16), which costs a GEMM 15 %.
    text.append("wgmma.commit_group.sync.aligned;")
    return "\n".join(text)


def _named(name: str, register: int, op: Operand, offset: int) -> str:
    """Return PTX that builds a descriptor: `register` holds its low half at offset 0, and the high
    half is a constant."""
    high = fields(0, op.leading, op.stride, op.swizzle) >> 32 & 0xFFFFFFFF
    return f"add.s32 low, ${register}, {offset >> 4}; mov.b64 {name}, {{low, {high}}}; "


def _low_half(builder: Any, address: Any, op: Operand) -> Any:
    """Return the low half of the descriptor of a tile at `address`, marked `uniform` so that
    offsets are added in uniform registers."""
    field = builder.lshr(builder.and_(address, 0x3FFFF), 4)
    low = builder.or_(field, fields(0, op.leading, op.stride, op.swizzle) & 0xFFFFFFFF)
    return uniform(builder, low)


@cuda_meaning(source.wgmma)
def _wgmma(acc: Any, a: Any, b: Any) -> Any:
    fresh = isinstance(acc, nb.NoneType)
    form = source.plan(None if fresh else acc, a, b)
    product = TileType(form)
    text = _batch(form, a, b, fresh)
    builder, args = yield InFlightType(product, b.role)
    if not b.role.computes:
        return undefined(product) if fresh else args[0]
    shared = [
        (ty, value) for ty, value in zip((a, b), args[1:], strict=True) if isinstance(ty, SmemType)
    ]
    builder.apply(
        before_async,
        tuple(ty for ty, _ in shared),
        [value for _, value in shared],
    )
    extra = (
        registers(builder, a, args[1])
        if isinstance(a, TileType)
        else [_low_half(builder, args[1], operand(a.layout, 1))]
    )
    extra.append(_low_half(builder, args[2], operand(b.layout, 0)))
    return through(builder, product, None if fresh else args[0], text, extra)


@cuda_meaning(source.mma)
def _mma(np_: Any, acc: Any, a: Any, b: Any) -> Any:
    product = source.chosen(np_.unit, a)
    fresh = isinstance(acc, nb.NoneType)
    if product.groups:
        result = nb.returns(source.wgmma, (acc, a, b))
        builder, args = yield result
        return builder.apply(source.wgmma, (acc, a, b), args[1:])
    result = TileType(source.plan(None if fresh else acc, a, b, product, "mma"))
    builder, args = yield result
    if not b.role.computes:
        return undefined(result) if fresh else args[1]
    for ty, value in zip((a, b), args[2:], strict=True):
        if isinstance(ty, SmemType):
            builder.apply(before_access, (ty,), [value])
    zero = nb.ir.Constant(result.machine.element, 0)
    sums = [zero] * result.registers if fresh else registers(builder, acc, args[1])
    return assembled(
        builder, result, multiplied(builder, product, result, sums, a, b, (args[2], args[3]))
    )


def _wait(newer: bool, acc: Any, pending: Any) -> Any:
    """Type and emit a wait. `newer`: all `pending` groups were issued after the accumulator's, so
    nothing writes the accumulator after the wait."""
    plain = nb.unliteral(acc)
    left = nb.literal(pending) if not newer or isinstance(plain, InFlightType) else 0
    check_pending(left)
    text, parts = f"wgmma.wait_group.sync.aligned {left};", trees.leaves(plain)
    settled = [
        part.tile if (newer or not left) and isinstance(part, InFlightType) else part
        for part in parts
    ]
    result = trees.tree_of(plain).build(iter(settled), trees.made)
    builder, args = yield result(plain, pending)
    values = [
        value
        if not isinstance(part, InFlightType) or not part.role.computes
        else through(builder, part.tile, value, text)
        for part, value in zip(parts, trees.leaf_values(builder, plain, args[0]), strict=True)
    ]
    return trees.build_value(builder, result, iter(values))


cuda_meaning(source.wgmma_wait)(functools.partial(_wait, False))
cuda_meaning(source.wait_for)(functools.partial(_wait, True))
