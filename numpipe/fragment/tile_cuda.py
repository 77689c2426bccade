"""Register tiles in Numba: one array of 32-bit registers a lane, shape and dtype in the type."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from .. import _numba as nb
from .._op import cuda_meaning, immediate
from ..division_cuda import divide
from ..errors import CompileError, SpecError
from ..inert_cuda import STEERLESS, InertType
from . import tile as source
from .tile import FLOAT16, FLOAT32, check_conversion, check_shape


class TileType(nb.types.Type):  # type: ignore[misc]
    """float32: register i of a 64-row block is accumulator register i; 16-bit types: registers 2 i and 2 i + 1 packed."""

    what = "a register tile"

    def __init__(self, shape: tuple[int, int], dtype: np.dtype) -> None:
        self.shape, self.dtype = shape, dtype
        self.registers = shape[0] * shape[1] * dtype.itemsize // 512
        super().__init__(name=f"tile({shape}, {dtype})")

    @property
    def machine(self) -> Any:
        return nb.ir.ArrayType(nb.f32 if self.dtype == FLOAT32 else nb.i32, self.registers)


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


class RegistersModel(nb.models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, fe_type: Any) -> None:
        super().__init__(manager, fe_type, fe_type.machine)


nb.register_model(TileType)(RegistersModel)
nb.register_model(InFlightType)(RegistersModel)
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


@cuda_meaning(source.zeros)
def _zeros(_context: Any, shape: Any, dtype: Any) -> Any:
    kind = as_dtype(dtype)
    tile = TileType(check_shape(immediate("zeros", "shape", shape), kind, "zeros"), kind)
    if kind != FLOAT32:
        raise SpecError(f"zeros: accumulators are float32, got {kind}: use .astype afterwards")
    return tile(shape, dtype), lambda context, builder, sig, args: nb.ir.Constant(tile.machine, [0.0] * tile.registers)


@cuda_meaning(source.astype)
def _astype(_context: Any, tile: Any, dtype: Any) -> Any:
    if not isinstance(tile, (TileType, InFlightType)):
        return None
    kind, have = as_dtype(dtype), settled(tile, "astype")
    if kind == have.dtype:
        return tile(tile, dtype), lambda context, builder, sig, args: args[0]
    check_conversion(have.dtype, kind)
    result = TileType(have.shape, kind)
    if kind == FLOAT32:
        return result(tile, dtype), lambda context, builder, sig, args: _widened(builder, have, result, args[0])
    statement = f"cvt.rn.{'f16x2' if kind == FLOAT16 else 'bf16x2'}.f32 $0, $2, $1;"

    def codegen(context: Any, builder: Any, _sig: Any, args: Any) -> Any:
        value = nb.ir.Constant(result.machine, nb.ir.Undefined)
        for i in range(result.registers):
            low, high = (builder.extract_value(args[0], 2 * i + j) for j in (0, 1))
            packed = builder.call(nb.pure_asm(nb.i32, [nb.f32, nb.f32], statement, "=r,f,f"), [low, high])
            value = builder.insert_value(value, packed, i)
        return value

    return result(tile, dtype), codegen


def _widened(builder: Any, tile: TileType, result: TileType, packed: Any) -> Any:
    """16-bit elements, two a register, as float32: a bfloat16 is the upper half of one."""
    statements = (["{ .reg .b16 lo, hi; mov.b32 {lo, hi}, $1; cvt.f32.f16 $0, lo; }",
                   "{ .reg .b16 lo, hi; mov.b32 {lo, hi}, $1; cvt.f32.f16 $0, hi; }"] if tile.dtype == FLOAT16 else
                  ["{ .reg .b32 bits; shl.b32 bits, $1, 16; mov.b32 $0, bits; }",
                   "{ .reg .b32 bits; and.b32 bits, $1, 0xffff0000; mov.b32 $0, bits; }"])
    value = nb.ir.Constant(result.machine, nb.ir.Undefined)
    for i in range(tile.registers):
        pair = builder.extract_value(packed, i)
        for half, text in enumerate(statements):
            value = builder.insert_value(value, builder.call(nb.pure_asm(nb.f32, [nb.i32], text, "=f,r"), [pair]), 2 * i + half)
    return value


for _cls in (TileType, InFlightType):
    nb.method(_cls, "astype", source.astype)
nb.constant_attribute(TileType, "shape", lambda ty: ty.shape)
nb.constant_attribute(TileType, "dtype", lambda ty: ty.dtype.name)
nb.constant_attribute(InFlightType, "shape", lambda ty: ty.tile.shape)
nb.constant_attribute(InFlightType, "dtype", lambda ty: ty.tile.dtype.name)


def _arithmetic(function: Any, instruction: str) -> None:
    def typer(left: Any, right: Any) -> Any:
        tiles = [t for t in (left, right) if isinstance(t, (TileType, InFlightType))]
        if not tiles:
            return None
        for tile in tiles:
            if settled(tile, f"'{function.__name__}'").dtype != FLOAT32:
                raise SpecError(f"arithmetic is on float32 tiles, got {tile.dtype}: use .astype(np.float32) first")
        if len(tiles) == 2 and left != right:
            raise SpecError(f"tiles of shapes {left.shape} and {right.shape} do not combine")
        if any(isinstance(t, InertType) for t in (left, right)):  # in the memory role, where a tile is a type without data
            return tiles[0](left, right), lambda context, builder, sig, args: args[int(isinstance(left, InertType))]
        kinds = [t if isinstance(t, TileType) else nb.types.float32 for t in (left, right)]
        if not all(isinstance(t, (TileType, nb.types.Number)) for t in (left, right)):
            return None

        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            value = nb.ir.Constant(tiles[0].machine, nb.ir.Undefined)
            for i in range(tiles[0].registers):
                pair = [builder.extract_value(v, i) if isinstance(t, TileType) else v for v, t in zip(args, sig.args, strict=True)]
                result = divide(builder, *pair) if instruction == "fdiv" else getattr(builder, instruction)(*pair)
                value = builder.insert_value(value, result, i)
            return value

        return tiles[0](*kinds), codegen

    nb.binary(function, typer)


for _function, _instruction in ((operator.add, "fadd"), (operator.sub, "fsub"), (operator.mul, "fmul"), (operator.truediv, "fdiv"),
                                (operator.iadd, "fadd"), (operator.isub, "fsub"), (operator.imul, "fmul"),
                                (operator.itruediv, "fdiv")):
    _arithmetic(_function, _instruction)


def _negative(value: Any) -> Any:
    if not isinstance(value, (TileType, InFlightType)):
        return None
    tile = settled(value, "'-'")

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        result = nb.ir.Constant(tile.machine, nb.ir.Undefined)
        for i in range(tile.registers):
            minus = builder.fsub(nb.ir.Constant(nb.f32, -0.0), builder.extract_value(args[0], i))
            result = builder.insert_value(result, minus, i)
        return result

    return tile(tile), codegen


nb.binary(operator.neg, _negative)
