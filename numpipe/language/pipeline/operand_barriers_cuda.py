"""Barriers of a body as Numba values: ring, kind and operand in the type, the step in the value."""

from __future__ import annotations

from typing import Any

from ...core import numba as nb
from ...core.numba import I32
from ...core.op import cuda_meaning
from ..memory import phases
from . import operand_barriers as source
from .ring import release_delayed
from .steps_cuda import LoopType


class BarrierType(nb.FieldsType, source.StepBarrier):
    pass


nb.struct_model(BarrierType, lambda ty: [("ring", ty.ring), ("k", I32)])


def barrier_types(loop: LoopType) -> list[BarrierType]:
    """Return the types of the barriers that a pipeline's body receives."""
    return [
        BarrierType(loop.rings[place.ring], kind, place.operand)
        for kind, place in source.kinds(loop)
    ]


@cuda_meaning(source.barriers_of)
def _barriers_of(loop: Any, k: Any) -> Any:
    result = nb.Tuple(barrier_types(loop))
    builder, args = yield result(loop, I32)
    rings = builder.fields(loop, args[0]).rings
    values = []
    for ty, (_, place) in zip(result, source.kinds(loop), strict=True):
        values.append(builder.struct(ty, ring=builder.extract_value(rings, place.ring), k=args[1]))
    return builder.make_tuple(result, values)


def _of_a_barrier(operation: Any, kind: str, own: Any, function: Any) -> None:
    """Implement an operation with `operand_barriers.apply`."""

    @cuda_meaning(operation)
    def typer(barrier: Any, *predicate: Any) -> Any:
        argtypes: tuple
        if source.check_use(operation.__name__, kind, barrier):
            called, argtypes, computes = own, (barrier,), barrier.np.computes
        else:
            part, number = nb.immediate(barrier.part)
            called = function
            argtypes = (barrier.ring, part, I32)
            computes = barrier.ring.np.computes
        if computes:
            nb.returns(called, argtypes)
        builder, args = yield
        if computes:
            if called is function:
                value = builder.fields(barrier, args[0])
                args = value.ring, number, value.k
            builder.apply(called, argtypes, args[: len(argtypes)])


@cuda_meaning(source.barrier_test)
def _barrier_test(barrier: Any) -> Any:
    source.check_tested(barrier)
    result = nb.returns(phases.test, (barrier,))
    builder, args = yield result
    return builder.apply(phases.test, (barrier,), args)


_of_a_barrier(source.barrier_wait, "ready", phases.wait, source.await_step)
_of_a_barrier(source.barrier_arrive, "consumed", phases.arrive, release_delayed)


def _truth(*args: Any) -> None:
    for barrier in args:
        if isinstance(barrier, BarrierType):
            raise barrier.no_value()


nb.overload(bool, _truth)
