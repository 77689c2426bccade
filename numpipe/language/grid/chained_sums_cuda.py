"""Sums over the CTAs before this one, on the GPU: words of 64 bits in global memory."""

from __future__ import annotations

from typing import Any

from ...core import numba as nb
from ...core.formula_cuda import Value
from ...core.op import cuda_meaning
from ...plan.specs import FLAGS
from ..tiles.refs_cuda import gmem_value
from ..tiles.tile_cuda import TileType, assembled
from . import chained_sums as source

I32 = nb.types.int32
_STORE = """{ .reg .b64 word; mov.b64 word, {$1, $2}; st.relaxed.gpu.global.b64 [$0], word; }"""
# $0, $1 the sums, $2 the address of the first, $3 how many words there are from it on, $4 the launch
_AWAIT = """{ .reg .pred one, two; .reg .b32 first, second; .reg .b64 word;
mov.b32 $0, 0; mov.b32 $1, 0; setp.gt.s32 one, $3, 0; setp.gt.s32 two, $3, 1;
mov.b32 first, $4; mov.b32 second, $4;
AGAIN: @one ld.relaxed.gpu.global.b64 word, [$2]; @one mov.b64 {$0, first}, word;
@two ld.relaxed.gpu.global.b64 word, [$2+8]; @two mov.b64 {$1, second}, word;
setp.ne.b32 one, first, $4; setp.ne.b32 two, second, $4; @one bra AGAIN; @two bra AGAIN; }"""


def _address(context: Any, builder: Any, work: Any, value: Any, word: Any) -> Any:
    """Return the address of a word."""
    of = Value(builder, word)
    offset = (of >> 2) * (4 * FLAGS) + of * 8 + 4 * FLAGS
    pointer = gmem_value(context, builder, work, value).pointer
    return builder.add(pointer, builder.sext(offset.value, nb.i64))


@cuda_meaning(source.launch_number)
def _launch_number(_context: Any, work: Any) -> Any:
    context, builder, args = yield I32(work)
    first = _address(context, builder, work, args[0], nb.const(0))
    text = "ld.relaxed.gpu.global.b32 $0, [$1+4]; add.s32 $0, $0, 1;"
    return nb.emit_asm(builder, nb.i32, [first], text, "=r,l,~{memory}")


@cuda_meaning(source.store)
def _store(_context: Any, work: Any, word: Any, value: Any, launch: Any) -> Any:
    context, builder, args = yield nb.types.void(work, I32, nb.types.float32, I32)
    address = _address(context, builder, work, args[0], args[1])
    nb.emit_asm(builder, nb.void, [address, *args[2:]], _STORE, "l,f,r,~{memory}")


@cuda_meaning(source.published)
def _published(_context: Any, work: Any, first: Any, count: Any, launch: Any) -> Any:
    result = TileType(source.FORM)
    context, builder, args = yield result(work, I32, I32, I32)
    own = builder.shl(nb.lane_index(builder), nb.const(1))
    address = _address(context, builder, work, args[0], builder.add(args[1], own))
    left = builder.sub(args[2], own)
    pair = nb.ir.LiteralStructType([nb.f32] * 2)
    constraints = "=&f,=&f,l,r,r,~{memory}"
    found = nb.emit_asm(builder, pair, [address, left, args[3]], _AWAIT, constraints)
    return assembled(builder, result, [builder.extract_value(found, i) for i in range(2)])
