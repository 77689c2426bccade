"""The shared memory of a CTA: which bytes each ring and allocation has, and the error for too many.

::

    0 ............ 1024        mbarriers of each ring: ready[slots], consumed[slots] of each of
                               their groups, 8 bytes each; at the end, with schedule="pingpong",
                               the rings' counters in transfer (`turns`); before them the sizes of a
                               grid of more than three dimensions (`folded`)
    1024 ......... rings       slots x (blocks of all operands, each at a multiple of 1024)
    ............. scratch      what the kernel allocates itself, each at a multiple of 1024; its
                               mbarriers are at the header's end
    ............. staging      compute warpgroups x store_slots x 8192, the store ring
    ............. exchange     compute warpgroups x what reductions, layout casts and stores by rows
                               need at a time

Nothing is freed before the kernel ends: to invalidate an mbarrier and set it up again costs a fence
and a barrier of the CTA each time, for bytes that few kernels lack. So the entry initialises all
mbarriers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from ..diagnostics.errors import SpecError
from .allocations import Scratch
from .budget import HEADER, PANEL_BYTES, Region
from .kernel_shape import KernelShape
from .plans import COUNTERS, ArrayArg, NumberPlan, OutPlan, RingPlan
from .wait_records import WORDS_BYTES


@dataclass
class SharedMemory(KernelShape):
    """The bytes given away so far. A simulation learns of rings in the order they run, a compile
    knows all of them at its end."""

    rings: dict[str, RingPlan] = field(default_factory=dict)
    simulated: bool = False
    outputs: dict[str, OutPlan] = field(default_factory=dict)
    store_slots: int = 0
    """staging panels of each compute warpgroup; 0 before the first store"""
    staging_base: int = 0
    scratch: dict[str, Scratch] = field(default_factory=dict)
    """what the kernel allocates itself"""
    exchange_bytes: int = 0
    """bytes through which the warps of a compute warpgroup exchange values, in reductions, layout
    casts and stores of register tiles"""
    row_stores: bool = False
    """whether tiles are stored through these bytes"""
    may_store_rows: bool = True
    """whether they may be: not where a compile has shown that other bytes need the room"""
    casts: dict[tuple[str, str], int] = field(default_factory=dict)
    """(line, from what to what) of layout casts that move data -> bytes"""

    @property
    def smem_bytes(self) -> int:
        return self.exchange.end

    @property
    def staging(self) -> Region:
        """The bytes of the store ring: the panels in which each compute warpgroup stages its TMA
        stores."""
        return Region(self.staging_base, self.store_slots * PANEL_BYTES, self.compute_wgs)

    @property
    def exchange(self) -> Region:
        """The bytes through which warps exchange values: they lie behind all others, and so have
        their place at the end only."""
        if self.simulated or not self.store_slots:
            base = self._rings_end + self.staging.total
        else:
            base = max(self._rings_end, self.staging.end)  # rings that came later lie behind it
        return Region(base, self.exchange_bytes, self.compute_wgs)

    @property
    def _free(self) -> int:
        """The offset at which the next ring or allocation begins."""
        return self._rings_end if self.simulated else self.exchange.base

    def plan_exchange(self, nbytes: int, *cast: tuple[str, str]) -> None:
        """Let the warps of a warpgroup exchange `nbytes` at a time; `cast` is (line, from what to
        what) of a layout cast."""
        self.casts.update(dict.fromkeys(cast, nbytes))
        self.exchange_bytes = max(self.exchange_bytes, nbytes)
        self._budget()

    def plan_row_stores(self) -> bool:
        """Return whether the warpgroups have a panel each through which they store tiles to arrays
        that TMA cannot write: it is planned where it fits, beside a panel of the store ring if
        other outputs need one."""
        if self.simulated or self.row_stores:
            return True
        ring = not self.store_slots and any(
            array.output and array.tma and array.tma_store and not array.workspace
            for array in self.arrays
        )
        nbytes = max(self.exchange_bytes, PANEL_BYTES)
        staging = PANEL_BYTES * max(1, self.params.store_slots) if ring else 0
        needed = self.exchange.base + self.compute_wgs * (nbytes + staging)
        self.row_stores = self.may_store_rows and needed <= self.target.smem_bytes
        if self.row_stores:
            self.plan_exchange(nbytes)
        return self.row_stores

    @property
    def _rings_end(self) -> int:
        rings, scratch = (*self.rings.values(), *self.outputs.values()), self.scratch.values()
        return max(
            [HEADER, *(plan.memory.end for plan in rings), *(part.memory.end for part in scratch)]
        )

    @property
    def shares(self) -> tuple[tuple[str, int], ...]:
        """(what for, bytes) of all that a CTA has in shared memory, without the gaps."""
        return tuple(self._rows(self.staging.total))

    def _budget(self) -> None:
        staging = self.staging.total
        if self.simulated and not self.params.store_slots:
            # chosen at the first store that ran, which may be before some of the rings: a compile
            # knows them all by then
            staging = min(staging, self.compute_wgs * PANEL_BYTES)
        simulated = self._rings_end + staging + self.exchange.total
        if (simulated if self.simulated else self.smem_bytes) > self.target.smem_bytes:
            found = list(self._rows(staging))
            total = sum(size for _, size in found)
            scratch = (
                ", or smaller scratch: what is not used at one time may share memory, in a RefUnion"
                * bool(self.scratch)
            )
            raise SpecError(
                "\n".join(
                    [
                        f"kernel {self.kernel}: {self._two_types()}shared memory: {total} B, but "
                        f"a CTA has {self.target.smem_bytes} B: use fewer slots "
                        "(max_concurrent_steps, buffer_count), smaller blocks or fewer "
                        f"store_slots{scratch}",
                        *(f"  {size:>{len(str(total))}} B  {what}" for what, size in found),
                    ]
                )
            )

    def _two_types(self) -> str:
        """Return a hint about operands of a ring that wgmma does not multiply with each other, ""
        where there are none."""

        def family(array: ArrayArg) -> str | None:
            return getattr(self.target.product.operand(array.dtype), "family", None)

        for plan in self.load_rings:
            arrays = [self.arrays[number] for number in plan.args if family(self.arrays[number])]
            other = next((array for array in arrays if family(array) != family(arrays[0])), None)
            if other is not None:
                narrow, wide = sorted((arrays[0], other), key=lambda array: array.dtype.itemsize)
                return (
                    f"'{wide.name}' is {wide.dtype} and '{narrow.name}' {narrow.dtype}, and wgmma "
                    f"multiplies two of one type: pass {wide.name}.astype('{narrow.dtype}') if "
                    "they are multiplied; "
                )
        return ""

    def _rows(self, staging: int) -> Iterator[tuple[str, int]]:
        """Yield (what for, bytes) of all that a CTA has in shared memory; the store ring has
        `staging` bytes."""
        yield "barriers", HEADER
        for plan in (*self.load_rings, *self.outputs.values()):
            copies = max(1, plan.private)
            site = plan.name.rsplit(" @ ", 1)[1]
            ends = (*plan.offsets[1:], plan.stage_stride)
            for arg, label, start, end in zip(
                plan.args, plan.labels, plan.offsets, ends, strict=True
            ):
                yield (
                    f"{label} for '{self.arrays[arg].name}': "
                    f"{f'{copies} warpgroups x ' * (copies > 1)}{plan.slots} "
                    f"{'output ' * plan.written}slot{'s' * (plan.slots > 1)} x {end - start} B, "
                    f"pipeline at {site}",
                    copies * plan.slots * (end - start),
                )
        for part in self.scratch.values():
            owners, nbytes = part.memory.owners, part.memory.nbytes
            if nbytes:
                yield (
                    part.name + f": {owners} warpgroups x {nbytes} B" * (owners > 1),
                    part.memory.total,
                )
        wgs = self.compute_wgs
        if staging:
            yield (
                f"'array[…] = tile': {wgs} warpgroup{'s' * (wgs > 1)} x "
                f"{staging // wgs // PANEL_BYTES} store slots x {PANEL_BYTES} B",
                staging,
            )
        if self.exchange_bytes:
            uses = (
                "reductions",
                *["layout casts"] * bool(self.casts),
                *["stores by rows"] * self.row_stores,
            )
            yield (
                f"{' and '.join(uses)} of register tiles: {self.exchange_bytes} B"
                f"{f' for each of {wgs} warpgroups' * (wgs > 1)}",
                self.exchange.total,
            )

    # ---- counters that travel with the turn
    @property
    def barrier_room(self) -> int:
        """Bytes of the header that barriers may take: the words of `watch`, of the grid and of
        turns lie behind them."""
        return self.grid_words - WORDS_BYTES * bool(self.params.debug)

    @property
    def grid_words(self) -> int:
        """The offset of the sizes of the dimensions of the grid that are `folded`, a word each."""
        return (
            HEADER
            - 4 * COUNTERS * self.turns * (self.turns > 1)
            - -(-4 * len(self.folded) // 8) * 8
        )

    @property
    def _rings_barriers(self) -> int:
        """The offset at which the barriers of rings end."""
        return max((plan.header.end for plan in self.rings.values()), default=0)

    @property
    def _scratch_barriers(self) -> int:
        """The offset at which the barriers of allocations begin: they fill the header from its end
        down."""
        return self.barrier_room - sum(
            plan.memory.total for part in self.scratch.values() for plan in part.barriers
        )

    def turn_word(self, warpgroup: int, index: int) -> int:
        """Return the offset of the word in shared memory through which a compute warpgroup gets a
        ring's counter with its turn."""
        return HEADER - 4 * COUNTERS * (self.turns - warpgroup) + 4 * index

    def handed_over(self) -> list[RingPlan]:
        """The rings whose counters the next warpgroup gets with its turn: shared ones, but not the
        work indices, which all read."""
        return [plan for plan in self.rings.values() if not plan.private and not plan.numbers]

    @property
    def load_rings(self) -> list[RingPlan]:
        """The rings of pipelines."""
        return [plan for plan in self.rings.values() if not plan.numbers]

    @property
    def work_ring(self) -> NumberPlan | None:
        """The ring of work indices (`tile_scheduler`), where a loop over tiles takes them."""
        return next((plan for plan in self.rings.values() if isinstance(plan, NumberPlan)), None)
