"""The loop form of a pipeline: a `for` over grid steps whose tiles are loaded ahead by the memory role.

::

    pipe = numpipe.pipeline(grid=(steps,), max_concurrent_steps=4, in_specs=(
        BlockSpec((128, 64), lambda k: (m, k)), BlockSpec((256, 64), lambda k: (n, k))))
    for (k,), (a_tile, b_tile) in pipe(a, b):
        acc = numpipe.wgmma(acc, a_tile, b_tile.T)

The compute role runs the loop as it stands, each step after its tiles have landed. The memory role runs the same source:
an innermost loop fills all its slots at once and yields nothing; a loop whose body holds another pipeline is *stepped*,
so that inner rings fill in program order. What happens around a step is written in `steps`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, NoReturn

import numpy as np

from ...core.facts import Facts, facts_of
from ...core.inert import Inert
from ...core.machine import current
from ...core.op import constant, op, outside
from ...diagnostics.errors import CompileError, SpecError
from ...plan.context import Context
from ...plan.plans import OutPlan, RingPlan
from ...plan.specs import BlockSpec
from ...plan.trees import Tree, check_leaves, leaves, mismatch, tree_of
from ...plan.unit import Unit
from ..tiles.refs import GmemRef
from .barriers import MANUAL, barriers_of, by_kind, check_groups, check_manual, check_shared_loads
from .chains import Allocations, check_count, check_shared, running
from .outputs import check_specs
from .ring import Ring, unravel
from .steps import Group, Loop, advance, begin_alone, fill_step, finish_loads, grouped, places, produce, tiles
from .turns import check_pipeline as check_turns

__all__ = ["pipeline"]

SLOTS = 2
IN_A_FOR = ("a pipeline is called in a `for` of the function that makes it: for (indices), (tiles) in pipe(arrays): — it cannot be "
            "passed to another one")


class PipelineFacts(NamedTuple):
    """What a pipeline is planned as, in both executions.

    specs, tree  leaves of in_specs and of out_specs behind them, and their shape
    labels       how messages call the leaves
    rings, outs  which of them share a ring
    unequal      whether it has steps_of
    manual       the kinds of barriers that the body uses itself, for each operand (`barriers`)
    single       whether each compute warpgroup runs it for itself (`single`)
    """

    unit: Unit
    site: str
    specs: tuple[Any, ...]
    tree: Tree
    labels: tuple[str, ...]
    rings: tuple[Group, ...]
    outs: tuple[Group, ...]
    unequal: bool
    manual: tuple[str, ...]
    single: bool


class Planned:
    """A pipeline, or its type, with its facts as attributes."""

    def __init__(self, facts: PipelineFacts) -> None:
        (self.unit, self.site, self.specs, self.tree, self.labels, self.rings, self.outs, self.unequal, self.manual,
         self.single) = facts
        self.where = f"kernel {self.unit.kernel}, pipeline at {self.site}"


class Pipeline(Planned):
    """What `pipeline` returns inside a kernel; call it on the arrays and loop over the result."""

    def __init__(self, np_: Context, grid: tuple[Any, ...], steps_of: Any, facts: PipelineFacts) -> None:
        super().__init__(facts)
        self.np, self.grid, self.steps_of = np_, grid, steps_of

    def __call__(self, *arrays: Any) -> NoReturn:
        raise CompileError(f"{self.where}: {IN_A_FOR}")


def pipeline(*, grid: tuple[Any, ...], in_specs: tuple[Any, ...] = (), out_specs: tuple[Any, ...] = (),
             max_concurrent_steps: int | None = None, delay_release: int | None = None,
             steps_of: Callable[[Any], Any] | None = None, manual_ready_barriers: bool = False,
             manual_consumed_barriers: bool = False) -> NoReturn:
    """A software pipeline over `grid`, inside a kernel: ``for (indices), (tiles) in pipeline(...)(arrays):``.

    grid                  steps per dimension, run-time int32 values, last one fastest; none is negative (constants are checked
                          when the kernel is compiled, the others by the simulator)
    in_specs              one BlockSpec for each array the pipeline is called on; tuples and NamedTuples of them, nested, for
                          arrays in the same tuples: the tiles come in them too
    out_specs             the same for arrays that the loop writes, behind the inputs in the call and in the tiles: ``o_tile[...] =
                          value``. A block is stored when it ends, that is when the next step has another one, or the loop
                          ends; a loop of no steps stores nothing. See `outputs`.
    max_concurrent_steps  slots of the ring: steps whose tiles are in shared memory at once (>= 1); default:
                          `CompilerParams.max_concurrent_steps`, else 2. Where the grid is made of
                          compile-time constants there are no more than it has steps; `BlockSpec.buffer_count` is not changed.
    delay_release         steps a slot is kept after use (default: `CompilerParams.delay_release`, else 0, or 1 with
                          ``schedule="pingpong"``); with 1 the products of
                          a step may still run while the next step is issued. Must be below max_concurrent_steps.
    steps_of              ``steps_of(warpgroup) -> steps``: a compute warpgroup runs its first so many steps (at most all), and
                          releases the tiles of the others unused. Everything is loaded.
    manual_ready_barriers, manual_consumed_barriers
                          the loop has a ready barrier for each array that is loaded, behind the tiles, and waits for each tile
                          itself; a consumed barrier for each, behind those, and every compute warpgroup releases each tile itself,
                          once a step, when the products that read it have been waited for::

                              for (k,), (a_tile, b_tile), (a_ready, b_ready), (a_consumed, b_consumed) in pipe(a, b):

                          See `barrier_wait` and `barrier_arrive`, and `emit_pipeline_warp_specialized`, whose options they are too.

    An operand is loaded when its block changes (see `BlockSpec`). Loops one after another may have the same slots, barriers and
    counters, so that the later one's loads begin while the earlier one computes: ``shared = pipe.get_allocations(a, b)``, then
    ``for … in other(a, b, allocations=shared):`` of a pipeline with the same block shapes, slots and options. None runs inside
    another.

    Raises SpecError when the rings do not fit in shared memory, with the sum, and for allocations of another kind of pipeline.
    Leaving the loop by `break` or `return` is a CompileError: the memory role would still load the remaining steps.

    In a kernel with ``warp_specialized=False`` it is single-stream: each warpgroup that comes there runs it for itself, with
    slots of its own, as it does `emit_pipeline`.
    """
    raise outside("pipeline")


@op(context=True)
def make_pipeline(np_: Context, grid: Any, in_specs: Any, out_specs: Any, max_concurrent_steps: int | None,
                  delay_release: int | None, steps_of: Any, manual_ready_barriers: Any, manual_consumed_barriers: Any,
                  single: int, known: tuple[int | None, ...], site: str) -> Pipeline:
    """`pipeline(...)` as the AST pass writes it: with the context, the constants in the grid and the place in the source.

    A `single` one is run by each compute warpgroup for itself, also where there is a memory role.
    """
    where, barriers = f"kernel {np_.unit.kernel}, pipeline at {site}", (manual_ready_barriers, manual_consumed_barriers)
    manual = check_manual(where, *(constant(where, name, value) for name, value in zip(MANUAL, barriers, strict=True)))
    if not isinstance(grid, tuple) or not grid:
        raise SpecError(f"{where}: grid must be a tuple of step counts, got {grid!r}")
    for name, given in (("in_specs", in_specs), ("out_specs", out_specs)):
        check_leaves(where, name, given)
        if not isinstance(given, tuple) or not all(isinstance(spec, BlockSpec) for spec in leaves(given)):
            kinds = f"({', '.join(type(spec).__name__ for spec in given)})" if isinstance(given, tuple) else type(given).__name__
            raise no_specs(where, name, kinds)
    if steps_of is not None:
        check_steps_of(where, facts_of(steps_of), type(steps_of).__name__, bool(out_specs))
    facts = planned(np_.unit, site, (leaves(in_specs), leaves(out_specs)), (tree_of(in_specs), tree_of(out_specs)),
                    known if len(known) == len(grid) else (None,) * len(grid),  # none of a grid that is not written in place
                    constant(where, "max_concurrent_steps", max_concurrent_steps), constant(where, "delay_release", delay_release),
                    steps_of is not None, manual, bool(single))
    try:
        sizes = tuple(n if single and isinstance(n, Inert) else np.int32(operator.index(n)) for n in grid)
    except TypeError:
        raise SpecError(f"{where}: grid must hold integers, got {grid}") from None
    check_steps(where, sizes)
    return Pipeline(np_, sizes, steps_of, facts)


# ---- what both executions check
def no_specs(where: str, name: str, got: str) -> SpecError:
    """The error for in_specs or out_specs that are none."""
    mend = {"BlockSpec": ": write (spec,)", "NoneType": ": leave it out"}.get(got, "")
    return SpecError(f"{where}: {name} must be a tuple of BlockSpec, got {got}{mend}")


def planned(unit: Unit, site: str, specs: tuple[Sequence[Any], Sequence[Any]], trees: tuple[Tree, Tree],
            known: tuple[int | None, ...], said: int | None, delay: int | None, unequal: bool, manual: tuple[str, ...],
            single: bool) -> PipelineFacts:
    """What a pipeline is, for the leaves and trees of (in_specs, out_specs).

    `said`: its max_concurrent_steps; else the kernel's, else `SLOTS`, or 1. `known`, `delay`: see `steps.grouped`.
    """
    where, alone = f"kernel {unit.kernel}, pipeline at {site}", single or not unit.warp_specialized
    check_turns(where, unit, unequal, bool(trees[1].parts), single)
    check_shared_loads(where, manual, alone)
    slots = next(n for n in (said, unit.params.max_concurrent_steps, 1 if single else SLOTS) if n is not None)
    (inputs, outputs), labels = specs, tuple(tree.labels(name) for tree, name in zip(trees, ("in_specs", "out_specs"), strict=True))
    check_steps(where, known)
    rings = grouped(where, inputs, labels[0], known, slots, delay, unit.params.delay_release, 0 if single else unit.default_delay)
    check_specs(where, outputs, labels[1])
    outs = tuple(replace(group, operands=tuple(len(inputs) + number for number in group.operands))
                 for group in grouped(where, outputs, labels[1], known, slots, 0, 0))
    tree = Tree((*(trees[0].parts or ()), *(trees[1].parts or ())))  # side by side, as arrays are passed: not as one NamedTuple
    return PipelineFacts(unit, site, (*inputs, *outputs), tree, (*labels[0], *labels[1]), rings, outs, unequal, manual, alone)


def check_steps(where: str, sizes: Sequence[Any]) -> None:
    """A grid has no negative sizes: two of them would make a positive number of steps."""
    if any(isinstance(size, (int, np.integer)) and size < 0 for size in sizes):
        said = ", ".join(str(size) for size in sizes if isinstance(size, (int, np.integer)))
        raise SpecError(f"{where}: grid must hold numbers of steps, 0 or more, got {said}")


def check_steps_of(where: str, function: Facts | None, given: str, outputs: bool) -> None:
    """steps_of is a function of the warpgroup."""
    if outputs:
        raise SpecError(f"{where}: steps_of with out_specs: every compute warpgroup takes part in storing an output's blocks; "
                        "store from registers in the body, c[…] = tile, or let all warpgroups run all steps")
    if function is None:
        raise SpecError(f"{where}: steps_of must be a function nested in the kernel, of one argument, the warpgroup, got {given}")
    if function.parameters != 1:
        raise SpecError(f"{where}: steps_of takes {function.parameters} arguments, but is called with one, the warpgroup")


def check_tokens(where: str, steps_of: bool, turns: tuple[int, ...] | None) -> None:
    """A loop that leaves out steps takes and passes their turns: so each step has the same ones."""
    if steps_of and turns is None:
        raise SpecError(f"{where}: steps_of, but not every step is sure to go through the same blocks of numpipe.turn(…): the "
                        "steps that a warpgroup leaves out take and pass their turns too; let these blocks stand in the loop "
                        "itself, in no branch, inner loop or function, and no 'continue' before them")


def check_inner(where: str, steps_of: bool, nested: int) -> None:
    """Warpgroups that leave out steps leave out the inner pipeline's, which the memory role loads for all of them."""
    if steps_of and nested:
        raise SpecError(f"{where}: steps_of, but its body holds another pipeline, whose loads are issued for all steps: give "
                        "steps_of to the inner one, or run all steps")


def reachable(pipe: Pipeline) -> None:
    """Somebody must issue a pipeline's loads: the memory role comes by only where the AST pass saw that there are some."""
    if pipe.np.compute_only and not pipe.single:
        raise CompileError(unreachable(pipe.unit.kernel, pipe.site))


def unreachable(kernel: str, site: str) -> str:
    return (f"kernel {kernel}, pipeline at {site}: only compute warpgroups come here, so nobody issues its loads: a body or "
            "compute_context that runs a pipeline of its own holds it, or calls the function that holds it by name")


# ---- the loop
@op
def steps(pipe: Pipeline, refs: Any, nested: int, groups: int, unpacked: tuple[int, ...], waited: tuple[int, ...],
          turns: tuple[int, ...] | None, last: int) -> Iterator[tuple[Any, ...]]:
    """``pipe(arrays)`` in a `for`: yields ``(indices), (tiles)``, then a group of barriers for each kind that was asked for.

    `nested`: the body holds another pipeline. `groups`: wgmmas that every step is sure to issue. `unpacked`: see
    `barriers.check_groups`. `waited`: the ready barriers, by number, that every step is sure to wait for. `turns`: the order
    tokens whose blocks every step goes through, None where that may differ. `last`: it is the last pipeline of a tile, and passes
    the turn.
    """
    check_groups(pipe.where, pipe.manual, loaded(pipe), unpacked)
    check_tokens(pipe.where, pipe.unequal, turns)
    reachable(pipe)
    return steps_over(pipe, refs, nested, groups, last, waited, turns or (), True)


def steps_over(pipe: Pipeline, refs: Any, nested: int, groups: int, last: int = 0, waited: tuple[int, ...] = (),
               turns: tuple[int, ...] = (), apart: bool = False) -> Iterator[tuple[Any, ...]]:
    """The same; barriers are in one group with the tiles, behind them, or `apart`."""
    shared = shared_rings(pipe, refs)
    arrays = arrays_of(pipe, refs if shared is None else refs[:-1])
    check_inner(pipe.where, pipe.unequal, nested)
    return _iterate(_loop(pipe, arrays, groups, waited, turns, shared, bool(last)), nested, apart)


def arrays_of(pipe: Pipeline, refs: tuple[Any, ...]) -> list[GmemRef]:
    """The arrays that a pipeline is called on."""
    arrays = leaves(refs)
    check_arrays(pipe, arrays, GmemRef, f"({', '.join(type(ref).__name__ for ref in arrays)})", tree_of(refs))
    return arrays


def check_arrays(pipe: Planned, arrays: list[Any], kind: type, given: str, tree: Tree) -> None:
    """A pipeline is called on arrays of the kernel, in the shape of its specs."""
    if not all(isinstance(ref, kind) for ref in arrays):
        raise SpecError(f"{pipe.where}: called on {given}; a pipeline is called on the kernel's array parameters")
    wrong = mismatch(pipe.tree, tree, "in_specs and out_specs have" if pipe.outs else "in_specs has")
    if wrong:
        raise SpecError(f"{pipe.where}: {wrong}")


def shared_rings(pipe: Planned, refs: Any) -> tuple[RingPlan, ...] | None:
    """The rings that a pipeline is given behind its arrays (`chains`), or None."""
    if not len(refs) or not isinstance(refs[-1], Allocations):
        return None
    check_shared(pipe.where, pipe.single)
    check_count(pipe.where, refs[-1].plans, len(pipe.rings), len(pipe.outs))
    return refs[-1].plans


def loaded(pipe: Planned) -> int:
    """The arrays that a pipeline loads: its loop may have barriers for them."""
    return sum(len(group.operands) for group in pipe.rings)


def waited_parts(pipe: Planned, group: Group, waited: tuple[int, ...]) -> tuple[int, ...]:
    """The parts of a ring whose ready barriers, numbered as the loop has them, are among `waited`."""
    order = sorted(operand for ring in pipe.rings for operand in ring.operands)
    return tuple(part for part, operand in enumerate(group.operands) if operand in order and order.index(operand) in waited)


def _loop(pipe: Pipeline, arrays: list[GmemRef], groups: int, waited: tuple[int, ...], turns: tuple[int, ...],
          shared: tuple[RingPlan, ...] | None, last: bool) -> Loop:
    total = steps = np.int32(np.prod([int(size) for size in pipe.grid]))
    if pipe.steps_of is not None and not pipe.np.memory:
        steps = np.int32(max(0, min(int(pipe.steps_of(np.int32(pipe.np.unit.number(current().warpgroup)))), int(total))))
    if pipe.single:
        total = steps  # nobody loads for others
    rings = tuple(Ring(pipe.np, plan, tuple(arrays[n] for n in group.operands),
                       tuple(pipe.specs[n].index_map for n in group.operands), pipe.grid, steps, waited_parts(pipe, group, waited))
                  for plan, group in plan_rings(pipe, arrays, shared))
    loads = len(pipe.rings)
    return Loop(pipe.np, rings[:loads], arrays, pipe.tree, places(len(arrays), pipe.rings, pipe.outs), pipe.manual, pipe.grid,
                total, steps, pipe.unequal and not pipe.single, groups, rings[loads:], last, turns)


def plan_rings(pipe: Planned, arrays: Sequence[Any], shared: tuple[RingPlan, ...] | None) -> list[tuple[RingPlan, Group]]:
    """The rings of a pipeline over arrays (`index` is their number), then its output rings, each with its operands.

    `shared`: allocations that it is given.
    """
    rings: list[tuple[RingPlan, Group]] = []
    for number, group in enumerate((*pipe.rings, *pipe.outs)):
        blocks = tuple((arrays[n].index, *pipe.specs[n].block) for n in group.operands)
        labels, given = tuple(pipe.labels[n] for n in group.operands), shared[number] if shared else None
        kind, delay, manual = (RingPlan, group.delay, pipe.manual) if number < len(pipe.rings) else (OutPlan, 0, ())
        plan = pipe.unit.plan_ring(pipe.site, blocks, group.slots, delay, manual, labels, group.dims, pipe.single, given, kind)
        rings.append((plan, group))
    return rings


def _iterate(loop: Loop, nested: int, apart: bool) -> Iterator[tuple[Any, ...]]:
    with running(loop.np.running, loop.np.unit.kernel, (ring.plan for ring in (*loop.rings, *loop.outs))):
        if loop.np.memory and not nested and not loop.single:
            produce(loop)
            return
        k = np.int32(0)
        if loop.single and not loop.np.memory:
            begin_alone(loop)
        while _comes(loop, k):
            yield unravel(k, loop.grid), *_given(loop, k, apart)
            k = k + np.int32(1)


def _comes(loop: Loop, k: Any) -> bool:
    """What a role does before step k; whether there is such a step."""
    if not loop.np.memory:
        return bool(advance(loop, k, loop.steps))
    more = bool(k < loop.total)
    if not loop.single:
        if more:
            fill_step(loop, k)
        else:
            finish_loads(loop)
    return more


def _given(loop: Loop, k: Any, apart: bool) -> tuple[Any, ...]:
    """The groups behind the indices of step k."""
    given, barriers = tiles(loop, k), barriers_of(loop, k)
    if not apart:
        return ((*given, *barriers) if barriers else given,)
    return given, *by_kind(loop.manual, barriers)
