"""Split-K and Stream-K: which steps of which tile a CTA computes, for products with too few tiles
or a partly filled last wave.

The steps of a tile are cut into *parts*. The part that begins with step 0 is the *owner*: it adds
the sums of the other parts to its own (`partials.combine`) and stores the tile. There are three
ways to cut, for G CTAs::

    split=3     each tile into 3 parts, for consecutive CTAs; the last of these is the owner

                CTA 0      1      2      3      4      5
                tile 0: steps       owner  tile 1: ...

    split="k"   each tile into as many parts as the cluster has CTAs along its axis "k", part p for
                CTA p: they run at the same time, and each ends with a share of the tile's columns
                (`cluster_sums`)

    "stream"    the steps of the first tiles in one row, divided evenly (Stream-K; Osama, Merrill,
                Cecka, Garland, Owens, PPoPP 2023), 1 to 2 tiles per CTA, so that whole waves are
                left: each CTA then computes whole tiles

                steps  | tile 2      | tile 1      | tile 0      |
                CTA    |3    |3  2|2      1|1     0|0            |

                G = 4: a CTA has at most one part that another CTA owns, its first, and owns the
                last that it computes

**An owner waits only for CTAs with a smaller index.** So CTAs never wait for each other in a
circle. The GPU starts CTAs in index order, so every CTA that is waited for has started, however
many are resident; the simulator runs them in that order. The wait is short, because a CTA computes
the part that another CTA owns before its own parts. The parts of a tile are added in the order of
their steps, so the sum is bitwise reproducible.

The tile, the first step and the number of steps are computed from the CTA's index alone, without a
table or a counter. The state kept from one part to the next occupies registers during the products,
so it is small, and divisions are repeated for each part.
"""
# mypy: disable-error-code=no-untyped-def

from __future__ import annotations

from typing import Any, NamedTuple, NoReturn

import numpy as np

from ...core.arith import add, is_integer, mul, quotient, sub
from ...core.op import check, helper, outside
from ...diagnostics.errors import SpecError

__all__ = ["split_tiles"]

STREAM = "stream"


class Part(NamedTuple):
    """The steps of a tile that a CTA computes: K blocks ``begin`` … ``begin + steps - 1``
    (`split_tiles`).

    begin   the first step; 0 in the part that owns the tile
    steps   the number of steps; 0 only if K is 0, or if a cluster has more CTAs than there are
            steps
    slot    the slot of the workspace that receives the sum of this part, unless it is the owner
    others  in an owner: the number of other parts of the tile; their slots are the ones before its
            own
    """

    begin: Any
    steps: Any
    slot: Any
    others: Any


def split_tiles(
    *counts: Any, steps: Any, split: Any = STREAM, order: Any = "row", group: int = 16
) -> NoReturn:
    """Iterate over this CTA's parts of tiles, inside a kernel: ``for m, n, part in
    numpipe.split_tiles(m_tiles, n_tiles, steps=k_tiles):``.

    counts  tiles per dimension, as in `tiles`
    steps   the steps of a whole tile, a run-time int32: the number of K blocks
    split   "stream": the steps of all tiles are divided evenly among the CTAs. An int, which may
            be a run-time value: each tile is cut into that many parts, limited by `steps` and by
            the number of CTAs. The name of a cluster axis: one part for each CTA along the axis;
            these CTAs loop over the same tiles (`combine` with `axis`). None: tiles are not cut,
            as in `tiles`; `combine` then does nothing, and `work` may be None
    order   as in `tiles`, except host tables
    group   as in `tiles`

    `part` is a `Part`: the pipeline runs over ``grid=(part.steps,)``, and step k loads block
    ``part.begin + k``. Then ``acc = numpipe.combine(acc, part, work)`` hands the sum to the part
    that owns the tile or, in the owner, adds up the other parts. The owner stores the tile, in
    ``if part.begin == 0:``. `work` is the kernel's `Workspace`, with a slot for each CTA
    ("stream"), or for each part of all tiles (an int).

    >>> Part(4, 4, 0, 0)
    Part(begin=4, steps=4, slot=0, others=0)
    """
    raise outside("split_tiles")


@check
def check_split(split: Any) -> None:
    """Raise SpecError for a number of parts that is not an integer. The simulated SM also rejects
    numbers below 1."""
    if not is_integer(split) or (isinstance(split, (int, np.integer)) and split < 1):
        raise SpecError(no_split(str(split)))


def no_split(got: str) -> str:
    return (
        f'numpipe.split_tiles: split={got}: "stream", or the parts of a tile, an integer of at '
        "least 1, or the name of an "
        "axis of the cluster; None cuts none"
    )


@helper
def whole_tile(steps):
    """Return the part that covers a whole tile."""
    return Part(np.int32(0), add(steps, np.int32(0)), np.int32(0), np.int32(0))


@helper
def cluster_part(steps, which, parts):
    """Return part `which` of the `parts` of a tile that the CTAs of a cluster compute."""
    return even_part(steps, which, parts, np.int32(0), np.int32(0))


@helper
def even_part(steps, which, parts, slot, others):
    """Return part `which` of `parts` of a tile."""
    begin = even(steps, which, parts)
    return Part(begin, sub(even(steps, add(which, np.int32(1)), parts), begin), slot, others)


@helper
def least(a, b):
    if a < b:
        return a
    return b


@helper
def greatest(a, b):
    if a > b:
        return a
    return b


@helper
def even(total, which, shares):
    """Return the start of share number `which` when a total is divided into `shares`; the first
    shares are longer by 1."""
    each = quotient(total, shares)
    return add(mul(which, each), least(which, sub(total, mul(each, shares))))


# ---- each tile into the same number of parts
@helper
def begin_split(tiles, steps, split, here, ctas):
    """Return (the number of parts of this CTA, *the state that `place_split` takes)."""
    steps, split = add(steps, np.int32(0)), add(split, np.int32(0))  # int32, also for literals
    parts = greatest(least(split, least(steps, ctas)), np.int32(1))
    # all parts of a tile run at the same time
    cta, used, total = here, mul(quotient(ctas, parts), parts), mul(tiles, parts)
    own = np.int32(0)
    if cta < used and cta < total:
        own = add(quotient(sub(sub(total, cta), np.int32(1)), used), np.int32(1))
    return own, steps, parts


@helper
def place_split(u, begun, here, ctas):
    """Return (tile, Part) of part number u of this CTA."""
    _, steps, parts = begun
    slot = add(here, mul(u, mul(quotient(ctas, parts), parts)))
    tile = quotient(slot, parts)
    # the last of the CTAs has the first steps
    which = sub(sub(parts, np.int32(1)), sub(slot, mul(tile, parts)))
    return tile, even_part(steps, which, parts, slot, sub(parts, np.int32(1)))


# ---- all steps in one row: a tile of K = 0 is stored too, as if it had one step, which nobody runs
@helper
def begin_stream(tiles, steps, split, here, ctas):
    """Return (the number of parts of this CTA, *the state that `place_stream` takes)."""
    steps = add(steps, np.int32(0))
    length = greatest(steps, np.int32(1))
    waves = quotient(tiles, ctas)
    shared = sub(tiles, mul(waves, ctas))
    if waves > np.int32(0):
        shared = add(shared, ctas)
    whole = quotient(sub(tiles, shared), ctas)
    total = mul(shared, length)
    shares = least(ctas, total)
    number = sub(sub(shares, np.int32(1)), here)
    first, end, own = np.int32(0), np.int32(0), np.int32(0)
    if number >= np.int32(0):
        first, end = even(total, number, shares), even(total, add(number, np.int32(1)), shares)
        own = add(
            sub(quotient(sub(end, np.int32(1)), length), quotient(first, length)), np.int32(1)
        )
    return add(own, whole), own, first, end, shared, steps


@helper
def holder(total, step, ctas):
    """Return the number of the share that contains a step of a row."""
    shares = least(ctas, total)
    each = quotient(total, shares)
    more = sub(total, mul(each, shares))
    longer = add(each, np.int32(1))
    if step < mul(more, longer):
        return quotient(step, longer)
    return add(more, quotient(sub(step, mul(more, longer)), each))


@helper
def place_stream(u, begun, here, ctas):
    """Return (tile, Part) of part number u of this CTA: first its share of the row, then whole
    tiles."""
    _, own, first, end, shared, steps = begun
    if u >= own:
        return (
            add(shared, add(here, mul(sub(u, own), ctas))),
            Part(np.int32(0), steps, here, np.int32(0)),
        )
    length = greatest(steps, np.int32(1))
    tile = add(quotient(first, length), u)
    start = mul(tile, length)
    begin = greatest(sub(first, start), np.int32(0))
    stop = least(sub(end, start), length)
    others = np.int32(0)
    if stop < length:
        total = mul(shared, length)
        number = sub(sub(least(ctas, total), np.int32(1)), here)
        others = sub(holder(total, sub(add(start, length), np.int32(1)), ctas), number)
    return sub(sub(shared, np.int32(1)), tile), Part(
        begin, least(sub(stop, begin), steps), here, others
    )
