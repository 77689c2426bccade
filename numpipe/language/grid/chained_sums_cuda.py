"""Sums over the CTAs before this one, on the GPU: words of 64 bits in global memory. Word w is at
8 w + 32 (w / 4) + 32 bytes: slots have 64 bytes, of which the last 32 hold four words."""

from __future__ import annotations

from typing import Any

from ...core import numba as nb
from ...core.op import cuda_meaning
from ..tiles.refs_cuda import gmem_value
from ..tiles.tile_cuda import TileType, assembled
from . import chained_sums as source

I32 = nb.types.int32
LAUNCH = "ld.relaxed.gpu.global.b32 $0, [$1+36]; add.s32 $0, $0, 1;"
# $0 the workspace, $1 the word, $2 the sum, $3 the launch
STORE = """{ .reg .b32 slot; .reg .b64 at, word; shr.u32 slot, $1, 2; mad.wide.u32 at, slot, 32, $0;
mad.wide.u32 at, $1, 8, at; mov.b64 word, {$2, $3}; st.relaxed.gpu.global.b64 [at+32], word; }"""
# $0 … $3 the sums, $4 the workspace, $5 the first word, $6 how many are known, $7 the launch, $8
# the count. A lane has words 2 lane, 2 lane + 1 and those 4160 bytes later; lane 0 (p5) also loads
# the sum before the group.
AWAIT = """{ .reg .pred p<7>; .reg .b32 lane, word, left, of<6>; .reg .f32 before;
.reg .b64 at, last, word<6>; mov.u32 lane, %tid.x; and.b32 lane, lane, 127; shl.b32 word, lane, 1;
sub.s32 left, $6, word; add.s32 word, word, $5; shr.u32 of1, word, 2; mad.wide.u32 at, of1, 32, $4;
mad.wide.u32 at, word, 8, at; add.s32 word, $5, 256; mad.wide.u32 last, word, 16, $4;
setp.gt.s32 p1, left, 0; setp.gt.s32 p2, left, 1; setp.gt.s32 p3, left, 256;
setp.gt.s32 p4, left, 257; setp.eq.s32 p5, lane, 0; setp.gt.and.s32 p5, $5, 4, p5;
setp.gt.s32 p6, $8, $6; mov.b32 $0, 0; mov.b32 $1, 0; mov.b32 $2, 0; mov.b32 $3, 0;
mov.b32 before, 0; mov.b32 of1, $7; mov.b32 of2, $7; mov.b32 of3, $7; mov.b32 of4, $7;
mov.b32 of5, $7;
AGAIN: @p1 ld.relaxed.gpu.global.b64 word1, [at+32]; @p2 ld.relaxed.gpu.global.b64 word2, [at+40];
@p3 ld.relaxed.gpu.global.b64 word3, [at+4192]; @p4 ld.relaxed.gpu.global.b64 word4, [at+4200];
@p5 ld.relaxed.gpu.global.b64 word5, [last+32]; @p1 mov.b64 {$0, of1}, word1;
@p2 mov.b64 {$1, of2}, word2; @p3 mov.b64 {$2, of3}, word3; @p4 mov.b64 {$3, of4}, word4;
@p5 mov.b64 {before, of5}, word5; setp.ne.b32 p1, of1, $7; setp.ne.b32 p2, of2, $7;
setp.ne.b32 p3, of3, $7; setp.ne.b32 p4, of4, $7; setp.ne.b32 p5, of5, $7; @p1 bra AGAIN;
@p2 bra AGAIN; @p3 bra AGAIN; @p4 bra AGAIN; @p5 bra AGAIN; @p6 add.f32 $0, $0, before; }"""


@cuda_meaning(source.launch_number)
def _launch_number(_context: Any, work: Any) -> Any:
    context, builder, args = yield I32(work)
    at = gmem_value(context, builder, work, args[0]).pointer
    return nb.emit_asm(builder, nb.i32, [at], LAUNCH, "=r,l,~{memory}")


@cuda_meaning(source.store)
def _store(_context: Any, work: Any, word: Any, value: Any, launch: Any) -> Any:
    context, builder, args = yield nb.types.void(work, I32, nb.types.float32, I32)
    at = gmem_value(context, builder, work, args[0]).pointer
    nb.emit_asm(builder, nb.void, [at, *args[1:]], STORE, "l,r,f,r,~{memory}")


@cuda_meaning(source.published)
def _published(_context: Any, work: Any, *others: Any) -> Any:
    result = TileType(source.FORM)
    context, builder, args = yield result(work, I32, I32, I32, I32)
    at = gmem_value(context, builder, work, args[0]).pointer
    four, constraints = nb.ir.LiteralStructType([nb.f32] * 4), "=&f,=&f,=&f,=&f,l,r,r,r,r,~{memory}"
    found = nb.emit_asm(builder, four, [at, *args[1:]], AWAIT, constraints)
    return assembled(builder, result, [builder.extract_value(found, i) for i in range(4)])
