"""Turns of CTAs on the GPU: a count in global memory for each."""

from __future__ import annotations

from typing import Any

from ...core import numba as nb
from ...core.numba import I32
from ...core.op import cuda_meaning
from . import cta_turns as source

# $0 the turn, $1 n, $2 whether it is in the array
POLL = """{ .reg .pred there, p; .reg .b32 seen; setp.ne.b32 there, $2, 0;
AGAIN: @there ld.acquire.gpu.global.b32 seen, [$0]; setp.lt.and.s32 p, seen, $1, there;
@p bra AGAIN; }"""
RELEASE = """{ .reg .pred there; .reg .b32 next; setp.ne.b32 there, $2, 0; add.s32 next, $1, 1;
@there st.release.gpu.global.b32 [$0], next; }"""


def _emit(what: str, statement: str, np_: Any, turn: Any) -> Any:
    source.check(what, turn)
    np_.unit.takes_turns = True
    builder, args = yield nb.types.void(np_, turn, I32)
    view = builder.fields(turn, args[1])
    ref, index = builder.fields(turn.ref, view.ref), builder.extract_value(view.start, 0)
    there = builder.icmp_unsigned("<", index, builder.extract_value(ref.shape, 0))
    at = builder.add(ref.pointer, builder.shl(builder.zext(index, nb.i64), 2))
    builder.emit_asm(nb.void, [at, args[2], builder.zext(there, nb.i32)], statement)


@cuda_meaning(source.poll)
def _poll(np_: Any, turn: Any, n: Any) -> Any:
    yield from _emit("numpipe.await_turn", POLL, np_, turn)


@cuda_meaning(source.release)
def _release(np_: Any, turn: Any, n: Any) -> Any:
    yield from _emit("numpipe.pass_turn", RELEASE, np_, turn)


PEEK = """{ .reg .pred there; setp.ne.b32 there, $2, 0; mov.b32 $0, 0x7fffffff;
@there ld.relaxed.gpu.global.b32 $0, [$1]; }"""
SPIN = """{ .reg .pred p; .reg .b32 seen; mov.b32 seen, $2; setp.ge.s32 p, seen, $1; @p bra OUT;
AGAIN: ld.relaxed.gpu.global.b32 seen, [$0]; setp.lt.s32 p, seen, $1;
@p bra AGAIN; OUT: }"""


def _at(builder: Any, turn: Any, value: Any) -> Any:
    view = builder.fields(turn, value)
    ref, index = builder.fields(turn.ref, view.ref), builder.extract_value(view.start, 0)
    there = builder.icmp_unsigned("<", index, builder.extract_value(ref.shape, 0))
    at = builder.add(ref.pointer, builder.shl(builder.zext(index, nb.i64), 2))
    return at, builder.zext(there, nb.i32)


@cuda_meaning(source.peek)
def _peek(np_: Any, turn: Any) -> Any:
    np_.unit.takes_turns = True
    builder, args = yield I32(np_, turn)
    at, there = _at(builder, turn, args[1])
    return builder.emit_asm(nb.i32, [at, there], PEEK, early=True)


@cuda_meaning(source.spin)
def _spin(np_: Any, turn: Any, n: Any, seen: Any) -> Any:
    builder, args = yield nb.types.void(np_, turn, I32, I32)
    at, there = _at(builder, turn, args[1])
    builder.emit_asm(nb.void, [at, args[2], args[3]], SPIN)
