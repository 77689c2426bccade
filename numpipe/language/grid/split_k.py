"""Tiles cut along K, for products with too few tiles or an odd number of waves: which steps of
which tile a CTA computes.

The steps of a tile are cut into *parts*. The first of them, which begins with step 0, is the
*owner*: it adds the others' sums to its own (`partials.combine`) and stores the tile. Three ways to
cut, for G CTAs::

    split=3     each tile into 3 parts, of CTAs next to each other; the owner is the last of these

                CTA 0      1      2      3      4      5
                tile 0: steps       owner  tile 1: ...

    split="k"   each tile into as many parts as the cluster has CTAs along its axis "k", part p for
                CTA p: they run at the same time, and each ends with a share of the tile's columns
                (`reduce_scatter`)

    "stream"    the steps of the first tiles in one row, shared out evenly (Stream-K; Osama,
                Merrill, Cecka, Garland, Owens, PPoPP 2023), 1 to 2 tiles a CTA, so that whole waves
                are left: of these each CTA has whole tiles

                steps  | tile 2      | tile 1      | tile 0      |
                CTA    |3    |3  2|2      1|1     0|0            |

                G = 4: a CTA has at most one part that another CTA owns, its first, and owns the
                last that it computes

**An owner waits only for CTAs of a smaller index.** So no CTAs ever wait for each other in a
circle, and since the GPU starts CTAs in the order of their indices, those that are waited for have
started, however many are resident; the simulator runs them in that order. The wait is short,
because a CTA computes the part that another one owns before its own parts. The parts of a tile are
added in the order of their steps: the same sum each time, bit for bit.

Arithmetic on the CTA's index alone gives the tile, the first step and the number of steps, without
a table or a counter. What a loop needs from one part to the next stays in registers during the
products, so it is little: divisions are made again for each part.
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
    """The steps of a tile that a CTA computes: of K blocks ``begin`` … ``begin + steps - 1``
    (`split_tiles`).

    begin   the first step; 0 in the part that owns the tile
    steps   how many there are; 0 only where K is 0, or where a cluster has more CTAs than there are
            steps
    slot    of the workspace: where the sum of this part goes, if it is not the owner
    others  of an owner: how many other parts the tile has; their slots are those before its own
    """

    begin: Any
    steps: Any
    slot: Any
    others: Any


def split_tiles(
    *counts: Any, steps: Any, split: Any = STREAM, order: Any = "row", group: int = 16
) -> NoReturn:
    """``for m, n, part in numpipe.split_tiles(m_tiles, n_tiles, steps=k_tiles):`` inside a kernel:
    this CTA's parts of tiles.

    counts  tiles per dimension, as of `tiles`
    steps   of a whole tile, a run-time int32: the blocks of K
    split   "stream": the steps of all tiles are shared out evenly among the CTAs. An int, which may
            be a run-time value: each tile is cut into that many parts, at most `steps` and the CTAs
            there are. The name of an axis of the cluster: into as many as there are CTAs along it,
            which have the same tiles (`combine` with `axis`). None: not at all, as `tiles`;
            `combine` then does nothing, and `work` may be None
    order   as of `tiles`, but no host table
    group   as of `tiles`

    `part` is a `Part`: the pipeline runs over ``grid=(part.steps,)`` and loads blocks ``part.begin
    + k``. Then ``acc = numpipe.combine(acc, part, work)`` hands the sum over to the part that owns
    the tile, or adds up those of the others, and the owner stores it, ``if part.begin == 0``.
    `work` is the kernel's `Workspace`, with a slot for each CTA ("stream"), or for each part of all
    tiles (an int).

    >>> Part(4, 4, 0, 0)
    Part(begin=4, steps=4, slot=0, others=0)
    """
    raise outside("split_tiles")


@check
def check_split(split: Any) -> None:
    """Raise SpecError for a number of parts that is no integer; the simulated SM refuses numbers
    below 1 too."""
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
    """Return the part that is all of a tile."""
    return Part(np.int32(0), add(steps, np.int32(0)), np.int32(0), np.int32(0))


@helper
def cluster_part(steps, which, parts):
    """Return one of `parts` of a tile, all of which CTAs of a cluster compute."""
    begin = even(steps, which, parts)
    return Part(
        begin, sub(even(steps, add(which, np.int32(1)), parts), begin), np.int32(0), np.int32(0)
    )


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
    """Return where share number `which` of `shares` of a total begins: the first of them are longer
    by 1."""
    each = quotient(total, shares)
    return add(mul(which, each), least(which, sub(total, mul(each, shares))))


# ---- each tile into the same number of parts
@helper
def begin_split(tiles, steps, split, here, ctas):
    """Return (how many parts this CTA has, *the state that `place_split` takes)."""
    steps, split = add(steps, np.int32(0)), add(split, np.int32(0))  # int32, of literals too
    parts = greatest(least(split, least(steps, ctas)), np.int32(1))
    # all parts of a tile run at a time
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
    begin = even(steps, which, parts)
    return tile, Part(
        begin,
        sub(even(steps, add(which, np.int32(1)), parts), begin),
        slot,
        sub(parts, np.int32(1)),
    )


# ---- all steps in one row: a tile of K = 0 is stored too, as if it had one step, which nobody runs
@helper
def begin_stream(tiles, steps, split, here, ctas):
    """Return (how many parts this CTA has, *the state that `place_stream` takes)."""
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
    """Return the number of the share that a step of a row belongs to."""
    shares = least(ctas, total)
    each = quotient(total, shares)
    more = sub(total, mul(each, shares))
    longer = add(each, np.int32(1))
    if step < mul(more, longer):
        return quotient(step, longer)
    return add(more, quotient(sub(step, mul(more, longer)), each))


@helper
def place_stream(u, begun, here, ctas):
    """Return (tile, Part) of part number u of this CTA: its share of the row, then whole tiles."""
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
