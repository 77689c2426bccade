"""What the four warps of a warpgroup know: a vector (`clocks`) each, and which of them execute."""

from __future__ import annotations

import numpy as np

from ..core.machine import Lanes
from .clocks import GENERIC, Clocks, Vector

COUNT: dict[Lanes, int] = {"all": 128, "warps": 4, "one": 1}


class Warps:
    """`lanes` says who of them executes; `first_warp` counts over the CTAs of the cluster."""

    def __init__(self, clocks: Clocks, first_warp: int) -> None:
        self.lanes: Lanes = "all"
        self.first_warp = first_warp
        self._clocks = clocks
        self._bind(np.zeros((4, clocks.width), np.int64))
        self.own[GENERIC] += 1

    def lane_count(self) -> int:
        return COUNT[self.lanes]

    def warps(self) -> range:
        return range(1 if self.lanes == "one" else 4)

    def _bind(self, vectors: Vector) -> None:
        """Adopt the (4, width) matrix, and views of the counters that the four warps own."""
        self.vectors = vectors
        width = vectors.shape[1]
        flat = vectors.reshape(-1)
        self.own = [flat[self._clocks.index(kind, self.first_warp)::width + 1][:4] for kind in range(5)]

    def widen(self) -> None:
        self._bind(self._clocks.widen(self.vectors))

    def known(self) -> list[int]:
        """What *every* executing warp knows."""
        known: list[int] = (self.vectors[0] if self.lanes == "one" else np.minimum.reduce(self.vectors)).tolist()
        return known

    def knows(self, index: int) -> int:
        """The value of one counter that every executing warp knows."""
        return int(self.vectors[0, index] if self.lanes == "one" else self.vectors[:, index].min())

    def epoch(self, warp: int = 0) -> int:
        return int(self.own[GENERIC][warp])

    def acquire(self, vector: Vector) -> None:
        if self.lanes == "one":
            np.maximum(self.vectors[0], vector, out=self.vectors[0])
        else:
            np.maximum(self.vectors, vector, out=self.vectors)

    def release_into(self, vector: Vector) -> None:
        """Fold what any executing warp knows into `vector`; their later accesses are in a new epoch."""
        if self.lanes == "one":
            np.maximum(vector, self.vectors[0], out=vector)
            self.own[GENERIC][0] += 1
        else:
            np.maximum(vector, np.maximum.reduce(self.vectors), out=vector)
            self.own[GENERIC][:] += 1

    def learn(self, kind: int, value: int) -> None:
        """The executing warps' own counter of this kind reaches `value`."""
        self.own[kind][:1 if self.lanes == "one" else 4] = value
