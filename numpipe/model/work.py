"""The work of a whole kernel: of some of its CTAs, counted; of the others, told from those beside them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .count import Counter, Sampler, Work, run

EVENTS = 1_500_000
"""pipeline steps, of all warpgroups, that are counted one by one; about ten seconds"""
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

    seen: dict[frozenset[Any], Work] = {}
    """by what the first warpgroup does: where it loads the same, the others do the same"""

    def at(number: int) -> Work:
        nonlocal events
        if number not in work.counted:
            first, *others = _order(unit)
            found = counted(Work(), first, number)
            alike = frozenset(found.items())
            if alike not in seen:
                for warpgroup in others:
                    counted(found, warpgroup, number)
                seen[alike] = found
            events += sum(n for key, n in found.items() if key[0] in ("steps", "fills"))
            work.counted[number] = seen[alike]
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
        if first != last and events < EVENTS:
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
    chosen = sorted({0, ctas - 1, *((ctas * n // 7) for n in range(1, 7))})
    cost = sum(n for key, n in at(0).items() if key[0] in ("steps", "fills"))
    if cost * len(chosen) > EVENTS // 10:
        chosen = sorted({0, ctas - 1})
    for number in chosen:
        add(number, 1)
    for lo, hi in zip(chosen, chosen[1:], strict=False):
        between(lo, hi)
    for key, n in work.total.items():
        if key[0] == "load":
            work.footprint[key[1]] = min(n, nbytes.get(key[1], n))
    _share(work, unit, body, grid, min(ctas, resident()))
    return work


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
