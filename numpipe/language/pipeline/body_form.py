"""The body form of a pipeline: a function that is called for each step, after the step's tiles have
landed.

::

    def body(indices, a_tile, b_tile, acc):  # the next carry
        return numpipe.wgmma(acc, a_tile, b_tile.T)


    def compute(pipeline):  # compute warpgroups only
        acc = pipeline(
            numpipe.zeros((64, 256), np.float32)
        )  # the initial carry -> the final one
        c[ds(m * 64, 64), ds(n * 256, 256)] = acc.astype(c.dtype)


    numpipe.emit_pipeline_warp_specialized(
        body,
        grid=(steps,),
        max_concurrent_steps=4,
        compute_context=compute,
        in_specs=(
            BlockSpec((64, 64), lambda k: (m, k)),
            BlockSpec((256, 64), lambda k: (n, k)),
        ),
    )(a, b)

It runs the same loop over the same ring as the loop form (`pipelines`). The memory role differs: it
calls only index maps, not the body or the compute context. If one of these contains another
pipeline, whose loads the memory role must issue, it runs both with inert tiles, as it runs the body
of a loop.

`emit_pipeline` is the body form of a single-stream pipeline: every compute warpgroup that reaches
it runs the whole pipeline::

    acc = numpipe.emit_pipeline(
        body,
        grid=(steps,),
        max_concurrent_steps=4,
        delay_release=1,
        init_carry=numpipe.zeros((64, 128), np.float32),
        in_specs=(
            BlockSpec((64, 64), lambda k: (m + wg, k)),
            BlockSpec((128, 64), lambda k: (n, k)),
        ),
    )(a, b)

The warpgroup has its own slots, barriers and counter, and issues its loads itself (`steps`), so the
grid and the index maps may depend on the warpgroup axis. The memory role, if the kernel has one,
takes no part. But if the body contains a pipeline whose loads that role issues, it runs the body
with inert tiles in every step.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from ...core.functions import Facts, facts_of
from ...core.inert import Inert
from ...core.op import called, helper, is_none, op, outside
from ...diagnostics.errors import CompileError, SpecError
from ...plan.nested_tuples import leaves, made, tree_of
from ...plan.unit import Unit
from ..memory.per_lane import (
    PerLane,
    by_lane,
    check_lane_body,
    check_lane_carry,
    each_lane,
    mapped,
    strong,
)
from ..tiles.layout_names import EITHER
from ..tiles.layouts import cast_for, joined, said
from ..tiles.products_in_flight import drained
from ..tiles.tile import Tile
from .chains import Allocations, check_shared, check_state
from .pipelines import (
    Pipeline,
    PipelineBase,
    arrays_of,
    check_tokens,
    plan_rings,
    reachable,
    steps_over,
)

__all__ = ["emit_pipeline", "emit_pipeline_warp_specialized"]


def not_called(builder: str) -> str:
    return f"a pipeline is emitted for arrays: {builder}(…)(a, b)"


def emit_pipeline_warp_specialized(
    body: Callable,
    *,
    grid: tuple,
    in_specs: tuple = (),
    out_specs: tuple = (),
    max_concurrent_steps: int | None = None,
    delay_release: int | None = None,
    compute_context: Callable | None = None,
    carry_coroutine: Callable | None = None,
    num_compute_wgs: int | None = None,
    wg_axis: str | None = None,
    memory_registers: int | None = None,
    manual_produced_barriers: bool = False,
    manual_consumed_barriers: bool = False,
    pipeline_state: Any = None,
    memory_thread_idx: int | None = None,
    steps_of: Callable[[Any], Any] | None = None,
) -> NoReturn:
    """Create a software pipeline whose steps call `body`, inside a kernel; call the result on the
    arrays.

    body                  ``body(indices, *tiles, *ready, *consumed)``, or with a carry as the last
                          argument, ``-> carry``. `indices` is a tuple of int32; tiles are in shared
                          memory. Every compute warpgroup calls it in every step.
    grid, in_specs, out_specs, max_concurrent_steps, delay_release, steps_of
                          as in `pipeline`; arrays that the body writes follow the inputs, in its
                          parameters and in the call
    compute_context       ``compute_context(pipeline)``, run by the compute warpgroups. It calls
                          ``pipeline(carry)`` exactly once and receives the final carry, in which no
                          product is in flight. Required for a carry.
    carry_coroutine       the same as a generator function: ``final = yield initial``, exactly once
    num_compute_wgs, wg_axis, memory_registers
                          the kernel's options, for kernels that do not set them
    manual_produced_barriers the body receives a ready barrier for each array, after the tiles, and
                          waits for each tile before it uses it: ``numpipe.barrier_wait(barrier)``.
                          So it can start when the first tile has landed.
    manual_consumed_barriers
                          the body receives a consumed barrier for each array, after the ready
                          barriers. Every compute warpgroup releases each tile once per step, after
                          it has waited for the products that read the tile:
                          ``numpipe.barrier_arrive(barrier)``, which also describes the effect of a
                          delay. The memory role loads a step's arrays in the order of in_specs,
                          each as soon as its own tile is free. A tile that several steps use is
                          released in the last of them: in the others, arriving does nothing and may
                          be omitted.
    pipeline_state        None, a `PipelineState` or an integer 0…2, compile-time or run-time: the
                          position of the pipeline in a chain. It has no effect, for any grid, delay
                          and number of steps: rings are never drained, so the next pipeline's loads
                          always begin while this one still computes
    memory_thread_idx     the warpgroup of the CTA that is the memory role, 0…num_compute_wgs (a
                          constant; default: the last one). The compute warpgroups are numbered from
                          0 without it

    ``get_allocations(arrays)`` of the result returns the shared memory that it uses for these
    arrays: slots, barriers and step counters. Another pipeline whose blocks and slots have the same
    sizes can use this memory instead of its own: call it with ``(arrays, allocations=…)`` (see
    `chains`).

    A carry is a tile, a number, or a tuple of them; its types and shapes are the same in every
    step. Functions are nested in the kernel or decorated with `numpipe.function`.

    Raises SpecError if the ring does not fit in shared memory, for functions that do not fit the
    call, and for options that are not compile-time constants.
    """
    raise outside("emit_pipeline_warp_specialized")


def emit_pipeline(
    body: Callable,
    *,
    grid: tuple,
    in_specs: tuple = (),
    out_specs: tuple = (),
    max_concurrent_steps: int | None = None,
    delay_release: int | None = None,
    init_carry: Any = None,
) -> NoReturn:
    """Create a software pipeline that each compute warpgroup runs on its own, inside a kernel; call
    the result on the arrays.

    body                  ``body(indices, *tiles)``, or ``body(indices, *tiles, carry) -> carry``.
                          `indices` is a tuple of int32; tiles are in shared memory, in slots that
                          belong to the warpgroup alone
    grid, in_specs, out_specs
                          as in `pipeline`; warpgroups may have different grids, and each stores its
                          own blocks
    max_concurrent_steps  slots of each warpgroup's ring: the number of steps whose tiles are in
                          shared memory at once (>= 1); default:
                          `CompilerParams.max_concurrent_steps`, else 1
    delay_release         number of steps that a slot is kept after use (default:
                          `CompilerParams.delay_release`). With 1, a slot is filled while the
                          products of the next step run, which hides the time that filling takes
    init_carry            a tile, a number, or a tuple of them; the call returns the final carry, in
                          which no product is in flight. Its types and shapes are the same in every
                          step.

    It works in kernels with a memory role and without (``warp_specialized=False``); in the latter,
    the loop form, `numpipe.pipeline`, does the same. Some warpgroups may skip it. The memory role,
    if there is one, has no final carry: a tile is inert there, and a number cannot steer it.

    Raises SpecError if the rings of all warpgroups do not fit in shared memory, and for functions
    that do not fit the call.
    """
    raise outside("emit_pipeline")


class EmittedPipeline:
    """An emitted pipeline, or its Numba type: the pipeline of the loop form, and the functions that
    its steps call.

    compute   the compute context, or None; `coroutine`: it was passed as carry_coroutine;
              `in_context`: this role runs it
    carry     the initial carry of a single-stream pipeline, or None
    last      see `pipelines.steps`
    mirrored  whether the memory role runs the body and the compute context too; `idle`: this is
              the memory role, and it does not
    by_lane   whether the body is per-lane code
    """

    def __init__(
        self,
        pipe: PipelineBase,
        body: Any,
        compute: Any,
        coroutine: int,
        carry: Any,
        state: Any,
        last: int,
    ) -> None:
        around = not is_none(compute)
        check_state(pipe.where, state)
        facts = check_body(pipe, body, around or not is_none(carry))
        check_tokens(pipe, None if facts.turns else ())
        holds = around and check_compute(pipe.where, compute, bool(coroutine)).pipelines
        self.pipe: Any = pipe
        self.body, self.compute, self.carry, self.last = body, compute, carry, last
        self.facts = facts
        self.by_lane = by_lane(pipe.unit)
        self.mirrored = facts.pipelines or holds
        self.idle = not (pipe.np.computes or pipe.np.stores or self.mirrored)
        self.in_context = around and not self.idle
        if self.by_lane:
            check_lane_body(pipe.where, facts, pipe.manual)


@op
def emitted(
    pipe: Pipeline, body: Any, compute: Any, coroutine: int, carry: Any, state: Any, last: int
) -> Callable:
    """Return `emit_pipeline_warp_specialized(...)` or `emit_pipeline(...)`; the AST pass wraps the
    call around a loop-form pipeline."""
    return functools.partial(
        run, EmittedPipeline(pipe, body, compute, coroutine, carry, state, last)
    )


# ---- what both executions check
def check_options(where: str, unit: Unit, options: dict[str, Any]) -> None:
    """Raise SpecError if a pipeline's options for the division of the CTA into roles differ from
    the kernel's."""
    if not unit.warp_specialized:
        raise SpecError(
            f"{where}: emit_pipeline_warp_specialized needs a memory role, which "
            "warp_specialized=False removes; fix: use emit_pipeline, in which each compute "
            "warpgroup issues its own loads"
        )
    for name, have in (
        ("num_compute_wgs", unit.compute_wgs),
        ("wg_axis", unit.wg_axis),
        ("memory_registers", unit.memory_registers),
    ):
        if options[name] is not None and options[name] != have:
            raise SpecError(
                f"{where}: {name}={options[name]!r}, but the kernel has {name}={have!r}; fix: set "
                "it once, on the kernel"
            )
    index = options["memory_thread_idx"]
    if index is not None and index != unit.memory_warpgroup:
        raise SpecError(
            f"{where}: memory_thread_idx={index!r}, but the CTA's warpgroups are "
            f"0…{unit.compute_wgs}: num_compute_wgs={unit.compute_wgs} and the memory role"
        )


def plural(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"


CARRY = "the carry of a single-stream pipeline"
A_FUNCTION = "must be a function nested in the kernel or decorated with @numpipe.function"


def check_body(pipe: PipelineBase, function: Any, carry: bool) -> Facts:
    """Return the facts of a body. Raises SpecError unless it accepts the arguments that it is
    called with."""
    option, body = "init_carry" if pipe.single else "compute_context", facts_of(function)
    a_carry = option if pipe.single else f"a {option}"
    where = pipe.where
    manual = pipe.manual
    tiles = len(pipe.tree.parts or ())
    barriers = len(pipe.barrier_tree.parts or ())
    if body is None:
        raise SpecError(f"{where}: body {A_FUNCTION}, got {called(function)}")
    if body.coroutine:
        raise SpecError(
            f"{where}: body '{body.name}' has a 'yield', which only a carry_coroutine may have"
        )
    wanted = 1 + tiles + barriers * len(manual) + carry
    if body.parameters > wanted if body.rest else body.parameters != wanted:
        kinds = [(tiles, "tile"), *((barriers, f"{kind} barrier") for kind in manual)]
        arguments = ["indices", *(plural(count, kind) for count, kind in kinds if count)]
        given = f"({', '.join(arguments + ['carry'] * carry)})"
        fix = (
            ""
            if abs(body.parameters - wanted) > 1 or (body.parameters > wanted) == carry
            else f"; a carry needs {a_carry}"
            if body.parameters > wanted
            else f"; with {a_carry} the carry comes last"
        )
        takes = plural(body.parameters, "argument") + " at least" * body.rest
        raise SpecError(
            f"{where}: body '{body.name}' takes {takes}, but is called with {wanted}: {given}{fix}"
        )
    if carry and not body.returns:
        raise SpecError(
            f"{where}: body '{body.name}' returns nothing, but it takes a carry; fix: return the "
            "next carry"
        )
    if body.returns and not carry:
        fix = option if pipe.single else "a compute_context that calls pipeline(initial carry)"
        raise SpecError(
            f"{where}: body '{body.name}' returns a value, but there is no carry; fix: pass "
            f"{fix}, or return nothing"
        )
    return body


def check_compute(where: str, function: Any, coroutine: bool) -> Facts:
    """Return the facts of a compute context. Raises SpecError unless it runs the pipeline exactly
    once."""
    option, compute = "carry_coroutine" if coroutine else "compute_context", facts_of(function)
    if compute is None:
        raise SpecError(f"{where}: {option} {A_FUNCTION}, got {called(function)}")
    if compute.coroutine is not coroutine:
        raise SpecError(
            f"{where}: '{compute.name}' has {'a' if compute.coroutine else 'no'} 'yield'; fix: "
            f"pass it as {'carry_coroutine' if compute.coroutine else 'compute_context'}="
        )
    if compute.parameters != 1:
        raise SpecError(
            f"{where}: {option} '{compute.name}' takes "
            f"{plural(compute.parameters - coroutine, 'argument')}, but is called with "
            + ("none" if coroutine else "1: the pipeline")
        )
    if compute.misuse:
        raise SpecError(f"{where}: {option} '{compute.name}' {compute.misuse}")
    if compute.returns:
        raise SpecError(
            f"{where}: {option} '{compute.name}' returns a value, which is not used; fix: store "
            "results through the kernel's output references"
        )
    return compute


# ---- shared memory for other pipelines
@op
def get_allocations(pipeline: Any, *refs: Any) -> Allocations:
    """Return ``pipeline.get_allocations(arrays)`` for an emitted or a loop-form pipeline."""
    return allocations_of(
        pipeline,
        pipeline.args[0] if isinstance(pipeline, functools.partial) and pipeline.args else None,
        refs,
    )


def allocations_of(pipeline: Any, bound: Any, refs: Any) -> Allocations:
    """Return the allocations of a pipeline or its Numba type. An emitted pipeline is a function
    `bound` to an `EmittedPipeline`."""
    pipe = bound.pipe if isinstance(bound, EmittedPipeline) else pipeline
    if not isinstance(pipe, PipelineBase):
        raise SpecError(f"get_allocations(…) expects a pipeline, got {called(pipeline)}")
    check_shared(pipe.where, pipe.single)
    return Allocations(tuple(plan for plan, _ in plan_rings(pipe, arrays_of(pipe, refs)[0], None)))


# ---- the pipeline runs
@op
def run(emitted: EmittedPipeline, *refs: Any) -> Any:
    """Run ``emit_pipeline_warp_specialized(...)(arrays)`` or ``emit_pipeline(...)(arrays)``."""
    pipe, np_ = emitted.pipe, emitted.pipe.np
    if pipe.single and emitted.idle:  # the memory role did not run the steps
        return mapped(
            lambda part: part if part is None or isinstance(part, Tile) else Inert(CARRY),
            emitted.carry,
        )
    reachable(pipe)
    outer, bound = np_.compute_only, (emitted, refs)
    np_.compute_only = outer or not emitted.mirrored
    result = (
        emitted.compute(functools.partial(run_carry, bound))
        if emitted.in_context
        else run_carry(bound, emitted.carry)
    )
    np_.compute_only = outer
    return result


@op
def emitted_steps(emitted: EmittedPipeline, refs: Any) -> Any:
    return steps_over(
        emitted.pipe, refs, int(emitted.facts.pipelines), emitted.facts.products, emitted.last
    )


@helper
def run_carry(bound, carry):  # type: ignore[no-untyped-def]
    """Run the loop; in a compute context, this is ``pipeline(carry)``. `bound`: the emitted
    pipeline and its arrays."""
    emitted, refs = bound
    carry = first_carry(emitted, refs, carry)
    for indices, tiles in emitted_steps(emitted, refs):
        carry = next_carry(emitted, indices, tiles, carry)
    # wait on every path out of the loop: ptxas serializes products if it does not see their wait
    return drained(carry, 0)


@op
def first_carry(emitted: EmittedPipeline, refs: Any, carry: Any) -> Any:
    """Return the initial carry, in the type that the body takes and returns; None if the body has
    no carry."""
    if emitted.by_lane:
        check_lane_carry(emitted.pipe.where, _kind(carry))
    return mapped(strong, carry)


@op
def next_carry(emitted: EmittedPipeline, indices: Any, tiles: Any, carry: Any) -> Any:
    """Call the body for one step, in the warpgroup or in each of its lanes. An idle memory role has
    no steps."""
    extra = () if carry is None else (carry,)
    following = (
        each_lane(emitted.body, indices, tiles, extra)
        if emitted.by_lane
        else emitted.body(*emitted.facts.packed((indices, *tiles, *extra)))
    )
    if carry is None:
        return None
    following = _laid_as(carry, mapped(strong, following))
    if _kind(following) != _kind(_laid_as(following, carry)):
        raise carry_changes(emitted, _kind(carry), _kind(following))
    return following


def _laid_as(like: Any, carry: Any) -> Any:
    """Return a carry in which vectors in either layout take the layouts of the corresponding
    vectors of `like`."""

    def laid(part: Any, other: Any) -> Any:
        form = (
            joined(part.form, other.form)
            if isinstance(part, Tile) and isinstance(other, Tile)
            else None
        )
        return (
            part
            if form is None or form == part.form
            else Tile(None if part.inert else part.value, form)
        )

    parts, others = leaves(carry), leaves(like)
    return (
        tree_of(carry).build(map(laid, parts, others), made) if len(parts) == len(others) else carry
    )


_LAID = re.compile(r"(tile \([\d, ]+\) \w+)(?: \(([\w ]+) layout\))?")


def carry_changes(emitted: EmittedPipeline, given: str, returned: str) -> CompileError:
    """Return the error for a carry whose type changes. If only layouts change, it names the
    cast."""
    tiles = [_LAID.findall(kind) for kind in (given, returned)]
    moved = [
        cast_for(a[1], b[1])
        for a, b in zip(*tiles, strict=False)
        if a[0] == b[0] and len({a[1], b[1]} - {EITHER}) > 1
    ]
    fix = (
        f': a carry keeps its layout too: cast one: numpipe.layout_cast(x, "{moved[0]}")'
        if moved and (_LAID.sub(r"\1", given) == _LAID.sub(r"\1", returned))
        else ": a carry keeps its shape and type from step to step"
    )
    return CompileError(
        f"{emitted.pipe.where}: body '{emitted.facts.name}' was given the carry {given} and "
        f"returned {returned}{fix}"
    )


def _kind(carry: Any) -> str:
    """Return the shape and type of a carry, as messages show it."""
    if isinstance(carry, tuple):
        return f"({', '.join(map(_kind, carry))})"
    if isinstance(carry, Tile):
        return said(carry.shape, carry.dtype, carry.layout)
    if isinstance(carry, PerLane):
        return " or ".join(sorted({_kind(value) for value in carry.values}))
    return carry.dtype.name if isinstance(carry, np.generic) else type(carry).__name__
