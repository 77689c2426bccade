"""Which CTA draws which ticket of a launch (`numpipe.language.grid.tile_scheduler`).

CTAs run one after the other here; on a GPU they draw from one counter while all of them run. So who has a ticket is said before:
without a seed they are dealt round, as among CTAs that are equally fast; with one CTAs are faster or slower by random factors, up
to one that takes nearly all.
"""

from __future__ import annotations

import random


class Deal:
    """The counter of a launch of so many CTAs. CTA i has ticket i, and draws others."""

    def __init__(self, ctas: int, seed: int | None = None) -> None:
        self._ctas = ctas
        self._random = None if seed is None else random.Random(f"deal {seed}")
        spread = 0.0 if self._random is None else self._random.choice((0.5, 2.0, 8.0))
        self._speeds = [1.0 if self._random is None else 2 ** self._random.uniform(-spread, spread) for _ in range(ctas)]
        self._owners: list[int] = []
        """of tickets `ctas`, `ctas` + 1, …"""
        self._drawn: dict[int, int] = {}
        """the newest ticket of each CTA that drew one"""
        self._loops: list[str] = []
        """what the first CTA ran, in order"""
        self._met: dict[int, int] = {}
        """how many of these each CTA came by"""

    def draw(self, cta: int) -> int:
        """The next ticket of a CTA."""
        ticket = self._drawn.get(cta, self._ctas - 1) + 1
        while self._owner(ticket) != cta:
            ticket += 1
        self._drawn[cta] = ticket
        return ticket

    def _owner(self, ticket: int) -> int:
        number = ticket - self._ctas
        if self._random is None:
            return number % self._ctas
        while number >= len(self._owners):
            self._owners += self._random.choices(range(self._ctas), self._speeds, k=3 * self._ctas)
            self._owners += self._random.sample(range(self._ctas), self._ctas)  # each CTA has an end
        return self._owners[number]

    def ended(self, cta: int, what: str) -> str | None:
        """A CTA has ended a loop, or, with "", itself: what it did and what another one did there, where they differ."""
        number = self._met.get(cta, 0)
        if number == len(self._loops) and ("" not in self._loops):
            self._loops.append(what)
        self._met[cta] = number + 1
        first = self._loops[number] if number < len(self._loops) else ""
        if first == what:
            return None
        return f"{what or 'ended'} where another one has {first or 'ended'}"
