"""The loop form on the GPU: Numba's iterator protocol over the functions of `steps`.

In the memory role an innermost loop's first `next` runs the whole producer and returns a constant "exhausted": LLVM drops
the loop's body. A stepped loop fills one step's slots a `next`.
"""

from __future__ import annotations

from typing import Any

from ...core import numba as nb
from ...core.arith import successor
from ...core.closure_cuda import BoundType
from ...core.inert import REASON
from ...core.inert_cuda import InertType
from ...core.op import cuda_meaning, immediate
from ...diagnostics.errors import CompileError, SpecError
from ...plan.context_cuda import ContextType, own_warpgroup
from ...plan.plans import RingPlan
from ...plan.specs_cuda import SpecType
from ...plan.trees import check_leaves, leaves, tree_of
from ...plan.trees_cuda import leaf_values
from ..tiles.refs_cuda import GmemType, gmem_value
from . import pipelines as source
from .barriers import MANUAL, barriers_of, by_kind, check_groups, check_manual
from .barriers_cuda import barrier_types
from .chains import Allocations
from .ring import unravel
from .ring_cuda import RingType, counter_of
from .steps import advance, begin_alone, fill_step, finish_loads, places, produce, tiles
from .steps_cuda import LoopType

I32 = nb.types.int32


class AllocationsType(Allocations, nb.types.Type):  # type: ignore[misc]
    def __init__(self, plans: tuple[RingPlan, ...]) -> None:
        Allocations.__init__(self, plans)
        nb.types.Type.__init__(self, name=f"allocations({plans})")


class PipelineType(source.Planned, nb.types.Type):  # type: ignore[misc]
    def __init__(self, context: ContextType, rank: int, steps_of: Any, facts: source.PipelineFacts, inert_grid: str | None,
                 once: bool) -> None:
        """`inert_grid`: what makes the grid of a single-stream pipeline inert, in the memory role, or None. `once`: it is known
        to have one step."""
        source.Planned.__init__(self, facts)
        self.context, self.rank, self.steps_of, self.inert_grid, self.once = context, rank, steps_of, inert_grid, once
        said = ", ".join(map(str, facts[1:]))  # the unit is the context's
        nb.types.Type.__init__(self, name=f"pipeline({context}, {rank}, {steps_of}, {said}, {inert_grid}, {once})")


nb.register_model(AllocationsType)(nb.models.OpaqueModel)


nb.struct_model(PipelineType, lambda ty: [
    ("np", ty.context), ("grid", nb.types.UniTuple(I32, ty.rank)), ("specs", nb.types.Tuple(ty.specs)), ("steps_of", ty.steps_of)])


@cuda_meaning(source.make_pipeline)
def _make_pipeline(_context: Any, np_: Any, grid: Any, in_specs: Any, out_specs: Any, slots: Any, delay: Any, steps_of: Any,
                   manual_ready_barriers: Any, manual_consumed_barriers: Any, alone: Any, known: Any, site: Any) -> Any:
    place, single = nb.literal(site), bool(nb.literal(alone))
    where = f"kernel {np_.unit.kernel}, pipeline at {place}"
    barriers = manual_ready_barriers, manual_consumed_barriers
    manual = check_manual(where, *(immediate(where, name, ty) for name, ty in zip(MANUAL, barriers, strict=True)))
    if not isinstance(grid, nb.types.BaseTuple) or not len(grid):
        raise SpecError(f"{where}: grid must be a tuple of step counts, got {grid}")
    inert = next((size.what for size in grid if isinstance(size, InertType)), None)
    for size in grid:
        if isinstance(size, InertType) and single:
            continue
        if isinstance(size, InertType):
            raise CompileError(f"{where}: grid: {size.what} {REASON}")
        if not isinstance(size, nb.types.Integer):
            raise SpecError(f"{where}: grid must hold integers, got {grid}")
    for name, given in (("in_specs", in_specs), ("out_specs", out_specs)):
        check_leaves(where, name, given)
        if not isinstance(given, nb.types.BaseTuple) or not all(isinstance(spec, SpecType) for spec in leaves(given)):
            named = {SpecType: "BlockSpec", nb.types.NoneType: "NoneType"}
            raise source.no_specs(where, name, named.get(type(given)) or str(given))
    unequal = not isinstance(steps_of, nb.types.NoneType)
    if unequal:
        source.check_steps_of(where, steps_of.facts if isinstance(steps_of, BoundType) else None, str(nb.unliteral(steps_of)),
                              len(out_specs) > 0)
    sizes = nb.literal(known) if len(known) == len(grid) else (None,) * len(grid)  # none of a grid that is not written in place
    facts = source.planned(np_.unit, place, (leaves(in_specs), leaves(out_specs)), (tree_of(in_specs), tree_of(out_specs)), sizes,
                           immediate(where, "max_concurrent_steps", slots), immediate(where, "delay_release", delay),
                           unequal, manual, single)
    pipe = PipelineType(np_, len(grid), steps_of, facts, inert, all(size == 1 for size in sizes))
    plain = nb.types.UniTuple(I32, len(grid)) if inert is None else grid
    context, builder, args = yield pipe(np_, plain, in_specs, out_specs, slots, delay, steps_of, *barriers, alone, known, site)
    grid = {} if inert is not None else {"grid": args[1]}
    specs = [leaf for kind, part in ((in_specs, args[2]), (out_specs, args[3])) for leaf in leaf_values(builder, kind, part)]
    return nb.struct(context, builder, pipe, np=args[0], steps_of=args[6], **grid,
                     specs=context.make_tuple(builder, nb.types.Tuple(pipe.specs), specs))


class StepsType(nb.types.SimpleIteratorType):  # type: ignore[misc]
    """``pipe(arrays)``, which loops go through once.

    `tiles`: the tiles, with the barriers behind them where these are not groups of their own (`apart`). `once`: has one step.
    """

    def __init__(self, loop: LoopType, nested: int, apart: bool, once: bool) -> None:
        self.loop, self.nested, self.apart, self.once, self.role = loop, nested, apart, once, loop.context.role
        self.indices = loop.grid
        barriers = barrier_types(loop)
        self.tiles = nb.types.Tuple([*loop.tiles, *barriers]) if barriers and not apart else loop.tiles
        self.barriers = [nb.types.Tuple(list(group)) for group in by_kind(loop.manual, barriers)] if apart else []
        super().__init__(f"iterator of steps({loop}, {nested}, {apart}, {once})",
                         nb.types.Tuple([self.indices, self.tiles, *self.barriers]))

    @property
    def exhausted(self) -> bool:
        """Whether its first `next` does all there is to do: in the memory role, the whole producer of an innermost loop."""
        return self.role == "memory" and not self.nested and not self.loop.single

    @property
    def loaded_before(self) -> bool:
        """Whether the memory role does all in front of a stepped loop that has one step, where its end waits for nobody. No loop is
        left then: with the loads in its head LLVM would keep one, and in registers what these are computed from."""
        return self.role == "memory" and self.once and not self.exhausted and not self.loop.single and not self.loop.ends_empty


nb.struct_model(StepsType, lambda ty: [("loop", ty.loop), ("k", nb.types.EphemeralPointer(I32))])


def steps_type(pipe: PipelineType, refs: Any, nested: int, groups: int, last: int = 0, waited: tuple[int, ...] = (),
               turns: tuple[int, ...] = (), apart: bool = False) -> StepsType:
    """The type of a pipeline's steps over arrays; plans its rings. For the rest see `steps`, and `apart` in `steps_over`."""
    shared = source.shared_rings(pipe, refs)
    arrays = arrays_of(pipe, refs if shared is None else nb.types.Tuple(list(refs)[:-1]))
    source.check_inner(pipe.where, pipe.unequal, nested)
    rings, loads, loading = [], len(pipe.rings), pipe.context.role == "memory" and not pipe.single
    for number, (plan, group) in enumerate(source.plan_rings(pipe, arrays, shared)):
        if not pipe.single:
            pipe.unit.rings_of[pipe.context.role].add(plan.name)
        rings.append(RingType(pipe.context, plan, nb.types.Tuple([arrays[n] for n in group.operands]),
                              nb.types.Tuple([pipe.specs[n].index_map for n in group.operands]), pipe.rank,
                              () if loading else source.waited_parts(pipe, group, waited),
                              loading or number >= loads or pipe.single))
    loop = LoopType(pipe.context, tuple(rings[:loads]), tuple(arrays), pipe.tree, places(len(arrays), pipe.rings, pipe.outs),
                    pipe.manual, pipe.rank, pipe.unequal and not pipe.single, groups, tuple(rings[loads:]), bool(last),
                    turns)
    return StepsType(loop, nested, apart, pipe.once)


def arrays_of(pipe: PipelineType, refs: Any) -> list[Any]:
    """`pipelines.arrays_of`, of types."""
    arrays = leaves(refs)
    source.check_arrays(pipe, arrays, GmemType, str(refs), tree_of(refs))
    return arrays


def steps_value(context: Any, builder: Any, steps: StepsType, pipe: PipelineType, pipe_value: Any, refs: Any,
                refs_value: Any) -> Any:
    """A value of it, for the arrays `refs_value`, of type `refs`."""
    kind = steps.loop
    pipeline = nb.fields(context, builder, pipe, pipe_value)
    arrays = [value for ty, value in zip(leaves(refs), leaf_values(builder, refs, refs_value), strict=True)
              if not isinstance(ty, AllocationsType)]
    specs = nb.cgutils.unpack_tuple(builder, pipeline.specs, len(pipe.specs))
    total = nb.const(1)
    for size in nb.cgutils.unpack_tuple(builder, pipeline.grid):
        total = builder.mul(total, size)
    own = _own_steps(context, builder, pipe, pipeline, total)
    if pipe.single:
        total = own  # nobody loads for others
    rings = []
    for ring, group in zip((*kind.rings, *kind.outs), (*pipe.rings, *pipe.outs), strict=True):
        copies = {}
        if ring.copies:
            first = group.operands[0]
            copies["table"] = gmem_value(context, builder, leaves(refs)[first], arrays[first]).table  # all arrays' maps are in one
            copies["index_maps"] = context.make_tuple(builder, ring.index_maps, [
                nb.fields(context, builder, pipe.specs[n], specs[n]).index_map for n in group.operands])
        rings.append(nb.struct(context, builder, ring, np=pipeline.np, grid=pipeline.grid, steps=own,
                               first=builder.load(counter_of(builder, ring, pipeline.np)), **copies))
    passed = [array for array, place in zip(arrays, kind.places, strict=True) if place is None]
    loop = nb.struct(
        context, builder, kind, np=pipeline.np, grid=pipeline.grid, total=total, steps=own,
        rings=context.make_tuple(builder, nb.types.Tuple(kind.rings), rings[:len(kind.rings)]),
        outs=context.make_tuple(builder, nb.types.Tuple(kind.outs), rings[len(kind.rings):]),
        passed=context.make_tuple(builder, nb.types.Tuple(kind.passed), passed))
    if kind.single and steps.role == "compute":
        nb.call(context, builder, begin_alone, (kind,), (loop,))
    if steps.loaded_before:
        _load_once(context, builder, kind, loop)
    k = nb.cgutils.alloca_once_value(builder, nb.const(0), name="numpipe.k")
    builder.store(nb.const(0), builder.gep(k, [nb.const(0)], name="numpipe.k"))
    return nb.struct(context, builder, steps, loop=loop, k=k)


def _own_steps(context: Any, builder: Any, pipe: PipelineType, pipeline: Any, total: Any) -> Any:
    """The steps that this warpgroup runs."""
    if not pipe.unequal or pipe.context.role == "memory":
        return total
    warpgroup = own_warpgroup(builder, pipeline.np)
    kind, found = nb.call_value(context, builder, pipe.steps_of, pipeline.steps_of, (I32,), (warpgroup,))
    if not isinstance(kind, nb.types.Integer):
        raise SpecError(f"{pipe.where}: steps_of must return an integer, got {kind}")
    steps = context.cast(builder, found, kind, I32)
    steps = builder.select(builder.icmp_signed("<", steps, total), steps, total)
    return builder.select(builder.icmp_signed(">", steps, nb.const(0)), steps, nb.const(0))


@cuda_meaning(source.steps)
def _steps(_context: Any, pipe: Any, refs: Any, nested: Any, groups: Any, unpacked: Any, waited: Any, turns: Any,
           last: Any) -> Any:
    if not isinstance(pipe, PipelineType):
        return None
    check_groups(pipe.where, pipe.manual, source.loaded(pipe), nb.literal(unpacked))
    source.check_tokens(pipe.where, pipe.unequal, nb.literal(turns))
    result = steps_type(pipe, refs, nb.literal(nested), nb.literal(groups), nb.literal(last), nb.literal(waited),
                        nb.literal(turns) or (), True)
    context, builder, args = yield result(pipe, refs, nested, groups, unpacked, waited, turns, last)
    return steps_value(context, builder, result, pipe, args[0], refs, args[1])


@nb.lower_builtin("iternext", StepsType)
@nb.iternext_impl(nb.RefType.UNTRACKED)
def _iternext(context: Any, builder: Any, sig: Any, args: Any, result: Any) -> None:
    kind = sig.args[0]
    it = nb.fields(context, builder, kind, args[0])
    if kind.exhausted:
        if kind.once:
            _load_once(context, builder, kind.loop, it.loop)
        else:
            nb.call(context, builder, produce, (kind.loop,), (it.loop,))
        result.set_valid(nb.const(0, nb.i1))
        result.yield_(context.get_constant_undef(kind.yield_type))
        return
    loop = nb.fields(context, builder, kind.loop, it.loop)
    k = builder.load(it.k)
    # Before a step's indices and behind the test nothing is done, so that the end of the test is the loop's own: LLVM makes one of
    # the two. It would then know the number of steps, and copy steps, with all their products, two by two or the first one apart:
    # so the count is hidden from it, but where there is one step, and no loop is left, and where the body does all by hand.
    plain = kind.once or (kind.apart and len(kind.loop.manual) == len(MANUAL))
    following = builder.add(k, nb.const(1)) if plain else nb.call(context, builder, successor, (I32,), (k,))[1]
    builder.store(following, builder.gep(it.k, [nb.const(0)], name="numpipe.k"))
    indices = nb.call(context, builder, unravel, (I32, kind.indices), (k, loop.grid))[1]
    given = nb.call(context, builder, tiles, (kind.loop, I32), (it.loop, k))[1]
    groups: list[Any] = []
    if barrier_types(kind.loop):
        barriers = nb.call(context, builder, barriers_of, (kind.loop, I32), (it.loop, k))[1]
        values = nb.cgutils.unpack_tuple(builder, barriers)
        if kind.apart:
            groups = [context.make_tuple(builder, ty, list(group))
                      for ty, group in zip(kind.barriers, by_kind(kind.loop.manual, values), strict=True)]
        else:
            given = context.make_tuple(builder, kind.tiles, [*nb.cgutils.unpack_tuple(builder, given), *values])
    valid = _moved_on(context, builder, kind, it, loop, k)
    result.set_valid(valid)
    result.yield_(context.make_tuple(builder, kind.yield_type, [indices, given, *groups]))


def _load_once(context: Any, builder: Any, loop: LoopType, value: Any) -> None:
    """`steps.produce` of a loop that is known to have one step."""
    nb.call(context, builder, fill_step, (loop, I32), (value, nb.const(0)))
    nb.call(context, builder, finish_loads, (loop,), (value,))


def _moved_on(context: Any, builder: Any, kind: Any, it: Any, loop: Any, k: Any) -> Any:
    """What a role does before step k; whether there is such a step."""
    if kind.role != "memory":
        return nb.call(context, builder, advance, (kind.loop, I32, I32), (it.loop, k, loop.steps))[1]
    valid = builder.icmp_signed("<", k, loop.total)
    if not kind.loop.single and not kind.loaded_before:
        with builder.if_else(valid) as (more, done):
            with more:
                nb.call(context, builder, fill_step, (kind.loop, I32), (it.loop, k))
            with done:
                nb.call(context, builder, finish_loads, (kind.loop,), (it.loop,))
    return valid
