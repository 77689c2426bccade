"""Turns on the GPU: which warpgroup this is, counters in shared memory, and the word that says whose turn comes next."""

from __future__ import annotations

from typing import Any

from ...core import numba as nb
from ...core.op import cuda_meaning, predicated
from ...intrinsics import memory
from ...plan.context_cuda import counter_pointer, of_context, own_warpgroup
from ...plan.plans import TURN
from ...plan.unit import Unit
from . import turns as source

I32 = nb.types.int32


def _next(builder: Any, unit: Unit, np_: Any) -> Any:
    return builder.urem(builder.add(own_warpgroup(builder, np_), nb.const(1)), nb.const(unit.turns))


def _turn(builder: Any, np_: Any) -> Any:
    """Return the address of the word that says whose turn comes next."""
    return counter_pointer(builder, np_, nb.const(TURN))


of_context(source.own_barrier, I32, lambda b, unit, np_: b.add(own_warpgroup(b, np_), nb.const(source.FIRST_BARRIER)))
of_context(source.next_barrier, I32, lambda b, unit, np_: b.add(_next(b, unit, np_), nb.const(source.FIRST_BARRIER)))
of_context(source.is_last_warpgroup, nb.types.boolean,
           lambda b, unit, np_: b.icmp_unsigned("==", own_warpgroup(b, np_), nb.const(unit.turns - 1)))
of_context(source.has_next_turn, nb.types.boolean,
           lambda b, unit, np_: b.icmp_unsigned("==", own_warpgroup(b, np_), b.load(_turn(b, np_))))


# ---- counters: the rings are known when all of the kernel has been compiled (`define_turns`)
def _external(operation: Any) -> None:
    """Give an operation the meaning of a call of the symbol ``np_`` and its name."""

    @cuda_meaning(operation)
    def typer(_context: Any, np_: Any) -> Any:
        _, builder, args = yield nb.types.void(np_)
        if np_.role != "memory":
            nb.external(builder, f"np_{operation.__name__}", nb.void, [args[0]])


_external(source.get_counters)
_external(source.put_counters)


def _word(builder: Any, unit: Unit, warpgroup: Any, index: int) -> Any:
    """Return the address of a counter's word of a compute warpgroup: `Unit.turn_word`."""
    stride = unit.turn_word(1, index) - unit.turn_word(0, index)
    return builder.add(nb.smem(builder, unit.turn_word(0, index)), builder.mul(warpgroup, nb.const(stride)))


def define_turns(context: Any, module: Any, unit: Unit) -> None:
    """Define, in the entry module, the functions that read and write the counters of this kernel's rings."""
    pointer = nb.i32.as_pointer()
    with nb.define(module, "np_get_counters", nb.void, [pointer]) as (builder, (state,)):
        for plan in unit.handed_over():
            word = nb.call(context, builder, memory.load_word, (I32,),
                           (_word(builder, unit, own_warpgroup(builder, state), plan.index),))[1]
            builder.store(word, counter_pointer(builder, state, nb.const(plan.index)))
        builder.ret_void()
    store, emit = predicated(memory.store_word)(None, I32, I32, I32)
    with nb.define(module, "np_put_counters", nb.void, [pointer]) as (builder, (state,)):
        lane = builder.and_(nb.thread_index(builder), nb.const(127))
        for plan in unit.handed_over():
            value = builder.load(counter_pointer(builder, state, nb.const(plan.index)))
            emit(context, builder, store, [_word(builder, unit, _next(builder, unit, state), plan.index), value, lane])
        builder.ret_void()


# ---- tiles
@cuda_meaning(source.own_stride)
def _own_stride(_context: Any, np_: Any, stride: Any) -> Any:
    n = 1 if np_.role == "memory" else np_.unit.turns
    return I32(np_, I32), lambda context, builder, sig, args: builder.mul(args[1], nb.const(n))


@cuda_meaning(source.before_own)
def _before_own(_context: Any, np_: Any, before: Any, stride: Any) -> Any:
    n = np_.unit.turns
    _, builder, args = yield I32(np_, I32, I32)
    if np_.role == "memory":
        return args[1]
    ahead = builder.add(builder.sub(own_warpgroup(builder, args[0]), builder.load(_turn(builder, args[0]))), nb.const(n))
    skipped = builder.add(builder.urem(ahead, nb.const(n)), nb.const(1 - n))
    return builder.add(args[1], builder.mul(args[2], skipped))


@cuda_meaning(source.end_turns)
def _end_turns(_context: Any, np_: Any, last: Any, stride: Any, end: Any) -> Any:
    n = np_.unit.turns
    _, builder, args = yield nb.types.void(np_, I32, I32, I32)
    if np_.role == "memory":
        return None
    turn, tile = builder.add(own_warpgroup(builder, args[0]), nb.const(n)), args[1]
    for _ in range(1, n):  # the others have the tiles between this warpgroup's last and its next, in order
        tile = builder.add(tile, args[2])
        missing = builder.icmp_signed(">=", tile, args[3])
        turn = builder.sub(turn, builder.zext(missing, nb.i32))
    builder.store(builder.urem(turn, nb.const(n)), _turn(builder, args[0]))
