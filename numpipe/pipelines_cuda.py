"""The loop form on the GPU: Numba's iterator protocol over the ring's functions.

In the memory role an innermost loop's first `next` runs the whole producer and returns a constant "exhausted": LLVM drops
the loop's body. A stepped loop fills one slot a `next`.
"""

from __future__ import annotations

from typing import Any

from . import _numba as nb
from . import pipelines as source
from ._op import cuda_meaning, immediate
from .barriers import barriers_of
from .barriers_cuda import barrier_types
from .context_cuda import ContextType
from .errors import CompileError, SpecError
from .inert import REASON
from .inert_cuda import InertType
from .refs_cuda import GmemType
from .ring import advance, chosen, fill, produce, set_steps_done, slot_of, steps_done, tiles_of, unravel
from .ring_cuda import RingType
from .single import advance_alone, begin_alone
from .specs_cuda import SpecType

I32 = nb.types.int32


class PipelineType(nb.types.Type):  # type: ignore[misc]
    """`inert_grid`: what makes the grid of a single-stream pipeline inert, in the memory role, or None."""

    def __init__(self, context: ContextType, rank: int, specs: Any, slots: int, delay: int, site: str, single: bool = False,
                 inert_grid: str | None = None) -> None:
        self.context, self.rank, self.specs, self.slots, self.delay, self.site = context, rank, specs, slots, delay, site
        self.single, self.inert_grid = single or not context.unit.warp_specialized, inert_grid
        super().__init__(name=f"pipeline({context}, {rank}, {specs}, {slots}, {delay}, {site}, {single}, {inert_grid})")

    @property
    def where(self) -> str:
        return f"kernel {self.context.unit.kernel}, pipeline at {self.site}"


@nb.register_model(PipelineType)
class _PipelineModel(nb.models.StructModel):  # type: ignore[misc]
    def __init__(self, manager: Any, fe_type: PipelineType) -> None:
        super().__init__(manager, fe_type, [("np", fe_type.context), ("grid", nb.types.UniTuple(I32, fe_type.rank)),
                                            ("specs", fe_type.specs)])


@cuda_meaning(source.make_pipeline)
def _make_pipeline(_context: Any, np_: Any, grid: Any, in_specs: Any, slots: Any, delay: Any, site: Any) -> Any:
    return made(np_, grid, in_specs, slots, delay, site)


def made(np_: Any, grid: Any, in_specs: Any, slots: Any, delay: Any, site: Any, single: bool = False) -> Any:
    """Typing of a pipeline."""
    place = nb.literal(site)
    where = f"kernel {np_.unit.kernel}, pipeline at {place}"
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
    if not isinstance(in_specs, nb.types.BaseTuple) or not all(isinstance(s, SpecType) for s in in_specs) or not len(in_specs):
        raise SpecError(f"{where}: in_specs must be a tuple of BlockSpec, got {in_specs}")
    steps_held = source.delay_of(in_specs, immediate(where, "delay_release", delay), np_.unit.params.delay_release)
    pipe = PipelineType(np_, len(grid), nb.types.Tuple(list(in_specs)), immediate(where, "max_concurrent_steps", slots), steps_held,
                        place, single, inert)
    plain = nb.types.UniTuple(I32, len(grid)) if inert is None else grid

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        value = nb.cgutils.create_struct_proxy(pipe)(context, builder)
        value.np = args[0]
        if inert is None:
            value.grid = args[1]
        value.specs = context.make_tuple(builder, pipe.specs, nb.cgutils.unpack_tuple(builder, args[2]))
        return value._getvalue()

    return pipe(np_, plain, in_specs, slots, delay, site), codegen


class StepsType(nb.types.SimpleIterableType):  # type: ignore[misc]
    """``pipe(arrays)``."""

    def __init__(self, ring: RingType, rank: int, nested: int) -> None:
        iterator = StepsIterator(ring, rank, nested)
        super().__init__(f"steps({ring}, {rank}, {nested})", iterator)


class StepsIterator(nb.types.SimpleIteratorType):  # type: ignore[misc]
    def __init__(self, ring: RingType, rank: int, nested: int) -> None:
        from .refs_cuda import SmemType

        self.ring, self.rank, self.nested, self.role = ring, rank, nested, ring.context.role
        self.indices = nb.types.UniTuple(I32, rank)
        self.tiles = nb.types.Tuple([SmemType(layout, ref.arg.dtype, self.role)
                                     for layout, ref in zip(ring.plan.layouts, ring.refs, strict=True)] + barrier_types(ring))
        super().__init__(f"iterator of steps({ring}, {rank}, {nested})", nb.types.Tuple([self.indices, self.tiles]))


@nb.register_model(StepsType)
class _StepsModel(nb.models.StructModel):  # type: ignore[misc]
    def __init__(self, manager: Any, fe_type: StepsType) -> None:
        iterator = fe_type.iterator_type
        super().__init__(manager, fe_type, [("ring", iterator.ring), ("grid", iterator.indices)])


@nb.register_model(StepsIterator)
class _IteratorModel(nb.models.StructModel):  # type: ignore[misc]
    def __init__(self, manager: Any, fe_type: StepsIterator) -> None:
        super().__init__(manager, fe_type, [("ring", fe_type.ring), ("grid", fe_type.indices), ("total", I32), ("first", I32),
                                            ("k", nb.types.EphemeralPointer(I32))])


def steps_type(pipe: PipelineType, refs: Any, nested: int, groups: int, manual: tuple[bool, bool] = (False, False)) -> StepsType:
    """The type of a pipeline's steps over arrays; plans its ring. `manual`: see `RingPlan`."""
    if not all(isinstance(ref, GmemType) for ref in refs):
        raise SpecError(f"{pipe.where}: called on {refs}; a pipeline is called on the kernel's array parameters")
    if len(refs) != len(pipe.specs):
        raise SpecError(f"{pipe.where}: called on {len(refs)} arrays, but in_specs has {len(pipe.specs)}")
    blocks = tuple((ref.index, *spec.block) for ref, spec in zip(refs, pipe.specs, strict=True))
    unit = pipe.context.unit
    plan = unit.plan_ring(pipe.site, blocks, pipe.slots, pipe.delay, manual, pipe.single)
    if not pipe.single:
        unit.met[pipe.context.role].add(plan.name)
    maps = nb.types.Tuple([spec.index_map for spec in pipe.specs])
    ring = RingType(pipe.context, plan, nb.types.Tuple(list(refs)), maps, groups)
    return StepsType(ring, pipe.rank, nested)


def steps_value(context: Any, builder: Any, steps: StepsType, pipe: PipelineType, pipe_value: Any, refs: Any) -> Any:
    """A value of it, for the tuple `refs`."""
    ring = steps.iterator_type.ring
    source_pipe = nb.cgutils.create_struct_proxy(pipe)(context, builder, value=pipe_value)
    ring_struct = nb.cgutils.create_struct_proxy(ring)(context, builder)
    ring_struct.np = source_pipe.np
    ring_struct.refs = context.make_tuple(builder, ring.refs, nb.cgutils.unpack_tuple(builder, refs))
    ring_struct.index_maps = context.make_tuple(builder, ring.index_maps, [
        nb.cgutils.create_struct_proxy(spec)(context, builder, value=value).index_map
        for spec, value in zip(pipe.specs, nb.cgutils.unpack_tuple(builder, source_pipe.specs), strict=True)])
    value = nb.cgutils.create_struct_proxy(steps)(context, builder)
    value.ring, value.grid = ring_struct._getvalue(), source_pipe.grid
    return value._getvalue()


@cuda_meaning(source.steps)
def _steps(_context: Any, pipe: Any, refs: Any, nested: Any, groups: Any) -> Any:
    if not isinstance(pipe, PipelineType):
        return None
    result = steps_type(pipe, refs, nb.literal(nested), nb.literal(groups))

    def codegen(context: Any, builder: Any, _sig: Any, args: Any) -> Any:
        return steps_value(context, builder, result, pipe, args[0], args[1])

    return result(pipe, refs, nested, groups), codegen


@nb.lower_builtin("getiter", StepsType)
def _getiter(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    iterator = sig.args[0].iterator_type
    steps = nb.cgutils.create_struct_proxy(sig.args[0])(context, builder, value=args[0])
    value = nb.cgutils.create_struct_proxy(iterator)(context, builder)
    value.ring, value.grid = steps.ring, steps.grid
    total = nb.const(1)
    for size in nb.cgutils.unpack_tuple(builder, steps.grid):
        total = builder.mul(total, size)
    value.total = total
    value.first = nb.call(context, builder, steps_done, (iterator.ring,), (steps.ring,))[1]
    if iterator.ring.plan.private and iterator.role == "compute":
        nb.call(context, builder, begin_alone, (iterator.ring, iterator.indices, I32, I32),
                (steps.ring, steps.grid, total, value.first))
    value.k = nb.cgutils.alloca_once_value(builder, nb.const(0), name="numpipe.k")
    builder.store(nb.const(0), builder.gep(value.k, [nb.const(0)], name="numpipe.k"))
    return value._getvalue()


@nb.lower_builtin("iternext", StepsIterator)
@nb.iternext_impl(nb.RefType.UNTRACKED)
def _iternext(context: Any, builder: Any, sig: Any, args: Any, result: Any) -> None:
    kind = sig.args[0]
    it = nb.cgutils.create_struct_proxy(kind)(context, builder, value=args[0])
    ring = kind.ring
    if kind.role == "memory" and not kind.nested and not ring.plan.private:
        nb.call(context, builder, produce, (ring, kind.indices, I32, I32), (it.ring, it.grid, it.total, it.first))
        result.set_valid(nb.const(0, nb.i1))
        result.yield_(context.get_constant_undef(kind.yield_type))
        return
    k = builder.load(it.k)
    indices = nb.call(context, builder, unravel, (I32, kind.indices), (k, it.grid))[1]
    step = builder.add(it.first, k)
    if kind.role == "memory" and ring.plan.private:
        valid = builder.icmp_signed("<", k, it.total)
    elif kind.role == "memory":
        valid = builder.icmp_signed("<", k, it.total)
        with builder.if_else(valid) as (more, done):
            with more:
                for part in chosen(ring.plan, "all", 0):
                    number, value = nb.immediate(part)
                    nb.call(context, builder, fill, (ring, number, kind.indices, I32), (it.ring, value, indices, step))
            with done:
                nb.call(context, builder, set_steps_done, (ring, I32), (it.ring, builder.add(it.first, it.total)))
    elif ring.plan.private:
        valid = nb.call(context, builder, advance_alone, (ring, kind.indices, I32, I32, I32),
                        (it.ring, it.grid, k, it.total, it.first))[1]
    else:
        valid = nb.call(context, builder, advance, (ring, I32, I32, I32), (it.ring, k, it.total, it.first))[1]
    slot = nb.call(context, builder, slot_of, (ring, I32), (it.ring, step))[1]
    tiles_type, tiles = nb.call(context, builder, tiles_of, (ring, I32), (it.ring, slot))
    if len(kind.tiles) > len(tiles_type):
        barriers = nb.call(context, builder, barriers_of, (ring, I32, I32), (it.ring, k, step))[1]
        parts = [part for values in (tiles, barriers) for part in nb.cgutils.unpack_tuple(builder, values)]
        tiles = context.make_tuple(builder, kind.tiles, parts)
    result.set_valid(valid)
    result.yield_(context.make_tuple(builder, kind.yield_type, [indices, tiles]))
    builder.store(builder.add(k, nb.const(1)), builder.gep(it.k, [nb.const(0)], name="numpipe.k"))
