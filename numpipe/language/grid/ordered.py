"""prototype"""

from __future__ import annotations

from typing import Any

from ...core.lanes import one_lane
from ...core.op import helper, op
from ...intrinsics import barrier, special
from ...plan.context import Context, only_if

__all__ = ["await_count", "meet_wg", "raise_count"]


@helper(context=True)
def await_count(np_, counter, count):  # type: ignore[no-untyped-def]
    only_if(np_, "computes", _await, counter, count)


@helper(context=True)
def raise_count(np_, counter, add):  # type: ignore[no-untyped-def]
    only_if(np_, "computes", _raise, counter, add)


@helper(context=True)
def meet_wg(np_):  # type: ignore[no-untyped-def]
    only_if(np_, "computes", _meet)


@helper
def _meet(np_):  # type: ignore[no-untyped-def]
    barrier.sync(1 + special.warpgroup_index(), 128)


@helper
def _await(np_, counter, count):  # type: ignore[no-untyped-def]
    one_lane(poll, np_, counter, count)


@helper
def _raise(np_, counter, add):  # type: ignore[no-untyped-def]
    barrier.sync(1 + special.warpgroup_index(), 128)
    one_lane(release, np_, counter, add)


@op
def poll(np_: Context, counter: Any, count: Any) -> None:
    pass


@op
def release(np_: Context, counter: Any, add: Any) -> None:
    pass
