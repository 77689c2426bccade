from __future__ import annotations

from typing import Any

from ...core import numba as nb
from ...core.numba import I32
from ...core.op import cuda_meaning
from . import ordered as source

_POLL = """{ .reg .pred p; .reg .b32 seen; setp.le.s32 p, $1, 0; @p bra OUT; setp.ge.s32 p, $2, 8388608; @p bra OUT;
AGAIN: ld.acquire.gpu.global.b32 seen, [$0]; setp.lt.s32 p, seen, $1; @p bra AGAIN;
OUT: }"""
_RAISE = """{ .reg .pred p; setp.ge.s32 p, $2, 8388608; @p bra OUT;
red.release.gpu.global.add.s32 [$0], $1;
OUT: }"""


def _at(builder: Any, counter: Any, value: Any, count: Any) -> Any:
    view = builder.fields(counter, value)
    index = builder.extract_value(view.start, 0)
    ref = builder.fields(counter.ref, view.ref)
    at = builder.add(ref.pointer, builder.shl(builder.zext(index, nb.i64), 2))
    return [at, count, index]


@cuda_meaning(source.poll)
def _poll(np_: Any, counter: Any, count: Any) -> Any:
    builder, args = yield nb.types.void(np_, counter, I32)
    builder.emit_asm(nb.void, _at(builder, counter, args[1], args[2]), _POLL)


@cuda_meaning(source.release)
def _release(np_: Any, counter: Any, add: Any) -> Any:
    builder, args = yield nb.types.void(np_, counter, I32)
    builder.emit_asm(nb.void, _at(builder, counter, args[1], args[2]), _RAISE)
