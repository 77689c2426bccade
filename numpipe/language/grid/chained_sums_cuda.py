"""Sums over the CTAs before this one, on the GPU: words of 64 bits in global memory."""

from __future__ import annotations

from typing import Any

from ...core import numba as nb
from ...core.formula_cuda import Value
from ...core.op import cuda_meaning
from ...plan.specs import FLAGS
from ..tiles.refs_cuda import gmem_value
from ..tiles.tile_cuda import TileType, assembled
from . import chained_sums as source

I32 = nb.types.int32
_STORE = """{ .reg .b64 word; mov.b64 word, {$1, $2}; st.relaxed.gpu.global.b64 [$0], word; }"""
# bytes from a lane's first word to its others, and how many words of the groups come before each
_OWN = {0: 0, 8: 1, 16 * source.WORDS: source.GROUP, 16 * source.WORDS + 8: source.GROUP + 1}


def _await() -> str:
    """Return the PTX that waits for a lane's words: $0 … $4 the sums, $5 the address of the first
    word, $6 how many words there are from it on, $7 the launch, $8 the address of the sum before
    the group, $9 whether to wait for it."""
    places = [*(f"$5+{offset}" for offset in _OWN), "$8"]
    every = range(len(places))
    begin = [f"setp.gt.s32 p{i}, $6, {before};" for i, before in enumerate(_OWN.values())]
    return " ".join(
        ["{ .reg .pred p<5>; .reg .b32 of<5>; .reg .b64 word<5>; setp.ne.s32 p4, $9, 0;", *begin]
        + [f"mov.b32 ${i}, 0; mov.b32 of{i}, $7;" for i in every]
        + ["AGAIN:"]
        + [f"@p{i} ld.relaxed.gpu.global.b64 word{i}, [{places[i]}];" for i in every]
        + [f"@p{i} mov.b64 {{${i}, of{i}}}, word{i};" for i in every]
        + [f"setp.ne.b32 p{i}, of{i}, $7;" for i in every]
        + [f"@p{i} bra AGAIN;" for i in every]
        + ["}"]
    )


def _address(context: Any, builder: Any, work: Any, value: Any, word: Any) -> Any:
    """Return the address of a word."""
    of = Value(builder, word)
    offset = (of >> 2) * (4 * FLAGS) + of * 8 + 4 * FLAGS
    pointer = gmem_value(context, builder, work, value).pointer
    return builder.add(pointer, builder.sext(offset.value, nb.i64))


@cuda_meaning(source.launch_number)
def _launch_number(_context: Any, work: Any) -> Any:
    context, builder, args = yield I32(work)
    first = _address(context, builder, work, args[0], nb.const(0))
    text = "ld.relaxed.gpu.global.b32 $0, [$1+4]; add.s32 $0, $0, 1;"
    return nb.emit_asm(builder, nb.i32, [first], text, "=r,l,~{memory}")


@cuda_meaning(source.store)
def _store(_context: Any, work: Any, word: Any, value: Any, launch: Any) -> Any:
    context, builder, args = yield nb.types.void(work, I32, nb.types.float32, I32)
    address = _address(context, builder, work, args[0], args[1])
    nb.emit_asm(builder, nb.void, [address, *args[2:]], _STORE, "l,f,r,~{memory}")


@cuda_meaning(source.published)
def _published(
    _context: Any, work: Any, first: Any, count: Any, launch: Any, with_before: Any
) -> Any:
    result = TileType(source.FORM)
    context, builder, args = yield result(work, I32, I32, I32, nb.types.boolean)
    lane, zero = nb.lane_index(builder), nb.ir.Constant(nb.f32, 0.0)
    own = builder.shl(lane, nb.const(1))
    first, before = (
        _address(context, builder, work, args[0], builder.add(args[1], word))
        for word in (own, nb.const(source.GROUP))
    )
    later = builder.icmp_signed(">", args[1], nb.const(source.SLOT))
    waits = builder.and_(later, builder.icmp_signed("==", lane, nb.const(0)))
    operands = [first, builder.sub(args[2], own), args[3], before, builder.zext(waits, nb.i32)]
    five = nb.ir.LiteralStructType([nb.f32] * 5)
    constraints = "=&f," * 5 + "l,r,r,l,r,~{memory}"
    found = nb.emit_asm(builder, five, operands, _await(), constraints)
    *values, sums = (builder.extract_value(found, i) for i in range(5))
    values[0] = builder.fadd(values[0], builder.select(args[4], sums, zero))
    return assembled(builder, result, values)
