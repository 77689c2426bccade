"""Work at many positions, inferred from some of them.

The steps of a loop, or the CTAs along a dimension of a grid, do the same work as their neighbors or
work that grows evenly: later rows of a causal mask have more blocks. So only some positions are
counted: the first, the last and one between them, and then another one between any two neighbors
that differ and are not on a line with a third::

    position   0 ... 56 ... 98 | 99 ... 131                   of 132 CTAs that share 1023 tiles
    tiles      8 ...  8 ...  8 |  7 ...   7                   0, 98, 99 and 131 say it all
"""

from __future__ import annotations

import collections
import functools
import itertools
import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..arch.dimensions import Ints

Work = collections.Counter[tuple]
"""The work of CTAs, by key::

    ("load", array)      bytes that TMA loads from it, inside the array
    ("copied",)          bytes that TMA brings to shared memory
    ("store", array)     bytes that are stored to it
    ("fetch", array), ("send", array)     the same for a peer's array, over the link
    ("relayed",)         bytes that TMA stores to peers from the slots they were loaded to
    ("flop",)            of wgmma
    ("tensor", wg)       cycles of the tensor cores for a warpgroup's products
    ("products", wg)     wgmma instructions
    ("read", wg), ("written", wg)     bytes of its ordinary shared-memory accesses
    ("steps", wg)        slots that a warpgroup waited for
    ("fills", ring)      slots that were filled
    ("tiles",)           tiles of tile loops
    ("handed",)          partial sums given to other CTAs and taken from them
    ("sent", wg)         times that a warpgroup exchanges sums with another CTA of its cluster
    ("reduce", array)    bytes that are added to it in L2, or combined with it otherwise
    ("votes",)           times that a kernel asks for any() or all() of a tile
"""

MOVED = "load", "store", "reduce", "fetch", "send"
EVEN = 0.05
"""how far work may be from a line, as a fraction of the most at any position"""


@dataclass(frozen=True)
class Loop:
    """The work of a loop: at its first position, its last, and all between; `even`: whether it was
    equal wherever it was counted."""

    count: int
    first: Work
    last: Work
    between: Work
    even: bool


def inferred(
    total: Work,
    count: int,
    most: int = 0,
    alike: bool = True,
    loops: dict[Any, Loop] | None = None,
    site: Any = None,
) -> Iterator[int]:
    """Yield some of the positions 0 … count - 1, at most `most`.

    What is added to `total` at these positions is their work; finally the work at all others is
    added.

    most         default: few, as many as find two places where the work changes by halving the
                 distance of their neighbors: 3 + 2 log2 count. All of up to that many are counted
    alike        whether equal work at two positions says that those between do the same
    loops, site  earlier loops, by what distinguishes them. A loop that does the same as an earlier
                 one of the same length at its first and its last position does the same between
                 them. If an earlier one was even, so is one with equal ends
    """
    loops = {} if loops is None else loops
    like = loops.get(site)
    start, known, chosen = Work(total), dict[int, Work](), [0, count - 1]
    few = 3 + 2 * count.bit_length()
    most = most or few
    while chosen:
        for position in chosen:
            if 0 <= position < count and position not in known and len(known) < most:
                before = Work(total)
                yield position
                # without rounding, equal shares of tiles from a counter would differ
                known[position] = Work({key: round(n, 3) for key, n in (total - before).items()})
        if count < 3:
            return
        first, last = known[0], known[count - 1]
        if like and len(known) == 2:
            same = like.count == count and (like.first, like.last) == (first, last)
            if same or (like.even and first == last):
                for key, n in (like.between if same else first).items():
                    total[key] += n if same else n * (count - 2)
                return
        nodes, peak = sorted(known), functools.reduce(operator.or_, known.values())
        chosen = [
            # not the middle: loops have periods of 2, 4 and 8
            low + max(1, (high - low) * 3 // 7)
            for at, (low, high) in enumerate(itertools.pairwise(nodes))
            if high - low > 1
            and len(known) < most
            and not (
                alike
                and count > few
                and len(known) > 2
                and _certain(known, nodes[max(at - 1, 0) : at + 3], low, high, peak)
            )
        ]
    for low, high in itertools.pairwise(nodes):
        for key in known[low].keys() | known[high].keys():
            total[key] += round((high - low - 1) * (known[low][key] + known[high][key]) / 2)
    even = all(work == first for work in known.values())
    loops[site] = Loop(count, first, last, total - start - first - last, even)


def places(
    total: Work,
    counts: Ints,
    most: int = 0,
    alike: bool = True,
    rows: dict[Any, Loop] | None = None,
    first: int = 0,
) -> Iterator[int]:
    """Yield some of the positions of a grid in row-major order, and infer the work of the others
    along each dimension (`inferred`)."""
    if not counts:
        yield first
        return
    rows = {} if rows is None else rows
    for at in inferred(total, counts[0], most, alike, rows, len(counts)):
        yield from places(total, counts[1:], most, alike, rows, first * counts[0] + at)


def _certain(known: dict[int, Work], near: list[int], low: int, high: int, peak: Work) -> bool:
    """Return whether the work at two neighbors is equal, or on a line with that of one `near`."""
    return known[low] == known[high] or any(
        _on_line((a, known[a]), (b, known[b]), (c, known[c]), peak)
        for a, b, c in zip(near, near[1:], near[2:], strict=False)
    )


def _structure(work: Work) -> frozenset[Any]:
    """Return work without its loads and stores, whose bytes depend on how much of a block is inside
    its array."""
    return frozenset(item for item in work.items() if item[0][0] not in MOVED)


def _on_line(
    low: tuple[int, Work], between: tuple[int, Work], high: tuple[int, Work], peak: Work
) -> bool:
    """Return whether the work at a position is on the line between two others, or off it by less
    than the line rises in one position, because work comes in whole steps."""
    (start, one), (at, work), (end, other) = low, between, high
    for structure in _structure, frozenset[tuple]:
        inner, left, right = map(structure, (work, one, other))
        if left != right and inner in (left, right):
            return False  # a step, not a slope
    rise = {key: other[key] - one[key] for key in one.keys() | work.keys() | other.keys()}
    return all(
        off == 0 or off < max(abs(rise[key]), EVEN * (end - start) * peak[key])
        for key in rise
        for off in [abs((work[key] - one[key]) * (end - start) - (at - start) * rise[key])]
    )
