"""The work of a whole kernel: of some of its CTAs, counted; of the others, told from those beside them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .count import Counter, Sampler, Work, run

EVENTS = 300_000
"""pipeline steps, of all warpgroups, that are counted one by one before CTAs are told from others far away; some ten seconds"""
FEW = 100
"""steps of a warpgroup that make it no trouble to count all others of its CTA too"""
SAMPLES = 264
"""CTAs whose first loads are compared"""
ALL = 3000
"""where all of a kernel's are no more, all its CTAs are counted"""
NEIGHBOURS = 2
"""SMs that fetch a box from L2 once if they ask for it at the same time: a TPC"""


@dataclass
class KernelWork:
    """What all CTAs do (`total`), and those that were counted, by their number."""

    ctas: int
    total: Work = field(default_factory=Work)
    counted: dict[int, Work] = field(default_factory=dict)
    accumulators: int = 0
    """registers a lane of a compute warpgroup"""
    footprint: dict[str, int] = field(default_factory=dict)
    """bytes of an array that are loaded at least once"""
    distinct: dict[str, float] = field(default_factory=dict)
    """of the bytes that all SMs load at a time, how many differ (0…1), by array"""
    distinct_beside: dict[str, float] = field(default_factory=dict)
    """the same of two neighbouring SMs"""
    unaligned_rows: int = 0
    """loaded rows of 128 bytes that begin anywhere but at a multiple of 128: each takes several requests of L2"""


Body = Callable[[Any], None]


def count(unit: Any, body: Body, grid: tuple[int, int, int], resident: Callable[[], int],
          nbytes: dict[str, int]) -> KernelWork:
    """Count a kernel.

    unit, body  of a simulation: ``body(machine)`` is one warpgroup from entry to end
    resident    CTAs that run at a time, asked when one has been counted: by then `unit` knows its shared memory
    nbytes      of each array
    """
    ctas = grid[0] * grid[1] * grid[2]
    work = KernelWork(ctas)
    events = 0
    parts = any(array.workspace for array in unit.arrays)
    """CTAs with parts of tiles differ without order"""

    seen: dict[Any, Work] = {}
    """of all warpgroups but the first, by what that does: where it fills as much, the others do the same"""

    def at(number: int) -> Work:
        nonlocal events
        if number not in work.counted:
            first, *others = _order(unit)
            found = counted(Work(), first, number)
            alike = frozenset(found.items()) if _cost(found) <= FEW else _structure(found)
            if not alike or alike not in seen or seen[alike]["copied",] or parts:  # the others are not told from the first
                seen[alike] = Work()
                for warpgroup in others:
                    counted(seen[alike], warpgroup, number)
            work.counted[number] = found + seen[alike]
            events += _cost(found)
        return work.counted[number]

    def counted(found: Work, warpgroup: int, number: int) -> Work:
        machine = Counter(found, unit, warpgroup, place(number, grid), grid)
        run(machine, body)
        work.accumulators = max(work.accumulators, machine.accumulators)
        return found

    def between(lo: int, hi: int) -> None:
        """Add the CTAs between two that have been counted."""
        inner = hi - lo - 1
        if inner <= 0:
            return
        first, last = at(lo), at(hi)
        middle = (lo + hi) // 2
        if _structure(first) != _structure(last) and events < EVENTS:
            at(middle)
            add(middle, 1)
            between(lo, middle)
            between(middle, hi)
            return
        for key in first.keys() | last.keys():
            work.total[key] += round(inner * (first[key] + last[key]) / 2)

    def add(number: int, times: int) -> None:
        for key, n in at(number).items():
            work.total[key] += n * times

    # the ends, and some between them that are not a multiple of anything: CTAs may differ without order
    cost = _cost(at(0))
    most = EVENTS // 10 if parts else ALL
    chosen = set(range(ctas)) if cost * ctas <= most else {0, ctas - 1}
    if cost <= EVENTS // 100:
        chosen |= {ctas * n // 7 for n in range(1, 7)}
    for number in sorted(chosen):
        add(number, 1)
    for lo, hi in itertools.pairwise(sorted(chosen)):
        between(lo, hi)
    for key, n in work.total.items():
        if key[0] == "load":
            work.footprint[key[1]] = min(n, nbytes.get(key[1], n))
    _share(work, unit, body, grid, min(ctas, resident(), SAMPLES))
    return work


def _structure(work: Work) -> frozenset[Any]:
    """What a CTA does, but for how much of its blocks lies inside the arrays."""
    return frozenset(item for item in work.items() if item[0][0] not in ("load", "store"))


def _cost(work: Work) -> int:
    """Pipeline steps of all warpgroups: what counting takes its time for."""
    return sum(n for key, n in work.items() if key[0] in ("steps", "fills"))


def _order(unit: Any) -> list[int]:
    """The memory role first: it meets the rings before a store asks for what they leave of shared memory."""
    return sorted(range(unit.warpgroups), key=lambda number: (number != unit.memory_warpgroup, number))


def place(number: int, grid: tuple[int, int, int]) -> tuple[int, int, int]:
    """blockIdx of a CTA, the first dimension fastest."""
    return number % grid[0], number // grid[0] % grid[1], number // (grid[0] * grid[1])


def _share(work: KernelWork, unit: Any, body: Body, grid: tuple[int, int, int], resident: int) -> None:
    """How much of what CTAs load at a time is the same: from the first steps of those that run at first."""
    samples = []
    for number in range(resident):
        machine = Sampler(Work(), unit, _order(unit)[0], place(number, grid), grid)
        run(machine, body)
        samples.append(machine.boxes)
    groups = [samples[n:n + NEIGHBOURS] for n in range(0, resident, NEIGHBOURS)]
    for array in work.footprint:
        def distinct(sets: list[dict[tuple[Any, ...], int]], array: str = array) -> tuple[int, int]:
            mine = [{box: n for box, n in boxes.items() if box[0] == array} for boxes in sets]
            together: dict[tuple[Any, ...], int] = {}
            for boxes in mine:
                together |= boxes
            return sum(together.values()), sum(sum(boxes.values()) for boxes in mine)

        differ, loaded = distinct(samples)
        beside = sum(distinct(group)[0] for group in groups)
        work.distinct[array] = differ / loaded if loaded else 1.0
        work.distinct_beside[array] = beside / loaded if loaded else 1.0
