"""The protocol of a ring as data: the mbarriers of its slots, who arrives on them and how often,
and the events that warpgroups record.

The ring, the plan of its addresses, traces, pictures, profiles and reports read these rows. The
order of operations within a step is code (`numpipe.language.pipeline.ring`). The tests state the
rules a second time, on purpose (tests/traces/legal.py). There are three tables:

============  ======================================================================================
`BARRIERS`    the mbarriers of a slot, in address order
`MOMENTS`     the recorded moments of a pipeline, a region or a loop over tiles; the number of a row
              is the number of a profile's event
`KINDS`       the kinds of events that take time of a warpgroup, or of a unit of the SM
============  ======================================================================================
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from .roles import COMPUTE, MEMORY, Role

WARPS = 4
"""Arrivals of a warpgroup: lane 0 of each warp, because each warp waits for products separately."""
COMPUTING = "compute"
"""The moment when a warpgroup begins to use a step's tiles, and its time from then on."""


@dataclass(frozen=True)
class SlotBarrier:
    """An mbarrier of each slot of a ring or, if the body uses it, of each operand in the slot.

    completes  the role whose arrivals complete a phase: the memory role, or all compute warpgroups
               that use the slot
    arrivals   how often each of them arrives in a phase
    ahead      a step waits for phase ``step // slots + ahead``
    span       how a wait for it is classified, in `spans.MEANS`
    option     the option of a pipeline by which the body uses it itself, with numpipe's operation
               `use`
    once       the text of a report against arriving twice; it names slot, step, number (the slot's)
               and phase
    """

    name: str
    completes: Role
    arrivals: int
    ahead: int
    span: str
    option: str
    use: str
    once: str


BARRIERS = {
    row.name: row
    for row in (
        SlotBarrier(
            name="ready",
            completes=MEMORY,
            arrivals=1,
            ahead=0,
            span="data",
            option="manual_produced_barriers",
            use="barrier_wait",
            once="fill {slot} for step {step} after a wait for consumed[{number}], phase {phase}",
        ),
        SlotBarrier(
            name="consumed",
            completes=COMPUTE,
            arrivals=WARPS,
            ahead=-1,
            span="slot",
            option="manual_consumed_barriers",
            use="barrier_arrive",
            once="release {slot} once per step, each time after a wait for its ready[{number}]",
        ),
    )
}


@dataclass(frozen=True)
class Ring:
    """A ring that events name: a load ring, or the ring of an `output`.

    index    rings with the same index are one ring, which several pipelines use
    private  whether each warpgroup has its own
    turns    whether compute warpgroups take turns on its steps, so that each step has one reader
    """

    name: str
    index: int
    slots: int
    private: bool
    output: bool
    turns: bool = False


OF_A_RING = re.compile(
    rf"(?P<kind>{'|'.join(BARRIERS)})\[(?P<slot>\d+)\](?: for \S+ '\w+')? of (?P<ring>.+? @ .+?)"
    r"(?: of warpgroup \d+)?"
)
"""The name of a slot's mbarrier."""


@dataclass(frozen=True)
class Moment:
    """A moment that a warpgroup records.

    of         the operands of a ring that it concerns: a barrier's name, "parts", or "step" for
               all; "" if it concerns no ring
    computing  whether the warpgroup computes: from here on ("begins"), no longer ("ends"), no
               longer if it was this step ("releases"); "": unchanged
    waits, waited  the barrier of the slot that the warpgroup waits for from here on, and has waited
               for
    opens, closes  the kind of event, of `KINDS`, that begins and ends here on a GPU; the simulated
               SM determines it itself
    arrives    the barrier that the warpgroup arrives on here
    lasts      whether the event lasts until the next one, in the Trace Event Format
    """

    name: str
    of: str = ""
    computing: Literal["begins", "ends", "releases", ""] = "ends"
    waits: str = ""
    waited: str = ""
    opens: str = ""
    closes: str = ""
    arrives: str = ""
    lasts: bool = False

    @property
    def noted(self) -> bool:
        """Whether the moment is itself an event of a trace."""
        return not (self.opens or self.closes)


MOMENTS = {
    row.name: row
    for row in (
        Moment("fill", "parts", "", waits="consumed", lasts=True),
        Moment("issue", "parts", waited="consumed", opens="issue"),
        Moment("issued", "parts", closes="issue"),
        Moment("wait", "ready", waits="ready"),
        Moment(COMPUTING, "ready", "begins", waited="ready", lasts=True),
        Moment("release", "consumed", "releases", arrives="consumed"),
        Moment("store", "step"),
        Moment("begin", "step"),
        Moment("store begin", opens="write"),
        Moment("store end", closes="write"),
        Moment("tile begin"),
        Moment("region begin", computing=""),
        Moment("region end", computing=""),
        Moment("await", computing="", opens="semaphore"),
        Moment("awaited", computing="", closes="semaphore"),
    )
}


@dataclass(frozen=True)
class Kind:
    """A kind of event that takes time.

    span   how it is classified in a warpgroup's time, in `spans.MEANS`; "": not at all
    title  a wait's title in the Trace Event Format
    unit   the unit of the SM that it is shown on; "": the warpgroup itself
    """

    span: str = ""
    title: str = ""
    unit: str = ""


KINDS = {
    "wait": Kind("barrier", "wait for"),
    "barrier": Kind("barrier", "named barrier"),
    "registers": Kind("barrier", "setmaxnreg"),
    "drain": Kind(COMPUTING, "wgmma_wait"),
    "flush": Kind("store", "wait for stores"),
    "semaphore": Kind("barrier", "wait for a semaphore"),
    "begin": Kind("barrier", "wait for the launches of all GPUs"),
    "issue": Kind("issue"),
    "read": Kind("load"),
    "write": Kind("store"),
    "load": Kind(unit="copy in"),
    "store": Kind(unit="copy out"),
    "mma": Kind(unit="tensor core"),
}
