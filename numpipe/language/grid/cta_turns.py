"""Turns of CTAs, which make the order of additions to an array the same in each run.

::

    numpipe.await_turn(turns.at[i], n)  # n CTAs have passed turn i on
    numpipe.atomic_add(total.at[ds(i * 64, 64), ds(0, 64)], tile)
    numpipe.pass_turn(turns.at[i], n)

A turn is an int32 in global memory that an earlier kernel set to 0, and that counts how often it
has been passed on. CTAs with the same turn have different n, from 0 on without gaps. A CTA may only
wait for CTAs with a smaller index, which the GPU starts first. So no wait lasts forever, however
few CTAs run at once.

::

    await_turn   one lane    ld.acquire.gpu, repeated until the count is n
                 all         named barrier: what this lane has observed, all lanes may read
    pass_turn    all         named barrier: the additions of all lanes come before the release
                 one lane    st.release.gpu of n + 1

A release waits until all that the CTA has stored has arrived (some 700 cycles), which other
warpgroups, or products in flight, should fill.

PTX ISA, "Memory Consistency Model: Release and Acquire Patterns; Causality order".
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...core.lanes import one_lane
from ...core.machine import current
from ...core.op import called, helper, op
from ...diagnostics.errors import SpecError
from ...intrinsics import barrier, special
from ...plan.context import Context, only_if
from ..tiles.array_views import GmemView


@helper(context=True)
def await_turn(np_, turn, n):  # type: ignore[no-untyped-def]
    """Wait until a turn has been passed on n times: ``numpipe.await_turn(turns.at[i], n)``.

    turn  an element of an int32 array, which was 0 when the kernel began; elements outside the
          array are not waited for
    n     the number of CTAs that come before, which have smaller indices

    All later accesses of this warpgroup come after the wait. The additions between it and
    `pass_turn` are in the order of the turns: their sum has the same bits in each run. In the
    memory role it does nothing. On the simulated SM it raises PipelineDeadlock if the turn never
    comes.
    """
    only_if(np_, "computes", _await, turn, n)


@helper(context=True)
def pass_turn(np_, turn, n):  # type: ignore[no-untyped-def]
    """Pass a turn on, after all previous stores and additions of this warpgroup."""
    only_if(np_, "computes", _pass, turn, n)


@helper
def _await(np_, turn, n):  # type: ignore[no-untyped-def]
    one_lane(poll, np_, turn, n)
    barrier.sync(1 + special.warpgroup_index(), 128)


@helper
def _pass(np_, turn, n):  # type: ignore[no-untyped-def]
    barrier.sync(1 + special.warpgroup_index(), 128)
    one_lane(release, np_, turn, n)


def check(what: str, turn: Any) -> None:
    """Raise SpecError unless a turn, or its Numba type, is an element of an int32 array."""
    if not isinstance(turn, GmemView) or turn.axes or turn.ref.arg.dtype.name != "int32":
        raise SpecError(
            f"{what}(turn, n): turn must be an element of an int32 array, turns.at[i], got "
            f"{called(turn)}"
        )


@op
def poll(np_: Context, turn: GmemView, n: Any) -> None:
    """Wait for a turn, in one lane."""
    check("numpipe.await_turn", turn)
    (i,), flags = turn.start, turn.ref.array
    if i < flags.shape[0]:
        current().gmem_await(flags, i, f"turn {n} of {turn.ref.name}[{i}]", int(n))


@op
def release(np_: Context, turn: GmemView, n: Any) -> None:
    """Pass a turn on, in one lane."""
    check("numpipe.pass_turn", turn)
    (i,), flags = turn.start, turn.ref.array
    if i < flags.shape[0]:
        current().gmem_signal(flags, i, f"turn {n + 1} of {turn.ref.name}[{i}]", turn=int(n))


@op(context=True)
def peek(np_: Context, turn: GmemView) -> Any:
    return np.int32(0)


@op(context=True)
def spin(np_: Context, turn: GmemView, n: Any, seen: Any) -> None:
    pass
