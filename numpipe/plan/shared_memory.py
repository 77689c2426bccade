"""The shared memory of a CTA: the bytes of each ring and allocation, and the error if they do not
fit.

::

    0 ............ 1024        mbarriers of each ring: ready[slots], consumed[slots] of each of
                               their groups, 8 bytes each; at the end, with schedule="pingpong",
                               the rings' counters in transfer (`pingpong`); before them the sizes
                               of a grid of more than three dimensions (`folded_grids`)
    1024 ......... rings       slots x (blocks of all operands, each at a multiple of 1024)
    ............. scratch      what the kernel allocates itself, each at a multiple of 1024; its
                               mbarriers are at the header's end
    ............. staging      compute warpgroups x store_slots x 8192, the store ring
    ............. exchange     compute warpgroups x what reductions, layout casts and stores by rows
                               need at a time

Nothing is freed before the kernel ends: invalidating an mbarrier and initializing it again costs a
fence and a barrier of the CTA each time, to save bytes that few kernels need. So the entry
initializes all mbarriers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from ..arch.dimensions import round_up
from .allocations import Scratch
from .budget import HEADER, PANEL_BYTES, Region
from .kernel_shape import KernelShape
from .plans import COUNTERS, ArrayArg, NumberPlan, OutPlan, RingPlan
from .wait_records import WORDS_BYTES


@dataclass
class SharedMemory(KernelShape):
    """The bytes allocated so far. A simulation adds rings in the order in which they run; a compile
    knows all of them at its end."""

    rings: dict[str, RingPlan] = field(default_factory=dict)
    simulated: bool = False
    outputs: dict[str, OutPlan] = field(default_factory=dict)
    store_slots: int = 0
    """Staging panels of each compute warpgroup; 0 before the first store."""
    staging_base: int = 0
    scratch: dict[str, Scratch] = field(default_factory=dict)
    """The kernel's own allocations."""
    exchange_bytes: int = 0
    """Bytes through which the warps of a compute warpgroup exchange values, in reductions, layout
    casts and stores of register tiles."""
    row_stores: bool = False
    """Whether tiles are stored through these bytes."""
    may_store_rows: bool = True
    """Whether they may be; False if a compile has shown that other data needs the space."""
    casts: dict[tuple[str, str], int] = field(default_factory=dict)
    """(line, conversion) of layout casts that move data -> bytes."""

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
        """The bytes through which warps exchange values. They come after all others, so their place
        is known only at the end."""
        if self.simulated or not self.store_slots:
            base = self._rings_end + self.staging.total
        else:
            # rings that were added later come after it
            base = max(self._rings_end, self.staging.end)
        return Region(base, self.exchange_bytes, self.compute_wgs)

    @property
    def _free(self) -> int:
        """The offset at which the next ring or allocation begins."""
        return self._rings_end if self.simulated else self.exchange.base

    def plan_exchange(self, nbytes: int, *cast: tuple[str, str]) -> None:
        """Reserve `nbytes` for an exchange between the warps of a warpgroup; `cast` is (line,
        conversion) of a layout cast."""
        self.casts.update(dict.fromkeys(cast, nbytes))
        self.exchange_bytes = max(self.exchange_bytes, nbytes)
        self._budget()

    def plan_row_stores(self) -> bool:
        """Return whether the warpgroups have a panel each for storing tiles to arrays that TMA
        cannot write. It is planned if it fits, next to a panel of the store ring if other outputs
        need one."""
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
        rings = (ring.memory.end for ring in self.all_rings)
        scratch = (part.memory.end for part in self.scratch.values())
        return max([HEADER, *rings, *scratch])

    @property
    def shares(self) -> tuple[tuple[str, int], ...]:
        """(purpose, bytes) of all shared memory of a CTA, without the gaps."""
        return tuple(self._rows(self.staging.total))

    def _budget(self) -> None:
        staging = self.staging.total
        if self.simulated and not self.params.store_slots:
            # Chosen at the first store that ran, possibly before some of the rings; a compile knows
            # all rings by then.
            staging = min(staging, self.compute_wgs * PANEL_BYTES)
        simulated = self._rings_end + staging + self.exchange.total
        if (simulated if self.simulated else self.smem_bytes) > self.target.smem_bytes:
            found = list(self._rows(staging))
            total = sum(size for _, size in found)
            scratch = (
                ", or smaller scratch: what is not used at one time may share memory, in a RefUnion"
                * bool(self.scratch)
            )
            raise self.refused(
                "\n".join(
                    [
                        f"shared memory: {total} B, but "
                        f"a CTA has {self.target.smem_bytes} B: use fewer slots "
                        "(max_concurrent_steps, buffer_count), smaller blocks or fewer "
                        f"store_slots{scratch}{self._two_types()}",
                        *(f"  {size:>{len(str(total))}} B  {what}" for what, size in found),
                    ]
                )
            )

    def _two_types(self) -> str:
        """Return a hint about operands of a ring that wgmma cannot multiply with each other, "" if
        there are none."""

        def family(array: ArrayArg) -> str | None:
            return getattr(self.target.product.operand(array.dtype), "family", None)

        for plan in self.load_rings:
            # integers among floats are packed numbers, which are unpacked in registers
            arrays = [
                array
                for number in plan.args
                if family(array := self.arrays[number]) and array.dtype.kind not in "iu"
            ]
            other = next((array for array in arrays if family(array) != family(arrays[0])), None)
            if other is not None:
                narrow, wide = sorted((arrays[0], other), key=lambda array: array.dtype.itemsize)
                return (
                    f"; '{wide.name}' is {wide.dtype} and '{narrow.name}' {narrow.dtype}, and "
                    f"wgmma multiplies two of one type: pass {wide.name}.astype('{narrow.dtype}') "
                    "if they are multiplied"
                )
        return ""

    def _rows(self, staging: int) -> Iterator[tuple[str, int]]:
        """Yield (purpose, bytes) of all shared memory of a CTA, given the `staging` bytes of the
        store ring."""
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
        """Bytes of the header available to barriers; they are followed by the words of
        `wait_records`, of the grid and of turns."""
        return self.grid_words - WORDS_BYTES * bool(self.params.debug)

    @property
    def grid_words(self) -> int:
        """The offset of the sizes of the folded dimensions of the grid (`folded_grids`), one word
        each."""
        return (
            HEADER
            - 4 * COUNTERS * self.turns * (self.turns > 1)
            - round_up(4 * len(self.folded), 8)
        )

    @property
    def _rings_barriers(self) -> int:
        """The offset at which the barriers of rings end."""
        return max((plan.header.end for plan in self.rings.values()), default=0)

    @property
    def _scratch_barriers(self) -> int:
        """The offset at which the barriers of allocations begin. They fill the header from its end
        downwards."""
        return self.barrier_room - sum(
            plan.memory.total for part in self.scratch.values() for plan in part.barriers
        )

    def turn_word(self, warpgroup: int, index: int) -> int:
        """Return the offset of the word in shared memory that passes a ring's counter to a compute
        warpgroup with its turn."""
        return HEADER - 4 * COUNTERS * (self.turns - warpgroup) + 4 * index

    def handed_over(self) -> list[RingPlan]:
        """The rings whose counters are passed to the next warpgroup with its turn: shared rings,
        except the work indices, which all warpgroups read."""
        return [plan for plan in self.rings.values() if not plan.private and not plan.numbers]

    @property
    def all_rings(self) -> list[RingPlan]:
        """The rings of pipelines and of work indices, then those of outputs."""
        return [*self.rings.values(), *self.outputs.values()]

    @property
    def load_rings(self) -> list[RingPlan]:
        """The rings of pipelines."""
        return [plan for plan in self.rings.values() if not plan.numbers]

    @property
    def work_ring(self) -> NumberPlan | None:
        """The ring of work indices (`tile_scheduler`), if a loop over tiles uses one."""
        return next((plan for plan in self.rings.values() if isinstance(plan, NumberPlan)), None)
