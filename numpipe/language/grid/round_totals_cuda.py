"""Totals of the CTAs of a grid on the GPU: words of 64 bits in global memory. Word w is at
8 w + 32 (w / 4) + 32 bytes: slots have 64 bytes, of which the last 32 hold four words."""

from __future__ import annotations

from typing import Any

from ...core import numba as nb
from ...core.numba import F32, I32
from ...core.op import cuda_meaning
from ..tiles.tile_cuda import TileType, assembled
from . import round_totals as source

LAUNCH = "ld.relaxed.gpu.global.b32 $0, [$1+36]; add.s32 $0, $0, 1;"
# $0 the workspace, $1 the word, $2 the value, $3 the launch
STORE = """{ .reg .b32 slot; .reg .b64 at, word; shr.u32 slot, $1, 2; mad.wide.u32 at, slot, 32, $0;
mad.wide.u32 at, $1, 8, at; mov.b64 word, {$2, $3}; st.relaxed.gpu.global.b64 [at+32], word; }"""
# $0, $1 the values of words 2 lane and 2 lane + 1, $2 the workspace, $3 the first word, $4 how many
# are known, $5 the launch
AWAIT = """{ .reg .pred p<3>; .reg .b32 lane, word, slot, of<2>; .reg .b64 at, word<2>;
mov.u32 lane, %tid.x; and.b32 lane, lane, 127; shl.b32 lane, lane, 1; add.s32 word, lane, $3;
shr.u32 slot, word, 2; mad.wide.u32 at, slot, 32, $2; mad.wide.u32 at, word, 8, at;
setp.gt.s32 p0, $4, lane; add.s32 lane, lane, 1; setp.gt.s32 p1, $4, lane;
mov.b32 $0, 0; mov.b32 $1, 0; mov.b32 of0, $5; mov.b32 of1, $5;
AGAIN: @p0 ld.relaxed.gpu.global.v2.b64 {word0, word1}, [at+32];
@p0 mov.b64 {$0, of0}, word0; @p1 mov.b64 {$1, of1}, word1;
setp.ne.b32 p2, of0, $5; setp.ne.or.b32 p2, of1, $5, p2; @p2 nanosleep.u32 100; @p2 bra AGAIN; }"""


@cuda_meaning(source.launch_number)
def _launch_number(work: Any) -> Any:
    builder, args = yield I32(work)
    at = builder.fields(work, args[0]).pointer
    return builder.emit_asm(nb.i32, [at], LAUNCH)


@cuda_meaning(source.store)
def _store(work: Any, word: Any, value: Any, launch: Any) -> Any:
    builder, args = yield nb.VOID(work, I32, F32, I32)
    at = builder.fields(work, args[0]).pointer
    builder.execute([at, *args[1:]], STORE)


@cuda_meaning(source.await_words)
def _await_words(work: Any, *others: Any) -> Any:
    result = TileType(source.FORM)
    builder, args = yield result(work, I32, I32, I32)
    at = builder.fields(work, args[0]).pointer
    found = builder.emit_asm([nb.f32] * 2, [at, *args[1:]], AWAIT, early=True)
    return assembled(builder, result, found)
