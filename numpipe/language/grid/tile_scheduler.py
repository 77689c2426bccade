"""The dynamic tile scheduler: a CTA fetches the number of its next tile from a counter that all
CTAs of the launch share.

``numpipe.tiles(…, dynamic=True)``. The counter gives out *work indices*. CTA i begins with work
index i; each further one comes from an atomic addition in global memory, so a CTA that is quicker,
or starts earlier, takes more of them::

    memory role   | fetch 2 | loads of tile 1 ...... | send 2, fetch 3 | loads of tile 2 ......
    compute role              | tile 1: products ...... | read 2, store | tile 2: products .....

One lane fetches, one tile ahead, so that the loads of a tile never wait for the counter: the memory
role's, which has to know the tile first, or, in a kernel without one, a lane of the first compute
warpgroup. The answer is not touched before the tile's loads have been issued, so ptxas leaves it in
flight across them. (For a 64-bit addition ptxas waits at once: half of the result is dead, and its
register is used again.) The lane sends the work indices to the compute warpgroups through a
`number_ring`. All of them read all work indices, also where they take turns (`turns`), and pass
over those of the others: if only one of them released a slot, the ring would need a slot for each,
because a wait for a parity must not be two phases ahead.

All loops of a kernel take work indices from one counter, one loop behind the other: tile t of a
loop is work index ``base + t``, where `base` is how many tiles the loops before had. A work index
beyond a loop's tiles ends it, and is kept for the next one. So any number of loops may run, as long
as all CTAs run the same ones, with as many tiles: the simulated SM checks that.

Each launch has a counter of its own, by kernel, stream and outputs: launches that share these could
not run at the same time. Its 8 bytes count work indices that were fetched, and CTAs that have
ended. The last CTA that ends sets it back, so replays of a graph need nobody to do that; a kernel
that gave up its waits (`CompilerParams.debug`) sets it back too, since its CTAs end all the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...core.arith import add, sub
from ...core.lanes import one_lane
from ...core.machine import current
from ...core.op import formula, helper, op, ptx
from ...diagnostics.errors import CompileError, SpecError
from ...plan.context import Context, counter, cta_count, only_if, own_index, set_counter
from ...plan.plans import SCHEDULER
from ...plan.unit import Unit
from ..pipeline.number_ring import put_number, take_number, uniform
from ..pipeline.ring import Ring

# words of a warpgroup's state: its work index; tiles of the loops before this one, and of this one;
# with turns, how many warpgroups come before it, from the one whose tile the work index is
INDEX, BASE, END, AWAY = (SCHEDULER + word for word in range(4))
# words of the lane that fetches: the next work index, how many it has sent, and, two words, the
# address of the launch's counter; of all others, how many they have read
AHEAD, SENT, TAKEN, COUNTER = (SCHEDULER + word for word in range(4, 8))


@op(context=True)
def scheduler(np_: Context, site: str) -> Ring:
    """Return the ring of work indices, for the loop that is written at `site`."""
    if np_.compute_only:
        raise CompileError(unreachable(np_.unit.kernel, site))
    check_cluster(np_.unit, site)
    if np_.work_ring is None:
        np_.work_ring = Ring(
            np_, np_.unit.plan_work_ring(site), (), (), (np.int32(1),), np.int32(0)
        )
        np_.state[INDEX] = int(own_index())
    if np_.dynamic_loop is not None:
        raise SpecError(
            f"kernel {np_.unit.kernel}, tiles(dynamic=True) at {site}: runs inside that of "
            f"{np_.dynamic_loop}: CTAs have other tiles of that one, and would not agree on this "
            "one's; give numpipe.tiles the counts of both"
        )
    np_.dynamic_loop = site
    ring: Ring = np_.work_ring
    return ring


def unreachable(kernel: str, site: str) -> str:
    return (
        f"kernel {kernel}, tiles(dynamic=True) at {site}: only compute warpgroups come here, so "
        "nobody fetches tiles for them: write the loop in the kernel function, or leave dynamic "
        "out"
    )


def check_cluster(unit: Unit, site: str) -> None:
    """Raise SpecError in a kernel whose clusters have named axes."""
    if unit.clustered:
        raise SpecError(
            f"kernel {unit.kernel}, tiles(dynamic=True) at {site}: CTAs fetch tiles each for "
            "itself, and those of a cluster with named axes go through the same ones: leave "
            "dynamic or cluster_names= out"
        )


# ---- who does what
def fetches(np_: Context) -> bool:
    """Whether a lane of this warpgroup fetches."""
    return np_.loads or (
        not np_.unit.warp_specialized and np_.unit.number(current().warpgroup) == 0
    )


@op
def if_fetching(np_: Context, function: Callable[..., None], *args: Any) -> None:
    """Let the lane that fetches call ``function(np_, *args)``."""
    if fetches(np_):
        one_lane(function, np_, *args)


# ---- work indices
@ptx(
    "{ .reg .pred np_scheduler; atom.relaxed.gpu.global.add.u32 $ret, [$address], 1; }",
    returns="r",
    address="l",
)
def draw(address: int) -> int:
    """Take the next number of a launch's counter, which does not count the work indices that CTAs
    begin with."""
    return current().deal.draw(int(own_index())) - int(cta_count())


@op
def launch_counter(np_: Context) -> Any:
    """Return the address of the launch's counter."""
    return np.int64(0)


@helper
def fetch(np_):  # type: ignore[no-untyped-def]
    """Ask for the next work index. Nothing is done with the answer before it is sent: any use of it
    would wait for it."""
    set_counter(np_, AHEAD, draw(launch_counter(np_)))


@helper
def fetched(np_):  # type: ignore[no-untyped-def]
    """Return the work index that `fetch` asked for."""
    return add(counter(np_, AHEAD), cta_count())


@helper
def send(np_, ring):  # type: ignore[no-untyped-def]
    """Send the compute warpgroups the work index that was fetched."""
    put_number(ring, counter(np_, SENT), fetched(np_))
    set_counter(np_, SENT, add(counter(np_, SENT), 1))


@helper
def keep(np_):  # type: ignore[no-untyped-def]
    """Go on with the work index that was fetched."""
    set_counter(np_, INDEX, fetched(np_))


@helper
def take(np_, ring):  # type: ignore[no-untyped-def]
    """Go on with the next work index in the ring."""
    set_counter(np_, INDEX, later(take_number(ring, counter(np_, TAKEN)), counter(np_, INDEX)))
    set_counter(np_, TAKEN, add(counter(np_, TAKEN), 1))
    pass_owner(np_)


@helper
def tile_of(np_):  # type: ignore[no-untyped-def]
    """Return the work index as the number of a tile of this loop."""
    return sub(counter(np_, INDEX), counter(np_, BASE))


@op
def is_tile(tile: Any, end: Any) -> bool:
    """Return whether a number is that of a tile of a loop over `end` tiles; if not, the loop ends.

    The GPU compares unsigned numbers: in a kernel that gave up its waits (`CompilerParams.debug`) a
    work index may be anything.
    """
    return bool(tile < end)


@op
def later(index: Any, last: Any) -> Any:
    """Return `index`, the next work index from the ring, which must be greater than the `last` one.

    On the GPU one that is not ends all loops: in a kernel that gave up its waits the ring's old
    numbers come again and again.
    """
    return index


# ---- turns: the tiles of a CTA go round its compute warpgroups, over all its loops
def away(np_: Any, turn: Any) -> Any:
    """Return the distance of this warpgroup from warpgroup `turn`, or the reverse."""
    return (np_.number - turn + np_.unit.turns) % np_.unit.turns


@formula
def away_first(np_: Context) -> Any:
    """Return how many warpgroups come before this one, from the one whose turn it is."""
    return away(np_, np_.turn) if np_.unit.turns > 1 else 0


@op
def pass_owner(np_: Context) -> None:
    """Give the next work index to the next warpgroup."""
    np_.state[AWAY] = (np_.state[AWAY] - 1) % np_.unit.turns


@helper
def pass_over(np_, ring):  # type: ignore[no-untyped-def]
    """Go on to this warpgroup's next work index, or to one that ends the loop."""
    while is_tile(tile_of(np_), counter(np_, END)) and counter(np_, AWAY) > 0:
        take(np_, ring)


@helper
def begin_turns(np_, ring):  # type: ignore[no-untyped-def]
    """Go on, at a loop's beginning, to this warpgroup's first work index."""
    set_counter(np_, AWAY, uniform(away_first(np_)))
    pass_over(np_, ring)


# ---- the loop
@op
def none_or_more(tiles: Any) -> Any:
    """Return a number of tiles: 0 for a negative one, as in other loops."""
    return np.int32(max(int(tiles), 0))


@helper(context=True)
def first_tile(np_, ring, end):  # type: ignore[no-untyped-def]
    """Return the first tile of a loop over `end` tiles, by the work index that the loop before
    left; `end` or more for none."""
    set_counter(np_, END, end)
    only_if(np_, "in_turns", begin_turns, ring)
    return tile_of(np_)


@helper(context=True)
def next_ticket(np_, ring):  # type: ignore[no-untyped-def]
    """Pass the next work index on, after a tile's last pipeline, so that others need not wait until
    the tile is stored."""
    if_fetching(np_, send, ring)
    only_if(np_, "loads", keep)
    only_if(np_, "sharing", take, ring)


@helper(context=True)
def next_tile(np_, ring):  # type: ignore[no-untyped-def]
    """Return the next tile, at the end of one."""
    only_if(np_, "in_turns", take, ring)
    only_if(np_, "in_turns", pass_over, ring)
    return tile_of(np_)


@helper(context=True)
def fetch_ahead(np_):  # type: ignore[no-untyped-def]
    """Ask for the next work index, at a tile's beginning."""
    if_fetching(np_, fetch)


@helper(context=True)
def end_tiles(np_, in_turns):  # type: ignore[no-untyped-def]
    """End a loop. Where its tiles had turns (`in_turns`), the next turn is of the warpgroup that
    would have the next tile."""
    set_counter(np_, BASE, add(counter(np_, BASE), counter(np_, END)))
    close(np_, in_turns)


@op
def close(np_: Context, in_turns: int) -> None:
    """Note the next turn behind a loop, and on the simulated SM which loop it was."""
    site, np_.dynamic_loop = np_.dynamic_loop, None
    if in_turns:
        np_.turn = away(np_, np_.state[AWAY])
    if fetches(np_):
        _agree(
            np_,
            current().deal.ended(int(own_index()), f"{np_.state[END]} tiles in the loop of {site}"),
        )


# ---- the kernel's end
@op
def end_scheduler(np_: Context) -> None:
    """Count, after the kernel function, a CTA that has ended, by the lane that fetched; the last
    one sets the counter back."""
    if np_.work_ring is not None and fetches(np_):
        _agree(np_, current().deal.ended(int(own_index()), ""))


def _agree(np_: Context, other: str | None) -> None:
    """Raise SpecError where a CTA runs other loops than those before."""
    if other is not None:
        raise SpecError(
            f"kernel {np_.unit.kernel}: CTA {current().cta} has {other}: with tiles(dynamic=True) "
            "all CTAs run the same loops, with the same counts: they take their tiles from one "
            "counter"
        )
