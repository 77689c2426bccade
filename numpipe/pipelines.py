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
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import numpy as np

from ._machine import current
from ._op import constant, op
from ._unit import RingPlan
from .barriers import barriers_of
from .chains import Allocations, check_count
from .closure import Facts, facts_of
from .context import Context
from .errors import CompileError, SpecError
from .inert import Inert
from .refs import GmemRef
from .ring import Ring, unravel
from .single import advance_alone, begin_alone
from .specs import BlockSpec
from .steps import Group, Loop, advance, fill_step, finish, grouped, places, produce, ring_steps, tiles
from .trees import Tree, leaves, mismatch, tree_of

IN_A_FOR = ("a pipeline is called in a `for` of the function that makes it: for (indices), (tiles) in pipe(arrays): — it cannot be "
            "passed to another one")


class Pipeline:
    """What `pipeline` returns inside a kernel; call it on the arrays and loop over the result.

    specs, tree  leaves of in_specs and their shape
    rings        which of them share a ring
    steps_of     steps of a warpgroup, where they differ
    single       whether each compute warpgroup runs it for itself (`single`)
    """

    def __init__(self, np_: Context, grid: tuple[Any, ...], specs: tuple[BlockSpec, ...], tree: Tree, rings: tuple[Group, ...],
                 steps_of: Any, site: str, single: bool = False) -> None:
        self.np, self.grid, self.specs, self.tree, self.rings, self.steps_of, self.site = (
            np_, grid, specs, tree, rings, steps_of, site)
        self.single = single or not np_.unit.warp_specialized

    @property
    def where(self) -> str:
        return f"kernel {self.np.unit.kernel}, pipeline at {self.site}"

    def __call__(self, *arrays: Any) -> NoReturn:
        raise CompileError(f"{self.where}: {IN_A_FOR}")


def pipeline(*, grid: tuple[Any, ...], in_specs: tuple[Any, ...] = (), out_specs: tuple[Any, ...] = (),
             max_concurrent_steps: int = 2, delay_release: int | None = None,
             steps_of: Callable[[Any], Any] | None = None) -> NoReturn:
    """A software pipeline over `grid`, inside a kernel: ``for (indices), (tiles) in pipeline(...)(arrays):``.

    grid                  steps per dimension, run-time int32 values, last one fastest
    in_specs              one BlockSpec for each array the pipeline is called on; tuples and NamedTuples of them, nested, for
                          arrays in the same tuples: the tiles come in them too
    out_specs             ()
    max_concurrent_steps  slots of the ring: steps whose tiles are in shared memory at once (>= 1). Where the grid is made of
                          compile-time constants there are no more than it has steps; `BlockSpec.buffer_count` is not changed.
    delay_release         steps a slot is kept after use (default: `CompilerParams.delay_release`); with 1 the products of
                          a step may still run while the next step is issued. Must be below max_concurrent_steps.
    steps_of              ``steps_of(warpgroup) -> steps``: a compute warpgroup runs its first so many steps (at most all), and
                          releases the tiles of the others unused. Everything is loaded.

    An operand is loaded when its block changes (see `BlockSpec`).

    Raises SpecError when the rings do not fit in shared memory, with the sum. Leaving the loop by `break` or `return`
    is a CompileError: the memory role would still load the remaining steps.

    In a kernel with ``warp_specialized=False`` it is single-stream: each warpgroup that comes there runs it for itself, with
    slots of its own, as it does `emit_pipeline`.
    """
    raise RuntimeError("numpipe.pipeline works inside a kernel only: call it from a @numpipe.kernel function")


@op
def make_pipeline(np_: Context, grid: Any, in_specs: Any, out_specs: Any, max_concurrent_steps: int, delay_release: int | None,
                  steps_of: Any, known: tuple[int | None, ...], site: str) -> Pipeline:
    """`pipeline(...)` as the AST pass writes it: with the context, the constants in the grid and the place in the source."""
    return made(np_, grid, in_specs, out_specs, max_concurrent_steps, delay_release, steps_of, known, site)


def made(np_: Context, grid: Any, in_specs: Any, out_specs: Any, max_concurrent_steps: int, delay_release: int | None,
         steps_of: Any, known: tuple[int | None, ...], site: str, single: bool = False) -> Pipeline:
    """A pipeline; a `single` one is run by each compute warpgroup for itself, also where there is a memory role."""
    where = f"kernel {np_.unit.kernel}, pipeline at {site}"
    if not isinstance(grid, tuple) or not grid:
        raise SpecError(f"{where}: grid must be a tuple of step counts, got {grid!r}")
    specs = leaves(in_specs)
    if not isinstance(in_specs, tuple) or not all(isinstance(spec, BlockSpec) for spec in specs):
        given = ", ".join(type(s).__name__ for s in in_specs) if isinstance(in_specs, tuple) else type(in_specs).__name__
        raise SpecError(f"{where}: in_specs must be a tuple of BlockSpec, got ({given})" if isinstance(in_specs, tuple) else
                        f"{where}: in_specs must be a tuple of BlockSpec, got {given}: write (spec,)")
    check_out_specs(where, isinstance(out_specs, tuple) and not out_specs)
    if steps_of is not None:
        check_steps_of(where, facts_of(steps_of), type(steps_of).__name__)
    slots = constant(where, "max_concurrent_steps", max_concurrent_steps)
    delay = constant(where, "delay_release", delay_release)
    tree = tree_of(in_specs)
    rings = grouped(where, specs, tree.labels("in_specs"), known_grid(known, len(grid)), slots, delay,
                    np_.unit.params.delay_release)
    try:
        sizes = tuple(n if single and isinstance(n, Inert) else np.int32(operator.index(n)) for n in grid)
    except TypeError:
        raise SpecError(f"{where}: grid must hold integers, got {grid}") from None
    return Pipeline(np_, sizes, tuple(specs), tree, rings, steps_of, site, single)


# ---- what both executions check
def known_grid(known: tuple[int | None, ...], rank: int) -> tuple[int | None, ...]:
    """The constants in a grid; nothing is known of one that is not written in place."""
    return known if len(known) == rank else (None,) * rank


def check_out_specs(where: str, none: bool) -> None:
    """Outputs of a pipeline."""
    if not none:
        raise SpecError(f"{where}: out_specs must be (): store tiles in the body, c[…] = tile")


def check_steps_of(where: str, function: Facts | None, given: str) -> None:
    """steps_of is a function of the warpgroup."""
    if function is None:
        raise SpecError(f"{where}: steps_of must be a function nested in the kernel, of one argument, the warpgroup, got {given}")
    if function.parameters != 1:
        raise SpecError(f"{where}: steps_of takes {function.parameters} arguments, but is called with one, the warpgroup")


def check_inner(where: str, steps_of: bool, nested: int) -> None:
    """Warpgroups that leave out steps leave out the inner pipeline's, which the memory role loads for all of them."""
    if steps_of and nested:
        raise SpecError(f"{where}: steps_of, but its body holds another pipeline, whose loads are issued for all steps: give "
                        "steps_of to the inner one, or run all steps")


def reachable(np_: Context, site: str) -> None:
    """Somebody must issue a pipeline's loads: the memory role comes by only where the AST pass saw that there are some."""
    if np_.compute_only:
        raise CompileError(unreachable(np_.unit.kernel, site))


def unreachable(kernel: str, site: str) -> str:
    return (f"kernel {kernel}, pipeline at {site}: only compute warpgroups come here, so nobody issues its loads: a body or "
            "compute_context that runs a pipeline of its own holds it, or calls the function that holds it by name")


# ---- the loop
@op
def steps(pipe: Pipeline, refs: Any, nested: int, groups: int) -> Iterator[tuple[Any, Any]]:
    """``pipe(arrays)`` in a `for`: yields ``(indices), (tiles)``.

    `nested`: the body holds another pipeline. `groups`: wgmmas that every step is sure to issue.
    """
    return steps_over(pipe, refs, nested, groups, (False, False))


def steps_over(pipe: Pipeline, refs: Any, nested: int, groups: int, manual: tuple[bool, bool]) -> Iterator[tuple[Any, Any]]:
    """The same with barriers behind the tiles, where the body waits for, or releases, its operands itself (`manual`)."""
    if not pipe.single:
        reachable(pipe.np, pipe.site)
    refs, shared = without_allocations(pipe, refs)
    arrays = leaves(refs)
    check_arrays(pipe, refs)
    check_inner(pipe.where, pipe.steps_of is not None, nested)
    return _iterate(_loop(pipe, arrays, groups, manual, shared), nested)


def check_arrays(pipe: Pipeline, refs: tuple[Any, ...]) -> None:
    """A pipeline is called on arrays of the kernel, in the shape of its specs."""
    arrays = leaves(refs)
    if not all(isinstance(ref, GmemRef) for ref in arrays):
        given = ", ".join(type(ref).__name__ for ref in arrays)
        raise SpecError(f"{pipe.where}: called on ({given}); a pipeline is called on the kernel's array parameters")
    wrong = mismatch(pipe.tree, tree_of(refs))
    if wrong:
        raise SpecError(f"{pipe.where}: {wrong}")


def without_allocations(pipe: Pipeline, refs: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[RingPlan, ...] | None]:
    """The arrays that a pipeline is called on, and the rings that it is given (`chains`)."""
    if not refs or not isinstance(refs[-1], Allocations):
        return refs, None
    check_count(pipe.where, refs[-1].plans, len(pipe.rings))
    return refs[:-1], refs[-1].plans


def plans_of(pipe: Pipeline, arrays: list[GmemRef], manual: tuple[bool, bool],
             shared: tuple[RingPlan, ...] | None) -> tuple[RingPlan, ...]:
    """The rings of a pipeline over these arrays."""
    labels, plans = pipe.tree.labels("in_specs"), []
    for number, group in enumerate(pipe.rings):
        blocks = tuple((arrays[n].index, *pipe.specs[n].block) for n in group.operands)
        plans.append(pipe.np.unit.plan_ring(pipe.site, blocks, group.slots, group.delay, manual,
                                            tuple(labels[n] for n in group.operands), group.dims, pipe.single,
                                            shared[number] if shared else None))
    return tuple(plans)


def _loop(pipe: Pipeline, arrays: list[GmemRef], groups: int, manual: tuple[bool, bool],
          shared: tuple[RingPlan, ...] | None) -> Loop:
    total = steps = np.int32(np.prod([int(size) for size in pipe.grid]))
    if pipe.steps_of is not None and not pipe.np.memory:
        steps = np.int32(max(0, min(int(pipe.steps_of(np.int32(current().warpgroup))), int(total))))
    if pipe.single:
        total = steps  # nobody loads for others
    rings = tuple(
        Ring(pipe.np, plan, tuple(arrays[n] for n in group.operands), tuple(pipe.specs[n].index_map for n in group.operands),
             pipe.grid, steps) for plan, group in zip(plans_of(pipe, arrays, manual, shared), pipe.rings, strict=True))
    return Loop(pipe.np, rings, arrays, pipe.tree, places(len(arrays), pipe.rings), manual, pipe.grid, total, steps,
                pipe.steps_of is not None and not pipe.single, groups)


def _iterate(loop: Loop, nested: int) -> Iterator[tuple[Any, Any]]:
    if loop.np.memory and not nested and not loop.single:
        produce(loop)
        return
    k = np.int32(0)
    if loop.single and not loop.np.memory:
        begin_alone(loop)
        while advance_alone(loop, k, loop.steps):
            yield unravel(k, loop.grid), _given(loop, k)
            k = k + np.int32(1)
        return
    if loop.np.memory:
        while k < loop.total:
            if not loop.single:
                fill_step(loop, k)
            yield unravel(k, loop.grid), _given(loop, k)
            k = k + np.int32(1)
        if not loop.single:
            finish(loop)
        return
    while advance(loop, k, loop.steps):
        yield unravel(k, loop.grid), _given(loop, k)
        k = k + np.int32(1)


def _given(loop: Loop, k: Any) -> Any:
    given, barriers = tiles(loop, ring_steps(loop, k)), barriers_of(loop, k)
    return (*given, *barriers) if barriers else given
