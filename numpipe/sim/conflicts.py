"""Classification of unordered accesses to the same bytes: which hazard they are, what is missing,
and the fix.

One pair of accesses, such as a copy into a slot and a read of it, can result from several mistakes:
a release too early, a read too late, or a read that did not wait for its own tile. They are
distinguished by the step that the reader was in (its notes), the step whose tile is in the slot,
and the moment when its warps arrived on the barrier that frees the slot. So a mistake has the same
name in every schedule, whichever access came first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ..diagnostics.errors import PipelineRace, SimulationError
from ..diagnostics.reports import Party
from ..plan.protocol import BARRIERS
from ..plan.roles import COMPUTE, MEMORY
from . import clocks, mbarriers, race_report, sites
from .state import SM, Access, Mbarrier

if TYPE_CHECKING:
    from ..plan.plans import RingPlan

_FULL, _EMPTY = (
    next(row for row in BARRIERS.values() if row.completes is role) for role in (MEMORY, COMPUTE)
)
"""The barriers of a slot that say that its tile has landed, and that it may be filled again."""
_VERBS = {
    "TMA load": "fills",
    "st.async": "fills",
    "TMA store": "reads",
    "wgmma": "reads",
    "read": "reads",
    "write": "writes",
    "atomic": "updates",
    "remote load": "reads",
    "mbarrier": "initializes",
}


_HELD = ("read", "write"), ("write", "wgmma"), ("write", "TMA store")
"""Conflicts, as later and earlier access, whose fix depends on what the earlier agent does next."""


class Finding(NamedTuple):
    """The hazard of a conflict, what is not ordered, and the fix."""

    hazard: str
    cause: str
    fix: str


class Conflict(NamedTuple):
    """A conflict: `later` accesses SMEM[lo:hi) although nothing orders it after `earlier`.

    known, asynchronous   the vector clock of `later`, and whether it is in the async proxy
    filled                the access that wrote the bytes before
    """

    sm: SM
    earlier: Access
    later: Access
    lo: int
    hi: int
    known: list[int]
    asynchronous: bool
    filled: Access | None

    def error(self) -> SimulationError:
        earlier, later, filled, span = self.earlier, self.later, self.filled, (self.lo, self.hi)
        if earlier.agent is not later.agent and (later.kind, earlier.kind) in _HELD:
            later.agent.hold()
        touches = f"{later.describe()} {_VERBS[later.kind]} SMEM[{self.lo}:{self.hi})"
        if "mbarrier" in (earlier.kind, later.kind):
            return race_report.violation(
                later,
                f"{touches}, where {earlier.describe()} is in use (at "
                f"{sites.place(earlier.site)}); place mbarriers outside the slots, and mbar_inval "
                "them before their bytes are reused",
                hazard="barrier-reinitialised",
                before=earlier,
                span=span,
            )
        hazard, cause, fix = _finding(self)
        doing = (
            "writing" if earlier.kind in ("TMA load", "st.async", "write", "atomic") else "reading"
        )
        slot = []
        if filled is not None and filled is not earlier and filled.mbar is not None:
            slot = [
                f"  slot:   filled on {filled.mbar.name} phase {filled.phase}, at "
                f"{sites.place(filled.site)}"
            ]
        accesses = [
            (access.tell(), race_report.party(access, span=span)) for access in (later, earlier)
        ]
        return race_report.conflict(
            PipelineRace,
            hazard,
            f"{touches} while {earlier.describe()} of {earlier.agent.title} may still be "
            f"{doing} it",
            accesses,
            cause,
            fix,
            self.sm,
            slot,
        )

    def late(self, kind: int) -> list[int]:
        """Return the warps whose part of `earlier` is unknown to `later`."""
        base = self.sm.clocks.index(kind, 0)
        counters = range(base, self.sm.clocks.index(kind + 1, 0))
        return [
            i - base for i, value in self.earlier.needs if i in counters and self.known[i] < value
        ]

    def late_warps(self, kind: int) -> str:
        warps = self.late(kind)
        return (
            f"warp{'s' * (len(warps) > 1)} {', '.join(str(w % 4) for w in warps)} of "
            f"{self.earlier.agent.title}"
        )

    @property
    def slot(self) -> tuple[RingPlan, int] | None:
        """The pipeline's ring and slot that contain the bytes."""
        slot = race_report.slot_of(self.sm, self.lo)
        return None if slot is None or slot[0].written else slot


def unwritten(sm: SM, access: Access, lo: int, hi: int, since: str, fix: str) -> SimulationError:
    """Return the error for a read of SMEM[lo:hi) that nobody has written; in a slot, before its
    first tile is loaded."""
    what = (
        f"{access.describe()} reads SMEM[{lo}:{hi}), but these bytes have not been written{since}"
    )
    place = race_report.slot_of(sm, lo)
    if place is None or place[0].written:
        own = (
            "; run_scoped gives each warpgroup bytes of its own, unless collective_axes= names the "
            "warpgroup axis"
        ) * any(
            part.memory.owners > 1 and lo in part.memory
            for part in getattr(sm.unit, "scratch", {}).values()
        )
        return race_report.race(
            access,
            what,
            hazard="uninitialised-read",
            span=(lo, hi),
            fix=fix
            or "store to these bytes, or load them and wait for the copy, before the read" + own,
        )
    plan, slot = place
    loader = next(
        (agent for agent in sm.warpgroups if agent.role == _FULL.completes and not plan.private),
        access.agent,
    )
    ready = _barrier(sm, plan, lo, _FULL.name)
    barrier = f"{_FULL.name}[{slot}] of {plan.name}" if ready is None else ready.name
    before = Party(
        "TMA load that has not been issued yet",
        loader.warpgroup,
        loader.role.name,
        loader.cta,
        race_report.lines_of(loader),
        plan.name,
        slot,
        slot,
        barrier,
        0,
        lo,
        hi,
    )
    return race_report.race(
        access,
        what,
        hazard="read-before-ready",
        span=(lo, hi),
        before=before,
        fix=f"wait for {barrier}, phase 0{_by_hand(plan)}, before step {slot} reads slot {slot}",
    )


def _barrier(sm: SM, plan: RingPlan, lo: int, kind: str) -> Mbarrier | None:
    """Return the mbarrier of a kind that guards address `lo` in a ring's slots."""
    stage, within = divmod(lo - plan.base, plan.stage_stride)
    part = sum(offset <= within for offset in plan.offsets) - 1
    first = plan.header.at(stage // plan.slots) + plan.barrier_offset(kind, part)
    return sm.mbarriers.get(first + 8 * (stage % plan.slots))


def _by_hand(plan: RingPlan) -> str:
    return f" ({_FULL.use} in the body)" if _FULL.name in plan.manual else ""


def _finding(this: Conflict) -> Finding:
    earlier, later = this.earlier, this.later
    if "remote load" in (earlier.kind, later.kind):
        return _from_abroad(this)
    if later.kind == "TMA load" and later.agent.sm is not this.sm:
        return Finding(
            "refilled-while-read",
            f"{later.agent.title} does not wait until CTA {this.sm.cta} has released these bytes",
            "every CTA whose slot is filled releases it to every CTA that fills it: one arrival "
            "per warp on the consumed barrier of each of them, with a count that includes the "
            "warps of all",
        )
    if "st.async" in (earlier.kind, later.kind):
        return _sent(this)
    if earlier.kind == "TMA load":
        return _not_landed(this)
    if earlier.kind == "TMA store":
        return _store_reads(this)
    if earlier.kind == "wgmma":
        return _product_reads(this)
    if (
        earlier.kind.endswith(("write", "atomic"))
        and this.asynchronous
        and not this.late(clocks.GENERIC)
    ):
        return Finding(
            "unfenced-writes",
            f"the writing warps did not fence: the store of {earlier.agent.title} is not visible "
            "to the async proxy",
            "commit_smem (fence.proxy.async by every warp that wrote, then a barrier) before the "
            f"{'copy' if 'TMA' in later.kind else 'wgmma'}, or before the arrival that marks the "
            "tile as ready",
        )
    cause = f"no barrier orders {this.late_warps(clocks.GENERIC)} before {later.agent.title}"
    if earlier.kind == "read" and later.kind == "TMA load":
        return (
            _outdated(this, earlier)
            or _read_when_free(this, earlier, later)
            or Finding("refilled-while-read", cause, _hand_over(earlier, later))
        )
    read, store = (earlier, later) if earlier.kind == "read" else (later, earlier)
    if (
        read.kind in _READ
        and (read.kind == "wgmma" or (hasattr(this.sm.unit, "slot_at") and not this.sm.unit.tokens))
        and (_stored_over(this) if read is earlier else _overtaken(this))
    ):
        return Finding(
            "refilled-while-read"
            if read.kind == "wgmma"
            else "store-source-reused"
            if read.kind == "TMA store"
            else "unordered-accesses",
            f"{store.agent.title} does not wait until {read.agent.title} has read the previous "
            "data",
            _read_first(read, store),
        )
    fix = _wait_for(this) or (
        f"put both inside with numpipe.turn({this.sm.unit.tokens[0]!r}), in the order of the turns"
        if getattr(this.sm.unit, "tokens", ()) and earlier.agent is not later.agent
        else "add a barrier between the two: commit_smem within a warpgroup, barrier_arrive and "
        "barrier_wait between warpgroups"
    )
    if earlier.kind == later.kind == "write" and earlier.agent is not later.agent:
        fix += "; or give each warpgroup its own part (numpipe.axis_index of the warpgroup axis)"
    return Finding("unordered-accesses", cause, fix)


def _stored_over(this: Conflict) -> bool:
    """Return whether a store comes over what a reader, `earlier`, was told of by another one."""
    read, filled = this.earlier, this.filled
    return (
        read.agent is not this.later.agent
        and not read.again
        and filled is not None
        and filled.agent is not read.agent
    )


def _wait_for(this: Conflict) -> str:
    """Return the fix of a read that does not wait for the barrier on which the bytes' writer has
    arrived since, or that waits for one on which the writer arrived too early; "" if there is
    none."""
    store, read = this.earlier, this.later
    if read.kind != "read":
        return ""
    told = mbarriers.telling(this.sm, store)
    if told is not None:
        return mbarriers.await_next(read, told)
    told = mbarriers.awaited(read)
    if (
        told is None
        or told is mbarriers.awaited(store)  # the store has to come after the wait
        or not all(0 < told.done[index] < value for index, value in store.needs)
    ):
        return ""
    return f"barrier_arrive on {told.name} by {store.agent.name} after the store, not before it"


def _hand_over(read: Access, fill: Access) -> str:
    if read.agent is fill.agent:
        return "commit_smem between the last read and the copy: a barrier of all four warps"
    return mbarriers.missing_arrival(read.agent, mbarriers.awaited(fill)) or (
        "barrier_arrive by the readers, after their last read, and barrier_wait before the copy"
    )


# ---- a store from another CTA of the cluster -----------------------------------------------------
def _sent(this: Conflict) -> Finding:
    """Find the hazard of a store that fills bytes that may still be read, or whose bytes are
    accessed while it may be in flight."""
    earlier, later = this.earlier, this.later
    if earlier.kind == later.kind and earlier.agent is not later.agent:
        return Finding(
            "unordered-accesses",
            f"{earlier.agent.title} and {later.agent.title} send to the same bytes of CTA "
            f"{this.sm.cta}, and nothing orders the two",
            "give each sender its own part of the receiving tile, chosen by numpipe.axis_index of "
            "the cluster's axis",
        )
    if later.kind == "st.async" or (
        getattr(earlier.over, "kind", "") == "st.async" and _overtaken(this)
    ):
        sender = later if later.kind == "st.async" else earlier
        return Finding(
            "refilled-while-read",
            f"{sender.agent.title} does not wait until CTA {this.sm.cta} has read the previous "
            "data",
            "each warp that reads the data arrives on a barrier of the sending CTA after its last "
            "read, and that CTA waits for the barrier before it sends again",
        )
    assert earlier.mbar is not None
    if this.asynchronous and this.known[earlier.mbar.landed] > earlier.phase:
        return Finding(
            "unfenced-writes",
            f"st.async of {earlier.agent.title} writes through the generic proxy, as ordinary "
            "stores do: the data is not visible to the async proxy",
            "read the data with ordinary loads, tile[…], in warps that have waited for it",
        )
    return Finding(
        "read-before-ready",
        f"{later.agent.title} does not wait until the data from {earlier.agent.title} has landed",
        f"wait for {earlier.mbar.name}, phase {earlier.phase}, in every warp, before the bytes are "
        "accessed",
    )


# ---- a copy that fills ---------------------------------------------------------------------------
def _not_landed(this: Conflict) -> Finding:
    """Find the hazard of bytes that are accessed while the copy that fills them may be in
    flight."""
    fill, later = this.earlier, this.later
    assert fill.mbar is not None
    cause = f"{later.agent.title} does not wait until this copy has landed"
    ready = f"{fill.mbar.name}, phase {fill.phase}"
    if this.slot is None:
        fix = f"wait for {ready}, before the bytes are accessed"
        fix = (
            f"barrier_{fix}"
            if fill.mbar.observed
            else f"{fix}; a pipeline's tile is valid only during its step"
        )
        stale = _read_when_free(this, later, fill) if fill.phase else None
        return stale or _filled_over(this) or Finding("read-before-ready", cause, fix)
    plan, slot = this.slot
    loaded, step = _step_of(fill, plan, slot), _at(later, plan)
    if later.kind == "TMA load":
        return Finding(
            "read-before-ready",
            cause,
            f"wait for {ready}, before slot {slot} of {plan.name} is filled again",
        )
    if step is None and loaded and not _by_hand(plan):
        stale = _read_when_free(this, later, fill)  # in a loop within the ring's step
        if stale is not None:
            return stale
    if loaded is not None and step is not None and 0 <= loaded - plan.slots <= step < loaded:
        return _outlived(this, later, step, loaded - plan.slots, cause)
    reads = "it is read" if loaded is None else f"step {loaded} reads slot {slot}"
    return Finding("read-before-ready", cause, f"wait for {ready}{_by_hand(plan)}, before {reads}")


def _filled_over(this: Conflict) -> Finding | None:
    """Find the hazard of a reader that waited for its tile, but reads it only after another
    warpgroup has refilled the bytes."""
    fill, reader, read = this.earlier, this.later, this.earlier.over
    if (
        fill.agent is reader.agent
        or reader.kind == "TMA load"
        or fill.mbar is None
        or read is None
        or read.mbar is None
        or clocks.lacks(this.known, read.needs)
    ):
        return None
    free = _freed_by(this, fill)
    if (
        free is not None
        and free is not fill.mbar
        and free.done[read.mbar.landed] > read.phase
        and _arrived(this.sm, reader, free)
    ):
        return Finding(
            "read-after-release",
            f"{reader.agent.title} arrived on {free.name} before it reads{_unordered(this)}",
            f"read before the arrival on {free.name}; to read the next tile, wait for "
            f"{fill.mbar.name}, phase {fill.phase}",
        )
    return Finding(
        "refilled-while-read",
        f"{fill.agent.title} does not wait until {reader.agent.title} has read these bytes",
        _hand_over(reader, fill),
    )


def _outlived(this: Conflict, reader: Access, step: int, used: int, cause: str) -> Finding:
    """Return the hazard of a `reader` that reads, in `step`, the tile of step `used`, whose slot
    has been released."""
    assert this.slot is not None
    plan, slot = this.slot
    by, late = f"by {_EMPTY.use}" if _EMPTY.name in plan.manual else "by the ring", step - used
    released = (
        f"slot {slot} of {plan.name} was released {by}, and step {used + plan.slots} is loaded "
        "there"
    )
    if late <= plan.delay:
        uses = (
            "issue the product of step {}, and wgmma_wait(0),"
            if reader.kind == "wgmma"
            else "read the tile of step {}"
        )
        return Finding(
            "read-after-release", cause, f"{uses.format(used)} before {_EMPTY.use}: {released}"
        )
    more = f" and max_concurrent_steps={late + 1} or more" if plan.slots <= late else ""
    return Finding(
        "read-after-release",
        cause,
        f"read the tile of step {used} in step {used + plan.delay} at the latest, or keep "
        f"it with delay_release={late}{more}: {released}",
    )


def _from_abroad(this: Conflict) -> Finding:
    """Find the hazard of bytes that another CTA loads."""
    earlier, later = this.earlier, this.later
    stores, loads = (earlier, later) if later.kind == "remote load" else (later, earlier)
    ordinary = stores.kind in ("write", "atomic")
    ordered = (
        "barrier_arrive after the store, on a ClusterBarrier(…, orders_stores=True), and "
        "barrier_wait for it before the load"
    )
    asked = (
        "barrier_arrive on a ClusterBarrier by the CTA that has read, and barrier_wait for it "
        "before the bytes are written again"
    )
    cause = (
        f"{stores.agent.title} does not wait until {loads.agent.title} has read the previous data"
    )
    if loads is earlier or (
        stores.kind == "TMA load"
        and stores.mbar is not None
        and 0
        < stores.phase
        <= this.known[stores.mbar.landed]  # it loads what the copy before brought
        and not any(map(loads.repeats, stores.readers))
    ):
        return Finding("unordered-accesses" if ordinary else "refilled-while-read", cause, asked)
    # earlier stores of the CTA itself
    if ordinary and any(this.known[index] for index, _ in stores.needs):
        return Finding(
            "unordered-accesses", cause, f"{asked}; to read the new data instead, {ordered}"
        )
    return Finding(
        "unordered-accesses" if ordinary else "read-before-ready",
        (
            f"{loads.agent.title} does not wait until the data that {stores.agent.title} wrote is "
            "visible to other CTAs"
        ),
        ordered,
    )


# ---- readers of what is filled again -------------------------------------------------------------
def _outdated(this: Conflict, reader: Access) -> Finding | None:
    """Find, by its step, whether a read comes before its own tile has landed, or in a later step
    than allowed."""
    if this.slot is None or this.filled is None:
        return None
    plan, slot = this.slot
    held, step = _step_of(this.filled, plan, slot), _at(reader, plan)
    if held is None or step is None or step < held:
        return None
    cause = (
        f"{reader.agent.title} reads, in step {step}, the tile of step {held} in slot {slot} of "
        f"{plan.name}{_unordered(this)}"
    )
    if step > held and (step - held) % plan.slots == 0:
        return Finding(
            "read-before-ready",
            cause,
            f"wait for {_FULL.name}[{slot}] of {plan.name}, phase {step // plan.slots}"
            f"{_by_hand(plan)}, before step {step} reads it",
        )
    if step > held + plan.delay:
        return _outlived(this, reader, step, held, cause)
    return None


def _unordered(this: Conflict) -> str:
    """Describe what the clocks lack, in addition to the steps."""
    if this.earlier.kind == "wgmma":
        return (
            f", and {this.late_warps(clocks.DRAINED)} did not signal that their wgmma had finished"
        )
    if this.earlier.kind == "read":
        return (
            f", and no barrier orders {this.late_warps(clocks.GENERIC)} before "
            f"{this.later.agent.title}"
        )
    return f", and {this.later.agent.title} does not wait until this copy has landed"


def _read_when_free(this: Conflict, reader: Access, fill: Access) -> Finding | None:
    """Find whether warps read after they had arrived on the barrier that the copy waited for."""
    free = _freed_by(this, fill)
    if (
        free is None
        or reader.kind not in ("read", "wgmma")
        or fill.mbar is None
        or free is fill.mbar
        # the warp that arrived there had not yet waited for the bytes that are read
        or free.done[fill.mbar.landed] < fill.phase
        or not _arrived(this.sm, reader, free)
    ):
        return None
    cause = f"{reader.agent.title} arrived on {free.name} before it reads{_unordered(this)}"
    if this.slot is not None:
        plan, slot = this.slot
        used = plan.step_at(slot, fill.phase) - plan.slots
        return _outlived(this, reader, used, used, cause)
    if reader.again or any(reader.repeats(read) for read in fill.readers):
        return Finding("read-before-ready", *mbarriers.not_awaited(reader, fill.mbar))
    return Finding(
        "read-after-release",
        cause,
        f"read before the arrival on {free.name}, which allows the bytes to be overwritten",
    )


def _arrived(sm: SM, reader: Access, free: Mbarrier) -> bool:
    """Return whether warps arrived on a barrier before they read."""
    warp = sm.clocks.index(clocks.GENERIC, reader.agent.first_warp + 3)
    epochs = reader.needs if reader.kind == "read" else ((warp, reader.epoch),)
    return any(0 < free.done[index] < epoch for index, epoch in epochs)


def _freed_by(this: Conflict, fill: Access) -> Mbarrier | None:
    """Return the barrier that frees the bytes: the ring's, or the last one that the copying
    warpgroup waited for."""
    if this.slot is not None:
        return _barrier(this.sm, this.slot[0], this.lo, _EMPTY.name)
    return None if this.earlier.agent is this.later.agent else mbarriers.awaited(fill)


def _product_reads(this: Conflict) -> Finding:
    """Find the hazard of bytes that are overwritten while a wgmma may still read them."""
    product, later = this.earlier, this.later
    if later.kind == "TMA load" and (
        stale := _outdated(this, product) or _read_when_free(this, product, later)
    ):
        return stale
    late, left = this.late(clocks.DRAINED), product.agent.products.left
    cause = f"{this.late_warps(clocks.DRAINED)} did not signal that their wgmma had finished"
    where = (
        f"slot {this.slot[1]} of {this.slot[0].name}"
        if this.slot is not None
        else _bytes_text(this)
    )
    reads = f"{product.what} may still read {where}"
    leaves = (
        f"wgmma_wait({left}) leaves {'one group' if left == 1 else f'{left} groups'} reading "
        f"{where}"
    )
    if 0 < len(late) < 4:
        fix = (
            "release the bytes in each of the four warps after wgmma_wait: barrier_arrive, or "
            "commit_smem before a copy by the same warpgroup"
        )
    elif this.slot is not None:
        plan, manual = this.slot[0], _EMPTY.name in this.slot[0].manual
        newer = _newer_at_release(this) if manual else plan.delay
        place = (
            f"before {_EMPTY.use}"
            if manual
            else "in every step"
            if left > 0
            else "before the end of its step"
        )
        fix = f"wgmma_wait({newer}) {place}"
        if newer < plan.delay:
            fix += f", or {_EMPTY.use} after the product of its step and wgmma_wait({plan.delay})"
        if left > 0:
            needed = max(left, plan.delay + 1)
            more = (
                f" and max_concurrent_steps of {needed + 1} or more" if plan.slots <= needed else ""
            )
            fix = f"delay_release={needed}{more} is needed: {leaves}; or {fix}"
        else:
            fix += f": {reads}"
    elif later.agent is not product.agent:
        fix = f"{_read_first(product, later)}: {leaves if left > 0 else reads}"
    elif left > 0:
        newer = product.agent.products.issued - product.needs[0][1]
        fix = f"wgmma_wait({newer}) and commit_smem before the bytes are written: {leaves}"
    else:
        fix = (
            "wgmma_wait(0), then commit_smem, before the "
            f"{'copy' if this.asynchronous else 'store'}: {reads}, and wgmma_wait covers only a "
            "warp's own part of the product"
        )
    return Finding("refilled-while-read", cause, fix)


_READ = {
    "wgmma": "its wgmma_wait",
    "TMA store": "its wait_smem_to_gmem(0, wait_read_only=True)",
    "read": "its read",
}
"""When an access of a kind has read its bytes."""


def _read_first(read: Access, write: Access) -> str:
    both = "numpipe.atomic_add(tile.at[…], value), if both add to it; else "
    new = (
        "; if the new value is meant, barrier_arrive after the store and barrier_wait before the "
        "read"
    )
    fix = (
        f"barrier_arrive by {read.agent.name} after {_READ[read.kind]}, and barrier_wait by "
        f"{write.agent.name} before the {'copy' if write.kind == 'TMA load' else 'store'}"
    )
    return both * (read.site == write.site) + fix + new * (read.kind == "read")


def _overtaken(this: Conflict) -> bool:
    """Return whether a reader has waited for what was there before `earlier`, a store, and has not
    read it yet: if it is the store that has to wait."""
    store, reader, over = this.earlier, this.later, this.earlier.over
    return (
        over is not None
        and store.agent is not reader.agent
        and not clocks.lacks(this.known, over.async_needs if this.asynchronous else over.needs)
        and all((read.agent, read.waits) != (reader.agent, reader.waits) for read in store.readers)
        and (
            reader.kind == "wgmma"
            or mbarriers.telling(this.sm, store) in (None, mbarriers.awaited(reader))
        )
    )


def _newer_at_release(this: Conflict) -> int:
    """Return how many later products its warpgroup had issued when it released the slot that
    `earlier`, a wgmma, reads.

    Each product is a group of its own, so a wait before the release may leave that many in flight.
    """
    product, free = this.earlier, _freed_by(this, this.later)
    warp = this.sm.clocks.index(clocks.GENERIC, product.agent.first_warp + 3)
    number = product.needs[0][1]
    newer = [
        read.needs[0][1] - number
        for read in this.sm.memory.reads()
        if free is not None
        and read.kind == "wgmma"
        and read.agent is product.agent
        and read.epoch <= free.done[warp]
    ]
    return max(newer, default=0)


def _store_reads(this: Conflict) -> Finding:
    """Find the hazard of bytes that are overwritten while a TMA store may not have read them."""
    store = this.earlier
    cause = (
        f"the lane of {store.agent.title} that issued the store did not signal that the store has "
        "read these bytes"
    )
    newer = store.agent.bulk_groups.groups_since(store.needs[0][1])
    if this.later.kind == "write" and this.later.agent is not store.agent:
        return Finding("store-source-reused", cause, _read_first(store, this.later))
    fix = ("commit_smem_to_gmem_group after the store, then " if newer is None else "") + (
        f"wait_smem_to_gmem({newer or 0}, wait_read_only=True) after the group's commit, before "
        "the bytes are written again (bulk_wait(pending, read=True) by the lane that stored, "
        "then a barrier)"
    )
    return Finding(
        "refilled-while-read" if this.later.kind == "TMA load" else "store-source-reused",
        cause,
        fix,
    )


# ---- steps ---------------------------------------------------------------------------------------
def _bytes_text(this: Conflict) -> str:
    """Return a name for bytes outside a pipeline's slots: ``SMEM[0:1024)``, or the slot of a ring
    that a body implements itself."""
    note = this.earlier.last_note
    if "slot" not in note[1] or hasattr(this.sm.unit, "slot_at"):
        return f"SMEM[{this.lo}:{this.hi})"
    return f"slot {note[1]['slot']}" + (f" of {note[1]['ring']}" if note[1].get("ring") else "")


def _step_of(fill: Access, plan: RingPlan, slot: int) -> int | None:
    """Return the ring's step whose tile a copy brings to a slot."""
    at = None if fill.mbar is None else race_report.place_of(fill.agent.sm, fill.mbar)
    if at is None or at.plan is None or (at.plan.barriers, at.slot) != (plan.barriers, slot):
        return None
    return plan.step_at(slot, fill.phase)


def _at(access: Access, plan: RingPlan) -> int | None:
    """Return the ring's step that a warpgroup was in, by its notes; None if the last note belongs
    to another ring."""
    ring = str(access.last_note[1].get("ring"))
    name = race_report.ring_name(access.agent.sm, plan, access.last_note)
    same = ring == name or (
        plan.dims is None and ring.rpartition(" @ ")[2] == plan.name.rpartition(" @ ")[2]
    )
    return sites.noted(access.last_note, "step") if same else None
