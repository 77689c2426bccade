"""The image of a compiled kernel: all that launches, reports and profiles need, and its serialized
form.

An `Image` does not depend on Numba or on objects of the compiler, so a process can launch a kernel
without being able to compile.

The serialized form is a line of JSON with all fields except the machine code, followed by the
machine code. Files that contain images also store a digest of them: the manifest of an exported
kernel, and each file of the cache.
"""

from __future__ import annotations

import dataclasses
import json
import operator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from ..arch.dimensions import Ints, Names
from ..arch.targets import TARGETS
from ..core.records import parsed, record
from ..diagnostics.errors import ImageError
from .control_block import MOST_GPUS
from .copy_plans import MapRequest
from .protocol import BARRIERS, Ring
from .resources import Resources
from .roles import ROLES, warps_of

if TYPE_CHECKING:
    from .plans import RingPlan
    from .unit import Unit


@dataclass(frozen=True)
class Mbarrier:
    """An mbarrier of a kernel: its offset in the CTA's shared memory, the arrivals that complete a
    phase, and its owner.

    kind    "ready" or "consumed" of a ring's slot (`protocol.BARRIERS`), "own" of a
            `numpipe.Barrier`, "sums" (`BarrierPlace`)
    slots   number of slots of its ring; 0: it belongs to no ring
    """

    address: int
    arrivals: int
    name: str
    kind: str
    ring: str | None
    slot: int | None
    slots: int


@dataclass(frozen=True)
class RecordedRing:
    """A ring, with the names that it has in a profile's events.

    arrays      the array of each operand
    whose       for each kind of barrier and operand: the part of the barrier's name after the slot
    one_by_one  the kinds of events that each concern one operand
    """

    name: str
    index: int
    slots: int
    arrays: Names
    whose: tuple[Names, ...]
    one_by_one: Names

    @classmethod
    def of(cls, unit: Unit, plan: RingPlan) -> RecordedRing:
        from .profiling import KINDS

        operands = range(max(1, len(plan.args)))
        return cls(
            plan.name,
            plan.index,
            plan.slots,
            tuple(unit.arrays[arg].name for arg in plan.args),
            tuple(
                tuple(unit.whose(plan, operand, kind) for operand in operands) for kind in BARRIERS
            ),
            tuple(kind for kind in KINDS if plan.one_by_one(kind)),
        )


@dataclass(frozen=True)
class Recording:
    """What a kernel with ``CompilerParams(profile_space=n, profile_dir=path)`` records.

    space, directory   n and path
    regions            names of the regions, by number
    rings              the rings that its events name
    traced             the rings that are described to a trace's reader
    """

    space: int
    directory: str
    regions: Names
    rings: tuple[RecordedRing, ...]
    traced: tuple[Ring, ...]

    @classmethod
    def of(cls, unit: Unit) -> Recording:
        rings = tuple(RecordedRing.of(unit, plan) for plan in unit.all_rings)
        return cls(
            unit.params.profile_space,
            str(unit.params.profile_dir),
            tuple(unit.regions),
            rings,
            tuple(unit.traced()),
        )


@dataclass(frozen=True)
class Image:
    """A compiled kernel.

    entry             the kernel's symbol in `cubin`
    threads           threads of a CTA
    smem_bytes        dynamic shared memory of a CTA
    arrays, majors    the array parameters: their names, and "row" or "col"
    maps              the tensor maps, in the order of the packed parameter
    dynamic           whether it takes tiles from a counter of the launch (`tile_scheduler`)
    debug             whether it has a control block (`plan.debug`), which reports waits for its
                      `barriers` that do not end, and indices outside their arrays, named by
                      `places`
    parts             the role of each part of the CTA that runs the kernel function independently,
                      see `KernelShape.parts`
    recording         what it records (`launch.profiles`); None: nothing
    target            the architecture of the code: "sm_90a"
    gpus              number of GPUs of the mesh; 0: a kernel of one GPU. In a kernel of a mesh the
                      last array holds the semaphores
    peered            the numbers of the arrays that it accesses on other GPUs
    """

    name: str
    entry: str
    cubin: bytes = field(repr=False)
    threads: int
    smem_bytes: int
    arrays: Names
    majors: tuple[Literal["row", "col"], ...]
    maps: tuple[MapRequest, ...]
    resources: Resources = field(repr=False)
    dynamic: bool = False
    debug: bool = False
    parts: Names = ()
    barriers: tuple[Mbarrier, ...] = field(default=(), repr=False)
    places: Names = field(default=(), repr=False)
    recording: Recording | None = field(default=None, repr=False)
    target: str = field(kw_only=True)
    gpus: int = 0
    peered: Ints = ()

    @classmethod
    def of(cls, unit: Unit, cubin: bytes, entry: str, resources: Resources) -> Image:
        """Return the image of a compile, given its machine code and its resources."""
        barriers = []
        for address, arrivals, name in unit.all_barriers():
            place = unit.barrier_at(address)
            assert place is not None
            ring, slots = (None, 0) if place.plan is None else (place.plan.name, place.plan.slots)
            barriers.append(Mbarrier(address, arrivals, name, place.kind, ring, place.slot, slots))
        return cls(
            unit.kernel,
            entry,
            cubin,
            unit.threads,
            unit.smem_bytes,
            tuple(array.name for array in unit.arrays),
            tuple(array.order for array in unit.arrays),
            tuple(unit.maps),
            resources,
            unit.work_ring is not None,
            bool(unit.params.debug),
            tuple(role.name for role in unit.parts),
            tuple(barriers),
            tuple(unit.places),
            Recording.of(unit) if unit.params.profile_space else None,
            unit.gpus,
            tuple(sorted(unit.peered)),
            target=unit.target.name,
        )

    @property
    def warpgroups(self) -> int:
        """The number of warpgroups of a CTA."""
        return self.threads // 128

    def part(self, warp: int) -> int:
        """Return the part of the CTA that a warp belongs to: its warpgroup if the warp has no role
        of its own."""
        roles = {role.name: role for role in ROLES}
        warps = warps_of([roles[name] for name in self.parts])
        return next((part for part, own in enumerate(warps) if warp in own), warp // 4)

    def to_bytes(self) -> bytes:
        """Return the image as bytes for a file; `from_bytes` reads them."""
        fields = dataclasses.asdict(self)
        cubin: bytes = fields.pop("cubin")
        header = json.dumps(fields, separators=(",", ":"), allow_nan=False, default=operator.index)
        return header.encode() + b"\n" + cubin

    @classmethod
    def from_bytes(cls, data: bytes, what: str = "the image of a compiled kernel") -> Image:
        """Return the image that `to_bytes` wrote. Nothing in the bytes is executed.

        Raises ImageError, whose message begins with `what`, for data that is not an image, and for
        fields that are missing, unknown, of a wrong type, or out of range.
        """
        header, _, cubin = data.partition(b"\n")
        try:
            image = record(cls, parsed(header), cubin=cubin)
            image._check()
        except ValueError as error:
            raise ImageError(
                f"{what} cannot be used: {error}; fix: compile the kernel again"
            ) from None
        return image

    def _check(self) -> None:
        """Raise ValueError if fields contradict each other or are out of range, since a launch
        trusts them."""
        targets = {target.name: target for target in TARGETS.values()}
        if self.target not in targets:
            raise ValueError(
                f"it is compiled for {self.target}, but this version of numpipe supports "
                f"{', '.join(targets)}"
            )
        smem_bytes = targets[self.target].smem_bytes
        for right, what in (
            (self.threads % 128 == 0 and 128 <= self.threads <= 1024, f"threads is {self.threads}"),
            (
                self.smem_bytes <= smem_bytes,
                f"smem_bytes is {self.smem_bytes}, more than the {smem_bytes} of a CTA",
            ),
            (
                len(self.majors) == len(self.arrays),
                f"it has {len(self.arrays)} arrays and {len(self.majors)} majors",
            ),
            (
                all(request.arg < len(self.arrays) for request in self.maps),
                "a tensor map belongs to no array",
            ),
            (0 <= self.gpus <= MOST_GPUS, f"gpus is {self.gpus}"),
            (
                all(0 <= number < len(self.arrays) for number in self.peered),
                f"peered is {self.peered}",
            ),
            (
                len(self.parts) >= self.warpgroups
                and set(self.parts) <= {role.name for role in ROLES},
                f"parts is {self.parts}",
            ),
            (self.recording is None or self.recording.space > 0, "recording.space is 0"),
        ):
            if not right:
                raise ValueError(what)
