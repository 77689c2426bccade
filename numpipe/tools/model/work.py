"""Count the work of a whole kernel: some of its CTAs are counted, the others are interpolated
between them."""

from __future__ import annotations

import collections
import functools
import itertools
import math
import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ...plan.unit import Unit
from ...sim.work_count import Counter, Sampler, Work, run

Body = Callable[[Any], None]
EVENTS = 300_000
"""pipeline steps of all warpgroups to count before CTAs are interpolated over larger distances;
about ten seconds"""
FEW = 100
"""if a warpgroup has at most this many steps, the other warpgroups of its CTA are always counted
too"""
SAMPLES = 264
"""CTAs whose first loads are compared"""
ALL = 3000
"""if a kernel has at most this many steps, all its CTAs are counted"""
NEIGHBOURS = 2
"""SMs of a TPC, which fetch a box from L2 once if they request it at the same time"""


@dataclass
class KernelWork:
    """The work of all CTAs (`total`), and the work of those that were counted, by CTA number."""

    ctas: int
    total: Work = field(default_factory=Work)
    counted: dict[int, Work] = field(default_factory=dict)
    accumulators: int = 0
    """registers per lane of a compute warpgroup"""
    footprint: dict[str, int] = field(default_factory=dict)
    """by array: bytes that are loaded at least once"""
    distinct: dict[str, float] = field(default_factory=dict)
    """by array: fraction (0…1) of the bytes which all SMs load at one time that are distinct"""
    distinct_beside: dict[str, float] = field(default_factory=dict)
    """the same for two neighboring SMs"""
    data: tuple[str, ...] = ()
    """what controls the kernel but is not known, and was counted as zeros"""
    given: tuple[str, ...] = ()
    """arrays whose contents control the kernel and are known"""
    unaligned_rows: int = 0
    """loaded rows of 128 bytes that do not start at a multiple of 128; each takes several L2
    requests"""


def count(
    unit: Unit,
    body: Body,
    grid: tuple[int, int, int],
    resident: Callable[[], int],
    nbytes: dict[str, int],
    steered: Callable[[], bool],
) -> KernelWork:
    """Count what a kernel's CTAs load, compute and store, by running some of them.

    unit, body  of a simulation: ``body(machine)`` runs one warpgroup from entry to end
    resident    returns how many CTAs run at a time; called after one has been counted, when `unit`
                knows its shared memory
    nbytes      bytes of each array
    steered     returns whether the CTAs counted so far read numbers from known arrays: CTAs may
                then differ irregularly, and more are counted
    """
    ctas = math.prod(grid)
    work = KernelWork(ctas)
    events = 0
    parts = any(array.workspace for array in unit.arrays)
    """whether CTAs compute parts of tiles, and so may differ irregularly"""
    seen: dict[frozenset[Any], Work] = {}
    """work of a CTA's other warpgroups by the work of its first: if the first fills the same slots,
    the others are assumed to do the same"""

    def at(number: int) -> Work:
        nonlocal events
        if number not in work.counted:
            first, *others = _order(unit)
            own = counted(Work(), first, number)
            alike = frozenset(own.items()) if _cost(own) <= FEW else _structure(own)
            # in these cases the first warpgroup does not determine the others
            if not alike or alike not in seen or seen[alike]["copied",] or parts:
                seen[alike] = Work()
                for warpgroup in others:
                    counted(seen[alike], warpgroup, number)
            work.counted[number] = own + seen[alike]
            events += _cost(own)
        return work.counted[number]

    def counted(sum_: Work, warpgroup: int, number: int) -> Work:
        machine = Counter(sum_, unit, warpgroup, place(number, grid), grid)
        run(machine, body)
        work.accumulators = max(work.accumulators, machine.accumulators)
        return sum_

    def between(lo: int, hi: int) -> None:
        """Add the work of the CTAs between two that have been counted."""
        if (inner := hi - lo - 1) <= 0:
            return
        first, last, middle = at(lo), at(hi), (lo + hi) // 2
        if _structure(first) != _structure(last) and events < EVENTS:
            work.total.update(at(middle))
            between(lo, middle)
            between(middle, hi)
            return
        for key in first.keys() | last.keys():
            work.total[key] += round(inner * (first[key] + last[key]) / 2)

    # the first and the last CTA, and some at irregular positions between them, because CTAs may
    # differ irregularly
    cost = _cost(at(0))
    most = EVENTS // 10 if parts or steered() else ALL
    chosen = set(range(ctas)) if cost * ctas <= most else {0, ctas - 1}
    if cost <= EVENTS // 100:
        chosen |= {ctas * n // 7 for n in range(1, 7)}
    for number in sorted(chosen):
        work.total.update(at(number))
    for lo, hi in itertools.pairwise(sorted(chosen)):
        between(lo, hi)
    for key, n in work.total.items():
        if key[0] == "load":
            work.footprint[key[1]] = min(n, nbytes.get(key[1], n))
    _share(work, unit, body, grid, min(ctas, resident(), SAMPLES))
    return work


def _structure(work: Work) -> frozenset[Any]:
    """Return a CTA's work without its loads and stores, whose bytes depend on how much of a block
    is inside its array."""
    return frozenset(
        item for item in work.items() if item[0][0] not in ("load", "store", "fetch", "send")
    )


def _cost(work: Work) -> int:
    """Return the number of pipeline steps of all warpgroups, which determine the time of
    counting."""
    return sum(n for key, n in work.items() if key[0] in ("steps", "fills"))


def _order(unit: Unit) -> list[int]:
    """Return the parts of a CTA, the memory role first: it makes the rings before a store asks for
    the shared memory they leave."""
    return sorted(range(len(unit.parts)), key=lambda number: not unit.role(number).loads)


def place(number: int, grid: tuple[int, int, int]) -> tuple[int, int, int]:
    """Return the blockIdx of a CTA, with the first dimension varying fastest."""
    return number % grid[0], number // grid[0] % grid[1], number // (grid[0] * grid[1])


def _share(
    work: KernelWork, unit: Unit, body: Body, grid: tuple[int, int, int], resident: int
) -> None:
    """Estimate what fraction of the bytes that CTAs load at the same time is distinct, from the
    first steps of the first CTAs.

    A box that several CTAs load comes from HBM only once, and otherwise from L2.
    """
    samples = []
    for number in range(resident):
        machine = Sampler(Work(), unit, _order(unit)[0], place(number, grid), grid)
        run(machine, body)
        samples.append(machine.boxes)

    def nbytes(array: str, loads: collections.Counter[tuple[Any, ...]]) -> int:
        return sum(box[-1] * times for box, times in loads.items() if box[0] == array)

    beside = [
        functools.reduce(operator.or_, samples[n : n + NEIGHBOURS])
        for n in range(0, resident, NEIGHBOURS)
    ]
    for array in work.footprint:
        if loaded := sum(nbytes(array, loads) for loads in samples):
            work.distinct[array] = (
                nbytes(array, collections.Counter(set().union(*samples))) / loaded
            )
            work.distinct_beside[array] = sum(nbytes(array, loads) for loads in beside) / loaded
        else:
            work.distinct[array] = work.distinct_beside[array] = 1.0
