"""Turns of CTAs on the GPU: a count in global memory for each."""

from __future__ import annotations

import functools
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


def _turn(statement: str, np_: Any, turn: Any, n: Any) -> Any:
    np_.unit.takes_turns = True
    builder, args = yield nb.VOID(np_, turn, I32)
    view = builder.fields(turn, args[1])
    ref, index = builder.fields(turn.ref, view.ref), builder.extract_value(view.start, 0)
    there = builder.icmp_unsigned("<", index, builder.extract_value(ref.shape, 0))
    at = builder.add(ref.pointer, builder.shl(builder.zext(index, nb.i64), 2))
    builder.execute([at, args[2], builder.zext(there)], statement)


cuda_meaning(source.poll)(functools.partial(_turn, POLL))
cuda_meaning(source.release)(functools.partial(_turn, RELEASE))
