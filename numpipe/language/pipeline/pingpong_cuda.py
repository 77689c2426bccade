"""Ping-pong turns on the GPU: the warpgroup's number, the counters in shared memory, and the state
word that says whose turn is next."""

from __future__ import annotations

from typing import Any

from ...core import numba as nb
from ...core.formula_cuda import Value
from ...core.numba import I32
from ...core.op import cuda_meaning, predicated
from ...intrinsics import memory
from ...plan.context_cuda import ContextType
from ...plan.roles import COMPUTE
from ...plan.unit import Unit
from . import pingpong as source


# ---- counters: the rings are known when all of the kernel has been compiled (`define_turns`)
def _external(operation: Any) -> None:
    """Implement an operation as a call of the symbol ``np_`` plus its name."""

    @cuda_meaning(operation)
    def typer(np_: Any) -> Any:
        builder, args = yield
        if np_.computes:
            builder.external(f"np_{operation.__name__}", nb.void, [args[0]])


_external(source.get_counters)
_external(source.put_counters)


def _word(builder: Any, unit: Unit, warpgroup: Any, index: int) -> Any:
    """Return the address of the word for a compute warpgroup's counter (`Unit.turn_word`)."""
    stride = unit.turn_word(1, index) - unit.turn_word(0, index)
    return builder.add(builder.smem(unit.turn_word(0, index)), (warpgroup * stride).value)


def define_turns(outer: Any, unit: Unit) -> None:
    """Define, in the entry module, the functions that read and write this kernel's ring
    counters."""
    pointer, np_ = nb.i32.as_pointer(), ContextType(unit, COMPUTE)
    with outer.define("np_get_counters", nb.void, [pointer]) as (builder, (state,)):
        own = np_.compiled(builder, state)
        for plan in unit.handed_over():
            word = _word(builder, unit, own.number, plan.index)
            own.state[plan.index] = Value(builder, builder.issue(memory.load_word, word))
        builder.ret_void()
    _, store = predicated(memory.store_word)(I32, I32, I32)
    with outer.define("np_put_counters", nb.void, [pointer]) as (builder, (state,)):
        own = np_.compiled(builder, state)
        lane = builder.lane_index()
        for plan in unit.handed_over():
            value = own.state[plan.index].value
            store(
                builder,
                [_word(builder, unit, source.following(own), plan.index), value, lane],
            )
        builder.ret_void()
