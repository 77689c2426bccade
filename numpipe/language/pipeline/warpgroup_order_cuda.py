"""Order tokens on the GPU: their barriers, and what one warpgroup does at the kernel's beginning
and end."""

from __future__ import annotations

from typing import Any

from ...core import numba as nb
from ...core.numba import I32
from ...core.op import cuda_meaning
from ...plan.context_cuda import own_warpgroup
from . import warpgroup_order as source


@cuda_meaning(source.place_of)
def _place_of(np_: Any, number: Any, further: Any) -> Any:
    unit, first = np_.unit, np_.unit.token_barrier(nb.literal(number))
    builder, args = yield I32
    place = own_warpgroup(builder, args[0])
    if nb.literal(further):
        following = builder.add(place, 1)
        last = builder.icmp_unsigned("==", following, unit.compute_wgs)
        place = builder.select(last, 0, following)
    return builder.add(place, first)


def _over_tokens(builder: Any, np_: Any, value: Any, warpgroup: int, function: Any) -> None:
    """Implement `warpgroup_order.over_tokens`."""
    if not np_.several or not np_.unit.tokens:
        return
    with builder.if_then(builder.icmp_unsigned("==", own_warpgroup(builder, value), warpgroup)):
        for token in range(len(np_.unit.tokens)):
            kind, number = nb.immediate(token)
            builder.apply(function, (np_, kind), (value, number))


@cuda_meaning(source.begin_tokens)
def _begin_tokens(np_: Any, names: Any) -> Any:
    np_.unit.tokens = nb.literal(names)
    builder, args = yield
    _over_tokens(builder, np_, args[0], np_.unit.compute_wgs - 1, source.pass_token)


@cuda_meaning(source.end_tokens)
def _end_tokens(np_: Any) -> Any:
    builder, args = yield
    _over_tokens(builder, np_, args[0], 0, source.await_token)
