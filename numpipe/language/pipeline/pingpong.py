"""The ping-pong schedule, ``@numpipe.kernel(schedule="pingpong")``: compute warpgroups take turns,
each computing whole tiles.

The tiles of a CTA, in all its loops, are dealt to its n compute warpgroups in turn: each warpgroup
has every n-th tile. The memory role loads all of them in order, into the same rings. A warpgroup
runs the pipelines of a tile during its *turn*, so its stores overlap the main loop of the next
tile::

    warpgroup 0   | tile 0: products | store      | tile 2: products | store
    warpgroup 1   ...................| tile 1: products | store      | tile 3: products
                                     ^ the turn is passed when the last product has been issued

    take_turn     wait at the named barrier of this warpgroup; read the rings' step counters
    pass_turn     write them for the next warpgroup; arrive at its named barrier

The step counters are passed along with the turn, as four bytes per ring in shared memory; this
costs an STS and an LDS per tile while products are in flight. A warpgroup thereby skips the steps
of other warpgroups' tiles, even if their number differs from tile to tile. Each warpgroup reads its
own words. They are written again only after the warpgroup has arrived at another one's barrier, and
so has read them. Each slot is used by one warpgroup, whose four warps release it. Parity waits stay
valid: some warpgroup has waited for every earlier step in an earlier turn, so a slot is never two
phases behind. At the start of the kernel, the last warpgroup passes the turn to the first; at the
end, the warpgroup whose turn it is takes it, so that no arrival is left over.

The AST pass inserts `take_turn` before the first pipeline of a tile and `pass_turn` after the last
(`compile.lift.turn_placement`). If the last one is an innermost loop, the end of the loop passes
the turn instead, between the issue of the last product and the wait for it (`steps.end_loop`).
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
"""named barrier of the first warpgroup's turn; 0 belongs to the CTA, 1…8 to the warpgroups"""
THREADS = 256
"""threads that meet at it: of the warpgroup that passes the turn and the one that takes it"""


def turn_of(unit: Any, barrier: int) -> str:
    """Return a description of the turn that a named barrier passes, with its warpgroup; "" for
    other barriers."""
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
    """Read the rings' step counters that the previous warpgroup wrote."""
    own = np_.number
    for index in np_.unit.handed.get((current().cta, own), ()):
        set_counter(np_, index, memory.load_word(np_.unit.turn_word(own, index)))


@op
def put_counters(np_: Context) -> None:
    """Write the step counters for the next warpgroup, in one lane. There is no branch, because
    ptxas would serialize the products after it."""
    # other warpgroups may add rings to the unit in the meantime
    to, rings = following(np_), [plan.index for plan in np_.unit.handed_over()]
    for index in rings:
        one_lane(memory.store_word, np_.unit.turn_word(to, index), counter(np_, index))
    # the CTAs of a cluster add rings at different times
    np_.unit.handed[current().cta, to] = tuple(rings)


@helper
def await_turn(np_):  # type: ignore[no-untyped-def]
    """Wait for this warpgroup's turn, and continue in the rings where the previous warpgroup
    stopped."""
    barrier.sync(own_barrier(np_), THREADS)
    get_counters(np_)


@helper
def give_turn(np_):  # type: ignore[no-untyped-def]
    """Pass the step counters and the turn to the next warpgroup."""
    put_counters(np_)
    barrier.arrive(next_barrier(np_), THREADS)


@helper
def take_turn(np_):  # type: ignore[no-untyped-def]
    """Take the turn before the first pipeline of a tile."""
    only_if(np_, "in_turns", await_turn)


@helper
def pass_turn(np_):  # type: ignore[no-untyped-def]
    """Pass the turn after the last pipeline of a tile."""
    only_if(np_, "in_turns", give_turn)


# ---- whose tiles are whose
@formula
def own_stride(np_: Context, stride: Any) -> Any:
    """Return the distance between two tiles of this warpgroup; `stride` is the distance between two
    tiles of its CTA."""
    return stride * (np_.unit.turns if np_.numbered else 1)


@formula
def before_own(np_: Context, before: Any, stride: Any) -> Any:
    """Return the tile that is `own_stride` before this warpgroup's first one; `before` is the tile
    that is `stride` before the CTA's first one."""
    if not np_.numbered:
        return before
    n = np_.unit.turns
    skipped = (np_.number - np_.turn + n) % n
    return before + stride * (skipped + (1 - n))


@formula
def end_turns(np_: Context, last: Any, stride: Any, end: Any) -> None:
    """Record, after a loop over tiles, whose turn is next; `last` is this warpgroup's last tile, or
    the result of `before_own`."""
    if not np_.numbered:
        return
    n = np_.unit.turns
    turn, tile = np_.number + n, last
    # the tiles between this warpgroup's last and its next belong to the other warpgroups, in order
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
    """Give the first compute warpgroup the first turn. Compute warpgroups call this before the
    kernel function."""
    if is_last_warpgroup(np_):
        give_turn(np_)


@helper
def finish_turns(np_):  # type: ignore[no-untyped-def]
    """Take the unused last turn, after the kernel function, so that no arrival is left over."""
    if has_next_turn(np_):
        await_turn(np_)


# ---- options without a meaning
def check_pipeline(where: str, unit: Unit, steps_of: bool, outputs: bool, single: bool) -> None:
    """Raise SpecError for pipeline options that require warpgroups that share tiles."""
    if unit.turns < 2 or single:
        return
    if steps_of:
        raise SpecError(
            f"{where}: steps_of with schedule='pingpong', in which one compute warpgroup runs all "
            "steps of a tile; fix: leave out steps_of, or set grid to the number of steps of the "
            "tile"
        )
    if outputs:
        raise SpecError(
            f"{where}: out_specs with schedule='pingpong', in which each compute warpgroup has "
            "its own tile, but all of them write an output's slot together; fix: store from "
            "registers, c[…] = tile, or use schedule='cooperative'"
        )
