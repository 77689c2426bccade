"""Predict how long a kernel takes and why, from the times of its longest SM, L2, HBM and the link,
and from the same with each cost removed.

::

    step      = products + turn                          of the compute role
    a slot    : latency + copy + its step                is reused every `slots` steps
    CTA       = steps x max(step, slot / slots) + tiles x (drain + store) + start
    start     = first tile + last store                  overlaps only with another CTA on its SM
    SM        = its CTAs, one after another              the busiest SM makes the wave tail
    kernel    = launch + max(SM, start + max(L2, HBM, link + idle))
    idle      = all GPUs begin + first or last tile      of a kernel on several GPUs

A *loss* is how much the prediction falls if a cost is removed: a ring with unlimited slots, SMs
with equal work, a start only for the first CTA of an SM, and so on. The limiter is the largest loss
if it is at least `LOSS` of the time. Otherwise it is the scarcest unit, tensor cores or memory
bandwidth, if that is busy for its fraction of the time (`ROOFLINES`). Otherwise parts of the kernel
hide each other's losses, and the limiter is the part that takes longest by itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from ...plan.plans import RingPlan
from ...sim.inferred import Work
from .gpu_figures import Clock, DeviceModel
from .work import KernelWork

LOSS = 0.2
ROOFLINES = {"tensor cores": 0.5, "memory bandwidth": 0.9, "link": 0.8}
"""fraction of the time after the launch above which a unit is the limiter; for tensor cores it is
lower, because there are steps and stores between products"""
STORES = 0.75
"""fraction of stores in the HBM bytes above which the limiter is stores rather than memory
bandwidth"""
STORED = "store", "reduce"
_SERIALISED = 100
"""cycles between one product and the next if each is waited for"""

ADVICE = {
    "tensor cores": "at the roofline of the tensor cores",
    "memory bandwidth": "at the roofline of HBM: move fewer bytes",
    "link": (
        "at the roofline of the link to other GPUs: send fewer bytes (a narrower dtype), or "
        "compute meanwhile"
    ),
    "stores": (
        "write fewer bytes (a narrower dtype), keep tiles in registers for longer, or let stores "
        "overlap products"
    ),
    "slots": "tiles come too late: more slots (max_concurrent_steps), with smaller steps if needed",
    "tile size": (
        "tiles are too small: a larger one loads fewer bytes, and has fewer steps, for the same "
        "FLOP"
    ),
    "wave tail": (
        "SMs idle at the end: another tile size, or a grid whose tiles divide among the SMs"
    ),
    "CTA start": (
        "an SM's CTAs each wait for their first loads and last stores: a persistent grid "
        "(numpipe.persistent(), numpipe.tiles), or more work a CTA"
    ),
    "registers": (
        "accumulators do not fit into registers: a smaller tile, more compute warpgroups, or "
        "fewer memory_registers"
    ),
    "compute role": (
        "ordinary accesses of shared memory take longer than products and copies: fewer, or more "
        "warpgroups"
    ),
    "peer order": (
        "several GPUs access the same peer at a time, and share its port: let GPU i start with "
        'peer i + 1 (axis_index("gpu") + 1) and go on from there'
    ),
    "launch": "more work in one call",
}
"""advice for each limiter"""
LOSSES = (
    "slots",
    "tile size",
    "wave tail",
    "CTA start",
    "registers",
    "stores",
    "compute role",
    "peer order",
    "launch",
)
LIMITS = (
    "tensor cores",
    "memory bandwidth",
    "link",
    "L2",
    "ring",
    "computing",
    "CTA start",
    "longest SM",
    "launch",
)
COMPUTING = ("tile size", "registers", "stores", "compute role")
"""losses that are parts of the computing time"""


@dataclass(frozen=True)
class Facts:
    """Facts about a kernel other than its work.

    resident     CTAs that run on an SM at a time
    drain        whether rings are emptied between two loops
    spill_bytes  bytes per lane that are spilled and reloaded in each step
    serialised   whether the compiler waits for each product before the next
    turns        whether compute warpgroups alternate on tiles
    """

    rings: tuple[RingPlan, ...]
    resident: int
    drain: bool
    spill_bytes: int
    serialised: bool
    turns: bool


@dataclass(frozen=True)
class Prediction:
    """The predicted seconds. `limits` has the seconds that each unit would take if it never waited,
    `losses` how much the total falls when each cost is removed."""

    seconds: float
    limits: dict[str, float]
    losses: dict[str, float]
    limiter: str
    clock: float
    """MHz of the SMs"""
    hbm_bytes: int
    l2_bytes: int


def predict(
    work: KernelWork, facts: Facts, device: DeviceModel, clock: Clock | float
) -> Prediction:
    resting, busy = 1e6 * device.resting_clock(clock), 1e6 * device.tensor_busy_clock(clock)
    model = Model(work, facts, device, resting)
    for _ in range(4):  # iterate: the clock and the load of the tensor cores depend on each other
        share = min(1.0, model.limit("tensor cores") / model.seconds() / 0.7) * work.rate
        model.hertz = resting + (busy - resting) * share
    total = model.seconds()
    limits = {name: model.limit(name) for name in LIMITS}
    losses = {name: max(0.0, total - model.seconds(name)) for name in LOSSES}
    limiter = max(losses, key=losses.__getitem__)
    if losses[limiter] < LOSS * total:
        limiter = max(ROOFLINES, key=limits.__getitem__)
        if limits[limiter] < ROOFLINES[limiter] * (total - limits["launch"]):
            alone = {
                "CTA start": limits["CTA start"],
                "tile size": limits["L2"],
                "slots": limits["ring"],
            }
            if limits["ring"] <= limits["computing"]:  # then more slots would save nothing
                alone |= {
                    name: limits["computing"] - model.limit("computing", name) for name in COMPUTING
                }
                alone["tile size"], alone["slots"] = max(alone["tile size"], limits["L2"]), 0.0
            limiter = max(alone, key=alone.__getitem__)
        elif limiter == "memory bandwidth" and model.stored() >= STORES * model.hbm_bytes():
            limiter = "stores"
    return Prediction(
        total,
        limits,
        losses,
        limiter,
        1e-6 * model.hertz,
        round(model.hbm_bytes()),
        round(model.l2_bytes()),
    )


class Model:
    """The time of a kernel's parts, for an SM clock of `hertz`."""

    def __init__(self, work: KernelWork, facts: Facts, device: DeviceModel, hertz: float) -> None:
        self.work, self.facts, self.device, self.hertz = work, facts, device, hertz
        self.average = Work({key: n / work.ctas for key, n in work.total.items()})
        self.waves = -(-work.ctas // (device.sms * facts.resident))
        self.together = min(facts.resident, -(-work.ctas // device.sms))
        """CTAs that share an SM's units"""

    # ---- one CTA, in cycles
    def compute(self, work: Work, without: str = "") -> float:
        """Return the cycles of the compute role if it never waits for tiles."""
        device, facts = self.device, self.facts
        own = {}
        for warpgroup in {
            key[1] for key in work if key[0] in ("tensor", "read", "written", "steps")
        }:
            own[warpgroup] = (
                0.0 if without == "tile size" else device.step_cycles * work["steps", warpgroup]
            )
            if without != "registers":
                own[warpgroup] += (
                    128 * facts.spill_bytes / device.work_rate * work["steps", warpgroup]
                )
                own[warpgroup] += (
                    _SERIALISED * work["products", warpgroup] if facts.serialised else 0.0
                )
        products = _sum(work, "tensor")
        moved = {
            number: (0 if without == "compute role" else work["read", number]) / device.work_rate
            + (0 if without == "stores" else work["written", number]) / device.work_rate
            for number in own
        }
        if not own:
            return float(products)
        # with a single tile, the other warpgroup has none, and half of the lanes are idle
        if facts.turns and len(own) == 1:
            moved = {number: 2 * cycles for number, cycles in moved.items()}
        tiles = 0.0 if without == "stores" else device.tile_cycles * self.tiles(work)
        steps = {work["steps", number] for number in own}
        # if warpgroups share each step, work other than products delays the products of all
        if len(steps) == 1 and not facts.turns:
            return products + max(own.values()) + sum(moved.values()) + tiles
        alone = (
            work["tensor", number] + own[number] + moved[number] + tiles / len(own)
            for number in own
        )
        return max(products, *alone)  # they alternate: one stores while another multiplies

    @staticmethod
    def tiles(work: Work) -> float:
        """Return the number of output tiles; a CTA without a tile loop has one."""
        return work["tiles",] or float(any(key[0] in STORED for key in work))

    def ring(self, work: Work, without: str = "") -> float:
        """Return the cycles that the slowest ring needs to deliver all its fills."""
        if without == "slots":
            return 0.0
        compute, slowest = self.compute(work, without), 0.0
        for ring in self.facts.rings:
            fills = work["fills", ring.name]
            if fills:
                held = compute / fills * (1 + ring.delay)
                slowest = max(
                    slowest,
                    fills
                    * (self.latency() + ring.stage_bytes / self.device.copy_rate + held)
                    / ring.slots,
                )
        return slowest

    def relay(self, work: Work) -> float:
        """Return the cycles in which a CTA sends slots to other GPUs, with all slots on the way."""
        room = sum(ring.slots * ring.stage_bytes for ring in self.facts.rings) or 1
        return self.hertz * self.device.relay * work["relayed",] / room

    def latency(self) -> float:
        """Return the cycles from the release of a slot to the first bytes of its next tile."""
        loads = _sum(self.work.total, "load")
        far = self.missed_in_all("load") / loads if loads else 0.0
        return self.device.latency + far * self.device.hbm_latency

    def cta(self, work: Work, without: str = "") -> float:
        """Return the cycles of a CTA that is alone on its SM."""
        start = self.start(work) / (self.waves if without == "CTA start" else 1)
        emptied = (
            self.latency() * self.tiles(work) if self.facts.drain and without != "slots" else 0.0
        )
        relayed = self.relay(self.average)  # on average: other CTAs take more tiles meanwhile
        # a fence and a flag; by then there is no wait left for the other parts
        handed = 2 * self.device.latency * min(work["handed",], 1)
        sent = max((n for key, n in work.items() if key[0] == "sent"), default=0)
        # in ping-pong the other warpgroup multiplies meanwhile
        exchanged = self.device.exchange_cycles * (min(sent, 1) if self.facts.turns else sent)
        return (
            max(self.compute(work, without), self.ring(work, without))
            + start
            + relayed
            + emptied
            + handed
            + exchanged
        )

    def start(self, work: Work) -> float:
        """Return the cycles before a CTA's first tile arrives and after its last store starts."""
        first = (
            sum(ring.stage_bytes for ring in self.facts.rings[:1]) / self.device.copy_rate
            + self.latency()
        )
        return first + (self.device.latency if any(key[0] in STORED for key in work) else 0)

    # ---- all SMs, in seconds
    def sm(self, without: str = "") -> float:
        """Return the seconds of the SM with the most work."""

        def of(work: Work) -> float:
            return max(self.cta(work, without), self.together * self.compute(work, without))

        if without == "wave tail":
            return self.work.ctas / self.device.sms / self.together * of(self.average) / self.hertz
        return self.over(of)

    def over(self, of: Callable[[Work], float]) -> float:
        """Return the seconds of a part on the SM with the most work; `of` gives its cycles in a
        CTA."""
        if self.waves > 1 and len(self.work.counted) > 1:
            return self.waves * of(self.average) / self.hertz
        return (
            self.waves * max(of(_whole(work)) for work in self.work.counted.values()) / self.hertz
        )

    def missed_in_all(self, kind: str) -> float:
        """Return the bytes of all arrays that are not in L2 when they are loaded, or added to, for
        "load" or "reduce"."""
        return sum(self.missed(key) for key in self.work.total if key[0] == kind)

    def missed(self, key: tuple) -> float:
        """Return the bytes of an array that are not in L2 when they are loaded or added to, for
        ``("load", array)`` or ``("reduce", array)``.

        Data stays in L2 if at most half of its capacity is accessed before the data is used again.
        So the bytes of an array come from HBM

        1. once, if all arrays fit;
        2. otherwise once per wave of CTAs, if what the wave accesses in a tile fits;
        3. otherwise once per group of CTAs that access it in the same step.
        """
        work, room = self.work, self.device.l2_bytes / 2
        once = float(work.footprint.get(key[1], 0))
        if sum(work.footprint.values()) <= room:
            return once
        passes = 1.0 if work.wave_bytes <= room else work.passes.get(key, 1.0)
        return max(once, passes * work.again.get(key, 1.0) * work.total[key])

    def hbm_bytes(self) -> float:
        """Return the bytes that HBM reads and writes, including those that other GPUs load and
        store here, assumed equal to what this GPU does there. What is added to is read and
        written."""
        return (
            self.missed_in_all("load")
            + 2 * self.missed_in_all("reduce")
            + _sum(self.work.total, "store")
            + self.work.link_bytes()
        )

    def stored(self) -> int:
        """Return the bytes that are stored and added to."""
        return _sum(self.work.total, "store") + _sum(self.work.total, "reduce")

    def l2_bytes(self) -> float:
        """Return the bytes that L2 reads and writes."""
        loads = sum(
            self.work.beside.get(array, 1.0) * self.work.total["load", array]
            for array in self.work.footprint
        )
        return loads + self.stored()

    def seconds(self, without: str = "") -> float:
        """Return the seconds of the whole kernel, with the cost named by `without` removed."""
        l2 = 0.0 if without == "tile size" else self.limit("L2")
        launch = 0.0 if without == "launch" else self.launch()
        # nothing is transferred before the first load arrives and after the last store begins
        ends, sm = self.start(self.average) / self.hertz, self.sm(without)
        link = self.limit("link", without) + self.idle(sm)
        return launch + max(sm, ends + max(l2, self.limit("memory bandwidth"), link))

    def idle(self, sm: float) -> float:
        """Return the seconds during which the link has nothing to transfer: until all GPUs have
        begun, during the tile that needs what arrives last and, if what is sent is computed, during
        the first tile."""
        if not self.work.link_bytes():
            return 0.0
        computed = _sum(self.work.total, "send") > self.work.total["relayed",]
        tiles = self.average["tiles",]
        return self.device.meeting + (sm * (1 + computed) / max(tiles, 2) if tiles else 0.0)

    def launch(self) -> float:
        """Return the seconds between two kernels. SMs without work begin the next one meanwhile
        (programmatic dependent launch)."""
        active = min(self.work.ctas, self.work.total["tiles",] or self.work.ctas)
        return self.device.launch * min(1.0, active / self.device.sms)

    def limit(self, name: str, without: str = "") -> float:
        """Return the seconds that one unit takes if it never waits for others; for "computing" and
        "link", with the cost named by `without` removed."""
        match name:
            case "tensor cores":
                return _sum(self.work.total, "tensor") / self.device.sms / self.hertz
            case "memory bandwidth":
                return self.hbm_bytes() / self.device.hbm
            case "link":
                ideal = without == "peer order"
                nbytes = self.work.link_bytes() if ideal else self.work.port_bytes
                return max(nbytes / self.device.link, self.over(self.relay))
            case "L2":
                return self.l2_bytes() / self.device.l2_rate / self.hertz
            case "ring":
                return self.over(self.ring)
            case "computing":
                return self.over(lambda cta: self.together * self.compute(cta, without))
            case "CTA start":
                return self.over(self.start)
        return self.sm() if name == "longest SM" else self.launch()


def _sum(work: Work, kind: str) -> int:
    return sum(n for key, n in work.items() if key[0] == kind)


def _whole(work: Work) -> Work:
    """Return a CTA's work with its number of tiles, an average if a counter deals them, rounded
    up."""
    tiles = work["tiles",]
    return Work({key: n * math.ceil(tiles) / tiles for key, n in work.items()}) if tiles else work
