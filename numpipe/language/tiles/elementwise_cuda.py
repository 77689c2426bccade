"""Arithmetic, comparisons and choices of register tiles on the GPU: register by register, nothing is moved between lanes."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...arch.dtypes import BOOL, FLOAT32, HALVES, INT32
from ...core import arith
from ...core import numba as nb
from ...core.approximate_cuda import divide
from ...core.arith_cuda import compare, convert, kind_of, kinds_of, libdevice, type_of
from ...core.arith_cuda import operand as number_in
from ...core.inert_cuda import InertType
from ...core.op import cuda_meaning, immediate
from . import elementwise as source
from .layouts import COLUMN, EITHER, ROW, Form, lanes_across, places, sources, turned, vector_of
from .refs_cuda import AllType
from .tile import check_form
from .tile_cuda import InFlightType, TileType, as_dtype, assembled, floats, packed, registers, settled, undefined

Emit = Callable[..., Any]
"""(builder, dtype, *elements) -> element; of 16 bits the elements are float32, and dtype is that"""
Packed = Callable[..., Any]
"""(builder, dtype, *registers) -> register, of two elements of 16 bits each"""


def is_tile(ty: Any) -> bool:
    """Whether a value of this type is a register tile, in flight or not."""
    return isinstance(ty, (TileType, InFlightType))


def form_of(ty: Any, symbol: str) -> source.Operand | None:
    """`elementwise.form_of` of a value of this type."""
    return settled(ty, f"'{symbol}'").form if is_tile(ty) else kind_of(ty)


def parameter(ty: Any, dtype: np.dtype) -> Any:
    """The type in which an operation takes an operand: Numba converts numbers, but float16 is converted by `number_in`."""
    if is_tile(ty) or isinstance(ty, InertType):
        return ty
    if dtype in HALVES:
        return nb.unliteral(ty) if isinstance(ty, nb.types.Float) else nb.types.float32
    return type_of(dtype) if kind_of(ty) is not bool and nb.unliteral(ty) != nb.types.float16 else nb.unliteral(ty)


def elements(context: Any, builder: Any, ty: Any, value: Any, made: source.Plan) -> list[Any]:
    """An operand's elements, one for each element of the result: a number is the same in all."""
    form = made.result
    if made.computed in HALVES:
        return floats(builder, made.computed, pairs(context, builder, ty, value, made))
    if not isinstance(ty, TileType):
        number = (value if made.computed == BOOL else number_in(context, builder, value, ty, made.computed))
        return [number] * len(places(form.shape, form.layout))
    have = registers(builder, ty, value)
    return [have[i] for i in sources(form.shape, form.layout, ty.shape, ty.layout)]


def pairs(context: Any, builder: Any, ty: Any, value: Any, made: source.Plan) -> list[Any]:
    """An operand of 16 bits: registers of two elements each, as the result has them."""
    form = made.result
    if not isinstance(ty, TileType):
        return [_twice(context, builder, value, ty, made.computed)] * (len(places(form.shape, form.layout)) // 2)
    have, from_ = registers(builder, ty, value), sources(form.shape, form.layout, ty.shape, ty.layout)
    return [_joined(builder, have, low, high) for low, high in zip(from_[::2], from_[1::2], strict=True)]


def _twice(context: Any, builder: Any, value: Any, ty: Any, dtype: np.dtype) -> Any:
    """A number in both halves of a register, rounded once to float16, to bfloat16 through float32, as ml_dtypes does."""
    if dtype == np.float16:
        half = builder.zext(convert(context, builder, value, ty, nb.types.float16), nb.i32)
        return builder.or_(half, builder.shl(half, nb.const(16)))
    number = number_in(context, builder, value, ty, FLOAT32)
    return packed(builder, dtype, number, number)


def _joined(builder: Any, have: list[Any], low: int, high: int) -> Any:
    """A register of two elements that may lie in different registers, or be the same one: a row's, along a column."""
    if low % 2 == 0 and high == low + 1:
        return have[low // 2]
    first = builder.lshr(have[low // 2], nb.const(16)) if low % 2 else builder.and_(have[low // 2], nb.const(0xffff))
    second = builder.and_(have[high // 2], nb.const(-0x10000)) if high % 2 else builder.shl(have[high // 2], nb.const(16))
    return builder.or_(first, second)


def emitted(made: source.Plan, emit: Emit, by_pairs: Packed | None = None) -> Any:
    """Code of an operation: `emit` on the elements of all operands, or `by_pairs` on those of 16 bits."""
    tile, half = TileType.of(made.result), made.computed in HALVES
    inner = FLOAT32 if half else made.computed

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        if any(isinstance(ty, InertType) for ty in sig.args):  # in the memory role, where a tile is a type without data
            return undefined(tile)
        if half and by_pairs is not None:
            given = [pairs(context, builder, ty, value, made) for ty, value in zip(sig.args, args, strict=True)]
            return assembled(builder, tile, [by_pairs(builder, made.computed, *parts) for parts in zip(*given, strict=True)])
        operands = [elements(context, builder, ty, value, made) for ty, value in zip(sig.args, args, strict=True)]
        found = [emit(builder, inner, *parts) for parts in zip(*operands, strict=True)]
        if tile.dtype in HALVES:
            found = [packed(builder, tile.dtype, *two) for two in zip(found[::2], found[1::2], strict=True)]
        return assembled(builder, tile, found)

    return codegen


def elementwise(symbol: str, types: Sequence[Any], emit: Emit, *, takes: str, compares: bool = False,
                literals: int = 0, by_pairs: Packed | None = None) -> tuple[Any, Any] | None:
    """(signature, code) of an operation on tiles and numbers; None where there is no tile, or something else."""
    if not any(is_tile(ty) for ty in types):
        return None
    kinds = kinds_of(types, literals)
    forms = [form_of(ty, symbol) if is_tile(ty) else kind for ty, kind in zip(types, kinds, strict=True)]
    known = [form for form, ty in zip(forms, types, strict=True) if not isinstance(ty, InertType)]
    if any(form is None for form in known):
        return None
    made = source.plan(symbol, known, takes=takes, compares=compares)
    return TileType.of(made.result)(*[parameter(ty, made.computed) for ty in types]), emitted(made, emit, by_pairs)


# ---- operators
def _float_or_int(floats: str, integers: str) -> Emit:
    def emit(builder: Any, dtype: np.dtype, a: Any, b: Any) -> Any:
        return getattr(builder, floats if dtype == FLOAT32 else integers)(a, b)

    return emit


def _divided(builder: Any, _dtype: np.dtype, a: Any, b: Any) -> Any:
    return divide(builder, a, b)


def two_at_once(instruction: str) -> Packed:
    """An instruction on two elements of 16 bits: ``add.rn.f16x2``. Rounded as it stands, it is fused with no other."""
    def emit(builder: Any, dtype: np.dtype, *operands: Any) -> Any:
        text = f"{instruction}.{'f16x2' if dtype == np.float16 else 'bf16x2'} "
        text += ", ".join(f"${i}" for i in range(1 + len(operands))) + ";"
        return builder.call(nb.pure_asm(nb.i32, [nb.i32] * len(operands), text, "=r" + ",r" * len(operands)), list(operands))

    return emit


BY_PAIRS: dict[str, Packed] = {name: two_at_once(f"{name}.rn") for name in ("add", "sub", "mul")}
_EMIT: dict[str, Emit] = {
    "add": _float_or_int("fadd", "add"), "sub": _float_or_int("fsub", "sub"), "mul": _float_or_int("fmul", "mul"),
    "truediv": _divided, "and_": _float_or_int("", "and_"), "or_": _float_or_int("", "or_"), "xor": _float_or_int("", "xor"),
    "lshift": _float_or_int("", "shl"), "rshift": _float_or_int("", "ashr"),
}


def _compared(symbol: str) -> Emit:
    found = compare(symbol)

    def emit(builder: Any, dtype: np.dtype, a: Any, b: Any) -> Any:
        return found(builder, dtype, a, b) if dtype != BOOL else builder.icmp_unsigned(symbol, a, b)

    return emit


def _operator(function: Any, symbol: str, emit: Emit, takes: str, compares: bool, by_pairs: Packed | None = None) -> None:
    nb.binary(function, lambda left, right: elementwise(symbol, (left, right), emit, takes=takes, compares=compares,
                                                        by_pairs=by_pairs), literals=True)


for _name, (_symbol, _, _takes) in source.BINARY.items():
    _operator(getattr(operator, _name), _symbol, _EMIT[_name], _takes, False, BY_PAIRS.get(_name))
    _operator(getattr(operator, f"i{_name.rstrip('_')}"), _symbol, _EMIT[_name], _takes, False, BY_PAIRS.get(_name))
for _name, (_symbol, _) in source.COMPARISONS.items():
    _operator(getattr(operator, _name), _symbol, _compared(_symbol), "fhib" if _name in ("eq", "ne") else "fhi", True)


def _negative(builder: Any, dtype: np.dtype, a: Any) -> Any:
    return builder.fsub(nb.ir.Constant(nb.f32, -0.0), a) if dtype == FLOAT32 else builder.sub(nb.const(0), a)


def _magnitude(builder: Any, dtype: np.dtype, a: Any) -> Any:
    if dtype == FLOAT32:
        return libdevice(builder, "fabs", a)
    return builder.select(builder.icmp_signed("<", a, nb.const(0)), builder.sub(nb.const(0), a), a)


def _unary(function: Any, symbol: str, emit: Emit, takes: str, by_pairs: Packed | None = None) -> None:
    nb.binary(function, lambda value: elementwise(symbol, (value,), emit, takes=takes, by_pairs=by_pairs))


_unary(operator.neg, "-", _negative, "fhi", lambda builder, dtype, a: builder.xor(a, nb.const(-0x7fff8000)))
_unary(abs, "abs", _magnitude, "fhi", lambda builder, dtype, a: builder.and_(a, nb.const(0x7fff7fff)))
_unary(operator.invert, "~", lambda builder, dtype, a: builder.xor(a, nb.const(-1, a.type)), "ib")


def _same(value: Any) -> Any:
    return None if not is_tile(value) else (settled(value, "'+'")(value), lambda context, builder, sig, args: args[0])


nb.binary(operator.pos, _same)


def _power(tile: Any, n: Any) -> Any:
    if not is_tile(tile):
        return None
    count = arith.exponent(n.literal_value)
    kind = settled(tile, "'**'")
    made = source.plan("**", (kind.form,), takes="fhi")

    def emit(builder: Any, dtype: np.dtype, x: Any) -> Any:
        return raised(builder, dtype, x, _EMIT["mul"], nb.ir.Constant(x.type, 1))

    def by_pairs(builder: Any, dtype: np.dtype, x: Any) -> Any:
        one = nb.ir.Constant(nb.f32, 1)
        return raised(builder, dtype, x, BY_PAIRS["mul"], packed(builder, dtype, one, one))

    def raised(builder: Any, dtype: np.dtype, x: Any, product: Any, one: Any) -> Any:
        if not count:
            return one
        result = x
        for bit in f"{count:b}"[1:]:
            result = product(builder, dtype, result, result)
            result = product(builder, dtype, result, x) if bit == "1" else result
        return result
    context, builder, args = yield kind(kind, n)
    return emitted(made, emit, by_pairs)(context, builder, kind(kind), args[:1])


nb.binary(operator.pow, _power, literals=True)


# ---- functions of two, and choices
def _extreme(operation: Any, name: str, symbol: str, instruction: str) -> None:
    def emit(builder: Any, dtype: np.dtype, a: Any, b: Any) -> Any:
        if dtype == FLOAT32:  # NaN comes through, as in NumPy
            text = f"{instruction}.NaN.f32 $0, $1, $2;"
            return builder.call(nb.pure_asm(nb.f32, [nb.f32, nb.f32], text, "=f,f,f"), [a, b])
        return builder.select(compare(symbol)(builder, dtype, a, b), a, b)

    @cuda_meaning(operation)
    def typer(_context: Any, a: Any, b: Any, *literals: Any) -> Any:
        return evaluated(name, (a, b), emit, literals, takes="fhi", by_pairs=two_at_once(f"{instruction}.NaN"))


def _without(codegen: Any, literals: Sequence[Any]) -> Any:
    """Code of an operation that ignores the arguments that say which operands are float literals."""
    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        count = len(sig.args) - len(literals)
        return codegen(context, builder, sig.return_type(*sig.args[:count]), args[:count])

    return code if literals else codegen


def evaluated(name: str, types: Sequence[Any], emit: Emit, literals: Sequence[Any], *, takes: str, by_pairs: Packed | None = None,
              check: Callable[[np.dtype], None] = source.any_number, compares: bool = False) -> tuple[Any, Any]:
    """(signature, code) of a function of tiles and numbers, or of numbers alone; `literals`: as `arith`'s operations have them."""
    mask = nb.literal(literals[0]) if literals else 0
    found = elementwise(name, types, emit, takes=takes, compares=compares, literals=mask, by_pairs=by_pairs)
    if found is not None:
        return found[0].return_type(*found[0].args, *literals), _without(found[1], literals)
    inert = next((ty for ty in types if isinstance(ty, InertType)), None)
    if inert is not None:
        return inert(*types, *literals), lambda context, builder, sig, args: nb.nothing(context)
    kinds = kinds_of(types, *literals)
    if any(kind is None for kind in kinds):
        raise source.not_computed(name, " and ".join(str(nb.unliteral(ty)) for ty in types))
    dtype = arith.common(*kinds)
    check(dtype)
    of = type_of(dtype)
    result = nb.types.boolean if compares else of

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        values = [number_in(context, builder, value, ty, dtype) for value, ty in zip(args[:len(types)], sig.args, strict=False)]
        return emit(builder, dtype, *values)

    return result(*[of if nb.unliteral(ty) != nb.types.float16 else ty for ty in types], *literals), codegen


_extreme(source.maximum, "np.maximum", ">", "max")
_extreme(source.minimum, "np.minimum", "<", "min")


def _chosen_of_two(builder: Any, low: Any, high: Any, one: Any, other: Any) -> Any:
    """Each of two elements of a register by a mask of its own."""
    first, second = builder.select(low, one, other), builder.select(high, one, other)
    return builder.or_(builder.and_(first, nb.const(0xffff)), builder.and_(second, nb.const(-0x10000)))


@cuda_meaning(source.where)
def _where(_context: Any, mask: Any, x: Any, y: Any, *literals: Any) -> Any:
    types = (mask, x, y)
    inert = [ty for ty in types if isinstance(ty, InertType)]
    if inert and not any(is_tile(ty) for ty in types):
        yield inert[0](*types, *literals)
        return None
    kinds: Any = kinds_of(types, *literals)
    forms = [form_of(ty, "np.where") if is_tile(ty) else bool if isinstance(ty, InertType) and ty is mask else
             INT32 if isinstance(ty, InertType) else kind for ty, kind in zip(types, kinds, strict=True)]
    source.check_where(forms[0], forms[1:], ", ".join(str(nb.unliteral(ty)) for ty in types))
    if not any(isinstance(form, Form) for form in forms):
        dtype = arith.common(*forms[1:])
        result = type_of(dtype)

        def chosen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            values = [convert(context, builder, value, ty, result) for value, ty in zip(args[1:3], sig.args[1:3], strict=True)]
            return builder.select(args[0], *values)

        return result(nb.types.boolean, result, result, *literals), chosen
    made = source.plan_where(forms[0], forms[1:])
    tile = TileType.of(made.result)
    sig = tile(mask, *[parameter(ty, made.computed) for ty in (x, y)], *literals)
    context, builder, args = yield sig
    if inert:
        return undefined(tile)
    by = source.Plan(BOOL, made.result)
    masks = elements(context, builder, sig.args[0], args[0], by)
    if made.computed in HALVES:
        ones, others = (pairs(context, builder, ty, value, made) for ty, value in zip(sig.args[1:3], args[1:3], strict=True))
        return assembled(builder, tile, [_chosen_of_two(builder, *parts) for parts in zip(
            masks[::2], masks[1::2], ones, others, strict=True)])
    ones, others = (elements(context, builder, ty, value, made) for ty, value in zip(sig.args[1:3], args[1:3], strict=True))
    return assembled(builder, tile, [builder.select(*parts) for parts in zip(masks, ones, others, strict=True)])


# ---- tiles of numbers, and another dimension
@cuda_meaning(source.full)
def _full(_context: Any, shape: Any, value: Any, dtype: Any, *literals: Any) -> Any:
    kind = INT32 if isinstance(value, InertType) else kinds_of((value,))[0]
    form = source.full_form(immediate("full", "shape", shape), kind, as_dtype(dtype))
    tile = TileType.of(form)
    sig = tile(shape, parameter(value, form.dtype), dtype, *literals)
    context, builder, args = yield sig
    if isinstance(value, InertType):
        return undefined(tile)
    if form.dtype in HALVES:
        return assembled(builder, tile, [_twice(context, builder, args[1], sig.args[1], form.dtype)] * tile.registers)
    number = (args[1] if form.dtype == BOOL else number_in(context, builder, args[1], sig.args[1], form.dtype))
    return assembled(builder, tile, [number] * tile.registers)


def lane_place(builder: Any) -> tuple[Any, Any]:
    """(row, column) of a lane's first element: 16 w + g and 2 t for lane 4 g + t of warp w."""
    thread = builder.and_(nb.thread_index(builder), nb.const(127))
    row = builder.add(builder.lshr(builder.and_(thread, nb.const(96)), nb.const(1)),
                      builder.lshr(builder.and_(thread, nb.const(31)), nb.const(2)))
    return row, builder.shl(builder.and_(thread, nb.const(3)), nb.const(1))


def place_of(builder: Any, tile: TileType) -> tuple[Any, Any]:
    """(row, column) that a lane has as its own in a tile of this layout."""
    vector = vector_of(tile.layout)
    if not vector:
        return lane_place(builder)
    shift = lanes_across(tile.shape[1], vector).bit_length() - 1
    thread = builder.and_(nb.thread_index(builder), nb.const(127))
    lane = builder.and_(thread, nb.const(31))
    row = builder.add(builder.lshr(builder.and_(thread, nb.const(96)), nb.const(1)), builder.lshr(lane, nb.const(shift)))
    return row, builder.mul(builder.and_(lane, nb.const((1 << shift) - 1)), nb.const(vector))


@cuda_meaning(source.iota)
def _iota(_context: Any, shape: Any, axis: Any) -> Any:
    form = check_form(immediate("iota", "shape", shape), INT32, "iota")
    along = source.check_axis(form, nb.literal(axis) if not isinstance(axis, nb.types.Omitted) else axis.value, "iota")
    tile = TileType.of(form)
    _, builder, _ = yield tile(shape, axis)
    row, column = lane_place(builder)

    def index(place: tuple[int | None, int | None], by_row: bool) -> Any:
        at = place[0] if by_row else place[1]
        return nb.const(0) if at is None else builder.add(row if by_row else column, nb.const(at))

    flat = len(form.shape) == 1
    return assembled(builder, tile, [index(p, p[1] is None if flat else along == 0) for p in places(form.shape, form.layout)])


def _expanded(tile: Any, index: Any) -> Any:
    if not is_tile(tile):
        return None
    kind = settled(tile, "tile[…]")
    parts = tuple(index) if isinstance(index, nb.types.BaseTuple) else (index,)
    written = source.expansion([":" if isinstance(p, AllType) else "None" if isinstance(p, nb.types.NoneType) else str(p)
                                for p in parts])
    shape, layout = turned(kind.form, written)
    result = TileType(shape, kind.dtype, layout)
    first = TileType(kind.shape, kind.dtype, ROW).registers if kind.layout == EITHER and layout == COLUMN else 0
    _, builder, args = yield result(kind, index)
    return assembled(builder, result, registers(builder, kind, args[0])[first:first + result.registers])


nb.binary(operator.getitem, _expanded)
