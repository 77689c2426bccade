"""Clusters: CTAs that run at the same time, arrive on each other's mbarriers, store to each other,
and meet at the cluster barrier.

A remote arrival is in flight for a while, like a copy. It counts at some moment before the
warpgroups that wait for it continue, and at the latest when its sender has arrived at the cluster
barrier. It carries what its sender knew when it was sent. It accesses the memory of another CTA,
which must not have ended; only a barrier that both CTAs have reached guarantees that.

st.async stores to another CTA's shared memory and completes bytes on an mbarrier there, for each
warp separately, at any moment until the phase completes. A warpgroup that waits for that phase may
read the bytes with ordinary loads, and knows that the phases that the sender had waited for are
over. It does not learn what the sender wrote elsewhere. The async proxy does not see these stores,
and no fence of the reader could change that.

A load from another CTA's shared memory is an ordinary load. It sees what the warps of that CTA
stored if they have released it at cluster scope (TOLD). That CTA may end or overwrite the data only
when it knows that the load is over.

PTX ISA, "mbarrier.arrive": .shared::cluster; "st.async"; "barrier.cluster"; "Memory Consistency
Model: Proxies".
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..diagnostics.errors import SimulationError
from . import generic_proxy, mbarriers, race_report, sites
from .boxes import intervals
from .clocks import GENERIC, TOLD, UNREACHABLE, Need, Vector
from .footprints import ARRIVE, AWAIT, TEST
from .state import SM, Access, Mbarrier, Meeting, Warpgroup, side

WINDOW = 1 << 24
"""Bytes of the cluster's window for each CTA."""


def _peer(who: Warpgroup, rank: int, what: str) -> SM:
    """Return the SM of a rank of the cluster, possibly its own; `what` names what is sent there."""
    if not 0 <= rank < len(who.sm.peers):
        raise race_report.illegal(
            who,
            f"{what} rank {rank}: this CTA is rank {who.rank} of a cluster of {len(who.sm.peers)}",
            fix="the rank of a CTA of the cluster",
        )
    return who.sm.peers[rank]


def window(who: Warpgroup, address: int, rank: int) -> int:
    """Return the address in the cluster's window of an address in the CTA of a rank (mapa)."""
    if not 0 <= rank < len(who.sm.peers):
        raise race_report.illegal(
            who,
            f"mapa of SMEM[{address}] for rank {rank}, but the cluster has {len(who.sm.peers)} "
            f"CTA{'s' * (len(who.sm.peers) > 1)}",
            fix="a rank of the cluster: 0 … its size - 1",
        )
    return (int(rank) + 1) * WINDOW + int(address)


class RemoteArrival:
    """Arrivals of the executing lanes on other CTAs' mbarriers, in flight.

    vector   what the lanes' warps know together
    known    what each of them knows
    nbytes   bytes that each of them announces
    wide     whether the arrivals release to the cluster, and not only within the receiving CTA
    """

    def __init__(
        self, who: Warpgroup, mbars: list[Mbarrier], nbytes: int = 0, wide: bool = False
    ) -> None:
        self.who, self.mbars, self.count, self.nbytes = who, mbars, who.lane_count(), nbytes
        self.known = who.known()
        self.vector: Vector = who.clocks.vector()
        self.site = sites.user_site()
        self.needs = who.needs()
        who.release_into(self.vector)
        self.abroad = _tell(who, self.vector) if wide else who.clocks.untold(self.vector)
        who.remote_arrivals.append(self)
        for mbar in mbars:
            who.record(who.time, who.time + who.costs.issue, "arrive", mbar=mbar.name)
        who.elapse_issue()
        if all(mbar.sm is who.sm for mbar in mbars):
            self.land(who.time)
        else:
            arrives = who.time + who.scheduler.takes(who.costs.remote)
            who.scheduler.push(arrives, lambda _: self.land(arrives), "arrive")
        who.breathe()

    def land(self, time: int) -> None:
        """Count the arrivals, unless the sender has already done so at the cluster barrier."""
        self.who.scheduler.touch(("sent", self.who.first_warp), ARRIVE)
        if self not in self.who.remote_arrivals:
            return
        self.who.remote_arrivals.remove(self)
        for mbar in self.mbars:
            reach(mbar.sm, self.who, f"mbar_arrive_remote on {mbar.name}", self.needs, self.site)
            mbarriers.learn(mbar, self.vector if mbar.sm is self.who.sm else self.abroad)
            mbarriers.count_arrivals(
                mbar,
                self.who,
                self.count,
                self.known[mbar.landed],
                time,
                self.site,
                self.count * self.nbytes,
            )


def _tell(who: Warpgroup, vector: Vector) -> Vector:
    """Add to a vector that releases to the cluster that its CTAs may load what the warps of this
    CTA have stored."""
    told, generic = _of_warps(who.sm)
    np.maximum(vector[told], vector[generic], out=vector[told])
    return vector


def _of_warps(sm: SM) -> tuple[slice, slice]:
    """Return the indices of the counters TOLD, and of GENERIC, of the warps of a CTA."""
    first, count = sm.warpgroups[0].first_warp, 4 * len(sm.warpgroups)
    return sm.clocks.of_warps(TOLD, first, count), sm.clocks.of_warps(GENERIC, first, count)


def arrive_remote(who: Warpgroup, address: int, wide: bool = False) -> None:
    RemoteArrival(who, [_in_window(who, address, "mbar_arrive_remote")], wide=wide)


def arrive_expect_tx_remote(who: Warpgroup, address: int, nbytes: int) -> None:
    RemoteArrival(who, [_in_window(who, address, "mbar_arrive_expect_tx_remote")], int(nbytes))


def _in_window(who: Warpgroup, address: int, operation: str) -> Mbarrier:
    """Return the mbarrier at an address in the cluster's window."""
    rank, offset = divmod(int(address), WINDOW)
    if not 0 < rank <= len(who.sm.peers):
        raise race_report.illegal(
            who,
            f"{operation} at address {address}, which is not in the cluster's window",
            fix="cluster.map_shared(address, rank) of the mbarrier's address",
        )
    return mbarriers.find(who, offset, operation, of=who.sm.peers[rank - 1])


def arrive_at(
    who: Warpgroup, address: int, ranks: Sequence[int], alike: bool, wide: bool = False
) -> None:
    mbars = [
        mbarriers.find(who, address, "mbar_arrive_remote", of=who.sm.peers[rank]) for rank in ranks
    ]
    for mbar in mbars:
        mbar.twins = mbars if alike else ()
    RemoteArrival(who, mbars, wide=wide)


# ---- stores to the shared memory of another CTA --------------------------------------------------
def send(
    who: Warpgroup,
    chunks: np.ndarray,
    values: np.ndarray,
    rank: int,
    mbar: int,
    what: str,
) -> None:
    """Store each warp's row of chunks, of 4 or 16 bytes, to the CTA of a rank, possibly its own,
    and complete the bytes on mbarrier `mbar` there."""
    sm, to = who.sm, _peer(who, rank, f"st.async of {what} to")
    chunks, values = generic_proxy.checked(who, chunks, values, what)
    nbytes = values.itemsize
    who.breathe()
    on = mbarriers.find(who, mbar, f"st.async of {what}", of=to)
    phases = sm.clocks.phases(who.vectors)
    for warp in who.warps():
        # The bytes land in the present phase: a CTA sends only when it knows that its previous data
        # has been read.
        need = on.landed, on.phase + 1
        access = Access(who, "st.async", what, (need,), (need, UNREACHABLE), on, on.phase)
        reach(to, who, f"st.async of {what}", (), access.site)
        first, touched = generic_proxy.intervals_of(chunks[warp], nbytes)
        known = who.vectors[warp].tolist()
        for lo, hi in touched:
            to.memory.write(access, first + lo, first + hi, known, False)
        on.copies += 1
        on.last = access
        done = who.time + sm.scheduler.takes(sm.costs.remote)
        write = functools.partial(
            land,
            to,
            on,
            access,
            f"st.async of {what}",
            phases,
            chunks[warp] // nbytes,
            values[warp].copy,
            done,
        )
        sm.scheduler.push(done, write, "arrive")
    who.record(who.time, who.time, "write", what=f"{what} to rank {rank}", nbytes=values.nbytes)
    who.breathe()


def land(
    to: SM,
    mbar: Mbarrier,
    access: Access,
    what: str,
    known: Vector | None,
    index: np.ndarray | slice,
    fetch: Callable[[], np.ndarray],
    done: int,
    _: int,
) -> None:
    """Write the chunks that a copy, or an st.async, brings to a CTA, and add what the
    sender knew to its mbarrier."""
    reach(to, access.agent, what, (), access.site)
    if known is not None:
        mbarriers.learn(mbar, known)
    chunks = fetch()
    to.memory.bytes.view(chunks.dtype)[index] = chunks
    mbarriers.land(mbar, access, chunks.nbytes, done)


# ---- loads from the shared memory of another CTA -------------------------------------------------
REMOTE = "remote load"


def fetch(who: Warpgroup, addresses: np.ndarray, nbytes: int, rank: int, what: str) -> np.ndarray:
    """Return the `nbytes` at each address (warps, n) of the CTA of a rank, possibly this one."""
    of, clocks = _peer(who, int(rank), f"{what} of"), who.clocks
    of.memory.check_range(who, int(addresses.min()), int(addresses.max()) + nbytes, what)
    who.elapse(who.costs.remote - (-nbytes * addresses.size // who.costs.generic_bytes))
    who.breathe()
    told, generic = _of_warps(of)
    for warp, own in zip(who.warps()[: len(addresses)], addresses, strict=True):
        access = Access(
            who, REMOTE, what, ((clocks.index(GENERIC, who.first_warp + warp), who.epoch(warp)),)
        )
        seen = who.vectors[warp].copy()
        if of is not who.sm:  # it sees only those stores that the warps released to the cluster
            reach(of, who, f"a remote load ({what})", access.needs, access.site)
            seen[generic] = seen[told]
        for lo, hi in intervals(own, nbytes):
            of.memory.read(access, ("read", who.first_warp + warp), lo, hi, seen.tolist(), False)
    found: np.ndarray = of.memory.bytes[addresses[..., None] + np.arange(nbytes)]
    return found


# ---- memory of a CTA that may have ended ---------------------------------------------------------
def reach(sm: SM, who: Warpgroup, what: str, needs: tuple[Need, ...], site: sites.Site) -> None:
    """Record that a warpgroup of another CTA accesses the shared memory of `sm`: the access must be
    over when `sm` ends."""
    if sm is who.sm:
        return
    sm.scheduler.touch(("end", sm.place), ARRIVE)
    if sm.ended:
        raise _left(sm, who, what, site)
    sm.reached.add(who, what, needs, site)


def check_reached(sm: SM) -> None:
    """Raise PipelineRace if a CTA ends without knowing that other CTAs' accesses to its memory, and
    its copies to them, are over.

    (CUDA C++ Programming Guide, "Distributed Shared Memory": all of its operations happen before a
    thread block exits.)
    """
    sm.ended = True
    for act in sm.reached.unknown(sm.warpgroups):
        raise _left(sm, *act)
    for who, what, site in sm.sent.unknown(sm.warpgroups):
        raise race_report.race(
            who,
            f"{what}, which may be in flight when CTA {sm.cta} ends: the CTA does not wait for it",
            site,
            hazard="exit-in-flight",
            fix=_MEET,
            before=side(sm.warpgroups[-1], "ends"),
        )


_MEET = (
    "all warpgroups of the cluster meet with cluster.arrive() and cluster.wait() before one ends"
)


def _left(sm: SM, who: Warpgroup, what: str, site: sites.Site) -> SimulationError:
    fix = (
        "call numpipe.combine(acc, part, axis=…) in all CTAs of the cluster"
        if "partial sums" in what
        else _MEET
    )
    return race_report.race(
        who,
        f"{what} in shared memory of CTA {sm.cta}, which may have ended: it does not "
        "wait for this access",
        site,
        hazard="exit-in-flight",
        fix=fix,
        before=side(sm.warpgroups[-1], "ends"),
    )


# ---- the barrier of the cluster ------------------------------------------------------------------
class ClusterMeeting(Meeting):
    """One use of the cluster barrier, at which a warpgroup is blocked in cluster_wait."""

    def text(self) -> str:
        of = sum(len(sm.warpgroups) for sm in self.sm.peers)
        missing = [
            f"{w.name} of {w.sm.where}"
            for sm in self.sm.peers
            for w in sm.warpgroups
            if w not in self.arrived and not w.greenlet.dead
        ]
        return (
            f"barrier.cluster: {len(self.arrived)} of {of} warpgroups have arrived, not "
            f"{', '.join(missing)}"
        )

    @property
    def missing(self) -> int:
        return sum(not (w.over or w in self.arrived) for sm in self.sm.peers for w in sm.warpgroups)

    def settle(self) -> None:
        """Complete the use if all warpgroups that have not ended have arrived."""
        if self.complete or self.missing:
            return
        self.sm.meeting = ClusterMeeting("cluster", self.sm, self.thing, self.number + 1)
        self.sm.progress += 1
        self.end()


def leave(who: Warpgroup) -> None:
    """Count a warpgroup that has ended as arrived from now on. After the last warpgroup of its CTA,
    nobody may access the CTA's memory."""
    meeting: ClusterMeeting = who.sm.peers[0].meeting
    again = who in meeting.arrived  # its end then counts from the next use on
    who.scheduler.touch(
        meeting.thing,
        ARRIVE,
        meeting.number + again,
        None if again else (1, 0),
        (meeting.missing + 1, 0),
    )
    meeting.settle()
    if all(w.over for w in who.sm.warpgroups):
        who.scheduler.touch(("end", who.place), TEST)
        check_reached(who.sm)


def arrive(who: Warpgroup) -> None:
    race_report.collective(who, "cluster_arrive")
    who.breathe(lambda: not who.remote_arrivals)
    who.scheduler.touch(("sent", who.first_warp), AWAIT)
    if who.cluster_meeting is not None:
        raise race_report.violation(
            who,
            "cluster_arrive for the second time; cluster_wait before the next cluster_arrive",
            hazard="too-many-arrivals",
        )
    for sent in list(who.remote_arrivals):
        sent.land(who.time + who.costs.issue)
    meeting = who.cluster_meeting = who.sm.peers[0].meeting
    who.elapse_issue()
    meeting.arrive(who, meeting.missing)
    _tell(who, meeting.vector)
    meeting.settle()


def wait(who: Warpgroup) -> None:
    race_report.collective(who, "cluster_wait")
    meeting, who.cluster_meeting = who.cluster_meeting, None
    if meeting is None:
        raise race_report.violation(
            who,
            "cluster_wait without a cluster_arrive; cluster_arrive first",
            hazard="too-few-arrivals",
        )
    meeting.meet(who)
    who.elapse(who.costs.remote)


# ---- what the CTAs of a cluster have in common ---------------------------------------------------
class Agreement(NamedTuple):
    """A value that the first of several CTAs supplied, and how many CTAs are still to come."""

    who: Warpgroup
    value: Any
    left: int
    site: sites.Site


def agree(who: Warpgroup, key: tuple, value: Any, parties: int, what: str) -> None:
    """Match the n-th arrival of a CTA with a key with the n-th arrival of the other CTAs."""
    who.scheduler.touch(("agreed",), ARRIVE)
    agreed, times = who.sm.peers[0].agreed, who.sm.came
    times[key] = times.get(key, 0) + 1
    key = *key, times[key]
    first = agreed.pop(key, None) or Agreement(who, value, parties, sites.user_site())
    if first.value != value:
        raise race_report.race(
            who,
            f"{what} is {value} in CTA {who.cta} and {first.value} in CTA {first.who.cta}, and "
            "each loads a share of the block for both: the tile would mix two blocks; use the same "
            "start for all CTAs along collective_axes, or leave collective_axes out",
            hazard="multicast-mismatch",
            before=race_report.party(
                first.who, f"loads a share of the block at {first.value}", first.site
            ),
        )
    if first.left > 1:
        agreed[key] = first._replace(left=first.left - 1)
