"""Elementwise arithmetic, comparisons and selection of register tiles on the GPU: register by
register, with no data movement between lanes."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...arch.dtypes import BOOL, FLOAT32, HALVES, INTEGERS, packing
from ...core import arith
from ...core import numba as nb
from ...core.arith_cuda import EMIT, absolute, compare, convert, kind_of, negative, type_of
from ...core.arith_cuda import operand as number_in
from ...core.formula_cuda import Value
from ...core.inert import first_inert
from ...core.inert_cuda import InertType
from ...core.numba import BOOLEAN, F16, F32
from ...core.op import cuda_meaning
from . import elementwise as source
from .layout_names import EITHER
from .layouts import Form, laid, sources, ways
from .tile import TileLike
from .tile_cuda import (
    TileType,
    assembled,
    floats,
    in_pairs,
    narrowed,
    packed,
    registers,
    undefined,
    wide,
)

Emit = Callable
"""(builder, dtype, *elements) -> element; 16-bit elements are passed as float32, and dtype is
float32"""
Packed = Callable
"""(builder, dtype, *registers) -> register, each of two 16-bit elements"""


def parameter(ty: Any, dtype: np.dtype, result: Form) -> Any:
    """Return the type in which an operation takes an operand: Numba converts numbers, but
    `number_in` converts float16, and `conversions_cuda` moves tiles."""
    if isinstance(ty, TileLike):
        form = laid(ty.form, result.shape, result.layout)
        return ty if form == ty.form else TileType(form)
    if isinstance(ty, InertType):
        return ty
    if (
        dtype in INTEGERS
        and isinstance(ty, nb.IntegerLiteral)
        and not arith.holds(dtype, ty.literal_value)
    ):
        raise arith.misfit(ty.literal_value, dtype)
    if dtype in HALVES:
        return nb.unliteral(ty) if isinstance(ty, nb.Float) else F32
    return (
        type_of(dtype) if kind_of(ty) is not bool and nb.unliteral(ty) != F16 else nb.unliteral(ty)
    )


def elements(builder: Any, ty: Any, value: Any, plan: source.Plan) -> list:
    """Return an operand's elements, one for each element of the result. A number is the same for
    all; 8-bit integers are extended to 32 bits."""
    form = plan.result
    if plan.computed in HALVES:
        return floats(builder, plan.computed, pairs(builder, ty, value, plan))
    if not isinstance(ty, TileType):
        number = value if plan.computed == BOOL else number_in(builder, value, ty, plan.computed)
        if plan.computed in INTEGERS and plan.computed.itemsize == 1:
            number = (builder.zext if plan.computed.kind == "u" else builder.sext)(number, nb.i32)
        return [number] * len(form.places)
    have = registers(builder, ty, value)
    if ty.dtype in INTEGERS:
        have = wide(builder, ty.dtype, have)
    return [have[i] for i in sources(form.shape, form.layout, ty.shape, ty.layout)]


def pairs(builder: Any, ty: Any, value: Any, plan: source.Plan) -> list:
    """Return a 16-bit operand as registers of two elements each, as in the result; a number is
    rounded once."""
    form = plan.result
    if not isinstance(ty, TileType):
        if plan.computed == np.float16:
            half = builder.zext(convert(builder, value, ty, F16))
            twice = builder.or_(half, builder.shl(half, 16))
        else:  # bfloat16: through float32, as in ml_dtypes
            number = number_in(builder, value, ty, FLOAT32)
            twice = packed(builder, plan.computed, number, number)
        return [twice] * (len(form.places) // 2)
    have = registers(builder, ty, value)
    from_ = sources(form.shape, form.layout, ty.shape, ty.layout)
    return [_joined(builder, have, *two) for two in in_pairs(from_)]


def _joined(builder: Any, have: list, low: int, high: int) -> Any:
    """Return a register with two elements. They may come from different registers, or be the same
    element, for a row's value along a column."""
    if low % 2 == 0 and high == low + 1:
        return have[low // 2]
    first = builder.lshr(have[low // 2], 16) if low % 2 else builder.and_(have[low // 2], 0xFFFF)
    second = (
        builder.and_(have[high // 2], -0x10000) if high % 2 else builder.shl(have[high // 2], 16)
    )
    return builder.or_(first, second)


def signature(plan: source.Plan, types: Sequence) -> tuple[Any, list]:
    """Return (type of the result, types of the parameters)."""
    if plan.result.shape:
        return TileType(plan.result, plan.steps), [
            parameter(ty, plan.computed, plan.result) for ty in types
        ]
    of = type_of(plan.computed)
    return type_of(plan.result.dtype), [of if nb.unliteral(ty) != F16 else ty for ty in types]


def emitted(
    builder: Any,
    plan: source.Plan,
    types: Sequence,
    args: Sequence,
    emit: Emit,
    by_pairs: Packed | None = None,
) -> Any:
    """Emit an operation: `emit` on each element, or `by_pairs` on registers of two 16-bit
    elements."""
    if not plan.result.shape:
        return emit(
            builder,
            plan.computed,
            *[
                number_in(builder, value, ty, plan.computed)
                for value, ty in zip(args, types, strict=True)
            ],
        )
    tile, half = TileType(plan.result, plan.steps), plan.computed in HALVES
    if plan.inert:
        return undefined(tile)
    if half and by_pairs is not None:
        packs = [pairs(builder, ty, value, plan) for ty, value in zip(types, args, strict=True)]
        made = [by_pairs(builder, plan.computed, *parts) for parts in zip(*packs, strict=True)]
        if tile.dtype == BOOL:
            made = [bit for two in made for bit in two]
        return assembled(builder, tile, made)
    operands = [elements(builder, ty, value, plan) for ty, value in zip(types, args, strict=True)]
    of = plan.computed if plan.computed == BOOL else packing(plan.computed).wide
    found = [emit(builder, of, *parts) for parts in zip(*operands, strict=True)]
    return assembled(builder, tile, narrowed(builder, tile.dtype, found))


def typed(
    plan: source.Plan | None,
    types: Sequence,
    emit: Emit,
    by_pairs: Packed | None = None,
    literals: Sequence = (),
) -> Any:
    """Type and emit a planned operation; `literals` says which operands are float literals, and
    does not affect the generated code."""
    if plan is None:
        yield first_inert(types)(*types, *literals)
        return None
    result, parameters = signature(plan, types)
    builder, args = yield result(*parameters, *literals)
    return emitted(builder, plan, parameters, args[: len(types)], emit, by_pairs)


# ---- operators
def two_at_once(instruction: str) -> Packed:
    """Return a function that emits an instruction on two 16-bit elements at once, such as
    ``add.rn.f16x2``, which is never fused."""

    def emit(builder: Any, dtype: np.dtype, *operands: Any) -> Any:
        text = f"{instruction}.{'f16x2' if dtype == np.float16 else 'bf16x2'} "
        text += ", ".join(f"${i}" for i in range(1 + len(operands))) + ";"
        return builder.pure_asm(nb.i32, list(operands), text)

    return emit


BY_PAIRS: dict[str, Packed] = {name: two_at_once(f"{name}.rn") for name in ("add", "sub", "mul")}


def _operator(
    function: Any, known: source.Operator, emit: Emit, by_pairs: Packed | None = None
) -> None:
    def typer(*types: Any) -> Any:
        plan = known.plan(types)
        return None if plan is None else typed(plan, types, emit, by_pairs)

    nb.overload(function, typer, literals=True)


for _name, _known in source.BINARY.items():
    for _function in (getattr(operator, _name), getattr(operator, f"i{_name.rstrip('_')}")):
        _operator(_function, _known, EMIT[_name], BY_PAIRS.get(_name))
for _name, _known in source.COMPARISONS.items():
    _operator(getattr(operator, _name), _known, compare(_known.symbol))


_operator(
    operator.neg,
    source.UNARY["neg"],
    negative,
    lambda builder, dtype, a: builder.xor(a, -0x7FFF8000),
)
_operator(
    abs,
    source.UNARY["abs"],
    absolute,
    lambda builder, dtype, a: builder.and_(a, 0x7FFF7FFF),
)
_operator(
    operator.invert,
    source.UNARY["invert"],
    lambda builder, dtype, a: builder.xor(a, -1),
)


nb.overload(
    operator.pos,
    lambda value: (
        (value.settled("'+'")(value), lambda builder, args: args[0])
        if isinstance(value, TileLike)
        else None
    ),
)


def _power(tile: Any, n: Any) -> Any:
    if not isinstance(tile, TileLike):
        return None
    count, plan = arith.exponent(n.literal_value), source.POWER.plan((tile,))
    assert plan is not None

    def emit(builder: Any, dtype: np.dtype, x: Any) -> Any:
        return (
            arith.raised(x, count, functools.partial(EMIT["mul"], builder, dtype))
            if count
            else nb.ir.Constant(x.type, 1)
        )

    def by_pairs(builder: Any, dtype: np.dtype, x: Any) -> Any:
        one = nb.ir.Constant(nb.f32, 1)
        product = functools.partial(BY_PAIRS["mul"], builder, dtype)
        return arith.raised(x, count, product) if count else packed(builder, dtype, one, one)

    builder, args = yield TileType(plan.result)(tile, n)
    return emitted(builder, plan, (tile,), args[:1], emit, by_pairs)


nb.overload(operator.pow, _power, literals=True)


# ---- choices
@cuda_meaning(source.where)
def _where(mask: Any, x: Any, y: Any, *literals: Any) -> Any:
    plan = source.plan_where((mask, x, y), *map(nb.literal, literals))
    if plan is None:
        yield first_inert((mask, x, y))
        return None
    if not plan.result.shape:
        of = type_of(plan.computed)
        builder, args = yield of(BOOLEAN, of, of, *literals)
        return builder.select(*args[:3])
    tile = TileType(plan.result)
    kinds = (BOOL, plan.computed, plan.computed)
    types = [
        parameter(ty, of, plan.result) if isinstance(ty, TileLike) or of != BOOL else ty
        for ty, of in zip((mask, x, y), kinds, strict=True)
    ]
    builder, args = yield tile(*types, *literals)
    if plan.inert:
        return undefined(tile)
    masks = elements(builder, types[0], args[0], replace(plan, computed=BOOL))
    parts = pairs if plan.computed in HALVES else elements
    ones, others = (
        parts(builder, ty, value, plan) for ty, value in zip(types[1:], args[1:3], strict=True)
    )
    if plan.computed not in HALVES:
        found = [builder.select(*three) for three in zip(masks, ones, others, strict=True)]
        return assembled(builder, tile, narrowed(builder, tile.dtype, found))
    chosen, zero = [], nb.const(0)
    for low, high, one, other in zip(masks[::2], masks[1::2], ones, others, strict=True):
        # depends on the masks alone, so that registers with the same masks share it
        bits = builder.or_(builder.select(low, 0xFFFF, zero), builder.select(high, -0x10000, zero))
        chosen.append(builder.xor(other, builder.and_(builder.xor(one, other), bits)))
    return assembled(builder, tile, chosen)


# ---- tiles of numbers
@cuda_meaning(source.full)
def _full(shape: Any, value: Any, dtype: Any, *literals: Any) -> Any:
    form = source.full_form(shape, value, dtype)
    tile = TileType(form)
    sig = tile(shape, parameter(value, form.dtype, form), dtype, *literals)
    builder, args = yield sig
    if isinstance(value, InertType):
        return undefined(tile)
    parts = (pairs if form.dtype in HALVES else elements)(
        builder, sig.args[1], args[1], source.Plan(form.dtype, form)
    )
    return assembled(
        builder, tile, parts if form.dtype in HALVES else narrowed(builder, form.dtype, parts)
    )


def each_way(form: Form) -> list[Form]:
    """Return the form in each of the layouts in which a deferred tile has its elements."""
    layouts = ways(form.shape) if form.layout == EITHER else (form.layout,)
    return [replace(form, layout=layout) for layout in layouts]


def place_of(builder: Any, tile: TileType) -> tuple[Any, Any]:
    """Return (row, column) of the first element that a lane has in a tile of this layout."""
    row, column = tile.form.record.own(Value(builder, builder.lane_index()))
    return row.value, column.value


def inside_of(builder: Any, form: Form) -> list:
    """Return, of each element of a lane, whether it is inside the tile; None for those that are in
    every lane."""
    own, found = place_of(builder, TileType(form)), []
    for place in form.places:
        tests = [
            builder.icmp_unsigned("<", builder.add(own[axis], place[axis] or 0), size)
            for axis, (beyond, size) in enumerate(
                zip(form.outside(place), (form.shape[0], form.shape[-1]), strict=True)
            )
            if beyond
        ]
        found.append(functools.reduce(builder.and_, tests) if tests else None)
    return found


@cuda_meaning(source.iota)
def _iota(shape: Any, axis: Any) -> Any:
    form, along = source.iota_form(shape, axis)
    tile = TileType(form)
    builder, _ = yield tile
    found = []
    for each in each_way(form):
        own = place_of(builder, TileType(each))
        for place in each.places:
            axis = (1 if place[0] is None else 0) if len(form.shape) == 1 else along
            at = place[axis]
            found.append(nb.const(0) if at is None else builder.add(own[axis], at))
    return assembled(builder, tile, found)


@cuda_meaning(source.positions)
def _positions(tile: Any, size: Any) -> Any:
    form = tile.form.settled()
    result = TileType(form, tuple(int(extent > 1) for extent in form.shape))
    _, args = yield result(TileType(form), size)
    return args[0]
