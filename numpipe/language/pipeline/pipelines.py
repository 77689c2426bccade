"""The loop form of a pipeline: a `for` over grid steps whose tiles the memory role loads ahead of
time.

::

    pipe = numpipe.pipeline(
        grid=(steps,),
        max_concurrent_steps=4,
        in_specs=(
            BlockSpec((128, 64), lambda k: (m, k)),
            BlockSpec((256, 64), lambda k: (n, k)),
        ),
    )
    for (k,), (a_tile, b_tile) in pipe(a, b):
        acc = numpipe.wgmma(acc, a_tile, b_tile.T)

The compute role runs the loop as written, each step after its tiles have landed. The memory role
runs the same source: an innermost loop issues all loads at once and yields nothing. A loop whose
body contains another pipeline is *stepped*, so that inner rings are filled in program order.
`steps` defines what happens around each step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np

from ...arch.dimensions import Ints
from ...core.arith import is_integer, kind
from ...core.functions import facts_of
from ...core.inert import REASON, Inert, NoValue
from ...core.machine import current
from ...core.op import called, check, constant, context_op, is_none, op, outside
from ...diagnostics.argument_checks import NONE, whole
from ...diagnostics.errors import CompileError, SpecError
from ...plan.context import Context
from ...plan.nested_tuples import Tree, check_leaves, leaves, made, mismatch, tree_of
from ...plan.plans import OutPlan, RingPlan
from ...plan.specs import BlockSpec
from ..tiles.refs import GmemRef
from ..tiles.tile import TileLike
from .chains import Allocations, check_count, check_shared, running
from .operand_barriers import barriers_of, by_kind, check_groups, check_manual, shape_of
from .pingpong import check_pipeline as check_turns
from .pipeline_outputs import check_specs
from .ring import Ring, unravel
from .steps import (
    Group,
    Loop,
    advance,
    begin_alone,
    fill_step,
    finish_following,
    finish_loads,
    follow_step,
    grouped,
    produce,
    tiles,
)

__all__ = ["pipeline"]

SLOTS = 2
IN_A_FOR = (
    "a pipeline must be called in a `for` of the function that creates it, for (indices), (tiles) "
    "in "
    "pipe(arrays):, or of a function that binds it to a name, pipe = function(…), where function "
    "returns a pipeline in every return"
)


class PipelineBase:
    """A loop-form pipeline, or its Numba type: the checked arguments, and the rings that it needs.

    specs, tree  the leaves of in_specs and then of out_specs; the tree that they form
    labels       the names of the leaves in messages
    rings, outs  which operands share a ring; the same for outputs
    unequal      whether it has steps_of
    rank         the number of dimensions of the grid
    loaded       the numbers of the leaves that are loaded
    barrier_tree the shape of a step's barriers of one kind
    manual       the kinds of barriers that the body handles itself, for each operand
                 (`operand_barriers`)
    single       whether each compute warpgroup runs it on its own (`steps`)
    once         whether it is known to have one step
    """

    spec: type
    array: type

    def __init__(
        self,
        np_: Any,
        grid: Any,
        in_specs: Any,
        out_specs: Any,
        slots: Any,
        delay: Any,
        steps_of: Any,
        ready: Any,
        consumed: Any,
        alone: Any,
        known: Any,
        site: Any,
    ) -> None:
        """Take the arguments of `make_pipeline`, or their Numba types. Raises SpecError for invalid
        arguments."""
        self.np = np_
        self.unit = np_.unit
        self.steps_of = steps_of
        self.unequal = not is_none(steps_of)
        self.site = constant("pipeline", "site", site)
        self.where = where = f"kernel {self.unit.kernel}, pipeline at {self.site}"
        alone, known = constant(where, "single", alone), constant(where, "grid", known)
        self.single = bool(alone) or not self.unit.warp_specialized
        self.manual = check_manual(where, self.single, ready, consumed)
        sizes = self._check_grid(grid, known, alone)
        self.rank = len(grid)
        self._check_specs("in_specs", in_specs)
        self._check_specs("out_specs", out_specs)
        (inputs, shape), (outputs, outer) = (
            (leaves(of), tree_of(of)) for of in (in_specs, out_specs)
        )
        if self.unequal:
            self._check_steps_of(steps_of, bool(outputs))
        check_turns(where, self.unit, self.unequal, bool(outputs), alone)
        kernel, slots, delay = (
            self.unit.params,
            *(
                constant(where, *of, whole() | NONE)
                for of in (("max_concurrent_steps", slots), ("delay_release", delay))
            ),
        )
        slots = next(
            n for n in (slots, kernel.max_concurrent_steps, 1 if alone else SLOTS) if n is not None
        )
        in_labels, out_labels = shape.labels("in_specs"), outer.labels("out_specs")
        self.rings = grouped(
            where,
            inputs,
            in_labels,
            sizes,
            slots,
            delay,
            kernel.delay_release,
            0 if alone else self.unit.default_delay,
        )
        check_specs(where, outputs, out_labels)
        self.outs = tuple(
            replace(group, operands=tuple(len(inputs) + number for number in group.operands))
            for group in grouped(where, outputs, out_labels, sizes, slots, 0, 0)
        )
        self.specs = (*inputs, *outputs)
        self.labels = (*in_labels, *out_labels)
        self.once = all(size == 1 for size in sizes)
        # inputs and outputs side by side, as the arrays are passed, not as one NamedTuple
        self.tree = Tree((*(shape.parts or ()), *(outer.parts or ())))
        self.loaded = sorted(operand for group in self.rings for operand in group.operands)
        self.barrier_tree = shape_of(self.tree, self.loaded)

    def _check_grid(self, grid: Any, known: Any, alone: bool) -> tuple[int | None, ...]:
        """Return the sizes of the grid that are compile-time constants, and None for the others."""
        if not tree_of(grid).parts:
            raise SpecError(f"{self.where}: grid must be a tuple of step counts, got {grid!r}")
        for size in grid:
            if isinstance(size, NoValue):
                if not alone:
                    raise CompileError(f"{self.where}: grid: {size.what} {REASON}")
            elif not is_integer(size):
                raise SpecError(f"{self.where}: grid must contain integers, got {grid}")
        # sizes that are not written in the call are unknown
        sizes: tuple[int | None, ...] = known if len(known) == len(grid) else (None,) * len(grid)
        numbers = [
            size if known is None else known for known, size in zip(sizes, grid, strict=True)
        ]
        numbers = [number for number in numbers if isinstance(number, (int, np.integer))]
        # the product of two negative sizes would be a positive number of steps
        if any(number < 0 for number in numbers):
            raise SpecError(
                f"{self.where}: the sizes in grid must be at least 0, got "
                f"{', '.join(map(str, numbers))}"
            )
        return sizes

    def _check_specs(self, name: str, given: Any) -> None:
        tree, specs = tree_of(given), leaves(given)
        check_leaves(self.where, name, given)
        if tree.parts is None or not all(isinstance(leaf, self.spec) for leaf in specs):
            got, fix = (
                ("BlockSpec", ": write (spec,)")
                if isinstance(given, self.spec)
                else ("NoneType", ": leave it out")
                if is_none(given)
                else (
                    called(given) if tree.parts is None else f"({', '.join(map(called, specs))})",
                    "",
                )
            )
            raise SpecError(f"{self.where}: {name} must be a tuple of BlockSpec, got {got}{fix}")

    def _check_steps_of(self, steps_of: Any, outputs: bool) -> None:
        if outputs:
            raise SpecError(
                f"{self.where}: steps_of with out_specs: every compute warpgroup takes part in "
                "storing an output's blocks; fix: store from registers in the body, c[…] = tile, "
                "or leave out steps_of"
            )
        function = facts_of(steps_of)
        if function is None:
            raise SpecError(
                f"{self.where}: steps_of must be a function nested in the kernel with one "
                f"parameter, the warpgroup, got {called(steps_of)}"
            )
        if function.parameters != 1:
            raise SpecError(
                f"{self.where}: steps_of takes {function.parameters} arguments, but is called "
                "with one, the warpgroup"
            )


class Pipeline(PipelineBase):
    """A pipeline on the simulated SM; a kernel calls it on arrays and loops over the result."""

    spec, array = BlockSpec, GmemRef

    def __init__(self, np_: Context, grid: Any, *given: Any) -> None:
        super().__init__(np_, grid, *given)
        self.grid = tuple(size if isinstance(size, Inert) else np.int32(size) for size in grid)

    def __call__(self, *arrays: Any) -> NoReturn:
        raise CompileError(f"{self.where}: {IN_A_FOR}")


def pipeline(
    *,
    grid: tuple,
    in_specs: tuple = (),
    out_specs: tuple = (),
    max_concurrent_steps: int | None = None,
    delay_release: int | None = None,
    steps_of: Callable[[Any], Any] | None = None,
    manual_produced_barriers: bool = False,
    manual_consumed_barriers: bool = False,
) -> NoReturn:
    """Create a software pipeline over `grid`, inside a kernel: ``for (indices), (tiles) in
    pipeline(...)(arrays):``.

    grid                  steps per dimension, run-time int32 values, the last one fastest; they
                          must not be negative (the compiler checks constants, the simulator the
                          others)
    in_specs              one BlockSpec for each array that the pipeline is called on. Tuples and
                          NamedTuples of them, nested, take arrays in the same tuples, and the tiles
                          come in the same tuples too
    out_specs             the same for arrays that the loop writes, ``o_tile[...] = value``; they
                          follow the inputs in the call and in the tiles. A block is stored when it
                          ends, which is when the next step has another block, or the loop ends; a
                          loop without steps stores nothing. See `pipeline_outputs`.
    max_concurrent_steps  slots of the ring: the number of steps whose tiles are in shared memory at
                          once (>= 1); default: `CompilerParams.max_concurrent_steps`, else 2. With
                          a grid of compile-time constants, there are no more slots than steps;
                          `BlockSpec.buffer_count` is not changed.
    delay_release         number of steps that a slot is kept after use, less than
                          max_concurrent_steps (default: `CompilerParams.delay_release`, else 0, or
                          1 with ``schedule="pingpong"``). With 1, a step's products may run while
                          the next ones are issued
    steps_of              ``steps_of(warpgroup) -> steps``: a compute warpgroup runs only that many
                          steps, the first ones, and releases the tiles of the others unused.
                          Everything is loaded.
    manual_produced_barriers, manual_consumed_barriers
                          With ready barriers, the loop has one for each array that is loaded, after
                          the tiles, and waits for each tile itself. With consumed barriers, it has
                          one for each after those, and every compute warpgroup releases each tile
                          once per step, after it has waited for the products that read the tile::

                              for _, (a, b), (a_ready, b_ready), (a_free, b_free) in pipe(x, y):

                          See `barrier_wait`, `barrier_arrive`, and
                          `emit_pipeline_warp_specialized`, which has the same options.

    An operand is loaded when its block changes (see `BlockSpec`). Consecutive loops may share
    slots, barriers and counters, so that the loads of the later loop begin while the earlier one
    computes: ``shared = pipe.get_allocations(a, b)``, then ``for … in other(a, b,
    allocations=shared):`` with a pipeline that has the same block shapes, slots and options. Such
    loops cannot be nested.

    Raises SpecError if the rings do not fit in shared memory, with the total size, and for
    allocations of a pipeline of another kind. Leaving the loop by `break` or `return` is a
    CompileError: the memory role would still load the remaining steps.

    In a kernel with ``warp_specialized=False``, the pipeline is single-stream: each warpgroup that
    reaches it runs it on its own, with its own slots, as in `emit_pipeline`.
    """
    raise outside("pipeline")


@context_op
def make_pipeline(np_: Context, *given: Any) -> Pipeline:
    """Return ``pipeline(...)`` as the AST pass writes it.

    `given`: the arguments of `pipeline`, whether each compute warpgroup runs it on its own even if
    there is a memory role, the constants in the grid, and the place in the source.
    """
    return Pipeline(np_, *given)


# ---- what both executions check
def check_tokens(pipe: PipelineBase, turns: Ints | None) -> None:
    """Raise SpecError for a loop with steps_of in which the number of turns may differ between
    steps: skipped steps take and pass their turns too."""
    if pipe.unequal and turns is None:
        raise SpecError(
            f"{pipe.where}: steps_of, but the steps may execute different blocks of "
            "numpipe.turn(…), and a skipped step takes and passes their turns too; fix: put "
            "these blocks in the loop itself, not in a branch, an inner loop or a function, and "
            "not after a 'continue'"
        )


def reachable(pipe: Pipeline) -> None:
    """Raise CompileError for a pipeline whose loads no role issues: the memory role does not run
    this code, because the AST pass saw no loads in it."""
    if pipe.np.compute_only and not pipe.single:
        raise CompileError(unreachable(pipe.unit.kernel, pipe.site))


def unreachable(kernel: str, site: str) -> str:
    return (
        f"kernel {kernel}, pipeline at {site}: only compute warpgroups come here, so nobody "
        "issues its loads: a body or compute_context that runs a pipeline of its own holds it, "
        "or calls the function that holds it by name"
    )


# ---- the loop
KEPT = "before the pipeline loop of line"


@op
def before_loop(value: Any) -> str:
    """Return a description of what a variable must remain during a pipeline loop; "" if it may
    change."""
    if isinstance(value, TileLike):
        return f"a tile {value.shape} {value.dtype}"
    return "a number" if kind(value) is not None or isinstance(value, NoValue) else ""


@check
def check_kept(message: str, before: str, value: Any) -> None:
    """Raise CompileError if a variable that was `before` a loop has become something else after a
    step."""
    was, now = constant("pipeline", "before", before), before_loop.function(value)
    if was and now and was != now:
        fix = "give the other value a name of its own"
        if isinstance(value, TileLike):
            begin = (
                "numpipe.zeros({}, np.{})"
                if value.dtype.itemsize == 4
                else "numpipe.full({}, 0, np.{})"
            )
            fix = (
                f"begin it as {begin.format(value.shape, value.dtype)}, or give one of them "
                "another name"
            )
        raise CompileError(constant("pipeline", "message", message).format(was, now) + fix)


@op
def steps(
    pipe: Pipeline,
    refs: Any,
    nested: int,
    groups: int,
    unpacked: Ints,
    waited: Ints,
    turns: Ints | None,
    last: int,
) -> Iterator[tuple]:
    """Implement ``pipe(arrays)`` in a `for`: yield ``(indices), (tiles)``, then a group of barriers
    for each kind that the options request.

    nested    whether the body contains another pipeline
    groups    number of wgmmas that every step is certain to issue
    unpacked  see `operand_barriers.check_groups`
    waited    numbers of the ready barriers that every step is certain to wait for
    turns     the order tokens whose blocks every step executes; None if they may differ
    last      whether it is the last pipeline of a tile, and passes the turn
    """
    check_groups(pipe, unpacked)
    check_tokens(pipe, turns)
    reachable(pipe)
    return steps_over(pipe, refs, nested, groups, last, waited, turns or (), True)


def steps_over(
    pipe: Pipeline,
    refs: Any,
    nested: int,
    groups: int,
    last: int,
    waited: Ints = (),
    turns: Ints = (),
    apart: bool = False,
) -> Iterator[tuple]:
    """Return the steps of a pipeline over arrays; for the parameters see `steps`. Unless `apart`,
    barriers follow the tiles in one tuple."""
    arrays, shared = arrays_of(pipe, refs, nested)
    total = own = np.int32(np.prod([int(size) for size in pipe.grid]))
    if pipe.unequal and pipe.np.numbered:
        own = np.int32(
            max(
                0,
                min(int(pipe.steps_of(np.int32(pipe.np.number))), int(total)),
            )
        )
    if pipe.single:
        total = own  # a single-stream warpgroup loads only its own steps
    rings = [
        Ring(
            pipe.np,
            plan,
            tuple(arrays[n] for n in group.operands),
            tuple(pipe.specs[n].index_map for n in group.operands),
            pipe.grid,
            own,
            waited_parts(pipe, group, waited),
        )
        for plan, group in plan_rings(pipe, arrays, shared)
    ]
    return _iterate(Loop(pipe, rings, arrays, groups, last, turns, total, own), nested, apart)


def arrays_of(
    pipe: PipelineBase, refs: Any, nested: int = 0
) -> tuple[list, tuple[RingPlan, ...] | None]:
    """Return the arrays that a pipeline is called on, and the rings of the allocations that follow
    them (`chains`), or None.

    Raises SpecError for arguments that are not arrays of the kernel, for a shape that differs from
    the specs', for allocations that do not fit, and for a `nested` pipeline in a body that skips
    steps.
    """
    given, shared = list(refs), None
    if given and isinstance(given[-1], Allocations):
        shared = given.pop().plans
        check_shared(pipe.where, pipe.single)
        check_count(pipe.where, shared, len(pipe.rings), len(pipe.outs))
    arrays = [array for ref in given for array in leaves(ref)]
    if not all(isinstance(array, pipe.array) for array in arrays):
        raise SpecError(
            f"{pipe.where}: called on ({', '.join(map(called, arrays))}), but a pipeline must be "
            "called on the kernel's array parameters"
        )
    wrong = mismatch(
        pipe.tree,
        Tree(tuple(map(tree_of, given))),
        "in_specs and out_specs have" if pipe.outs else "in_specs has",
    )
    if wrong:
        raise SpecError(f"{pipe.where}: {wrong}")
    # warpgroups that skip steps would also skip the steps of the inner pipeline
    if pipe.unequal and nested:
        raise SpecError(
            f"{pipe.where}: steps_of, but its body contains another pipeline, whose loads are "
            "issued for all steps; fix: pass steps_of to the inner one, or leave it out"
        )
    return arrays, shared


def waited_parts(pipe: PipelineBase, group: Group, waited: Ints) -> Ints:
    """Return the parts of a ring whose ready barriers are among `waited`, numbers of barriers in
    the loop's order, or ~number if a step waits for it after it could release the tile: with
    delay_release, that is the tile of an earlier step."""
    # waiting for a tuple of barriers does not say which of its leaves
    if any(part.parts for part in pipe.tree.parts or ()):
        return ()
    known = {max(number, ~number) for number in waited} if group.delay else waited
    return tuple(
        part
        for part, operand in enumerate(group.operands)
        if operand in pipe.loaded and pipe.loaded.index(operand) in known
    )


def plan_rings(
    pipe: PipelineBase, arrays: Sequence, shared: tuple[RingPlan, ...] | None
) -> list[tuple[RingPlan, Group]]:
    """Return the rings of a pipeline over arrays, then its output rings, each with its operands; a
    ring's `index` is its number.

    `shared`: rings of another pipeline to use instead of its own.
    """
    rings: list[tuple[RingPlan, Group]] = []
    for number, group in enumerate((*pipe.rings, *pipe.outs)):
        blocks = tuple((arrays[n].index, *pipe.specs[n].block) for n in group.operands)
        labels = tuple(pipe.labels[n] for n in group.operands)
        given = shared[number] if shared else None
        kind, delay, manual = (
            (RingPlan, group.delay, pipe.manual) if number < len(pipe.rings) else (OutPlan, 0, ())
        )
        plan = pipe.unit.plan_ring(
            pipe.site,
            blocks,
            group.slots,
            delay,
            manual,
            labels,
            group.dims,
            pipe.single,
            given,
            kind,
        )
        rings.append((plan, group))
    return rings


def _iterate(loop: Loop, nested: int, apart: bool) -> Iterator[tuple]:
    with running(
        loop.np.running, loop.np.unit.kernel, (ring.plan for ring in (*loop.rings, *loop.outs))
    ):
        machine, site = current(), tuple(ring.plan.name for ring in loop.rings)
        if loop.np.loads and not nested and not loop.single:
            if machine.moves:
                produce(loop, (np.int32(0),) * len(loop.grid))
                return
            for k in map(np.int32, machine.steps(int(loop.total), site)):
                if k < loop.total:
                    fill_step(loop, unravel(k, loop.grid), k)
            finish_loads(loop)
            return
        if loop.single and loop.np.computes:
            begin_alone(loop)
        for k in map(np.int32, machine.steps(int(loop.steps), site)):
            if not _comes(loop, k):
                return
            given, barriers = tiles(loop, k), barriers_of(loop, k)
            groups = given, *by_kind(loop, barriers, made)
            groups = (
                groups
                if apart or not barriers
                else (tuple(part for group in groups for part in group),)
            )
            yield unravel(k, loop.grid), *groups


def _comes(loop: Loop, k: Any) -> bool:
    """Do this role's work before step k, and return whether there is such a step."""
    if loop.np.computes:
        return bool(advance(loop, k, loop.steps))
    more = bool(k < loop.steps)
    if not loop.single:
        if more:
            follow_step(loop, unravel(k, loop.grid), k)
        else:
            finish_following(loop, k)
    return more
