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
# $0, $1 the sums, $2 the workspace, $3 the first word, $4 how many are known, $5 the launch, $6 the
# count. A lane has words 2 lane and 2 lane + 1, and lane 0 (p3) also the sum before the group.
AWAIT = """{ .reg .pred p<6>; .reg .b32 lane, word, left, of<4>; .reg .f32 before;
.reg .b64 at, last, word<4>; mov.u32 lane, %tid.x; and.b32 lane, lane, 127; shl.b32 word, lane, 1;
sub.s32 left, $4, word; add.s32 word, word, $3; setp.ge.s32 p1, lane, 64; @p1 add.s32 word, word, 4;
shr.u32 of1, word, 2; mad.wide.u32 at, of1, 32, $2; mad.wide.u32 at, word, 8, at;
add.s32 word, $3, 128; mad.wide.u32 last, word, 16, $2; setp.gt.s32 p1, left, 0;
setp.gt.s32 p2, left, 1; setp.eq.s32 p3, lane, 0; setp.gt.and.s32 p3, $3, 4, p3;
setp.gt.s32 p4, $6, $4; mov.b32 $0, 0; mov.b32 $1, 0; mov.b32 before, 0; mov.b32 of1, $5;
mov.b32 of2, $5; mov.b32 of3, $5;
AGAIN: or.pred p5, p1, p2; @p5 ld.relaxed.gpu.global.v2.b64 {word1, word2}, [at+32];
@p3 ld.relaxed.gpu.global.b64 word3, [last+32]; @p1 mov.b64 {$0, of1}, word1;
@p2 mov.b64 {$1, of2}, word2; @p3 mov.b64 {before, of3}, word3; setp.ne.b32 p1, of1, $5;
setp.ne.b32 p2, of2, $5; setp.ne.b32 p3, of3, $5; or.pred p5, p1, p2; or.pred p5, p5, p3;
@p5 nanosleep.u32 100; @p5 bra AGAIN; @p4 add.f32 $0, $0, before; }"""


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
    pair, constraints = nb.ir.LiteralStructType([nb.f32] * 2), "=&f,=&f,l,r,r,r,r,~{memory}"
    found = nb.emit_asm(builder, pair, [at, *args[1:]], AWAIT, constraints)
    return assembled(builder, result, [builder.extract_value(found, i) for i in range(2)])
