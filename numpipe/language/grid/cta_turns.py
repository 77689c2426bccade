"""Turns of CTAs, which make the order of additions to an array the same in each run. They are not
part of the public language.

::

    await_turn(turns.at[i], n, allowed)  # n CTAs have passed turn i on
    numpipe.atomic_add(total.at[ds(i * 128, 128), ds(0, 32)], to_register_order(tile))
    end_turn(added)
    pass_turn(turns.at[i], n)

A turn is an int32 in global memory that an earlier kernel set to 0, and that counts how often it
has been passed on. CTAs with the same turn have different n, from 0 on without gaps. A CTA may only
wait for CTAs with a smaller index, which the GPU starts first. So no wait lasts forever, however
few CTAs run at once.

::

    storing role   await_turn   ld.acquire.gpu, repeated until the count is n; arrive at `allowed`
                   end_turn     wait for `added`
                   pass_turn    st.release.gpu of n + 1
    compute role   await_turn   wait for `allowed`
                   end_turn     arrive at `added`

A release waits until all additions of the CTA have arrived, and a load of the count takes some 700
cycles. A warpgroup that computes would stand still meanwhile: this took 1.4 times as long on an
H200. So warps next to the loading one do both (``CompilerParams(store_role=True)``), one for each
compute warpgroup, and only tell it when it may add. If they await the next turn before they pass
the last one on, the release does not delay the next additions, but the next CTA has to be another
turn behind.

PTX ISA, "Memory Consistency Model: Release and Acquire Patterns; Causality order".
"""

from __future__ import annotations

from typing import Any

from ...core.machine import current
from ...core.op import helper, op
from ...intrinsics import mbarrier
from ...plan.allocations import ARRIVALS_A_WARPGROUP
from ...plan.context import Context, only_if
from ..memory.phases import wait
from ..pipeline.operand_barriers import barrier_arrive, barrier_wait
from ..tiles.array_views import GmemView


@helper
def await_turn(np_, turn, n, allowed):  # type: ignore[no-untyped-def]
    """Wait until a turn has been passed on n times:
    ``await_turn(turns.at[i], n, allowed)``.

    turn     an element of an int32 array, which was 0 when the kernel began; elements outside the
             array are not waited for
    n        the number of CTAs that come before, which have smaller indices
    allowed  a `Barrier` of this warpgroup with one arrival

    All later accesses of this warpgroup come after the wait. The additions between it and
    `pass_turn` are in the order of the turns: their sum has the same bits in each run. On the
    simulated SM it raises PipelineDeadlock if the turn never comes, and PipelineRace if a CTA adds
    before it has seen the previous turn. Additions by TMA are not in turn.
    """
    only_if(np_, "assists", allow, turn, n, allowed)
    barrier_wait(allowed)


@helper
def end_turn(np_, added):  # type: ignore[no-untyped-def]
    """End a turn, after all its stores and additions of this warpgroup. `added` is a `Barrier` of
    this warpgroup with one arrival."""
    barrier_arrive(added)
    only_if(np_, "assists", finish, added)


@helper
def pass_turn(np_, turn, n):  # type: ignore[no-untyped-def]
    """Pass a turn on that has ended: at once, or after `await_turn` of the next one."""
    only_if(np_, "assists", release, turn, n)


@helper
def allow(np_, turn, n, allowed):  # type: ignore[no-untyped-def]
    poll(np_, turn, n)
    mbarrier.arrive_count(allowed.address, ARRIVALS_A_WARPGROUP)


@helper
def finish(np_, added):  # type: ignore[no-untyped-def]
    wait(added)


@op
def poll(np_: Context, turn: GmemView, n: Any) -> None:
    """Wait for a turn, in one lane. All additions of the kernel are in turn."""
    np_.unit.takes_turns = True
    (i,), flags = turn.start, turn.ref.array
    if n > 0 and i < flags.shape[0]:
        current().gmem_await(flags, i, f"turn {n} of {turn.ref.name}[{i}]", int(n))


@op
def release(np_: Context, turn: GmemView, n: Any) -> None:
    """Pass turn n on, in one lane."""
    (i,), flags = turn.start, turn.ref.array
    if i < flags.shape[0]:
        what = f"turn {n + 1} of {turn.ref.name}[{i}]"
        current().gmem_signal(flags, i, what, int(n + 1), stays=True)
