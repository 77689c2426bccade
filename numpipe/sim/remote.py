"""st.async: ordinary stores to the shared memory of another CTA of the cluster, which complete bytes on an mbarrier there.

They are under way like a copy, and land at any moment until their mbarrier's phase completes; each warp's for itself. Who waits for
that phase may read them with ordinary loads, and knows that phases for which their sender had waited are over; of what the sender
wrote elsewhere it hears nothing. The async proxy does not see them: nothing that the reader does could say that they are fenced.

PTX ISA, "st.async"; "Memory Consistency Model: Proxies".
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from . import barriers, cluster, generic, mbarrier, report
from .clocks import UNREACHABLE, Vector
from .schedule import Task
from .state import SM, Access, Mbarrier, Warpgroup


def send(who: Warpgroup, chunks: npt.NDArray[Any], values: npt.NDArray[Any], rank: int, mbar: int, what: str) -> None:
    """Each warp its row of 16-byte chunks, to these addresses in the CTA of a rank; on the mbarrier at `mbar` there."""
    if not 0 <= rank < len(who.sm.peers) or who.sm.peers[rank] is who.sm:
        raise report.illegal(who, f"st.async of {what} to rank {rank}: this CTA is rank {who.rank} of a cluster of "
                             f"{len(who.sm.peers)}", mend="the rank of another CTA of the cluster")
    chunks, values = generic.checked(who, chunks, values, what)
    who.breathe()
    to = who.sm.peers[rank]
    on = barriers.find(who, mbar, f"st.async of {what}", of=to)
    landings: list[tuple[Access, npt.NDArray[np.int64], npt.NDArray[Any]]] = []
    for warp in who.warps():
        # it lands in the phase that is going on: a CTA sends when it knows that what it sent before has been read
        access = Access(who, "st.async", what, ((on.landed, on.phase + 1),), ((on.landed, on.phase + 1), UNREACHABLE), on,
                        on.phase)
        cluster.reach(to, who, f"st.async of {what}", (), access.site)
        first, touched = generic.intervals_of(chunks[warp])
        known = who.vectors[warp].tolist()
        for lo, hi in touched:
            to.memory.write(access, first + lo, first + hi, known, False)
        on.copies += 1
        on.last = access
        landings.append((access, chunks[warp], values[warp]))
    sm, told = who.sm, who.sm.clocks.phases(np.minimum.reduce(who.vectors))
    for landed in landings:
        done = who.time + sm.scheduler.takes(sm.costs.remote)
        sm.scheduler.push(done, _landing(to, on, *landed, told, done), "arrive")
    if sm.trace is not None:
        sm.trace.add(who, who.time, who.time, "write", what=f"{what} to rank {rank}", nbytes=values.nbytes)
    who.breathe()


def _landing(to: SM, mbar: Mbarrier, access: Access, chunks: npt.NDArray[np.int64], values: npt.NDArray[Any], told: Vector,
             done: int) -> Task:
    def land(_: int) -> None:
        cluster.reach(to, access.agent, f"st.async of {access.what}", (), access.site)
        mbarrier.learn(mbar, told)
        to.memory.chunks[chunks >> 4] = values
        mbarrier.land(mbar, access, values.nbytes, done)

    return land
