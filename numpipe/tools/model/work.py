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
from ...sim.inferred import Work, breaks, structure, weighted
from ...sim.work_count import Counter, Sampler, Tracer, run

Body = Callable[[Any], None]
Counted = collections.Counter[tuple[str, str]]
EVENTS = 4_000
"""events to count: loads, stores, products and waits of all warpgroups; about a second"""
FEW = 100
"""if a warpgroup has at most this many steps, the other warpgroups of its CTA are always counted
too"""
CHECKED = 2
"""CTAs that are compared with what is inferred of them"""
SAMPLES = 264
"""CTAs whose first loads are compared"""
TRACED = 12
"""CTAs whose accesses are compared"""
GOLDEN = 0.6180339887
CLOSE = 0.1
"""how far a CTA's work may be from what is inferred, as a fraction"""
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
    again: dict[tuple[str, str], float] = field(default_factory=dict)
    """by kind and array: fraction of the bytes that all resident CTAs access, each in its first
    tile, that are distinct"""
    passes: dict[tuple[str, str], float] = field(default_factory=dict)
    """how often a warpgroup comes by the same bytes, other than in successive steps"""
    wave_bytes: float = math.inf
    """distinct bytes that all resident CTAs access in their first tiles"""
    rate: float = 1.0
    """see `numpipe.sim.work_count.Counter`"""
    sampled: bool = False
    """whether CTAs differ irregularly, and the total is that of some times their number"""
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
    movers: set[int] = set()
    sites: dict[int, set[Any]] = collections.defaultdict(set)
    parts = any(array.workspace for array in unit.arrays)
    """whether CTAs compute parts of tiles, and so may differ irregularly"""
    seen: dict[frozenset[Any], Work] = {}
    """work of a CTA's other warpgroups by the work of its first: if the first fills the same slots,
    the others are assumed to do the same"""

    def at(number: int) -> Work:
        if number not in work.counted:
            first, *others = _order(unit)
            own = counted(first, number)
            alike = frozenset(own.items()) if _cost(own) <= FEW else structure(own)
            # in these cases the first warpgroup does not determine the others
            if not alike or alike not in seen or seen[alike]["copied",] or parts:
                seen[alike] = Work()
                for warpgroup in others:
                    seen[alike] += counted(warpgroup, number)
            work.counted[number] = own + seen[alike]
        return work.counted[number]

    def counted(warpgroup: int, number: int) -> Work:
        nonlocal events
        machine = Counter(Work(), unit, warpgroup, place(number, grid), grid)
        machine.every_tile, machine.sites = steered(), sites[warpgroup]
        run(machine, body)
        events += machine.events
        work.accumulators = max(work.accumulators, machine.accumulators)
        work.rate = min(work.rate, machine.rate)
        if any(key[0] in ("load", "reduce") for key in machine.work):
            movers.add(warpgroup)
        return machine.work

    at(0)
    if steered():
        work.counted.clear()
        seen.clear()
        at(0)
    at(ctas - 1)
    most = 4 * EVENTS if parts or steered() else EVENTS
    if events * ctas <= most * len(work.counted):
        work.total = weighted({number: (1, at(number)) for number in range(ctas)})
    elif parts or steered() or not _infer(work, at, grid, unit.cluster, lambda: events > EVENTS):
        work.sampled = True
        while len(work.counted) < 8 or events < most:
            at(_irregular(len(work.counted), ctas))
        each = ctas / len(work.counted)
        work.total = weighted({n: (each, one) for n, one in work.counted.items()})
    for key, n in work.total.items():
        if key[0] in ("load", "reduce"):
            work.footprint[key[1]] = min(n, nbytes.get(key[1], n))
    together = min(ctas, resident())
    if unit.load_rings:
        _share(work, unit, body, grid, min(together, SAMPLES))
    _trace(work, unit, body, grid, together, sorted(movers))
    return work


def _irregular(number: int, ctas: int) -> int:
    """Return the CTA that is looked at as the `number`-th, anywhere in the grid."""
    return int(number * GOLDEN % 1 * ctas)


def _infer(
    work: KernelWork,
    at: Callable[[int], Work],
    grid: tuple[int, int, int],
    cluster: tuple[int, int, int],
    enough: Callable[[], bool],
) -> bool:
    """Set the total from the clusters that determine all others, and return whether it agrees with
    some others.

    The work along a dimension of the grid may change at any place, but at the same ones in each row
    and column.
    """
    sizes = [n // of for n, of in zip(grid, cluster, strict=True)]

    def of_cluster(*where: int) -> Work:
        """Return the work of all CTAs of a cluster."""
        members = itertools.product(
            *(range(n * of, (n + 1) * of) for n, of in zip(where, cluster, strict=True))
        )
        return weighted({cta: (1, at(_number(cta, grid))) for cta in members})

    weights = []
    for axis, size in enumerate(sizes):
        chosen = breaks(size, enough)
        try:
            position = next(chosen)
            while True:
                ends = (
                    [position if other == axis else end * (n - 1) for other, n in enumerate(sizes)]
                    for end in (0, 1)
                )
                position = chosen.send(
                    weighted({n: (1, of_cluster(*e)) for n, e in enumerate(ends)})
                )
        except StopIteration as done:
            weights.append(done.value)
    nodes = {
        where: (math.prod(of[n] for of, n in zip(weights, where, strict=True)), of_cluster(*where))
        for where in itertools.product(*weights)
    }
    work.total = weighted(nodes)
    for number in range(1, 2 if enough() else CHECKED + 1):
        where = [
            n // of
            for n, of in zip(place(_irregular(number, work.ctas), grid), cluster, strict=True)
        ]
        near = [_between(list(of), n) for of, n in zip(weights, where, strict=True)]
        guess = weighted(
            {
                corner: (
                    math.prod(of[n] for of, n in zip(near, corner, strict=True)),
                    nodes[corner][1],
                )
                for corner in itertools.product(*near)
            }
        )
        found = of_cluster(*where)
        if any(abs(guess[k] - found[k]) > CLOSE * max(guess[k], found[k]) for k in guess | found):
            return False
    return True


def _between(nodes: list[int], position: int) -> dict[int, float]:
    """Return the nodes next to a position, with their shares in a linear interpolation."""
    if position in nodes:
        return {position: 1.0}
    high = next(node for node in nodes if node > position)
    low = nodes[nodes.index(high) - 1]
    share = (position - low) / (high - low)
    return {low: 1 - share, high: share}


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


def _number(cta: tuple[int, ...], grid: tuple[int, int, int]) -> int:
    """Return the number of a CTA: the inverse of `place`."""
    return cta[0] + grid[0] * (cta[1] + grid[1] * cta[2])


def _trace(
    work: KernelWork,
    unit: Unit,
    body: Body,
    grid: tuple[int, int, int],
    resident: int,
    movers: list[int],
) -> None:
    """Estimate how many of the bytes that the resident CTAs load and add to are distinct, from some
    of these CTAs."""
    numbers = sorted({int(n * resident / TRACED) for n in range(TRACED)} & set(range(resident)))
    moved: Counted = collections.Counter()
    own: Counted = collections.Counter()
    steady: Counted = collections.Counter()
    swept: Counted = collections.Counter()
    union: Counted = collections.Counter()
    known: set[tuple[Any, ...]] = set()
    for number in numbers:
        here: set[tuple[Any, ...]] = set()
        for warpgroup in movers:
            mine: set[tuple[Any, ...]] = set()
            machine = Tracer(Work(), unit, warpgroup, place(number, grid), grid)
            run(machine, body)
            for access in machine.accesses:
                key, what = (access.kind, access.array), access[:3]
                moved[key] += access.nbytes
                own[key] += access.distinct * (what not in here)
                union[key] += access.distinct * (what not in known)
                steady[key] += access.distinct
                swept[key] += access.distinct * (what not in mine)
                mine.add(what)
                here.add(what)
                known.add(what)
    work.wave_bytes = 0.0
    for key, amount in moved.items():
        if key[0] in ("load", "reduce"):
            alike = _groups(union[key] / own[key] * len(numbers), len(numbers), resident)
            distinct = min(alike * own[key] / len(numbers), work.footprint.get(key[1], 0))
            work.again[key] = distinct / (amount * resident / len(numbers))
            work.passes[key] = steady[key] / swept[key]
            work.wave_bytes += distinct


def _groups(distinct: float, samples: int, most: int) -> float:
    """Return how many different CTAs there are among `most`, where `samples` of them are as many as
    `distinct`."""
    if distinct >= samples - 0.5:
        return most
    number = distinct
    while number < most and number * (1 - (1 - 1 / number) ** samples) < distinct - 0.25:
        number += 1
    return number


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
