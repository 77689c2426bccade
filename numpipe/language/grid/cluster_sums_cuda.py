"""Partial sums exchanged within a cluster on the GPU: each lane sends 16 bytes at a time with
st.async, and the CTA's index determines its share."""

from __future__ import annotations

from typing import Any

from ...core import numba as nb
from ...core.numba import I32
from ...core.op import cuda_meaning
from ...intrinsics import barrier, cluster
from ...plan.cluster_ranks import rank_of
from ...plan.context_cuda import ContextType, cluster_place, own_part
from ..memory.scratch_cuda import BarriersType, barrier_address
from ..tiles.layouts import BLOCK
from ..tiles.store_ring_cuda import registers_of
from ..tiles.tile_cuda import InFlightType, TileType, assembled, registers, undefined
from . import cluster_sums as source
from .cluster_sums import SumsPlan
from .partials_cuda import PIECE, add_pieces, lane_offset


class SumsType(nb.FieldsType):
    """The type of an exchange of partial sums, which has the plan; its value has the barriers."""

    np: ContextType
    plan: SumsPlan

    def __post_init__(self) -> None:
        super().__post_init__()
        self.share = TileType(self.plan.share)
        self.ready, self.consumed = (
            BarriersType(self.np, of, of.kind.shape) for of in (self.plan.ready, self.plan.consumed)
        )


nb.struct_model(
    SumsType,
    lambda ty: [("ready", ty.ready), ("consumed", ty.consumed)],
    *("ready", "consumed"),
)


@cuda_meaning(source.reduce_scatter)
def _reduce_scatter(np_: Any, site: Any, acc: Any, axis: Any) -> Any:
    name, unit = nb.literal(axis), np_.unit
    if not isinstance(acc, (TileType, InFlightType)):
        source.check(unit, name, None, str(nb.unliteral(acc)))
    tile = acc.settled("numpipe.combine")
    share = TileType(source.check(unit, name, tile.form, ""))
    alone = unit.sizes[name] == 1
    sums = (
        SumsType(np_, source.plan(unit, name, tile.shape, nb.literal(site)))
        if np_.computes and not alone
        else None
    )
    if sums is not None:
        nb.returns(source.scattered, (sums, tile))
    builder, args = yield share(np_, site, tile, axis)
    if sums is not None:
        ready, consumed = (
            builder.struct(barriers, np=args[0], first=nb.const(0))
            for barriers in (sums.ready, sums.consumed)
        )
        value = builder.struct(sums, ready=ready, consumed=consumed)
        return builder.apply(source.scattered, (sums, tile), (value, args[2]))
    return args[2] if alone else undefined(share)


nb.constant_attributes(SumsType, I32, quarter=lambda ty: ty.plan.quarter)


def _pieces(builder: Any, sums: SumsType) -> Any:
    """Return the shared address of this lane's first float4 in the warpgroup's buffer."""
    lane = lane_offset(builder)
    return builder.add(own_part(builder, sums.np.unit, sums.plan.buffer.memory), lane)


def _shares(builder: Any, sums: SumsType, tile: TileType, value: Any) -> list[list]:
    """Return the registers of each CTA's share of the columns, by the CTA's index along the
    axis."""
    found, columns = registers(builder, tile, value), tile.shape[1] // sums.plan.size
    return [
        [
            register
            for row in range(0, tile.shape[0], BLOCK)
            for register in found[registers_of(tile, row, share * columns, columns)]
        ]
        for share in range(sums.plan.size)
    ]


@cuda_meaning(source.send)
def _send(sums: Any, tile: Any) -> Any:
    plan, size = sums.plan, sums.plan.size
    builder, args = yield sums.share
    place = cluster_place(builder, plan.consumed.cluster)
    own, shares = place[plan.along], _shares(builder, sums, tile, args[1])
    # rotated until this CTA's share comes first, because registers cannot be indexed
    for bit in range((size - 1).bit_length()):
        turned = builder.trunc((own >> bit).value, nb.i1)
        shares = [
            [
                builder.select(turned, *pair)
                for pair in zip(shares[(i + (1 << bit)) % size], shares[i], strict=True)
            ]
            for i in range(size)
        ]
    base = _pieces(builder, sums)
    ready = barrier_address(builder, sums.ready, builder.fields(sums, args[0]).ready)
    for step in range(1, size):
        place[plan.along] = (own + step) % size
        to = rank_of(place, plan.consumed.cluster).value
        buffer, there = (
            builder.issue(cluster.map_shared, address, to)
            for address in (builder.add(base, (step - 1) * plan.region), ready)
        )
        for piece in range(len(shares[step]) // 4):
            builder.emit_gated(
                nb.void,
                [buffer, there, *shares[step][4 * piece : 4 * piece + 4]],
                "$gate st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 "
                f"[$0+{PIECE * piece}], {{$2, $3, $4, $5}}, [$1];",
            )
    return assembled(builder, sums.share, shares[0])


@cuda_meaning(source.add)
def _add(sums: Any, tile: Any) -> Any:
    builder, args = yield tile
    total, base = registers(builder, tile, args[1]), _pieces(builder, sums)
    for region in range(sums.plan.size - 1):
        add_pieces(builder, total, "shared", base, region * sums.plan.region)
    # next, lanes of the warp arrive for all of its lanes
    builder.issue(barrier.warp_sync)
    return assembled(builder, tile, total)
