"""Count the work of a whole kernel: some of its CTAs are counted, the others are interpolated
between them."""

from __future__ import annotations

import collections
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ...arch.dimensions import Dim3, Names
from ...core.arith import cdiv
from ...plan.unit import Unit
from ...sim.inferred import Work, places
from ...sim.work_count import Counter, Tracer, run
from . import link_ports

Body = Callable[[Any], None]
EVENTS = 4_500
"""events to count: loads, stores, products and waits of all warpgroups; about a second"""
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
    again: dict[tuple[str, str], float] = field(default_factory=dict)
    """by kind and array: fraction (0…1) of the bytes that the CTAs that run at a time access, each
    in its first tile, that are distinct"""
    beside: dict[str, float] = field(default_factory=dict)
    """by array: the same of the loads of two neighboring SMs"""
    passes: dict[tuple[str, str], float] = field(default_factory=dict)
    """how often a warpgroup comes by the same bytes, other than in successive steps"""
    wave_bytes: float = math.inf
    """distinct bytes that these CTAs access"""
    fills: int = 0
    """slots that were filled in the CTAs that were counted"""
    rate: float = 1.0
    """see `numpipe.sim.work_count.Counter`"""
    sampled: bool = False
    """whether CTAs differ irregularly, and the total is that of some times their number"""
    data: Names = ()
    """what controls the kernel but is not known, and was counted as zeros"""
    given: Names = ()
    """arrays whose contents control the kernel and are known"""
    port_bytes: float = 0
    """time of the transfers between GPUs, as the number of bytes that a busy port passes in it;
    estimated from the first CTAs of each GPU"""

    def link_bytes(self) -> int:
        """Return the bytes to and from other GPUs. All GPUs are assumed to do the same, so both
        directions carry equal traffic."""
        return sum(n for key, n in self.total.items() if key[0] in ("fetch", "send"))


def count(
    unit: Unit,
    body: Body,
    grid: Dim3,
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
    # the memory role first: it makes the rings before a store asks for the shared memory they leave
    order = sorted(range(len(unit.parts)), key=lambda number: not unit.role(number).loads)
    events = 0
    movers = set()
    loops, dealt = (collections.defaultdict[int, dict](dict) for _ in range(2))

    def at(number: int) -> Work:
        if number not in work.counted:
            work.counted[number] = Work()
            for warpgroup in order:
                work.counted[number] += counted(warpgroup, place(number, grid))
        return work.counted[number]

    def counted(warpgroup: int, cta: Dim3) -> Work:
        nonlocal events
        machine = Counter(Work(), unit, warpgroup, cta, grid)
        machine.every_tile = steered()
        machine.loops, machine.dealt = loops[warpgroup], dealt[warpgroup]
        run(machine, body)
        events += machine.events
        work.fills += machine.fills
        work.accumulators = max(work.accumulators, machine.accumulators)
        work.rate = min(work.rate, machine.rate)
        if any(key[0] in ("load", "reduce") for key in machine.work):
            movers.add(warpgroup)
        return machine.work

    ends = 0, ctas - 1
    sum(map(at, ends), Work())
    if steered():
        work.counted.clear()
        events = 0
        sum(map(at, ends), Work())
    # with several GPUs, neighboring CTAs often take turns: one sends, the next one adds
    together = unit.cluster[0] * max(unit.gpus, 1), *unit.cluster[1:]
    clusters = tuple(map(cdiv, grid, together))
    sizes = (math.prod(clusters),) if steered() else clusters[::-1]
    irregular = 2 if steered() or unit.gpus else 1  # twice the time, because more CTAs differ
    most = irregular * EVENTS * len(work.counted) // max(1, events) // math.prod(together)
    # CTAs of several GPUs have different jobs
    most = max(12 if unit.gpus else 3, most)
    visited = 0
    for number in places(work.total, sizes, most, not steered() and most < ctas):
        visited += 1
        first = place(number, clusters)
        for member in itertools.product(*map(range, together)):
            x, y, z = (n * of + m for n, of, m in zip(first, together, member, strict=True))
            if x < grid[0]:
                work.total.update(at(x + grid[0] * (y + grid[1] * z)))
    work.total = Work({key: round(n) for key, n in work.total.items()})
    work.sampled = most <= visited < math.prod(clusters)
    for key, n in work.total.items():
        if key[0] in ("load", "reduce"):
            work.footprint[key[1]] = min(n, nbytes.get(key[1], n))
    _trace(work, unit, body, grid, min(ctas, resident()), sorted(movers))
    work.port_bytes = work.link_bytes()
    if unit.gpus > 2:  # between two GPUs, no port has more than one user
        some = [place(number, grid) for number in range(min(unit.gpus, ctas))]
        found = link_ports.queues(unit, body, some, grid)
        own = sum(nbytes for queue in found[: len(found) // unit.gpus] for *_, nbytes in queue)
        scale = work.port_bytes / own if own else ctas / len(some)
        work.port_bytes = max(work.port_bytes, scale * link_ports.port_bytes(found))
    return work


def place(number: int, grid: Dim3) -> Dim3:
    """Return the blockIdx of a CTA, with the first dimension varying fastest."""
    return number % grid[0], number // grid[0] % grid[1], number // (grid[0] * grid[1])


def _trace(
    work: KernelWork, unit: Unit, body: Body, grid: Dim3, resident: int, movers: list[int]
) -> None:
    """Estimate how many of the bytes that the resident CTAs load and add to are distinct, from the
    first of these CTAs."""
    moved, steady, swept, union, beside = (
        collections.defaultdict[tuple[str, str], float](float) for _ in range(5)
    )
    known: set = set()
    here: set = set()
    samples = events = 0
    while samples < resident and (samples < NEIGHBOURS or events < EVENTS):
        number, samples = samples, samples + 1
        neighbor, here = here if number % NEIGHBOURS else set(), set()
        for warpgroup in movers:
            mine: set = set()
            machine = Tracer(Work(), unit, warpgroup, place(number, grid), grid)
            run(machine, body)
            events += machine.events
            for access in machine.accesses:
                key, what = (access.kind, access.array), access[:3]
                moved[key] += access.nbytes
                beside[key] += access.nbytes * (what not in neighbor)
                steady[key] += access.distinct
                swept[key] += access.distinct * (what not in mine)
                union[key] += access.distinct * (what not in known)
                for visited in (mine, here, known):
                    visited.add(what)
    work.wave_bytes = 0.0
    for key, amount in moved.items():
        if amount and key[0] in ("load", "reduce"):
            distinct = min(union[key] * resident / samples, work.footprint.get(key[1], 0))
            work.again[key] = union[key] / amount
            work.passes[key] = steady[key] / swept[key]
            work.wave_bytes += distinct
            if key[0] == "load":
                work.beside[key[1]] = beside[key] / amount
