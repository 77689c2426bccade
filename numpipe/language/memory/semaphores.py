"""Semaphores: counters in global memory by which the warpgroups of several GPUs wait for each
other.

::

    numpipe.peer(y, other)[ds(i * 64, 64), :] = tile
    numpipe.signal(ready.at[i], other)  # what this warpgroup has stored is there
    numpipe.wait(ready.at[i], 2)  # 2 compute warpgroups have signalled here
    z = y[ds(i * 64, 64), :]  # what a peer has stored

A semaphore is 0 when a launch begins, and counts the signals of that launch; a wait does not
decrement it. Semaphores are the kernel's last array, which callers do not pass:
``@numpipe.kernel(semaphores=n)``, where n may also be a function of the arguments.

::

    signal   one lane     cp.async.bulk.wait_group 0: the TMA stores of this warpgroup are in global
                          memory, and the completion of each is followed by an implicit proxy fence
             all          named barrier: the stores of all lanes come before what one of them does
                          next
             one lane     red.release.sys.add, at the GPU that has the semaphore
    wait     one lane     ld.acquire.sys, repeated until the value is reached;
                          fence.proxy.async.global, so that later TMA copies see ordinary stores
                          that came before the signal
             all          named barrier: what this lane has observed, all lanes may read (the memory
                          role is one lane)

Both roles wait, because the memory role loads the data that is waited for. Only the compute role
signals, once for each warpgroup.

PTX ISA, "Memory Consistency Model: Scope; Release and Acquire Patterns; Causality order; Proxies",
"cp.async.bulk: completion".
"""

from __future__ import annotations

from typing import Any

from ...core.lanes import one_lane
from ...core.machine import current
from ...core.op import called, check, constant, context_op, helper, op
from ...diagnostics.argument_checks import FLAG
from ...diagnostics.errors import SpecError
from ...intrinsics import cp_async_bulk, fence
from ...plan.context import Context, only_if
from ..tiles.array_views import GmemView
from ..tiles.fence_order import meet
from .peer_arrays import await_launches, check_integer

__all__ = ["signal", "wait"]


@helper
def signal(np_, semaphore, rank, add=1):  # type: ignore[no-untyped-def]
    """Add to a semaphore of a GPU, after all previous stores and loads of this warpgroup:
    ``numpipe.signal(ready.at[i], rank)``.

    semaphore  ``ready.at[i]``, where `ready` is the kernel's last array parameter, which
               ``semaphores=`` adds
    rank       the GPU that has the semaphore, 0 … ``axis_size("gpu") - 1``, this GPU or a peer: a
               run-time integer
    add        1 or more, a run-time integer

    Each compute warpgroup that reaches the call adds, so two warpgroups that share a tile add 2. In
    the memory role it does nothing. When the semaphore counts the signal, this warpgroup's stores
    of tiles, copies and elements, to any GPU, have arrived. The call waits for the TMA stores in
    flight; where that matters, signal a block after the next one has been computed.

    A signal must arrive before the launch that receives it ends: that launch waits for it.

    Raises SpecError if `semaphore` is not a semaphore. On the simulated SM it raises
    SimulationError for an index or a rank that does not exist.
    """
    check_signal(np_, semaphore, rank, add)
    only_if(np_, "computes", complete_and_add, semaphore, rank, add)


@context_op(site=True)
def wait(np_: Context, site: str, semaphore: GmemView, value: Any, loads: bool = True) -> None:
    """Wait until `value` has been added to a semaphore of this GPU in this launch:
    ``numpipe.wait(ready.at[i], 2)``.

    semaphore  ``ready.at[i]``, where `ready` is the kernel's last array parameter; i is an integer
               that both roles know
    value      a run-time integer that both roles know; 0: no wait
    loads      whether the memory role waits too, a compile-time constant. Pass False if the loads
               of pipelines do not depend on the semaphore, only what the compute warpgroups read
               and copy themselves; the loads of the next tile then continue meanwhile

    All later accesses of this warpgroup come after the wait, and see what was stored before the
    signals that add up to the value. A wait does not decrement the semaphore, so any number of
    warpgroups and CTAs may wait for the same one. Both roles wait: loads of pipelines that follow
    in the source are issued after it. (In the body of an innermost pipeline, which the memory role
    does not run, only the compute role waits.)

    Raises SpecError if `semaphore` is not a semaphore. On the simulated SM it raises
    PipelineDeadlock if the signals never come. On a GPU a wait for a peer ends after 8 seconds,
    with an error that names the peer.
    """
    check_wait(np_, semaphore, value)
    if np_.computes:
        await_together(np_, semaphore, value, 0)
    elif constant("numpipe.wait", "loads", loads, FLAG):
        await_value(np_, semaphore, value, 0)


def _check(np_: Any, what: str, semaphore: Any) -> str:
    """Return the name of an operation for messages. Raises SpecError unless it has a semaphore, as
    a value or as a Numba type."""
    if not np_.unit.gpus:
        raise SpecError(
            f"{what} in a kernel without semaphores; fix: @numpipe.kernel(semaphores=…), which "
            "adds a last array parameter"
        )
    if not isinstance(semaphore, GmemView) or not semaphore.ref.arg.semaphores or semaphore.axes:
        raise SpecError(
            f"{what}: semaphore must be an element of the kernel's last array parameter, "
            f"{np_.unit.arrays[-1].name}.at[i], got {called(semaphore)}"
        )
    return f"{what.partition('(')[0]}({semaphore.ref.arg.name}.at[i], …)"


@check
def check_signal(np_: Any, semaphore: Any, rank: Any, add: Any) -> None:
    what = _check(np_, "numpipe.signal(semaphore, rank)", semaphore)
    if np_.computes:
        check_integer(what, "rank", rank)
        check_integer(what, "add", add)


def check_wait(np_: Any, semaphore: Any, value: Any) -> None:
    """Raise SpecError unless a wait has a semaphore and a value, or their Numba types."""
    check_integer(_check(np_, "numpipe.wait(semaphore, value)", semaphore), "value", value)


# ---- signal
@helper
def complete_and_add(np_, semaphore, rank, add):  # type: ignore[no-untyped-def]
    await_launches(np_)
    one_lane(complete_stores, np_)
    meet()
    one_lane(add_to, np_, semaphore, rank, add)


@helper
def complete_stores(np_):  # type: ignore[no-untyped-def]
    """Wait until all TMA stores of this lane have reached global memory."""
    cp_async_bulk.wait_group(0)


@op
def add_to(np_: Context, semaphore: GmemView, rank: Any, add: Any) -> None:
    """Add to a semaphore of a GPU, with release at system scope, from one lane."""
    ref = semaphore.ref
    current().semaphore_signal(ref.array, semaphore.start[0], rank, add, ref.arg.name)


# ---- wait
@helper
def await_together(np_, semaphore, value, place):  # type: ignore[no-untyped-def]
    one_lane(await_value, np_, semaphore, value, place)
    meet()


@helper
def await_value(np_, semaphore, value, place):  # type: ignore[no-untyped-def]
    poll(np_, semaphore, value, place)
    fence.proxy_async_global()


@op
def poll(np_: Context, semaphore: GmemView, value: Any, place: Any) -> None:
    """Wait for a value of a semaphore of this GPU, with acquire at system scope, in one lane.

    `place`: the number, in `Unit.places`, of the line that waits.
    """
    ref = semaphore.ref
    current().semaphore_wait(ref.array, semaphore.start[0], value, ref.arg.name)
