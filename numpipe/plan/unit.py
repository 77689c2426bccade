"""The `Unit` of one compile, or of one simulation, of a kernel: it hands out shared memory,
barriers, counters and tensor maps.

Each pipeline asks the Unit for a plan when its place in the source is compiled, or first run. Every
compile has its own Unit, which is part of the types of everything that the kernel touches, so code
of an earlier compile is never reused.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ..arch.dimensions import Ints, Names, round_up
from ..diagnostics.errors import SpecError
from .allocations import Barrier, BarrierPlan, Scratch, nbytes, place
from .block import cut
from .budget import PANEL_BYTES, Region
from .control_block import WORDS_BYTES, section_bytes
from .copy_plans import MapRequest
from .layout import ATOM
from .nested_tuples import leaves
from .plans import COUNTERS, PHASES, BarrierPlace, NumberPlan, RingPlan
from .protocol import BARRIERS, Ring
from .roles import Role
from .shared_memory import SharedMemory

Plan = TypeVar("Plan", bound=RingPlan)
STORE_RING, STORES = "the store ring", "filled and free"
"""Names, among the rings, of the panels of stored tiles and of the barriers of a storing role."""
_serials = itertools.count()


@dataclass
class Unit(SharedMemory):
    """One compile or one simulation of one kernel."""

    serial: int = field(default_factory=lambda: next(_serials))
    maps: dict[MapRequest, int] = field(default_factory=dict)
    rings_of: defaultdict[Role, set[str]] = field(default_factory=lambda: defaultdict(set))
    """Names of the rings that the compiled code of each role uses."""
    running: dict[int, str] = field(default_factory=dict)
    """Rings of the pipelines whose bodies are being compiled, by counter (`chains.running`)."""
    copies_in: bool = False
    """Whether the kernel issues TMA loads itself."""
    copies_out: bool = False
    """Whether the kernel issues TMA stores itself."""
    reaches: bool = False
    """Whether the kernel copies or stores to other CTAs of a cluster itself."""
    sharing: list[RingPlan] = field(default_factory=list)
    """Rings of pipelines that use the slots of another pipeline, whose ring is in `rings` or
    `outputs`."""
    regions: list[str] = field(default_factory=list)
    """Names of regions (`profiling`), by number."""
    places: list[str] = field(default_factory=list)
    """Names of what a debugged kernel indexes, for its reports (`outside_cuda`), by number."""
    grid_sizes: tuple = ()
    """In the simulator: the sizes of the `folded` dimensions of the grid."""
    obstacles: dict[int, str] = field(default_factory=dict)
    """Why TMA cannot address an array, by argument. A pipeline over the array raises this text."""
    tokens: Names = ()
    """The kernel's order tokens, by number (`warpgroup_order`)."""
    peered: set[int] = field(default_factory=set)
    """The arrays that it accesses on other GPUs, by argument (`peer_arrays`)."""
    takes_turns: bool = False
    """Whether CTAs add to global memory in turn (`cta_turns`), and so release to the GPU."""
    handed: dict[tuple[Any, int], Ints] = field(default_factory=dict)
    """In the simulator: the counters of rings, handed to each CTA's compute warpgroup with its
    turn."""

    def __str__(self) -> str:
        return f"{self.kernel}#{self.serial}"

    @property
    def debugged(self) -> Unit | None:
        """This unit if the kernel is debugged, else None. It is part of types, so that operations
        can add to `places` the names that the kernel reports."""
        return self if self.params.debug else None

    @property
    def stores(self) -> bool:
        """Whether the kernel issues TMA stores, which must complete before it ends."""
        return self.store_slots > 0 or self.copies_out or bool(self.outputs)

    @property
    def meets_at_end(self) -> bool:
        """Whether the CTAs of a cluster meet before any of them ends. They do if the kernel itself
        accesses other CTAs, because nothing else shows that this is over, and if a CTA can end at
        any time because it gave up a wait (`debug`). For rings and sums, `cluster_exit` waits
        instead."""
        own = any(
            len(of.peers) > 1
            for part in self.scratch.values()
            if not part.what
            for of in part.barriers
        )
        return self.clustered and (
            own or self.reaches or bool(self.params.debug or self.params.profile_space)
        )

    @property
    def orders_stores(self) -> bool:
        """Whether there are barriers whose arrivals release to the cluster."""
        return any(of.wide for part in self.scratch.values() for of in part.barriers)

    def anew(self) -> Callable[[], None]:
        """Return a function that resets this Unit to its present state, for another compile."""
        now = deepcopy(vars(self))
        return lambda: vars(self).update(now, serial=next(_serials))

    def region(self, name: str) -> int:
        """Return the number of a region (`profiling`)."""
        if name not in self.regions:
            self.regions.append(name)
        return self.regions.index(name)

    def plan_ring(
        self,
        site: str,
        wanted: tuple[tuple, ...],
        slots: int,
        delay: int,
        manual: Names = (),
        labels: Names = (),
        dims: int | None = None,
        single: bool = False,
        shared: RingPlan | None = None,
        kind: type[RingPlan] = RingPlan,
    ) -> RingPlan:
        """Return a ring of the pipeline written at `site` (a ``file:line``). Raises SpecError if
        the ring cannot be made.

        wanted  (argument, *BlockSpec.block) of each operand. A pipeline called with other arrays
                gets another ring, because its copies read other tensor maps
        manual  the kinds of barriers that the body uses itself, for each operand
        single  every compute warpgroup has its own ring
        shared  a ring of an earlier pipeline, whose slots, barriers and counter this one uses
        kind    RingPlan, or OutPlan for a ring of outputs

        `labels` and `dims` are fields of `RingPlan`.
        """
        if single:
            self._check_beside_at(
                f"pipeline at {site}",
                "a single-stream pipeline, which each compute warpgroup runs by itself",
            )
        labels = labels or tuple(f"in_specs[{number}]" for number in range(len(wanted)))
        key = f"{site} {wanted} {slots} {delay} {manual} {labels} {dims} {single}"
        known: dict[str, Any] = self.outputs if kind.written else self.rings
        if key in known and shared is None:
            return known[key]  # type: ignore[no-any-return]
        where = f"kernel {self.kernel}, pipeline at {site}"
        fields = self._fields(where, site, wanted, labels, dims, kind.written)
        if single and (
            together := [
                label for label, block in zip(labels, fields["blocks"], strict=True) if block.along
            ]
        ):
            raise SpecError(
                f"{where}: {together[0]}: collective_axes needs a memory role that loads for the "
                "CTAs, but the slots of a single-stream pipeline belong to one warpgroup; fix: "
                "leave collective_axes out, or use numpipe.pipeline with a memory role"
            )
        if shared is not None:
            plan = dataclasses.replace(shared, **fields, delay=delay)
            shared.check_shared(where, plan, slots, manual)
            self.sharing.append(plan)
            return plan
        plan = kind(
            **fields,
            index=COUNTERS - 1 - len(known) if kind.written else len(known),
            slots=slots,
            delay=delay,
            base=self._free,
            barriers=self._rings_barriers,
            manual=manual,
            cluster=self.cluster,
            private=self.compute_wgs if single else 0,
        )
        if kind.written:
            self._plan_handover(plan.name, slots, self.compute_wgs, True)
        return self._keep(key, plan, where)

    def _check_beside_at(self, what: str, why: str) -> None:
        """Raise SpecError for something that roles next to the loading one cannot follow."""
        for role in self.beside:
            raise SpecError(
                f"kernel {self.kernel}, {what}: CompilerParams({role.option}=True) does not "
                f"support {why}; fix: {role.option}=False"
            )

    def _keep(self, key: str, plan: Plan, where: str) -> Plan:
        """Keep a new ring. Raises SpecError if no barriers, counters or bytes are left for it."""
        if (
            plan.header.end > self._scratch_barriers
            or len(self.rings) + len(self.outputs) >= COUNTERS
        ):
            raise SpecError(
                f"{where}: a kernel can have at most {COUNTERS} rings; fix: use fewer pipelines, "
                "or let pipelines share a ring (get_allocations)"
                if plan.written
                else (
                    f"{where}: the barriers of all rings exceed the {self.barrier_room} bytes "
                    "that are available for them; fix: use fewer rings or slots "
                    "(max_concurrent_steps)"
                )
            )
        known: dict[str, Any] = self.outputs if plan.written else self.rings
        known[key] = plan
        self._budget()
        return plan

    def check_output(
        self,
        arg: int,
        what: str,
        fix: str = "write to it by its own name, or in a function that is called by name and gets "
        "it as an argument",
    ) -> None:
        """Raise SpecError unless the call passed the array as an output: stores to an input would
        be lost, or corrupt it."""
        array = self.arrays[arg]
        array.check_plain(what)
        if array.output:
            return
        reason = (
            f"the kernel's source does not show that it is an output: {fix}"
            if self.params.dimension_semantics is None
            else (
                "its BlockSpec is in in_specs; fix: move it to out_specs, and the array after "
                "the inputs in the kernel's parameters"
            )
        )
        raise SpecError(f"{what}: the call treats '{array.name}' as an input, because {reason}")

    def _fields(
        self,
        where: str,
        site: str,
        wanted: tuple[tuple, ...],
        labels: Names,
        dims: int | None,
        written: bool,
    ) -> dict[str, Any]:
        """Return the fields of a plan that describe the operands and how their blocks lie in a
        slot."""
        blocks = []
        offsets, stride = [], 0
        for label, (arg, shape, fill, known, transforms, policy, shared, mode) in zip(
            labels, wanted, strict=True
        ):
            array = self.arrays[arg]
            what = f"{where}: {label} for '{array.name}'"
            array.check_plain(what)
            if written:
                self.check_output(
                    arg,
                    what,
                    "write out_specs=(…,) where the pipeline is made, and pass the array by name",
                )
                if array.order != "row":
                    raise SpecError(
                        f"{what}: the array is column-major, but outputs are stored by rows; fix: "
                        "pass a row-major array, or store from registers in the body, "
                        f"'{array.name}[…] = tile'"
                    )
                if array.tma and not array.tma_store:
                    raise SpecError(
                        f"{what}: its rows are not a multiple of 16 B, and TMA writes whole "
                        "16-byte chunks, past their ends; fix: pad the rows, or store from "
                        f"registers in the body, '{array.name}[…] = tile'"
                    )
            block = cut(
                shape, array.dtype, array.ndim, array.order, fill, what, transforms, policy, mode
            )
            block = self.shared_block(block, shared, what)
            if block.elements and len(known) == block.rank and known[block.contiguous] is not None:
                block.check_start(known[block.contiguous], f"{what}: index_map")
            if not array.tma:
                raise SpecError(
                    f"{what}: "
                    + self.obstacles.get(
                        arg,
                        "TMA cannot address this array: base and strides must be "
                        "multiples of 16 bytes",
                    )
                )
            blocks.append(block)
            offsets.append(stride)
            stride += round_up(block.layout.nbytes, ATOM)
        names = ", ".join(self.arrays[arg].name for arg, *_ in wanted)
        return {
            "name": f"{names} @ {site}",
            "args": tuple(arg for arg, *_ in wanted),
            "blocks": tuple(blocks),
            "labels": labels,
            "dims": dims,
            "offsets": tuple(offsets),
            "stage_bytes": sum(block.layout.nbytes for block in blocks),
            "stage_stride": stride,
        }

    def plan_scratch(self, site: str, kind: Any, shared: bool, what: str = "") -> Scratch:
        """Return the allocation of a type at `site`, one for all compute warpgroups (`shared`) or
        one for each.

        `what` says what numpipe needs the allocation for, if the kernel did not ask for it. Raises
        SpecError if there is not enough memory left.
        """
        key = f"{site} {kind} {shared}"
        if key in self.scratch:
            return self.scratch[key]
        owners = 0 if shared else self.compute_wgs
        where = f"kernel {self.kernel}, scratch at {site}"
        memory = Region(self._free, nbytes(kind), owners)
        barriers = [part for part in leaves(kind) if isinstance(part, Barrier)]
        count, free = max(1, owners) * sum(of.count for of in barriers), self._scratch_barriers
        if free - 8 * count < self._rings_barriers:
            raise SpecError(
                f"{where}: the barriers of a CTA exceed the {self.barrier_room} bytes that are "
                f"available, 8 bytes each, by {count} barriers; fix: use fewer slots or barriers"
            )
        first, plans = sum(len(part.barriers) for part in self.scratch.values()), []
        if first + len(barriers) > PHASES:
            raise SpecError(
                f"{where}: a kernel can have at most {PHASES} allocations of barriers; fix: make "
                "one allocation of several, numpipe.Barrier(num_barriers=…)"
            )
        for number, of in enumerate(barriers):
            free -= max(1, owners) * 8 * of.count
            name = f"{site} ({number}){what and f', {what}'}" if len(barriers) > 1 else site
            plans.append(
                BarrierPlan(
                    of,
                    Region(free, 8 * of.count, owners),
                    first + number,
                    name,
                    self.cluster,
                    self.arrive_groups(of, where),
                )
            )
        plan = self.scratch[key] = Scratch(
            f"{what or kind} @ {site}", kind, place(kind, 0, memory, iter(plans)), memory, what
        )
        self._budget()
        return plan

    def plan_staging(self, panels: int) -> int:
        """Return the slots of the store ring, which each compute warpgroup uses for all its stores,
        for tiles of `panels` panels.

        By default there are as many as a tile has panels, or as fit next to the load rings. (A
        simulation does not know the rings that are made later, so it places its store ring after
        the shared memory of a CTA.)
        """
        if not self.store_slots:
            room = (self.target.smem_bytes - self._rings_end - self.exchange.total) // (
                self.compute_wgs * PANEL_BYTES
            )
            self.store_slots = self.params.store_slots or max(1, min(panels, room))
            self.staging_base = self.target.smem_bytes if self.simulated else self._rings_end
            self._plan_handover(STORE_RING, self.staging_slots, 1, False)
            self._budget()
        return self.staged

    @property
    def staging_slots(self) -> int:
        """Slots of each compute warpgroup's store ring: one, or at least two if another role stores
        and there are two panels, so that one slot is written while the other is read."""
        return self.store_slots // self.staged

    @property
    def staged(self) -> int:
        """Panels of a slot of the store ring."""
        return max(1, self.store_slots // 2) if self.beside else self.store_slots

    def _plan_handover(self, ring: str, slots: int, writers: int, shared: bool) -> None:
        """If another role does the stores, plan the barriers of a ring that compute warpgroups
        write and that role stores: *filled*, on which `writers` warpgroups arrive, and *free*."""
        if self.beside:
            self.plan_scratch(ring, (Barrier(writers, slots), Barrier(1, slots)), shared, STORES)

    def handover(self, ring: str | RingPlan) -> Any:
        """Return the plans of the barriers *filled* and *free* of the store ring, or of an output
        ring, which several pipelines may use."""
        if isinstance(ring, RingPlan):
            ring = next(of.name for of in self.outputs.values() if of.index == ring.index)
        name = f"{STORES} @ {ring}"
        return next(part.tree for part in self.scratch.values() if part.name == name)

    def plan_work_ring(self, site: str) -> NumberPlan:
        """Return the ring of work indices, one for all loops; `site` is the place of the first.
        Raises SpecError if there is not enough memory left.

        With turns, a warpgroup reads a work index when its own tile has ended. So there is a slot
        for each tile that the other warpgroups are working on, and for each that the memory role is
        ahead.
        """
        if self.work_ring is not None:
            return self.work_ring
        self._check_beside_at(
            f"tiles(dynamic=True) at {site}", "tiles of a counter, which two roles alone read"
        )
        slots, first = self.turns + 3, self._rings_barriers
        name = f"tile numbers @ {site}"
        return self._keep(
            name,
            NumberPlan(
                name=name,
                index=len(self.rings),
                slots=slots,
                delay=0,
                args=(),
                blocks=(),
                offsets=(),
                stage_bytes=0,
                stage_stride=4,
                base=first + 8 * len(BARRIERS) * slots,
                barriers=first,
            ),
            f"kernel {self.kernel}, tiles(dynamic=True) at {site}",
        )

    def map_slot(self, request: MapRequest) -> int:
        """Return the number of a tensor map in the kernel's packed parameter."""
        return self.maps.setdefault(request, len(self.maps))

    @property
    def counter_at(self) -> int:
        """Offset in the packed parameter of the address of the launch's counter (`tile_scheduler`):
        after the maps, at least one."""
        return 128 * max(1, len(self.maps))

    @property
    def peers_at(self) -> int:
        """Offset in the packed parameter of what a kernel with semaphores knows about the GPUs
        (`peer_arrays_cuda`): after everything else."""
        return self.counter_at + 128 * (self.work_ring is not None)

    @property
    def section_bytes(self) -> int:
        """Bytes of the packed parameter for each GPU: its tensor maps, and the addresses of its
        arrays."""
        return section_bytes(len(self.maps), len(self.arrays))

    @property
    def table_bytes(self) -> int:
        """Bytes of the packed parameter."""
        return self.peers_at + (WORDS_BYTES + self.gpus * self.section_bytes if self.gpus else 0)

    def readers(self, plan: RingPlan) -> int:
        """Return how many compute warpgroups of a CTA use each slot of a ring."""
        return 1 if plan.private else self.compute_wgs if plan.numbers else self.tile_wgs

    def barriers(self, plan: RingPlan) -> Iterator[tuple[int, int, str]]:
        """Yield (address, arrivals of a phase, name) of a ring's mbarriers."""
        for copy, row in itertools.product(range(max(1, plan.private)), plan.kinds):
            who = f" of warpgroup {copy}" * (plan.private > 1)
            for part in plan.parts_of(row.name):
                arrivals = row.arrivals * (
                    1 if row.completes.loads else self.readers(plan) * len(plan.peers[part])
                )
                first = plan.header.at(copy) + plan.barrier_offset(row.name, part)
                whose = self.whose(plan, part, row.name)
                for slot in range(plan.slots):
                    yield first + 8 * slot, arrivals, f"{row.name}[{slot}]{whose}{who}"

    def scratch_barriers(self) -> Iterator[tuple[int, int, str]]:
        """Yield (address, arrivals of a phase, name) of the mbarriers that the kernel allocates
        itself."""
        for part in self.scratch.values():
            for plan in part.barriers:
                for copy in range(max(1, plan.memory.owners)):
                    for number in range(plan.kind.count):
                        yield (
                            plan.memory.at(copy) + 8 * number,
                            plan.arrivals,
                            plan.name_of(copy, number),
                        )

    def all_barriers(self) -> Iterator[tuple[int, int, str]]:
        """Yield (address, arrivals of a phase, name) of all mbarriers of the kernel."""
        for plan in self.rings.values():
            yield from self.barriers(plan)
        yield from self.scratch_barriers()

    @property
    def layout(self) -> dict[str, int]:
        """Return where rings and allocations lie in shared memory."""
        found: dict[str, int] = {}
        for key, plan in {**self.rings, **self.outputs}.items():
            found |= {key: plan.base, f"barriers of {key}": plan.barriers}
        for key, part in self.scratch.items():
            found[key] = part.memory.at(0)
            found |= {
                f"barriers of {key} ({number})": of.memory.at(0)
                for number, of in enumerate(part.barriers)
            }
        return found

    def barrier_at(self, address: int) -> BarrierPlace | None:
        """Return the place of the mbarrier at an address of shared memory, or None if numpipe
        placed none there."""
        for plan in self.rings.values():
            if address in plan.header:
                number = (address - plan.barriers) % plan.barrier_bytes_of_one // 8
                kinds = [row.name for row in plan.kinds for _ in plan.parts_of(row.name)]
                return BarrierPlace(kinds[number // plan.slots], plan, number % plan.slots)
        kind = (
            "sums"
            if any(
                part.what not in ("", STORES) and address in of.memory
                for part in self.scratch.values()
                for of in part.barriers
            )
            else "own"
        )
        return BarrierPlace(kind) if self._scratch_barriers <= address < self.barrier_room else None

    def slot_at(self, address: int) -> tuple[RingPlan, int] | None:
        """Return the ring and the slot that contain an address of shared memory."""
        for plan in self.all_rings:
            if address in plan.memory:
                return plan, (address - plan.base) // plan.stage_stride % plan.slots
        return None

    def whose(self, plan: RingPlan, part: int, kind: str) -> str:
        """Return the end of a barrier's name: the ring, and before it the operand if each operand
        has a barrier of this kind."""
        operand = (
            f" for {plan.labels[part]} '{self.arrays[plan.args[part]].name}'"
            if kind in plan.manual
            else ""
        )
        return f"{operand} of {plan.name}"

    def traced(self) -> Iterator[Ring]:
        """Yield what the reader of a trace needs to know about each ring."""
        for plan in (*self.load_rings, *self.outputs.values(), *self.sharing):
            yield Ring(
                plan.name,
                plan.index,
                plan.slots,
                bool(plan.private),
                plan.written,
                self.turns > 1 and not plan.private,
            )
