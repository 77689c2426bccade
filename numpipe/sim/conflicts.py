"""Two accesses to the same bytes that nothing orders: which hazard that is, what is missing, and the mend.

One and the same pair of accesses, a copy into a slot and a read of it, comes of several mistakes. Which one it was follows from
the step that the reader was in (its notes), the step whose tile is in the slot, and when its warps arrived on the barrier that
frees it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ..diagnostics.errors import PipelineRace, SimulationError
from ..diagnostics.reports import Party, Report
from . import clocks, report, sites
from .state import SM, Access, Mbarrier

if TYPE_CHECKING:
    from ..plan.plans import RingPlan

_VERBS = {
    "TMA load": "fills", "st.async": "fills", "TMA store": "reads", "wgmma": "reads", "read": "reads", "write": "writes",
    "mbarrier": "initialises",
}


class _Conflict(NamedTuple):
    """`later` touches SMEM[lo:hi) although nothing orders it after `earlier`.

    known, asynchronous   what `later` knows, and whether it is of the async proxy
    filled                who wrote the bytes before
    """

    sm: SM
    earlier: Access
    later: Access
    lo: int
    hi: int
    known: list[int]
    asynchronous: bool
    filled: Access | None

    def late(self, kind: int) -> list[int]:
        """The warps that have not told of `earlier`."""
        return self.sm.clocks.warps_of(kind, self.earlier.needs, self.known)

    def told(self, kind: int) -> str:
        warps = self.late(kind)
        return f"warp{'s' * (len(warps) > 1)} {', '.join(str(w % 4) for w in warps)} of {self.earlier.agent.title}"

    @property
    def slot(self) -> tuple[RingPlan, int] | None:
        """The pipeline's ring and slot that the bytes are in."""
        found = report.slot_of(self.sm, self.lo)
        return None if found is None or found[0].written else found


class _Told(NamedTuple):
    hazard: str
    cause: str
    mend: str


def conflict(sm: SM, earlier: Access, later: Access, lo: int, hi: int, known: list[int], asynchronous: bool,
             filled: Access | None) -> SimulationError:
    """`later` touches SMEM[lo:hi) although nothing orders it after `earlier`; `filled`: who wrote the bytes before."""
    if "mbarrier" in (earlier.kind, later.kind):
        return report.violation(later, f"{later.describe()} {_VERBS[later.kind]} SMEM[{lo}:{hi}), where {earlier.describe()} is in "
                                f"use (at {sites.place(earlier.site)}); place mbarriers outside the slots, and mbar_inval before "
                                "the bytes serve something else", hazard="barrier-reinitialised", before=earlier, span=(lo, hi))
    told = _why(_Conflict(sm, earlier, later, lo, hi, known, asynchronous, filled))
    lines = [
        f"{later.describe()} {_VERBS[later.kind]} SMEM[{lo}:{hi}) while {earlier.describe()} of {earlier.agent.title} "
        f"may still be {'writing' if earlier.kind in ('TMA load', 'st.async', 'write') else 'reading'} it",
        f"  now:    {later.tell()}",
        f"  before: {earlier.tell()}",
    ]
    if filled is not None and filled is not earlier and filled.mbar is not None:
        lines.append(f"  slot:   filled on {filled.mbar.name} phase {filled.phase}, at {sites.place(filled.site)}")
    lines += [f"  {told.cause}", f"  mend:   {told.mend}"]
    found = Report(told.hazard, "\n".join(lines), report.party(later, span=(lo, hi)), report.party(earlier, span=(lo, hi)),
                   cause=told.cause, mend=told.mend, kernel=report.kernel_of(sm))
    return report.failed(PipelineRace, found, None if later.site is None else sites.line_of(later.site))


def unwritten(sm: SM, access: Access, lo: int, hi: int, since: str, mend: str) -> SimulationError:
    """`access` reads SMEM[lo:hi), which nobody has written; in a pipeline's slot: before its first tile is on its way."""
    what = f"{access.describe()} reads SMEM[{lo}:{hi}), which holds bytes that nobody has written{since}"
    found = report.slot_of(sm, lo)
    if found is None or found[0].written:
        return report.race(access, what, hazard="uninitialised-read", span=(lo, hi),
                           mend=mend or "store to them, or load them and wait for the copy, before they are read")
    plan, slot = found
    loader = next((agent for agent in sm.warpgroups if agent.role == "memory" and not plan.private), access.agent)
    ready = _barrier(sm, plan, lo, "ready")
    barrier = f"ready[{slot}] of {plan.name}" if ready is None else ready.name
    before = Party("TMA load that has yet to be issued", loader.warpgroup, loader.role, loader.cta, report.lines_of(loader),
                   plan.name, slot, slot, barrier, 0, lo, hi)
    return report.race(access, what, hazard="read-before-ready", span=(lo, hi), before=before,
                       mend=f"wait for {barrier}, phase 0{_by_hand(plan)}, before step {slot} reads slot {slot}")


def _barrier(sm: SM, plan: RingPlan, lo: int, kind: str) -> Mbarrier | None:
    """The mbarrier of a kind of what lies at an address in a ring's slots."""
    stage, within = divmod(lo - plan.base, plan.stage_stride)
    part = sum(offset <= within for offset in plan.offsets) - 1
    first = plan.barrier_at(kind, part) + stage // plan.slots * plan.barrier_bytes_of_one
    return sm.mbarriers.get(first + 8 * (stage % plan.slots))


def _by_hand(plan: RingPlan) -> str:
    return " (barrier_wait in the body)" if "ready" in plan.manual else ""


def _why(this: _Conflict) -> _Told:
    """Which hazard, what is not ordered, how to mend it."""
    earlier, later = this.earlier, this.later
    if later.kind == "TMA load" and later.agent.sm is not this.sm:
        return _Told("refilled-while-read", f"nothing tells {later.agent.title} that CTA {this.sm.cta} has released these bytes",
                     "every CTA that a slot is filled in releases it to each that fills it: one arrival a warp on the consumed "
                     "barrier of each, whose count is that of all of them")
    if earlier.kind == "st.async" or later.kind == "st.async":
        return _sent(this)
    if earlier.kind == "TMA load":
        return _not_landed(this)
    if earlier.kind == "TMA store":
        return _store_reads(this)
    if earlier.kind == "wgmma":
        return _product_reads(this)
    if earlier.kind.endswith("write") and this.asynchronous and not this.late(clocks.GENERIC):
        return _Told("unfenced-writes", f"the writing warps did not fence: the store of {earlier.agent.title} is not visible to "
                     "the async proxy", "commit_smem (fence.proxy.async by every warp that wrote, then a barrier) before the "
                     f"{'copy' if 'TMA' in later.kind else 'wgmma'}, or before the arrival that tells of the tile")
    cause = f"no barrier orders {this.told(clocks.GENERIC)} before {later.agent.title}"
    if earlier.kind == "read" and later.kind == "TMA load":
        stale = _outdated(this, earlier) or _read_when_free(this, earlier, later)
        if stale is not None:
            return stale
        return _Told("refilled-while-read", cause, _hand_over(this))
    return _Told("unordered-accesses", cause,
                 "a barrier between the two: commit_smem within a warpgroup, barrier_arrive and barrier_wait from one to another")


def _hand_over(this: _Conflict) -> str:
    if this.earlier.agent is this.later.agent:
        return "commit_smem between the last read and the copy: a barrier of all four warps"
    return "barrier_arrive by the readers, behind their last read, and barrier_wait before the copy"


# ---- a store from another CTA of the cluster ---------------------------------------------------------------------------------
def _sent(this: _Conflict) -> _Told:
    """It fills bytes that may still be read, or is touched while it may be on its way."""
    earlier, later = this.earlier, this.later
    if later.kind == "st.async":
        return _Told("refilled-while-read", f"nothing tells {later.agent.title} that CTA {this.sm.cta} has read what was there",
                     "who reads what another CTA sends arrives on a barrier of that CTA, one arrival a warp behind its last read, "
                     "and that CTA waits for it before it sends again")
    assert earlier.mbar is not None
    landed = this.known[earlier.mbar.landed] > earlier.phase
    if landed and this.asynchronous:
        return _Told("unfenced-writes", f"st.async of {earlier.agent.title} writes as ordinary stores do, which the async proxy "
                     "does not see", "read it with ordinary loads, tile[…], by those who have waited for it")
    return _Told("read-before-ready", f"nothing tells {later.agent.title} that what {earlier.agent.title} sent has landed",
                 f"wait for {earlier.mbar.name}, phase {earlier.phase}, by every warp, before the bytes are touched")


# ---- a copy that fills -------------------------------------------------------------------------------------------------------
def _not_landed(this: _Conflict) -> _Told:
    """Bytes are touched while the copy that fills them may be on its way."""
    fill, later = this.earlier, this.later
    assert fill.mbar is not None
    cause = f"nothing tells {later.agent.title} that this copy has landed"
    ready = f"{fill.mbar.name}, phase {fill.phase}"
    if this.slot is None:
        stale = _read_when_free(this, later, fill) if later.kind in ("read", "wgmma") and fill.phase else None
        stale = stale or _filled_over(this)
        if stale is not None:
            return stale
        own = fill.mbar.observed
        return _Told("read-before-ready", cause, f"{'barrier_wait' if own else 'wait'} for {ready}, before the bytes are touched"
                     + ("" if own else "; a pipeline's tile is there for its step only"))
    plan, slot = this.slot
    loaded, step = _step_of(fill, plan, slot), _at(later, plan)
    if later.kind != "TMA load" and loaded is not None and step is not None and 0 <= loaded - plan.slots <= step < loaded:
        return _outlived(this, step, loaded - plan.slots, loaded, cause)
    if later.kind == "TMA load":
        return _Told("read-before-ready", cause, f"fill slot {slot} of {plan.name} again when {ready} has been waited for")
    reads = "it is read" if loaded is None else f"step {loaded} reads slot {slot}"
    return _Told("read-before-ready", cause, f"wait for {ready}{_by_hand(plan)}, before {reads}")


def _filled_over(this: _Conflict) -> _Told | None:
    """Another warpgroup reads what it has waited for, and these bytes have been filled again since."""
    fill, reader, read = this.earlier, this.later, this.earlier.over
    if fill.agent is reader.agent or reader.kind == "TMA load" or fill.mbar is None or read is None or read.mbar is None or any(
            this.known[index] < value for index, value in read.needs):
        return None
    free = _freed_by(this, fill)
    if free is not None and free is not fill.mbar and free.done[read.mbar.landed] > read.phase and _arrived(this.sm, reader, free):
        return _Told("read-after-release", f"{reader.agent.title} arrived on {free.name} before it reads{_untold(this)}", "read "
                     f"before the arrival on {free.name}; if the next tile is meant, wait for {fill.mbar.name}, phase {fill.phase}")
    return _Told("refilled-while-read", f"nothing tells {fill.agent.title} that {reader.agent.title} has read",
                 "barrier_arrive by the readers, behind their last read, and barrier_wait before the copy")


def _outlived(this: _Conflict, step: int, used: int, loaded: int, cause: str) -> _Told:
    """In `step` the tile of step `used` is read when its slot has been given back."""
    assert this.slot is not None
    plan, slot = this.slot
    by, late = "by barrier_arrive" if "consumed" in plan.manual else "by the ring", step - used
    told = f"slot {slot} of {plan.name} was released {by}, and step {loaded} is loaded there"
    if late <= plan.delay:
        return _Told("read-after-release", cause, f"read the tile of step {used} before barrier_arrive: {told}")
    more = f" and max_concurrent_steps={late + 1} or more" if plan.slots <= late else ""
    return _Told("read-after-release", cause, f"read the tile of step {used} in step {used + plan.delay} at the latest, or keep it "
                 f"with delay_release={late}{more}: {told}")


# ---- readers of what is filled again -----------------------------------------------------------------------------------------
def _outdated(this: _Conflict, reader: Access) -> _Told | None:
    """A read that comes before its own tile, or in a later step than it may: by the step that the reader was in."""
    if this.slot is None or this.filled is None:
        return None
    plan, slot = this.slot
    held, step = _step_of(this.filled, plan, slot), _at(reader, plan)
    if held is None or step is None or step < held:
        return None
    loaded = _step_of(this.later, plan, slot)
    cause = f"{reader.agent.title} reads in step {step} what is in slot {slot} of {plan.name} from step {held}"
    if step > held and (step - held) % plan.slots == 0:
        return _Told("read-before-ready", cause + _untold(this), f"wait for ready[{slot}] of {plan.name}, phase "
                     f"{step // plan.slots}{_by_hand(plan)}, before step {step} reads it")
    if step > held + plan.delay:
        return _outlived(this, step, held, loaded if loaded is not None else held + plan.slots, cause + _untold(this))
    return None


def _untold(this: _Conflict) -> str:
    """What the clocks say, behind what the steps say."""
    if this.earlier.kind == "wgmma":
        return f", and {this.told(clocks.DRAINED)} never told that their wgmma drained"
    if this.earlier.kind == "read":
        return f", and no barrier orders {this.told(clocks.GENERIC)} before {this.later.agent.title}"
    return f", and nothing tells {this.later.agent.title} that this copy has landed"


def _read_when_free(this: _Conflict, reader: Access, fill: Access) -> _Told | None:
    """A read by warps that had arrived before on the barrier for which the copy has waited."""
    free = _freed_by(this, fill)
    if free is None or fill.mbar is None or free is fill.mbar or free.done[fill.mbar.landed] < fill.phase:
        return None  # who arrived there had not yet waited for what is read
    if not _arrived(this.sm, reader, free):
        return None
    cause = f"{reader.agent.title} arrived on {free.name} before it reads{_untold(this)}"
    if this.slot is not None:
        plan, slot = this.slot
        loaded = plan.step_at(slot, fill.phase)
        return _outlived(this, loaded - plan.slots, loaded - plan.slots, loaded, cause)
    return _Told("read-after-release", cause, f"read before the arrival on {free.name}: it says that the bytes may be overwritten")


def _arrived(sm: SM, reader: Access, free: Mbarrier) -> bool:
    """Whether warps arrived on a barrier before they read."""
    warp = sm.clocks.index(clocks.GENERIC, reader.agent.first_warp + 3)
    epochs = reader.needs if reader.kind == "read" else ((warp, reader.epoch),)
    return any(0 < free.done[index] < epoch for index, epoch in epochs)


def _freed_by(this: _Conflict, fill: Access) -> Mbarrier | None:
    """The barrier that frees the bytes: the ring's, or the one that the copying warpgroup waited for last."""
    if this.slot is not None:
        return _barrier(this.sm, this.slot[0], this.lo, "consumed")
    if this.earlier.agent is this.later.agent or fill.wait_ is None:
        return None
    return next((mbar for mbar in this.sm.mbarriers.values() if mbar.name == fill.wait_[0]), None)


def _product_reads(this: _Conflict) -> _Told:
    """A wgmma may still read the bytes that are overwritten."""
    product, later = this.earlier, this.later
    stale = (_outdated(this, product) or _read_when_free(this, product, later)) if later.kind == "TMA load" else None
    if stale is not None:
        return stale
    late, left = this.late(clocks.DRAINED), product.agent.products.left
    cause = f"{this.told(clocks.DRAINED)} never told that their wgmma drained"
    if 0 < len(late) < 4:
        return _Told("refilled-while-read", cause, "a release by each of the four warps behind wgmma_wait: barrier_arrive, or "
                     "commit_smem before a copy of the warpgroup's own")
    where = _slot_text(this)
    groups = f"{'one group' if left == 1 else f'{left} groups'} reading {where}"
    if this.slot is not None and left > 0:
        plan, _ = this.slot
        needed = max(left, plan.delay + 1)
        more = f" and max_concurrent_steps of {needed + 1} or more" if plan.slots <= needed else ""
        less = f"wgmma_wait({plan.delay})" + (" before barrier_arrive" if "consumed" in plan.manual else " in every step")
        return _Told("refilled-while-read", cause, f"delay_release={needed}{more} is needed: wgmma_wait({left}) leaves {groups}; "
                     f"or {less}")
    if this.slot is not None:
        before = "barrier_arrive" if "consumed" in this.slot[0].manual else "the end of its step"
        return _Told("refilled-while-read", cause, f"wgmma_wait({this.slot[0].delay}) before {before}: {product.what} may still "
                     f"read {where}")
    if later.agent is product.agent:
        mend = (f"wgmma_wait(0) and commit_smem before the copy: wgmma_wait({left}) leaves {groups}" if left > 0 else
                f"wgmma_wait(0), then commit_smem, before the {'copy' if this.asynchronous else 'store'}: {product.what} may still "
                f"read {where}, and each warp knows only that its own part of the product is over")
        return _Told("refilled-while-read", cause, mend)
    waits = f"wgmma_wait({left}) leaves {groups}" if left > 0 else f"{product.what} may still read {where}"
    return _Told("refilled-while-read", cause,
                 f"wgmma_wait(0) before the release (barrier_arrive), by each of the four warps: {waits}")


def _store_reads(this: _Conflict) -> _Told:
    """A TMA store may not have read the bytes that are overwritten."""
    store = this.earlier
    cause = f"the lane of {store.agent.title} that issued the store never told that it has read its bytes"
    newer = store.agent.bulk.groups_since(store.needs[0][1])
    mend = ("commit_smem_to_gmem_group behind the store, then " if newer is None else "") + (
        f"wait_smem_to_gmem({newer or 0}, wait_read_only=True) behind the group's commit, before the bytes are written again "
        "(bulk_wait(pending, read=True) by the lane that stored, then a barrier)")
    return _Told("refilled-while-read" if this.later.kind == "TMA load" else "store-source-reused", cause, mend)


# ---- steps -------------------------------------------------------------------------------------------------------------------
def _slot_text(this: _Conflict) -> str:
    """``slot 2 of a, b @ gemm.py:41``, or the bytes."""
    if this.slot is not None:
        return f"slot {this.slot[1]} of {this.slot[0].name}"
    slot, ring = sites.noted(this.earlier.note_, "slot"), None
    if this.earlier.note_ is not None:
        ring = this.earlier.note_[1].get("ring")
    return f"SMEM[{this.lo}:{this.hi})" if slot is None or hasattr(this.sm.unit, "slot_at") else (
        f"slot {slot}" + (f" of {ring}" if ring else ""))


def _step_of(fill: Access, plan: RingPlan, slot: int) -> int | None:
    """The ring's step whose tile a copy brings to a slot."""
    at = None if fill.mbar is None else report.place_of(fill.agent.sm, fill.mbar)
    if at is None or at.plan is None or (at.plan.barriers, at.slot) != (plan.barriers, slot):
        return None
    return plan.step_at(slot, fill.phase)


def _at(access: Access, plan: RingPlan) -> int | None:
    """The ring's step in which a warpgroup was, as its notes tell; None where the last one is of another ring."""
    if access.note_ is None:
        return None
    ring, name = str(access.note_[1].get("ring")), report.ring_name(access.agent.sm, plan, access.note_)
    same = ring == name or (plan.dims is None and ring.rpartition(" @ ")[2] == plan.name.rpartition(" @ ")[2])
    return sites.noted(access.note_, "step") if same else None
