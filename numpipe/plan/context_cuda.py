"""The context as a Numba value. Axes are link symbols, which each kernel's entry module defines, so
that kernels can share helpers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from ..core import numba as nb
from ..core.formula_cuda import Value
from ..core.inert_cuda import InertType
from ..core.numba import I32
from ..core.op import cuda_meaning, entry_operation, with_parameters
from ..core.symbols import axis_symbol, program_symbol
from . import context as source
from .budget import Region
from .cluster_ranks import Dims, place_of
from .folded_grids import index
from .kernel_shape import GPU_AXIS
from .plans import GPU, STATE, WARPGROUP
from .roles import Role
from .unit import Unit


class ContextType(source.ContextFacts, nb.FieldsType):
    unit: Unit
    role: Role

    def compiled(self, builder: Any, value: Any) -> CompiledContext:
        return CompiledContext(self, builder, lambda: value)


class CompiledContext(source.ContextFacts):
    """The context as a compiled `formula` sees it; `value` returns the LLVM value."""

    def __init__(self, ty: ContextType, builder: Any, value: Callable[[], Any]) -> None:
        self.unit = ty.unit
        self.role = ty.role
        self.builder = builder
        self.value = value
        self.state = self

    def __getitem__(self, index: int) -> Value:
        return Value(
            self.builder,
            self.builder.load(counter_pointer(self.builder, self.value(), index)),
        )

    def __setitem__(self, index: int, word: Value) -> None:
        self.builder.store(word.value, counter_pointer(self.builder, self.value(), index))

    @property
    def number(self) -> Value:
        return self[WARPGROUP]

    @property
    def cta(self) -> list[Value]:
        return [Value(self.builder, index) for index in self.builder.block_index()]

    @property
    def grid(self) -> list[Value]:
        return [Value(self.builder, size) for size in self.builder.grid_size()]

    def part_of(self, region: Region, offset: int = 0) -> Value:
        return Value(self.builder, own_part(self.builder, self.unit, region, offset))


nb.machine_model(ContextType, lambda ty: nb.i32.as_pointer())


def new_context(unit: Unit, role: Role) -> Any:
    """Return an operation that makes the context of a role. The ring counters are on the stack, and
    LLVM promotes them to registers."""

    def typer() -> Any:
        builder, _ = yield ContextType(unit, role)
        array = nb.ir.ArrayType(nb.i32, STATE)
        state = nb.cgutils.alloca_once(builder, array, name="numpipe.state")
        builder.store(nb.ir.Constant(array, [0] * STATE), state)
        np_ = builder.bitcast(state, nb.i32.as_pointer(), name="numpipe.context")
        if role.numbered:
            own = uniform(builder, compute_warpgroup(builder, unit))
            builder.store(own, counter_pointer(builder, np_, WARPGROUP))
        return np_

    return entry_operation(typer)


def uniform(builder: Any, value: Any) -> Any:
    """Return an int32 that is the same in all lanes of a warp, in a form that ptxas knows to be
    uniform: the value of lane 0. All lanes take part.

    ptxas keeps such values in uniform registers, which a wgmma descriptor requires. Otherwise each
    use takes a shuffle and two moves, and each branch on the value a BSSY and a WARPSYNC. If ptxas
    can already tell, it drops the shuffle (PTX ISA, "shfl.sync").
    """
    return builder.emit_asm(
        nb.i32, [value], "shfl.sync.idx.b32 $0, $1, 0, 31, 0xffffffff;", memory=False
    )


def own_warpgroup(builder: Any, context_value: Any) -> Any:
    """Return `compute_warpgroup`, `uniform`, from the context of a role that has a number."""
    return builder.load(counter_pointer(builder, context_value, WARPGROUP))


def counter_pointer(builder: Any, context_value: Any, index: Any) -> Any:
    """Return the address of a ring counter. By its name, the role check recognizes numpipe's own
    stores."""
    return builder.gep(context_value, [index], name="numpipe.counter")


def wide_counter(builder: Any, context_value: Any, index: int) -> Any:
    """Return the 64-bit number that counters `index` and `index` + 1 hold, the low half first."""
    low, high = (
        builder.zext(builder.load(counter_pointer(builder, context_value, index + part)), nb.i64)
        for part in (0, 1)
    )
    return builder.or_(low, builder.shl(high, 32))


def of_context(operation: Any, result: Any, function: Callable[[Any, Unit, Any], Any]) -> None:
    """Give an operation on a context the code ``function(builder, unit, np_)``."""

    @cuda_meaning(operation)
    def typer(np_: Any) -> Any:
        builder, args = yield result
        return function(builder, np_.unit, args[0])


@cuda_meaning(source.only_if)
def _only_if(holder: Any, fact: Any, function: Any, *args: Any) -> Any:
    holds = getattr(holder, nb.literal(fact))
    if holds:
        nb.returns(function, (holder, *args))
    builder, values = yield
    if holds:
        builder.apply(function, (holder, *args), (values[0], *values[3:]))


@cuda_meaning(source.over)
def _over(values: Any, function: Any, *args: Any) -> Any:
    for kind in values:
        nb.returns(function, (kind, *args))
    builder, given = yield
    for number, kind in enumerate(values):
        builder.apply(
            function,
            (kind, *args),
            (builder.extract_value(given[0], number), *given[2:]),
        )


def by_compute(operation: Any) -> Callable[[Callable], None]:
    """Decorate the meaning of an operation (np_, *args) that both roles type-check, and that the
    compute role executes as a call.

    The meaning is a generator function of the types: it checks them, yields the function to call
    and its argument types, is sent (builder, args), and returns the arguments' values.
    """

    def attach(prepared: Callable) -> None:
        def typer(np_: Any, *given: Any) -> Any:
            rest = prepared(np_, *given)
            function, argtypes = next(rest)
            if np_.computes:
                nb.returns(function, argtypes)
            builder, args = yield
            if np_.computes:
                try:
                    rest.send((builder, args))
                except StopIteration as end:
                    builder.apply(function, argtypes, end.value)

        cuda_meaning(operation)(with_parameters(typer, inspect.signature(prepared).parameters))

    return attach


def _linked(operation: Any, symbol: Callable[[str, Any], str], what: str) -> None:
    @cuda_meaning(operation)
    def typer(name: Any) -> Any:
        known = nb.literal(name)
        builder, _ = yield I32
        return builder.external(symbol(what, known), nb.i32)


_linked(source.axis_index, axis_symbol, "index")
_linked(source.axis_size, axis_symbol, "size")
_linked(source.folded_index, program_symbol, "index")
_linked(source.folded_size, program_symbol, "size")


def _program(operation: Any, name: str, register: str) -> None:
    @cuda_meaning(operation)
    def typer(axis: Any) -> Any:
        dimension = "xyz"[source.checked_axis(name, axis)]
        builder, _ = yield I32
        return builder.special(f"{register}.{dimension}")


def check_ctas(unit: Unit, library: Any) -> None:
    """Raise SpecError if compiled code asks for a dimension that the CTAs of a kernel over tiles do
    not have."""
    for operation, register in (("program_id", "ctaid"), ("num_programs", "nctaid")):
        for symbol in nb.undefined_symbols(library, f"llvm.nvvm.read.ptx.sreg.{register}."):
            source.check_ctas(unit, operation, "xyz".index(symbol[-1]))


_program(source.program_id, "program_id", "ctaid")
_program(source.num_programs, "num_programs", "nctaid")


@cuda_meaning(source.own_index)
def _own_index() -> Any:
    builder, _ = yield I32
    return builder.block_number()


@cuda_meaning(source.cta_count)
def cta_count() -> Any:
    builder, _ = yield I32
    x, y, z = builder.grid_size()
    return builder.mul(x, builder.mul(y, z))


def keep_grid(builder: Any, unit: Unit, sizes: Sequence) -> None:
    """Write the sizes of the grid's `folded` dimensions, from one lane, to the place where
    `_grid_index` and `_grid_size` read them."""
    for number, size in enumerate(sizes):
        address = builder.smem(unit.grid_words + 4 * number)
        builder.execute([address, size], "st.volatile.shared.b32 [$0], $1;")


def _kept(builder: Any, unit: Unit, number: int) -> Any:
    address = builder.smem(unit.grid_words + 4 * number)
    return builder.emit_asm(nb.i32, [address], "ld.volatile.shared.b32 $0, [$1];")


def _grid_index(builder: Any, unit: Unit, dimension: int) -> Any:
    """Return the index of this CTA along a dimension of the grid."""
    if dimension not in unit.folded:
        return builder.special(f"ctaid.{'xyz'[dimension]}")
    x = Value(builder, builder.special("ctaid.x"))
    sizes = [Value(builder, _kept(builder, unit, number)) for number in range(len(unit.folded))]
    return index(x, sizes, dimension).value


def _grid_size(builder: Any, unit: Unit, dimension: int) -> Any:
    """Return the number of CTAs along a dimension of the grid."""
    if dimension not in unit.folded:
        return builder.special(f"nctaid.{'xyz'[dimension]}")
    return _kept(builder, unit, unit.folded.index(dimension))


def define_axes(outer: Any, unit: Unit) -> None:
    """Define the axis symbols of this kernel, in its entry module."""

    def put(symbol: str, value: Callable[[Any], Any]) -> None:
        with outer.define(symbol, nb.i32) as (builder, _):
            builder.ret(value(builder))

    def define(what: str, name: str, value: Callable[[Any], Any]) -> None:
        put(axis_symbol(what, name), value)

    for dimension in unit.folded:
        put(
            program_symbol("index", dimension),
            lambda builder: _grid_index(builder, unit, dimension),
        )
        put(program_symbol("size", dimension), lambda builder: _grid_size(builder, unit, dimension))
    for dimension, name in enumerate(unit.axes):
        define("index", name, lambda builder: _grid_index(builder, unit, dimension))
        define("size", name, lambda builder: _grid_size(builder, unit, dimension))
    for axis, name in enumerate(unit.cluster_axes):
        define("index", name, lambda builder: cluster_place(builder, unit.cluster)[axis].value)
        define("size", name, lambda builder: nb.const(unit.cluster[axis]))
    if unit.gpus:
        define("size", GPU_AXIS, lambda builder: nb.const(unit.gpus))
    define("index", unit.wg_axis, lambda builder: tile_part(builder, unit))
    define("size", unit.wg_axis, lambda builder: nb.const(unit.tile_wgs))


def cluster_place(builder: Any, dims: Dims) -> list:
    """Return the position of this CTA in its cluster, along x, y and z. A grid is a whole number of
    clusters in each dimension."""
    ids = [
        Value(builder, nb.const(0) if of == 1 else builder.special(f"ctaid.{dim}"))
        for dim, of in zip("xyz", dims, strict=True)
    ]
    return list(place_of(ids, dims))


def compute_warpgroup(builder: Any, unit: Unit) -> Any:
    """Return the number (0, 1, …) of the compute warpgroup that executes, or that the executing
    warp next to the loading one works for."""
    number = compute_number(builder, unit)
    for warps in unit.beside.values():
        inside, place = place_among(builder, warps)
        number = builder.select(inside, place, number)
    return number


def compute_number(builder: Any, unit: Unit) -> Any:
    """Return the number (0, 1, …) of the compute warpgroup that executes."""
    warpgroup = builder.lshr(builder.thread_index(), 7)
    if unit.memory_warpgroup == unit.compute_wgs:
        return warpgroup
    after = builder.icmp_unsigned(">", warpgroup, unit.memory_warpgroup)
    return builder.sub(warpgroup, builder.zext(after))


def place_among(builder: Any, warps: range) -> tuple[Any, Any]:
    """Return whether the executing warp is in this range of the CTA's warps, and its number in the
    range."""
    warp = builder.lshr(builder.thread_index(), 5)
    place = builder.sub(warp, warps.start)
    return builder.icmp_unsigned("<", place, len(warps)), place


def own_part(builder: Any, unit: Unit, region: Region, offset: int = 0) -> Any:
    """Return the address of this warpgroup's bytes of a region, plus `offset` bytes."""
    address = builder.smem(region.base + offset)
    if not region.owners:
        return address
    return builder.add(address, builder.mul(compute_warpgroup(builder, unit), region.nbytes))


def tile_part(builder: Any, unit: Unit, number: Callable = compute_warpgroup) -> Any:
    """Return which part of a tile this warpgroup computes: the part with its own number, which
    `number` returns, or part 0 if it computes whole tiles."""
    return nb.const(0) if unit.turns > 1 else number(builder, unit)


@cuda_meaning(source.warpgroup_part)
def _warpgroup_part(np_: Any) -> Any:
    result = I32 if np_.numbered else InertType("the warpgroup axis")
    builder, args = yield result
    if not np_.numbered:
        return None
    return own_warpgroup(builder, args[0]) if np_.unit.turns == 1 else nb.const(0)


@cuda_meaning(source.gpu_index)
def _gpu_index(np_: Any) -> Any:
    builder, args = yield I32
    return builder.load(counter_pointer(builder, args[0], GPU))
