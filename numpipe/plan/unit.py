"""What one compilation, or one simulation, of a kernel knows of itself.

Rings, staging and tensor maps are discovered while the kernel's source is compiled (or first run): each pipeline asks its
Unit for a plan, and the Unit hands out shared memory, barriers and counters. A new Unit per compile: it is part of the
types of everything the kernel touches, so no code generated for an earlier compile can be picked up again.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ..diagnostics.errors import SpecError
from ..traces.events import Ring
from ..traces.protocol import BARRIERS
from .allocations import Barrier, BarrierPlan, Scratch, allocations, barriers, nbytes, place, said
from .block import Block, cut
from .budget import PANEL_BYTES
from .copies import MapRequest
from .layout import ATOM
from .plans import COUNTERS, PHASES, BarrierPlace, NumberPlan, OutPlan, RingPlan
from .shared_memory import SharedMemory

_serials = itertools.count()


@dataclass
class Unit(SharedMemory):
    """One compile or one simulation of one kernel."""

    serial: int = field(default_factory=lambda: next(_serials))
    maps: dict[MapRequest, int] = field(default_factory=dict)
    met: dict[str, set[str]] = field(default_factory=lambda: {"memory": set(), "compute": set()})
    """names of the rings that each role's compiled code has"""
    running: dict[int, str] = field(default_factory=dict)
    """rings of the pipelines whose bodies are being compiled, by counter (`chains.running`)"""
    copies_out: bool = False
    """whether the kernel issues TMA stores itself"""
    sharing: list[RingPlan] = field(default_factory=list)
    """rings of pipelines that use the allocations of another one, whose ring is in `rings` or `outputs`"""
    regions: list[str] = field(default_factory=list)
    """names of regions (`profiling`), by number"""
    obstacles: dict[int, str] = field(default_factory=dict)
    """why TMA cannot address an array, by argument: the error its use in a pipeline gives"""
    tokens: tuple[str, ...] = ()
    """the kernel's order tokens, by number (`order_tokens`)"""
    handed: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """simulated: the counters that were handed to each compute warpgroup, which may be those of rings met so far"""

    @property
    def stores(self) -> bool:
        """Whether TMA stores are issued, which the kernel's end must drain."""
        return self.store_slots > 0 or self.copies_out or bool(self.outputs)

    def region(self, name: str) -> int:
        """Number of a region (`profiling`)."""
        if name not in self.regions:
            self.regions.append(name)
        return self.regions.index(name)

    def plan_ring(self, site: str, wanted: tuple[tuple[Any, ...], ...], slots: int, delay: int,
                  manual: tuple[str, ...] = (), labels: tuple[str, ...] = (), dims: int | None = None,
                  single: bool = False, shared: RingPlan | None = None) -> RingPlan:
        """A ring of the pipeline written at `site` (a ``file:line``): `wanted` are (argument, *BlockSpec.block).

        `manual`: the kinds of barriers that the body uses itself, for each operand. Loops that one pipeline has over
        different arrays get a ring each: their copies read different tensor maps. `labels`, `dims`: see `RingPlan`.
        `single`: every compute warpgroup has a ring of its own.
        `shared`: the ring whose slots, barriers and counter it uses, of a pipeline before it; SpecError if they do not fit.
        """
        labels = labels or tuple(f"in_specs[{number}]" for number in range(len(wanted)))
        key = f"{site} {wanted} {slots} {delay} {manual} {labels} {dims} {single}"
        if key in self.rings and shared is None:
            return self.rings[key]
        where = f"kernel {self.kernel}, pipeline at {site}"
        fields = self._fields(where, site, wanted, labels, dims)
        if single and (together := [label for label, block in zip(labels, fields["blocks"], strict=True) if block.along]):
            raise SpecError(f"{where}: {together[0]}: collective_axes in a single-stream pipeline, whose slots belong to one "
                            "warpgroup: CTAs share what a memory role loads; leave it out, or use numpipe.pipeline with one")
        if shared is not None:
            return self._shared(where, shared, slots, manual, **fields, delay=delay)
        first = sum(plan.barrier_bytes for plan in self.rings.values())
        plan = RingPlan(
            **fields, index=len(self.rings), slots=slots, delay=delay,
            base=self._rings_end if self.simulated else self.exchange_base, barriers=first,
            manual=manual, cluster=self.cluster, private=self.compute_wgs if single else 0)
        room = self.barrier_room - self.scratch_barrier_bytes
        if first + plan.barrier_bytes > room or len(self.rings) + len(self.outputs) >= COUNTERS:
            raise SpecError(f"{where}: more rings or slots than the {self.barrier_room} bytes of barriers hold")
        self.rings[key] = plan
        self._budget()
        return plan

    def check_output(self, arg: int, what: str, mend: str) -> None:
        """SpecError unless the call knew the array for an output: stores to an input would be lost, or change what must stay."""
        array = self.arrays[arg]
        if array.output:
            return
        reason = (f"the kernel's source does not show that it is an output: {mend}" if self.params.dimension_semantics is None else
                  "its BlockSpec is one of in_specs: make it one of out_specs, and the array a parameter behind the inputs")
        raise SpecError(f"{what}: the call took '{array.name}' for an input, because {reason}")

    def plan_output(self, site: str, wanted: tuple[tuple[Any, ...], ...], slots: int, labels: tuple[str, ...],
                    dims: int | None, single: bool = False, shared: RingPlan | None = None) -> RingPlan:
        """An output ring of the pipeline written at `site`; arguments as those of `plan_ring`."""
        key = f"{site} {wanted} {slots} {labels} {dims} {single}"
        if key in self.outputs and shared is None:
            return self.outputs[key]
        where = f"kernel {self.kernel}, pipeline at {site}"
        for label, (arg, *_) in zip(labels, wanted, strict=True):
            array = self.arrays[arg]
            what = f"{where}: {label} for '{array.name}'"
            self.check_output(arg, what, "write out_specs=(…,) where the pipeline is made, and pass the array by name")
            if array.order != "row":
                raise SpecError(f"{what}: the array is column-major, and outputs are stored by rows: pass a row-major array, or "
                                f"store from registers in the body, '{array.name}[…] = tile'")
            if array.tma and not array.tma_store:
                raise SpecError(f"{what}: its rows are no multiple of 16 B, and TMA writes whole 16-byte chunks, past their ends: "
                                f"pad the rows, or store from registers in the body, '{array.name}[…] = tile'")
        fields = self._fields(where, site, wanted, labels, dims)
        if shared is not None:
            return self._shared(where, shared, slots, (), **fields)
        if len(self.rings) + len(self.outputs) >= COUNTERS:
            raise SpecError(f"{where}: a kernel has at most {COUNTERS} rings")
        plan = self.outputs[key] = OutPlan(
            **fields, index=COUNTERS - 1 - len(self.outputs), slots=slots, delay=0,
            base=self._rings_end if self.simulated else self.exchange_base, barriers=0,
            private=self.compute_wgs if single else 0)
        self._budget()
        return plan

    def _shared(self, where: str, ring: RingPlan, slots: int, manual: tuple[str, ...], **own: Any) -> RingPlan:
        """The plan of a pipeline that uses another one's ring; SpecError if it does not fit."""
        plan = dataclasses.replace(ring, **own)
        ring.check_shared(where, plan, slots, manual)
        self.sharing.append(plan)
        return plan

    def _fields(self, where: str, site: str, wanted: tuple[tuple[Any, ...], ...], labels: tuple[str, ...],
                dims: int | None) -> dict[str, Any]:
        """What a plan says of a ring's operands, and of how their blocks lie in a slot."""
        blocks: list[Block] = []
        offsets, stride = [], 0
        for label, (arg, shape, fill, known, transforms, policy, shared) in zip(labels, wanted, strict=True):
            array = self.arrays[arg]
            what = f"{where}: {label} for '{array.name}'"
            block = cut(shape, array.dtype, array.ndim, array.order, fill, what, transforms, policy)
            block = self.shared_block(block, shared, what)
            if block.elements and len(known) == block.rank and known[block.contiguous] is not None:
                block.check_start(known[block.contiguous], f"{what}: index_map")
            if not array.tma:
                raise SpecError(f"{what}: " + self.obstacles.get(arg, "TMA cannot address this array: base and strides must be "
                                                                      "multiples of 16 bytes"))
            blocks.append(block)
            offsets.append(stride)
            stride += -(-block.layout.nbytes // ATOM) * ATOM
        names = ", ".join(self.arrays[arg].name for arg, *_ in wanted)
        return {"name": f"{names} @ {site}", "args": tuple(arg for arg, *_ in wanted), "blocks": tuple(blocks), "labels": labels,
                "dims": dims, "offsets": tuple(offsets), "stage_bytes": sum(block.layout.nbytes for block in blocks),
                "stage_stride": stride}

    def plan_scratch(self, site: str, kind: Any, shared: bool, what: str = "") -> Scratch:
        """What the kernel allocates at `site`: one for all compute warpgroups (`shared`), or one for each; `what` it is for."""
        key = f"{site} {kind} {shared}"
        if key in self.scratch:
            return self.scratch[key]
        copies = 1 if shared else self.compute_wgs
        size, base = nbytes(kind), self._rings_end if self.simulated else self.exchange_base
        where = f"kernel {self.kernel}, scratch at {site}"
        free = self.barrier_room - self.scratch_barrier_bytes
        if free - 8 * copies * barriers(kind) < sum(plan.barrier_bytes for plan in self.rings.values()):
            raise SpecError(f"{where}: {copies * barriers(kind)} more barriers than the {self.barrier_room} bytes for all barriers "
                            "of a CTA hold, 8 bytes each: use fewer slots or barriers")
        first = groups = sum(len(part.barriers) for part in self.scratch.values())
        several = allocations(kind) > 1

        def barrier(of: Barrier) -> BarrierPlan:
            nonlocal free, groups
            free, groups = free - 8 * copies * of.count, groups + 1
            if groups > PHASES:
                raise SpecError(f"{where}: more than {PHASES} allocations of barriers in a kernel: make one with num_barriers")
            return BarrierPlan(of, free, 0 if shared else 8 * of.count, groups - 1,
                               f"{site} ({groups - first - 1}){what and f', {what}'}" if several else site, self.cluster,
                               self.arrive_groups(of, where))

        tree = place(kind, base, 0 if shared else size, barrier)
        plan = self.scratch[key] = Scratch(f"{what or said(kind)} @ {site}", kind, tree, base, size, copies, what)
        self._budget()
        return plan

    def plan_staging(self, panels: int) -> int:
        """Slots of the store ring, for tiles of so many panels: one ring per compute warpgroup, shared by all stores.

        By default as many as a tile has panels, or as fit beside the load rings. (The simulator meets rings in the order
        they run, so it keeps staging apart, behind the shared memory of a CTA.)
        """
        if not self.store_slots:
            room = (self.target.smem_bytes - self._rings_end) // (self.compute_wgs * PANEL_BYTES)
            self.store_slots = self.params.store_slots or max(1, min(panels, room))
            self.staging_base = self.target.smem_bytes if self.simulated else self._rings_end
            self._budget()
        return self.store_slots

    def plan_tickets(self, site: str) -> NumberPlan:
        """The ring of tickets, one for all loops; `site`: where the first of them is written. SpecError where no room is left.

        A warpgroup reads the tickets of a turn when it has ended its own tile: as many as the others have at the same time, and
        those that the memory role is ahead, should have slots.
        """
        if self.tickets is not None:
            return self.tickets
        slots, first = self.turns + 3, sum(plan.barrier_bytes for plan in self.rings.values())
        plan = NumberPlan(name=f"tile numbers @ {site}", index=len(self.rings), slots=slots, delay=0, args=(), blocks=(),
                          offsets=(), stage_bytes=0, stage_stride=4, base=first + 8 * len(BARRIERS) * slots, barriers=first)
        if first + plan.barrier_bytes > self.barrier_room - self.scratch_barrier_bytes or plan.index >= COUNTERS:
            raise SpecError(f"kernel {self.kernel}, tiles(dynamic=True) at {site}: more rings or slots than the "
                            f"{self.barrier_room} bytes of barriers hold")
        self.rings[plan.name] = plan
        return plan

    def map_slot(self, request: MapRequest) -> int:
        """Number of the tensor map in the kernel's packed parameter."""
        return self.maps.setdefault(request, len(self.maps))

    @property
    def counter_at(self) -> int:
        """Where the packed parameter has the address of the launch's counter (`tile_scheduler`): behind the maps, at least one."""
        return 128 * max(1, len(self.maps))

    @property
    def table_bytes(self) -> int:
        """Of the packed parameter."""
        return self.counter_at + 128 * (self.tickets is not None)

    def readers(self, plan: RingPlan) -> int:
        """Compute warpgroups of a CTA that use each slot of a ring."""
        return 1 if plan.private else self.compute_wgs if plan.numbers else self.tile_wgs

    def barriers(self, plan: RingPlan) -> Iterator[tuple[int, int, str]]:
        """(address, arrivals of a phase, name) of a ring's mbarriers."""
        for copy, row in itertools.product(range(max(1, plan.private)), plan.kinds):
            who = f" of warpgroup {copy}" * (plan.private > 1)
            for part in plan.parts_of(row.name):
                arrivals = row.arrivals * (1 if row.completes == "memory" else self.readers(plan) * len(plan.peers[part]))
                first, whose = plan.barrier_at(row.name, part) + copy * plan.barrier_bytes_of_one, self.whose(plan, part, row.name)
                for slot in range(plan.slots):
                    yield first + 8 * slot, arrivals, f"{row.name}[{slot}]{whose}{who}"

    def scratch_barriers(self) -> Iterator[tuple[int, int, str]]:
        """(address, arrivals of a phase, name) of the mbarriers that the kernel allocates itself."""
        for part in self.scratch.values():
            for plan in part.barriers:
                for copy in range(part.copies):
                    for number in range(plan.kind.count):
                        yield plan.base + copy * plan.own + 8 * number, plan.arrivals, plan.name_of(copy, number)

    def all_barriers(self) -> Iterator[tuple[int, int, str]]:
        """(address, arrivals of a phase, name) of all mbarriers of the kernel."""
        for plan in self.rings.values():
            yield from self.barriers(plan)
        yield from self.scratch_barriers()

    def barrier_at(self, address: int) -> BarrierPlace | None:
        """Which of the kernel's mbarriers is at an address of shared memory; None: no one that numpipe has placed."""
        for plan in self.rings.values():
            if plan.barriers <= address < plan.barriers + plan.barrier_bytes:
                number = (address - plan.barriers) % plan.barrier_bytes_of_one // 8
                kinds = [row.name for row in plan.kinds for _ in plan.parts_of(row.name)]
                return BarrierPlace(kinds[number // plan.slots], plan, number % plan.slots)
        end = self.barrier_room
        kind = "sums" if any(part.what and part.has_barrier(address) for part in self.scratch.values()) else "own"
        return BarrierPlace(kind) if end - self.scratch_barrier_bytes <= address < end else None

    def slot_at(self, address: int) -> tuple[RingPlan, int] | None:
        """The ring, and the slot of it, that an address of shared memory lies in."""
        for plan in (*self.rings.values(), *self.outputs.values()):
            if plan.base <= address < plan.end:
                return plan, (address - plan.base) // plan.stage_stride % plan.slots
        return None

    def whose(self, plan: RingPlan, part: int, kind: str) -> str:
        """What a barrier's name says behind its slot: the operand, if each has a barrier of the kind, and the ring."""
        operand = f" for {plan.labels[part]} '{self.arrays[plan.args[part]].name}'" if kind in plan.manual else ""
        return f"{operand} of {plan.name}"

    def traced(self) -> Iterator[Ring]:
        """Its rings, as far as a trace's reader has to know them."""
        for plan in (*self.load_rings, *self.outputs.values(), *self.sharing):
            yield Ring(plan.name, plan.index, plan.slots, bool(plan.private), plan.written, self.turns > 1 and not plan.private)
