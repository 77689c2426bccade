"""Regions of a CTA's shared memory: what rings, allocations, the store ring, exchanges and barriers are handed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Region:
    """`nbytes` of shared memory from `base` on; or as many for each of `owners` compute warpgroups, one behind another.

    >>> Region(1024, 256, owners=2).at(1), Region(1024, 256).at(1)
    (1280, 1024)
    """

    base: int
    nbytes: int
    owners: int = 0
    """0: the warpgroups share the bytes"""

    def at(self, number: int) -> int:
        """Where the bytes of a compute warpgroup begin."""
        return self.base + (number * self.nbytes if self.owners else 0)

    @property
    def total(self) -> int:
        """Bytes in all."""
        return max(1, self.owners) * self.nbytes

    @property
    def end(self) -> int:
        return self.base + self.total

    def __contains__(self, address: int) -> bool:
        return self.base <= address < self.end
