"""How the compute warpgroups of a kernel divide its tiles: they share each, or take turns on whole ones (`turns`).

And where they are told which tiles these are, if that is not arithmetic (`tile_scheduler`).
"""

from __future__ import annotations

from ..diagnostics.errors import SpecError
from .allocations import Scratch
from .budget import HEADER
from .params import CompilerParams
from .plans import COUNTERS, MapRequest, NumberPlan, RingPlan
from .watch import WORDS_BYTES

SCHEDULES = "cooperative", "pingpong"
OUTPUTS_BARRIER = 15
"""named barrier of outputs that all compute warpgroups write (`outputs`); 0 is the CTA's, 1 + w that of warpgroup w"""


class Scheduled:
    """What a Unit's `schedule` says of its warpgroups, its rings and the header of its shared memory."""

    kernel: str
    compute_wgs: int
    params: CompilerParams
    schedule: str
    rings: dict[str, RingPlan]
    scratch: dict[str, Scratch]
    maps: dict[MapRequest, int]
    warp_specialized: bool

    def check_schedule(self) -> None:
        """SpecError where there is nobody to take turns with."""
        if self.schedule == "pingpong" and self.compute_wgs < 2:
            raise SpecError(f"kernel {self.kernel}: schedule='pingpong' lets compute warpgroups take turns, and needs 2 or more: "
                            f"num_compute_wgs={self.compute_wgs}; give num_compute_wgs=2")

    @property
    def turns(self) -> int:
        """Compute warpgroups that take turns on tiles (`turns`); 1: they share each tile."""
        return self.compute_wgs if self.schedule == "pingpong" else 1

    @property
    def tile_wgs(self) -> int:
        """Compute warpgroups that share a tile: the size of the warpgroup axis."""
        return self.compute_wgs // self.turns

    @property
    def consumed_arrivals(self) -> int:
        """Arrivals that free a slot: lane 0 of each warp of each warpgroup that uses it (wgmma.wait_group is per warp)."""
        return 4 * self.tile_wgs

    @property
    def default_delay(self) -> int:
        """Steps a slot is kept after use where nothing says how many: nobody else's products fill the gap of a full wait."""
        return int(self.turns > 1)

    # ---- order tokens
    def token_barrier(self, number: int) -> int:
        """The named barrier of the first compute warpgroup for an order token; the others' follow (`order_tokens`)."""
        return 1 + self.compute_wgs + self.warp_specialized + number * self.compute_wgs

    @property
    def token_room(self) -> int:
        """How many order tokens there are named barriers for."""
        return max(0, OUTPUTS_BARRIER - self.token_barrier(0)) // self.compute_wgs

    # ---- counters that travel with the turn
    @property
    def barrier_room(self) -> int:
        """Bytes of the header that barriers may have: the words of turns, and of `_watch`, are behind."""
        return HEADER - 4 * COUNTERS * self.turns * (self.turns > 1) - WORDS_BYTES * bool(self.params.debug)

    @property
    def scratch_barrier_bytes(self) -> int:
        """At the end of the header."""
        return sum(8 * part.copies * plan.kind.count for part in self.scratch.values() for plan in part.barriers)

    def turn_word(self, warpgroup: int, index: int) -> int:
        """Where a ring's counter is handed to a compute warpgroup: an offset in shared memory."""
        return HEADER - 4 * COUNTERS * (self.turns - warpgroup) + 4 * index

    def handed_over(self) -> list[RingPlan]:
        """The rings whose counters travel: all that the compute warpgroups share, but for numbers, of which each reads all."""
        return [plan for plan in self.rings.values() if not plan.private and not plan.numbers]

    @property
    def load_rings(self) -> list[RingPlan]:
        """The rings of pipelines."""
        return [plan for plan in self.rings.values() if not plan.numbers]

    # ---- tickets
    @property
    def tickets(self) -> NumberPlan | None:
        """The ring of tickets, where a loop over tiles takes them."""
        return next((plan for plan in self.rings.values() if isinstance(plan, NumberPlan)), None)

    def plan_tickets(self, site: str) -> NumberPlan:
        """The ring of tickets, one for all loops; `site`: where the first of them is written. SpecError where no room is left.

        A warpgroup reads the tickets of a turn when it has ended its own tile: as many as the others have at the same time, and
        those that the memory role is ahead, should have slots.
        """
        if self.tickets is not None:
            return self.tickets
        slots, ready = self.turns + 3, sum(plan.barrier_bytes for plan in self.rings.values())
        plan = NumberPlan(name=f"tile numbers @ {site}", index=len(self.rings), slots=slots, delay=0, args=(), blocks=(),
                          offsets=(), stage_bytes=0, stage_stride=4, base=ready + 16 * slots, ready=ready,
                          consumed=ready + 8 * slots)
        if ready + plan.barrier_bytes > self.barrier_room - self.scratch_barrier_bytes or plan.index >= COUNTERS:
            raise SpecError(f"kernel {self.kernel}, tiles(dynamic=True) at {site}: more rings or slots than the "
                            f"{self.barrier_room} bytes of barriers hold")
        self.rings[plan.name] = plan
        return plan

    @property
    def counter_at(self) -> int:
        """Where the packed parameter has the address of the launch's counter (`tile_scheduler`): behind the maps, at least one."""
        return 128 * max(1, len(self.maps))

    @property
    def table_bytes(self) -> int:
        """Of the packed parameter."""
        return self.counter_at + 128 * (self.tickets is not None)
