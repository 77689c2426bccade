"""The dynamic tile scheduler on the GPU: which lane executes what, the words of a warpgroup's
state, and the launch's counter."""

from __future__ import annotations

import contextlib
from typing import Any

from ...core import numba as nb
from ...core.lanes_cuda import elected
from ...core.numba import BOOLEAN, I32, I64
from ...core.op import cuda_meaning
from ...plan.context import cta_count
from ...plan.context_cuda import compute_warpgroup, counter_pointer, of_context, wide_counter
from ...plan.unit import Unit
from ..pipeline.ring_cuda import RingType
from . import tile_scheduler as source

# $0 the counter, $1 the number of CTAs minus one, at which the number of ended CTAs wraps to 0.
# Acquire and release: all work indices have been fetched before the last CTA resets their number
# (not with an ordinary store: the memory role has none).
_ENDED = (
    "{ .reg .pred np_last; .reg .b32 ended; atom.acq_rel.gpu.global.inc.u32 ended, [$0+4], $1; "
    "setp.eq.u32 np_last, ended, $1; @np_last red.relaxed.gpu.global.and.b32 [$0], 0; }"
)


@cuda_meaning(source.scheduler)
def _scheduler(np_: Any, site: Any) -> Any:
    source.check_cluster(np_.unit, nb.literal(site))
    plan = np_.unit.plan_work_ring(nb.literal(site))
    np_.unit.rings_of[np_.role].add(plan.name)
    none = nb.Tuple(())
    ring = RingType(np_, plan, none, none, 1, copies=False)
    builder, args = yield ring
    return builder.struct(ring, np=args[0])


# ---- who does what
def _first_lane(builder: Any, unit: Unit) -> Any:
    """Return whether this is the elected lane of the first compute warpgroup."""
    first = builder.icmp_unsigned("==", compute_warpgroup(builder, unit), 0)
    return builder.and_(first, elected(builder))


@cuda_meaning(source.if_fetching)
def _if_fetching(np_: Any, function: Any, *args: Any) -> Any:
    fetches = np_.loads or not np_.unit.warp_specialized
    if fetches:
        nb.returns(function, (np_, *args))
    builder, values = yield
    if fetches:
        with (
            contextlib.nullcontext()
            if np_.loads
            else builder.if_then(_first_lane(builder, np_.unit))
        ):
            builder.apply(function, (np_, *args), (values[0], *values[2:]))


# ---- the state
def _pass_owner(builder: Any, unit: Unit, np_: Any) -> None:
    if unit.turns > 1:
        word = counter_pointer(builder, np_, source.AWAY)
        left = builder.sub(builder.load(word), 1)
        before_first = builder.icmp_signed("<", left, 0)
        builder.store(builder.select(before_first, unit.turns - 1, left), word)


of_context(source.launch_counter, I64, lambda b, unit, np_: wide_counter(b, np_, source.COUNTER))
of_context(source.pass_owner, nb.VOID, _pass_owner)


@cuda_meaning(source.later)
def _later(index: Any, last: Any) -> Any:
    builder, args = yield I32(I32, I32)
    return builder.select(builder.icmp_unsigned(">", *args), args[0], -1)


@cuda_meaning(source.none_or_more)
def _none_or_more(tiles: Any) -> Any:
    builder, args = yield I32(I32)
    return builder.select(builder.icmp_signed("<", args[0], 0), 0, args[0])


@cuda_meaning(source.is_tile)
def _is_tile(tile: Any, end: Any) -> Any:
    builder, args = yield BOOLEAN(I32, I32)
    return builder.icmp_unsigned("<", *args)


@cuda_meaning(source.close)
def _close(np_: Any, in_turns: Any) -> Any:
    builder, args = yield
    if nb.literal(in_turns) and np_.unit.turns > 1:
        own = np_.compiled(builder, args[0])
        own.turn = source.away(own, own.state[source.AWAY])


# ---- the kernel's beginning and end
def begin_scheduler(builder: Any, np_: Any, address: Any) -> None:
    """Store the CTA's first work index and the address of the launch's counter, before the kernel
    function."""
    builder.store(builder.block_number(), counter_pointer(builder, np_, source.INDEX))
    builder.store(builder.trunc(address), counter_pointer(builder, np_, source.COUNTER))
    builder.store(
        builder.high_word(address),
        counter_pointer(builder, np_, source.COUNTER + 1),
    )


@cuda_meaning(source.end_scheduler)
def _end_scheduler(np_: Any) -> Any:
    unit: Unit = np_.unit
    builder, args = yield
    if unit.work_ring is None or (unit.warp_specialized and not np_.loads):
        return None
    with builder.if_then(elected(builder) if unit.warp_specialized else _first_lane(builder, unit)):
        others = builder.sub(builder.issue(cta_count), 1)
        builder.execute([wide_counter(builder, args[0], source.COUNTER), others], _ENDED)
