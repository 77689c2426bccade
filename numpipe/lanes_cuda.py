"""one_lane and each_warp: a call under a predicate."""

from __future__ import annotations

from typing import Any

from . import _numba as nb
from ._op import cuda_meaning
from .lanes import each_warp, one_lane


def elected(builder: Any) -> Any:
    """One lane of the warpgroup's first warp. elect.sync tells ptxas that a single lane runs: a comparison of %tid
    makes it wrap every TMA in a loop over the active lanes."""
    first = builder.icmp_unsigned("==", builder.and_(nb.thread_index(builder), nb.const(0x60)), nb.const(0))
    one = nb.emit_asm(builder, nb.i32, [], "{ .reg .pred p; elect.sync _|p, 0xffffffff; selp.b32 $0, 1, 0, p; }", "=r")
    return builder.and_(first, builder.icmp_unsigned("!=", one, nb.const(0)))


def _lane_zero(builder: Any) -> Any:
    return builder.icmp_unsigned("==", builder.and_(nb.thread_index(builder), nb.const(31)), nb.const(0))


def _predicated(predicate: Any) -> Any:
    def typer(typing_context: Any, function: Any, *args: Any) -> Any:
        inner = tuple(args)
        function.get_call_type(typing_context, inner, {})

        def codegen(context: Any, builder: Any, _sig: Any, values: Any) -> Any:
            with builder.if_then(predicate(builder)):
                nb.call(context, builder, function, inner, values[1:])
            return nb.nothing(context)

        return nb.types.void(function, *args), codegen

    return typer


cuda_meaning(one_lane)(_predicated(elected))
cuda_meaning(each_warp)(_predicated(_lane_zero))
