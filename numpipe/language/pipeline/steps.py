"""A step of a pipeline: what happens around it in all of the pipeline's rings.

Operands that change together and have as many slots share a ring (`ring`); a pipeline has a ring
for each such group::

    in_specs   a: (i, k)   b: (k, j)   w: (j, 0)   bias: (0, 0)     grid (i, j, k)
    ring       |------- 0 -------|     1: 2 of 3   2: 0 of 3        dimensions that begin a block

At each step the memory role fills one slot in the rings that begin a block there, ring after ring
(`produce`). The compute role releases, in all rings, what has been used for the last time, then
waits for what begins (`advance`). The other way round it could wait for a tile of one ring while
the memory role waits for a slot of a ring before that one.

A *single-stream* pipeline has no memory role: every compute warpgroup that comes to it runs the
whole of it, with rings of its own (slots, barriers and counters), which one elected lane fills
between the warpgroup's steps::

    slots = 3, delay_release = 0:

    step          prologue        0            1            2
    fills          0 1 2               3            4            5
    releases                           0            1            2
    computes                   0            1            2

That lane waits until all four warps have released the slot, as the memory role would. With
``delay_release=1`` the products of a step run while the slot of the step before is filled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ...core.arith import successor
from ...core.lanes import one_lane
from ...core.op import formula, helper, op
from ...diagnostics.errors import SpecError
from ...plan.context import StoringFacts, only_if, over
from ...plan.nested_tuples import made
from ..tiles import products_in_flight
from .pingpong import pass_turn
from .pipeline_outputs import begin_block, check_start, end_block
from .ring import (
    Ring,
    await_consumed,
    await_ready,
    begins,
    blocks_of,
    check_released,
    each,
    ends,
    fill,
    own_step,
    release,
    release_used,
    set_steps_done,
    slot_of,
    step_of,
    tiles_of,
    unravel,
)
from .warpgroup_order import skip_turn


# ---- rings of a pipeline -------------------------------------------------------------------------
class Place(NamedTuple):
    """Where an operand is: the number of its ring, where rings of outputs follow the others, and
    its number in that ring."""

    ring: int
    operand: int
    written: bool


@dataclass(frozen=True)
class Group:
    """Operands that share a ring, by their numbers among the leaves of in_specs; `dims` as in
    `RingPlan`."""

    dims: int | None
    slots: int
    delay: int
    operands: tuple[int, ...]


def grouped(
    where: str,
    specs: Sequence[Any],
    labels: Sequence[str],
    known: Sequence[int | None],
    slots: int,
    delay: int | None,
    kernel: int | None,
    default: int = 0,
) -> tuple[Group, ...]:
    """Return the rings of a pipeline.

    specs  leaves of in_specs
    known  sizes of the grid, as far as they are compile-time constants: a ring has no more slots
           than there are blocks, unless its BlockSpecs say how many it has. Its delay stays, for
           the body relies on it; with a slot for each block nobody waits
    slots  max_concurrent_steps
    delay  the pipeline's delay_release, and `kernel` that of its CompilerParams; an operand's own
           comes first. Where none is given, it is the `default`, or as much of it as the slots
           allow

    Raises SpecError where a slot would be needed before it is released.
    """
    if slots < 1:
        raise SpecError(f"{where}: max_concurrent_steps must be at least 1, got {slots}")
    groups: dict[tuple[int, int, int], list[int]] = {}
    for number, (spec, label) in enumerate(zip(specs, labels, strict=True)):
        if not spec.loaded:
            continue
        dims = depth(spec.depends, len(known))
        buffers = spec.buffer_count
        count = buffers or (slots if dims else 1)
        kept = next(
            (d for d in (spec.delay_release, delay, kernel) if d is not None),
            min(default, count - 1),
        )
        if kept < 0:
            raise SpecError(f"{where}: delay_release must be at least 0, got {kept}")
        if dims and kept >= count:  # one block is released when the loop ends
            limit = (
                f"buffer_count={buffers} of {label}" if buffers else f"max_concurrent_steps={slots}"
            )
            raise SpecError(
                f"{where}: delay_release={kept} needs more than {kept} slots, got {limit}: the "
                "slot of step k is still held when step k + delay_release waits for its own"
            )
        sizes = known[:dims]
        if buffers is None and None not in sizes:
            count = max(1, min(count, int(np.prod([int(n or 0) for n in sizes]))))
        groups.setdefault((dims, count, kept), []).append(number)
    return tuple(
        Group(None if dims == len(known) else dims, count, kept, tuple(operands))
        for (dims, count, kept), operands in groups.items()
    )


def depth(depends: tuple[bool, ...] | None, rank: int) -> int:
    """Return how many grid dimensions, counted from the first, an operand's block depends on."""
    if depends == ():
        return 0
    if depends is None or len(depends) != rank:
        return rank
    return max((number + 1 for number, read in enumerate(depends) if read), default=0)


def places(
    count: int, groups: Sequence[Group], outs: Sequence[Group] = ()
) -> tuple[Place | None, ...]:
    """Return where each of `count` operands is; None: in global memory."""
    by_operand = {
        number: Place(ring, place, ring >= len(groups))
        for ring, group in enumerate((*groups, *outs))
        for place, number in enumerate(group.operands)
    }
    return tuple(by_operand.get(number) for number in range(count))


class LoopFacts(StoringFacts):
    """A pipeline's loop over its arrays in one warpgroup, or the Numba type of one.

    rings, outs   rings of a step, in the order of their first operands, and of its outputs
    arrays, tree  leaves of what the pipeline is called on, and their shape; `places`: where each is
    manual        the kinds of barriers that the body uses itself, for each operand
    unequal       whether this warpgroup may run fewer steps than there are
    pending       see `pending_groups`
    passes_turn   whether it is the last loop of a tile, so that its end passes the turn (`turns`)
    tokens        the order tokens whose blocks a step goes through, in order (`order_tokens`)
    """

    def __init__(
        self,
        pipe: Any,
        rings: Sequence[Any],
        arrays: Sequence[Any],
        groups: int,
        last: int,
        turns: tuple[int, ...],
    ) -> None:
        """`groups`: products that every step is sure to issue. `last`, `turns`: see
        `pipelines.steps`."""
        self.np = pipe.np
        self.arrays = tuple(arrays)
        self.tree = pipe.tree
        self.manual = pipe.manual
        self.rings, self.outs = tuple(rings[: len(pipe.rings)]), tuple(rings[len(pipe.rings) :])
        self.places = places(len(arrays), pipe.rings, pipe.outs)
        self.unequal = pipe.unequal and not pipe.single
        computes = pipe.np.computes
        self.pending = pending_groups(self.rings, groups) if computes else None
        self.passes_turn = bool(last) and computes
        self.tokens = turns if self.unequal and computes else ()

    @property
    def loads(self) -> bool:
        return bool(self.np.loads)

    @property
    def drains(self) -> bool:
        """Whether the rings release while the loop runs, behind a wait for products."""
        return self.pending is not None

    @property
    def single(self) -> bool:
        """Whether this warpgroup has the rings for itself."""
        return any(ring.plan.private for ring in (*self.rings, *self.outs))

    @property
    def ends_empty(self) -> bool:
        """Whether the memory role ends the loop by waiting until its rings are empty."""
        return bool(self.np.unit.params.drain)

    @property
    def passes_early(self) -> bool:
        """Whether it passes the turn when all products have been issued: others then wait for later
        steps only."""
        return self.passes_turn and not self.manual

    @property
    def passes_late(self) -> bool:
        """Whether it passes the turn when its slots have been released: a body that waits may have
        left out a step's wait."""
        return self.passes_turn and bool(self.manual)


class Loop(LoopFacts):
    """A loop on the simulated SM: its grid, all steps in it, and the steps that this warpgroup
    runs."""

    def __init__(
        self,
        pipe: Any,
        rings: Sequence[Ring],
        arrays: Sequence[Any],
        groups: int,
        last: int,
        turns: tuple[int, ...],
        total: Any,
        steps: Any,
    ) -> None:
        super().__init__(pipe, rings, arrays, groups, last, turns)
        self.grid, self.total, self.steps = pipe.grid, total, steps


def pending_groups(rings: Sequence[Any], groups: int) -> int | None:
    """Return how many groups may stay in flight while rings release; None where no ring releases
    before the loop's end.

    Every product is a group; `groups` is how many each step is sure to issue, so the newest ``delay
    * groups`` groups belong to the last `delay` steps.
    """
    delays = [
        ring.plan.delay
        for ring in rings
        if "consumed" not in ring.plan.manual and ring.plan.dims != 0
    ]
    return min(products_in_flight.MOST, min(delays) * groups) if delays else None


@op
def tiles(loop: Loop, k: Any) -> Any:
    """Return a tile for each operand of step k, or the array itself, in the shape of in_specs."""
    slots = [
        tiles_of(ring, slot_of(ring, step_of(ring, k, 0))) for ring in (*loop.rings, *loop.outs)
    ]
    operands = [
        array if place is None else slots[place.ring][place.operand]
        for array, place in zip(loop.arrays, loop.places, strict=True)
    ]
    return loop.tree.build(iter(operands), made)


# ---- memory role ---------------------------------------------------------------------------------
@helper
def fill_begun(ring, indices, k):  # type: ignore[no-untyped-def]
    """Fill the ring's next slot, if step k begins a block."""
    if begins(ring, k):
        each(ring, "all", 0, fill, indices, step_of(ring, k, 0))


@helper
def fill_step(loop, k):  # type: ignore[no-untyped-def]
    over(loop.rings, fill_begun, unravel(k, loop.grid), k)
    over(loop.outs, check_start, unravel(k, loop.grid))


@helper
def produce(loop):  # type: ignore[no-untyped-def]
    k = np.int32(0)
    while k < loop.total:
        fill_step(loop, k)
        # unrolled, this loop was a third of the code that ptxas compiles, and it only waits for
        # slots
        k = successor(k)
    finish_loads(loop)


@helper
def finish_loads(loop):  # type: ignore[no-untyped-def]
    over(loop.rings, set_steps_done, loop.total)
    over(loop.outs, set_steps_done, loop.total)
    only_if(loop, "ends_empty", await_empty)


@helper
def await_empty(loop):  # type: ignore[no-untyped-def]
    """Wait until nobody uses the slots of any ring."""
    over(loop.rings, await_released)


@helper
def await_released(ring):  # type: ignore[no-untyped-def]
    """Wait until all of the loop's blocks have been released: the last one in each slot, the newest
    of these at the end."""
    blocks, at = blocks_of(ring), np.int32(-ring.slots)
    while at < 0:
        if blocks + at >= 0:
            each(ring, "consumed", 0, await_consumed, ring.first + blocks + at)
        at = successor(at)


# ---- roles that do not compute, step by step -----------------------------------------------------
@helper
def follow_step(loop, k):  # type: ignore[no-untyped-def]
    """Do what a role that does not compute does before step k of a loop whose body it runs."""
    only_if(loop, "loads", fill_step, k)
    only_if(loop, "takes_over", store_ended, k)


@helper
def finish_following(loop, k):  # type: ignore[no-untyped-def]
    """Do what is left after the last step k - 1."""
    only_if(loop, "loads", finish_loads)
    only_if(loop, "takes_over", finish_stores, k)


@helper
def store_ended(loop, k):  # type: ignore[no-untyped-def]
    """Store the blocks that ended before step k."""
    over(loop.outs, end_block, loop.grid, k)


@helper
def finish_stores(loop, k):  # type: ignore[no-untyped-def]
    over(loop.outs, set_steps_done, loop.total)
    store_ended(loop, k)


# ---- compute role --------------------------------------------------------------------------------
@helper
def await_products(loop):  # type: ignore[no-untyped-def]
    """Wait, before rings release slots, until only products of steps whose slots are kept are in
    flight."""
    products_in_flight.drain(loop.pending)


@helper
def release_due(ring, k):  # type: ignore[no-untyped-def]
    """Release, before step k, the slot whose release is due."""
    release_used(ring, k, ring.delay)


@helper
def await_begun(ring, k):  # type: ignore[no-untyped-def]
    """Wait for the tiles of the block that step k begins."""
    if begins(ring, k):
        await_ready(ring, 0, step_of(ring, k, 0))


@helper
def release_rest(ring, k):  # type: ignore[no-untyped-def]
    """Release, after the last step k - 1, the slots that have been used and not been released."""
    for back in range(ring.unreleased, -1, -1):
        # of the type of a delay: one function to compile, not two
        only_if(ring, "keeps", release_used, k, np.int32(back))


@helper
def pass_rest(loop, k):  # type: ignore[no-untyped-def]
    """Go through the steps from k on, which only other warpgroups run."""
    while k < loop.total:
        pass_tokens(loop)
        over(loop.rings, pass_by, k)
        k = successor(k)


@op
def pass_tokens(loop: Loop) -> None:
    """Take and pass the turns of a step that only other warpgroups run."""
    for number in loop.tokens:
        skip_turn(loop.np, number)


@helper
def pass_by(ring, k):  # type: ignore[no-untyped-def]
    """Release the tiles of the block that step k begins, unused, when they have landed."""
    if begins(ring, k):
        each(ring, "ready", 0, await_ready, step_of(ring, k, 0))
        each(ring, "consumed", 0, release, step_of(ring, k, 0))


@helper
def begin_step(loop, k):  # type: ignore[no-untyped-def]
    """Store the blocks that ended before step k, and wait for the free output slots and the tiles
    that step k needs."""
    over(loop.outs, end_block, loop.grid, k)
    over(loop.outs, begin_block, k)
    over(loop.rings, only_if, "awaits", await_begun, k)


@helper
def end_loop(loop, k):  # type: ignore[no-untyped-def]
    """Release and store, after the last step k - 1, what is left. Others may have their turn: all
    products are issued."""
    over(loop.rings, set_steps_done, loop.total)
    over(loop.outs, set_steps_done, loop.total)
    only_if(loop, "passes_early", pass_turn_of)
    products_in_flight.drain(0)
    over(loop.rings, release_rest, k)
    over(loop.outs, end_block, loop.grid, k)
    only_if(loop, "passes_late", pass_turn_of)


@helper
def pass_turn_of(loop):  # type: ignore[no-untyped-def]
    pass_turn(loop.np)


@helper
def advance(loop, k, steps):  # type: ignore[no-untyped-def]
    """Release, before step k of `steps`, what no product reads any more, and wait for the next
    tiles; False after the last step.

    A slot is released `delay` steps after its last use, behind a wait that leaves the newer steps'
    products in flight. A body that releases has done so for all but the last `delay` steps when the
    loop ends.
    """
    over(loop.rings, check_released, k)
    if k < steps:
        only_if(loop, "drains", await_products)
        over(loop.rings, only_if, "releases", release_due, k)
        only_if(loop, "single", refill, k)
        begin_step(loop, k)
        return True
    end_loop(loop, k)
    only_if(loop, "unequal", pass_rest, k)
    return False


# ---- single-stream loops: a ring's blocks are numbered from 0 in this loop -----------------------
@formula
def block_of(ring: Ring, k: Any) -> Any:
    """Return the block that the pipeline's step k uses."""
    return own_step(ring, k)[0]


@formula
def first_use(ring: Ring, block: Any) -> Any:
    """Return the pipeline's step that begins a block."""
    dims = ring.plan.dims
    if dims == 0:
        return 0
    for size in [] if dims is None else ring.grid[dims:]:
        block = block * size
    return block


@helper
def fill_block(ring, block):  # type: ignore[no-untyped-def]
    """Fill the slot of a block, if the loop uses one of that number."""
    if block < blocks_of(ring):
        each(ring, "all", 0, fill, unravel(first_use(ring, block), ring.grid), ring.first + block)


@helper
def fill_slots(ring):  # type: ignore[no-untyped-def]
    """Fill, before the loop, as many slots as there are, or blocks."""
    block = np.int32(0)
    while block < ring.slots:
        fill_block(ring, block)
        block = successor(block)


@helper
def fill_used(ring, k):  # type: ignore[no-untyped-def]
    """Fill, before step k, the slot that was released there."""
    used = k - 1 - ring.delay
    if used >= 0 and ends(ring, used):
        fill_block(ring, block_of(ring, used) + ring.slots)


@helper
def begin_alone(loop):  # type: ignore[no-untyped-def]
    one_lane(over, loop.rings, fill_slots)


@helper
def refill(loop, k):  # type: ignore[no-untyped-def]
    """Fill again, before step k of a single-stream loop, the slots that were released there; the
    branch gives no note C7519."""
    if k > 0:
        one_lane(over, loop.rings, fill_used, k)
