"""Partial sums exchanged within a cluster on the GPU: 16 bytes a lane and st.async, shares chosen by the CTA's place."""

from __future__ import annotations

from typing import Any

from ...arch.dtypes import FLOAT32
from ...core import numba as nb
from ...core.op import cuda_meaning
from ...intrinsics import barrier, cluster
from ...plan.context_cuda import ContextType, cluster_place, compute_warpgroup
from ..memory.shared_cuda import BarriersType, barrier_address
from ..tiles.layouts import Form
from ..tiles.peers_cuda import rank
from ..tiles.tile_cuda import InFlightType, TileType, assembled, registers, undefined
from . import reduce_scatter as source
from .reduce_scatter import SumsPlan

I32 = nb.types.int32
_PIECE = 16 * 128
"""bytes between two float4 of a lane"""


class SumsType(nb.types.Type):  # type: ignore[misc]
    """An exchange: its plan in the type, the context in the value."""

    def __init__(self, context: ContextType, plan: SumsPlan) -> None:
        self.context, self.plan = context, plan
        super().__init__(name=f"sums({context}, {plan})")

    @property
    def share(self) -> TileType:
        return TileType(Form(self.plan.share, FLOAT32))

    def barrier(self, ready: bool) -> BarriersType:
        of = self.plan.ready if ready else self.plan.consumed
        return BarriersType(self.context, of, of.kind.shape)


nb.machine_model(SumsType, lambda ty: nb.i32.as_pointer())


@cuda_meaning(source.reduce_scatter)
def _reduce_scatter(typing_context: Any, np_: Any, site: Any, acc: Any, axis: Any) -> Any:
    name, unit = nb.literal(axis), np_.unit
    if not isinstance(acc, (TileType, InFlightType)):
        source.check(unit, name, None, str(nb.unliteral(acc)))
    tile = acc.settled("numpipe.combine")
    share = TileType(source.check(unit, name, tile.form, ""))
    alone, memory = unit.sizes[name] == 1, np_.role == "memory"
    sums = None if alone or memory else SumsType(np_, source.plan(unit, name, tile.shape, nb.literal(site)))
    if sums is not None:
        nb.returns(typing_context, source.scattered, (sums, tile))
    context, builder, args = yield share(np_, site, tile, axis)
    if sums is not None:
        return nb.call(context, builder, source.scattered, (sums, tile), (args[0], args[2]))[1]
    return args[2] if alone else undefined(share)


def _barrier_value(context: Any, builder: Any, made: BarriersType, np_: Any) -> Any:
    return nb.struct(context, builder, made, np=np_, first=nb.const(0))


nb.attribute(SumsType, "ready", lambda ty: ty.barrier(True), lambda c, b, ty, value: _barrier_value(c, b, ty.barrier(True), value))
nb.attribute(SumsType, "consumed", lambda ty: ty.barrier(False),
             lambda c, b, ty, value: _barrier_value(c, b, ty.barrier(False), value))
nb.constant_attributes(SumsType, I32, quarter=lambda ty: (ty.plan.size - 1) * ty.plan.region // 4)


def _pieces(builder: Any, sums: SumsType) -> Any:
    """Shared address of this lane's first float4 in the buffer of a warpgroup."""
    buffer = sums.plan.buffer
    own = builder.mul(compute_warpgroup(builder, sums.context.unit), nb.const(buffer.own))
    lane = builder.shl(builder.and_(nb.thread_index(builder), nb.const(127)), nb.const(4))
    return builder.add(builder.add(nb.smem(builder, buffer.base), own), lane)


def _shares(builder: Any, sums: SumsType, tile: TileType, value: Any) -> list[list[Any]]:
    """The registers of each CTA's share of the columns, those of the first CTA first."""
    found, size, blocks = registers(builder, tile, value), sums.plan.size, tile.shape[0] // 64
    width = tile.registers // blocks // size  # a block of 64 rows has its columns one after another
    return [[found[(block * size + share) * width + i] for block in range(blocks) for i in range(width)] for share in range(size)]


@cuda_meaning(source.send)
def _send(_context: Any, sums: Any, tile: Any) -> Any:
    plan, size = sums.plan, sums.plan.size
    context, builder, args = yield sums.share(sums, tile)
    place = cluster_place(builder, plan.cluster)
    own, shares = place[plan.along], _shares(builder, sums, tile, args[1])
    for bit in range((size - 1).bit_length()):  # turned round until the own share is the first: registers have no index
        turned = builder.trunc(builder.lshr(own, nb.const(bit)), nb.i1)
        shares = [[builder.select(turned, *pair) for pair in zip(shares[(i + (1 << bit)) % size], shares[i], strict=True)]
                  for i in range(size)]
    base = _pieces(builder, sums)
    made = sums.barrier(True)
    ready = barrier_address(context, builder, made, _barrier_value(context, builder, made, args[0]))
    for step in range(1, size):
        further = builder.urem(builder.add(own, nb.const(step)), nb.const(size))
        to = rank(builder, [further if axis == plan.along else at for axis, at in enumerate(place)], plan.cluster)
        buffer, there = (nb.call(context, builder, cluster.map_shared, (I32, I32), (address, to))[1] for address in (
            builder.add(base, nb.const((step - 1) * plan.region)), ready))
        for piece in range(len(shares[step]) // 4):
            nb.emit_asm(builder, nb.void, [buffer, there, *shares[step][4 * piece:4 * piece + 4]],
                        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 "
                        f"[$0+{_PIECE * piece}], {{$2, $3, $4, $5}}, [$1];", "r,r,f,f,f,f,~{memory}")
    return assembled(builder, sums.share, shares[0])


@cuda_meaning(source.add)
def _add(_context: Any, sums: Any, tile: Any) -> Any:
    plan, four = sums.plan, nb.ir.LiteralStructType([nb.f32] * 4)
    context, builder, args = yield tile(sums, tile)
    total, base = registers(builder, tile, args[1]), _pieces(builder, sums)
    for region in range(plan.size - 1):
        for piece in range(len(total) // 4):
            at = region * plan.region + _PIECE * piece
            values = nb.emit_asm(builder, four, [base], f"ld.shared.v4.f32 {{$0, $1, $2, $3}}, [$4+{at}];",
                                 "=f,=f,=f,=f,r,~{memory}")
            for i in range(4):
                total[4 * piece + i] = builder.fadd(total[4 * piece + i], builder.extract_value(values, i))
    nb.call(context, builder, barrier.warp_sync, (), ())  # lanes of the warp arrive for all of it next
    return assembled(builder, tile, total)
