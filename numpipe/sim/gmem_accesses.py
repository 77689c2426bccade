"""Accesses to global memory, as `gmem` remembers them while a grid runs, and the errors for two
accesses that conflict."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..arch.dimensions import Ints
from ..diagnostics.errors import PipelineRace, SimulationError
from ..diagnostics.reports import Party
from ..plan.roles import STORE as STORE_ROLE
from . import race_report, sites
from .clocks import Need
from .state import Access, Mbarrier, side

Codes = npt.NDArray[np.int32]
"""For each element the code of the access that touched it; 0 for none."""
Index = tuple[slice, ...]
STORE, LOAD = "store", "load"
"""Kinds of ordinary accesses."""
_AT_ONCE = "they run concurrently, in any order"
_VERBS = {"TMA load": "reads", LOAD: "reads", "TMA store": "writes", STORE: "writes"}


class Touch:
    """An access to global memory, remembered while the grid runs.

    `number` counts the clusters in the order of the run. `needs` are the counters that another
    access of the same cluster must know to come after it, by default the needs of `access`.
    """

    __slots__ = (
        "agent",
        "code",
        "flipped",
        "index",
        "kind",
        "last_note",
        "last_wait",
        "needs",
        "number",
        "phase",
        "reduction",
        "site",
        "steers",
        "what",
    )

    def __init__(
        self,
        access: Access,
        index: Index,
        flipped: bool,
        reduction: str = "",
        needs: tuple[Need, ...] | None = None,
    ) -> None:
        self.agent = access.agent.identity
        self.kind, self.what, self.site = access.kind, access.what, access.site
        self.steers = access.kind == LOAD and access.agent.role.loads
        """Whether the memory role read an element of an array, which steers it."""
        self.last_note = access.last_note
        self.last_wait = access.last_wait
        self.phase = access.phase
        self.number = access.agent.gmem.number
        self.index = index
        self.needs = access.needs if needs is None else needs
        self.reduction = reduction
        self.flipped = flipped
        self.code = 0

    @property
    def at(self) -> Ints:
        """The elements as a key: the first and the last of each dimension."""
        return tuple(n for part in self.index for n in (part.start, part.stop))

    def describe(self) -> str:
        kind = (
            f"{'' if self.kind == STORE else 'TMA '}reduction {self.reduction!r}"
            if self.reduction
            else self.kind
        )
        return f"{kind} ({self.what})"

    def where(self, index: Index | None = None) -> str:
        """Return the elements as text: ``c[64:128, 0:64]``."""
        parts = self.index if index is None else index
        inside = ", ".join(
            f"{part.start}:{part.stop}" for part in (reversed(parts) if self.flipped else parts)
        )
        return f"{self.what}[{inside}]"

    def tell(self) -> str:
        """Describe who accessed what, where, in which step."""
        return (
            f"{self.describe()} by {self.agent.name} of {self.agent.where} at "
            f"{sites.place(self.site)}: {self.where()}"
            + sites.context(self.last_note, self.last_wait)
        )

    def party(self) -> Party:
        note = self.last_note
        return side(
            self.agent,
            f"{self.describe()} of {self.where()}",
            self.site,
            ring=note[1].get("ring"),
            slot=sites.noted(note, "slot"),
            step=sites.noted(note, "step"),
        )


# ---- errors --------------------------------------------------------------------------------------
def conflict(access: Access, touch: Touch, earlier: Touch, codes: Codes | None) -> SimulationError:
    """Return the error for accesses by two CTAs to the same elements."""
    if touch.reduction or earlier.reduction:
        fix = (
            "initialize the array before the kernel and read it afterwards; in the kernel all CTAs "
            "use the same reduction_op, and no other access"
        )
    elif "reads" in (_VERBS[touch.kind], _VERBS[earlier.kind]):
        fix = (
            "read the results of other CTAs in a later kernel, or store the results to a separate "
            "array"
        )
        if LOAD in (touch.kind, earlier.kind):
            if touch.site == earlier.site:
                fix = f"numpipe.atomic_add(array.at[…], tile), if each adds to it; else {fix}"
            fix += (
                "; or numpipe.combine, which passes partial sums on: all lanes store, then a "
                "barrier, then one lane signals; one lane waits for the signal, then a barrier, "
                "then all lanes load"
            )
    else:
        fix = (
            "give each CTA its own blocks: a ds(start, size), or an index map, that depends on "
            "numpipe.program_id; or add the values: numpipe.atomic_add(array.at[…], tile), "
            "copy_smem_to_gmem(…, reduction_op='add')"
        )
        if touch.index != earlier.index:
            fix = f"ds(start, size, stop=end) where a block reaches into the next one; {fix}"
    what = _both(touch, earlier, codes, f"CTA {earlier.agent.cta}")
    cause = f"nothing orders two CTAs: {_AT_ONCE}"
    return failure(access, touch, earlier, "cta-conflict", what, cause, fix)


def _both(touch: Touch, earlier: Touch, codes: Codes | None, other: str) -> str:
    """Describe what an access and an earlier one by `other` do to the elements they have in
    common."""
    now, before = _VERBS[touch.kind], _VERBS[earlier.kind]
    common = _common(touch, earlier, codes)
    too = " too" * (now == before)
    return f"{touch.describe()} {now} {common}, which {other} {before}{too}"


def unsignaled(
    access: Access, touch: Touch, earlier: Touch, codes: Codes | None
) -> SimulationError:
    """Return the error for accesses by two CTAs, or two GPUs, in a kernel with semaphores."""
    far = earlier.agent.gpu != touch.agent.gpu
    where = f"of GPU {touch.agent.gpu}" if far else 'of this GPU, numpipe.axis_index("gpu"),'
    other = f"{earlier.agent.name} of {earlier.agent.where}"
    if touch.reduction and touch.reduction == earlier.reduction:
        fix = (
            "reductions are atomic among the CTAs of one GPU only: give each GPU its own array, "
            "and add the arrays on one GPU"
        )
    else:
        fix = (
            f"{other} signals a semaphore {where} after its access, numpipe.signal("
            "semaphore.at[i], rank), and numpipe.wait(semaphore.at[i], n) comes before this "
            "access, where n counts the signals of all warpgroups that take part"
        )
        if _VERBS[touch.kind] == _VERBS[earlier.kind]:
            fix = (
                "give each its own blocks: a ds(start, size) that depends on numpipe.axis_index; "
                f"or {fix}"
            )
    what = _both(touch, earlier, codes, other)
    cause = f"no semaphore orders two {'GPUs' if far else 'CTAs'}: {_AT_ONCE}"
    if far:
        return failure(access, touch, earlier, "gpu-conflict", what, cause, fix)
    return failure(access, touch, earlier, "cta-conflict", what, cause, fix)


def other_proxy(
    access: Access, touch: Touch, earlier: Touch, codes: Codes | None
) -> SimulationError:
    """Return the error for a TMA copy that comes after an ordinary store."""
    return failure(
        access,
        touch,
        earlier,
        "array-in-transfer",
        (
            f"{touch.describe()} {_VERBS[touch.kind]} {_common(touch, earlier, codes)}, which "
            f"{earlier.describe()} of the same CTA wrote: ordinary stores to an array are not "
            "visible to the async proxy"
        ),
        "the fence available to kernels, fence.proxy.async.shared::cta, covers only shared memory",
        "store it with copy_smem_to_gmem and wait_smem_to_gmem(0), or use it in the next kernel",
    )


def unordered(
    access: Access, touch: Touch, earlier: Touch, codes: Codes | None = None
) -> SimulationError:
    """Return the error for two ordinary accesses, one of which stores."""
    what = _both(touch, earlier, codes, f"{earlier.describe()} of {earlier.agent.name}")
    if touch.agent.role == STORE_ROLE.name and earlier.kind == LOAD:
        return in_transfer(access, touch, earlier)
    if touch.agent.warpgroup == earlier.agent.warpgroup:
        warps, fix = "its four warps", "use the stored value instead of the load"
    else:
        warps = f"{earlier.agent.name} before {touch.agent.name}"
        fix = "give each warpgroup its own rows and columns"
        if touch.kind == earlier.kind == STORE:
            fix += " (numpipe.axis_index of the warpgroup axis), or num_compute_wgs=1"
    return failure(
        access,
        touch,
        earlier,
        "unordered-accesses",
        what,
        f"no barrier orders {warps}",
        f"add a barrier between the two, or {fix}",
    )


def in_transfer(
    access: Access,
    touch: Touch,
    earlier: Touch,
    mbar: Mbarrier | None = None,
) -> SimulationError:
    """Return the error for an access that conflicts with a copy of its CTA in flight: a load, which
    completes on `mbar`, or a store."""
    cause = f"{touch.agent.name} does not wait until the store has reached the array"
    verb = _VERBS[touch.kind]
    doing = "writing" if mbar is None and earlier.kind != LOAD else "reading"
    fix = (
        "a pipeline's stores complete when the kernel ends, so load their results in the next "
        "kernel; your own copies complete at wait_smem_to_gmem(0); or use the stored value instead "
        "of the load, or store to a separate array"
    )
    if mbar is not None:
        cause = f"{touch.agent.name} does not wait until this copy has landed"
        if mbar.observed:
            fix = (
                f"barrier_wait for {mbar.name}, phase {earlier.phase}, before the array is "
                "written there"
            )
    elif verb == "writes" and earlier.kind != LOAD:
        fix = (
            "wait_smem_to_gmem(0) between the two, which are not ordered, or only one store to "
            "each block"
            if earlier.agent.warpgroup == touch.agent.warpgroup
            else "give each warpgroup its own rows (numpipe.axis_index of the warpgroup axis), or "
            "num_compute_wgs=1"
        )
    return failure(
        access,
        touch,
        earlier,
        "array-in-transfer",
        (
            f"{touch.describe()} {verb} the array at {touch.where()} while {earlier.describe()} "
            f"by {earlier.agent.name} may still be {doing} it"
        ),
        cause,
        fix,
    )


def before_wait(access: Access, touch: Touch) -> SimulationError:
    """Return the error for an access before a griddepcontrol.wait."""
    done, agent = "read" if _VERBS[touch.kind] == "reads" else "written", touch.agent.name
    return failure(
        access,
        touch,
        None,
        "read-before-grid-dependency",
        (
            f"{touch.where()} is {done} by {touch.describe()} of {agent} before "
            "griddepcontrol.wait: the previous kernel in the stream may not have ended"
        ),
        f"nothing orders it after a griddepcontrol.wait of {agent}, or of a warpgroup that it has "
        "synchronized with since",
        "griddep.wait() by every warpgroup, before it accesses an array",
    )


def before_launch(access: Access, touch: Touch, gpu: int) -> SimulationError:
    """Return the error for an access to a peer's memory before the peer's launch has begun."""
    return failure(
        access,
        touch,
        None,
        "read-before-grid-dependency",
        (
            f"{touch.describe()} {_VERBS[touch.kind]} {touch.where()} before the launch of GPU "
            f"{gpu} has begun: its memory belongs to other kernels until then"
        ),
        f"{touch.agent.name} does not wait until the launch has begun",
        "numpipe.peer(array, rank) in the warpgroup that touches the peer's array: it waits until "
        "all launches have begun",
    )


def extent(mask: np.ndarray, index: Index) -> Index:
    """Return the smallest box around the elements of `index` that a mask selects."""
    elements = np.argwhere(mask)[:, : len(index)]
    first, last = elements.min(axis=0), elements.max(axis=0)
    return tuple(
        slice(part.start + int(lo), part.start + int(hi) + 1)
        for part, lo, hi in zip(index, first, last, strict=True)
    )


def _common(touch: Touch, earlier: Touch, codes: Codes | None) -> str:
    """Describe the elements that two accesses have in common. With codes None, the elements' codes
    belong to later accesses too."""
    return touch.where(None if codes is None else extent(codes == earlier.code, touch.index))


def failure(
    access: Access,
    touch: Touch,
    earlier: Touch | None,
    hazard: str,
    what: str,
    cause: str,
    fix: str,
    error: type[SimulationError] = PipelineRace,
) -> SimulationError:
    """Return the error for an access, and for an `earlier` one that it conflicts with.

    The memory role loads with lanes only the numbers that steer it; there the array is the mistake,
    not the order of two accesses.
    """
    steering = next((each for each in (touch, earlier) if each is not None and each.steers), None)
    if (
        steering is not None
        and earlier is not None
        and access.agent.sm.gpus is None
        and hazard != "steering-data-written"
    ):
        return failure(
            access,
            touch,
            earlier,
            "steering-data-written",
            what,
            (
                f"each role reads '{steering.what}' separately, at different times, to decide what "
                "to load and to compute, and all must read the same values"
            ),
            (
                f"store to a different array: '{steering.what}' must not change until the launch "
                "has ended"
            ),
        )
    accesses = [(each.tell(), each.party()) for each in (touch, earlier) if each is not None]
    return race_report.conflict(
        error, hazard, f"{access.agent.title}: {what}", accesses, cause, fix, access.agent.sm
    )
