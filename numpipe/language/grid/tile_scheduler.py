"""The dynamic tile scheduler: a CTA fetches the number of its next tile from a counter that all
CTAs of the launch share (``numpipe.tiles(…, dynamic=True)``).

The counter hands out *work indices*. CTA i begins with work index i. Each further index comes from
an atomic addition in global memory, so a CTA that is faster, or starts earlier, takes more of
them::

    memory role   | fetch 2 | loads of tile 1 ...... | send 2, fetch 3 | loads of tile 2 ......
    compute role              | tile 1: products ...... | read 2, store | tile 2: products .....

One lane fetches, one tile ahead, so that the loads of a tile never wait for the counter. It is the
memory role's lane, which needs the tile first; in a kernel without a memory role it is a lane of
the first compute warpgroup. The result is not used before the tile's loads have been issued, so
ptxas leaves the atomic in flight across them. (For a 64-bit addition ptxas waits at once: half of
the result is dead, and its register is reused.) The lane sends the work indices to the compute
warpgroups through a `number_ring`. Every warpgroup reads all work indices, even where
warpgroups take turns (`pingpong`), and skips the ones of other warpgroups: if only one warpgroup
released a slot, the ring would need a slot for each warpgroup, because a wait on a parity must not
be two phases ahead.

All loops of a kernel take work indices from one counter, in program order: tile t of a loop is work
index ``base + t``, where `base` is the number of tiles of the loops before it. A work index beyond
a loop's tiles ends the loop and is kept for the next one. So any number of loops may run, as long
as all CTAs run the same loops with the same number of tiles. The simulated SM checks that.

Each launch has its own counter, identified by kernel, stream and outputs: launches that share these
cannot run at the same time. Its 8 bytes count the work indices that were fetched and the CTAs that
have ended. The last CTA resets it, so replays of a graph need no reset. A kernel that gave up its
waits (`CompilerParams.debug`) also resets it, since its CTAs still end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...core.arith import add, sub
from ...core.lanes import one_lane
from ...core.machine import current
from ...core.op import context_op, formula, helper, op, ptx
from ...diagnostics.errors import CompileError, SpecError
from ...plan.context import Context, counter, cta_count, only_if, own_index, set_counter
from ...plan.plans import SCHEDULER
from ...plan.unit import Unit
from ..pipeline.number_ring import put_number, take_number, uniform
from ..pipeline.ring import Ring

# Words of a warpgroup's state: its work index; the number of tiles of the loops before this one,
# and of this one; with turns, the number of warpgroups between this one and the one whose tile the
# work index is.
INDEX, BASE, END, AWAY = (SCHEDULER + word for word in range(4))
# Words of the lane that fetches: the next work index, the number of indices sent, and (two words)
# the address of the launch's counter. In all other lanes the second is the number of indices read.
AHEAD, SENT, TAKEN, COUNTER = (SCHEDULER + word for word in range(4, 8))


@context_op
def scheduler(np_: Context, site: str) -> Ring:
    """Return the ring of work indices for the loop written at `site`."""
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
            f"kernel {np_.unit.kernel}, tiles(dynamic=True) at {site}: it runs inside the loop of "
            f"{np_.dynamic_loop}, whose tiles differ between CTAs, so the CTAs cannot share a "
            "counter for the inner loop; fix: pass the counts of both to one numpipe.tiles"
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
    """Raise SpecError in a kernel that names its cluster axes."""
    if unit.clustered:
        raise SpecError(
            f"kernel {unit.kernel}, tiles(dynamic=True) at {site}: each CTA fetches its own "
            "tiles, but the CTAs of a cluster with named axes loop over the same tiles; fix: "
            "leave out dynamic= or cluster_names="
        )


# ---- who does what
def fetches(np_: Context) -> bool:
    """Return whether a lane of this warpgroup fetches."""
    return np_.loads or (not np_.unit.warp_specialized and np_.number == 0)


@op
def if_fetching(np_: Context, function: Callable[..., None], *args: Any) -> None:
    """Call ``function(np_, *args)`` in the lane that fetches."""
    if fetches(np_):
        one_lane(function, np_, *args)


# ---- work indices
@ptx(
    "{ .reg .pred np_scheduler; atom.relaxed.gpu.global.add.u32 $ret, [$address], 1; }",
    returns="r",
    address="l",
)
def draw(address: int) -> int:
    """Take the next number of a launch's counter. The counter does not include the work indices
    that CTAs begin with."""
    return current().deal.draw(int(own_index())) - int(cta_count())


@op
def launch_counter(np_: Context) -> Any:
    """Return the address of the launch's counter."""
    return np.int64(0)


@helper
def fetch(np_):  # type: ignore[no-untyped-def]
    """Request the next work index. The result is not used before it is sent: any use would wait for
    it."""
    set_counter(np_, AHEAD, draw(launch_counter(np_)))


@helper
def fetched(np_):  # type: ignore[no-untyped-def]
    """Return the work index that `fetch` requested."""
    return add(counter(np_, AHEAD), cta_count())


@helper
def send(np_, ring):  # type: ignore[no-untyped-def]
    """Send the fetched work index to the compute warpgroups."""
    put_number(ring, counter(np_, SENT), fetched(np_))
    set_counter(np_, SENT, add(counter(np_, SENT), 1))


@helper
def keep(np_):  # type: ignore[no-untyped-def]
    """Continue with the fetched work index."""
    set_counter(np_, INDEX, fetched(np_))


@helper
def take(np_, ring):  # type: ignore[no-untyped-def]
    """Continue with the next work index in the ring."""
    set_counter(np_, INDEX, later(take_number(ring, counter(np_, TAKEN)), counter(np_, INDEX)))
    set_counter(np_, TAKEN, add(counter(np_, TAKEN), 1))
    pass_owner(np_)


@helper
def tile_of(np_):  # type: ignore[no-untyped-def]
    """Return the tile number in this loop of the current work index."""
    return sub(counter(np_, INDEX), counter(np_, BASE))


@op
def is_tile(tile: Any, end: Any) -> bool:
    """Return whether `tile` is a tile of a loop over `end` tiles; if not, the loop ends.

    The GPU compares unsigned numbers: in a kernel that gave up its waits (`CompilerParams.debug`),
    a work index may have any value.
    """
    return bool(tile < end)


@op
def later(index: Any, last: Any) -> Any:
    """Return `index`, the next work index from the ring, which must be greater than `last`.

    On the GPU a smaller or equal index ends all loops: in a kernel that gave up its waits, the ring
    repeats old numbers forever.
    """
    return index


# ---- turns: the tiles of a CTA go round its compute warpgroups, over all its loops
def away(np_: Any, turn: Any) -> Any:
    """Return the distance from warpgroup `turn` to this warpgroup, or the reverse."""
    return (np_.number - turn + np_.unit.turns) % np_.unit.turns


@formula
def away_first(np_: Context) -> Any:
    """Return the number of warpgroups before this one, starting from the one whose turn it is."""
    return away(np_, np_.turn) if np_.unit.turns > 1 else 0


@op
def pass_owner(np_: Context) -> None:
    """Assign the next work index to the next warpgroup."""
    np_.state[AWAY] = (np_.state[AWAY] - 1) % np_.unit.turns


@helper
def pass_over(np_, ring):  # type: ignore[no-untyped-def]
    """Advance to this warpgroup's next work index, or to one that ends the loop."""
    while is_tile(tile_of(np_), counter(np_, END)) and counter(np_, AWAY) > 0:
        take(np_, ring)


@helper
def begin_turns(np_, ring):  # type: ignore[no-untyped-def]
    """Advance, at the beginning of a loop, to this warpgroup's first work index."""
    set_counter(np_, AWAY, uniform(away_first(np_)))
    pass_over(np_, ring)


# ---- the loop
@op
def none_or_more(tiles: Any) -> Any:
    """Return a number of tiles, with negative numbers clamped to 0, as in other loops."""
    return np.int32(max(int(tiles), 0))


@helper
def first_tile(np_, ring, end):  # type: ignore[no-untyped-def]
    """Return the first tile of a loop over `end` tiles, from the work index that the previous loop
    left. `end` or more means that there is none."""
    set_counter(np_, END, end)
    only_if(np_, "in_turns", begin_turns, ring)
    return tile_of(np_)


@helper
def next_ticket(np_, ring):  # type: ignore[no-untyped-def]
    """Pass the next work index on after the last pipeline of a tile, so that other warpgroups need
    not wait until the tile is stored."""
    if_fetching(np_, send, ring)
    only_if(np_, "loads", keep)
    only_if(np_, "sharing", take, ring)


@helper
def next_tile(np_, ring):  # type: ignore[no-untyped-def]
    """Return the next tile, at the end of a tile."""
    only_if(np_, "in_turns", take, ring)
    only_if(np_, "in_turns", pass_over, ring)
    only_if(np_, "counted", skip_tiles)
    return tile_of(np_)


@helper
def skip_tiles(np_: Context) -> None:
    """Continue with the next tile that a count of the work runs. It is never compiled."""
    tile = current().dealt_tile(np_.dynamic_loop, np_.state[END])  # type: ignore[attr-defined]
    np_.state[INDEX] = np_.state[BASE] + tile


@helper
def fetch_ahead(np_):  # type: ignore[no-untyped-def]
    """Request the next work index, at the beginning of a tile."""
    if_fetching(np_, fetch)


@helper
def end_tiles(np_, in_turns):  # type: ignore[no-untyped-def]
    """End a loop. If its tiles had turns (`in_turns`), the next turn belongs to the warpgroup that
    would have computed the next tile."""
    set_counter(np_, BASE, add(counter(np_, BASE), counter(np_, END)))
    close(np_, in_turns)


@op
def close(np_: Context, in_turns: int) -> None:
    """Record the next turn after a loop and, on the simulated SM, which loop it was."""
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
    """Count a CTA that has ended, after the kernel function, in the lane that fetched. The last CTA
    resets the counter."""
    if np_.work_ring is not None and fetches(np_):
        _agree(np_, current().deal.ended(int(own_index()), ""))


def _agree(np_: Context, other: str | None) -> None:
    """Raise SpecError if a CTA runs other loops than the CTAs before it."""
    if other is not None:
        raise np_.unit.refused(
            f"CTA {current().cta} has {other}, but with "
            "tiles(dynamic=True) all CTAs must run the same loops with the same counts, because "
            "they share one counter"
        )
