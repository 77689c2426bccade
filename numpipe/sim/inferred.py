"""Work at many positions, inferred from some of them.

The steps of a loop, or the CTAs along a dimension of a grid, do the same work as their neighbors or
work that grows evenly: later rows of a causal mask have more blocks. So only some positions are
counted: the first two, the last two, the middle, and between any two of these another one. Where
that one is not on the line between the two, both halves are looked at again, until the position of
each change is found::

    position   0  1  ...  66  ...  98 | 99  ...  131          of 132 CTAs that share 1023 tiles
    tiles      8  8  ...   8  ...   8 |  7  ...    7          0, 98, 99 and 131 say it all
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Callable, Generator, Mapping
from typing import Any

Work = collections.Counter[tuple[Any, ...]]
"""The work of CTAs, by key::

    ("load", array)      bytes that TMA loads from it, inside the array
    ("copied",)          bytes that TMA brings to shared memory
    ("store", array)     bytes that are stored to it
    ("fetch", array), ("send", array)     the same for a peer's array, over the link
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

ALL = 6
"""of at most this many positions, all are counted"""
MOVED = "load", "store", "reduce", "fetch", "send"
EVEN = 0.02
"""how far work may be from a line, as a fraction of the largest of the three positions"""


def breaks(
    count: int, enough: Callable[[], bool] = lambda: False, most: int = 1000
) -> Generator[int, Work, dict[int, float]]:
    """Choose the positions of 0 … count - 1 that determine the work at all of them.

    Yields a position and is sent its work, each once; returns the weight of each position in the
    sum over all. The weights add up to `count`. Looks no further between positions when it has
    `most`, or `enough` and the work at both is alike.
    """
    known: dict[int, Work] = {}
    middle = () if enough() else (count // 2,)
    first = range(count) if count <= ALL else (0, 1, *middle, count - 2, count - 1)
    for position in first:
        known[position] = yield position
    spans = list(itertools.pairwise(first))
    while spans:
        low, high = spans.pop(0)
        if high - low < 2 or len(known) >= most or (enough() and _alike(known[low], known[high])):
            continue
        # not the middle: loops have periods of 2, 4 and 8
        between = low + max(1, (high - low) * 3 // 7)
        known[between] = yield between
        if not _on_line(known, low, between, high):
            spans += [(low, between), (between, high)]
    nodes = sorted(known)
    kept = nodes[:1]
    for at, position in enumerate(nodes[1:], 1):
        last = at + 1 == len(nodes)
        if last or not _on_line(known, kept[-1], position, nodes[at + 1]):
            kept.append(position)
    weights = dict.fromkeys(kept, 1.0)
    for low, high in itertools.pairwise(kept):
        for end in (low, high):
            weights[end] += (high - low - 1) / 2
    return weights


def _alike(one: Work, other: Work) -> bool:
    """Return whether no amount differs by a tenth."""
    return all(10 * abs(one[k] - other[k]) <= max(one[k], other[k]) for k in one.keys() | other)


def structure(work: Work) -> frozenset[Any]:
    """Return work without its loads and stores, whose bytes depend on how much of a block is inside
    its array."""
    return frozenset(item for item in work.items() if item[0][0] not in MOVED)


def _on_line(known: Mapping[int, Work], low: int, between: int, high: int) -> bool:
    """Return whether the work at a position is on the line between two others."""
    one, work, other = known[low], known[between], known[high]
    if one == work == other:
        return True
    inner, (left, right) = structure(work), map(structure, (one, other))
    if left != right and inner in (left, right):
        return False  # a step, not a slope
    share = (between - low) / (high - low)
    return all(
        abs(work[key] - one[key] - share * (other[key] - one[key]))
        <= EVEN * max(work[key], one[key], other[key])
        for key in one.keys() | work.keys() | other.keys()
    )


def weighted(parts: Mapping[Any, tuple[float, Work]]) -> Work:
    """Return the sum of works times their weights, rounded."""
    total: dict[tuple[Any, ...], float] = collections.defaultdict(float)
    for weight, work in parts.values():
        for key, amount in work.items():
            total[key] += weight * amount
    return Work({key: round(amount) for key, amount in total.items()})
