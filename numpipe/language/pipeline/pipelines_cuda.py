"""The loop form on the GPU: Numba's iterator protocol over the functions of `steps`.

In the memory role, the first `next` of an innermost loop runs the whole producer and returns a
constant "exhausted", so LLVM drops the loop's body. Each `next` of a stepped loop fills the slots
of one step.
"""

from __future__ import annotations

from typing import Any

from ...arch.dimensions import Ints
from ...core import numba as nb
from ...core.arith import successor
from ...core.inert_cuda import InertType
from ...core.numba import I32
from ...core.op import cuda_meaning
from ...diagnostics.errors import SpecError
from ...plan.context_cuda import ContextType, own_warpgroup
from ...plan.nested_tuples import leaves
from ...plan.nested_tuples_cuda import build_value, leaf_values, made
from ...plan.plans import RingPlan
from ...plan.specs_cuda import SpecType
from ..tiles.refs_cuda import GmemType
from . import pipelines as source
from .chains import Allocations
from .operand_barriers import MANUAL, barriers_of, by_kind, check_groups
from .operand_barriers_cuda import barrier_types
from .ring import next_indices
from .ring_cuda import RingType, counter_of
from .steps import (
    advance,
    begin_alone,
    fill_step,
    finish_following,
    finish_loads,
    follow_step,
    produce,
    tiles,
)
from .steps_cuda import LoopType


@cuda_meaning(source.before_loop)
def _before_loop(value: Any) -> Any:
    yield nb.types.literal(source.before_loop.function(value))


class AllocationsType(nb.FieldsType, Allocations):
    plans: tuple[RingPlan, ...]


class PipelineType(source.PipelineBase, nb.Type):  # type: ignore[misc]
    """The type of `pipelines.Pipeline`. `inert_grid`: what makes the grid of a single-stream
    pipeline inert in the memory role, or None."""

    spec, array = SpecType, GmemType

    def __init__(self, np_: ContextType, grid: Any, *given: Any) -> None:
        source.PipelineBase.__init__(self, np_, grid, *given)
        self.inert_grid = next((size.what for size in grid if isinstance(size, InertType)), None)
        planned = (
            self.rank,
            self.steps_of,
            self.site,
            self.specs,
            self.tree,
            self.labels,
            self.rings,
            self.outs,
            self.manual,
            self.single,
            self.inert_grid,
            self.once,
        )
        nb.Type.__init__(self, name=f"pipeline({np_}, {', '.join(map(str, planned))})")


nb.register_model(AllocationsType)(nb.models.OpaqueModel)


nb.struct_model(
    PipelineType,
    lambda ty: [
        ("np", ty.np),
        ("grid", nb.UniTuple(I32, ty.rank)),
        ("specs", nb.Tuple(ty.specs)),
        ("steps_of", ty.steps_of),
    ],
)


@cuda_meaning(source.make_pipeline)
def _make_pipeline(np_: Any, grid: Any, *given: Any) -> Any:
    pipe = PipelineType(np_, grid, *given)
    known = pipe.inert_grid is None
    builder, args = yield pipe(np_, nb.UniTuple(I32, pipe.rank) if known else grid, *given)
    specs = [
        leaf
        for kind, part in zip(given, args[2:4], strict=False)
        for leaf in leaf_values(builder, kind, part)
    ]
    return builder.struct(
        pipe,
        np=args[0],
        steps_of=args[6],
        **({"grid": args[1]} if known else {}),
        specs=builder.make_tuple(nb.Tuple(pipe.specs), specs),
    )


class StepsType(nb.types.SimpleIteratorType):  # type: ignore[misc]
    """The type of ``pipe(arrays)``, an iterator that one loop uses.

    apart  whether a step's barriers are separate groups; otherwise they follow the tiles in one
           tuple
    once   whether there is only one step
    """

    def __init__(self, loop: LoopType, nested: int, apart: bool, once: bool) -> None:
        self.loop = loop
        self.nested = nested
        self.apart = apart
        self.once = once
        self.role = loop.np.role
        self.barriers = barrier_types(loop)
        self.groups = self.parts = [loop.tiles, *by_kind(loop, self.barriers, made)]
        if self.barriers and not apart:
            self.groups = [nb.Tuple([part for group in self.parts for part in group])]
        super().__init__(
            f"iterator of steps({loop}, {nested}, {apart}, {once})",
            nb.Tuple([loop.grid, *self.groups]),
        )

    @property
    def exhausted(self) -> bool:
        """Whether the first `next` does everything: in the memory role, it issues all loads of an
        innermost loop."""
        return self.role.loads and not self.nested and not self.loop.single

    @property
    def loaded_before(self) -> bool:
        """Whether the memory role issues all loads before a stepped loop that has one step, and
        whose end waits for nothing.

        Then no loop is left. With the loads in the loop's head, LLVM would keep the loop, and keep
        the values that they are computed from in registers: six of attention's 32. The compute role
        keeps its loop: without it, ptxas copied descriptors in the main loop inside it.
        """
        return (
            self.role.loads
            and self.once
            and not self.exhausted
            and not self.loop.single
            and not self.loop.ends_empty
        )


nb.struct_model(
    StepsType,
    lambda ty: [
        ("loop", ty.loop),
        ("k", nb.types.EphemeralPointer(I32)),
        ("indices", nb.types.EphemeralPointer(ty.loop.grid)),
    ],
)


def steps_type(
    pipe: PipelineType,
    refs: Any,
    nested: int,
    groups: int,
    last: int,
    waited: Ints = (),
    turns: Ints = (),
    apart: bool = False,
) -> StepsType:
    """Return the type of a pipeline's steps over arrays, and plan its rings; for the parameters see
    `pipelines.steps_over`."""
    arrays, shared = source.arrays_of(pipe, refs, nested)
    rings, loading = [], pipe.np.loads and not pipe.single
    for number, (plan, group) in enumerate(source.plan_rings(pipe, arrays, shared)):
        if not pipe.single:
            pipe.unit.rings_of[pipe.np.role].add(plan.name)
        rings.append(
            RingType(
                pipe.np,
                plan,
                nb.Tuple([arrays[n] for n in group.operands]),
                nb.Tuple([pipe.specs[n].index_map for n in group.operands]),
                pipe.rank,
                () if loading else source.waited_parts(pipe, group, waited),
                loading or number >= len(pipe.rings) or pipe.single,
            )
        )
    return StepsType(LoopType(pipe, rings, arrays, groups, last, turns), nested, apart, pipe.once)


def steps_value(
    builder: Any,
    steps: StepsType,
    pipe: PipelineType,
    pipe_value: Any,
    refs: Any,
    refs_value: Any,
) -> Any:
    """Return a value of the type `steps`, for the arrays `refs_value`, of type `refs`."""
    kind = steps.loop
    pipeline = builder.fields(pipe, pipe_value)
    arrays = [
        value
        for ty, value in zip(leaves(refs), leaf_values(builder, refs, refs_value), strict=True)
        if not isinstance(ty, AllocationsType)
    ]
    specs = builder.unpack_tuple(pipeline.specs)
    total = nb.const(1)
    for size in builder.unpack_tuple(pipeline.grid):
        total = builder.mul(total, size)
    own = _own_steps(builder, pipe, pipeline, total)
    if pipe.single:
        total = own  # a single-stream warpgroup loads only its own steps
    rings = []
    for ring, group in zip((*kind.rings, *kind.outs), (*pipe.rings, *pipe.outs), strict=True):
        copies = {}
        if ring.copies:
            of_each = [builder.fields(kind.arrays[n], arrays[n]).table for n in group.operands]
            # one table has the maps of all arrays, except peers' arrays
            copies["table"] = (
                builder.make_tuple(ring.table, of_each) if pipe.unit.gpus else of_each[0]
            )
            copies["index_maps"] = builder.make_tuple(
                ring.index_maps,
                [builder.fields(pipe.specs[n], specs[n]).index_map for n in group.operands],
            )
            for number in ring.sized:
                n = group.operands[number]
                copies[f"sizes{number}"] = builder.fields(kind.arrays[n], arrays[n]).shape
        rings.append(
            builder.struct(
                ring,
                np=pipeline.np,
                grid=pipeline.grid,
                steps=own,
                first=builder.load(counter_of(builder, ring, pipeline.np)),
                **copies,
            )
        )
    passed = [array for array, place in zip(arrays, kind.places, strict=True) if place is None]
    loop = builder.struct(
        kind,
        np=pipeline.np,
        grid=pipeline.grid,
        total=total,
        steps=own,
        rings=builder.make_tuple(nb.Tuple(kind.rings), rings[: len(kind.rings)]),
        outs=builder.make_tuple(nb.Tuple(kind.outs), rings[len(kind.rings) :]),
        passed=builder.make_tuple(nb.Tuple(kind.passed), passed),
    )
    if kind.single and steps.role.computes:
        builder.apply(begin_alone, (kind,), (loop,))
    k = nb.cgutils.alloca_once_value(builder, nb.const(0), name="numpipe.k")
    builder.store(0, builder.gep(k, [0], name="numpipe.k"))
    first = builder.make_tuple(kind.grid, [nb.const(0)] * kind.rank)
    indices = nb.cgutils.alloca_once_value(builder, first)
    if steps.loaded_before:
        _load_once(builder, kind, loop, first)
    return builder.struct(steps, loop=loop, k=k, indices=indices)


def _own_steps(builder: Any, pipe: PipelineType, pipeline: Any, total: Any) -> Any:
    """Return the number of steps that this warpgroup runs."""
    if not pipe.unequal or not pipe.np.numbered:
        return total
    warpgroup = own_warpgroup(builder, pipeline.np)
    kind = nb.returns(pipe.steps_of, (I32,))
    count = builder.apply_value(pipe.steps_of, pipeline.steps_of, (I32,), (warpgroup,))
    if not isinstance(kind, nb.Integer):
        raise SpecError(f"{pipe.where}: steps_of must return an integer, got {kind}")
    steps = builder.cast(count, kind, I32)
    steps = builder.select(builder.icmp_signed("<", steps, total), steps, total)
    return builder.select(builder.icmp_signed(">", steps, 0), steps, 0)


@cuda_meaning(source.steps)
def _steps(
    pipe: Any,
    refs: Any,
    nested: Any,
    groups: Any,
    unpacked: Any,
    waited: Any,
    turns: Any,
    last: Any,
) -> Any:
    if not isinstance(pipe, PipelineType):
        return None
    check_groups(pipe, nb.literal(unpacked))
    source.check_tokens(pipe, nb.literal(turns))
    result = steps_type(
        pipe,
        refs,
        nb.literal(nested),
        nb.literal(groups),
        nb.literal(last),
        nb.literal(waited),
        nb.literal(turns) or (),
        True,
    )
    builder, args = yield result
    return steps_value(builder, result, pipe, args[0], refs, args[1])


@nb.lower_next(StepsType)
def _iternext(builder: Any, sig: Any, args: Any, result: Any) -> None:
    kind = sig.args[0]
    it, grid = builder.fields(kind, args[0]), kind.loop.grid
    indices = builder.load(it.indices)
    if kind.exhausted:
        if kind.once:
            _load_once(builder, kind.loop, it.loop, indices)
        else:
            builder.apply(produce, (kind.loop, grid), (it.loop, indices))
        result.set_valid(nb.const(0, nb.i1))
        result.yield_(builder.context.get_constant_undef(kind.yield_type))
        return
    loop = builder.fields(kind.loop, it.loop)
    k = builder.load(it.k)
    # The step's indices come first and the test last, so that LLVM merges the test with the test of
    # the loop itself. It would then know the number of steps, and duplicate steps with all their
    # products, two at a time or by peeling the first. So the count is hidden from it, except for a
    # single step, which leaves no loop, and for a loop that waits and releases by hand.
    plain = kind.once or (kind.apart and len(kind.loop.manual) == len(MANUAL))
    following = builder.add(k, 1) if plain else builder.issue(successor, k)
    builder.store(following, builder.gep(it.k, [0], name="numpipe.k"))
    at_next = builder.apply(next_indices, (I32, grid, grid), (following, indices, loop.grid))
    builder.store(at_next, it.indices)
    groups = [builder.apply(tiles, (kind.loop, I32), (it.loop, k))]
    if kind.barriers:
        barriers = builder.unpack_tuple(builder.apply(barriers_of, (kind.loop, I32), (it.loop, k)))
        left = iter(barriers)
        groups += [build_value(builder, ty, left) for ty in kind.parts[1:]]
        if not kind.apart:
            groups = [
                builder.make_tuple(
                    kind.groups[0],
                    [part for group in groups for part in builder.unpack_tuple(group)],
                )
            ]
    result.set_valid(_comes(builder, kind, it, loop, indices, k))
    result.yield_(builder.make_tuple(kind.yield_type, [indices, *groups]))


def _load_once(builder: Any, loop: LoopType, value: Any, indices: Any) -> None:
    """Call `steps.produce` for a loop that is known to have one step."""
    builder.apply(fill_step, (loop, loop.grid, I32), (value, indices, nb.const(0)))
    builder.apply(finish_loads, (loop,), (value,))


def _comes(builder: Any, kind: StepsType, it: Any, loop: Any, indices: Any, k: Any) -> Any:
    """Implement `pipelines._comes`."""
    if kind.role.computes:
        return builder.apply(advance, (kind.loop, I32, I32), (it.loop, k, loop.steps))
    valid = builder.icmp_signed("<", k, loop.steps)
    if not kind.loop.single and not kind.loaded_before:
        with builder.if_else(valid) as (more, done):
            with more:
                given = it.loop, indices, k
                builder.apply(follow_step, (kind.loop, kind.loop.grid, I32), given)
            with done:
                builder.apply(finish_following, (kind.loop, I32), (it.loop, k))
    return valid
