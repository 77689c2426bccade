"""Tile-level wgmma: one statement block for the batch, accumulators tied through it."""

from __future__ import annotations

from typing import Any

from .. import _numba as nb
from .._layout import operand
from .._op import cuda_meaning
from ..errors import SpecError
from ..intrinsics.wgmma import check_pending, statement
from ..intrinsics.wgmma import descriptor as fields
from ..refs_cuda import SmemType
from . import mma as source
from .order import before_async
from .tile import FLOAT16
from .tile_cuda import InFlightType, TileType


def through(builder: Any, registers: int, value: Any, text: str, extra: list[Any], constraints: str) -> Any:
    """`text` on an accumulator whose registers are outputs and, tied to them, inputs."""
    parts = [builder.extract_value(value, i) for i in range(registers)]
    outputs = ",".join(["=f"] * registers + [str(i) for i in range(registers)])
    struct = nb.emit_asm(builder, nb.ir.LiteralStructType([nb.f32] * registers), parts + extra, text,
                         f"{outputs}{constraints},~{{memory}}")
    result = nb.ir.Constant(value.type, nb.ir.Undefined)
    for i in range(registers):
        result = builder.insert_value(result, builder.extract_value(struct, i), i)
    return result


@cuda_meaning(source.wgmma)
def _wgmma(_context: Any, acc: Any, a: Any, b: Any) -> Any:
    tile = acc.tile if isinstance(acc, InFlightType) else acc
    if not isinstance(tile, TileType) or not isinstance(a, SmemType) or not isinstance(b, SmemType):
        raise SpecError(source.operands(acc, a, b))
    source.check(tile.shape, tile.dtype, a.layout, b.layout, a.dtype, b.dtype)
    left, right = operand(a.layout, 1), operand(b.layout, 0)
    result = InFlightType(tile, a.role)
    count, block = tile.registers, tile.registers * 64 // tile.shape[0]
    da, db = 2 * count, 2 * count + 1
    text = ["wgmma.fence.sync.aligned;"]
    for j in range(len(right.offsets[0])):
        for i, row in enumerate(left.offsets):
            names = [f"${i * block + r}" for r in range(block)]
            step = statement(tile.shape[1], "f16" if a.dtype == FLOAT16 else "bf16", left.major, right.major, names, "da", "db")
            text.append(f"{{ .reg .b64 da, db; add.s64 da, ${da}, {row[j] >> 4}; add.s64 db, ${db}, {right.offsets[0][j] >> 4}; "
                        f"{step} }}")
    # in the same block as the products: ptxas makes a commit that stands alone a dummy HGMMA of its own
    text.append("wgmma.commit_group.sync.aligned;")

    def descriptor(builder: Any, address: Any, op: Any) -> Any:
        field = builder.zext(builder.lshr(builder.and_(address, nb.const(0x3FFFF)), nb.const(4)), nb.i64)
        return builder.or_(field, nb.const(fields(0, op.leading, op.stride, op.swizzle), nb.i64))

    def codegen(context: Any, builder: Any, _sig: Any, args: Any) -> Any:
        if a.role == "memory":
            return args[0]
        nb.call(context, builder, before_async, (a, b), args[1:])
        descriptors = [descriptor(builder, args[1], left), descriptor(builder, args[2], right)]
        return through(builder, count, args[0], "\n".join(text), descriptors, ",l,l")

    return result(acc, a, b), codegen


@cuda_meaning(source.wgmma_wait)
def _wgmma_wait(_context: Any, acc: Any, pending: Any) -> Any:
    left = nb.literal(pending)
    check_pending(left)
    text = f"wgmma.wait_group.sync.aligned {left};"
    plain = nb.unliteral(acc)
    result = plain if left else _settled(plain)

    def codegen(context: Any, builder: Any, _sig: Any, args: Any) -> Any:
        return _waited(context, builder, plain, args[0], text, result)

    return result(plain, pending), codegen


def _settled(acc: Any) -> Any:
    """The type of an accumulator, or of a tuple with some in it, that nothing writes any more."""
    if isinstance(acc, nb.types.BaseTuple):
        return nb.tuple_of(acc, [_settled(part) for part in acc])
    return acc.tile if isinstance(acc, InFlightType) else acc


def _waited(context: Any, builder: Any, acc: Any, value: Any, text: str, result: Any) -> Any:
    """The value behind a wait that all its accumulators are tied to."""
    if isinstance(acc, nb.types.BaseTuple):
        parts = nb.cgutils.unpack_tuple(builder, value, len(acc))
        return context.make_tuple(builder, result, [_waited(context, builder, ty, part, text, kind)
                                                    for ty, part, kind in zip(acc, parts, result, strict=True)])
    if not isinstance(acc, InFlightType) or acc.role == "memory":
        return value
    return through(builder, acc.tile.registers, value, text, [], "")
