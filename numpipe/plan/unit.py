"""What one compilation, or one simulation, of a kernel knows of itself.

Rings, staging and tensor maps are discovered while the kernel's source is compiled (or first run): each pipeline asks its
Unit for a plan, and the Unit hands out shared memory, barriers and counters. A new Unit per compile: it is part of the
types of everything the kernel touches, so no code generated for an earlier compile can be picked up again.

Shared memory of a CTA::

    0 ............ 1024        mbarriers of each ring: ready[slots], consumed[slots] of each of their groups, 8 bytes each
                               at its end, with schedule="pingpong", the rings' counters on their way (`turns`)
    1024 ......... rings       slots x (blocks of all operands, each at a multiple of 1024)
    ............. scratch      what the kernel allocates itself, each at a multiple of 1024; its mbarriers at the header's end
    ............. staging      compute warpgroups x store_slots x 8192, the store ring
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ..arch.hopper import HOPPER, Target
from ..diagnostics.errors import SpecError
from .allocations import Barrier, BarrierPlan, Scratch, allocations, barriers, nbytes, place, said
from .axes import Axes
from .block import Block, cut
from .budget import HEADER, PANEL_BYTES, rows, too_much
from .cluster import ALONE, Dims
from .layout import ATOM
from .plans import COUNTERS, PHASES, ArrayArg, BarrierPlace, MapRequest, OutPlan, RingPlan
from .specs import CompilerParams

_serials = itertools.count()


@dataclass
class Unit(Axes):
    """One compile or one simulation of one kernel."""

    kernel: str
    arrays: tuple[ArrayArg, ...]
    axes: tuple[str, ...]
    wg_axis: str
    compute_wgs: int
    memory_registers: int
    params: CompilerParams = field(default_factory=CompilerParams)
    serial: int = field(default_factory=lambda: next(_serials))
    target: Target = HOPPER
    maps: dict[MapRequest, int] = field(default_factory=dict)
    rings: dict[str, RingPlan] = field(default_factory=dict)
    met: dict[str, set[str]] = field(default_factory=lambda: {"memory": set(), "compute": set()})
    """names of the rings that each role's compiled code has"""
    running: dict[int, str] = field(default_factory=dict)
    """rings of the pipelines whose bodies are being compiled, by counter (`chains.running`)"""
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
    copies_out: bool = False
    """whether the kernel issues TMA stores itself"""
    sharing: list[RingPlan] = field(default_factory=list)
    """rings of pipelines that use the allocations of another one, whose ring is in `rings` or `outputs`"""
    regions: list[str] = field(default_factory=list)
    """names of regions (`profiling`), by number"""
    obstacles: dict[int, str] = field(default_factory=dict)
    """why TMA cannot address an array, by argument: the error its use in a pipeline gives"""
    memory_thread: int = -1
    """the warpgroup of the CTA that is the memory role, if it is one of its; else the last one is"""
    warp_specialized: bool = True
    """whether one of the CTA's warpgroups is the memory role; if not, all compute and registers stay where they are"""
    schedule: str = "cooperative"
    """whether the compute warpgroups share a tile, or have whole tiles in turn: one of SCHEDULES"""
    cluster: Dims = ALONE
    """CTAs of a cluster along x, y, z, where the kernel names its axes; else (1, 1, 1): they share nothing then"""
    cluster_axes: tuple[str, ...] = ()
    tokens: tuple[str, ...] = ()
    """the kernel's order tokens, by number (`order_tokens`)"""
    handed: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """simulated: the counters that were handed to each compute warpgroup, which may be those of rings met so far"""

    def __post_init__(self) -> None:
        if self.wg_axis in self.axes:
            raise SpecError(f"kernel {self.kernel}: wg_axis {self.wg_axis!r} is also a grid axis {self.axes}")
        most = 8 - self.warp_specialized
        if not 1 <= self.compute_wgs <= most:
            memory = " and one warpgroup is the memory role" * self.warp_specialized
            raise SpecError(f"kernel {self.kernel}: num_compute_wgs must be 1…{most} (a CTA has at most 1024 threads{memory}), "
                            f"got {self.compute_wgs}")
        self.check_schedule()
        self.check_cluster()
        if not self.warp_specialized:
            return
        if self.memory_registers % 8 or not 24 <= self.memory_registers <= 256:
            raise SpecError(f"kernel {self.kernel}: memory_registers must be a multiple of 8 in 24…256, "
                            f"got {self.memory_registers}")
        if self.compute_registers < 24:
            raise SpecError(f"kernel {self.kernel}: register budget: {self.register_pool} - {self.memory_registers} (memory) "
                            f"leaves {self.register_pool - self.memory_registers} a lane for {self.compute_wgs} compute "
                            f"warpgroups, {self.compute_registers} each: fewer than 24; lower memory_registers or num_compute_wgs")

    # ---- threads and registers
    @property
    def warpgroups(self) -> int:
        return self.compute_wgs + self.warp_specialized

    @property
    def threads(self) -> int:
        return 128 * self.warpgroups

    @property
    def compute_registers(self) -> int:
        """Per lane after setmaxnreg: what the memory role leaves of the CTA's pool, shared out in steps of 8.

        Without a memory role those of the launch, of which an instruction can name 255.
        """
        if not self.warp_specialized:
            return min(self.target.lane_registers, self.register_pool // self.warpgroups)
        return min(256, (self.register_pool - self.memory_registers) // self.compute_wgs // 8 * 8)

    @property
    def register_pool(self) -> int:
        """Registers the CTA holds at launch, per lane summed over its warpgroups: setmaxnreg moves these about.

        The kernel starts with floor8(target.registers / threads) registers a lane, so 3 warpgroups hold 504 of the SM's 512.
        """
        return self.warpgroups * self.target.registers_of(self.warpgroups)

    @property
    def first_compute(self) -> int:
        """The first compute warpgroup, as the CTA numbers them."""
        return int(self.memory_warpgroup == 0)

    @property
    def memory_warpgroup(self) -> int:
        """The memory role, as the CTA numbers its warpgroups; without one a number that none has."""
        return self.memory_thread if self.warp_specialized and 0 <= self.memory_thread <= self.compute_wgs else self.compute_wgs

    def number(self, warpgroup: int) -> int:
        """Number of a compute warpgroup among these, of that in the CTA: the memory role is not counted."""
        return warpgroup - (warpgroup > self.memory_warpgroup)

    # ---- shared memory
    @property
    def smem_bytes(self) -> int:
        return self.exchange_base + self.compute_wgs * self.exchange_bytes

    @property
    def exchange_base(self) -> int:
        """Behind all else, known when all of the kernel is."""
        if self.simulated or not self.store_slots:
            return self._rings_end + self._staging_bytes
        return max(self._rings_end, self.staging_base + self._staging_bytes)  # rings that were met later lie behind it

    def plan_exchange(self, nbytes: int, *cast: tuple[str, str]) -> None:
        """Let the warps of a warpgroup exchange so many bytes at a time; `cast`: (line, from what to what) of a layout cast."""
        self.casts.update(dict.fromkeys(cast, nbytes))
        self.exchange_bytes = max(self.exchange_bytes, nbytes)
        self._budget()

    @property
    def _rings_end(self) -> int:
        ends = [plan.end for plan in (*self.rings.values(), *self.outputs.values())]
        return max([HEADER, *ends, *(part.end for part in self.scratch.values())])

    def region(self, name: str) -> int:
        """Number of a region (`profiling`)."""
        if name not in self.regions:
            self.regions.append(name)
        return self.regions.index(name)

    @property
    def stores(self) -> bool:
        """Whether TMA stores are issued, which the kernel's end must drain."""
        return self.store_slots > 0 or self.copies_out or bool(self.outputs)

    @property
    def _staging_bytes(self) -> int:
        return self.compute_wgs * self.store_slots * PANEL_BYTES

    @property
    def shares(self) -> tuple[tuple[str, int], ...]:
        """(what for, bytes) of the shared memory of a CTA, but for what is left over between."""
        return tuple((what, size) for size, what in rows(self, HEADER, self._staging_bytes))

    def _budget(self) -> None:
        staging = self._staging_bytes
        if self.simulated and not self.params.store_slots:
            # chosen at the first store that ran, which may be before some of the rings: a compile knows them all by then
            staging = min(staging, self.compute_wgs * PANEL_BYTES)
        simulated = self._rings_end + staging + self.compute_wgs * self.exchange_bytes
        if (simulated if self.simulated else self.smem_bytes) > self.target.smem_bytes:
            raise too_much(self, HEADER, staging)

    def plan_ring(self, site: str, wanted: tuple[tuple[Any, ...], ...], slots: int, delay: int,
                  manual: tuple[bool, bool] = (False, False), labels: tuple[str, ...] = (), dims: int | None = None,
                  single: bool = False, shared: RingPlan | None = None) -> RingPlan:
        """A ring of the pipeline written at `site` (a ``file:line``): `wanted` are (argument, *BlockSpec.block).

        `manual`: whether the body waits for, and whether it releases, each operand itself. Loops that one pipeline has over
        different arrays get a ring each: their copies read different tensor maps. `labels`, `dims`: see `RingPlan`.
        `single`: every compute warpgroup has a ring of its own.
        `shared`: the ring whose slots, barriers and counter it uses, of a pipeline before it; SpecError if they do not fit.
        """
        labels = labels or tuple(f"in_specs[{number}]" for number in range(len(wanted)))
        key = f"{site} {wanted} {slots} {delay} {manual} {labels} {dims} {single}"
        if key in self.rings and shared is None:
            return self.rings[key]
        where = f"kernel {self.kernel}, pipeline at {site}"
        blocks, offsets, stride = self._blocks(where, wanted, labels)
        if single and (together := [label for label, block in zip(labels, blocks, strict=True) if block.along]):
            raise SpecError(f"{where}: {together[0]}: collective_axes in a single-stream pipeline, whose slots belong to one "
                            "warpgroup: CTAs share what a memory role loads; leave it out, or use numpipe.pipeline with one")
        names = ", ".join(self.arrays[arg].name for arg, *_ in wanted)
        if shared is not None:
            own = dataclasses.replace(shared, name=f"{names} @ {site}", delay=delay, args=tuple(arg for arg, *_ in wanted),
                                      blocks=blocks, labels=labels, dims=dims)
            shared.check_shared(where, own, slots, manual)
            self.sharing.append(own)
            return own
        ready = sum(plan.barrier_bytes for plan in self.rings.values())
        plan = RingPlan(
            name=f"{names} @ {site}", index=len(self.rings), slots=slots, delay=delay, args=tuple(arg for arg, *_ in wanted),
            blocks=blocks, offsets=offsets, stage_bytes=sum(block.layout.nbytes for block in blocks),
            stage_stride=stride, base=self._rings_end if self.simulated else self.exchange_base, ready=ready,
            consumed=ready + 8 * slots * (len(blocks) if manual[0] else 1), manual_ready=manual[0], manual_consumed=manual[1],
            labels=labels, dims=dims, cluster=self.cluster, private=self.compute_wgs if single else 0)
        room = self.barrier_room - self.scratch_barrier_bytes
        if ready + plan.barrier_bytes > room or len(self.rings) + len(self.outputs) >= COUNTERS:
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
        blocks, offsets, stride = self._blocks(where, wanted, labels)
        names = ", ".join(self.arrays[arg].name for arg, *_ in wanted)
        if shared is not None:
            own = dataclasses.replace(shared, name=f"{names} @ {site}", args=tuple(arg for arg, *_ in wanted), blocks=blocks,
                                      labels=labels, dims=dims)
            shared.check_shared(where, own, slots, (False, False))
            self.sharing.append(own)
            return own
        if len(self.rings) + len(self.outputs) >= COUNTERS:
            raise SpecError(f"{where}: a kernel has at most {COUNTERS} rings")
        plan = self.outputs[key] = OutPlan(
            name=f"{names} @ {site}", index=COUNTERS - 1 - len(self.outputs), slots=slots, delay=0,
            args=tuple(arg for arg, *_ in wanted), blocks=blocks, offsets=offsets,
            stage_bytes=sum(block.layout.nbytes for block in blocks), stage_stride=stride,
            base=self._rings_end if self.simulated else self.exchange_base, ready=0, consumed=0, labels=labels, dims=dims,
            private=self.compute_wgs if single else 0)
        self._budget()
        return plan

    def _blocks(self, where: str, wanted: tuple[tuple[Any, ...], ...],
                labels: tuple[str, ...]) -> tuple[tuple[Block, ...], tuple[int, ...], int]:
        """The blocks of a slot, their offsets in it, and its bytes."""
        blocks, offsets, stride = [], [], 0
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
        return tuple(blocks), tuple(offsets), stride

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

    def map_slot(self, request: MapRequest) -> int:
        """Number of the tensor map in the kernel's packed parameter."""
        return self.maps.setdefault(request, len(self.maps))

    def barriers(self, plan: RingPlan) -> Iterator[tuple[int, int, str]]:
        """(address, arrivals of a phase, name) of a ring's mbarriers."""
        arrivals = 4 if plan.private else 4 * self.compute_wgs if plan.numbers else self.consumed_arrivals
        for copy in range(max(1, plan.private)):
            first = copy * plan.barrier_bytes_of_one
            who = f" of warpgroup {copy}" * (plan.private > 1)
            for part in plan.ready_parts:
                whose = self.whose(plan, part, plan.manual_ready) + who
                for slot in range(plan.slots):
                    yield first + plan.ready_at(part) + 8 * slot, 1, f"ready[{slot}]{whose}"
            for part in plan.consumed_parts:
                whose = self.whose(plan, part, plan.manual_consumed) + who
                for slot in range(plan.slots):
                    yield first + plan.consumed_at(part) + 8 * slot, arrivals * len(plan.peers[part]), f"consumed[{slot}]{whose}"

    def scratch_barriers(self) -> Iterator[tuple[int, int, str]]:
        """(address, arrivals of a phase, name) of the mbarriers that the kernel allocates itself."""
        for part in self.scratch.values():
            for plan in part.barriers:
                for copy in range(part.copies):
                    for number in range(plan.kind.count):
                        yield plan.base + copy * plan.own + 8 * number, plan.arrivals, plan.name_of(copy, number)

    def barrier_at(self, address: int) -> BarrierPlace | None:
        """Which of the kernel's mbarriers is at an address of shared memory; None: no one that numpipe has placed."""
        for plan in self.rings.values():
            if plan.ready <= address < plan.ready + plan.barrier_bytes:
                kinds = len(plan.ready_parts) * plan.slots
                number = (address - plan.ready) % plan.barrier_bytes_of_one // 8
                return BarrierPlace("ready" if number < kinds else "consumed", plan, number % plan.slots)
        end = self.barrier_room
        kind = "sums" if any(part.what and part.has_barrier(address) for part in self.scratch.values()) else "own"
        return BarrierPlace(kind) if end - self.scratch_barrier_bytes <= address < end else None

    def slot_at(self, address: int) -> tuple[RingPlan, int] | None:
        """The ring, and the slot of it, that an address of shared memory lies in."""
        for plan in (*self.rings.values(), *self.outputs.values()):
            if plan.base <= address < plan.end:
                return plan, (address - plan.base) // plan.stage_stride % plan.slots
        return None

    def whose(self, plan: RingPlan, part: int, own: bool) -> str:
        """What a barrier's name says behind its slot: the operand, if it is its `own`, and the ring."""
        return (f" for {plan.labels[part]} '{self.arrays[plan.args[part]].name}'" if own else "") + f" of {plan.name}"

    def load_map(self, plan: RingPlan, operand: int) -> MapRequest:
        block = plan.blocks[operand]
        return MapRequest(plan.args[operand], block.box, block.layout.swizzle, block.fill)

    def traced(self) -> Iterator[dict[str, Any]]:
        """Its rings, as far as a trace's reader has to know them (`numpipe.traces.Ring`)."""
        for plan in (*self.load_rings, *self.outputs.values(), *self.sharing):
            yield {"name": plan.name, "index": plan.index, "slots": plan.slots, "private": bool(plan.private),
                   "output": plan.written, "turns": self.turns > 1 and not plan.private}
