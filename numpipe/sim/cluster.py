"""Clusters: CTAs that run at once, arrive on each other's mbarriers, and meet at the barrier of the cluster.

A remote arrival is under way for a while, like a copy: it counts at some moment before those who wait for it go on, and at the
latest when its sender has arrived at the cluster's barrier. What its sender knew when it was sent is what it tells. It touches
memory of another CTA, which must not have ended: nothing but a barrier that both have come to says so.

PTX ISA, "mbarrier.arrive": .shared::cluster; "barrier.cluster"; "Cluster of Cooperative Thread Arrays".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..diagnostics.errors import SimulationError
from ..diagnostics.reports import Party
from . import barriers, mbarrier, report, sites
from .clocks import GENERIC, Need, Vector
from .state import SM, Mbarrier, Meeting, Warpgroup

WINDOW = 1 << 24
"""bytes of the cluster's window for each CTA"""


def window(who: Warpgroup, address: int, rank: int) -> int:
    """mapa"""
    if not 0 <= rank < len(who.sm.peers):
        raise report.illegal(who, f"mapa of SMEM[{address}] for rank {rank}, but the cluster has {len(who.sm.peers)} "
                             f"CTA{'s' * (len(who.sm.peers) > 1)}", mend="a rank of the cluster: 0 … its size - 1")
    return (int(rank) + 1) * WINDOW + int(address)


def members(who: Warpgroup, ctas: int) -> list[SM]:
    """The SMs of a cluster whose ranks are bits of `ctas`."""
    if not 0 < ctas < 1 << len(who.sm.peers):
        raise report.illegal(who, f"a multicast to the CTAs {ctas:#b}, but the cluster has {len(who.sm.peers)}",
                             mend="a bit for each rank of the cluster that is to get a copy")
    return [sm for rank, sm in enumerate(who.sm.peers) if ctas >> rank & 1]


class Sent:
    """Remote arrivals of the executing lanes under way: `vector` is what their warps know together, `known` what each does."""

    def __init__(self, who: Warpgroup, mbars: list[Mbarrier]) -> None:
        self.who, self.mbars, self.count = who, mbars, who.lane_count()
        self.known = who.known()
        self.vector: Vector = who.sm.clocks.vector()
        self.site = sites.user_site()
        self.needs = tuple((who.sm.clocks.index(GENERIC, who.first_warp + warp), who.epoch(warp)) for warp in who.warps())
        who.release_into(self.vector)
        who.remote.append(self)
        if who.sm.trace is not None:
            for mbar in mbars:
                who.sm.trace.add(who, who.time, who.time + who.sm.costs.issue, "arrive", mbar=mbar.name)
        who.elapse(who.sm.costs.issue)
        if all(mbar.sm is who.sm for mbar in mbars):
            self.land(who.time)
        else:
            arrives = who.time + who.sm.scheduler.takes(who.sm.costs.remote)
            who.sm.scheduler.push(arrives, lambda _: self.land(arrives), "arrive")
        who.breathe()

    def land(self, time: int) -> None:
        """They count."""
        if self not in self.who.remote:
            return  # the sender has come to the cluster's barrier
        self.who.remote.remove(self)
        for mbar in self.mbars:
            reach(mbar.sm, self.who, f"mbar_arrive_remote on {mbar.name}", self.needs, self.site)
            mbarrier.count_arrival(mbar, self.who, self.count, self.known, self.vector, time, self.site)


def arrive_remote(who: Warpgroup, address: int) -> None:
    rank, offset = divmod(int(address), WINDOW)
    if not 0 < rank <= len(who.sm.peers):
        raise report.illegal(who, f"mbar_arrive_remote at address {address}, which is no address in the cluster's window",
                             mend="cluster.map_shared(address, rank) of the mbarrier's address")
    Sent(who, [barriers.find(who, offset, "mbar_arrive_remote", of=who.sm.peers[rank - 1])])


def arrive_at(who: Warpgroup, address: int, ranks: Sequence[int], alike: bool) -> None:
    mbars = [barriers.find(who, address, "mbar_arrive_remote", of=who.sm.peers[rank]) for rank in ranks]
    for mbar in mbars:
        mbar.twins = mbars if alike else ()
    Sent(who, mbars)


# ---- memory of a CTA that may have ended -----------------------------------------------------------------------------
def reach(sm: SM, who: Warpgroup, what: str, needs: tuple[Need, ...], site: sites.Site) -> None:
    """A warpgroup of another CTA touches the shared memory of `sm`: what is done there has to be over when it ends."""
    if sm is who.sm:
        return
    if sm.ended:
        raise _left(sm, who, what, site)
    for index, value in needs:
        sm.reached[index] = value, who, what, site  # the newest of a warp comes after its earlier ones


def check_reached(sm: SM) -> None:
    """When a CTA has ended: everything that others did in its memory was known there to be over."""
    sm.ended = True
    known = np.maximum.reduce([np.maximum.reduce(w.vectors) for w in sm.warpgroups])
    for index, (value, who, what, site) in sm.reached.items():
        if known[index] < value:
            raise _left(sm, who, what, site)


def _left(sm: SM, who: Warpgroup, what: str, site: sites.Site) -> SimulationError:
    return report.race(who, f"{what} in shared memory of CTA {sm.cta}, which may have ended: nothing makes it wait for this; all "
                       "warpgroups of the cluster meet, cluster.arrive() and cluster.wait(), before one ends", site,
                       hazard="exit-in-flight", before=Party("ends", sm.warpgroups[-1].warpgroup, sm.warpgroups[-1].role, sm.cta))


# ---- the barrier of the cluster --------------------------------------------------------------------------------------
class ClusterMeeting(Meeting):
    """One use of the cluster's barrier: why a warpgroup is blocked in cluster_wait."""

    def __init__(self, sm: SM) -> None:
        super().__init__("cluster", sm.clocks)
        self.sm = sm

    def text(self) -> str:
        of = sum(len(sm.warpgroups) for sm in self.sm.peers)
        missing = [f"{w.name} of CTA {w.cta}" for sm in self.sm.peers for w in sm.warpgroups
                   if w not in self.arrived and not w.greenlet.dead]
        return f"barrier.cluster: {len(self.arrived)} of {of} warpgroups have arrived, not {', '.join(missing)}"

    def settle(self) -> None:
        """Complete it if all have arrived who have not ended."""
        if self.complete or not all(w.over or w in self.arrived for sm in self.sm.peers for w in sm.warpgroups):
            return
        for sm in self.sm.peers:
            sm.meeting = ClusterMeeting(sm) if sm is self.sm.peers[0] else sm.peers[0].meeting
            sm.progress += 1
        self.end()


def arrive(who: Warpgroup) -> None:
    report.collective(who, "cluster_arrive")
    who.breathe()
    if who.met is not None:
        raise report.violation(who, "cluster_arrive for the second time; cluster_wait before the next cluster_arrive",
                               hazard="too-many-arrivals")
    for sent in list(who.remote):
        sent.land(who.time + who.sm.costs.issue)
    meeting = who.met = who.sm.peers[0].meeting
    meeting.arrive(who)
    meeting.settle()


def wait(who: Warpgroup) -> None:
    report.collective(who, "cluster_wait")
    meeting, who.met = who.met, None
    if meeting is None:
        raise report.violation(who, "cluster_wait without a cluster_arrive; cluster_arrive first", hazard="too-few-arrivals")
    meeting.meet(who)
    who.elapse(who.sm.costs.remote)


# ---- what the CTAs of a cluster have in common -----------------------------------------------------------------------
class Agreed:
    """What the first of several CTAs brought, and how many are still to come."""

    def __init__(self, who: Warpgroup, value: Any, parties: int) -> None:
        self.who, self.value, self.left = who, value, parties - 1
        self.site = sites.user_site()


def agree(who: Warpgroup, key: tuple[Any, ...], value: Any, parties: int, what: str) -> None:
    agreed = who.sm.peers[0].agreed
    first = agreed.get(key)
    if first is None:
        agreed[key] = Agreed(who, value, parties)
        return
    if first.value != value:
        raise report.race(who, f"{what} is {value} in CTA {who.cta} and {first.value} in CTA {first.who.cta}, and each loads a "
                               "share of the block for both: the tile would be of two blocks; the same start for all CTAs along "
                               "collective_axes, or leave collective_axes out", hazard="multicast-mismatch",
                          before=report.party(first.who, f"loads a share of the block at {first.value}", first.site))
    first.left -= 1
    if not first.left:
        del agreed[key]
