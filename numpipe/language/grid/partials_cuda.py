"""Partial sums on the GPU: 16-byte stores and loads of a lane's registers, and flags in global
memory."""

from __future__ import annotations

import itertools
import math
from typing import Any

from ...core import numba as nb
from ...core.numba import I32
from ...core.op import cuda_meaning
from ...intrinsics import memory, special
from ...plan.context_cuda import compute_number, tile_part
from ...plan.specs import FLAGS
from ..tiles.refs_cuda import GmemType
from ..tiles.tile_cuda import TileType, assembled, registers
from . import partials as source

PIECE = 16 * 128
"""Bytes between two consecutive float4 of a lane."""
_LANES = 232
"""Registers of a lane that its tile and the loads in flight may use together."""


@cuda_meaning(source.combine)
def _combine(acc: Any, part: Any, work: Any) -> Any:
    none = isinstance(work, nb.NoneType)
    source.check(acc, None if none else work)
    adds = not none and work.role.computes
    if adds:
        nb.returns(source.combined, (work, acc, part))
    builder, args = yield acc
    return (
        builder.apply(source.combined, (work, acc, part), (args[2], *args[:2])) if adds else args[0]
    )


def _slot(builder: Any, work: GmemType, args: Any) -> tuple[Any, Any]:
    """Return (the workspace's reference, the address of a slot in it)."""
    ref = builder.fields(work, args[0])
    offset = builder.mul(builder.sext(_own(builder, work, args[1]), nb.i64), _stride(builder, ref))
    return ref, builder.add(ref.pointer, offset)


def _own(builder: Any, work: GmemType, slot: Any) -> Any:
    """Return this CTA's slot among the slots that the CTAs of its cluster have for the same
    part."""
    size = math.prod(work.unit.cluster)
    if size == 1:
        return slot
    return builder.add(
        builder.mul(slot, size),
        builder.issue(special.cluster_rank),
    )


def _stride(builder: Any, ref: Any) -> Any:
    """Return the bytes from one slot of the workspace to the next."""
    return builder.shl(builder.extract_value(ref.strides, 0), 2)


def _step(builder: Any, work: GmemType, ref: Any) -> Any:
    """Return the bytes from a slot of this CTA to its next slot."""
    return builder.mul(_stride(builder, ref), math.prod(work.unit.cluster))


def _room(builder: Any, ref: Any, work: GmemType, tile: TileType, slot: Any) -> Any:
    """Return whether the workspace has this slot and it is large enough for the tile."""
    slots, size = builder.unpack_tuple(ref.shape)
    wanted = tile.shape[0] * tile.shape[1] * work.unit.tile_wgs + FLAGS
    return builder.and_(
        builder.icmp_unsigned("<", slot, slots), builder.icmp_signed(">=", size, wanted)
    )


def _pieces(builder: Any, work: GmemType, tile: TileType, args: Any, checked: bool = False) -> Any:
    """Return the address of this lane's first float4 in a slot. If `checked`, return an illegal
    address where the slot does not exist."""
    ref, address = _slot(builder, work, args)
    # An illegal address instead of `trap`: in a function with a trap, ptxas limits the compute role
    # to the 168 registers of the launch instead of 232, and tiles spill.
    if checked:
        # not 232, and tiles spill
        there = _room(builder, ref, work, tile, _own(builder, work, args[1]))
        address = builder.select(there, address, 0)
    part = builder.mul(
        tile_part(builder, work.unit, compute_number), 4 * tile.shape[0] * tile.shape[1]
    )
    return builder.add(address, builder.zext(builder.add(part, lane_offset(builder)), nb.i64))


def lane_offset(builder: Any) -> Any:
    """Return the offset in bytes from a warpgroup's first float4 to this lane's."""
    return builder.shl(builder.lane_index(), 4)


def add_pieces(
    builder: Any, total: list, space: str, first: Any, offset: int = 0, batch: int = 1
) -> None:
    """Add the float4s at `offset` bytes from `first` to a lane's registers, with `batch` loads in
    flight."""
    pieces = len(total) // 4
    for start in range(0, pieces, batch):
        loaded = [
            builder.emit_asm(
                [nb.f32] * 4,
                [first],
                f"ld.{space}.v4.f32 {{$0, $1, $2, $3}}, [$4+{offset + PIECE * piece}];",
            )
            for piece in range(start, min(start + batch, pieces))
        ]
        for register, value in enumerate(itertools.chain(*loaded), 4 * start):
            total[register] = builder.fadd(total[register], value)


def _flag(builder: Any, work: GmemType, args: Any) -> Any:
    """Return the address of this warpgroup's flag of a slot."""
    ref, address = _slot(builder, work, args)
    first = builder.sub(builder.extract_value(ref.shape, 1), FLAGS)
    word = builder.add(first, tile_part(builder, work.unit, compute_number))
    return builder.add(address, builder.shl(builder.sext(word, nb.i64), 2))


@cuda_meaning(source.write_partial)
def _write_partial(work: Any, slot: Any, tile: Any) -> Any:
    builder, args = yield nb.VOID(work, I32, tile)
    first = _pieces(builder, work, tile, args, checked=True)
    for piece in range(tile.registers // 4):
        values = [builder.extract_value(args[2], 4 * piece + i) for i in range(4)]
        builder.execute(
            [first, *values],
            f"st.global.v4.f32 [$0+{PIECE * piece}], {{$1, $2, $3, $4}};",
        )


@cuda_meaning(source.parts_together)
def _parts_together(work: Any, tile: Any) -> Any:
    yield I32
    return nb.const(source.together(work.unit, tile.shape))


@cuda_meaning(source.add_partials)
def _add_partials(work: Any, slot: Any, last: Any, tile: Any) -> Any:
    builder, args = yield tile(work, I32, I32, tile)
    total, parts = registers(builder, tile, args[3]), source.together(work.unit, tile.shape)
    first = _pieces(builder, work, tile, [args[0], args[1], args[3]])
    if parts == 1:
        add_pieces(
            builder,
            total,
            "global",
            first,
            batch=max(2, min(16, (_LANES - source.OTHERS - tile.registers) // 4 // 2 * 2)),
        )
        return assembled(builder, tile, total)
    down, found = _step(builder, work, builder.fields(work, args[0])), []
    for part in range(parts):  # parts that do not exist are loaded as zeros
        there = builder.zext(builder.icmp_signed(">=", builder.sub(args[1], part), args[2]))
        found += [
            _loaded_if(builder, there, first, PIECE * piece) for piece in range(tile.registers // 4)
        ]
        first = builder.sub(first, down)
    for number, value in enumerate(x for four in found for x in four):
        total[number % tile.registers] = builder.fadd(total[number % tile.registers], value)
    return assembled(builder, tile, total)


def _loaded_if(builder: Any, there: Any, address: Any, offset: int) -> list:
    """Return the four floats at an address, or zeros."""
    return builder.emit_asm(  # type: ignore[no-any-return]
        [nb.f32] * 4,
        [there, address],
        "{ .reg .pred there; setp.ne.b32 there, $4, 0; mov.f32 $0, 0f00000000; mov.f32 $1, "
        "0f00000000; "
        "mov.f32 $2, 0f00000000; mov.f32 $3, 0f00000000; "
        f"@there ld.global.v4.f32 {{$0, $1, $2, $3}}, [$5+{offset}]; }}",
        early=True,
    )


@cuda_meaning(source.signal)
def _signal(work: Any, slot: Any) -> Any:
    builder, args = yield nb.VOID(work, I32)
    flag = _flag(builder, work, args)
    builder.issue(memory.st_release_gpu_b32, flag, 1)


@cuda_meaning(source.await_signals)
def _await_signals(work: Any, first: Any, count: Any) -> Any:
    builder, args = yield nb.VOID(work, I32, I32)
    flag, ref = _flag(builder, work, args), builder.fields(work, args[0])
    builder.issue(
        memory.await_each_acquire_gpu_b32,
        flag,
        _step(builder, work, ref),
        builder.lane_index(),
        args[2],
    )
