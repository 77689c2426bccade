"""Bank conflicts: the number of passes that one access of a warp takes through the 32 banks of
shared memory, 4 bytes each. Used only for traces.

Lanes that access different words of a bank are served one after another. Lanes that access the same
word are served together, except atomics, which are always serialized. With 8 bytes per lane half a
warp is served at a time, with 16 bytes a quarter; the count is that of the worst part, 1 if there
is no conflict. Counted are accesses of individual lanes: elements in per-lane code, register tiles
that are moved element by element (`tiles.scattered_shared`), and atomics. Tiles that are moved by
whole rows are not counted. CUDA C++ Programming Guide, "Shared Memory" of compute capability 5.x,
which still applies; Nsight Compute counts the same as wavefronts.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from . import sites
from .sites import Site
from .state import Warpgroup

BANKS, WORD, LANES = 32, 4, 32


def ways(addresses: npt.ArrayLike, nbytes: int, atomic: bool = False) -> int:
    """Return the number of passes of an access through the banks, given the addresses of the lanes
    that take part, in lane order.

    >>> ways(range(0, 128, 4), 4), ways(range(0, 4096, 128), 4), ways(range(0, 4224, 132), 4)
    (1, 32, 1)
    """
    lanes = np.asarray(addresses, np.int64).ravel()
    together = LANES if nbytes <= WORD else max(1, LANES * WORD // nbytes)
    worst = 1
    for first in range(0, len(lanes), together):
        begin = lanes[first : first + together, None] // WORD
        words = (begin + np.arange(max(1, nbytes // WORD))).ravel()
        words = words if atomic else np.unique(words)
        worst = max(worst, int(np.bincount(words % BANKS).max()))
    return worst


def count(
    who: Warpgroup,
    accesses: Iterable[npt.ArrayLike],
    nbytes: int,
    what: str,
    kind: str,
    site: Site = None,
) -> None:
    """Count accesses of warps in the trace, each an array of the lanes' addresses. `kind`: "read",
    "write" or "atomic"."""
    if who.sm.trace is None:
        return
    line, found = sites.place(site or sites.user_site()), who.sm.trace.banks
    for lanes in accesses:
        key = line, f"{kind} {what}", ways(lanes, nbytes, kind == "atomic")
        found[key] = found.get(key, 0) + 1


class OfLanes:
    """The accesses of a warp whose lanes run one after the other: the n-th access of each lane at
    one place belongs to a single warp access."""

    def __init__(self) -> None:
        self._found: dict[tuple[Site, str, str, int], dict[int, list[int]]] = {}

    def add(self, lane: int, address: int, nbytes: int, what: str, kind: str) -> None:
        self._found.setdefault((sites.user_site(), what, kind, nbytes), {}).setdefault(
            lane, []
        ).append(address)

    def end(self, who: Warpgroup) -> None:
        for (site, what, kind, nbytes), lanes in self._found.items():
            most = max(map(len, lanes.values()))
            together = (
                [own[number] for _, own in sorted(lanes.items()) if number < len(own)]
                for number in range(most)
            )
            count(who, together, nbytes, what, kind, site)
