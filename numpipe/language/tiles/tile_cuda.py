"""Register tiles in Numba: the type has the shape, dtype and layout; the value is one array of
registers per lane."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import numpy as np

from ...arch.dimensions import Ints
from ...arch.dtypes import BOOL, FLOAT32, FLOAT64, INTEGERS, UINT32, packing
from ...core import numba as nb
from ...core.inert_cuda import STEERLESS, InertType
from ...core.numbers import cast
from ...core.op import cuda_meaning
from ...diagnostics.errors import CompileError, SpecError
from ...plan.roles import Role
from . import tile as source
from .layout_names import EITHER
from .layouts import ACCUMULATOR, Form, before, joined, places, ways
from .tile import TileLike


class TileType(nb.Type, TileLike):  # type: ignore[misc]
    """The type of a `Tile`. A register holds one element, or two of an 8-bit or 16-bit type, in the
    order of `layouts.places`.

    steps  of an int32 tile, the difference of adjacent rows and that of adjacent columns, if they
           are constants (`elementwise.positions`); else ()
    """

    def __init__(self, form: Form, steps: Ints = ()) -> None:
        self.form, self.steps = form, steps
        self.elements = len(form.places)
        self.registers = self.elements // packing(form.dtype).per_register
        super().__init__(
            name=f"tile({form.shape}, "
            f"{form.dtype}{'' if form.layout == ACCUMULATOR else f', {form.layout}'}{steps or ''})"
        )

    def unify(self, context: Any, other: Any) -> Any:
        """Return the type of a variable that has this type on one path and another on the other;
        None if there is no common type."""
        form = joined(self.form, other.form) if isinstance(other, TileType) else None
        return None if form is None else TileType(form)

    @property
    def what(self) -> str:
        return source.MASK if self.dtype == BOOL else "a register tile"

    @property
    def machine(self) -> Any:
        return nb.ir.ArrayType(
            {FLOAT32: nb.f32, FLOAT64: nb.f64, BOOL: nb.i1}.get(self.dtype, nb.i32), self.registers
        )


class InFlightType(nb.FieldsType, TileLike):
    """The type of a tile that a wgmma may still be writing: it must be waited for before it is
    read."""

    what = "a register tile"

    tile: TileType
    role: Role

    def __post_init__(self) -> None:
        super().__post_init__()
        self.form = self.tile.form

    def unify(self, context: Any, other: Any) -> Any:
        return self if other == self.tile else None

    @property
    def machine(self) -> Any:
        return self.tile.machine

    def settled(self, what: str) -> NoReturn:
        raise CompileError(
            f"{what}: the accumulator is in flight, because a wgmma may still be writing it; fix: "
            "write acc = numpipe.wgmma_wait(acc, 0) first, or wgmma_wait(acc), which leaves "
            "newer products in flight"
        )


STEERLESS.extend([TileType, InFlightType])


for _type in (TileType, InFlightType):
    nb.machine_model(_type, lambda ty: ty.machine)
    nb.method(_type, "astype", source.astype)
    nb.method(_type, "view", source.bitcast)
    nb.constant_attributes(_type, None, shape=lambda ty: ty.shape, dtype=lambda ty: ty.dtype.name)
for _number in (nb.Float, nb.Integer, InertType):
    nb.method(_number, "astype", source.astype)
nb.lower_cast(TileType, InFlightType)(lambda builder, fromty, toty, value: value)


@source.dtype_of.register(nb.Type)
def _dtype_of(ty: Any) -> np.dtype:
    if isinstance(ty, nb.types.StringLiteral):
        return np.dtype(str(ty.literal_value))
    if isinstance(ty, nb.types.NumberClass):
        return np.dtype(str(ty.dtype))
    raise SpecError(f"expected a dtype that is known at compile time, got {ty}")


def undefined(tile: TileType) -> Any:
    """Return the value of a tile in the memory role, or of one whose registers are inserted
    next."""
    return nb.ir.Constant(tile.machine, nb.ir.Undefined)


def registers(builder: Any, tile: TileType, value: Any) -> list:
    return [builder.extract_value(value, i) for i in range(tile.registers)]


def distances(tile: TileType) -> list[int]:
    """Return how much each element of a lane exceeds the lane's first, in a tile with steps."""
    down, across = tile.steps
    return [down * (row or 0) + across * (column or 0) for row, column in tile.form.places]


def part_of_either(builder: Any, have: TileType, value: Any, result: TileType) -> list:
    """Return the registers of `have` that form `result`, a tile in another layout or shape whose
    lanes already hold its elements. Of a deferred tile, only some are needed."""
    parts, each = registers(builder, have, value), packing(have.dtype).per_register
    if have.layout != EITHER or have.form == result.form:
        return parts[: result.registers]
    lines = ways(result.shape) if result.layout == EITHER else (result.layout,)
    return [
        part
        for line in lines
        for part in parts[before(have.shape, line) // each :][
            : len(places(result.shape, line)) // each
        ]
    ]


def words(builder: Any, tile: TileType, value: Any) -> list:
    """Return the registers for stores to shared memory: a pair of smaller elements as an integer;
    32-bit elements, including integers, as float32."""
    parts = registers(builder, tile, value)
    return [builder.bitcast(part, nb.f32) for part in parts] if tile.dtype.itemsize == 4 else parts


def assembled(builder: Any, tile: TileType, parts: Sequence) -> Any:
    """Return a tile made of these registers, or of the first one and constants if the tile has
    steps: the compiler then knows which elements of a lane are equal."""
    if tile.steps:
        parts = [builder.add(parts[0], n) for n in distances(tile)]
    value = undefined(tile)
    for i, part in enumerate(parts):
        value = builder.insert_value(value, part, i)
    return value


@cuda_meaning(source.zeros)
def _zeros(shape: Any, dtype: Any) -> Any:
    tile = TileType(source.zeros_form(shape, dtype))
    nothing = nb.ir.Constant(tile.machine, [0.0 if tile.dtype.kind == "f" else 0] * tile.registers)
    return tile(shape, dtype), lambda builder, args: nothing


# ---- conversions
def wide(builder: Any, dtype: np.dtype, parts: Sequence) -> list:
    """Return the elements of registers of a type, in the wider type used for conversions."""
    if not packing(dtype).narrow:
        return [builder.zext(part) for part in parts] if dtype == BOOL else list(parts)
    if dtype == np.uint8:  # LLVM instructions, from which LLVM derives that an index is below 256
        return [builder.and_(word, 255) for part in parts for word in (part, builder.lshr(part, 8))]
    machine = nb.f32 if packing(dtype).wide == FLOAT32 else nb.i32
    return [
        builder.pure_asm(machine, [part], text) for part in parts for text in packing(dtype).widen
    ]


def floats(builder: Any, dtype: np.dtype, parts: Sequence) -> list:
    """Return the elements of registers of a type as float32."""
    if dtype == BOOL:
        return [builder.uitofp(part, nb.f32) for part in parts]
    found = wide(builder, dtype, parts)
    if dtype == FLOAT64:
        return [builder.fptrunc(part, nb.f32) for part in found]
    convert = builder.uitofp if dtype == UINT32 else builder.sitofp
    return found if packing(dtype).wide == FLOAT32 else [convert(part, nb.f32) for part in found]


def packed(builder: Any, dtype: np.dtype, low: Any, high: Any) -> Any:
    """Return two elements, in the wider type used for conversions, packed into one register of a
    smaller type."""
    return builder.pure_asm(nb.i32, [low, high], packing(dtype).narrow)


def in_pairs(values: Sequence) -> Iterator[tuple[Any, Any]]:
    """Return the adjacent pairs of an even number of values."""
    return zip(values[::2], values[1::2], strict=True)


def narrowed(builder: Any, dtype: np.dtype, elements: Sequence) -> list:
    """Return elements, in the wider type used for conversions, as registers of a type; integers
    keep their low bits."""
    if not packing(dtype).narrow:
        return list(elements)
    if dtype not in INTEGERS:
        return [packed(builder, dtype, *two) for two in in_pairs(elements)]
    return [
        builder.or_(builder.and_(low, 255), builder.shl(builder.and_(high, 255), 8))
        for low, high in in_pairs(elements)
    ]


@cuda_meaning(source.astype)
def _astype(tile: Any, dtype: Any) -> Any:
    if isinstance(tile, InertType):
        yield tile
        return None
    if not isinstance(tile, TileLike):
        number, to = nb.unliteral(tile), nb.types.literal(source.number_form(tile, dtype).name)
        builder, args = yield nb.returns(cast, (number, to))(number, dtype)
        return builder.apply(cast, (number, to), (args[0], nb.nothing))
    have = tile.settled("astype")
    result = TileType(source.astype_form(have.form, dtype))
    builder, args = yield result
    return converted(builder, have, args[0], result)


def converted(builder: Any, have: TileType, value: Any, result: TileType) -> Any:
    """Return a tile converted to another type."""
    if result == have:
        return value
    kind, whole = result.dtype, packing(have.dtype).wide.kind != "f"
    if {have.dtype, kind} <= set(INTEGERS) and have.dtype.itemsize == kind.itemsize:
        return value
    found = (wide if kind in INTEGERS else floats)(
        builder, have.dtype, registers(builder, have, value)
    )
    if have.steps and kind not in INTEGERS:
        found = [builder.fadd(found[0], float(n)) for n in distances(have)]
    if whole and kind in INTEGERS:  # integers keep their low bits
        return assembled(builder, result, narrowed(builder, kind, found))
    if kind in INTEGERS:
        text = f"cvt.rzi.{'u' if kind == UINT32 else 's'}32.f32 $0, $1;"
        found = [builder.pure_asm(nb.i32, [x], text) for x in found]
    if kind == FLOAT64:
        found = [builder.fpext(x, nb.f64) for x in found]
    if packing(kind).narrow:
        found = [packed(builder, kind, *two) for two in in_pairs(found)]
    return assembled(builder, result, found)


def to_words(builder: Any, tile: TileType, values: list) -> list:
    """Return the elements of registers, one in each 32-bit word."""
    if packing(tile.dtype).per_register == 2:
        return [
            word
            for value in values
            for word in (value, builder.lshr(value, 8 * tile.dtype.itemsize))
        ]
    if tile.dtype == BOOL:
        return [builder.zext(value) for value in values]
    return [builder.bitcast(value, nb.i32) if tile.dtype == FLOAT32 else value for value in values]


def from_words(builder: Any, tile: TileType, words: list) -> list:
    """Return registers from elements, one in each 32-bit word."""
    if packing(tile.dtype).per_register == 2:
        bits = 8 * tile.dtype.itemsize
        return [
            builder.or_(builder.and_(low, (1 << bits) - 1), builder.shl(high, bits))
            for low, high in in_pairs(words)
        ]
    if tile.dtype == BOOL:
        return [builder.icmp_unsigned("!=", word, 0) for word in words]
    return [builder.bitcast(word, tile.machine.element) for word in words]


def from_runs(builder: Any, tile: TileType, words: list, run: int) -> list:
    """Return registers from words that hold runs of adjacent elements, each loaded at once."""
    if tile.dtype.itemsize == 4:
        return from_words(builder, tile, words)
    if tile.dtype.itemsize == 1 and run > 2:  # a word is two registers of two elements each
        return [half for word in words for half in (word, builder.lshr(word, 16))]
    return words


@cuda_meaning(source.bitcast)
def _bitcast(tile: Any, dtype: Any) -> Any:
    have = tile.settled("bitcast") if isinstance(tile, TileLike) else tile
    result = TileType(source.bitcast_form(have, dtype))
    builder, args = yield result
    parts = registers(builder, have, args[0])
    kind = result.machine.element
    return assembled(builder, result, [builder.bitcast(part, kind) for part in parts])


def cast_to_store(tile: Any, dtype: np.dtype) -> tuple[Any, Callable[[Any, Any], Any]]:
    """Return (the type in which a value is stored to elements of a type, ``convert(builder,
    value)``)."""
    if not isinstance(tile, TileType) or not source.casts(tile.dtype, dtype):
        return tile, lambda builder, value: value
    result = TileType(Form(tile.shape, dtype, tile.layout))
    return result, lambda builder, value: converted(builder, tile, value, result)
