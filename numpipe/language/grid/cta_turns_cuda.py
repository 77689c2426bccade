"""Turns of CTAs on the GPU: a count in global memory for each."""

from __future__ import annotations

from typing import Any

from ...core import numba as nb
from ...core.numba import I32
from ...core.op import cuda_meaning
from ..memory import phases_cuda  # noqa: F401  (the address of a barrier)
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


cuda_meaning(source.hold)(nb.no_code)


@cuda_meaning(source.poll)
def _poll(np_: Any, turn: Any, n: Any) -> Any:
    yield from _emit("await_turn", POLL, np_, turn)


@cuda_meaning(source.release)
def _release(np_: Any, turn: Any, n: Any) -> Any:
    yield from _emit("pass_turn", RELEASE, np_, turn)
