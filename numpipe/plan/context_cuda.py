"""The context as a Numba value; axes as link symbols that each kernel's entry module defines."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from ..core import numba as nb
from ..core.inert_cuda import InertType
from ..core.op import cuda_meaning, entry_operation, with_parameters
from ..core.symbols import axis_symbol
from . import context as source
from .budget import Region
from .cluster import Dims
from .plans import PROFILE, STATE, TURN, WARPGROUP
from .unit import Unit

I32 = nb.types.int32


class ContextType(source.ContextFacts, nb.types.Type):  # type: ignore[misc]
    def __init__(self, unit: Unit, role: str) -> None:
        self.unit, self.role = unit, role
        super().__init__(name=f"context({unit.kernel}#{unit.serial}, {role})")

    @property
    def memory(self) -> bool:
        return self.role == "memory"


nb.machine_model(ContextType, lambda ty: nb.i32.as_pointer())


def new_context(unit: Unit, role: str) -> Any:
    """An operation that makes the context of a role: counters on the warpgroup's own stack (SROA keeps them in registers)."""
    def typer(_context: Any) -> Any:
        _, builder, _ = yield ContextType(unit, role)()
        words = (STATE if unit.work_ring is not None else TURN + 1 if unit.turns > 1 else
                 TURN if unit.params.profile_space else PROFILE)
        array = nb.ir.ArrayType(nb.i32, words)
        state = nb.cgutils.alloca_once(builder, array, name="numpipe.state")
        builder.store(nb.ir.Constant(array, [0] * words), state)
        np_ = builder.bitcast(state, nb.i32.as_pointer(), name="numpipe.context")
        if role == "compute":
            own = uniform(builder, compute_warpgroup(builder, unit))
            builder.store(own, counter_pointer(builder, np_, nb.const(WARPGROUP)))
        return np_

    return entry_operation(typer)


def uniform(builder: Any, value: Any) -> Any:
    """An int32 that all lanes of a warp have, so that ptxas can see it: lane 0's for all of them. In no branch that some take.

    It computes with such values in uniform registers, which descriptors of wgmma have to be in, and it knows that loops and
    branches which depend on them keep the warp together. Where it knows anyway it drops the shuffle (PTX ISA, "shfl.sync").
    """
    return nb.emit_asm(builder, nb.i32, [value], "shfl.sync.idx.b32 $0, $1, 0, 31, 0xffffffff;", "=r,r")


def own_warpgroup(builder: Any, context_value: Any) -> Any:
    """`compute_warpgroup` of the compute role's context, `uniform`."""
    return builder.load(counter_pointer(builder, context_value, nb.const(WARPGROUP)))


def counter_pointer(builder: Any, context_value: Any, index: Any) -> Any:
    """Address of a ring counter; its name tells the role check that numpipe made the store."""
    return builder.gep(context_value, [index], name="numpipe.counter")


def of_context(operation: Any, result: Any, function: Callable[[Any, Unit, Any], Any]) -> None:
    """An operation np_ -> ``function(builder, unit, np_)``."""

    @cuda_meaning(operation)
    def typer(_context: Any, np_: Any) -> Any:
        _, builder, args = yield result(np_)
        return function(builder, np_.unit, args[0])


@cuda_meaning(source.only_if)
def _only_if(typing_context: Any, holder: Any, fact: Any, function: Any, *args: Any) -> Any:
    holds = getattr(holder, nb.literal(fact))
    if holds:
        nb.returns(typing_context, function, (holder, *args))
    context, builder, values = yield nb.types.void(holder, fact, function, *args)
    if holds:
        nb.call(context, builder, function, (holder, *args), (values[0], *values[3:]))


@cuda_meaning(source.over)
def _over(typing_context: Any, values: Any, function: Any, *args: Any) -> Any:
    for kind in values:
        nb.returns(typing_context, function, (kind, *args))
    context, builder, given = yield nb.types.void(values, function, *args)
    for number, kind in enumerate(values):
        nb.call(context, builder, function, (kind, *args), (builder.extract_value(given[0], number), *given[2:]))


def by_compute(operation: Any) -> Callable[[Callable[..., Any]], None]:
    """An operation (np_, *args) that the compute role executes, and that is checked in both: a call of a function.

    What follows is a generator function of the types. It checks them, yields the function and the types that it is called with, is
    sent what LLVM code is made with, and returns the arguments' values.
    """
    def attach(prepared: Callable[..., Any]) -> None:
        def typer(typing_context: Any, np_: Any, *given: Any) -> Any:
            rest = prepared(np_, *given)
            function, argtypes = next(rest)
            if not np_.memory:
                nb.returns(typing_context, function, argtypes)
            context, builder, args = yield nb.types.void(np_, *given)
            if not np_.memory:
                try:
                    rest.send((context, builder, args))
                except StopIteration as end:
                    nb.call(context, builder, function, argtypes, end.value)

        cuda_meaning(operation)(with_parameters(typer, inspect.signature(prepared).parameters))

    return attach


def _axis(what: str) -> Any:
    def typer(_context: Any, name: Any) -> Any:
        axis = nb.literal(name)
        _, builder, _ = yield I32(name)
        return nb.external(builder, axis_symbol(what, axis), nb.i32)

    return typer


cuda_meaning(source.axis_index)(_axis("index"))
cuda_meaning(source.axis_size)(_axis("size"))


def define_axes(module: Any, unit: Unit) -> None:
    """Definitions of the axis symbols for this kernel, in its entry module."""
    for dim, name in zip("xyz", unit.axes, strict=False):
        for what, register in (("index", "ctaid"), ("size", "nctaid")):
            with nb.define(module, axis_symbol(what, name), nb.i32) as (builder, _):
                builder.ret(nb.special(builder, f"{register}.{dim}"))
    for axis, name in enumerate(unit.cluster_axes):
        with nb.define(module, axis_symbol("index", name), nb.i32) as (builder, _):
            builder.ret(cluster_place(builder, unit.cluster)[axis])
        with nb.define(module, axis_symbol("size", name), nb.i32) as (builder, _):
            builder.ret(nb.const(unit.cluster[axis]))
    with nb.define(module, axis_symbol("index", unit.wg_axis), nb.i32) as (builder, _):
        builder.ret(tile_part(builder, unit))
    with nb.define(module, axis_symbol("size", unit.wg_axis), nb.i32) as (builder, _):
        builder.ret(nb.const(unit.tile_wgs))


def cluster_place(builder: Any, dims: Dims) -> list[Any]:
    """Where this CTA is in its cluster, along x, y and z: a grid is a whole number of clusters in each dimension."""
    def along(dim: str, of: int) -> Any:
        return builder.urem(nb.special(builder, f"ctaid.{dim}"), nb.const(of))

    return [nb.const(0) if of == 1 else along(dim, of) for dim, of in zip("xyz", dims, strict=True)]


def compute_warpgroup(builder: Any, unit: Unit) -> Any:
    """Number of the compute warpgroup that executes: 0, 1, …"""
    warpgroup = builder.lshr(nb.thread_index(builder), nb.const(7))
    if unit.memory_warpgroup == unit.compute_wgs:
        return warpgroup
    behind = builder.icmp_unsigned(">", warpgroup, nb.const(unit.memory_warpgroup))
    return builder.sub(warpgroup, builder.zext(behind, nb.i32))


def own_part(builder: Any, unit: Unit, region: Region, offset: int = 0) -> Any:
    """Address of what the warpgroup that executes has of a region, or `offset` bytes behind."""
    address = nb.smem(builder, region.base + offset)
    if not region.owners:
        return address
    return builder.add(address, builder.mul(compute_warpgroup(builder, unit), nb.const(region.nbytes)))


def tile_part(builder: Any, unit: Unit) -> Any:
    """Which part of the tile is that warpgroup's: its number, or 0 where it has whole tiles."""
    return nb.const(0) if unit.turns > 1 else compute_warpgroup(builder, unit)


@cuda_meaning(source.warpgroup_part)
def _warpgroup_part(_context: Any, np_: Any) -> Any:
    if np_.role == "memory":
        return InertType("the warpgroup axis")(np_), lambda context, builder, sig, args: nb.nothing(context)
    shared = np_.unit.turns == 1
    return I32(np_), lambda context, builder, sig, args: own_warpgroup(builder, args[0]) if shared else nb.const(0)


@cuda_meaning(source.counter)
def _counter(_context: Any, np_: Any, index: Any) -> Any:
    _, builder, args = yield I32(np_, I32)
    return builder.load(counter_pointer(builder, args[0], args[1]))


@cuda_meaning(source.set_counter)
def _set_counter(_context: Any, np_: Any, index: Any, value: Any) -> Any:
    _, builder, args = yield nb.types.void(np_, I32, I32)
    builder.store(args[2], counter_pointer(builder, args[0], args[1]))
