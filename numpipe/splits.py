"""Tiles cut along K: which steps of which tile this CTA computes, where a product has too few tiles, or an odd number of waves.

The steps of a tile are cut into *parts*. The first of them, which begins with step 0, is the *owner*: it adds the others' sums to
its own (`partials.combine`) and stores the tile. Two ways to cut, for G CTAs::

    split=3     each tile into 3 parts, of CTAs next to each other; the owner is the last of these CTAs

                CTA 0      1      2      3      4      5
                tile 0: steps       owner  tile 1: ...

    "stream"    the steps of the first tiles in one row, shared out evenly (Stream-K; Osama, Merrill, Cecka, Garland, Owens, PPoPP
                2023), 1 to 2 tiles a CTA, so that whole waves are left: of these each CTA has whole tiles

                steps  | tile 2      | tile 1      | tile 0      |       G = 4: a CTA has one part that another one owns at most,
                CTA    |3    |3  2|2      1|1     0|0            |       its first, and owns the last that it computes

**An owner waits only for CTAs of a smaller index.** So no CTAs ever wait for each other in a circle, and since the GPU starts CTAs
in the order of their indices, those that are waited for have started, however many are resident; the simulator runs them in that
order. The parts of a tile are added in the order of their steps: the same sum each time, bit for bit.

All of it is arithmetic on a few int32; no table is read.
"""
# mypy: disable-error-code=no-untyped-def

from __future__ import annotations

from typing import Any, NamedTuple, NoReturn

import numpy as np

from ._op import helper, op
from .arith import add, divide, divisor, mul, quotient, sub
from .errors import SpecError
from .tile_loop import before_first_tile, tile_stride

STREAM = "stream"


class Part(NamedTuple):
    """Some steps of a tile, as `split_tiles` gives them: those of K blocks ``begin`` … ``begin + steps - 1``.

    begin   the first step; 0 in the part that owns the tile
    steps   how many there are; 0 only where K is 0
    slot    of the workspace: where the sum of this part goes, if it is not the owner
    others  of an owner: how many other parts the tile has; their slots are those before its own
    """

    begin: Any
    steps: Any
    slot: Any
    others: Any


def split_tiles(*counts: Any, steps: Any, split: Any = STREAM, order: Any = "row", group: int = 16) -> NoReturn:
    """``for m, n, part in numpipe.split_tiles(m_tiles, n_tiles, steps=k_tiles):`` inside a kernel: this CTA's parts of tiles.

    counts  tiles per dimension, as of `tiles`
    steps   of a whole tile, a run-time int32: the blocks of K
    split   "stream": the steps of all tiles are shared out evenly among the CTAs. An int, which may be a run-time value: each
            tile is cut into so many parts, at most `steps` and the CTAs there are; 1 is `tiles`
    order   as of `tiles`, but no host table
    group   as of `tiles`

    `part` is a `Part`: the pipeline runs over ``grid=(part.steps,)`` and loads blocks ``part.begin + k``. Then
    ``acc = numpipe.combine(acc, part, work)`` hands the sum over to the part that owns the tile, or adds up those of the others, and
    the owner stores it, ``if part.begin == 0``. `work` is the kernel's `Workspace`, with a slot for each CTA ("stream"), or for each
    part of all tiles (an int).

    >>> Part(4, 4, 0, 0)
    Part(begin=4, steps=4, slot=0, others=0)
    """
    raise RuntimeError("numpipe.split_tiles works inside a kernel only: call it from a @numpipe.kernel function")


@op
def check_split(split: Any) -> None:
    """SpecError for a number of parts that is no integer; the simulated SM refuses those below 1 too."""
    if isinstance(split, (float, np.floating, str)):
        raise SpecError(no_split(repr(split)))
    if int(split) < 1:
        raise SpecError(no_split(str(int(split))))


def no_split(got: str) -> str:
    return f"numpipe.split_tiles: split={got}: \"stream\", or the parts of a tile, an integer of at least 1"


@helper
def least(a, b):
    """The smaller of two int32."""
    if a < b:
        return a
    return b


@helper
def even(of, which, shares):
    """Where share number `which` of so many begins, if `of` = (each, left over) is shared out."""
    return add(mul(which, of[0]), least(which, of[1]))


@helper
def halves(total, by):
    """(quotient, remainder) of a division by a `divisor`."""
    each = divide(total, by)
    return each, sub(total, mul(each, by[0]))


# ---- each tile into the same number of parts
@helper
def begin_split(tiles, steps, split):
    """What `place_split` needs; the first of it is how many parts this CTA has."""
    steps = add(steps, np.int32(0))  # an int32, of a literal too
    ctas = tile_stride()
    cta = add(before_first_tile(), ctas)
    parts = divisor(least(split, least(steps, ctas)))
    used = mul(divide(ctas, parts), parts[0])  # so that all parts of a tile are computed at the same time
    total = mul(tiles, parts[0])
    own = np.int32(0)
    if cta < used and cta < total:
        own = add(quotient(sub(sub(total, cta), np.int32(1)), used), np.int32(1))
    return own, cta, used, parts, halves(steps, parts)


@helper
def place_split(u, begun):
    """(tile, Part) of part number u of this CTA."""
    own, cta, used, parts, share = begun
    slot = add(cta, mul(u, used))
    tile = divide(slot, parts)
    which = sub(sub(parts[0], np.int32(1)), sub(slot, mul(tile, parts[0])))  # the last of the CTAs has the first steps
    begin = even(share, which, parts[0])
    steps = sub(even(share, add(which, np.int32(1)), parts[0]), begin)
    return tile, Part(begin, steps, slot, sub(parts[0], np.int32(1)))


# ---- all steps in one row
@helper
def begin_stream(tiles, steps, split):
    """What `place_stream` needs; the first of it is how many parts this CTA has."""
    steps = add(steps, np.int32(0))
    ctas = tile_stride()
    cta = add(before_first_tile(), ctas)
    length = divisor(steps)  # of K = 0 the tiles are stored too: as if they had a step, which nobody runs
    waves = quotient(tiles, ctas)
    shared = sub(tiles, mul(waves, ctas))
    if shared > np.int32(0) and waves > np.int32(0):
        shared = add(shared, ctas)
    whole = quotient(sub(tiles, shared), ctas)
    total = mul(shared, length[0])
    shares = least(ctas, total)
    share = halves(total, divisor(shares))
    number = sub(sub(shares, np.int32(1)), cta)
    first, end, own = np.int32(0), np.int32(0), np.int32(0)
    if number >= np.int32(0):
        first, end = even(share, number, shares), even(share, add(number, np.int32(1)), shares)
        own = add(sub(divide(sub(end, np.int32(1)), length), divide(first, length)), np.int32(1))
    return add(own, whole), cta, ctas, shared, own, number, first, end, steps, length, share


@helper
def holder(step, share):
    """The number of the share that has a step."""
    longer = add(share[0], np.int32(1))
    if step < mul(share[1], longer):
        return quotient(step, longer)
    return add(share[1], quotient(sub(step, mul(share[1], longer)), share[0]))


@helper
def place_stream(u, begun):
    """(tile, Part) of part number u of this CTA: its share of the row, then whole tiles."""
    _, cta, ctas, shared, own, number, first, end, steps, length, share = begun
    if u >= own:
        return add(shared, add(cta, mul(sub(u, own), ctas))), Part(np.int32(0), steps, cta, np.int32(0))
    tile = add(divide(first, length), u)
    start = mul(tile, length[0])
    begin, stop = np.int32(0), least(sub(end, start), length[0])
    if first > start:
        begin = sub(first, start)
    others = np.int32(0)
    if stop < length[0]:
        others = sub(holder(sub(add(start, length[0]), np.int32(1)), share), number)
    return sub(sub(shared, np.int32(1)), tile), Part(begin, least(sub(stop, begin), steps), cta, others)
