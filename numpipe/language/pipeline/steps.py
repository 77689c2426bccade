"""A step of a pipeline: what happens before and after it in all of the pipeline's rings.

Operands that change together and have the same number of slots share a ring (`ring`); a pipeline
has one ring for each such group::

    in_specs   a: (i, k)   b: (k, j)   w: (j, 0)   bias: (0, 0)     grid (i, j, k)
    ring       |------- 0 -------|     1: 2 of 3   2: 0 of 3        dimensions that begin a block

In each step, the memory role fills one slot in every ring in which a block begins, in the order of
the rings (`produce`). The compute role first releases, in all rings, the slots that were used for
the last time, then waits for the blocks that begin (`advance`). In the other order, it could wait
for a tile of one ring while the memory role waits for a slot of an earlier ring.

A *single-stream* pipeline has no memory role: every compute warpgroup that reaches it runs the
whole pipeline with its own rings (slots, barriers and counters). An elected lane fills the slots
between the warpgroup's steps::

    slots = 3, delay_release = 0:

    step          prologue        0            1            2
    fills          0 1 2               3            4            5
    releases                           0            1            2
    computes                   0            1            2

That lane waits until all four warps have released the slot, as the memory role would. With
``delay_release=1``, the products of a step run while the slot of the previous step is filled.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ...arch.dimensions import Ints
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
    next_indices,
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
    """The position of an operand: the number of its ring, counting output rings after the others,
    and its number in that ring."""

    ring: int
    operand: int
    written: bool


@dataclass(frozen=True)
class Group:
    """Operands that share a ring, by their numbers among the leaves of in_specs; `dims` is as in
    `RingPlan`."""

    dims: int | None
    slots: int
    delay: int
    operands: Ints


def grouped(
    where: str,
    specs: Sequence,
    labels: Sequence[str],
    known: Sequence[int | None],
    slots: int,
    delay: int | None,
    kernel: int | None,
    default: int = 0,
) -> tuple[Group, ...]:
    """Return the rings of a pipeline.

    specs  the leaves of in_specs
    known  the sizes of the grid that are compile-time constants. A ring has no more slots than
           there are blocks, unless its BlockSpecs set the number. Its delay is not reduced, because
           the body relies on it; with a slot for each block, nothing waits
    slots  max_concurrent_steps
    delay  the pipeline's delay_release; `kernel` is that of its CompilerParams. An operand's own
           value takes precedence. If none is set, the `default` is used, reduced if there are
           fewer slots

    Raises SpecError if a slot would be needed before it is released.
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
        if dims and kept >= count:  # the end of the loop releases one block
            limit = (
                f"buffer_count={buffers} of {label}" if buffers else f"max_concurrent_steps={slots}"
            )
            raise SpecError(
                f"{where}: delay_release={kept} needs more than {kept} slots, got {limit}: the "
                "slot of step k is still in use when step k + delay_release waits for its own; "
                f"fix: set the number of slots to at least {kept + 1}"
            )
        sizes = known[:dims]
        if buffers is None and None not in sizes:
            count = max(1, min(count, math.prod(int(n or 0) for n in sizes)))
        groups.setdefault((dims, count, kept), []).append(number)
    return tuple(
        Group(None if dims == len(known) else dims, count, kept, tuple(operands))
        for (dims, count, kept), operands in groups.items()
    )


def depth(depends: tuple[bool, ...] | None, rank: int) -> int:
    """Return the number of grid dimensions, counted from the first, that an operand's block depends
    on."""
    if depends == ():
        return 0
    if depends is None or len(depends) != rank:
        return rank
    return max((number + 1 for number, read in enumerate(depends) if read), default=0)


def places(count: int, groups: Sequence[Group], outs: Sequence[Group]) -> tuple[Place | None, ...]:
    """Return the position of each of `count` operands; None for operands in global memory."""
    by_operand = {
        number: Place(ring, place, ring >= len(groups))
        for ring, group in enumerate((*groups, *outs))
        for place, number in enumerate(group.operands)
    }
    return tuple(by_operand.get(number) for number in range(count))


class LoopFacts(StoringFacts):
    """A pipeline's loop over its arrays in one warpgroup, or its Numba type.

    rings, outs   the rings of a step, in the order of their first operands; its output rings
    arrays, tree  the leaves of what the pipeline is called on, and their shape; `places`: where
                  each is
    rank          the number of dimensions of the grid
    barrier_tree  the shape of a step's barriers of one kind
    manual        the kinds of barriers that the body handles itself, for each operand
    unequal       whether this warpgroup may run fewer steps than there are
    pending       see `pending_groups`
    passes_turn   whether it is the last loop of a tile, whose end passes the turn (`pingpong`)
    tokens        the order tokens whose blocks a step executes, in order (`warpgroup_order`)
    """

    def __init__(
        self,
        pipe: Any,
        rings: Sequence,
        arrays: Sequence,
        groups: int,
        last: int,
        turns: Ints,
    ) -> None:
        """`groups`: number of products that every step is certain to issue. `last`, `turns`: see
        `pipelines.steps`."""
        self.np, self.rank = pipe.np, pipe.rank
        self.arrays = tuple(arrays)
        self.tree, self.barrier_tree = pipe.tree, pipe.barrier_tree
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
        """Whether the rings release slots inside the loop, after waiting for the products that read
        them."""
        return self.pending is not None

    @property
    def single(self) -> bool:
        """Whether this warpgroup has its own rings."""
        return any(ring.plan.private for ring in (*self.rings, *self.outs))

    @property
    def ends_empty(self) -> bool:
        """Whether the memory role ends the loop by waiting until its rings are empty."""
        return bool(self.np.unit.params.drain)

    @property
    def passes_early(self) -> bool:
        """Whether it passes the turn when all products have been issued. Other warpgroups then wait
        only for later steps."""
        return self.passes_turn and not self.manual

    @property
    def passes_late(self) -> bool:
        """Whether it passes the turn when its slots have been released, because a body with manual
        barriers may have omitted a step's wait."""
        return self.passes_turn and bool(self.manual)


class Loop(LoopFacts):
    """A loop on the simulated SM: its grid, its total number of steps, and the number of steps that
    this warpgroup runs."""

    def __init__(
        self,
        pipe: Any,
        rings: Sequence[Ring],
        arrays: Sequence,
        groups: int,
        last: int,
        turns: Ints,
        total: Any,
        steps: Any,
    ) -> None:
        super().__init__(pipe, rings, arrays, groups, last, turns)
        self.grid, self.total, self.steps = pipe.grid, total, steps


def pending_groups(rings: Sequence, groups: int) -> int | None:
    """Return how many groups may stay in flight while rings release slots; None if no ring releases
    before the end of the loop.

    Every product is a group. Each step is certain to issue `groups` products, so the newest ``delay
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
def fill_step(loop, indices, k):  # type: ignore[no-untyped-def]
    over(loop.rings, fill_begun, indices, k)
    over(loop.outs, check_start, indices)


@helper
def produce(loop, indices):  # type: ignore[no-untyped-def]
    """Fill the slots of all steps; `indices` are those of the first one."""
    k = np.int32(0)
    while k < loop.total:
        fill_step(loop, indices, k)
        # not unrolled: the unrolled loop, which only waits for slots, was a third of the code that
        # ptxas compiles
        k = successor(k)
        indices = next_indices(k, indices, loop.grid)
    finish_loads(loop)


@helper
def finish_loads(loop):  # type: ignore[no-untyped-def]
    over(loop.rings, set_steps_done, loop.total)
    over(loop.outs, set_steps_done, loop.total)
    only_if(loop, "ends_empty", await_empty)


@helper
def await_empty(loop):  # type: ignore[no-untyped-def]
    """Wait until no slot of any ring is in use."""
    over(loop.rings, await_released)


@helper
def await_released(ring):  # type: ignore[no-untyped-def]
    """Wait until all of the loop's blocks have been released: the last one in each slot, in
    order."""
    blocks, at = blocks_of(ring), np.int32(-ring.slots)
    while at < 0:
        if blocks + at >= 0:
            each(ring, "consumed", 0, await_consumed, ring.first + blocks + at)
        at = successor(at)


# ---- roles that do not compute, step by step -----------------------------------------------------
@helper
def follow_step(loop, indices, k):  # type: ignore[no-untyped-def]
    """Do the work before step k of a role that does not compute but runs the loop's body."""
    only_if(loop, "loads", fill_step, indices, k)
    only_if(loop, "takes_over", store_ended, k)


@helper
def finish_following(loop, k):  # type: ignore[no-untyped-def]
    """Do the remaining work of such a role after the last step k - 1."""
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
    """Wait, before rings release slots, until the only products in flight belong to steps whose
    slots are kept."""
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
    """Release, after the last step k - 1, the slots that have been used and not yet released."""
    for back in range(ring.unreleased, -1, -1):
        # int32, like a delay, so that one function is compiled, not two
        only_if(ring, "keeps", release_used, k, np.int32(back))


@helper
def pass_rest(loop, k):  # type: ignore[no-untyped-def]
    """Process the steps from k on, which only other warpgroups run."""
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
    """Release the tiles of the block that begins in step k, unused, after they have landed."""
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
    """Release and store what is left after the last step k - 1. Other warpgroups may take their
    turn, because all products have been issued."""
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
    """Release, before step k of `steps`, the slots that no product reads any more, and wait for the
    next tiles; return False after the last step.

    A slot is released `delay` steps after its last use, after a wait that leaves the newer steps'
    products in flight. A body that releases slots itself has released all but the last `delay`
    steps when the loop ends.
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
    """Fill the slot of a block, if the loop uses a block with that number."""
    if block < blocks_of(ring):
        each(ring, "all", 0, fill, unravel(first_use(ring, block), ring.grid), ring.first + block)


@helper
def fill_slots(ring):  # type: ignore[no-untyped-def]
    """Fill all slots before the loop, or as many as there are blocks."""
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
    """Refill, before step k of a single-stream loop, the slots that were released there. In this
    form, the branch does not cause the ptxas note C7519."""
    if k > 0:
        one_lane(over, loop.rings, fill_used, k)
