"""The kernel's entry: parameters, barrier initialisation, roles, registers.

::

    entry(table, a_ptr, a_shape…, a_strides…, …, scalars…)
        one lane initialises every ring's barriers; fence; CTA barrier
        the next kernel of the stream may be launched; wait for the one before (both overlap only launches)
        memory warpgroup   setmaxnreg.dec; one lane runs the kernel function as the memory role
        other warpgroups   setmaxnreg.inc; run it as the compute role; drain the store ring
        in a cluster whose CTAs reach into each other's shared memory: all its threads meet (also at the beginning, instead of the
        CTA's); they arrive before the stores are drained, which the others need not wait for

Without a memory role all warpgroups do what the others do here, with the registers of the launch.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from typing import Any

from ..core import numba as nb
from ..core.approximate_cuda import define_approximation
from ..core.lanes import one_lane
from ..core.lanes_cuda import elected
from ..core.op import Helper, Op, entry_operation
from ..core.symbols import symbol
from ..intrinsics import barrier, cluster, fence, griddep, mbarrier, setmaxnreg
from ..language.grid.tile_scheduler import end_scheduler
from ..language.grid.tile_scheduler_cuda import begin_scheduler
from ..language.pipeline.order_tokens import end_tokens
from ..language.pipeline.turns import begin_turns, finish_turns
from ..language.pipeline.turns_cuda import define_turns
from ..language.tiles.order_cuda import define_order
from ..language.tiles.reduce_cuda import define_exchange
from ..language.tiles.refs_cuda import new_ref
from ..language.tiles.store_ring import drain_stores
from ..plan.context_cuda import define_axes, new_context
from ..plan.profiling_cuda import begin_profile, define_profile, end_profile
from ..plan.unit import Unit
from .check.instrument import define_control
from .check.roles import MEMORY_SUFFIX
from .check.stopping import rest

I32 = nb.types.int32


class TableType(nb.types.Type):  # type: ignore[misc]
    """The packed tensor maps: one by-value parameter, as long as the maps found while the kernel was compiled."""

    def __init__(self, unit: Unit) -> None:
        self.unit = unit
        super().__init__(name=f"tensor maps({unit.kernel}#{unit.serial})")


@nb.register_model(TableType)
class _TableModel(nb.models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, fe_type: TableType) -> None:
        self._cluster = fe_type.unit.cluster if fe_type.unit.clustered else None
        words = fe_type.unit.table_bytes // 8  # asked for when the entry is lowered, after all code it calls
        super().__init__(manager, fe_type, nb.ir.PointerType(nb.ir.ArrayType(nb.i64, words)))

    def from_argument(self, builder: Any, value: Any) -> Any:
        if self._cluster is not None:
            nb.cluster_dims(builder, value, self._cluster)
        return nb.grid_constant(builder, value)


@entry_operation
def table_address(_context: Any, table: Any) -> Any:
    _, builder, args = yield nb.types.int64(table)
    return builder.ptrtoint(args[0], nb.i64)


@entry_operation
def begin_tickets(_context: Any, np_: Any, table: Any) -> Any:
    _, builder, args = yield nb.types.void(np_, table)
    if np_.unit.work_ring is not None:
        word = builder.gep(args[1], [nb.const(0), nb.const(np_.unit.counter_at // 8)])
        begin_scheduler(builder, args[0], builder.load(word))


def _start(unit: Unit) -> Op[..., Any]:
    """Initialise the barriers of all rings, and define what shared helpers left to this kernel (axes, division, barriers)."""

    def typer(_context: Any) -> Any:
        context, builder, _ = yield nb.types.void()
        define_axes(builder.module, unit)
        define_approximation(builder.module, unit.params.approx_math)
        define_order(builder.module, unit)
        if unit.exchange_bytes:
            define_exchange(builder.module, unit)
        if unit.turns > 1:
            define_turns(context, builder.module, unit)
        if unit.params.profile_space:
            define_profile(builder)
        first = builder.icmp_unsigned("<", nb.thread_index(builder), nb.const(128))
        with builder.if_then(builder.and_(first, elected(builder))):
            for address, count, _ in unit.all_barriers():
                nb.call(context, builder, mbarrier.init, (I32, I32), (nb.smem(builder, address), nb.const(count)))
            nb.call(context, builder, fence.mbarrier_init, (), ())
            if unit.params.debug:
                define_control(builder, nb.smem(builder, 0), nb.smem(builder, unit.barrier_room))
        if unit.clustered:  # nobody arrives on a barrier, or copies to a CTA, that is not there yet
            meet(context, builder, unit.params.debug)
        else:
            nb.call(context, builder, barrier.sync, (I32, I32), (nb.const(0), nb.const(unit.threads)))

    return entry_operation(typer)


def meet(context: Any, builder: Any, release: bool) -> None:
    """All threads of the cluster, when the barriers are there: fence.mbarrier_init has released these, and nothing else need be
    (PTX ISA, "membar/fence": the example of fence.mbarrier_init). A `release` would be a fence of the whole GPU."""
    if release:
        nb.call(context, builder, cluster.arrive, (), ())
    else:
        nb.emit_asm(builder, nb.void, [], "barrier.cluster.arrive.relaxed;", "~{memory}")
    nb.call(context, builder, cluster.wait, (), ())


def _is_memory(unit: Unit) -> Op[..., Any]:
    @entry_operation
    def is_memory(_context: Any) -> Any:
        _, builder, _ = yield nb.types.boolean()
        if unit.memory_warpgroup == unit.compute_wgs:
            return builder.icmp_unsigned(">=", nb.thread_index(builder), nb.const(128 * unit.compute_wgs))
        warpgroup = builder.lshr(nb.thread_index(builder), nb.const(7))
        return builder.icmp_unsigned("==", warpgroup, nb.const(unit.memory_warpgroup))

    return is_memory


def _profile(unit: Unit, role: str, emit: Callable[..., None]) -> Op[..., Any]:
    """What a warpgroup does for its profile before and after its role."""
    def typer(_context: Any, np_: Any) -> Any:
        _, builder, args = yield nb.types.void(np_)
        emit(builder, unit, role, args[0])

    return entry_operation(typer)


def _rest(unit: Unit) -> Op[..., Any]:
    """With `CompilerParams.debug`: a CTA that gave up a wait ends when what it copies has landed."""
    def typer(_context: Any) -> Any:
        _, builder, _ = yield nb.types.void()
        rest(builder, nb.smem(builder, unit.barrier_room))

    return entry_operation(typer)


def _renamed(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """The same function under a name by which its code is found again in the IR."""
    code = function.__code__.replace(co_name=name)
    copy = types.FunctionType(code, function.__globals__, name, function.__defaults__, function.__closure__)
    copy.__module__, copy.__qualname__ = function.__module__, name
    return copy


def build(unit: Unit, function: Callable[..., Any], scalars: Sequence[tuple[str, Any]]) -> tuple[Callable[..., Any], list[Any]]:
    """The entry function and its Numba argument types. `scalars`: (name, Numba type) of the run-time scalars."""
    name = symbol(unit.kernel)  # the text below holds no name that a user gave: any Python function may be called anything
    parameters: list[str] = ["table"]
    argtypes: list[Any] = [TableType(unit)]
    arguments: list[str] = []
    ns: dict[str, Any] = {
        "memory": Helper(_renamed(function, f"{name}{MEMORY_SUFFIX}")), "compute": Helper(function),
        "table_address": table_address, "start": _start(unit), "is_memory": _is_memory(unit),
        "dec": setmaxnreg.dec, "inc": setmaxnreg.inc, "one_lane": one_lane, "drain_stores": drain_stores,
        "launch_dependents": griddep.launch_dependents, "wait": griddep.wait,
        "begin_turns": begin_turns, "finish_turns": finish_turns, "begin_tickets": begin_tickets, "end_scheduler": end_scheduler,
        "end_tokens": end_tokens,
        "memory_context": new_context(unit, "memory"), "compute_context": new_context(unit, "compute"),
    }
    for number, array in enumerate(unit.arrays):
        names = [f"a{number}_ptr", *(f"a{number}_{what}{i}" for what in "ns" for i in range(array.ndim))]
        parameters += names
        argtypes += [nb.types.int64] * len(names)
        state = "ROLE_np, " if unit.params.profile_space else ""
        arguments.append(f"ROLE_{number}({state}maps, {', '.join(names)})")
        for role in ("memory", "compute"):
            ns[f"{role}_{number}"] = new_ref(unit, number, role)
    for number, (_, kind) in enumerate(scalars):
        parameters.append(f"scalar{number}")
        argtypes.append(kind)
        arguments.append(f"scalar{number}")
    inner = ", ".join(arguments)
    lines = [f"def entry({', '.join(parameters)}):",
             "    maps = table_address(table)",
             "    start()",
             "    launch_dependents()",
             "    wait()"]
    before, after = {}, {}
    for role in ("memory", "compute") if unit.params.profile_space else ():
        ns[f"begin_{role}"], ns[f"end_{role}"] = _profile(unit, role, begin_profile), _profile(unit, role, end_profile)
        before[role], after[role] = [f"begin_{role}({role}_np)"], [f"end_{role}({role}_np)"]
    late = unit.clustered and not unit.params.profile_space
    turns = ("begin_turns(compute_np)", "finish_turns(compute_np)") if unit.turns > 1 else ()
    compute = ["compute_np = compute_context()", "begin_tickets(compute_np, table)", *before.get("compute", []), *turns[:1],
               f"compute(compute_np, {inner.replace('ROLE', 'compute')})", *turns[1:], "end_tokens(compute_np)",
               "end_scheduler(compute_np)", *["drain_stores(compute_np)"] * (not late), *after.get("compute", [])]
    if unit.warp_specialized:
        lines += ["    if is_memory():",
                  f"        dec({unit.memory_registers})",
                  "        memory_np = memory_context()",
                  "        begin_tickets(memory_np, table)", *(" " * 8 + line for line in before.get("memory", [])),
                  f"        one_lane(memory, memory_np, {inner.replace('ROLE', 'memory')})",
                  "        end_scheduler(memory_np)",
                  *(" " * 8 + line for line in after.get("memory", [])),
                  "    else:",
                  f"        inc({unit.compute_registers})"]
    lines += [" " * (8 if unit.warp_specialized else 4) + line for line in compute]
    if unit.params.debug:
        lines, ns["rest"] = [*lines, "    rest()"], _rest(unit)
    if unit.clustered:  # no CTA leaves while others arrive on its barriers
        lines += ["    arrive()", *["    drain_stores(compute_context())"] * late, "    leave()"]
        ns["arrive"], ns["leave"] = cluster.arrive, cluster.wait
    exec("\n".join(lines), ns)
    return _renamed(ns["entry"], name), argtypes
