"""The shared memory of a CTA, as far as it is handed out: rings, scratch, the store ring, barriers; and what each of them takes.

::

    0 ............ 1024        mbarriers of each ring: ready[slots], consumed[slots] of each of their groups, 8 bytes each
                               at its end, with schedule="pingpong", the rings' counters on their way (`turns`)
    1024 ......... rings       slots x (blocks of all operands, each at a multiple of 1024)
    ............. scratch      what the kernel allocates itself, each at a multiple of 1024; its mbarriers at the header's end
    ............. staging      compute warpgroups x store_slots x 8192, the store ring
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from ..diagnostics.errors import SpecError
from .allocations import Scratch
from .budget import HEADER, PANEL_BYTES
from .plans import COUNTERS, NumberPlan, OutPlan, RingPlan
from .regions import Region
from .shape import KernelShape
from .watch import WORDS_BYTES


@dataclass
class SharedMemory(KernelShape):
    """What has been handed out so far. The simulated SM meets rings in the order they run, a compile knows them all at its end."""

    rings: dict[str, RingPlan] = field(default_factory=dict)
    simulated: bool = False
    outputs: dict[str, OutPlan] = field(default_factory=dict)
    store_slots: int = 0
    """staging panels of each compute warpgroup, once a store asked for them"""
    staging_base: int = 0
    scratch: dict[str, Scratch] = field(default_factory=dict)
    """what the kernel allocates itself"""
    exchange_bytes: int = 0
    """that the warps of each compute warpgroup exchange values through, in reductions and layout casts of register tiles"""
    casts: dict[tuple[str, str], int] = field(default_factory=dict)  # (line, from what to what) -> bytes, of those that move data

    @property
    def smem_bytes(self) -> int:
        return self.exchange.end

    @property
    def staging(self) -> Region:
        """The store ring."""
        return Region(self.staging_base, self.store_slots * PANEL_BYTES, self.compute_wgs)

    @property
    def exchange(self) -> Region:
        """What warps exchange values through: behind all else, known when all of the kernel is."""
        if self.simulated or not self.store_slots:
            base = self._rings_end + self.staging.total
        else:
            base = max(self._rings_end, self.staging.end)  # rings that were met later lie behind it
        return Region(base, self.exchange_bytes, self.compute_wgs)

    @property
    def _free(self) -> int:
        """Where the next ring or allocation begins."""
        return self._rings_end if self.simulated else self.exchange.base

    def plan_exchange(self, nbytes: int, *cast: tuple[str, str]) -> None:
        """Let the warps of a warpgroup exchange so many bytes at a time; `cast`: (line, from what to what) of a layout cast."""
        self.casts.update(dict.fromkeys(cast, nbytes))
        self.exchange_bytes = max(self.exchange_bytes, nbytes)
        self._budget()

    @property
    def _rings_end(self) -> int:
        rings, scratch = (*self.rings.values(), *self.outputs.values()), self.scratch.values()
        return max([HEADER, *(plan.memory.end for plan in rings), *(part.memory.end for part in scratch)])

    @property
    def shares(self) -> tuple[tuple[str, int], ...]:
        """(what for, bytes) of the shared memory of a CTA, but for what is left over between."""
        return tuple((what, size) for size, what in rows(self, self.staging.total))

    def _budget(self) -> None:
        staging = self.staging.total
        if self.simulated and not self.params.store_slots:
            # chosen at the first store that ran, which may be before some of the rings: a compile knows them all by then
            staging = min(staging, self.compute_wgs * PANEL_BYTES)
        simulated = self._rings_end + staging + self.exchange.total
        if (simulated if self.simulated else self.smem_bytes) > self.target.smem_bytes:
            raise _too_much(self, staging)

    # ---- counters that travel with the turn
    @property
    def barrier_room(self) -> int:
        """Bytes of the header that barriers may have: the words of turns, and of `watch`, are behind."""
        return HEADER - 4 * COUNTERS * self.turns * (self.turns > 1) - WORDS_BYTES * bool(self.params.debug)

    @property
    def _rings_barriers(self) -> int:
        """Where the barriers of rings end."""
        return max((plan.header.end for plan in self.rings.values()), default=0)

    @property
    def _scratch_barriers(self) -> int:
        """Where those of allocations begin, which fill the header from its end on."""
        return self.barrier_room - sum(plan.memory.total for part in self.scratch.values() for plan in part.barriers)

    def turn_word(self, warpgroup: int, index: int) -> int:
        """Where a ring's counter is handed to a compute warpgroup: an offset in shared memory."""
        return HEADER - 4 * COUNTERS * (self.turns - warpgroup) + 4 * index

    def handed_over(self) -> list[RingPlan]:
        """The rings whose counters travel: all that the compute warpgroups share, but for numbers, of which each reads all."""
        return [plan for plan in self.rings.values() if not plan.private and not plan.numbers]

    @property
    def load_rings(self) -> list[RingPlan]:
        """The rings of pipelines."""
        return [plan for plan in self.rings.values() if not plan.numbers]

    # ---- tickets
    @property
    def tickets(self) -> NumberPlan | None:
        """The ring of tickets, where a loop over tiles takes them."""
        return next((plan for plan in self.rings.values() if isinstance(plan, NumberPlan)), None)


def _too_much(memory: SharedMemory, staging: int) -> SpecError:
    """The error, with a table: bytes, whose, and of how many slots; `staging`: bytes of the store ring."""
    found = rows(memory, staging)
    total = sum(size for size, _ in found)
    width = len(str(total))
    return SpecError("\n".join([
        f"kernel {memory.kernel}: shared memory: {total} B, but a CTA has {memory.target.smem_bytes} B: use fewer slots "
        "(max_concurrent_steps, buffer_count), smaller blocks or fewer store_slots"
        + ", or smaller scratch: what is not used at one time may share memory, in a RefUnion" * bool(memory.scratch),
        *(f"  {size:>{width}} B  {what}" for size, what in found)]))


def rows(memory: SharedMemory, staging: int) -> list[tuple[int, str]]:
    """(bytes, whose, and of how many slots) of all that a CTA has in shared memory, without what is left over between."""
    found = [(HEADER, "barriers"), *_rings(memory), *_scratch(memory)]
    if staging:
        slots = staging // memory.compute_wgs // PANEL_BYTES
        warpgroups = f"{memory.compute_wgs} warpgroup{'s' * (memory.compute_wgs > 1)}"
        found.append((staging, f"'array[…] = tile': {warpgroups} x {slots} store slots x {PANEL_BYTES} B"))
    if memory.exchange_bytes:
        what = "reductions and layout casts" if memory.casts else "reductions"
        each = f" for each of {memory.compute_wgs} warpgroups" * (memory.compute_wgs > 1)
        found.append((memory.exchange.total, f"{what} of register tiles: {memory.exchange_bytes} B{each}"))
    return found


def _rings(memory: SharedMemory) -> Iterator[tuple[int, str]]:
    for plan in (*memory.load_rings, *memory.outputs.values()):
        copies = max(1, plan.private)
        site = plan.name.rsplit(" @ ", 1)[1]
        ends = (*plan.offsets[1:], plan.stage_stride)
        for arg, label, start, end in zip(plan.args, plan.labels, plan.offsets, ends, strict=True):
            yield copies * plan.slots * (end - start), (
                f"{label} for '{memory.arrays[arg].name}': {f'{copies} warpgroups x ' * (copies > 1)}{plan.slots} "
                f"{'output ' * plan.written}slot{'s' * (plan.slots > 1)} x {end - start} B, pipeline at {site}")


def _scratch(memory: SharedMemory) -> Iterator[tuple[int, str]]:
    for part in memory.scratch.values():
        owners, nbytes = part.memory.owners, part.memory.nbytes
        if nbytes:
            yield part.memory.total, part.name + f": {owners} warpgroups x {nbytes} B" * (owners > 1)
