"""Register tiles in Numba: one array of registers a lane; shape, dtype and layout in the type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...core import numba as nb
from ...core.inert_cuda import STEERLESS
from ...core.op import cuda_meaning, immediate
from ...diagnostics.errors import CompileError, SpecError
from . import tile as source
from .layouts import ACCUMULATOR, Form, places
from .tile import BOOL, FLOAT32, HALVES, INT32, check_dtype, check_shape


class TileType(nb.types.Type):  # type: ignore[misc]
    """float32, int32 and bool: a register an element, in the order of `layouts.places`; 16-bit types: two in one."""

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype, layout: str = ACCUMULATOR) -> None:
        self.shape, self.dtype, self.layout = shape, dtype, layout
        self.elements = len(places(shape, layout))
        self.registers = self.elements // 2 if dtype in HALVES else self.elements
        super().__init__(name=f"tile({shape}, {dtype}{'' if layout == ACCUMULATOR else f', {layout}'})")

    @classmethod
    def of(cls, form: Form) -> TileType:
        return cls(form.shape, form.dtype, form.layout)

    @property
    def what(self) -> str:
        return source.MASK if self.dtype == BOOL else "a register tile"

    @property
    def form(self) -> Form:
        return Form(self.shape, self.dtype, self.layout)

    @property
    def machine(self) -> Any:
        return nb.ir.ArrayType({FLOAT32: nb.f32, BOOL: nb.i1}.get(self.dtype, nb.i32), self.registers)


class InFlightType(nb.types.Type):  # type: ignore[misc]
    """A tile that a wgmma may still be writing: it must be waited for before anything reads it."""

    what = "a register tile"

    def __init__(self, tile: TileType, role: str) -> None:
        self.tile, self.role = tile, role
        super().__init__(name=f"in flight({tile}, {role})")

    def unify(self, context: Any, other: Any) -> Any:
        return self if other == self.tile else None

    @property
    def machine(self) -> Any:
        return self.tile.machine


STEERLESS.extend([TileType, InFlightType])


for _type in (TileType, InFlightType):
    nb.machine_model(_type, lambda ty: ty.machine)
nb.lower_cast(TileType, InFlightType)(lambda context, builder, fromty, toty, value: value)


def as_dtype(ty: Any) -> np.dtype:
    """The dtype that a compile-time argument names."""
    if isinstance(ty, nb.types.StringLiteral):
        return np.dtype(str(ty.literal_value))
    if isinstance(ty, nb.types.NumberClass):
        return np.dtype(str(ty.dtype))
    raise SpecError(f"a dtype is needed here, known at compile time: got {ty}")


def settled(ty: Any, what: str) -> TileType:
    """The tile type of an operand; an error for accumulators in flight."""
    if isinstance(ty, InFlightType):
        raise CompileError(f"{what}: the accumulator is in flight: wgmma may still be writing it; write "
                           "acc = numpipe.wgmma_wait(acc, 0) first (a pipeline loop's end does so for what it carries)")
    assert isinstance(ty, TileType)
    return ty


def undefined(tile: TileType) -> Any:
    """The value of a tile in the memory role, and one whose registers are yet to come."""
    return nb.ir.Constant(tile.machine, nb.ir.Undefined)


def registers(builder: Any, tile: TileType, value: Any) -> list[Any]:
    """The registers of a tile: its elements, of a 16-bit type two in each."""
    return [builder.extract_value(value, i) for i in range(tile.registers)]


def words(builder: Any, tile: TileType, value: Any) -> list[Any]:
    """The registers as they are stored: two 16-bit elements as an integer, elements of 32 bits as float32, int32 too."""
    return [builder.bitcast(part, nb.f32) if tile.dtype == INT32 else part for part in registers(builder, tile, value)]


def assembled(builder: Any, tile: TileType, parts: Sequence[Any]) -> Any:
    """A tile of these registers."""
    value = undefined(tile)
    for i, part in enumerate(parts):
        value = builder.insert_value(value, part, i)
    return value


@cuda_meaning(source.zeros)
def _zeros(_context: Any, shape: Any, dtype: Any) -> Any:
    kind = as_dtype(dtype)
    tile = TileType(check_shape(immediate("zeros", "shape", shape), kind, "zeros"), kind)
    if kind != FLOAT32:
        raise SpecError(f"zeros: accumulators are float32, got {kind}: use .astype afterwards")
    return tile(shape, dtype), lambda context, builder, sig, args: nb.ir.Constant(tile.machine, [0.0] * tile.registers)


# ---- conversions
_WIDENING = {  # a 16-bit element in a register's low, and in its high half, as float32: a bfloat16 is the upper half of one
    np.dtype(np.float16): ("{ .reg .b16 lo, hi; mov.b32 {lo, hi}, $1; cvt.f32.f16 $0, lo; }",
                           "{ .reg .b16 lo, hi; mov.b32 {lo, hi}, $1; cvt.f32.f16 $0, hi; }"),
    source.BFLOAT16: ("{ .reg .b32 bits; shl.b32 bits, $1, 16; mov.b32 $0, bits; }",
                      "{ .reg .b32 bits; and.b32 bits, $1, 0xffff0000; mov.b32 $0, bits; }"),
}


def floats(builder: Any, dtype: np.dtype, parts: Sequence[Any]) -> list[Any]:
    """The elements in registers of a type as float32."""
    if dtype in HALVES:
        return [builder.call(nb.pure_asm(nb.f32, [nb.i32], text, "=f,r"), [part]) for part in parts for text in _WIDENING[dtype]]
    if dtype == FLOAT32:
        return list(parts)
    return [builder.uitofp(part, nb.f32) if dtype == BOOL else builder.sitofp(part, nb.f32) for part in parts]


def packed(builder: Any, dtype: np.dtype, low: Any, high: Any) -> Any:
    """Two float32 rounded to a 16-bit type, in one register."""
    text = f"cvt.rn.{'bf16x2' if dtype == source.BFLOAT16 else 'f16x2'}.f32 $0, $2, $1;"
    return builder.call(nb.pure_asm(nb.i32, [nb.f32, nb.f32], text, "=r,f,f"), [low, high])


@cuda_meaning(source.astype)
def _astype(_context: Any, tile: Any, dtype: Any) -> Any:
    if not isinstance(tile, (TileType, InFlightType)):
        return None
    kind, have = as_dtype(dtype), settled(tile, "astype")
    if kind == have.dtype:
        _, _, args = yield tile(tile, dtype)
        return args[0]
    check_dtype(kind, "astype")
    result = TileType(have.shape, kind, have.layout)
    _, builder, args = yield result(tile, dtype)
    if have.dtype == BOOL and kind == INT32:
        return assembled(builder, result, [builder.zext(bit, nb.i32) for bit in registers(builder, have, args[0])])
    found = floats(builder, have.dtype, registers(builder, have, args[0]))
    if kind == INT32:
        function = nb.pure_asm(nb.i32, [nb.f32], "cvt.rzi.s32.f32 $0, $1;", "=r,f")
        found = [builder.call(function, [x]) for x in found]
    elif kind in HALVES:
        found = [packed(builder, kind, low, high) for low, high in zip(found[::2], found[1::2], strict=True)]
    return assembled(builder, result, found)


for _cls in (TileType, InFlightType):
    nb.method(_cls, "astype", source.astype)
nb.constant_attribute(TileType, "shape", lambda ty: ty.shape)
nb.constant_attribute(TileType, "dtype", lambda ty: ty.dtype.name)
nb.constant_attribute(InFlightType, "shape", lambda ty: ty.tile.shape)
nb.constant_attribute(InFlightType, "dtype", lambda ty: ty.tile.dtype.name)
