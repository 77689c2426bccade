"""Happens-before on the SM, on the SMs of a cluster, or on the SMs of several GPUs, as vector
clocks of monotone counters.

Nothing here is time. A *vector* holds what a warp knows to have happened. Two accesses to the same
bytes are ordered exactly when the later one's vector covers the counters of the earlier one. The
counters:

============  =========  ===========================================================================
counter       one per    value v means
============  =========  ===========================================================================
GENERIC       warp       the warp's ordinary loads and stores up to its epoch v have been performed
FENCED        warp       its ordinary stores up to epoch v are visible to the async proxy
                         (fence.proxy.async)
INITIALISED   warp       the mbarriers it initialized up to epoch v are visible to the async proxy
DRAINED       warp       the first v wgmma batches of its warpgroup no longer read shared memory, as
                         *this warp* waited
WAITED        warp       the warp's first v waits for mbarriers are over
BULK_READ     warp       the first v bulk groups of its elected lane have read their shared memory
SHOWN         warp       its ordinary stores to arrays up to epoch v are visible to the async proxy,
                         because a warp that knew of them has executed fence.proxy.async.global
TOLD          warp       its ordinary stores to shared memory up to epoch v may be loaded by other
                         CTAs, because a warp that knew of them has released them at cluster scope
                         (mbarrier.arrive.release.cluster)
written       warpgroup  the first v bulk groups of its elected lane are in global memory
grid          GPU        1: the preceding kernels in its stream have ended (griddepcontrol.wait)
named         barrier    uses 1 … v of the named barrier are over
landed        mbarrier   copies that completed on phases 0 … v - 1 have written their bytes
============  =========  ===========================================================================

A release (mbarrier arrive, named barrier) folds the vectors of the *executing* warps into the
barrier, then starts a new epoch in each; an acquire folds the barrier's vector into the executing
warps. This is why a slot released by one warp after `wgmma_wait` is not free: DRAINED of the other
three never reaches the warp that refills it.

PTX ISA, "Memory Consistency Model" (causality order, proxies).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from ..core.machine import Lanes

Vector: TypeAlias = npt.NDArray[np.int64]
Need: TypeAlias = tuple[int, int]
"""(index, value): a counter, and the value that a later access must know."""

GENERIC, FENCED, INITIALISED, DRAINED, BULK_READ, WAITED, SHOWN, TOLD = range(8)
UNREACHABLE: Need = (0, 1 << 62)
"""A need that no vector covers."""
_KINDS = 8
NAMED_BARRIERS = 16


def lacks(known: Sequence[int] | Vector, needs: Iterable[Need]) -> bool:
    """Return whether a vector does not cover all of these counters."""
    return any(known[index] < value for index, value in needs)


class Release(NamedTuple):
    """A release at GPU scope: the releasing CTA's position in the order of the run, and what its
    lane knew."""

    number: int
    vector: Vector


class Clocks:
    """The indices of the counters in the vectors of `ctas` CTAs that share them, with `warps` warps
    in total, on the given number of GPUs.

    Vectors widen as mbarriers are initialized. `first_warp` and `place` count over all of these
    CTAs.
    """

    def __init__(self, warps: int, ctas: int = 1, gpus: int = 1) -> None:
        self.warps, self._gpus = warps, gpus
        self.grid = _KINDS * warps + NAMED_BARRIERS * ctas
        self.used = self.landed = self.grid + gpus + warps // 4
        self.width = self.used + 32

    def index(self, kind: int, warp: int) -> int:
        """Return the index of a per-warp counter; `warp` counts over all CTAs."""
        return kind * self.warps + warp

    def named(self, barrier: int, place: int) -> int:
        """Return the index of the counter of a CTA's named barrier."""
        return _KINDS * self.warps + NAMED_BARRIERS * place + barrier

    def written(self, first_warp: int) -> int:
        """Return the index of a warpgroup's counter of bulk groups in global memory."""
        return self.grid + self._gpus + first_warp // 4

    def vector(self) -> Vector:
        return np.zeros(self.width, np.int64)

    def phases(self, vectors: Vector) -> Vector:
        """Return what four warps know about mbarrier phases only, and which of their waits are
        over."""
        known: Vector = np.minimum.reduce(vectors)
        known[: self.landed] = 0
        waits = self.of_warps(WAITED)
        known[waits] = np.maximum.reduce(vectors[:, waits])
        return known

    def shown(self, need: Need) -> Need:
        """Return what must be known for the async proxy to see what a warp stored when its GENERIC
        counter was `need`."""
        return need[0] + (SHOWN - GENERIC) * self.warps, need[1]

    def of_warps(self, kind: int, first: int = 0, count: int | None = None) -> slice:
        """Return the indices of the counters of one kind, for some warps or for all."""
        return slice(
            self.index(kind, first),
            self.index(kind, first + (self.warps if count is None else count)),
        )

    def untold(self, vector: Vector) -> Vector:
        """Return what a release at CTA scope makes known to another CTA: no store that the other
        CTA may load."""
        told = vector.copy()
        told[self.of_warps(TOLD)] = 0
        return told

    def widen(self, vector: Vector) -> Vector:
        """Return a vector, or a matrix of vectors, with room for all present counters; the same
        object if it has room."""
        if vector.shape[-1] == self.width:
            return vector
        grown = np.zeros((*vector.shape[:-1], self.width), np.int64)
        grown[..., : vector.shape[-1]] = vector
        return grown


COUNT: dict[Lanes, int] = {"all": 128, "warps": 4, "one": 1}


class Warps:
    """The vectors of a warpgroup's four warps, which hold what each of them knows. `lanes` says
    which warps execute.

    `first_warp` counts over the CTAs that share the clocks.
    """

    def __init__(self, clocks: Clocks, first_warp: int) -> None:
        self.lanes: Lanes = "all"
        self.first_warp = first_warp
        self.clocks = clocks
        self._bind(np.zeros((4, clocks.width), np.int64))
        self.counters[GENERIC] += 1

    def lane_count(self) -> int:
        return COUNT[self.lanes]

    def warps(self) -> range:
        return range(1 if self.lanes == "one" else 4)

    def _bind(self, vectors: Vector) -> None:
        """Adopt a (4, width) matrix, and make views of the counters that the four warps own."""
        self.vectors = vectors
        width = vectors.shape[1]
        flat = vectors.reshape(-1)
        self.counters = [
            flat[self.clocks.index(kind, self.first_warp) :: width + 1][:4]
            for kind in range(_KINDS)
        ]

    def widen(self) -> None:
        self._bind(self.clocks.widen(self.vectors))

    def known(self) -> list[int]:
        """Return the vector of what *every* executing warp knows."""
        known: list[int] = (
            self.vectors[0] if self.lanes == "one" else np.minimum.reduce(self.vectors)
        ).tolist()
        return known

    def knows(self, index: int) -> int:
        """Return the value of one counter that every executing warp knows."""
        return int(self.vectors[0, index] if self.lanes == "one" else self.vectors[:, index].min())

    def epoch(self, warp: int = 0) -> int:
        return int(self.counters[GENERIC][warp])

    def needs(self, kind: int = GENERIC) -> tuple[Need, ...]:
        """Return what an access must know to come after the accesses of the executing warps in
        their present epochs."""
        counter = self.counters[kind]
        return tuple(
            (self.clocks.index(kind, self.first_warp + warp), int(counter[warp]))
            for warp in self.warps()
        )

    def acquire(self, vector: Vector) -> None:
        own = self.vectors[0] if self.lanes == "one" else self.vectors
        np.maximum(own, vector, out=own)

    def release_into(self, vector: Vector) -> None:
        """Fold what any executing warp knows into `vector`, and begin a new epoch in each."""
        own = self.vectors[0] if self.lanes == "one" else np.maximum.reduce(self.vectors)
        np.maximum(vector, own, out=vector)
        self.counters[GENERIC][: len(self.warps())] += 1

    def show(self) -> None:
        """Record in the executing warps that the async proxy sees the ordinary stores that they
        know of."""
        generic, shown = map(self.clocks.of_warps, (GENERIC, SHOWN))
        vectors = self.vectors[: len(self.warps())]
        np.maximum(vectors[:, shown], vectors[:, generic], out=vectors[:, shown])

    def learn(self, kind: int, value: int) -> None:
        """Set the executing warps' own counters of a kind to `value`."""
        self.counters[kind][: len(self.warps())] = value
