"""CUDA implementations of `one_lane` (a call inside a branch) and `each_warp` (a predicated
statement)."""

from __future__ import annotations

from typing import Any

from . import numba as nb
from .lanes import each_warp, one_lane
from .numba import I32
from .op import cuda_meaning, predicated


def elected(builder: Any) -> Any:
    """Return whether this is the elected lane of the warpgroup's first warp.

    elect.sync tells ptxas that a single lane runs. After a comparison of %tid, ptxas would wrap
    every TMA copy in a loop over the active lanes.
    """
    return builder.and_(
        builder.icmp_unsigned("==", builder.and_(builder.thread_index(), 0x60), 0),
        elected_in_warp(builder),
    )


def elected_in_warp(builder: Any) -> Any:
    """Return whether this is the elected lane of its warp, which is always the same lane."""
    one = builder.emit_asm(
        nb.i32,
        [],
        "{ .reg .pred p; elect.sync _|p, 0xffffffff; selp.b32 $0, 1, 0, p; }",
        memory=False,
    )
    return builder.icmp_unsigned("!=", one, 0)


@cuda_meaning(one_lane)
def _one_lane(function: Any, *args: Any) -> Any:
    nb.returns(function, args)
    builder, values = yield
    with builder.if_then(elected(builder)):
        builder.apply(function, args, values[1:])
    builder.join()


@cuda_meaning(each_warp)
def _each_warp(function: Any, *args: Any) -> Any:
    operation = function.typing_key
    if not hasattr(operation, "ptx"):
        raise TypeError(
            f"each_warp takes an operation that is a single PTX statement, got {operation!r}"
        )
    inner, emit = predicated(operation)(*args, I32)
    builder, values = yield
    lane = builder.and_(builder.thread_index(), 31)
    cast = [builder.cast(v, t, s) for v, t, s in zip(values[1:], args, inner.args, strict=False)]
    return emit(builder, [*cast, lane])
