"""The kernel's entry: it initializes barriers, starts the roles, and sets their registers.

::

    entry(table, a_ptr, a_shape…, a_strides…, …, scalars…)
        one lane initializes every ring's barriers; fence; CTA barrier
        the next kernel of the stream may be launched; wait for the previous one (so only their
        launches overlap)
        memory warpgroup   setmaxnreg.dec; one lane runs the kernel function as the memory role, and
                           one lane of each warp with another role runs it as that role
        other warpgroups   setmaxnreg.inc; run it as the compute role; drain the store ring
        in a cluster whose CTAs access each other's shared memory, all threads of the cluster meet
        at the beginning, instead of only the CTA's; at the end each role waits for accesses by
        other CTAs (`cluster_exit`), or all threads meet again: they arrive before they drain their
        stores, which the other CTAs need not wait for

Without a memory role all warpgroups run the compute role, with the registers of the launch. Numba
compiles the functions that a function calls while it types that function, so the entry is lowered
last, when all barriers and tensor maps of the kernel are known. It also defines the symbols that
shared helpers leave open (axes, division, orders).
"""

from __future__ import annotations

import functools
import itertools
import types
from collections.abc import Callable, Sequence
from typing import Any

from ..core import numba as nb
from ..core.approximate_cuda import define_approximation
from ..core.lanes import one_lane
from ..core.lanes_cuda import elected, elected_in_warp
from ..core.numba import BOOLEAN, I64
from ..core.op import Helper, Op, entry_operation, of_one_kernel
from ..core.symbols import symbol
from ..intrinsics import barrier, cluster, fence, griddep, mbarrier, setmaxnreg
from ..language.grid.cluster_exit import await_peers
from ..language.grid.compute_role import begin_compute, end_compute
from ..language.grid.tile_scheduler import end_scheduler
from ..language.grid.tile_scheduler_cuda import begin_scheduler
from ..language.memory.peer_arrays_cuda import begin_gpus, define_offsets, launch_begins
from ..language.pipeline.pingpong_cuda import define_turns
from ..language.tiles import conversions_cuda as conversions_cuda  # casts of operands
from ..language.tiles.fence_order_cuda import define_order
from ..language.tiles.reduce_cuda import define_exchange
from ..language.tiles.refs_cuda import new_ref
from ..language.tiles.store_ring import drain_stores
from ..plan.context_cuda import define_axes, keep_grid, new_context, place_among
from ..plan.profiling_cuda import begin_profile, define_profile, end_profile
from ..plan.roles import COMPUTE, MEMORY, Role
from ..plan.unit import Unit
from .bounded_cuda import begin_bounds
from .check.inert_roles import SUFFIX

ENTRY = "<entry of a kernel>"
"""The file name that the entry's code has in debug information."""


class TableType(nb.FieldsType):
    """The packed tensor maps: one by-value parameter, large enough for all maps that the kernel's
    code requested."""

    unit: Unit


@nb.register_model(TableType)
class _TableModel(nb.models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, fe_type: TableType) -> None:
        self._cluster = fe_type.unit.cluster if fe_type.unit.clustered else None
        # read when the entry is lowered, after all code that it calls
        words = fe_type.unit.table_bytes // 8
        super().__init__(manager, fe_type, nb.ir.PointerType(nb.ir.ArrayType(nb.i64, words)))

    def from_argument(self, builder: Any, value: Any) -> Any:
        if self._cluster is not None:
            nb.cluster_dims(builder, value, self._cluster)
        return nb.grid_constant(builder, value)


def _operation(unit: Unit, emit: Callable, result: Any = nb.VOID) -> Op:
    """Return an operation of the entry with this result. ``emit(unit, builder, *values)`` makes
    its code."""

    def typer(*types: Any) -> Any:
        builder, values = yield result
        return emit(unit, builder, *values)

    return entry_operation(typer)


def _start(unit: Unit, builder: Any, *sizes: Any) -> None:
    """Initialize the barriers of all rings, and define the symbols that helpers leave to the
    kernel. For `sizes` see `keep_grid`."""
    define_axes(builder, unit)
    define_approximation(builder, unit.params.approx_math)
    define_order(builder, unit)
    if unit.exchange_bytes:
        define_exchange(builder, unit)
    if unit.gpus:
        define_offsets(builder, unit)
    if unit.turns > 1:
        define_turns(builder, unit)
    if unit.params.profile_space:
        define_profile(builder)
    first = builder.icmp_unsigned("<", builder.thread_index(), 128)
    with builder.if_then(builder.and_(first, elected(builder))):
        for address, count, _ in unit.all_barriers():
            builder.issue(mbarrier.init, builder.smem(address), count)
        builder.issue(fence.mbarrier_init)
        keep_grid(builder, unit, sizes)
        if unit.params.debug:
            begin_bounds(builder, unit)
    # all threads meet, so that no CTA arrives on a barrier of, or copies to, a CTA that has not
    # started
    if unit.clustered:
        if unit.params.debug or sizes:
            builder.issue(cluster.arrive)
        # fence.mbarrier_init has released the barriers, and nothing else needs a release (PTX ISA,
        # "membar/fence": its example)
        else:
            # a `release` would be a fence of the whole GPU
            builder.execute([], "barrier.cluster.arrive.relaxed;")
        builder.issue(cluster.wait)
    else:
        builder.issue(barrier.sync, 0, unit.threads)


def _meet(operation: Op, unit: Unit, builder: Any) -> None:
    """Let the CTAs of a cluster meet, if they do so at the end. That is known only when all
    functions have been compiled."""
    if unit.meets_at_end:
        builder.issue(operation)


def _is_memory(unit: Unit, builder: Any) -> Any:
    if unit.memory_warpgroup == unit.compute_wgs:
        return builder.icmp_unsigned(">=", builder.thread_index(), 128 * unit.compute_wgs)
    warpgroup = builder.lshr(builder.thread_index(), 7)
    return builder.icmp_unsigned("==", warpgroup, unit.memory_warpgroup)


def _begin_tickets(unit: Unit, builder: Any, np_: Any, table: Any) -> None:
    if unit.work_ring is not None:
        begin_scheduler(
            builder,
            np_,
            builder.load(builder.gep(table, [0, unit.counter_at // 8])),
        )


def _begin_launch(unit: Unit, builder: Any, table: Any) -> None:
    """Signal the peers that the launch has begun, from one lane of the first CTA. Its warp is one
    of the memory role that does nothing else, or the last one of the first warpgroup."""
    own = unit.memory_warpgroup if unit.warp_specialized else 0
    lane = nb.const(128 * own + (32 if unit.warp_specialized else 96))
    first = builder.icmp_unsigned("==", builder.block_number(), 0)
    with builder.if_then(
        builder.and_(first, builder.icmp_unsigned("==", builder.thread_index(), lane)),
        likely=False,
    ):
        launch_begins(builder, unit, table)


def _renamed(function: Callable, name: str) -> Callable:
    """Return a copy of a function under a name by which its code is found in the IR."""
    code = function.__code__.replace(co_name=name)
    copy = types.FunctionType(
        code, function.__globals__, name, function.__defaults__, function.__closure__
    )
    copy.__module__, copy.__qualname__ = function.__module__, name
    return copy


def _leaving(role: Callable, count: int, then: Callable) -> Callable:
    """Return a function that calls a role's function of `count` arguments and then, in the same
    lane, ``then(np_)``, which waits for the cluster or for stores."""
    arguments = ", ".join(["np_", *(f"argument{number}" for number in range(count))])
    ns = {"role": role, "then": then}
    exec(
        compile(f"def leaving({arguments}):\n    role({arguments})\n    then(np_)", ENTRY, "exec"),
        ns,
    )
    return ns["leaving"]


def _lane_of_each(warps: range) -> Op:
    """Return an operation like `one_lane` that calls a function in one lane of each of these warps
    of the CTA."""

    def typer(function: Any, *args: Any) -> Any:
        nb.returns(function, args)
        builder, values = yield
        own, _ = place_among(builder, warps)
        with builder.if_then(builder.and_(own, elected_in_warp(builder))):
            builder.apply(function, args, values[1:])
        builder.join()

    return entry_operation(typer)


def build(unit: Unit, function: Callable, scalars: Sequence) -> tuple[Callable, list]:
    """Return the entry function and its Numba argument types. `scalars` are the Numba types of the
    run-time scalars."""
    # the text below contains no name that a user chose, because a Python function may have any name
    name = symbol(unit.kernel)
    profiled = bool(unit.params.profile_space)
    parameters: list[str] = ["table"]
    argtypes: list = [TableType(unit)]
    arguments: list[str] = []
    ns: dict[str, Any] = {
        "table_address": _operation(
            unit, lambda unit, builder, table: builder.ptrtoint(table, nb.i64), I64
        ),
        "start": _operation(unit, _start),
        "is_memory": _operation(unit, _is_memory, BOOLEAN),
        "begin_dynamic": _operation(unit, _begin_tickets),
        "begin_gpus": _operation(
            unit, lambda unit, builder, np_, table: begin_gpus(builder, np_, table, unit)
        ),
        "begin_launch": _operation(unit, _begin_launch),
        "dec": setmaxnreg.dec,
        "inc": setmaxnreg.inc,
        "one_lane": one_lane,
        "drain_stores": drain_stores,
        "launch_dependents": griddep.launch_dependents,
        "wait": griddep.wait,
        "begin_compute": begin_compute,
        "end_compute": end_compute,
        "end_scheduler": end_scheduler,
        "meet": _operation(unit, functools.partial(_meet, cluster.arrive)),
        "leave": _operation(unit, functools.partial(_meet, cluster.wait)),
    }
    for role in unit.roles:
        instance = function if role.computes else _renamed(function, f"{name}{SUFFIX.format(role)}")
        ns[role.name] = of_one_kernel(Helper(instance))
        ns[f"{role}_context"] = new_context(unit, role)
    for number, array in enumerate(unit.arrays):
        names = [
            f"a{number}_ptr",
            *(f"a{number}_{what}{i}" for what in "ns" for i in range(array.ndim)),
        ]
        parameters += names
        argtypes += [I64] * len(names)
        state = "ROLE_np, " if unit.references_hold_context else ""
        arguments.append(f"ROLE_{number}({state}maps, {', '.join(names)})")
        for role in unit.roles:
            ns[f"{role}_{number}"] = new_ref(unit, number, role)
    names = [f"scalar{number}" for number in range(len(scalars))]
    own = len(names) - len(unit.folded)  # the sizes of the grid are only passed to the entry
    parameters += names
    argtypes += scalars
    arguments += names[:own]
    inner = ", ".join(arguments)
    for role, emit in itertools.product(unit.roles, (begin_profile, end_profile)):
        ns[f"{emit.__name__}_{role}"] = _operation(
            unit, lambda unit, builder, np_, role=role, emit=emit: emit(builder, unit, role, np_)
        )

    def run(role: Role, before: Sequence[str], function: str, after: Sequence[str]) -> list[str]:
        np_ = f"{role}_np"
        return [
            f"{np_} = {role}_context()",
            f"begin_dynamic({np_}, table)",
            *[f"begin_gpus({np_}, table)"] * bool(unit.gpus),
            *[f"begin_profile_{role}({np_})"] * profiled,
            *before,
            f"{function}{np_}, {inner.replace('ROLE', role.name)})",
            *after,
            *[f"end_profile_{role}({np_})"] * profiled,
        ]

    late = unit.clustered and not profiled
    if unit.clustered and unit.warp_specialized:
        ns[MEMORY.name] = of_one_kernel(
            Helper(_leaving(ns[MEMORY.name], len(arguments), await_peers))
        )
    begin_launch = ["begin_launch(table)"] * bool(unit.gpus)
    compute = run(
        COMPUTE,
        ["begin_compute(compute_np)"],
        "compute(",
        ["end_compute(compute_np)", *["drain_stores(compute_np)"] * (not late)],
    )
    if not unit.warp_specialized:
        compute = [*begin_launch, *compute]
    else:
        memory = [
            *begin_launch,
            *run(MEMORY, (), "one_lane(memory, ", ["end_scheduler(memory_np)"]),
        ]
        for role, warps in unit.beside.items():
            ns[role.name] = of_one_kernel(
                Helper(_leaving(ns[role.name], len(arguments), drain_stores))
            )
            ns[f"lane_of_{role}"] = _lane_of_each(warps)
            memory += run(role, (), f"lane_of_{role}({role}, ", ())
        compute = [
            "if is_memory():",
            *(f"    {line}" for line in (f"dec({unit.memory_registers})", *memory)),
            "else:",
            *(f"    {line}" for line in (f"inc({unit.compute_registers})", *compute)),
        ]
    lines = [
        "maps = table_address(table)",
        f"start({', '.join(names[own:])})",
        "launch_dependents()",
        "wait()",
        *compute,
    ]
    if unit.clustered:  # no CTA may exit while others arrive on its barriers
        lines += ["meet()", *["drain_stores(compute_context())"] * late, "leave()"]
    exec(
        compile("\n    ".join([f"def entry({', '.join(parameters)}):", *lines]), ENTRY, "exec"), ns
    )
    return _renamed(ns["entry"], name), argtypes
