"""The dynamic tile scheduler: a CTA fetches the number of its next tile from a counter that all CTAs of the launch share.

``numpipe.tiles(…, dynamic=True)``. A number that a CTA has is a *ticket*. CTA i begins with ticket i; each further one comes from
an atomic addition in global memory, so a CTA that is quicker, or starts earlier, takes more of them::

    memory role   | fetch ticket 2 | loads of tile 1 ......... | tell 2, fetch 3 | loads of tile 2 .........
    compute role                     | tile 1: products ......... | read 2, store | tile 2: products ........

One lane fetches, one tile ahead, so that the loads of a tile never wait for the counter: the memory role's, or, in a kernel
without one, a lane of the first compute warpgroup. It tells the tickets to the compute warpgroups through a `number_ring`. All of
them read all tickets, in order, also where they take turns (`turns`): a warpgroup passes over the tickets of the others.

All loops of a kernel take tickets from one counter, one loop behind the other: tile t of a loop is ticket ``base + t``, where
`base` is how many tiles the loops before had. A ticket beyond a loop's tiles ends it, and is kept for the next one. So any number
of loops may run, as long as all CTAs run the same ones, with as many tiles: the simulated SM checks that.

The counter is 8 bytes of the launch's own: tickets that were fetched, and CTAs that have ended. The last CTA that ends sets it
back, so replays of a graph need nobody to do that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...core.arith import add, sub
from ...core.lanes import one_lane
from ...core.machine import current
from ...core.op import helper, op, ptx
from ...diagnostics.errors import CompileError, SpecError
from ...plan.context import Context, counter, only_if, set_counter
from ...plan.plans import SCHEDULER
from ..pipeline.number_ring import put_number, take_number, uniform
from ..pipeline.ring import Ring
from .splits import own_index

# words of a warpgroup's state
TICKET, BASE, END, AWAY = (SCHEDULER + word for word in range(4))
"""the ticket that it is at; tiles of the loops before this one, and of this one; with turns, how many warpgroups on from the
ticket's this one is"""
AHEAD, TOLD, TAKEN = (SCHEDULER + word for word in range(4, 7))
"""of the lane that fetches: the next ticket, and how many it has told; how many were read"""
COUNTER = SCHEDULER + 7
"""of that lane: the address of the launch's counter, two words"""


@op(context=True)
def scheduler(np_: Context, site: str) -> Ring:
    """The ring of tickets, for the loop that is written at `site`."""
    if np_.compute_only:
        raise CompileError(unreachable(np_.unit.kernel, site))
    if np_.unit.clustered:
        raise SpecError(clustered(np_.unit.kernel, site))
    if np_.tickets is None:
        np_.tickets = Ring(np_, np_.unit.plan_work_ring(site), (), (), (np.int32(1),), np.int32(0))
        np_.state[TICKET] = int(own_index())
    if np_.dealing is not None:
        raise SpecError(f"kernel {np_.unit.kernel}, tiles(dynamic=True) at {site}: runs inside that of {np_.dealing}: CTAs have "
                        "other tiles of that one, and would not agree on this one's; give numpipe.tiles the counts of both")
    np_.dealing = site
    ring: Ring = np_.tickets
    return ring


def unreachable(kernel: str, site: str) -> str:
    return (f"kernel {kernel}, tiles(dynamic=True) at {site}: only compute warpgroups come here, so nobody fetches tiles for them: "
            "write the loop in the kernel function, or leave dynamic out")


def clustered(kernel: str, site: str) -> str:
    return (f"kernel {kernel}, tiles(dynamic=True) at {site}: CTAs fetch tiles each for itself, and those of a cluster with named "
            "axes go through the same ones: leave dynamic or cluster_names= out")


# ---- who does what
def deals(np_: Context) -> bool:
    """Whether this warpgroup's lane fetches."""
    return np_.memory or (not np_.unit.warp_specialized and np_.unit.number(current().warpgroup) == 0)


@op
def if_dealer(np_: Context, function: Callable[..., None], *args: Any) -> None:
    """``function(np_, *args)`` by the lane that fetches."""
    if deals(np_):
        one_lane(function, np_, *args)


# ---- tickets
@ptx("{ .reg .pred np_scheduler; atom.relaxed.gpu.global.add.u32 $ret, [$address], 1; }", returns="r", address="l")
def draw(address: int) -> int:
    """Take the next number of a launch's counter."""
    return current().deal.draw(int(own_index()))


@op
def launch_counter(np_: Context) -> Any:
    """Address of the launch's counter."""
    return np.int64(0)


@op
def begun_with() -> Any:
    """How many tickets are not in the counter: those that the CTAs begin with. On the simulated SM it has them too."""
    return np.int32(0)


@helper
def fetch(np_):  # type: ignore[no-untyped-def]
    """Ask for the next ticket. Nothing is done with the answer before it is told: any use of it would wait for it."""
    set_counter(np_, AHEAD, draw(launch_counter(np_)))


@helper
def fetched(np_):  # type: ignore[no-untyped-def]
    """The ticket that was asked for."""
    return add(counter(np_, AHEAD), begun_with())


@helper
def tell(np_, ring):  # type: ignore[no-untyped-def]
    """Tell the compute warpgroups the ticket that was fetched."""
    put_number(ring, counter(np_, TOLD), fetched(np_))
    set_counter(np_, TOLD, add(counter(np_, TOLD), 1))


@helper
def keep(np_):  # type: ignore[no-untyped-def]
    """Go on with it."""
    set_counter(np_, TICKET, fetched(np_))


@helper
def take(np_, ring):  # type: ignore[no-untyped-def]
    """Go on with the next ticket that was told."""
    set_counter(np_, TICKET, later(take_number(ring, counter(np_, TAKEN)), counter(np_, TICKET)))
    set_counter(np_, TAKEN, add(counter(np_, TAKEN), 1))
    pass_owner(np_)


@helper
def tile_of(np_):  # type: ignore[no-untyped-def]
    """The ticket as a tile of this loop."""
    return sub(counter(np_, TICKET), counter(np_, BASE))


@op
def is_tile(tile: Any, end: Any) -> bool:
    """Whether a loop of `end` tiles has this one; else the ticket ends it.

    On the GPU in unsigned numbers: where a kernel has given up its waits (`CompilerParams.debug`) a ticket may be anything.
    """
    return bool(tile < end)


@op
def later(ticket: Any, last: Any) -> Any:
    """A ticket that was told, which is beyond the one before.

    On the GPU one that is not ends all loops: where a kernel has given up its waits, the ring's old tickets come again and again.
    """
    return ticket


# ---- whose it is, with turns: the tiles of a CTA go round its compute warpgroups, over all its loops
@op
def away_first(np_: Context) -> Any:
    """How far this warpgroup is from the one whose turn it is."""
    return np.int32((np_.unit.number(current().warpgroup) - np_.turn) % np_.unit.turns)


@op
def pass_owner(np_: Context) -> None:
    """The next ticket is the next warpgroup's."""
    np_.state[AWAY] = (np_.state[AWAY] - 1) % np_.unit.turns


@helper
def pass_over(np_, ring):  # type: ignore[no-untyped-def]
    """Go on to this warpgroup's next ticket, or to one that ends the loop."""
    while is_tile(tile_of(np_), counter(np_, END)) and counter(np_, AWAY) > 0:
        take(np_, ring)


@helper
def begin_turns(np_, ring):  # type: ignore[no-untyped-def]
    """At a loop's beginning: go on to this warpgroup's first ticket."""
    set_counter(np_, AWAY, uniform(away_first(np_)))
    pass_over(np_, ring)


# ---- the loop
@op
def none_or_more(tiles: Any) -> Any:
    """A number of tiles; a negative one is none, as in other loops."""
    return np.int32(max(int(tiles), 0))


@helper(context=True)
def first_tile(np_, ring, end):  # type: ignore[no-untyped-def]
    """The first tile of a loop over `end` tiles, by the ticket that is left of the loop before; `end` or more: there is none."""
    set_counter(np_, END, end)
    only_if(np_, "in_turns", begin_turns, ring)
    return tile_of(np_)


@helper(context=True)
def next_ticket(np_, ring):  # type: ignore[no-untyped-def]
    """Behind a tile's last pipeline: its way through shared memory lies beside the tile's store, and not before the next tile."""
    if_dealer(np_, tell, ring)
    only_if(np_, "memory", keep)
    only_if(np_, "sharing", take, ring)


@helper(context=True)
def next_tile(np_, ring):  # type: ignore[no-untyped-def]
    """At a tile's end: the next one."""
    only_if(np_, "in_turns", take, ring)
    only_if(np_, "in_turns", pass_over, ring)
    return tile_of(np_)


@helper(context=True)
def fetch_ahead(np_):  # type: ignore[no-untyped-def]
    """At a tile's beginning."""
    if_dealer(np_, fetch)


@helper(context=True)
def end_tiles(np_, in_turns):  # type: ignore[no-untyped-def]
    """Behind a loop; `in_turns`: its tiles had turns, so that the next one is of who would have the next tile."""
    set_counter(np_, BASE, add(counter(np_, BASE), counter(np_, END)))
    close(np_, in_turns)


@op
def close(np_: Context, in_turns: int) -> None:
    """What is noted behind a loop."""
    site, np_.dealing = np_.dealing, None
    if in_turns:
        np_.turn = (np_.unit.number(current().warpgroup) - np_.state[AWAY]) % np_.unit.turns
    if deals(np_):
        _agree(np_, current().deal.ended(int(own_index()), f"{np_.state[END]} tiles in the loop of {site}"))


# ---- the kernel's end
@op
def end_scheduler(np_: Context) -> None:
    """After the kernel function, by who fetched tickets: a CTA less; the last one sets the counter back."""
    if np_.tickets is not None and deals(np_):
        _agree(np_, current().deal.ended(int(own_index()), ""))


def _agree(np_: Context, other: str | None) -> None:
    """SpecError where a CTA runs other loops than those before."""
    if other is not None:
        raise SpecError(f"kernel {np_.unit.kernel}: CTA {current().cta} has {other}: with tiles(dynamic=True) all CTAs run the "
                        "same loops, with the same counts: they take their tiles from one counter")
