"""Stores to the shared memory of another CTA on the GPU: st.async of a lane's two columns, or its
one element, of a row."""

from __future__ import annotations

from typing import Any

from ...core import numba as nb
from ...core.formula_cuda import Value
from ...core.numba import I32
from ...core.op import cuda_meaning, is_none, predicated
from ...intrinsics import barrier as named
from ...intrinsics import cluster, mbarrier
from ...plan.allocations import ARRIVALS_A_WARPGROUP
from ...plan.cluster_ranks import rank_of
from ...plan.context_cuda import cluster_place
from ..tiles import scattered_shared_cuda as anywhere
from ..tiles.shared_tiles_cuda import addresses, in_place
from ..tiles.tile_cuda import TileType, cast_to_store, registers, to_words, words
from ..tiles.words_cuda import vector_of
from . import remote as source
from .copies import check_operands
from .scratch_cuda import barrier_address


@cuda_meaning(source.async_store_smem)
def _async_store_smem(
    np_: Any,
    src: Any,
    dst: Any,
    barrier: Any,
    cluster_idx: Any,
    cluster_dim: Any,
) -> Any:
    check_operands(source.SEND, dst=("tile", dst), barrier=("barrier", barrier))
    tile, convert = cast_to_store(src, dst.dtype)
    axis, dims = source.check(np_, tile, dst, barrier, cluster_idx, cluster_dim), np_.unit.cluster
    sent = TileType(source.sent_form(tile.form))
    builder, args = yield
    if not np_.computes:
        return
    own, arrival = args[2], barrier_address(builder, barrier, args[3])
    lane = builder.and_(builder.thread_index(), 31)
    nbytes = nb.const(dst.layout.nbytes // ARRIVALS_A_WARPGROUP)
    value = builder.cast(convert(builder, args[1]), tile, sent)
    # lane 0 arrives for the accesses of the other lanes too
    builder.issue(named.warp_sync)

    def send_to(index: Any, idle: Any, first: Any) -> None:
        """Send to the CTA with this index. Lanes arrive unless `idle`, and send if `first`."""
        place = cluster_place(builder, dims)
        place[axis] = Value(builder, index)
        to = rank_of(place, dims).value
        # the other CTA's tile and barrier, as addresses in the cluster's address window
        there, landed = (builder.issue(cluster.map_shared, at, to) for at in (own, arrival))
        _, emit = predicated(mbarrier.arrive_expect_tx_remote)(I32, I32, I32)
        emit(builder, [landed, nbytes, idle])
        away = builder.sub(there, own)
        if dst.layout.flat:
            at = anywhere.addresses(builder, dst.layout, own, sent, (nb.const(0), nb.const(0)))
            for number, word in enumerate(to_words(builder, sent, registers(builder, sent, value))):
                _send(builder, [builder.add(at(number), away), landed, first], [word])
            return
        held = in_place(builder, dst.layout, words(builder, sent, value))
        for access, at in addresses(builder, dst.layout, own, matrices=False):
            run = [
                builder.bitcast(part, nb.i32)
                for part in held[access.first : access.first + access.count]
            ]
            _send(builder, [builder.add(at, away), landed], run)

    # of the lanes of a quad, which have the same rows of a vector, the first one sends
    first = anywhere.owner(builder, sent.form.record) if dst.layout.flat else None
    first = first and builder.zext(first)
    if not is_none(cluster_idx):
        send_to(builder.cast(args[4], cluster_idx, I32), lane, first)
    elif dst.layout.flat and sent.form.record.copies & 31 == 31:  # each lane sends to one CTA
        sends = builder.icmp_unsigned("<", lane, dims[axis])
        send_to(lane, builder.zext(builder.not_(sends)), builder.zext(sends))
    else:
        for index in range(dims[axis]):
            send_to(nb.const(index), lane, first)


def _send(builder: Any, where: list, words: list) -> None:
    """Emit a store of int32 words. `where` has the address, the address of the mbarrier, and
    optionally whether the lane stores."""
    vector, names = vector_of(len(words), len(where))
    text = (
        f"$gate st.async.weak.shared::cluster.mbarrier::complete_tx::bytes{vector}.b32 [$0], "
        f"{names}, [$1];"
    )
    if len(where) > 2:
        text = f"{{ .reg .pred own; setp.ne.u32 own, $2, 0; @own {text} }}"
    builder.emit_gated(nb.void, [*where, *words], text)
