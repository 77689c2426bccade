"""Order tokens: compute warpgroups execute a block of statements one after another, 0, 1, … n - 1,
0, 1, …

::

    for (j,), (k_tile, v_tile) in pipe(k, v):
        with numpipe.turn("products"):
            s = numpipe.wgmma(None, q_tile, k_tile.T)
            acc = numpipe.wgmma(acc, p, v_tile)
        …                                   # softmax, while the next warpgroup's products run

    warpgroup 0   |products| softmax ....... |products| softmax
    warpgroup 1   .........|products| softmax ....... |products| softmax

A token has a named barrier for each compute warpgroup, numbered after the warpgroups' own barriers.
The 256 threads of the warpgroup that waits for its turn and the warpgroup that passes it on meet
there (PTX ISA, "bar, barrier": bar.sync, bar.arrive)::

    enter_turn    bar.sync at the warpgroup's own barrier
    leave_turn    bar.arrive at the next warpgroup's barrier

At the kernel's beginning the last warpgroup passes each token to the first, and at its end the
first takes it once more. So no arrival is left over, and a warpgroup that executes the blocks of a
token more or less often than the others is a deadlock. If a pipeline's `steps_of` skips steps, the
loop takes and passes the turns of these steps; for that the AST pass counts the blocks of a step,
and rejects blocks that it cannot count.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from ...core.op import context_op, helper, op, outside
from ...intrinsics import barrier
from ...plan.context import Context, only_if
from .pingpong import THREADS

__all__ = ["turn"]


def turn(name: str | None) -> NoReturn:
    """Let the compute warpgroups execute a block of statements one after another: ``with
    numpipe.turn("products"):``.

    name  the name of the token, a compile-time string. Blocks with the same name share a token, and
          each is a turn. None: no order

    Warpgroup 0 is first, then 1, … n - 1, then 0 again. All warpgroups must execute the blocks of a
    token equally often. If ``steps_of`` of a `pipeline` skips steps, the loop takes and passes the
    turns of these steps, so the block must not be inside a branch. `return`, and `break` or
    `continue` of a loop around the block, may not leave it. With one compute warpgroup, and in the
    memory role, it does nothing.

    It does not affect results: tiles are waited for and released as usual. It decides whose
    products the tensor cores execute next, so that one warpgroup's softmax overlaps another one's
    products.

    A token takes one named barrier for each compute warpgroup, from those of the CTA's 16 that
    numpipe does not use itself: this allows 5 tokens with 2 compute warpgroups, 3 with 3. Executing
    a block costs a bar.sync and a bar.arrive (PTX ISA, "bar, barrier").

    Raises CompileError if no barriers are left for a token, inside another block of the same token,
    and with ``schedule="pingpong"``, whose turns are whole tiles; SpecError for blocks that a step
    of a loop with steps_of may not execute. Warpgroups that do not execute the blocks equally often
    are a deadlock, which the simulator reports.
    """
    raise outside("turn", ', as `with numpipe.turn("name"):`')


@op
def place_of(np_: Context, number: int, further: int) -> Any:
    """Return the named barrier at which this warpgroup, or with `further` 1 the next one, waits for
    its turn with a token."""
    unit = np_.unit
    return np.int32(unit.token_barrier(number) + (np_.number + further) % unit.compute_wgs)


# ---- turns
@helper
def await_token(np_, number):  # type: ignore[no-untyped-def]
    barrier.sync(place_of(np_, number, 0), THREADS)


@helper
def pass_token(np_, number):  # type: ignore[no-untyped-def]
    barrier.arrive(place_of(np_, number, 1), THREADS)


@helper
def enter_turn(np_, number):  # type: ignore[no-untyped-def]
    """Wait for this warpgroup's turn with a token, at the beginning of a `turn` block."""
    only_if(np_, "several", await_token, number)


@helper
def leave_turn(np_, number):  # type: ignore[no-untyped-def]
    """Pass the turn with a token to the next warpgroup, at the end of a `turn` block."""
    only_if(np_, "several", pass_token, number)


@helper
def skip_turn(np_, number):  # type: ignore[no-untyped-def]
    """Take a turn, and pass it on at once."""
    enter_turn(np_, number)
    leave_turn(np_, number)


# ---- the kernel's beginning and end
@context_op
def begin_tokens(np_: Context, names: tuple[str, ...]) -> None:
    """Give each token to the first warpgroup, at the beginning of a kernel that has tokens."""
    np_.unit.tokens = names
    over_tokens(np_, np_.unit.compute_wgs - 1, pass_token)


@op
def end_tokens(np_: Context) -> None:
    """Wait until every token has come back to the first warpgroup. Compute warpgroups call it after
    the kernel function."""
    over_tokens(np_, 0, await_token)


def over_tokens(np_: Context, warpgroup: int, function: Callable[[Context, int], None]) -> None:
    """Call ``function(np_, number)`` for each token, in one of the compute warpgroups."""
    if np_.computes and np_.number == warpgroup:
        for number in range(len(np_.unit.tokens)):
            only_if(np_, "several", function, number)
