"""Ping-pong: compute warpgroups take turns on whole tiles, where
``@numpipe.kernel(schedule="pingpong")`` asks for that.

The tiles of a CTA, of all its loops, go round its n compute warpgroups: warpgroup w has every n-th
of them. The memory role loads all of them in order, into the same rings. A warpgroup runs the
pipelines of a tile in its *turn*, so that its stores overlap the main loop of the next::

    warpgroup 0   | tile 0: products | store      | tile 2: products | store
    warpgroup 1   ...................| tile 1: products | store      | tile 3: products
                                     ^ the turn is passed when the last product has been issued

    take_turn     wait at the named barrier of this warpgroup; read the rings' step counters
    pass_turn     write them for the next warpgroup; arrive at its named barrier

The counters travel with the turn, four bytes a ring in shared memory, at the cost of an STS and an
LDS a tile beside products that are in flight: so the steps of other warpgroups' tiles are skipped
whatever their number, which may be another one for each tile. A warpgroup has words of its own
there: they are written again only after it has arrived at somebody's barrier, and so has read them.
A slot is used by one warpgroup, whose four warps release it. Parity waits stay safe: somebody has
waited for every earlier step in an earlier turn, so a slot is never two phases behind. At the
kernel's beginning the last warpgroup passes the turn to the first; at its end the one whose turn it
is takes it, so that nobody leaves an arrival behind.

The AST pass writes `take_turn` before the first pipeline of a tile and `pass_turn` after the last
(`compile.lift.turn_placement`). Where that is an innermost loop, its end passes the turn between
the last product's issue and its wait (`steps.end_loop`).
"""

from __future__ import annotations

from typing import Any

from ...core.lanes import one_lane
from ...core.machine import current
from ...core.op import formula, helper, op
from ...diagnostics.errors import SpecError
from ...intrinsics import barrier, memory
from ...plan.context import Context, counter, only_if, set_counter
from ...plan.unit import Unit

FIRST_BARRIER = 9
"""named barrier of the first warpgroup's turn; 0 is the CTA's, 1…8 are the warpgroups' own"""
THREADS = 256
"""threads that meet at it, of the warpgroup that passes the turn and of the one that takes it"""


def turn_of(unit: Any, barrier: int) -> str:
    """Return which turn a named barrier stands for, and of which warpgroup; "" for a barrier of no
    turn."""
    warpgroup = barrier - FIRST_BARRIER
    if 0 <= warpgroup < getattr(unit, "turns", 1) > 1:
        return f"the turn of compute warpgroup {warpgroup}"
    tokens: tuple[str, ...] = getattr(unit, "tokens", ())
    number, warpgroup = (
        divmod(barrier - unit.token_barrier(0), unit.compute_wgs) if tokens else (-1, 0)
    )
    return (
        f"the turn {tokens[number]!r} of compute warpgroup {warpgroup}"
        if 0 <= number < len(tokens)
        else ""
    )


@formula
def own_barrier(np_: Context) -> Any:
    """Return the named barrier at which this warpgroup waits for its turn."""
    return np_.number + FIRST_BARRIER


@formula
def next_barrier(np_: Context) -> Any:
    """Return the named barrier of the warpgroup whose turn comes next."""
    return following(np_) + FIRST_BARRIER


def following(np_: Any) -> Any:
    return (np_.number + 1) % np_.unit.turns


@op
def get_counters(np_: Context) -> None:
    """Read the rings' step counters, as the previous warpgroup left them."""
    own = np_.number
    for index in np_.unit.handed.get((current().cta, own), ()):
        set_counter(np_, index, memory.load_word(np_.unit.turn_word(own, index)))


@op
def put_counters(np_: Context) -> None:
    """Write the step counters for the next warpgroup: by one lane, with no branch, behind which
    ptxas would serialise products."""
    # other warpgroups may meet more rings meanwhile
    to, rings = following(np_), [plan.index for plan in np_.unit.handed_over()]
    for index in rings:
        one_lane(memory.store_word, np_.unit.turn_word(to, index), counter(np_, index))
    # each CTA of a cluster meets rings in its own time
    np_.unit.handed[current().cta, to] = tuple(rings)


@helper
def await_turn(np_):  # type: ignore[no-untyped-def]
    """Wait for this warpgroup's turn, and go on in the rings where the previous warpgroup
    stopped."""
    barrier.sync(own_barrier(np_), THREADS)
    get_counters(np_)


@helper
def give_turn(np_):  # type: ignore[no-untyped-def]
    """Pass the step counters and the turn to the next warpgroup."""
    put_counters(np_)
    barrier.arrive(next_barrier(np_), THREADS)


@helper(context=True)
def take_turn(np_):  # type: ignore[no-untyped-def]
    """Take the turn before the first pipeline of a tile."""
    only_if(np_, "in_turns", await_turn)


@helper(context=True)
def pass_turn(np_):  # type: ignore[no-untyped-def]
    """Pass the turn behind the last pipeline of a tile."""
    only_if(np_, "in_turns", give_turn)


# ---- whose tiles are whose
@formula(context=True)
def own_stride(np_: Context, stride: Any) -> Any:
    """Return the distance between two tiles of this warpgroup, for a `stride` between two of its
    CTA."""
    return stride * (np_.unit.turns if np_.numbered else 1)


@formula(context=True)
def before_own(np_: Context, before: Any, stride: Any) -> Any:
    """Return the tile `own_stride` before this warpgroup's first one; `before`: the tile `stride`
    before the CTA's first one."""
    if not np_.numbered:
        return before
    n = np_.unit.turns
    skipped = (np_.number - np_.turn + n) % n
    return before + stride * (skipped + (1 - n))


@formula(context=True)
def end_turns(np_: Context, last: Any, stride: Any, end: Any) -> None:
    """Note, after a loop over tiles, whose turn is next; `last`: this warpgroup's last tile, or
    `before_own`'s result."""
    if not np_.numbered:
        return
    n = np_.unit.turns
    turn, tile = np_.number + n, last
    # the others have the tiles between this warpgroup's last and its next, in order
    for _ in range(1, n):
        tile = tile + stride
        turn = turn - (tile >= end)
    np_.turn = turn % n


# ---- the kernel's beginning and end
@formula
def is_last_warpgroup(np_: Context) -> bool:
    return np_.number == np_.unit.turns - 1  # type: ignore[no-any-return]


@formula
def has_next_turn(np_: Context) -> bool:
    return np_.number == np_.turn  # type: ignore[no-any-return]


@helper
def begin_turns(np_):  # type: ignore[no-untyped-def]
    """Give the first compute warpgroup the first turn. Compute warpgroups call it before the kernel
    function."""
    if is_last_warpgroup(np_):
        give_turn(np_)


@helper
def finish_turns(np_):  # type: ignore[no-untyped-def]
    """Take the turn that nobody uses, after the kernel function, so that no arrival stays
    behind."""
    if has_next_turn(np_):
        await_turn(np_)


# ---- options without a meaning
def check_pipeline(where: str, unit: Unit, steps_of: bool, outputs: bool, single: bool) -> None:
    """Raise SpecError for options of a pipeline that need warpgroups which share its tiles."""
    if unit.turns < 2 or single:
        return
    if steps_of:
        raise SpecError(
            f"{where}: steps_of with schedule='pingpong': one compute warpgroup runs all steps of "
            "a tile, and none is shared: leave it out, or make the grid the steps that the tile "
            "has"
        )
    if outputs:
        raise SpecError(
            f"{where}: out_specs with schedule='pingpong': the slots of outputs are written by "
            "all compute warpgroups together, and here each has a tile of its own: store from "
            "registers, c[…] = tile, or use schedule='cooperative'"
        )
