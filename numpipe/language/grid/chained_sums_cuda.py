"""Sums over the CTAs before this one, on the GPU: words of 64 bits in global memory."""

from __future__ import annotations

from typing import Any

from ...core import numba as nb
from ...core.lanes_cuda import elected
from ...core.op import cuda_meaning
from ..tiles.refs_cuda import gmem_value
from ..tiles.tile_cuda import TileType, assembled
from . import chained_sums as source

I32 = nb.types.int32
# $0, $1 the numbers, $2 the address, $3 how many words there are from it on, $4 the launch
AWAIT = """{ .reg .pred one, two; .reg .b32 of_one, of_two; .reg .b64 word;
mov.b32 $0, 0; mov.b32 $1, 0; setp.gt.s32 one, $3, 0; setp.gt.s32 two, $3, 1;
mov.b32 of_one, $4; mov.b32 of_two, $4;
AGAIN: @one ld.relaxed.gpu.global.b64 word, [$2]; @one mov.b64 {$0, of_one}, word;
@two ld.relaxed.gpu.global.b64 word, [$2+8]; @two mov.b64 {$1, of_two}, word;
setp.ne.b32 one, of_one, $4; setp.ne.b32 two, of_two, $4; @one bra AGAIN; @two bra AGAIN; }"""
# $0 the address of the launch's number, $1 the launch, $2 the calls less one
COUNT = """{ .reg .pred last; .reg .b32 before; atom.relaxed.gpu.global.inc.u32 before, [$0+4], $2;
setp.eq.u32 last, before, $2; @last st.relaxed.gpu.global.b32 [$0], $1; }"""


def _address(context: Any, builder: Any, work: Any, value: Any, word: Any) -> Any:
    """Return the address of a word; word -4 is the number of the launch."""
    slot = builder.add(builder.ashr(word, nb.const(2)), nb.const(1))
    place = builder.and_(word, nb.const(source.SLOT - 1))
    offset = builder.add(
        builder.add(builder.shl(slot, nb.const(6)), builder.shl(place, nb.const(3))), nb.const(32)
    )
    pointer = gmem_value(context, builder, work, value).pointer
    return builder.add(pointer, builder.sext(offset, nb.i64))


def _header(context: Any, builder: Any, work: Any, value: Any) -> Any:
    return _address(context, builder, work, value, nb.const(-source.SLOT))


@cuda_meaning(source.launch_number)
def _launch_number(_context: Any, work: Any) -> Any:
    context, builder, args = yield I32(work)
    header = _header(context, builder, work, args[0])
    text = "ld.relaxed.gpu.global.b32 $0, [$1];"
    found = nb.emit_asm(builder, nb.i32, [header], text, "=r,l,~{memory}")
    return builder.add(found, nb.const(1))


@cuda_meaning(source.publish)
def _publish(_context: Any, work: Any, word: Any, value: Any, launch: Any) -> Any:
    context, builder, args = yield nb.types.void(work, I32, nb.types.float32, I32)
    address = _address(context, builder, work, args[0], args[1])
    with builder.if_then(elected(builder)):
        text = "{ .reg .b64 word; mov.b64 word, {$1, $2}; st.relaxed.gpu.global.b64 [$0], word; }"
        value = builder.bitcast(args[2], nb.i32)
        nb.emit_asm(builder, nb.void, [address, value, args[3]], text, "l,r,r,~{memory}")


@cuda_meaning(source.published)
def _published(
    _context: Any, work: Any, first: Any, count: Any, launch: Any, calls: Any
) -> Any:
    result = TileType(source.FORM)
    context, builder, args = yield result(work, I32, I32, I32, I32)
    own = builder.shl(nb.lane_index(builder), nb.const(1))
    address = _address(context, builder, work, args[0], builder.add(args[1], own))
    two = nb.ir.LiteralStructType([nb.i32] * 2)
    left = builder.sub(args[2], own)
    operands = [address, left, args[3]]
    found = nb.emit_asm(builder, two, operands, AWAIT, "=&r,=&r,l,r,r,~{memory}")
    with builder.if_then(elected(builder)):
        header = _header(context, builder, work, args[0])
        last = builder.sub(args[4], nb.const(1))
        nb.emit_asm(builder, nb.void, [header, args[3], last], COUNT, "l,r,r,~{memory}")
    values = [builder.bitcast(builder.extract_value(found, i), nb.f32) for i in range(2)]
    return assembled(builder, result, values)
